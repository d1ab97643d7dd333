"""What every engine promises to a replica, whatever is behind it: shapes and counts, not texts."""

import asyncio
import json
import random
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from replicas.engines.protocol import Engine, EngineInfo, EngineRequest, Route
from replicas.engines.sim import SimEngine
from router.configuration import ModelConfig, SimConfig
from router.core.errors import EngineDead, RequestRejected

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "under-test"
BLOCK_SIZE = 32
MAX_MODEL_LEN = 1024
_numbers = count()


def sim_engine() -> Engine:
    config = SimConfig(
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        prefill_ms_per_token=0.001,
        prefill_base_ms=0.1,
        decode_ms_per_token=0.5,
    )
    return SimEngine(config, MODEL)


def vllm_engine() -> Engine:
    from replicas.engines.vllm import open_engine

    engine_args = {"block_size": BLOCK_SIZE, "max_model_len": MAX_MODEL_LEN}
    return open_engine(ModelConfig(name=MODEL, engine="vllm", engine_args=engine_args))


class Started(NamedTuple):
    engine: Engine
    info: EngineInfo


ENGINES = [
    pytest.param(sim_engine, id="sim"),
    pytest.param(vllm_engine, id="vllm", marks=[pytest.mark.vllm, pytest.mark.slow]),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def started(request: pytest.FixtureRequest) -> AsyncIterator[Started]:
    make: Callable[[], Engine] = request.param
    engine = make()
    info = await engine.start()
    yield Started(engine, info)
    await engine.stop()


@pytest.fixture
def engine(started: Started) -> Engine:
    return started.engine


@pytest.fixture
def info(started: Started) -> EngineInfo:
    return started.info


def fresh_prompt(tokens: int) -> list[int]:
    """Ids that no other test uses, so that nothing of them is cached."""
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
    body: dict[str, Any] = {"model": MODEL, "temperature": 0}
    if route is Route.CHAT:
        body |= {"messages": [{"role": "user", "content": "unused"}]}
    elif route is Route.RESPONSES:
        body |= {"input": "unused", "store": False}
    else:
        body |= {"prompt": "unused"}
    if route is not Route.RESPONSES:
        body |= {"max_tokens": 4, "ignore_eos": True}
    return EngineRequest(
        request_id=f"test-{next(_numbers)}",
        route=route,
        body=json.dumps(body | fields).encode(),
        prompts=tuple(array("I", prompt).tobytes() for prompt in prompts),
        cache_salt=cache_salt,
        is_stream=is_stream,
        needs_render=needs_render,
    )


async def collect(engine: Engine, request: EngineRequest) -> list[bytes]:
    async with aclosing(engine.generate(request)) as parts:
        return [part async for part in parts]


async def ask(engine: Engine, *prompts: list[int], **options: Any) -> dict[str, Any]:
    """The one JSON document of a request that is not streamed."""
    (document,) = await collect(engine, make_request(*prompts, **options))
    answer: dict[str, Any] = json.loads(document)
    return answer


async def stream(engine: Engine, *prompts: list[int], **options: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed request, which must end with `[DONE]`."""
    parts = await collect(engine, make_request(*prompts, is_stream=True, **options))
    assert all(part.startswith(b"data: ") and part.endswith(b"\n\n") for part in parts)
    events = b"".join(parts).decode().removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def cached_tokens(answer: dict[str, Any]) -> int:
    value = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(value, int)
    return value


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


async def until_idle(engine: Engine) -> None:
    async with asyncio.timeout(1):
        while engine.num_unfinished():
            await asyncio.sleep(0.01)


# --- what it says of itself ---------------------------------------------------------------------


async def test_info_describes_the_running_engine(info: EngineInfo) -> None:
    assert (info.model, info.block_size, info.max_model_len) == (MODEL, BLOCK_SIZE, MAX_MODEL_LEN)
    assert info.total_blocks * info.block_size >= info.max_model_len
    assert info.hash_algorithm


async def test_is_healthy_and_idle_between_requests(engine: Engine) -> None:
    await until_idle(engine)
    await engine.check_health()


# --- shapes -------------------------------------------------------------------------------------


async def test_completion_document_has_choice_and_usage(engine: Engine) -> None:
    prompt = fresh_prompt(40)
    answer = await ask(engine, prompt, max_tokens=5)
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion"
    assert answer["model"] == MODEL
    assert choice["index"] == 0
    assert choice["text"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (40, 5)
    assert usage["total_tokens"] == 45


async def test_chat_document_has_message_and_usage(engine: Engine) -> None:
    answer = await ask(engine, fresh_prompt(40), route=Route.CHAT, max_tokens=5)
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == 40
    assert answer["usage"]["completion_tokens"] == 5


async def test_max_completion_tokens_bounds_a_chat_answer(engine: Engine) -> None:
    answer = await ask(
        engine, fresh_prompt(10), route=Route.CHAT, max_tokens=None, max_completion_tokens=3
    )
    assert answer["usage"]["completion_tokens"] == 3


async def test_chat_stream_opens_with_the_role_and_ends_with_the_reason(engine: Engine) -> None:
    chunks = await stream(engine, fresh_prompt(40), route=Route.CHAT)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    assert not choices[0]["delta"]["content"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    assert all("logprobs" in choice for choice in choices)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
async def test_stream_usage_comes_last_and_without_choices(engine: Engine, route: Route) -> None:
    options = {"stream_options": {"include_usage": True}}
    chunks = await stream(engine, fresh_prompt(40), route=route, **options)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 40
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert cached_tokens(chunks[-1]) == 0
    assert not any(chunk.get("usage") for chunk in chunks[:-1])


async def test_stream_has_no_usage_unless_asked(engine: Engine) -> None:
    chunks = await stream(engine, fresh_prompt(40))
    assert not any(chunk.get("usage") for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


async def test_stream_and_document_say_the_same(engine: Engine) -> None:
    prompt = fresh_prompt(40)
    document = await ask(engine, prompt, max_tokens=8)
    chunks = await stream(engine, prompt, max_tokens=8)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == texts(document)[0]


async def test_streams_token_by_token(engine: Engine) -> None:
    request = make_request(fresh_prompt(20), is_stream=True, max_tokens=20)
    assert len(await collect(engine, request)) > 5


async def test_response_document_holds_one_message(engine: Engine) -> None:
    answer = await ask(engine, fresh_prompt(40), route=Route.RESPONSES, max_output_tokens=16)
    assert answer["object"] == "response"
    assert [item["type"] for item in answer["output"]] == ["message"]
    assert answer["output"][0]["content"][0]["type"] == "output_text"
    assert answer["usage"]["input_tokens"] == 40
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 0


async def test_response_stream_runs_from_created_to_completed(engine: Engine) -> None:
    request = make_request(
        fresh_prompt(40), route=Route.RESPONSES, is_stream=True, max_output_tokens=16
    )
    raw = b"".join(await collect(engine, request)).decode()
    lines = [event.split("\n") for event in raw.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [line.removeprefix("event: ") for line, _ in lines] == [e["type"] for e in events]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    said = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert said == events[-1]["response"]["output"][0]["content"][0]["text"]


async def test_chat_logprobs_name_every_token(engine: Engine) -> None:
    answer = await ask(
        engine, fresh_prompt(20), route=Route.CHAT, max_tokens=3, logprobs=True, top_logprobs=2
    )
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 3
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


async def test_completion_logprobs_name_every_token(engine: Engine) -> None:
    answer = await ask(engine, fresh_prompt(20), max_tokens=3, logprobs=1)
    logprobs = answer["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {3}
    assert logprobs["text_offset"][0] == 0


async def test_echo_repeats_the_text_of_the_prompt(engine: Engine) -> None:
    said = "the prompt itself"
    answer = await ask(engine, fresh_prompt(8), prompt=said, echo=True, needs_render=True)
    assert texts(answer)[0].startswith(said)
    assert len(texts(answer)[0]) > len(said)


async def test_stop_string_ends_the_answer_before_it(engine: Engine) -> None:
    prompt = fresh_prompt(20)
    (whole,) = texts(await ask(engine, prompt, max_tokens=12))
    stop = whole[len(whole) // 2 :][:3]
    answer = await ask(engine, prompt, max_tokens=12, stop=[stop])
    (choice,) = answer["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_stop_string_never_shows_in_a_stream(engine: Engine) -> None:
    prompt = fresh_prompt(20)
    (whole,) = texts(await ask(engine, prompt, max_tokens=12))
    stop = whole[len(whole) // 2 :][:3]
    chunks = await stream(engine, prompt, max_tokens=12, stop=stop)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole[: whole.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


# --- several prompts, several choices -----------------------------------------------------------


async def test_choices_are_numbered_prompt_by_prompt(engine: Engine) -> None:
    """Choice i * n + j is the j-th of prompt i: at temperature 0 all of one prompt are equal."""
    prompts = [fresh_prompt(30) for _ in range(3)]
    alone = [texts(await ask(engine, prompt))[0] for prompt in prompts]
    answer = await ask(engine, *prompts, n=2)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert texts(answer) == [text for text in alone for _ in range(2)]
    assert answer["usage"]["prompt_tokens"] == 90
    assert answer["usage"]["completion_tokens"] == 6 * 4


async def test_streamed_choices_carry_the_same_numbers(engine: Engine) -> None:
    prompts = [fresh_prompt(30) for _ in range(2)]
    document = await ask(engine, *prompts, n=2)
    said = dict.fromkeys(range(4), "")
    for chunk in await stream(engine, *prompts, n=2):
        for choice in chunk["choices"]:
            said[choice["index"]] += choice["text"]
    assert list(said.values()) == texts(document)


async def test_chat_gives_n_choices(engine: Engine) -> None:
    answer = await ask(engine, fresh_prompt(30), route=Route.CHAT, n=3, temperature=1, seed=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 30
    assert answer["usage"]["completion_tokens"] == 12


async def test_concurrent_requests_get_their_own_answers(engine: Engine) -> None:
    prompts = [fresh_prompt(30) for _ in range(8)]
    alone = [texts(await ask(engine, prompt))[0] for prompt in prompts]
    together = await asyncio.gather(*(ask(engine, prompt) for prompt in prompts))
    assert [texts(answer)[0] for answer in together] == alone


# --- determinism --------------------------------------------------------------------------------


async def test_greedy_text_depends_on_every_prompt_token(engine: Engine) -> None:
    prompt = fresh_prompt(100)
    changed = [prompt[0] + 1, *prompt[1:]]
    first, again, other = [
        texts(await ask(engine, ids, max_tokens=12)) for ids in (prompt, prompt, changed)
    ]
    assert first == again
    assert first != other


async def test_a_seed_repeats_a_sampled_answer(engine: Engine) -> None:
    prompt = fresh_prompt(30)
    options = {"temperature": 1, "max_tokens": 12}
    first, again, other = [
        texts(await ask(engine, prompt, seed=seed, **options)) for seed in (7, 7, 8)
    ]
    assert first == again
    assert first != other


# --- the prefix cache ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(3 * BLOCK_SIZE + 1, 3 * BLOCK_SIZE), (3 * BLOCK_SIZE, 2 * BLOCK_SIZE), (BLOCK_SIZE - 1, 0)],
    ids=["one over", "aligned", "under one block"],
)
async def test_second_prompt_reuses_full_blocks_but_never_its_last_token(
    engine: Engine, tokens: int, expected: int
) -> None:
    prompt = fresh_prompt(tokens)
    cold, warm = await ask(engine, prompt), await ask(engine, prompt)
    assert (cached_tokens(cold), cached_tokens(warm)) == (0, expected)
    assert texts(cold) == texts(warm)


async def test_streamed_usage_reports_cached_tokens_too(engine: Engine) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 5)
    await ask(engine, prompt)
    chunks = await stream(engine, prompt, route=Route.CHAT, stream_options={"include_usage": True})
    assert cached_tokens(chunks[-1]) == 2 * BLOCK_SIZE


async def test_answers_are_reused_as_part_of_the_next_prompt(
    engine: Engine, info: EngineInfo
) -> None:
    """Blocks that generation filled count as prefix; the last token's KV was never computed."""
    prompt = fresh_prompt(BLOCK_SIZE)
    events = await replay(info, 0)
    await ask(engine, prompt, max_tokens=2 * BLOCK_SIZE)
    stored = stored_tokens(await replay(info, len(events)), root=prompt)
    assert stored[:BLOCK_SIZE] == prompt
    answer = await ask(engine, [*stored, *fresh_prompt(5)])
    assert cached_tokens(answer) == len(stored) == 2 * BLOCK_SIZE


async def test_a_salt_keeps_caches_apart(engine: Engine) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    salts = ["tenant-a", "tenant-b", None, "tenant-a"]
    reused = [cached_tokens(await ask(engine, prompt, cache_salt=salt)) for salt in salts]
    assert reused == [0, 0, 0, 2 * BLOCK_SIZE]


async def test_a_salt_does_not_change_the_text(engine: Engine) -> None:
    prompt = fresh_prompt(40)
    plain, salted = await ask(engine, prompt), await ask(engine, prompt, cache_salt="tenant-a")
    assert texts(plain) == texts(salted)


async def test_reset_drops_what_was_cached(engine: Engine) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    await ask(engine, prompt)
    await until_idle(engine)
    assert await engine.reset_prefix_cache()
    assert cached_tokens(await ask(engine, prompt)) == 0


async def test_reset_is_refused_while_requests_hold_blocks(engine: Engine) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    request = make_request(prompt, is_stream=True, max_tokens=500)
    async with aclosing(engine.generate(request)) as parts:
        await anext(parts)
        assert not await engine.reset_prefix_cache()
    assert cached_tokens(await ask(engine, prompt)) == 2 * BLOCK_SIZE


# --- endings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("tokens", "fields"),
    [
        (MAX_MODEL_LEN + 1, {}),
        (10, {"max_tokens": MAX_MODEL_LEN + 1}),
        (10, {"temperature": "hot"}),
        (10, {"n": 0}),
    ],
    ids=["prompt too long", "answer too long", "wrong type", "no choices"],
)
async def test_a_bad_request_is_refused_before_the_first_item(
    engine: Engine, tokens: int, fields: dict[str, Any], is_stream: bool
) -> None:
    request = make_request(fresh_prompt(tokens), is_stream=is_stream, **fields)
    with pytest.raises(RequestRejected) as refusal:
        await anext(engine.generate(request))
    assert 400 <= refusal.value.status < 500
    assert refusal.value.message
    await until_idle(engine)


async def test_closing_a_stream_frees_the_engine(engine: Engine) -> None:
    request = make_request(fresh_prompt(100), is_stream=True, max_tokens=900)
    parts = engine.generate(request)
    await anext(parts)
    assert engine.num_unfinished() > 0
    await parts.aclose()
    await until_idle(engine)
    assert await engine.reset_prefix_cache()


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("fields", [{}, {"n": 3}], ids=["one choice", "three choices"])
async def test_cancelling_the_task_frees_the_engine(
    engine: Engine, is_stream: bool, fields: dict[str, Any]
) -> None:
    request = make_request(fresh_prompt(100), is_stream=is_stream, max_tokens=900, **fields)
    task = asyncio.create_task(collect(engine, request))
    async with asyncio.timeout(5):
        while not engine.num_unfinished():
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_idle(engine)
    assert await engine.reset_prefix_cache()


# --- KV events ----------------------------------------------------------------------------------


class Batch(NamedTuple):
    seq: int
    events: list[dict[str, Any]]


def read_batch(topic: bytes, seq: bytes, payload: bytes) -> Batch:
    """Checks the frame and returns what it holds: an array of time, events and rank."""
    ts, events, rank = msgspec.msgpack.decode(payload)
    assert (len(seq), type(ts), rank) == (8, float, 0)
    return Batch(int.from_bytes(seq, "big"), events)


async def replay(info: EngineInfo, first_seq: int) -> list[Batch]:
    """Every batch from `first_seq` on, by the replay socket."""
    context = zmq.asyncio.Context()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(info.kv_replay_endpoint)
        await socket.send_multipart((b"", first_seq.to_bytes(8, "big")))
        batches = []
        async with asyncio.timeout(5):
            while (frames := await socket.recv_multipart())[2] != b"\xff" * 8:
                batches.append(read_batch(*frames[1:]))
    context.term()
    return batches


def stored_runs(batches: list[Batch]) -> list[dict[str, Any]]:
    return [e for batch in batches for e in batch.events if e["type"] == "BlockStored"]


def stored_tokens(batches: list[Batch], root: list[int]) -> list[int]:
    """Follows the chain of stored blocks that starts with `root`, and returns its token ids."""
    runs = stored_runs(batches)
    run = next(r for r in runs if r["parent_block_hash"] is None and starts(r, root))
    tokens = list(run["token_ids"])
    while run := next((r for r in runs if r["parent_block_hash"] == run["block_hashes"][-1]), {}):
        tokens += run["token_ids"]
    return tokens


def starts(run: dict[str, Any], root: list[int]) -> bool:
    shared = min(len(root), len(run["token_ids"]))
    return bool(run["token_ids"][:shared] == root[:shared])


async def test_events_name_the_blocks_of_a_prompt_and_their_chain(
    engine: Engine, info: EngineInfo
) -> None:
    prompt = fresh_prompt(3 * BLOCK_SIZE + 5)
    before = await replay(info, 0)
    await ask(engine, prompt)
    batches = await replay(info, len(before))
    assert stored_tokens(batches, root=prompt) == prompt[: 3 * BLOCK_SIZE]
    for run in stored_runs(batches):
        assert run["block_size"] == BLOCK_SIZE
        assert run["medium"] == "GPU"
        assert len(run["token_ids"]) == BLOCK_SIZE * len(run["block_hashes"])


async def test_sequence_numbers_have_no_gap(engine: Engine, info: EngineInfo) -> None:
    await ask(engine, fresh_prompt(2 * BLOCK_SIZE))
    batches = await replay(info, 0)
    assert [batch.seq for batch in batches] == list(range(len(batches)))
    assert [batch.seq for batch in await replay(info, 1)] == list(range(1, len(batches)))


async def test_a_prefix_in_the_cache_is_not_announced_again(
    engine: Engine, info: EngineInfo
) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    await ask(engine, prompt, max_tokens=1)
    before = await replay(info, 0)
    await ask(engine, prompt, max_tokens=1)
    assert not stored_runs(await replay(info, len(before)))


async def test_the_same_prefix_has_the_same_hashes_and_a_salt_changes_them(
    engine: Engine, info: EngineInfo
) -> None:
    shared = fresh_prompt(BLOCK_SIZE)
    hashes = []
    for salt in (None, None, "tenant-a"):
        await until_idle(engine)
        assert await engine.reset_prefix_cache()
        before = await replay(info, 0)
        await ask(engine, shared + fresh_prompt(1), cache_salt=salt)
        runs = stored_runs(await replay(info, len(before)))
        hashes.append(runs[0]["block_hashes"][0])
        assert runs[0].get("extra_keys") in ([[salt]] if salt else None, None)
    plain, again, salted = hashes
    assert plain == again
    assert plain != salted


async def test_a_salt_is_named_at_the_root(engine: Engine, info: EngineInfo) -> None:
    before = await replay(info, 0)
    await ask(engine, fresh_prompt(2 * BLOCK_SIZE + 1), cache_salt="tenant-a")
    (run, *_) = stored_runs(await replay(info, len(before)))
    assert run["extra_keys"] == [["tenant-a"], None]


async def test_a_reset_is_announced_with_the_next_pass(engine: Engine, info: EngineInfo) -> None:
    await ask(engine, fresh_prompt(BLOCK_SIZE + 1))
    await until_idle(engine)
    before = await replay(info, 0)
    assert await engine.reset_prefix_cache()
    await ask(engine, fresh_prompt(BLOCK_SIZE + 1))
    events = [e["type"] for batch in await replay(info, len(before)) for e in batch.events]
    assert events[0] == "AllBlocksCleared"


async def test_subscribers_get_batches_as_they_happen(engine: Engine, info: EngineInfo) -> None:
    context = zmq.asyncio.Context()
    with context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe(b"")
        socket.connect(info.kv_events_endpoint)
        for _ in range(50):  # a subscription takes effect some time after `connect`
            await ask(engine, fresh_prompt(BLOCK_SIZE))
            if await socket.poll(100):
                break
        batch = read_batch(*await socket.recv_multipart())
        replayed = await replay(info, batch.seq)
    context.term()
    assert replayed[0] == batch


async def test_only_the_owner_can_reach_the_event_sockets(info: EngineInfo) -> None:
    for endpoint in (info.kv_events_endpoint, info.kv_replay_endpoint):
        assert endpoint is not None and endpoint.startswith("ipc://")
        assert Path(endpoint.removeprefix("ipc://")).parent.stat().st_mode & 0o077 == 0


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ENGINES)
async def test_an_engine_that_does_not_run_is_dead(make: Callable[[], Engine]) -> None:
    engine = make()
    with pytest.raises(EngineDead):
        await engine.check_health()
    with pytest.raises(EngineDead):
        await anext(engine.generate(make_request(fresh_prompt(4))))
    await engine.stop()
    await engine.stop()
