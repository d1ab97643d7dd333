"""What the best routing could have reused with the same caches, found after the fact. Pure.

The caches evict as vLLM's do. Requests are served one after the other in the order in which they
were sent, so nothing is ever in flight and every block counts at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from router.replay.lru_blocks import LruBlocks, Served


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
