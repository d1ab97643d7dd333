"""Which journal a setting names."""

import os
from pathlib import Path
from urllib.parse import quote

from router.contexts.journal import Journal
from router.contexts.redis_journal import RedisJournal
from router.contexts.sqlite_journal import SqliteJournal

_REDIS = ("redis://", "rediss://", "unix://")


def is_file(location: str | None) -> bool:
    """Whether the journal lies on the disk of one node."""
    return location is None or not location.startswith(_REDIS)


def open_journal(location: str | None, application: str) -> Journal:
    """The journal, not claimed yet. None: a file below the state folder of this node's user."""
    if location is not None and not is_file(location):
        return RedisJournal(location, application)
    path = _default_path(application) if location is None else Path(location).expanduser()
    return SqliteJournal(path)


def _default_path(application: str) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "warmpath" / quote(application, safe="") / "contexts.sqlite"
