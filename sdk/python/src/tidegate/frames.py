"""Frames, and the other events of a subscription. Nothing here does I/O.

Capture times are nanoseconds since the Unix epoch in an `int`, since they name a frame exactly (`fetch_original` asks by them); where
a person reads them there is a `datetime`, which has microseconds. Latencies are milliseconds in a `float`, accuracies 0 to 1.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import images
from .errors import SourceSizeUnknownError
from .v1 import event_pb2, frames_pb2

Image = NDArray[np.uint8]
"""BGR, row-major, `height * width * 3` bytes, as OpenCV has it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def datetime_of(nanos: int) -> datetime:
    """An instant of the API as a time in UTC, cut to microseconds."""
    return _EPOCH + timedelta(microseconds=nanos // 1000)


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, slots=True)
class Stages:
    """Where the time of one frame went, in ms. The sum is its latency."""

    capture_ms: float
    """Capture to the camera's log."""
    encode_ms: float
    """Applying the knobs."""
    queue_ms: float
    """Waiting for the encoder and for the link."""
    network_ms: float
    """First byte sent to last byte received."""
    delivery_ms: float
    """Received by the node to handed to this program, by the clocks of the two machines."""

    @property
    def total_ms(self) -> float:
        """Capture to this program."""
        return self.capture_ms + self.encode_ms + self.queue_ms + self.network_ms + self.delivery_ms


