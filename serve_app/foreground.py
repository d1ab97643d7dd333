"""The process behind `warmpath serve`: Serve's `serve run`, and a voice that says how far it is.

A config that Serve cannot deploy ends the process with status 1; `serve run` would wait for ever.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import ray
from ray import serve
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    ReplicaState,
    ServeStatus,
)
from ray.serve.scripts import cli

POLL_S = 1.0
MAX_REASON_CHARACTERS = 2000


def main(config: str, url: str) -> int:
    """Blocks until interrupted or failed; the exit status."""
    failed = threading.Event()

    def watch() -> None:
        error = follow(lambda: serve.status() if ray.is_initialized() else None, url, _say)
        if error is not None:
            _say(error)
            failed.set()
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="deployment-watch", daemon=True).start()
    try:
        cli(["run", config])
    except SystemExit as end:
        return 1 if failed.is_set() else int(end.code or 0)
    return 0


def follow(
    status: Callable[[], ServeStatus | None], url: str, say: Callable[[str], None]
) -> str | None:
    """Says each change until all applications run; else returns what went wrong."""
    began = time.monotonic()
    said = ""
    while True:
        current = status()
        applications = current.applications if current is not None else {}
        for name, application in applications.items():
            if application.status == ApplicationStatus.DEPLOY_FAILED:
                return "\n".join([f"{name} could not be deployed:", *_reasons(application)])
        states = [application.status for application in applications.values()]
        if states and all(state == ApplicationStatus.RUNNING for state in states):
            say(f"ready after {time.monotonic() - began:.0f} s: {url}/v1")
            return None
        if current is not None and (line := describe(current)) != said:
            say(said := line)
        time.sleep(POLL_S)


def describe(status: ServeStatus) -> str:
    """How many replicas of each deployment run, in one line."""
    parts = []
    for name, application in status.applications.items():
        for deployment, overview in application.deployments.items():
            counts = overview.replica_states
            running = counts.get(ReplicaState.RUNNING, 0)
            parts.append(f"{name}/{deployment} {running} of {sum(counts.values())} replicas")
    return "starting: " + (", ".join(parts) or "no deployment yet")


def _reasons(application: ApplicationStatusOverview) -> list[str]:
    """What Serve says of the application and of each deployment, the latest words of each."""
    overviews = application.deployments.values()
    messages = [application.message, *(overview.message for overview in overviews)]
    return [message[-MAX_REASON_CHARACTERS:] for message in messages if message]


def _say(line: str) -> None:
    sys.stderr.write(f"warmpath: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
