"""People at eye level: OpenCV's default HOG detector, at a fixed input size like any network."""

from __future__ import annotations

import cv2
import numpy as np

from .image import Image, decode, of_width
from .protocol import Box, FrameError, Size

INPUT_WIDTH = 1280
# Detections below this score come and go with noise.
SCORE_MIN = 0.7
PADDING = 8
# The model's window. OpenCV writes outside its memory where a picture with its padding is smaller.
WINDOW = Size(64, 128)


class Person:
    """Histogram of oriented gradients with OpenCV's people model."""

    name = "person"
    needs_background = False

    def __init__(self) -> None:
        self._hog = cv2.HOGDescriptor()
        self._hog.setSVMDetector(cv2.HOGDescriptor_getDefaultPeopleDetector())
        self._source: Size | None = None
        self._input = Size(0, 0)

    def begin_scene(self, source: Size) -> Size:
        # Small sources are enlarged too: the model's smallest person is 128 pixels high.
        self._source, self._input = source, of_width(source, INPUT_WIDTH)
        return self._input

    def learn(self, image: Image) -> None:
        raise FrameError("this detector has no background")

    def detect(self, image: Image) -> list[Box]:
        if self._source is None:
            raise FrameError("no scene was begun: send a scene request first")
        pixels = decode(image, self._input, gray=False)
        if any(side + 2 * PADDING < least for side, least in zip(self._input, WINDOW)):
            return []
        found, scores = self._hog.detectMultiScale(
            pixels, hitThreshold=0, winStride=(8, 8), padding=(PADDING, PADDING), scale=1.12, groupThreshold=2
        )
        x_scale = self._source.width / self._input.width
        y_scale = self._source.height / self._input.height
        boxes = []
        for (x, y, width, height), score in zip(found, np.ravel(scores)):
            if score < SCORE_MIN:
                continue
            corners = (x * x_scale, y * y_scale, (x + width) * x_scale, (y + height) * y_scale)
            boxes.append(Box(*(round(float(c), 2) for c in corners), round(float(score), 3), "person"))
        return boxes
