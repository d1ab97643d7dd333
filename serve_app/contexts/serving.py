"""What contexts need of the front: admission, renderers, and dispatch to the models' replicas."""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from router.core.errors import EngineError, Unavailable
from router.core.types import Tenant
from serve_app.admission import Admission, Admitted
from serve_app.allow_list import ApiRoute, Json
from serve_app.contexts.claims import ObjectClaims
from serve_app.contexts.document import Document
from serve_app.contexts.prompts import TurnPrompt, TurnRenderer
from serve_app.contexts.stored import StoredKV
from serve_app.dispatch import Answer, Dispatcher
from serve_app.observe.record import RequestRecord
from serve_app.render_loop import SHORT_BODY_BYTES, RenderLoop
from serve_app.routing import ClientHints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts that requests without a context pass through, too."""

    admission: Admission
    render_loop: RenderLoop
    renderers: Mapping[str, TurnRenderer | None]
    dispatchers: Mapping[str, Dispatcher]
    claims: ObjectClaims = ObjectClaims(0)
    stored: StoredKV = StoredKV({}, lambda _: 0)

    async def admitted(
        self, route: ApiRoute, body: Json, tenant: Tenant, tokens: bytes, document: Document | None
    ) -> Admitted:
        """What `body` asks for behind `tokens` and `document`. Ids stand for all of it.

        Raises `InvalidRequest`, and `Unavailable` or `EngineError` where nothing is known of ids.
        """
        renderer = self.renderers[self.admission.model_of(body)]
        if renderer is None:
            raise Unavailable("This model's tokenizer is not available.")
        prompt = TurnPrompt(renderer, tokens, document)
        admitted = await self.admission.admit_body(route, body, tenant, prompt)
        if admitted.request.needs_render or not admitted.request.prompts:
            raise EngineError("The prompt could not be rendered.")
        return admitted

    async def run(self, size_bytes: int, work: Coroutine[Any, Any, T]) -> T:
        """Awaits what has to do with so many bytes; with many, beside the serving loop."""
        return await (work if size_bytes <= SHORT_BODY_BYTES else self.render_loop.run(work))

    async def begin(self, admitted: Admitted, hints: ClientHints, record: RequestRecord) -> Answer:
        record.admit(admitted)
        return await self.dispatchers[admitted.model].begin(admitted, hints, record)
