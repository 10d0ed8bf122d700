"""Detection by a node: against a fake of its paths, and against the real one."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Site, free_ports

import tidegate
import tidegate.aio
from tidegate import images
from tidegate._connection import Settings
from tidegate._http import HttpCalls, answer_of

JPEG = images.encode(np.full((48, 64, 3), 90, np.uint8))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
Reply = tuple[int, dict[str, str], bytes]


def found(body: bytes) -> dict[str, Any]:
    """An answer whose first box is as wide as the image has bytes."""
    return {
        "model": "face",
        "image": {"width": 64, "height": 48},
        "boxes": [[0, 0, len(body), 40, 0.9, "face"]],
        "times": {"queue_ms": 1, "decode_ms": 2, "infer_ms": 3, "total_ms": 6},
    }


class Fake:
    """The paths of a node over TLS with the certificate of the site."""

    def __init__(self, pki: Path) -> None:
        fake = self
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.connections = 0
        self.answer: Callable[[str, bytes], Reply] = lambda _, body: (200, {}, json.dumps(found(body)).encode())

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                fake.connections += 1

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                fake.requests.append((self.command, self.path, headers))
                status, more, answer = fake.answer(self.path, body)
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {**more, "content-length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "edge.pem", pki / "edge.key")
        context.load_verify_locations(pki / "ca.pem")
        context.verify_mode = ssl.CERT_OPTIONAL
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def fake(site: Site) -> Iterator[Fake]:
    fake = Fake(site.pki)
    yield fake
    fake.stop()


def calls(url: str, **how: Any) -> HttpCalls:
    none = dict.fromkeys(("token", "user", "cert", "ca", "pki", "mqtt", "server_name", "retries"))
    return HttpCalls(Settings.make(url, **{**none, **how}), 10)


def test_an_image_goes_as_it_is_over_a_connection_that_is_kept(site: Site, fake: Fake) -> None:
    http = calls(fake.url, ca=str(site.pki / "ca.pem"), user=("ada", "secret"))
    pixels = np.full((48, 64, 3), 90, np.uint8)
    for image, size, kind in (
        (JPEG, len(JPEG), "image/jpeg"),
        (memoryview(PNG), len(PNG), "image/png"),
        (pixels, len(JPEG), "image/jpeg"),
        (tidegate.Original("cam1", 1, JPEG), len(JPEG), "image/jpeg"),
    ):
        answer = http.detect(image, "face")
        assert answer.xyxy.tolist() == [[0, 0, size, 40]] and answer.labels == ("face",)
        method, path, headers = fake.requests[-1]
        assert (method, path, headers["content-type"]) == ("POST", "/v1/detect/face", kind)
        assert headers["authorization"].startswith("Basic ")
    assert fake.connections == 1
    assert http.detect(JPEG, "a/b c").model == "face" and fake.requests[-1][1] == "/v1/detect/a%2Fb%20c"
    http.close()
    with pytest.raises(tidegate.LinkDownError, match="closed"):
        http.detect(JPEG, "face")


def test_a_connection_that_was_closed_meanwhile_is_no_failure(site: Site, fake: Fake) -> None:
    http = calls(fake.url, pki=str(site.pki))
    fake.answer = lambda _, body: (200, {"connection": "close"} if body == b"1" else {}, json.dumps(found(body)).encode())
    http.detect(b"1", "face")
    http.detect(b"22", "face")
    drop = iter([True, False])
    fake.answer = lambda _, body: (0, {}, b"") if next(drop) else (200, {}, json.dumps(found(body)).encode())
    assert http.detect(b"333", "face").xyxy[0, 2] == 3
    # A new one that is closed is one.
    http.close()
    http = calls(fake.url, pki=str(site.pki))
    fake.answer = lambda *_: (0, {}, b"")
    with pytest.raises(tidegate.LinkDownError):
        http.detect(b"1", "face")
    http.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "vision.model.unknown", tidegate.ModelUnknownError),
        (422, "vision.image.invalid", tidegate.ImageRefusedError),
        (415, "vision.image.type", tidegate.ImageRefusedError),
        (429, "limit.reached", tidegate.LimitReachedError),
        (503, "vision.detector.unavailable", tidegate.DetectorFailedError),
        (403, "auth.action.denied", tidegate.ActionDeniedError),
        (401, None, tidegate.IdentityRefusedError),
        (429, None, tidegate.LimitReachedError),
        (502, None, tidegate.LinkDownError),
        (418, None, tidegate.TidegateError),
        (200, None, tidegate.TidegateError),
    ],
)
def test_each_failure_has_its_class(site: Site, fake: Fake, status: int, code: str | None, kind: type[tidegate.TidegateError]) -> None:
    body = b"<html>" if code is None else json.dumps({"error": {"code": code, "message": "the reason"}}).encode()
    fake.answer = lambda *_: (status, {"retry-after": "2"}, body)
    http = calls(fake.url, pki=str(site.pki))
    with pytest.raises(tidegate.TidegateError) as raised:
        http.detect(JPEG, "face")
    http.close()
    assert type(raised.value) is kind
    if code is not None:
        assert raised.value.code == code and str(raised.value) == "the reason"
    if isinstance(raised.value, tidegate.LimitReachedError):
        assert raised.value.retry_after_s == 2


def test_an_answer_before_the_body_is_read_although_sending_fails() -> None:
    """As of a node that has read enough of a body that it does not take."""
    text = b'{"error": {"code": "auth.identity.refused", "message": "no"}}'
    head = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n" % len(text)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(100)
            connection.sendall(head + text)
            # With bytes unread, which resets the connection.
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        connection = http.client.HTTPConnection(*server.getsockname(), timeout=60)
        got, is_whole = answer_of(connection, "POST", "/v1/detect/face", bytes(64 << 20), {})
        assert (got.status, got.read(), is_whole) == (401, text, False)
        connection.close()
        thread.join()


def test_certificates_are_checked_on_both_sides(site: Site, fake: Fake) -> None:
    pem = (site.pki / "application.pem").read_bytes(), (site.pki / "application.key").read_bytes()
    ca = (site.pki / "ca.pem").read_bytes()
    for how in ({"cert": pem, "ca": ca}, {"ca": ca, "server_name": "localhost"}):
        http = calls(fake.url, **how)
        assert len(http.detect(JPEG, "face")) == 1
        http.close()
    for wrong in ({}, {"ca": ca, "server_name": "another.example"}):
        with pytest.raises(tidegate.IdentityRefusedError, match="tidegate init"):
            calls(fake.url, **wrong).detect(JPEG, "face")
    with pytest.raises(tidegate.InvalidRequestError):
        calls(fake.url, ca=b"no PEM").detect(JPEG, "face")
    (port,) = free_ports(1)
    with pytest.raises(tidegate.LinkDownError, match="no node answers"):
        calls(f"127.0.0.1:{port}", ca=ca).detect(JPEG, "face")


def test_many_images_are_under_way_and_keep_their_order(site: Site, fake: Fake) -> None:
    under_way = 0
    most = 0
    lock = threading.Lock()

    def slow(_: str, body: bytes) -> Reply:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        # The subject of the test: the first takes longest.
        time.sleep(0.2 if len(body) == 1 else 0.05)
        with lock:
            under_way -= 1
        return 200, {}, json.dumps(found(body)).encode()

    fake.answer = slow
    http = calls(fake.url, pki=str(site.pki))
    taken: list[int] = []

    def pictures() -> Iterator[bytes]:
        for size in range(1, 9):
            taken.append(size)
            yield b"x" * size

    with tidegate.Detector(http, "face", 3) as detector:
        for count, (image, answer) in enumerate(detector.map(pictures()), start=1):
            assert len(image) == count == answer.xyxy[0, 2]  # type: ignore[arg-type]
            assert len(taken) <= count + 2, "no more are taken than are under way"
        assert count == 8 and most == 3

    async def same() -> list[float]:
        async with tidegate.aio.Detector(http, "face", 3) as detector:
            return [float(answer.xyxy[0, 2]) async for _, answer in detector.map(pictures())]

    assert asyncio.run(same()) == list(range(1, 9)) and most == 3
    fake.answer = lambda _, body: (422 if len(body) == 3 else 200, {}, json.dumps(found(body)).encode())
    with tidegate.Detector(http, "face", 2) as detector:
        answered = []
        with pytest.raises(tidegate.ImageRefusedError):
            for image, _ in detector.map(pictures()):
                answered.append(len(image))  # type: ignore[arg-type]
        assert answered == [1, 2]
    for wrong in (0, 65):
        with pytest.raises(tidegate.InvalidRequestError):
            tidegate.Detector(http, "face", wrong)
    http.close()


def test_a_detector_needs_no_threads_of_the_loop(site: Site, fake: Fake) -> None:
    http = calls(fake.url, pki=str(site.pki))
    release = threading.Event()

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        other = loop.run_in_executor(None, release.wait, 60)
        try:
            async with asyncio.timeout(20), tidegate.aio.Detector(http, "face", 2) as detector:
                assert (await detector.detect(b"x" * 7)).xyxy[0, 2] == 7
            with pytest.raises(tidegate.LinkDownError) as error:
                await detector.detect(JPEG)
            assert error.value.code == "sdk.closed"
        finally:
            release.set()
            await other

    asyncio.run(ask())
    http.close()


def test_models_are_listed(site: Site, fake: Fake) -> None:
    http = calls(fake.url, pki=str(site.pki))
    models = [{"name": "face", "kind": "detection", "loaded": True, "failed": None}, {"name": "street", "kind": "", "loaded": False}]
    fake.answer = lambda *_: (200, {}, json.dumps({"detector": "tidegate", "models": models}).encode())
    assert http.models() == [tidegate.Model("face", "detection", True), tidegate.Model("street", "", False)]
    for wrong in ({}, [], {"models": [7]}):
        fake.answer = lambda *_, wrong=wrong: (200, {}, json.dumps(wrong).encode())  # type: ignore[misc]
        with pytest.raises(tidegate.TidegateError, match="cannot be read"):
            http.models()
    http.close()


EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="session")
def detecting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node whose worker is the example of a detector."""
    command = f"{sys.executable} {EXAMPLES / 'detector_service.py'}"
    site = Site(tmp_path_factory.mktemp("detecting"), {"workers.command": command, "workers.count": "1"})
    try:
        site.start()
        site.start_camera("cam1")
        site.wait_for_camera("cam1")
        yield site
    finally:
        site.stop()


