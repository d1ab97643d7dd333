"""A folder of one's own: nobody else's files, and nothing left of a crash."""

import errno
import os
from pathlib import Path

import pytest

from replicas.kv.store import disk_tier
from replicas.kv.store.disk_tier import DiskTier
from replicas.kv.store.object_file import UNFINISHED, file_name
from replicas.kv.store.tier import TierFailed
from router.core.errors import ConfigurationError
from tests.unit.replicas.kv.store.stored_objects import (
    OBJECT_BYTES,
    change_file,
    head_of,
    key_of,
    number_in,
    sealed,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def filled(root: Path, *numbers: int) -> DiskTier:
    tier = DiskTier(root, 10 * OBJECT_BYTES)
    for number in numbers:
        tier.write(head_of(number), sealed(number))
    return tier


def reopened(tier: DiskTier, root: Path, room: int = 10) -> DiskTier:
    tier.close()
    return DiskTier(root, room * OBJECT_BYTES)


def test_the_folder_is_its_owners_alone(root: Path) -> None:
    filled(root, 1)
    assert [oct(folder.stat().st_mode & 0o777) for folder in (root, root / "0")] == ["0o700"] * 2


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_folder_of_others_is_refused(root: Path, mode: int) -> None:
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(ConfigurationError) as caught:
        DiskTier(root, 1000)
    assert caught.value.key == "kv_store.disk_folder"


def test_what_is_no_folder_is_refused(root: Path) -> None:
    root.write_bytes(b"")
    with pytest.raises(ConfigurationError):
        DiskTier(root, 1000)


def test_stores_of_one_machine_share_no_files(root: Path) -> None:
    first, second = filled(root, 1), filled(root, 2)
    assert second.scan() == [head_of(2)]
    third = reopened(first, root)
    assert third.scan() == [head_of(1)]


def test_the_rest_of_a_crash_is_removed(root: Path) -> None:
    tier = filled(root, 1)
    rest = root / "0" / (key_of(2).hex() + UNFINISHED)
    rest.write_bytes(b"half of it")
    assert reopened(tier, root).scan() == [head_of(1)]
    assert not rest.exists()


def test_damaged_files_go_when_they_are_met(root: Path) -> None:
    tier = filled(root, 1, 2, 3)
    cut = change_file(root, 1, lambda data: data[:-1])
    flipped = change_file(root, 2, lambda data: data[:-1] + b"?")
    second = reopened(tier, root)
    assert {stored.key for stored in second.scan()} == {key_of(2), key_of(3)}
    assert not cut.exists()
    assert second.read(key_of(2)) is None
    assert not flipped.exists()
    assert number_in(second.read(key_of(3))) == 3
    assert second.size() == (1, OBJECT_BYTES)


def test_foreign_files_are_left_alone_and_links_never_followed(root: Path, tmp_path: Path) -> None:
    tier = filled(root, 1)
    note = root / "0" / "notes.txt"
    note.write_text("mine")
    target = tmp_path / "secret"
    (root / "0" / file_name(key_of(1))).rename(target)
    (root / "0" / file_name(key_of(1))).symlink_to(target)
    assert reopened(tier, root).scan() == []
    assert note.read_text() == "mine"
    assert target.exists()


def test_a_smaller_budget_keeps_what_was_used_last(root: Path) -> None:
    tier = filled(root, 1, 2, 3)
    for number in (1, 2, 3):
        os.utime(root / "0" / file_name(key_of(number)), (number, number))
    tier.read(key_of(1))
    second = reopened(tier, root, room=2)
    assert second.scan() == [head_of(3), head_of(1)]
    assert len(list((root / "0").iterdir())) == 2


def test_a_file_that_vanished_is_a_miss(root: Path) -> None:
    tier = filled(root, 1)
    (root / "0" / file_name(key_of(1))).unlink()
    assert tier.read(key_of(1)) is None
    assert tier.size() == (0, 0)


def test_a_full_disk_is_said_and_forgotten(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = filled(root, 1)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TierFailed, match="No space left"):
            tier.write(head_of(2), sealed(2))
    assert tier.size() == (1, OBJECT_BYTES)
    assert len(list((root / "0").iterdir())) == 1
    tier.write(head_of(2), sealed(2))
    assert number_in(tier.read(key_of(2))) == 2


def test_too_many_stores_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "MAX_STORES", 1)
    tier = filled(root)
    with pytest.raises(ConfigurationError, match="use"):
        DiskTier(root, 1000)
    tier.close()
