"""A context's first prompt: rendered, prefilled once, stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.configuration import ContextsConfig
from router.contexts.messages import TOKEN_BYTES, ContextView, Kind, NewContext, Usage
from router.core.errors import InvalidRequest
from router.core.types import Tenant
from router.serve.context_client import ContextClient
from serve_app.admission import Admitted
from serve_app.allow_list import ApiRoute, Json
from serve_app.body import decode_object
from serve_app.contexts.document import Settings, opening
from serve_app.contexts.parameters import metadata, ttl_s
from serve_app.contexts.serving import Serving
from serve_app.contexts.turn_rules import check_prompt
from serve_app.observe.record import RequestRecord
from serve_app.routing import ClientHints, forbids_storing

_ONE_TOKEN = {"max_tokens": 1, "temperature": 0}
"""An engine generates at least one; it is thrown away."""

_KEPT = {
    Kind.PROMPT: ("model", "prompt", "add_special_tokens", "cache_salt"),
    Kind.CHAT: ("model", "messages", "tools", "chat_template_kwargs", "cache_salt"),
}


@dataclass(frozen=True, slots=True)
class Creation:
    client: ContextClient
    config: ContextsConfig
    serving: Serving

    async def create(
        self,
        raw: bytes,
        headers: Mapping[str, str],
        record: RequestRecord,
    ) -> ContextView:
        """Durable when it returns, and its KV stored, if that does not take too long.

        Sets the record's route to the one that prefills.
        """
        body, kind = await self.serving.run(len(raw), _asked(raw))
        ttl, pairs = ttl_s(body, headers, self.config), metadata(body)
        tenant = Tenant(record.tenant)
        record.route = ApiRoute.CHAT if kind is Kind.CHAT else ApiRoute.COMPLETIONS
        first = _first_request(kind, body)
        admitted = await self.serving.run(
            len(raw), self.serving.admitted(record.route, first, tenant, b"", None)
        )
        hints = ClientHints(no_store=forbids_storing(headers))
        answer = await self.serving.begin(admitted, hints, record)
        await answer.whole()
        new = NewContext(
            model=admitted.model,
            kind=kind,
            tokens=admitted.request.prompts[0],
            document=_document(kind, body),
            ttl_s=self.config.default_ttl_s if ttl is None else ttl,
            metadata=pairs or {},
            usage=_usage(admitted, record),
            replica_id=record.live.replica_id if record.live else None,
            claims=self._claims(admitted, hints, record),
        )
        view = await self.client.create(tenant, new)
        return await self.serving.stored.settled(view, self.config.save_timeout_s)

    def _claims(self, admitted: Admitted, hints: ClientHints, record: RequestRecord) -> bytes:
        """Nothing where the client forbids to keep it."""
        settlement = record.settlement
        if settlement is None or hints.no_store:
            return b""
        return self.serving.claims.of(admitted, b"", settlement.block_size)


async def _asked(raw: bytes) -> tuple[Json, Kind]:
    """Raises `InvalidRequest`. O(body)."""
    body = decode_object(raw)
    return body, _kind(body)


def _kind(body: Json) -> Kind:
    has_prompt, has_messages = (body.get(name) is not None for name in ("prompt", "messages"))
    if has_prompt == has_messages:
        raise InvalidRequest("Give either 'prompt' or 'messages'.", param="prompt")
    if has_messages:
        return Kind.CHAT
    check_prompt(body["prompt"])
    return Kind.PROMPT


def _first_request(kind: Kind, body: Json) -> Json:
    kept = {name: body[name] for name in _KEPT[kind] if body.get(name) is not None}
    shape = {"add_generation_prompt": False} if kind is Kind.CHAT else {}
    return kept | shape | _ONE_TOKEN


def _document(kind: Kind, body: Json) -> bytes:
    if kind is Kind.PROMPT:
        return b""
    messages: Any = body["messages"]
    tools: Any = body.get("tools")
    arguments: Any = body.get("chat_template_kwargs")
    return opening(Settings(tools or None, arguments or None), messages)


def _usage(admitted: Admitted, record: RequestRecord) -> Usage:
    cached = record.settlement.cached_tokens[0] if record.settlement else 0
    return Usage(len(admitted.request.prompts[0]) // TOKEN_BYTES, 0, cached)
