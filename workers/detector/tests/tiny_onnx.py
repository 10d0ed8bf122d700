"""Tiny ONNX models, written byte by byte: the encoding of protocol buffers for as much of onnx.proto as they need."""

import numpy as np

FLOAT, INT64 = 1, 7


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def external(name, shape, location):
    """A tensor of numbers whose values are in that file."""
    sides = b"".join(field(1, side) for side in shape)
    entry = field(1, "location") + field(2, location)
    return sides + field(2, FLOAT) + field(8, name) + field(13, entry) + field(14, 1)


def tensor(name, array):
    if isinstance(array, bytes):
        return array
    array = np.asarray(array)
    kind = {"f": FLOAT, "i": INT64}[array.dtype.kind]
    array = array.astype({FLOAT: np.float32, INT64: np.int64}[kind])
    sides = b"".join(field(1, side) for side in array.shape)
    return sides + field(2, kind) + field(8, name) + field(9, array.tobytes())


def value(name, shape, kind=FLOAT):
    sides = b"".join(field(1, field(1, side) if isinstance(side, int) else field(2, side)) for side in shape)
    return field(1, name) + field(2, field(1, field(1, kind) + field(2, sides)))


def node(op, inputs, outputs):
    return b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs) + field(4, op)


def model(nodes, input_shape, outputs, constants=()):
    """`outputs` and `constants` are pairs of a name and a shape, or an array, or the bytes of a tensor."""
    graph = b"".join(field(1, part) for part in nodes) + field(2, "tiny")
    graph += b"".join(field(5, tensor(name, array)) for name, array in constants)
    graph += field(11, value("image", input_shape)) + b"".join(field(12, value(name, shape)) for name, shape in outputs)
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))


def answers(array, input_shape):
    """A model that gives the same array for every image."""
    array = np.asarray(array, np.float32)
    nodes = [node("Identity", ["array"], ["found"])]
    return model(nodes, input_shape, [("found", array.shape)], [("array", array)])


def mean_colour(side, batch="N"):
    """A classifier whose three values are the means of the input's channels."""
    nodes = [node("GlobalAveragePool", ["image"], ["mean"]), node("Flatten", ["mean"], ["found"])]
    return model(nodes, [batch, 3, side, side], [("found", [batch, 3])])

