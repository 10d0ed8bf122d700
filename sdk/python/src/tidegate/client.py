"""The client that blocks. See `tidegate.aio` for the one that is awaited; both have the same methods.

A client may be used from many threads; a stream is read by one thread at a time and may be closed by any.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from . import frames
from ._calls import (
    Calls,
    FrameInput,
    OnEvent,
    PublishCount,
    Published,
    ServerInfo,
    accepted_at,
    hello,
    publish_request,
    server_of,
    wire_of,
)
from ._connection import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, Pem, Retries, Settings
from ._elsewhere import Ask, Elsewhere, other_node
from ._http import HttpCalls, ImageInput, check_in_flight
from ._mqtt import MessageStream, MqttPublisher
from ._newest import Each, Newest
from ._resume import (
    Controller,
    Delivery,
    EventView,
    FrameView,
    Profile,
    Resume,
    Watch,
    WhenInfeasible,
    WhenOffline,
    changes_of,
    offline_of,
    request_of,
)
from .cameras import Camera, CameraList, camera_of
from .detections import Detections, Model
from .errors import FrameRefusedError, LinkDownError, TidegateError, of_rpc
from .frames import Bounds, CameraOnline, Ended, Event, Frame, Original, Size
from .v1 import camera_pb2, frames_pb2

_T = TypeVar("_T")


def connect(
    url: str = "127.0.0.1:7080",
    *,
    token: str | None = None,
    user: tuple[str, str] | None = None,
    cert: tuple[Pem, Pem] | None = None,
    ca: Pem | None = None,
    pki: str | None = None,
    mqtt: str | None = None,
    server_name: str | None = None,
    retries: Retries | None = None,
    call_timeout_s: float = CALL_TIMEOUT_S,
    follow: bool = True,
) -> Client:
    """Connects to a node.

    Args:
        url: `HOST:PORT` or `https://HOST:PORT` of the node's API; port 7080 where none is named.
        token: a token (JWT) that says who calls.
        user: a user name and its password.
        cert: the caller's certificate and its key, as paths of PEM files or their text as bytes.
        ca: the authority of the site (`ca.pem`), a path or its text as bytes; the system's authorities where none is given.
        pki: a folder as `tidegate init` makes it: its `ca.pem` is `ca`, and `application.pem` with its key is `cert` where no other
            proof is given.
        mqtt: `mqtt://HOST:PORT` or `mqtts://HOST:PORT` of the node's broker, for `publish` and `subscribe`. Where none is given: the
            same host, port 1883 without TLS if it is this machine, else port 8883 with TLS.
        server_name: the name that the node's certificate must carry, where it is not the host of the address.
        retries: how hard streams try to get a broken connection back; 20 tries in a row, about a minute and a half.
        call_timeout_s: how long a call with one answer may take.
        follow: whether calls about a camera that another node of the fabric serves go there, over a connection of their own that is kept.
            The same proof is shown to that node, and only if its certificate is one that this connection would take: of the same
            authority, for `server_name` or else for the host of its address. Otherwise they raise CameraElsewhereError.

    Raises:
        InvalidRequestError: an address, file or proof that cannot be used.
        IdentityRefusedError: one side does not accept the other's certificate, token or password.
        LinkDownError: no node answers within 5 s.
    """
    settings = Settings.make(
        url,
        token=token,
        user=user,
        cert=cert,
        ca=ca,
        pki=pki,
        mqtt=mqtt,
        server_name=server_name,
        retries=retries,
        follow=follow,
    )
    return Client(settings, call_timeout_s)


class Client:
    """One connection to a node, shared by all its calls. Made by `connect`; a context manager that closes it."""

    def __init__(self, settings: Settings, call_timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = call_timeout_s
        self._metadata = settings.metadata()
        self._waits = True
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._broker: MqttPublisher | None = None
        self._http = HttpCalls(settings, call_timeout_s)
        self._elsewhere: Elsewhere[Client] = Elsewhere()
        self._is_closed = False
        self._channel = grpc.secure_channel(str(settings.api), settings.channel_credentials(), settings.channel_options())
        self._calls = Calls(self._channel)
        try:
            answer = self._calls.connect(hello(), timeout=CONNECT_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            self._channel.close()
            failure = of_rpc(error)
            if isinstance(failure, LinkDownError):
                raise LinkDownError(f"no node answers at {settings.api}: {failure}", failure.code) from None
            raise failure from None
        except BaseException:
            self._channel.close()
            raise
        self._server = server_of(answer)

    @property
    def server(self) -> ServerInfo:
        """The node's description of itself."""
        return self._server

    @property
    def address(self) -> str:
        """The address of the node's API, `host:port`."""
        return str(self._settings.api)

    def cameras(self) -> CameraList:
        """Every camera of the node, in order of their names; none of other nodes.

        Raises:
            LinkDownError: the node is not reached within the call's time.
        """
        answer = self._call(self._calls.list_cameras, frames_pb2.ListCamerasRequest())
        return CameraList(camera_of(camera) for camera in answer.cameras)

    def camera(self, name: str) -> Camera:
        """One camera.

        Raises:
            CameraUnknownError: there is none of that name.
        """
        request = frames_pb2.GetCameraInfoRequest(camera=name)
        answer = self._at(name, lambda at: at._call(at._calls.get_camera_info, request))
        return camera_of(answer.camera)

    def frames(
        self,
        camera: str,
        latency_ms: float = 100.0,
        accuracy: float = 0.95,
        *,
        delivery: Delivery = "latest",
        frames_per_second: float = 0.0,
        when_infeasible: WhenInfeasible = "keep-latency",
        when_offline: WhenOffline = "wait",
        controller: Controller | None = None,
        profile: Profile | None = None,
        from_ns: int | None = None,
        to_ns: int | None = None,
        detector: str = "",
        scene: str = "",
        on_event: OnEvent | None = None,
    ) -> FrameStream:
        """Frames of one camera that keep both bounds, as an iterator.

        The stream outlives a broken connection: see `Retries`. A program that is slower than its frames gets the newest one at each
        step, and `missed` counts those before it; with `every`, and from the past, the node waits for the program. Leaving the loop
        and dropping the stream ends the subscription, and so do `close()`, Ctrl-C and an exception.

        Args:
            camera: its name.
            latency_ms: longest time from capture to this program, 1 to 60000 ms.
            accuracy: lowest F1 of the detector on the delivered frame against the original, 0 to 1.
            delivery: `latest`: the newest frame wins; `every`: all, in order, late if need be.
            frames_per_second: most that are wanted, 0.01 to 1000; 0 for as many as the camera makes.
            when_infeasible: what gives way when no setting keeps both bounds: `keep-latency` (frames below the accuracy are
                delivered, and `frame.verdict` says so), `keep-accuracy` (fewer frames), `pause` (none), or `raise`.
            when_offline: `wait` until the camera is back, or `raise`; that counts for a camera without pictures, a node that is
                away, and 10 s without a picture, too.
            controller: who decides the knobs; the node's choice where none is named. `fixed` sends frames as captured.
            profile: the family of knobs.
            from_ns: frames captured at or after this, in ns since the Unix epoch; from now on where none is given.
            to_ns: frames captured before this; for ever where none is given.
            detector: picks the characterization table; the node's choice where it is empty.
            scene: scene class of the table, such as `busy`; the node's choice where it is empty.
            on_event: called with each event that is no frame, in order, by the thread that iterates.

        Raises:
            InvalidRequestError: a bound out of its range; no such table.
            CameraUnknownError, ActionDeniedError, LinkDownError: at once, not at the first frame.
            InfeasibleError, CameraOfflineError: while iterating, where `raise` was chosen.
        """
        watch = Watch(when_infeasible, when_offline, on_event)
        events = self.events(
            camera,
            latency_ms,
            accuracy,
            delivery=delivery,
            frames_per_second=frames_per_second,
            when_infeasible=when_infeasible,
            controller=controller,
            profile=profile,
            from_ns=from_ns,
            to_ns=to_ns,
            detector=detector,
            scene=scene,
        )
        return FrameStream(events, watch)

    def events(
        self,
        camera: str,
        latency_ms: float = 100.0,
        accuracy: float = 0.95,
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
    ) -> EventStream:
        """Frames and all else that a subscription tells, in order: the types of `tidegate.Event`. Arguments and errors as of `frames`."""
        request = request_of(
            camera,
            latency_ms,
            accuracy,
            delivery=delivery,
            frames_per_second=frames_per_second,
            when_infeasible=when_infeasible,
            controller=controller,
            profile=profile,
            from_ns=from_ns,
            to_ns=to_ns,
            detector=detector,
            scene=scene,
        )
        return EventStream(self, request)

    def fetch_original(self, frame: Frame | str, captured_at_ns: int | None = None) -> Original:
        """The untouched frame from the camera's log: `fetch_original(frame)`, or `fetch_original(camera, captured_at_ns)`.

        Raises:
            FrameMissingError: the log no longer has it, or never had.
            CameraOfflineError: the camera's log cannot be reached now.
            ActionDeniedError: the caller may not.
        """
        camera, instant = _named(frame, captured_at_ns)
        request = frames_pb2.FetchOriginalRequest(camera=camera, captured_at=instant)
        answer = self._at(camera, lambda at: at._call(at._calls.fetch_original, request))
        return Original(camera, answer.captured_at, answer.jpeg)

    def models(self) -> list[Model]:
        """The models that images can be sent to.

        Raises:
            LinkDownError: the node is not reached.
        """
        return self._http.models()

    def detect(self, image: ImageInput, model: str = "person") -> Detections:
        """The findings of a model in an image.

        Args:
            image: a frame; a JPEG or PNG image as bytes, path or open file; or BGR pixels or an image of Pillow, which are sent as JPEG.
            model: `face`, `person`, or another of `models`.

        Returns:
            Boxes in pixels of that image; those of a frame are put on the original by `frame.to_source(found.xyxy)`.

        Raises:
            ModelUnknownError: there is none of that name.
            ImageRefusedError: no image, or one that is too large.
            LimitReachedError: the queue of the workers is full; `retry_after_s` says when it may not be.
            DetectorFailedError: the detector does not answer.
            ActionDeniedError: the caller may not.
            LinkDownError: the node is not reached.
        """
        return self._http.detect(image, model)

    def detector(self, model: str = "person", *, in_flight: int = 4) -> Detector:
        """One model, for many images at once; a context manager that ends it.

        Args:
            model: as of `detect`.
            in_flight: images that are under way at once, 1 to 64.
        """
        self._check_open()
        detector = Detector(self._http, model, in_flight)
        self._streams.add(detector)
        return detector

    def publish_frames(
        self,
        camera: str,
        images: Iterable[FrameInput],
        *,
        size: Size | tuple[int, int] | None = None,
        frames_per_second: float = 0.0,
        quality: int = 95,
    ) -> Published:
        """Registers a camera and publishes frames into it until they end; the camera stays registered.

        A frame that the node refuses does not stop the others. Frames are taken from `images` one at a time, as the node takes them.

        Args:
            camera: 1 to 64 characters of a-z A-Z 0-9 . _ -, not beginning with a dot or dash.
            images: JPEG images, or BGR pixels, alone or behind a capture time.
            size: of the frames to come, if known.
            frames_per_second: to come, if known. It is told to the node and paces nothing.
            quality: of the JPEG images made of pixels, 1 to 100.

        Raises:
            CameraTakenError: another client or a camera node holds the name.
            ActionDeniedError: the caller may not hold it.
            LinkDownError: the connection broke; publish again from where `images` is.
        """
        count = PublishCount()
        with self.publisher(camera, size=size, frames_per_second=frames_per_second, quality=quality) as publisher:
            for image in images:
                try:
                    publisher.publish(image)
                except FrameRefusedError as error:
                    count.refuse(error)
                else:
                    count.accepted += 1
        return count.result()

    def publisher(
        self,
        camera: str,
        *,
        size: Size | tuple[int, int] | None = None,
        frames_per_second: float = 0.0,
        quality: int = 95,
    ) -> FramePublisher:
        """Registers a camera and opens a stream of frames into it; arguments and errors as of `publish_frames`."""
        request = frames_pb2.RegisterRequest(camera=camera, frames_per_second=frames_per_second)
        if size is not None:
            request.size.CopyFrom(camera_pb2.FrameSize(width=size[0], height=size[1]))
        self._call(self._calls.register, request)
        return FramePublisher(self, camera, quality)

    def unregister(self, camera: str) -> None:
        """Takes a camera back that this caller registered: its subscriptions end.

        Raises:
            CameraUnknownError: it is not registered.
            ActionDeniedError: it is another's.
        """
        self._call(self._calls.unregister, frames_pb2.UnregisterRequest(camera=camera))

    def publish(self, topic: str, payload: bytes | str, *, qos: int = 1, retain: bool = False) -> None:
        """Publishes one message by MQTT; with `qos=1` it returns once the broker has taken it over.

        The connection to the broker is made at the first call and kept; a message whose connection broke is sent once more, so with
        `qos=1` it may come twice.

        Args:
            topic: no wildcards.
            payload: bytes, or text as UTF-8.
            qos: 0 or 1.
            retain: the broker keeps it for those who subscribe later.

        Raises:
            InvalidRequestError: no topic can be called that.
            IdentityRefusedError, ActionDeniedError, LimitReachedError: the broker says so.
            LinkDownError: the broker is not reached.
        """
        with self._lock:
            self._check_open()
            if self._broker is None:
                self._broker = MqttPublisher(self._settings)
            broker = self._broker
        broker.publish(topic, payload, qos, retain)

    def subscribe(self, *filters: str, qos: int = 1) -> MessageStream:
        """Messages of MQTT topics, as an iterator, over a connection of its own.

        A message of QoS 1 is acknowledged when the next one is asked for; a program that is slower than the messages come lets them
        wait in the broker. After a broken connection the session continues within a minute: messages of QoS 1 that came meanwhile
        come then, and one may come twice.

        Args:
            filters: one or more, with `+` and `#` as wildcards.
            qos: highest that is wanted, 0 or 1.

        Raises:
            InvalidRequestError: a filter that is none.
            IdentityRefusedError, ActionDeniedError: the broker says so, at once.
            LinkDownError: the broker is not reached, at once, or after the tries of `Retries`.
        """
        self._check_open()
        stream = MessageStream(self._settings, filters, qos)
        self._streams.add(stream)
        return stream

    def close(self) -> None:
        """Ends all streams and the connection. Idempotent."""
        with self._lock:
            self._is_closed = True
            broker, self._broker = self._broker, None
        for stream in list(self._streams):
            stream.close()
        if broker is not None:
            broker.close()
        for node in self._elsewhere.nodes():
            node.close()
        self._http.close()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self._server.node} {self._server.version} at {self._settings.api}>"

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkDownError("the client is closed", "sdk.closed")

    def _call(self, method: Any, request: Any) -> Any:
        self._check_open()
        try:
            return method(request, timeout=self._timeout_s, metadata=self._metadata, wait_for_ready=self._waits)
        except grpc.RpcError as error:
            raise of_rpc(error) from None

    def _at(self, camera: str, ask: Callable[[Client], _T]) -> _T:
        """Makes a call about a camera at the node that serves it."""
        if not self._settings.follow:
            return ask(self)
        steps = self._elsewhere.call(self, camera)
        step = next(steps)
        while True:
            done: tuple[object, TidegateError | None]
            try:
                done = (ask(step.node) if isinstance(step, Ask) else self._reach(step.address, step.name)), None
            except TidegateError as error:
                done = None, error
            try:
                step = steps.send(done)
            except StopIteration as end:
                answer: _T = end.value
                return answer

    def _reach(self, address: str, name: str) -> Client:
        self._check_open()
        client = Client(self._settings.at(address), self._timeout_s)
        found = client.server.node
        if self._is_closed or found != name:
            client.close()
            self._check_open()
            raise other_node(found, address)
        # A node that is away is not waited for: the camera may be elsewhere by then.
        client._waits = False
        return client


