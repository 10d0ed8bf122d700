"""Recognition of faces: OpenCV's local binary patterns (LBPH), taught by upload.

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
# Each has a histogram of 64 KB in the memory of every worker, and looking a face up takes time in proportion.
IMAGES_MAX = 1000
# Nearer than this is the same person in the common use of this method; further is said to be nobody.
DISTANCE_MAX = 120.0
UNKNOWN = "unknown"


class Known:
    """The faces of a folder, read again when another process has changed them."""

    def __init__(self, folder: str | None) -> None:
        if not hasattr(cv2, "face"):
            raise FrameError("this OpenCV has no face recognition: run workers/detector/setup.sh, which installs opencv-contrib")
        self._folder = folder and os.path.join(folder, "faces")
        self._stamp: tuple = ()
        self._model = None
        # Of each file that was looked at, when it was changed.
        self._seen: dict[str, int] = {}
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
        """Learns the images that are new. All are learned again only where one is gone or was changed."""
        try:
            folders = self._folders()
            stamp = tuple((path, changed, len(files)) for _, path, changed, files in folders)
            if stamp == self._stamp:
                return
            if sum(len(files) for _, _, _, files in folders) > IMAGES_MAX:
                raise FrameError(f"{self._folder} has more than {IMAGES_MAX} images of faces; remove some")
            files = {path: name for name, _, _, paths in folders for path in paths}
            changed = {path: when for path in files if (when := changed_at(path)) is not None}
        except OSError as error:
            raise FrameError(f"the faces below {self._folder} cannot be read: {error}") from error
        if any(changed.get(path) != when for path, when in self._seen.items()):
            self._model, self._seen, self._names, self.images = None, {}, [], 0
        faces, labels = [], []
        for path in [path for path in changed if path not in self._seen]:
            image = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
            if image is None or image.shape != (SIDE, SIDE):
                continue
            if files[path] not in self._names:
                self._names.append(files[path])
            faces.append(image)
            labels.append(self._names.index(files[path]))
        if faces and self._model is None:
            self._model = cv2.face.LBPHFaceRecognizer_create()
            self._model.train(faces, np.array(labels))
        elif faces:
            self._model.update(faces, np.array(labels))
        self.images += len(faces)
        self._seen, self._stamp = changed, stamp

    def _folders(self) -> list[tuple[str, str, int, list[str]]]:
        """Each subject with its folder, when that was changed, and the images in it."""
        if self._folder is None or not os.path.isdir(self._folder):
            return []
        with os.scandir(self._folder) as entries:
            named = sorted((unquote(entry.name), entry.path) for entry in entries if entry.is_dir())
        folders = []
        for name, path in named:
            changed = changed_at(path)
            try:
                files = sorted(os.path.join(path, file) for file in os.listdir(path) if file.endswith(".png"))
            except FileNotFoundError:  # removed meanwhile, which is how a name is forgotten
                continue
            if changed is not None:
                folders.append((name, path, changed, files))
        return folders


def changed_at(path: str) -> int | None:
    """When a file or folder was changed; `None` where it is gone."""
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return None


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
