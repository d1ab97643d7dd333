from router.core.types import Incarnation, ReplicaId, Slot
from router.serve.leases import Lease, ReplicaLeases

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
FIRST, SECOND = Incarnation(1), Incarnation(2)


def leases() -> ReplicaLeases:
    table = ReplicaLeases(max_replicas=4, stale_after_s=5, forget_after_s=30)
    table.add(Lease(R1, FIRST, Slot(0)), now=100.0)
    table.add(Lease(R2, FIRST, Slot(3)), now=100.0)
    return table


def test_silence_first_costs_candidacy_then_membership() -> None:
    table = leases()
    table.renew(R2, FIRST, now=104.0)

    assert table.members(104.9) == [R1, R2]
    assert table.members(105.0) == [R2]
    assert table.lapsed(129.9) == []
    assert table.lapsed(130.0) == [R1]
    assert table.fresh(105.0).tolist() == [False, False, False, True]


def test_only_the_registered_life_renews() -> None:
    table = leases()

    assert table.renew(R1, SECOND, now=101.0) is False
    assert table.renew(ReplicaId("unknown"), FIRST, now=101.0) is False
    assert table.renew(R1, FIRST, now=101.0) is True


def test_a_life_that_ended_is_refused_and_a_later_one_accepted() -> None:
    table = leases()

    table.end(R1)

    assert not table.accepts(R1, FIRST)
    assert table.accepts(R1, SECOND)
    assert table.get(R1) is None
    assert table.members(100.0) == [R2]


def test_a_life_older_than_the_registered_is_refused() -> None:
    table = leases()
    table.add(Lease(R1, SECOND, Slot(0)), now=100.0)

    assert not table.accepts(R1, FIRST)
    assert table.accepts(R1, SECOND)


def test_version_tells_of_every_change_in_who_is_registered() -> None:
    table = leases()
    before = table.version
    table.renew(R1, FIRST, now=101.0)
    assert table.version == before

    table.end(R1)

    assert table.version != before


def test_memory_of_ended_lives_is_bounded() -> None:
    table = ReplicaLeases(max_replicas=1, stale_after_s=5, forget_after_s=30)
    for number in range(5000):
        replica_id = ReplicaId(str(number))
        table.add(Lease(replica_id, FIRST, Slot(0)), now=0.0)
        table.end(replica_id)

    assert table.accepts(ReplicaId("0"), FIRST)
    assert not table.accepts(ReplicaId("4999"), FIRST)


def test_a_doubted_replica_is_no_candidate_at_once_and_soon_forgotten() -> None:
    table = leases()
    table.renew(R1, FIRST, now=110.0)
    table.renew(R2, FIRST, now=110.0)

    table.doubt([R1, ReplicaId("unknown")], now=110.5)

    assert table.members(110.5) == [R2]
    assert table.lapsed(112.4) == []
    assert table.lapsed(112.5) == [R1]


def test_a_doubted_replica_that_lives_is_whole_again_with_its_next_batch() -> None:
    table = leases()
    before = table.version

    table.doubt([R1], now=101.0)
    table.renew(R1, FIRST, now=101.8)
    assert table.members(102.0) == [R1, R2] and table.version == before

    table.doubt([R1], now=103.0)
    assert table.members(103.0) == [R2]


def test_doubt_gives_nobody_time() -> None:
    """A replica that has been silent for longer does not live on for being doubted."""
    table = leases()
    table.doubt([R1], now=129.5)
    assert table.lapsed(130.0) == [R1, R2]
