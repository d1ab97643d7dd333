"""The fleet in motion: passes, the events that they make, deaths, and replicas that come and go.

Pure. What becomes of requests is the owner's business, who hears of every pass and of every loss.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise

from replicas.sim.holding import FIRST_FRESH_HASH
from replicas.sim.replica import PassResult, SimReplica
from replicas.sim.scheduler import SchedulerLimits
from replicas.sim.sequence import SimSequence
from router.core.events import EventBatch
from router.core.types import Incarnation, ReplicaId, Slot
from router.replay.clock import VirtualClock
from router.replay.control_plane import ControlPlanes
from router.replay.fleet import Replica, Work
from router.replay.plan import Failure, ReplayPlan, Scaling


@dataclass(frozen=True, slots=True)
class FleetListener:
    """What the owner of the requests is told: the end of each pass, requests that died with their
    replica, and that somebody has joined."""

    on_pass: Callable[[Replica, PassResult], None]
    on_lost: Callable[[Replica, Sequence[SimSequence]], None]
    on_joined: Callable[[], None]


class RunningFleet:
    """`work` by replica name, in all its lives; `replica_s` is how long they were there in all."""

    def __init__(
        self,
        plan: ReplayPlan,
        clock: VirtualClock,
        control: ControlPlanes,
        listener: FleetListener,
    ) -> None:
        self.work: dict[ReplicaId, Work] = {}
        self.replica_s = 0.0
        self._plan = plan
        self._clock = clock
        self._control = control
        self._listener = listener
        self._names = count()
        self._lives = count(1)
        self._fresh_hashes = count(FIRST_FRESH_HASH)
        self._running: dict[Replica, dict[SimSequence, None]] = {}

    def start(self) -> None:
        """Everybody joins, and what is planned to happen is put on the clock."""
        for _ in range(self._plan.fleet.replicas):
            self._join(self._fresh_name())
        for failure in self._plan.failures:
            self._clock.at(failure.at_s, partial(self._fail, failure))
        for scaling in self._plan.scalings:
            self._clock.at(scaling.at_s, partial(self._scale, scaling))

    def stop(self) -> None:
        """The end of the replay: settles what each replica's time was."""
        for replica in list(self._running):
            self._end(replica)

    def submit(self, replica: Replica, sequence: SimSequence) -> bool:
        """False where the request could never fit, or the replica has gone meanwhile."""
        if replica not in self._running or not replica.engine.submit(sequence):
            return False
        self._running[replica][sequence] = None
        replica.work.requests += 1
        if not replica.is_busy:
            self._pass(replica)
        else:
            self._wake(replica)
        return True

    def _pass(self, replica: Replica) -> None:
        now_s = self._clock.now_s
        if ends := replica.engine.quiet_ends(now_s):
            self._rest(replica, [now_s, *ends])
            return
        done = replica.engine.next_pass(now_s)
        replica.is_busy = done is not None
        if done is not None:
            replica.work.busy_s += done.end_s - now_s
            self._clock.at(done.end_s, lambda: self._passed(replica, done))
        elif replica.is_leaving:
            self._end(replica)

    def _rest(self, replica: Replica, quiet: list[float]) -> None:
        """Until the end of the last of these passes, unless something comes: see `_wake`."""
        replica.is_busy, replica.quiet = True, quiet
        self._clock.at(quiet[-1], lambda: self._rested(replica, quiet))

    def _rested(self, replica: Replica, quiet: list[float]) -> None:
        if replica.quiet is quiet:
            self._end_quiet(replica)
            self._pass(replica)

    def _wake(self, replica: Replica) -> None:
        """Something has come: it is seen at the end of the pass that is under way."""
        under_way = bisect_left(replica.quiet, self._clock.now_s, lo=1) + 1
        if under_way < len(replica.quiet):
            self._rest(replica, replica.quiet[:under_way])

    def _end_quiet(self, replica: Replica) -> None:
        quiet, replica.quiet = replica.quiet, []
        replica.engine.skip(max(len(quiet) - 1, 0))
        for begin_s, end_s in pairwise(quiet):
            replica.work.busy_s += end_s - begin_s

    def _passed(self, replica: Replica, done: PassResult) -> None:
        if replica not in self._running:
            return
        for sequence in done.admitted:
            fresh_tokens = max(sequence.prompt_tokens - sequence.most_cached_tokens, 0)
            replica.work.computed_tokens += fresh_tokens
        for sequence in done.finished:
            del self._running[replica][sequence]
        for batch in replica.batches(done.changes):
            self._publish(batch)
        self._listener.on_pass(replica, done)
        self._pass(replica)

    def _publish(self, batch: EventBatch) -> None:
        delay_s = self._plan.event_delay_s
        if delay_s:
            self._clock.at(self._clock.now_s + delay_s, lambda: self._control.hear(batch))
        else:
            self._control.hear(batch)

    def _join(self, name: ReplicaId) -> None:
        fleet = self._plan.fleet
        limits = SchedulerLimits(block_size=fleet.block_size)
        engine = SimReplica.create(fleet.blocks, limits, fleet.latency, self._fresh_hashes)
        work = self.work.setdefault(name, Work())
        life = Incarnation(next(self._lives))
        replica = Replica(name, life, Slot(0), engine, work, self._clock.now_s)
        self._control.join(replica, self._clock.now_s)
        self._running[replica] = {}
        self._listener.on_joined()

    def _fail(self, failure: Failure) -> None:
        if failure.replica is None:
            for each in self._running:
                each.engine.drop_idle_blocks()
                self._wake(each)
            return
        name = ReplicaId(f"replica-{failure.replica}")
        replica = self._control.members.get(name)
        if replica is None:
            return
        lost = list(self._running[replica])
        self._control.leave(replica)
        self._end(replica)
        self._clock.at(self._clock.now_s + failure.down_s, lambda: self._join(name))
        self._listener.on_lost(replica, lost)

    def _scale(self, scaling: Scaling) -> None:
        for _ in range(scaling.change):
            self._join(self._fresh_name())
        leaving = self._control.members.leases()[scaling.change :] if scaling.change < 0 else []
        for replica in leaving:
            replica.is_leaving = True
            self._control.leave(replica)
            if not replica.is_busy:
                self._end(replica)

    def _end(self, replica: Replica) -> None:
        self._wake(replica)
        self._end_quiet(replica)
        del self._running[replica]
        self.replica_s += self._clock.now_s - replica.since_s

    def _fresh_name(self) -> ReplicaId:
        return ReplicaId(f"replica-{next(self._names)}")
