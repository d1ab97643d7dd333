"""One replay: requests arrive, are decided on, computed and answered, on one virtual clock. Pure.

The decisions are made by the product's own code (`ControlPlane`), the passes by the simulated
engine; nothing here knows what a policy does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, cycle

from replicas.sim.replica import PassResult
from replicas.sim.sequence import SimSequence
from router.core.types import BookingId, ReplicaId
from router.replay.clock import VirtualClock
from router.replay.control_plane import ControlPlane, ControlPlanes
from router.replay.fleet import Replica, Work
from router.replay.ingress import Ingress
from router.replay.outcomes import Outcomes
from router.replay.plan import ReplayPlan
from router.replay.running_fleet import FleetListener, RunningFleet
from router.replay.trace import TraceRequest

MAX_ATTEMPTS = 3
"""As live: a request whose replica died before its first token is sent again."""

Progress = Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Attempt:
    """At the request of that number in the trace."""

    number: int
    booking_id: BookingId
    ingress: Ingress
    lost_on: Replica | None = None
    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """`work` by replica, in all its lives; `replica_s` sums the time that each was there."""

    outcomes: Outcomes
    work: dict[ReplicaId, Work]
    replica_s: float
    duration_s: float


class Simulation:
    """Runs once. `progress` is called with the number of requests that have ended so far."""

    def __init__(
        self,
        plan: ReplayPlan,
        requests: Sequence[TraceRequest],
        progress: Progress = lambda _: None,
    ) -> None:
        self._requests = requests
        self._progress = progress
        self._clock = VirtualClock()
        separate = 1 if plan.is_shared else plan.ingresses
        planes = [
            ControlPlane(replace(plan, seed=plan.seed + number)) for number in range(separate)
        ]
        self._outcomes = Outcomes(requests)
        self._fleet = RunningFleet(
            plan,
            self._clock,
            ControlPlanes(planes),
            FleetListener(self._on_pass, self._on_lost, self._on_joined),
        )
        call_s = plan.call_s if plan.ingresses > len(planes) else 0.0
        self._ingresses = cycle(
            Ingress(planes[number % len(planes)], self._clock, call_s)
            for number in range(plan.ingresses)
        )
        self._bookings = count(1)
        self._attempts: dict[SimSequence, _Attempt] = {}
        self._homeless: deque[_Attempt] = deque()
        self._ended = 0

    def run(self) -> Replayed:
        """O(requests · their blocks + passes)."""
        self._fleet.start()
        self._arrive_at(0)
        while self._ended < len(self._requests) and self._clock.step():
            pass
        self._fleet.stop()
        return Replayed(self._outcomes, self._fleet.work, self._fleet.replica_s, self._clock.now_s)

    def _arrive_at(self, number: int) -> None:
        if number < len(self._requests):
            self._clock.at(self._requests[number].at_s, partial(self._arrive, number))

    def _arrive(self, number: int) -> None:
        self._arrive_at(number + 1)
        booking_id = BookingId(next(self._bookings))
        self._ask(_Attempt(number, booking_id, next(self._ingresses)))

    def _ask(self, attempt: _Attempt) -> None:
        self._outcomes.attempts[attempt.number] += 1
        asked = (attempt.booking_id, self._requests[attempt.number], attempt.lost_on)
        attempt.ingress.ask(asked, partial(self._place, attempt))

    def _place(self, attempt: _Attempt, replica: Replica | None) -> None:
        """Where nobody is there it waits for whoever joins."""
        if replica is None:
            self._homeless.append(attempt)
            return
        request = self._requests[attempt.number]
        hashes = request.hashes.tolist()
        sequence = SimSequence(request.prompt_tokens, request.output_tokens, hashes)
        if self._fleet.submit(replica, sequence):
            self._attempts[sequence] = attempt
        else:
            self._give_up(attempt)

    def _on_pass(self, replica: Replica, done: PassResult) -> None:
        now_s = self._clock.now_s
        for sequence in done.first_tokens:
            attempt = self._attempts[sequence]
            attempt.has_begun = True
            self._outcomes.first_token(attempt.number, now_s)
            attempt.ingress.first_token(attempt.booking_id)
        for sequence in done.finished:
            attempt = self._attempts.pop(sequence)
            self._outcomes.finished(attempt.number, now_s, _reused_tokens(sequence))
            self._end(attempt)

    def _on_lost(self, replica: Replica, lost: Sequence[SimSequence]) -> None:
        """What has begun to answer has failed; the rest is sent to another, a few times."""
        for sequence in lost:
            attempt = self._attempts.pop(sequence)
            has_failed = attempt.has_begun or (
                self._outcomes.attempts[attempt.number] >= MAX_ATTEMPTS
            )
            if has_failed:
                self._give_up(attempt)
                continue
            attempt.ingress.settle(attempt.booking_id)
            again = BookingId(next(self._bookings))
            self._ask(_Attempt(attempt.number, again, attempt.ingress, replica))

    def _on_joined(self) -> None:
        waiting, self._homeless = self._homeless, deque()
        for attempt in waiting:
            self._ask(attempt)

    def _give_up(self, attempt: _Attempt) -> None:
        self._outcomes.failed(attempt.number)
        self._end(attempt)

    def _end(self, attempt: _Attempt) -> None:
        attempt.ingress.settle(attempt.booking_id)
        self._ended += 1
        self._progress(self._ended)


def _reused_tokens(sequence: SimSequence) -> int:
    """As Dynamo's replay counts, and vLLM's metrics do: at most the prompt, and of a request that
    was preempted also what it finds of its own."""
    return min(sequence.most_cached_tokens, sequence.prompt_tokens - 1)
