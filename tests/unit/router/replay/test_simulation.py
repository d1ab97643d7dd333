"""A replay drives the product's own parts: reuse, order, failures, scaling, several callers."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from replicas.sim.latency import LinearLatency
from router.core.errors import ConfigurationError
from router.core.types import ReplicaId
from router.policies.registry import POLICIES, PolicySpec
from router.replay.figures import Figures, Limits, figures
from router.replay.generated import sessions
from router.replay.plan import (
    Failure,
    FleetPlan,
    ReplayPlan,
    Scaling,
    parse_failure,
    parse_policy,
    parse_scaling,
)
from router.replay.simulation import Replayed, Simulation
from router.replay.trace import Chainer, TraceRequest, TraceRow

FLEET = FleetPlan(replicas=3, blocks=400, block_size=64)


def requests(*rows: TraceRow) -> list[TraceRequest]:
    return list(Chainer(64, 64).requests(rows))


def talks(count: int = 20, seed: int = 1) -> list[TraceRequest]:
    return requests(*sessions(Random(seed), 4.0, sessions=count, turns=4, groups=3))


def replay(asked: Sequence[TraceRequest], policy: str = "kv_aware", **changes: object) -> Replayed:
    return Simulation(ReplayPlan(PolicySpec(policy), FLEET, **changes), asked).run()


def found(replayed: Replayed) -> Figures:
    return figures(replayed, Limits())


def one_after_the_other(*prompts: range) -> list[TraceRequest]:
    rows = [
        TraceRow(10.0 * number, 64 * len(prompt), 4, list(prompt))
        for number, prompt in enumerate(prompts)
    ]
    return requests(*rows)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_every_request(policy: str) -> None:
    outcomes = replay(talks(), policy).outcomes
    assert outcomes.is_completed.all()
    assert (outcomes.ttft_s > 0).all()
    assert (outcomes.e2e_s >= outcomes.ttft_s).all()
    assert (outcomes.cached_tokens < outcomes.prompt_tokens).all()


def test_a_repeated_prompt_finds_its_blocks_but_for_the_last_token() -> None:
    outcomes = replay(one_after_the_other(range(10), range(10), range(12))).outcomes
    assert outcomes.cached_tokens.tolist() == [0, 9 * 64, 10 * 64]


def test_an_idle_replica_answers_after_a_prefill_and_its_decodes() -> None:
    """Dynamo's formulas: a first token after the prefill of 640 tokens, then three passes."""
    outcomes = replay(one_after_the_other(range(10))).outcomes
    assert 1e3 * outcomes.ttft_s[0] == pytest.approx(
        4.209989e-07 * 640**2 + 1.518344e-02 * 640 + 16.50142, rel=1e-6
    )
    decode_ms = 1e3 * (outcomes.e2e_s[0] - outcomes.ttft_s[0])
    assert decode_ms == pytest.approx(3 * 7.0, rel=0.1)


def test_who_comes_while_a_replica_decodes_is_taken_in_at_the_end_of_that_pass() -> None:
    """From 0.1 s on, each pass of the long answer takes 10 ms; nothing else would happen."""
    linear = LinearLatency(prefill_ms_per_token=0, prefill_base_ms=100, decode_ms_per_token=10)
    fleet = FleetPlan(replicas=1, blocks=400, block_size=64, latency=linear)
    rows = [TraceRow(0.0, 640, 60, [1]), TraceRow(0.234, 640, 2, [2])]
    plan = ReplayPlan(PolicySpec("round_robin"), fleet)
    replayed = Simulation(plan, requests(*rows)).run()
    assert replayed.outcomes.ttft_s.tolist() == pytest.approx([0.1, 0.006 + 0.11])
    assert replayed.outcomes.e2e_s.tolist() == pytest.approx([0.1 + 0.59 + 0.1, 0.126])
    assert replayed.work[ReplicaId("replica-0")].busy_s == pytest.approx(0.79)


def test_equal_plans_have_equal_outcomes() -> None:
    first, again = replay(talks(), ingresses=3), replay(talks(), ingresses=3)
    np.testing.assert_array_equal(first.outcomes.e2e_s, again.outcomes.e2e_s)


def test_looking_at_caches_reuses_more_than_turns_do() -> None:
    asked = talks(60)
    assert found(replay(asked)).all.reuse > 1.1 * found(replay(asked, "round_robin")).all.reuse


def test_round_robin_gives_each_replica_its_share() -> None:
    work = replay(talks(), "round_robin").work.values()
    assert max(each.requests for each in work) - min(each.requests for each in work) <= 1


def test_late_events_are_made_up_for_by_what_was_booked() -> None:
    """The second request comes while the index has not heard of the first one's blocks."""
    rows = [TraceRow(at_s, 64 * 20, 4, list(range(20))) for at_s in (0.0, 0.05, 5.0)]
    late = replay(requests(*rows), event_delay_s=20.0).outcomes
    assert late.cached_tokens[1] > 0
    prompt = replay(requests(*rows)).outcomes
    assert prompt.cached_tokens[2] > 0


