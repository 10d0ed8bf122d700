"""The client for asyncio: the same methods as `tidegate.Client`, awaited, and streams for `async for`.

    import tidegate.aio

    async with await tidegate.aio.connect("127.0.0.1:7080", pki="tidegate-data/pki") as node:
        async for frame in await node.frames("cam1", latency_ms=100, accuracy=0.95):
            print(frame.verdict)

A client belongs to the event loop that it was made in. Cancelling a task that awaits the next item of a stream ends that stream. A stream
that is left with `break` ends when it is collected; `async with` ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from . import frames, messages
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
from ._mqtt import keep_watch, unreachable
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
from .client import _named
from .detections import Detections, Model
from .errors import FrameRefusedError, LinkDownError, TidegateError, of_rpc
from .frames import Bounds, CameraOnline, Ended, Event, Frame, Original, Size, Wire
from .messages import Message, Session
from .v1 import camera_pb2, frames_pb2

_READ_BYTES = 256 << 10
# A step of a program that takes longer may have blocked the loop.
_SLOW_S = 0.02
# Messages are then taken until none has come for so long, or that long in all.
_QUIET_S = 0.002
_CATCH_UP_MAX_S = 0.1
_T = TypeVar("_T")


async def connect(
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
    """Connects to a node. Arguments and errors as of `tidegate.connect`."""
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
    return await _connected(settings, call_timeout_s)


async def _connected(settings: Settings, call_timeout_s: float) -> Client:
    channel = grpc.aio.secure_channel(str(settings.api), settings.channel_credentials(), list(settings.channel_options(is_awaited=True)))
    calls = Calls(channel)
    try:
        answer = await calls.connect(hello(), timeout=CONNECT_TIMEOUT_S, metadata=settings.metadata())
    except grpc.RpcError as error:
        await channel.close()
        failure = of_rpc(error)
        if isinstance(failure, LinkDownError):
            raise LinkDownError(f"no node answers at {settings.api}: {failure}", failure.code) from None
        raise failure from None
    except BaseException:
        await channel.close()
        raise
    return Client(settings, call_timeout_s, channel, calls, server_of(answer))


class Client:
    """One connection to a node, shared by all its calls. Made by `connect`; an async context manager that closes it."""

    def __init__(self, settings: Settings, call_timeout_s: float, channel: grpc.aio.Channel, calls: Calls, server: ServerInfo) -> None:
        self._settings = settings
        self._timeout_s = call_timeout_s
        self._metadata = settings.metadata()
        self._waits = True
        self._channel = channel
        self._calls = calls
        self._server = server
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._broker: _MqttPublisher | None = None
        self._http = HttpCalls(settings, call_timeout_s)
        self._elsewhere: Elsewhere[Client] = Elsewhere()
        self._is_closed = False

    @property
    def server(self) -> ServerInfo:
        """The node's description of itself."""
        return self._server

    @property
    def address(self) -> str:
        """The address of the node's API, `host:port`."""
        return str(self._settings.api)

    async def cameras(self) -> CameraList:
        """Every camera of the node, in order of their names. Errors as of `tidegate.Client.cameras`."""
        answer = await self._call(self._calls.list_cameras, frames_pb2.ListCamerasRequest())
        return CameraList(camera_of(camera) for camera in answer.cameras)

    async def camera(self, name: str) -> Camera:
        """One camera. Errors as of `tidegate.Client.camera`."""
        request = frames_pb2.GetCameraInfoRequest(camera=name)
        answer = await self._at(name, lambda at: at._call(at._calls.get_camera_info, request))
        return camera_of(answer.camera)

    async def frames(
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
        """Frames of one camera that keep both bounds. Arguments and errors as of `tidegate.Client.frames`."""
        watch = Watch(when_infeasible, when_offline, on_event)
        events = await self.events(
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

    async def events(
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
        """Frames and all else that a subscription tells, in order. Arguments and errors as of `tidegate.Client.events`."""
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
        self._check_open()
        stream = EventStream(self, request)
        await stream._open(self._timeout_s)
        try:
            # A node tells a stream that is there of a camera that goes, and not one that begins behind it.
            stream._first = offline_of(await self.camera(camera))
        except BaseException:
            stream._cancel()
            raise
        self._streams.add(stream)
        return stream

    async def fetch_original(self, frame: Frame | str, captured_at_ns: int | None = None) -> Original:
        """The untouched frame from the camera's log. Arguments and errors as of `tidegate.Client.fetch_original`."""
        camera, instant = _named(frame, captured_at_ns)
        request = frames_pb2.FetchOriginalRequest(camera=camera, captured_at=instant)
        answer = await self._at(camera, lambda at: at._call(at._calls.fetch_original, request))
        return Original(camera, answer.captured_at, answer.jpeg)

    async def models(self) -> list[Model]:
        """The models that images can be sent to. Errors as of `tidegate.Client.models`."""
        return await asyncio.to_thread(self._http.models)

    async def detect(self, image: ImageInput, model: str = "person") -> Detections:
        """The findings of a model in an image. Arguments and errors as of `tidegate.Client.detect`."""
        return await asyncio.to_thread(self._http.detect, image, model)

    def detector(self, model: str = "person", *, in_flight: int = 4) -> Detector:
        """One model, for many images at once. Arguments as of `tidegate.Client.detector`."""
        self._check_open()
        detector = Detector(self._http, model, in_flight)
        self._streams.add(detector)
        return detector

    async def publish_frames(
        self,
        camera: str,
        images: Iterable[FrameInput] | AsyncIterable[FrameInput],
        *,
        size: Size | tuple[int, int] | None = None,
        frames_per_second: float = 0.0,
        quality: int = 95,
    ) -> Published:
        """Registers a camera and publishes frames into it until they end. Arguments and errors as of `tidegate.Client.publish_frames`."""
        count = PublishCount()
        async with await self.publisher(camera, size=size, frames_per_second=frames_per_second, quality=quality) as publisher:
            async for image in _each(images):
                try:
                    await publisher.publish(image)
                except FrameRefusedError as error:
                    count.refuse(error)
                else:
                    count.accepted += 1
        return count.result()

    async def publisher(
        self,
        camera: str,
        *,
        size: Size | tuple[int, int] | None = None,
        frames_per_second: float = 0.0,
        quality: int = 95,
    ) -> FramePublisher:
        """Registers a camera and opens a stream of frames into it. Arguments and errors as of `tidegate.Client.publish_frames`."""
        request = frames_pb2.RegisterRequest(camera=camera, frames_per_second=frames_per_second)
        if size is not None:
            request.size.CopyFrom(camera_pb2.FrameSize(width=size[0], height=size[1]))
        await self._call(self._calls.register, request)
        return FramePublisher(self, camera, quality)

    async def unregister(self, camera: str) -> None:
        """Takes a camera back that this caller registered. Errors as of `tidegate.Client.unregister`."""
        await self._call(self._calls.unregister, frames_pb2.UnregisterRequest(camera=camera))

    async def publish(self, topic: str, payload: bytes | str, *, qos: int = 1, retain: bool = False) -> None:
        """Publishes one message by MQTT. Arguments and errors as of `tidegate.Client.publish`."""
        self._check_open()
        if self._broker is None:
            self._broker = _MqttPublisher(self._settings)
        await self._broker.publish(topic, payload, qos, retain)

    async def subscribe(self, *filters: str, qos: int = 1) -> MessageStream:
        """Messages of MQTT topics. Arguments and errors as of `tidegate.Client.subscribe`."""
        self._check_open()
        stream = MessageStream(self._settings, filters, qos)
        await stream._open(is_new=True)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        """Ends all streams and the connection. Idempotent."""
        self._is_closed = True
        for stream in list(self._streams):
            await stream.close()
        if self._broker is not None:
            await self._broker.close()
        for node in self._elsewhere.nodes():
            await node.close()
        self._http.close()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Client of {self._server.node} {self._server.version} at {self._settings.api}>"

    def _check_open(self) -> None:
        if self._is_closed:
            raise LinkDownError("the client is closed", "sdk.closed")

    async def _call(self, method: Any, request: Any) -> Any:
        self._check_open()
        try:
            return await method(request, timeout=self._timeout_s, metadata=self._metadata, wait_for_ready=self._waits)
        except grpc.RpcError as error:
            raise of_rpc(error) from None

    async def _at(self, camera: str, ask: Callable[[Client], Awaitable[_T]]) -> _T:
        """Makes a call about a camera at the node that serves it."""
        if not self._settings.follow:
            return await ask(self)
        steps = self._elsewhere.call(self, camera)
        step = next(steps)
        while True:
            done: tuple[object, TidegateError | None]
            try:
                done = (await ask(step.node) if isinstance(step, Ask) else await self._reach(step.address, step.name)), None
            except TidegateError as error:
                done = None, error
            try:
                step = steps.send(done)
            except StopIteration as end:
                answer: _T = end.value
                return answer

    async def _reach(self, address: str, name: str) -> Client:
        self._check_open()
        client = await _connected(self._settings.at(address), self._timeout_s)
        found = client.server.node
        if self._is_closed or found != name:
            await client.close()
            self._check_open()
            raise other_node(found, address)
        # A node that is away is not waited for: the camera may be elsewhere by then.
        client._waits = False
        return client


async def _each(images: Iterable[_T] | AsyncIterable[_T]) -> AsyncIterator[_T]:
    if isinstance(images, AsyncIterable):
        async for image in images:
            yield image
    else:
        for image in images:
            yield image


class EventStream(EventView, AsyncIterator[Event]):
    """The events of one subscription. Ends after `Ended`, a failure, or `close()`. Made by `Client.events`."""

    def __init__(self, client: Client, request: frames_pb2.SubscribeRequest) -> None:
        self._client = client
        self._served_by = client
        self._resume = Resume(request, client._settings.retries)
        self._closed = asyncio.Event()
        self._call: _Reader | None = None
        self._first: Event | None = None

    async def update(
        self,
        *,
        latency_ms: float | None = None,
        accuracy: float | None = None,
        frames_per_second: float | None = None,
    ) -> Bounds:
        """Changes the bounds, as `tidegate.EventStream.update`."""
        request = frames_pb2.UpdateSubscriptionRequest(
            subscription_id=self.subscription_id, changes=changes_of(latency_ms, accuracy, frames_per_second)
        )
        at = self._served_by
        answer = await at._call(at._calls.update_subscription, request)
        self._resume.demanded(answer.demand)
        return self.bounds

    async def __anext__(self) -> Event:
        try:
            event = await self._next()
        except BaseException:
            self._cancel()
            raise
        if event is None:
            self._cancel()
            raise StopAsyncIteration
        if isinstance(event, Ended):
            self._cancel()
        return event

    async def _next(self) -> Event | None:
        first, self._first = self._first, None
        if first is not None:
            return self._resume.told(first)
        while not self._closed.is_set():
            event: Event | None
            try:
                if self._call is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._resume.retry_s()):
                            await self._closed.wait()
                    if self._closed.is_set():
                        break
                    await self._open(CONNECT_TIMEOUT_S)
                    return self._resume.told(CameraOnline())
                wire = await self._call.receive(self._resume.wait_s())
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

    async def _open(self, timeout_s: float) -> None:
        request = self._resume.request()
        await self._client._at(request.camera, lambda at: self._open_at(at, request, timeout_s))

    async def _open_at(self, at: Client, request: frames_pb2.SubscribeRequest, timeout_s: float) -> None:
        opened = at._calls.subscribe(request, metadata=at._metadata)
        call = _Reader(opened, self._resume.waiting(request))
        try:
            wire = await call.receive(timeout_s)
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

    def _cancel(self) -> None:
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """Ends the subscription; an iteration under way in another task ends. Idempotent."""
        self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            # The loop may be gone by then, and with it the call.
            with contextlib.suppress(RuntimeError):
                call.cancel()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Whole:
    """A call whose messages are taken as the program asks for them: the node waits, and none is left out."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.is_cancelled = False

    async def receive(self) -> Wire:
        """The next message.

        Raises:
            TidegateError: the call has ended.
        """
        try:
            data = await self._call.read()
        except grpc.RpcError as error:
            raise of_rpc(error) from None
        except asyncio.CancelledError:
            # grpcio raises it also where the call was cancelled and the task was not.
            if self.is_cancelled and not _is_cancelling():
                raise LinkDownError("the stream is closed", "sdk.closed") from None
            raise
        if data is grpc.aio.EOF:
            raise LinkDownError("the node closed the stream", "link.down")
        return wire_of(data)

    def cancel(self) -> None:
        """Ends the call. Idempotent."""
        self.is_cancelled = True
        self._call.cancel()


class _Reader:
    """A call whose messages a task takes as they come: a program that is slow finds the newest frame, and none that has grown old; where
    each is wanted, the node waits.
    """

    def __init__(self, call: Any, waiting: Newest | Each) -> None:
        self._call = _Whole(call)
        self._waiting = waiting
        self._came = asyncio.Event()
        self._taken = asyncio.Event()
        self._end: Exception | None = None
        self._count = 0
        self._handed_at = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="tidegate-frames")

    async def receive(self, wait_s: float | None) -> Wire | None:
        """The next message; None if none comes in that time. Messages from before the end are handed out first.

        Raises:
            TidegateError: the call has ended.
        """
        asked_at = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._waiting and self._end is None:
                    self._came.clear()
                    await self._came.wait()
        if not self._waiting and self._end is None:
            return None
        # A program that blocked the loop left frames unread, of which only the newest is wanted. One that came after a while is that.
        is_late = asked_at - self._handed_at > _SLOW_S and time.monotonic() - asked_at < _SLOW_S
        if is_late and isinstance(self._waiting, Newest):
            await self._catch_up()
        wire = self._waiting.get()
        if wire is None:
            assert self._end is not None
            raise self._end
        self._taken.set()
        self._handed_at = time.monotonic()
        return wire

    async def _catch_up(self) -> None:
        end = time.monotonic() + _CATCH_UP_MAX_S
        while time.monotonic() < end:
            before = self._count
            await asyncio.sleep(_QUIET_S)
            if self._count == before:
                return

    def cancel(self) -> None:
        """Ends the call. Idempotent."""
        self._call.cancel()
        self._taken.set()

    async def _run(self) -> None:
        try:
            while True:
                self._waiting.put(await self._call.receive())
                self._count += 1
                self._came.set()
                while self._waiting.is_full and not self._call.is_cancelled:
                    self._taken.clear()
                    await self._taken.wait()
        except Exception as error:
            self._end = error.with_traceback(None)
        except asyncio.CancelledError:
            self._end = LinkDownError("the stream is closed", "sdk.closed")
            raise
        finally:
            self._came.set()


class FrameStream(FrameView, AsyncIterator[Frame]):
    """The frames of one subscription. Made by `Client.frames`; an async context manager that ends it."""

    _events: EventStream

    def __init__(self, events: EventStream, watch: Watch) -> None:
        self._events = events
        self._watch = watch

    async def update(
        self,
        *,
        latency_ms: float | None = None,
        accuracy: float | None = None,
        frames_per_second: float | None = None,
    ) -> Bounds:
        """Changes the bounds, as `tidegate.EventStream.update`."""
        return await self._events.update(latency_ms=latency_ms, accuracy=accuracy, frames_per_second=frames_per_second)

    async def __anext__(self) -> Frame:
        try:
            while True:
                frame = self._watch.seen(await anext(self._events))
                if frame is not None:
                    return frame
        except BaseException:
            await self._events.close()
            raise

    async def close(self) -> None:
        """Ends the subscription; an iteration under way in another task ends. Idempotent."""
        await self._events.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class Detector:
    """One model of a node, for many images at once. Made by `Client.detector`; an async context manager that ends it."""

    def __init__(self, http: HttpCalls, model: str, in_flight: int) -> None:
        check_in_flight(in_flight)
        self.model = model
        """The model's name."""
        self._http = http
        self._in_flight = in_flight
        # Its own: those of the loop are few on a small machine, and the program's.
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="tidegate-detect")
        self._is_closed = False

    async def detect(self, image: ImageInput) -> Detections:
        """The findings of the model in an image. Errors as of `tidegate.Client.detect`."""
        if self._is_closed:
            raise LinkDownError("the detector is closed", "sdk.closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._http.detect, image, self.model)

    async def map(self, images: Iterable[ImageInput] | AsyncIterable[ImageInput]) -> AsyncIterator[tuple[ImageInput, Detections]]:
        """Each image with what the model finds in it, in their order. As `tidegate.Detector.map`."""
        under_way: deque[tuple[ImageInput, asyncio.Task[Detections]]] = deque()
        try:
            async for image in _each(images):
                under_way.append((image, asyncio.create_task(self.detect(image))))
                if len(under_way) >= self._in_flight:
                    first, found = under_way.popleft()
                    yield first, await found
            while under_way:
                first, found = under_way.popleft()
                yield first, await found
        finally:
            for _, found in under_way:
                found.cancel()

    async def close(self) -> None:
        """Ends it; images under way are still answered. Idempotent."""
        self._is_closed = True
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class FramePublisher:
    """A stream of frames into one camera; an async context manager that ends it. Used by one task at a time."""

    def __init__(self, client: Client, camera: str, quality: int) -> None:
        self._camera = camera
        self._quality = quality
        self._bytes_max = client.server.frame_bytes_max
        self._call = client._calls.publish(metadata=client._metadata)
        client._streams.add(self)

    async def publish(self, frame: FrameInput) -> int:
        """Appends one frame and waits until it is in the log. As `tidegate.FramePublisher.publish`."""
        request = publish_request(self._camera, frame, self._quality, self._bytes_max)
        try:
            await self._call.write(request)
            answer = await self._call.read()
        except grpc.RpcError as error:
            await self.close()
            raise of_rpc(error) from None
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            raise LinkDownError("the stream of frames has ended: open a new one", "sdk.closed") from None
        except BaseException:
            # The answer of a frame that was given up would be taken for that of the next.
            await self.close()
            raise
        if answer is grpc.aio.EOF:
            await self.close()
            raise LinkDownError("the node ended the stream of frames", "link.down")
        return accepted_at(answer)

    async def close(self) -> None:
        """Ends the stream; the camera stays registered. Idempotent."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class _Link:
    """One connection to the broker, over which CONNECT was answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._data = bytearray()
        self.is_kept = False

    @staticmethod
    async def open(settings: Settings, session: Session, is_new: bool) -> _Link:
        tls = settings.mqtt_tls()
        name = (settings.server_name or settings.mqtt.host) if tls is not None else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(settings.mqtt.host, settings.mqtt.port, ssl=tls, server_hostname=name)
                link = _Link(reader, writer)
                try:
                    keep_watch(writer.get_extra_info("socket"))
                    await link.send(session.connect(is_new))
                    kind, _, body = await link.receive()
                    if kind != messages.CONNACK:
                        raise messages.malformed("packet before CONNACK")
                    link.is_kept = session.connected(body)
                except BaseException:
                    link.close()
                    raise
        except (OSError, ssl.SSLError) as error:
            raise unreachable(settings, error) from error
        return link

    async def send(self, packet: bytes) -> None:
        self._writer.write(packet)
        await self._writer.drain()

    async def receive(self) -> tuple[int, int, bytes]:
        """The next packet: its kind, its flags, its body. A cancelled call keeps what has come."""
        while True:
            head = messages.length_of(self._data)
            if head is not None and len(self._data) >= sum(head):
                first, begin, end = self._data[0], head[0], sum(head)
                body = bytes(self._data[begin:end])
                del self._data[:end]
                return first >> 4, first & 15, body
            more = await self._reader.read(_READ_BYTES)
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            self._data += more

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    def end(self, packet: bytes) -> None:
        """Sends a last packet, as far as it goes without waiting, and closes."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(packet)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._writer.close()


class _MqttPublisher:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session = Session(settings.mqtt_login())
        self._lock = asyncio.Lock()
        self._link: _Link | None = None

    async def publish(self, topic: str, payload: bytes | str, qos: int, retain: bool) -> None:
        packet, number = self._session.publish(topic, payload, qos, retain)
        async with self._lock:
            for is_last in (self._link is None, True):
                try:
                    return await self._send(packet, number, topic)
                except OSError as error:
                    self._drop()
                    if is_last:
                        raise LinkDownError(f"the connection to the broker broke: {error}", "link.down") from error
                except LinkDownError:
                    self._drop()
                    if is_last:
                        raise
                except TidegateError:
                    raise  # the broker refused the message; the connection stays
                except BaseException:
                    self._drop()
                    raise

    async def _send(self, packet: bytes, number: int, topic: str) -> None:
        if self._link is None:
            self._link = await _Link.open(self._settings, self._session, is_new=True)
        elif self._link.has_ended:
            raise ConnectionResetError("the broker closed the connection")
        await self._link.send(packet)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while number:
                kind, _, body = await self._link.receive()
                if kind == messages.DISCONNECT:
                    raise Session.disconnected(body)
                if kind == messages.PUBACK and self._session.published(body, number, topic):
                    return

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def close(self) -> None:
        if self._link is not None:
            self._link.end(Session.disconnect())
            self._link = None


class MessageStream(AsyncIterator[Message]):
    """Messages of one subscription. Made by `Client.subscribe`; an async context manager that ends it."""

    def __init__(self, settings: Settings, filters: tuple[str, ...], qos: int) -> None:
        if not filters:
            raise TypeError("subscribe takes at least one filter")
        self._link: _Link | None = None
        self._settings = settings
        self._session = Session(settings.mqtt_login(), filters, qos)
        self._is_closed = False
        self._to_acknowledge = 0
        self._waiting: list[tuple[Message, int]] = []

    async def _open(self, is_new: bool) -> None:
        link = await _Link.open(self._settings, self._session, is_new)
        try:
            if is_new or not link.is_kept:
                await link.send(self._session.subscribe())
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    while True:
                        kind, flags, body = await link.receive()
                        if kind == messages.SUBACK:
                            self._session.subscribed(body)
                            break
                        if kind == messages.PUBLISH:
                            self._waiting.append(self._session.message(flags, body))
                        elif kind == messages.DISCONNECT:
                            raise Session.disconnected(body)
        except OSError as error:
            link.close()
            raise unreachable(self._settings, error) from error
        except BaseException:
            link.close()
            raise
        self._link = link

    async def __anext__(self) -> Message:
        try:
            message = await self._next()
        except BaseException:
            await self.close()
            raise
        if message is None:
            raise StopAsyncIteration
        return message

    async def _next(self) -> Message | None:
        retries, tries = self._settings.retries, 0
        while not self._is_closed:
            try:
                if self._link is None:
                    await self._open(is_new=False)
                return await self._receive()
            except (OSError, LinkDownError) as error:
                if self._is_closed:
                    break
                self._drop()
                if tries >= retries.max or getattr(error, "code", "link.down") != "link.down":
                    text = f"the connection to the broker broke and {tries} further tries are used up: {error}"
                    raise LinkDownError(text, "link.down") from error
                await asyncio.sleep(retries.wait(tries))
                tries += 1
        return None

    async def _receive(self) -> Message:
        link = self._link
        assert link is not None, "opened before"
        if self._to_acknowledge:
            number, self._to_acknowledge = self._to_acknowledge, 0
            await link.send(Session.acknowledge(number))
        while True:
            if self._waiting:
                message, number = self._waiting.pop(0)
            else:
                try:
                    async with asyncio.timeout(self._session.keep_alive_s / 2 or None):
                        kind, flags, body = await link.receive()
                except TimeoutError:
                    await link.send(Session.ping())
                    continue
                if kind == messages.DISCONNECT:
                    raise Session.disconnected(body)
                if kind != messages.PUBLISH:
                    continue
                message, number = self._session.message(flags, body)
            self._to_acknowledge = number
            return message

    def _drop(self) -> None:
        # The broker sends again what was not acknowledged.
        self._to_acknowledge = 0
        self._waiting.clear()
        if self._link is not None:
            self._link.close()
            self._link = None

    async def close(self) -> None:
        """Ends the subscription; an iteration under way in another task ends. Idempotent."""
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        if self._link is not None:
            last = Session.acknowledge(self._to_acknowledge) if self._to_acknowledge else b""
            self._link.end(last + Session.disconnect())
            self._link = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def __del__(self) -> None:
        if hasattr(self, "_is_closed"):
            self._end()


__all__ = [
    "Client",
    "Detector",
    "EventStream",
    "FramePublisher",
    "FrameStream",
    "MessageStream",
    "connect",
]
