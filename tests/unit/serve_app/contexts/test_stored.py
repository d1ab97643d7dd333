"""What clients read of stored KV is what the index knows, and waiting for it ends."""

import numpy as np
import pytest

from router.contexts.messages import ContextPage, ContextView, Kind, Usage
from router.core.errors import IndexUnavailable
from router.core.types import ContextId
from router.serve.store_wire import StoredSizes
from serve_app.contexts.stored import StoredKV

BLOCK_SIZE, BLOCK_BYTES = 4, 100


def view(*claims: int, model: str = "m") -> ContextView:
    packed = np.array(claims, "<u8").tobytes()
    name, usage = ContextId("ctx-1"), Usage()
    return ContextView(name, Kind.PROMPT, model, 0, 0, None, 60, 0, 99, {}, usage, claims=packed)


class Index:
    """Knows objects of 3 blocks by their ends; one more with each question, from `coming`."""

    def __init__(self, *stored: int, coming: tuple[int, ...] = ()) -> None:
        self.stored = set(stored)
        self.coming = list(coming)
        self.questions = 0
        self.is_away = False

    async def stored_sizes(self, ends: bytes) -> StoredSizes:
        self.questions += 1
        if self.is_away:
            raise IndexUnavailable("away")
        blocks = [3 if end in self.stored else 0 for end in np.frombuffer(ends, "<u8").tolist()]
        self.stored.update(self.coming[:1])
        del self.coming[:1]
        return StoredSizes(np.array(blocks, "<u4").tobytes(), BLOCK_BYTES)


def stored_in(index: Index) -> StoredKV:
    return StoredKV({"m": index}, lambda _: BLOCK_SIZE)


async def test_a_view_shows_what_is_stored_of_its_claims() -> None:
    shown = await stored_in(Index(1, 2, 9)).shown(view(1, 2, 3))
    assert (shown.stored_tokens, shown.stored_bytes) == (6 * BLOCK_SIZE, 6 * BLOCK_BYTES)


async def test_a_page_shows_each() -> None:
    page = ContextPage([view(1), view(7), view()], has_more=True)
    shown = await stored_in(Index(1)).page_shown(page)
    assert [each.stored_tokens for each in shown.views] == [3 * BLOCK_SIZE, 0, 0]
    assert shown.has_more


async def test_a_creation_waits_for_all_that_it_claims() -> None:
    index = Index(1, coming=(2, 3))
    shown = await stored_in(index).settled(view(1, 2, 3), limit_s=5.0)
    assert shown.stored_tokens == 9 * BLOCK_SIZE
    assert index.questions == 3


async def test_the_wait_ends_with_what_is_there() -> None:
    shown = await stored_in(Index(1)).settled(view(1, 2), limit_s=0.0)
    assert shown.stored_tokens == 3 * BLOCK_SIZE


@pytest.mark.parametrize("model", ["m", "other"])
async def test_without_an_index_nothing_is_shown_nor_waited_for(model: str) -> None:
    index = Index(1)
    index.is_away = True
    shown = await stored_in(index).settled(view(1, model=model), limit_s=60.0)
    assert (shown.stored_tokens, shown.stored_bytes) == (0, 0)
    assert index.questions == (model == "m")
