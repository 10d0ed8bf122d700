"""Cameras of other nodes, to which a client goes: nodes that the test plays, with certificates of one authority."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

import tidegate
import tidegate.aio
from tidegate._elsewhere import CAMERAS_MAX
from tidegate.v1 import camera_pb2, event_pb2, frames_pb2

TOKEN = "good.token"
NAME = "node.tidegate.internal"


class Authority:
    """Signs the certificates of nodes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2")
        self._openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout node.key -out node.pem -subj /CN=node -days 2 "
            f"-CA ca.pem -CAkey ca.key -addext subjectAltName=DNS:{NAME} -addext basicConstraints=critical,CA:FALSE"
        )
        self.ca = (folder / "ca.pem").read_bytes()

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self._folder, check=True, capture_output=True)

    def server(self) -> grpc.ServerCredentials:
        key, chain = ((self._folder / name).read_bytes() for name in ("node.key", "node.pem"))
        return grpc.ssl_server_credentials([(key, chain)])


class Node(grpc.GenericRpcHandler):
    """A node with every camera, but for those that it says are elsewhere."""

    def __init__(self, name: str, authority: Authority) -> None:
        self.name = name
        self.places: dict[str, tuple[str, list[str]]] = {}
        self.asked: list[str] = []
        """Calls about cameras."""
        self.updated: list[int] = []
        self.proofs: set[str] = set()
        self._ids = itertools.count(1)
        self._stopped = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_secure_port('127.0.0.1:0', authority.server())}"
        self._server.start()

    def says(self, camera: str, node: str, *addresses: str) -> None:
        self.places[camera] = (node, list(addresses))

    def stop(self) -> None:
        self._stopped.set()
        self._server.stop(None).wait()

    def connect(self, authority: Authority, **how: Any) -> tidegate.Client:
        return tidegate.connect(self.address, ca=authority.ca, token=TOKEN, server_name=NAME, **how)

    def service(self, call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self.proofs |= {str(value) for key, value in call_details.invocation_metadata if key == "authorization"}
        unary = {
            "Connect": (self._connect, frames_pb2.ConnectRequest),
            "GetCameraInfo": (self._camera, frames_pb2.GetCameraInfoRequest),
            "FetchOriginal": (self._original, frames_pb2.FetchOriginalRequest),
            "UpdateSubscription": (self._update, frames_pb2.UpdateSubscriptionRequest),
        }
        method = call_details.method.rpartition("/")[2]
        if method == "Subscribe":
            return grpc.unary_stream_rpc_method_handler(self._subscribe, frames_pb2.SubscribeRequest.FromString, _bytes)
        found = unary.get(method)
        return found and grpc.unary_unary_rpc_method_handler(found[0], found[1].FromString, _bytes)

    def _look(self, camera: str, call: str, context: grpc.ServicerContext) -> None:
        self.asked.append(call)
        place = self.places.get(camera)
        if place is not None:
            addresses = (("tidegate-place-address", address) for address in place[1])
            context.set_trailing_metadata((("tidegate-code", "frames.camera.elsewhere"), ("tidegate-place-node", place[0]), *addresses))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"camera {camera} is at node {place[0]}")

    def _connect(self, _: Any, __: Any) -> frames_pb2.ConnectResponse:
        return frames_pb2.ConnectResponse(node=self.name, version="0.1.0", client_id="1", frame_bytes_max=1 << 20)

    def _camera(self, request: Any, context: Any) -> frames_pb2.GetCameraInfoResponse:
        self._look(request.camera, "camera", context)
        info = camera_pb2.Camera(name=request.camera, online=True, transport=self.name)
        return frames_pb2.GetCameraInfoResponse(camera=info)

    def _original(self, request: Any, context: Any) -> frames_pb2.FetchOriginalResponse:
        self._look(request.camera, "original", context)
        return frames_pb2.FetchOriginalResponse(captured_at=request.captured_at, jpeg=self.name.encode())

    def _update(self, request: Any, _: Any) -> frames_pb2.UpdateSubscriptionResponse:
        self.updated.append(request.subscription_id)
        answer = frames_pb2.UpdateSubscriptionResponse()
        answer.demand.latency_nanos, answer.demand.accuracy = request.changes.latency_nanos, 0.5
        return answer

    def _subscribe(self, request: Any, context: Any) -> Iterator[frames_pb2.SubscribeResponse]:
        self._look(request.camera, "subscribe", context)
        started = frames_pb2.SubscribeResponse()
        started.started.subscription_id = next(self._ids)
        started.started.demand.CopyFrom(request.demand)
        yield started
        frame = event_pb2.Frame(captured_at=5, epoch=1, jpeg=self.name.encode(), knobs="")
        frame.size.width, frame.size.height = 2, 2
        yield frames_pb2.SubscribeResponse(frame=frame)
        self._stopped.wait(60)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as waiting:
        return f"127.0.0.1:{waiting.getsockname()[1]}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return Authority(tmp_path_factory.mktemp("nodes") / "one")


@pytest.fixture
def node(authority: Authority) -> Iterator[Callable[..., Node]]:
    """Starts a node of that name."""
    running: list[Node] = []

    def start(name: str, of: Authority = authority) -> Node:
        running.append(Node(name, of))
        return running[-1]

    yield start
    for each in running:
        each.stop()


def _pair(node: Callable[..., Node]) -> tuple[Node, Node]:
    """Two nodes; the first says that `cam1` is at the second."""
    edge, yard = node("edge"), node("yard")
    edge.says("cam1", "yard", _nowhere(), yard.address)
    return edge, yard


