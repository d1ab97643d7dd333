"""What the connector's two halves tell each other, and what a request asks of them. Values only.

The scheduler's half plans, the worker's half moves bytes. Block ids are the engine's own and name
the places of one request's blocks in its pool.
"""

from dataclasses import dataclass, field

import msgspec

from replicas.kv.store.origins import Origin
from router.core.transfer import Keeping, TransferRequest

PARAMETER = "warmpath"
"""Our key in a request's transfer parameters."""
_LOST_BLOCKS = "lost_blocks"


@dataclass(frozen=True, slots=True)
class Piece:
    """The blocks of an object from its `skipped`-th on, to be copied to `block_ids`.

    `position` is the place of the first of them in the chain.
    """

    key: bytes
    store_id: str
    object_blocks: int
    skipped: int
    position: int
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadJob:
    request_id: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class SaveObject:
    """A whole object to be made of `block_ids`; `hashes` are the router's, packed, one a block."""

    key: bytes
    hashes: bytes
    block_ids: tuple[int, ...]
    keeping: Keeping
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class StepOrders:
    """What the worker is to do in a step."""

    loads: tuple[LoadJob, ...] = ()
    saves: tuple[SaveObject, ...] = ()


@dataclass(slots=True)
class StepReport:
    """What became of earlier orders: keys of objects that are safe, that were not saved and that
    were not loaded, and requests whose loads failed, wholly or from some block on."""

    saved: list[bytes] = field(default_factory=list)
    unsaved: list[bytes] = field(default_factory=list)
    unusable: list[bytes] = field(default_factory=list)
    failed_loads: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.saved or self.unsaved or self.unusable or self.failed_loads)


def encode_request(request: TransferRequest) -> str:
    """As text, for parameters that travel as JSON."""
    return msgspec.json.encode(request).decode()


def decode_request(text: object) -> TransferRequest:
    """Raises `msgspec.MsgspecError` on what is none."""
    return msgspec.json.decode(text if isinstance(text, str) else b"", type=TransferRequest)


def lost_blocks_note(blocks: int) -> dict[str, object]:
    """What the connector says at a request's end, beside its answer, of a load that failed."""
    return {PARAMETER: {_LOST_BLOCKS: blocks}}


def lost_blocks(parameters: dict[str, object] | None) -> int:
    """Of `lost_blocks_note`; 0 of anything else."""
    note = parameters.get(PARAMETER) if parameters else None
    blocks = note.get(_LOST_BLOCKS) if isinstance(note, dict) else None
    return blocks if isinstance(blocks, int) else 0
