"""Frames and their parts, without a node."""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError

import tidegate
from tidegate import _calls, errors, frames, images
from tidegate._http import bytes_of
from tidegate._newest import Each
from tidegate._resume import Resume, Watch, request_of
from tidegate._silence import Silence, no_picture
from tidegate.cameras import camera_of
from tidegate.v1 import camera_pb2, event_pb2, frames_pb2


def message(jpeg: bytes, **parts: object) -> frames_pb2.SubscribeResponse:
    frame = event_pb2.Frame(captured_at=5, jpeg=jpeg, **parts)  # type: ignore[arg-type]
    frame.size.width, frame.size.height = 320, 180
    return frames_pb2.SubscribeResponse(frame=frame)


def frame_of(**parts: object) -> tidegate.Frame:
    wire = frames.wire_of(message(b"\xff\xd8", **parts).SerializeToString())
    event = frames.event_of(wire, "cam", frames.Bounds(100.0, 0.9), 7)
    assert isinstance(event, tidegate.Frame)
    return event


def test_messages_are_read_as_protobuf_reads_them() -> None:
    seed = 26
    dice = random.Random(seed)
    for size in (0, 1, 127, 128, 16_383, 16_384, 500_000):
        jpeg = dice.randbytes(size)
        stages = event_pb2.Stages(capture_nanos=-1, delivery_nanos=1 << 62)
        whole = message(jpeg, original_bytes=1 << 60, knobs="1/2 q60", accuracy=0.5, stages=stages, epoch=(1 << 64) - 1)
        wire = frames.wire_of(whole.SerializeToString())
        assert wire.jpeg == jpeg
        whole.frame.ClearField("jpeg")
        assert wire.message == whole, seed
    for other in (
        frames_pb2.SubscribeResponse(ended=event_pb2.Ended(reason=event_pb2.Ended.REASON_COMPLETE)),
        frames_pb2.SubscribeResponse(infeasible=event_pb2.Infeasible(sentence="no", accuracy_at_latency=0.5)),
        frames_pb2.SubscribeResponse(),
    ):
        assert frames.wire_of(other.SerializeToString()).message == other
    # Fields in another order, and a field of a newer protocol: protobuf allows both.
    jpeg_first = b"\x52\x02\xff\xd8" + b"\x08\x05" + b"\xfa\x7f\x01x"
    wire = frames.wire_of(b"\x12" + bytes([len(jpeg_first)]) + jpeg_first)
    assert (wire.jpeg, wire.message.frame.captured_at) == (b"\xff\xd8", 5)


def test_messages_that_are_cut_or_damaged_are_refused_as_protobuf_does() -> None:
    data = message(bytes(100), knobs="original", accuracy=1.0).SerializeToString()
    dice = random.Random(1)
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            if frames.wire_of(data[:cut]).message == frames_pb2.SubscribeResponse():
                raise DecodeError("nothing is left of it")
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[dice.randrange(len(data))] = dice.randrange(256)
        with suppress(DecodeError):
            frames.wire_of(bytes(damaged))


def test_a_message_that_is_none_is_an_error_of_this_package() -> None:
    with pytest.raises(tidegate.TidegateError) as refused:
        _calls.wire_of(b"\x12\xff")
    assert refused.value.code == "link.protocol"


