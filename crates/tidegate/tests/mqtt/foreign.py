"""Eclipse Paho against a running node: every version and quality of service over one transport.

usage: foreign.py tcp|tls|websockets PORT [CA]
Prints `ok` at the end; any failure ends it with a trace.
"""

import queue
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

TRANSPORT, PORT = sys.argv[1], int(sys.argv[2])
CA = sys.argv[3] if len(sys.argv) > 3 else None
LONGEST_S = 10
# Several of these run at a time.
HOME = f"paho/{TRANSPORT}"


class Client:
    """A connected client whose messages and answers are waited for, at most LONGEST_S each."""

    def __init__(self, name, version, clean=True, expiry=None, will=None):
        self.messages, self.subscribed, self.connected = queue.Queue(), queue.Queue(), queue.Queue()
        self.disconnected = queue.Queue()
        kind = "websockets" if TRANSPORT.startswith("websockets") else "tcp"
        arguments = {} if version == mqtt.MQTTv5 else {"clean_session": clean}
        self.mqtt = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, name, protocol=version, transport=kind, **arguments
        )
        if kind == "websockets":
            self.mqtt.ws_set_options(path="/mqtt")
        if CA:
            self.mqtt.tls_set(CA)
        if will:
            self.mqtt.will_set(*will)
        self.mqtt.on_message = lambda _c, _u, message: self.messages.put(message)
        self.mqtt.on_subscribe = lambda _c, _u, _m, codes, _p: self.subscribed.put(codes)
        self.mqtt.on_connect = lambda _c, _u, flags, code, properties: self.connected.put(
            (flags, code, properties)
        )
        self.mqtt.on_disconnect = lambda _c, _u, _f, code, _p: self.disconnected.put(code)
        options = {}
        if version == mqtt.MQTTv5:
            options["clean_start"] = clean
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry or 0
            options["properties"] = properties
        self.mqtt.connect("localhost", PORT, 30, **options)
        self.mqtt.loop_start()
        self.flags, code, self.properties = self.connected.get(timeout=LONGEST_S)
        assert not code.is_failure, code

    def subscribe(self, filter, qos):
        self.mqtt.subscribe(filter, qos)
        codes = self.subscribed.get(timeout=LONGEST_S)
        assert not any(code.is_failure for code in codes), codes

    def publish(self, topic, payload, qos, retain=False, properties=None):
        self.mqtt.publish(topic, payload, qos, retain, properties).wait_for_publish(LONGEST_S)

    def next(self):
        return self.messages.get(timeout=LONGEST_S)

    def leave(self):
        self.mqtt.disconnect()
        self.mqtt.loop_stop()

    def vanish(self):
        """Without a word: the socket is closed, as when a device loses its power."""
        self.mqtt.loop_stop()
        self.mqtt.socket().close()


def exchange(version):
    """Each quality of service, small and large, in order."""
    subscriber, publisher = Client("", version), Client("", version)
    for qos in (0, 1, 2):
        topic = f"{HOME}/{qos}"
        subscriber.subscribe(topic, qos)
        payloads = [bytes([qos]) * size for size in (0, 1, 3000, 70_000, 300_000, 5)]
        # One at a time: large messages may be overtaken by small ones of other topics, not of their own.
        for payload in payloads:
            publisher.publish(topic, payload, qos)
        for payload in payloads:
            message = subscriber.next()
            assert (message.qos, message.topic, message.payload) == (qos, topic, payload), message.topic
    subscriber.leave()
    publisher.leave()


def retained(version):
    publisher = Client("", version)
    publisher.publish(f"{HOME}/kept", b"yes", 1, retain=True)
    reader = Client("", version)
    reader.subscribe(f"{HOME}/+", 1)
    message = reader.next()
    assert message.retain and message.payload == b"yes"
    publisher.publish(f"{HOME}/kept", b"", 1, retain=True)
    assert not reader.next().retain
    other = Client("", version)
    other.subscribe(f"{HOME}/kept", 1)
    time.sleep(0.2)
    assert other.messages.empty(), "a message that was taken back is not sent"
    for client in (publisher, reader, other):
        client.leave()


