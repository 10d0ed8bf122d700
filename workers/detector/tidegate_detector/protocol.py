"""The detector protocol, version 1: framing, and a loop that serves one connection.

A message is two big-endian 32-bit lengths, a JSON object of the first length, and a payload of the second. The worker
connects, says hello, and then answers each request, in order, with one message that carries the request's id.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, NamedTuple, Protocol, Sequence

VERSION = 1
JSON_BYTES_MAX = 1 << 20
PAYLOAD_BYTES_MAX = 64 << 20
LENGTHS = struct.Struct(">II")


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int


class Box(NamedTuple):
    """What a detector found, in pixels of the scene's source size."""

    x1: float
    y1: float
    x2: float
    y2: float
    score: float
    label: str


class Detector(Protocol):
    """What a detector offers. It may raise `FrameError` for a frame it cannot use."""

    name: str
    needs_background: bool

    def begin_scene(self, source: Size) -> Size:
        """Forgets what was learnt; frames now come from a camera of that size. Returns the size that it looks at."""

    def learn(self, jpeg: bytes) -> None:
        """Adds a frame to the background."""

    def detect(self, jpeg: bytes) -> Sequence[Box]:
        """Finds boxes in a frame of any size that shows the scene."""


class FrameError(Exception):
    """A request that cannot be carried out; the connection goes on."""


class ProtocolError(Exception):
    """Bytes that are not a message; the connection ends."""


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
    """Writes one message to a binary file."""
    text = json.dumps(head, separators=(",", ":")).encode()
    stream.write(LENGTHS.pack(len(text), len(payload)))
    stream.write(text)
    stream.write(payload)
    stream.flush()


def answer(detector: Detector, head: dict, payload: bytes) -> dict:
    """Carries out one request."""
    kind = head.get("type")
    if kind == "scene":
        try:
            source = Size(*(int(side) for side in head["source"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"a scene request needs source: [width, height] ({error})") from error
        if not (0 < source.width <= 65535 and 0 < source.height <= 65535):
            raise FrameError(f"a scene of {source.width}x{source.height} pixels cannot be")
        return {"input": list(detector.begin_scene(source))}
    if kind == "background":
        detector.learn(payload)
        return {}
    if kind == "detect":
        started = time.perf_counter()
        boxes = detector.detect(payload)
        took_ms = (time.perf_counter() - started) * 1e3
        return {"boxes": [list(box) for box in boxes], "took_ms": round(took_ms, 3)}
    raise FrameError(f"unknown request {kind!r}")


def serve(connection: socket.socket, detector: Detector) -> None:
    """Serves requests until the other side closes the connection."""
    with connection, connection.makefile("rwb") as stream:
        hello = {"type": "hello", "protocol": VERSION, "detector": detector.name}
        write_message(stream, {**hello, "background": detector.needs_background})
        while (message := read_message(stream)) is not None:
            head, payload = message
            try:
                result = answer(detector, head, payload)
            except FrameError as error:
                result = {"error": str(error)}
            write_message(stream, {"id": head.get("id"), **result})
