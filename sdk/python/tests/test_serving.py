"""A Python function as a worker: over a socket by itself, and as the detector of the real program."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidegate
from tidegate import images
from tidegate.serving import Answers

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "detector_service.py"
GRAY = images.encode(np.full((90, 160, 3), 90, np.uint8))


class Tidegate:
    """The other side of the socket, as a node is it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(20)
        self._file = connection.makefile("rb")
        self.hello = self.receive()
        self._id = 0

    def receive(self) -> dict[str, Any]:
        text_bytes, payload_bytes = struct.unpack(">II", self._file.read(8))
        assert payload_bytes == 0 and text_bytes <= 1 << 20
        message: dict[str, Any] = json.loads(self._file.read(text_bytes))
        return message

    def send(self, kind: str, payload: bytes = b"", descriptor: int | None = None, **more: Any) -> int:
        self._id += 1
        text = json.dumps({"id": self._id, "type": kind, **more}).encode()
        message = struct.pack(">II", len(text), len(payload)) + text + payload
        if descriptor is None:
            self._connection.sendall(message)
        else:
            socket.send_fds(self._connection, [message[:1]], [descriptor])
            self._connection.sendall(message[1:])
        return self._id

    def ask(self, kind: str, payload: bytes = b"", **more: Any) -> dict[str, Any]:
        number = self.send(kind, payload, **more)
        answer = self.receive()
        assert answer.pop("id") == number
        return answer

    def is_closed(self) -> bool:
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:  # what was unread is thrown away
            return True


