"""Starts Serve for `warmpath serve`: its fast HTTP path, one way to stop, nothing left behind.

Serve reads its flags from the environment when it starts, so they are set for a child process.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from router.core.errors import ConfigurationError
from serve_app.config_file import ConfigFile


@dataclass(frozen=True, slots=True)
class Flag:
    """One environment variable of Serve's, and why it is set."""

    name: str
    value: str
    why: str


def fast_path(scratch: Path) -> tuple[Flag, ...]:
    """Serve's flags for a shorter way from the socket to the ingress.

    `scratch` is a private folder: HAProxy's files have fixed names in a shared one by default.
    """
    files = "HAProxy's files, private to this run"
    prefix = "RAY_SERVE_HAPROXY_"
    return (
        Flag("RAY_SERVE_ENABLE_HA_PROXY", "1", "HAProxy instead of the Python proxy"),
        Flag("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1", "one event loop a replica, gRPC handles"),
        Flag("RAY_SERVE_LOG_TO_STDERR", "1", "errors are seen here, too"),
        Flag("RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", str(64 << 20), "long prompts over gRPC"),
        Flag("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "3", "stop in seconds, not 30"),
        Flag(f"{prefix}CONFIG_FILE_LOC", str(scratch / "haproxy.cfg"), files),
        Flag(f"{prefix}SOCKET_PATH", str(scratch / "admin.sock"), files),
        Flag(f"{prefix}METRICS_SOCKET_PATH", str(scratch / "metrics.sock"), files),
        Flag(f"{prefix}SERVER_STATE_BASE", str(scratch), files),
        Flag(f"{prefix}SERVER_STATE_FILE", str(scratch / "server-state"), files),
    )


def serve_config(file: ConfigFile, say: Callable[[str], None]) -> int:
    """Runs `serve run` in the foreground until it ends or is told to stop; its exit status."""
    check_port_free(file.host, file.port)
    with TemporaryDirectory(prefix="warmpath-") as scratch:
        flags = fast_path(Path(scratch))
        environment = with_flags(os.environ, flags)
        for flag in flags:
            say(f"{flag.name}={environment[flag.name]}  ({flag.why})")
        url = f"http://{file.host}:{file.port}"
        say(f"serving {file.path} on {url}; Ctrl-C stops")
        command = [sys.executable, "-m", "serve_app.foreground", str(file.path), url]
        return run_until_stopped(command, environment)


def with_flags(environ: Mapping[str, str], flags: Sequence[Flag]) -> dict[str, str]:
    """`environ` over the flags: what the user has set stays."""
    return {flag.name: flag.value for flag in flags} | dict(environ)


def check_port_free(host: str, port: int) -> None:
    """HAProxy shares a port with another HAProxy silently, so it is asked for beforehand."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                "http_options.port", f"cannot listen on {host}:{port}: {error.strerror}"
            ) from error


def run_until_stopped(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; passes on a request to stop as the one that Serve obeys in order.

    The child has a session of its own: Ctrl-C in a terminal would else hit every process of the
    cluster at once. What the child leaves of its group dies with it.
    """
    children: list[subprocess.Popen[bytes]] = []

    def stop(_number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    child = subprocess.Popen(command, env=dict(environment), start_new_session=True)
    children.append(child)
    try:
        return child.wait()
    finally:
        _kill_group(child.pid)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
