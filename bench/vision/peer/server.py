"""A server that finds faces, for the bench of the endpoints: Django and Channels in one process.

    server.py [--http PORT] [--tcp PORT] [--detector haar|echo] [--milliseconds N]

It has the shape of the MobiledgeX computer vision server, whose paths, answers and way of working it follows, and no line of its code:

    POST /detector/detect/     image/jpeg, image/png, a form with image=<base64>, or a multipart file called image
    GET  /server/usage/        use of the machine in per cent
    GET  /test/                a sentence
    WS   /ws/detector/detect/  one binary message is one image, one text message the answer; text is sent back
    TCP                        4 bytes operation, 4 bytes length, image; the answer is 4 bytes length and JSON

As there, REST does not count the decoding of an image as server time and the other two do; Haar's cascade looks at the colour picture
with a scale factor of 1.3 and 5 neighbours; views and consumers are synchronous, so that Django runs them on threads; each request of
HTTP passes the same middleware, with sessions in a database of SQLite, which a request without a cookie never asks; and the TCP server
writes the length and the JSON apart. Unlike there, nothing is logged, no image is written to the disk, and there is no WhiteNoise, which
looks a path up among the static files.

`echo` decodes nothing and finds one box, so that what is left is the server's own cost. `--milliseconds` makes each detection take at
least so long, without using the processor and one at a time, as one detector does.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import secrets
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Callable

import cv2
import django
import numpy as np
from django.conf import settings

IMAGE_BYTES_MAX = 64 << 20
Rects = list[list[int]]


class ImageError(ValueError):
    """Bytes that are no image."""


class Haar:
    """Faces from the front, by OpenCV's cascade."""

    def __init__(self) -> None:
        self._cascade = cv2.CascadeClassifier(cv2.data.haarcascades + "haarcascade_frontalface_default.xml")

    def decode(self, data: bytes) -> np.ndarray:
        """The picture, blue, green, red."""
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ImageError("this is no JPEG and no PNG")
        return image

    def detect(self, image: np.ndarray) -> Rects:
        """Left, top, right, bottom of each face."""
        found = self._cascade.detectMultiScale(image, scaleFactor=1.3, minNeighbors=5)
        return [[int(x), int(y), int(x + width), int(y + height)] for x, y, width, height in found]


class Echo:
    """Finds one box in whatever it is given."""

    def decode(self, data: bytes) -> bytes:
        """The bytes."""
        return data

    def detect(self, image: bytes) -> Rects:
        """One box."""
        return [[0, 0, 1, 1]]


class Server:
    """The detector, with its times."""

    def __init__(self, detector: Haar | Echo, milliseconds: float) -> None:
        self._detector = detector
        self._seconds = milliseconds / 1e3
        self._turn = threading.Lock()

    def look(self, data: bytes, counts_decoding: bool) -> str:
        """The answer for an image."""
        start = time.perf_counter()
        image = self._detector.decode(data)
        if not counts_decoding:
            start = time.perf_counter()
        rects = self._detector.detect(image)
        if self._seconds > 0:
            with self._turn:
                time.sleep(self._seconds)
        took = f"{(time.perf_counter() - start) * 1e3:.3f}"
        if not rects:
            return json.dumps({"success": "false", "server_processing_time": took})
        return json.dumps({"success": "true", "server_processing_time": took, "rects": rects})


def usage() -> Callable[[], dict[str, float]]:
    """Use of the machine since the last call."""
    before = [0, 0]

    def read() -> dict[str, float]:
        with open("/proc/stat", encoding="ascii") as stat:
            fields = [int(field) for field in stat.readline().split()[1:9]]
        total, idle = sum(fields), fields[3] + fields[4]
        spent, rested = total - before[0], idle - before[1]
        before[:] = [total, idle]
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            memory = {line.split(":")[0]: int(line.split()[1]) for line in meminfo}
        free = memory["MemAvailable"] / memory["MemTotal"]
        return {"cpu_util": round(100 * (1 - rested / max(spent, 1)), 1), "mem_util": round(100 * (1 - free), 1)}

    return read


