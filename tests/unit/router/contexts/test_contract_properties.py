"""Whatever happens to contexts, in whatever order, with crashes: as the contract says."""

import resource
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.router.contexts.context_rig import Fate, Held, Rig

TENANTS = st.sampled_from(["alice", "bob"])
STRANGERS = st.sampled_from([None, None, None, None, "bob"])
TTLS = st.sampled_from([1, 5, 60, 600, 3600])
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=6)
PICK = st.integers(0, 2**16)
WAITS = st.sampled_from([0.0, 0.0, 4.0, 30.0])
ACTIONS = (
    ["create"] * 3
    + ["fork", "patch", "delete", "look", "look", "crash"]
    + ["begin"] * 6
    + ["commit"] * 5
    + ["renew", "abandon", "sweep", "flush", "flush", "time", "time"]
)


class Contract(RuleBasedStateMachine):
    """Names and turns are picked among all that there ever were, so that many are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(self.draw)
        self.next_fate = Fate.KEPT
        self.nonces = 0

    def name(self, pick: int) -> str:
        """Of the latest few, and of one that never was."""
        return f"ctx-{self.rig.names + 1 - pick % min(5, self.rig.names + 1)}"

    def owner(self, tenant: str | None, name: str) -> str:
        """None: whoever owns it."""
        told = self.rig.model.live.get(name)
        return tenant or ("alice" if told is None else told.tenant)

    def turn(self, pick: int) -> Held | None:
        return self.rig.held[-1 - pick % min(4, len(self.rig.held))] if self.rig.held else None

    @rule(fate=st.sampled_from(Fate))
    def decide(self, fate: Fate) -> None:
        """Of the next write only."""
        self.next_fate = fate

    def draw(self) -> Fate:
        fate, self.next_fate = self.next_fate, Fate.KEPT
        return fate

    @rule(tenant=TENANTS, tokens=TOKENS, document=st.binary(max_size=5), ttl_s=TTLS)
    def create(self, tenant: str, tokens: list[int], document: bytes, ttl_s: int) -> None:
        self.rig.create(tenant, tokens, document, ttl_s)

    @rule(tenant=STRANGERS, pick=PICK, ttl_s=st.none() | TTLS)
    def fork(self, tenant: str | None, pick: int, ttl_s: int | None) -> None:
        name = self.name(pick)
        self.rig.fork(self.owner(tenant, name), name, ttl_s)

    @rule(tenant=STRANGERS, pick=PICK, ttl_s=st.none() | TTLS, note=st.none() | st.just("x"))
    def patch(self, tenant: str | None, pick: int, ttl_s: int | None, note: str | None) -> None:
        name = self.name(pick)
        self.rig.patch(self.owner(tenant, name), name, ttl_s, note)

    @rule(tenant=STRANGERS, pick=PICK)
    def delete(self, tenant: str | None, pick: int) -> None:
        name = self.name(pick)
        self.rig.delete(self.owner(tenant, name), name)

    @rule(tenant=STRANGERS, pick=PICK, expected=st.sampled_from([None, None, 0, 1]), wait_s=WAITS)
    def begin(self, tenant: str | None, pick: int, expected: int | None, wait_s: float) -> None:
        name = self.name(pick)
        self.nonces += 1
        self.rig.begin(self.owner(tenant, name), name, expected, wait_s, self.nonces)

    @rule(pick=PICK, keep=st.sampled_from([1.0, 1.0, 0.5, 0.0]), tail=TOKENS)
    def take_a_turn(self, pick: int, keep: float, tail: list[int]) -> None:
        self.begin(None, pick, None, 0.0)
        self.commit(0, keep, tail)

    @rule(pick=PICK, keep=st.sampled_from([1.0, 1.0, 0.5, 0.0]), tail=TOKENS)
    def commit(self, pick: int, keep: float, tail: list[int]) -> None:
        if held := self.turn(pick):
            self.rig.commit(held, keep, tail, b"+")

    @rule(pick=PICK)
    def renew(self, pick: int) -> None:
        if held := self.turn(pick):
            self.rig.renew(held)

    @rule(pick=PICK)
    def abandon(self, pick: int) -> None:
        if held := self.turn(pick):
            self.rig.abandon(held)

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0, 61.0, 700.0, 3700.0]))
    def pass_time(self, seconds: float) -> None:
        self.rig.pass_time(seconds)

    @rule()
    def sweep(self) -> None:
        self.rig.sweep()

    @rule()
    def flush(self) -> None:
        self.rig.flush()

    @rule()
    def crash(self) -> None:
        self.rig.crash()

    @rule(tenant=STRANGERS, pick=PICK)
    def look(self, tenant: str | None, pick: int) -> None:
        name = self.name(pick)
        self.rig.look(self.owner(tenant, name), name)

    @rule(tenant=TENANTS)
    def list_all(self, tenant: str) -> None:
        self.rig.list_all(tenant)

    @invariant()
    def agrees(self) -> None:
        self.rig.check()


TestContract = Contract.TestCase
TestContract.settings = settings(deadline=None, max_examples=80, stateful_step_count=60)


def play(rig: Rig, rng: Random, nonce: int) -> None:
    """One random call; mostly on contexts that are likely to be there, by their owners."""
    tenant = rng.choice(["a", "b", "c", "d"])
    name = f"ctx-{rng.randint(max(1, rig.names - rng.choice([20, 2000])), rig.names + 1)}"
    if name in rig.model.live and rng.random() < 0.95:
        tenant = rig.model.live[name].tenant
    held = rig.held[-rng.randint(1, min(rng.choice([3, 40]), len(rig.held)))] if rig.held else None
    ttl_s = rng.choice([1, 10, 60, 600, 3600])
    tokens = [rng.getrandbits(32) for _ in range(rng.randint(0, 20))]
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: rig.create(tenant, tokens, b"{}", ttl_s),
        "fork": lambda: rig.fork(tenant, name, rng.choice([None, ttl_s])),
        "patch": lambda: rig.patch(tenant, name, rng.choice([None, ttl_s]), None),
        "delete": lambda: rig.delete(tenant, name),
        "look": lambda: rig.look(tenant, name),
        "begin": lambda: rig.begin(
            tenant, name, rng.choice([None, None, 0, 1]), rng.choice([0.0, 5.0]), nonce
        ),
        "commit": lambda: held and rig.commit(held, rng.choice([1.0, 1.0, 0.4]), tokens, b"x"),
        "renew": lambda: held and rig.renew(held),
        "abandon": lambda: held and rig.abandon(held),
        "flush": rig.flush,
        "time": lambda: rig.pass_time(rng.choice([0.01, 0.1, 1.0, 12.0])),
        "sweep": lambda: rng.random() < 0.2 and rig.sweep(),
        "crash": lambda: rng.random() < 0.02 and rig.crash(),
    }
    calls[rng.choice(ACTIONS)]()


@pytest.mark.parametrize(
    "contexts", [2000, pytest.param(10_000, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_contexts_differ_in_nothing_and_leave_nothing(contexts: int) -> None:
    rng = Random(20_260_929)
    fates = [Fate.KEPT] * 297 + [Fate.REFUSED, Fate.CRASH_BEFORE, Fate.CRASH_AFTER]
    rig = Rig(lambda: rng.choice(fates), max_contexts=2000, max_tokens=60_000)
    calls = 0
    while rig.names < contexts:
        calls += 1
        play(rig, rng, calls)
        del rig.held[:-40]
        if calls % (contexts // 2) == 0:
            rig.check()
    rig.check()
    assert rig.crashes > 10

    rig.fate = lambda: Fate.KEPT
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while rig.model.live or rig.model.stones:
        rig.pass_time(3700.0)
        rig.sweep()
        rig.flush()
    assert len(rig.table.shelf) == 0 and rig.journal == {}
    assert rig.table.shelf.pool.segments == 0 and rig.table.shelf.pool.stored_bytes == 0
    assert len(rig.table.tombstones) == 0 and rig.table.turns.waiting == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak * 1.2
