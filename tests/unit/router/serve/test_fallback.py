import numpy as np

from router.core.types import ReplicaId
from router.serve.fallback import rank_locally

MEMBERS = [ReplicaId(f"replica-{n}") for n in range(8)]


def chain(seed: int, blocks: int = 8) -> bytes:
    return np.random.default_rng(seed).integers(0, 2**63, blocks, dtype=np.uint64).tobytes()


def test_the_same_prefix_goes_to_the_same_replica() -> None:
    """Only the leading blocks matter, and not the order in which members are listed."""
    prefix, tails = chain(1, 4), (chain(2), chain(3))

    ranked = [rank_locally(prefix + tail, MEMBERS, {}) for tail in tails]
    shuffled = rank_locally(prefix, MEMBERS[::-1], {})

    assert ranked[0] == ranked[1] == shuffled
    assert sorted(ranked[0]) == sorted(MEMBERS)


def test_different_prefixes_spread() -> None:
    firsts = {rank_locally(chain(seed), MEMBERS, {})[0] for seed in range(64)}

    assert firsts == set(MEMBERS)


def test_a_lost_member_moves_only_its_own_prefixes() -> None:
    chains = [chain(seed) for seed in range(64)]
    before = [rank_locally(hashes, MEMBERS, {})[0] for hashes in chains]
    after = [rank_locally(hashes, MEMBERS[1:], {})[0] for hashes in chains]

    moved = [old for old, new in zip(before, after, strict=True) if old != new]

    assert moved and set(moved) == {MEMBERS[0]}


def test_a_hot_prefix_spills_over_within_the_bound() -> None:
    in_flight: dict[ReplicaId, int] = {}
    for _ in range(80):
        chosen = rank_locally(chain(1), MEMBERS, in_flight, load_factor=1.25)[0]
        in_flight[chosen] = in_flight.get(chosen, 0) + 1

    assert max(in_flight.values()) <= 13  # ceil(1.25 · 80 / 8)


def test_a_prompt_without_a_full_block_goes_to_the_least_loaded() -> None:
    in_flight = dict.fromkeys(MEMBERS, 2) | {MEMBERS[5]: 1}

    assert rank_locally(b"", MEMBERS, in_flight)[0] == MEMBERS[5]


def test_nobody_known_gives_nobody() -> None:
    assert rank_locally(chain(1), [], {}) == []
