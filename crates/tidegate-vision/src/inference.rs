//! The Open Inference Protocol, version 2, over HTTP: an image as a tensor in, boxes as tensors out.
//!
//! | input | is |
//! |---|---|
//! | `BYTES`, of one element | an encoded image: base64 in JSON, bytes behind their length in binary data |
//! | `UINT8`, `[1, height, width, channels]` | pixels, row-major; three channels are red, green, blue, unless the parameter `colour` of the input is `bgr` |
//!
//! | output | type and shape |
//! |---|---|
//! | `boxes` | `FP32`, `[N, 4]`: left, top, right, bottom in pixels of the image |
//! | `scores`, `labels` | `FP32` and `BYTES`, `[N]` |
//! | `class_scores`, `class_labels` | `FP32` and `BYTES`, `[M]`: classes of the whole image |
//! | `poses` | `FP32`, `[P, K, 3]`: x, y, score of each point |
//!
//! Binary data behind the JSON is read and written as the extension of that name has it. An error is `{"error": "…"}`, as the protocol has it
//! and its clients read it. A model has one version, `1`, which a path may name.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode},
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tidegate_identity::access::Identity;
use tidegate_message::Action;
use tidegate_ports::{DetectError, Image};
use tokio::time::Instant;

use crate::{
    Detected, ModelInfo, Models, Refused, RequestError, Vision,
    answer::milliseconds,
    body::{Text, decode, inference_bytes_max},
    buffers::Buffers,
    caller,
    refused::{bytes_answer, json_answer},
};

/// Says how long the JSON is that binary data follows.
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// The version that each model has.
const VERSION: &str = "1";
/// The outputs, with their types, and shapes in which -1 is any number.
const OUTPUTS: [(&str, &str, &[i64]); 6] = [
    ("boxes", "FP32", &[-1, 4]),
    ("scores", "FP32", &[-1]),
    ("labels", "BYTES", &[-1]),
    ("class_scores", "FP32", &[-1]),
    ("class_labels", "BYTES", &[-1]),
    ("poses", "FP32", &[-1, -1, 3]),
];

/// A refusal in the form of the protocol.
struct Failed(Refused);

