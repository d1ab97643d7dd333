"""Every error that Warmpath raises on purpose.

    WarmpathError
    ├── ConfigurationError      a key in the configuration is wrong; dies at start
    ├── RequestError            the client's fault: 4xx
    │   ├── InvalidRequest      400
    │   │   ├── ContextKindMismatch     a chat turn on a prompt context, or the reverse
    │   │   ├── ModelMismatch       the context belongs to another model
    │   │   └── ToolsChanged        a context's tools are given at its creation
    │   ├── Unauthenticated     401
    │   ├── NotFound            404
    │   │   └── ContextNotFound     unknown, foreign or deleted: one body for all three
    │   ├── ContextExpired      410, to its owner for an hour
    │   ├── ContextBusy         409, with the seconds to wait: another turn is under way
    │   ├── TurnConflict        409: not the turn that the client meant, or its lease has lapsed
    │   ├── ContextQuotaExceeded    429
    │   ├── PayloadTooLarge     413
    │   └── RequestRejected     the engine refused it; carries the engine's own status
    ├── Unavailable             try later: 503, with the seconds to wait
    │   ├── NoReplica           no replica can take the request
    │   └── ContextsUnavailable the context manager cannot be reached, or its journal cannot
    ├── EngineError             the engine failed after it had accepted the request
    │   └── EngineDead          it will not come back by itself; the replica is replaced
    ├── IndexUnavailable        the block index did not answer in time; never reaches a client
    ├── JournalError            the journal behind the contexts; never reaches a client
    │   ├── JournalRefused      corrupted, or of a newer version: a person must decide
    │   ├── JournalFenced       another context manager has taken over
    │   ├── JournalFull         nothing of the write was kept: no room
    │   └── JournalLost         it cannot be reached; whether the write was kept is not known
    ├── RegistrationRefused     a replica cannot enter the block index: an older life, or no slot
    ├── MalformedMessage        bytes between processes that are no message we know
    └── BlockSizeMismatch       engine and router disagree on what a block is: nothing would match

`serve_app.errors` holds the one table from these to HTTP.
"""


class WarmpathError(Exception):
    """The root. `message` is safe to show to a client: no user content, no secret."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigurationError(WarmpathError):
    """`key` is the dotted path of the offending key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.key, self.message.removeprefix(f"{self.key}: "))


class RequestError(WarmpathError):
    """`param` names the field at fault and `code` is OpenAI's machine-readable word."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, {"param": self.param, "code": self.code})


class InvalidRequest(RequestError):
    pass


class Unauthenticated(RequestError):
    pass


class NotFound(RequestError):
    pass


class ContextNotFound(NotFound):
    """Says the same of an id that never was, was deleted or belongs to somebody else."""

    def __init__(
        self,
        message: str = "There is no such context.",
        *,
        param: str | None = None,
        code: str | None = "context_not_found",
    ) -> None:
        super().__init__(message, param=param, code=code)


class ContextExpired(RequestError):
    pass


class ContextBusy(RequestError):
    """`retry_after_s` is when another try makes sense at the earliest."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int = 1,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        keywords = {"param": self.param, "code": self.code, "retry_after_s": self.retry_after_s}
        return _rebuild, (type(self), self.message, keywords)


class TurnConflict(RequestError):
    pass


class ContextQuotaExceeded(RequestError):
    pass


class ContextKindMismatch(InvalidRequest):
    pass


class ModelMismatch(InvalidRequest):
    pass


class ToolsChanged(InvalidRequest):
    pass


class PayloadTooLarge(RequestError):
    pass


class RequestRejected(RequestError):
    """The engine refused the request; `status` is the HTTP status that it gave, 400–499."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        keywords = {"status": self.status, "param": self.param, "code": self.code}
        return _rebuild, (type(self), self.message, keywords)


class Unavailable(WarmpathError):
    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, {"retry_after_s": self.retry_after_s})


class NoReplica(Unavailable):
    pass


class ContextsUnavailable(Unavailable):
    pass


class EngineError(WarmpathError):
    pass


class EngineDead(EngineError):
    pass


class IndexUnavailable(WarmpathError):
    pass


class JournalError(WarmpathError):
    pass


class JournalRefused(JournalError):
    pass


class JournalFenced(JournalError):
    pass


class JournalFull(JournalError):
    pass


class JournalLost(JournalError):
    pass


class RegistrationRefused(WarmpathError):
    pass


class MalformedMessage(WarmpathError):
    pass


class BlockSizeMismatch(WarmpathError):
    pass


def _rebuild(kind: type[WarmpathError], message: str, keywords: dict[str, object]) -> WarmpathError:
    """Errors cross processes; keyword-only arguments need this to survive pickling."""
    return kind(message, **keywords)
