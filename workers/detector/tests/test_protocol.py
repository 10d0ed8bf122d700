"""The protocol against a detector that knows no images. Needs nothing but the standard library."""

import io
import json
import socket
import struct
import threading
import unittest

from tidegate_detector import protocol
from tidegate_detector.protocol import Box, FrameError, ProtocolError, Size


class Echo:
    name = "echo"
    needs_background = True

    def __init__(self):
        self.learnt = []

    def begin_scene(self, source):
        self.source = source
        return Size(source.width // 2, source.height // 2)

    def learn(self, jpeg):
        self.learnt.append(jpeg)

    def detect(self, jpeg):
        if not jpeg:
            raise FrameError("0 bytes are not an image")
        return [Box(0.0, 1.0, float(len(jpeg)), 4.0, 0.5, "thing")]


class Framing(unittest.TestCase):
    def test_messages_round_trip(self):
        for head, payload in [({}, b""), ({"id": 7, "type": "detect"}, b"\xff\xd8"), ({"a": "ü"}, b"x" * 70_000)]:
            stream = io.BytesIO()
            protocol.write_message(stream, head, payload)
            stream.seek(0)
            self.assertEqual(protocol.read_message(stream), (head, payload))
            self.assertIsNone(protocol.read_message(stream))

    def test_bytes_that_are_no_message_are_refused(self):
        for data in [
            b"\0\0\0",
            struct.pack(">II", 5, 0) + b"{}",
            struct.pack(">II", 2, 9) + b"{}abc",
            struct.pack(">II", 2**31, 0),
            struct.pack(">II", 2, 2**31) + b"{}",
            struct.pack(">II", 2, 0) + b"{]",
            struct.pack(">II", 2, 0) + b"[]",
        ]:
            with self.assertRaises(ProtocolError, msg=data):
                protocol.read_message(io.BytesIO(data))


class Serving(unittest.TestCase):
    def setUp(self):
        ours, theirs = socket.socketpair()
        self.detector = Echo()
        self.thread = threading.Thread(target=protocol.serve, args=(theirs, self.detector))
        self.thread.start()
        self.socket = ours
        self.stream = ours.makefile("rwb")
        self.hello, _ = protocol.read_message(self.stream)

    def tearDown(self):
        self.stream.close()
        self.socket.close()
        self.thread.join(10)
        self.assertFalse(self.thread.is_alive(), "the worker ends when the socket closes")

    def ask(self, head, payload=b""):
        protocol.write_message(self.stream, head, payload)
        return protocol.read_message(self.stream)[0]

    def test_hello_names_the_detector_and_the_version(self):
        self.assertEqual(self.hello, {"type": "hello", "protocol": 1, "detector": "echo", "background": True})

    def test_a_scene_is_begun_learnt_and_looked_at(self):
        self.assertEqual(self.ask({"id": 1, "type": "scene", "source": [64, 48]}), {"id": 1, "input": [32, 24]})
        self.assertEqual(self.ask({"id": 2, "type": "background"}, b"ab"), {"id": 2})
        self.assertEqual(self.detector.learnt, [b"ab"])
        found = self.ask({"id": 3, "type": "detect"}, b"abc")
        self.assertEqual((found["id"], found["boxes"]), (3, [[0.0, 1.0, 3.0, 4.0, 0.5, "thing"]]))
        self.assertGreaterEqual(found["took_ms"], 0)

    def test_a_request_that_fails_is_answered_and_the_next_works(self):
        for head in [
            {"id": 4, "type": "detect"},
            {"id": 5, "type": "paint"},
            {"id": 6, "type": "scene"},
            {"id": 7, "type": "scene", "source": [0, 5]},
            {"id": 8, "type": "scene", "source": "wide"},
        ]:
            reply = self.ask(head)
            self.assertEqual(reply["id"], head["id"])
            self.assertTrue(reply["error"], head)
        self.assertEqual(self.ask({"id": 9, "type": "background"}, b"x"), {"id": 9})


class DocumentedExample(unittest.TestCase):
    def test_json_is_compact_and_has_no_unserializable_number(self):
        stream = io.BytesIO()
        protocol.write_message(stream, {"boxes": [list(Box(1.0, 2.0, 3.0, 4.0, 0.5, "a"))]})
        self.assertEqual(json.loads(stream.getvalue()[8:])["boxes"], [[1.0, 2.0, 3.0, 4.0, 0.5, "a"]])


if __name__ == "__main__":
    unittest.main()
