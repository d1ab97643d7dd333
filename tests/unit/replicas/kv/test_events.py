"""vLLM's KV events are read in every form that it has had, and nothing can break the reader."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.kv.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_engine_batch,
    engine_hash,
)
from router.core.errors import MalformedMessage

STORED = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "a",
}


def wire(*events: object, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def read(*events: object) -> tuple[object, ...]:
    return decode_engine_batch(wire(*events)).events


def test_maps_are_read_with_unknown_fields_skipped_and_absent_ones_defaulted() -> None:
    event = read({**STORED, "session_id": "s", "something_new": {"a": [1]}})[0]
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.parent_block_hash, event.token_ids) == (
        (11, 12),
        10,
        (1, 2, 3, 4),
    )
    assert (event.block_size, event.medium, event.lora_name) == (2, "GPU", "a")
    assert (event.extra_keys, event.group_idx, event.kv_cache_spec_kind) == (None, None, None)


@pytest.mark.parametrize("fields", range(5, 13))
def test_arrays_are_read_with_any_number_of_trailing_fields(fields: int) -> None:
    whole = ["BlockStored", [11], None, [1, 2], 2, None, "CPU", "a", [None], 3, "mamba", 128]
    event = read([*whole, "newer", "fields"][:fields])[0]
    assert isinstance(event, BlockStored)
    assert event.token_ids == (1, 2)
    assert event.medium == ("CPU" if fields > 6 else None)
    assert event.group_idx == (3 if fields > 9 else None)


def test_removed_and_cleared_are_read_in_both_forms() -> None:
    removed, cleared = {"type": "BlockRemoved", "block_hashes": [7]}, {"type": "AllBlocksCleared"}
    events = read(removed, ["BlockRemoved", [7], "CPU"], cleared, ["AllBlocksCleared"])
    assert [type(event).__mro__[1] for event in events] == [
        BlockRemoved,
        BlockRemoved,
        AllBlocksCleared,
        AllBlocksCleared,
    ]
    assert [event.medium for event in events if isinstance(event, BlockRemoved)] == [None, "CPU"]


def test_hashes_may_be_signed_unsigned_or_bytes() -> None:
    event = read({**STORED, "block_hashes": [-1, (1 << 64) - 1, b"\1" * 32, 5]})[0]
    assert isinstance(event, BlockStored)
    names = [engine_hash(value) for value in event.block_hashes]
    assert names == [b"\xff" * 8, b"\xff" * 8, b"\1" * 32, b"\0" * 7 + b"\5"]


def test_extra_keys_of_every_kind_are_read() -> None:
    keys = [["a", ["img", -3], "salt", b"\1\2"], None]
    event = read({**STORED, "extra_keys": keys})[0]
    assert isinstance(event, BlockStored)
    assert event.extra_keys == (("a", ["img", -3], "salt", b"\1\2"), None)


@pytest.mark.parametrize(
    "strange",
    [
        {"type": "BlockMoved", "block_hashes": [1]},
        {"type": "BlockStored"},
        {"block_hashes": [1]},
        {**STORED, "token_ids": "text"},
        ["BlockMoved", 1],
        ["BlockStored", "text"],
        [],
        5,
        None,
    ],
    ids=str,
)
def test_an_event_that_cannot_be_read_costs_only_itself(strange: object) -> None:
    batch = decode_engine_batch(wire(STORED, strange, ["AllBlocksCleared"]))
    assert (len(batch.events), batch.skipped) == (2, 1)


@pytest.mark.parametrize("data", [[1.5, []], [1.5, [], None], [1.5, [], 3], [1.5, [], 3, "new"]])
def test_the_rank_is_optional(data: list[object]) -> None:
    batch = decode_engine_batch(msgspec.msgpack.encode(data))
    assert batch.data_parallel_rank == (3 if 3 in data else 0)


@given(st.binary(max_size=100))
def test_garbage_is_malformed_and_nothing_worse(payload: bytes) -> None:
    with suppress(MalformedMessage):
        decode_engine_batch(payload)


def test_a_pickle_is_malformed() -> None:
    with pytest.raises(MalformedMessage):
        decode_engine_batch(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.")
