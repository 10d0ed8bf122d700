"""Runs an ONNX model of your own on the frames of a camera, and prints its boxes in pixels of the original.

    pip install onnxruntime
    python examples/own_onnx_model.py cam1 street.onnx --labels person bicycle car

The model's output is that of YOLOv8: (4 + classes) x N of middle x, y, width, height and a score for each class. To have the node run it
for all of its clients, put it into `workers.models_dir` with its description beside it.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from _arguments import connect, parser

options = parser("Runs an ONNX model on the frames of a camera")
options.add_argument("camera")
options.add_argument("model", help="an ONNX file whose output is that of YOLOv8")
options.add_argument("--labels", nargs="+", default=[])
options.add_argument("--score", type=float, default=0.5)
options.add_argument("--frames", type=int, default=100)
given = options.parse_args()

session = onnxruntime.InferenceSession(given.model, providers=["CPUExecutionProvider"])
model_input = session.get_inputs()[0]
HEIGHT, WIDTH = model_input.shape[2:]


def detect(image: np.ndarray) -> np.ndarray:
    """Rows of left, top, right, bottom, score, class in pixels of `image`, which is BGR."""
    height, width = image.shape[:2]
    # The nearest pixel is enough to show the way; OpenCV's or Pillow's resizing finds more.
    rows, columns = np.arange(HEIGHT) * height // HEIGHT, np.arange(WIDTH) * width // WIDTH
    rgb = image[rows][:, columns, ::-1].astype(np.float32) / 255
    (output,) = session.run(None, {model_input.name: np.ascontiguousarray(rgb.transpose(2, 0, 1)[np.newaxis])})
    found = output[0].T
    scores = found[:, 4:].max(axis=1)
    kept = found[scores >= given.score]
    middle, size = kept[:, 0:2], kept[:, 2:4]
    boxes = np.concatenate([middle - size / 2, middle + size / 2], axis=1) * np.tile([width / WIDTH, height / HEIGHT], 2)
    return np.column_stack([boxes, kept[:, 4:].max(axis=1), kept[:, 4:].argmax(axis=1)])


with connect(given) as node:
    for number, frame in enumerate(node.frames(given.camera, latency_ms=500, accuracy=0.8), start=1):
        boxes = detect(frame.image)
        on_original = frame.to_source(boxes) if frame.source_size else boxes
        for left, top, right, bottom, score, kind in on_original:
            label = given.labels[int(kind)] if int(kind) < len(given.labels) else f"class {int(kind)}"
            print(f"{frame.captured_at.isoformat()} {label} {score:.2f} at {left:.0f},{top:.0f} to {right:.0f},{bottom:.0f}")
        if number == given.frames:
            break
