"""The detectors on pictures that are drawn here. Skipped, with a word, where OpenCV is missing."""

import unittest

from tidegate_detector.protocol import FrameError, Size

try:
    import cv2
    import numpy as np

    from tidegate_detector.face import Face, FrontalFace, merged
    from tidegate_detector.image import INPUT_PIXELS_MAX, Picture, decode, fit
    from tidegate_detector.moving import BACKGROUND_MAX, Moving
    from tidegate_detector.person import Person
except ImportError as error:
    raise unittest.SkipTest(f"{error}: run workers/detector/setup.sh to test the detectors") from error

SOURCE = Size(1280, 720)
cv2.setNumThreads(1)  # as the worker does


def picture(boxes=(), size=SOURCE):
    """A textured wall with bright boxes, always the same but for the boxes."""
    noise = np.random.default_rng(7).integers(90, 130, (72, 128, 3), np.uint8)
    image = cv2.resize(noise, (SOURCE.width, SOURCE.height), interpolation=cv2.INTER_CUBIC)
    for x1, y1, x2, y2 in boxes:
        image[y1:y2, x1:x2] = 235
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA) if size != SOURCE else image


def jpeg(image, quality=95):
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def learnt():
    moving = Moving()
    moving.begin_scene(SOURCE)
    for step in range(7):  # something stands in each, elsewhere each time: the median does not see it
        moving.learn(jpeg(picture([(150 * step, 100, 150 * step + 90, 300)])))
    return moving


class MovingTest(unittest.TestCase):
    def assert_near(self, box, expected):
        for found, wanted in zip(box[:4], expected):
            self.assertAlmostEqual(found, wanted, delta=12, msg=f"{box} against {expected}")

    def test_boxes_are_where_things_stand(self):
        things = [(200, 200, 280, 420), (700, 300, 900, 400)]
        found = sorted(learnt().detect(jpeg(picture(things))))
        self.assertEqual(len(found), 2, found)
        for box, thing in zip(found, things):
            self.assert_near(box, thing)
            self.assertEqual(box.label, "moving")

    def test_boxes_of_small_frames_are_in_source_pixels(self):
        moving = learnt()
        for size in [Size(640, 360), Size(480, 270), Size(320, 180)]:
            (box,) = moving.detect(jpeg(picture([(200, 200, 300, 440)], size), 75))
            self.assert_near(box, (200, 200, 300, 440))

    def test_an_empty_scene_is_empty_at_any_quality(self):
        moving = learnt()
        for quality in (95, 75, 50, 30):
            self.assertEqual(moving.detect(jpeg(picture(), quality)), [], quality)

    def test_frames_are_looked_at_by_themselves(self):
        moving, busy = learnt(), jpeg(picture([(500, 100, 600, 300)]))
        first = moving.detect(busy)
        moving.detect(jpeg(picture([(100, 100, 900, 600)])))
        self.assertEqual(moving.detect(busy), first)

    def test_misuse_is_named(self):
        moving = Moving()
        with self.assertRaisesRegex(FrameError, "no scene"):
            moving.learn(jpeg(picture()))
        moving.begin_scene(SOURCE)
        with self.assertRaisesRegex(FrameError, "no background"):
            moving.detect(jpeg(picture()))
        wall = jpeg(picture())
        for _ in range(BACKGROUND_MAX):
            moving.learn(wall)
        with self.assertRaisesRegex(FrameError, "are enough"):
            moving.learn(jpeg(picture()))
        moving.detect(jpeg(picture()))
        with self.assertRaisesRegex(FrameError, "is fixed"):
            moving.learn(jpeg(picture()))
        for broken in (b"", b"\xff\xd8 no image"):
            with self.assertRaisesRegex(FrameError, "not an image"):
                moving.detect(broken)


class PersonTest(unittest.TestCase):
    def test_the_input_is_fixed_and_an_empty_wall_has_nobody(self):
        person = Person()
        self.assertEqual(person.begin_scene(Size(1920, 1080)), Size(1280, 720))
        self.assertEqual(person.detect(jpeg(picture())), [])
        with self.assertRaises(FrameError):
            person.learn(jpeg(picture()))


    def test_a_strip_of_any_shape_is_looked_at_in_few_pixels(self):
        for width, height in [(4, 60_000), (10, 2000), (47, 4000), (1, 65_535), (65_535, 1), (600, 65_535)]:
            for detector in (Person(), Face(), Moving()):
                seen = detector.begin_scene(Size(width, height))
                self.assertLessEqual(seen.width * seen.height, INPUT_PIXELS_MAX, f"{width}x{height} {detector.name}")
        for width, height in [(4, 60_000), (47, 4000), (4000, 47)]:
            person = Person()
            person.begin_scene(Size(width, height))
            # Noise, for its gradients are written to where they do not belong if anything's are.
            noise = np.random.default_rng(3).integers(0, 255, (height, width, 3), np.uint8)
            person.detect(Picture(noise.tobytes(), [height, width, 3]))


