"""The device in C of sdk/c: compiled with warnings as errors, and run against a real node that is killed under it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Site, free_ports

import tidegate

SOURCE = Path(__file__).resolve().parents[2] / "c"

Device = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def sensor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler is installed")
    return built(tmp_path_factory.mktemp("c") / "c")


def built(copy: Path, *flags: str) -> Path:
    # A program that was built by hand would be taken for up to date.
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("sensor"))
    # An argument of make would take the place of the warnings.
    sanitized = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover", *flags]
    environment = {**os.environ, "CFLAGS": " ".join(sanitized)}
    made = subprocess.run(["make", "CC=cc"], cwd=copy, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert "-Wall -Wextra -Werror" in made.stdout, made.stdout
    return copy / "sensor"


@pytest.fixture
def device(sensor: Path, site: Site, tmp_path: Path) -> Iterator[Device]:
    """Starts the device with a thermometer of 21.5 degrees; one that still runs is ended behind the test, and its status forgotten."""
    running: list[subprocess.Popen[str]] = []
    (tmp_path / "temp").write_text("21500\n")

    def start(*arguments: str, port: str | None = None, program: Path = sensor) -> subprocess.Popen[str]:
        broker = ["-p", port or site.mqtt.rpartition(":")[2], "-t", "open/devices", "-f", str(tmp_path / "temp")]
        process = subprocess.Popen([str(program), *broker, *arguments], stderr=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    # Retained, so that it would come to subscribers of other tests.
    with site.connect() as client:
        for number in range(1, 8):
            client.publish(f"open/devices/pump{number}/status", b"", retain=True)


def ended(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def test_readings_arrive_in_order_and_the_device_says_goodbye(client: tidegate.Client, device: Device) -> None:
    with client.subscribe("open/devices/pump1/#") as messages:
        said = ended(device("-n", "pump1", "-i", "5", "-c", "100"))
        readings, statuses = [], []
        while statuses[-1:] != ["offline"]:
            message = next(messages)
            if message.topic.endswith("/status"):
                statuses.append(message.text)
            else:
                readings.append(message.json())
    assert [reading["sequence"] for reading in readings] == list(range(100))
    assert {reading["celsius"] for reading in readings} == {21.5}
    assert all(later["at"] > earlier["at"] for earlier, later in itertools.pairwise(readings))
    assert statuses == ["online", "offline"]
    assert "100 readings, 0 dropped, 0 not acknowledged" in said


def test_the_broker_says_that_a_device_is_gone(client: tidegate.Client, device: Device) -> None:
    with client.subscribe("open/devices/pump2/status") as messages:
        process = device("-n", "pump2", "-i", "50")
        assert next(messages).text == "online"
        process.send_signal(signal.SIGKILL)
        assert next(messages).text == "offline"
    # Retained, for those who come later.
    with client.subscribe("open/devices/pump2/status") as messages:
        assert next(messages).text == "offline"


def test_a_device_outlives_its_broker(site: Site, device: Device) -> None:
    process = device("-n", "pump3", "-i", "100")
    assert process.stderr is not None
    assert "connected" in process.stderr.readline()
    site.kill()
    assert "not connected" in process.stderr.readline()
    site.start()
    while "sensor: connected" not in process.stderr.readline():
        pass
    with site.connect() as client, client.subscribe("open/devices/pump3/reading") as messages:
        first = next(messages).json()["sequence"]
        assert [next(messages).json()["sequence"] for _ in range(5)] == list(range(first + 1, first + 6))
        process.send_signal(signal.SIGTERM)
        assert "0 not acknowledged" in ended(process)


class Relay:
    """Carries one connection to the broker, and then none."""

    def __init__(self, port: int, to: tuple[str, int]) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._to = to
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._listener:
            near, _ = self._listener.accept()
        with near, socket.create_connection(self._to) as far:
            back = threading.Thread(target=self._carry, args=(far, near))
            back.start()
            self._carry(near, far)
            back.join()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_readings_wait_for_a_broker_that_is_not_there_yet(site: Site, client: tidegate.Client, device: Device) -> None:
    (port,) = free_ports(1)
    process = device("-n", "pump4", "-i", "1", "-c", "80", port=str(port))
    assert process.stderr is not None and "not connected" in process.stderr.readline()
    host, _, broker_port = site.mqtt.removeprefix("mqtt://").rpartition(":")
    with client.subscribe("open/devices/pump4/reading") as messages:
        relay = Relay(port, (host, int(broker_port)))
        said = ended(process)
        relay.join()
        found = re.search(r"80 readings, (\d+) dropped", said)
        assert found, said
        got = [next(messages).json()["sequence"]]
        while got[-1] != 79:
            got.append(next(messages).json()["sequence"])
    # The newest 64 wait; the announcement of the device may take the place of one more.
    assert got == list(range(got[0], 80))
    assert int(found[1]) - 1 <= got[0] <= int(found[1])


# A name of two addresses, as localhost is on many machines; nothing listens at the first.
TWO_ADDRESSES = """
#define _POSIX_C_SOURCE 200809L
#include <netdb.h>
static inline int of_two(const char *name, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    (void)name;
    int failed = getaddrinfo("127.0.0.2", port, hints, found);
    return failed != 0 ? failed : getaddrinfo("127.0.0.1", port, hints, &(*found)->ai_next);
}
#define getaddrinfo of_two
"""


def test_the_second_address_of_a_name_is_tried(client: tidegate.Client, device: Device, tmp_path: Path) -> None:
    (tmp_path / "two.h").write_text(TWO_ADDRESSES)
    program = built(tmp_path / "c", "-include", str(tmp_path / "two.h"))
    with client.subscribe("open/devices/pump6/reading") as messages:
        said = ended(device("-n", "pump6", "-h", "localhost", "-i", "1", "-c", "3", program=program))
        assert [next(messages).json()["sequence"] for _ in range(3)] == [0, 1, 2]
    assert said.index("not connected") < said.index("sensor: connected")


def test_a_device_that_waits_at_its_end_uses_no_processor(device: Device) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        process = device("-n", "pump7", "-i", "1", "-c", "2", port=str(listener.getsockname()[1]))
        # Each is tried later than the one before: this takes some seconds.
        for _ in range(4):
            listener.accept()[0].close()
        process.terminate()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 1
    assert used.ru_utime + used.ru_stime < 1


def test_wrong_arguments_and_wrong_passwords_say_so(site: Site, device: Device) -> None:
    process = device()
    assert "usage" in process.communicate(timeout=20)[1] and process.returncode == 2
    refused = device("-n", "pump5", "-u", "nobody-at-all")
    assert refused.stderr is not None
    said = refused.stderr.readline()
    assert "user or password is wrong" in said or "may not connect" in said, said
    refused.send_signal(signal.SIGTERM)
    assert refused.wait(20) == 1