class Refused(grpc.RpcError):
    """A call that failed, as grpcio has it."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self.metadata = metadata

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.FAILED_PRECONDITION

    def details(self) -> str:
        return "camera cam1 is at node yard"

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata


def test_a_camera_at_another_node_is_a_failure_that_names_the_node() -> None:
    code = ("tidegate-code", "frames.camera.elsewhere")
    addresses = [("tidegate-place-address", "10.0.0.7:7080"), ("tidegate-place-address", "[fe80::1]:7080")]
    failure = errors.of_rpc(Refused(code, ("tidegate-place-node", "yard"), *addresses))
    assert isinstance(failure, tidegate.CameraElsewhereError)
    assert (failure.code, failure.node, failure.addresses) == (code[1], "yard", [text for _, text in addresses])
    bare = errors.of_rpc(Refused(code))
    assert isinstance(bare, tidegate.CameraElsewhereError)
    assert (bare.node, bare.addresses) == (None, [])


def test_every_event_has_its_type() -> None:
    names = [field.name for field in frames_pb2.SubscribeResponse.DESCRIPTOR.oneofs_by_name["event"].fields]
    for name in names:
        whole = frames_pb2.SubscribeResponse()
        getattr(whole, name).SetInParent()
        event = frames.event_of(frames.wire_of(whole.SerializeToString()), "cam", frames.Bounds(1, 1), 0)
        assert event is not None, f"{name} of the API has no type in this package"


def test_words_that_are_not_known_yet_are_unknown() -> None:
    whole = frames_pb2.SubscribeResponse()
    whole.missed.why = 99  # type: ignore[assignment]
    event = frames.event_of(frames.wire_of(whole.SerializeToString()), "cam", frames.Bounds(1, 1), 0)
    assert isinstance(event, tidegate.Missed) and event.why == "unknown"
    whole.missed.why = event_pb2.Missed.WHY_LOG_WRAPPED
    event = frames.event_of(frames.wire_of(whole.SerializeToString()), "cam", frames.Bounds(1, 1), 0)
    assert isinstance(event, tidegate.Missed) and event.why == "log-wrapped"


def test_boxes_are_put_on_the_original() -> None:
    untouched = frame_of(knobs="original")
    boxes = np.array([[1, 2, 3, 4, 0.5]], np.float32)
    assert untouched.source_size == (320, 180)
    assert untouched.to_source(boxes).tolist() == boxes.tolist() and untouched.to_source(boxes) is not boxes
    assert untouched.to_source([]).shape == (0, 4)
    with pytest.raises(ValueError):
        untouched.to_source([[1, 2, 3]])
    adapted = frame_of(knobs="1/2 q60")
    assert adapted.source_size is None, "of a node of an earlier version"
    with pytest.raises(tidegate.SourceSizeUnknownError, match="update the node"):
        adapted.to_source(boxes)
    told = frames_pb2.SubscribeResponse()
    told.CopyFrom(message(b"", knobs="1/2 q60"))
    told.frame.source_size.width, told.frame.source_size.height = 640, 540
    event = frames.event_of(frames.wire_of(told.SerializeToString()), "cam", frames.Bounds(1, 1), 0)
    assert isinstance(event, tidegate.Frame)
    assert event.to_source(boxes).tolist() == [[2, 6, 6, 12, 0.5]]


def test_a_verdict_holds_a_frame_against_its_bounds() -> None:
    late = frame_of(knobs="q60", accuracy=0.95, accuracy_kept=True, handed_at=0, stages=event_pb2.Stages(network_nanos=200_000_000))
    assert not late.verdict.latency_kept and late.verdict.accuracy_kept and not late.verdict.kept
    assert "LATE" in str(late.verdict) and "LATE" in repr(late)
    low = frame_of(knobs="q10", accuracy=0.2)
    assert low.verdict.latency_kept and not low.verdict.accuracy_kept and "LOW" in str(low.verdict)
    replayed = frame_of(replayed=True, stages=event_pb2.Stages(queue_nanos=10**12))
    assert replayed.verdict.latency_kept
    assert "data:image/jpeg;base64,/9g=" in late._repr_html_()


def test_pictures_that_are_none_are_refused() -> None:
    with pytest.raises(tidegate.FrameRefusedError):
        _ = frame_of().image
    with pytest.raises(tidegate.FrameRefusedError):
        tidegate.images.decode(b"\xff\xd8\xff\xe0 not a picture")
    for shape in ((0, 0, 3), (5,), (5, 5, 4)):
        with pytest.raises(tidegate.FrameRefusedError):
            tidegate.images.encode(np.zeros(shape, np.uint8))


def test_an_image_is_given_in_any_common_form(tmp_path: Path) -> None:
    pixels = np.full((4, 6, 3), (10, 20, 200), np.uint8)
    jpeg = images.encode(pixels)
    path = tmp_path / "picture.jpg"
    path.write_bytes(jpeg)
    with path.open("rb") as file:
        forms: list[Any] = [
            jpeg,
            bytearray(jpeg),
            memoryview(jpeg),
            str(path),
            path,
            io.BytesIO(jpeg),
            file,
            tidegate.Original("a", 1, jpeg),
        ]
        assert [bytes(bytes_of(form)) for form in forms] == [jpeg] * len(forms)
    assert bytes_of(pixels)[:2] == b"\xff\xd8"
    pillow = pytest.importorskip("PIL.Image")
    seen = images.decode(bytes_of(pillow.fromarray(pixels[:, :, ::-1])))
    assert seen.shape == pixels.shape and abs(seen.astype(int) - pixels).max() < 20


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (None, "NoneType is no image; a frame, bytes of JPEG"),
        (7, "int is no image"),
        ([1, 2], "list is no image"),
        (io.StringIO("text"), "StringIO is no image"),
        (Path("/no/such.jpg"), "/no/such.jpg cannot be read: No such file"),
        ("/", "/ cannot be read: Is a directory"),
    ],
)
def test_what_is_no_image_says_so(image: Any, words: str) -> None:
    with pytest.raises(tidegate.ImageRefusedError, match=words):
        bytes_of(image)


def test_a_camera_says_what_is_wrong_with_its_clock_and_its_frames() -> None:
    message = camera_pb2.Camera(name="cam1", online=True, capture_clock="its timestamps leap about", no_frames="401")
    camera = camera_of(message)
    assert (camera.capture_clock, camera.no_frames) == ("its timestamps leap about", "401")
    assert camera_of(camera_pb2.Camera(name="cam1")).capture_clock == ""


def test_what_is_no_frame_to_publish_says_so() -> None:
    with pytest.raises(tidegate.FrameRefusedError, match="NoneType is no picture"):
        _calls.publish_request("cam", None, 95, 1000)  # type: ignore[arg-type]


def test_a_stream_is_silent_when_its_usual_time_is_over() -> None:
    assert no_picture(3) == "no picture for 3 s"

    def said(silence: Silence, begin: float, seconds: float) -> list[int]:
        """The numbers that a program is told that waits from `begin` on."""
        told, now = [], begin
        while (wait := silence.wait_s(now)) + now <= begin + seconds:
            now += wait
            told.append(silence.seconds(now))
        return told

    # The time in which a program did something else is no silence of the node.
    silence = Silence(0)
    silence.heard(0.0)
    assert said(silence, 100.0, 1.4) == []
    assert silence.seconds(101.4) == 0
    silence.heard(102.0)
    assert said(silence, 102.0, 4.6) == [2, 3, 4, 5]
    # A camera of a picture in four seconds, and one that is asked for a picture in ten.
    slow = Silence(0)
    for at in (0.0, 4.0, 8.0):
        slow.heard(at)
    assert said(slow, 8.0, 9.9) == []
    asked = Silence(0.1)
    asked.heard(0.0)
    assert said(asked, 0.0, 24.9) == [] and said(asked, 0.0, 25.2) == [25]


def test_silence_is_told_raised_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    resume = Resume(request_of("cam", 100.0, 0.9), tidegate.Retries())
    told: list[tidegate.Event] = []
    watch, strict = Watch("keep-latency", "wait", told.append), Watch("keep-latency", "raise", None)

    def passes(seconds: float) -> tidegate.Silent | None:
        nonlocal now
        resume.wait_s()
        now += seconds
        return resume.silent()

    assert passes(1.4) is None
    event = passes(0.2)
    assert event == tidegate.Silent(2, "no picture for 2 s")
    watch.seen(resume.told(event)), strict.seen(event)
    assert watch.offline == event and told == [event]
    long = passes(8.0)
    assert long is not None and long.seconds == 10
    with pytest.raises(tidegate.CameraOfflineError, match="no picture for 10 s"):
        strict.seen(long)
    # The word that the picture is unchanged is one, and ends it.
    stages = tidegate.Stages(0, 0, 0, 0, 0)
    watch.seen(resume.told(tidegate.Unchanged(5, 4, 1, False, stages)))
    assert watch.offline is None and passes(1.4) is None
    # Where the reason was told, nothing is added to it.
    watch.seen(resume.told(tidegate.NoFrames("the lens is covered")))
    assert resume.wait_s() is None
    assert isinstance(watch.offline, tidegate.NoFrames)
    watch.seen(resume.told(tidegate.CameraOnline()))
    assert resume.wait_s() == 1.5


def test_of_every_frame_one_waits_and_none_is_left_out() -> None:
    each = Each()
    assert not each and each.get() is None and not each.is_full
    wires = [frames.wire_of(message(b"\xff\xd8").SerializeToString()) for _ in range(2)]
    each.put(wires[0])
    assert each.is_full and each.get() is wires[0] and not each.is_full
