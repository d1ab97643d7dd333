"""How the suite talks to an engine: requests, answers and KV events, by their public shapes."""

import asyncio
import json
import random
from array import array
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import msgspec
import zmq
import zmq.asyncio

from replicas.engines.protocol import Engine, EngineInfo, EngineReport, EngineRequest, Route

END_OF_REPLAY = b"\xff" * 8
_numbers = count()


class Batch(NamedTuple):
    """One batch of KV events."""

    seq: int
    events: list[dict[str, Any]]


def fresh_prompt(tokens: int) -> list[int]:
    """Ids that no other prompt has, so that nothing of them is cached."""
    draw = random.Random(f"prompt {next(_numbers)}")
    return [draw.randrange(300, 2000) for _ in range(tokens)]


def make_request(
    *prompts: list[int],
    route: Route = Route.COMPLETIONS,
    is_stream: bool = False,
    cache_salt: str | None = None,
    needs_render: bool = False,
    **fields: Any,
) -> EngineRequest:
    """A greedy request for 4 tokens; `fields` are the body's."""
    return EngineRequest(
        request_id=f"test-{next(_numbers)}",
        route=route,
        body=json.dumps(_body(route) | fields).encode(),
        prompts=tuple(array("I", prompt).tobytes() for prompt in prompts),
        cache_salt=cache_salt,
        is_stream=is_stream,
        needs_render=needs_render,
    )


def _body(route: Route) -> dict[str, Any]:
    length = {"max_tokens": 4, "ignore_eos": True}
    match route:
        case Route.CHAT:
            return {"messages": [{"role": "user", "content": "-"}], "temperature": 0} | length
        case Route.COMPLETIONS:
            return {"prompt": "-", "temperature": 0} | length
        case Route.RESPONSES:
            return {"input": "-", "store": False, "temperature": 0}


def cached_tokens(answer: dict[str, Any]) -> int:
    value = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(value, int)
    return value


def texts(answer: dict[str, Any]) -> list[str]:
    """The texts of a completion's choices."""
    return [choice["text"] for choice in answer["choices"]]


async def collect(engine: Engine, request: EngineRequest) -> list[bytes]:
    """The answer's bytes, after which exactly one report must follow."""
    parts, _ = await collect_with_report(engine, request)
    return parts


async def collect_with_report(
    engine: Engine, request: EngineRequest
) -> tuple[list[bytes], EngineReport]:
    async with aclosing(engine.generate(request)) as items:
        *parts, report = [item async for item in items]
    assert isinstance(report, EngineReport)
    answer = [part for part in parts if isinstance(part, bytes)]
    assert len(answer) == len(parts)
    return answer, report


@dataclass(frozen=True, slots=True)
class EngineClient:
    """A running engine and what it said of itself."""

    engine: Engine
    info: EngineInfo

    async def ask(self, *prompts: list[int], **options: Any) -> dict[str, Any]:
        """The one JSON document of a request that is not streamed."""
        (document,) = await collect(self.engine, make_request(*prompts, **options))
        answer: dict[str, Any] = json.loads(document)
        return answer

    async def stream(self, *prompts: list[int], **options: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed request, which must end with `[DONE]`."""
        request = make_request(*prompts, is_stream=True, **options)
        parts = await collect(self.engine, request)
        assert all(part.startswith(b"data: ") and part.endswith(b"\n\n") for part in parts)
        events = b"".join(parts).decode().removesuffix("\n\n").split("\n\n")
        assert events.pop() == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def until_idle(self) -> None:
        await self._until(is_idle=True)

    async def until_busy(self) -> None:
        await self._until(is_idle=False)

    async def _until(self, *, is_idle: bool) -> None:
        """Polls, because the protocol has a count and no event for this."""
        async with asyncio.timeout(1):
            while (self.engine.num_unfinished() == 0) is not is_idle:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def replay(self, first_seq: int) -> list[Batch]:
        """Every batch from `first_seq` on, by the replay socket."""
        context = zmq.asyncio.Context()
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self.info.kv_replay_endpoint)
            await socket.send_multipart((b"", first_seq.to_bytes(8, "big")))
            batches = []
            async with asyncio.timeout(5):
                while (frames := await socket.recv_multipart())[2] != END_OF_REPLAY:
                    batches.append(read_batch(frames[1:]))
        context.term()
        return batches

    async def next_seq(self) -> int:
        return len(await self.replay(0))

    async def next_batch(self) -> Batch:
        """One batch as a subscriber gets it, of requests made meanwhile."""
        context = zmq.asyncio.Context()
        with context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.subscribe(b"")
            socket.connect(self.info.kv_events_endpoint)
            for _ in range(50):  # a subscription takes effect some time after `connect`
                await self.ask(fresh_prompt(2 * self.info.block_size))
                if await socket.poll(100):
                    break
            batch = read_batch(await socket.recv_multipart())
        context.term()
        return batch


def read_batch(frames: list[bytes]) -> Batch:
    """Checks the frames (topic, seq, array of time, events and rank) and returns what they hold."""
    _, seq, payload = frames
    ts, events, rank = msgspec.msgpack.decode(payload)
    assert (len(seq), type(ts), rank) == (8, float, 0)
    return Batch(int.from_bytes(seq, "big"), events)


def stored_runs(batches: list[Batch]) -> list[dict[str, Any]]:
    return [e for batch in batches for e in batch.events if e["type"] == "BlockStored"]


def stored_tokens(batches: list[Batch]) -> list[int]:
    """Follows the one chain of stored blocks from its root, and returns its token ids."""
    runs = {run["parent_block_hash"]: run for run in stored_runs(batches)}
    tokens, parent = [], None
    while parent in runs:
        run = runs.pop(parent)
        tokens += run["token_ids"]
        parent = run["block_hashes"][-1]
    assert not runs
    return tokens
