"""A subscription that is kept over broken connections, without I/O: both clients drive it.

    opened ── events ──▶ take ──▶ to the application
       ▲                   │ broken
       └── request, wait ◀─┘

Always true: a frame or marker that the application has is not given to it again; a subscription that asked for the past or for every
frame continues behind the last one that it had, or with the first one of a camera that has restarted; another continues with the newest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, get_args

from . import frames
from ._connection import Retries
from ._newest import Each, Newest
from ._silence import Silence, no_picture
from .cameras import Camera
from .errors import CameraOfflineError, InfeasibleError, InvalidRequestError, LinkDownError, TidegateError
from .v1 import demand_pb2, frames_pb2

Delivery = Literal["latest", "every"]
WhenInfeasible = Literal["keep-latency", "keep-accuracy", "pause", "raise"]
WhenOffline = Literal["wait", "raise"]
Controller = Literal["budget", "mez-pi", "aimd", "fixed"]
Profile = Literal["jpeg", "mez"]

RAISED_AFTER_S = 10
"""A program that asked for it is raised a silence of so many seconds."""

# A node that has just started may not have met its cameras yet; one that stops may start again.
_AWAY = ("link.down", "frames.camera.unknown", "frames.camera.offline")


def request_of(
    camera: str,
    latency_ms: float,
    accuracy: float,
    *,
    delivery: Delivery = "latest",
    frames_per_second: float = 0.0,
    when_infeasible: WhenInfeasible = "keep-latency",
    controller: Controller | None = None,
    profile: Profile | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    detector: str = "",
    scene: str = "",
) -> frames_pb2.SubscribeRequest:
    """The request of a subscription.

    Raises:
        InvalidRequestError: a bound out of its range, a word that is none, a time range that is empty.
    """
    demand = demand_pb2.Demand(
        latency_nanos=_latency(latency_ms),
        accuracy=_accuracy(accuracy),
        frames_per_second=_rate(frames_per_second),
    )
    demand.delivery = _value(demand_pb2.Delivery, "DELIVERY", delivery, get_args(Delivery), "delivery")
    kept = when_infeasible if when_infeasible != "raise" else "keep-latency"
    demand.when_infeasible = _value(demand_pb2.WhenInfeasible, "WHEN_INFEASIBLE", kept, get_args(WhenInfeasible), "when_infeasible")
    if controller is not None:
        demand.controller = _value(demand_pb2.Controller, "CONTROLLER", controller, get_args(Controller), "controller")
    if profile is not None:
        demand.profile = _value(demand_pb2.Profile, "PROFILE", profile, get_args(Profile), "profile")
    request = frames_pb2.SubscribeRequest(camera=camera, demand=demand, detector=detector, scene=scene)
    if from_ns is not None:
        setattr(request, "from", from_ns)
    if to_ns is not None:
        if from_ns is not None and to_ns <= from_ns:
            raise InvalidRequestError(f"the range from {from_ns} to {to_ns} is empty", "frames.range.invalid")
        request.to = to_ns
    return request


def changes_of(latency_ms: float | None, accuracy: float | None, frames_per_second: float | None) -> demand_pb2.DemandChanges:
    """Changes to a demand; None stays as it is. Raises as `request_of`."""
    changes = demand_pb2.DemandChanges()
    if latency_ms is not None:
        changes.latency_nanos = _latency(latency_ms)
    if accuracy is not None:
        changes.accuracy = _accuracy(accuracy)
    if frames_per_second is not None:
        changes.frames_per_second = _rate(frames_per_second)
    return changes


class Resume:
    """The state of one subscription between two events."""

    def __init__(self, request: frames_pb2.SubscribeRequest, retries: Retries) -> None:
        self.camera = request.camera
        self.subscription_id = 0
        self.bounds = frames.bounds_of(request.demand.latency_nanos, request.demand.accuracy)
        self._first = request
        self._demand = request.demand
        self._retries = retries
        self._last: tuple[int, int] | None = None
        self._tries = 0
        self._is_broken = False
        self._silence = Silence(request.demand.frames_per_second)
        self._is_told = False

    def request(self) -> frames_pb2.SubscribeRequest:
        """The request with which to open the call, for the first time or again.

        Raises:
            LinkDownError: nothing is left of the time range.
        """
        request = frames_pb2.SubscribeRequest()
        request.CopyFrom(self._first)
        request.demand.CopyFrom(self._demand)
        if self._last is not None:
            epoch, last = self._last
            if request.HasField("from") or request.demand.delivery == demand_pb2.DELIVERY_EVERY:
                setattr(request, "from", last + 1)
                request.from_epoch = epoch
                if request.HasField("to") and request.to <= last + 1:
                    raise LinkDownError("the connection broke behind the last frame of the range", "link.down")
            else:
                request.ClearField("from")
                request.ClearField("from_epoch")
        return request

    def waiting(self, request: frames_pb2.SubscribeRequest) -> Newest | Each:
        """The messages of the call that is opened with this request."""
        if request.demand.delivery == demand_pb2.DELIVERY_EVERY:
            return Each()
        return Newest(request.HasField("from"), self._last)

    def wait_s(self) -> float | None:
        """Seconds to wait for a message before `silent` is something; None for as long as it takes, where the reason is told."""
        return None if self._is_told else self._silence.wait_s(time.monotonic())

    def silent(self) -> frames.Silent | None:
        """The event for the application after a wait in which nothing came, if it is time for one."""
        seconds = self._silence.seconds(time.monotonic())
        return frames.Silent(seconds, no_picture(seconds)) if seconds else None

    def told(self, event: frames.Event) -> frames.Event:
        """The same event, which the application gets."""
        if isinstance(event, frames.Frame | frames.Unchanged):
            self._is_told = False
            self._silence.heard(time.monotonic())
        elif isinstance(event, frames.CameraOffline | frames.NoFrames):
            self._is_told = True
        elif isinstance(event, frames.Infeasible):
            self._is_told |= self._demand.when_infeasible == demand_pb2.WHEN_INFEASIBLE_PAUSE
        elif isinstance(event, frames.CameraOnline | frames.Feasible):
            self._is_told = False
            self._silence.stop()
        return event

    def demanded(self, demand: demand_pb2.Demand) -> None:
        """The node took changes: this is asked of every frame from now on."""
        self._demand = demand
        self.bounds = frames.bounds_of(demand.latency_nanos, demand.accuracy)
        self._silence.asks(demand.frames_per_second)

    def take(self, wire: frames.Wire) -> frames.Event | None:
        """The event of a message, or None if it is not for the application.

        Raises:
            LinkDownError: the node stops, which is a broken connection.
        """
        event = frames.event_of(wire, self.camera, self.bounds, time.time_ns())
        if event is None:
            return None
        if isinstance(event, frames.Started):
            self.subscription_id = event.subscription_id
            self.demanded(wire.message.started.demand)
            return event
        if isinstance(event, frames.Ended) and event.reason == "shutdown":
            raise LinkDownError("the node stops", "link.down")
        self._tries = 0
        if isinstance(event, frames.Frame | frames.Unchanged):
            # Times of a camera that has restarted cannot be compared with those before.
            if self._last is not None and self._last[0] == event.epoch and event.captured_at_ns <= self._last[1]:
                return None
            self._last = (event.epoch, event.captured_at_ns)
        return event

    def broken(self, error: TidegateError) -> frames.CameraOffline | None:
        """A call failed: what to tell the application, if it does not know already.

        Raises:
            TidegateError: the failure is not one of the connection, or the tries are used up.
        """
        is_away = error.code in _AWAY if self._is_broken else error.code == "link.down"
        if not is_away:
            raise error
        if self._tries >= self._retries.max:
            text = f"the connection broke and {self._retries.max} further tries are used up: {error}"
            raise LinkDownError(text, "link.down") from error
        if self._is_broken:
            return None
        self._is_broken = True
        return frames.CameraOffline(f"the connection to the node broke ({error}); trying again", node=True)

    def retry_s(self) -> float:
        """Seconds to wait before the next try, which this counts."""
        self._tries += 1
        return self._retries.wait(self._tries - 1)

    def is_back(self) -> bool:
        """The call is open: whether it had been broken."""
        was_broken, self._is_broken = self._is_broken, False
        return was_broken


def offline_of(camera: Camera) -> frames.Event | None:
    """The event that a stream begins with whose camera gives no frames at that time; None if it does."""
    if not camera.online:
        return frames.CameraOffline(f"the camera {camera.name} is known and not reached")
    return frames.NoFrames(camera.no_frames) if camera.no_frames else None


class Watch:
    """Frames among events: the rest is told to the application's callback, remembered, or raised, as it chose."""

    def __init__(
        self,
        when_infeasible: WhenInfeasible,
        when_offline: WhenOffline,
        on_event: Callable[[frames.Event], object] | None,
    ) -> None:
        if when_offline not in get_args(WhenOffline):
            raise InvalidRequestError(f"when_offline is {when_offline!r}; one of wait, raise is allowed", "config.invalid")
        self.infeasible: frames.Infeasible | None = None
        self.offline: frames.CameraOffline | frames.NoFrames | frames.Silent | None = None
        self.missed = 0
        self._raise_infeasible = when_infeasible == "raise"
        self._raise_offline = when_offline == "raise"
        self._on_event = on_event

    def seen(self, event: frames.Event) -> frames.Frame | None:
        """The frame, if the event is one.

        Raises:
            InfeasibleError, CameraOfflineError: as the application chose.
        """
        if isinstance(event, frames.Frame):
            if not event.replayed:
                self.offline = None
            return event
        if isinstance(event, frames.Infeasible):
            self.infeasible = event
        elif isinstance(event, frames.Feasible):
            self.infeasible = None
        elif isinstance(event, frames.CameraOffline | frames.NoFrames | frames.Silent):
            self.offline = event
        elif isinstance(event, frames.CameraOnline):
            self.offline = None
        elif isinstance(event, frames.Unchanged):
            if isinstance(self.offline, frames.Silent):
                self.offline = None
        elif isinstance(event, frames.Missed):
            self.missed += event.count
        if self._on_event is not None:
            self._on_event(event)
        if isinstance(event, frames.Infeasible) and self._raise_infeasible:
            raise InfeasibleError(
                event.sentence,
                latency_at_accuracy_ms=event.latency_at_accuracy_ms,
                accuracy_at_latency=event.accuracy_at_latency,
                frames_per_second=event.frames_per_second,
            )
        is_short = isinstance(event, frames.Silent) and event.seconds < RAISED_AFTER_S
        if self._raise_offline and not is_short and isinstance(event, frames.CameraOffline | frames.NoFrames | frames.Silent):
            raise CameraOfflineError(event.sentence, "frames.camera.offline")
        return None


