"""Moving things: what differs from a background that was learnt once and then stays.

Each frame is looked at by itself, so that a dropped or repeated frame changes nothing for the next one, and an adapted frame can
be compared with its original.
"""

from __future__ import annotations

import cv2
import numpy as np

from .image import Image, decode, fit
from .protocol import Box, FrameError, Size

# Frames are looked at this wide at most.
INPUT_WIDTH = 960
# A difference of this many gray levels may belong to something; somewhere in it must be one of SURE levels. Two thresholds
# keep a box from flickering when its faint edge does.
MAYBE = 18
SURE = 36
# Smallest thing, as a share of the picture: 12 by 12 pixels of 960 by 540.
AREA_MIN = 0.00028
# Parts of one thing (head, trunk, legs) lie closer together than this share of the picture's height.
GAP = 0.03
# More background frames than this add nothing to a median.
BACKGROUND_MAX = 61


class Moving:
    """Difference to a stored background."""

    name = "moving"
    needs_background = True
    gray = True

    def __init__(self) -> None:
        self._source: Size | None = None
        self._input = Size(0, 0)
        self._learnt: list[np.ndarray] = []
        self._background: np.ndarray | None = None

    def begin_scene(self, source: Size) -> Size:
        self._source, self._input = source, fit(source, INPUT_WIDTH)
        self._learnt, self._background = [], None
        return self._input

    def learn(self, image: Image) -> None:
        if self._source is None:
            raise FrameError("no scene was begun: send a scene request first")
        if self._background is not None:
            raise FrameError("the background is fixed once detection has begun; begin the scene again")
        if len(self._learnt) == BACKGROUND_MAX:
            raise FrameError(f"{BACKGROUND_MAX} background frames are enough; choose them over the whole clip")
        self._learnt.append(self._look(image))

    def detect(self, image: Image) -> list[Box]:
        if self._background is None:
            if not self._learnt:
                raise FrameError("there is no background: send some background frames first")
            middle = np.median(np.stack(self._learnt), axis=0)
            self._background, self._learnt = middle.astype(np.uint8), []
        difference = cv2.absdiff(self._look(image), self._background)
        return self._boxes(difference)

    def _look(self, image: Image) -> np.ndarray:
        return cv2.GaussianBlur(decode(image, self._input, gray=True), (5, 5), 0)

    def _boxes(self, difference: np.ndarray) -> list[Box]:
        maybe = (difference > MAYBE).astype(np.uint8)
        gap = max(3, round(self._input.height * GAP)) | 1
        joined = cv2.morphologyEx(maybe, cv2.MORPH_CLOSE, np.ones((gap, gap // 3 | 1), np.uint8))
        count, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8)
        area_min = AREA_MIN * self._input.width * self._input.height
        x_scale = self._source.width / self._input.width
        y_scale = self._source.height / self._input.height
        boxes = []
        for index in range(1, count):  # 0 is what does not differ
            x, y, width, height, area = (int(value) for value in stats[index])
            if area < area_min:
                continue
            place = np.s_[y : y + height, x : x + width]
            strongest = int(difference[place][labels[place] == index].max())
            if strongest < SURE:
                continue
            corners = (x * x_scale, y * y_scale, (x + width) * x_scale, (y + height) * y_scale)
            boxes.append(Box(*(round(c, 2) for c in corners), round(strongest / 255, 3), "moving"))
        return boxes
