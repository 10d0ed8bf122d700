#!/usr/bin/env python3
"""The knobs done with OpenCV, on a folder of JPEG frames, one thread.

Reads one knob setting per line from standard input, written as Tidegate writes it, and answers each with one line
of JSON: {"ms": [...], "bytes": [...]}, a value for each frame in the order of their names. Times are thread CPU times
around the whole step from JPEG bytes to JPEG bytes. "hello" is answered with the versions.

OpenCV gets its best fair way: IMREAD_REDUCED_* decodes at 1/2, 1/4 or 1/8 where the setting allows it, gray is
decoded as gray, and what has no OpenCV counterpart (dead zone) is the same setting without it.
`reduced=off` after a setting decodes at full size and resizes instead, as the Mez paper's pipeline does.
"""
import json
import pathlib
import platform
import sys
import time

import cv2
import numpy

MEZ_SIZES = {2: (1312, 738), 3: (960, 540), 4: (640, 360), 5: (480, 270)}
MEZ_BLURS = {2: 5, 3: 8, 4: 10, 5: 15}
MEZ_COLORS = {3: cv2.COLOR_BGR2HSV, 4: cv2.COLOR_BGR2Lab, 5: cv2.COLOR_BGR2Luv}
EIGHTHS = {"5/8": 5, "1/2": 4, "3/8": 3, "1/4": 2}


def reduced_flag(eighths, gray):
    """The read flag for the smallest reduced size that is not below `eighths`, and that size in eighths."""
    if eighths <= 1:
        return (cv2.IMREAD_REDUCED_GRAYSCALE_8 if gray else cv2.IMREAD_REDUCED_COLOR_8), 1
    if eighths <= 2:
        return (cv2.IMREAD_REDUCED_GRAYSCALE_4 if gray else cv2.IMREAD_REDUCED_COLOR_4), 2
    if eighths <= 4:
        return (cv2.IMREAD_REDUCED_GRAYSCALE_2 if gray else cv2.IMREAD_REDUCED_COLOR_2), 4
    return (cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR), 8


class Knobs:
    """One setting with the state that it needs from frame to frame."""

    def __init__(self, text):
        words = text.split()
        self.reduced = "reduced=off" not in words
        words = [word for word in words if not word.startswith("reduced=")]
        self.original = words[0] == "original"
        self.mez = int(words[1]) if words[0] == "mez" else None
        self.eighths, self.quality, self.gray, self.roi, self.difference = 8, 95, False, None, None
        for word in words if self.mez is None else []:
            if word in EIGHTHS:
                self.eighths = EIGHTHS[word]
            elif word == "gray":
                self.gray = True
            elif word.startswith("roi"):
                self.roi = int(word[3:])
            elif word.startswith("diff"):
                self.difference = float(word[4:-1]) / 100
            elif word.startswith("q"):
                self.quality = int(word[1:])
        self.background = self.last = None

    def apply(self, jpeg):
        """The bytes of the frame after the knobs, empty if it is held back."""
        if self.mez is not None:
            return self.apply_mez(jpeg)
        if self.original and self.difference is None:
            return jpeg.tobytes()
        flag, decoded = reduced_flag(self.eighths if self.reduced else 8, self.gray)
        if self.original:
            flag, decoded = reduced_flag(1, True)
        image = cv2.imdecode(jpeg, flag)
        if self.difference is not None:
            small = self.eighth(image, decoded)
            if self.last is not None:
                changed = cv2.countNonZero(cv2.threshold(cv2.absdiff(small, self.last), 15, 1, cv2.THRESH_BINARY)[1])
                if changed <= self.difference * small.size:
                    return b""
            self.last = small
        if self.original:
            return jpeg.tobytes()
        if decoded != self.eighths:
            size = tuple(-(-side * self.eighths // decoded) for side in image.shape[1::-1])
            image = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
        if self.roi is not None:
            image = self.coarsen(image)
        return self.encode(image, self.quality)

    @staticmethod
    def encode(image, quality):
        return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()

    @staticmethod
    def eighth(image, decoded):
        if decoded > 1:
            size = tuple(-(-side // decoded) for side in image.shape[1::-1])
            image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        return image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)

    def coarsen(self, image):
        """Keeps what moves and makes the rest as coarse as `roi` says."""
        small = self.eighth(image, 8)
        if self.background is None:
            self.background = small.astype(numpy.float32)
        moving = cv2.threshold(cv2.absdiff(small, cv2.convertScaleAbs(self.background)), 12, 255, cv2.THRESH_BINARY)[1]
        moving = cv2.dilate(moving, numpy.ones((5, 5), numpy.uint8))
        cv2.accumulateWeighted(small, self.background, 0.02)
        size = image.shape[1::-1]
        keep = self.roi
        coarse = cv2.resize(image, (size[0] * keep // 8, size[1] * keep // 8), interpolation=cv2.INTER_AREA)
        coarse = cv2.resize(coarse, size, interpolation=cv2.INTER_LINEAR)
        return cv2.copyTo(image, cv2.resize(moving, size, interpolation=cv2.INTER_NEAREST), coarse)

    def apply_mez(self, jpeg):
        index = self.mez
        resolution, color, blur = index // 500 + 1, index % 500 // 100 + 1, index % 100 // 20 + 1
        width, height = MEZ_SIZES[resolution]
        gray = color == 2
        image = cv2.imdecode(jpeg, cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR)
        if image.shape[1] > width or image.shape[0] > height:
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        if color in MEZ_COLORS:
            image = cv2.cvtColor(image, MEZ_COLORS[color])
        if blur > 1:
            image = cv2.blur(image, (MEZ_BLURS[blur], MEZ_BLURS[blur]))
        return self.encode(image, 95)


def main():
    cv2.setNumThreads(1)
    frames = [numpy.fromfile(path, numpy.uint8) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jpg"))]
    rows = {}
    for line in sys.stdin:
        row = line.strip()
        if row == "hello":
            answer = {"opencv": cv2.__version__, "python": platform.python_version(), "frames": len(frames)}
        else:
            knobs = rows.setdefault(row, Knobs(row))
            answer = {"ms": [], "bytes": []}
            for frame in frames:
                start = time.thread_time_ns()
                result = knobs.apply(frame)
                answer["ms"].append((time.thread_time_ns() - start) / 1e6)
                answer["bytes"].append(len(result))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
