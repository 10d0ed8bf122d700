"""A program of the detector protocol that finds the same in every image, for tests of the paths alone."""

import json
import os
import socket
import struct
import sys

FOUND = {
    "boxes": [[10, 20, 40, 60, 0.75, "face"]],
    "classes": [[0.5, "cat"]],
    "poses": [[[1, 2, 0.25]]],
    "took_ms": 2.5,
    "decode_ms": 1,
}


def main() -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
    stream = connection.makefile("rb")

    def send(message: dict[str, object]) -> None:
        text = json.dumps(message).encode()
        connection.sendall(struct.pack(">II", len(text), 0) + text)

    models = [{"name": name, "kind": "detection"} for name in ("face", "person", "recognize", "pose")]
    send({"type": "hello", "protocol": 2, "detector": "same", "models": models})
    while head := stream.read(8):
        text, payload = struct.unpack(">II", head)
        request = json.loads(stream.read(text))
        stream.read(payload)
        answer = {"detect": FOUND, "scene": {"input": [64, 48]}, "train": {"images": 1}}.get(request["type"], {})
        send({"id": request["id"], **answer})
    sys.exit(0)


main()