@dataclass(frozen=True, slots=True)
class Bounds:
    """The demand that a stream makes on every frame."""

    latency_ms: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one delivered frame stands against the bounds of its stream."""

    latency_ms: float
    latency_bound_ms: float
    latency_kept: bool
    """True of a `replayed` frame too: its bound counts from when it was sent, and the node holds it to that."""
    accuracy: float
    """Estimated by the characterization table."""
    accuracy_bound: float
    accuracy_kept: bool
    knobs: str
    """The knob setting in the words of the table, such as `1/2 q60`; `original` if the frame is untouched."""

    @property
    def kept(self) -> bool:
        """Whether both bounds are kept."""
        return self.latency_kept and self.accuracy_kept

    def __str__(self) -> str:
        late = "" if self.latency_kept else " LATE"
        low = "" if self.accuracy_kept else " LOW"
        return (
            f"{self.latency_ms:.0f} of {self.latency_bound_ms:.0f} ms{late}, "
            f"accuracy {self.accuracy:.2f} of {self.accuracy_bound:.2f}{low}, {self.knobs}"
        )


class Frame:
    """One frame. The JPEG is decoded at the first use of `image`, not before.

    Safe to keep and to hand to other threads; two threads that both use `image` first decode it twice.
    """

    __slots__ = ("_image", "_jpeg", "_message", "_received_at_ns", "bounds", "camera", "jpeg_view")

    def __init__(
        self,
        camera: str,
        message: event_pb2.Frame,
        jpeg: memoryview,
        bounds: Bounds,
        received_at_ns: int,
    ) -> None:
        self.camera: str = camera
        """The camera's name."""
        self.bounds: Bounds = bounds
        """The bounds of the stream as the frame came."""
        self.jpeg_view: memoryview = jpeg
        """The JPEG image without a copy."""
        self._message = message
        self._received_at_ns = received_at_ns
        self._jpeg: bytes | None = None
        self._image: Image | None = None

    @property
    def jpeg(self) -> bytes:
        """The JPEG image, copied once; `jpeg_view` is not copied."""
        if self._jpeg is None:
            self._jpeg = bytes(self.jpeg_view)
        return self._jpeg

    @property
    def image(self) -> Image:
        """The picture as BGR, `(height, width, 3)`, uint8, turned as its EXIF says; decoded once.

        Raises:
            NotInstalledError: neither OpenCV nor Pillow is installed.
            FrameRefusedError: the image cannot be decoded.
        """
        if self._image is None:
            self._image = images.decode(self.jpeg_view)
        return self._image

    @property
    def captured_at_ns(self) -> int:
        """When it was captured: ns since the Unix epoch, unique and increasing within one `epoch` of the camera."""
        return self._message.captured_at

    @property
    def captured_at(self) -> datetime:
        """`captured_at_ns` in UTC, cut to microseconds."""
        return datetime_of(self._message.captured_at)

    @property
    def received_at_ns(self) -> int:
        """When this program had it: ns since the Unix epoch, by this machine's clock."""
        return self._received_at_ns

    @property
    def epoch(self) -> int:
        """Names the start of the camera's clock that `captured_at_ns` counts from. Times of two epochs are not compared."""
        return self._message.epoch

    @property
    def size(self) -> Size:
        """Size of the delivered image as `image` shows it: turned as its EXIF says."""
        return Size(self._message.size.width, self._message.size.height)

    @property
    def source_size(self) -> Size | None:
        """Size of the original as it is seen. None where a node or camera of an earlier version does not tell it, and the frame is not
        untouched.
        """
        if self._message.HasField("source_size"):
            return Size(self._message.source_size.width, self._message.source_size.height)
        return self.size if self.knobs == "original" else None

    @property
    def original_bytes(self) -> int:
        """Bytes of the original."""
        return self._message.original_bytes

    @property
    def knobs(self) -> str:
        """The knob setting in the words of the table, such as `1/2 q60`; `original` if untouched."""
        return self._message.knobs

    @property
    def accuracy(self) -> float:
        """Estimated normalized F1 by the characterization table, 0 to 1."""
        return self._message.accuracy

    @property
    def replayed(self) -> bool:
        """From the past or a filled gap: its latency bound counts from sending."""
        return self._message.replayed

    @property
    def stages(self) -> Stages:
        """Where its time went."""
        return _stages(self._message.stages, self._message.handed_at, self._received_at_ns)

    @property
    def latency_ms(self) -> float:
        """From capture to this program, in ms."""
        return self.stages.total_ms

    @property
    def verdict(self) -> Verdict:
        """How it stands against the bounds."""
        latency = self.latency_ms
        return Verdict(
            latency_ms=latency,
            latency_bound_ms=self.bounds.latency_ms,
            latency_kept=self.replayed or latency <= self.bounds.latency_ms,
            accuracy=self._message.accuracy,
            accuracy_bound=self.bounds.accuracy,
            accuracy_kept=self._message.accuracy_kept,
            knobs=self._message.knobs,
        )

    def to_source(self, boxes: Iterable[Iterable[float]] | NDArray[Any]) -> NDArray[np.float32]:
        """Boxes in pixels of this image, brought to pixels of the original that `fetch_original` gives.

        Args:
            boxes: left, top, right, bottom in each row: shape `(n, 4)`, or `(n, m)` whose further columns are kept as they are.

        Returns:
            A new array of the same shape, float32.

        Raises:
            SourceSizeUnknownError: the node does not tell the size of the original and the frame is not untouched. A node of an
                earlier version tells none; ask for untouched frames with `controller="fixed"`, or decode what `fetch_original` gives.
            ValueError: fewer than four columns.
        """
        source = self.source_size
        if source is None:
            raise SourceSizeUnknownError(
                f"the node does not tell the size of the original of this frame ({self.size}, knobs {self.knobs}); update the node, "
                'or ask for untouched frames with controller="fixed"',
                "sdk.source_size.unknown",
            )
        found = np.array(boxes if isinstance(boxes, np.ndarray) else [list(box) for box in boxes], dtype=np.float32)
        if found.size == 0:
            return found.reshape(0, found.shape[1] if found.ndim == 2 and found.shape[1] >= 4 else 4)
        if found.ndim != 2 or found.shape[1] < 4:
            raise ValueError(f"boxes have the shape {found.shape}; (n, 4) or more columns are needed")
        found[:, [0, 2]] *= source.width / self.size.width
        found[:, [1, 3]] *= source.height / self.size.height
        return found

    def __repr__(self) -> str:
        return (
            f"<Frame {self.camera} {self.captured_at.isoformat()} {self.size} {len(self.jpeg_view) / 1e3:.1f} kB "
            f"{self.verdict}{' replayed' if self.replayed else ''}>"
        )

    def _repr_html_(self) -> str:
        """The picture with its verdict, for notebooks."""
        return _html(self.jpeg_view, f"{self.camera}, {self.captured_at.isoformat()}, {self.size}: {self.verdict}")


@dataclass(frozen=True, slots=True, repr=False)
class Original:
    """An untouched frame, as the camera made it."""

    camera: str
    captured_at_ns: int
    jpeg: bytes

    @property
    def captured_at(self) -> datetime:
        """`captured_at_ns` in UTC, cut to microseconds."""
        return datetime_of(self.captured_at_ns)

    @property
    def image(self) -> Image:
        """The picture as BGR; decoded at each use. Raises as `Frame.image`."""
        return images.decode(self.jpeg)

    def __repr__(self) -> str:
        return f"<Original {self.camera} {self.captured_at.isoformat()} {len(self.jpeg) / 1e3:.1f} kB>"

    def _repr_html_(self) -> str:
        """The picture, for notebooks."""
        return _html(self.jpeg, f"{self.camera}, {self.captured_at.isoformat()}: original")


