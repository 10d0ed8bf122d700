"""A Python function as a detector of a node: the detector protocol, version 2, over a Unix socket.

Tidegate ──starts──▶ your program ──serve_detector──▶ TIDEGATE_DETECTOR_SOCKET
                          ▲ images ──▶ your function ──▶ boxes │
                          └────────────────────────────────────┘

Always true: each request is answered once; one that fails is answered with its reason, and the next is served.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import socket
import struct
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from . import images
from .detections import Found
from .errors import FrameRefusedError, InvalidRequestError, TidegateError
from .frames import Image, Size

Detect = Callable[[Image], Any]
"""A detector: BGR pixels in; boxes out, each left, top, right, bottom in pixels of that image, a score, and a label. `Found`,
`Detections` and `supervision.Detections` are taken, too."""

DetectMany = Callable[[Sequence[Image]], Sequence[Any]]
"""The same for several images at once: as many results as images."""

Kind = Literal["detection", "classification", "pose"]

SOCKET_VARIABLE = "TIDEGATE_DETECTOR_SOCKET"

# As crates/tidegate-workers has them.
_JSON_BYTES_MAX = 1 << 20
_PAYLOAD_BYTES_MAX = 64 << 20
_BOXES_MAX = 10_000
_LABEL_BYTES_MAX = 64
_BATCH_MAX = 64
_SCENES_MAX = 256
_LENGTHS = struct.Struct(">II")

Request = tuple[dict[str, Any], Any]
"""The JSON of a request, and its payload."""


def serve_detector(
    detect: Detect | DetectMany,
    *,
    name: str = "python",
    kind: Kind = "detection",
    batch: int = 1,
    input_size: Size | tuple[int, int] | None = None,
) -> None:
    """Makes this program a worker of Tidegate, with a function as its detector, until Tidegate has no more for it.

    Put the program into `[workers] command` of a node's configuration, and requests for the model `name` are answered by the function;
    or into `tidegate characterize --detector command --detector-command 'python3 my_detector.py'`.

    The function is called by this thread, one image (or one batch) at a time; a node starts as many of these programs as it has work for.
    An exception of it is the answer to its image, and is written to the standard error. Ctrl-C, which reaches every program of a
    terminal, is left to the node.

    Args:
        detect: called with BGR pixels, `(height, width, 3)`, uint8, that it must not keep; returns boxes as (left, top, right, bottom,
            score[, label]) in pixels of that image, or `Found`, `Detections`, or `supervision.Detections`.
        name: names the model in requests and the detector in tables, 1 to 64 letters, digits, `.`, `_` or `-`.
        kind: of the answers.
        batch: images that `detect` is called with at once, 1 to 64. Above 1 it is called with a list and returns a list as long.
        input_size: the size to which `detect` brings its images, which tables are keyed by; that of the camera where none is given.

    Raises:
        InvalidRequestError: a name or a batch that cannot be, or this program was not started by Tidegate.
        NotInstalledError: neither OpenCV nor Pillow is installed.
        TidegateError: the other side sent what is no message.
    """
    answers = Answers(detect, name, kind=kind, batch=batch, input_size=input_size)
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise InvalidRequestError(
            f"{SOCKET_VARIABLE} is not set: this program is started by Tidegate, as `[workers] command` or by "
            "`tidegate characterize --detector command --detector-command`",
            "config.invalid",
        )
    images.check_installed()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        answers.serve(connection)


class Answers:
    """Answers the requests of one connection at a time by a function.

    With `is_strict` an exception of the function ends `serve` and is raised as it is.
    """

    def __init__(
        self,
        detect: Detect | DetectMany,
        name: str,
        *,
        kind: Kind = "detection",
        batch: int = 1,
        input_size: Size | tuple[int, int] | None = None,
        is_strict: bool = False,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise InvalidRequestError(f"{name!r} cannot name a detector: 1 to 64 letters, digits, . _ - can", "config.invalid")
        if not 1 <= batch <= _BATCH_MAX:
            raise InvalidRequestError(f"a batch of {batch} is out of range: 1 to {_BATCH_MAX}", "config.invalid")
        self._detect = detect
        self._name = name
        self._kind = kind
        self._batch = batch
        self._input_size = input_size
        self._is_strict = is_strict
        self._scenes: OrderedDict[int, Size] = OrderedDict()
        self._memory: mmap.mmap | None = None

    def hello(self) -> dict[str, Any]:
        """The first message."""
        return {
            "type": "hello",
            "protocol": 2,
            "detector": self._name,
            "background": False,
            "memory": True,
            # While one batch is looked at, the next one comes.
            "in_flight": min(2 * self._batch, _BATCH_MAX),
            "batch": self._batch,
            "scenes": _SCENES_MAX,
            "models": [{"name": self._name, "kind": self._kind}],
        }

    def serve(self, connection: socket.socket) -> None:
        """Answers until the other side closes the connection.

        Raises:
            TidegateError: it sends what is no message.
        """
        self._scenes.clear()
        self._memory = None
        stream = _Stream(connection)
        try:
            stream.write(self.hello())
            waiting: list[Request] = []
            while (message := stream.read()) is not None:
                request, _ = message
                if request.get("type") == "detect":
                    waiting.append(message)
                    # Never more than hello allowed, whatever the other side says.
                    if request.get("more") is True and len(waiting) < self._batch:
                        continue
                    replies, waiting = self.detect(waiting), []
                else:
                    replies = [self._answer(request, stream)]
                for reply in replies:
                    stream.write(reply)
        except ConnectionError:
            return
        finally:
            stream.close()

    def detect(self, requests: list[Request]) -> list[dict[str, Any]]:
        """The answers to requests about images that came together; one that fails takes no other along."""
        answers: list[dict[str, Any]] = [{"id": request.get("id")} for request, _ in requests]
        seen: list[_Seen] = []
        for place, (request, payload) in enumerate(requests):
            try:
                seen.append(self._look(place, request, payload))
            except FrameRefusedError as error:
                answers[place]["error"] = str(error)
        for at in range(0, len(seen), self._batch):
            for each, result in self._call(seen[at : at + self._batch]):
                answer = answers[each.place]
                if isinstance(result, Exception):
                    answer["error"] = f"the detector failed: {type(result).__name__}: {str(result)[:500]}"
                else:
                    answer |= result
        return answers

    def _call(self, seen: list[_Seen]) -> list[tuple[_Seen, dict[str, Any] | Exception]]:
        began = time.perf_counter()
        try:
            if self._batch == 1:
                found = [self._detect(each.image) for each in seen]  # type: ignore[arg-type]
            else:
                found = list(self._detect([each.image for each in seen]))  # type: ignore[arg-type]
                if len(found) != len(seen):
                    raise ValueError(f"the detector returned {len(found)} results for {len(seen)} images")
            share_s = (time.perf_counter() - began) / len(seen)
            return [(each, each.answer(result, share_s)) for each, result in zip(seen, found, strict=True)]
        except Exception as error:
            if self._is_strict:
                raise
            if len(seen) > 1:
                # Each alone, so that the one that fails is found.
                return [pair for each in seen for pair in self._call([each])]
            traceback.print_exception(error)
            return [(seen[0], error)]

    def _look(self, place: int, request: dict[str, Any], payload: Any) -> _Seen:
        model = request.get("model", self._name)
        if model != self._name:
            raise FrameRefusedError(f"there is no model {model!r}; there is {self._name!r}", "frames.frame.invalid")
        began = time.perf_counter()
        image = self._image(request, payload)
        height, width = image.shape[:2]
        source = Size(width, height)
        if "scene" in request or (0 in self._scenes and "model" not in request):
            scene = request.get("scene", 0)
            known = self._scenes.get(scene)
            if known is None:
                raise FrameRefusedError(f"scene {scene} was not begun: send a scene request first", "frames.frame.invalid")
            self._scenes.move_to_end(scene)
            source = known
        return _Seen(place, image, source, time.perf_counter() - began)

    def _image(self, request: dict[str, Any], payload: Any) -> Image:
        if "offset" in request:
            offset, count = request["offset"], request["bytes"]
            if self._memory is None or offset < 0 or count < 0 or offset + count > len(self._memory):
                raise FrameRefusedError(f"{count} bytes at {offset} are outside the shared memory", "frames.frame.invalid")
            # Copied: a function that keeps its image would otherwise see another one in it later.
            payload = bytearray(memoryview(self._memory)[offset : offset + count])
        if "shape" not in request:
            return images.decode(payload)
        shape = request["shape"]
        is_shape = isinstance(shape, list) and len(shape) == 3 and all(isinstance(side, int) and side > 0 for side in shape)
        if not is_shape or shape[2] not in (1, 3) or shape[0] * shape[1] * shape[2] != len(payload):
            raise FrameRefusedError(f"{len(payload)} bytes are no pixels of the shape {shape}", "frames.frame.invalid")
        pixels = np.frombuffer(payload, np.uint8).reshape(shape)
        return pixels if shape[2] == 3 else np.repeat(pixels, 3, axis=2)

    def _answer(self, request: dict[str, Any], stream: _Stream) -> dict[str, Any]:
        """The answer to a request that is not about an image."""
        number, kind = request.get("id"), request.get("type")
        if kind == "scene":
            source = request["source"]
            scene = request.get("scene", 0)
            self._scenes.pop(scene, None)
            self._scenes[scene] = Size(source[0], source[1])
            while len(self._scenes) > _SCENES_MAX:
                self._scenes.popitem(last=False)
            return {"id": number, "input": list(self._input_size or source)}
        if kind == "memory":
            descriptor = stream.descriptor()
            if descriptor is None:
                return {"id": number, "error": "no descriptor came with the request for shared memory"}
            try:
                self._memory = mmap.mmap(descriptor, request["bytes"], prot=mmap.PROT_READ)
            except (OSError, ValueError) as error:
                return {"id": number, "error": f"the shared memory cannot be mapped: {error}"}
            finally:
                os.close(descriptor)
            return {"id": number}
        if kind in ("background", "unload"):
            return {"id": number}
        return {"id": number, "error": f"{self._name} is a Python function, which has no {kind!r}"}


class _Seen:
    """An image to look at, or that was looked at."""

    def __init__(self, place: int, image: Image, source: Size, decode_s: float) -> None:
        self.place = place
        self.image = image
        self._source = source
        self._decode_s = decode_s

    def answer(self, result: Any, infer_s: float) -> dict[str, Any]:
        """The answer, checked.

        Raises:
            ValueError: the function returned what is none.
        """
        found = _found(result)
        height, width = self.image.shape[:2]
        scale = (self._source.width / width, self._source.height / height)
        boxes = [_box(box, scale) for box in found.boxes]
        if len(boxes) > _BOXES_MAX:
            raise ValueError(f"the detector returned {len(boxes)} boxes; {_BOXES_MAX} are allowed")
        answer = {
            "boxes": boxes,
            "size": [width, height],
            "took_ms": (self._decode_s + infer_s) * 1e3,
            "decode_ms": self._decode_s * 1e3,
        }
        classes = [[_finite(score, "class"), _label(label)] for score, label in found.classes]
        poses = [[_point(point, scale) for point in pose] for pose in found.poses]
        if classes:
            answer["classes"] = classes
        if poses:
            answer["poses"] = poses
        return answer


def _found(result: Any) -> Found:
    if isinstance(result, Found):
        return result
    xyxy = getattr(result, "xyxy", None)
    if xyxy is None:
        return Found(result)
    # Ours, and those of supervision.
    count = len(xyxy)
    scores = getattr(result, "confidence", None)
    labels = getattr(result, "labels", None)
    if labels is None:
        labels = getattr(result, "data", {}).get("class_name")
    if labels is None:
        ids = getattr(result, "class_id", None)
        labels = ["object"] * count if ids is None else [f"class {number}" for number in ids]
    scores = np.ones(count) if scores is None else scores
    boxes = [(*box, score, label) for box, score, label in zip(xyxy, scores, labels, strict=True)]
    return Found(boxes, getattr(result, "classes", ()), getattr(result, "poses", ()))


def _box(box: Sequence[Any], scale: tuple[float, float]) -> list[Any]:
    if len(box) < 5:
        raise ValueError(f"the detector returned {box!r}; (left, top, right, bottom, score[, label]) is needed")
    left, top, right, bottom, score = (_finite(number, box) for number in box[:5])
    label = _label(box[5]) if len(box) > 5 else "object"
    return [left * scale[0], top * scale[1], right * scale[0], bottom * scale[1], score, label]


def _point(point: Sequence[Any], scale: tuple[float, float]) -> list[float]:
    x, y, score = (_finite(number, point) for number in point)
    return [x * scale[0], y * scale[1], score]


def _finite(number: Any, within: Any) -> float:
    value = float(number)
    if not np.isfinite(value):
        raise ValueError(f"the detector returned {within!r}, which has a number that is not finite")
    return value


def _label(label: Any) -> str:
    text = str(label)
    if len(text.encode()) > _LABEL_BYTES_MAX:
        raise ValueError(f"the detector returned the label {text!r}; {_LABEL_BYTES_MAX} bytes are allowed")
    return text


class _Stream:
    """Messages over a Unix socket, and the descriptor that came with them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._descriptors: list[int] = []

    def read(self) -> Request | None:
        """The next message; None at a clean end.

        Raises:
            TidegateError: bytes that are none.
        """
        lengths = self._take(_LENGTHS.size)
        if not lengths:
            return None
        text_bytes, payload_bytes = _LENGTHS.unpack(lengths) if len(lengths) == _LENGTHS.size else (0, 0)
        if not 0 < text_bytes <= _JSON_BYTES_MAX or payload_bytes > _PAYLOAD_BYTES_MAX:
            raise TidegateError(f"a message of {text_bytes} + {payload_bytes} bytes is none of the detector protocol", "link.protocol")
        text, payload = self._take(text_bytes), self._take(payload_bytes)
        if len(text) < text_bytes or len(payload) < payload_bytes:
            raise ConnectionResetError("the connection ends inside a message")
        try:
            request = json.loads(text)
        except ValueError as error:
            raise TidegateError(f"a message of the detector protocol is no JSON: {error}", "link.protocol") from error
        if not isinstance(request, dict):
            raise TidegateError("a message of the detector protocol is no JSON object", "link.protocol")
        return request, payload

    def write(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, allow_nan=False).encode()
        if len(text) > _JSON_BYTES_MAX:
            short = {"id": message.get("id"), "error": f"an answer of {len(text)} bytes is too long; {_JSON_BYTES_MAX} are allowed"}
            text = json.dumps(short).encode()
        self._connection.sendall(_LENGTHS.pack(len(text), 0) + text)

    def descriptor(self) -> int | None:
        """The descriptor that came last, which is the caller's to close."""
        return self._descriptors.pop() if self._descriptors else None

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _take(self, count: int) -> bytearray:
        """`count` bytes, or fewer at the end of the stream."""
        data = bytearray(count)
        view, have = memoryview(data), 0
        while have < count:
            space = socket.CMSG_SPACE(struct.calcsize("i"))
            part, control, _, _ = self._connection.recvmsg_into([view[have:]], space, socket.MSG_CMSG_CLOEXEC)
            for level, kind, content in control:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    # One is all that the protocol passes at a time.
                    self.close()
                    self._descriptors.append(struct.unpack("i", content[: struct.calcsize("i")])[0])
            if not part:
                break
            have += part
        view.release()
        del data[have:]
        return data


__all__ = ["Answers", "Detect", "DetectMany", "serve_detector"]
