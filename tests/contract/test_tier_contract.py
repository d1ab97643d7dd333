"""What every tier below memory does, on a disk and in a Redis."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicas.kv.store.disk_tier import DiskTier
from replicas.kv.store.redis_tier import RedisTier
from replicas.kv.store.tier import Tier
from tests.contract.redis_server import BINARY, RedisServer
from tests.unit.replicas.kv.store.stored_objects import OBJECT_BYTES, head_of, number_in, sealed

ROOM = 3

Opened = Callable[[], Tier]


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    if BINARY is None:
        pytest.skip("there is no redis-server")
    folder = Path(tempfile.mkdtemp(prefix="wp-"))
    server = RedisServer(folder, fsync="no")
    server.start()
    yield server
    server.kill()
    shutil.rmtree(folder)


@pytest.fixture(params=["disk", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Each call is another life on the same objects."""
    if request.param == "disk":
        lives: list[DiskTier] = []

        def on_disk() -> Tier:
            for life in lives:
                life.close()
            lives.append(DiskTier(tmp_path / "kv", ROOM * OBJECT_BYTES))
            return lives[-1]

        return on_disk
    server = request.getfixturevalue("redis_server")
    server.client().flushall()
    ticks = iter(range(1000))
    return lambda: RedisTier(
        server.url, "app", ROOM * OBJECT_BYTES, clock=lambda: float(next(ticks))
    )


@pytest.fixture
def tier(opened: Opened) -> Tier:
    return opened()


def fill(tier: Tier, *numbers: int, is_for_reuse: bool = True) -> list[int]:
    """Writes them, and says which others had to go."""
    gone = []
    for number in numbers:
        stored = head_of(number, is_for_reuse=is_for_reuse)
        victims = tier.victims(stored)
        tier.remove([victim.key for victim in victims])
        gone += [int.from_bytes(victim.hashes[:8], "little") for victim in victims]
        if stored not in victims:
            tier.write(stored, sealed(number))
    return gone


def held(tier: Tier) -> list[int]:
    return [n for n in range(1, 10) if number_in(tier.read(head_of(n).key)) == n]


def test_what_is_written_is_read(tier: Tier) -> None:
    fill(tier, 1, 2)
    assert held(tier) == [1, 2]
    assert tier.size() == (2, 2 * OBJECT_BYTES)


def test_the_least_recently_used_leaves_for_another(tier: Tier) -> None:
    fill(tier, 1, 2, 3)
    tier.read(head_of(1).key)
    assert fill(tier, 4) == [2]
    assert held(tier) == [1, 3, 4]
    assert tier.size() == (3, 3 * OBJECT_BYTES)


def test_the_claimed_leave_after_all_others(tier: Tier) -> None:
    fill(tier, 1, is_for_reuse=False)
    fill(tier, 2, 3)
    tier.claim([head_of(2).key], is_claimed=True)
    assert fill(tier, 4) == [3]
    tier.claim([head_of(1).key], is_claimed=False)
    tier.read(head_of(4).key)
    assert fill(tier, 5) == [1]
    assert held(tier) == [2, 4, 5]


def test_a_claim_survives_a_use(tier: Tier) -> None:
    fill(tier, 1, 2, 3)
    tier.claim([head_of(1).key], is_claimed=True)
    assert tier.read(head_of(1).key) is not None
    tier.read(head_of(2).key)
    assert fill(tier, 4) == [3]


def test_an_object_larger_than_the_budget_takes_no_room(tier: Tier) -> None:
    from dataclasses import replace

    fill(tier, 1)
    large = replace(head_of(2), size_bytes=ROOM * OBJECT_BYTES + 1)
    assert tier.victims(large) == [large]


def test_removing_is_for_good_and_harmless_twice(tier: Tier) -> None:
    fill(tier, 1, 2)
    for _ in range(2):
        tier.remove([head_of(1).key])
    assert held(tier) == [2]
    assert tier.size() == (1, OBJECT_BYTES)


def test_another_life_finds_what_was_there_in_its_order(opened: Opened) -> None:
    first = opened()
    fill(first, 1, 2, 3)
    second = opened()
    assert second.scan() == [head_of(1), head_of(2), head_of(3)]
    assert held(second) == [1, 2, 3]
    assert fill(second, 4) == [1]


def test_writing_again_changes_nothing(tier: Tier) -> None:
    fill(tier, 1)
    tier.write(head_of(1), sealed(1))
    assert held(tier) == [1]
    assert tier.size() == (1, OBJECT_BYTES)
