"""One cache that evicts as vLLM's does, served one request after the other. Pure."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Served:
    """One request: the chain of its prompt's full blocks, and the blocks that it needs in all.

    `prompt_tokens` bounds what may be reused: the last token is always computed.
    """

    chain: tuple[int, ...]
    total_blocks: int
    prompt_tokens: int


class LruBlocks:
    """One cache between requests: what it holds, the next to be evicted first."""

    def __init__(self, total_blocks: int) -> None:
        self._held: OrderedDict[int, None] = OrderedDict()
        self._empty_blocks = total_blocks

    def copy(self) -> "LruBlocks":
        twin = LruBlocks(self._empty_blocks)
        twin._held = self._held.copy()
        return twin

    def overlap(self, request: Served, block_size: int) -> int:
        """Leading blocks that would be reused. O(them)."""
        reusable = (request.prompt_tokens - 1) // block_size
        for position, block in enumerate(request.chain[:reusable]):
            if block not in self._held:
                return position
        return min(len(request.chain), reusable)

    def serve(self, request: Served, block_size: int) -> int:
        """Serves it whole, and returns the blocks that were reused. O(its blocks).

        As in vLLM a prompt's end becomes older than its start, and blocks that are not full are
        free again at once. What is decoded fills blocks that nobody asks for.
        """
        reused = self.overlap(request, block_size)
        for block in request.chain[:reused]:
            del self._held[block]
        for _ in range(request.total_blocks - reused):
            if self._empty_blocks:
                self._empty_blocks -= 1
            else:
                self._held.popitem(last=False)
        again = [block for block in request.chain[reused:] if block in self._held]
        for block in again:  # a second copy, of which only the younger one will be found
            del self._held[block]
        for block in reversed(request.chain):
            self._held[block] = None
        self._empty_blocks += request.total_blocks - len(request.chain) + len(again)
        return reused
