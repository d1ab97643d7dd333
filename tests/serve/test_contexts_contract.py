"""The table of the contract through real Serve hops and simulated replicas; the command, too."""

import pytest

from serve_app import cli
from tests.contract.context_table import *  # noqa: F403  # every test there is one here
from tests.serve.context_calls import Caller, fault
from tests.serve.sim_app import App

pytestmark = pytest.mark.ray


def test_a_context_belongs_to_its_model(ann: Caller, slow: Caller) -> None:
    name = ann.created(prompt="a")
    assert fault(slow.complete(name, "a")) == (400, "model_mismatch")


# --- from a terminal ----------------------------------------------------------------------------


def test_the_command_lists_shows_and_deletes_with_shortened_ids(
    ann: Caller,
    contexts_app: App,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WARMPATH_URL", contexts_app.url)
    monkeypatch.setenv("WARMPATH_API_KEY", "key-of-ann")
    name = ann.created(prompt="a", ttl=1234)

    def said(*arguments: str) -> str:
        assert cli.main(["contexts", *arguments]) == 0
        out = capsys.readouterr().out
        assert name not in out
        return out

    short = name[:10]
    assert f"{short}…" in said("list")
    assert "ttl: 1234" in said("show", name)
    assert "ttl: 1234" in said("show", short + "…")
    assert "deleted" in said("delete", short)
    assert cli.main(["contexts", "show", name]) == 1
    assert "no context" in capsys.readouterr().err
    assert cli.main(["contexts", "list", "--api-key", "wrong"]) == 1
    assert "API key" in capsys.readouterr().err