@dataclass(frozen=True, slots=True)
class Started:
    """The subscription runs; comes again, with another id, after a broken connection."""

    subscription_id: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Nothing moved since an earlier frame, so this one was not sent. Counts as delivered."""

    captured_at_ns: int
    same_as_ns: int
    """Capture time of the delivered frame that still shows the scene."""
    epoch: int
    replayed: bool
    stages: Stages


@dataclass(frozen=True, slots=True)
class Missed:
    """Frames that were captured and are not delivered."""

    from_ns: int
    to_ns: int
    count: int
    """How many; 0 if that is not known."""
    why: str
    """`overtaken`, `late`, `log-wrapped`, `slow-subscriber`, `link-down`, `infeasible`, `damaged` or `unknown`."""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No setting keeps both bounds at the capacity there is; the fields say which could be kept."""

    sentence: str
    """The whole in one sentence."""
    latency_at_accuracy_ms: float | None = None
    """The shortest latency at the accuracy asked for, in ms; None if no setting is accurate enough."""
    accuracy_at_latency: float | None = None
    """The highest accuracy at the latency asked for, 0 to 1; None if nothing fits."""
    frames_per_second: float | None = None
    """The frame rate at which the accuracy could be kept, within `latency_at_accuracy_ms` where that is given and else within the latency
    asked for; None if it is not the rate that is too high."""


@dataclass(frozen=True, slots=True)
class Feasible:
    """Both bounds can be kept again."""


@dataclass(frozen=True, slots=True)
class CameraOffline:
    """The camera, or the node itself, cannot be reached; the stream waits for it."""

    sentence: str
    node: bool = False
    """Whether it is the node that is not reached."""


@dataclass(frozen=True, slots=True)
class CameraOnline:
    """The camera is back: it is reached again, or gives frames again."""


@dataclass(frozen=True, slots=True)
class NoFrames:
    """The camera is reached, and its source gives no frames that it can take."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Silent:
    """No picture came for longer than is usual, nor a word that it is unchanged, and the node does not say why: told by the clock of this
    program, after 1.5 s at first and then each second, until a picture comes or the reason.
    """

    seconds: int
    sentence: str
    """Such as `no picture for 3 s`."""


@dataclass(frozen=True, slots=True)
class KnobsChanged:
    """The setting of the frames changed."""

    captured_at_ns: int
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class ControllerFailed:
    """The controller failed; frames travel as captured from now on."""

    sentence: str


@dataclass(frozen=True, slots=True)
class AccuracyAssumed:
    """No table was made for this camera and detector: accuracies are a default's, or none is known."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing follows."""

    reason: str = field()
    """`complete`, `unsubscribed`, `camera-unregistered`, `shutdown` or `unknown`."""


Event = (
    Started
    | Frame
    | Unchanged
    | Missed
    | Infeasible
    | Feasible
    | CameraOffline
    | CameraOnline
    | NoFrames
    | Silent
    | KnobsChanged
    | ControllerFailed
    | AccuracyAssumed
    | Ended
)

_WHY = event_pb2.Missed.Why
_REASON = event_pb2.Ended.Reason


class Wire(NamedTuple):
    """A message of a subscription as it came: the picture of a frame is apart, and not copied."""

    message: frames_pb2.SubscribeResponse
    jpeg: memoryview


_FRAME_TAG = 0x12  # SubscribeResponse.frame, length-delimited
_JPEG_TAG = 0x52  # Frame.jpeg, length-delimited
NO_PICTURE = memoryview(b"")


def wire_of(data: bytes) -> Wire:
    """Parses one message of a subscription, but for the picture of a frame.

    protobuf would copy the picture into its own memory and once more into `bytes`. Its place is looked up here instead, and the rest,
    some hundred bytes, is parsed as ever. A message that is laid out otherwise than nodes write it is parsed as a whole.
    """
    place = _jpeg_of(data)
    if place is None:
        message = frames_pb2.SubscribeResponse.FromString(data)
        jpeg = message.frame.jpeg if message.WhichOneof("event") == "frame" else b""
        return Wire(message, memoryview(jpeg) if jpeg else NO_PICTURE)
    body, begin, first, last, end = place
    message = frames_pb2.SubscribeResponse()
    message.frame.MergeFromString(data[body:begin] + data[last:end])
    return Wire(message, memoryview(data)[first:last])


