"""Many conversations, a fault every so often, and what is left of it all at the end."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import ray

from serve_app.bench.live import LiveApplication
from serve_app.bench.soak_client import SoakClient
from serve_app.bench.soak_faults import Processes
from serve_app.bench.soak_memory import MemoryLog
from serve_app.bench.soak_talks import Ending, Talk

SAMPLE_S = 5.0
CALM_S = 60.0
"""The last stretch, without faults, in which every conversation has to go on."""
SETTLE_LIMIT_S = 60.0
ENDED_TALKS = 5
"""So many conversations are ended by one fault of that kind."""

TOLD = (
    "turns",
    "created",
    "deleted",
    "expired",
    "retried",
    "answers_lost",
    "texts_compared",
    "loaded",
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """Times in seconds."""

    soak_s: float
    fault_every_s: float


@dataclass(slots=True)
class Soak:
    """One run. `faults` counts those that happened, by kind; `left` is what the end found."""

    live: LiveApplication
    talks: Sequence[Talk]
    processes: Processes
    plan: Plan
    rng: Random
    say: Callable[[str], None]
    faults: Counter[str] = field(default_factory=Counter)
    memory: MemoryLog = field(default_factory=MemoryLog)
    left: dict[str, int] = field(default_factory=dict)
    idle_talks: int = 0

    async def run(self) -> None:
        """Returns when all conversations have ended and the end has been looked at."""
        end = time.monotonic() + self.plan.soak_s
        calm = end - min(CALM_S, self.plan.soak_s / 3)
        running = [asyncio.create_task(talk.run(end)) for talk in self.talks]
        beside = [asyncio.create_task(self._break(calm)), asyncio.create_task(self._sample(end))]
        await asyncio.gather(*running, *beside)
        self.idle_talks = sum(talk.last_turn_at < calm for talk in self.talks)
        self.left = {
            "bookings": await self._settled(self.processes.bookings),
            "open_turns": await self._settled(self.processes.open_turns),
        }

    async def _break(self, until: float) -> None:
        kinds = [*await asyncio.to_thread(self.processes.pids), *Ending]
        due: list[str] = []
        while time.monotonic() + self.plan.fault_every_s < until:
            await asyncio.sleep(self.plan.fault_every_s)
            # A second round of kinds, so that one that has to wait does not keep the others back.
            if len(due) < len(kinds):
                due += self.rng.sample(kinds, len(kinds))
            for kind in due:
                if await self._happens(kind):
                    due.remove(kind)
                    self.faults[kind] += 1
                    self.say(f"{time.strftime('%X')} {kind}")
                    break

    async def _happens(self, kind: str) -> bool:
        """False where there is no such process, or the last one of Serve's is not yet replaced."""
        if kind in set(Ending):
            for talk in self.rng.sample(list(self.talks), min(ENDED_TALKS, len(self.talks))):
                talk.ending = Ending(kind)
            return True
        if kind in ("ingress", "replica") and not await asyncio.to_thread(self.live.is_running):
            return False
        return await asyncio.to_thread(self.processes.kill, kind)

    async def _sample(self, until: float) -> None:
        while time.monotonic() < until:
            self.memory.note(time.monotonic(), await asyncio.to_thread(self.processes.memory_mib))
            await asyncio.sleep(SAMPLE_S)

    async def _settled(self, number: Callable[[], int]) -> int:
        """Zero, or what is left of it after a while; -1: nobody said."""
        deadline, left = time.monotonic() + SETTLE_LIMIT_S, -1
        while left and time.monotonic() < deadline:
            try:
                left = await asyncio.to_thread(number)
            except (ray.exceptions.RayError, LookupError):
                left = -1
            await asyncio.sleep(1)
        return left


def figures(soak: Soak, client: SoakClient) -> dict[str, Any]:
    """Of the whole run, for its last line."""
    counts, growth = client.tally.counts, soak.memory.growth()
    return {
        **{name: counts[name] for name in TOLD},
        "faults": dict(sorted(soak.faults.items())),
        "lost": counts["lost"],
        "wrong_texts": counts["wrong"],
        "surprising": counts["surprising"],
        "stuck": counts["stuck"] + soak.idle_talks,
        "left": soak.left,
        "refusals": dict(client.tally.refusals.most_common()),
        "memory_mib": {
            kind: [round(of.first, 1), round(of.last, 1)] for kind, of in growth.items()
        },
        "mib_per_minute": {
            kind: round(of.slope, 2) for kind, of in growth.items() if of.slope is not None
        },
        "grown": [kind for kind, of in growth.items() if not of.is_flat],
    }


def is_sound(found: dict[str, Any]) -> bool:
    """Nothing lost, stuck, wrong, surprising, left or grown, and there was something to find."""
    bad = ("lost", "wrong_texts", "surprising", "stuck", "grown")
    return (
        found["turns"] > 0
        and not any(found[name] for name in bad)
        and not any(found["left"].values())
    )
