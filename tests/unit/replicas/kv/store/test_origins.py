"""The most used prefixes come whole, first and once."""

import numpy as np

from replicas.kv.store.contents import StoredObject
from replicas.kv.store.origins import MAX_EXPECTED, Origin, Origins, WarmPrefix

BLOCKS = 2


def tokens(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def add(
    origins: Origins, number: int, parent: int | None, depth: int = 0, model: str = "m"
) -> bytes:
    """An object whose blocks end in the hash `number`, with the token `number`."""
    hashes = np.array([1000 + number, number], "<u8").tobytes()
    stored = StoredObject(bytes([number]), model, hashes, BLOCKS, 10, is_for_reuse=True)
    origins.add(stored, Origin(depth * BLOCKS, parent, tokens(number), "salt"))
    return stored.key


def family() -> Origins:
    """1 is the root of 2 and 3; 4 follows 3; 5 is another root."""
    origins = Origins()
    for number, parent, depth in ((1, None, 0), (2, 1, 1), (3, 1, 1), (4, 3, 2), (5, None, 0)):
        add(origins, number, parent, depth)
    return origins


def use(origins: Origins, *numbers: int) -> None:
    origins.use([bytes([number]) for number in numbers])


def hottest(origins: Origins, prefixes: int = 9, blocks: int = 99, model: str = "m") -> list[bytes]:
    return [prefix.token_ids for prefix in origins.hottest(model, prefixes, blocks)]


def test_the_most_used_come_first_and_no_part_of_them_again() -> None:
    origins = family()
    use(origins, 1, 3, 4, 1, 3, 4, 1, 2, 5)
    assert hottest(origins) == [tokens(1), tokens(1, 3, 4), tokens(1, 2), tokens(5)]
    use(origins, 3, 4)
    assert hottest(origins) == [tokens(1, 3, 4), tokens(1, 2), tokens(5)]


def test_a_prefix_comes_with_its_objects_and_its_salt() -> None:
    origins = family()
    use(origins, 4)
    (prefix,) = origins.hottest("m", 9, 99)
    objects = tuple((bytes([number]), BLOCKS) for number in (1, 3, 4))
    assert prefix == WarmPrefix(tokens(1, 3, 4), "salt", objects)
    assert prefix.blocks == 3 * BLOCKS


def test_what_was_used_once_warms_nobody() -> None:
    assert hottest(family()) == []


def test_a_prefix_of_which_a_part_is_gone_is_left_out() -> None:
    origins = family()
    use(origins, 4, 2)
    origins.remove([bytes([3])])
    assert hottest(origins) == [tokens(1, 2)]
    assert len(origins) == 4


def test_number_and_blocks_are_bounded() -> None:
    origins = family()
    use(origins, 1, 4, 4, 4, 5, 5)
    assert hottest(origins, prefixes=1) == [tokens(1, 3, 4)]
    assert hottest(origins, blocks=3 * BLOCKS) == [tokens(1, 3, 4)]
    assert hottest(origins, blocks=2 * BLOCKS) == [tokens(5), tokens(1)]


def test_models_are_apart() -> None:
    origins = family()
    add(origins, 6, None, model="n")
    use(origins, 6)
    assert hottest(origins) == []
    assert hottest(origins, model="n") == [tokens(6)]


def test_earlier_uses_count_less() -> None:
    origins = family()
    use(origins, 2, 2, 2)
    origins.fade()
    use(origins, 5, 5, 5)
    assert hottest(origins) == [tokens(5), tokens(1, 2)]


def test_an_object_s_origin_is_known_once_it_has_come() -> None:
    origins, hashes = Origins(), np.array([5, 6], "<u8").tobytes()
    stored = StoredObject(b"k", "m", hashes, BLOCKS, 10, is_for_reuse=True)
    origin = Origin(0, None, tokens(6), None)
    origins.offered(stored, origin, is_here=False)
    assert len(origins) == 0
    origins.came(stored)
    assert origins.get(b"k") == origin
    origins.offered(stored, None, is_here=True)
    assert hottest(origins) == [tokens(6)]


def test_what_was_there_before_gets_its_origin_with_the_next_offer() -> None:
    origins, hashes = Origins(), np.array([5, 6], "<u8").tobytes()
    stored = StoredObject(b"k", "m", hashes, BLOCKS, 10, is_for_reuse=True)
    origins.offered(stored, Origin(0, None, tokens(6), None), is_here=True)
    assert len(origins) == 1
    origins.came(stored)
    assert len(origins) == 1


def test_offers_that_do_not_come_are_forgotten() -> None:
    origins = Origins()
    for number in range(MAX_EXPECTED + 1):
        key = number.to_bytes(4, "little")
        stored = StoredObject(key, "m", key * 2, BLOCKS, 10, is_for_reuse=True)
        origins.offered(stored, Origin(0, None, b"", None), is_here=False)
        if number in (0, MAX_EXPECTED):
            last = stored
    origins.came(last)
    origins.came(StoredObject(bytes(4), "m", bytes(8), BLOCKS, 10, is_for_reuse=True))
    assert len(origins) == 1
