"""Frames of real cameras through the client that blocks."""

from __future__ import annotations

import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest
from conftest import Site, pictures_of_noise, poll

import tidegate


def test_frames_come_with_picture_times_and_verdict(client: tidegate.Client) -> None:
    with client.frames("cam1", latency_ms=2000, accuracy=0.5) as stream:
        frames = list(islice(stream, 5))
    times = [frame.captured_at_ns for frame in frames]
    assert times == sorted(set(times))
    for frame in frames:
        assert frame.camera == "cam1"
        assert frame.jpeg[:2] == b"\xff\xd8" and frame.jpeg == bytes(frame.jpeg_view)
        assert frame.image.shape == (frame.size.height, frame.size.width, 3) and frame.image.dtype == np.uint8
        assert frame.image is frame.image, "it is decoded once"
        assert 0 < frame.latency_ms < 60_000
        assert frame.latency_ms == pytest.approx(frame.stages.total_ms)
        assert frame.verdict.latency_bound_ms == 2000 and frame.verdict.accuracy_bound == 0.5
        assert frame.verdict.accuracy_kept and frame.accuracy >= 0.5
        assert abs(frame.captured_at.timestamp() - frame.captured_at_ns / 1e9) < 1e-3
        assert abs(frame.received_at_ns - time.time_ns()) < 60e9
        assert frame.knobs and frame.original_bytes > 0
        assert frame.source_size == (640, 360), "whatever the knobs have made of it"
        right = frame.to_source([[0, 0, frame.size.width, frame.size.height]])[0].tolist()
        assert right == pytest.approx([0, 0, 640, 360])


def test_the_original_of_a_frame_is_one_call_away(client: tidegate.Client) -> None:
    with client.frames("cam1", latency_ms=2000, accuracy=0.5) as stream:
        frame = next(stream)
    original = client.fetch_original(frame)
    assert original.captured_at_ns == frame.captured_at_ns
    assert len(original.jpeg) == frame.original_bytes
    assert original.image.shape == (360, 640, 3)
    assert client.fetch_original("cam1", frame.captured_at_ns).jpeg == original.jpeg
    with pytest.raises(tidegate.FrameMissingError):
        client.fetch_original("cam1", frame.captured_at_ns + 1)


def test_cameras_are_listed(client: tidegate.Client) -> None:
    cameras = client.cameras()
    assert [camera.name for camera in cameras if camera.name in ("cam1", "cam2")] == ["cam1", "cam2"]
    camera = client.camera("cam1")
    assert camera.online and camera.size == (640, 360) and camera.frames_per_second > 0
    assert "<td>cam1</td>" in cameras._repr_html_() and "640x360" in camera._repr_html_()


