"""Which block of the router's each engine hash names. Pure."""

from collections import OrderedDict
from collections.abc import Container

from router.core.types import EngineBlockHash

_MAX_GHOSTS = 65_536


class EngineNames:
    """Names of held blocks, and of a bounded number of blocks that have gone.

    A child, or the copy on a slower tier, may name a block that has just gone.
    """

    def __init__(self) -> None:
        self._held: dict[EngineBlockHash, int] = {}
        self._ghosts: OrderedDict[EngineBlockHash, int] = OrderedDict()

    def name(self, name: EngineBlockHash, block_hash: int) -> None:
        self._held[name] = block_hash
        self._ghosts.pop(name, None)

    def held(self, name: EngineBlockHash) -> int | None:
        return self._held.get(name)

    def known(self, name: EngineBlockHash) -> int | None:
        """Whether the block is held or has gone."""
        return self._held.get(name) or self._ghosts.get(name)

    def revived(self, name: EngineBlockHash) -> int | None:
        """The known block, which is held from here on."""
        block_hash = self.known(name)
        if block_hash is not None:
            self.name(name, block_hash)
        return block_hash

    def bury(self, name: EngineBlockHash) -> None:
        self._ghosts[name] = self._held.pop(name)
        if len(self._ghosts) > _MAX_GHOSTS:
            self._ghosts.popitem(last=False)

    def bury_all_but(self, held: Container[int]) -> None:
        """Only blocks in `held` are still held. O(names)."""
        for name in [name for name, block_hash in self._held.items() if block_hash not in held]:
            self.bury(name)