def sessions(version):
    """A message that is missed while away arrives on return, in order, and nothing twice."""
    name = f"paho-session-{version}-{TRANSPORT}"
    first = Client(name, version, clean=False, expiry=60)
    first.subscribe(f"{HOME}/away/#", 2)
    first.leave()
    publisher = Client("", version)
    sent = [f"{qos}{n}" for n in range(20) for qos in (1, 2)]
    for text in sent:
        publisher.publish(f"{HOME}/away/x", text, int(text[0]))
    again = Client(name, version, clean=False, expiry=60)
    # MQTT 3.1 has no word for it.
    assert again.flags.session_present or version == mqtt.MQTTv31
    got = [again.next().payload.decode() for _ in sent]
    # The order holds for each quality of service; this client shows QoS 2 once it is released.
    for qos in "12":
        assert [text for text in got if text[0] == qos] == [text for text in sent if text[0] == qos]
    again.leave()
    last = Client(name, version, clean=True)
    assert not last.flags.session_present
    for client in (publisher, last):
        client.leave()


def wills(version):
    watcher = Client("", version)
    watcher.subscribe(f"{HOME}/will", 1)
    doomed = Client("", version, will=(f"{HOME}/will", b"gone", 1, False))
    doomed.vanish()
    assert watcher.next().payload == b"gone"
    polite = Client("", version, will=(f"{HOME}/will", b"never", 1, False))
    polite.leave()
    time.sleep(0.2)
    assert watcher.messages.empty(), "who says goodbye leaves no will"
    watcher.leave()


def takeover(version):
    name = f"paho-twice-{version}-{TRANSPORT}"
    first = Client(name, version)
    first.mqtt.reconnect_delay_set(60, 60)
    second = Client(name, version)
    code = first.disconnected.get(timeout=LONGEST_S)
    if version == mqtt.MQTTv5:
        assert code.value == 0x8E, code
    second.leave()
    first.mqtt.loop_stop()


def version_5():
    """Features that only MQTT 5 has."""
    subscriber = Client("", mqtt.MQTTv5)
    assert subscriber.properties.AssignedClientIdentifier
    subscriber.mqtt.subscribe(f"{HOME}/five/#", options=SubscribeOptions(qos=1, noLocal=True))
    subscriber.subscribed.get(timeout=LONGEST_S)
    publisher = Client("", mqtt.MQTTv5)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("a", "1"), ("a", "2")]
    properties.ContentType = "text/plain"
    properties.ResponseTopic = f"{HOME}/answer"
    properties.CorrelationData = b"\x01\x02"
    properties.MessageExpiryInterval = 60
    properties.TopicAlias = 3
    subscriber.publish(f"{HOME}/five/own", b"not this one", 1)
    publisher.publish(f"{HOME}/five/x", b"text", 1, properties=properties)
    message = subscriber.next()
    assert message.topic == f"{HOME}/five/x", message.topic
    got = message.properties
    assert got.UserProperty == [("a", "1"), ("a", "2")]
    assert (got.ContentType, got.ResponseTopic) == ("text/plain", f"{HOME}/answer")
    assert got.CorrelationData == b"\x01\x02" and 55 <= got.MessageExpiryInterval <= 60
    # Shared: each message goes to one of them.
    pair = [Client("", mqtt.MQTTv5) for _ in range(2)]
    for client in pair:
        client.subscribe(f"$share/g/{HOME}/shared", 1)
    for n in range(10):
        publisher.publish(f"{HOME}/shared", str(n), 1)
    deadline = time.monotonic() + LONGEST_S
    while sum(client.messages.qsize() for client in pair) < 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert [client.messages.qsize() for client in pair] == [5, 5]
    for client in (subscriber, publisher, *pair):
        client.leave()


for version in (mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5):
    for check in (exchange, retained, sessions, wills, takeover):
        check(version)
        print(check.__name__, version, flush=True)
version_5()
print("ok")