def _named(frame: Frame | str, captured_at_ns: int | None) -> tuple[str, int]:
    if isinstance(frame, Frame):
        return frame.camera, frame.captured_at_ns
    if captured_at_ns is None:
        raise TypeError("fetch_original takes a frame, or a camera's name and a capture time")
    return frame, captured_at_ns


class EventStream(EventView, Iterator[Event]):
    """The events of one subscription. Ends after `Ended`, a failure, or `close()`. Made by `Client.events`."""

    def __init__(self, client: Client, request: frames_pb2.SubscribeRequest) -> None:
        client._check_open()
        self._client = client
        self._served_by = client
        self._resume = Resume(request, client._settings.retries)
        self._closed = threading.Event()
        self._call: _Reader | None = None
        self._first: Event | None = None
        self._open(client._timeout_s)
        try:
            # A node tells a stream that is there of a camera that goes, and not one that begins behind it.
            self._first = offline_of(client.camera(request.camera))
        except BaseException:
            self.close()
            raise
        client._streams.add(self)

    def update(
        self,
        *,
        latency_ms: float | None = None,
        accuracy: float | None = None,
        frames_per_second: float | None = None,
    ) -> Bounds:
        """Changes the bounds; those that are not named stay as they are. Returns the bounds from now on.

        Raises:
            InvalidRequestError: a bound out of its range, or the subscription has ended.
        """
        request = frames_pb2.UpdateSubscriptionRequest(
            subscription_id=self.subscription_id, changes=changes_of(latency_ms, accuracy, frames_per_second)
        )
        at = self._served_by
        answer = at._call(at._calls.update_subscription, request)
        self._resume.demanded(answer.demand)
        return self.bounds

    def __next__(self) -> Event:
        # Any end of the loop, Ctrl-C too, ends the subscription.
        try:
            event = self._next()
        except BaseException:
            self.close()
            raise
        if event is None:
            self.close()
            raise StopIteration
        if isinstance(event, Ended):
            self.close()
        return event

    def _next(self) -> Event | None:
        first, self._first = self._first, None
        if first is not None:
            return self._resume.told(first)
        while not self._closed.is_set():
            event: Event | None
            try:
                if self._call is None:
                    if self._closed.wait(self._resume.retry_s()):
                        break
                    self._open(CONNECT_TIMEOUT_S)
                    return self._resume.told(CameraOnline())
                wire = self._call.receive(self._resume.wait_s())
                event = self._resume.silent() if wire is None else self._resume.take(wire)
            except TidegateError as error:
                if self._closed.is_set():
                    break
                call, self._call = self._call, None
                if call is not None:
                    call.cancel()
                event = self._resume.broken(error)
            if event is not None:
                return self._resume.told(event)
        return None

    def _open(self, timeout_s: float) -> None:
        request = self._resume.request()
        self._client._at(request.camera, lambda at: self._open_at(at, request, timeout_s))

    def _open_at(self, at: Client, request: frames_pb2.SubscribeRequest, timeout_s: float) -> None:
        # Without a certificate or a node the call fails at its first message, not here.
        opened = at._calls.subscribe(request, metadata=at._metadata)
        call = _Reader(opened, self._resume.waiting(request))
        try:
            wire = call.receive(timeout_s)
            if wire is None:
                raise LinkDownError(f"the node does not answer within {timeout_s:g} s", "link.down")
            event = self._resume.take(wire)
            if not isinstance(event, frames.Started):
                raise TidegateError("a subscription did not open with `started`", "link.protocol")
        except BaseException:
            call.cancel()
            raise
        self._resume.is_back()
        self._served_by = at
        self._call = call
        if self._closed.is_set():
            call.cancel()

    def close(self) -> None:
        """Ends the subscription; an iteration under way in another thread ends. Idempotent."""
        self._closed.set()
        call = self._call
        if call is not None:
            call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self.close()


