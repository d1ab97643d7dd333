"""How much of a context lies in KV stores, as the block index knows it."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from router.contexts.messages import ContextPage, ContextView
from router.core.errors import IndexUnavailable
from router.serve.store_wire import StoredSizes

ASK_LIMIT_S = 1.0
ASK_AGAIN_S = 0.05


class SizesConnection(Protocol):
    async def stored_sizes(self, ends: bytes) -> StoredSizes:
        """Raises `IndexUnavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class StoredKV:
    """`indexes` by model; without them nothing is stored. `block_size` is a model's, in tokens."""

    indexes: Mapping[str, SizesConnection]
    block_size: Callable[[str], int]

    async def shown(self, view: ContextView) -> ContextView:
        """With what is stored of it at this moment; nothing where the index does not say."""
        try:
            return self._with(view, await self._sizes(view))
        except (IndexUnavailable, TimeoutError):
            return view

    async def page_shown(self, page: ContextPage) -> ContextPage:
        return replace(page, views=await asyncio.gather(*map(self.shown, page.views)))

    async def settled(self, view: ContextView, limit_s: float) -> ContextView:
        """As `shown`, once all that it claims is stored, or the time is over."""
        deadline = time.monotonic() + limit_s
        try:
            sizes = await self._sizes(view)
            while 0 in _blocks(sizes) and time.monotonic() < deadline:
                await asyncio.sleep(ASK_AGAIN_S)
                sizes = await self._sizes(view)
        except (IndexUnavailable, TimeoutError):
            return view
        return self._with(view, sizes)

    async def _sizes(self, view: ContextView) -> StoredSizes:
        index = self.indexes.get(view.model)
        if index is None or not view.claims:
            return _NOTHING
        async with asyncio.timeout(ASK_LIMIT_S):
            return await index.stored_sizes(view.claims)

    def _with(self, view: ContextView, sizes: StoredSizes) -> ContextView:
        blocks = sum(_blocks(sizes))
        tokens = blocks and blocks * self.block_size(view.model)
        return replace(view, stored_tokens=tokens, stored_bytes=blocks * sizes.block_bytes)


def _blocks(sizes: StoredSizes) -> list[int]:
    blocks: list[int] = np.frombuffer(sizes.blocks, "<u4").tolist()
    return blocks


_NOTHING = StoredSizes(b"", 0)
