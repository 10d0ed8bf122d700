"""The protocol against a detector that knows no images. Needs nothing but the standard library."""

import contextlib
import io
import json
import os
import socket
import struct
import threading
import unittest

from tidegate_detector import protocol, server
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
        serve = server.Server({"echo": lambda: self.detector}).serve
        self.thread = threading.Thread(target=serve, args=(theirs,))
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
        expected = {"type": "hello", "protocol": 2, "detector": "echo", "background": True, "memory": True}
        self.assertEqual({field: self.hello[field] for field in expected}, expected)
        self.assertEqual(self.hello["models"], [{"name": "echo", "kind": "detection"}])
        self.assertLessEqual(self.hello["batch"], self.hello["in_flight"])

    def test_a_scene_is_begun_learnt_and_looked_at(self):
        self.assertEqual(self.ask({"id": 1, "type": "scene", "source": [64, 48]}), {"id": 1, "input": [32, 24]})
        self.assertEqual(self.ask({"id": 2, "type": "background"}, b"ab"), {"id": 2})
        self.assertEqual(self.detector.learnt, [b"ab"])
        found = self.ask({"id": 3, "type": "detect"}, b"abc")
        self.assertEqual((found["id"], found["boxes"]), (3, [[0.0, 1.0, 3.0, 4.0, 0.5, "thing"]]))
        self.assertGreaterEqual(found["took_ms"], 0)

    def test_images_that_are_looked_at_one_by_one_are_answered_one_by_one(self):
        self.ask({"id": 1, "type": "scene", "source": [64, 48]})
        answered, look = threading.Event(), self.detector.detect

        def wait(image):
            if image == b"second" and not answered.wait(10):
                raise FrameError("the first was not answered before the second was looked at")
            return look(image)

        self.detector.detect = wait
        for id, image in [(2, b"first"), (3, b"second")]:
            protocol.write_message(self.stream, {"id": id, "type": "detect", "more": id < 3}, image)
        self.assertEqual(protocol.read_message(self.stream)[0]["id"], 2)
        answered.set()
        second = protocol.read_message(self.stream)[0]
        self.assertEqual((second["id"], len(second["boxes"])), (3, 1))

    def test_a_request_that_fails_is_answered_and_the_next_works(self):
        for head in [
            {"id": 4, "type": "detect"},
            {"id": 5, "type": "paint"},
            {"id": 6, "type": "scene"},
            {"id": 7, "type": "scene", "source": [0, 5]},
            {"id": 8, "type": "scene", "source": "wide"},
            {"id": 10, "type": "detect", "scene": 9},
            {"id": 11, "type": "detect", "scene": "x"},
            {"id": 12, "type": "detect", "model": "none"},
            {"id": 13, "type": "detect", "offset": 0, "bytes": 4},
            {"id": 14, "type": "memory", "bytes": 4096},
            {"id": 15, "type": "load", "name": "mine", "path": "/mine.onnx"},
            {"id": 16, "type": "unload", "name": "echo"},
            {"id": 17, "type": "train", "model": "echo", "subject": "Ann"},
        ]:
            reply = self.ask(head)
            self.assertEqual(reply["id"], head["id"])
            self.assertTrue(reply["error"], head)
        self.assertIn("no scene", self.ask({"id": 9, "type": "background"}, b"x")["error"])
        self.ask({"id": 20, "type": "scene", "source": [8, 8]})
        self.assertEqual(self.ask({"id": 9, "type": "background"}, b"x"), {"id": 9})

    def test_scenes_are_kept_by_their_use(self):
        for scene in range(1, server.SCENES_MAX + 2):
            self.ask({"id": scene, "type": "scene", "scene": scene, "source": [8, 8]})
            if scene > 1:
                self.assertIn("boxes", self.ask({"id": 99, "type": "detect", "scene": 1}, b"x"))
        self.assertIn("no scene", self.ask({"id": 99, "type": "detect", "scene": 2}, b"x")["error"])
        self.assertIn("boxes", self.ask({"id": 99, "type": "detect", "scene": 1}, b"x"))

    def test_images_are_read_from_shared_memory(self):
        memory = os.memfd_create("test")
        os.write(memory, b"....abcdef")
        text = json.dumps({"id": 1, "type": "memory", "bytes": 10}).encode()
        socket.send_fds(self.socket, [struct.pack(">II", len(text), 0) + text], [memory])
        self.assertEqual(protocol.read_message(self.stream)[0], {"id": 1})
        self.ask({"id": 2, "type": "scene", "scene": 5, "source": [8, 8]})
        found = self.ask({"id": 3, "type": "detect", "scene": 5, "offset": 4, "bytes": 6})
        self.assertEqual(found["boxes"][0][2], 6.0)
        outside = self.ask({"id": 4, "type": "detect", "scene": 5, "offset": 4, "bytes": 7})
        self.assertIn("outside", outside["error"])
        os.close(memory)

    def test_a_batch_is_answered_when_its_last_has_come(self):
        self.ask({"id": 1, "type": "scene", "scene": 5, "source": [8, 8]})
        for id in (2, 3):
            protocol.write_message(self.stream, {"id": id, "type": "detect", "scene": 5, "more": True}, b"x")
        self.socket.settimeout(0.2)
        with self.assertRaises(TimeoutError):
            self.socket.recv(1)
        self.socket.settimeout(None)
        stream = self.socket.makefile("rb")
        protocol.write_message(self.stream, {"id": 4, "type": "detect", "scene": 5}, b"")
        replies = [protocol.read_message(stream)[0] for _ in range(3)]
        self.assertEqual([reply["id"] for reply in replies], [2, 3, 4])
        self.assertIn("error", replies[2], "the others of its batch are answered nevertheless")
        self.assertIn("boxes", replies[0])

    def test_whatever_a_detector_raises_fails_its_request_alone(self):
        def fails(*_):
            raise error

        self.ask({"id": 1, "type": "scene", "scene": 5, "source": [8, 8]})
        with contextlib.redirect_stderr(io.StringIO()) as said:
            for error in (MemoryError("73 GB"), ValueError("a shape"), OSError("no disk"), FrameError("no face")):
                self.detector.detect = self.detector.learn = fails
                for kind in ("detect", "background"):
                    answer = self.ask({"id": 2, "type": kind, "scene": 5}, b"x")
                    self.assertIn(str(error), answer["error"])
                del self.detector.detect, self.detector.learn
                self.assertIn("boxes", self.ask({"id": 3, "type": "detect", "scene": 5}, b"x"))
        self.assertIn("in fails", said.getvalue(), "the operator is shown where it was raised")
        self.assertNotIn("no face", said.getvalue())

    def test_an_image_that_fails_in_a_batch_fails_alone(self):
        def detect_many(images, sizes):
            if b"bad" in images:
                raise MemoryError("no room")
            return [[Box(0.0, 0.0, 1.0, 1.0, 1.0, "thing")] for _ in images]

        self.detector.detect_many = detect_many
        self.ask({"id": 1, "type": "scene", "scene": 5, "source": [8, 8]})
        with contextlib.redirect_stderr(io.StringIO()):
            for id, image in enumerate([b"good", b"bad", b"fine"]):
                protocol.write_message(self.stream, {"id": id, "type": "detect", "scene": 5, "more": id < 2}, image)
            first, broken, last = (protocol.read_message(self.stream)[0] for _ in range(3))
        self.assertIn("no room", broken["error"])
        self.assertTrue("boxes" in first and "boxes" in last)

    def test_an_answer_that_cannot_be_sent_is_a_refusal(self):
        self.ask({"id": 1, "type": "scene", "scene": 5, "source": [8, 8]})
        for label, words in [("a" * (1 << 20), "bytes of JSON and may have 1048576"), (b"bytes", "no form for")]:
            self.detector.detect = lambda image, label=label: [Box(0.0, 0.0, 1.0, 1.0, 1.0, label)]
            self.assertIn(words, self.ask({"id": 2, "type": "detect", "scene": 5}, b"x")["error"])

    def test_a_number_that_json_has_not_is_refused(self):
        self.ask({"id": 1, "type": "scene", "scene": 5, "source": [8, 8]})
        self.detector.detect = lambda image: [Box(float("nan"), 0.0, 1.0, 1.0, 1.0, "thing")]
        self.assertIn("not finite", self.ask({"id": 2, "type": "detect", "scene": 5}, b"x")["error"])


class DocumentedExample(unittest.TestCase):
    def test_json_is_compact_and_has_no_unserializable_number(self):
        stream = io.BytesIO()
        protocol.write_message(stream, {"boxes": [list(Box(1.0, 2.0, 3.0, 4.0, 0.5, "a"))]})
        self.assertEqual(json.loads(stream.getvalue()[8:])["boxes"], [[1.0, 2.0, 3.0, 4.0, 0.5, "a"]])


if __name__ == "__main__":
    unittest.main()
