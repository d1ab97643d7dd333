"""A file is a whole object of its name or nothing."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from replicas.kv.store.object_file import (
    UNFINISHED,
    file_name,
    read_file,
    read_head,
    write_file,
)
from replicas.kv.store.objects import UnusableObject
from tests.unit.replicas.kv.store.stored_objects import (
    change_file,
    head_of,
    key_of,
    number_in,
    sealed,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_file(tmp_path, head_of(7), sealed(7))
    return tmp_path / file_name(key_of(7))


def test_a_file_says_what_it_is(path: Path) -> None:
    assert read_head(path) == head_of(7)
    assert number_in(read_file(path)) == 7


def test_only_its_owner_may_read_it(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_every_flipped_bit_and_every_cut_is_seen(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        for data in (bytes(changed), whole[:place]):
            path.write_bytes(data)
            with pytest.raises(UnusableObject):
                read_file(path)


def test_a_file_of_another_name_is_not_used(path: Path) -> None:
    other = path.rename(path.with_name(file_name(key_of(8))))
    with pytest.raises(UnusableObject):
        read_head(other)


def test_a_right_head_before_another_object_is_not_used(path: Path, tmp_path: Path) -> None:
    change_file(tmp_path, 7, lambda data: data[: -sealed(8).nbytes] + sealed(8).tobytes())
    assert read_head(path) == head_of(7)
    with pytest.raises(UnusableObject):
        read_file(path)


def test_links_pipes_and_what_others_may_read_is_not_used(path: Path, tmp_path: Path) -> None:
    target = path.rename(tmp_path / "elsewhere")
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        read_head(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(UnusableObject):
        read_head(path)
    path.unlink()
    target.rename(path).chmod(0o640)
    with pytest.raises(UnusableObject):
        read_head(path)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / (key_of(7).hex() + UNFINISHED)).mkdir()
    with pytest.raises(OSError, match="exists"):
        write_file(tmp_path, head_of(7), sealed(7))
    assert not (tmp_path / file_name(key_of(7))).exists()


def test_an_object_of_a_page_and_more_comes_back(tmp_path: Path) -> None:
    from dataclasses import replace

    from replicas.kv.store.objects import ObjectKey, new_object, payload, seal

    data = new_object(3, 70_001)
    payload(data).reshape(3, -1)[:] = np.arange(3)[:, None]
    seal(data, ObjectKey.unpack(key_of(1)), 3)
    write_file(tmp_path, replace(head_of(1), size_bytes=data.nbytes), data)
    assert (read_file(tmp_path / file_name(key_of(1))) == data).all()
