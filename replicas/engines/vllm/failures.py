"""vLLM's ways to say that something went wrong, as errors of ours.

vLLM raises, returns an `ErrorResponse`, or writes the error into the stream as if it were output.
"""

import json
import logging
from http import HTTPStatus

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

_ERROR_EVENT = 'data: {"error":'


def translated(failure: Exception, request_id: str) -> WarmpathError:
    """Uses vLLM's own table from exceptions to HTTP statuses; logs what is no client's fault."""
    if isinstance(failure, WarmpathError):
        return failure
    if isinstance(failure, EngineDeadError):
        return EngineDead("the engine died")
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
    return RequestRejected(error.message, status=status, param=error.param)


def from_event(event: str) -> WarmpathError | None:
    """The error that a streamed event carries, or None for an event that is output."""
    if not event.startswith(_ERROR_EVENT):
        return None
    return from_response(ErrorResponse(**json.loads(event.removeprefix("data: "))))
