from router.core.types import BookingId, ReplicaId, Tenant
from router.serve.caller_bookings import CallerBookings, LiveBooking

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
B1, B2 = BookingId(1), BookingId(2)


def booking(replica_id: ReplicaId = R1) -> LiveBooking:
    return LiveBooking(replica_id, Tenant("t"), 100, 60, 16)


def booked(*, is_announced: bool = True) -> CallerBookings:
    bookings = CallerBookings(lease_s=30)
    bookings.add(B1, booking(), is_announced=is_announced)
    return bookings


def test_counts_own_requests_by_replica() -> None:
    bookings = booked()
    bookings.add(B2, booking(R2), is_announced=True)
    bookings.move(B1, R2)
    assert bookings.in_flight == {R2: 2}

    bookings.settle(B1)
    bookings.settle(B1)
    bookings.settle(B2)

    assert bookings.in_flight == {}


def test_a_request_that_ended_leaves_only_its_end_to_tell() -> None:
    bookings = booked()
    bookings.move(B1, R2)
    bookings.first_token(B1)
    bookings.progress(B1, 5)
    bookings.settle(B1)

    notes = bookings.take_notes(100)

    assert list(notes.settled) == [B1]
    assert not notes.moved and not notes.first_tokens and not notes.progress
    assert not bookings.has_news


def test_what_the_index_never_heard_of_needs_no_end() -> None:
    bookings = booked(is_announced=False)
    assert bookings.has_news

    bookings.settle(B1)

    assert not bookings.has_news


def test_an_announcement_says_how_far_the_request_is() -> None:
    bookings = booked(is_announced=False)
    bookings.first_token(B1)
    bookings.progress(B1, 7)
    bookings.progress(B1, 3)
    bookings.move(B1, R2)

    (announced,) = bookings.take_announcements(10)

    assert (announced.booking_id, announced.replica_id) == (B1, R2)
    assert announced.is_decoding and announced.output_tokens == 7
    assert not bookings.has_news


def test_another_index_hears_of_all_that_lives_and_of_nothing_else() -> None:
    bookings = booked()
    bookings.add(B2, booking(), is_announced=True)
    bookings.settle(B2)

    bookings.announce_all()

    assert [a.booking_id for a in bookings.take_announcements(10)] == [B1]
    assert len(bookings.take_notes(10)) == 0


def test_a_failed_call_puts_its_news_back_under_newer_ones() -> None:
    bookings = booked()
    bookings.add(B2, booking(), is_announced=True)
    bookings.progress(B1, 1)
    bookings.progress(B2, 1)
    lost = bookings.take_notes(10)
    bookings.progress(B1, 9)
    bookings.settle(B2)

    bookings.put_back(lost, [])
    notes = bookings.take_notes(10)

    assert notes.progress == {B1: 9}
    assert list(notes.settled) == [B2]


def test_a_lost_announcement_is_repeated_while_the_request_lives() -> None:
    bookings = booked(is_announced=False)
    bookings.add(B2, booking(), is_announced=False)
    lost = bookings.take_announcements(10)
    bookings.settle(B2)

    bookings.put_back(bookings.take_notes(10), lost)

    assert [a.booking_id for a in bookings.take_announcements(10)] == [B1]


def test_departed_replicas_are_told_once_and_again_if_the_call_failed() -> None:
    bookings = CallerBookings(lease_s=30)
    bookings.note_departed([R1, R2])

    lost = bookings.take_notes(1)
    assert list(lost.departed) == [R1]
    bookings.put_back(lost, [])

    assert {*bookings.take_notes(10).departed} == {R1, R2}
    assert not bookings.has_news


def test_of_too_many_departed_replicas_the_oldest_are_left_to_their_leases() -> None:
    bookings = CallerBookings(lease_s=30, max_notes=2)
    bookings.note_departed(map(ReplicaId, "abc"))

    assert list(bookings.take_notes(10).departed) == ["b", "c"]


def test_renewing_tells_the_progress_of_every_live_booking() -> None:
    bookings = booked()
    bookings.renew()

    assert bookings.take_notes(10).progress == {B1: 0}


def test_takes_at_most_the_limit_of_each_kind_oldest_first() -> None:
    bookings = CallerBookings(lease_s=30)
    for key in range(5):
        bookings.release(BookingId(key))

    assert [list(bookings.take_notes(2).settled) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_bounds_what_it_keeps_and_counts_what_it_drops() -> None:
    bookings = CallerBookings(lease_s=30, max_live=1, max_notes=2)
    for key in range(3):
        bookings.add(BookingId(key), booking(), is_announced=True)
    for key in range(10, 14):
        bookings.release(BookingId(key))

    assert len(bookings) == 1 and bookings.untracked == 2
    assert list(bookings.take_notes(10).settled) == [12, 13] and bookings.dropped_notes == 2


def test_an_untracked_booking_is_still_ended_in_the_index() -> None:
    """What was booked past the bound must not wait for its lease."""
    bookings = CallerBookings(lease_s=30, max_live=1)
    bookings.add(B1, booking(), is_announced=True)
    bookings.add(B2, booking(), is_announced=True)

    bookings.settle(B2)

    assert list(bookings.take_notes(10).settled) == [B2]
