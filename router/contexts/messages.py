"""What callers of the context manager give and get: values that cross processes as they are.

Token ids are packed little-endian u32, never lists. `document`
is opaque here: for a chat, what its template needs besides the ids; empty for a prompt. Both grow
by their tails, so that a long history is not sent again.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from router.core.types import ContextId, ReplicaId, Tenant

TOKEN_BYTES = 4


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Encoded as an array of its fields in order. Cyclic collection never has to look inside."""


class Kind(StrEnum):
    """What a context holds: ids continued as they are, or messages that a template renders."""

    PROMPT = "prompt"
    CHAT = "chat"


class Usage(Message, frozen=True):
    """Tokens, as OpenAI counts them; `cached_tokens` is the part of the prompt not computed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class ContextView(Message, frozen=True):
    """The context object of the HTTP contract. Times are whole seconds since the epoch.

    `expires_at` is None during a turn. `usage` is that of the latest committed turn or, before the
    first, of the creation; a fork's says that nothing was computed for it.
    """

    id: ContextId
    kind: Kind
    model: str
    created_at: int
    last_used_at: int
    expires_at: int | None
    ttl_s: int
    turns: int
    tokens: int
    metadata: Mapping[str, str]
    usage: Usage
    stored_tokens: int = 0
    stored_bytes: int = 0
    claims: bytes = b""


class ContextPage(Message, frozen=True):
    """Newest first; `has_more` beyond the last of `views`."""

    views: list[ContextView]
    has_more: bool


class NewContext(Message, frozen=True):
    """A context whose prompt has been prefilled. Without `context_id` the client draws one.

    `claims`: of the blocks that end whole objects of it in a KV store, the packed u64 hashes.
    """

    model: str
    kind: Kind
    tokens: bytes
    document: bytes
    ttl_s: int
    metadata: Mapping[str, str] = {}
    usage: Usage = Usage()
    replica_id: ReplicaId | None = None
    context_id: ContextId | None = None
    claims: bytes = b""


class Ticket(Message, frozen=True):
    """The right to commit one turn: of which context, on top of how many turns.

    `epoch` is the manager's life that gave it; `nonce` is drawn by the client.
    """

    tenant: Tenant
    context_id: ContextId
    turns: int
    epoch: int
    nonce: int


class OpenTurn(Message, frozen=True):
    """A turn under way, with the whole history that it continues."""

    ticket: Ticket
    tokens: bytes
    document: bytes
    turns: int
    last_replica: ReplicaId | None
    lease_s: float


class TurnResult(Message, frozen=True):
    """What a turn leaves: history up to `keep_tokens`, then `tail`; likewise the document in bytes.

    None keeps all of it; less than all is a rewritten history. `claims` are those of all of it, see
    `NewContext`.
    """

    tail: bytes
    document_tail: bytes = b""
    keep_tokens: int | None = None
    keep_document_bytes: int | None = None
    usage: Usage = Usage()
    replica_id: ReplicaId | None = None
    claims: bytes = b""
