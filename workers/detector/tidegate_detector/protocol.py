"""The detector protocol, version 2: framing, and the words that detectors share.

A message is two big-endian 32-bit lengths, a JSON object of the first length, and a payload of the second. `server` speaks it.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any, NamedTuple, Protocol, Sequence

VERSION = 2
JSON_BYTES_MAX = 1 << 20
PAYLOAD_BYTES_MAX = 64 << 20
LENGTHS = struct.Struct(">II")


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


class Box(NamedTuple):
    """An object that a detector found, in pixels of the scene's source size."""

    x1: float
    y1: float
    x2: float
    y2: float
    score: float
    label: str


class Found(NamedTuple):
    """The findings in one image; a detector that finds boxes alone may return a list of them in its place."""

    boxes: Sequence[Box] = ()
    classes: Sequence[tuple[float, str]] = ()
    poses: Sequence[Sequence[tuple[float, float, float]]] = ()


class Detector(Protocol):
    """The interface of a detector. It may raise `FrameError` for a frame it cannot use."""

    name: str
    needs_background: bool

    def begin_scene(self, source: Size) -> Size:
        """Forgets what was learnt; frames now come from a camera of that size. Returns the size that it looks at."""

    def learn(self, image: Any) -> None:
        """Adds an image, a `Picture` or encoded bytes, to the background."""

    def detect(self, image: Any) -> Sequence[Box] | Found:
        """Finds boxes in a frame of any size that shows the scene."""


class FrameError(Exception):
    """A request that cannot be carried out; the connection goes on."""


class ProtocolError(Exception):
    """Bytes that are not a message; the connection ends."""


class Stream:
    """A connected Unix socket as a binary file that keeps the descriptors that came with its bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.descriptors: list[int] = []

    def read(self, count: int) -> bytearray:
        """`count` bytes, or fewer at the end of the stream."""
        data = bytearray(count)
        view, have = memoryview(data), 0
        while have < count:
            size = socket.CMSG_SPACE(struct.calcsize("i"))
            part, control, _, _ = self._connection.recvmsg_into([view[have:]], size, socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._keep(struct.unpack("i", content[: struct.calcsize("i")])[0])
            if not part:
                break
            have += part
        view.release()
        del data[have:]
        return data

    def _keep(self, descriptor: int) -> None:
        # One is all that the protocol passes at a time.
        for old in self.descriptors:
            os.close(old)
        self.descriptors = [descriptor]

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def flush(self) -> None:
        """Nothing is held back."""


def read_message(stream: Any) -> tuple[dict, bytes] | None:
    """Reads one message from a binary file; `None` at a clean end."""
    lengths = stream.read(LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < LENGTHS.size:
        raise ProtocolError("the stream ends inside a message")
    json_bytes, payload_bytes = LENGTHS.unpack(lengths)
    if json_bytes > JSON_BYTES_MAX or payload_bytes > PAYLOAD_BYTES_MAX:
        raise ProtocolError(f"a message of {json_bytes} + {payload_bytes} bytes is over the limit")
    text, payload = stream.read(json_bytes), stream.read(payload_bytes)
    if len(text) < json_bytes or len(payload) < payload_bytes:
        raise ProtocolError("the stream ends inside a message")
    try:
        head = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"a message is not JSON: {error}") from error
    if not isinstance(head, dict):
        raise ProtocolError("a message is not a JSON object")
    return head, payload


def write_message(stream: Any, head: dict, payload: bytes = b"") -> None:
    """Writes one message to a binary file. Raises `ValueError`, and writes nothing, for a number that JSON has not."""
    write_text(stream, json_text(head), payload)


def json_text(head: dict) -> bytes:
    return json.dumps(head, separators=(",", ":"), allow_nan=False).encode()


def write_text(stream: Any, text: bytes, payload: bytes = b"") -> None:
    stream.write(LENGTHS.pack(len(text), len(payload)) + text)
    if payload:
        stream.write(payload)
    stream.flush()
