"""The context manager in a real cluster: what is committed outlives whatever dies."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import ray
from ray.actor import ActorHandle

from router.contexts.messages import (
    ContextView,
    Kind,
    NewContext,
    OpenTurn,
    TurnResult,
)
from router.contexts.settings import ContextSettings
from router.core.errors import (
    ContextBusy,
    ContextExpired,
    ContextNotFound,
    ContextsUnavailable,
    TurnConflict,
)
from router.core.types import ContextId, Tenant
from router.serve.actor_family import NAMESPACE, named
from router.serve.context_actor import ContextManager
from router.serve.context_client import ContextClient, ContextLinkSettings
from router.serve.context_connection import NamedContexts
from router.serve.context_generations import (
    context_generations,
    find_contexts,
    open_contexts,
    remove_contexts,
)
from tests.contract.redis_server import BINARY, RedisServer

pytestmark = pytest.mark.ray

ALICE, BOB = Tenant("alice"), Tenant("bob")
PATIENT = ContextLinkSettings(call_limit_s=60.0, commit_limit_s=60.0)
"""A test machine may be busy, and an actor takes its time to start again."""


def ids(*numbers: int) -> bytes:
    return np.array(numbers, dtype="<u4").tobytes()


@dataclass
class Desk:
    """One ingress's client, and the application's manager behind it."""

    settings: ContextSettings
    client: ContextClient

    async def create(self, tokens: bytes = ids(1, 2, 3), ttl_s: int = 3600) -> ContextView:
        new = NewContext("model", Kind.PROMPT, tokens, b"", ttl_s)
        return await self.client.create(ALICE, new)

    async def begin(self, context_id: ContextId, **options: object) -> OpenTurn:
        return await self.client.begin_turn(ALICE, context_id, "model", Kind.PROMPT, **options)  # type: ignore[arg-type]

    async def turn(self, context_id: ContextId, *tail: int) -> ContextView:
        turn = await self.begin(context_id)
        return await self.client.commit(turn.ticket, TurnResult(ids(*tail)))

    async def history(self, context_id: ContextId) -> bytes:
        turn = await self.begin(context_id, wait_s=15.0)
        self.client.abandon(turn.ticket)
        return turn.tokens

    def actor(self) -> ActorHandle:
        actor = find_contexts(self.settings.application)
        assert actor is not None
        return actor

    async def stats(self) -> dict[str, int]:
        stats: dict[str, int] = msgspec.msgpack.decode(await self.actor().stats.remote())
        return stats

    async def kill(self) -> int:
        """As the kernel would, at once; one that is on its way back is waited for."""
        for _ in range(200):
            if (pid := await self._pid()) is not None:
                os.kill(pid, signal.SIGKILL)
                return pid
            await asyncio.sleep(0.05)
        raise AssertionError("the manager did not come back")

    async def _pid(self) -> int | None:
        try:
            return int(await self.actor().__ray_call__.remote(lambda actor: os.getpid()))
        except ray.exceptions.ActorUnavailableError:
            return None


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="wp-ctx-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def desk(
    ray_cluster: None, folder: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Desk]:
    name = f"app-{request.node.name}"
    settings = ContextSettings(
        name, str(folder / "state" / "contexts.sqlite"), lease_s=2.0, sweep_interval_s=0.05
    )
    desk = Desk(settings, ContextClient(NamedContexts(settings), PATIENT))
    yield desk
    await desk.client.close()
    remove_contexts(name)


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 - it comes true in another process
            await asyncio.sleep(0.02)


async def test_a_turn_continues_what_was_committed(desk: Desk) -> None:
    created = await desk.create(ids(1, 2, 3))
    after = await desk.turn(created.id, 4, 5)

    assert (created.turns, after.turns, after.tokens) == (0, 1, 5)
    assert await desk.history(created.id) == ids(1, 2, 3, 4, 5)
    assert created.id.startswith("ctx-") and len(created.id) >= 4 + 22


async def test_a_killed_manager_comes_back_with_every_committed_turn(desk: Desk) -> None:
    contexts = [(await desk.create(ids(n))).id for n in range(20)]
    for context_id in contexts:
        await desk.turn(context_id, 7)
    await desk.kill()

    histories = [await desk.history(context_id) for context_id in contexts]

    assert histories == [ids(n, 7) for n in range(20)]


async def test_a_turn_under_way_outlives_the_manager(desk: Desk) -> None:
    """Its client notices nothing, and nobody else gets in between."""
    context_id = (await desk.create()).id
    turn = await desk.begin(context_id)
    await until(lambda: _is_written(desk))
    await desk.kill()

    with pytest.raises(ContextBusy):
        await desk.begin(context_id)
    view = await desk.client.commit(turn.ticket, TurnResult(ids(4)))

    assert view.turns == 1
    assert await desk.history(context_id) == ids(1, 2, 3, 4)


async def _is_written(desk: Desk) -> bool:
    """The touched row of a turn's beginning follows with the next sweep."""
    return (await desk.stats())["writes"] >= 2


