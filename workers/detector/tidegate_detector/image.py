"""JPEG bytes to pixels of the size that a detector looks at."""

from __future__ import annotations

import cv2
import numpy as np

from .protocol import FrameError, Size


def fit(source: Size, widest: int) -> Size:
    """`source`, made no wider than `widest` with its shape kept."""
    if source.width <= widest:
        return source
    return Size(widest, max(1, round(source.height * widest / source.width)))


def decode(jpeg: bytes, size: Size, gray: bool) -> np.ndarray:
    """The image brought to `size`; "BGR, row-major" or one gray plane."""
    flags = cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR
    image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags) if jpeg else None
    if image is None:
        raise FrameError(f"{len(jpeg)} bytes are not an image that can be decoded")
    height, width = image.shape[:2]
    if (width, height) == size:
        return image
    # Averaging when shrinking keeps a shrunk original like a frame that arrived small.
    method = cv2.INTER_AREA if width > size.width else cv2.INTER_LINEAR
    return cv2.resize(image, size, interpolation=method)