def test_callers_that_are_not_let_in(site: Site) -> None:
    ca = site.pki / "ca.pem"
    admin = ("admin", site.password)
    for refused in (
        {"token": "not.a.token"},
        {"token": site.token(aud="another")},
        {"token": site.token(lifetime_s=-3600)},
        {"user": ("admin", "wrong")},
        {"user": ("nobody", site.password)},
        {},
    ):
        with pytest.raises(tidegate.IdentityRefusedError) as refusal:
            tidegate.connect(site.url, ca=ca, **refused)  # type: ignore[arg-type]
        assert refusal.value.code.startswith("auth.identity."), refusal.value
    # The system's authorities did not sign the node's certificate.
    with pytest.raises(tidegate.IdentityRefusedError):
        tidegate.connect(site.url, user=admin)
    for accepted in ({"token": site.token()}, {"user": admin}):
        with tidegate.connect(site.url, ca=ca, **accepted) as client:  # type: ignore[arg-type]
            assert client.cameras()


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "no TLS"])
def test_what_is_no_node_is_told_in_time(site: Site, answer: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    waiting, _ = listener.accept()
                    held.append(waiting)
                    if answer is not None:
                        waiting.sendall(answer)
                        waiting.close()

        held: list[socket.socket] = []
        threading.Thread(target=serve, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(tidegate.LinkDownError, match="no node answers"):
            tidegate.connect(f"127.0.0.1:{listener.getsockname()[1]}", pki=str(site.pki))
        # A handshake over a long way may take some seconds, and is not given up before.
        assert answer is not None or 4 < time.monotonic() - began < 20


def test_a_certificate_may_come_as_text(site: Site) -> None:
    pair = ((site.pki / "application.pem").read_bytes(), (site.pki / "application.key").read_bytes())
    with tidegate.connect(site.url, ca=(site.pki / "ca.pem").read_bytes(), cert=pair) as client:
        assert client.server.node == "edge"


def test_what_cannot_be_asked_is_refused_at_once(site: Site, client: tidegate.Client) -> None:
    with pytest.raises(tidegate.CameraUnknownError) as unknown:
        client.frames("nowhere")
    assert unknown.value.code == "frames.camera.unknown" and "cam1" in str(unknown.value), "it names those that there are"
    with pytest.raises(tidegate.CameraUnknownError):
        client.camera("nowhere")
    for wrong in ({"latency_ms": 0}, {"latency_ms": 60_001}, {"accuracy": 1.1}, {"frames_per_second": -1}, {"delivery": "all"}):
        with pytest.raises(tidegate.InvalidRequestError):
            client.frames("cam1", **wrong)  # type: ignore[arg-type]
    with pytest.raises(tidegate.InvalidRequestError):
        client.frames("cam1", from_ns=2, to_ns=2)
    with pytest.raises(tidegate.InvalidRequestError):
        client.frames("cam1", when_offline="sleep")  # type: ignore[arg-type]
    with pytest.raises(tidegate.LinkDownError):
        tidegate.connect("127.0.0.1:1", pki=str(site.pki))


def test_two_iterators_at_once_do_not_disturb_each_other(client: tidegate.Client) -> None:
    with client.frames("cam1", 2000, 0.5) as first, client.frames("cam2", 2000, 0.0) as second:
        for _ in range(5):
            one, two = next(first), next(second)
            assert (one.camera, two.camera) == ("cam1", "cam2")


def test_many_threads_share_a_client(client: tidegate.Client) -> None:
    def work(number: int) -> int:
        camera = f"cam{number % 2 + 1}"
        with client.frames(camera, 2000, 0.0) as stream:
            frames = list(islice(stream, 4))
        client.fetch_original(frames[-1])
        assert client.camera(camera).online
        return len(frames)

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(work, range(12))) == [4] * 12


def test_an_iterator_that_is_left_or_dropped_ends_its_subscription(client: tidegate.Client) -> None:
    for _ in client.frames("cam2", 2000, 0.0):
        break
    poll(lambda: client.camera("cam2").subscriptions == 0)
    stream = client.frames("cam2", 2000, 0.0)
    next(stream)
    assert client.camera("cam2").subscriptions == 1
    del stream
    poll(lambda: client.camera("cam2").subscriptions == 0)


def test_close_from_another_thread_ends_the_loop(client: tidegate.Client) -> None:
    stream = client.frames("cam1", 2000, 0.0)
    next(stream)
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(stream))
    reader.start()
    stream.close()
    reader.join(30)
    assert not reader.is_alive()
    assert next(stream, None) is None and next(stream, None) is None


def test_ctrl_c_ends_the_program_and_the_subscription(site: Site, client: tidegate.Client, python) -> None:  # type: ignore[no-untyped-def]
    # It reads no frame meanwhile: it waits for a camera that gives none within the bound.
    # A shell that runs this in its background has it ignore the signal, and programs that it starts as well.
    script = (
        "import signal, tidegate\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"node = tidegate.connect({site.url!r}, pki={str(site.pki)!r})\n"
        "for frame in node.frames('cam2', 2000, 0.0, frames_per_second=0.01):\n"
        "    print('frame', flush=True)\n"
    )
    process = python("-c", script)
    assert process.stdout.readline() == "frame\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in said
    poll(lambda: client.camera("cam2").subscriptions == 0)


def test_the_past_comes_whole_and_ends(client: tidegate.Client) -> None:
    def with_a_past() -> tidegate.Camera | None:
        camera = client.camera("cam2")
        assert camera.newest_at_ns is not None and camera.oldest_at_ns is not None
        return camera if camera.newest_at_ns - camera.oldest_at_ns > 1e9 else None

    camera = poll(with_a_past)
    begin = camera.newest_at_ns - 1_000_000_000
    events = list(client.events("cam2", 5000, 0.0, delivery="every", from_ns=begin, to_ns=camera.newest_at_ns + 1))
    assert events[-1] == tidegate.Ended("complete")
    frames = [event for event in events if isinstance(event, tidegate.Frame)]
    unchanged = [event for event in events if isinstance(event, tidegate.Unchanged)]
    assert 8 <= len(frames) + len(unchanged) <= 12
    assert all(frame.replayed and begin <= frame.captured_at_ns <= camera.newest_at_ns for frame in frames)