Serve = Callable[[Answers], Tidegate]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves answers in a thread of its own; what it raised is an error of the test."""
    with contextlib.ExitStack() as stack:

        def start(answers: Answers) -> Tidegate:
            ours, theirs = socket.socketpair()
            failed: list[BaseException] = []

            def run() -> None:
                try:
                    answers.serve(theirs)
                except BaseException as error:
                    failed.append(error)
                finally:
                    theirs.close()

            thread = threading.Thread(target=run)
            thread.start()

            def end() -> None:
                # The file of the socket keeps it open, too.
                with contextlib.suppress(OSError):
                    ours.shutdown(socket.SHUT_RDWR)
                ours.close()
                thread.join(20)
                assert not thread.is_alive()
                assert all(isinstance(error, tidegate.TidegateError) for error in failed), failed

            stack.callback(end)
            return Tidegate(ours)

        yield start


def whole(image: np.ndarray[Any, Any]) -> list[tuple[float, float, float, float, float, str]]:
    height, width = image.shape[:2]
    return [(0, 0, width, height, float(image.mean()), "all")]


def test_a_function_answers_about_images(serve: Serve) -> None:
    node = serve(Answers(whole, "mine"))
    assert node.hello | {"in_flight": 0} == {
        "type": "hello",
        "protocol": 2,
        "detector": "mine",
        "background": False,
        "memory": True,
        "in_flight": 0,
        "batch": 1,
        "scenes": 256,
        "models": [{"name": "mine", "kind": "detection"}],
    }
    alone = node.ask("detect", GRAY, model="mine")
    assert alone["size"] == [160, 90] and alone["boxes"] == [[0, 0, 160, 90, 90.0, "all"]]
    assert alone["took_ms"] >= alone["decode_ms"] > 0
    # In pixels of the scene's source.
    assert node.ask("scene", scene=7, source=[1600, 1800]) == {"input": [1600, 1800]}
    assert node.ask("background", GRAY, scene=7) == {}
    assert node.ask("detect", GRAY, scene=7)["boxes"] == [[0, 0, 1600, 1800, 90.0, "all"]]
    assert "not begun" in node.ask("detect", GRAY, scene=8)["error"]
    assert "no model 'face'" in node.ask("detect", GRAY, model="face")["error"]
    assert "no 'load'" in node.ask("load", name="a", path="b")["error"]
    # Pixels, gray and in colour.
    for shape, mean in (([2, 3, 1], 2.5), ([1, 2, 3], 2.5)):
        pixels = node.ask("detect", bytes(range(6)), shape=shape)
        assert pixels["boxes"] == [[0, 0, shape[1], shape[0], mean, "all"]]
    for shape in ([2, 3, 2], [2, 2, 1], [0, 0, 3], "x", [6]):
        assert "no pixels" in node.ask("detect", bytes(range(6)), shape=shape)["error"]


def test_images_come_by_shared_memory(serve: Serve) -> None:
    node = serve(Answers(whole, "mine"))
    assert "outside" in node.ask("detect", offset=0, bytes=10)["error"]
    with tempfile.TemporaryFile() as memory:
        memory.truncate(1 << 16)
        memory.seek(4096)
        memory.write(GRAY)
        memory.flush()
        read_only = os.open(f"/proc/self/fd/{memory.fileno()}", os.O_RDONLY)
        try:
            assert node.ask("memory", bytes=1 << 16, descriptor=read_only) == {}
        finally:
            os.close(read_only)
        for _ in range(2):
            assert node.ask("detect", offset=4096, bytes=len(GRAY))["size"] == [160, 90]
        assert node.ask("detect", offset=0, bytes=6, shape=[1, 2, 3])["boxes"] == [[0, 0, 2, 1, 0.0, "all"]]
        assert "outside" in node.ask("detect", offset=65536, bytes=1)["error"]
        # One for which there was no room comes in the payload.
        assert node.ask("detect", GRAY)["size"] == [160, 90]
    assert "no descriptor" in node.ask("memory", bytes=4096)["error"]


def test_a_batch_is_looked_at_together_and_one_that_fails_is_alone(serve: Serve) -> None:
    sizes: list[int] = []

    def many(pictures: list[np.ndarray[Any, Any]]) -> list[Any]:
        sizes.append(len(pictures))
        if any(picture.shape[1] == 13 for picture in pictures):
            raise ValueError("of the thirteenth")
        return [whole(picture) for picture in pictures]

    node = serve(Answers(many, "mine", batch=4))
    assert (node.hello["batch"], node.hello["in_flight"]) == (4, 8)
    pixels = {width: bytes(width * 3) for width in (5, 13, 7)}
    sent = [node.send("detect", data, shape=[1, width, 3], more=True) for width, data in pixels.items()]
    sent.append(node.send("detect", b"no picture"))
    answers = {answer["id"]: answer for answer in (node.receive() for _ in sent)}
    assert [answers[number].get("size") for number in sent] == [[5, 1], None, [7, 1], None]
    assert "ValueError: of the thirteenth" in answers[sent[1]]["error"] and "cannot decode" in answers[sent[3]]["error"]
    assert sizes == [3, 1, 1, 1]
    # More than hello allowed is answered all the same.
    sent = [node.send("detect", bytes(3), shape=[1, 1, 3], more=number < 8) for number in range(9)]
    assert sorted(node.receive()["id"] for _ in sent) == sent
    assert max(sizes) == 4


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([(1, 2)], "left, top"),
        ([(1, 2, 3, float("nan"), 1)], "not finite"),
        ([(1, 2, 3, 4, 1, "x" * 65)], "64 bytes"),
        ([(0, 0, 1, 1, 1)] * 10_001, "10000 are allowed"),
        ([(0.123456789, 0, 1.123456789, 1, 1, "y" * 64)] * 10_000, "too long"),
        (tidegate.Found(poses=[[(1, 2)]]), "not enough values"),
        (tidegate.Found(classes=[(float("inf"), "a")]), "not finite"),
        (7, "not iterable"),
    ],
)
def test_what_is_no_answer_fails_its_image_alone(serve: Serve, result: Any, text: str) -> None:
    results = iter([result, []])
    node = serve(Answers(lambda _: next(results), "mine"))
    assert text in node.ask("detect", GRAY)["error"]
    assert node.ask("detect", GRAY)["boxes"] == []


def test_answers_of_every_form(serve: Serve) -> None:
    like_supervision = SimpleNamespace(
        xyxy=np.array([[1, 2, 3, 4]], np.float32),
        confidence=np.array([0.5]),
        class_id=np.array([3]),
        data={"class_name": np.array(["cat"])},
    )
    without_names = SimpleNamespace(xyxy=np.array([[1, 2, 3, 4]]), confidence=None, class_id=np.array([3]), data={})
    nothing_more = SimpleNamespace(xyxy=np.array([[1, 2, 3, 4]]))
    found = tidegate.Found([tidegate.Box(1, 2, 3, 4, 0.5)], [(0.25, "day")], [[(8, 9, 1)]])
    results = iter([like_supervision, without_names, nothing_more, found])
    node = serve(Answers(lambda _: next(results), "mine"))
    node.ask("scene", scene=0, source=[320, 180])
    assert node.ask("detect", GRAY)["boxes"] == [[2, 4, 6, 8, 0.5, "cat"]]
    assert node.ask("detect", GRAY)["boxes"] == [[2, 4, 6, 8, 1.0, "class 3"]]
    assert node.ask("detect", GRAY)["boxes"] == [[2, 4, 6, 8, 1.0, "object"]]
    last = node.ask("detect", GRAY)
    assert last["boxes"] == [[2, 4, 6, 8, 0.5, "object"]] and last["classes"] == [[0.25, "day"]] and last["poses"] == [[[16, 18, 1]]]


def test_images_that_are_none_cost_nothing(serve: Serve) -> None:
    bomb = bytearray(GRAY)
    place = bomb.index(b"\xff\xc0")
    bomb[place + 5 : place + 9] = struct.pack(">HH", 65000, 65000)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 100_000, 100_000) + bytes(9)
    node = serve(Answers(whole, "mine"))
    for data in (bytes(bomb), png):
        assert "pixels is not decoded" in node.ask("detect", data)["error"]
    for data in (b"", b"%PDF-1.4", b"\xff\xd8\xff\xd9", GRAY[:20], png[:20]):
        assert "cannot decode" in node.ask("detect", data)["error"]
    assert node.ask("detect", GRAY)["size"] == [160, 90]


@pytest.mark.parametrize(
    "message", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">II", 0, 0), struct.pack(">II", 2, 0) + b"[]", struct.pack(">II", 1, 0) + b"{"]
)
def test_a_message_that_is_none_ends_it(serve: Serve, message: bytes) -> None:
    node = serve(Answers(whole, "mine"))
    node._connection.sendall(message)
    assert node.is_closed()


def test_a_program_that_tidegate_did_not_start_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_DETECTOR_SOCKET", raising=False)
    with pytest.raises(tidegate.InvalidRequestError, match="started by Tidegate"):
        tidegate.serve_detector(whole)
    for wrong in ({"name": "a b"}, {"batch": 0}, {"batch": 65}):
        with pytest.raises(tidegate.InvalidRequestError):
            tidegate.serve_detector(whole, **wrong)  # type: ignore[arg-type]


def test_the_example_is_a_detector_of_the_program(tmp_path: Path) -> None:
    table = tmp_path / "dark.table"
    command = [os.environ["TIDEGATE_PROGRAM"], "characterize", "--clip", "scene:street?size=320x180&fps=5&people=8&seconds=4"]
    command += ["--detector", "command", "--detector-command", f"{sys.executable} {EXAMPLE}", "--frames", "10", "--no-truth"]
    said = subprocess.run([*command, "--output", str(table)], check=False, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "detector dark" in table.read_text() and table.read_text().count("\nrow ") > 3
