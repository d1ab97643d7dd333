"""What every engine promises to a replica, whatever is behind it: shapes and counts, not texts."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from replicas.engines.protocol import Engine, Route
from replicas.engines.sim import SimEngine
from router.configuration import ModelConfig, SimConfig
from router.core.errors import EngineDead, RequestRejected
from tests.contract.engine_client import (
    EngineClient,
    cached_tokens,
    collect,
    collect_with_report,
    fresh_prompt,
    make_request,
    stored_runs,
    stored_tokens,
    texts,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "under-test"
BLOCK_SIZE = 32
MAX_MODEL_LEN = 1024


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
    from replicas.engines.vllm.opening import open_engine

    engine_args = {"block_size": BLOCK_SIZE, "max_model_len": MAX_MODEL_LEN}
    return open_engine(ModelConfig(name=MODEL, engine="vllm", engine_args=engine_args))


ENGINES = [
    pytest.param(sim_engine, id="sim"),
    pytest.param(vllm_engine, id="vllm", marks=pytest.mark.vllm),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[EngineClient]:
    make: Callable[[], Engine] = request.param
    engine = make()
    yield EngineClient(engine, await engine.start())
    await engine.stop()


# --- what it says of itself ---------------------------------------------------------------------


async def test_info_describes_the_running_engine(client: EngineClient) -> None:
    info = client.info
    assert (info.model, info.block_size, info.max_model_len) == (MODEL, BLOCK_SIZE, MAX_MODEL_LEN)
    assert info.total_blocks * info.block_size >= info.max_model_len
    assert info.hash_algorithm


async def test_is_healthy_and_idle_between_requests(client: EngineClient) -> None:
    await client.until_idle()
    await client.engine.check_health()


# --- shapes -------------------------------------------------------------------------------------


async def test_completion_document_has_choice_and_usage(client: EngineClient) -> None:
    prompt = fresh_prompt(40)
    answer = await client.ask(prompt, max_tokens=5)
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


async def test_chat_document_has_message_and_usage(client: EngineClient) -> None:
    answer = await client.ask(fresh_prompt(40), route=Route.CHAT, max_tokens=5)
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert isinstance(choice["message"]["content"], str)
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == 40
    assert answer["usage"]["completion_tokens"] == 5


async def test_max_completion_tokens_bounds_a_chat_answer(client: EngineClient) -> None:
    answer = await client.ask(
        fresh_prompt(10), route=Route.CHAT, max_tokens=None, max_completion_tokens=3
    )
    assert answer["usage"]["completion_tokens"] == 3


async def test_chat_stream_opens_with_the_role_and_ends_with_the_reason(
    client: EngineClient,
) -> None:
    chunks = await client.stream(fresh_prompt(40), route=Route.CHAT)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    assert not choices[0]["delta"]["content"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    assert all("logprobs" in choice for choice in choices)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
async def test_stream_usage_comes_last_and_without_choices(
    client: EngineClient, route: Route
) -> None:
    options = {"stream_options": {"include_usage": True}}
    chunks = await client.stream(fresh_prompt(40), route=route, **options)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 40
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert cached_tokens(chunks[-1]) == 0
    assert not any(chunk.get("usage") for chunk in chunks[:-1])


async def test_stream_has_no_usage_unless_asked(client: EngineClient) -> None:
    chunks = await client.stream(fresh_prompt(40))
    assert not any(chunk.get("usage") for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


async def test_stream_and_document_say_the_same(client: EngineClient) -> None:
    prompt = fresh_prompt(40)
    document = await client.ask(prompt, max_tokens=8)
    chunks = await client.stream(prompt, max_tokens=8)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == texts(document)[0]


async def test_streams_token_by_token(client: EngineClient) -> None:
    request = make_request(fresh_prompt(20), is_stream=True, max_tokens=20)
    assert len(await collect(client.engine, request)) > 5


async def test_response_document_holds_one_message(client: EngineClient) -> None:
    answer = await client.ask(fresh_prompt(40), route=Route.RESPONSES, max_output_tokens=16)
    assert answer["object"] == "response"
    assert [item["type"] for item in answer["output"]] == ["message"]
    assert answer["output"][0]["content"][0]["type"] == "output_text"
    assert answer["usage"]["input_tokens"] == 40
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 0


async def test_response_stream_runs_from_created_to_completed(client: EngineClient) -> None:
    request = make_request(
        fresh_prompt(40), route=Route.RESPONSES, is_stream=True, max_output_tokens=16
    )
    raw = b"".join(await collect(client.engine, request)).decode()
    lines = [event.split("\n") for event in raw.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert [line.removeprefix("event: ") for line, _ in lines] == [e["type"] for e in events]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    said = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert said == events[-1]["response"]["output"][0]["content"][0]["text"]


async def test_chat_logprobs_name_every_token(client: EngineClient) -> None:
    answer = await client.ask(
        fresh_prompt(20), route=Route.CHAT, max_tokens=3, logprobs=True, top_logprobs=2
    )
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 3
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


async def test_completion_logprobs_name_every_token(client: EngineClient) -> None:
    answer = await client.ask(fresh_prompt(20), max_tokens=3, logprobs=1)
    logprobs = answer["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {3}
    assert logprobs["text_offset"][0] == 0


async def test_echo_repeats_the_text_of_the_prompt(client: EngineClient) -> None:
    said = "the prompt itself"
    answer = await client.ask(fresh_prompt(8), prompt=said, echo=True, needs_render=True)
    assert texts(answer)[0].startswith(said)
    assert len(texts(answer)[0]) > len(said)


async def test_stop_string_ends_the_answer_before_it(client: EngineClient) -> None:
    prompt = fresh_prompt(20)
    (whole,) = texts(await client.ask(prompt, max_tokens=12))
    stop = whole[len(whole) // 2 :][:3]
    answer = await client.ask(prompt, max_tokens=12, stop=[stop])
    (choice,) = answer["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_stop_string_never_shows_in_a_stream(client: EngineClient) -> None:
    prompt = fresh_prompt(20)
    (whole,) = texts(await client.ask(prompt, max_tokens=12))
    stop = whole[len(whole) // 2 :][:3]
    chunks = await client.stream(prompt, max_tokens=12, stop=stop)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole[: whole.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


# --- the ids of an answer -----------------------------------------------------------------------


async def output_ids(client: EngineClient, prompt: list[int], **options: Any) -> list[int]:
    request = replace(make_request(prompt, **options), reports_tokens=True)
    _, report = await collect_with_report(client.engine, request)
    assert report.output is not None
    return array("I", report.output.seen_tokens).tolist()


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_prompt_and_the_reported_ids_are_continued_like_one_answer(
    client: EngineClient, route: Route, is_stream: bool
) -> None:
    prompt = fresh_prompt(40)
    whole = await output_ids(client, prompt, max_tokens=9, route=route, is_stream=is_stream)
    first = await output_ids(client, prompt, max_tokens=4, route=route, is_stream=is_stream)
    rest = await output_ids(client, prompt + first, max_tokens=5, route=route)
    assert (len(first), whole) == (4, first + rest)


async def test_ids_are_reported_only_where_they_are_asked_for(client: EngineClient) -> None:
    _, report = await collect_with_report(client.engine, make_request(fresh_prompt(4)))
    assert report.output is None


async def test_a_stop_token_is_not_among_the_reported_ids(client: EngineClient) -> None:
    prompt = fresh_prompt(20)
    whole = await output_ids(client, prompt, max_tokens=6)
    stop = {"max_tokens": 6, "stop_token_ids": [whole[3]]}
    before = whole[: whole.index(whole[3])]
    assert await output_ids(client, prompt, **stop) == before
    shown = await output_ids(client, prompt, **stop, include_stop_str_in_output=True)
    assert shown == [*before, whole[3]]


async def test_nothing_from_a_stop_string_on_is_among_the_reported_ids(
    client: EngineClient,
) -> None:
    """What was seen before it is kept up to the token that the stop string cuts, at least."""
    prompt = fresh_prompt(20)
    (text,) = texts(await client.ask(prompt, max_tokens=12))
    whole = await output_ids(client, prompt, max_tokens=12)
    stop = text[len(text) // 2 :][:3]
    kept = await output_ids(client, prompt, max_tokens=12, stop=[stop])
    pairs = zip(kept, whole, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert 0 < shared <= len(kept) < len(whole)


# --- several prompts, several choices -----------------------------------------------------------


SAMPLED = {"n": 2, "temperature": 1, "seed": 5}


async def test_choices_are_numbered_prompt_by_prompt(client: EngineClient) -> None:
    """Choice i * n + j is the j-th of prompt i, and each prompt's are as if it had come alone."""
    prompts = [fresh_prompt(30) for _ in range(3)]
    alone = [texts(await client.ask(prompt, **SAMPLED)) for prompt in prompts]
    answer = await client.ask(*prompts, **SAMPLED)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert texts(answer) == [text for pair in alone for text in pair]
    assert answer["usage"]["prompt_tokens"] == 90
    assert answer["usage"]["completion_tokens"] == 6 * 4


