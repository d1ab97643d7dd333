"""One simulated replica with its own arrivals: where no decision has to be made. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from replicas.sim.replica import SimReplica
from replicas.sim.sequence import SimSequence


@dataclass(slots=True)
class Served:
    """A request's times in seconds from the same zero; the last two are nan until they come."""

    sequence: SimSequence
    arrived_s: float
    first_token_s: float = float("nan")
    end_s: float = float("nan")


def serve_alone(replica: SimReplica, arrivals: Iterable[tuple[float, SimSequence]]) -> list[Served]:
    """Serves `arrivals`, in order of their times, to the end. Those that can never fit are kept
    without times.
    """
    served = [Served(sequence, at_s) for at_s, sequence in arrivals]
    of = {one.sequence: one for one in served}
    coming, now_s = deque(served), 0.0
    while coming or replica.unfinished:
        if not replica.unfinished:
            now_s = max(now_s, coming[0].arrived_s)
        while coming and coming[0].arrived_s <= now_s:
            replica.submit(coming.popleft().sequence)
        done = replica.next_pass(now_s)
        if done is not None:
            now_s = done.end_s
            for sequence in done.first_tokens:
                of[sequence].first_token_s = now_s
            for sequence in done.finished:
                of[sequence].end_s = now_s
    return served
