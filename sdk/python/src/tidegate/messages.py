"""Messages of MQTT 5 and the few packets that carry them, without I/O: both clients drive `Session`.

Only the part of MQTT that this package needs is spoken: QoS 0 and 1, no aliases of topics, no extended authentication. A broker that sends
more than that ends the connection with a LinkDownError that says so.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ActionDeniedError, IdentityRefusedError, InvalidRequestError, LimitReachedError, LinkDownError, TidegateError

SESSION_EXPIRY_S = 60
"""How long a broker keeps the session of a subscription whose connection broke."""
RECEIVE_MAXIMUM = 64
"""Messages of QoS 1 that a broker sends before it waits for an acknowledgement."""
PACKET_BYTES_MAX = 268_435_455
"""Longest packet that MQTT can write down."""

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP, DISCONNECT = 2, 3, 4, 9, 13, 14

_SESSION_EXPIRY, _RECEIVE_MAXIMUM, _SERVER_KEEP_ALIVE, _REASON_STRING = 0x11, 0x21, 0x13, 0x1F
_CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION_DATA, _USER_PROPERTY = 0x03, 0x08, 0x09, 0x26
# How each property is laid out (MQTT 5, 2.2.2.2): bytes of a number, `v` a variable one, `s` a text, `b` bytes, `p` a pair of texts.
_LAYOUTS: dict[int, str] = {
    0x01: "1", 0x02: "4", 0x03: "s", 0x08: "s", 0x09: "b", 0x0B: "v", 0x11: "4", 0x12: "s", 0x13: "2", 0x15: "s", 0x16: "b",
    0x17: "1", 0x18: "4", 0x19: "1", 0x1A: "s", 0x1C: "s", 0x1F: "s", 0x21: "2", 0x22: "2", 0x23: "2", 0x24: "1", 0x25: "1",
    0x26: "p", 0x27: "4", 0x28: "1", 0x29: "1", 0x2A: "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a topic."""

    topic: str
    payload: bytes
    qos: int
    """0 or 1."""
    retain: bool
    """It was kept by the broker and not published just now."""
    duplicate: bool
    """The broker sends it again: it may have come before."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The payload as UTF-8; bytes that are none are replaced."""
        return self.payload.decode("utf-8", "replace")

    def json(self) -> Any:
        """The payload as JSON.

        Raises:
            ValueError: it is none.
        """
        return json.loads(self.payload)

    def __repr__(self) -> str:
        shown = self.payload[:60].decode("utf-8", "backslashreplace")
        return f"<Message {self.topic} {shown!r}{'…' if len(self.payload) > 60 else ''}{' retained' if self.retain else ''}>"


