"""The calls of the API with their messages, on a channel of either kind; and what travels in them that both clients share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from . import frames, images
from .errors import FrameRefusedError, TidegateError, of_code
from .v1 import frames_pb2

_PREFIX = "/tidegate.v1.Frames/"

FrameInput = bytes | memoryview | NDArray[Any] | tuple[int, bytes | memoryview | NDArray[Any]]
"""A JPEG image, or BGR pixels of `(height, width, 3)` uint8; alone, or behind its capture time in ns since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The node's description of itself."""

    node: str
    version: str
    client_id: str
    """Unique among all clients of the node."""
    frame_bytes_max: int
    """Largest frame that it takes."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A published frame that was not taken."""

    index: int
    """Its place among those that were published, from 0."""
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Published:
    """The outcomes of the frames of one `publish_frames`."""

    accepted: int
    refused: tuple[Refused, ...]
    """The first 100 of them."""
    refused_count: int


REFUSED_KEPT = 100


def hello() -> frames_pb2.ConnectRequest:
    """The introduction of this client."""
    from ._connection import VERSION

    return frames_pb2.ConnectRequest(client=f"tidegate-python/{VERSION}")


def server_of(answer: frames_pb2.ConnectResponse) -> ServerInfo:
    """The node's description from its message."""
    return ServerInfo(answer.node, answer.version, answer.client_id, answer.frame_bytes_max)


class Calls:
    """Each call of the service, ready to be made; the channel says whether it blocks or is awaited."""

    def __init__(self, channel: Any) -> None:
        def unary(name: str, answer: Any) -> Any:
            return channel.unary_unary(_PREFIX + name, request_serializer=_serialize, response_deserializer=answer.FromString)

        self.connect = unary("Connect", frames_pb2.ConnectResponse)
        self.register = unary("Register", frames_pb2.RegisterResponse)
        self.unregister = unary("Unregister", frames_pb2.UnregisterResponse)
        self.list_cameras = unary("ListCameras", frames_pb2.ListCamerasResponse)
        self.get_camera_info = unary("GetCameraInfo", frames_pb2.GetCameraInfoResponse)
        self.update_subscription = unary("UpdateSubscription", frames_pb2.UpdateSubscriptionResponse)
        self.fetch_original = unary("FetchOriginal", frames_pb2.FetchOriginalResponse)
        # Bytes: the thread that reads them parses them (`frames.wire_of`), not the one of gRPC that all calls share.
        self.subscribe = channel.unary_stream(_PREFIX + "Subscribe", request_serializer=_serialize, response_deserializer=None)
        self.publish = channel.stream_stream(
            _PREFIX + "Publish",
            request_serializer=_serialize,
            response_deserializer=frames_pb2.PublishResponse.FromString,
        )


def wire_of(data: bytes) -> frames.Wire:
    """One message of a subscription.

    Raises:
        TidegateError: it is none.
    """
    try:
        return frames.wire_of(data)
    except DecodeError as error:
        raise TidegateError(f"the node sent a message that cannot be read: {error}", "link.protocol") from error


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def publish_request(camera: str, frame: FrameInput, quality: int, bytes_max: int) -> frames_pb2.PublishRequest:
    """The message of one frame.

    Raises:
        FrameRefusedError: larger than the node takes, or no picture.
    """
    request = frames_pb2.PublishRequest(camera=camera)
    if isinstance(frame, tuple):
        request.captured_at, frame = frame
    jpeg = frame if isinstance(frame, bytes | memoryview) else images.encode(frame, quality)
    if len(jpeg) > bytes_max:
        text = f"the frame has {len(jpeg)} bytes, the node accepts up to {bytes_max}"
        raise FrameRefusedError(text, "frames.frame.too_large")
    request.jpeg = bytes(jpeg)
    return request


def accepted_at(answer: frames_pb2.PublishResponse) -> int:
    """The capture time under which a frame is in the log.

    Raises:
        TidegateError: it is not; mostly a FrameRefusedError.
    """
    if answer.WhichOneof("result") == "accepted_at":
        return answer.accepted_at
    raise of_code(answer.refused.code or "link.protocol", answer.refused.message or "the answer to a frame is empty")


class PublishCount:
    """Counts what becomes of published frames."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused: list[Refused] = []
        self.refused_count = 0

    def refuse(self, error: FrameRefusedError) -> None:
        """Notes a frame that was not taken."""
        if len(self.refused) < REFUSED_KEPT:
            self.refused.append(Refused(self.accepted + self.refused_count, error.code, str(error)))
        self.refused_count += 1

    def result(self) -> Published:
        """The outcomes of all of them."""
        return Published(self.accepted, tuple(self.refused), self.refused_count)


OnEvent = Callable[[frames.Event], object]
