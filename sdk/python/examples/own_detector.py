"""Measures what each setting of the knobs costs and is worth to a detector of your own, and shows the front.

    python examples/own_detector.py clip.mp4 --table own.table

The detector here finds what is darker than the rest of the picture, in NumPy. Put your own in its place: a function that takes BGR pixels
and returns boxes. The table goes into `frames.tables_dir` of the camera's node; subscriptions with detector="own" are then served by it.
"""

from __future__ import annotations

import argparse

import numpy as np

import tidegate

COLUMNS, ROWS = 20, 12

options = argparse.ArgumentParser(description="Characterizes a detector that is a Python function")
options.add_argument("clip", help="a video file, a folder of JPEG images, or another source such as scene:street")
options.add_argument("--table", default="own.table")
options.add_argument("--frames", type=int, default=120)
options.add_argument("--program", default="tidegate", help="the program tidegate (default: %(default)s)")
given = options.parse_args()


def dark(image: np.ndarray) -> list[tuple[float, float, float, float, float, str]]:
    """The cells of a grid that are much darker than the picture: left, top, right, bottom, score, label."""
    # As many cells in each size of picture, so that the boxes of a smaller one are those of the original.
    height, width = image.shape[0] // ROWS, image.shape[1] // COLUMNS
    gray = image[: height * ROWS, : width * COLUMNS].mean(axis=2)
    cells = gray.reshape(ROWS, height, COLUMNS, width).mean(axis=(1, 3))
    least = cells.mean() - 1.5 * cells.std()
    return [
        (x * width, y * height, (x + 1) * width, (y + 1) * height, float(least - cells[y, x]), "dark")
        for y, x in zip(*np.nonzero(cells < least), strict=True)
    ]


done = tidegate.characterize(dark, given.clip, table=given.table, name="own", frames=given.frames, use_truth=False, program=given.program)
print(done)
print(f"table: {done.table}")