def test_calls_about_a_camera_of_another_node_go_there_and_that_is_remembered(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)
    with edge.connect(authority) as client:
        assert client.camera("cam1").transport == "yard"
        assert client.fetch_original("cam1", 7).jpeg == b"yard"
        assert client.camera("cam2").transport == "edge"
    assert (edge.asked, yard.asked) == (["camera", "camera"], ["camera", "original"]), "the first call alone asks the way"
    assert yard.proofs == {f"Bearer {TOKEN}"}


def test_a_stream_is_read_and_changed_at_the_node_that_serves_it(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)
    with edge.connect(authority) as client, client.frames("cam1") as frames:
        assert next(frames).jpeg == b"yard"
        assert frames.update(latency_ms=50).latency_ms == 50
    assert (edge.updated, yard.updated) == ([], [1])
    assert edge.asked == ["subscribe"]


def test_a_stream_goes_with_a_camera_that_moves(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)
    hall = node("hall")
    with edge.connect(authority, retries=tidegate.Retries(wait_s=0.01)) as client, client.frames("cam1") as frames:
        assert next(frames).jpeg == b"yard"
        edge.says("cam1", "hall", hall.address)
        yard.stop()
        assert _event(frames._events, tidegate.CameraOffline)
        assert _event(frames._events, tidegate.CameraOnline)
        frames.update(accuracy=0.5)
        assert client.fetch_original("cam1", 7).jpeg == b"hall"
    assert hall.updated == [1]


def _event(events: Any, kind: type) -> bool:
    return any(isinstance(event, kind) for event in events)


def test_a_node_that_has_the_camera_no_longer_or_is_gone_is_forgotten(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)
    with edge.connect(authority) as client:
        client.camera("cam1")
        edge.places.clear()
        yard.says("cam1", "edge", edge.address)
        assert [client.camera("cam1").transport for _ in range(2)] == ["edge", "edge"]
        assert (len(edge.asked), len(yard.asked)) == (3, 2)
        yard.places.clear()
        edge.says("cam1", "yard", yard.address)
        assert client.camera("cam1").transport == "yard"
        yard.stop()
        edge.places.clear()
        assert client.camera("cam1").transport == "edge"


def test_a_second_step_finds_a_camera_that_moved_and_a_third_is_not_made(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)
    hall = node("hall")
    yard.says("cam1", "hall", hall.address)
    with edge.connect(authority) as client:
        assert [client.camera("cam1").transport for _ in range(2)] == ["hall", "hall"]
        assert (len(edge.asked), len(yard.asked), len(hall.asked)) == (1, 1, 2)
        hall.says("cam1", "edge", edge.address)
        with pytest.raises(tidegate.CameraElsewhereError, match="from node edge in 2 steps: node hall says") as failed:
            client.camera("cam1")
        assert (failed.value.node, len(edge.asked)) == ("edge", 2)


def test_a_place_that_cannot_be_trusted_or_reached_is_refused_with_both_names(
    authority: Authority, node: Callable[..., Node], tmp_path: Path
) -> None:
    edge, yard = _pair(node)
    stranger = node("yard", Authority(tmp_path / "other"))
    with edge.connect(authority) as client:
        for name, addresses, kind, why in (
            ("yard", [stranger.address], tidegate.IdentityRefusedError, "certificate"),
            ("yard", [stranger.address, _nowhere()], tidegate.IdentityRefusedError, "certificate"),
            ("shed", [yard.address], tidegate.LinkDownError, "node yard answers"),
            ("yard", [_nowhere()], tidegate.LinkDownError, "no node answers"),
            ("yard", ["ftp://x"], tidegate.LinkDownError, "is no address"),
        ):
            edge.says("cam1", name, *addresses)
            with pytest.raises(kind, match=f"node edge says that camera cam1 is at node {name}.*{why}"):
                client.camera("cam1")
        edge.says("cam1", "yard")
        with pytest.raises(tidegate.CameraElsewhereError):
            client.camera("cam1")
    assert (stranger.asked, stranger.proofs, yard.asked) == ([], set(), [])


def test_a_client_that_is_not_to_follow_raises_the_place(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)
    with edge.connect(authority, follow=False) as client, pytest.raises(tidegate.CameraElsewhereError) as failed:
        client.frames("cam1")
    assert (failed.value.node, failed.value.addresses[-1], yard.proofs) == ("yard", yard.address, set())


def test_of_many_cameras_those_that_were_asked_for_last_are_remembered(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)
    names = [f"many{number}" for number in range(CAMERAS_MAX + 1)]
    with edge.connect(authority) as client:
        for name in names:
            edge.says(name, "yard", yard.address)
            client.camera(name)
        before = len(edge.asked)
        client.camera(names[1])
        client.camera(names[-1])
        assert len(edge.asked) == before
        client.camera(names[0])
        assert len(edge.asked) == before + 1


def test_the_awaited_client_does_the_same(authority: Authority, node: Callable[..., Node]) -> None:
    edge, yard = _pair(node)

    async def run() -> None:
        async with await tidegate.aio.connect(edge.address, ca=authority.ca, token=TOKEN, server_name=NAME) as client:
            assert (await client.camera("cam1")).transport == "yard"
            assert (await client.fetch_original("cam1", 7)).jpeg == b"yard"
            async with await client.frames("cam1") as frames:
                assert (await anext(frames)).jpeg == b"yard"
                await frames.update(latency_ms=50)
            edge.says("cam2", "shed", yard.address)
            with pytest.raises(tidegate.LinkDownError, match=r"camera cam2 is at node shed.*node yard answers"):
                await client.frames("cam2")

    asyncio.run(run())
    assert (len(edge.asked), yard.updated) == (2, [1])
