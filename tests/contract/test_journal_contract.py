"""What every journal of contexts owes, whatever keeps it."""

import logging
import os
import resource
import shutil
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from router.contexts.journal import FORMAT, Journal
from router.contexts.journals import open_journal
from router.contexts.records import Entry
from router.core.errors import JournalFenced, JournalFull, JournalLost, JournalRefused
from tests.contract.redis_server import BINARY, RedisServer


class Medium(ABC):
    """Where journals of one application are kept, and what can happen to it."""

    @abstractmethod
    def journal(self) -> Journal: ...

    @abstractmethod
    def full(self) -> AbstractContextManager[None]:
        """No room for more while it lasts."""

    @abstractmethod
    def set_format(self, number: int) -> None: ...

    @abstractmethod
    def crash(self) -> None:
        """What keeps the journal dies and comes back."""

    def close(self) -> None:
        return


class SqliteMedium(Medium):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "state" / "contexts.sqlite"

    def journal(self) -> Journal:
        return open_journal(str(self.path), "app")

    @contextmanager
    def full(self) -> Iterator[None]:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def set_format(self, number: int) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(f"PRAGMA user_version = {number}")
        connection.close()

    def crash(self) -> None:
        """The file as a process that dies this instant leaves it."""
        for suffix in ("", "-wal"):
            shutil.copy(f"{self.path}{suffix}", f"{self.path}.copy{suffix}")
        self.path = Path(f"{self.path}.copy")


class RedisMedium(Medium):
    def __init__(self, folder: Path) -> None:
        self.server = RedisServer(folder)
        self.server.start()

    def journal(self) -> Journal:
        return open_journal(self.server.url, "app")

    @contextmanager
    def full(self) -> Iterator[None]:
        with self.server.client() as client:
            client.config_set("maxmemory", "1")
            yield
            client.config_set("maxmemory", "0")

    def set_format(self, number: int) -> None:
        with self.server.client() as client:
            client.hset("warmpath:{app}:life", "format", str(number))

    def crash(self) -> None:
        self.server.kill()
        self.server.start()

    def close(self) -> None:
        self.server.kill()


MEDIA: dict[str, Callable[[Path], Medium]] = {"sqlite": SqliteMedium, "redis": RedisMedium}


@pytest.fixture(params=sorted(MEDIA))
def medium(request: pytest.FixtureRequest) -> Iterator[Medium]:
    if request.param == "redis" and BINARY is None:
        pytest.skip("there is no redis-server on this machine")
    folder = Path(tempfile.mkdtemp(prefix="wp-journal-", dir="/tmp"))
    medium = MEDIA[request.param](folder)
    yield medium
    medium.close()
    shutil.rmtree(folder)


@pytest.fixture
def journal(medium: Medium) -> Iterator[Journal]:
    journal = medium.journal()
    journal.claim()
    yield journal
    journal.close()


def contents(journal: Journal) -> dict[str, bytes]:
    return dict(journal.rows())


def put(count: int, size_bytes: int = 32) -> list[Entry]:
    return [
        (f"context/ctx-{number}", bytes([number % 251]) * size_bytes) for number in range(count)
    ]


def test_keeps_what_was_written_last(journal: Journal) -> None:
    journal.write([("a", b"1"), ("b", b"\x00\xff"), ("c", b"")])
    journal.write([("a", b"2"), ("b", None), ("unknown", None)])

    assert contents(journal) == {"a": b"2", "c": b""}


def test_an_empty_batch_changes_nothing(journal: Journal) -> None:
    journal.write([])
    assert contents(journal) == {}


def test_the_same_batch_again_does_no_harm(journal: Journal) -> None:
    batch: list[Entry] = [("a", b"1"), ("b", None)]
    journal.write(batch)
    journal.write(batch)

    assert contents(journal) == {"a": b"1"}


def test_survives_the_death_of_what_keeps_it(medium: Medium, journal: Journal) -> None:
    journal.write(put(500))
    medium.crash()

    again = medium.journal()
    again.claim()

    assert contents(again) == dict(put(500))
    again.close()


def test_each_claim_is_a_later_life(medium: Medium) -> None:
    first, second = medium.journal(), medium.journal()
    epochs = [first.claim(), second.claim(), first.claim()]

    assert epochs == [1, 2, 3]
    first.close()
    second.close()


def test_an_older_life_writes_nothing(medium: Medium, journal: Journal) -> None:
    journal.write([("a", b"old")])
    later = medium.journal()
    later.claim()

    with pytest.raises(JournalFenced):
        journal.write([("a", b"stale"), ("b", b"stale")])

    assert contents(later) == {"a": b"old"}
    later.write([("a", b"new")])
    assert contents(later) == {"a": b"new"}
    later.close()


