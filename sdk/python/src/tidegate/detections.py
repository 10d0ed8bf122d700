"""Findings of detectors in one image. Nothing here does I/O.

Boxes are left, top, right, bottom in pixels of the image as it is seen; scores are on the detector's own scale.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import NotInstalledError, TidegateError
from .frames import Size


class Box(NamedTuple):
    """One thing that was found."""

    left: float
    top: float
    right: float
    bottom: float
    score: float
    label: str = "object"


class Found(NamedTuple):
    """All that a detector function found in an image, where that is more than boxes."""

    boxes: Iterable[Sequence[Any]] = ()
    """Each left, top, right, bottom, a score, and a label."""
    classes: Iterable[tuple[float, str]] = ()
    """Classes of the whole image: a score and a label each."""
    poses: Iterable[Iterable[Sequence[float]]] = ()
    """People, each as its points: x, y, score."""


class Model(NamedTuple):
    """A model that images can be sent to."""

    name: str
    kind: str
    """`detection`, `classification`, `pose`, `recognition`, or a word of its program's."""
    is_loaded: bool
    """Whether it was loaded from the node's folder of models; those of the workers' own program were not."""


@dataclass(frozen=True, slots=True)
class DetectionTimes:
    """Where the node's time for one image went, in ms."""

    queue_ms: float
    """Waiting: until the request was there whole, and for a worker."""
    decode_ms: float
    infer_ms: float
    total_ms: float
    """From the request to its answer: the sum of the others."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Detections:
    """The answer of a model about one image: columns of one row for each box."""

    model: str
    image_size: Size
    """Size of the image that boxes and poses are in pixels of."""
    xyxy: NDArray[np.float32]
    """Left, top, right, bottom: shape `(n, 4)`."""
    confidence: NDArray[np.float32]
    """Shape `(n,)`."""
    labels: tuple[str, ...]
    times: DetectionTimes
    classes: tuple[tuple[float, str], ...] = ()
    """Classes of the whole image: a score and a label each."""
    poses: tuple[NDArray[np.float32], ...] = field(default=())
    """People, each of shape `(points, 3)`: x, y, score."""

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Box]:
        for (left, top, right, bottom), score, label in zip(self.xyxy.tolist(), self.confidence.tolist(), self.labels, strict=True):
            yield Box(left, top, right, bottom, score, label)

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, on the same arrays. A class has the same number in every picture, see `class_id`.

        Raises:
            NotInstalledError: supervision is not installed.
        """
        try:
            import supervision
        except ImportError as error:
            raise NotInstalledError("this needs supervision: pip install supervision", "sdk.not_installed") from error
        data: dict[str, Any] = {"class_name": np.array(self.labels, dtype=np.str_)} if len(self) else {}
        numbers = np.array([class_id(label) for label in self.labels], dtype=np.intp)
        return supervision.Detections(xyxy=self.xyxy, confidence=self.confidence, class_id=numbers, data=data)

    def __repr__(self) -> str:
        what = ", ".join(f"{label} {score:.2f}" for score, label in zip(self.confidence, self.labels, strict=True)) or "nothing"
        return f"<Detections of {self.model} in {self.image_size}: {what}>"

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        rows = "".join(
            f"<tr><td>{html.escape(box.label)}</td><td>{box.score:.2f}</td>"
            f"<td>{box.left:.0f}, {box.top:.0f}, {box.right:.0f}, {box.bottom:.0f}</td></tr>"
            for box in self
        )
        caption = f"{html.escape(self.model)}, {self.image_size}, {self.times.total_ms:.0f} ms"
        return f"<table><caption>{caption}</caption><tr><th>label</th><th>score</th><th>box</th></tr>{rows}</table>"


def class_id(label: str) -> int:
    """A number for a class: the same for the same label in every picture and at every node, as in the node's own `predictions`.

    FNV-1a of the label, without its highest bit.
    """
    number = 0x811C_9DC5
    for byte in label.encode():
        number = (number ^ byte) * 0x0100_0193 & 0xFFFF_FFFF
    return number & 0x7FFF_FFFF


def detections_of(answer: Any) -> Detections:
    """The answer of a node from its JSON.

    Raises:
        TidegateError: it is none.
    """
    try:
        boxes = answer.get("boxes") or []
        size, times = answer["image"], answer.get("times") or {}
        return Detections(
            model=answer["model"],
            image_size=Size(int(size["width"]), int(size["height"])),
            xyxy=np.array([box[:4] for box in boxes], dtype=np.float32).reshape(len(boxes), 4),
            confidence=np.array([box[4] for box in boxes], dtype=np.float32),
            labels=tuple(str(box[5]) for box in boxes),
            times=DetectionTimes(*(float(times.get(f"{stage}_ms", 0.0)) for stage in ("queue", "decode", "infer", "total"))),
            classes=tuple((float(score), str(label)) for score, label in answer.get("classes") or ()),
            poses=tuple(np.array(pose, dtype=np.float32).reshape(len(pose), 3) for pose in answer.get("poses") or ()),
        )
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise TidegateError(f"the node sent an answer of a detector that cannot be read: {error!r}", "link.protocol") from error
