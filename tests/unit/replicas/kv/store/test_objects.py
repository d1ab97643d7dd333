"""An object is used only where every byte and every field of its key is right."""

import dataclasses

import numpy as np
import pytest

from replicas.kv.store.namespaces import Namespace
from replicas.kv.store.objects import (
    HEADER_BYTES,
    ObjectKey,
    UnusableObject,
    form_of,
    new_object,
    opened,
    payload,
    prove,
    seal,
)

BLOCKS, BLOCK_BYTES = 3, 40
KEY = ObjectKey(b"n" * 32, b"h" * 32)
NAMESPACE = Namespace(
    model="m",
    weights="w",
    adapters="",
    engine_version="0.32.0",
    dtype="float32",
    kv_dtype="auto",
    quantisation="",
    block_size=32,
    layers=4,
    kv_heads=2,
    head_size=64,
    layout="LBHNC",
    device="cpu:avx2",
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    rank=0,
    kv_group=0,
    hash_algorithm="sha256_cbor",
    hash_seed="",
)


def sealed() -> np.ndarray:
    data = new_object(BLOCKS, BLOCK_BYTES)
    payload(data)[:] = np.arange(BLOCKS * BLOCK_BYTES)
    seal(data, KEY, BLOCKS)
    return data


def test_a_sealed_object_opens_with_its_key() -> None:
    blocks = opened(sealed(), KEY, BLOCKS, BLOCK_BYTES)
    assert blocks.tolist() == list(range(BLOCKS * BLOCK_BYTES))


def test_any_flipped_byte_is_found() -> None:
    data = sealed()
    for place in range(len(data)):
        data[place] ^= 0x40
        with pytest.raises(UnusableObject):
            opened(data, KEY, BLOCKS, BLOCK_BYTES)
        data[place] ^= 0x40
    opened(data, KEY, BLOCKS, BLOCK_BYTES)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES])
def test_a_cut_object_is_found(length: int) -> None:
    with pytest.raises(UnusableObject, match="length"):
        opened(sealed()[:length], KEY, BLOCKS, BLOCK_BYTES)


@pytest.mark.parametrize("key", [ObjectKey(b"m" * 32, b"h" * 32), ObjectKey(b"n" * 32, b"i" * 32)])
def test_another_key_opens_nothing(key: ObjectKey) -> None:
    with pytest.raises(UnusableObject, match="other blocks"):
        opened(sealed(), key, BLOCKS, BLOCK_BYTES)


def test_another_form_opens_nothing_and_is_whole_all_the_same() -> None:
    data = sealed()
    seal(data, KEY, BLOCKS, b"f" * 32)
    with pytest.raises(UnusableObject, match="another engine's"):
        opened(data, KEY, BLOCKS, BLOCK_BYTES)
    assert form_of(data) == b"f" * 32
    opened(data, KEY, BLOCKS, BLOCK_BYTES, b"f" * 32)
    prove(data, KEY.pack())


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Namespace)])
def test_each_field_of_a_namespace_parts_it_from_all_others(field: str) -> None:
    value = dataclasses.asdict(NAMESPACE)[field]
    other = dataclasses.replace(
        NAMESPACE, **{field: value * 2 + 1 if isinstance(value, int) else value + "x"}
    )
    assert other.digest != NAMESPACE.digest
    data = new_object(1, BLOCK_BYTES)
    data[HEADER_BYTES:] = 7
    seal(data, ObjectKey(NAMESPACE.digest, KEY.last_hash), 1)
    with pytest.raises(UnusableObject):
        opened(data, ObjectKey(other.digest, KEY.last_hash), 1, BLOCK_BYTES)


def test_texts_of_neighbouring_fields_cannot_run_together() -> None:
    one = dataclasses.replace(NAMESPACE, dtype="ab", kv_dtype="c")
    other = dataclasses.replace(NAMESPACE, dtype="a", kv_dtype="bc")
    assert one.digest != other.digest


def test_a_key_survives_its_packing() -> None:
    assert ObjectKey.unpack(KEY.pack()) == KEY
    with pytest.raises(UnusableObject):
        ObjectKey.unpack(b"short")
