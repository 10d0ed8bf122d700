//! The paths, the strings and the habits of the paper's server, so that its own clients work as they are.
//!
//! | path | method | answer |
//! |---|---|---|
//! | `/detector/detect/`, `/recognizer/predict/`, `/openpose/detect/`, `/object/detect/`, `/trainer/predict/` | POST | findings |
//! | `/ws/` and the first four of these | WebSocket | the same for each binary message, and texts echoed |
//! | `/recognizer/add/`, `/trainer/add/` | POST | a face that is taught |
//! | `/recognizer/train/`, `/recognizer/update/`, `/trainer/train/`, `/trainer/remove/` | POST | the steps around it of its Android client |
//! | `/server/capabilities/`, `/server/usage/`, `/test/`, `/getdata/`, `/uploaddata/` | GET, POST | how fast node and network are |
//!
//! `success` is a text, times are texts in milliseconds, and a space follows each comma and colon, as Python writes JSON. Over REST the time
//! is without decoding, over WebSocket and TCP with it, as there. The header `Mobiledgex-Debug` is not heeded: images are not written down.

mod stream;

use std::{
    fs, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, Response, StatusCode, header},
    response::IntoResponse as _,
    routing::{any, get},
};
use bytes::Bytes;
use futures::stream as streams;
use http_body_util::BodyExt as _;
use tidegate_identity::access::Identity;
use tidegate_message::Action;
use tidegate_ports::{DetectError, Image};
use tidegate_rpc::{BodyBound, BodyError};
use tokio::time::{Instant, timeout};

pub(crate) use self::stream::converse;
use crate::{
    Detected, Refused, RequestError, Vision,
    body::{Form, Received},
    caller,
    models::tell,
    paper::{CALLS, Call, Item, LEARNS, Members, Way, elapsed, largest, recognized, rects},
    refused::bytes_answer,
    socket::{self, Speech},
};

/// Bytes of a speed test, in either direction.
const SPEED_BYTES_MAX: usize = 1 << 30;
const SPEED_CHUNK: &[u8] = &[b'Z'; 64 << 10];
/// A distance beyond which the paper's trainer calls a face unknown.
const UNKNOWN_DISTANCE: f64 = 105.0;
/// State that all calls of these paths share.
#[derive(Debug, Default)]
pub(crate) struct Classic {
    /// Faces that are being taught.
    pub(crate) training: AtomicUsize,
    /// Busy and all time of the processors, when the usage was asked for last.
    processors: Mutex<Option<(u64, u64)>>,
}

/// The paths.
pub(crate) fn routes() -> Router<Vision> {
    let mut router = Router::new();
    for (path, call) in CALLS {
        let rest = move |state, request| rest(state, request, call);
        let socket = move |state, request| open(state, request, call);
        router = router
            .route(&format!("{path}/"), any(rest))
            .route(&format!("/ws{path}/"), get(socket))
            .route(&format!("/ws{path}"), get(socket));
    }
    router
        .route("/trainer/predict/", any(trainer_predict))
        .route("/recognizer/add/", any(|state, request| add(state, request, Teacher::Recognizer)))
        .route("/trainer/add/", any(|state, request| add(state, request, Teacher::Trainer)))
        .route("/recognizer/train/", any(|state, request| train(state, request, true)))
        // The Android client calls these two for all subjects, and stays in its mode of training until they succeed.
        .route("/recognizer/update/", any(|state, request| train(state, request, false)))
        .route("/trainer/train/", any(|state, request| train(state, request, false)))
        .route("/trainer/remove/", any(remove))
        .route("/server/capabilities/", any(capabilities))
        .route("/server/usage/", any(usage))
        .route("/test/", any(test))
        .route("/getdata/", any(get_data))
        .route("/uploaddata/", any(upload_data))
}

fn text(status: StatusCode, text: impl Into<Body>) -> Response<Body> {
    bytes_answer(status, "text/plain; charset=utf-8", text)
}

fn bad(words: &'static str) -> Response<Body> {
    text(StatusCode::BAD_REQUEST, words)
}

