"""A store is there while a replica of its node is, and a while after."""

from replicas.kv.store.tenure import Tenure
from router.core.types import ReplicaId

ONE, OTHER = ReplicaId("one"), ReplicaId("other")


def test_a_store_that_nobody_comes_to_ends_after_its_linger() -> None:
    tenure = Tenure(lease_s=10, linger_s=30, now=100)
    assert not tenure.is_over(129.9)
    assert tenure.is_over(130)


def test_the_last_leave_begins_the_linger() -> None:
    tenure = Tenure(lease_s=10, linger_s=30, now=0)
    tenure.renew(ONE, 40)
    tenure.renew(OTHER, 41)
    tenure.end(ONE, 42)
    assert not tenure.is_over(45)
    tenure.end(OTHER, 46)
    assert not tenure.is_over(75.9)
    assert tenure.is_over(76)


def test_who_is_silent_has_left_when_its_lease_was_over() -> None:
    tenure = Tenure(lease_s=10, linger_s=30, now=0)
    tenure.renew(ONE, 40)
    assert not tenure.is_over(79)
    assert len(tenure) == 0
    assert tenure.is_over(80)


def test_who_comes_meanwhile_is_served() -> None:
    tenure = Tenure(lease_s=10, linger_s=30, now=0)
    tenure.renew(ONE, 0)
    tenure.end(ONE, 5)
    tenure.renew(OTHER, 34)
    assert not tenure.is_over(40)


def test_a_leave_that_comes_twice_or_from_a_stranger_changes_nothing() -> None:
    tenure = Tenure(lease_s=10, linger_s=30, now=0)
    tenure.renew(ONE, 0)
    tenure.end(ONE, 5)
    tenure.end(ONE, 20)
    tenure.end(OTHER, 30)
    assert tenure.is_over(35)
