"""Tables made with a Python function as the detector, by the real program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate

CLIP = "scene:street?size=320x180&fps=5&people=8&seconds=4"


def darkest(image: np.ndarray[Any, Any]) -> list[tuple[float, float, float, float, float, str]]:
    """Columns that are darker than most: simple, and worse on coarser pictures."""
    gray = image.mean(axis=2)
    height, width = gray.shape
    cells = [(x, gray[:, x : x + width // 16].mean()) for x in range(0, width - width // 16, width // 16)]
    chosen = sorted(cells, key=lambda cell: cell[1])[:6]
    return [(x, 0, x + width // 16, height, 1.0, "dark") for x, _ in chosen]


def test_a_function_is_characterized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = set()

    def detect(image: np.ndarray[Any, Any]) -> list[tuple[float, float, float, float, float, str]]:
        sizes.add(image.shape[:2])
        return darkest(image)

    table = tmp_path / "own.table"
    done = tidegate.characterize(
        detect,
        CLIP,
        table=table,
        name="darkest",
        frames=10,
        use_truth=False,
        progress=True,
        program=os.environ["TIDEGATE_PROGRAM"],
    )
    text = table.read_text()
    assert "detector darkest" in text and "source 320x180" in text and text.count("\nrow ") > 3
    assert done.table == table and done.picture is not None and "<svg" in done._repr_html_()
    assert "accuracy" in done.report
    assert (180, 320) in sizes and len(sizes) > 1, "smaller pictures were looked at, too"
    bar = capsys.readouterr().err
    assert "[##" in bar and "s left" in bar


def test_an_exception_of_the_function_is_raised_as_it_is(tmp_path: Path) -> None:
    def broken(image: np.ndarray[Any, Any]) -> list[Any]:
        raise ZeroDivisionError("of the function")

    with pytest.raises(ZeroDivisionError, match="of the function"):
        tidegate.characterize(broken, CLIP, table=tmp_path / "t", frames=10, progress=False, program=os.environ["TIDEGATE_PROGRAM"])


def test_wrong_requests_say_what_is_wrong(tmp_path: Path) -> None:
    program = os.environ["TIDEGATE_PROGRAM"]
    with pytest.raises(tidegate.InvalidRequestError, match="name a detector"):
        tidegate.characterize(darkest, CLIP, name="a b", program=program)
    with pytest.raises(tidegate.InvalidRequestError, match="nowhere"):
        tidegate.characterize(darkest, tmp_path / "nowhere", table=tmp_path / "t", program=program)
    with pytest.raises(ValueError, match="left, top"):
        tidegate.characterize(lambda _: [(1, 2)], CLIP, table=tmp_path / "t", frames=10, program=program)
    with pytest.raises(tidegate.NotInstalledError):
        tidegate.characterize(darkest, CLIP, program="no-such-program")
