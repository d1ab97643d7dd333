"""Times, bounds and counts of one process's traffic with the block index. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Times and bounds. `lease_s` is how long a booking outlives its ingress.

    `call_limit_s`: how long a late answer is waited for, to release what it booked.
    """

    deadline_s: float = 0.020
    call_limit_s: float = 30.0
    misses_to_open: int = 3
    probe_interval_s: float = 1.0
    lease_s: float = 30.0
    note_delay_s: float = 0.005
    repeat_after_s: float = 0.2
    max_waiting: int = 4096


@dataclass(slots=True)
class LinkCounters:
    """Since the start. `late_answers`: decisions that came when nobody waited, released."""

    flights: int = 0
    flights_failed: int = 0
    flights_late: int = 0
    late_answers: int = 0
    breaker_opened: int = 0
    breaker_closed: int = 0
    incarnations: int = 0
