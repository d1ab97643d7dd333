"""From the untyped extra keys of vLLM's events to the typed ones that the router hashes.

vLLM writes, per block and in this order: the adapter's name, (image id, offset) pairs, the cache
salt (first block of a chain only), digests of prompt embeddings. Pairs and bytes tell themselves;
of the bare strings, the adapter's is known from its own field and the first block's other is the
salt. A string that is neither would silently merge what must stay apart, so it stays apart.
"""

from collections.abc import Callable

from replicas.kv.events import BlockStored, WireKey
from router.core.hashing import (
    NO_EXTRA_KEYS,
    ExtraKeys,
    adapter,
    embeddings_in_block,
    image_in_block,
    opaque_in_block,
    salt,
)

AdapterKeys = Callable[[str], ExtraKeys]
"""From the name under which the engine knows an adapter to its keys."""


def unversioned_adapter(name: str) -> ExtraKeys:
    """For engines whose adapters never change under their name."""
    return adapter(name, "")


def typed_keys(event: BlockStored, adapter_keys: AdapterKeys) -> ExtraKeys:
    """The keys of the event's blocks, counted from its first.

    The chain's own keys are complete only where the event starts a chain; elsewhere the parent's
    hash contains them.
    """
    starts_chain = event.parent_block_hash is None
    keys = NO_EXTRA_KEYS
    if starts_chain and event.lora_name is not None:
        keys |= adapter_keys(event.lora_name)
    blocks: dict[int, tuple[bytes, ...]] = {}
    for index, items in enumerate(event.extra_keys or ()):
        rest = _without_adapter(items or (), event.lora_name)
        if starts_chain and index == 0:
            cache_salt, rest = _split_salt(rest)
            keys |= NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
        if rest:
            blocks[index] = tuple(key for item in rest for key in _typed(item))
    return keys | ExtraKeys(blocks=blocks)


def _without_adapter(items: tuple[WireKey, ...], name: str | None) -> tuple[WireKey, ...]:
    return items[1:] if name is not None and items[:1] == (name,) else items


def _split_salt(items: tuple[WireKey, ...]) -> tuple[str | None, tuple[WireKey, ...]]:
    for place, item in enumerate(items):
        if isinstance(item, str):
            return item, items[:place] + items[place + 1 :]
    return None, items


def _typed(item: WireKey) -> tuple[bytes, ...]:
    match item:
        case bytes():
            return embeddings_in_block(item)
        case [str() as identifier, int() as offset]:
            return image_in_block(identifier, offset)
        case _:
            return opaque_in_block(repr(item).encode())
