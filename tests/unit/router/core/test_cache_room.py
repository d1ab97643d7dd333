"""Room in a cache: its size less what bookings are yet to write."""

from router.core.cache_room import CacheRoom
from router.core.types import Slot


def test_room_is_without_bound_until_a_size_is_known() -> None:
    room = CacheRoom(2)
    room.add(Slot(0), 500)
    assert not room.is_known
    assert room.tokens.tolist() == [float("inf")] * 2


def test_room_is_the_size_less_what_is_booked_also_before_it_was_known() -> None:
    room = CacheRoom(2)
    room.add(Slot(0), 500)
    room.set_size(Slot(0), 2000)
    room.add(Slot(0), 1700)
    assert room.is_known
    assert room.tokens.tolist() == [-200.0, float("inf")]
    room.add(Slot(0), -500)
    assert room.tokens.tolist() == [300.0, float("inf")]


def test_the_next_replica_in_a_slot_has_a_size_of_its_own() -> None:
    room = CacheRoom(1)
    room.set_size(Slot(0), 2000)
    room.forget(Slot(0))
    assert not room.is_known
    room.set_size(Slot(0), 100)
    assert room.tokens.tolist() == [100.0]