fn members(status: StatusCode, members: Vec<(&'static str, Item)>) -> Response<Body> {
    bytes_answer(status, "application/json", Members(members).text())
}

/// A refusal by its status, in the form of the paper's server.
fn rejected(refused: &Refused) -> Response<Body> {
    let mut answer = match refused {
        Refused::Type { .. } => bad(
            "Content-Type must be 'image/png', 'image/jpeg', 'multipart/form-data', or 'application/x-www-urlencoded'",
        ),
        // As there: what is wrong with a request is one status and a sentence.
        Refused::Image(_) | Refused::Request(_) | Refused::Body(BodyError::Broken) => {
            text(StatusCode::BAD_REQUEST, refused.message())
        }
        Refused::Detect(DetectError::Refused { .. }) => {
            text(StatusCode::BAD_REQUEST, refused.message())
        }
        _ => {
            let error = refused.message().into();
            members(refused.status(), vec![("success", "false".into()), ("error", error)])
        }
    };
    refused.adorn(&mut answer);
    answer
}

/// The body of a request with an image, in the forms that are known there.
async fn received(
    vision: &Vision,
    identity: &Identity,
    request: Request,
) -> Result<(Received, Form), Response<Body>> {
    if request.method() != Method::POST {
        return Err(bad("Must send frame as a POST"));
    }
    let unknown = || rejected(&Refused::Type { found: String::new() });
    let form = Form::of(request.headers()).map_err(|refused| rejected(&refused))?;
    let names_kind = request.headers().contains_key(header::CONTENT_TYPE);
    if form == Form::Json || !names_kind {
        return Err(unknown());
    }
    let receiver = &vision.0.receiver;
    let received = receiver.receive(identity.key, form.clone(), request.into_body()).await;
    Ok((received.map_err(|refused| rejected(&refused))?, form))
}

/// The words for a request without an image.
fn without_image(refused: &Refused, form: &Form) -> Response<Body> {
    match (refused, form) {
        (Refused::Request(RequestError::NoImage), Form::Multipart(_)) => {
            bad("Image file must be uploaded with key of 'image'")
        }
        (Refused::Request(RequestError::NoImage), _) => bad("Missing 'image' parameter"),
        (Refused::Image(crate::image::ImageError::Empty), _) => bad("No image data"),
        _ => rejected(refused),
    }
}

async fn rest(State(vision): State<Vision>, request: Request, call: Call) -> Response<Body> {
    found(&vision, request, call).await.map_or_else(
        |answer| answer,
        |detected| {
            bytes_answer(
                StatusCode::OK,
                "application/json",
                call.answer(&detected, Way::Rest).text(),
            )
        },
    )
}

/// The findings in the image of a request, or the answer that says why there are none.
async fn found(vision: &Vision, request: Request, call: Call) -> Result<Detected, Response<Body>> {
    let since = Instant::now();
    let reject = |refused| rejected(&refused);
    let identity = caller(&request).map_err(reject)?;
    vision.may(&identity, Action::Detect, call.model(&vision.0.settings)).map_err(reject)?;
    if call == Call::Recognize && vision.0.classic.training.load(Ordering::Acquire) > 0 {
        let error = "Training data update in progress".into();
        return Err(members(
            StatusCode::SERVICE_UNAVAILABLE,
            vec![("success", "false".into()), ("error", error)],
        ));
    }
    let (received, form) = received(vision, &identity, request).await?;
    let (image, _charge) = received.image().map_err(|refused| without_image(&refused, &form))?;
    match vision.look(&identity, call.model(&vision.0.settings), Image::Encoded(image), since).await
    {
        Ok(detected) => Ok(detected),
        Err(Refused::Detect(DetectError::UnknownModel { .. })) => {
            let error = format!("{} not supported on this server", call.name()).into();
            Err(members(
                StatusCode::NOT_IMPLEMENTED,
                vec![("success", "false".into()), ("error", error)],
            ))
        }
        Err(refused) => Err(without_image(&refused, &form)),
    }
}

async fn open(
    State(vision): State<Vision>,
    request: Request,
    call: Call,
) -> Result<Response<Body>, Refused> {
    let identity = caller(&request)?;
    vision.may(&identity, Action::Detect, call.model(&vision.0.settings))?;
    socket::open(&vision, identity, request, Speech::Classic(call))
}

async fn trainer_predict(State(vision): State<Vision>, request: Request) -> Response<Body> {
    let call = Call::Recognize;
    let detected = match found(&vision, request, call).await {
        Ok(detected) => detected,
        Err(answer) => return answer,
    };
    let answer = match largest(&detected.outcome.boxes) {
        Some(face) if face.score >= UNKNOWN_DISTANCE => {
            recognized(face, "Unknown", elapsed(&detected, Way::Rest).into())
        }
        _ => call.answer(&detected, Way::Rest),
    };
    bytes_answer(StatusCode::OK, "application/json", answer.text())
}

/// The two servers that were taught, whose words differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Teacher {
    Recognizer,
    Trainer,
}

/// Counts a face that is being taught.
struct Teaching<'a>(&'a AtomicUsize);

