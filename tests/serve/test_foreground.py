"""What `warmpath serve` says while Serve starts, from Serve's own status."""

from collections.abc import Iterator

import pytest
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    DeploymentStatusTrigger,
    ReplicaState,
    ServeStatus,
)

from serve_app import foreground


def status(
    state: ApplicationStatus, running: int = 0, starting: int = 0, message: str = ""
) -> ServeStatus:
    deployment = DeploymentStatusOverview(
        DeploymentStatus.UPDATING,
        DeploymentStatusTrigger.CONFIG_UPDATE_STARTED,
        {ReplicaState.RUNNING: running, ReplicaState.STARTING: starting},
        message and "first",
    )
    application = ApplicationStatusOverview(state, message, 0.0, {"llm-tiny": deployment})
    return ServeStatus(applications={"warmpath": application})


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(foreground, "POLL_S", 0.0)
    return []


def follow(states: list[ServeStatus | None], said: list[str]) -> str | None:
    remaining: Iterator[ServeStatus | None] = iter(states)
    return foreground.follow(lambda: next(remaining), "http://h:1", said.append)


def test_each_change_is_said_once_and_ready_ends_it(said: list[str]) -> None:
    waiting = status(ApplicationStatus.DEPLOYING, running=1, starting=1)
    assert (
        follow([None, waiting, waiting, status(ApplicationStatus.RUNNING, running=2)], said) is None
    )
    assert said[:-1] == ["starting: warmpath/llm-tiny 1 of 2 replicas"]
    assert said[-1].startswith("ready after 0 s: http://h:1/v1")


def test_failed_deployment_is_returned_with_serves_reason(said: list[str]) -> None:
    failed = status(ApplicationStatus.DEPLOY_FAILED, message="no such model")
    assert follow([failed], said) == "warmpath could not be deployed:\nno such model\nfirst"
    assert said == []
