"""Messages that wait for a program that is slower than its frames."""

from __future__ import annotations

import random

from tidegate._newest import PAST_MAX, Newest
from tidegate.frames import NO_PICTURE, Wire
from tidegate.v1 import event_pb2, frames_pb2

LATE = event_pb2.Missed.WHY_LATE
OVERTAKEN = event_pb2.Missed.WHY_OVERTAKEN


def _frame(captured_at: int, replayed: bool = False) -> Wire:
    frame = event_pb2.Frame(captured_at=captured_at, replayed=replayed, epoch=1)
    return Wire(frames_pb2.SubscribeResponse(frame=frame), memoryview(b"jpeg"))


def _unchanged(captured_at: int) -> Wire:
    return Wire(frames_pb2.SubscribeResponse(unchanged=event_pb2.Unchanged(captured_at=captured_at, epoch=1)), NO_PICTURE)


def _missed(at: int, count: int, why: event_pb2.Missed.Why) -> Wire:
    missed = event_pb2.Missed(to=at, count=count, why=why)
    setattr(missed, "from", at)
    return Wire(frames_pb2.SubscribeResponse(missed=missed), NO_PICTURE)


def _knobs(before: str, after: str) -> Wire:
    changed = event_pb2.KnobsChanged(to=after)
    setattr(changed, "from", before)
    return Wire(frames_pb2.SubscribeResponse(knobs_changed=changed), NO_PICTURE)


def _event(**event: object) -> Wire:
    return Wire(frames_pb2.SubscribeResponse(**event), NO_PICTURE)  # type: ignore[arg-type]


def _words(wire: Wire) -> str:
    which = wire.message.WhichOneof("event")
    assert which is not None
    event = getattr(wire.message, which)
    if which in ("frame", "unchanged"):
        return f"{which} {event.captured_at}"
    if which == "missed":
        return f"missed {getattr(event, 'from')}-{event.to} {event.count} {event_pb2.Missed.Why.Name(event.why)[4:].lower()}"
    return f"knobs {getattr(event, 'from')} {event.to}" if which == "knobs_changed" else which


def _all(newest: Newest) -> list[str]:
    return [_words(wire) for wire in iter(newest.get, None)]


def _held(*wires: Wire, past: bool = False, last: tuple[int, int] | None = None) -> list[str]:
    newest = Newest(past, last)
    for wire in wires:
        newest.put(wire)
    return _all(newest)


def test_of_live_frames_the_newest_waits_and_those_that_it_replaced_are_missed_before_it() -> None:
    started = _event(started=event_pb2.Started())
    found = _held(started, _frame(10), _frame(20), _frame(30))
    assert found == ["started", "missed 10-20 2 slow_subscriber", "frame 30"]


def test_a_marker_replaces_markers_and_leaves_its_picture() -> None:
    found = _held(_frame(1), _frame(2), _unchanged(3), _unchanged(4), _unchanged(5))
    assert found == ["missed 1-1 1 slow_subscriber", "frame 2", "missed 3-4 2 slow_subscriber", "unchanged 5"]
    assert _held(_frame(2), _unchanged(3), _unchanged(4), _frame(5)) == ["missed 2-4 3 slow_subscriber", "frame 5"]


def test_of_events_of_a_kind_the_latest_waits_and_no_count_is_lost() -> None:
    infeasible, feasible = (lambda: _event(infeasible=event_pb2.Infeasible())), (lambda: _event(feasible=event_pb2.Feasible()))
    wires = [infeasible(), feasible(), infeasible(), _knobs("a", "b")]
    for at in range(1000):
        wires += [_missed(at, 1, LATE), _missed(at, 2, OVERTAKEN), _knobs("b", "c")]
    wires += [_frame(2000), _missed(2001, 5, LATE)]
    assert _held(*wires) == [
        "feasible",
        "infeasible",
        "missed 0-999 1000 late",
        "missed 0-999 2000 overtaken",
        "knobs a c",
        "frame 2000",
        "missed 2001-2001 5 late",
    ]


def test_counts_that_are_not_known_are_apart_from_those_that_are() -> None:
    found = _held(_missed(1, 0, LATE), _missed(2, 3, LATE), _missed(3, 0, LATE), _missed(4, 5, LATE))
    assert found == ["missed 1-3 0 late", "missed 2-4 8 late"]


def test_what_waits_is_bounded_however_long_the_program_is_away() -> None:
    newest = Newest(past=False)
    for at in range(1, 1000):
        for wire in (_missed(at, 1, LATE), _frame(at) if at % 3 else _unchanged(at), _knobs("a", "b")):
            newest.put(wire)
        assert len(newest._items) <= 8
    assert "frame 998" in _all(newest)


def test_frames_of_the_past_that_was_asked_for_wait_for_the_program() -> None:
    newest = Newest(past=True)
    for captured_at in range(1, PAST_MAX + 1):
        assert not newest.is_full
        newest.put(_frame(captured_at, replayed=True))
    assert newest.is_full
    newest.put(_frame(100))
    newest.put(_frame(200))
    assert newest.get() is not None and not newest.is_full
    assert _all(newest) == ["frame 2", "frame 3", "frame 4", "missed 100-100 1 slow_subscriber", "frame 200"]


def test_a_picture_that_a_marker_refers_to_is_replaced_as_a_live_one() -> None:
    wires = [wire for at in range(10) for wire in (_frame(3 * at, replayed=True), _unchanged(3 * at + 1))]
    assert _held(*wires, _frame(100)) == ["missed 1-28 10 slow_subscriber", "frame 100"]


def test_a_frame_that_the_program_has_is_neither_missed_nor_given_again() -> None:
    assert _held(_frame(4), _frame(5), _frame(6), last=(1, 5)) == ["frame 6"]
    assert _held(_frame(4), last=(2, 5)) == ["frame 4"], "times of another epoch are not compared"


def test_each_frame_is_handed_out_or_missed_in_any_order_of_calls() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        newest, put, seen, missed, last = Newest(past=False), 0, 0, 0, 0
        for step in range(200):
            if step < 150 and dice.random() < 0.6:
                put += 1
                newest.put(_frame(put) if dice.random() < 0.7 else _unchanged(put))
                if dice.random() < 0.2:
                    put += 1
                    newest.put(_missed(put, 1, LATE))
            elif (wire := newest.get()) is not None:
                if wire.message.HasField("missed"):
                    missed += wire.message.missed.count
                else:
                    captured_at = wire.message.frame.captured_at + wire.message.unchanged.captured_at
                    assert captured_at > last, seed
                    seen, last = seen + 1, captured_at
        assert not newest and put == missed + seen, seed
