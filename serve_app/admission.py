"""From a raw body to an engine request: decode, rules, salt, validation, token ids.

Where a body is long, on the render loop. Whatever is the client's fault is known when it returns,
so that it is answered before anything else happens.
"""

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from replicas.engines.protocol import EngineRequest, Route
from router.core.errors import InvalidRequest, NotFound
from router.core.transfer import Keeping
from router.core.types import Tenant
from serve_app.allow_list import ApiRoute, Json, allow
from serve_app.body import decode_object
from serve_app.content import check_content
from serve_app.errors import CountFault
from serve_app.prompt_blocks import PromptBlocks, blind, hash_prompts, reads_cache
from serve_app.salts import CacheSalts

logger = logging.getLogger(__name__)

ENGINE_ROUTES = {
    ApiRoute.CHAT: Route.CHAT,
    ApiRoute.COMPLETIONS: Route.COMPLETIONS,
    ApiRoute.RESPONSES: Route.RESPONSES,
}

TOKEN_BYTES = 4
BODY_BYTES_PER_TOKEN = 4
"""An estimate, for load alone, of prompts that were not rendered here."""


class PromptRenderer(Protocol):
    """What admission needs of `serve_app.rendering.Renderer`."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def accepts_media(self) -> bool: ...

    def validated(self, route: ApiRoute, body: Json) -> Any: ...

    async def render(self, route: ApiRoute, body: Json, request: Any) -> tuple[bytes, ...]: ...

    async def tokenize(self, body: Json) -> Json: ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may go to a replica of `model`. `user` is the body's field of that name.

    `keeping`: what its KV is worth keeping for, unless its client forbids it.
    """

    model: str
    tenant: Tenant
    request: EngineRequest
    blocks: PromptBlocks
    expected_output_tokens: int | None = None
    user: str | None = None
    keeping: Keeping = Keeping.REUSE


class Admission:
    """`renderers` has every served model; None where its tokenizer could not be loaded.

    `block_size` says of how many tokens the blocks of a model's replicas are.
    """

    def __init__(
        self,
        renderers: Mapping[str, PromptRenderer | None],
        salts: CacheSalts,
        block_size: Callable[[str], int],
        count: CountFault,
    ) -> None:
        self._block_size = block_size
        self._renderers = renderers
        self._salts = salts
        self._count = count

    async def admit(self, route: ApiRoute, raw: bytes, tenant: Tenant) -> Admitted:
        """Raises `InvalidRequest` or `NotFound`. O(body)."""
        return await self.admit_body(route, decode_object(raw), tenant)

    async def admit_body(
        self,
        route: ApiRoute,
        body: Json,
        tenant: Tenant,
        turn: PromptRenderer | None = None,
    ) -> Admitted:
        """Like `admit`; a context's `turn` renders what the body continues."""
        model = self.model_of(body)
        renderer = turn or self._renderers[model]
        allowed = allow(route, body)
        has_media = check_content(
            route, allowed.body, accepts_media=renderer is not None and renderer.accepts_media
        )
        request = EngineRequest(
            request_id=uuid.uuid4().hex,
            route=ENGINE_ROUTES[route],
            body=_encoded(allowed.body),
            prompts=(),
            cache_salt=self._salts.salt(tenant, allowed.client_salt),
            is_stream=_is_stream(allowed.body),
            needs_render=has_media or allowed.needs_render,
            reports_tokens=turn is not None,
        )
        request = await self._rendered(renderer, route, allowed.body, request)
        blocks = self._blocks(model, route, allowed.body, request, has_media=has_media)
        user = allowed.body.get("user")
        return Admitted(
            model,
            tenant,
            request,
            blocks,
            _expected_output_tokens(allowed.body),
            user if isinstance(user, str) else None,
            Keeping.REUSE if turn is None else Keeping.CONTEXT,
        )

    async def tokenize(self, raw: bytes) -> Json:
        """The answer of `/tokenize`. Raises `InvalidRequest` or `NotFound`."""
        body = decode_object(raw)
        renderer = self._renderers[self.model_of(body)]
        if renderer is None:
            raise InvalidRequest("This model's tokenizer is not available.", param="model")
        allowed = allow(ApiRoute.TOKENIZE, body).body
        check_content(ApiRoute.TOKENIZE, allowed, accepts_media=renderer.accepts_media)
        return await renderer.tokenize(allowed)

    def model_of(self, body: Json) -> str:
        """The model that `body` names; the only one where it names none."""
        name = body.get("model")
        if name is None and len(self._renderers) == 1:
            return next(iter(self._renderers))
        if not isinstance(name, str):
            raise InvalidRequest("'model' must name a model.", param="model")
        if name not in self._renderers:
            raise unknown_model()
        return name

    def _blocks(
        self, model: str, route: ApiRoute, body: Json, request: EngineRequest, *, has_media: bool
    ) -> PromptBlocks:
        """Beam search makes engine requests of its own, and media are in no token id."""
        block_size, choices = self._block_size(model), _choices(body)
        if has_media or not request.prompts or body.get("use_beam_search"):
            tokens = sum(map(len, request.prompts)) // TOKEN_BYTES
            estimate = tokens or len(request.body) // BODY_BYTES_PER_TOKEN
            return blind(estimate, block_size, choices)
        return hash_prompts(
            request.prompts,
            block_size,
            request.cache_salt,
            choices=choices,
            reads_cache=reads_cache(route, body),
        )

    async def _rendered(
        self, renderer: PromptRenderer | None, route: ApiRoute, body: Json, request: EngineRequest
    ) -> EngineRequest:
        """Without a working renderer the engine renders: served, but blind to its cached prefix."""
        if renderer is None:
            self._count("no_renderer")
            return replace(request, needs_render=True)
        validated = renderer.validated(route, body)
        try:
            return replace(request, prompts=await renderer.render(route, body, validated))
        except InvalidRequest:
            raise
        except Exception:
            logger.exception("request %s could not be rendered here", request.request_id)
            self._count("render_failed")
            return replace(request, needs_render=True)


def unknown_model() -> NotFound:
    return NotFound(
        "The model does not exist or is not served here.", param="model", code="model_not_found"
    )


def _is_stream(body: Json) -> bool:
    stream = body.get("stream")
    if not isinstance(stream, bool | None):
        raise InvalidRequest("'stream' must be true or false.", param="stream")
    return bool(stream)


def _choices(body: Json) -> int:
    """Engine requests of each prompt."""
    n = body.get("n")
    return n if isinstance(n, int) and n > 0 else 1


def _expected_output_tokens(body: Json) -> int | None:
    """The client's limit, which many answers reach."""
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        if isinstance(limit := body.get(name), int):
            return limit
    return None


def _encoded(body: Json) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (OverflowError, RecursionError) as error:
        raise InvalidRequest("The body holds a number that is out of range.") from error
