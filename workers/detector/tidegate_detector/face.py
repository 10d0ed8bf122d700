"""Faces, frontal and from the side: OpenCV's Haar cascades, at a fixed input size like any network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache

import cv2
import numpy as np

from .image import Image, decode, fit
from .protocol import Box, FrameError, Size

INPUT_WIDTH = 960
# The cascades' smallest face is 20 to 24 pixels wide.
FACE_MIN = 24
# A find by fewer neighbours is mostly leaves and bricks; missing a face costs more here than covering a brick.
NEIGHBOURS_MIN = 3


class _Faces:
    """Looks for faces in gray pixels of a fixed size."""

    name: str
    needs_background = False
    gray = True

    def __init__(self) -> None:
        self._frontal = cascade("haarcascade_frontalface_default.xml")
        self._source: Size | None = None
        self._input = Size(0, 0)

    def begin_scene(self, source: Size) -> Size:
        # Never enlarged: where there are fewer pixels than the cascades need, there is no more to see.
        self._source, self._input = source, fit(source, INPUT_WIDTH)
        return self._input

    def learn(self, image: Image) -> None:
        raise FrameError("this detector has no background")

    def detect(self, image: Image) -> list[Box]:
        if self._source is None:
            raise FrameError("no scene was begun: send a scene request first")
        x_scale = self._source.width / self._input.width
        y_scale = self._source.height / self._input.height
        boxes = []
        for x, y, width, height in self._find(decode(image, self._input, gray=True)):
            corners = (x * x_scale, y * y_scale, (x + width) * x_scale, (y + height) * y_scale)
            # The cascades give no score that means anything alone.
            boxes.append(Box(*(round(float(c), 2) for c in corners), 1.0, "face"))
        return boxes

    def _find(self, gray: np.ndarray) -> Iterable[Sequence[int]]:
        """Left, top, width and height of each face, in pixels of `gray`."""
        raise NotImplementedError


class Face(_Faces):
    """Two cascades, the one for profiles also on the mirrored image: it knows one side only."""

    name = "face"

    def __init__(self) -> None:
        super().__init__()
        self._profile = cascade("haarcascade_profileface.xml")

    def _find(self, gray: np.ndarray) -> Iterable[Sequence[int]]:
        gray = cv2.equalizeHist(gray)
        mirrored = cv2.flip(gray, 1)
        return merged([
            *faces(self._frontal, gray),
            *faces(self._profile, gray),
            *((self._input.width - x - width, y, width, height) for x, y, width, height in faces(self._profile, mirrored)),
        ])


class FrontalFace(_Faces):
    """Faces that look into the camera, by one cascade in large steps: about a tenth of the work of `Face`, which misses fewer.

    Its steps and neighbours are those that Django servers like the paper's have (`bench/vision/peer`), so that times can be compared.
    """

    name = "frontal_face"

    def _find(self, gray: np.ndarray) -> Iterable[Sequence[int]]:
        found = self._frontal.detectMultiScale(gray, scaleFactor=1.3, minNeighbors=5)
        return np.asarray(found, dtype=int).reshape(-1, 4)


def merged(found: Iterable[Sequence[int]]) -> list[tuple[int, int, int, int]]:
    """Each face once: what two cascades find in one place is one box around both, which covers what either of them saw."""
    boxes = [(int(x), int(y), int(x + width), int(y + height)) for x, y, width, height in found]
    at = 0
    while at < len(boxes):
        same = next((other for other in range(at + 1, len(boxes)) if is_same(boxes[at], boxes[other])), None)
        if same is None:
            at += 1
            continue
        one, other = boxes[at], boxes.pop(same)
        boxes[at] = (min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3]))
        # It has grown: one that was another's before may be its own.
        at = 0
    return [(left, top, right - left, bottom - top) for left, top, right, bottom in boxes]


def is_same(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two boxes share half of the smaller one: faces side by side do not."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width > 0 and height > 0 and 2 * width * height >= smaller


@lru_cache(maxsize=None)
def cascade(name: str) -> cv2.CascadeClassifier:
    path = os.path.join(cv2.data.haarcascades, name)
    loaded = cv2.CascadeClassifier(path)
    if loaded.empty():
        raise FileNotFoundError(f"{path} is not a cascade: this OpenCV comes without its data")
    return loaded


def faces(classifier: cv2.CascadeClassifier, image: np.ndarray) -> np.ndarray:
    found = classifier.detectMultiScale(
        image, scaleFactor=1.1, minNeighbors=NEIGHBOURS_MIN, minSize=(FACE_MIN, FACE_MIN)
    )
    return np.asarray(found, dtype=int).reshape(-1, 4)
