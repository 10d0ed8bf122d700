"""Files beside a model that hold its weights, as the model itself names them: none leads out of its folder.

ONNX lets a tensor name any path, and ONNX Runtime before 1.24 reads what it finds there; the same check for the worker in Rust is
`crates/tidegate-onnx/src/external.rs`.
"""

from __future__ import annotations

import json
import mmap
import os
from typing import Iterator

from .protocol import FrameError

# The fields of onnx.proto in which a tensor can lie, each with the message that it holds; 13 of a tensor is an entry of `external_data`.
GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE, FUNCTION, TRAINING, ENTRY, MODEL = range(9)
FIELDS = {
    MODEL: {7: GRAPH, 20: TRAINING, 25: FUNCTION},
    GRAPH: {1: NODE, 5: TENSOR, 15: SPARSE},
    NODE: {5: ATTRIBUTE},
    ATTRIBUTE: {5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH, 22: SPARSE, 23: SPARSE},
    SPARSE: {1: TENSOR, 2: TENSOR},
    FUNCTION: {7: NODE, 11: ATTRIBUTE},
    TRAINING: {1: GRAPH, 2: GRAPH},
    TENSOR: {13: ENTRY},
}
# As deep as protobuf reads messages within messages.
DEPTH_MAX = 100


class NotOnnx(Exception):
    """The bytes are not fields of protocol buffers, or not as a writer of ONNX makes them."""


def check(path: str) -> None:
    """Refuses a model that keeps weights in another place than regular files of its own folder."""
    folder = os.path.dirname(os.path.realpath(path))
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            named = set(locations(data, 0, len(data), MODEL, 0))
    except (NotOnnx, ValueError) as error:
        raise FrameError(f"{path} cannot be loaded: it is no ONNX model, or cut off") from error
    except OSError as error:
        raise FrameError(f"{path} cannot be loaded: {error.strerror}") from error
    for name in sorted(named):
        try:
            real = os.path.realpath(os.path.join(folder, name), strict=True)
            inside = not os.path.isabs(name) and os.path.commonpath([folder, real]) == folder and os.path.isfile(real)
        except (OSError, ValueError):
            inside = False
        if not inside:
            raise FrameError(
                f"{path} keeps weights in {json.dumps(name[:200])}, which is no file in the folder of the model; put it there, or save the model "
                "as one file"
            )


def locations(data: mmap.mmap, at: int, end: int, kind: int, depth: int) -> Iterator[str]:
    """The place of each tensor whose values are elsewhere."""
    if depth > DEPTH_MAX:
        raise NotOnnx
    keys, values = [], []
    while at < end:
        tag, at = varint(data, at, end)
        field, wire = tag >> 3, tag & 7
        if tag > 0xFFFF_FFFF or field == 0:
            raise NotOnnx
        if wire == 0:
            _, at = varint(data, at, end)
        elif wire == 2:
            length, at = varint(data, at, end)
            inner = FIELDS.get(kind, {}).get(field)
            if length > end - at:
                raise NotOnnx
            if inner is not None:
                yield from locations(data, at, at + length, inner, depth + 1)
            elif kind == ENTRY and field in (1, 2):
                (keys if field == 1 else values).append(data[at : at + length])
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise NotOnnx
    if at != end:
        raise NotOnnx
    # Of a field that comes twice the last counts; any of them is looked at.
    if b"location" in keys:
        for value in values:
            yield value.decode("utf-8", "surrogateescape")


def varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise NotOnnx