async def test_streamed_choices_carry_the_same_numbers(client: EngineClient) -> None:
    prompts = [fresh_prompt(30) for _ in range(2)]
    document = await client.ask(*prompts, **SAMPLED)
    said = dict.fromkeys(range(4), "")
    for chunk in await client.stream(*prompts, **SAMPLED):
        for choice in chunk["choices"]:
            said[choice["index"]] += choice["text"]
    assert list(said.values()) == texts(document)


async def test_chat_gives_n_choices(client: EngineClient) -> None:
    answer = await client.ask(fresh_prompt(30), route=Route.CHAT, n=3, temperature=1, seed=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == 30
    assert answer["usage"]["completion_tokens"] == 12


async def test_concurrent_requests_get_their_own_answers(client: EngineClient) -> None:
    prompts = [fresh_prompt(30) for _ in range(8)]
    alone = [texts(await client.ask(prompt))[0] for prompt in prompts]
    together = await asyncio.gather(*(client.ask(prompt) for prompt in prompts))
    assert [texts(answer)[0] for answer in together] == alone


# --- determinism --------------------------------------------------------------------------------


async def test_greedy_text_depends_on_every_prompt_token(client: EngineClient) -> None:
    prompt = fresh_prompt(100)
    changed = [prompt[0] + 1, *prompt[1:]]
    first, again, other = [
        texts(await client.ask(ids, max_tokens=12)) for ids in (prompt, prompt, changed)
    ]
    assert first == again
    assert first != other


async def test_a_seed_repeats_a_sampled_answer(client: EngineClient) -> None:
    prompt = fresh_prompt(30)
    options = {"temperature": 1, "max_tokens": 12}
    first, again, other = [
        texts(await client.ask(prompt, seed=seed, **options)) for seed in (7, 7, 8)
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
    client: EngineClient, tokens: int, expected: int
) -> None:
    prompt = fresh_prompt(tokens)
    cold, warm = await client.ask(prompt), await client.ask(prompt)
    assert (cached_tokens(cold), cached_tokens(warm)) == (0, expected)
    assert texts(cold) == texts(warm)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_cached_tokens_of_a_list_of_prompts_add_up(
    client: EngineClient, is_stream: bool
) -> None:
    prompts = [fresh_prompt(2 * BLOCK_SIZE + 1) for _ in range(2)]
    await client.ask(*prompts)
    if is_stream:
        answer = (await client.stream(*prompts, stream_options={"include_usage": True}))[-1]
    else:
        answer = await client.ask(*prompts)
    assert cached_tokens(answer) == 4 * BLOCK_SIZE


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
async def test_choices_of_one_prompt_do_not_count_what_they_share_as_cached(
    client: EngineClient, route: Route, is_stream: bool
) -> None:
    """All but the first find the prompt computed, but usage counts the prompt once."""
    options: dict[str, Any] = {"route": route, "n": 3, "temperature": 1}
    for expected in (0, 2 * BLOCK_SIZE):
        prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
        if expected:
            await client.ask(prompt)
        if is_stream:
            usage = {"stream_options": {"include_usage": True}}
            answer = (await client.stream(prompt, **options, **usage))[-1]
        else:
            answer = await client.ask(prompt, **options)
        assert cached_tokens(answer) == expected


async def test_streamed_usage_reports_cached_tokens_too(client: EngineClient) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 5)
    await client.ask(prompt)
    chunks = await client.stream(prompt, route=Route.CHAT, stream_options={"include_usage": True})
    assert cached_tokens(chunks[-1]) == 2 * BLOCK_SIZE


