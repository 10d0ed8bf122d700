"""The cost of a frame of 500 KB to a program, without decoding, beside a bare stream of grpcio that carries the same bytes.

    scripts/sdk-python bench [--frames 150] [--rounds 3] [--fps 30] [--json FILE]

One node and one camera on loopback; each way to read is a process of its own, they take turns, and each counts its own processor time
over the same number of frames once the first ones are through:

    bare        the messages as bytes, not parsed: the least that grpcio can do
    bare-parsed the messages parsed by protobuf, and `frame.jpeg` taken
    sdk         `frames()`, and `frame.jpeg_view` with `frame.verdict`
    sdk-bytes   the same, with `frame.jpeg` as bytes
    aio-bare, aio-sdk  the same two for asyncio

The bare streams have the same channel options, TLS and request. Prints a table and, last, the ratio that must be at most 1.2: that of
sdk to bare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("bare", "bare-parsed", "sdk", "sdk-bytes", "aio-bare", "aio-sdk")
WARM_UP = 20
RATIO_MAX = 1.2
REQUEST = {"latency_ms": 5000.0, "accuracy": 0.0, "controller": "fixed"}


class Meter:
    """Processor time of this process from the frame behind the warm-up to the last."""

    def __init__(self, frames: int) -> None:
        self._left = frames + WARM_UP
        self._frames = frames
        self._bytes = 0
        self._cpu = self._wall = 0.0

    def frame(self, size: int) -> bool:
        """Counts a frame; whether more are wanted."""
        self._left -= 1
        if self._left == self._frames:
            self._cpu, self._wall = time.process_time(), time.monotonic()
        elif self._left < self._frames:
            self._bytes += size
        return self._left > 0

    def result(self) -> dict[str, float]:
        cpu, wall = time.process_time() - self._cpu, time.monotonic() - self._wall
        return {
            "cpu_us": cpu / self._frames * 1e6,
            "fps": self._frames / wall,
            "bytes": self._bytes / self._frames,
        }


def read(way: str, url: str, pki: str, frames: int) -> dict[str, float]:
    """Reads so many frames in one way."""
    meter = Meter(frames)
    if way.startswith("aio"):
        asyncio.run(_read_async(way, url, pki, meter))
    else:
        _read(way, url, pki, meter)
    return meter.result()


def _bare(channel: Any, way: str) -> tuple[Any, Any]:
    from tidegate import _resume
    from tidegate.v1 import frames_pb2

    parse = frames_pb2.SubscribeResponse.FromString if way == "bare-parsed" else None
    method = channel.unary_stream("/tidegate.v1.Frames/Subscribe", request_serializer=None, response_deserializer=parse)
    return method, _resume.request_of("bench", **REQUEST).SerializeToString()  # type: ignore[arg-type]


def _settings(url: str, pki: str) -> Any:
    from tidegate._connection import Settings

    return Settings.make(url, token=None, user=None, cert=None, ca=None, pki=pki, mqtt=None, server_name=None, retries=None)


def _read(way: str, url: str, pki: str, meter: Meter) -> None:
    import grpc

    import tidegate

    if way.startswith("sdk"):
        with tidegate.connect(url, pki=pki) as node, node.frames("bench", **REQUEST) as stream:  # type: ignore[arg-type]
            for frame in stream:
                data = frame.jpeg_view if way == "sdk" else frame.jpeg
                assert frame.verdict.latency_bound_ms
                if not meter.frame(len(data)):
                    return
    settings = _settings(url, pki)
    with grpc.secure_channel(url, settings.channel_credentials(), settings.channel_options()) as channel:
        method, request = _bare(channel, way)
        call = method(request)
        for answer in call:
            data = answer if way == "bare" else answer.frame.jpeg
            if len(data) > 10_000 and not meter.frame(len(data)):
                call.cancel()
                return


async def _read_async(way: str, url: str, pki: str, meter: Meter) -> None:
    import grpc.aio

    import tidegate.aio

    if way == "aio-sdk":
        async with await tidegate.aio.connect(url, pki=pki) as node, await node.frames("bench", **REQUEST) as stream:  # type: ignore[arg-type]
            async for frame in stream:
                assert frame.verdict.latency_bound_ms
                if not meter.frame(len(frame.jpeg_view)):
                    return
    settings = _settings(url, pki)
    async with grpc.aio.secure_channel(url, settings.channel_credentials(), list(settings.channel_options(is_awaited=True))) as channel:
        method, request = _bare(channel, way)
        call = method(request)
        while True:
            answer = await call.read()
            if len(answer) > 10_000 and not meter.frame(len(answer)):
                call.cancel()
                return


def pictures(folder: Path, size: int) -> None:
    """Twenty JPEG images of noise, of about so many bytes each."""
    import numpy as np
    from PIL import Image

    dice = np.random.default_rng(1)
    for number in range(20):
        noise = Image.fromarray(dice.integers(0, 256, (720, 1280, 3), np.uint8))
        low, high = 1, 100
        while low + 1 < high:
            middle = (low + high) // 2
            noise.save(folder / f"{number}.jpg", "JPEG", quality=middle)
            low, high = (middle, high) if (folder / f"{number}.jpg").stat().st_size < size else (low, middle)


def until(is_so: Callable[[], bool]) -> None:
    """Waits for it, a minute at most."""
    end = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError("the node and its camera are not there within a minute")
        time.sleep(0.1)


def is_there(url: str, pki: str) -> bool:
    """Whether the camera gives frames."""
    import tidegate

    try:
        with tidegate.connect(url, pki=pki) as node:
            return node.camera("bench").frames_per_second > 0
    except tidegate.TidegateError:
        return False


def main() -> int:
    """Measures all ways and prints them."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--frames", type=int, default=150, help="counted in each turn (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=3, help="turns of each way (default: %(default)s)")
    options.add_argument("--fps", type=float, default=30, help="of the camera (default: %(default)s)")
    options.add_argument("--bytes", type=int, default=500_000, help="of a frame, about (default: %(default)s)")
    options.add_argument("--json", type=Path, help="keeps each run there")
    options.add_argument("--read", nargs=3, metavar=("WAY", "URL", "PKI"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.read:
        print(json.dumps(read(*given.read, given.frames)))
        return 0
    program = os.environ["TIDEGATE_PROGRAM"]
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name, (Path(name) / "log").open("wb") as log:
        folder = Path(name)
        (folder / "pictures").mkdir()
        pictures(folder / "pictures", given.bytes)
        ports = []
        for _ in range(2):
            with socket.create_server(("127.0.0.1", 0)) as waiting:
                ports.append(waiting.getsockname()[1])
        url, pki = f"127.0.0.1:{ports[0]}", str(folder / "tidegate-data" / "pki")
        places = {"node.api_listen": url, "link.listen": f"127.0.0.1:{ports[1]}", "link.edge": f"127.0.0.1:{ports[1]}"}
        settings = [part for key, value in places.items() for part in ("--set", f"{key}={value}")]
        settings += ["--set", "mqtt.enabled=false"]
        how: dict[str, Any] = {"cwd": folder, "stdout": log, "stderr": log}
        subprocess.run([program, "init", "--camera", "bench", *settings], check=True, **how)
        source = f"folder:{folder / 'pictures'}?fps={given.fps}&loop=1"
        running = [
            subprocess.Popen([program, "node"], **how),
            subprocess.Popen([program, "camera", "--name", "bench", "--source", source], **how),
        ]
        try:
            until(lambda: is_there(url, pki))
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way in WAYS:
                    command = [sys.executable, __file__, "--frames", str(given.frames), "--read", way, url, pki]
                    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
                    found[way].append(json.loads(said.stdout))
        except BaseException:
            sys.stderr.write((folder / "log").read_text(errors="replace")[-4000:])
            raise
        finally:
            for process in running:
                process.kill()
                process.wait()
    print(f"{'way':<12}{'CPU us/frame':>14}{'of bare':>9}{'frames/s':>10}{'bytes':>10}")
    cpu = {way: statistics.median(run["cpu_us"] for run in runs) for way, runs in found.items()}
    for way, runs in found.items():
        bare = cpu["aio-bare" if way.startswith("aio") else "bare"]
        fps, size = (statistics.median(run[key] for run in runs) for key in ("fps", "bytes"))
        print(f"{way:<12}{cpu[way]:>14.0f}{cpu[way] / bare:>9.2f}{fps:>10.1f}{size:>10.0f}")
    if given.json:
        machine = {"processors": os.cpu_count(), "load": os.getloadavg(), "python": sys.version}
        given.json.write_text(json.dumps({"machine": machine, "arguments": sys.argv[1:], "runs": found}, indent=1) + "\n")
    ratio = cpu["sdk"] / cpu["bare"]
    print(f"sdk over bare: {ratio:.2f}, at most {RATIO_MAX} wanted")
    return 0 if ratio <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