impl<'a> Teaching<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Teaching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Teaches a face: where there is none in the image, or more than one at the trainer, that is the answer.
async fn add(State(vision): State<Vision>, request: Request, teacher: Teacher) -> Response<Body> {
    match added(&vision, request, teacher).await {
        Ok(answer) | Err(answer) => answer,
    }
}

async fn added(
    vision: &Vision,
    request: Request,
    teacher: Teacher,
) -> Result<Response<Body>, Response<Body>> {
    let since = Instant::now();
    let reject = |refused| rejected(&refused);
    let identity = caller(&request).map_err(reject)?;
    vision.may(&identity, Action::Admin, LEARNS).map_err(reject)?;
    let (received, form) = received(vision, &identity, request).await?;
    let subject = received.field("subject").filter(|subject| !subject.is_empty());
    let subject = subject.ok_or_else(|| bad("Missing 'subject' parameter"))?;
    let (image, _charge) = received.image().map_err(|refused| without_image(&refused, &form))?;
    let encoded = Image::Encoded(image.clone());
    let found = vision.find(&identity, Call::Face.model(&vision.0.settings), encoded, since);
    let found = vision.while_allowed(&identity, Action::Admin, LEARNS, found).await.flatten();
    let detected = found.map_err(|refused| without_image(&refused, &form))?;
    let boxes = &detected.outcome.boxes;
    let time: (_, Item) = ("server_processing_time", elapsed(&detected, Way::Rest).into());
    let reason = |words: &str| {
        let reason = (teacher == Teacher::Trainer).then(|| ("reason", words.into()));
        let start = [("success", "false".into())].into_iter().chain(reason);
        members(StatusCode::OK, start.chain([time.clone()]).collect())
    };
    match (boxes.len(), teacher) {
        (0, _) => return Ok(reason("No face detected")),
        (2.., Teacher::Trainer) => return Ok(reason("More than 1 face")),
        _ => {}
    }
    let teaching = Teaching::begin(&vision.0.classic.training);
    let taught = vision.0.detector.train(identity.key, LEARNS, &subject, image).await;
    drop(teaching);
    tell(vision, &identity, "teach model", LEARNS, &taught);
    match taught {
        Ok(_) => {}
        Err(DetectError::Refused { message }) => return Ok(reason(&message)),
        Err(error) => return Err(rejected(&error.into())),
    }
    let mut answer = vec![("success", "true".into()), ("rects", rects(boxes).into())];
    if teacher == Teacher::Trainer {
        answer.push(time);
    }
    Ok(members(StatusCode::OK, answer))
}

/// A face is learned when it is added, so that nothing is left to do.
async fn train(
    State(vision): State<Vision>,
    request: Request,
    needs_subject: bool,
) -> Response<Body> {
    let answered = async {
        let received = administered(&vision, request).await?;
        match received.field("subject").filter(|subject| !subject.is_empty()) {
            None if needs_subject => Err(bad("Missing 'subject' parameter")),
            _ => Ok(text(StatusCode::OK, "OK\n")),
        }
    };
    match answered.await {
        Ok(answer) | Err(answer) => answer,
    }
}

/// No program forgets a face over its protocol.
async fn remove(State(vision): State<Vision>, request: Request) -> Response<Body> {
    match administered(&vision, request).await {
        Ok(_) => {
            let error = "faces are not removed over HTTP: remove the folder of the name below workers/faces of the node's state";
            let error = vec![("success", "false".into()), ("error", error.into())];
            members(StatusCode::NOT_IMPLEMENTED, error)
        }
        Err(answer) => answer,
    }
}

/// The body of a request about faces that are known, of a caller that may change them.
async fn administered(vision: &Vision, request: Request) -> Result<Received, Response<Body>> {
    let reject = |refused| rejected(&refused);
    let identity = caller(&request).map_err(reject)?;
    vision.may(&identity, Action::Admin, LEARNS).map_err(reject)?;
    if request.method() != Method::POST {
        return Err(bad("Must send request as a POST"));
    }
    let form = Form::of(request.headers()).map_err(reject)?;
    let receiver = &vision.0.receiver;
    receiver.receive(identity.key, form, request.into_body()).await.map_err(reject)
}

async fn capabilities(request: Request) -> Response<Body> {
    match *request.method() {
        Method::GET => {
            members(StatusCode::OK, vec![("success", "true".into()), ("gpu_support", false.into())])
        }
        _ => bad("Please send request as a GET"),
    }
}

async fn usage(State(vision): State<Vision>, request: Request) -> Response<Body> {
    if request.method() != Method::GET {
        return bad("This request must be a GET");
    }
    let (cpu, memory) = (vision.0.classic.cpu_percent(), memory_percent());
    members(StatusCode::OK, vec![("cpu_util", cpu.into()), ("mem_util", memory.into())])
}

