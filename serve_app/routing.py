"""One model's requests on their way to a replica: asked for, booked, followed, settled.

Everything here belongs to the loop that serves requests, but for what Serve's router calls in its
own thread (`on_…`).
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from replicas.engines.protocol import EngineRequest, Routing
from router.core.types import BookingId, ReplicaId
from router.rules import RequestFacts, RuleOutcome
from router.serve.index_client import IndexClient, Route
from router.serve.switchboard import Member
from serve_app.admission import Admitted
from serve_app.prompt_blocks import PromptBlocks, hash_prompts
from serve_app.routable import Routable
from serve_app.tuning import Tuned, Tuning

REROUTED = ":rerouted"
"""Ends the reason of a decision for a replica that Serve took in another's place."""


@dataclass(frozen=True, slots=True)
class ClientHints:
    """What the client's headers say for routing. Names are in lower case.

    `last_replica` had the last turn of the context that they name. `no_store`: no KV of the request
    is to be kept beyond its replica.
    """

    headers: frozenset[str] = frozenset()
    session_hint: str | None = None
    last_replica: ReplicaId | None = None
    no_store: bool = False


def forbids_storing(headers: Mapping[str, str]) -> bool:
    """Whether `Cache-Control` has the directive `no-store` (RFC 9111, 5.2.1.5)."""
    directives = headers.get("cache-control", "").lower().split(",")
    return any(directive.strip() == "no-store" for directive in directives)


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One attempt at a request, from its decision to its end.

    `replica_id` is who took it, None while that is open. `request` and `route` are those of the
    last decision on it, `decided_replica_id` was the choice of the first.
    """

    request: EngineRequest
    route: Route
    policy: RuleOutcome
    block_size: int
    choices: int
    client: IndexClient
    replica_id: ReplicaId | None = field(default=None)
    decided_replica_id: ReplicaId | None = field(init=False)

    def __post_init__(self) -> None:
        self.decided_replica_id = self.route.replica_id

    @property
    def routing(self) -> Routing:
        assert self.request.routing is not None
        return self.request.routing

    @property
    def load_blocks(self) -> int:
        """To be loaded from stores."""
        return self.route.load_blocks if self.request.transfer is not None else 0

    def first_token(self) -> None:
        self.client.first_token(self.route.booking_id)

    def progress(self, output_tokens: int) -> None:
        """For every block or so."""
        self.client.progress(self.route.booking_id, output_tokens)


class ModelRouter:
    """Asks the model's block index, and keeps the index in the picture of what became of it.

    `block_size` is the configured one, until replicas say theirs. `keeps_kv`: replicas have stores.
    """

    def __init__(
        self, client: IndexClient, tuning: Tuning, block_size: int, *, keeps_kv: bool = False
    ) -> None:
        self.block_size = block_size
        self._keeps_kv = keeps_kv
        self._client = client
        self._tuning = tuning
        self._loop = asyncio.get_running_loop()
        self._live: dict[BookingId, tuple[LiveRequest, Routable]] = {}

    async def begin(
        self, admitted: Admitted, hints: ClientHints, excluded: Sequence[ReplicaId] = ()
    ) -> LiveRequest:
        """Decides, within the index's deadline, and books. `end` is to follow in any case.

        `excluded` replicas have just failed this request.
        """
        tuned = self._tuning.current
        blocks = self._current_blocks(admitted)
        policy = tuned.rules.outcome(_facts(admitted, blocks, hints))
        routable = Routable(
            admitted, blocks, policy, hints.session_hint, self._keeps_kv, hints.no_store
        )
        question = routable.question(excluded=excluded)
        route = self._kept_to(hints.last_replica, await self._client.select(question))
        request = routable.directed(route)
        live = LiveRequest(request, route, policy, blocks.block_size, blocks.choices, self._client)
        self._live[route.booking_id] = live, routable
        return live

    def _kept_to(self, replica_id: ReplicaId | None, route: Route) -> Route:
        """Where the index is silent or still being refilled, the replica that had a conversation's
        last turn is the best guess.

        As long as it is as free as the one chosen, give or take a request. One that is gone is not
        among the ranked, as every life of a replica has its own name.
        """
        if not route.is_blind or replica_id not in route.ranked[1:]:
            return route
        in_flight = self._client.in_flight()
        if in_flight.get(replica_id, 0) >= in_flight.get(route.ranked[0], 0) + 1:
            return route
        self._client.move(route.booking_id, replica_id)
        return structs.replace(route, ranked=_headed(replica_id, route.ranked), decided_seq=None)

    def end(self, live: LiveRequest) -> None:
        """The attempt is over, however. Idempotent."""
        self._live.pop(live.route.booking_id, None)
        self._client.settle(live.route.booking_id)

    def adjust(self, tuned: Tuned) -> None:
        self._client.adjust(tuned.link)

    def on_members(self, members: Sequence[Member]) -> None:
        sizes = Counter(member.block_size for member in members if member.block_size is not None)
        if sizes:
            self.block_size = sizes.most_common(1)[0][0]
        self._post(self._client.update_members, [member.replica_id for member in members])

    async def redirect(self, booking_id: BookingId, replica_id: ReplicaId) -> EngineRequest | None:
        """What a decision says is right for one replica only: another one is decided on anew."""
        if self._loop.is_closed():
            return None
        # Serve's router may have a loop of its own.
        redirected = self._redirected(booking_id, replica_id)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(redirected, self._loop))

    async def _redirected(
        self, booking_id: BookingId, replica_id: ReplicaId
    ) -> EngineRequest | None:
        known = self._live.get(booking_id)
        if known is None:
            return None
        live, routable = known
        route = await self._client.select(routable.question(candidates=(replica_id,)))
        if self._live.get(booking_id) is not known:
            self._client.settle(route.booking_id)
            return None
        self.end(live)
        is_rerouted = live.decided_replica_id not in (None, replica_id)
        live.route = structs.replace(
            route,
            ranked=_headed(replica_id, live.route.ranked),
            reason=route.reason + (REROUTED if is_rerouted else ""),
        )
        live.request = routable.directed(live.route)
        self._live[route.booking_id] = known
        return live.request

    def on_routed(self, booking_id: BookingId, replica_id: ReplicaId) -> None:
        live, _ = self._live.get(booking_id, (None, None))
        if live is None:
            return
        live.replica_id = replica_id
        if live.route.replica_id not in (None, replica_id):
            self._post(self._client.move, booking_id, replica_id)

    def on_completed(self, booking_id: BookingId) -> None:
        """The replica is rid of it, even if its client still reads."""
        self._post(self._client.settle, booking_id)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """From another thread; what comes after the loop's end concerns nobody."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _current_blocks(self, admitted: Admitted) -> PromptBlocks:
        """Hashed once more where the first replica has said its block size only meanwhile."""
        blocks = admitted.blocks
        if blocks.block_size == self.block_size:
            return blocks
        if blocks.is_blind:
            return replace(blocks, block_size=self.block_size)
        request = admitted.request
        return hash_prompts(
            request.prompts,
            self.block_size,
            request.cache_salt,
            choices=blocks.choices,
            reads_cache=blocks.reads_cache,
        )


def _facts(admitted: Admitted, blocks: PromptBlocks, hints: ClientHints) -> RequestFacts:
    return RequestFacts(
        admitted.model,
        admitted.tenant,
        sum(blocks.prompt_tokens),
        hints.headers,
        hints.session_hint is not None,
    )


def _headed(first: ReplicaId, ranked: tuple[ReplicaId, ...]) -> tuple[ReplicaId, ...]:
    return (first, *(other for other in ranked if other != first))
