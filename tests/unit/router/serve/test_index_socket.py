"""Both ends of the socket in one process; with the actor it is in tests/serve."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import uvloop

from router.serve.index_socket import Operation, SocketCaller, SocketServer


def backwards(message: bytes) -> bytes:
    if message == b"fail":
        raise ValueError("this message is none")
    return message[::-1]


@pytest.fixture(scope="module")
def server() -> SocketServer:
    """Its thread ends with the process."""
    return SocketServer({Operation.APPLY: backwards})


@pytest.fixture
async def caller(server: SocketServer) -> AsyncIterator[SocketCaller]:
    caller = await SocketCaller.connect(server.address)
    yield caller
    caller.close()


async def test_calls_in_the_air_get_their_own_answers(caller: SocketCaller) -> None:
    calls = [bytes([number]) * 3 + b"!" for number in range(8)]

    answers = await asyncio.gather(*(caller.call(Operation.APPLY, call) for call in calls))

    assert answers == [call[::-1] for call in calls]


def test_connects_from_the_event_loop_of_rays_actors(server: SocketServer) -> None:
    async def call() -> bytes:
        caller = await SocketCaller.connect(server.address)
        answer = await caller.call(Operation.APPLY, b"ab")
        caller.close()
        return answer

    assert uvloop.run(call()) == b"ba"


async def test_nothing_of_that_address_is_told(server: SocketServer) -> None:
    with pytest.raises(OSError, match="refused"):
        await SocketCaller.connect(server.address + "0")


async def test_a_long_message_arrives_whole(caller: SocketCaller) -> None:
    message = os.urandom(1_000_000)

    assert await caller.call(Operation.APPLY, message) == message[::-1]


async def test_the_answer_to_a_call_that_was_given_up_goes_to_nobody(
    caller: SocketCaller,
) -> None:
    given_up = asyncio.create_task(caller.call(Operation.APPLY, b"one"))
    await asyncio.sleep(0)
    given_up.cancel()

    assert await caller.call(Operation.APPLY, b"two") == b"owt"


async def test_an_answer_longer_than_any_before_arrives_whole_between_short_ones(
    caller: SocketCaller,
) -> None:
    calls = [b"ab", os.urandom(300_000), b"cd", os.urandom(70_000), b"ef"]

    answers = await asyncio.gather(*(caller.call(Operation.APPLY, call) for call in calls))

    assert answers == [call[::-1] for call in calls]


async def test_who_does_not_read_its_answers_holds_nobody_up_for_long(
    server: SocketServer, caller: SocketCaller
) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(server.address)
        deaf.settimeout(5)
        call = struct.pack("<IB", 1_000_000, Operation.APPLY) + bytes(1_000_000)
        with pytest.raises(ConnectionError):
            for _ in range(3):
                deaf.sendall(call)
    assert await asyncio.wait_for(caller.call(Operation.APPLY, b"ab"), timeout=5) == b"ba"


async def test_a_message_that_cannot_be_answered_cuts_off_its_caller_only(
    server: SocketServer, caller: SocketCaller
) -> None:
    other = await SocketCaller.connect(server.address)
    before = server.failures

    with pytest.raises(ConnectionError):
        await other.call(Operation.APPLY, b"fail")

    assert server.failures == before + 1
    assert await caller.call(Operation.APPLY, b"ab") == b"ba"
    with pytest.raises(ConnectionError):
        await other.call(Operation.APPLY, b"ab")


async def test_who_waits_when_the_connection_is_closed_is_told(server: SocketServer) -> None:
    caller = await SocketCaller.connect(server.address)
    waiting = asyncio.create_task(caller.call(Operation.APPLY, b"ab"))
    await asyncio.sleep(0)

    caller.close()

    with pytest.raises(ConnectionError):
        await waiting


def test_a_length_beyond_reason_ends_the_connection(server: SocketServer) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(server.address)
        connection.sendall(struct.pack("<IB", 2**32 - 1, Operation.APPLY))
        assert connection.recv(1) == b""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_not_answered(server: SocketServer) -> None:
    call = (
        "import os, socket, struct, sys\n"
        "os.setuid(int(sys.argv[2]))\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.settimeout(5)\n"
        "connection.connect(sys.argv[1].replace('@', chr(0)))\n"
        "try:\n"
        "    connection.sendall(struct.pack('<IB', 2, 1) + b'ab')\n"
        "    print(connection.recv(6))\n"
        "except ConnectionError:\n"
        "    print('cut off')\n"
    )
    address = server.address.replace("\0", "@")

    def answer_to(user: int) -> str:
        command = [sys.executable, "-Ic", call, address, str(user)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    assert answer_to(os.getuid()) == str(struct.pack("<I", 2) + b"ba")
    assert answer_to(65_534) in ("cut off", "b''")
