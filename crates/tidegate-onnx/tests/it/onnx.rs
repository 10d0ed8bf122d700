//! Tiny ONNX models, written byte by byte: the encoding of protocol buffers for as much of onnx.proto as they need, as in
//! `workers/detector/tests/tiny_onnx.py`.

const FLOAT: u64 = 1;
pub(crate) const INT64: u64 = 7;

/// Values of a constant.
pub(crate) enum Values {
    Floats(Vec<f32>),
    Whole(Vec<i64>),
}

/// A constant of a model: its name, its shape, its values.
pub(crate) type Constant<'a> = (&'a str, Vec<u64>, Values);

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 & 127 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, data: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(data.len() as u64), data.to_vec()].concat()
}

fn tensor((name, shape, values): &Constant<'_>) -> Vec<u8> {
    let (kind, raw) = match values {
        Values::Floats(values) => (FLOAT, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        Values::Whole(values) => {
            (INT64, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
        }
    };
    let sides: Vec<u8> = shape.iter().flat_map(|side| number(1, *side)).collect();
    [sides, number(2, kind), bytes(8, name.as_bytes()), bytes(9, &raw)].concat()
}

/// A model that gives an array whose values are in that file.
pub(crate) fn answers_of(shape: &[u64], location: &str, input: &[u64]) -> Vec<u8> {
    let entry = [bytes(1, b"location"), bytes(2, location.as_bytes())].concat();
    let sides: Vec<u8> = shape.iter().flat_map(|side| number(1, *side)).collect();
    let kind = number(2, FLOAT);
    let tensor = [sides, kind, bytes(8, b"array"), bytes(13, &entry), number(14, 1)].concat();
    let nodes = [node("Identity", &["array"], &["found"])];
    let model = model(&nodes, input, &[("found", shape)], &[]);
    // A graph that comes twice is one with the fields of both.
    [model, bytes(7, &bytes(5, &tensor))].concat()
}

/// A side of 0 is one that is not fixed.
fn value(name: &str, shape: &[u64], kind: u64) -> Vec<u8> {
    let side = |side: &u64| match side {
        0 => bytes(1, &bytes(2, b"N")),
        side => bytes(1, &number(1, *side)),
    };
    let sides: Vec<u8> = shape.iter().flat_map(side).collect();
    let of_type = [number(1, kind), bytes(2, &sides)].concat();
    [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &of_type))].concat()
}

pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
    let inputs = inputs.iter().flat_map(|name| bytes(1, name.as_bytes()));
    let outputs = outputs.iter().flat_map(|name| bytes(2, name.as_bytes()));
    inputs.chain(outputs).chain(bytes(4, op.as_bytes())).collect()
}

/// A model of one input called `image`, and outputs of numbers with a fraction.
pub(crate) fn model(
    nodes: &[Vec<u8>],
    input: &[u64],
    outputs: &[(&str, &[u64])],
    constants: &[Constant<'_>],
) -> Vec<u8> {
    model_of(FLOAT, nodes, input, outputs, constants)
}

/// The same with outputs of that kind of number.
pub(crate) fn model_of(
    kind: u64,
    nodes: &[Vec<u8>],
    input: &[u64],
    outputs: &[(&str, &[u64])],
    constants: &[Constant<'_>],
) -> Vec<u8> {
    let mut graph: Vec<u8> = nodes.iter().flat_map(|node| bytes(1, node)).collect();
    graph.extend(bytes(2, b"tiny"));
    graph.extend(constants.iter().flat_map(|constant| bytes(5, &tensor(constant))));
    graph.extend(bytes(11, &value("image", input, FLOAT)));
    graph.extend(outputs.iter().flat_map(|(name, shape)| bytes(12, &value(name, shape, kind))));
    let version = [bytes(1, b""), number(2, 13)].concat();
    [number(1, 8), bytes(7, &graph), bytes(8, &version)].concat()
}

/// A model that gives the same array for every image.
pub(crate) fn answers(shape: &[u64], values: Vec<f32>, input: &[u64]) -> Vec<u8> {
    let nodes = [node("Identity", &["array"], &["found"])];
    let constants = [("array", shape.to_vec(), Values::Floats(values))];
    model(&nodes, input, &[("found", shape)], &constants)
}

/// A classifier whose values are those of its input.
pub(crate) fn mirror(input: &[u64]) -> Vec<u8> {
    let nodes = [node("Flatten", &["image"], &["found"])];
    let count = input[1..].iter().product();
    model(&nodes, input, &[("found", &[input[0], count])], &[])
}
