"""Looks at small frames, and when something moves, keeps the untouched frame and publishes an alarm by MQTT.

    python examples/alarm_with_original.py cam1 --folder alarms

The detector is a difference of two frames, in NumPy: put your own in its place. The accuracy may be low, and so the frames small: the
picture that is kept is the camera's original, not the one that was looked at.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from _arguments import connect, parser

import tidegate

options = parser("Keeps the original of a frame in which something moves, and publishes an alarm")
options.add_argument("camera")
options.add_argument("--folder", type=Path, default=Path("alarms"))
options.add_argument("--topic", default="alarms")
options.add_argument("--alarms", type=int, help="ends after so many")
given = options.parse_args()


def moving(before: np.ndarray, after: np.ndarray) -> list[float] | None:
    """The box around all that differs, in pixels: left, top, right, bottom."""
    if before.shape != after.shape:
        return None  # the knobs changed the size: the next pair is compared
    differs = np.abs(after.astype(np.int16) - before).max(axis=2) > 40
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if differs.mean() < 0.001:
        return None
    return [float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)]


given.folder.mkdir(parents=True, exist_ok=True)
with connect(given) as node:
    before, alarms = None, 0
    for frame in node.frames(given.camera, latency_ms=500, accuracy=0.5):
        box = None if before is None else moving(before, frame.image)
        before = frame.image
        if box is None:
            continue
        original = node.fetch_original(frame)
        path = given.folder / f"{frame.camera}-{frame.captured_at_ns}.jpg"
        path.write_bytes(original.jpeg)
        try:
            box = frame.to_source([box])[0].tolist()
        except tidegate.SourceSizeUnknownError:
            # A node of an earlier version: the sizes of both pictures say it.
            scale = original.image.shape[1] / frame.size.width
            box = [side * scale for side in box]
        node.publish(
            f"{given.topic}/{frame.camera}",
            json.dumps({"captured_at_ns": frame.captured_at_ns, "box": box, "original": str(path), "latency_ms": frame.latency_ms}),
        )
        print(f"{frame.captured_at:%H:%M:%S}  {path}  {len(original.jpeg) / 1e3:.0f} kB  seen in {len(frame.jpeg_view) / 1e3:.0f} kB")
        alarms += 1
        if alarms == given.alarms:
            break
