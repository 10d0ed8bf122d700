"""Models of the user's, as ONNX files, with what goes in and what comes out declared in a JSON file beside them.

`street.onnx` is described by `street.json`; docs/src/detector-protocol.md has every field. Nothing is shipped and nothing is fetched.

Always true: a model is tried before it is used, and reads no file outside its folder; values that are not finite, and outputs of another
shape than declared, are refused by name and never become boxes.
"""

from __future__ import annotations

import json
import os
from typing import Any, Sequence

import cv2
import numpy as np

from . import external
from .image import PIXELS_MAX, Picture
from .protocol import Box, Found, FrameError, Size

FORMATS = {
    "yolov5": "detection", "yolov8": "detection", "end2end": "detection", "boxes": "detection",
    "yolov8-pose": "pose", "classification": "classification",
}  # fmt: skip
# Boxes that are compared with each other, and boxes that are kept.
CANDIDATES_MAX = 2000
FOUND_MAX = 300
SIDE_MAX = 8192
DESCRIPTION_BYTES_MAX = 1 << 20
DEFAULTS = {
    "format": None, "width": None, "height": None, "layout": "nchw", "colour": "rgb", "type": "float32", "scale": 1 / 255,
    "mean": [0.0, 0.0, 0.0], "std": [1.0, 1.0, 1.0], "fit": "letterbox", "labels": [], "score_min": 0.25, "iou_max": 0.45,
    "points": 17, "softmax": False, "normalized": False, "top": 5, "outputs": {}, "providers": [],
}  # fmt: skip


