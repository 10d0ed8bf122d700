"""Answers of detectors as values."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidegate
from tidegate.detections import class_id, detections_of

ANSWER: dict[str, Any] = {
    "model": "person",
    "image": {"width": 640, "height": 480},
    "predictions": [],
    "boxes": [[1, 2, 30, 40, 0.75, "person"], [5, 6, 7, 8, 0.5, "dog"], [1, 1, 2, 2, 0.25, "person"]],
    "classes": [[0.5, "street"]],
    "poses": [[[1, 2, 0.5], [3, 4, 1]]],
    "times": {"queue_ms": 1, "decode_ms": 2, "infer_ms": 3, "total_ms": 6.5},
}


def test_an_answer_is_columns_and_rows() -> None:
    found = detections_of(ANSWER)
    assert len(found) == 3 and found.image_size == (640, 480) and found.model == "person"
    assert found.xyxy.shape == (3, 4) and found.xyxy.dtype == np.float32 and found.confidence.tolist() == [0.75, 0.5, 0.25]
    assert list(found)[1] == tidegate.Box(5, 6, 7, 8, 0.5, "dog")
    assert found.classes == ((0.5, "street"),) and found.poses[0].tolist() == [[1, 2, 0.5], [3, 4, 1]]
    assert found.times == tidegate.DetectionTimes(1, 2, 3, 6.5)
    assert "dog 0.50" in repr(found) and "<td>dog</td>" in found._repr_html_()
    nothing = detections_of({**ANSWER, "boxes": []})
    assert len(nothing) == 0 and nothing.xyxy.shape == (0, 4) and "nothing" in repr(nothing)
    markup = detections_of({**ANSWER, "boxes": [[1, 2, 3, 4, 1, "<b>"]]})
    assert "<b>" not in markup._repr_html_()


@pytest.mark.parametrize("answer", [None, [], {}, {**ANSWER, "boxes": [[1]]}, {**ANSWER, "image": None}, {**ANSWER, "classes": [7]}])
def test_what_is_no_answer_says_so(answer: Any) -> None:
    with pytest.raises(tidegate.TidegateError) as raised:
        detections_of(answer)
    assert raised.value.code == "link.protocol"


@dataclass
class LikeSupervision:
    """The fields of `supervision.Detections` that are used, with its checks of their shapes."""

    xyxy: np.ndarray[Any, Any]
    confidence: np.ndarray[Any, Any]
    class_id: np.ndarray[Any, Any]
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.xyxy)
        assert self.xyxy.shape == (count, 4) and self.confidence.shape == (count,) and self.class_id.shape == (count,)
        assert all(len(column) == count for column in self.data.values())


def test_supervision_gets_the_same_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", SimpleNamespace(Detections=LikeSupervision))
    found = detections_of(ANSWER)
    theirs = found.to_supervision()
    assert theirs.xyxy is found.xyxy and theirs.confidence is found.confidence
    person, dog = 1402450560, class_id("dog")
    assert theirs.class_id.tolist() == [person, dog, person] and theirs.data["class_name"].tolist() == ["person", "dog", "person"]
    # In a picture without a dog, a person has the same number.
    alone = detections_of({**ANSWER, "boxes": [[1, 2, 30, 40, 0.75, "person"]]})
    assert alone.to_supervision().class_id.tolist() == [person]
    assert len(detections_of({**ANSWER, "boxes": []}).to_supervision().xyxy) == 0
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(tidegate.NotInstalledError):
        found.to_supervision()


def test_the_real_supervision_reads_a_detection_of_mqtt() -> None:
    """As `crates/tidegate-detect/src/report.rs` writes it."""
    supervision = importlib.import_module("supervision")
    prediction = {"x": 20.06, "y": 40.0, "width": 20.13, "height": 40.0, "confidence": 0.5, "class": "person", "class_id": 1402450560}
    message = {"type": "detection", "image": {"width": 1920, "height": 1080}, "predictions": [prediction]}
    theirs = supervision.Detections.from_inference(message)
    assert theirs.class_id.tolist() == [class_id("person")] and theirs["class_name"].tolist() == ["person"]


def test_the_real_supervision_takes_them() -> None:
    supervision = importlib.import_module("supervision")
    found = detections_of(ANSWER)
    theirs = found.to_supervision()
    assert isinstance(theirs, supervision.Detections) and np.shares_memory(theirs.xyxy, found.xyxy)
    assert len(theirs) == 3 and theirs["class_name"].tolist() == ["person", "dog", "person"]
    assert len(detections_of({**ANSWER, "boxes": []}).to_supervision()) == 0
