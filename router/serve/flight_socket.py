"""Flights between processes of one node without Ray: a Unix socket of the actor's.

A call through Ray takes more of both processes' time than deciding on all that one flight carries.
The socket has no file, so that it ends with its process, and serves none but the same user. A frame
is a length (u32, little-endian) and a message; answers come in the order of the calls.
"""

import asyncio
import logging
import os
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
"""Of the process at the other end: its id, its user's, its group's."""
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class FlightServer:
    """Answers in a thread of its own, one message at a time; ends with the process."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.address = f"\0warmpath-{secrets.token_hex(16)}"
        self.failures = 0
        self._answer = answer
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen()
        threading.Thread(target=self._run, name="flights", daemon=True).start()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._attend, sock=self._socket)
        async with server:
            await server.serve_forever()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One caller, until it goes; a message that cannot be answered ends the connection."""
        try:
            if _user_of(writer) == os.getuid():
                await self._answer_each(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            _log.debug("a caller of the block index has gone")
        except Exception:
            self.failures += 1
            _log.exception("a flight could not be answered; its caller is cut off")
        finally:
            writer.close()

    async def _answer_each(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            writer.write(_framed(self._answer(await _next_message(reader))))
            await writer.drain()


class FlightCaller:
    """A connection to a server of this node; owned by one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._unanswered: deque[asyncio.Future[bytes]] = deque()
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def connect(cls, address: str) -> "FlightCaller":
        """Raises `OSError` where nothing of this address is on this node."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            # Event loops differ in what they make of an address without a file.
            connection.setblocking(False)
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        return cls(*await asyncio.open_unix_connection(sock=connection))

    async def call(self, message: bytes) -> bytes:
        """The answer. Raises `ConnectionError` once the server is gone."""
        if self._reading.done():
            raise ConnectionResetError("the connection has ended")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._unanswered.append(answer)
        self._writer.write(_framed(message))
        return await answer

    def close(self) -> None:
        """Whoever still waits gets `ConnectionError`."""
        self._reading.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    message = await _next_message(reader)
                    answer = self._unanswered.popleft()
                    if not answer.done():
                        answer.set_result(message)
        finally:
            self._writer.close()
            for answer in self._unanswered:
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the server is gone"))


def _framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


async def _next_message(reader: asyncio.StreamReader) -> bytes:
    """Raises `ConnectionError` where the other end does not keep to the protocol."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _MAX_MESSAGE_BYTES:
        raise ConnectionAbortedError(f"a message of {length} bytes")
    return await reader.readexactly(length)


def _user_of(writer: asyncio.StreamWriter) -> int:
    """As the kernel says."""
    connection: socket.socket = writer.get_extra_info("socket")
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return int(user)
