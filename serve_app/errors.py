"""The one table from domain errors to HTTP, and OpenAI's shape for all of them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from fastapi.responses import Response

from router.core.errors import (
    BlockSizeMismatch,
    ConfigurationError,
    ContextBusy,
    ContextExpired,
    ContextKindMismatch,
    ContextNotFound,
    ContextQuotaExceeded,
    ContextsUnavailable,
    EngineDead,
    EngineError,
    IndexUnavailable,
    InvalidRequest,
    JournalError,
    JournalFenced,
    JournalFull,
    JournalLost,
    JournalRefused,
    MalformedMessage,
    ModelMismatch,
    NoReplica,
    NotFound,
    PayloadTooLarge,
    RegistrationRefused,
    RequestError,
    RequestRejected,
    ToolsChanged,
    TurnConflict,
    Unauthenticated,
    Unavailable,
    WarmpathError,
)

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class HttpError:
    """`status` is HTTP's, `kind` is OpenAI's `type`, `code` the default machine-readable word."""

    status: int
    kind: str
    code: str | None = None


_CLIENT, _SERVER = "invalid_request_error", "server_error"

TABLE: Mapping[type[WarmpathError], HttpError] = {
    WarmpathError: HttpError(500, _SERVER),
    ConfigurationError: HttpError(500, _SERVER),
    RequestError: HttpError(400, _CLIENT),
    InvalidRequest: HttpError(400, _CLIENT),
    Unauthenticated: HttpError(401, _CLIENT, "invalid_api_key"),
    NotFound: HttpError(404, _CLIENT, "not_found"),
    ContextNotFound: HttpError(404, _CLIENT, "context_not_found"),
    ContextExpired: HttpError(410, _CLIENT, "context_expired"),
    ContextBusy: HttpError(409, _CLIENT, "context_busy"),
    TurnConflict: HttpError(409, _CLIENT, "turn_conflict"),
    ContextKindMismatch: HttpError(400, _CLIENT, "context_kind"),
    ModelMismatch: HttpError(400, _CLIENT, "model_mismatch"),
    ToolsChanged: HttpError(400, _CLIENT, "tools_changed"),
    ContextQuotaExceeded: HttpError(429, _CLIENT, "context_quota_exceeded"),
    PayloadTooLarge: HttpError(413, _CLIENT, "payload_too_large"),
    RequestRejected: HttpError(400, _CLIENT),
    Unavailable: HttpError(503, _SERVER, "overloaded"),
    NoReplica: HttpError(503, _SERVER, "no_replica"),
    ContextsUnavailable: HttpError(503, _SERVER, "contexts_unavailable"),
    EngineError: HttpError(500, _SERVER, "engine_error"),
    EngineDead: HttpError(503, _SERVER, "engine_dead"),
    IndexUnavailable: HttpError(503, _SERVER, "overloaded"),
    BlockSizeMismatch: HttpError(500, _SERVER),
    MalformedMessage: HttpError(500, _SERVER),
    RegistrationRefused: HttpError(500, _SERVER),
    JournalError: HttpError(500, _SERVER),
    JournalRefused: HttpError(500, _SERVER),
    JournalFenced: HttpError(500, _SERVER),
    JournalFull: HttpError(500, _SERVER),
    JournalLost: HttpError(500, _SERVER),
}

CountFault = Callable[[str], None]
"""Counts one fault by its cause, a word from a small closed set."""


def http_error(error: WarmpathError) -> HttpError:
    """The row of the nearest class in the table; O(depth of the tree)."""
    row = next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)
    if isinstance(error, RequestRejected) and 400 <= error.status <= 499:
        return HttpError(error.status, row.kind, row.code)
    return row


def error_body(error: WarmpathError) -> dict[str, object]:
    """`{"error": …}` as OpenAI writes it; the message is cut to `MAX_MESSAGE_CHARACTERS`."""
    row = http_error(error)
    param, code = (error.param, error.code) if isinstance(error, RequestError) else (None, None)
    message = error.message[:MAX_MESSAGE_CHARACTERS] or "The request failed."
    return {
        "error": {"message": message, "type": row.kind, "param": param, "code": code or row.code}
    }


def error_response(error: WarmpathError) -> Response:
    """A plain JSON answer, for as long as no byte of another was sent."""
    headers = {}
    if isinstance(error, Unavailable | ContextBusy):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(error_body(error)),
        status_code=http_error(error).status,
        media_type="application/json",
        headers=headers,
    )


def error_event(error: WarmpathError) -> bytes:
    """One server-sent event, the last of a stream that had begun."""
    return b"data: " + msgspec.json.encode(error_body(error)) + b"\n\n"


def unexpected(error: BaseException, count: CountFault, doing: str) -> EngineError:
    """Hides a fault that nobody foresaw behind a safe message, having logged and counted it."""
    logger.error("unexpected fault while %s", doing, exc_info=error)
    count("unexpected")
    return EngineError("The server failed to answer this request.")
