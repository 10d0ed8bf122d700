"""Counts people across cameras, by the node's own detector, and prints the counts as they change.

    python examples/count_people.py cam1 cam2 --seconds 60

Frames come within bounds that suit the detector; each is looked at by a worker of the node. With `--model` it counts what another model
finds.
"""

from __future__ import annotations

import threading
import time

from _arguments import connect, parser

import tidegate

options = parser("Counts people across cameras")
options.add_argument("cameras", nargs="+")
options.add_argument("--model", default="person")
options.add_argument("--seconds", type=float, default=60.0)
given = options.parse_args()

counts: dict[str, int] = {}
looked = dict.fromkeys(given.cameras, 0)
changed = threading.Condition()


def count(node: tidegate.Client, camera: str, until: float) -> None:
    """One thread for each camera: frames that come while one is looked at are left out, so that counts are of now."""
    with node.frames(camera, latency_ms=1000, accuracy=0.8) as frames:
        for frame in frames:
            found = node.detect(frame, given.model)
            with changed:
                looked[camera] += 1
                if counts.get(camera) != len(found):
                    counts[camera] = len(found)
                    changed.notify_all()
            if time.monotonic() > until:
                return


with connect(given) as node:
    until = time.monotonic() + given.seconds
    threads = [threading.Thread(target=count, args=(node, camera, until)) for camera in given.cameras]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with changed:
            if changed.wait(timeout=0.5):
                print(", ".join(f"{camera}: {counts[camera]}" for camera in sorted(counts)), "together", sum(counts.values()), flush=True)
    for thread in threads:
        thread.join()
print("looked at", ", ".join(f"{number} frames of {camera}" for camera, number in looked.items()))