class EventView:
    """The state of a stream of events, as both clients show it."""

    _resume: Resume

    @property
    def camera(self) -> str:
        """The camera's name."""
        return self._resume.camera

    @property
    def bounds(self) -> frames.Bounds:
        """The bounds that hold now."""
        return self._resume.bounds

    @property
    def subscription_id(self) -> int:
        """Its number on the node; another one after a broken connection."""
        return self._resume.subscription_id


class FrameView:
    """The state of a stream of frames, as both clients show it."""

    _events: EventView
    _watch: Watch

    @property
    def camera(self) -> str:
        """The camera's name."""
        return self._events.camera

    @property
    def bounds(self) -> frames.Bounds:
        """The bounds that hold now."""
        return self._events.bounds

    @property
    def infeasible(self) -> frames.Infeasible | None:
        """Set while both bounds cannot be kept; it says which could be."""
        return self._watch.infeasible

    @property
    def offline(self) -> frames.CameraOffline | frames.NoFrames | frames.Silent | None:
        """Set while the camera or the node is away, the camera gives no pictures, or none comes and nobody says why."""
        return self._watch.offline

    @property
    def missed(self) -> int:
        """Captured frames that this program does not get: those that the node counted, and those that newer ones replaced here."""
        return self._watch.missed

    def __repr__(self) -> str:
        return f"<FrameStream of {self.camera} within {self.bounds.latency_ms:.0f} ms at {self.bounds.accuracy:.2f}>"


def _latency(latency_ms: float) -> int:
    if not 1 <= latency_ms <= 60_000:
        raise InvalidRequestError(f"a latency of {latency_ms} ms is out of range: 1 to 60000 ms", "frames.bound.invalid")
    return round(latency_ms * 1e6)


def _accuracy(accuracy: float) -> float:
    if not 0 <= accuracy <= 1:
        raise InvalidRequestError(f"an accuracy of {accuracy} is out of range: 0 to 1", "frames.bound.invalid")
    return accuracy


def _rate(frames_per_second: float) -> float:
    if frames_per_second != 0 and not 0.01 <= frames_per_second <= 1000:
        raise InvalidRequestError(
            f"{frames_per_second} frames per second are out of range: 0.01 to 1000, or 0 for as many as the camera makes",
            "frames.bound.invalid",
        )
    return frames_per_second


def _value(enum: Any, prefix: str, word: str, words: tuple[str, ...], name: str) -> Any:
    if word not in words:
        raise InvalidRequestError(f"{name} is {word!r}; one of {', '.join(words)} is allowed", "frames.bound.invalid")
    return enum.Value(f"{prefix}_{word.upper().replace('-', '_')}")
