"""The client for asyncio against a real node."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from conftest import Site, pictures_of_noise

import tidegate
import tidegate.aio


def run(site: Site, work: Callable[[tidegate.aio.Client], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with await tidegate.aio.connect(site.url, pki=str(site.pki), mqtt=site.mqtt) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(whole(), 100))


async def until(ask: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while not await ask():
            await asyncio.sleep(0.05)


def test_frames_originals_and_cameras(site: Site) -> None:
    async def work(client: tidegate.aio.Client) -> None:
        assert {"cam1", "cam2"} <= {camera.name for camera in await client.cameras()}
        async with await client.frames("cam1", 2000, 0.5) as stream:
            count = 0
            async for frame in stream:
                assert frame.verdict.accuracy_kept
                count += 1
                if count == 3:
                    break
        original = await client.fetch_original(frame)
        assert len(original.jpeg) == frame.original_bytes
        with pytest.raises(tidegate.CameraUnknownError):
            await client.frames("nowhere")
        with pytest.raises(tidegate.FrameMissingError):
            await client.fetch_original("cam1", 1)

    run(site, work)


def test_many_streams_at_once(site: Site) -> None:
    async def work(client: tidegate.aio.Client) -> None:
        async def some(camera: str) -> int:
            stream = await client.frames(camera, 2000, 0.0)
            frames = [await anext(stream) for _ in range(4)]
            await stream.close()
            return len(frames)

        assert await asyncio.gather(*(some(f"cam{number % 2 + 1}") for number in range(12))) == [4] * 12

    run(site, work)


def test_a_task_that_is_cancelled_ends_its_subscription(site: Site) -> None:
    async def work(client: tidegate.aio.Client) -> None:
        async def read() -> None:
            async for _ in await client.frames("cam2", 2000, 0.0):
                started.set()

        started = asyncio.Event()
        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def is_free() -> bool:
            return (await client.camera("cam2")).subscriptions == 0

        await until(is_free)
        # A time limit is a cancellation that does not end the task.
        stream = await client.frames("cam2", 2000, 0.0, frames_per_second=0.01)
        await anext(stream)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        # One that is dropped ends, too.
        dropped = await client.frames("cam2", 2000, 0.0)
        await anext(dropped)
        del dropped
        gc.collect()
        await until(is_free)

    run(site, work)


def test_close_ends_a_loop_in_another_task(site: Site) -> None:
    async def work(client: tidegate.aio.Client) -> None:
        stream = await client.frames("cam2", 2000, 0.0, frames_per_second=0.01)
        await anext(stream)
        waiting = asyncio.create_task(anext(stream, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await stream.close()
        assert await waiting is None

    run(site, work)


def test_infeasible_bounds_and_updates(site: Site) -> None:
    async def work(client: tidegate.aio.Client) -> None:
        stream = await client.frames("cam1", 1, 1.0, when_infeasible="raise")
        with pytest.raises(tidegate.InfeasibleError):
            async for _ in stream:
                pass
        async with await client.frames("cam1", 2000, 0.5) as stream:
            await anext(stream)
            assert (await stream.update(accuracy=0.4)).accuracy == 0.4
            with pytest.raises(tidegate.InvalidRequestError):
                await stream.update(latency_ms=0)

    run(site, work)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_program_that_is_slow_gets_the_newest_frame(site: Site, blocks: bool) -> None:
    pictures = pictures_of_noise(20)

    async def work(client: tidegate.aio.Client) -> None:
        with site.connect() as other, other.publisher("busy-aio") as publisher:
            publisher.publish(pictures[0])  # The camera is there from now on.
            async with await client.frames("busy-aio", 60_000, 0.0, controller="fixed") as stream:
                # The node delivers to it from now on: frames of before are not its own, and nothing counts them.
                first, earlier = asyncio.ensure_future(anext(stream)), []
                while not first.done():
                    earlier.append(publisher.publish(pictures[0]))
                    await asyncio.sleep(0.05)
                begin = (await first).captured_at_ns
                missed, seen = stream.missed, []
                # Nothing of the loop runs meanwhile.
                instants = [publisher.publish(pictures[number % 20]) for number in range(150)]
                owed = len([instant for instant in earlier if instant > begin]) + len(instants)
                async for frame in stream:
                    seen.append(frame.captured_at_ns)
                    if frame.captured_at_ns == instants[-1]:
                        break
                    if blocks:
                        time.sleep(0.1)
                    else:
                        await asyncio.sleep(0.1)
                assert len(seen) <= (75 if blocks else 12), f"{len(seen)} frames of {owed} were old"
                assert stream.missed - missed == owed - len(seen)
            other.unregister("busy-aio")

    run(site, work)


def test_frames_are_published(site: Site) -> None:
    async def work(client: tidegate.aio.Client) -> None:
        async def pictures() -> AsyncIterator[tidegate.FrameInput]:
            for level in (0, 100, 200):
                yield np.full((90, 160, 3), level, np.uint8)
            yield b"no picture"

        done = await client.publish_frames("made-up-aio", pictures())
        assert (done.accepted, done.refused_count) == (3, 1)
        stream = await client.frames("made-up-aio", 5000, 0.0, delivery="every", from_ns=0, controller="fixed")
        levels = [int((await anext(stream)).image.mean()) for _ in range(3)]
        assert levels == pytest.approx([0, 100, 200], abs=3)
        await client.unregister("made-up-aio")

    run(site, work)


def test_messages(site: Site) -> None:
    async def work(client: tidegate.aio.Client) -> None:
        async with await client.subscribe("open/aio/#") as stream:
            for number in range(100):
                await client.publish(f"open/aio/{number}", str(number))
            assert [(await anext(stream)).text for _ in range(100)] == [str(number) for number in range(100)]
        with pytest.raises(tidegate.ActionDeniedError):
            await client.publish("news/today", b"")

    run(site, work)


def test_messages_go_by_tls(site: Site) -> None:
    async def whole() -> None:
        connecting = tidegate.aio.connect(site.url, pki=str(site.pki), mqtt=site.mqtts)
        async with await connecting as client, await client.subscribe("open/tls") as stream:
            await client.publish("open/tls", "1")
            assert (await anext(stream)).text == "1"

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_wrong_callers_are_refused(site: Site) -> None:
    async def work(_: tidegate.aio.Client) -> None:
        with pytest.raises(tidegate.IdentityRefusedError):
            await tidegate.aio.connect(site.url, ca=site.pki / "ca.pem", token="not.a.token")
        with pytest.raises(tidegate.LinkDownError):
            await tidegate.aio.connect("127.0.0.1:1", pki=str(site.pki))

    run(site, work)