class _Reader:
    """A call whose messages a thread takes as they come: a program that is slow finds the newest frame, and none that has grown old; where
    each is wanted, the node waits.
    """

    def __init__(self, call: Any, waiting: Newest | Each) -> None:
        self._call = call
        self._waiting = waiting
        self._changed = threading.Condition()
        self._end: BaseException | None = None
        self._is_cancelled = False
        threading.Thread(target=self._run, name="tidegate-frames", daemon=True).start()

    def receive(self, wait_s: float | None) -> frames.Wire | None:
        """The next message; None if none comes in that time. Messages from before the end are handed out first.

        Raises:
            TidegateError: the call has ended.
        """
        end = None if wait_s is None else time.monotonic() + wait_s
        with self._changed:
            while True:
                wire = self._waiting.get()
                if wire is not None:
                    self._changed.notify()
                    return wire
                if self._end is not None:
                    raise self._end
                left = 1.0 if end is None else end - time.monotonic()
                if left <= 0:
                    return None
                # Not for ever: some systems let Ctrl-C through only between two waits.
                self._changed.wait(min(1.0, left))

    def cancel(self) -> None:
        """Ends the call. Idempotent; from any thread."""
        self._call.cancel()
        with self._changed:
            self._is_cancelled = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                wire = self._next()
                with self._changed:
                    self._waiting.put(wire)
                    del wire
                    self._changed.notify()
                    while self._waiting.is_full and not self._is_cancelled:
                        self._changed.wait()
        except BaseException as error:
            with self._changed:
                # Its frames would keep this thread's last message.
                self._end = error.with_traceback(None)
                self._changed.notify()

    def _next(self) -> frames.Wire:
        try:
            data = next(self._call)
        except StopIteration:
            raise LinkDownError("the node closed the stream", "link.down") from None
        except grpc.RpcError as error:
            raise of_rpc(error) from None
        return wire_of(data)


