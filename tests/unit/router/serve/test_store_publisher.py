"""The index hears what a store has, in small parts, and all of it anew whenever it must."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from router.core.errors import IndexUnavailable
from router.core.types import StoreId
from router.serve.store_publisher import NewsSettings, StorePublisher
from router.serve.store_wire import StoredObject, StoreNews, decode_store_news
from router.serve.wire import MAX_BATCH_BLOCKS, Receipt, Verdict

STORE = StoreId("s1")
QUICK = NewsSettings(delay_s=0.0, renew_interval_s=0.005, retry_after_s=0.001)


def stored(number: int, blocks: int = 16) -> StoredObject:
    return StoredObject(number.to_bytes(8, "little"), bytes(8 * blocks))


class Index:
    """What an index would know; `fails` calls are lost before or after they are applied."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.known: dict[bytes, StoredObject] | None = None
        self.news: list[StoreNews] = []
        self.fails = 0
        self.is_forgotten = False

    async def report_stored(self, news: bytes) -> Receipt:
        await asyncio.sleep(0)
        message = decode_store_news(news)
        assert sum(len(s.hashes) // 8 for s in message.added + message.removed) <= MAX_BATCH_BLOCKS
        self.news.append(message)
        if self.fails % 2:
            self.fails -= 1
            raise IndexUnavailable("lost on its way")
        if self.known is None and not message.begins:
            return Receipt(self.incarnation, Verdict.WANTS_SNAPSHOT)
        self._apply(message)
        if self.fails:
            self.fails -= 1
            raise IndexUnavailable("the answer was lost")
        return Receipt(self.incarnation, Verdict.ACCEPTED)

    async def forget_store(self, store_id: StoreId) -> Receipt:
        self.is_forgotten = store_id == STORE
        return Receipt(self.incarnation, Verdict.ACCEPTED)

    def restart(self) -> None:
        self.incarnation += 1
        self.known = None

    def _apply(self, message: StoreNews) -> None:
        known = {} if message.begins or self.known is None else self.known
        known |= {item.key: item for item in message.added}
        for item in message.removed:
            known.pop(item.key, None)
        self.known = known


@asynccontextmanager
async def publishing(
    index: Index, contents: dict[bytes, StoredObject]
) -> AsyncIterator[StorePublisher]:
    publisher = StorePublisher(index, STORE, contents.values, QUICK)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def contents_of(count: int) -> dict[bytes, StoredObject]:
    return {stored(number).key: stored(number) for number in range(count)}


async def test_all_that_is_there_is_told_in_parts() -> None:
    index, contents = Index(), contents_of(200)
    async with publishing(index, contents):
        await until(lambda: index.known == contents)
    assert [news.begins for news in index.news[:3]] == [True, False, False]


async def test_changes_are_told_and_silence_renews() -> None:
    index, contents = Index(), contents_of(3)
    async with publishing(index, contents) as publisher:
        await until(lambda: index.known == contents)
        gone, come = contents.pop(stored(0).key), stored(9)
        contents[come.key] = come
        publisher.note([come], [gone])
        await until(lambda: index.known == contents)
        told = len(index.news)
        await until(lambda: len(index.news) > told + 2)
    assert index.news[-1] == StoreNews(STORE, [], [])


async def test_an_index_that_begins_anew_is_told_everything() -> None:
    index, contents = Index(), contents_of(100)
    async with publishing(index, contents):
        await until(lambda: index.known == contents)
        index.restart()
        await until(lambda: index.known == contents)
    assert index.incarnation == 2


async def test_an_index_that_has_forgotten_the_store_is_told_everything() -> None:
    index, contents = Index(), contents_of(5)
    async with publishing(index, contents):
        await until(lambda: index.known == contents)
        index.known = None
        await until(lambda: index.known == contents)


async def test_lost_calls_and_lost_answers_lose_nothing() -> None:
    index, contents = Index(), contents_of(150)
    async with publishing(index, contents) as publisher:
        for number in range(20):
            index.fails = 1 + number % 3
            come, gone = stored(1000 + number), stored(number)
            contents[come.key] = come
            del contents[gone.key]
            publisher.note([come], [gone])
            await until(lambda: index.fails == 0)
        await until(lambda: index.known == contents)
    assert publisher.failed_calls > 0


async def test_what_comes_and_goes_before_it_is_told_is_not_told() -> None:
    index, contents = Index(), contents_of(1)
    publisher = StorePublisher(index, STORE, contents.values, QUICK)
    task = asyncio.create_task(publisher.run())
    await until(lambda: index.known == contents)
    publisher.note([stored(5)], [])
    publisher.note([], [stored(5)])
    publisher.note([], [stored(0)])
    publisher.note([stored(0)], [])
    told = len(index.news)
    await until(lambda: len(index.news) > told)
    task.cancel()
    assert all(not news.added and not news.removed for news in index.news[told:])


async def test_a_good_bye_forgets_the_store() -> None:
    index = Index()
    await StorePublisher(index, STORE, list, QUICK).close()
    assert index.is_forgotten