class Description:
    """The checked JSON beside a model."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, dict):
            raise FrameError("the description is not a JSON object")
        unknown = sorted(set(given) - set(DEFAULTS))
        if unknown:
            raise FrameError(f"the description has the unknown field {unknown[0]!r}; there are: {' '.join(DEFAULTS)}")
        values = {**DEFAULTS, **given}
        self.format = one_of(values, "format", tuple(FORMATS))
        self.layout = one_of(values, "layout", ("nchw", "nhwc"))
        self.colour = one_of(values, "colour", ("rgb", "bgr", "gray"))
        self.type = one_of(values, "type", ("float32", "float16", "uint8"))
        self.fit = one_of(values, "fit", ("letterbox", "stretch"))
        self.size = Size(whole(values, "width", 1, SIDE_MAX), whole(values, "height", 1, SIDE_MAX))
        self.points, self.top = whole(values, "points", 1, 1000), whole(values, "top", 1, 1000)
        self.scale = real(values, "scale")
        self.score_min, self.iou_max = real(values, "score_min"), real(values, "iou_max")
        self.mean, self.std = (per_channel(values, name) for name in ("mean", "std"))
        if not self.std.all():
            raise FrameError("std must not be zero")
        self.softmax, self.normalized = (values[name] is True for name in ("softmax", "normalized"))
        self.labels = words(values, "labels", 64)
        self.providers = words(values, "providers", 100)
        self.outputs = values["outputs"]
        named = {"boxes", "scores", "labels"}
        if not isinstance(self.outputs, dict) or set(self.outputs) != (named if self.format == "boxes" else set()):
            raise FrameError('outputs must name the outputs "boxes", "scores" and "labels" of a model of the format boxes')

    def label(self, index: int) -> str:
        return self.labels[index] if 0 <= index < len(self.labels) else f"class {index}"


def load(name: str, path: str) -> Any:
    """A factory of detectors by the model in that file; the model was tried."""
    if os.path.splitext(path)[1] != ".onnx":
        raise FrameError(f"{path} is not the file of a model: its name must end in .onnx")
    model = Model(name, path, read_description(os.path.splitext(path)[0] + ".json"))
    model.detect_many([Picture(bytes(64 * 48 * 3), [48, 64, 3])], [Size(64, 48)])
    factory = lambda: Scene(model)  # noqa: E731
    factory.kind = FORMATS[model.description.format]
    return factory


def read_description(path: str) -> Description:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(DESCRIPTION_BYTES_MAX + 1)
        if len(text) > DESCRIPTION_BYTES_MAX:
            raise FrameError(f"{path} is over the limit of 1 MiB")
        return Description(json.loads(text))
    except OSError as error:
        raise FrameError(f"{path}, which says what the model takes and gives, cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FrameError(f"{path} is not JSON: {error}") from error
    except FrameError as error:
        raise FrameError(f"{path}: {error}") from error


class Model:
    """A session of onnxruntime and what its tensors mean."""

    def __init__(self, name: str, path: str, description: Description) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise FrameError(f"{error}: run workers/detector/setup.sh, which installs it") from error
        options = onnxruntime.SessionOptions()
        # One thread, as everywhere in this worker; more workers are a number in the pool's settings.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        available = onnxruntime.get_available_providers()
        missing = [provider for provider in description.providers if provider not in available]
        if missing:
            raise FrameError(f"this onnxruntime has no {missing[0]}; it has: {' '.join(available)}")
        providers = description.providers or ["CPUExecutionProvider"]
        external.check(path)
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=providers)
        except Exception as error:  # noqa: BLE001  onnxruntime has a class for each cause and no common one
            raise FrameError(f"{path} cannot be loaded: {str(error).strip()[:500]}") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1:
            raise FrameError(f"{path} has {len(inputs)} inputs; a model takes one image")
        self.name, self.description, self._input = name, description, inputs[0]
        self.batches = len(self._input.shape) == 4 and not isinstance(self._input.shape[0], int)

    def detect_many(self, pictures: Sequence[Picture], sources: Sequence[Size | None]) -> list[Found | FrameError]:
        """Detections of each image, or the reason why it was not looked at; boxes in pixels of its source, or of itself where that is `None`.

        The pixels of each are forgotten before the next is decoded, and no more inputs than `PIXELS_MAX` allows are made at a time.
        """
        width, height = self.description.size
        together = max(1, PIXELS_MAX // (width * height)) if self.batches else 1
        found: list[Any] = [None] * len(pictures)
        for first in range(0, len(pictures), together):
            tensors = []
            for at in range(first, min(first + together, len(pictures))):
                try:
                    tensors.append((at, self._tensor(pictures[at])))
                except FrameError as error:
                    found[at] = error
                finally:
                    pictures[at].forget()
            if tensors:
                outputs = self._run(np.stack([tensor for _, tensor in tensors]))
                for place, (at, _) in enumerate(tensors):
                    found[at] = self._found([output[place] for output in outputs], sources[at] or pictures[at].size)
        return found

    def _tensor(self, picture: Picture) -> np.ndarray:
        told = self.description
        pixels = picture.pixels(gray=told.colour == "gray")
        if told.fit == "stretch":
            pixels = cv2.resize(pixels, told.size, interpolation=cv2.INTER_LINEAR)
        else:
            pixels = letterboxed(pixels, told.size)
        if told.colour == "rgb":
            pixels = pixels[:, :, ::-1]
        if pixels.ndim == 2:
            pixels = pixels[:, :, np.newaxis]
        channels = pixels.shape[2]
        if told.type != "uint8":
            pixels = (pixels.astype(np.float32) * told.scale - told.mean[:channels]) / told.std[:channels]
            pixels = pixels.astype(told.type)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if told.layout == "nchw" else pixels)

    def _run(self, batch: np.ndarray) -> list[np.ndarray]:
        names = self.description.outputs
        wanted = [names[part] for part in ("boxes", "scores", "labels")] if names else None
        try:
            outputs = self._session.run(wanted, {self._input.name: batch})
        except Exception as error:  # noqa: BLE001  as above
            raise FrameError(f"the model {self.name} cannot look at its input: {str(error).strip()[:500]}") from error
        # A model for one image may leave out the dimension of the batch.
        ranks = {"boxes": (3, 2, 2), "classification": (2,)}.get(self.description.format, (3,))
        outputs = [
            output[np.newaxis] if len(batch) == 1 and output.ndim == rank - 1 else output for output, rank in zip(outputs, ranks)
        ]
        for output in outputs:
            if output.shape[:1] != (len(batch),):
                raise self._shape_error(output.shape, f"{len(batch)} first, one for each image")
            if output.dtype.kind == "f" and not np.isfinite(output).all():
                raise FrameError(f"the model {self.name} returned values that are not finite numbers")
        return outputs

    def _shape_error(self, found: Any, wanted: str) -> FrameError:
        shape = "x".join(str(side) for side in found)
        return FrameError(f"the model {self.name} returned {shape} values; its format {self.description.format} needs {wanted}")

    def _found(self, outputs: list[np.ndarray], source: Size) -> Found:
        told, output = self.description, outputs[0]
        if told.format == "classification":
            return Found(classes=self._classes(output.reshape(-1)))
        if told.format == "boxes":
            corners, scores, classes = (np.asarray(part, np.float64) for part in outputs)
            if corners.ndim != 2 or corners.shape[1] != 4:
                raise self._shape_error(corners.shape, "boxes of Nx4 and N scores and labels")
            if scores.shape != corners.shape[:1] or classes.shape != corners.shape[:1]:
                raise self._shape_error(scores.shape, "as many scores and labels as boxes")
            if told.normalized:
                corners = corners * np.tile(told.size, 2)
            return self._boxes(corners, scores, classes.astype(int), source, None)
        if output.ndim != 2:
            raise self._shape_error(output.shape, "two dimensions for each image")
        # Scores are compared as they are read from the description, in the precision of a double.
        output = output.astype(np.float64)
        if told.format == "end2end":
            if output.shape[1] != 6:
                raise self._shape_error(output.shape, "Nx6: corners, score, class")
            return self._boxes(output[:, :4], output[:, 4], output[:, 5].astype(int), source, None)
        rows = output if told.format == "yolov5" else output.T
        before = 5 if told.format in ("yolov5", "yolov8-pose") else 4
        count = 3 * told.points if told.format == "yolov8-pose" else len(told.labels) or rows.shape[1] - before
        if count < 1 or rows.shape[1] != before + count:
            order = "Nx" if told.format == "yolov5" else ""
            raise self._shape_error(output.shape, f"{order}{before + count}{'' if order else 'xN'} values")
        if told.format == "yolov8-pose":
            scores, classes, poses = rows[:, 4], np.zeros(len(rows), int), rows[:, 5:].reshape(len(rows), told.points, 3)
        else:
            of_class = rows[:, before:] * (rows[:, 4:5] if told.format == "yolov5" else 1)
            classes, poses = of_class.argmax(axis=1), None
            scores = of_class[np.arange(len(rows)), classes]
        middle, half = rows[:, :2], rows[:, 2:4] / 2
        return self._boxes(np.hstack([middle - half, middle + half]), scores, classes, source, poses)

    def _classes(self, values: np.ndarray) -> list[tuple[float, str]]:
        told = self.description
        if told.labels and len(values) != len(told.labels):
            raise self._shape_error(values.shape, f"{len(told.labels)} values, one for each label")
        values = values.astype(np.float64)
        if told.softmax:
            values = np.exp(values - values.max())
            values /= values.sum()
        best = np.argsort(-values, kind="stable")[: told.top]
        return [(round(float(values[at]), 6), told.label(int(at))) for at in best]

    def _boxes(self, corners: Any, scores: Any, classes: Any, source: Size, poses: Any) -> Found:
        told = self.description
        kept = np.flatnonzero(scores >= told.score_min)
        kept = kept[np.argsort(-scores[kept], kind="stable")][:CANDIDATES_MAX]
        corners = np.asarray(corners, np.float64)[kept]
        if told.format != "end2end":
            chosen = suppress(corners, classes[kept], told.iou_max)
            kept, corners = kept[chosen], corners[chosen]
        corners, kept = to_source(corners.reshape(-1, 2, 2), told, source).reshape(-1, 4), kept[:FOUND_MAX]
        limit = np.tile(source, 2)
        boxes, people = [], []
        for at, box in zip(kept, corners):
            x1, y1, x2, y2 = (round(float(side), 2) for side in np.clip(box, 0, limit))
            # A box without area shows nothing.
            if x1 < x2 and y1 < y2:
                name = told.label(int(classes[at])) if told.labels or poses is None else "person"
                boxes.append(Box(x1, y1, x2, y2, round(float(scores[at]), 4), name))
                if poses is not None:
                    points = to_source(poses[at][:, :2], told, source)
                    people.append([
                        (round(float(x), 2), round(float(y), 2), round(float(score), 4))
                        for (x, y), score in zip(points, poses[at][:, 2])
                    ])  # fmt: skip
        return Found(boxes, poses=people)


class Scene:
    """A model as a detector: one for each scene, all of one session."""

    needs_background = False

    def __init__(self, model: Model) -> None:
        self._model, self._source = model, Size(0, 0)
        self.name = model.name

    def begin_scene(self, source: Size) -> Size:
        self._source = source
        return self._model.description.size

    def learn(self, image: Any) -> None:
        raise FrameError("this detector has no background")

    def detect(self, image: Any) -> Found:
        (found,) = self.detect_many([image], [self._source])
        if isinstance(found, FrameError):
            raise found
        return found

    def detect_many(self, pictures: Sequence[Any], sources: Sequence[Size | None]) -> list[Found | FrameError]:
        return self._model.detect_many(pictures, sources)


def letterbox(source: Size, target: Size) -> tuple[float, float, float]:
    """By how much an image is scaled to lie in the middle of the target, and where it begins."""
    scale = min(target.width / source.width, target.height / source.height)
    return scale, (target.width - source.width * scale) / 2, (target.height - source.height * scale) / 2


def letterboxed(pixels: np.ndarray, target: Size) -> np.ndarray:
    height, width = pixels.shape[:2]
    scale, left, top = letterbox(Size(width, height), target)
    matrix = np.array([[scale, 0, left + scale / 2 - 0.5], [0, scale, top + scale / 2 - 0.5]])
    # Shrunk by averaging first where it is much larger, for a warp looks at four pixels alone.
    if scale < 0.5:
        size = Size(max(1, round(width * scale)), max(1, round(height * scale)))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        matrix = np.array([[1, 0, left], [0, 1, top]], np.float64)
    return cv2.warpAffine(pixels, matrix, target, flags=cv2.INTER_LINEAR, borderValue=(114, 114, 114))


def to_source(points: np.ndarray, told: Description, source: Size) -> np.ndarray:
    """Points of the model's input in pixels of the source."""
    if told.fit == "stretch":
        return points * (np.array(source, np.float64) / told.size)
    scale, left, top = letterbox(source, told.size)
    return (points - [left, top]) / scale


