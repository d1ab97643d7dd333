"""The loops that put turns through an arm, against a client that answers by itself."""

import asyncio
from random import Random

from serve_app.bench.arms import Arm, Timed, arms, by_users, in_turns, on_time
from serve_app.bench.chat_client import Answered
from serve_app.bench.conversations import Author, Conversation, Shape, Turn, taking_turns

SHAPE = Shape(
    conversations=5, turns=3, systems=1, system_tokens=4, question_tokens=2, answer_tokens=2
)


class Echo:
    """Answers after a few turns of the loop; notes sessions and how many are in flight."""

    def __init__(self) -> None:
        self.sessions: list[str | None] = []
        self.in_flight = self.most_in_flight = 0

    async def ask(self, turn: Turn, session_id: str | None) -> Answered:
        self.sessions.append(session_id)
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


async def test_users_keep_their_number_in_flight_and_each_talk_in_order() -> None:
    echo = Echo()
    answers = await by_users(echo, talks(), 2, arm("kv_aware"))
    assert echo.most_in_flight == 2
    for talk in talks():
        numbers = [a.turn.number for a in answers if a.turn.conversation.name == talk.name]
        assert numbers == [0, 1, 2]


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
