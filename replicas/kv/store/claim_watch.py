"""Which objects nobody wants any more, as contexts come and go. Pure: the time is an argument."""

from collections.abc import Iterable, Sequence

from replicas.kv.store.contents import Changes, StoredObject

TURN_MARGIN_S = 5.0
"""How much later than its end a turn's claims may be known."""


class ClaimWatch:
    """Of what was saved for contexts alone: since when it is here, and whether it was ever claimed.

    An object that was claimed goes as soon as it is not. One that never was may be of a turn that
    is not committed yet: it goes once it is older than `unclaimed_after_s` and any open turn.
    """

    def __init__(self, unclaimed_after_s: float) -> None:
        self._unclaimed_after_s = unclaimed_after_s
        self._came_at: dict[bytes, float] = {}
        self._was_claimed: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._came_at)

    def note(self, changes: Changes, now: float) -> None:
        for stored in changes.added.values():
            if not stored.is_for_reuse:
                self._came_at.setdefault(stored.key, now)
        for key in changes.removed:
            self._came_at.pop(key, None)
            self._was_claimed.discard(key)

    def judge(
        self,
        objects: Sequence[StoredObject],
        marks: Iterable[bool],
        oldest_turn_s: float,
        now: float,
    ) -> list[bytes]:
        """The keys of what is to go; `marks` say which of the objects are claimed. O(objects)."""
        patience_s = max(self._unclaimed_after_s, oldest_turn_s + TURN_MARGIN_S)
        gone = []
        for stored, is_claimed in zip(objects, marks, strict=True):
            if stored.is_for_reuse or stored.key not in self._came_at:
                continue
            if is_claimed:
                self._was_claimed.add(stored.key)
            elif self._is_over(stored.key, now - patience_s):
                gone.append(stored.key)
        return gone

    def _is_over(self, key: bytes, limit: float) -> bool:
        return key in self._was_claimed or self._came_at[key] <= limit