class Session:
    """State of one end of a connection: the broker's packets in, packets out.

    Always true: a message of QoS 1 is acknowledged only by `acknowledge`, in the order in which they came.
    """

    def __init__(self, login: tuple[str, str] | None, filters: Sequence[str] = (), qos: int = 1) -> None:
        if qos not in (0, 1):
            raise InvalidRequestError(f"a quality of service of {qos} is not spoken here; 0 and 1 are", "config.invalid")
        for text in filters:
            _check(text, "filter")
        self.client_id = f"python-{secrets.token_hex(8)}"
        self.filters = tuple(filters)
        self.keep_alive_s = 0
        """How often the broker wants to hear something; 0: it does not care."""
        self._qos = qos
        self._login = login
        self._packet_id = 0

    def connect(self, is_new: bool) -> bytes:
        """The first packet of a connection; `is_new` begins a session that no earlier connection had."""
        flags = 0x02 if is_new else 0
        body = bytearray()
        expiry = SESSION_EXPIRY_S if self.filters else 0
        properties = struct.pack(">BIBH", _SESSION_EXPIRY, expiry, _RECEIVE_MAXIMUM, RECEIVE_MAXIMUM)
        payload = _text(self.client_id)
        if self._login is not None:
            flags |= 0xC0
            payload += _text(self._login[0]) + _text(self._login[1])
        # Signs of life are the kernel's: a program that is busy with a message sends none.
        body += _text("MQTT") + struct.pack(">BBH", 5, flags, 0) + _varint(len(properties)) + properties + payload
        return _packet(0x10, bytes(body))

    def connected(self, body: bytes) -> bool:
        """Reads CONNACK; whether the broker still has the session.

        Raises:
            IdentityRefusedError, ActionDeniedError, LimitReachedError, LinkDownError: the broker does not let it in.
        """
        if len(body) < 2:
            raise malformed("CONNACK")
        properties, _ = _properties(body, 2)
        _check_reason(body[1], properties, "the connection")
        self.keep_alive_s = int(properties.get(_SERVER_KEEP_ALIVE, 0))
        return bool(body[0] & 1)

    def subscribe(self) -> bytes:
        """Asks for the filters."""
        body = struct.pack(">H", self._next_id()) + _varint(0)
        for text in self.filters:
            body += _text(text) + bytes([self._qos])
        return _packet(0x82, body)

    def subscribed(self, body: bytes) -> None:
        """Reads SUBACK.

        Raises:
            ActionDeniedError, LimitReachedError, InvalidRequestError: the broker does not take a filter.
        """
        if len(body) < 3:
            raise malformed("SUBACK")
        properties, at = _properties(body, 2)
        if len(body) - at != len(self.filters):
            raise malformed("SUBACK")
        for text, reason in zip(self.filters, body[at:], strict=True):
            _check_reason(reason, properties, f"the filter {text!r}")

    def publish(self, topic: str, payload: bytes | str, qos: int, retain: bool) -> tuple[bytes, int]:
        """The packet of a message, and its number, 0 for QoS 0.

        Raises:
            InvalidRequestError: no topic can be called that, or a QoS that is not spoken here.
        """
        _check(topic, "topic")
        if "+" in topic or "#" in topic:
            raise InvalidRequestError(f"{topic!r} is no topic: it has a wildcard", "config.invalid")
        if qos not in (0, 1):
            raise InvalidRequestError(f"a quality of service of {qos} is not spoken here; 0 and 1 are", "config.invalid")
        number = self._next_id() if qos else 0
        body = _text(topic) + (struct.pack(">H", number) if qos else b"") + _varint(0)
        body += payload.encode() if isinstance(payload, str) else bytes(payload)
        if len(body) > PACKET_BYTES_MAX:
            raise InvalidRequestError(f"a payload of {len(payload)} bytes is more than MQTT can carry", "config.invalid")
        return _packet(0x30 | qos << 1 | int(retain), body), number

    def published(self, body: bytes, number: int, topic: str) -> bool:
        """Reads PUBACK; whether it is that of the message with this number.

        Raises:
            ActionDeniedError, LimitReachedError, InvalidRequestError: the broker did not take the message.
        """
        if len(body) < 2:
            raise malformed("PUBACK")
        if int.from_bytes(body[:2]) != number:
            return False
        if len(body) > 2:
            properties = _properties(body, 3)[0] if len(body) > 3 else {}
            _check_reason(body[2], properties, f"a message of {topic!r}")
        return True

    def message(self, flags: int, body: bytes) -> tuple[Message, int]:
        """Reads PUBLISH: the message, and the number to acknowledge, 0 for none.

        Raises:
            LinkDownError: the packet is none that was asked for.
        """
        qos = flags >> 1 & 3
        topic, at = _read_text(body, 0)
        number = 0
        if qos:
            number, at = _read_number(body, at, 2)
        properties, at = _properties(body, at)
        if qos > 1 or not topic:
            raise malformed("PUBLISH")
        message = Message(
            topic=topic,
            payload=body[at:],
            qos=qos,
            retain=bool(flags & 1),
            duplicate=bool(flags & 8),
            content_type=properties.get(_CONTENT_TYPE),
            response_topic=properties.get(_RESPONSE_TOPIC),
            correlation_data=properties.get(_CORRELATION_DATA),
            user_properties=tuple(properties.get(_USER_PROPERTY, ())),
        )
        return message, number

    @staticmethod
    def acknowledge(number: int) -> bytes:
        """The application has the message."""
        return _packet(0x40, struct.pack(">H", number))

    @staticmethod
    def ping() -> bytes:
        """A sign of life."""
        return _packet(0xC0, b"")

    @staticmethod
    def disconnect() -> bytes:
        """The last packet: the broker forgets the session."""
        properties = struct.pack(">BI", _SESSION_EXPIRY, 0)
        return _packet(0xE0, b"\0" + _varint(len(properties)) + properties)

    @staticmethod
    def disconnected(body: bytes) -> TidegateError:
        """Why the broker ended the connection."""
        if not body:
            return LinkDownError("the broker ended the connection", "link.down")
        properties = _properties(body, 1)[0] if len(body) > 1 else {}
        if body[0] < 0x80 or body[0] in (0x8B, 0x89):  # it stops or is busy: later
            return LinkDownError("the broker ended the connection", "link.down")
        return _reason(body[0], properties, "the connection")

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 0xFFFF + 1
        return self._packet_id


