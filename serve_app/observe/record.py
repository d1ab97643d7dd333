"""What is known of one request, filled in on its way, read once at its end."""

import time
from dataclasses import dataclass, field

from replicas.settlement import Settlement
from router.core.errors import WarmpathError
from serve_app.admission import Admitted
from serve_app.allow_list import ApiRoute
from serve_app.errors import http_error
from serve_app.routing import LiveRequest

OK = 200
CLIENT_GONE = 499
FAULT = 500


@dataclass(slots=True)
class RequestRecord:
    """Times are of `time.monotonic`. `status` is HTTP's; a stream that broke has the error's.

    `live` is the last attempt, `items` what it has sent so far. `has_begun`: the answer's first
    bytes are here, so that its end is the request's end; where it `ends_with_commit`, that is.
    """

    route: ApiRoute
    tenant: str
    http_request_id: str | None = None
    session_hint: str | None = None
    started_s: float = field(default_factory=time.monotonic)
    admitted: Admitted | None = None
    admitted_s: float | None = None
    live: LiveRequest | None = None
    attempts: int = 0
    first_item_s: float | None = None
    items: int = 0
    has_begun: bool = False
    ends_with_commit: bool = False
    is_finished: bool = False
    settlement: Settlement | None = None
    status: int = OK

    @property
    def is_stream(self) -> bool:
        return self.admitted is not None and self.admitted.request.is_stream

    def admit(self, admitted: Admitted) -> None:
        self.admitted = admitted
        self.admitted_s = time.monotonic()

    def attempt(self, live: LiveRequest) -> None:
        self.live = live
        self.attempts += 1
        self.status = OK

    def begin(self) -> None:
        self.has_begun = True
        self.first_item_s = time.monotonic()

    def fail(self, error: BaseException) -> None:
        """A cancelled request is one whose client has gone."""
        if isinstance(error, WarmpathError):
            self.status = http_error(error).status
        else:
            self.status = FAULT if isinstance(error, Exception) else CLIENT_GONE
