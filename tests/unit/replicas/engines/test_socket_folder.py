"""Folders of sockets: private, removed by their owner or by the next one after its death."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicas.engines.socket_folder import SocketFolder

KIND = "warmpath-test-"
OWNER = f"""
import time
from replicas.engines.socket_folder import SocketFolder
print(SocketFolder({KIND!r}).path, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process with a folder."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as made:
        yield made
        made.kill()


def path_of(owner: "subprocess.Popen[str]") -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


def test_only_its_user_may_enter_and_its_end_removes_it(folder: Path) -> None:
    made = SocketFolder(KIND)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    (made.path / "events").touch()
    made.close()
    made.close()
    assert not list(folder.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_start(
    owner: "subprocess.Popen[str]",
) -> None:
    left = path_of(owner)
    (left / "events").touch()
    owner.kill()
    owner.wait()
    assert left.exists()
    SocketFolder(KIND).close()
    assert not left.exists()


def test_what_a_living_process_holds_stays(owner: "subprocess.Popen[str]") -> None:
    held, own = path_of(owner), SocketFolder(KIND)
    SocketFolder(KIND).close()
    assert held.exists() and own.path.exists()
    own.close()


def test_nothing_else_is_touched(folder: Path) -> None:
    """Other kinds, files, and what a link of such a name points at."""
    others = [folder / "elsewhere", folder / "warmpath-other-1"]
    for other in others:
        other.mkdir()
    (folder / f"{KIND}file").touch()
    os.symlink(others[0], folder / f"{KIND}link")
    SocketFolder(KIND).close()
    left = {path.name for path in folder.iterdir()}
    assert left == {"elsewhere", "warmpath-other-1", f"{KIND}file", f"{KIND}link"}
