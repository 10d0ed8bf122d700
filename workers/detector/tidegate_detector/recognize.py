"""Whose face it is: OpenCV's local binary patterns (LBPH), taught by upload.

Faces are kept as small gray images below a folder, one folder for each subject, so that all workers of a pool know them and they
outlive the process. A box's score is the distance to the nearest known face: **lower is closer**, 0 is the same image.

Always true: a lesson is kept whole or not at all; what one worker learned the others know before they look at their next image.
"""

from __future__ import annotations

import os
import secrets
from urllib.parse import quote, unquote

import cv2
import numpy as np

from .face import FACE_MIN, INPUT_WIDTH, NEIGHBOURS_MIN, cascade
from .image import Image, decode, fit
from .protocol import Box, FrameError, Size

FOLDER_VARIABLE = "TIDEGATE_WORKER_DATA"
SIDE = 100
LABEL_BYTES_MAX = 64
SUBJECTS_MAX = 1000
# 10 KB each in memory; looking a face up takes time in proportion.
IMAGES_MAX = 5000
# Nearer than this is the same person in the common use of this method; further is said to be nobody.
DISTANCE_MAX = 120.0
UNKNOWN = "unknown"


class Known:
    """The faces of a folder, read again when another process has changed them."""

    def __init__(self, folder: str | None) -> None:
        if not hasattr(cv2, "face"):
            raise FrameError("this OpenCV has no face recognition: run workers/detector/setup.sh, which installs opencv-contrib")
        self._folder = folder and os.path.join(folder, "faces")
        self._stamp: tuple | None = None
        self._model = None
        self._names: list[str] = []
        self.images = 0

    def nearest(self, face: np.ndarray) -> tuple[str, float]:
        """The name of who it is, and how far; raises `FrameError` if no face was ever taught."""
        self._read()
        if self._model is None:
            raise FrameError("no face is known yet: teach some first")
        label, distance = self._model.predict(face)
        return (self._names[label] if distance <= DISTANCE_MAX else UNKNOWN), float(distance)

    def add(self, subject: str, face: np.ndarray) -> int:
        """Keeps a face of `subject`. Returns how many faces are known now."""
        if self._folder is None:
            raise FrameError(f"faces are taught only where {FOLDER_VARIABLE} names a folder to keep them in")
        name = subject.strip()
        if not name or len(name.encode()) > LABEL_BYTES_MAX or not name.isprintable() or name == UNKNOWN:
            raise FrameError(f"a subject has 1 to {LABEL_BYTES_MAX} bytes of printable text and is not {UNKNOWN!r}, unlike {subject!r}")
        self._read()
        folder = os.path.join(self._folder, quote(name, safe="").replace(".", "%2E"))
        if self.images >= IMAGES_MAX or (name not in self._names and len(self._names) >= SUBJECTS_MAX):
            raise FrameError(f"{SUBJECTS_MAX} subjects with {IMAGES_MAX} images together are kept; remove some from {self._folder}")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = os.path.join(folder, secrets.token_hex(8))
            with open(f"{path}.new", "wb") as file:
                file.write(cv2.imencode(".png", face)[1].tobytes())
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{path}.new", f"{path}.png")
        except OSError as error:
            raise FrameError(f"the face cannot be kept in {folder}: {error.strerror}") from error
        self._read()
        return self.images

    def _read(self) -> None:
        folders = self._folders()
        stamp = tuple((path, os.stat(path).st_mtime_ns) for _, path in folders)
        # A folder that changes twice within the clock's grain has another number of files.
        stamp += (sum(len(os.listdir(path)) for _, path in folders),)
        if stamp == self._stamp:
            return
        names, faces, labels = [], [], []
        for name, path in folders:
            files = sorted(file for file in os.listdir(path) if file.endswith(".png"))
            images = [cv2.imread(os.path.join(path, file), cv2.IMREAD_GRAYSCALE) for file in files]
            images = [image for image in images if image is not None and image.shape == (SIDE, SIDE)]
            if images:
                labels += [len(names)] * len(images)
                faces += images
                names.append(name)
            if len(faces) > IMAGES_MAX:
                raise FrameError(f"{self._folder} has more than {IMAGES_MAX} images of faces; remove some")
        model = None
        if faces:
            model = cv2.face.LBPHFaceRecognizer_create()
            model.train(faces, np.array(labels))
        self._model, self._names, self.images, self._stamp = model, names, len(faces), stamp

    def _folders(self) -> list[tuple[str, str]]:
        if self._folder is None or not os.path.isdir(self._folder):
            return []
        with os.scandir(self._folder) as entries:
            return sorted((unquote(entry.name), entry.path) for entry in entries if entry.is_dir())


class Recognize:
    """Finds faces from the front and says whose they are."""

    name = "recognize"
    needs_background = False
    gray = True
    kind = "recognition"

    def __init__(self, known: Known) -> None:
        self._known = known
        self._frontal = cascade("haarcascade_frontalface_default.xml")
        self._source: Size | None = None
        self._input = Size(0, 0)

    def begin_scene(self, source: Size) -> Size:
        self._source, self._input = source, fit(source, INPUT_WIDTH)
        return self._input

    def learn(self, image: Image) -> None:
        raise FrameError("this detector has no background")

    def detect(self, image: Image) -> list[Box]:
        boxes = []
        gray, found = self._faces(image)
        x_scale, y_scale = (of / at for of, at in zip(self._source, self._input))
        for x, y, width, height in found:
            name, distance = self._known.nearest(crop(gray, x, y, width, height))
            corners = (x * x_scale, y * y_scale, (x + width) * x_scale, (y + height) * y_scale)
            boxes.append(Box(*(round(float(side), 2) for side in corners), round(distance, 3), name))
        return boxes

    def train(self, subject: str, image: Image) -> int:
        """Learns the largest face of the image."""
        gray, found = self._faces(image)
        if not len(found):
            raise FrameError("there is no face in the image, seen from the front and at least 24 pixels wide")
        return self._known.add(subject, crop(gray, *max(found, key=lambda face: face[2] * face[3])))

    def _faces(self, image: Image) -> tuple[np.ndarray, np.ndarray]:
        if self._source is None:
            raise FrameError("no scene was begun: send a scene request first")
        gray = cv2.equalizeHist(decode(image, self._input, gray=True))
        found = self._frontal.detectMultiScale(
            gray, scaleFactor=1.1, minNeighbors=NEIGHBOURS_MIN, minSize=(FACE_MIN, FACE_MIN)
        )
        return gray, np.asarray(found, dtype=int).reshape(-1, 4)


def crop(gray: np.ndarray, x: int, y: int, width: int, height: int) -> np.ndarray:
    return cv2.resize(gray[y : y + height, x : x + width], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
