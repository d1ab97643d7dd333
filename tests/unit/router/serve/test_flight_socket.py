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

from router.serve.flight_socket import FlightCaller, FlightServer


def backwards(message: bytes) -> bytes:
    if message == b"fail":
        raise ValueError("this message is none")
    return message[::-1]


@pytest.fixture(scope="module")
def server() -> FlightServer:
    """Its thread ends with the process."""
    return FlightServer(backwards)


@pytest.fixture
async def caller(server: FlightServer) -> AsyncIterator[FlightCaller]:
    caller = await FlightCaller.connect(server.address)
    yield caller
    caller.close()


async def test_calls_in_the_air_get_their_own_answers(caller: FlightCaller) -> None:
    calls = [bytes([number]) * 3 + b"!" for number in range(8)]

    answers = await asyncio.gather(*map(caller.call, calls))

    assert answers == [call[::-1] for call in calls]


def test_connects_from_the_event_loop_of_rays_actors(server: FlightServer) -> None:
    async def call() -> bytes:
        caller = await FlightCaller.connect(server.address)
        answer = await caller.call(b"ab")
        caller.close()
        return answer

    assert uvloop.run(call()) == b"ba"


async def test_nothing_of_that_address_is_told(server: FlightServer) -> None:
    with pytest.raises(OSError, match="refused"):
        await FlightCaller.connect(server.address + "0")


async def test_a_long_message_arrives_whole(caller: FlightCaller) -> None:
    message = os.urandom(1_000_000)

    assert await caller.call(message) == message[::-1]


async def test_the_answer_to_a_call_that_was_given_up_goes_to_nobody(
    caller: FlightCaller,
) -> None:
    given_up = asyncio.create_task(caller.call(b"one"))
    await asyncio.sleep(0)
    given_up.cancel()

    assert await caller.call(b"two") == b"owt"


async def test_a_message_that_cannot_be_answered_cuts_off_its_caller_only(
    server: FlightServer, caller: FlightCaller
) -> None:
    other = await FlightCaller.connect(server.address)
    before = server.failures

    with pytest.raises(ConnectionError):
        await other.call(b"fail")

    assert server.failures == before + 1
    assert await caller.call(b"ab") == b"ba"
    with pytest.raises(ConnectionError):
        await other.call(b"ab")


async def test_who_waits_when_the_connection_is_closed_is_told(server: FlightServer) -> None:
    caller = await FlightCaller.connect(server.address)
    waiting = asyncio.create_task(caller.call(b"ab"))
    await asyncio.sleep(0)

    caller.close()

    with pytest.raises(ConnectionError):
        await waiting


def test_a_length_beyond_reason_ends_the_connection(server: FlightServer) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(server.address)
        connection.sendall(struct.pack("<I", 2**32 - 1))
        assert connection.recv(1) == b""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_not_answered(server: FlightServer) -> None:
    call = (
        "import os, socket, struct, sys\n"
        "os.setuid(int(sys.argv[2]))\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.settimeout(5)\n"
        "connection.connect(sys.argv[1].replace('@', chr(0)))\n"
        "try:\n"
        "    connection.sendall(struct.pack('<I', 2) + b'ab')\n"
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