impl<R: Into<Refused>> From<R> for Failed {
    fn from(refused: R) -> Self {
        Self(refused.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response<Body> {
        let mut answer = error(self.0.status(), &self.0.message());
        self.0.adorn(&mut answer);
        answer
    }
}

/// The paths.
pub(crate) fn routes() -> Router<Vision> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{model}", get(metadata))
        .route("/v2/models/{model}/ready", get(model_ready))
        .route("/v2/models/{model}/infer", post(infer))
        .route("/v2/models/{model}/versions/{version}", get(metadata))
        .route("/v2/models/{model}/versions/{version}/ready", get(model_ready))
        .route("/v2/models/{model}/versions/{version}/infer", post(infer))
        .method_not_allowed_fallback(method_not_allowed)
}

/// The model of a path.
#[derive(Deserialize)]
struct Named {
    model: String,
    #[serde(default)]
    version: Option<String>,
}

impl Named {
    fn checked(self) -> Result<String, Refused> {
        match self.version {
            Some(version) if version != VERSION => {
                Err(Refused::Version { model: self.model, version })
            }
            _ => Ok(self.model),
        }
    }
}

/// Whether a path is of the protocol.
pub(crate) fn is_path(path: &str) -> bool {
    path.strip_prefix("/v2").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An error in the form of the protocol.
pub(crate) fn error(status: StatusCode, text: &str) -> Response<Body> {
    json_answer(status, &json!({ "error": text }))
}

async fn method_not_allowed() -> Response<Body> {
    let text = "this path does not take that method; see /v1/openapi.json";
    error(StatusCode::METHOD_NOT_ALLOWED, text)
}

async fn server(request: Request) -> Result<Response<Body>, Failed> {
    caller(&request)?;
    let answer = json!({
        "name": "tidegate",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["binary_tensor_data"],
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

async fn live(request: Request) -> Result<Response<Body>, Failed> {
    caller(&request)?;
    Ok(json_answer(StatusCode::OK, &json!({ "live": true })))
}

async fn ready(State(vision): State<Vision>, request: Request) -> Result<Response<Body>, Failed> {
    caller(&request)?;
    let found = vision.0.detector.models().await.map_err(Refused::from)?;
    match found.ready {
        0 => Err(Refused::from(DetectError::NoneReady).into()),
        _ => Ok(json_answer(StatusCode::OK, &json!({ "ready": true }))),
    }
}

async fn model_ready(
    State(vision): State<Vision>,
    Path(named): Path<Named>,
    request: Request,
) -> Result<Response<Body>, Failed> {
    let identity = caller(&request)?;
    let name = named.checked()?;
    let (found, model) = known(&vision, &name, &identity).await?;
    if let Some(why) = model.failed {
        return Err(Refused::NotReady { model: name, why }.into());
    }
    if found.ready == 0 {
        return Err(Refused::from(DetectError::NoneReady).into());
    }
    Ok(json_answer(StatusCode::OK, &json!({ "name": name, "ready": true })))
}

async fn metadata(
    State(vision): State<Vision>,
    Path(named): Path<Named>,
    request: Request,
) -> Result<Response<Body>, Failed> {
    let identity = caller(&request)?;
    let name = named.checked()?;
    let platform = known(&vision, &name, &identity).await?.0.detector;
    let outputs = OUTPUTS.map(
        |(name, datatype, shape)| json!({ "name": name, "datatype": datatype, "shape": shape }),
    );
    let answer = json!({
        "name": name,
        "versions": [VERSION],
        "platform": platform,
        "inputs": [
            { "name": "image", "datatype": "BYTES", "shape": [1] },
            { "name": "pixels", "datatype": "UINT8", "shape": [1, -1, -1, 3] },
        ],
        "outputs": outputs,
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

/// A model that is known and that the caller may use, with the state of its detector.
async fn known(
    vision: &Vision,
    name: &str,
    identity: &Identity,
) -> Result<(Models, ModelInfo), Refused> {
    vision.may(identity, Action::Detect, name)?;
    let found = vision.0.detector.models().await?;
    if let Some(model) = found.models.iter().find(|model| model.name == name).cloned() {
        return Ok((found, model));
    }
    let known = found.models.into_iter().map(|model| model.name).collect();
    Err(DetectError::UnknownModel { name: name.to_owned(), known }.into())
}

/// A request for inference.
#[derive(Deserialize)]
struct Infer<'a> {
    #[serde(default, borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(default)]
    parameters: InferParameters,
    #[serde(borrow)]
    inputs: Vec<Tensor<'a>>,
    #[serde(default, borrow)]
    outputs: Vec<Wanted<'a>>,
}

#[derive(Default, Deserialize)]
struct InferParameters {
    #[serde(default)]
    binary_data_output: bool,
}

#[derive(Deserialize)]
struct Tensor<'a> {
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    shape: Vec<u64>,
    #[serde(default, borrow)]
    parameters: TensorParameters<'a>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct TensorParameters<'a> {
    binary_data_size: Option<usize>,
    #[serde(default, borrow)]
    colour: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Wanted<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    parameters: WantedParameters,
}

#[derive(Default, Deserialize)]
struct WantedParameters {
    binary_data: Option<bool>,
}

async fn infer(
    State(vision): State<Vision>,
    Path(named): Path<Named>,
    request: Request,
) -> Result<Response<Body>, Failed> {
    let since = Instant::now();
    let identity = caller(&request)?;
    let model = named.checked()?;
    vision.may(&identity, Action::Detect, &model)?;
    let header_bytes = header_length(request.headers())?;
    let receiver = &vision.0.receiver;
    let bytes_max = inference_bytes_max(receiver.image_bytes_max);
    let (body, _charge) = receiver.collect(identity.key, request.into_body(), bytes_max).await?;
    let split = header_bytes.unwrap_or(body.len());
    if split > body.len() {
        return Err(tensor("Inference-Header-Content-Length is more than the body has").into());
    }
    let (text, binary) = (body.slice(..split), body.slice(split..));
    let infer: Infer<'_> = serde_json::from_slice(&text).map_err(RequestError::Json)?;
    let wanted: Vec<(&str, bool)> = wanted(&infer)?;
    let [input] = &infer.inputs[..] else {
        return Err(tensor("send one input: one image a request").into());
    };
    let image = image(input, &binary, &receiver.buffers)?;
    if image_bytes(&image) > receiver.image_bytes_max {
        return Err(Refused::TooLarge { bytes_max: receiver.image_bytes_max }.into());
    }
    let detected = vision.look(&identity, &model, image, since).await?;
    Ok(answer(&detected, infer.id.as_deref(), &wanted))
}

fn image_bytes(image: &Image) -> usize {
    match image {
        Image::Encoded(bytes) | Image::Pixels { bytes, .. } => bytes.len(),
    }
}

fn tensor(problem: &'static str) -> RequestError {
    RequestError::Tensor { problem }
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, RequestError> {
    let Some(value) = headers.get(HEADER_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| tensor("Inference-Header-Content-Length is not a number"))
}

/// The outputs that are asked for, each with whether it is binary; all if none is named.
fn wanted<'w>(infer: &'w Infer<'_>) -> Result<Vec<(&'w str, bool)>, RequestError> {
    let is_binary = infer.parameters.binary_data_output;
    if infer.outputs.is_empty() {
        return Ok(OUTPUTS.iter().map(|(name, ..)| (*name, is_binary)).collect());
    }
    let one = |wanted: &'w Wanted<'_>| match OUTPUTS.iter().any(|(name, ..)| *name == wanted.name) {
        true => Ok((&*wanted.name, wanted.parameters.binary_data.unwrap_or(is_binary))),
        false => Err(tensor(
            "there is no such output; there are: boxes scores labels class_scores class_labels poses",
        )),
    };
    infer.outputs.iter().map(one).collect()
}

/// The image that a tensor is.
fn image(
    input: &Tensor<'_>,
    binary: &Bytes,
    buffers: &Arc<Buffers>,
) -> Result<Image, RequestError> {
    let binary = match (input.parameters.binary_data_size, input.data) {
        (None, None) => return Err(tensor("it has no data")),
        (None, Some(_)) => None,
        (Some(size), _) if size == binary.len() => Some(binary),
        (Some(_), _) => {
            return Err(tensor("binary_data_size is not the length of the binary data"));
        }
    };
    match &*input.datatype {
        "BYTES" => {
            if input.shape.iter().any(|side| *side != 1) {
                return Err(tensor("BYTES has one element: one image a request"));
            }
            if let Some(binary) = binary {
                let (length, rest) =
                    binary.split_first_chunk().ok_or_else(|| tensor("it has no data"))?;
                if u32::from_le_bytes(*length) as usize != rest.len() {
                    return Err(tensor("the length before the image is not that of the image"));
                }
                return Ok(Image::Encoded(binary.slice_ref(rest)));
            }
            let text = one_text(input.data.map_or("", RawValue::get))?;
            Ok(Image::Encoded(decode(text.as_bytes(), false, buffers)?.into_bytes()))
        }
        "UINT8" => pixels(input, binary, buffers),
        _ => Err(tensor("its datatype is neither BYTES nor UINT8")),
    }
}

/// The one text in a list, which may be nested.
fn one_text(data: &str) -> Result<Cow<'_, str>, RequestError> {
    let inner = data.trim_matches(|c: char| c.is_ascii_whitespace() || c == '[' || c == ']');
    serde_json::from_str::<Text<'_>>(inner)
        .map(|text| text.0)
        .map_err(|_| tensor("BYTES has one element, an image in base64"))
}

fn pixels(
    input: &Tensor<'_>,
    binary: Option<&Bytes>,
    buffers: &Arc<Buffers>,
) -> Result<Image, RequestError> {
    let shape = match input.shape[..] {
        [1, height, width, channels] | [height, width, channels] => [height, width, channels],
        _ => return Err(tensor("UINT8 is of shape [1, height, width, channels]")),
    };
    let [height, width, channels] = shape;
    let is_side = |side: u64| (1..=u64::from(u16::MAX)).contains(&side);
    if !is_side(height)
        || !is_side(width)
        || !matches!(channels, 1 | 3)
        || height * width > u64::from(crate::image::PIXELS_MAX)
    {
        return Err(tensor(
            "sides are 1 to 65535, channels 1 or 3, and an image has at most 40 million pixels",
        ));
    }
    let is_bgr = match input.parameters.colour.as_deref() {
        None | Some("rgb") => false,
        Some("bgr") => true,
        Some(_) => return Err(tensor("the parameter colour is rgb or bgr")),
    };
    let count = usize::try_from(height * width * channels).expect("it is within the bound");
    let swaps = channels == 3 && !is_bgr;
    let shape = shape.map(|side| u32::try_from(side).expect("it is within the bound"));
    let differs = || tensor("the data is not as long as the shape says");
    let bytes = match binary {
        Some(binary) if binary.len() != count => return Err(differs()),
        Some(binary) if !swaps => binary.clone(),
        given => {
            let mut buffer = buffers.take(0);
            match given {
                Some(binary) => buffer.extend_from_slice(binary),
                None => numbers(input.data.map_or("", RawValue::get), count, &mut buffer)?,
            }
            if buffer.len() != count {
                return Err(differs());
            }
            if swaps {
                for pixel in buffer.as_chunks_mut::<3>().0 {
                    pixel.swap(0, 2);
                }
            }
            buffer.into_bytes()
        }
    };
    Ok(Image::Pixels { shape, bytes })
}

/// The numbers of a list, which may be nested, at most `most` of them.
fn numbers(data: &str, most: usize, out: &mut Vec<u8>) -> Result<(), RequestError> {
    let mut number: Option<u16> = None;
    let wrong = || tensor("UINT8 holds numbers from 0 to 255");
    for byte in data.bytes() {
        match byte {
            b'0'..=b'9' => {
                let value = number.unwrap_or(0) * 10 + u16::from(byte - b'0');
                if value > 255 {
                    return Err(wrong());
                }
                number = Some(value);
            }
            b'[' | b']' | b',' | b' ' | b'\n' | b'\r' | b'\t' => {
                if let Some(value) = number.take() {
                    if out.len() == most {
                        return Err(tensor("the data is not as long as the shape says"));
                    }
                    out.push(u8::try_from(value).expect("it was checked"));
                }
            }
            _ => return Err(wrong()),
        }
    }
    Ok(())
}

/// The elements of an output.
enum Data<'d> {
    Numbers(Vec<f32>),
    Texts(Vec<&'d str>),
}

impl Data<'_> {
    fn json(&self) -> Value {
        match self {
            Self::Numbers(numbers) => json!(numbers),
            Self::Texts(texts) => json!(texts),
        }
    }

    fn binary(&self) -> Vec<u8> {
        match self {
            Self::Numbers(numbers) => {
                numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
            }
            Self::Texts(texts) => {
                let text = |text: &&str| {
                    // Labels have at most 64 bytes.
                    let length = u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
                    [&length[..], text.as_bytes()].concat()
                };
                texts.iter().flat_map(text).collect()
            }
        }
    }
}

/// Shape and elements of an output.
fn output<'d>(detected: &'d Detected, name: &str) -> (Vec<usize>, Data<'d>) {
    let found = &detected.outcome;
    let count = found.boxes.len();
    match name {
        "boxes" => {
            let corners = found.boxes.iter().flat_map(|found| found.rect.corners());
            (vec![count, 4], Data::Numbers(corners.map(|side| side as f32).collect()))
        }
        "scores" => {
            let scores = found.boxes.iter().map(|found| found.score as f32);
            (vec![count], Data::Numbers(scores.collect()))
        }
        "labels" => {
            (vec![count], Data::Texts(found.boxes.iter().map(|found| &*found.label).collect()))
        }
        "class_scores" => {
            let scores = found.classes.iter().map(|(score, _)| *score as f32);
            (vec![found.classes.len()], Data::Numbers(scores.collect()))
        }
        "class_labels" => {
            let labels = found.classes.iter().map(|(_, label)| label.as_str());
            (vec![found.classes.len()], Data::Texts(labels.collect()))
        }
        _ => {
            // People of fewer points than another have points at 0 with a score of 0, as a tensor has no gaps.
            let points = found.poses.iter().map(Vec::len).max().unwrap_or(0);
            let mut numbers = Vec::with_capacity(found.poses.len() * points * 3);
            for pose in &found.poses {
                numbers.extend(pose.iter().flatten().map(|value| *value as f32));
                numbers.resize(numbers.len() + (points - pose.len()) * 3, 0.0);
            }
            (vec![found.poses.len(), points, 3], Data::Numbers(numbers))
        }
    }
}

fn answer(detected: &Detected, id: Option<&str>, wanted: &[(&str, bool)]) -> Response<Body> {
    let (mut outputs, mut binary) = (Vec::new(), Vec::new());
    for (name, is_binary) in wanted {
        let (shape, data) = output(detected, name);
        let datatype = if matches!(data, Data::Texts(_)) { "BYTES" } else { "FP32" };
        let mut output = json!({ "name": name, "datatype": datatype, "shape": shape });
        if *is_binary {
            let bytes = data.binary();
            output["parameters"] = json!({ "binary_data_size": bytes.len() });
            binary.extend(bytes);
        } else {
            output["data"] = data.json();
        }
        outputs.push(output);
    }
    let times = &detected.outcome.times;
    let mut answer = json!({
        "model_name": detected.model,
        "model_version": VERSION,
        "outputs": outputs,
        "parameters": {
            "width": detected.size.width,
            "height": detected.size.height,
            "queue_ms": milliseconds(times.queue),
            "decode_ms": milliseconds(times.decode),
            "infer_ms": milliseconds(times.infer),
            "total_ms": milliseconds(times.total),
        },
    });
    if let Some(id) = id {
        answer["id"] = id.into();
    }
    if !wanted.iter().any(|(_, is_binary)| *is_binary) {
        return json_answer(StatusCode::OK, &answer);
    }
    let mut bytes = answer.to_string().into_bytes();
    let header = HeaderValue::from(bytes.len());
    bytes.extend(binary);
    let mut answer = bytes_answer(StatusCode::OK, "application/octet-stream", bytes);
    answer.headers_mut().insert(HEADER_LENGTH, header);
    answer
}
