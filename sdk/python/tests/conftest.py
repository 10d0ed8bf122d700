"""A site on loopback: a real node with two cameras that play generated scenes, and a caller of each kind."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate
from tidegate import images

READY_S = 60.0


def pytest_configure() -> None:
    """A run that is terminated ends as one that is interrupted: its node and cameras end with it."""
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")


CAMERAS = {"cam1": "scene:street?size=640x360&fps=10&seconds=3", "cam2": "scene:street?size=320x180&fps=10&seed=2&seconds=3"}


def poll(ask: Callable[[], Any], seconds: float = READY_S) -> Any:
    """The first answer that is something; fails when there is none in time."""
    end = time.monotonic() + seconds
    while True:
        said = ask()
        if said:
            return said
        assert time.monotonic() < end, f"nothing within {seconds} s: {said!r}"
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [waiting.getsockname()[1] for waiting in sockets]
    for waiting in sockets:
        waiting.close()
    return ports


def pictures_of_noise(count: int) -> list[bytes]:
    """Images of about 90 KB each, as cameras make them."""
    noise = np.random.default_rng(1)
    return [images.encode(noise.integers(0, 255, (240, 320, 3), dtype=np.uint8), 95) for _ in range(count)]


class Site:
    """A node and its cameras as processes of the real program."""

    def __init__(self, folder: Path, more: dict[str, str] | None = None) -> None:
        self.program = os.environ["TIDEGATE_PROGRAM"]
        self.folder = folder
        self.api, link, mqtt, mqtts = free_ports(4)
        self.url = f"127.0.0.1:{self.api}"
        self.mqtt = f"mqtt://127.0.0.1:{mqtt}"
        self.mqtts = f"mqtts://127.0.0.1:{mqtts}"
        self.pki = folder / "tidegate-data" / "pki"
        self._node: subprocess.Popen[bytes] | None = None
        self._cameras: dict[str, subprocess.Popen[bytes]] = {}
        self._make_token_keys()
        settings = {
            "node.api_listen": self.url,
            "link.listen": f"127.0.0.1:{link}",
            "link.edge": f"127.0.0.1:{link}",
            "link.reconnect_backoff_max": "500ms",
            "mqtt.listener.main.listen": f"127.0.0.1:{mqtt}",
            "mqtt.listener.main.allow_anonymous": "true",
            "mqtt.listener.safe.listen": f"127.0.0.1:{mqtts}",
            "mqtt.listener.safe.protocol": "tls",
            "mqtt.listener.safe.client_ca": "tidegate-data/pki/ca.pem",
            "mqtt.acl_file": "acl",
            "auth.token_keys_file": "keys.json",
            "auth.token_issuer": "https://id.example",
            "auth.token_audience": "tidegate",
            **(more or {}),
        }
        (folder / "acl").write_text("topic readwrite open/#\ntopic read news/#\npattern readwrite open/#\n")
        arguments = ["init"]
        for camera in CAMERAS:
            arguments += ["--camera", camera]
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        said = subprocess.run([self.program, *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=READY_S)
        found = re.search(r"^\s+(\S+-\S+-\S+)$", said.stdout, re.MULTILINE)
        assert found, said.stdout
        self.password = found[1]

    def start(self) -> None:
        assert self._node is None
        self._node = self._run("node")
        poll(self._answers)

    def kill(self) -> None:
        """As a power cut would."""
        assert self._node is not None
        self._node.kill()
        self._node.wait()
        self._node = None

    def hang(self) -> None:
        """As a machine that swaps, or a network that was unplugged: its connections stay, and bring nothing."""
        assert self._node is not None
        self._node.send_signal(signal.SIGSTOP)

    def goes_on(self) -> None:
        """Ends `hang`."""
        assert self._node is not None
        self._node.send_signal(signal.SIGCONT)

    def start_camera(self, name: str) -> None:
        self._cameras[name] = self._run("camera", "--name", name, "--source", CAMERAS[name])

    def kill_camera(self, name: str) -> None:
        camera = self._cameras.pop(name)
        camera.kill()
        camera.wait()

    def stop(self) -> None:
        for camera in list(self._cameras):
            self.kill_camera(camera)
        if self._node is not None:
            self.kill()

    def connect(self, **how: Any) -> tidegate.Client:
        return tidegate.connect(self.url, pki=str(self.pki), mqtt=self.mqtt, **how)

    def wait_for_camera(self, name: str) -> None:
        with self.connect() as client:
            poll(lambda: self._gives_frames(client, name))

    def token(self, lifetime_s: float = 600.0, **claims: Any) -> str:
        """A token of the site's issuer, signed by openssl."""
        now = time.time()
        payload = {"iss": "https://id.example", "aud": "tidegate", "sub": "ada", "exp": int(now + lifetime_s), **claims}
        head = _part(json.dumps({"alg": "RS256", "kid": "k1", "typ": "JWT"}).encode())
        signed = f"{head}.{_part(json.dumps(payload).encode())}"
        signature = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(self.folder / "key.pem")],
            input=signed.encode(),
            check=True,
            capture_output=True,
        ).stdout
        return f"{signed}.{_part(signature)}"

    def _make_token_keys(self) -> None:
        key = self.folder / "key.pem"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        said = subprocess.run(["openssl", "rsa", "-in", str(key), "-noout", "-modulus"], check=True, capture_output=True, text=True)
        modulus = bytes.fromhex(said.stdout.strip().removeprefix("Modulus="))
        jwk = {"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", "n": _part(modulus), "e": "AQAB"}
        (self.folder / "keys.json").write_text(json.dumps({"keys": [jwk]}))

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{arguments[0]}.log").open("ab")
        with log:
            return subprocess.Popen([self.program, *arguments], cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _answers(self) -> bool:
        assert self._node is not None and self._node.poll() is None, (self.folder / "node.log").read_text()
        try:
            self.connect().close()
        except tidegate.LinkDownError:
            return False
        return True

    @staticmethod
    def _gives_frames(client: tidegate.Client, name: str) -> bool:
        try:
            camera = client.camera(name)
        except tidegate.CameraUnknownError:
            return False
        return camera.online and camera.newest_at_ns is not None


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Running, with both cameras giving frames; a test that kills a part of it starts it again."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.start()
        for camera in CAMERAS:
            site.start_camera(camera)
        for camera in CAMERAS:
            site.wait_for_camera(camera)
        yield site
    finally:
        site.stop()


@pytest.fixture
def client(site: Site) -> Iterator[tidegate.Client]:
    """A caller with the application's certificate."""
    with site.connect() as client:
        yield client


@pytest.fixture
def python(site: Site) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python with the SDK; what still runs is killed behind the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=site.folder
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