class FrameStream(FrameView, Iterator[Frame]):
    """The frames of one subscription. Made by `Client.frames`; a context manager that ends it."""

    _events: EventStream

    def __init__(self, events: EventStream, watch: Watch) -> None:
        self._events = events
        self._watch = watch

    def update(
        self,
        *,
        latency_ms: float | None = None,
        accuracy: float | None = None,
        frames_per_second: float | None = None,
    ) -> Bounds:
        """Changes the bounds, as `EventStream.update`."""
        return self._events.update(latency_ms=latency_ms, accuracy=accuracy, frames_per_second=frames_per_second)

    def __next__(self) -> Frame:
        try:
            while True:
                frame = self._watch.seen(next(self._events))
                if frame is not None:
                    return frame
        except BaseException:
            self._events.close()
            raise

    def close(self) -> None:
        """Ends the subscription; an iteration under way in another thread ends. Idempotent."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Detector:
    """One model of a node, for many images at once. Made by `Client.detector`; a context manager that ends it."""

    def __init__(self, http: HttpCalls, model: str, in_flight: int) -> None:
        check_in_flight(in_flight)
        self.model = model
        """The model's name."""
        self._http = http
        self._in_flight = in_flight
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="tidegate-detect")

    def detect(self, image: ImageInput) -> Detections:
        """The findings of the model in an image. Errors as of `Client.detect`."""
        return self._http.detect(image, self.model)

    def map(self, images: Iterable[ImageInput]) -> Iterator[tuple[ImageInput, Detections]]:
        """Each image with what the model finds in it, in their order, while the next ones are under way.

        It is for images that are at hand, such as files: of a camera's frames the answer to one would wait until later ones came.
        Errors as of `Client.detect`; one ends it.
        """
        under_way: deque[tuple[ImageInput, Future[Detections]]] = deque()
        try:
            for image in images:
                under_way.append((image, self._threads.submit(self._http.detect, image, self.model)))
                if len(under_way) >= self._in_flight:
                    first, found = under_way.popleft()
                    yield first, found.result()
            while under_way:
                first, found = under_way.popleft()
                yield first, found.result()
        finally:
            for _, found in under_way:
                found.cancel()

    def close(self) -> None:
        """Ends it; images under way are still answered. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class FramePublisher:
    """A stream of frames into one camera; a context manager that ends it. Used by one thread at a time. Made by `Client.publisher`."""

    def __init__(self, client: Client, camera: str, quality: int) -> None:
        self._camera = camera
        self._quality = quality
        self._bytes_max = client.server.frame_bytes_max
        # One frame: `publish` waits for its answer before the next can be sent.
        self._frames: queue.Queue[frames_pb2.PublishRequest | None] = queue.Queue(maxsize=2)
        self._is_closed = False
        self._call = client._calls.publish(_until_none(self._frames), metadata=client._metadata)
        client._streams.add(self)

    def publish(self, frame: FrameInput) -> int:
        """Appends one frame and waits until it is in the log; returns its capture time, in ns since the Unix epoch.

        Raises:
            FrameRefusedError: it was not taken; the next one may be.
            NotInstalledError: pixels were given, and neither OpenCV nor Pillow is installed.
            TidegateError: any other ends the stream: open a new one.
        """
        request = publish_request(self._camera, frame, self._quality, self._bytes_max)
        if self._is_closed:
            raise LinkDownError("the stream of frames has ended: open a new one", "sdk.closed")
        self._frames.put(request)
        try:
            answer = next(self._call)
        except StopIteration:
            self.close()
            raise LinkDownError("the node ended the stream of frames", "link.down") from None
        except grpc.RpcError as error:
            self.close()
            raise of_rpc(error) from None
        except BaseException:
            # The answer of a frame that was given up would be taken for that of the next.
            self.close()
            raise
        return accepted_at(answer)

    def close(self) -> None:
        """Ends the stream; the camera stays registered. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._call.cancel()
            # Behind at most one frame there is room, so that the thread of gRPC that waits for frames sees the end.
            self._frames.put(None)

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _until_none(
    frames_to_send: queue.Queue[frames_pb2.PublishRequest | None],
) -> Iterator[frames_pb2.PublishRequest]:
    while (frame := frames_to_send.get()) is not None:
        yield frame
