"""A context claims the objects that its next turn would load."""

from dataclasses import replace

import numpy as np
import pytest

from replicas.engines.protocol import EngineRequest, Route
from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt
from router.core.types import Tenant
from serve_app.admission import Admitted
from serve_app.contexts.claims import ObjectClaims
from serve_app.prompt_blocks import hash_prompts

BLOCK_SIZE, OBJECT_BLOCKS = 4, 3


def tokens(count: int) -> bytes:
    return np.arange(count, dtype="<u4").tobytes()


def admitted(prompt_tokens: int, cache_salt: str | None, block_size: int = BLOCK_SIZE) -> Admitted:
    prompt = tokens(prompt_tokens)
    request = EngineRequest("r", Route.COMPLETIONS, b"", (prompt,), cache_salt, is_stream=False)
    return Admitted("m", Tenant("t"), request, hash_prompts([prompt], block_size, cache_salt))


@pytest.mark.parametrize("cache_salt", [None, "s"])
@pytest.mark.parametrize("prompt_tokens", [1, 12, 25, 30])
@pytest.mark.parametrize("guessed_block_size", [BLOCK_SIZE, 8])
def test_every_whole_object_of_prompt_and_answer_is_claimed(
    cache_salt: str | None, prompt_tokens: int, guessed_block_size: int
) -> None:
    request = admitted(prompt_tokens, cache_salt, guessed_block_size)
    answer = tokens(40)[len(request.request.prompts[0]) :]
    claims = ObjectClaims(OBJECT_BLOCKS).of(request, answer, BLOCK_SIZE)
    keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
    chain = hash_blocks(tokens(40), BLOCK_SIZE, keys)
    assert np.frombuffer(claims, "<u8").tolist() == chain[[2, 5, 8]].tolist()


def test_another_tenant_s_salt_claims_other_objects() -> None:
    request = admitted(30, "a")
    other = replace(admitted(30, "b"), tenant=Tenant("u"))
    claims = ObjectClaims(OBJECT_BLOCKS)
    assert claims.of(request, b"", BLOCK_SIZE) != claims.of(other, b"", BLOCK_SIZE)


def test_without_stores_nothing_is_claimed() -> None:
    assert ObjectClaims(0).of(admitted(30, None), b"", BLOCK_SIZE) == b""
