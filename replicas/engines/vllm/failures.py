"""vLLM's ways to say that something went wrong, as errors of ours.

vLLM raises, returns an `ErrorResponse`, or writes the error into the stream as if it were output.
"""

import json
import logging
import re
from http import HTTPStatus

from pydantic import ValidationError
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.v1.engine.exceptions import EngineDeadError

from router.core.errors import (
    EngineDead,
    EngineError,
    RequestRejected,
    Unavailable,
    WarmpathError,
)

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 500

_VALUE = re.compile(r" \(parameter=.*\)$", re.DOTALL)
"""What vLLM appends to its messages: the name and the value at fault, which is the client's."""

_ERROR_EVENT = 'data: {"error":'


def translated(failure: Exception, request_id: str) -> WarmpathError:
    """Uses vLLM's own table from exceptions to HTTP statuses; logs what is no client's fault."""
    if isinstance(failure, WarmpathError):
        return failure
    if isinstance(failure, EngineDeadError):
        return EngineDead("the engine died")
    if isinstance(failure, ValidationError):
        return _malformed(failure)
    error = from_response(create_error_response(failure))
    if isinstance(error, EngineError):
        logger.error("request %s failed in vLLM", request_id, exc_info=failure)
    return error


def from_response(response: ErrorResponse) -> WarmpathError:
    """What an `ErrorResponse` says. Server faults lose their text: it may quote internals."""
    error = response.error
    if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
        return Unavailable("the engine's queue is full")
    if error.code >= 500 and error.code != HTTPStatus.NOT_IMPLEMENTED:
        return EngineError("the engine failed to answer")
    status = 400 if error.code == HTTPStatus.NOT_IMPLEMENTED else error.code
    message = _VALUE.sub("", error.message)
    return RequestRejected(message[:MAX_MESSAGE_CHARS], status=status, param=error.param)


def _malformed(failure: ValidationError) -> RequestRejected:
    """The first of pydantic's findings, without the value that it found."""
    first = failure.errors(include_url=False, include_context=False, include_input=False)[0]
    field, *rest = first["loc"] or ("request",)
    param = f"{field}[{rest[0]}]" if rest and isinstance(rest[0], int) else str(field)
    return RequestRejected(f"{param}: {first['msg']}"[:MAX_MESSAGE_CHARS], param=param)


def from_event(event: str) -> WarmpathError | None:
    """The error that a streamed event carries, or None for an event that is output."""
    if not event.startswith(_ERROR_EVENT):
        return None
    return from_response(ErrorResponse(**json.loads(event.removeprefix("data: "))))
