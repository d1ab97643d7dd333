"""Interned holder sets where their numbers run out."""

from router.core.holder_sets import HolderSets
from router.core.set_contents import EMPTY
from router.core.types import Tier


def sets_with_two_numbers() -> HolderSets:
    return HolderSets(max_sets=3, columns=64, replicas=8)


def carried(sets: HolderSets, column: int) -> int:
    """The number of the set that only this column is in, with a block that carries it."""
    number = sets.added(EMPTY, column, Tier.GPU)
    sets.count(number, 1)
    return number


def columns_of(sets: HolderSets, number: int) -> list[int]:
    return [column for column in range(8) if sets.holds(number, column, Tier.GPU)]


def test_sets_that_no_block_carries_make_room_for_others() -> None:
    sets = sets_with_two_numbers()
    for column in range(6):
        assert columns_of(sets, sets.added(EMPTY, column, Tier.GPU)) == [column]
    assert sets.exhausted == 0


def test_where_all_sets_are_carried_a_holder_is_left_out_and_counted() -> None:
    sets = sets_with_two_numbers()
    held = [carried(sets, column) for column in (0, 1)]
    assert sets.added(EMPTY, 2, Tier.GPU) == EMPTY
    assert sets.exhausted == 1
    assert [columns_of(sets, number) for number in held] == [[0], [1]]


def test_a_reused_set_is_not_given_away_again_when_its_former_holder_leaves() -> None:
    """Were it freed twice, blocks of one replica would count as held by another."""
    sets = sets_with_two_numbers()
    for column in (0, 1):
        sets.added(EMPTY, column, Tier.GPU)
    held = [carried(sets, 2)]
    for column in (0, 1):
        sets.free(sets.clear_column(column, list(Tier)))
    held += [carried(sets, 3), carried(sets, 4)]
    assert [columns_of(sets, number) for number in held] == [[2], [3], []]
    sets.check_integrity()