def test_a_function_is_a_worker_of_a_node(detecting: Site) -> None:
    with detecting.connect() as node:
        assert tidegate.Model("dark", "detection", False) in node.models()
        original = node.fetch_original("cam1", node.camera("cam1").newest_at_ns)
        found = node.detect(original, "dark")
        assert found.image_size == (640, 360) and len(found) > 0 and set(found.labels) == {"dark"}
        assert found.times.total_ms > 0
        with node.detector("dark", in_flight=4) as detector:
            answers = [answer for _, answer in detector.map([original.jpeg] * 8)]
        assert all(np.array_equal(answer.xyxy, found.xyxy) for answer in answers)
        with pytest.raises(tidegate.ModelUnknownError, match="dark"):
            node.detect(original, "no-such-model")
        with pytest.raises(tidegate.ImageRefusedError):
            node.detect(b"%PDF-1.4", "dark")
        with pytest.raises(tidegate.ImageRefusedError):
            node.detect(original.jpeg[:1000], "dark")
        assert np.array_equal(node.detect(original, "dark").xyxy, found.xyxy)

    async def same() -> tidegate.Detections:
        async with await tidegate.aio.connect(detecting.url, pki=str(detecting.pki)) as node:
            assert [model.name for model in await node.models()] == ["dark"]
            return await node.detect(original, "dark")

    assert np.array_equal(asyncio.run(same()).xyxy, found.xyxy)


def test_people_are_counted(detecting: Site, python: Callable[..., subprocess.Popen[str]]) -> None:
    arguments = ["cam1", "--node", detecting.url, "--pki", str(detecting.pki), "--model", "dark", "--seconds", "2"]
    out, said = python(str(EXAMPLES / "count_people.py"), *arguments).communicate(timeout=60)
    assert "cam1: " in out and "together" in out and re.search(r"looked at [1-9]\d* frames of cam1", out), said
