"""The loops that put turns through an arm, against a client that answers by itself."""

import asyncio
from random import Random

from serve_app.bench.arms import Arm, Timed, arms, in_order, in_turns, on_time
from serve_app.bench.chat_client import Answered
from serve_app.bench.conversations import Author, Conversation, Shape, Turn, taking_turns

SHAPE = Shape(
    conversations=5, turns=3, systems=1, system_tokens=4, question_tokens=2, answer_tokens=2
)


class Echo:
    """Answers after a few turns of the loop; notes sessions and how many are in flight."""

    def __init__(self) -> None:
        self.sessions: list[str | None] = []
        self.turns: list[Turn] = []
        self.in_flight = self.most_in_flight = 0

    async def ask(self, turn: Turn, session_id: str | None) -> Answered:
        self.sessions.append(session_id)
        self.turns.append(turn)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        sent_s = asyncio.get_running_loop().time()
        for _ in range(3):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return Answered(turn, sent_s, 200)


def talks() -> list[Conversation]:
    author = Author(Random(1), lambda text: len(text.split()))
    return [author.conversation(f"talk-{n}", n % 2, "be kind", SHAPE) for n in range(5)]


def arm(name: str) -> Arm:
    (found,) = (each for each in arms({}, 7) if each.name == name)
    return found


async def test_an_order_is_kept_with_as_many_in_flight_as_may_be() -> None:
    echo = Echo()
    turns = list(taking_turns(talks(), 4, Random(1)))
    answers = await in_order(echo, turns, 3, arm("kv_aware"))
    assert [answer.turn for answer in answers] == echo.turns == turns
    assert echo.most_in_flight == 3


async def test_a_turn_waits_for_the_answer_to_the_one_before() -> None:
    echo = Echo()
    await in_order(echo, [Turn(talks()[0], number) for number in range(3)], 3, arm("kv_aware"))
    assert echo.most_in_flight == 1


async def test_one_at_a_time_is_one_at_a_time() -> None:
    echo = Echo()
    answers = await in_turns(echo, taking_turns(talks(), 4, Random(1)), arm("round_robin"))
    assert (len(answers), echo.most_in_flight) == (15, 1)


async def test_sticky_arms_name_the_conversation_or_its_system_prompt() -> None:
    sessions = {}
    for name in ("kv_aware", "sticky_conversation", "system_hash"):
        echo = Echo()
        await in_turns(echo, [Turn(talks()[3], 0)], arm(name))
        (sessions[name],) = echo.sessions
    assert sessions == {
        "kv_aware": None,
        "sticky_conversation": "talk-3",
        "system_hash": "7-1",
    }


async def test_an_open_loop_waits_for_no_answer_and_says_how_late_it_was() -> None:
    echo = Echo()
    schedule = [Timed(0.0, Turn(talk, 0)) for talk in talks()]
    answers, late_s = await on_time(echo, schedule, arm("kv_aware"))
    assert [answer.turn for answer in answers] == [timed.turn for timed in schedule]
    assert echo.most_in_flight == 5
    assert late_s < 5
