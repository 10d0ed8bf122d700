"""A detector of your own as a service of a node: this program is one of its workers.

In the node's configuration:

    [workers]
    command = "python3 examples/detector_service.py"

Then `POST /v1/detect/dark` and every other part of the node that asks for detection can use it. Its table is made by

    tidegate characterize --clip clip.mp4 --detector command --detector-command 'python3 examples/detector_service.py'

The detector here finds what is darker than the rest of the picture, in NumPy. Put your own in its place.
"""

from __future__ import annotations

import numpy as np

import tidegate

COLUMNS, ROWS = 20, 12


def dark(image: np.ndarray) -> list[tuple[float, float, float, float, float, str]]:
    """The cells of a grid that are much darker than the picture: left, top, right, bottom, score, label."""
    # As many cells in each size of picture, so that the boxes of a smaller one are those of the original.
    height, width = max(1, image.shape[0] // ROWS), max(1, image.shape[1] // COLUMNS)
    gray = image[: height * ROWS, : width * COLUMNS].mean(axis=2)
    rows, columns = gray.shape[0] // height, gray.shape[1] // width
    cells = gray[: rows * height, : columns * width].reshape(rows, height, columns, width).mean(axis=(1, 3))
    least = cells.mean() - 1.5 * cells.std()
    return [
        (x * width, y * height, (x + 1) * width, (y + 1) * height, float(least - cells[y, x]), "dark")
        for y, x in zip(*np.nonzero(cells < least), strict=True)
    ]


if __name__ == "__main__":
    tidegate.serve_detector(dark, name="dark")