async def test_answers_are_reused_as_part_of_the_next_prompt(client: EngineClient) -> None:
    """Blocks that generation filled count as prefix; the last token's KV was never computed."""
    prompt = fresh_prompt(BLOCK_SIZE)
    before = await client.next_seq()
    await client.ask(prompt, max_tokens=2 * BLOCK_SIZE)
    stored = stored_tokens(await client.replay(before))
    assert stored[:BLOCK_SIZE] == prompt
    answer = await client.ask([*stored, *fresh_prompt(5)])
    assert cached_tokens(answer) == len(stored) == 2 * BLOCK_SIZE


# --- reports ------------------------------------------------------------------------------------

STREAMED = pytest.mark.parametrize("is_stream", [True, False], ids=["streamed", "whole"])


async def reported(client: EngineClient, *prompts: list[int], **options: Any) -> tuple[int, ...]:
    """Cached tokens of each engine request."""
    _, report = await collect_with_report(client.engine, make_request(*prompts, **options))
    return report.cached_tokens


@STREAMED
@pytest.mark.parametrize("route", Route)
async def test_a_report_follows_every_complete_answer(
    client: EngineClient, route: Route, is_stream: bool
) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    options: dict[str, Any] = {"route": route, "is_stream": is_stream}
    assert await reported(client, prompt, **options) == (0,)
    assert await reported(client, prompt, **options) == (2 * BLOCK_SIZE,)


