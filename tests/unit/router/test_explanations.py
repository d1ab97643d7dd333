"""Explanations: bounded by candidates, the newest kept."""

import numpy as np

from router.candidates import Directory
from router.core.load_totals import Load
from router.core.types import BookingId, ReplicaId, Tenant
from router.decision import Decision
from router.explanations import Explanations, Record
from router.policies.base import Choice, Facts, Reason
from router.policies.registry import PolicySpec


def record(booking_id: int, candidates: int) -> Record:
    slots = np.arange(candidates, dtype=np.int64)
    depths = np.zeros((3, candidates), dtype=np.int32)
    facts = Facts(slots, depths, depths[0], np.zeros((len(Load), candidates)), 10, 16)
    decision = Decision(
        BookingId(booking_id), ReplicaId("R"), (ReplicaId("R"),), 0, 0, 0, 0, 10, Reason.TIE
    )
    choice = Choice(slots, np.zeros(candidates), Reason.TIE)
    return Record(decision, Tenant("t"), PolicySpec(), facts, choice, Directory(()))


def test_the_oldest_leave_once_all_together_have_too_many_candidates() -> None:
    explanations = Explanations(max_candidates=10)
    for booking_id in range(3):
        explanations.add(record(booking_id, 4))
    assert explanations.get(BookingId(0)) is None
    assert len(explanations) == 2


def test_a_second_decision_on_a_booking_replaces_the_first_and_its_share() -> None:
    explanations = Explanations(max_candidates=10)
    explanations.add(record(1, 4))
    for _ in range(5):
        explanations.add(record(2, 4))
    assert len(explanations) == 2


def test_one_decision_is_kept_however_large() -> None:
    explanations = Explanations(max_candidates=10)
    explanations.add(record(1, 50))
    assert len(explanations) == 1
