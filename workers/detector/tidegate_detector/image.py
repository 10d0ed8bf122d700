"""Images, as they come, to pixels of the size that a detector looks at.

The header is read first: an image that says it is larger than `PIXELS_MAX`, or is none, costs no memory.
"""

from __future__ import annotations

import math
import re
import struct
import time
from typing import Union

import cv2
import numpy as np

from .protocol import FrameError, Size

# 120 MB once decoded. 8K video has 33 million.
PIXELS_MAX = 40_000_000
# The longest side that an answer can name; PNG would allow more.
SIDE_MAX = 65_535
# Markers of JPEG that begin a frame: all SOF but those that are tables (DHT, JPG, DAC).
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# A detector looks at no more pixels than this, whatever the shape of an image: a strip of 4x60000 brought to a width would have billions.
INPUT_PIXELS_MAX = 4_000_000
# A progressive JPEG may have as many scans as its bytes allow, each of which decodes all of its pixels again.
SCANS_MAX = 100
# Between two scans: the next marker that is neither a stuffed zero nor a restart.
MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
PNG = b"\x89PNG\r\n\x1a\n"


class Picture:
    """An encoded image, JPEG or PNG, or pixels of `shape` (height, width, channels: 1 gray, 3 BGR)."""

    def __init__(self, data: bytes | bytearray | memoryview, shape: list[int] | None = None) -> None:
        self._data, self._shape = data, shape
        self._pixels: dict[bool, np.ndarray] = {}
        self._size: Size | None = None
        self.decode_s = 0.0

    def pixels(self, gray: bool) -> np.ndarray:
        """All of its pixels as it is seen, "BGR, row-major" or one gray plane; decoded once."""
        if gray not in self._pixels:
            started = time.perf_counter()
            self._pixels[gray] = self._decode(gray)
            self.decode_s += time.perf_counter() - started
            height, width = self._pixels[gray].shape[:2]
            self._size = Size(width, height)
        return self._pixels[gray]

    def forget(self) -> None:
        """Gives the memory of its pixels back; its size stays known."""
        self._pixels.clear()

    @property
    def size(self) -> Size:
        """Its size as it is seen. Where none of its pixels was asked for, they are decoded: EXIF may turn them."""
        if self._size is None:
            self.pixels(gray=False)
        return self._size

    def _decode(self, gray: bool) -> np.ndarray:
        if self._shape is not None:
            return self._reshaped(gray)
        check_header(self._data)
        flags = cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR
        try:
            image = cv2.imdecode(np.frombuffer(self._data, np.uint8), flags)
        except cv2.error as error:
            raise FrameError(f"{len(self._data)} bytes are not an image that can be decoded ({error.err})") from error
        if image is None:
            raise FrameError(f"{len(self._data)} bytes are not an image that can be decoded")
        return image

    def _reshaped(self, gray: bool) -> np.ndarray:
        try:
            height, width, channels = (int(side) for side in self._shape)
        except (TypeError, ValueError) as error:
            raise FrameError("a shape is [height, width, channels]") from error
        if height < 1 or width < 1 or channels not in (1, 3) or height * width * channels != len(self._data):
            raise FrameError(f"{len(self._data)} bytes are not pixels of height, width, channels {self._shape}")
        check_size(width, height)
        image = np.frombuffer(self._data, np.uint8).reshape(height, width, channels)
        if gray:
            return image[:, :, 0] if channels == 1 else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        return image if channels == 3 else cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)


Image = Union[Picture, bytes]


def fit(source: Size, widest: int) -> Size:
    """`source`, made no wider than `widest` and no larger than `INPUT_PIXELS_MAX`, with its shape kept."""
    return of_width(source, min(source.width, widest))


def of_width(source: Size, width: int) -> Size:
    """`source` brought to that width with its shape kept, or to `INPUT_PIXELS_MAX` where that is less."""
    height = max(1, round(source.height * width / source.width))
    shrink = math.sqrt(INPUT_PIXELS_MAX / (width * height))
    if shrink >= 1:
        return Size(width, height)
    return Size(max(1, int(width * shrink)), max(1, int(height * shrink)))


def decode(image: Image, size: Size, gray: bool) -> np.ndarray:
    """The image brought to `size`; "BGR, row-major" or one gray plane."""
    picture = image if isinstance(image, Picture) else Picture(image)
    pixels = picture.pixels(gray)
    height, width = pixels.shape[:2]
    if (width, height) == size:
        return pixels
    # Averaging when shrinking keeps a shrunk original like a frame that arrived small.
    method = cv2.INTER_AREA if width > size.width else cv2.INTER_LINEAR
    return cv2.resize(pixels, size, interpolation=method)


def check_size(width: int, height: int) -> None:
    """Raises `FrameError` for an image that is not decoded for its size."""
    if not (1 <= width <= SIDE_MAX and 1 <= height <= SIDE_MAX) or width * height > PIXELS_MAX:
        raise FrameError(
            f"an image of {width}x{height} pixels is not looked at: sides of 1 to {SIDE_MAX} pixels and at most "
            f"{PIXELS_MAX // 1_000_000} million pixels are allowed; send it smaller"
        )


def check_header(data: bytes | bytearray | memoryview) -> None:
    """Raises `FrameError` for bytes that are no whole JPEG or PNG image of an allowed size; decodes nothing."""
    start = bytes(data[:8])
    if start[:2] == b"\xff\xd8":
        check_jpeg(bytes(data))
    elif start == PNG:
        check_png(data)
    else:
        kind = "a PDF document" if start[:4] == b"%PDF" else f"bytes that begin with {start[:4].hex() or 'nothing'}"
        raise FrameError(f"{kind}: {len(data)} bytes are not an image; send JPEG or PNG")


def check_png(data: bytes | bytearray | memoryview) -> None:
    head = bytes(data[8:24])
    if len(head) < 16 or head[4:8] != b"IHDR":
        raise FrameError(f"{len(data)} bytes are not an image: a PNG image without its header")
    check_size(*struct.unpack(">II", head[8:16]))
    # Chunk by chunk: bytes may follow the last one, as libpng allows, and the four letters may stand within another.
    at = len(PNG)
    while at + 12 <= len(data):
        kind = bytes(data[at + 4 : at + 8])
        at += 12 + int.from_bytes(data[at : at + 4], "big")
        if kind == b"IEND" and at <= len(data):
            return
    raise FrameError(f"the PNG image is cut off after {len(data)} bytes")


def check_jpeg(data: bytes) -> None:
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # without a length
            at += 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in FRAMES and at + 9 <= len(data):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            check_size(width, height)
            # An end before the frame would be that of a thumbnail.
            if data.find(b"\xff\xd9", at) < 0:
                raise FrameError(f"the JPEG image is cut off after {len(data)} bytes")
            check_scans(data, at + 2 + length)
            return
        if marker in (0xD9, 0xDA) or length < 2:
            break
        at += 2 + length
    raise FrameError(f"{len(data)} bytes are not an image: a JPEG image without a frame, or cut off before it")


def check_scans(data: bytes, at: int) -> None:
    """Raises `FrameError` for a JPEG image of more than `SCANS_MAX` scans. `at` is behind the header of its frame."""
    scans = 0
    while (found := MARKER.search(data, at)) is not None and data[found.end() - 1] != 0xD9:
        scans += data[found.end() - 1] == 0xDA
        if scans > SCANS_MAX:
            raise FrameError(f"a JPEG image of more than {SCANS_MAX} scans is not looked at; save it again with fewer")
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