def length_of(data: bytes | bytearray) -> tuple[int, int] | None:
    """Of a packet that begins so: the bytes of its head, and of its body; None if more of the head must come.

    Raises:
        LinkDownError: no packet begins so.
    """
    value = 0
    for index, byte in enumerate(data[1:5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return index + 2, value
    if len(data) >= 5:
        raise malformed("packet")
    return None


def malformed(packet: str) -> LinkDownError:
    """The broker sent what was not asked for."""
    return LinkDownError(f"the broker sent a {packet} that this client does not understand", "link.protocol")


def _check(text: str, kind: str) -> None:
    if not text or "\0" in text or len(text.encode()) > 0xFFFF:
        raise InvalidRequestError(f"{text[:60]!r} is no {kind}: 1 to 65535 bytes without a zero are", "config.invalid")


def _check_reason(reason: int, properties: dict[int, Any], subject: str) -> None:
    if reason >= 0x80:
        raise _reason(reason, properties, subject)


def _reason(reason: int, properties: dict[int, Any], subject: str) -> TidegateError:
    said = properties.get(_REASON_STRING)
    text = f"the broker refused {subject} with reason 0x{reason:02x}" + (f": {said}" if said else "")
    if reason in (0x86, 0x8A, 0x8C):
        return IdentityRefusedError(text, "auth.identity.refused")
    if reason == 0x87:
        return ActionDeniedError(text, "auth.action.denied")
    if reason in (0x97, 0x95, 0x96, 0x9F, 0x9B):
        return LimitReachedError(text, "limit.reached")
    if reason in (0x88, 0x89, 0x8B):
        return LinkDownError(text, "link.down")
    return InvalidRequestError(text, "config.invalid")


def _packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    data = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        data.append(low | (0x80 if value else 0))
        if not value:
            return bytes(data)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def _read_number(body: bytes, at: int, size: int) -> tuple[int, int]:
    if at + size > len(body):
        raise malformed("packet that is cut")
    return int.from_bytes(body[at : at + size]), at + size


def _read_bytes(body: bytes, at: int) -> tuple[bytes, int]:
    length, begin = _read_number(body, at, 2)
    if begin + length > len(body):
        raise malformed("packet that is cut")
    return body[begin : begin + length], begin + length


def _read_text(body: bytes, at: int) -> tuple[str, int]:
    data, end = _read_bytes(body, at)
    try:
        return data.decode(), end
    except UnicodeDecodeError:
        raise malformed("text that is not UTF-8") from None


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(4):
        byte, at = _read_number(body, at, 1)
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at
    raise malformed("length that is none")


def _properties(body: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Properties from `at` on, and where they end; user properties as a list of pairs."""
    length, at = _read_varint(body, at)
    end = at + length
    found: dict[int, Any] = {}
    while at < end:
        name, at = _read_number(body, at, 1)
        layout = _LAYOUTS.get(name)
        value: Any
        if layout is None:
            raise malformed(f"property 0x{name:02x}")
        if layout == "p":
            key, at = _read_text(body, at)
            value, at = _read_text(body, at)
            found.setdefault(name, []).append((key, value))
            continue
        if layout == "s":
            value, at = _read_text(body, at)
        elif layout == "b":
            value, at = _read_bytes(body, at)
        elif layout == "v":
            value, at = _read_varint(body, at)
        else:
            value, at = _read_number(body, at, int(layout))
        found[name] = value
    if at != end or end > len(body):
        raise malformed("packet that is cut")
    return found, end
