"""Which stored blocks contexts want kept: computed from their histories when a store asks.

A claim is a preference, and nothing is kept by block. A store that asks now and then, and drops
what nobody claims any more, needs no word of each context that goes.
"""

from collections.abc import Iterable
from typing import Protocol

from router.contexts.context import Context
from router.contexts.history import ids_of
from router.core.types import BlockHash, Tenant


class HashHistory(Protocol):
    """Full blocks of packed token ids, hashed as requests of that tenant and model are."""

    def __call__(self, tenant: Tenant, model: str, token_ids: bytes) -> Iterable[BlockHash]: ...


def claimed_blocks(
    contexts: Iterable[Context], tenant: Tenant, model: str, hash_history: HashHistory
) -> set[BlockHash]:
    """Every block that a context of the tenant and model wants. O(tokens of their histories).

    What forks have in common is hashed once where they are at the same turn.
    """
    wanted = {c.history for c in contexts if c.tenant == tenant and c.model == model}
    return {block for history in wanted for block in hash_history(tenant, model, ids_of(history))}