@STREAMED
async def test_a_report_tells_the_prompts_of_a_list_apart(
    client: EngineClient, is_stream: bool
) -> None:
    known, other = fresh_prompt(BLOCK_SIZE + 1), fresh_prompt(3 * BLOCK_SIZE)
    await client.ask(known)
    longer = known[:BLOCK_SIZE] + fresh_prompt(40)
    figures = await reported(client, other, longer, known, is_stream=is_stream)
    assert figures == (0, BLOCK_SIZE, BLOCK_SIZE)


@STREAMED
@pytest.mark.parametrize("max_tokens", [1, 20])
async def test_a_report_has_one_figure_for_each_choice(
    client: EngineClient, is_stream: bool, max_tokens: int
) -> None:
    """The first choice computes the prompt, its siblings find all of it but the last token."""
    prompts = [fresh_prompt(2 * BLOCK_SIZE + 7), fresh_prompt(2 * BLOCK_SIZE)]
    options: dict[str, Any] = {"n": 3, "temperature": 1, "max_tokens": max_tokens}
    figures = await reported(client, *prompts, is_stream=is_stream, **options)
    full, aligned = 2 * BLOCK_SIZE, BLOCK_SIZE
    assert figures == (0, full, full, 0, aligned, aligned)


async def test_a_refused_request_has_no_report(client: EngineClient) -> None:
    items = client.engine.generate(make_request(fresh_prompt(10), temperature="hot"))
    with pytest.raises(RequestRejected):
        await anext(items)
    with pytest.raises(StopAsyncIteration):
        await anext(items)


async def test_a_salt_keeps_caches_apart(client: EngineClient) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    salts = ["tenant-a", "tenant-b", None, "tenant-a"]
    reused = [cached_tokens(await client.ask(prompt, cache_salt=salt)) for salt in salts]
    assert reused == [0, 0, 0, 2 * BLOCK_SIZE]


async def test_a_salt_does_not_change_the_text(client: EngineClient) -> None:
    prompt = fresh_prompt(40)
    plain, salted = await client.ask(prompt), await client.ask(prompt, cache_salt="tenant-a")
    assert texts(plain) == texts(salted)


async def test_reset_drops_what_was_cached(client: EngineClient) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    await client.ask(prompt)
    await client.until_idle()
    assert await client.engine.reset_prefix_cache()
    assert cached_tokens(await client.ask(prompt)) == 0


async def test_reset_is_refused_while_requests_hold_blocks(client: EngineClient) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    request = make_request(prompt, is_stream=True, max_tokens=500)
    async with aclosing(client.engine.generate(request)) as parts:
        await anext(parts)
        assert not await client.engine.reset_prefix_cache()
    assert cached_tokens(await client.ask(prompt)) == 2 * BLOCK_SIZE


# --- endings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    ("tokens", "fields"),
    [
        (MAX_MODEL_LEN + 1, {}),
        (10, {"max_tokens": MAX_MODEL_LEN + 1}),
        (10, {"temperature": "hot"}),
        (10, {"n": 0}),
        (10, {"n": 2, "temperature": 0}),
    ],
    ids=["prompt too long", "answer too long", "wrong type", "no choices", "greedy choices"],
)
async def test_a_bad_request_is_refused_before_the_first_item(
    client: EngineClient, tokens: int, fields: dict[str, Any], is_stream: bool
) -> None:
    request = make_request(fresh_prompt(tokens), is_stream=is_stream, **fields)
    with pytest.raises(RequestRejected) as refusal:
        await anext(client.engine.generate(request))
    assert 400 <= refusal.value.status < 500
    assert refusal.value.message
    await client.until_idle()


