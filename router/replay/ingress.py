"""A caller of the control plane, as the live ingress is one: it gathers what comes while a call is
under way, and what it knows reaches the others with its next call. Pure."""

from collections import deque
from collections.abc import Callable

from router.core.types import BookingId
from router.replay.clock import VirtualClock
from router.replay.control_plane import ControlPlane, News
from router.replay.fleet import Replica
from router.replay.trace import TraceRequest

MAX_FLIGHT_REQUESTS = 64
"""As live."""

Answered = Callable[[Replica | None], None]
Asked = tuple[BookingId, TraceRequest, Replica | None]
Flight = list[tuple[Asked, Answered]]
Answers = list[tuple[Answered, Replica | None]]


class Ingress:
    """`call_s` is the round trip, 0: there is none."""

    def __init__(self, control: ControlPlane, clock: VirtualClock, call_s: float) -> None:
        self._control = control
        self._clock = clock
        self._call_s = call_s
        self._waiting: deque[tuple[Asked, Answered]] = deque()
        self._news: list[tuple[News, BookingId]] = []
        self._is_calling = False

    def ask(self, asked: Asked, answered: Answered) -> None:
        self._waiting.append((asked, answered))
        self._call()

    def first_token(self, booking_id: BookingId) -> None:
        self._tell(self._control.first_token, booking_id)

    def settle(self, booking_id: BookingId) -> None:
        self._tell(self._control.settle, booking_id)

    def _tell(self, news: News, booking_id: BookingId) -> None:
        if self._call_s:
            self._news.append((news, booking_id))
            self._call()
        else:
            news(booking_id, self._clock.now_s)

    def _call(self) -> None:
        if self._is_calling or not (self._waiting or self._news):
            return
        aboard = min(len(self._waiting), MAX_FLIGHT_REQUESTS)
        flight = [self._waiting.popleft() for _ in range(aboard)]
        news, self._news = self._news, []
        if self._call_s:
            self._is_calling = True
            self._clock.at(self._clock.now_s + self._call_s / 2, lambda: self._land(flight, news))
        else:
            _deliver(self._decide(flight))

    def _land(self, flight: Flight, news: list[tuple[News, BookingId]]) -> None:
        """In the actor: news before selections, so that what has ended counts no more."""
        now_s = self._clock.now_s
        for each, booking_id in news:
            each(booking_id, now_s)
        answers = self._decide(flight)
        self._clock.at(now_s + self._call_s / 2, lambda: self._return(answers))

    def _return(self, answers: Answers) -> None:
        self._is_calling = False
        _deliver(answers)
        self._call()

    def _decide(self, flight: Flight) -> Answers:
        chosen = self._control.select([asked for asked, _ in flight], self._clock.now_s)
        return [(answered, replica) for (_, answered), replica in zip(flight, chosen, strict=True)]


def _deliver(answers: Answers) -> None:
    for answered, replica in answers:
        answered(replica)
