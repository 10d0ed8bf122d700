"""Messages over sockets of the standard library, for the client that blocks."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from . import messages
from ._connection import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, Settings
from .errors import IdentityRefusedError, LinkDownError, TidegateError
from .messages import Message, Session

_READ_BYTES = 256 << 10


def keep_watch(connection: socket.socket) -> None:
    """The kernel asks the peer for signs of life: one that is gone is noticed within half a minute."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# Alerts by which a peer refuses a certificate, or asks for one (RFC 8446, section 6.2), and an identity. TLS 1.2 has `handshake_failure`
# for a certificate that is missing.
_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "DECRYPT_ERROR")


def _is_refusal(error: ssl.SSLError) -> bool:
    """Whether one of the two does not take the other's certificate: trying again does not help."""
    reason = error.reason or ""
    is_alert = "ALERT" in reason and any(refusal in reason for refusal in _REFUSALS)
    return isinstance(error, ssl.SSLCertVerificationError) or is_alert


def unreachable(settings: Settings, error: Exception) -> TidegateError:
    """The broker cannot be reached, or is not the one it must be."""
    if isinstance(error, ssl.SSLError):
        text = f"TLS with the broker at {settings.mqtt} failed: {error.reason or error}"
        if _is_refusal(error):
            return IdentityRefusedError(text, "auth.identity.refused")
        # As of a broker that ends in the middle of a handshake.
        return LinkDownError(text, "link.down")
    return LinkDownError(f"no broker answers at {settings.mqtt}: {error}", "link.down")


class _Link:
    """One connection to the broker, over which CONNECT was answered."""

    def __init__(self, settings: Settings, session: Session, is_new: bool) -> None:
        tls = settings.mqtt_tls()
        self._data = bytearray()
        try:
            self.socket = socket.create_connection((settings.mqtt.host, settings.mqtt.port), CONNECT_TIMEOUT_S)
        except OSError as error:
            raise unreachable(settings, error) from error
        try:
            keep_watch(self.socket)
            if tls is not None:
                name = settings.server_name or settings.mqtt.host
                self.socket = tls.wrap_socket(self.socket, server_hostname=name)
            self.send(session.connect(is_new))
            kind, _, body = self.receive()
            if kind != messages.CONNACK:
                raise messages.malformed("packet before CONNACK")
            self.is_kept = session.connected(body)
        except OSError as error:
            self.close()
            raise unreachable(settings, error) from error
        except BaseException:
            self.close()
            raise

    def send(self, packet: bytes) -> None:
        self.socket.sendall(packet)

    def receive(self) -> tuple[int, int, bytes]:
        """The next packet: its kind, its flags, its body. TimeoutError keeps what has come."""
        while True:
            head = messages.length_of(self._data)
            if head is not None and len(self._data) >= sum(head):
                first, begin, end = self._data[0], head[0], sum(head)
                body = bytes(self._data[begin:end])
                del self._data[:end]
                return first >> 4, first & 15, body
            more = self.socket.recv(_READ_BYTES)
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            self._data += more

    def has_ended(self) -> bool:
        """Whether the broker has ended a connection over which nothing is awaited: a message of QoS 0 would be lost in it."""
        timeout = self.socket.gettimeout()
        self.socket.settimeout(0)
        try:
            # The last word of a broker, or its end: either way nothing more is taken.
            self.socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            self.socket.settimeout(timeout)
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class MqttPublisher:
    """Publishes over one connection, made when it is needed; for any number of threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session = Session(settings.mqtt_login())
        self._lock = threading.Lock()
        self._link: _Link | None = None

    def publish(self, topic: str, payload: bytes | str, qos: int, retain: bool) -> None:
        """As `Client.publish`."""
        packet, number = self._session.publish(topic, payload, qos, retain)
        with self._lock:
            # A connection that was idle may have ended unseen: the message is sent once more over another.
            for is_last in (self._link is None, True):
                try:
                    return self._send(packet, number, topic)
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

    def _send(self, packet: bytes, number: int, topic: str) -> None:
        if self._link is None:
            self._link = _Link(self._settings, self._session, is_new=True)
            self._link.socket.settimeout(CALL_TIMEOUT_S)
        elif self._link.has_ended():
            raise ConnectionResetError("the broker closed the connection")
        self._link.send(packet)
        while number:
            kind, _, body = self._link.receive()
            if kind == messages.DISCONNECT:
                raise Session.disconnected(body)
            if kind == messages.PUBACK and self._session.published(body, number, topic):
                return

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """Ends the connection."""
        with self._lock:
            if self._link is not None:
                with contextlib.suppress(OSError):
                    self._link.send(Session.disconnect())
            self._drop()


class MessageStream(Iterator[Message]):
    """Messages of one subscription. Made by `Client.subscribe`; a context manager that ends it."""

    def __init__(self, settings: Settings, filters: tuple[str, ...], qos: int) -> None:
        if not filters:
            raise TypeError("subscribe takes at least one filter")
        self._link: _Link | None = None
        self._settings = settings
        self._session = Session(settings.mqtt_login(), filters, qos)
        self._closed = threading.Event()
        self._to_acknowledge = 0
        self._waiting: list[tuple[Message, int]] = []
        self._open(is_new=True)

    def _open(self, is_new: bool) -> None:
        link = _Link(self._settings, self._session, is_new)
        try:
            if is_new or not link.is_kept:
                link.send(self._session.subscribe())
                while True:
                    kind, flags, body = link.receive()
                    if kind == messages.SUBACK:
                        self._session.subscribed(body)
                        break
                    if kind == messages.PUBLISH:
                        self._waiting.append(self._session.message(flags, body))
                    elif kind == messages.DISCONNECT:
                        raise Session.disconnected(body)
            # Half of the time after which the broker would miss a sign of life.
            link.socket.settimeout(self._session.keep_alive_s / 2 or None)
        except OSError as error:
            link.close()
            raise unreachable(self._settings, error) from error
        except BaseException:
            link.close()
            raise
        self._link = link
        if self._closed.is_set():
            link.close()

    def __next__(self) -> Message:
        try:
            message = self._next()
        except BaseException:
            self.close()
            raise
        if message is None:
            raise StopIteration
        return message

    def _next(self) -> Message | None:
        retries, tries = self._settings.retries, 0
        while not self._closed.is_set():
            try:
                if self._link is None:
                    self._open(is_new=False)
                message = self._receive()
            except (OSError, LinkDownError) as error:
                if self._closed.is_set():
                    break
                self._drop()
                if tries >= retries.max or getattr(error, "code", "link.down") != "link.down":
                    text = f"the connection to the broker broke and {tries} further tries are used up: {error}"
                    raise LinkDownError(text, "link.down") from error
                self._closed.wait(retries.wait(tries))
                tries += 1
                continue
            return message
        return None

    def _receive(self) -> Message:
        link = self._link
        assert link is not None, "opened before"
        if self._to_acknowledge:
            number, self._to_acknowledge = self._to_acknowledge, 0
            link.send(Session.acknowledge(number))
        while True:
            if self._waiting:
                message, number = self._waiting.pop(0)
            else:
                try:
                    kind, flags, body = link.receive()
                except TimeoutError:
                    link.send(Session.ping())
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

    def close(self) -> None:
        """Ends the subscription; an iteration under way in another thread ends. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        link = self._link
        if link is not None:
            with contextlib.suppress(OSError):
                if self._to_acknowledge:
                    link.send(Session.acknowledge(self._to_acknowledge))
                link.send(Session.disconnect())
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()