def test_bounds_change_while_frames_come(client: tidegate.Client) -> None:
    with client.frames("cam1", 2000, 0.5) as stream:
        next(stream)
        assert stream.update(latency_ms=1500).latency_ms == 1500
        assert stream.bounds.accuracy == 0.5
        assert next(frame for frame in stream if frame.bounds.latency_ms == 1500)
        with pytest.raises(tidegate.InvalidRequestError):
            stream.update(accuracy=2)


def test_bounds_that_cannot_be_kept_are_told_or_raised(client: tidegate.Client) -> None:
    with client.frames("cam1", 1, 1.0, when_infeasible="raise") as stream, pytest.raises(tidegate.InfeasibleError) as refused:
        list(islice(stream, 200))
    assert refused.value.code == "frames.bound.infeasible"
    offers = (refused.value.latency_at_accuracy_ms, refused.value.accuracy_at_latency, refused.value.frames_per_second)
    assert str(refused.value) and offers is not None
    assert next(stream, None) is None, "it has ended"
    for event in client.events("cam1", 1, 1.0):
        if isinstance(event, tidegate.Infeasible):
            break
    assert event.sentence


def test_frames_are_published_and_come_back(client: tidegate.Client) -> None:
    pixels = np.zeros((90, 160, 3), np.uint8)
    pixels[:, :, 2] = 200  # red, in BGR
    done = client.publish_frames("made-up", [pixels, b"no picture", pixels, pixels[:, :, 0]], size=(160, 90))
    assert done.accepted == 3 and done.refused_count == 1
    assert (done.refused[0].index, done.refused[0].code) == (1, "frames.frame.invalid")
    frames = client.frames("made-up", 5000, 0.0, delivery="every", from_ns=0, controller="fixed")
    frame = next(frames)
    blue, green, red = (int(value) for value in frame.image[45, 80])
    assert red > 150 and blue < 60 and green < 60
    assert frame.source_size == (160, 90)
    with client.publisher("made-up") as publisher:
        instant = publisher.publish((time.time_ns(), pixels))
        with pytest.raises(tidegate.FrameRefusedError):
            publisher.publish((instant, pixels))
        assert publisher.publish(pixels) > instant
        with pytest.raises(tidegate.FrameRefusedError):
            publisher.publish(pixels.astype(np.float32))
    for _ in range(5):
        with pytest.raises(tidegate.LinkDownError):
            publisher.publish(pixels)
    client.unregister("made-up")
    assert list(frames) is not None, "the subscription ends with its camera"
    with pytest.raises(tidegate.CameraTakenError):
        client.publish_frames("cam1", [pixels])


def test_a_program_that_is_slow_gets_the_newest_frame(client: tidegate.Client) -> None:
    pictures = pictures_of_noise(20)
    with client.publisher("busy") as publisher, client.frames("busy", 60_000, 0.0, controller="fixed") as stream:
        publisher.publish(pictures[0])
        first = next(stream)
        assert len(first.jpeg) > 50_000
        instants = [publisher.publish(pictures[number % 20]) for number in range(150)]
        seen = []
        # Each step is longer than the node and the thread that reads need for a frame: it is the newest one, but for what is on its way.
        for frame in stream:
            seen.append(frame.captured_at_ns)
            if frame.captured_at_ns == instants[-1]:
                break
            time.sleep(0.1)
        missed = stream.missed
    client.unregister("busy")
    # The buffers on the way hold a dozen of them, and more.
    assert len(seen) <= 12, f"{len(seen)} frames of 150 were old"
    assert missed == 150 - len(seen)


def test_every_frame_comes_to_a_program_that_is_slow_where_it_asks_for_every_one(client: tidegate.Client) -> None:
    pictures = pictures_of_noise(20)
    with client.publisher("busy") as publisher, client.frames("busy", 60_000, 0.0, delivery="every", controller="fixed") as stream:
        publisher.publish(pictures[0])
        first = next(stream).captured_at_ns
        instants = [publisher.publish(pictures[number % 20]) for number in range(60)]
        assert [next(stream).captured_at_ns for _ in instants] == instants
        assert stream.missed == 0
    with client.frames("busy", 60_000, 0.0, from_ns=first, controller="fixed") as stream:
        time.sleep(1)
        assert [next(stream).captured_at_ns for _ in range(61)] == [first, *instants], "of the past, too, none is left out"
    client.unregister("busy")


def test_a_client_that_is_closed_says_so(site: Site) -> None:
    client = site.connect()
    stream = client.frames("cam1", 2000, 0.0)
    client.close()
    client.close()
    assert next(stream, None) is None
    for call in (client.cameras, lambda: client.frames("cam1"), lambda: client.publish("open/a", b"")):
        with pytest.raises(tidegate.LinkDownError):
            call()
