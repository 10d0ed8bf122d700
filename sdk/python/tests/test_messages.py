"""Messages through a real node's broker, and packets that no broker should send."""

from __future__ import annotations

import dataclasses
import socket
import threading

import pytest
from conftest import Site, poll

import tidegate
from tidegate import messages
from tidegate._connection import Settings
from tidegate.messages import Session


def test_messages_come_in_order_with_their_parts(site: Site, client: tidegate.Client) -> None:
    with client.subscribe("open/+/t", "open/x") as stream:
        for number in range(200):
            client.publish("open/a/t", str(number), qos=number % 2)
        client.publish("open/x", b"\xff{}", retain=True)
        assert [next(stream).text for _ in range(200)] == [str(number) for number in range(200)]
        last = next(stream)
        assert (last.topic, last.payload, last.qos, last.retain) == ("open/x", b"\xff{}", 1, False)
    with client.subscribe("open/x") as stream:
        assert next(stream).retain, "it was kept"
    client.publish("open/x", b"", retain=True)


def test_a_program_that_is_slow_loses_no_message_of_qos_1(client: tidegate.Client) -> None:
    count = 5 * messages.RECEIVE_MAXIMUM
    with client.subscribe("open/slow") as stream:
        for number in range(count):
            client.publish("open/slow", str(number))
        assert [next(stream).text for _ in range(count)] == [str(number) for number in range(count)]


def test_the_broker_says_what_is_not_allowed(client: tidegate.Client) -> None:
    with pytest.raises(tidegate.ActionDeniedError):
        client.publish("news/today", b"")
    client.publish("open/a", b"", qos=1)
    for wrong in ("", "a/#", "a/+/b", "a\0"):
        with pytest.raises(tidegate.InvalidRequestError):
            client.publish(wrong, b"")
    with pytest.raises(tidegate.InvalidRequestError):
        client.publish("open/a", b"", qos=2)
    with pytest.raises(tidegate.TidegateError):
        client.subscribe("secret/#")
    with pytest.raises(tidegate.TidegateError):
        client.subscribe("a/#/b")
    with pytest.raises(TypeError):
        client.subscribe()


def test_a_wrong_password_is_refused_by_the_broker(site: Site) -> None:
    client = tidegate.connect(site.url, ca=site.pki / "ca.pem", user=("admin", site.password), mqtt=site.mqtt)
    with client, client.subscribe("open/u") as stream:
        client.publish("open/u", "by admin")
        assert next(stream).text == "by admin"
    with client_of_broker(site, ("admin", "wrong")) as wrong, pytest.raises(tidegate.IdentityRefusedError):
        wrong.publish("open/u", "")


def test_messages_go_by_tls_with_a_certificate_or_a_password(site: Site) -> None:
    ca = site.pki / "ca.pem"
    callers = ({"pki": str(site.pki)}, {"ca": ca, "user": ("admin", site.password)}, {"ca": ca, "token": site.token()})
    for number, caller in enumerate(callers):
        with tidegate.connect(site.url, mqtt=site.mqtts, **caller) as client, client.subscribe("open/tls") as stream:
            for qos in (0, 1, 0):
                client.publish("open/tls", f"{number} {qos}", qos=qos)
            assert [next(stream).text for _ in range(3)] == [f"{number} 0", f"{number} 1", f"{number} 0"]
    with tidegate.connect(site.url, ca=ca, user=("admin", site.password), mqtt=site.mqtts) as client:
        client._settings = dataclasses.replace(client._settings, authority=None)
        with pytest.raises(tidegate.IdentityRefusedError):
            client.publish("open/tls", "")
    as_text = ((site.pki / "application.pem").read_bytes(), (site.pki / "application.key").read_bytes())
    with tidegate.connect(site.url, ca=ca, cert=as_text, mqtt=site.mqtts) as client, pytest.raises(tidegate.InvalidRequestError):
        client.publish("open/tls", "")


def client_of_broker(site: Site, user: tuple[str, str]) -> tidegate.Client:
    """A client that the API lets in, with other proof at the broker."""
    client = site.connect()
    client._settings = dataclasses.replace(client._settings, user=user)
    return client


def test_subscriptions_end_from_another_thread_and_when_dropped(site: Site, client: tidegate.Client) -> None:
    stream = client.subscribe("open/#")
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    stream.close()
    reader.join(10)
    assert not reader.is_alive()
    dropped = client.subscribe("open/#")
    link = dropped._link
    assert link is not None
    del dropped
    poll(lambda: link.socket.fileno() == -1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x20\xff\xff\xff\xff\x01",  # a length that is none
        b"\x20\x00",  # CONNACK without its parts
        b"\x20\x03\x00\x00\x05",  # properties that are not there
        b"\x20\x05\x00\x00\x02\x99\x00",  # an unknown property
        b"\x30\x00",  # a message first
    ],
)
def test_a_broker_that_speaks_nonsense_is_an_error_and_no_hang(site: Site, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                waiting, _ = listener.accept()
                with waiting:
                    waiting.recv(4096)
                    waiting.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        with tidegate.connect(site.url, pki=str(site.pki), mqtt=address) as client:
            with pytest.raises(tidegate.TidegateError):
                client.publish("a", b"")
            with pytest.raises(tidegate.TidegateError):
                client.subscribe("a")


@pytest.mark.parametrize("cut", range(40))
def test_a_message_that_is_cut_is_malformed(cut: int) -> None:
    body = b"\x00\x03a/b\x00\x07" + b"\x11\x26\x00\x03key\x00\x05value\x03\x00\x01t" + b"payload"
    session = Session(None, ["a"])
    whole, number = session.message(0x02, body)
    assert (whole.topic, number, whole.user_properties) == ("a/b", 7, (("key", "value"),))
    assert (whole.content_type, whole.payload) == ("t", b"payload")
    if cut < len(body) - len(b"payload"):
        with pytest.raises(tidegate.LinkDownError):
            session.message(0x02, body[:cut])


def test_passwords_never_leave_in_clear_without_being_told_to() -> None:
    def settings(url: str, mqtt: str | None = None) -> Settings:
        return Settings.make(url, token=None, user=("a", "b"), cert=None, ca=None, pki=None, mqtt=mqtt, server_name=None, retries=None)

    assert settings("edge.example").mqtt.tls and settings("edge.example").mqtt.port == 8883
    assert not settings("127.0.0.1:7000").mqtt.tls and settings("[::1]:7000").mqtt.port == 1883
    assert not settings("edge.example", "mqtt://edge.example").mqtt.tls
    assert "user" not in repr(settings("x")) and "identity=" not in repr(settings("x")), "secrets are not shown"
    for wrong in ("http://a", "a:port", "mqtt://a", "https://u:p@a", "a/b", ""):
        with pytest.raises(tidegate.InvalidRequestError):
            settings(wrong)
