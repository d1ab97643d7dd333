"""A Redis of a test's own, which it may kill and start again."""

import shutil
import subprocess
import time
from pathlib import Path

import redis

BINARY = shutil.which("redis-server")


class RedisServer:
    """On a Unix socket in `folder`, durable at each command unless told otherwise."""

    def __init__(self, folder: Path, fsync: str = "always") -> None:
        self._folder = folder
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._folder}/redis.sock"

    def start(self) -> None:
        assert BINARY is not None
        options = {
            "port": "0",
            "unixsocket": f"{self._folder}/redis.sock",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "save": "",
            "logfile": "redis.log",
        }
        arguments = [part for key, value in options.items() for part in (f"--{key}", value)]
        self._process = subprocess.Popen([BINARY, *arguments])
        deadline = time.monotonic() + 20
        while not self._answers():
            assert time.monotonic() < deadline, "Redis did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """At once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
