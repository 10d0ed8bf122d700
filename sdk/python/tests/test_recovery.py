"""Nodes and cameras that go away in the middle, and come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from conftest import Site, poll

import tidegate
import tidegate.aio


@pytest.fixture(autouse=True)
def whole(site: Site) -> Iterator[None]:
    """Nodes and cameras that a test ended run again behind it."""
    yield
    if site._node is None:
        site.start()
    for camera in ("cam1", "cam2"):
        if camera not in site._cameras:
            site.start_camera(camera)
    site.wait_for_camera("cam1")
    site.wait_for_camera("cam2")


def _follow(stream, seen: list[tidegate.Frame], enough: threading.Event, after: threading.Event) -> None:  # type: ignore[no-untyped-def]
    wanted = 5
    for frame in stream:
        seen.append(frame)
        if len(seen) >= 3:
            enough.set()
        if after.is_set():
            wanted -= 1
            if not wanted:
                return


@pytest.mark.parametrize("delivery", ["latest", "every"])
def test_a_stream_outlives_a_node_that_is_killed(site: Site, delivery: str) -> None:
    with site.connect() as client:
        events: list[tidegate.Event] = []
        seen: list[tidegate.Frame] = []
        enough, after = threading.Event(), threading.Event()
        stream = client.frames("cam1", 2000, 0.0, delivery=delivery, on_event=events.append)  # type: ignore[arg-type]
        reader = threading.Thread(target=_follow, args=(stream, seen, enough, after))
        reader.start()
        assert enough.wait(60)
        site.kill()
        poll(lambda: stream.offline)
        assert isinstance(stream.offline, tidegate.CameraOffline) and stream.offline.node
        site.start()
        after.set()
        reader.join(60)
        assert not reader.is_alive()
        assert stream.offline is None
        stream.close()
    kinds = [type(event) for event in events]
    assert kinds.count(tidegate.CameraOffline) >= 1 and tidegate.CameraOnline in kinds
    named = [(frame.epoch, frame.captured_at_ns) for frame in seen]
    assert len(set(named)) == len(named), "no frame comes twice"
    if delivery == "every":
        # The camera kept capturing while the node was away: its frames of that time come behind.
        gaps = [b - a for (_, a), (_, b) in pairwise(named)]
        assert max(gaps) < 1e9, gaps


@pytest.mark.parametrize("delivery", ["latest", "every"])
def test_a_node_that_hangs_is_told_second_after_second(site: Site, delivery: str) -> None:
    with site.connect() as client:
        told: list[tidegate.Event] = []
        stream = client.frames("cam1", 2000, 0.0, delivery=delivery, on_event=told.append)  # type: ignore[arg-type]
        next(stream)
        site.hang()
        try:
            reader = threading.Thread(target=lambda: next(stream))
            reader.start()
            poll(lambda: isinstance(stream.offline, tidegate.Silent))
            silent = stream.offline
            assert isinstance(silent, tidegate.Silent) and silent.sentence == f"no picture for {silent.seconds} s"
            # Nor does the program wait for ever for what it asks: the connection is given up.
            poll(lambda: isinstance(stream.offline, tidegate.CameraOffline))
            said = [event.seconds for event in told if isinstance(event, tidegate.Silent)]
            assert said == sorted(set(said)) and said[0] >= 2
        finally:
            site.goes_on()
        reader.join(60)
        assert not reader.is_alive() and stream.offline is None
        stream.close()


def test_a_node_that_stays_away_is_raised(site: Site) -> None:
    with site.connect(retries=tidegate.Retries(max=2)) as client:
        stream = client.frames("cam1", 2000, 0.0)
        messages = client.subscribe("open/#")
        waiting = client.frames("cam1", 2000, 0.0, when_offline="raise")
        next(stream)
        next(waiting)
        site.kill()
        with pytest.raises(tidegate.CameraOfflineError):
            list(waiting)
        with pytest.raises(tidegate.LinkDownError):
            list(stream)
        with pytest.raises(tidegate.LinkDownError):
            list(messages)
        with pytest.raises(tidegate.LinkDownError):
            client.frames("cam1")
        with pytest.raises(tidegate.LinkDownError):
            client.publish("open/a", b"")
        assert next(stream, None) is None


def test_a_stream_is_closed_while_it_waits_for_the_node(site: Site) -> None:
    with site.connect(retries=tidegate.Retries(wait_s=30, wait_max_s=30)) as client:
        stream = client.frames("cam1", 2000, 0.0)
        next(stream)
        reader = threading.Thread(target=lambda: list(stream))
        reader.start()
        site.kill()
        poll(lambda: stream.offline)
        stream.close()
        reader.join(10)
        assert not reader.is_alive(), "closing does not wait for the next try"


def test_a_camera_that_is_killed_is_told_and_comes_back(site: Site) -> None:
    with site.connect() as client:
        strict = client.frames("cam2", 2000, 0.0, when_offline="raise")
        next(strict)
        stream = client.frames("cam2", 2000, 0.0)
        next(stream)
        site.kill_camera("cam2")
        with pytest.raises(tidegate.CameraOfflineError):
            list(strict)
        # A stream that begins while the camera is away is told, too.
        events = client.events("cam2", 2000, 0.0)
        assert isinstance(next(events), tidegate.CameraOffline)
        with client.frames("cam2", 2000, 0.0, when_offline="raise") as late, pytest.raises(tidegate.CameraOfflineError):
            next(late)
        site.start_camera("cam2")
        assert any(isinstance(event, tidegate.Frame) for event in events)
        last = next(stream).captured_at_ns
        assert next(stream).captured_at_ns > last


def test_messages_survive_a_broken_connection(site: Site) -> None:
    with site.connect() as client, site.connect() as other:
        messages = client.subscribe("open/#")
        client.publish("open/a", "1")
        assert next(messages).text == "1"
        site.kill()
        site.start()
        # The publisher's connection broke unseen, and the session of the subscriber is kept or made again.
        seen: list[str] = []

        def read() -> None:
            # The first message was not acknowledged, so it may come again.
            seen.append(next(message.text for message in messages if message.text != "1"))

        reader = threading.Thread(target=read)
        reader.start()

        def publish() -> bool:
            client.publish("open/a", "2")
            reader.join(0.5)
            return bool(seen)

        poll(publish)
        assert seen == ["2"]
        other.publish("open/a", "3")
        poll(lambda: next(messages).text == "3")


def test_a_stream_that_is_awaited_outlives_a_node_that_is_killed(site: Site) -> None:
    async def run() -> None:
        async with await tidegate.aio.connect(site.url, pki=str(site.pki), mqtt=site.mqtt) as client:
            stream = await client.frames("cam1", 2000, 0.0)
            messages = await client.subscribe("open/#")
            before = await anext(stream)
            await asyncio.to_thread(site.kill)
            started = asyncio.create_task(asyncio.to_thread(site.start))
            async for frame in stream:
                assert (frame.epoch, frame.captured_at_ns) != (before.epoch, before.captured_at_ns)
                if started.done() and stream.offline is None:
                    break
            await started
            waiting = asyncio.ensure_future(anext(messages))
            while not waiting.done():
                await client.publish("open/b", "again")
                await asyncio.wait([waiting], timeout=0.5)
            assert waiting.result().text == "again"

    asyncio.run(asyncio.wait_for(run(), 100))
