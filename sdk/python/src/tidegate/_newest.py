"""Messages of one subscription between the call that they come by and a program that may be slower, without I/O.

    call ── put ──▶ the newest frame, events ── get ──▶ Resume ──▶ the program

Always true: of live frames the newest waits, with the latest marker that it still shows the scene; frames that it replaced are reported
as missed, directly before it; of events of one kind the latest waits. Of the past that is asked for nothing is replaced: `is_full` says
when the call has to wait.
"""

from __future__ import annotations

from collections import deque

from .frames import NO_PICTURE, Wire
from .v1 import event_pb2, frames_pb2

PAST_MAX = 4
"""Frames of the past that wait at most; the node holds up a call that is not read."""


class _Item:
    """A message, and the frames that it replaced."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.missed: event_pb2.Missed | None = None


class Each:
    """Messages of which none is left out: one waits, and the node holds up the call."""

    def __init__(self) -> None:
        self._wires: deque[Wire] = deque()

    def __bool__(self) -> bool:
        return bool(self._wires)

    @property
    def is_full(self) -> bool:
        """Whether the call has to wait."""
        return bool(self._wires)

    def put(self, wire: Wire) -> None:
        """Adds a message as it came."""
        self._wires.append(wire)

    def get(self) -> Wire | None:
        """The next message, if one waits."""
        return self._wires.popleft() if self._wires else None


class Newest:
    """The messages that wait.

    Args:
        past: whether frames of the past are wanted; otherwise those that are marked as replayed are pictures that a marker refers to.
        last: the epoch and the capture time of the last frame or marker that the program has.
    """

    def __init__(self, past: bool, last: tuple[int, int] | None = None) -> None:
        self._past = past
        self._last = last
        self._items: list[_Item] = []

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def is_full(self) -> bool:
        """Whether the call has to wait."""
        return len(self._items) >= PAST_MAX and sum(self._is_past(_shown(item.wire)) for item in self._items) >= PAST_MAX

    def put(self, wire: Wire) -> None:
        """Adds a message as it came."""
        item = _Item(wire)
        shown = _shown(wire)
        if shown is None:
            if self._items:
                self._replace_event(item)
        elif self._last is not None and shown.epoch == self._last[0] and shown.captured_at <= self._last[1]:
            return
        elif self._items and not self._is_past(shown):
            self._replace_shown(item)
        self._items.append(item)
        # A fast program leaves nothing behind.
        if len(self._items) > 1:
            self._join_missed()

    def get(self) -> Wire | None:
        """The next message, if one waits."""
        if not self._items:
            return None
        first = self._items[0]
        if first.missed is not None:
            missed, first.missed = first.missed, None
            return Wire(frames_pb2.SubscribeResponse(missed=missed), NO_PICTURE)
        return self._items.pop(0).wire

    def _is_past(self, shown: event_pb2.Frame | event_pb2.Unchanged | None) -> bool:
        return self._past and shown is not None and shown.replayed

    def _replace_shown(self, item: _Item) -> None:
        """A frame replaces what is live, a marker the markers."""
        is_frame = item.wire.message.HasField("frame")
        kept = []
        for held in self._items:
            older = _shown(held.wire)
            if older is None or self._is_past(older) or not (is_frame or held.wire.message.HasField("unchanged")):
                kept.append(held)
                continue
            if held.missed is not None:
                item.missed = _sum(item.missed, held.missed)
            # A picture that a marker refers to was reported before, if it was missed.
            if not older.replayed:
                missed = event_pb2.Missed(to=older.captured_at, count=1, why=event_pb2.Missed.WHY_SLOW_SUBSCRIBER)
                setattr(missed, "from", older.captured_at)
                item.missed = _sum(item.missed, missed)
        self._items = kept

    def _replace_event(self, item: _Item) -> None:
        """An event replaces the one of its kind. Reports of missed frames stay, see `_join_missed`."""
        message = item.wire.message
        kind = message.WhichOneof("event")
        kept = []
        for held in self._items:
            older = held.wire.message
            if kind == "missed" or older.WhichOneof("event") != kind:
                kept.append(held)
            elif kind == "knobs_changed":
                setattr(message.knobs_changed, "from", getattr(older.knobs_changed, "from"))
        self._items = kept

    def _join_missed(self) -> None:
        """Sums up reports of frames that were missed for one reason, as long as no frame lies between."""
        joined: list[_Item] = []
        begin = 0
        for item in self._items:
            message = item.wire.message
            if _shown(item.wire) is not None:
                begin = len(joined) + 1
            elif message.HasField("missed"):
                for place in range(begin, len(joined)):
                    older = joined[place].wire.message
                    if older.HasField("missed") and _is_like(older.missed, message.missed):
                        message.missed.CopyFrom(_sum(older.missed, message.missed))
                        del joined[place]
                        break
            joined.append(item)
        self._items = joined


def _shown(wire: Wire) -> event_pb2.Frame | event_pb2.Unchanged | None:
    """The frame, or the marker that its picture is unchanged."""
    message = wire.message
    if message.HasField("frame"):
        return message.frame
    return message.unchanged if message.HasField("unchanged") else None


def _is_like(one: event_pb2.Missed, other: event_pb2.Missed) -> bool:
    """Whether both counts are known or neither is, for one reason."""
    return one.why == other.why and (one.count > 0) == (other.count > 0)


def _sum(one: event_pb2.Missed | None, other: event_pb2.Missed) -> event_pb2.Missed:
    """Both, of which neither count is known, or each."""
    both = event_pb2.Missed()
    both.CopyFrom(other)
    if one is not None:
        both.to = max(one.to, other.to)
        setattr(both, "from", min(getattr(one, "from"), getattr(other, "from")))
        both.count = one.count + other.count
    return both