def suppress(corners: np.ndarray, classes: np.ndarray, iou_max: float) -> np.ndarray:
    """Which boxes, of the best first, are kept: none overlaps a better one of its class by more."""
    areas = np.prod(np.maximum(corners[:, 2:] - corners[:, :2], 0), axis=1)
    left, chosen = np.arange(len(corners)), []
    while len(left) and len(chosen) < FOUND_MAX:
        best, left = left[0], left[1:]
        chosen.append(best)
        width = np.minimum(corners[best, 2], corners[left, 2]) - np.maximum(corners[best, 0], corners[left, 0])
        height = np.minimum(corners[best, 3], corners[left, 3]) - np.maximum(corners[best, 1], corners[left, 1])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        union = np.maximum(areas[best] + areas[left] - shared, 1e-9)
        left = left[(shared / union <= iou_max) | (classes[left] != classes[best])]
    return np.array(chosen, int)


def one_of(values: dict, field: str, allowed: tuple[str, ...]) -> str:
    if values[field] not in allowed:
        raise FrameError(f"{field} must be one of {' '.join(allowed)}, not {values[field]!r}")
    return values[field]


def whole(values: dict, field: str, least: int, most: int) -> int:
    value = values[field]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise FrameError(f"{field} must be a whole number from {least} to {most}, not {value!r}")
    return value


def real(values: dict, field: str) -> float:
    value = values[field]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not np.isfinite(value):
        raise FrameError(f"{field} must be a number, not {value!r}")
    return float(value)


def per_channel(values: dict, field: str) -> np.ndarray:
    given = values[field]
    if not isinstance(given, list) or len(given) not in (1, 3):
        raise FrameError(f"{field} must be a list of one or three numbers, not {given!r}")
    return np.array([real({field: value}, field) for value in given], np.float32)


def words(values: dict, field: str, bytes_max: int) -> list[str]:
    given = values[field]
    right = isinstance(given, list) and all(isinstance(word, str) and len(word.encode()) <= bytes_max for word in given)
    if not right:
        raise FrameError(f"{field} must be a list of texts of at most {bytes_max} bytes")
    return given
