"""The context manager's answer to a KV store: which of its objects contexts claim."""

import asyncio

from router.contexts.claims import claims_on, marked, oldest_turn_s
from router.contexts.context import Moment
from router.contexts.shelf import Shelf
from router.contexts.wire import Claimed, Claims


async def claimed(asked: Claims, shelf: Shelf, now: Moment) -> Claimed:
    """The comparison may take long, and holds up nobody. Raises `ValueError` on broken hashes."""
    claims = claims_on(asked.model, shelf)
    turn_s = oldest_turn_s(asked.model, shelf, now)
    marks = await asyncio.to_thread(marked, asked.hashes, claims)
    return Claimed(marks.tobytes(), turn_s)