def application(server: Server) -> object:
    """Django's views and Channels' consumer."""
    from channels.generic.websocket import WebsocketConsumer
    from channels.routing import ProtocolTypeRouter, URLRouter
    from django.core.asgi import get_asgi_application
    from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
    from django.urls import path, re_path
    from django.views.decorators.csrf import csrf_exempt

    @csrf_exempt
    def detect(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseBadRequest("Must send frame as a POST")
        match request.content_type:
            case "image/jpeg" | "image/png":
                data = request.body
            case "multipart/form-data":
                if "image" not in request.FILES:
                    return HttpResponseBadRequest("Image file must be uploaded with key of 'image'")
                data = request.FILES["image"].read()
            case "application/x-www-form-urlencoded":
                if not request.POST.get("image"):
                    return HttpResponseBadRequest("Missing 'image' parameter")
                try:
                    data = base64.b64decode(request.POST["image"])
                except binascii.Error:
                    return HttpResponseBadRequest("'image' is not base64")
            case _:
                return HttpResponseBadRequest("Content-Type is not that of an image or a form")
        try:
            return HttpResponse(server.look(data, counts_decoding=False))
        except ImageError as error:
            return HttpResponseBadRequest(str(error))

    class Faces(WebsocketConsumer):
        def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
            if bytes_data is None:
                self.send(text_data=text_data)
                return
            try:
                self.send(text_data=server.look(bytes_data, counts_decoding=True))
            except ImageError as error:
                self.send(text_data=json.dumps({"success": "false", "error": str(error)}))

    read_usage = usage()
    settings.ROOT_URLCONF = __name__
    globals()["urlpatterns"] = [
        path("detector/detect/", detect),
        path("server/usage/", lambda request: HttpResponse(json.dumps(read_usage()))),
        path("test/", lambda request: HttpResponse("Valid GET Request to server")),
    ]
    sockets = URLRouter([re_path(r"^ws/detector/detect/$", Faces.as_asgi())])
    return ProtocolTypeRouter({"http": get_asgi_application(), "websocket": sockets})


class Persistent(socketserver.BaseRequestHandler):
    """One connection of the persistent TCP protocol."""

    server: Tcp

    def handle(self) -> None:
        """Answers until the client is gone."""
        while head := self._read(8):
            operation, length = struct.unpack("!II", head)
            if length > IMAGE_BYTES_MAX:
                return
            data = self._read(length)
            if data is None:
                return
            if operation == 1:
                try:
                    answer = self.server.looks.look(data, counts_decoding=True)
                except ImageError as error:
                    answer = json.dumps({"success": "false", "error": str(error), "server_processing_time": 0})
            elif operation == 5:
                answer = json.dumps({"success": "pong"})
            else:
                said = f"Unsupported opcode: {operation}"
                answer = json.dumps({"success": "false", "error": said, "server_processing_time": 0})
            encoded = answer.encode()
            self.request.sendall(struct.pack("!I", len(encoded)))
            self.request.sendall(encoded)

    def _read(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            more = self.request.recv(count - len(data))
            if not more:
                return None
            data += more
        return bytes(data)


class Tcp(socketserver.ThreadingTCPServer):
    """The persistent TCP protocol, a thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    looks: Server

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no failure."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serves until it is ended."""
    options = argparse.ArgumentParser(description="a server that finds faces, for a bench")
    options.add_argument("--http", type=int, default=8008)
    options.add_argument("--tcp", type=int, default=8011)
    options.add_argument("--detector", choices=["haar", "echo"], default="haar")
    options.add_argument("--milliseconds", type=float, default=0.0)
    given = options.parse_args()
    # One process is one core there; OpenCV's own threads would make it a comparison of machines.
    cv2.setNumThreads(1)
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATA_UPLOAD_MAX_MEMORY_SIZE=IMAGE_BYTES_MAX,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEBUG=False,
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
        ],
        LOGGING_CONFIG=None,
        MIDDLEWARE=[
            "django.middleware.security.SecurityMiddleware",
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "django.middleware.clickjacking.XFrameOptionsMiddleware",
        ],
        SECRET_KEY=secrets.token_hex(),
    )
    django.setup()
    server = Server(Haar() if given.detector == "haar" else Echo(), given.milliseconds)
    tcp = Tcp(("0.0.0.0", given.tcp), Persistent)
    tcp.looks = server
    threading.Thread(target=tcp.serve_forever, daemon=True).start()

    from daphne.endpoints import build_endpoint_description_strings
    from daphne.server import Server as Daphne

    endpoints = build_endpoint_description_strings(host="0.0.0.0", port=given.http)
    Daphne(application(server), endpoints=endpoints, request_buffer_size=IMAGE_BYTES_MAX).run()


if __name__ == "__main__":
    main()
