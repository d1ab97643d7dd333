"""Contexts as an ingress process sees them: create, use, fork, delete; turns that commit durably.

Every call has a deadline and is safe to repeat, which the client does by itself while the manager
is away; what it cannot learn in time is `ContextsUnavailable`. Leases of open turns are renewed
here until the turn is committed or abandoned: the caller owes one of the two.
"""

from collections.abc import Mapping

from router.contexts.messages import (
    ContextPage,
    ContextView,
    Kind,
    NewContext,
    OpenTurn,
    Ticket,
    TurnResult,
)
from router.core.types import ContextId, Tenant


class ContextClient:
    """One for each ingress process; every call belongs to the event loop that made it.

    All calls raise `ContextsUnavailable` where the manager does not answer in time, and all that
    name a context `ContextNotFound` and `ContextExpired`.
    """

    async def create(self, tenant: Tenant, new: NewContext) -> ContextView:
        """Durable when it returns. Raises `ContextQuotaExceeded`."""
        raise NotImplementedError

    async def get(self, tenant: Tenant, context_id: ContextId) -> ContextView:
        raise NotImplementedError

    async def page(self, tenant: Tenant, limit: int, after: ContextId | None) -> ContextPage:
        """The tenant's own, newest first, from the one behind `after` on."""
        raise NotImplementedError

    async def patch(
        self,
        tenant: Tenant,
        context_id: ContextId,
        ttl_s: int | None,
        metadata: Mapping[str, str] | None,
    ) -> ContextView:
        """None leaves it as it is. Restarts the idle clock."""
        raise NotImplementedError

    async def fork(
        self,
        tenant: Tenant,
        context_id: ContextId,
        ttl_s: int | None,
        metadata: Mapping[str, str] | None,
    ) -> ContextView:
        """A context with the history of the last committed turn. Raises `ContextQuotaExceeded`."""
        raise NotImplementedError

    async def delete(self, tenant: Tenant, context_id: ContextId) -> None:
        """Raises `ContextBusy` during a turn."""
        raise NotImplementedError

    async def begin_turn(
        self,
        tenant: Tenant,
        context_id: ContextId,
        model: str,
        kind: Kind,
        expected_turns: int | None = None,
        wait_s: float = 0.0,
    ) -> OpenTurn:
        """Waits at most `wait_s` for the end of another turn; cancelling it ends the wait.

        Raises `ContextBusy`, `TurnConflict`, `ModelMismatch`, `ContextKindMismatch` and
        `ContextQuotaExceeded`.
        """
        raise NotImplementedError

    async def commit(self, ticket: Ticket, result: TurnResult) -> ContextView:
        """Durable when it returns. Raises `TurnConflict` where the lease has lapsed meanwhile.

        After `ContextsUnavailable` the turn may have been committed or not; calling again tells.
        """
        raise NotImplementedError

    def abandon(self, ticket: Ticket) -> None:
        """Ends the turn without a trace, in the background. Idempotent; after a commit nothing."""
        raise NotImplementedError

    async def close(self) -> None:
        """Who still waits gets `ContextsUnavailable`; open turns are left to their lease."""
        raise NotImplementedError
