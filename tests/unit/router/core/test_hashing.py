"""Block hashes: fixed for all time, equal across processes, different for whatever changes KV."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.hashing import (
    NO_EXTRA_KEYS,
    ExtraKeys,
    adapter,
    chain_root,
    embeddings,
    extend_chain,
    hash_blocks,
    image,
    pack_hashes,
    salt,
    unpack_hashes,
)

BLOCK_SIZE = 4


def packed(*token_ids: int) -> bytes:
    return np.array(token_ids, "<u4").tobytes()


TOKENS = packed(*range(1, 9))


def hashes(
    tokens: bytes = TOKENS, keys: ExtraKeys = NO_EXTRA_KEYS, block_size: int = BLOCK_SIZE
) -> list[int]:
    return [int(h) for h in hash_blocks(tokens, block_size, keys)]


@pytest.mark.parametrize(
    ("keys", "golden"),
    [
        (NO_EXTRA_KEYS, [0x872EA5685BF5FCE2, 0x5271323AECB42A2F]),
        (adapter("a", "1"), [0xA01252D67F4C84B1, 0x2E71C4BD82CEC8D6]),
        (salt("s"), [0x0EE07FF02A83FF33, 0xA0E2E5D9F4AA7941]),
        (adapter("a", "1") | salt("s"), [0x7481ADEF2419596F, 0xECF72EE366487F87]),
        (image("img", 3, 2, BLOCK_SIZE), [0x0D88EB9281729C6B, 0x35F81B8947C2629A]),
        (embeddings(1, b"\1\2"), [0x872EA5685BF5FCE2, 0xFFA7C2C5B82B820B]),
    ],
    ids=["plain", "adapter", "salt", "adapter and salt", "image", "embeddings"],
)
def test_golden_vectors(keys: ExtraKeys, golden: list[int]) -> None:
    """A change here breaks every running deployment's cache matching: change the domain with it."""
    assert hashes(keys=keys) == golden


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_hash_seed_of_the_process_changes_nothing(seed: str) -> None:
    """Two processes with other hash seeds, or one that restarts, must agree on every block."""
    program = (
        "from router.core.hashing import *; import numpy as np;"
        "print(hash_blocks(np.arange(1, 9, dtype='<u4').tobytes(), 4, salt('s')).tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    ).stdout
    assert printed.decode().strip() == str(hashes(keys=salt("s")))


tokens = st.lists(st.integers(0, 3), max_size=24)


@given(tokens, tokens)
def test_equal_leading_hashes_mean_equal_prefixes(left: list[int], right: list[int]) -> None:
    ours, theirs = hashes(packed(*left)), hashes(packed(*right))
    for blocks in range(1, min(len(ours), len(theirs)) + 1):
        end = blocks * BLOCK_SIZE
        assert (ours[blocks - 1] == theirs[blocks - 1]) is (left[:end] == right[:end])


@given(tokens, st.integers(0, 6))
def test_a_chain_can_be_continued_from_any_block(token_ids: list[int], cut: int) -> None:
    whole = hashes(packed(*token_ids))
    cut = min(cut, len(whole))
    parent = whole[cut - 1] if cut else chain_root(BLOCK_SIZE)
    rest = packed(*token_ids[cut * BLOCK_SIZE :])
    assert extend_chain(parent, rest, BLOCK_SIZE) == whole[cut:]


@pytest.mark.parametrize(("count", "blocks"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_are_hashed(count: int, blocks: int) -> None:
    assert len(hashes(packed(*range(count)))) == blocks


def test_router_with_another_block_size_than_the_engine_shares_no_hash() -> None:
    small, large = hashes(packed(*range(64)), block_size=16), hashes(packed(*range(64)))
    assert not set(small) & set(large)


IDENTITIES = {
    "plain": NO_EXTRA_KEYS,
    "adapter": adapter("a", "1"),
    "other adapter": adapter("b", "1"),
    "adapter reloaded under its name": adapter("a", "2"),
    "name and version cut elsewhere": adapter("a1", ""),
    "salt": salt("a"),
    "other salt": salt("b"),
    "empty salt": salt(""),
    "adapter and salt": adapter("a", "1") | salt("a"),
    "image": image("a", 0, 4, BLOCK_SIZE),
    "other image": image("b", 0, 4, BLOCK_SIZE),
    "image at another offset": image("a", 1, 3, BLOCK_SIZE),
    "image ids that end alike": image("1" * 60 + "abcd", 0, 4, BLOCK_SIZE),
    "image ids that end alike too": image("2" * 60 + "abcd", 0, 4, BLOCK_SIZE),
    "two images": image("a", 0, 2, BLOCK_SIZE) | image("b", 2, 2, BLOCK_SIZE),
    "two images swapped": image("b", 0, 2, BLOCK_SIZE) | image("a", 2, 2, BLOCK_SIZE),
    "embeddings": embeddings(0, b"a"),
    "other embeddings": embeddings(0, b"b"),
}


def test_whatever_changes_kv_changes_every_hash() -> None:
    """One field at a time: adapter, its version, salt, image and place, embeddings."""
    seen: dict[int, str] = {}
    for name, keys in IDENTITIES.items():
        for block_hash in hashes(keys=keys):
            assert seen.setdefault(block_hash, name) == name
    assert len(seen) == 2 * len(IDENTITIES)


def test_an_image_changes_the_blocks_that_it_touches_and_all_later_ones() -> None:
    text = packed(*range(16))
    plain, a = hashes(text), hashes(text, image("a", 6, 4, BLOCK_SIZE))
    assert a[:1] == plain[:1]
    assert not set(a[1:]) & set(plain)


def test_parts_of_extra_keys_may_be_joined_in_any_order() -> None:
    a, b, c = salt("s"), adapter("a", "1"), image("i", 2, 4, BLOCK_SIZE)
    assert hashes(keys=a | b | c) == hashes(keys=c | b | a)


def test_hashes_travel_as_bytes() -> None:
    found = hash_blocks(TOKENS, BLOCK_SIZE)
    assert pack_hashes(found) == b"".join(int(h).to_bytes(8, "little") for h in found)
    assert unpack_hashes(pack_hashes(found)).tolist() == found.tolist()


def test_tokens_may_be_a_memoryview() -> None:
    assert hashes(tokens=TOKENS) == [int(h) for h in hash_blocks(memoryview(TOKENS), BLOCK_SIZE)]
