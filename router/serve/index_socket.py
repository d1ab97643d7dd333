"""Calls between processes of one node without Ray: a Unix socket of the index's actor.

A call through Ray takes more of both processes' time than what it carries. The socket has no file,
so that it ends with its process, and serves none but the same user. A frame is a length (u32,
little-endian), and in calls an operation (u8), and a message; answers come in the calls' order.
"""

import asyncio
import logging
import os
import secrets
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import cast

_log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_CALL = struct.Struct("<IB")
_CREDENTIALS = struct.Struct("3i")
"""Of the process at the other end: its id, its user's, its group's."""
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_RECEIVE_BYTES = 64 * 1024
_SEND_TIMEOUT_S = 0.1
"""Who does not read its answers for so long is cut off: all others wait for it."""


class Operation(IntEnum):
    """What the actor can be asked by socket: what is called often. The rest goes through Ray."""

    EXCHANGE = 0
    APPLY = 1
    SNAPSHOT = 2


Answers = Mapping[int, Callable[[bytes], bytes]]


class _Line:
    """The server's end of one connection: what has been received of the next call."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_SEND_TIMEOUT_S)
        self.connection = connection
        self._received = bytearray()

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """The calls that are whole, after one read. Raises `ConnectionError` at the end."""
        chunk = self.connection.recv(_RECEIVE_BYTES)
        if not chunk:
            raise ConnectionResetError("a caller has gone")
        self._received += chunk
        while len(self._received) >= _CALL.size:
            length, operation = _CALL.unpack_from(self._received)
            if length > _MAX_MESSAGE_BYTES:
                raise ConnectionAbortedError(f"a message of {length} bytes")
            end = _CALL.size + length
            if len(self._received) < end:
                return
            message = bytes(self._received[_CALL.size : end])
            del self._received[:end]
            yield operation, message


class SocketServer:
    """Answers in one thread, one call at a time; ends with the process."""

    def __init__(self, answers: Answers) -> None:
        self.address = f"\0warmpath-{secrets.token_hex(16)}"
        self.failures = 0
        self._answers = answers
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="calls", daemon=True).start()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                else:
                    self._attend(key.data)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            _log.warning("a caller of the block index could not be let in: %s", error)
            return
        if _user_of(connection) == os.getuid():
            self._selector.register(connection, selectors.EVENT_READ, _Line(connection))
        else:
            connection.close()

    def _attend(self, line: _Line) -> None:
        """A call that cannot be answered ends its connection."""
        try:
            for operation, message in line.receive():
                line.connection.sendall(_framed(self._answers[operation](message)))
        except OSError as error:
            _log.debug("a caller of the block index is cut off: %s", error)
            self._hang_up(line)
        except Exception:
            self.failures += 1
            _log.exception("a call could not be answered; its caller is cut off")
            self._hang_up(line)

    def _hang_up(self, line: _Line) -> None:
        self._selector.unregister(line.connection)
        line.connection.close()


class SocketCaller(asyncio.BufferedProtocol):
    """A connection to a server of this node; owned by one event loop."""

    def __init__(self) -> None:
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._filled = 0
        self._unanswered: deque[asyncio.Future[bytes]] = deque()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: str) -> "SocketCaller":
        """Raises `OSError` where nothing of this address is on this node."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            # Event loops differ in what they make of an address without a file.
            connection.setblocking(False)
            connection.connect(address)
        except OSError:
            connection.close()
            raise
        loop = asyncio.get_running_loop()
        _, caller = await loop.create_unix_connection(cls, sock=connection)
        return caller

    async def call(self, operation: Operation, message: bytes) -> bytes:
        """The answer. Raises `ConnectionError` once the server is gone."""
        if self._transport is None:
            raise ConnectionResetError("the connection has ended")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._unanswered.append(answer)
        self._transport.write(_CALL.pack(len(message), operation) + message)
        return await answer

    def close(self) -> None:
        """Whoever still waits gets `ConnectionError`."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for answer in self._unanswered:
            if not answer.done():
                answer.set_exception(ConnectionResetError("the server is gone"))
        self._unanswered.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        start = 0
        while (end := self._frame_end(start)) is not None and end <= self._filled:
            self._answered(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        self._buffer[: self._filled - start] = self._buffer[start : self._filled]
        self._filled -= start
        if (end := self._frame_end(0)) is not None and end > len(self._buffer):
            self._make_room(end)

    def _frame_end(self, start: int) -> int | None:
        if self._filled - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        return start + _LENGTH.size + int(length)

    def _make_room(self, size: int) -> None:
        if size > _MAX_MESSAGE_BYTES:
            _log.error("the block index sends a message of %d bytes", size)
            self.close()
            return
        # The loop may hold a view of the old buffer, which could not grow then.
        self._buffer = self._buffer.ljust(size, b"\0")

    def _answered(self, message: bytes) -> None:
        answer = self._unanswered.popleft()
        if not answer.done():
            answer.set_result(message)


def _framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


def _user_of(connection: socket.socket) -> int:
    """As the kernel says."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return int(user)
