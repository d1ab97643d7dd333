"""One turn of a context: begun, rendered, sent, and committed before its end goes out."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from replicas.engines.protocol import Output
from replicas.settlement import Settlement
from router.configuration import ContextsConfig
from router.contexts.messages import TOKEN_BYTES, Kind, OpenTurn, TurnResult, Usage
from router.core.errors import ContextsUnavailable, EngineError, WarmpathError
from router.core.types import Tenant
from router.serve.context_client import ContextClient
from serve_app.admission import Admitted
from serve_app.allow_list import Json
from serve_app.body import decode_object
from serve_app.contexts.answers import AnswerReader, DocumentReader, StreamReader
from serve_app.contexts.claims import ObjectClaims
from serve_app.contexts.delta import common_tokens
from serve_app.contexts.document import Line, appended, read
from serve_app.contexts.parameters import (
    SESSION_HEADER,
    context_id,
    expected_turns,
    session_tag,
    wait_s,
)
from serve_app.contexts.serving import Serving
from serve_app.contexts.turn_rules import check_turn, kind_of, with_own_settings
from serve_app.dispatch import Answer, Finish
from serve_app.observe.record import RequestRecord
from serve_app.routing import ClientHints, forbids_storing


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks of a turn; `body` holds only what is new."""

    kind: Kind
    body: Json
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Turns:
    """Runs turns for the generating routes. Keeps nothing between them."""

    client: ContextClient
    config: ContextsConfig
    serving: Serving

    async def begin(self, raw: bytes, headers: Mapping[str, str], record: RequestRecord) -> Answer:
        """Like `Dispatcher.begin`, of the context that the session header names.

        A turn that does not come to its end leaves the context as it was, and free at once.
        """
        asked = await self.serving.run(len(raw), _asked(kind_of(record.route), raw))
        tenant, named = Tenant(record.tenant), context_id(headers[SESSION_HEADER])
        hints = ClientHints(
            frozenset(headers), session_tag(tenant, named), no_store=forbids_storing(headers)
        )
        turn = await self.client.begin_turn(
            tenant,
            named,
            self.serving.admission.model_of(asked.body),
            asked.kind,
            expected_turns(headers),
            wait_s(headers, self.config),
        )
        hints = replace(hints, last_replica=turn.last_replica)
        try:
            return await self._begun(turn, asked, hints, record)
        except BaseException as error:
            await _give_up(self.client, turn, error)
            raise

    async def _begun(
        self, turn: OpenTurn, asked: Asked, hints: ClientHints, record: RequestRecord
    ) -> Answer:
        size_bytes = asked.size_bytes + len(turn.tokens) + len(turn.document)
        admitted = await self.serving.run(size_bytes, self._admitted(turn, asked, record))
        record.ends_with_commit = True
        answer = await self.serving.begin(admitted, hints, record)
        finish = self.serving.dispatchers[admitted.model].finish
        claims = self.serving.claims
        live = LiveTurn(self.client, turn, admitted, record, finish, _lines(asked), claims)
        items = live.items(answer)
        return replace(answer, first=await anext(items), items=items)

    async def _admitted(self, turn: OpenTurn, asked: Asked, record: RequestRecord) -> Admitted:
        document = read(turn.document) if asked.kind is Kind.CHAT else None
        if document is None:
            body = asked.body | {"add_special_tokens": False}
        else:
            body = with_own_settings(asked.body, document)
        tenant = Tenant(record.tenant)
        return await self.serving.admitted(record.route, body, tenant, turn.tokens, document)


@dataclass(frozen=True, slots=True)
class LiveTurn:
    """A turn whose answer has begun. `lines` are the document's, without the answer."""

    client: ContextClient
    turn: OpenTurn
    admitted: Admitted
    record: RequestRecord
    finish: Finish
    lines: list[Line] | None
    claims: ObjectClaims

    async def items(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        """The answer's parts, the end after the commit. Raises `WarmpathError`."""
        reader: AnswerReader = (
            StreamReader() if self.admitted.request.is_stream else DocumentReader()
        )
        try:
            async with aclosing(answer.items):
                if shown := reader.read(answer.first):
                    yield shown
                async for part in answer.items:
                    if shown := reader.read(part):
                        yield shown
            await self.client.commit(self.turn.ticket, self._result(reader))
        except BaseException as error:
            self.record.fail(error)
            await _give_up(self.client, self.turn, error)
            raise
        finally:
            self.finish(self.record)
        yield reader.ending(is_rewritten=self._kept_tokens is not None)

    @property
    def _prompt(self) -> bytes:
        return self.admitted.request.prompts[0]

    @property
    def _kept_tokens(self) -> int | None:
        """None where the prompt continues the whole history."""
        history = self.turn.tokens
        return None if self._prompt.startswith(history) else common_tokens(history, self._prompt)

    def _result(self, reader: AnswerReader) -> TurnResult:
        message = reader.message()
        settlement, output = _settled(self.record)
        kept = self._kept_tokens
        known_bytes = len(self.turn.tokens) if kept is None else kept * TOKEN_BYTES
        lines = [] if self.lines is None else [*self.lines, Line(message, is_answer=True)]
        return TurnResult(
            tail=self._prompt[known_bytes:] + output.seen_tokens,
            document_tail=appended(lines),
            keep_tokens=kept,
            usage=Usage(
                len(self._prompt) // TOKEN_BYTES,
                output.generated_tokens,
                settlement.cached_tokens[0],
            ),
            replica_id=self.record.live.replica_id if self.record.live else None,
            claims=self.claims.of(self.admitted, output.seen_tokens, settlement.block_size),
        )


async def _asked(kind: Kind, raw: bytes) -> Asked:
    """Raises `InvalidRequest`. O(body)."""
    body = decode_object(raw)
    check_turn(kind, body)
    return Asked(kind, body, len(raw))


async def _give_up(client: ContextClient, turn: OpenTurn, error: BaseException) -> None:
    """Who is told of an error finds the context free; who has gone is not waited for."""
    abandoning = client.abandon(turn.ticket)
    if isinstance(error, WarmpathError) and not isinstance(error, ContextsUnavailable):
        await asyncio.shield(abandoning)


def _lines(asked: Asked) -> list[Line] | None:
    messages = asked.body.get("messages")
    if asked.kind is Kind.PROMPT or not isinstance(messages, list):
        return None
    return [Line(message) for message in messages]


def _settled(record: RequestRecord) -> tuple[Settlement, Output]:
    settlement = record.settlement
    if settlement is None or settlement.output is None:
        raise EngineError("The engine did not say what it generated.")
    return settlement, settlement.output
