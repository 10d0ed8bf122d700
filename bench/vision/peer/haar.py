"""The Django server's detector as a worker of a node, by version 2 of the detector protocol: both servers then look at an image alike.

The node that starts it names its socket in TIDEGATE_DETECTOR_SOCKET.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any

import cv2

from server import Haar, ImageError


def read(stream: socket.socket, count: int) -> bytes | None:
    """So many bytes; none at the end."""
    data = bytearray()
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            return None
        data += more
    return bytes(data)


def send(stream: socket.socket, message: dict[str, Any]) -> None:
    """One message without a payload."""
    text = json.dumps(message).encode()
    stream.sendall(struct.pack("!II", len(text), 0) + text)


def look(haar: Haar, request: dict[str, Any], data: bytes) -> dict[str, Any]:
    """The answer to one request."""
    said: dict[str, Any] = {"id": request.get("id")}
    match request["type"]:
        case "scene":
            said["input"] = request["source"]
        case "detect":
            began = time.perf_counter()
            try:
                image = haar.decode(data)
            except ImageError as error:
                return {**said, "error": str(error)}
            decoded = time.perf_counter()
            found = haar.detect(image)
            said["boxes"] = [[*box, 1.0, "face"] for box in found]
            said["took_ms"] = (time.perf_counter() - began) * 1e3
            said["decode_ms"] = (decoded - began) * 1e3
            said["size"] = [image.shape[1], image.shape[0]]
    return said


def main() -> None:
    """Serves the node until it closes."""
    cv2.setNumThreads(1)  # as the server does
    haar = Haar()
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
        models = [{"name": "face", "kind": "detection"}]
        hello = {"type": "hello", "protocol": 2, "detector": "haar", "background": False, "memory": False}
        send(stream, {**hello, "in_flight": 1, "batch": 1, "scenes": 16, "models": models})
        while lengths := read(stream, 8):
            text_bytes, data_bytes = struct.unpack("!II", lengths)
            text, data = read(stream, text_bytes), read(stream, data_bytes)
            if text is None or data is None:
                return
            send(stream, look(haar, json.loads(text), data))


if __name__ == "__main__":
    main()