def with_face(image, x, y, radius):
    """A drawn face: skin, hair, brows, eyes, nose and mouth are all that the frontal cascade looks for."""

    def part(dx, dy, width, height, colour):
        middle = (x + round(dx * radius), y + round(dy * radius))
        cv2.ellipse(image, middle, (round(width * radius), round(height * radius)), 0, 0, 360, colour, -1)

    part(0, 0, 0.75, 1, (150, 180, 220))
    part(0, -0.75, 0.7, 0.3, (30, 40, 50))
    for side in (-1, 1):
        part(side * 0.32, -0.24, 0.2, 0.05, (40, 50, 60))
        part(side * 0.32, -0.08, 0.17, 0.09, (70, 80, 90))
        part(side * 0.32, -0.08, 0.07, 0.07, (20, 20, 20))
    part(0, 0.1, 0.06, 0.16, (170, 200, 235))
    part(0, 0.25, 0.12, 0.05, (90, 120, 160))
    part(0, 0.5, 0.28, 0.08, (60, 60, 120))
    return cv2.GaussianBlur(image, (3, 3), 0)


class FaceTest(unittest.TestCase):
    SOURCE = Size(640, 480)

    def found(self, kind, image):
        face = kind()
        self.assertEqual(face.begin_scene(self.SOURCE), self.SOURCE)
        return face.detect(jpeg(image))

    def test_a_face_is_found_where_it_is_and_an_empty_wall_has_none(self):
        for kind in (Face, FrontalFace):
            with self.subTest(kind.name):
                wall = np.full((480, 640, 3), 110, np.uint8)
                self.assertEqual(self.found(kind, wall), [])
                boxes = self.found(kind, with_face(wall, 400, 200, 60))
                self.assertTrue(any(box.x1 < 370 and box.x2 > 430 and box.y1 < 185 and box.y2 > 230 for box in boxes), boxes)
                self.assertTrue(all(box.label == "face" for box in boxes))

    def test_a_face_that_several_cascades_find_is_one(self):
        for found, expected in [
            ([], []),
            ([(10, 10, 40, 40)], [(10, 10, 40, 40)]),
            # From the front, from the side, and from the other side.
            ([(100, 100, 80, 80), (110, 105, 70, 70), (95, 98, 60, 60)], [(95, 98, 85, 82)]),
            # One within another, and two that stand side by side, or cheek to cheek.
            ([(100, 100, 80, 80), (120, 120, 24, 24)], [(100, 100, 80, 80)]),
            ([(0, 0, 50, 50), (50, 0, 50, 50)], [(0, 0, 50, 50), (50, 0, 50, 50)]),
            ([(0, 0, 50, 50), (30, 0, 50, 50)], [(0, 0, 50, 50), (30, 0, 50, 50)]),
            # The third is the face of the first only by way of the second.
            ([(0, 0, 40, 40), (36, 0, 40, 40), (18, 0, 40, 40)], [(0, 0, 76, 40)]),
        ]:
            self.assertEqual(merged(found), expected, found)

    def test_boxes_are_in_pixels_of_the_source(self):
        face = Face()
        self.assertEqual(face.begin_scene(Size(1920, 1440)), Size(960, 720))
        wall = with_face(np.full((480, 640, 3), 110, np.uint8), 400, 200, 60)
        boxes = face.detect(jpeg(wall))
        self.assertTrue(any(box.x1 < 1110 and box.x2 > 1290 for box in boxes), boxes)

    def test_misuse_is_named(self):
        with self.assertRaisesRegex(FrameError, "no scene"):
            Face().detect(jpeg(picture()))
        with self.assertRaisesRegex(FrameError, "no background"):
            Face().learn(jpeg(picture()))


class ImageTest(unittest.TestCase):
    def test_sizes_fit_and_gray_frames_decode(self):
        self.assertEqual(fit(Size(1920, 1080), 960), Size(960, 540))
        self.assertEqual(fit(Size(768, 432), 960), Size(768, 432))
        gray = jpeg(cv2.cvtColor(picture(), cv2.COLOR_BGR2GRAY))
        self.assertEqual(decode(gray, Size(64, 36), gray=False).shape, (36, 64, 3))
        self.assertEqual(decode(gray, Size(64, 36), gray=True).shape, (36, 64))


if __name__ == "__main__":
    unittest.main()
