"""JPEG images to pixels and back, by OpenCV or Pillow, whichever is installed; OpenCV where both are."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import FrameRefusedError, NotInstalledError

_MISSING = "pixels need OpenCV or Pillow: pip install 'tidegate[opencv]' or 'tidegate[pillow]'"


def decode(jpeg: bytes | memoryview) -> NDArray[np.uint8]:
    """A JPEG image as BGR, `(height, width, 3)`, uint8, turned as its EXIF says.

    Raises:
        NotInstalledError: neither OpenCV nor Pillow is installed.
        FrameRefusedError: the image cannot be decoded.
    """
    cv2 = _cv2()
    if cv2 is not None:
        try:
            image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        except cv2.error:  # no bytes at all, or a picture beyond OpenCV's own limits
            image = None
        if image is None:
            raise FrameRefusedError(f"OpenCV cannot decode the image of {len(jpeg)} bytes", "frames.frame.invalid")
        return np.asarray(image, dtype=np.uint8)
    pillow = _pillow()
    if pillow is None:
        raise NotInstalledError(_MISSING, "sdk.not_installed")
    try:
        with pillow.Image.open(io.BytesIO(jpeg)) as picture:
            rgb = np.asarray(pillow.ImageOps.exif_transpose(picture).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        text = f"Pillow cannot decode the image of {len(jpeg)} bytes: {error}"
        raise FrameRefusedError(text, "frames.frame.invalid") from error
    return np.ascontiguousarray(rgb[:, :, ::-1])


def encode(image: NDArray[np.uint8], quality: int = 95) -> bytes:
    """BGR pixels, `(height, width, 3)` or gray `(height, width)`, as a JPEG image of a quality of 1 to 100.

    Raises:
        NotInstalledError: neither OpenCV nor Pillow is installed.
        FrameRefusedError: the array is no picture.
    """
    is_picture = image.dtype == np.uint8 and (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3))
    if not is_picture or image.size == 0:
        raise FrameRefusedError(
            f"an array of {image.dtype} with the shape {image.shape} is no picture; uint8 of (height, width, 3) or (height, width) is",
            "frames.frame.invalid",
        )
    cv2 = _cv2()
    if cv2 is not None:
        is_done, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
        if not is_done:
            raise FrameRefusedError(f"OpenCV cannot encode an image of the shape {image.shape}", "frames.frame.invalid")
        return bytes(data)
    pillow = _pillow()
    if pillow is None:
        raise NotInstalledError(_MISSING, "sdk.not_installed")
    data = io.BytesIO()
    pillow.Image.fromarray(image if image.ndim == 2 else np.ascontiguousarray(image[:, :, ::-1])).save(data, "JPEG", quality=quality)
    return bytes(data.getvalue())


def _cv2() -> Any:
    try:
        import cv2
    except ImportError:
        return None
    return cv2


def _pillow() -> Any:
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        return None
    return PIL
