"""Makes a camera of a folder of JPEG images: publishes them at a rate, so that applications can subscribe to it.

python examples/pictures_as_camera.py attic pictures/ --fps 5
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from _arguments import connect, parser

options = parser("Publishes the JPEG images of a folder as a camera")
options.add_argument("camera")
options.add_argument("folder", type=Path)
options.add_argument("--fps", type=float, default=5)
given = options.parse_args()


def pictures() -> Iterator[bytes]:
    """One file after another, each in its time."""
    due = time.monotonic()
    for path in sorted(given.folder.glob("*.jp*g")):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / given.fps
        yield path.read_bytes()


with connect(given) as node:
    done = node.publish_frames(given.camera, pictures(), frames_per_second=given.fps)
print(f"{done.accepted} pictures taken, {done.refused_count} refused")
for refused in done.refused:
    print(f"  picture {refused.index}: {refused.message}")
