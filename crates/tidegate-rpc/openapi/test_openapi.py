"""The HTTP of a real node against its description: requests that schemathesis makes of it, right ones and wrong ones of every kind."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis

HERE = Path(__file__).parent
DESCRIPTION = HERE.parent / "src" / "openapi.json"
READY_S = 60.0
# Requests at random for each operation, beside those of boundaries: fixed ones, so that a run is as the one before.
RANDOM = 10
# The most bytes of a speed test, which may be a GiB.
SPEED_BYTES_MAX = 1 << 20

CHECKS = {
    # This is how the paper's server says that it has no such model.
    "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "501"]},
    # Callers have a certificate here, which no request can be without; a test of its own has none.
    "ignored_auth": {"enabled": False},
    # A valid request may name what there is not, bring bytes that are no image, or open no WebSocket.
    "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "401", "403", "404", "413", "415", "422", "426", "429", "501"]},
    "negative_data_rejection": {"expected-statuses": ["4xx"]},
}

schema = schemathesis.openapi.from_path(DESCRIPTION, config=schemathesis.Config.from_dict({"checks": CHECKS}))
schema.config.update(base_url="https://node.invalid")


class Node:
    """A node as a process of the real program, with a camera and a detector."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = os.environ["TIDEGATE_PROGRAM"]
        api, link, mqtt = free_ports(3)
        self.url = f"https://127.0.0.1:{api}"
        pki = folder / "tidegate-data" / "pki"
        self.authority = str(pki / "ca.pem")
        self.stranger = self.session()
        self.caller = self.session()
        self.caller.cert = (str(pki / "application.pem"), str(pki / "application.key"))
        settings = {
            "node.api_listen": f"127.0.0.1:{api}",
            "link.listen": f"127.0.0.1:{link}",
            "mqtt.listener.main.listen": f"127.0.0.1:{mqtt}",
            "camera.yard.source": "scene:street?size=320x180&fps=5&seconds=3",
            "workers.command": shlex.join([sys.executable, str(HERE / "detector.py")]),
            "workers.count": "1",
        }
        arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        subprocess.run([program, "init", *arguments], cwd=folder, check=True, capture_output=True, timeout=READY_S)
        self._log = (folder / "node.log").open("ab")
        self._process = subprocess.Popen([program, "node"], cwd=folder, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)

    def session(self) -> requests.Session:
        session = requests.Session()
        # No proxy and no other authority by the environment.
        session.trust_env = False
        session.verify = self.authority
        return session

    def get(self, path: str, **how: Any) -> requests.Response:
        return self.caller.get(self.url + path, timeout=20, **how)

    def wait(self) -> None:
        end = time.monotonic() + READY_S
        while not self._sees_its_camera():
            assert time.monotonic() < end, (self.folder / "node.log").read_text()
            time.sleep(0.05)

    def _sees_its_camera(self) -> bool:
        assert self._process.poll() is None, (self.folder / "node.log").read_text()
        try:
            cameras = self.get("/cameras").json()["cameras"]
        except requests.exceptions.SSLError:
            raise
        except requests.ConnectionError:
            return False
        return any(camera["newest_at"] for camera in cameras)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [waiting.getsockname()[1] for waiting in sockets]
    for waiting in sockets:
        waiting.close()
    return ports


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"))
    try:
        node.wait()
        yield node
    finally:
        node.stop()


def send(case: Any, node: Node, session: requests.Session) -> Any:
    return case.call(base_url=node.url, session=session, verify=node.authority, timeout=20)


@schema.parametrize()
@hypothesis.settings(
    max_examples=RANDOM, deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
def test_answers_are_as_described(case: Any, node: Node) -> None:
    if case.path == "/getdata/" and isinstance(count := (case.query or {}).get("numbytes"), int):
        case.query["numbytes"] = min(count, SPEED_BYTES_MAX)
    case.validate_response(send(case, node, node.caller))


@schema.parametrize()
@hypothesis.settings(
    max_examples=1,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate],
)
def test_a_stranger_gets_nothing_but_the_page(case: Any, node: Node) -> None:
    case.headers.pop("Authorization", None)
    case.cookies.clear()
    response = send(case, node, node.stranger)
    is_for_everybody = case.operation.definition.raw.get("security") == []
    if is_for_everybody:
        assert response.status_code < 400
    else:
        assert response.status_code in (401, 405), response.text


def test_the_description_is_the_one_that_is_served(node: Node) -> None:
    assert node.get("/v1/openapi.json").json() == json.loads(DESCRIPTION.read_text())


def test_pictures_are_as_described(node: Node) -> None:
    described = schema["/cameras/{camera}/snapshot.jpg"]["GET"]
    newest = node.get("/cameras/yard/snapshot.jpg")
    assert newest.status_code == 200, newest.text
    described.validate_response(newest)
    same = node.get("/cameras/yard/snapshot.jpg", params={"at": newest.headers["Tidegate-Captured-At"]})
    assert same.content == newest.content
    described.validate_response(same)
    with node.get("/cameras/yard/mjpeg", stream=True) as frames:
        kind = frames.headers["Content-Type"].partition(";")[0]
        content = schema["/cameras/{camera}/mjpeg"]["GET"].definition.raw["responses"]["200"]["content"]
        assert (frames.status_code, list(content)) == (200, [kind])
        assert next(frames.iter_content(1024))


@pytest.mark.parametrize("path", ["/v1/detect/face", "/v1/models/recognize/subjects/Ann", "/detector/detect/", "/openpose/detect/"])
def test_images_are_answered_as_described(node: Node, path: str) -> None:
    image = node.get("/cameras/yard/snapshot.jpg").content
    answer = node.caller.post(node.url + path, data=image, headers={"Content-Type": "image/jpeg"}, timeout=20)
    assert answer.status_code == 200, answer.text
    template = {"/v1/detect/face": "/v1/detect/{model}", "/v1/models/recognize/subjects/Ann": "/v1/models/{model}/subjects/{subject}"}
    schema[template.get(path, path)]["POST"].validate_response(answer)
