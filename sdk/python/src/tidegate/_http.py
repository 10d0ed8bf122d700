"""Requests of HTTP to the API port of a node, over connections that are kept. They block; the client for asyncio makes them in threads."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Mapping
from typing import IO, Any, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from . import images
from ._connection import CONNECT_TIMEOUT_S, MESSAGE_BYTES_MAX, Settings, invalid
from .detections import Detections, Model, detections_of
from .errors import IdentityRefusedError, ImageRefusedError, LimitReachedError, LinkDownError, TidegateError, of_code, of_status
from .frames import Frame, Original


class PillowImage(Protocol):
    """An image of Pillow, which this package does not need."""

    def convert(self, mode: str) -> Any:
        """The same in another mode."""


ImageInput = Frame | Original | bytes | bytearray | memoryview | str | os.PathLike[str] | IO[bytes] | NDArray[Any] | PillowImage
"""A frame; a JPEG or PNG image as bytes, as a path (`str` or `Path`), or as a file that is open for reading bytes; BGR pixels of
`(height, width, 3)` uint8; or an image of Pillow.
"""

IN_FLIGHT_MAX = 64
"""Most images of one detector that are under way at once."""

_KEPT_MAX = 8
_QUALITY = 95


class HttpCalls:
    """Requests to one node, from any thread."""

    def __init__(self, settings: Settings, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._headers = dict(settings.metadata())
        self._lock = threading.Lock()
        self._kept: list[_Connection] = []
        self._tls: ssl.SSLContext | None = None
        self._is_closed = False

    def detect(self, image: ImageInput, model: str) -> Detections:
        """The findings of a model in an image."""
        body = bytes_of(image)
        kind = "image/png" if bytes(body[:4]) == b"\x89PNG" else "image/jpeg"
        return detections_of(self.json("POST", f"/v1/detect/{quote(model, safe='')}", body, kind))

    def models(self) -> list[Model]:
        """The models that there are."""
        answer = self.json("GET", "/v1/models")
        try:
            return [Model(model["name"], model.get("kind") or "", bool(model.get("loaded", True))) for model in answer["models"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise TidegateError(f"the node sent a list of models that cannot be read: {error!r}", "link.protocol") from error

    def json(self, method: str, path: str, body: bytes | memoryview | None = None, kind: str | None = None) -> Any:
        """The answer of a request.

        Raises:
            TidegateError: the node's failure by its class, or LinkDownError.
        """
        headers = self._headers if kind is None else {**self._headers, "content-type": kind}
        status, told, data = self._ask(method, path, body, headers)
        try:
            answer = json.loads(data)
        except ValueError as error:
            if 200 <= status < 300:
                raise TidegateError(f"the node answered {path} with what is no JSON", "link.protocol") from error
            answer = None
        if 200 <= status < 300:
            return answer
        raise _failure(path, status, told, answer)

    def _ask(
        self, method: str, path: str, body: bytes | memoryview | None, headers: Mapping[str, str]
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        while True:
            connection, is_new = self._take()
            try:
                answer, is_whole = answer_of(connection, method, path, body, headers)
                data = answer.read(MESSAGE_BYTES_MAX + 1)
                if len(data) > MESSAGE_BYTES_MAX:
                    raise TidegateError(f"an answer of more than {MESSAGE_BYTES_MAX} bytes", "link.protocol")
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A kept connection may be closed by the node as the request leaves, which was not looked at then: it is made once more.
                if not is_new and isinstance(error, ConnectionError | http.client.RemoteDisconnected):
                    continue
                raise self._unreachable(error) from error
            except BaseException:
                connection.close()
                raise
            if is_whole:
                self._keep(connection, answer)
            else:
                connection.close()
            return answer.status, answer.headers, data

    def _take(self) -> tuple[_Connection, bool]:
        with self._lock:
            if self._is_closed:
                raise LinkDownError("the client is closed", "sdk.closed")
            if self._kept:
                return self._kept.pop(), False
            if self._tls is None:
                self._tls = _context(self._settings)
            return _Connection(self._settings, self._tls, self._timeout_s), True

    def _keep(self, connection: _Connection, answer: http.client.HTTPResponse) -> None:
        with self._lock:
            if not self._is_closed and not answer.will_close and len(self._kept) < _KEPT_MAX:
                self._kept.append(connection)
                return
        connection.close()

    def _unreachable(self, error: Exception) -> TidegateError:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            text = f"the peers do not accept each other's certificates; both must come from the same `tidegate init` ({error})"
            return IdentityRefusedError(text, "auth.identity.refused")
        return LinkDownError(f"no node answers at {self._settings.api}: {error}", "link.down")

    def close(self) -> None:
        """Closes the connections that are kept. Idempotent."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()


