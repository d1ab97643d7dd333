"""The block index is right in every case in which others were found wrong.

The same stories run on Dynamo where it is installed: not as a promise of theirs, but so that the
stories are known to be told in a form that another index understands.
"""

import importlib.util

import pytest

from tests.contract.index_conformance import CASES, Case, DynamoSubject, WarmpathSubject

BOTH_ARE_RIGHT = [
    "an adapter's blocks are not the base model's",
    "an adapter's blocks are its own",
    "a clear drops everything",
    "a deleted replica holds nothing",
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_index_is_right_where_others_were_wrong(case: Case) -> None:
    assert case.outcome(WarmpathSubject()) == str(case.expected)


@pytest.mark.skipif(
    importlib.util.find_spec("dynamo") is None, reason="ai-dynamo-runtime is not installed"
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_another_index_understands_the_stories(case: Case) -> None:
    outcome = case.outcome(DynamoSubject())
    assert outcome.isdigit()
    if case.name in BOTH_ARE_RIGHT:
        assert outcome == str(case.expected)
