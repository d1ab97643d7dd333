"""What contexts need of the front: admission, renderers, and dispatch to the models' replicas."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.core.errors import Unavailable
from serve_app.admission import Admission, Admitted
from serve_app.contexts.prompts import TurnRenderer
from serve_app.dispatch import Answer, Dispatcher
from serve_app.observe.record import RequestRecord
from serve_app.render_loop import RenderLoop
from serve_app.routing import ClientHints


@dataclass(frozen=True, slots=True)
class Serving:
    """The parts that requests without a context pass through, too."""

    admission: Admission
    render_loop: RenderLoop
    renderers: Mapping[str, TurnRenderer | None]
    dispatchers: Mapping[str, Dispatcher]

    def renderer(self, model: str) -> TurnRenderer:
        """Raises `Unavailable`: without one, nothing is known of ids."""
        renderer = self.renderers[model]
        if renderer is None:
            raise Unavailable("This model's tokenizer is not available.")
        return renderer

    async def begin(self, admitted: Admitted, hints: ClientHints, record: RequestRecord) -> Answer:
        record.admit(admitted)
        return await self.dispatchers[admitted.model].begin(admitted, hints, record)
