"""What an engine is expected to reuse of a request, from hashes and what the index confirmed."""

import numpy as np
import pytest

from router.core.hashing import hash_blocks, salt
from serve_app.allow_list import ApiRoute
from serve_app.prompt_blocks import (
    MAX_LOOKED_UP_BLOCKS,
    MAX_LOOKED_UP_PROMPTS,
    PromptBlocks,
    blind,
    hash_prompts,
    packed,
    reads_cache,
)

BLOCK_SIZE = 4


def prompt(*token_ids: int) -> bytes:
    return np.array(token_ids, dtype="<u4").tobytes()


def blocks(*prompts: bytes, **more: int | bool) -> PromptBlocks:
    return hash_prompts(prompts, BLOCK_SIZE, None, **more)


def test_hashes_are_the_routers_with_the_salt_in() -> None:
    ids = prompt(*range(11))
    salted = hash_prompts([ids], BLOCK_SIZE, "secret")
    assert salted.chains[0].tolist() == hash_blocks(ids, BLOCK_SIZE, salt("secret")).tolist()
    assert not set(salted.chains[0].tolist()) & set(blocks(ids).chains[0].tolist())


def test_a_single_prompt_is_forecast_by_what_is_confirmed() -> None:
    asked = blocks(prompt(*range(14)))
    assert (asked.overlaps((2,)), asked.forecast((2,))) == ((2,), (2,))


def test_a_block_that_ends_in_the_last_token_is_not_forecast() -> None:
    assert blocks(prompt(*range(12))).forecast((3,)) == (2,)


def test_further_choices_find_all_that_the_first_computed() -> None:
    asked = blocks(prompt(*range(14)), choices=3)
    assert asked.overlaps((1,)) == (1, 1, 1)
    assert asked.forecast((1,)) == (1, 3, 3)


def test_a_prompt_finds_what_an_earlier_one_of_the_same_request_left() -> None:
    first, second, third = prompt(*range(10)), prompt(*range(9), 99), prompt(*range(5), 7, 7, 7, 7)
    asked = blocks(first, second, third)
    assert asked.shared_blocks == (0, 2, 1)
    assert asked.forecast((0, 0, 0)) == (0, 2, 1)
    assert asked.forecast((2, 2, 2)) == (2, 2, 2)
    assert asked.tokens_to_compute == 10 + 10 + 9 - 3 * BLOCK_SIZE


def test_equal_prompts_leave_only_the_last_token_to_compute() -> None:
    same = prompt(*range(8))
    assert blocks(same, same).forecast((0, 0)) == (0, 1)


def test_nothing_is_forecast_where_the_engine_reads_no_cache() -> None:
    asked = blocks(prompt(*range(14)), choices=2, reads_cache=False)
    assert asked.forecast((3,)) == (0, 0)


def test_a_blind_request_looks_nothing_up_and_forecasts_nothing() -> None:
    asked = blind(0, BLOCK_SIZE, 2)
    assert asked.looked_up() == ()
    assert (asked.overlaps(()), asked.forecast(())) == ((0, 0), (0, 0))
    assert asked.tokens_to_compute == 1


def test_a_long_list_is_looked_up_in_part_and_forecast_in_full_length() -> None:
    asked = blocks(*(prompt(i, i, i, i, i) for i in range(MAX_LOOKED_UP_PROMPTS + 5)))
    chains = asked.looked_up()
    assert len(chains) == MAX_LOOKED_UP_PROMPTS
    assert len(packed(chains)) == 8 * MAX_LOOKED_UP_PROMPTS
    assert asked.forecast((1,) * len(chains)) == (1,) * len(chains) + (0,) * 5


def test_one_prompt_is_looked_up_whatever_its_length() -> None:
    asked = hash_prompts([bytes(4 * (MAX_LOOKED_UP_BLOCKS + 9))], 1, None)
    assert len(asked.looked_up()[0]) == MAX_LOOKED_UP_BLOCKS + 9


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        (ApiRoute.CHAT, {}, True),
        (ApiRoute.CHAT, {"prompt_logprobs": 0}, False),
        (ApiRoute.COMPLETIONS, {"prompt_logprobs": 1}, False),
        (ApiRoute.COMPLETIONS, {"echo": True}, True),
        (ApiRoute.COMPLETIONS, {"echo": True, "logprobs": 0}, False),
        (ApiRoute.COMPLETIONS, {"echo": False, "logprobs": 2}, True),
        (ApiRoute.CHAT, {"echo": True}, False),
        (ApiRoute.CHAT, {"echo": True, "top_logprobs": None}, True),
    ],
)
def test_log_probabilities_of_the_prompt_keep_an_engine_from_its_cache(
    route: ApiRoute, body: dict[str, object], expected: bool
) -> None:
    assert reads_cache(route, body) is expected
