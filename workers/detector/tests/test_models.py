"""Images that are bad, models of the user's, and faces that are taught. Skipped, with a word, where libraries are missing."""

import json
import os
import shutil
import struct
import tempfile
import unittest
import unittest.mock
import zlib
from urllib.parse import quote

from tidegate_detector.protocol import FrameError, Size

try:
    import cv2
    import numpy as np
    import onnxruntime  # noqa: F401

    cv2.face.LBPHFaceRecognizer_create  # noqa: B018
    from tidegate_detector import onnx
    from tidegate_detector.face import Face
    from tidegate_detector.image import PIXELS_MAX, SCANS_MAX, Picture
    from tidegate_detector.recognize import DISTANCE_MAX, IMAGES_MAX, UNKNOWN, Known, Recognize
    from tidegate_detector.server import Server
except (ImportError, AttributeError) as error:
    raise unittest.SkipTest(f"{error}: run workers/detector/setup.sh to test models and faces") from error

from .test_detectors import jpeg, with_face
from .tiny_onnx import answers, external, field, mean_colour, model, node

cv2.setNumThreads(1)
SOURCE = Size(640, 480)


def png_header(width, height):
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + head + struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))


class BadImageTest(unittest.TestCase):
    def refused(self, data, words):
        with self.assertRaisesRegex(FrameError, words):
            Picture(data).pixels(gray=False)

    def test_a_bomb_is_refused_by_its_header(self):
        # 200 million pixels; a JPEG that says so has no more bytes than its small original.
        self.refused(png_header(20_000, 10_000), "20000x10000 pixels")
        small = jpeg(np.full((48, 64, 3), 90, np.uint8))
        at = small.index(b"\xff\xc0") + 5
        self.refused(small[:at] + struct.pack(">HH", 10_000, 20_000) + small[at + 4 :], "20000x10000 pixels")
        self.assertLess(PIXELS_MAX, 200_000_000)

    def test_a_side_that_no_answer_can_name_is_refused(self):
        self.refused(png_header(70_000, 1), "70000x1 pixels.*sides of 1 to 65535")
        self.refused(png_header(1, 65_536), "1x65536 pixels")
        with self.assertRaisesRegex(FrameError, "70000x1 pixels"):
            Picture(bytes(70_000), [1, 70_000, 1]).pixels(gray=True)

    def test_a_jpeg_of_too_many_scans_is_refused(self):
        image = cv2.resize(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), (64, 48))
        whole = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
        self.assertEqual(Picture(whole).size, Size(64, 48))
        start = whole.rindex(b"\xff\xda")
        last = whole[start:-2]
        for more, fine in [(SCANS_MAX - whole.count(b"\xff\xda"), True), (SCANS_MAX, False)]:
            many = whole[:start] + last * (more + 1) + whole[-2:]
            if fine:
                self.assertEqual(Picture(many).size, Size(64, 48))
            else:
                self.refused(many, "more than 100 scans")

    def test_pixels_are_decoded_once_and_not_kept(self):
        decoded, kept = [], []

        class Counted(Picture):
            def _decode(self, gray):
                decoded.append(gray)
                kept.append(sum(bool(picture._pixels) for picture in pictures))
                return super()._decode(gray)

        def picture(data, shape):
            pictures.append(Counted(data, shape))
            return pictures[-1]

        pictures = []
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(f"{folder.name}/m.onnx", "wb") as file:
            file.write(mean_colour(8))
        with open(f"{folder.name}/m.json", "w", encoding="utf-8") as file:
            json.dump({"format": "classification", "width": 8, "height": 8}, file)
        server = Server({"face": Face}, picture, onnx.load)
        self.assertEqual(server._add({"name": "m", "path": f"{folder.name}/m.onnx"}), {})
        wall = jpeg(np.full((48, 64, 3), 90, np.uint8))
        for model, gray in [("face", True), ("m", False)]:
            decoded.clear(), kept.clear(), pictures.clear()
            answers = list(server._detect([({"id": at, "type": "detect", "model": model}, wall) for at in range(4)]))
            self.assertEqual([answer.get("size") for answer in answers], [[64, 48]] * 4, answers)
            self.assertEqual((decoded, kept), ([gray] * 4, [0] * 4), model)

    def test_files_that_are_no_images_are_named(self):
        self.refused(b"%PDF-1.7 and more", "a PDF document.*send JPEG or PNG")
        self.refused(b"", "not an image")
        self.refused(b"GIF89a" + bytes(50), "begin with 47494638")
        self.refused(b"\xff\xd8\xff\xd9", "not an image")
        self.refused(b"\x89PNG\r\n\x1a\n", "not an image")
        self.refused(png_header(8, 8), "not an image that can be decoded")

    def test_every_cut_of_an_image_is_refused(self):
        image = cv2.resize(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), (64, 48))
        for whole in (jpeg(image), cv2.imencode(".png", image)[1].tobytes()):
            self.assertEqual(Picture(whole).pixels(False).shape, (48, 64, 3))
            for length in range(0, len(whole) - 1, 7):
                self.refused(whole[:length], "cut off|not an image")

    def test_one_pixel_and_bytes_behind_the_end_are_fine(self):
        one = np.full((1, 1, 3), 50, np.uint8)
        self.assertEqual(Picture(jpeg(one) + b"camera's own words").size, Size(1, 1))
        whole = cv2.imencode(".png", one)[1].tobytes()
        self.assertEqual(Picture(whole + b"camera's own words").size, Size(1, 1))
        self.assertEqual(Picture(whole + b"\0").size, Size(1, 1))
        # Letters within a chunk are no end.
        text = b"tEXtIEND0000"
        chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
        self.refused(whole[:33] + chunk[:-4], "cut off")
        self.assertEqual(Picture(bytes([1, 2, 3]), [1, 1, 3]).pixels(gray=True).shape, (1, 1))

    def test_pixels_are_of_their_shape(self):
        for data, shape in [(bytes(5), [1, 2, 3]), (bytes(4), [1, 2, 2]), (b"", [0, 1, 3]), (bytes(3), "wide"), (bytes(3), [3])]:
            with self.assertRaises(FrameError, msg=shape):
                Picture(data, shape).pixels(gray=False)
        gray = Picture(bytes(range(6)), [2, 3, 1])
        self.assertEqual(gray.pixels(gray=False)[1, 2].tolist(), [5, 5, 5])


class ModelTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, data, **description):
        path = os.path.join(self.folder.name, "tiny.onnx")
        with open(path, "wb") as file:
            file.write(data)
        with open(path[:-5] + ".json", "w", encoding="utf-8") as file:
            json.dump(description, file)
        return path

    def detector(self, data, source=SOURCE, **description):
        detector = onnx.load("tiny", self.write(data, **description))()
        detector.begin_scene(source)
        return detector

    def picture(self, colour=(10, 20, 30)):
        return Picture(jpeg(np.full((480, 640, 3), colour, np.uint8), 100))

    def refused(self, data, words, **description):
        with self.assertRaisesRegex(FrameError, words):
            onnx.load("tiny", self.write(data, **description))

    def test_a_classifier_sees_the_colours_that_it_declared(self):
        labels = ["first", "second", "third"]
        told = {"format": "classification", "width": 8, "height": 8, "fit": "stretch", "labels": labels}
        for colour, scale, best in [("rgb", 1, "third"), ("bgr", 1, "first")]:
            found = self.detector(mean_colour(8), colour=colour, scale=scale, **told).detect(self.picture((200, 20, 30)))
            self.assertEqual(found.classes[0][1], best)
            self.assertAlmostEqual(found.classes[0][0], 200, delta=2)
        normal = self.detector(mean_colour(8), mean=[0.5], std=[0.25], **told).detect(self.picture((128, 128, 128)))
        self.assertAlmostEqual(normal.classes[0][0], 0, delta=0.05)
        soft = self.detector(mean_colour(8), softmax=True, **told).detect(self.picture())
        self.assertAlmostEqual(sum(score for score, _ in soft.classes), 1, places=4)

    def test_boxes_come_back_in_pixels_of_the_source(self):
        # The source is letterboxed into a square of 320: half its size, with 40 rows above and below.
        yolo8 = np.zeros((1, 6, 8))
        yolo8[0, :, 0] = [100, 100, 50, 40, 0.1, 0.9]
        yolo8[0, :, 1] = [102, 101, 50, 40, 0.1, 0.8]  # the same thing again
        yolo8[0, :, 2] = [102, 101, 50, 40, 0.7, 0.0]  # another class there
        yolo8[0, :, 3] = [10, 100, 5, 5, 0.2, 0.2]  # too unsure
        yolo5 = np.zeros((1, 8, 7))
        yolo5[0, 0] = [100, 100, 50, 40, 0.9, 0.0, 1.0]
        yolo5[0, 1] = [102, 101, 50, 40, 0.7, 1.0, 0.0]
        end2end = np.zeros((1, 5, 6))
        end2end[0, :2] = [[75, 80, 125, 120, 0.9, 1], [77, 81, 127, 121, 0.7, 0]]
        for kind, output in [("yolov8", yolo8), ("yolov5", yolo5), ("end2end", end2end)]:
            told = {"format": kind, "width": 320, "height": 320, "labels": ["cat", "dog"]}
            found = self.detector(answers(output, [1, 3, 320, 320]), **told).detect(self.picture())
            self.assertEqual([box.label for box in found.boxes], ["dog", "cat"], kind)
            self.assertEqual(found.boxes[0][:4], (150.0, 80.0, 250.0, 160.0), kind)
            self.assertAlmostEqual(found.boxes[0].score, 0.9, places=3)

    def test_boxes_by_named_outputs_and_stretched(self):
        constants = [("b", [[[0.25, 0.5, 0.5, 1.5]]]), ("s", [[0.75]]), ("l", [[1.0]])]
        constants = [(name, np.array(array, np.float32)) for name, array in constants]
        nodes = [node("Identity", [name], [name + "_out"]) for name, _ in constants]
        outputs = [(name + "_out", array.shape) for name, array in constants]
        names = {"labels": "l_out", "scores": "s_out", "boxes": "b_out"}
        told = {"format": "boxes", "width": 32, "height": 32, "fit": "stretch", "normalized": True, "outputs": names}
        found = self.detector(model(nodes, [1, 3, 32, 32], outputs, constants), **told).detect(self.picture())
        self.assertEqual(found.boxes, [(160.0, 240.0, 320.0, 480.0, 0.75, "class 1")])

    def test_poses_have_their_points(self):
        output = np.zeros((1, 11, 4))
        output[0, :, 0] = [100, 100, 50, 40, 0.9, 90, 90, 1.0, 110, 110, 0.5]
        told = {"format": "yolov8-pose", "width": 320, "height": 320, "points": 2}
        found = self.detector(answers(output, [1, 3, 320, 320]), **told).detect(self.picture())
        self.assertEqual(found.boxes[0].label, "person")
        self.assertEqual(found.poses, [[(180.0, 100.0, 1.0), (220.0, 140.0, 0.5)]])

    def test_bad_outputs_are_refused_before_a_model_goes_live(self):
        shape = [1, 3, 32, 32]
        told = {"width": 32, "height": 32, "labels": ["cat"]}
        self.refused(answers(np.full((1, 5, 3), np.nan), shape), "not finite", format="yolov8", **told)
        self.refused(answers(np.full((1, 5, 3), np.inf), shape), "not finite", format="yolov8", **told)
        self.refused(answers(np.zeros((1, 7, 3)), shape), "1?7x3 values.*needs 5xN", format="yolov8", **told)
        self.refused(answers(np.zeros((1, 7)), shape), "yolov8 needs", format="yolov8", **told)
        self.refused(answers(np.zeros((2, 5, 3)), shape), "1 first", format="yolov8", **told)
        self.refused(answers(np.zeros((1, 3, 5)), shape), "needs Nx6", format="end2end", **told)
        self.refused(answers(np.zeros((1, 2)), shape), "1 values, one for each label", format="classification", **told)
        self.refused(answers(np.zeros((1, 5, 3)), [1, 3, 8, 8]), "cannot look at its input", format="yolov8", **told)

    def test_bad_files_and_descriptions_are_named(self):
        good = answers(np.zeros((1, 5, 3)), [1, 3, 32, 32])
        told = {"format": "yolov8", "width": 32, "height": 32}
        self.refused(b"no model", "cannot be loaded", **told)
        self.refused(b"", "cannot be loaded", **told)
        self.refused(good[:-20], "cannot be loaded", **told)
        self.refused(good, "format must be one of", **{**told, "format": "yolo"})
        self.refused(good, "width must be a whole number", **{**told, "width": 0})
        self.refused(good, "unknown field 'hight'", hight=3, **told)
        self.refused(good, "std must not be zero", std=[0], **told)
        self.refused(good, "labels must be a list", labels="cat", **told)
        self.refused(good, "has no NoSuchProvider", providers=["NoSuchProvider"], **told)
        self.refused(good, "outputs must name", outputs={"boxes": "b"}, **told)
        with self.assertRaisesRegex(FrameError, "must end in .onnx"):
            onnx.load("tiny", "/models/tiny.pt")
        path = self.write(good, **told)
        os.remove(path[:-5] + ".json")
        with self.assertRaisesRegex(FrameError, "says what the model takes"):
            onnx.load("tiny", path)

    def test_a_model_reads_no_file_outside_its_folder(self):
        inner = os.path.join(self.folder.name, "models")
        os.mkdir(inner)
        for place in (self.folder.name, inner):
            with open(os.path.join(place, "weights"), "wb") as file:
                file.write(np.full(15, 0.5, np.float32).tobytes())
        os.symlink(os.path.join(self.folder.name, "weights"), os.path.join(inner, "linked"))
        os.mkdir(os.path.join(inner, "folder"))
        path, told = os.path.join(inner, "tiny.onnx"), {"format": "yolov8", "width": 32, "height": 32}
        with open(path[:-5] + ".json", "w", encoding="utf-8") as file:
            json.dump(told, file)

        def load(data):
            with open(path, "wb") as file:
                file.write(data)
            return onnx.load("tiny", path)

        def initializer(location):
            shape = (1, 5, 3)
            nodes = [node("Identity", ["array"], ["found"])]
            return model(nodes, [1, 3, 32, 32], [("found", shape)], [("array", external("array", shape, location))])

        load(initializer("weights"))
        load(initializer("./weights"))
        outside = ["../weights", "linked", "/etc/passwd", os.path.join(inner, "weights"), "none", "folder", "", "a/../../weights", "w\0"]
        for location in outside:
            with self.assertRaisesRegex(FrameError, "no file in the folder of the model", msg=location):
                load(initializer(location))
        # A tensor may lie in the attribute of a node, in a graph within one, in a sparse tensor, in a function and in a part for training.
        good, bad = answers(np.zeros((1, 5, 3)), [1, 3, 32, 32]), external("x", (1,), "../weights")
        attribute = field(1, field(5, field(1, "value") + field(5, bad)))
        places = {
            "attribute": field(7, attribute),
            "graph": field(7, field(1, field(5, field(6, attribute)))),
            "graphs": field(7, field(1, field(5, field(11, field(5, bad))))),
            "tensors": field(7, field(1, field(5, field(10, bad)))),
            "sparse": field(7, field(15, field(1, bad))),
            "indices": field(7, field(1, field(5, field(23, field(2, bad))))),
            "function": field(25, field(7, field(5, field(5, bad)))),
            "default of a function": field(25, field(11, field(5, bad))),
            "training": field(20, field(1, field(5, bad))),
            "two values": field(7, field(5, field(13, field(1, "location") + field(2, "../weights") + field(2, "weights")))),
            "the value first": field(7, field(5, field(13, field(2, "../weights") + field(1, "location")))),
            "a long tag": b"\xba\x80\x00" + field(7, field(5, bad))[1:],
        }
        for place, data in places.items():
            with self.assertRaisesRegex(FrameError, '"../weights", which is no file in the folder', msg=place):
                load(good + data)
        deep = field(5, bad)
        for _ in range(60):
            deep = field(1, field(5, field(6, deep)))
        for data in (field(7, deep), b"\x3b", b"\x3a\x7f", b"\x00", b"\x80" * 11):
            with self.assertRaisesRegex(FrameError, "cannot be loaded", msg=data[:9]):
                load(good + data)

    def test_a_model_with_many_boxes_gives_the_best(self):
        output = np.zeros((1, 3000, 6))
        output[0] = [[0, 0, 5, 5, (at + 1) / 3001, 0] for at in range(3000)]
        told = {"format": "end2end", "width": 32, "height": 32, "score_min": 0}
        found = self.detector(answers(output, [1, 3, 32, 32]), **told).detect(self.picture())
        self.assertEqual(len(found.boxes), onnx.FOUND_MAX)
        self.assertAlmostEqual(found.boxes[0].score, 3000 / 3001, places=3)

    def test_images_of_a_batch_are_looked_at_together_and_fail_alone(self):
        told = {"format": "classification", "width": 8, "height": 8, "fit": "stretch", "colour": "bgr", "scale": 1}
        for batch in ("N", 1):
            detector = self.detector(mean_colour(8, batch), **told)
            pictures = [self.picture((200, 0, 0)), Picture(b"no image"), self.picture((0, 200, 0))]
            first, broken, last = detector.detect_many(pictures, [SOURCE] * 3)
            self.assertEqual((first.classes[0][1], last.classes[0][1]), ("class 0", "class 1"))
            self.assertIsInstance(broken, FrameError)
            self.assertEqual(detector._model.batches, batch == "N")


class FacesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def face(self, radius, noise):
        wall = with_face(np.full((480, 640, 3), 110, np.uint8), 320, 240, radius)
        if noise:
            cv2.ellipse(wall, (320, 240 + radius * 5 // 8), (radius // 3, radius // 8), 0, 0, 360, (20, 20, 30), -1)
        return Picture(jpeg(wall))

    def recognizer(self):
        recognizer = Recognize(Known(self.folder.name))
        recognizer.begin_scene(SOURCE)
        return recognizer

    def test_a_face_that_was_taught_is_known_to_every_worker_and_after_a_restart(self):
        one, other = self.recognizer(), self.recognizer()
        with self.assertRaisesRegex(FrameError, "no face is known yet"):
            one.detect(self.face(90, False))
        self.assertEqual(one.train("Ann", self.face(90, False)), 1)
        (box, *_) = other.detect(self.face(90, False))
        self.assertEqual((box.label, box.score), ("Ann", 0.0))
        self.assertEqual(other.train("../Bo/b", self.face(90, True)), 2)
        self.assertEqual(self.recognizer().detect(self.face(90, True))[0].label, "../Bo/b")
        self.assertEqual(one.detect(self.face(90, False))[0].label, "Ann")
        self.assertEqual(os.listdir(self.folder.name), ["faces"], "a subject is no path")

    def test_a_lesson_costs_other_workers_only_itself(self):
        self.assertLessEqual(IMAGES_MAX * (64 << 10), 64 << 20, "histograms in the memory of each worker")
        one, other = Known(self.folder.name), Known(self.folder.name)
        for step in range(1, 5):
            one.add(f"Ann {step % 2}", np.full((100, 100), 20 * step, np.uint8))
            with unittest.mock.patch("cv2.imread", wraps=cv2.imread) as read:
                other.nearest(np.full((100, 100), 20, np.uint8))
            self.assertEqual((read.call_count, other.images), (1, step))
        shutil.rmtree(f"{self.folder.name}/faces/{quote('Ann 1')}")
        noise = np.random.default_rng(3).integers(0, 255, (100, 100), np.uint8)
        other.add("Bo", noise)
        self.assertEqual((other.nearest(noise), other.images), (("Bo", 0.0), 3))
        self.assertNotIn("Ann 1", other._names, "a folder that is removed is a name that is forgotten")

    def test_a_folder_that_goes_or_cannot_be_read_ends_no_worker(self):
        known, face = Known(self.folder.name), np.full((100, 100), 90, np.uint8)
        known.add("Ann", face)
        listdir = os.listdir
        for error, words in [(FileNotFoundError(2, "gone"), "no face is known"), (PermissionError(13, "denied"), "cannot be read.*denied")]:

            def fails(path, error=error):
                if "Ann" in str(path):
                    raise error
                return listdir(path)

            with unittest.mock.patch("os.listdir", fails), self.assertRaisesRegex(FrameError, words):
                known.nearest(face)
        self.assertEqual(known.nearest(face)[0], "Ann")

    def test_a_face_that_is_far_from_all_is_unknown(self):
        known = Known(self.folder.name)
        known.add("Ann", np.full((100, 100), 90, np.uint8))
        noise = np.random.default_rng(3).integers(0, 255, (100, 100), np.uint8)
        name, distance = known.nearest(noise)
        self.assertGreater(distance, DISTANCE_MAX)
        self.assertEqual(name, UNKNOWN)

    def test_lessons_that_cannot_be_kept_are_named(self):
        recognizer = self.recognizer()
        with self.assertRaisesRegex(FrameError, "no face in the image"):
            recognizer.train("Ann", Picture(jpeg(np.full((480, 640, 3), 110, np.uint8))))
        for subject in ("", " ", "a" * 65, "a\nb", UNKNOWN):
            with self.assertRaisesRegex(FrameError, "a subject has"):
                recognizer.train(subject, self.face(90, False))
        homeless = Recognize(Known(None))
        homeless.begin_scene(SOURCE)
        with self.assertRaisesRegex(FrameError, "TIDEGATE_WORKER_DATA"):
            homeless.train("Ann", self.face(90, False))

    def test_the_server_teaches_by_its_requests(self):
        known = Known(self.folder.name)
        server = Server({"recognize": lambda: Recognize(known)}, Picture, onnx.load)
        image = jpeg(self.face(90, False).pixels(False))
        learnt = server._answer({"id": 1, "type": "train", "model": "recognize", "subject": "Ann"}, image, None)
        self.assertEqual(learnt, {"id": 1, "images": 1})
        (found,) = server._detect([({"id": 2, "type": "detect"}, image)])
        self.assertEqual((found["boxes"][0][5], found["size"]), ("Ann", [640, 480]))
        (broken,) = server._detect([({"id": 3, "type": "detect"}, b"%PDF-1.4")])
        self.assertIn("a PDF document", broken["error"])


if __name__ == "__main__":
    unittest.main()
