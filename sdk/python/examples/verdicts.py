"""Shows how the frames of a camera stand against their bounds, and everything that is not a frame.

    python examples/verdicts.py cam1 --latency-ms 100 --accuracy 0.95

Ctrl-C ends it.
"""

from __future__ import annotations

from itertools import islice

from _arguments import connect, parser

options = parser("Shows how the frames of a camera stand against their bounds")
options.add_argument("camera")
options.add_argument("--latency-ms", type=float, default=100)
options.add_argument("--accuracy", type=float, default=0.95)
options.add_argument("--frames", type=int, help="ends after so many")
given = options.parse_args()

with connect(given) as node:
    print(node.cameras())
    stream = node.frames(given.camera, given.latency_ms, given.accuracy, on_event=lambda event: print("    ", event))
    kept = total = 0
    try:
        for frame in islice(stream, given.frames):
            total += 1
            kept += frame.verdict.kept
            print(f"{frame.captured_at:%H:%M:%S.%f} {frame.size} {len(frame.jpeg_view) / 1e3:6.1f} kB  {frame.verdict}")
    except KeyboardInterrupt:
        pass
    print(f"{kept} of {total} frames kept both bounds; {stream.missed} more were captured and not delivered")