async def test_killed_during_commits_it_has_what_was_confirmed_and_nothing_else(
    desk: Desk,
) -> None:
    """Eight conversations commit turn after turn while the manager is killed three times."""
    contexts = [(await desk.create(ids(n))).id for n in range(8)]
    confirmed = dict.fromkeys(contexts, 0)
    is_over = asyncio.Event()

    async def converse(context_id: ContextId) -> None:
        while not is_over.is_set():
            view = await desk.turn(context_id, confirmed[context_id] + 100)
            confirmed[context_id] += 1
            assert view.turns == confirmed[context_id], "a turn was lost or counted twice"

    talks = [asyncio.create_task(converse(context_id)) for context_id in contexts]
    for turns in (2, 4, 6):
        await until(partial(_all_beyond, confirmed, turns), limit_s=60)
        await desk.kill()
    await until(partial(_all_beyond, confirmed, 8), limit_s=60)
    is_over.set()
    await asyncio.gather(*talks)

    for number, context_id in enumerate(contexts):
        tail = range(100, 100 + confirmed[context_id])
        assert await desk.history(context_id) == ids(number, *tail)


async def _all_beyond(confirmed: dict[ContextId, int], turns: int) -> bool:
    return min(confirmed.values()) > turns


async def test_a_commit_whose_answer_was_lost_counts_once(desk: Desk) -> None:
    context_id = (await desk.create()).id
    turn = await desk.begin(context_id)
    first = await desk.client.commit(turn.ticket, TurnResult(ids(4)))
    await desk.kill()

    again = await desk.client.commit(turn.ticket, TurnResult(ids(4)))

    assert again.turns == first.turns == 1
    assert await desk.history(context_id) == ids(1, 2, 3, 4)


async def test_a_removed_application_finds_its_contexts_again(desk: Desk) -> None:
    """After the command that stops the manager, which outlives its application."""
    context_id = (await desk.create()).id
    await desk.turn(context_id, 4)
    command = [sys.executable, "-m", "serve_app.cli", "contexts", "stop", desk.settings.application]
    command += ["--address", ray.get_runtime_context().gcs_address]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": 1 context managers stopped\n")

    assert await desk.history(context_id) == ids(1, 2, 3, 4)


async def test_a_turn_whose_ingress_died_leaves_no_trace_and_frees_the_context(desk: Desk) -> None:
    context_id = (await desk.create()).id
    lost = ContextClient(NamedContexts(desk.settings), PATIENT)
    turn = await lost.begin_turn(ALICE, context_id, "model", Kind.PROMPT)
    await lost.close()
    with pytest.raises(ContextBusy):
        await desk.begin(context_id)

    assert (await desk.begin(context_id, wait_s=10.0)).tokens == ids(1, 2, 3)
    with pytest.raises(TurnConflict):
        await desk.client.commit(turn.ticket, TurnResult(ids(9)))


async def test_a_long_turn_keeps_its_lease(desk: Desk) -> None:
    context_id = (await desk.create()).id
    turn = await desk.begin(context_id)
    await asyncio.sleep(2 * desk.settings.lease_s)

    assert (await desk.client.commit(turn.ticket, TurnResult(ids(4)))).turns == 1


async def test_two_clients_race_and_one_waits(desk: Desk) -> None:
    context_id = (await desk.create()).id
    first = await desk.begin(context_id)
    second = asyncio.create_task(desk.begin(context_id, expected_turns=1, wait_s=10.0))
    await until(lambda: _waits(desk))
    await desk.client.commit(first.ticket, TurnResult(ids(4)))

    assert (await second).tokens == ids(1, 2, 3, 4)


async def _waits(desk: Desk) -> bool:
    return (await desk.stats())["waiting"] == 1


async def test_a_wait_that_is_cancelled_leaves_the_queue(desk: Desk) -> None:
    context_id = (await desk.create()).id
    await desk.begin(context_id)
    waiting = asyncio.create_task(desk.begin(context_id, wait_s=10.0))
    await until(lambda: _waits(desk))
    waiting.cancel()

    async def is_empty() -> bool:
        return (await desk.stats())["waiting"] == 0

    await until(is_empty)


async def test_it_expires_by_the_timer_and_says_so_to_its_owner_after_a_restart(
    desk: Desk,
) -> None:
    context_id = (await desk.create(ttl_s=1)).id

    async def is_removed() -> bool:
        return (await desk.stats())["tombstones"] == 1

    await until(is_removed)
    for _ in range(2):
        with pytest.raises(ContextExpired):
            await desk.client.get(ALICE, context_id)
        with pytest.raises(ContextNotFound):
            await desk.client.get(BOB, context_id)
        await desk.kill()


