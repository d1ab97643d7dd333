"""What clients say of contexts in headers and bodies, judged. Pure; raises `InvalidRequest`."""

import hashlib
import re
from collections.abc import Mapping

from router.configuration import ContextsConfig
from router.core.errors import ContextNotFound, InvalidRequest
from router.core.types import ContextId, Tenant
from serve_app.allow_list import Json

SESSION_HEADER = "x-session-id"
TURN_HEADER = "x-session-turn"
WAIT_HEADER = "x-session-wait"
TTL_HEADER = "x-session-ttl"

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARACTERS = 64
MAX_METADATA_VALUE_CHARACTERS = 512
MAX_PAGE = 100
DEFAULT_PAGE = 20

_PREFIX = "ctx-"
_ID = re.compile(r"ctx-[A-Za-z0-9_-]{1,128}")
_WHOLE = re.compile(r"[0-9]{1,9}")


def is_context(session: str | None) -> bool:
    """Whether a header's value names a context; any other is an affinity hint."""
    return session is not None and session.startswith(_PREFIX)


def context_id(value: str) -> ContextId:
    """Raises `ContextNotFound` for what cannot be one."""
    if not _ID.fullmatch(value):
        raise ContextNotFound()
    return ContextId(value)


def session_tag(tenant: Tenant, session: str) -> str:
    """An affinity hint of a session: the same for the same tenant's, and no way back to it."""
    return hashlib.sha256(f"{tenant}\0{session}".encode("utf-8", "replace")).hexdigest()[:32]


def shortened(context: str) -> str:
    """For logs and terminals: enough to recognise, too little to use."""
    return context[: len(_PREFIX) + 6] + "…"


def ttl_s(body: Json, headers: Mapping[str, str], config: ContextsConfig) -> int | None:
    """Of the body or of the header, which must agree where both say it; None where neither does."""
    stated = body.get("ttl")
    header = headers.get(TTL_HEADER)
    values = [] if stated is None else [_checked_ttl(stated, config)]
    if header is not None:
        values.append(_checked_ttl(whole_number(TTL_HEADER, header), config))
    if len(set(values)) > 1:
        raise InvalidRequest(f"'ttl' and the header '{TTL_HEADER}' differ.", param="ttl")
    return values[0] if values else None


def _checked_ttl(value: object, config: ContextsConfig) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not config.min_ttl_s <= int(str(value)) <= config.max_ttl_s:
        raise InvalidRequest(
            f"'ttl' must be whole seconds from {config.min_ttl_s} to {config.max_ttl_s}.",
            param="ttl",
        )
    return int(str(value))


def metadata(body: Json) -> dict[str, str] | None:
    """None where the body has none."""
    value = body.get("metadata")
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_METADATA_PAIRS:
        raise _bad_metadata()
    for key, text in value.items():
        if not isinstance(text, str) or len(text) > MAX_METADATA_VALUE_CHARACTERS:
            raise _bad_metadata()
        if not 0 < len(key) <= MAX_METADATA_KEY_CHARACTERS:
            raise _bad_metadata()
    return value


def _bad_metadata() -> InvalidRequest:
    return InvalidRequest(
        f"'metadata' must be at most {MAX_METADATA_PAIRS} pairs of strings, keys of"
        f" {MAX_METADATA_KEY_CHARACTERS} and values of {MAX_METADATA_VALUE_CHARACTERS}"
        " characters at most.",
        param="metadata",
    )


def expected_turns(headers: Mapping[str, str]) -> int | None:
    value = headers.get(TURN_HEADER)
    return None if value is None else whole_number(TURN_HEADER, value)


def wait_s(headers: Mapping[str, str], config: ContextsConfig) -> float:
    value = headers.get(WAIT_HEADER)
    seconds = 0 if value is None else whole_number(WAIT_HEADER, value)
    if seconds > config.max_wait_s:
        raise InvalidRequest(
            f"'{WAIT_HEADER}' is above {config.max_wait_s:g} seconds.", param=WAIT_HEADER
        )
    return float(seconds)


def page(query: Mapping[str, str]) -> tuple[int, ContextId | None]:
    """How many contexts, and behind which."""
    limit = whole_number("limit", query.get("limit", str(DEFAULT_PAGE)))
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"'limit' must be from 1 to {MAX_PAGE}.", param="limit")
    after = query.get("after")
    return limit, None if after is None else context_id(after)


def whole_number(name: str, value: str) -> int:
    if not _WHOLE.fullmatch(value.strip()):
        raise InvalidRequest(f"'{name}' must be a whole number.", param=name)
    return int(value)