impl Classic {
    /// How busy the processors were since this was asked for last, in percent; 0 at the first time.
    fn cpu_percent(&self) -> Option<f64> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let now = processor_times(&stat)?;
        let before = self.processors.lock().expect("no panic while it is held").replace(now);
        Some(match before {
            Some((busy, all)) if now.1 > all => {
                tenths(100.0 * now.0.saturating_sub(busy) as f64 / (now.1 - all) as f64)
            }
            _ => 0.0,
        })
    }
}

/// Busy and all time, of the first line of `/proc/stat`.
fn processor_times(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> = line.split_whitespace().map_while(|time| time.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted among the first two.
    let all: u64 = times.iter().take(8).sum();
    let idle = times.get(3)? + times.get(4).unwrap_or(&0);
    Some((all - idle, all))
}

/// Memory that is not available, in percent.
fn memory_percent() -> Option<f64> {
    memory_used(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn memory_used(info: &str) -> Option<f64> {
    let of = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok()
    };
    let (all, available) = (of("MemTotal")?, of("MemAvailable")?);
    Some(tenths(100.0 * (all - available) / all))
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

async fn test(request: Request) -> Response<Body> {
    match *request.method() {
        Method::GET => text(StatusCode::OK, "Valid GET Request to server"),
        Method::HEAD => text(StatusCode::OK, "Valid HEAD Request to server"),
        _ => bad("Please send request as a GET or HEAD"),
    }
}

/// As many bytes as are asked for, without holding them.
async fn get_data(request: Request) -> Response<Body> {
    if request.method() != Method::GET {
        return bad("Please send response as a GET");
    }
    let count = tidegate_device::query::parameter(request.uri().query(), "numbytes");
    let Some(count) = count.filter(|count| !count.is_empty()) else {
        return bad("Missing 'numbytes' parameter");
    };
    let Some(count) = count.parse().ok().filter(|count| *count <= SPEED_BYTES_MAX) else {
        return bad("'numbytes' must be a number from 0 to 1073741824");
    };
    let chunks = streams::unfold(count, |left: usize| async move {
        let bytes = left.min(SPEED_CHUNK.len());
        let chunk = Ok::<_, io::Error>(Bytes::from_static(&SPEED_CHUNK[..bytes]));
        (bytes > 0).then_some((chunk, left - bytes))
    });
    let mut answer = text(StatusCode::OK, Body::from_stream(chunks));
    answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(count));
    answer
}

/// Takes bytes and forgets them.
async fn upload_data(State(vision): State<Vision>, request: Request) -> Response<Body> {
    if request.method() != Method::POST {
        return bad("Please send response as a POST");
    }
    let (since, silent_max) = (Instant::now(), vision.0.settings.request_timeout);
    // The API bounds and charges bodies that are kept.
    if let Some(bound) = request.extensions().get::<Arc<BodyBound>>() {
        bound.discard(SPEED_BYTES_MAX as u64);
    }
    let mut body = request.into_body();
    let mut bytes = 0;
    loop {
        match timeout(silent_max, body.frame()).await {
            Err(_) => return rejected(&Refused::Slow { after: silent_max }),
            Ok(Some(Err(error))) => return rejected(&BodyError::of(&error).into()),
            Ok(Some(Ok(frame))) => bytes += frame.data_ref().map_or(0, Bytes::len),
            Ok(None) => break,
        }
        if bytes > SPEED_BYTES_MAX {
            return Refused::TooLarge { bytes_max: SPEED_BYTES_MAX }.into_response();
        }
    }
    let elapsed_ms = (since.elapsed().as_secs_f64() * 1e6).round() / 1e3;
    let mbps = (bytes * 8) as f64 / (elapsed_ms.max(0.001) * 1e3);
    members(
        StatusCode::OK,
        vec![
            ("bytes_read", bytes.into()),
            ("elapsed_ms", elapsed_ms.into()),
            ("mbps", format!("{mbps:.3}").into()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_the_system() {
        let stat = "cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 2\n";
        assert_eq!(processor_times(stat), Some((171, 621)));
        assert_eq!(processor_times("intr 1"), None);
        let info = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    250 kB\n";
        assert_eq!(memory_used(info), Some(75.0));
        let classic = Classic::default();
        assert_eq!(classic.cpu_percent(), Some(0.0), "nothing to compare with");
        assert!(classic.cpu_percent().is_some_and(|percent| (0.0..=100.0).contains(&percent)));
    }
}