def _jpeg_of(data: bytes) -> tuple[int, int, int, int, int] | None:
    """Where a message that is one frame has: its body, the field of its picture, the picture, its end, the end of all."""
    size = len(data)
    if size < 2 or data[0] != _FRAME_TAG:
        return None
    try:
        length, body = _varint(data, 1)
        if body + length != size:
            return None
        at = body
        # Written out, since it runs for each frame: a tag below 16 and most lengths are one byte.
        while at < size:
            begin = at
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(data, begin)
            kind = tag & 7
            if kind == 0:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            elif kind == 2:
                length = data[at]
                at += 1
                if length >= 0x80:
                    length, at = _varint(data, at - 1)
                if tag == _JPEG_TAG:
                    return (body, begin, at, at + length, size) if at + length <= size else None
                at += length
            elif kind == 1:
                at += 8
            elif kind == 5:
                at += 4
            else:
                return None
    except IndexError:
        return None
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def bounds_of(latency_nanos: int, accuracy: float) -> Bounds:
    """The bounds of a demand."""
    return Bounds(latency_nanos / 1e6, accuracy)


def event_of(wire: Wire, camera: str, bounds: Bounds, received_at_ns: int) -> Event | None:
    """The event that a message stands for; None for one of a newer protocol."""
    message = wire.message
    which = message.WhichOneof("event")
    if which == "frame":
        return Frame(camera, message.frame, wire.jpeg, bounds, received_at_ns)
    if which == "unchanged":
        marker = message.unchanged
        stages = _stages(marker.stages, marker.handed_at, received_at_ns)
        return Unchanged(marker.captured_at, marker.same_as, marker.epoch, marker.replayed, stages)
    if which == "missed":
        missed = message.missed
        return Missed(getattr(missed, "from"), missed.to, missed.count, _word(_WHY, missed.why, "WHY_"))
    if which == "infeasible":
        told = message.infeasible
        latency = told.latency_at_accuracy_nanos / 1e6 if told.HasField("latency_at_accuracy_nanos") else None
        accuracy = told.accuracy_at_latency if told.HasField("accuracy_at_latency") else None
        rate = told.frames_per_second if told.HasField("frames_per_second") else None
        return Infeasible(told.sentence, latency, accuracy, rate)
    if which == "started":
        demand = message.started.demand
        return Started(message.started.subscription_id, bounds_of(demand.latency_nanos, demand.accuracy))
    if which == "feasible":
        return Feasible()
    if which == "camera_offline":
        return CameraOffline(message.camera_offline.sentence)
    if which == "camera_online":
        return CameraOnline()
    if which == "no_frames":
        return NoFrames(message.no_frames.sentence)
    if which == "knobs_changed":
        changed = message.knobs_changed
        return KnobsChanged(changed.captured_at, getattr(changed, "from"), changed.to, changed.reason)
    if which == "controller_failed":
        return ControllerFailed(message.controller_failed.sentence)
    if which == "accuracy_assumed":
        return AccuracyAssumed(message.accuracy_assumed.sentence)
    if which == "ended":
        return Ended(_word(_REASON, message.ended.reason, "REASON_"))
    return None


def _word(enum: Any, number: int, prefix: str) -> str:
    """The word of an enum's value, such as `log-wrapped`; `unknown` for one that this package does not know."""
    if number == 0 or number not in enum.values():
        return "unknown"
    name: str = enum.Name(number)
    return name.removeprefix(prefix).lower().replace("_", "-")


def _stages(stages: event_pb2.Stages, handed_at: int, received_at_ns: int) -> Stages:
    # The two clocks may differ: time that would be negative is none.
    delivery = stages.delivery_nanos + max(0, received_at_ns - handed_at)
    return Stages(
        stages.capture_nanos / 1e6,
        stages.encode_nanos / 1e6,
        stages.queue_nanos / 1e6,
        stages.network_nanos / 1e6,
        delivery / 1e6,
    )


def _html(jpeg: bytes | memoryview, caption: str) -> str:
    picture = base64.b64encode(jpeg).decode("ascii")
    return (
        f'<figure><img style="max-width:100%" alt="" src="data:image/jpeg;base64,{picture}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )
