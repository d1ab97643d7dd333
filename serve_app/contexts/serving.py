"""What contexts need of the front: admission, renderers, and dispatch to the models' replicas."""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from router.core.errors import Unavailable
from serve_app.admission import Admission, Admitted
from serve_app.contexts.prompts import TurnRenderer
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

    def renderer(self, model: str) -> TurnRenderer:
        """Raises `Unavailable`: without one, nothing is known of ids."""
        renderer = self.renderers[model]
        if renderer is None:
            raise Unavailable("This model's tokenizer is not available.")
        return renderer

    async def run(self, size_bytes: int, work: Coroutine[Any, Any, T]) -> T:
        """Awaits what has to do with so many bytes; with many, beside the serving loop."""
        return await (work if size_bytes <= SHORT_BODY_BYTES else self.render_loop.run(work))

    async def begin(self, admitted: Admitted, hints: ClientHints, record: RequestRecord) -> Answer:
        record.admit(admitted)
        return await self.dispatchers[admitted.model].begin(admitted, hints, record)
