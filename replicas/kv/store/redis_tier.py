"""Objects in a Redis that all stores of an application share, within one budget for all of them."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.objects import Bytes, UnusableObject, prove
from replicas.kv.store.tier import TierFailed
from replicas.kv.store.wire import pack_object, unpack_object

_log = logging.getLogger(__name__)

CALL_LIMIT_S = 2.0
PAUSE_S = 5.0
"""How long a Redis that failed is not asked again."""
EXPIRES_S = 86_400
"""What no store asks for that long goes by itself, whoever put it there."""
_ROWS_AT_ONCE = 512
_CLAIMED = 1e12
"""Added to the time of the last use: claimed objects come after all others in that order."""

_WRITE = """
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 1 then
  redis.call('INCRBY', KEYS[3], ARGV[4])
end
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[1])
redis.call('SET', KEYS[4], ARGV[3], 'EX', ARGV[6])
"""
_REMOVE = """
redis.call('DEL', KEYS[4])
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  redis.call('DECRBY', KEYS[3], ARGV[2])
end
"""


class RedisTier:
    """Least recently used leaves first, whichever store put it there."""

    name = "redis"

    def __init__(
        self,
        url: str,
        application: str,
        budget_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis: Any = redis.Redis.from_url(  # its types are those of both its kinds
            url,
            socket_timeout=CALL_LIMIT_S,
            socket_connect_timeout=CALL_LIMIT_S,
            retry=Retry(NoBackoff(), 0),
        )
        family = f"warmpath:{{{quote(application, safe='')}}}:kv"
        self._heads, self._used = f"{family}:heads", f"{family}:used"
        self._bytes, self._objects = f"{family}:bytes", f"{family}:object:".encode()
        self._budget_bytes = budget_bytes
        self._clock = clock
        self._away_until = 0.0
        self._size = (0, 0)

    def scan(self) -> list[StoredObject]:
        with self._asked():
            order = self._redis.zrange(self._used, 0, -1)
            heads = dict(self._redis.hscan_iter(self._heads, count=_ROWS_AT_ONCE))
        return [stored for key in order if (stored := _unpacked(key, heads.get(key)))]

    def victims(self, stored: StoredObject) -> list[StoredObject]:
        if stored.size_bytes > self._budget_bytes:
            return [stored]
        with self._asked():
            self._measure()
            short_bytes = self._size[1] + stored.size_bytes - self._budget_bytes
            gone = []
            for other in self._oldest() if short_bytes > 0 else ():
                gone.append(other)
                short_bytes -= other.size_bytes
                if short_bytes <= 0:
                    break
        return gone

    def write(self, stored: StoredObject, data: Bytes) -> None:
        score = self._clock() + (0 if stored.is_for_reuse else _CLAIMED)
        head = pack_object(stored)
        with self._asked():
            self._redis.eval(
                _WRITE,
                4,
                *self._keys(stored.key),
                *(stored.key, head, data.data, stored.size_bytes, score, EXPIRES_S),
            )
            self._measure()

    def read(self, key: bytes) -> Bytes | None:
        with self._asked():
            found = self._redis.getex(self._object(key), ex=EXPIRES_S)
            if found is not None:
                self._redis.zadd(self._used, {key: self._clock()}, xx=True, gt=True)
        if found is None:
            return None
        data = np.frombuffer(found, np.uint8)
        try:
            prove(data, key)
        except UnusableObject as error:
            _log.warning("an object in Redis is not used: %s", error.message)
            self.remove([key])
            return None
        return data

    def remove(self, keys: Sequence[bytes]) -> None:
        with self._asked():
            for key in keys:
                head = _unpacked(key, self._redis.hget(self._heads, key))
                size_bytes = head.size_bytes if head else 0
                self._redis.eval(_REMOVE, 4, *self._keys(key), key, size_bytes)
            self._measure()

    def claim(self, keys: Sequence[bytes], *, is_claimed: bool) -> None:
        """Only a change moves a key: said again and again, it is no use of the object."""
        score = _CLAIMED if is_claimed else self._clock()
        if keys:
            with self._asked():
                scores = dict.fromkeys(keys, score)
                self._redis.zadd(self._used, scores, xx=True, gt=is_claimed, lt=not is_claimed)

    def size(self) -> tuple[int, int]:
        return self._size

    def close(self) -> None:
        self._redis.close()

    def _measure(self) -> None:
        self._size = (int(self._redis.zcard(self._used)), int(self._redis.get(self._bytes) or 0))

    def _oldest(self) -> Iterator[StoredObject]:
        start = 0
        while keys := self._redis.zrange(self._used, start, start + _ROWS_AT_ONCE - 1):
            heads = self._redis.hmget(self._heads, keys)
            for key, head in zip(keys, heads, strict=True):
                yield _unpacked(key, head) or StoredObject(key, "", b"", 0, 0, True)
            start += len(keys)

    def _keys(self, key: bytes) -> tuple[str | bytes, ...]:
        return self._heads, self._used, self._bytes, self._object(key)

    def _object(self, key: bytes) -> bytes:
        return self._objects + key

    @contextmanager
    def _asked(self) -> Iterator[None]:
        if time.monotonic() < self._away_until:
            raise TierFailed("Redis is away")
        try:
            yield
        except redis.RedisError as error:
            if not isinstance(error, redis.ResponseError):
                self._away_until = time.monotonic() + PAUSE_S
            raise TierFailed(f"Redis refuses: {type(error).__name__}") from error


def _unpacked(key: bytes, head: bytes | None) -> StoredObject | None:
    """None where the row is not of this version or is of another object."""
    try:
        stored = unpack_object(head or b"")
    except msgspec.MsgspecError:
        return None
    return stored if stored.key == key else None
