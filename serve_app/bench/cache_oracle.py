"""What the best routing could have reused with the same caches, found after the fact. Pure.

The caches evict as vLLM's do. Requests are served one after the other in the order in which they
were sent, so nothing is ever in flight and every block counts at once.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


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


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows the whole future. `caches` are those at the start; they are not changed."""

    caches: tuple[LruBlocks, ...]
    requests: tuple[Served, ...]
    conversations: tuple[str, ...]
    block_size: int

    def reused_blocks(self, assignment: Sequence[int]) -> int:
        """If request i goes to cache `assignment[i]`. O(blocks of all)."""
        caches = [cache.copy() for cache in self.caches]
        return sum(
            caches[place].serve(request, self.block_size)
            for place, request in zip(assignment, self.requests, strict=True)
        )

    def caches_after(self, assignment: Sequence[int]) -> tuple[LruBlocks, ...]:
        caches = tuple(cache.copy() for cache in self.caches)
        for place, request in zip(assignment, self.requests, strict=True):
            caches[place].serve(request, self.block_size)
        return caches

    def best(self, observed: Sequence[int], rng: Random, sweeps: int = 4) -> int:
        """Reused blocks of the best assignment found, at least those of the `observed` one.

        Local search from there and from the greedy one: the rest of a conversation, from each of
        its turns on, is moved wherever that gains.
        """
        starts = (list(observed), self._greedy())
        return max(self._climb(start, rng, sweeps) for start in starts)

    def _greedy(self) -> list[int]:
        """Each request to its longest prefix; a new conversation where fewest blocks went."""
        caches, used, assignment = [cache.copy() for cache in self.caches], [], []
        used = [0] * len(caches)
        for request in self.requests:
            overlaps = [cache.overlap(request, self.block_size) for cache in caches]
            place = max(range(len(caches)), key=lambda i: (overlaps[i], -used[i]))
            used[place] += request.total_blocks - caches[place].serve(request, self.block_size)
            assignment.append(place)
        return assignment

    def _climb(self, assignment: list[int], rng: Random, sweeps: int) -> int:
        best = self.reused_blocks(assignment)
        for _ in range(sweeps):
            before = best
            for start in rng.sample(range(len(assignment)), len(assignment)):
                for place in range(len(self.caches)):
                    moved = self._moved(assignment, start, place)
                    if moved != assignment and (found := self.reused_blocks(moved)) > best:
                        assignment, best = moved, found
            if best == before:
                break
        return best

    def _moved(self, assignment: list[int], start: int, place: int) -> list[int]:
        talk = self.conversations[start]
        return [
            place if at >= start and self.conversations[at] == talk else old
            for at, old in enumerate(assignment)
        ]