def test_separate_ingresses_share_what_replicas_say_and_not_what_they_were_sent() -> None:
    """One prompt four times; by events all know where it is, by their own memory each its own."""
    asked = one_after_the_other(*[range(100)] * 4)
    told = {
        policy: [
            replay(asked, policy, ingresses=4, is_shared=is_shared).outcomes.cached_tokens
            for is_shared in (True, False)
        ]
        for policy in ("kv_aware", "approximate")
    }
    cold = {policy: [int((cached == 0).sum()) for cached in both] for policy, both in told.items()}
    assert cold["kv_aware"] == [1, 1]
    assert cold["approximate"][0] == 1 < cold["approximate"][1]


def test_several_ingresses_share_what_is_known() -> None:
    asked = talks(60, seed=2)
    single, several = found(replay(asked)).all, found(replay(asked, ingresses=4)).all
    assert several.reuse > single.reuse - 0.05
    assert several.mean_ttft_ms > single.mean_ttft_ms - 2


def test_a_call_to_the_index_takes_its_time() -> None:
    one = one_after_the_other(range(10))
    alone = replay(one).outcomes.ttft_s[0]
    assert replay(one, ingresses=2, call_s=0.5).outcomes.ttft_s[0] == pytest.approx(alone + 0.5)


def test_a_dead_replica_fails_what_it_was_answering_and_the_rest_is_sent_again() -> None:
    """At 0.3 s everyone decodes a long answer, and the last one's prefill has just begun."""
    rows = [TraceRow(0.0, 640, 400, [number]) for number in range(3)]
    rows.append(TraceRow(0.299, 6400, 5, [9]))
    plan = ReplayPlan(PolicySpec("round_robin"), FLEET, failures=(Failure(0.3, 0, down_s=1.0),))
    outcomes = Simulation(plan, requests(*rows)).run().outcomes
    assert outcomes.is_completed.tolist() == [False, True, True, True]
    assert outcomes.attempts.tolist() == [1, 1, 1, 2]
    assert figures(Simulation(plan, requests(*rows)).run(), Limits()).all.error_rate == 0.25


def test_a_restarted_replica_comes_back_empty_and_is_used_again() -> None:
    prompts = [range(10)] * 4
    outcomes = replay(
        one_after_the_other(*prompts),
        failures=tuple(Failure(15.0, number, down_s=2.0) for number in range(3)),
    ).outcomes
    assert outcomes.cached_tokens.tolist() == [0, 9 * 64, 0, 9 * 64]


def test_requests_wait_while_nobody_is_there() -> None:
    asked = one_after_the_other(range(10), range(10))
    outcomes = replay(
        asked, failures=tuple(Failure(5.0, number, down_s=20.0) for number in range(3))
    ).outcomes
    assert outcomes.is_completed.all()
    assert outcomes.ttft_s[1] == pytest.approx(15.0, abs=0.2)


def test_cleared_caches_hold_nothing() -> None:
    outcomes = replay(
        one_after_the_other(range(10), range(10), range(10)), failures=(Failure(15.0, None),)
    ).outcomes
    assert outcomes.cached_tokens.tolist() == [0, 9 * 64, 0]


def test_replicas_that_come_get_requests_and_those_that_leave_finish_theirs() -> None:
    asked = talks(60)
    replayed = replay(asked, "least_loaded", scalings=(Scaling(2.0, 2), Scaling(10.0, -4)))
    assert replayed.outcomes.is_completed.all()
    assert len(replayed.work) == 5
    assert all(work.requests for work in replayed.work.values())


def test_a_prompt_that_fits_nowhere_fails_and_nothing_else_does() -> None:
    rows = [TraceRow(0.0, 64 * 500, 4, [1]), TraceRow(1.0, 640, 4, [2])]
    assert replay(requests(*rows)).outcomes.is_completed.tolist() == [False, True]


def test_progress_is_told_of_every_end() -> None:
    ended: list[int] = []
    asked = talks()
    Simulation(ReplayPlan(fleet=FLEET), asked, ended.append).run()
    assert ended == list(range(1, len(asked) + 1))


def test_an_unknown_policy_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigurationError, match="policy"):
        Simulation(ReplayPlan(PolicySpec("no_such")), [])


def test_an_empty_workload_has_an_end() -> None:
    assert found(replay([])).all.requests == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3@60", Failure(60.0, 3, 10.0)),
        ("0@1.5+20", Failure(1.5, 0, 20.0)),
        ("clear@60", Failure(60.0, None, 10.0)),
    ],
)
def test_failures_are_written_briefly(text: str, expected: Failure) -> None:
    assert parse_failure(text) == expected


def test_scalings_are_written_briefly() -> None:
    assert parse_scaling("+2@100") == Scaling(100.0, 2)
    assert parse_scaling("-1@200.5") == Scaling(200.5, -1)


@pytest.mark.parametrize("text", ["", "x@1", "3@", "3@-1", "@5"])
def test_what_is_no_failure_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="fail"):
        parse_failure(text)


def test_a_policy_may_bring_parameters() -> None:
    assert parse_policy("round_robin") == PolicySpec("round_robin")
    spec = parse_policy('kv_aware{"queue_weight": 3}')
    assert spec == PolicySpec("kv_aware", '{"queue_weight": 3}')
