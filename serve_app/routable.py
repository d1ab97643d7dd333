"""One admitted request as the index is asked about it, and as a replica gets it by the answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicas.engines.protocol import EngineRequest, Routing
from router.core.transfer import Keeping, TransferRequest
from router.core.types import ReplicaId
from router.policies.base import Hints
from router.rules import RuleOutcome
from router.serve.flights import RoutingRequest
from router.serve.index_client import Route
from serve_app.admission import Admitted
from serve_app.prompt_blocks import PromptBlocks, packed


@dataclass(frozen=True, slots=True)
class Routable:
    """`blocks` are of the replicas' size. `keeps_kv`: replicas have stores; `no_store`: nothing of
    this request is to be kept there."""

    admitted: Admitted
    blocks: PromptBlocks
    policy: RuleOutcome
    session_hint: str | None
    keeps_kv: bool
    no_store: bool

    def question(
        self,
        *,
        candidates: tuple[ReplicaId, ...] | None = None,
        excluded: Sequence[ReplicaId] = (),
    ) -> RoutingRequest:
        """To choose from `candidates`, all replicas if None, but for the `excluded` ones."""
        admitted, blocks = self.admitted, self.blocks
        chains = blocks.looked_up()
        return RoutingRequest(
            packed(chains),
            blocks.tokens_to_compute,
            blocks.block_size,
            admitted.tenant,
            self.policy.policy,
            reads_cache=blocks.reads_cache,
            candidates=candidates,
            excluded=tuple(excluded),
            hints=Hints(admitted.expected_output_tokens, self.session_hint),
            chains=() if blocks.is_single else tuple(map(len, chains)),
        )

    def directed(self, route: Route) -> EngineRequest:
        """For the first of the route's ranked, with what it is to load and what is expected of it
        there."""
        transfer = self._transfer(route)
        routing = _routing(route, self.blocks, 0 if transfer is None else route.load_blocks)
        return replace(self.admitted.request, routing=routing, transfer=transfer)

    def _transfer(self, route: Route) -> TransferRequest | None:
        admitted = self.admitted
        if not self.keeps_kv or not self.blocks.is_single or admitted.request.needs_render:
            return None
        keeping = Keeping.NOTHING if self.no_store else admitted.keeping
        return TransferRequest(route.loads, keeping, route.seen_blocks)


def _routing(route: Route, blocks: PromptBlocks, load_blocks: int) -> Routing:
    """A blind decision forecasts nothing, like one without the index."""
    found = () if blocks.is_blind else route.chain_overlaps
    return Routing(
        route.booking_id,
        route.ranked,
        blocks.overlaps(found),
        blocks.forecast([held + load_blocks for held in found]),
        route.decided_seq,
        time.time(),
        route.is_fallback or blocks.is_blind,
    )
