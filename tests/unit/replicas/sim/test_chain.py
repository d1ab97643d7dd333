"""The simulated engine's hashes are the router's."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from replicas.sim.chain import HashChain
from router.core.hashing import NO_EXTRA_KEYS, hash_blocks, salt


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    cuts=st.lists(st.integers(0, 40)),
    cache_salt=st.none() | st.text(max_size=5),
)
def test_a_chain_extended_in_pieces_has_the_hashes_of_the_whole_prompt(
    tokens: list[int], cuts: list[int], cache_salt: str | None
) -> None:
    chain = HashChain(4, cache_salt)
    for cut in sorted(cuts):
        chain.extend(array("I", tokens[:cut]))
    chain.extend(array("I", tokens))
    keys = NO_EXTRA_KEYS if cache_salt is None else salt(cache_salt)
    assert chain.hashes == hash_blocks(array("I", tokens).tobytes(), 4, keys).tolist()
