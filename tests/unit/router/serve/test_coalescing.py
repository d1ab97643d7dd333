import asyncio

import pytest

from router.serve.coalescing import Batch, Cause, Coalescer


class Airfield:
    """Keeps what departs until the test lands it."""

    def __init__(self, **bounds: float) -> None:
        self.departed: list[Batch[str, str]] = []
        self.missed = 0
        limits = {"deadline_s": 1.0, "max_waiting": 100, "max_batch": 64, "max_batch_bytes": 1000}
        self.queue: Coalescer[str, str] = Coalescer(
            self.departed.append,
            self._miss,
            **(limits | bounds),  # type: ignore[arg-type]
        )

    def _miss(self) -> None:
        self.missed += 1

    def land(self, position: int) -> None:
        batch = self.departed[position]
        for waiter in batch.waiters:
            waiter.answer(waiter.request.upper())
        self.queue.landed(batch)

    def names(self) -> list[list[str]]:
        return [[waiter.request for waiter in batch.waiters] for batch in self.departed]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_arrives_while_one_is_aloft_leaves_together_in_the_next() -> None:
    field = Airfield()
    first = field.queue.submit("a", 1)
    await turn()
    rest = [field.queue.submit(name, 1) for name in "bcd"]
    await turn()
    assert field.names() == [["a"]]

    field.land(0)
    await turn()
    field.land(1)

    assert field.names() == [["a"], ["b", "c", "d"]]
    assert await asyncio.gather(first, *rest) == ["A", "B", "C", "D"]
    field.queue.close()


async def test_a_batch_is_bounded_in_number_and_bytes() -> None:
    field = Airfield(max_batch=3, max_batch_bytes=10)
    for size in (1, 1, 1, 1, 9, 9, 50):
        field.queue.submit(str(size), size)
    for position in range(4):
        await turn()
        field.land(position)
    await turn()

    assert field.names() == [["1", "1", "1"], ["1", "9"], ["9"], ["50"]]
    field.queue.close()


async def test_a_deadline_answers_the_waiter_and_lets_the_next_batch_leave() -> None:
    field = Airfield(deadline_s=0.02)
    late = field.queue.submit("a", 1)

    assert await late is Cause.DEADLINE
    next_one = field.queue.submit("b", 1)
    await turn()

    assert field.missed == 1
    assert field.names() == [["a"], ["b"]]
    field.land(0)
    field.land(1)
    assert await next_one == "B"
    field.queue.close()


async def test_one_late_batch_is_one_miss_however_many_waited() -> None:
    field = Airfield(deadline_s=0.02)
    waiters = [field.queue.submit(name, 1) for name in "abc"]

    assert await asyncio.gather(*waiters) == [Cause.DEADLINE] * 3
    assert field.missed == 1
    field.queue.close()


async def test_a_full_queue_answers_at_once() -> None:
    field = Airfield(max_waiting=2)
    field.queue.submit("a", 1)
    field.queue.submit("b", 1)

    assert await field.queue.submit("c", 1) is Cause.QUEUE_FULL
    field.queue.close()


async def test_a_cancelled_waiter_does_not_leave() -> None:
    field = Airfield()
    field.queue.submit("a", 1)
    await turn()
    gone = field.queue.submit("b", 1)
    field.queue.submit("c", 1)
    gone.cancel()

    field.land(0)
    await turn()

    assert field.names() == [["a"], ["c"]]
    field.queue.close()


async def test_a_demand_departs_without_waiters_after_what_is_aloft() -> None:
    field = Airfield()
    field.queue.submit("a", 1)
    await turn()
    field.queue.demand()
    await turn()
    assert field.names() == [["a"]]

    field.land(0)
    await turn()

    assert field.names() == [["a"], []]
    field.queue.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_closing_answers_everyone(when: str) -> None:
    field = Airfield()
    if when == "after":
        field.queue.close()
    waiter = field.queue.submit("a", 1)
    field.queue.close()
    await turn()

    assert await waiter is Cause.CLOSED
    assert field.departed == []
