"""The mirror holds what its engine holds, and tells the index exactly what changed."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.kv.events import BlockRemoved, BlockStored, KVEvent
from replicas.kv.mirror import Mirror
from router.core.errors import BlockSizeMismatch
from router.core.events import EventBatch
from router.core.hashing import (
    NO_EXTRA_KEYS,
    ExtraKeys,
    adapter,
    embeddings,
    hash_blocks,
    image,
    salt,
)
from router.core.index import BlockIndex
from router.core.types import Incarnation, ReplicaId, Tier
from tests.unit.replicas.kv.engine_events import (
    BLOCK_SIZE,
    CLEARED,
    engine_hash_of,
    removed,
    stored,
    tokens,
)

R1, LIFE = ReplicaId("R1"), Incarnation(1)


def new_mirror() -> Mirror:
    return Mirror(R1, LIFE, BLOCK_SIZE)


class Pair:
    """A mirror and the index that follows it."""

    def __init__(self) -> None:
        self.mirror = new_mirror()
        self.index = BlockIndex(1000, 1)
        self.index.register(R1, LIFE)

    def feed(self, *events: KVEvent | Sequence[KVEvent]) -> "Pair":
        for event in events:
            self.mirror.apply(event if isinstance(event, Sequence) else [event])
        return self.settle()

    def settle(self, max_blocks: int = 1024) -> "Pair":
        while self.mirror.has_changes:
            batch = self.mirror.next_batch(max_blocks)
            self.index.apply(EventBatch.unpack(batch.pack()))
        return self

    def held(self, text: str, keys: ExtraKeys = NO_EXTRA_KEYS) -> list[int]:
        packed = np.array(tokens(text), "<u4").tobytes()
        return self.index.overlaps(hash_blocks(packed, BLOCK_SIZE, keys)).tiers[:, 0].tolist()

    def on_gpu(self, text: str, keys: ExtraKeys = NO_EXTRA_KEYS) -> int:
        return self.held(text, keys)[Tier.GPU]


def test_what_the_engine_stores_the_ingress_finds() -> None:
    assert Pair().feed(stored("abc"), stored("de", after="abc")).on_gpu("abcdex") == 5


def test_a_block_stays_while_any_of_its_copies_does() -> None:
    """An aligned prompt recomputes its last block: two copies of one hash, removed one by one."""
    pair = Pair().feed(stored("abc"), stored("c", after="ab"), removed("c", after="ab"))
    assert pair.on_gpu("abc") == 3
    assert pair.feed(removed("c", after="ab")).on_gpu("abc") == 2


def test_a_block_announced_again_is_claimed_until_the_cache_is_cleared() -> None:
    """The written rule: announcements are copies. Too much is claimed rather than too little, and
    no phantom survives a clear."""
    pair = Pair().feed(stored("ab"), stored("ab"), removed("ab"))
    assert pair.on_gpu("ab") == 2
    assert pair.feed(CLEARED).on_gpu("ab") == 0
    assert len(pair.mirror) == 0


def test_tiers_are_counted_apart() -> None:
    pair = Pair().feed(stored("ab"), stored("ab", medium="CPU"), removed("ab"))
    assert pair.held("ab") == [0, 2, 2]


def test_a_clear_drops_the_engines_own_tier_only() -> None:
    pair = Pair().feed(stored("ab"), stored("ab", medium="STORAGE"), CLEARED)
    assert pair.held("ab") == [0, 0, 2]
    pair.mirror.clear(*Tier)
    assert pair.settle().held("ab") == [0, 0, 0]


def test_no_medium_means_the_gpu_and_an_unknown_one_nothing() -> None:
    pair = Pair().feed(stored("ab", medium=None), stored("xy", medium="TAPE"))
    assert (pair.on_gpu("ab"), pair.on_gpu("xy")) == (2, 0)
    assert pair.mirror.counters.unknown_medium == 1


def test_blocks_announced_without_tokens_are_copies_of_known_ones() -> None:
    names = tuple(engine_hash_of("abc"[:end]) for end in (1, 2, 3))
    copy = BlockStored(names, medium="CPU")
    pair = Pair().feed(stored("abc"), removed("c", after="ab"), copy)
    assert pair.held("abc") == [2, 3, 3]
    pair.feed(BlockStored((12345,), medium="CPU"))
    assert pair.mirror.counters.unknown_blocks == 1


def test_a_child_of_an_evicted_parent_is_still_placed() -> None:
    pair = Pair().feed(stored("ab"), removed("b", after="a"), stored("c", after="ab"))
    assert pair.on_gpu("abc") == 1
    assert pair.feed(stored("b", after="a")).on_gpu("abc") == 3
    assert not pair.mirror.is_partial


def test_a_child_of_a_parent_never_seen_is_left_out_and_the_mirror_says_so() -> None:
    pair = Pair().feed(stored("c", after="ab"))
    assert (pair.on_gpu("abc"), pair.mirror.is_partial) == (0, True)
    assert pair.mirror.counters.unknown_parent == 1
    assert not pair.feed(CLEARED).mirror.is_partial


def test_another_block_size_is_an_error_and_never_a_silent_zero() -> None:
    event = BlockStored((1,), None, (1, 2, 3, 4), 4)
    with pytest.raises(BlockSizeMismatch, match="4 tokens, 2 expected"):
        new_mirror().apply([event])


def test_fewer_hashes_than_blocks_are_malformed() -> None:
    pair = Pair().feed(BlockStored((1,), None, tuple(tokens("ab")), BLOCK_SIZE))
    assert (len(pair.mirror), pair.mirror.counters.malformed) == (0, 1)


def test_token_ids_that_are_no_u32_are_malformed() -> None:
    pair = Pair().feed(BlockStored((1,), None, (-1, 1 << 40), BLOCK_SIZE))
    assert pair.mirror.counters.malformed == 1


def test_only_full_attention_groups_count() -> None:
    """A hybrid model announces each block once per group; a removal names only the group."""
    pair = Pair().feed(
        stored("ab", group=0, kind="sliding_window"),
        stored("ab", group=1, kind="full_attention"),
        stored("ab", group=2, kind="mamba"),
        stored("ab", group=3, kind="sliding_window"),
        removed("ab", group=0),
        removed("b", after="a", group=3),
    )
    assert pair.on_gpu("ab") == 2
    assert pair.feed(removed("b", after="a", group=1)).on_gpu("ab") == 1
    assert pair.mirror.counters.other_group == 6


def test_without_kinds_the_first_group_counts() -> None:
    pair = Pair().feed(stored("ab", group=0), stored("xy", group=1), stored("q"))
    assert (pair.on_gpu("ab"), pair.on_gpu("xy"), pair.on_gpu("q")) == (2, 0, 1)


def test_one_hash_over_many_tokens_in_a_side_group_is_no_error() -> None:
    span = BlockStored((1,), None, tuple(range(3840)), 3840, group_idx=2)
    assert len(Pair().feed(span).mirror) == 0


ADAPTER, SALT = adapter("lora", ""), salt("salt")
REQUESTS: dict[str, tuple[BlockStored, ExtraKeys]] = {
    "base": (stored("ab", names="1"), NO_EXTRA_KEYS),
    "adapter": (stored("ab", names="2", lora="lora", keys=[("lora",), ("lora",)]), ADAPTER),
    "salt": (stored("ab", names="3", keys=[("salt",), None]), SALT),
    "both": (
        stored("ab", names="4", lora="lora", keys=[("lora", "salt"), ("lora",)]),
        ADAPTER | SALT,
    ),
    "salt named like the adapter": (
        stored("ab", names="5", lora="lora", keys=[("lora", "lora"), ("lora",)]),
        ADAPTER | salt("lora"),
    ),
    "only a salt named like the adapter": (
        stored("ab", names="6", keys=[("lora",), None]),
        salt("lora"),
    ),
    "image": (
        stored("ab", names="7", keys=[(("img", 1),), (("img", -1),)]),
        image("img", 1, 2, BLOCK_SIZE),
    ),
    "image and salt": (
        stored("ab", names="8", keys=[(("img", 1), "salt"), (("img", -1),)]),
        image("img", 1, 2, BLOCK_SIZE) | SALT,
    ),
    "embeddings": (stored("ab", names="9", keys=[None, (b"\1",)]), embeddings(1, b"\1")),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_with_extra_keys_matches_its_own_blocks_fully_and_no_others(name: str) -> None:
    """Adapter, salt, both, image: each lookup finds what the engine stored for it alone."""
    event, keys = REQUESTS[name]
    pair = Pair().feed(event)
    assert pair.on_gpu("ab", keys) == 2
    others = [other for label, (_, other) in REQUESTS.items() if label != name]
    shared = 1 if name in ("base", "embeddings") else 0
    assert max(pair.on_gpu("ab", other) for other in others) == shared


def test_a_reloaded_adapter_shares_nothing_with_its_earlier_version() -> None:
    versions = {"a": "v1"}
    mirror = Mirror(R1, LIFE, BLOCK_SIZE, lambda name: adapter(name, versions[name]))
    mirror.apply([stored("ab", names="1", lora="a", keys=[("a",), ("a",)])])
    versions["a"] = "v2"
    mirror.apply([stored("ab", names="2", lora="a", keys=[("a",), ("a",)])])
    assert len(mirror) == 4


def test_an_extra_key_of_unknown_meaning_keeps_its_block_apart() -> None:
    pair = Pair().feed(stored("ab", keys=[None, ("mystery",)]))
    assert pair.on_gpu("ab") == 1
    assert len(pair.mirror) == 2


def test_changes_that_cancel_out_are_not_told() -> None:
    mirror = new_mirror()
    mirror.apply([stored("ab"), *removed("ab")])
    batch = mirror.next_batch(100)
    assert (batch.stored, batch.removed, batch.cleared) == ((), (), ())


def test_batches_are_bounded_and_numbered() -> None:
    mirror = new_mirror()
    mirror.apply([stored("abcde")])
    batches = [mirror.next_batch(2) for _ in range(3)]
    assert [(batch.seq, batch.blocks) for batch in batches] == [(0, 2), (1, 2), (2, 1)]
    assert not mirror.has_changes


def test_a_run_continues_its_parent_on_the_wire() -> None:
    mirror = new_mirror()
    mirror.apply([stored("ab"), stored("x", after="a")])
    first, second = mirror.next_batch(100).stored
    assert (len(first.hashes), second.parent) == (2, int(first.hashes[0]))


def test_a_snapshot_tells_everything_and_batches_go_on_after_it() -> None:
    pair = Pair().feed(stored("abcde"), stored("ab", medium="CPU"))
    pair.mirror.apply([stored("f", after="abcde"), *removed("b", after="a")])
    successor = Pair()
    successor.mirror = pair.mirror
    for chunk in pair.mirror.snapshot(2):
        assert chunk.blocks <= 2
        successor.index.load_snapshot(chunk)
    successor.feed(stored("g", after="abcdef"), stored("b", after="a"))
    assert successor.held("abcdefg") == [7, 7, 7]


def test_an_empty_mirror_has_an_empty_snapshot() -> None:
    chunks = new_mirror().snapshot(10)
    assert [(chunk.seq, chunk.is_last, chunk.blocks) for chunk in chunks] == [(0, True, 0)]


PROMPTS = ("abcdef", "abcxyz", "abq", "mno")
mediums = st.sampled_from(["GPU", "CPU"])


@st.composite
def stores(draw: st.DrawFn) -> tuple[str, int, str]:
    prompt = draw(st.sampled_from(PROMPTS))
    return prompt, draw(st.integers(0, len(prompt) - 1)), draw(mediums)


@settings(deadline=None)
@given(st.lists(st.one_of(stores(), st.integers(0, 50), st.just("clear")), max_size=30), st.data())
def test_index_equals_the_engine_after_any_events(
    steps: list[tuple[str, int, str] | int | str], data: st.DataObject
) -> None:
    """The engine is a multiset of (prefix, medium): stored from any known parent on, evicted in
    any order, cleared; batches are cut anywhere."""
    pair, engine = Pair(), Counter[tuple[str, str]]()
    for step in steps:
        match step:
            case (prompt, start, medium):
                if start and not any((prompt[:start], m) in engine for m in ("GPU", "CPU")):
                    continue
                pair.mirror.apply([stored(prompt[start:], after=prompt[:start], medium=medium)])
                engine.update((prompt[: end + 1], medium) for end in range(start, len(prompt)))
            case "clear":
                pair.mirror.apply([CLEARED])
                engine = Counter({key: n for key, n in engine.items() if key[1] != "GPU"})
            case int() if engine:
                prefix, medium = sorted(engine)[step % len(engine)]
                pair.mirror.apply([BlockRemoved((engine_hash_of(prefix),), medium)])
                engine = engine - Counter([(prefix, medium)])
        if data.draw(st.booleans()):
            pair.settle(max_blocks=data.draw(st.integers(1, 5)))
    pair.settle()
    for prompt in PROMPTS:
        gpu = _leading(prompt, {key[0] for key in engine if key[1] == "GPU"})
        either = _leading(prompt, {key[0] for key in engine})
        assert pair.held(prompt) == [gpu, either, either]
    assert len(pair.mirror) == len({prefix for prefix, _ in engine})


def _leading(prompt: str, prefixes: set[str]) -> int:
    return next(
        (end for end in range(len(prompt)) if prompt[: end + 1] not in prefixes), len(prompt)
    )


# --- our own reset --------------------------------------------------------------------------------


def test_after_our_reset_the_engine_still_tells_what_was_before() -> None:
    pair = Pair().feed(stored("ab"))
    pair.mirror.reset()
    assert pair.settle().index.blocks_by_replica()[R1] == (0, 0, 0)
    pair.feed(stored("c", after="ab"), *removed("b", after="a"))
    assert (len(pair.mirror), pair.mirror.counters.before_reset) == (0, 2)
    pair.feed([CLEARED, stored("xy")])
    assert pair.index.blocks_by_replica()[R1] == (2, 0, 0)


def test_our_reset_leaves_the_other_tiers_alone() -> None:
    pair = Pair().feed(stored("ab"), stored("ab", medium="CPU"))
    pair.mirror.reset()
    pair.settle().feed(CLEARED)
    assert pair.index.blocks_by_replica()[R1] == (0, 2, 0)


def test_our_reset_makes_a_partial_mirror_exact() -> None:
    mirror = new_mirror()
    mirror.lose()
    mirror.reset()
    assert not mirror.is_partial


def test_a_loss_ends_the_waiting_for_the_engines_word() -> None:
    """That word may have been among what was lost."""
    pair = Pair()
    pair.mirror.reset()
    pair.mirror.lose()
    pair.feed(stored("ab"))
    assert (len(pair.mirror), pair.mirror.is_partial) == (2, True)


def test_what_turns_back_needs_no_telling_and_takes_no_room() -> None:
    """While no index takes changes, blocks come and go without end."""
    mirror = new_mirror()
    for letter in "abcdefgh":
        mirror.apply([stored(letter)])
        mirror.apply(removed(letter))
    assert not mirror.has_changes
    assert mirror.next_batch(10).blocks == 0
