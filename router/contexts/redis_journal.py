"""The replicated journal: one hash in a Redis that writes to disk before it answers."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from router.contexts.journal import FORMAT
from router.contexts.records import Entry
from router.core.errors import JournalFenced, JournalFull, JournalLost, JournalRefused

_log = logging.getLogger(__name__)

_CALL_LIMIT_S = 5.0
_ROWS_AT_ONCE = 512

_WRITE = """
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] then return 0 end
local kept = 2 + 2 * tonumber(ARGV[2])
for i = 3, kept, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
for i = kept + 1, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
return 1
"""
"""One script is one step: nobody sees, and no crash leaves, a part of a batch."""

_NOT_KEPT = ("MISCONF", "NOREPLICAS")
"""Refusals before anything was written: a disk that fails, too few replicas."""


class RedisJournal:
    """Of one application; all that it has is in two keys of one slot."""

    def __init__(self, url: str, application: str) -> None:
        self._redis: redis.Redis = redis.Redis.from_url(
            url,
            socket_timeout=_CALL_LIMIT_S,
            socket_connect_timeout=_CALL_LIMIT_S,
            retry=Retry(NoBackoff(), 0),
        )
        family = f"warmpath:{{{quote(application, safe='')}}}"
        self._entries, self._life = f"{family}:contexts", f"{family}:life"
        self._epoch = 0

    def claim(self) -> int:
        with _translated():
            known = self._redis.hget(self._life, "format")
            if known is not None and int(known) > FORMAT:
                raise JournalRefused(
                    f"The journal in Redis has format {int(known)}, this version knows {FORMAT}."
                    f" Run the newer version again, or rename {self._life} and {self._entries}."
                )
            self._warn_unless_durable()
            self._redis.hset(self._life, "format", str(FORMAT))
            self._epoch = int(self._redis.hincrby(self._life, "epoch", 1))
        return self._epoch

    def rows(self) -> Iterator[tuple[str, bytes]]:
        with _translated():
            for key, value in self._redis.hscan_iter(self._entries, count=_ROWS_AT_ONCE):
                yield key.decode(), value

    def write(self, entries: Sequence[Entry]) -> None:
        kept = [(key, value) for key, value in entries if value is not None]
        arguments: list[str | bytes] = [str(self._epoch), str(len(kept))]
        for key, value in kept:
            arguments += (key, value)
        arguments += [key for key, value in entries if value is None]
        with _translated():
            if not self._redis.eval(_WRITE, 2, self._entries, self._life, *arguments):
                raise JournalFenced(f"another life has taken over from life {self._epoch}")

    def size_bytes(self) -> int:
        with _translated():
            return int(self._redis.memory_usage(self._entries, samples=5) or 0)

    def compact(self) -> None:
        """Redis rewrites its log by itself."""

    def close(self) -> None:
        self._redis.close()

    def _warn_unless_durable(self) -> None:
        wanted = {"appendonly": "yes", "appendfsync": "always"}
        try:
            settings = self._redis.config_get(*wanted)
        except redis.ResponseError:
            _log.warning(
                "Redis does not say whether it keeps what it confirms; see to it that it"
                " runs with appendonly yes and appendfsync always"
            )
            return
        found = {str(name): str(value) for name, value in settings.items()}
        if found != wanted:
            _log.warning(
                "CONTEXTS ARE NOT SAFE: Redis runs with %s, so that turns which clients saw end "
                "can be lost with it. Set appendonly yes and appendfsync always.",
                ", ".join(f"{name} {value}" for name, value in sorted(found.items())),
            )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise JournalFull(f"Redis has no room: {error}") from error
    except redis.ResponseError as error:
        kind = JournalFull if str(error).startswith(_NOT_KEPT) else JournalLost
        raise kind(f"Redis refuses: {error}") from error
    except redis.RedisError as error:
        raise JournalLost(f"Redis cannot be reached: {error}") from error
