"""JPEG images to pixels and back, by OpenCV or Pillow, whichever is installed; OpenCV where both are."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import FrameRefusedError, NotInstalledError

PIXELS_MAX = 150_000_000
"""Most pixels that are decoded: the header of a picture that has more is believed, and costs no memory."""

_MISSING = "pixels need OpenCV or Pillow: pip install 'tidegate[opencv]' or 'tidegate[pillow]'"


def decode(jpeg: bytes | bytearray | memoryview) -> NDArray[np.uint8]:
    """A JPEG or PNG image as BGR, `(height, width, 3)`, uint8, turned as its EXIF says.

    Raises:
        NotInstalledError: neither OpenCV nor Pillow is installed.
        FrameRefusedError: the image cannot be decoded, or has more than `PIXELS_MAX` pixels.
    """
    size = size_of(jpeg)
    if size is not None and size[0] * size[1] > PIXELS_MAX:
        text = f"an image of {size[0]}x{size[1]} pixels is not decoded: {PIXELS_MAX} pixels are allowed"
        raise FrameRefusedError(text, "frames.frame.invalid")
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
    if not isinstance(image, np.ndarray):
        raise FrameRefusedError(f"{type(image).__name__} is no picture; bytes of JPEG or BGR pixels (numpy) are", "frames.frame.invalid")
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


def is_pillow(image: object) -> bool:
    """Whether it is an image of Pillow; asks nobody for Pillow that has none."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == "PIL.Image.Image" for kind in type(image).__mro__)


def of_pillow(image: Any) -> NDArray[np.uint8]:
    """The pixels of an image of Pillow as BGR, turned as its EXIF says."""
    import PIL.ImageOps

    return np.ascontiguousarray(np.asarray(PIL.ImageOps.exif_transpose(image).convert("RGB"))[:, :, ::-1])


def check_installed() -> None:
    """Raises NotInstalledError where neither OpenCV nor Pillow is installed."""
    if _cv2() is None and _pillow() is None:
        raise NotInstalledError(_MISSING, "sdk.not_installed")


def size_of(data: bytes | bytearray | memoryview) -> tuple[int, int] | None:
    """Width and height that the header of a JPEG or PNG image says, as it is stored; None where it says none."""
    if bytes(data[:8]) == b"\x89PNG\r\n\x1a\n":
        return struct.unpack(">II", data[16:24]) if len(data) >= 24 else None
    if bytes(data[:2]) != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8 or marker == 0x01:  # a filler, or a marker without a length
            at += 1 if marker == 0xFF else 2
            continue
        # All SOF but the tables that lie between them: DHT, JPG, DAC.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


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
