"""Errors of TLS with the broker: those that a further try may end, and those that it cannot."""

from __future__ import annotations

import socket
import ssl
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate
from tidegate._mqtt import unreachable

SETTINGS: Any = SimpleNamespace(mqtt="mqtts://127.0.0.1:1")


def _handshake(answer: bytes) -> ssl.SSLError:
    """The error of a handshake with a peer that answers so, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            with socket.create_connection(server.getsockname(), 10) as connection, pytest.raises(ssl.SSLError) as raised:
                ssl.create_default_context().wrap_socket(connection, server_hostname="broker")
        finally:
            serving.join()
    return raised.value


def _alert(number: int) -> bytes:
    return bytes([21, 3, 3, 0, 2, 2, number])


@pytest.mark.parametrize("answer", [b"", b"\x16\x03\x03", b"220 hello\r\n", _alert(80)])
def test_a_handshake_that_is_cut_short_is_a_link_that_is_down(answer: bytes) -> None:
    error = unreachable(SETTINGS, _handshake(answer))
    assert isinstance(error, tidegate.LinkDownError), error
    assert error.code == "link.down"


@pytest.mark.parametrize("alert", [40, 42, 43, 44, 45, 46, 48, 49, 51, 116])
def test_a_certificate_that_is_refused_is_an_identity_that_is_refused(alert: int) -> None:
    error = unreachable(SETTINGS, _handshake(_alert(alert)))
    assert isinstance(error, tidegate.IdentityRefusedError), error


def test_a_broker_with_a_wrong_certificate_is_an_identity_that_is_refused() -> None:
    unknown = ssl.SSLCertVerificationError(1, "unknown authority")
    unknown.reason = "CERTIFICATE_VERIFY_FAILED"
    error = unreachable(SETTINGS, unknown)
    assert isinstance(error, tidegate.IdentityRefusedError), error