async def test_strangers_learn_nothing(desk: Desk) -> None:
    context_id = (await desk.create()).id
    client, unknown = desk.client, ContextId("ctx-unknown")
    before = await client.get(ALICE, context_id)
    for stolen in (context_id, unknown):
        calls = (
            client.get(BOB, stolen),
            client.patch(BOB, stolen, 5, None),
            client.fork(BOB, stolen, None, None),
            client.delete(BOB, stolen),
            client.begin_turn(BOB, stolen, "model", Kind.PROMPT),
            client.page(BOB, 5, stolen),
        )
        for call in calls:
            with pytest.raises(ContextNotFound, match="no such context"):
                await call

    assert (await client.page(BOB, 5, None)).views == []
    assert await client.get(ALICE, context_id) == before


class OlderProtocol(ContextManager):
    """The same manager as code of another protocol sees it."""

    async def hello(self, protocol: int) -> tuple[int, str]:
        return protocol - 1, ""


async def test_another_protocol_takes_over_with_turns_under_way(desk: Desk) -> None:
    name = desk.settings.application
    old = (
        ray.remote(OlderProtocol)
        .options(name=f"contexts/{name}/1", namespace=NAMESPACE, lifetime="detached", num_cpus=0)
        .remote(desk.settings.packed())
    )
    client = ContextClient(FixedContexts(old), PATIENT)
    view = await client.create(ALICE, NewContext("model", Kind.PROMPT, ids(1), b"", 3600))
    turn = await client.begin_turn(ALICE, view.id, "model", Kind.PROMPT)

    await asyncio.to_thread(open_contexts, desk.settings)

    assert context_generations(name) == [1, 2]
    assert (await desk.client.commit(turn.ticket, TurnResult(ids(2)))).turns == 1
    assert (await client.get(ALICE, view.id)).turns == 1, "the old one sends its callers on"
    await client.close()

    async def is_stopped() -> bool:
        return named(f"contexts/{name}/1") is None

    await until(is_stopped, limit_s=20)


class FixedContexts(NamedContexts):
    """Starts out with an actor that would be succeeded if it were looked up."""

    def __init__(self, actor: ActorHandle) -> None:
        super().__init__(ContextSettings("unused"))
        self._actor = actor


async def test_other_settings_keep_contexts_and_turns(desk: Desk) -> None:
    context_id = (await desk.create()).id
    turn = await desk.begin(context_id)
    other = replace(desk.settings, max_contexts_per_tenant=7)

    await asyncio.to_thread(open_contexts, other)

    assert (await desk.client.commit(turn.ticket, TurnResult(ids(4)))).turns == 1
    assert context_generations(desk.settings.application) == [1]


async def test_a_damaged_journal_is_refused_and_read_once_it_is_mended(
    desk: Desk, folder: Path
) -> None:
    context_id = (await desk.create()).id
    remove_contexts(desk.settings.application)
    journal = folder / "state" / "contexts.sqlite"
    with swapped(journal, b"no journal" * 1000):
        hasty = ContextClient(NamedContexts(desk.settings), ContextLinkSettings(3.0, 3.0))
        with pytest.raises(ContextsUnavailable):
            await hasty.get(ALICE, context_id)
        await hasty.close()
        problem = await NamedContexts(desk.settings).problem()
        remove_contexts(desk.settings.application)

    assert problem is not None and "put back a copy" in problem
    assert (await desk.client.get(ALICE, context_id)).tokens == 3


@contextmanager
def swapped(path: Path, content: bytes) -> Iterator[None]:
    """Another content while it lasts; it must still be the same then."""
    whole = {part: part.read_bytes() for part in path.parent.iterdir()}
    for part in whole:
        part.unlink()
    path.write_bytes(content)
    yield
    assert path.read_bytes() == content
    for part in path.parent.iterdir():
        part.unlink()
    for part, former in whole.items():
        part.write_bytes(former)


@pytest.mark.skipif(BINARY is None, reason="there is no redis-server on this machine")
async def test_redis_may_die_and_come_back(ray_cluster: None, folder: Path) -> None:
    server = RedisServer(folder)
    server.start()
    settings = ContextSettings("app-redis", server.url, lease_s=10.0, sweep_interval_s=0.05)
    desk = Desk(settings, ContextClient(NamedContexts(settings), PATIENT))
    try:
        context_id = (await desk.create()).id
        await desk.turn(context_id, 4)
        turn = await desk.begin(context_id)
        server.kill()
        commit = asyncio.create_task(desk.client.commit(turn.ticket, TurnResult(ids(5))))
        await asyncio.sleep(0.5)
        assert not commit.done(), "what is not durable is not confirmed"
        server.start()

        assert (await commit).turns == 2
        server.kill()
        await desk.kill()
        server.start()
        assert await desk.history(context_id) == ids(1, 2, 3, 4, 5)
    finally:
        await desk.client.close()
        remove_contexts("app-redis")
        server.kill()
