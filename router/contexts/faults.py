"""Domain errors as messages, and back: the closed list of what a caller may be told."""

from router.contexts.wire import Failed
from router.core.errors import (
    ContextBusy,
    ContextExpired,
    ContextKindMismatch,
    ContextNotFound,
    ContextQuotaExceeded,
    ContextsUnavailable,
    MalformedMessage,
    ModelMismatch,
    RequestError,
    TurnConflict,
    WarmpathError,
)

_REQUEST_ERRORS: dict[str, type[RequestError]] = {
    kind.__name__: kind
    for kind in (
        ContextExpired,
        ContextKindMismatch,
        ContextNotFound,
        ContextQuotaExceeded,
        ModelMismatch,
        TurnConflict,
    )
}


def failed(error: WarmpathError) -> Failed:
    name = type(error).__name__
    if isinstance(error, ContextBusy):
        return Failed(name, error.message, error.param, error.code, error.retry_after_s)
    if isinstance(error, RequestError):
        return Failed(name, error.message, error.param, error.code)
    if isinstance(error, ContextsUnavailable):
        return Failed(name, error.message, retry_after_s=error.retry_after_s)
    return Failed(name, error.message)


def error_of(reply: Failed) -> WarmpathError:
    """What `failed` was made of; what only the manager can mean is `ContextsUnavailable`."""
    if reply.error == MalformedMessage.__name__:
        return MalformedMessage(reply.message)
    if reply.error == ContextBusy.__name__:
        return ContextBusy(
            reply.message, param=reply.param, code=reply.code, retry_after_s=reply.retry_after_s
        )
    kind = _REQUEST_ERRORS.get(reply.error)
    if kind is not None:
        return kind(reply.message, param=reply.param, code=reply.code)
    return ContextsUnavailable(reply.message, retry_after_s=reply.retry_after_s)
