"""How a node is reached: its address, the caller's proof, and the options of the channel. Nothing here does I/O but reading PEM files."""

from __future__ import annotations

import base64
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from .errors import InvalidRequestError

VERSION = "0.1.0"

API_PORT = 7080
MQTT_PORT = 1883
MQTTS_PORT = 8883

AWAITED_WINDOW_BYTES = 512 << 10
MESSAGE_BYTES_MAX = 64 << 20
"""Longest message of the API; as in tidegate-api."""


CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 30.0

Pem = str | Path | bytes
"""The path of a PEM file, or its text as bytes."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How hard a stream tries to get a broken connection back."""

    max: int = 20
    """Tries in a row before the stream fails; an event begins the count from zero. 0 never tries again."""
    wait_s: float = 0.1
    """Before the first try; doubles with each, up to `wait_max_s`."""
    wait_max_s: float = 5.0

    def wait(self, tries: int) -> float:
        """Seconds to wait after so many tries."""
        return float(min(self.wait_max_s, self.wait_s * 2 ** min(tries, 30)))


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, and whether TLS is spoken there."""

    host: str
    port: int
    tls: bool = True

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a client is made with, checked."""

    api: Address
    mqtt: Address
    authority: bytes | None
    identity: tuple[bytes, bytes] | None = field(repr=False)
    """Certificate and key."""
    identity_files: tuple[Path, Path] | None
    """The same as files, which is what the standard library's TLS takes."""
    token: str | None = field(repr=False)
    user: tuple[str, str] | None = field(repr=False)
    server_name: str | None
    retries: Retries
    follow: bool
    """Whether calls about a camera of another node go there."""

    @staticmethod
    def make(
        url: str,
        *,
        token: str | None,
        user: tuple[str, str] | None,
        cert: tuple[Pem, Pem] | None,
        ca: Pem | None,
        pki: str | Path | None,
        mqtt: str | None,
        server_name: str | None,
        retries: Retries | None,
        follow: bool = True,
    ) -> Settings:
        """Checks what `connect` was given.

        Raises:
            InvalidRequestError: an address that is none, a file that cannot be read, two proofs at once.
        """
        if sum(proof is not None for proof in (token, user, cert)) > 1:
            raise invalid("token, user and cert are three ways to say who calls: give one of them")
        if user is not None and ":" in user[0]:
            raise invalid(f"{user[0]!r} cannot be a user name here: it has a `:`")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise invalid("the token holds characters that no token has")
        api = _address(url, {"https": True, "tidegate": True, "": True}, {True: API_PORT})
        if pki is not None:
            ca = Path(pki) / "ca.pem" if ca is None else ca
            if token is None and user is None and cert is None:
                cert = (Path(pki) / "application.pem", Path(pki) / "application.key")
        identity = None if cert is None else (_pem(cert[0], "certificate"), _pem(cert[1], "key"))
        are_files = cert is not None and not any(isinstance(part, bytes) for part in cert)
        if mqtt is None:
            # A password must not leave the machine in clear because somebody forgot a setting.
            local = _is_loopback(api.host)
            broker = Address(api.host, MQTT_PORT if local else MQTTS_PORT, tls=not local)
        else:
            broker = _address(mqtt, {"mqtt": False, "mqtts": True}, {False: MQTT_PORT, True: MQTTS_PORT})
        return Settings(
            api=api,
            mqtt=broker,
            authority=None if ca is None else _pem(ca, "authority"),
            identity=identity,
            identity_files=(Path(cert[0]), Path(cert[1])) if cert is not None and are_files else None,  # type: ignore[arg-type]
            token=token,
            user=user,
            server_name=server_name,
            retries=retries or Retries(),
            follow=follow,
        )

    def at(self, address: str) -> Settings:
        """The same caller and the same authority, for a node that another one named.

        Raises:
            InvalidRequestError: it is no address.
        """
        return replace(self, api=_address(address, {"": True}, {True: API_PORT}), follow=False)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """TLS with the authority and, where there is one, the caller's certificate."""
        certificate, key = self.identity or (None, None)
        return grpc.ssl_channel_credentials(self.authority, key, certificate)

    def channel_options(self, is_awaited: bool = False) -> Sequence[tuple[str, int | str]]:
        """Options of gRPC: sizes of messages, signs of life each 5 s, new tries within 5 s; of a channel that blocks, or is awaited."""
        options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.keepalive_time_ms", 5000),
            ("grpc.keepalive_timeout_ms", 5000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # It is how long a handshake may take, in spite of its name.
            ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
            ("grpc.max_reconnect_backoff_ms", 5000),
            # Each client has a connection of its own, whose end is its own.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.primary_user_agent", f"tidegate-python/{VERSION}"),
        ]
        if self.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        if is_awaited:
            # A program that blocks its loop reads nothing meanwhile, and gRPC would widen the window to many megabytes of old frames.
            options += [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", AWAITED_WINDOW_BYTES)]
        return options

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of each call: the identity of the caller."""
        if self.token is not None:
            return (("authorization", f"Bearer {self.token}"),)
        if self.user is not None:
            pair = ":".join(self.user).encode()
            return (("authorization", f"Basic {base64.b64encode(pair).decode('ascii')}"),)
        return ()

    def mqtt_login(self) -> tuple[str, str] | None:
        """User name and password of a connection of MQTT; a token is the password of the empty name."""
        return self.user if self.token is None else ("", self.token)

    def mqtt_tls(self) -> ssl.SSLContext | None:
        """TLS towards the broker, if it is spoken there.

        Raises:
            InvalidRequestError: a certificate that is not in files, or that does not fit its key.
        """
        if not self.mqtt.tls:
            return None
        try:
            authority = None if self.authority is None else self.authority.decode("ascii")
            context = ssl.create_default_context(cadata=authority)
            if self.identity_files is not None:
                context.load_cert_chain(*self.identity_files)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise invalid(f"the authority or the certificate cannot be used for MQTT: {error}") from error
        if self.identity is not None and self.identity_files is None:
            raise invalid("MQTT over TLS takes a certificate and key from files: give their paths, not their text")
        return context


def invalid(message: str) -> InvalidRequestError:
    """A setting or an argument that can never work."""
    return InvalidRequestError(message, "config.invalid")


def _address(url: str, schemes: dict[str, bool], ports: dict[bool, int]) -> Address:
    allowed = ", ".join(f"{scheme}://HOST:PORT" for scheme in schemes if scheme)
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = parts.port
    except ValueError as error:
        raise invalid(f"{url!r} is no address of a node ({error}); {allowed} is") from error
    tls = schemes.get(parts.scheme)
    if tls is None or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise invalid(f"{url!r} is no address of a node; {allowed} is")
    return Address(parts.hostname, ports[tls] if port is None else port, tls)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _pem(pem: Pem, kind: str) -> bytes:
    if isinstance(pem, bytes):
        return pem
    try:
        return Path(pem).read_bytes()
    except OSError as error:
        raise invalid(f"the {kind} {pem} cannot be read: {error.strerror}") from error