def answer_of(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | memoryview | None, headers: Mapping[str, str]
) -> tuple[http.client.HTTPResponse, bool]:
    """The answer to a request, and whether all of the request was sent.

    A node answers before it has read a body that it does not take, and after a while reads no more of it: sending fails then, and the
    answer, which says why, is there all the same.

    Raises:
        OSError: the request could not be sent, and no answer came.
        http.client.HTTPException: what came is no answer.
    """
    try:
        connection.request(method, path, body, dict(headers))
    except OSError as error:
        if body is None or connection.sock is None or isinstance(error, TimeoutError):
            raise
        try:
            return connection.getresponse(), False
        except (OSError, http.client.HTTPException):
            raise error from None
    return connection.getresponse(), True


class _Connection(http.client.HTTPSConnection):
    """A connection whose certificate may carry another name than its address."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext, timeout_s: float) -> None:
        super().__init__(settings.api.host, settings.api.port, timeout=timeout_s, context=tls)
        self._name = settings.server_name or settings.api.host
        self._tls_context = tls
        self._timeout_s = timeout_s

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), CONNECT_TIMEOUT_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock = self._tls_context.wrap_socket(plain, server_hostname=self._name)
        except BaseException:
            plain.close()
            raise
        self.sock.settimeout(self._timeout_s)


def _context(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=None if settings.authority is None else settings.authority.decode("ascii"))
        context.set_alpn_protocols(["http/1.1"])
        if settings.identity_files is not None:
            context.load_cert_chain(*settings.identity_files)
        elif settings.identity is not None:
            # The standard library reads certificates from files alone.
            with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
                paths = [os.path.join(folder, name) for name in ("certificate", "key")]
                for path, data in zip(paths, settings.identity, strict=True):
                    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                        file.write(data)
                context.load_cert_chain(*paths)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise invalid(f"the authority or the certificate cannot be used: {error}") from error
    return context


def _failure(path: str, status: int, headers: http.client.HTTPMessage, answer: Any) -> TidegateError:
    told = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(told, dict) and isinstance(told.get("code"), str):
        error = of_code(told["code"], str(told.get("message", "")))
    else:
        error = of_status(status, f"{path}: the node answered with {status}")
    if isinstance(error, LimitReachedError):
        seconds = headers.get("retry-after", "")
        error.retry_after_s = float(seconds) if seconds.isdecimal() else None
    return error


def bytes_of(image: ImageInput) -> bytes | memoryview:
    """The image as it is sent.

    Raises:
        ImageRefusedError: it is none, or cannot be read.
    """
    if isinstance(image, Frame):
        return image.jpeg_view
    if isinstance(image, Original):
        return image.jpeg
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image) if isinstance(image, bytearray) else image
    if isinstance(image, str | os.PathLike):
        try:
            with open(image, "rb") as file:
                return file.read()
        except OSError as error:
            raise ImageRefusedError(f"the image {os.fspath(image)} cannot be read: {error.strerror}", "vision.image.invalid") from error
    if isinstance(image, np.ndarray):
        return images.encode(image, _QUALITY)
    if hasattr(image, "read"):
        data = image.read()
        if isinstance(data, bytes):
            return data
    elif images.is_pillow(image):
        return images.encode(images.of_pillow(image), _QUALITY)
    raise ImageRefusedError(
        f"{type(image).__name__} is no image; a frame, bytes of JPEG or PNG, a path, a file that is open for bytes, BGR pixels "
        "(numpy) or an image of Pillow is",
        "vision.image.type",
    )


def check_in_flight(in_flight: int) -> None:
    """Raises InvalidRequestError for a number of images that cannot be under way."""
    if not 1 <= in_flight <= IN_FLIGHT_MAX:
        raise invalid(f"{in_flight} images under way are out of range: 1 to {IN_FLIGHT_MAX}")
