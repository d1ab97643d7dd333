"""What each tenant has, and what it may have."""

from dataclasses import dataclass, field
from itertools import islice

from router.contexts.context import Context
from router.contexts.settings import ContextSettings
from router.core.errors import ContextNotFound, ContextQuotaExceeded, ContextsUnavailable
from router.core.types import ContextId, Tenant


@dataclass(slots=True)
class Holdings:
    """One tenant's contexts, oldest first, and the sum of their histories' lengths."""

    context_ids: dict[ContextId, None] = field(default_factory=dict)
    tokens: int = 0


class TenantBook:
    """Counts contexts and tokens by tenant; a tenant without contexts is not there."""

    def __init__(self, settings: ContextSettings) -> None:
        self._settings = settings
        self._holdings: dict[Tenant, Holdings] = {}

    def add(self, context: Context) -> None:
        holdings = self._holdings.setdefault(context.tenant, Holdings())
        holdings.context_ids[context.context_id] = None
        holdings.tokens += context.tokens

    def remove(self, context: Context) -> None:
        holdings = self._holdings[context.tenant]
        del holdings.context_ids[context.context_id]
        holdings.tokens -= context.tokens
        if not holdings.context_ids:
            del self._holdings[context.tenant]

    def grow(self, tenant: Tenant, tokens: int) -> None:
        self._holdings[tenant].tokens += tokens

    def check_room(self, tenant: Tenant, contexts: int, tokens: int) -> None:
        """Raises `ContextQuotaExceeded` unless so much more would be within the quotas."""
        holdings = self._holdings.get(tenant, Holdings())
        if len(holdings.context_ids) + contexts > self._settings.max_contexts_per_tenant:
            raise ContextQuotaExceeded("Your quota of contexts is used up; delete some.")
        if holdings.tokens + tokens > self._settings.max_tokens_per_tenant:
            raise ContextQuotaExceeded("Your quota of tokens in contexts is used up; delete some.")

    def page(
        self, tenant: Tenant, limit: int, after: ContextId | None
    ) -> tuple[list[ContextId], bool]:
        """Newest first, and whether there are more. O(contexts of the tenant before the page)."""
        newest_first = reversed(self._holdings.get(tenant, Holdings()).context_ids)
        if after is not None and after not in newest_first:
            raise ContextNotFound(param="after")
        ids = list(islice(newest_first, limit + 1))
        return ids[:limit], len(ids) > limit

    def usage(self) -> dict[str, int]:
        return {
            "tenants": len(self._holdings),
            "tokens": sum(holdings.tokens for holdings in self._holdings.values()),
        }

    def check_space(self, contexts: int, stored_bytes: int) -> None:
        """Raises `ContextsUnavailable` unless the manager holds so many within its own bounds."""
        if contexts > self._settings.max_contexts or stored_bytes >= self._settings.max_bytes:
            raise ContextsUnavailable("No room for more contexts.", retry_after_s=30)
