"""Frames and their parts, without a node."""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
import pytest
from google.protobuf.message import DecodeError

import tidegate
from tidegate import _calls, frames
from tidegate.v1 import event_pb2, frames_pb2


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