async def test_closing_a_stream_frees_the_engine_and_its_blocks(client: EngineClient) -> None:
    request = make_request(fresh_prompt(100), is_stream=True, max_tokens=900)
    parts = client.engine.generate(request)
    await anext(parts)
    assert client.engine.num_unfinished() > 0
    assert 0 < client.engine.kv_usage() < 1
    await parts.aclose()
    await client.until_idle()
    assert client.engine.kv_usage() == 0
    assert await client.engine.reset_prefix_cache()


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize(
    "fields", [{}, {"n": 3, "temperature": 1}], ids=["one choice", "three choices"]
)
async def test_cancelling_the_task_frees_the_engine(
    client: EngineClient, is_stream: bool, fields: dict[str, Any]
) -> None:
    request = make_request(fresh_prompt(100), is_stream=is_stream, max_tokens=900, **fields)
    task = asyncio.create_task(collect(client.engine, request))
    await client.until_busy()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.until_idle()
    assert await client.engine.reset_prefix_cache()


# --- KV events ----------------------------------------------------------------------------------


async def test_events_name_the_blocks_of_a_prompt_and_their_chain(client: EngineClient) -> None:
    prompt = fresh_prompt(3 * BLOCK_SIZE + 5)
    before = await client.next_seq()
    await client.ask(prompt)
    batches = await client.replay(before)
    assert stored_tokens(batches) == prompt[: 3 * BLOCK_SIZE]
    for run in stored_runs(batches):
        assert run["block_size"] == BLOCK_SIZE
        assert run["medium"] == "GPU"
        assert len(run["token_ids"]) == BLOCK_SIZE * len(run["block_hashes"])


async def test_sequence_numbers_have_no_gap(client: EngineClient) -> None:
    await client.ask(fresh_prompt(2 * BLOCK_SIZE))
    batches = await client.replay(0)
    assert [batch.seq for batch in batches] == list(range(len(batches)))
    assert [batch.seq for batch in await client.replay(1)] == list(range(1, len(batches)))


async def test_a_prefix_in_the_cache_is_not_announced_again(client: EngineClient) -> None:
    prompt = fresh_prompt(2 * BLOCK_SIZE + 1)
    await client.ask(prompt, max_tokens=1)
    before = await client.next_seq()
    await client.ask(prompt, max_tokens=1)
    assert not stored_runs(await client.replay(before))


async def test_the_same_prefix_has_the_same_hashes_and_a_salt_changes_them(
    client: EngineClient,
) -> None:
    shared = fresh_prompt(BLOCK_SIZE)
    hashes = []
    for salt in (None, None, "tenant-a"):
        await client.until_idle()
        assert await client.engine.reset_prefix_cache()
        before = await client.next_seq()
        await client.ask(shared + fresh_prompt(1), cache_salt=salt)
        runs = stored_runs(await client.replay(before))
        hashes.append(runs[0]["block_hashes"][0])
        assert runs[0]["extra_keys"] == [[salt] if salt else None]
    plain, again, salted = hashes
    assert plain == again
    assert plain != salted


async def test_a_salt_is_named_at_the_root(client: EngineClient) -> None:
    before = await client.next_seq()
    await client.ask(fresh_prompt(2 * BLOCK_SIZE + 1), cache_salt="tenant-a")
    (run, *_) = stored_runs(await client.replay(before))
    assert run["extra_keys"] == [["tenant-a"], None]


async def test_a_reset_is_announced_with_the_next_pass(client: EngineClient) -> None:
    await client.ask(fresh_prompt(BLOCK_SIZE + 1))
    await client.until_idle()
    before = await client.next_seq()
    assert await client.engine.reset_prefix_cache()
    await client.ask(fresh_prompt(BLOCK_SIZE + 1))
    events = [e["type"] for batch in await client.replay(before) for e in batch.events]
    assert events[0] == "AllBlocksCleared"


async def test_subscribers_get_batches_as_they_happen(client: EngineClient) -> None:
    batch = await client.next_batch()
    assert stored_runs([batch])
    assert (await client.replay(batch.seq))[0] == batch


async def test_only_the_owner_can_reach_the_event_sockets(client: EngineClient) -> None:
    for endpoint in (client.info.kv_events_endpoint, client.info.kv_replay_endpoint):
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
