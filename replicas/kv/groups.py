"""Which of an engine's KV groups say what a prefix costs: those with full attention. Pure."""

FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})

_DEFAULT_GROUP = 0


class AttentionGroups:
    """Learns each group's kind from stored events; removed events name only the group.

    A group whose kind was never told counts if it is the first.
    """

    def __init__(self) -> None:
        self._counts: dict[int, bool] = {}

    def learn(self, group: int | None, kind: str | None) -> None:
        if kind is not None and len(self._counts) < 1024:
            self._counts[group or _DEFAULT_GROUP] = kind in FULL_ATTENTION_KINDS

    def counts(self, group: int | None) -> bool:
        """Whether blocks of this group are to be indexed."""
        number = group or _DEFAULT_GROUP
        return self._counts.get(number, number == _DEFAULT_GROUP)