def test_a_newer_format_is_refused_with_advice(medium: Medium, journal: Journal) -> None:
    journal.write([("a", b"1")])
    journal.close()
    medium.set_format(FORMAT + 1)
    newer = medium.journal()

    with pytest.raises(JournalRefused, match=r"newer version again, or (move|rename)"):
        newer.claim()

    newer.close()
    medium.set_format(FORMAT)
    again = medium.journal()
    assert again.claim() == 2, "the refused claim fenced nobody"
    assert contents(again) == {"a": b"1"}
    again.close()


def test_no_room_is_an_error_of_that_batch_only(medium: Medium, journal: Journal) -> None:
    journal.write([("a", b"1")])
    with medium.full(), pytest.raises(JournalFull):
        journal.write([("b", b"2"), *put(100, 16_384)])

    assert contents(journal) == {"a": b"1"}
    journal.write([("c", b"3")])
    assert contents(journal) == {"a": b"1", "c": b"3"}


def test_any_thread_may_write_one_at_a_time(journal: Journal) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(journal.write, [("a", b"1")]).result()

    assert contents(journal) == {"a": b"1"}


def test_grows_with_what_it_keeps_and_shrinks_without(journal: Journal) -> None:
    small = journal.size_bytes()
    journal.write(put(400, 16_384))
    journal.compact()
    large = journal.size_bytes()
    assert large > small + 400 * 8_192

    journal.write([(key, None) for key, _ in put(400)])
    for _ in range(4):
        journal.compact()
    journal.write([("a", b"1")])
    journal.compact()

    assert contents(journal) == {"a": b"1"}
    assert journal.size_bytes() < large


class TestSqlite:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "state"

    def test_is_nobody_elses_to_read(self, folder: Path) -> None:
        journal = open_journal(str(folder / "contexts.sqlite"), "app")
        journal.claim()
        journal.write(put(10))

        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert folder.stat().st_mode & 0o777 == 0o700
        assert set(modes.values()) == {0o600} and "contexts.sqlite-wal" in modes
        journal.close()

    def test_lies_in_the_users_state_folder_by_default(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        journal = open_journal(None, "my/app")
        journal.claim()
        journal.close()
        assert (tmp_path / "warmpath" / "my%2Fapp" / "contexts.sqlite").is_file()

    @pytest.mark.parametrize("damage", [b"no journal at all" * 100, None])
    def test_damage_is_refused_with_advice(self, folder: Path, damage: bytes | None) -> None:
        path = folder / "contexts.sqlite"
        journal = open_journal(str(path), "app")
        journal.claim()
        journal.write(put(300, 1024))
        journal.close()
        whole = path.read_bytes()
        path.write_bytes(damage or whole[:8192] + os.urandom(len(whole) - 8192))

        again = open_journal(str(path), "app")
        with pytest.raises(JournalRefused, match="put back a copy"):
            again.claim()
            list(again.rows())
        again.close()

    def test_a_file_of_others_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "others.sqlite"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE entries (precious TEXT)")
        connection.close()
        before = path.read_bytes()

        with pytest.raises(JournalRefused, match="no journal of contexts"):
            open_journal(str(path), "app").claim()

        assert path.read_bytes() == before

    def test_a_folder_that_cannot_be_made_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(JournalLost, match="cannot be opened"):
            open_journal(str(tmp_path / "file" / "contexts.sqlite"), "app").claim()


@pytest.mark.skipif(BINARY is None, reason="there is no redis-server on this machine")
class TestRedis:
    @pytest.fixture
    def start(self) -> Iterator[Callable[..., RedisServer]]:
        folder = Path(tempfile.mkdtemp(prefix="wp-redis-", dir="/tmp"))
        servers: list[RedisServer] = []

        def start(fsync: str = "always") -> RedisServer:
            servers.append(RedisServer(folder, fsync))
            servers[-1].start()
            return servers[-1]

        yield start
        for server in servers:
            server.kill()
        shutil.rmtree(folder)

    @pytest.mark.parametrize(("fsync", "warnings"), [("always", 0), ("everysec", 1)])
    def test_warns_where_confirmed_writes_can_be_lost(
        self,
        start: Callable[..., RedisServer],
        caplog: pytest.LogCaptureFixture,
        fsync: str,
        warnings: int,
    ) -> None:
        with caplog.at_level(logging.WARNING):
            open_journal(start(fsync).url, "app").claim()
        assert len([text for text in caplog.messages if "NOT SAFE" in text]) == warnings

    def test_a_dead_redis_is_not_known_to_have_written(
        self, start: Callable[..., RedisServer]
    ) -> None:
        server = start()
        journal = open_journal(server.url, "app")
        journal.claim()
        server.kill()

        with pytest.raises(JournalLost):
            journal.write([("a", b"1")])
        with pytest.raises(JournalLost):
            open_journal(server.url, "app").claim()

        server.start()
        journal.write([("a", b"1")])
        assert contents(journal) == {"a": b"1"}

    def test_applications_do_not_see_each_other(self, start: Callable[..., RedisServer]) -> None:
        url = start().url
        one, other = open_journal(url, "a"), open_journal(url, "a:b")
        one.claim()
        other.claim()
        one.write([("a", b"1")])
        assert contents(other) == {}
