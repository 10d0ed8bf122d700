//! Serves models over one connection: scenes, batches, shared memory, models that come and go. `docs/src/detector-protocol.md` has every
//! message.
//!
//! Always true: each request is answered once; one that fails is answered with its reason and the next is served; at most [`SCENES_MAX`]
//! scenes are kept.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::FileExt as _, net::UnixStream},
    },
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tidegate_message::error_chain;
use tidegate_sys::memfile;

use crate::{
    image::{ImageDecoder, Picture, Size},
    library::Runtime,
    model::{Detected, Job, Model, ModelError},
};

const VERSION: u32 = 2;
/// Its name in tables and reports.
const NAME: &str = "onnx";
const JSON_BYTES_MAX: usize = 1 << 20;
const PAYLOAD_BYTES_MAX: usize = 64 << 20;
const SCENES_MAX: usize = 16;
const IN_FLIGHT: usize = 8;
const BATCH: usize = 8;
/// Models of the Python worker, which are none of this one.
const OF_PYTHON: [&str; 5] = ["face", "frontal_face", "person", "recognize", "moving"];

/// Serves requests until the other side closes the connection.
///
/// # Errors
/// [`ServeError`]: the connection broke, or what came is no message.
pub fn serve(stream: UnixStream, runtime: &Runtime) -> Result<(), ServeError> {
    let mut connection = Connection { stream, descriptor: None };
    connection.write(&json!({
        "type": "hello", "protocol": VERSION, "detector": NAME, "background": false, "memory": true,
        "in_flight": IN_FLIGHT, "batch": BATCH, "scenes": SCENES_MAX, "models": [],
    }))?;
    let mut server = Server {
        runtime,
        decoder: ImageDecoder::default(),
        models: Vec::new(),
        scenes: VecDeque::new(),
        memory: None,
    };
    let mut batch = Vec::new();
    while let Some(message) = connection.read()? {
        if message.head.get("type").and_then(Value::as_str) == Some("detect") {
            let more = message.head.get("more") == Some(&Value::Bool(true));
            batch.push(message);
            // Never more than was asked for, whatever the other side says.
            if more && batch.len() < BATCH {
                continue;
            }
            for (message, answer) in server.detect(&std::mem::take(&mut batch)) {
                connection.answer(message, answer)?;
            }
        } else {
            let answer = server.answer(&message, &mut connection.descriptor);
            connection.answer(&message, answer)?;
        }
    }
    Ok(())
}

struct Connection {
    stream: UnixStream,
    /// The last that came with bytes.
    descriptor: Option<OwnedFd>,
}

struct Message {
    head: Map<String, Value>,
    payload: Vec<u8>,
}

type Answer = Result<Map<String, Value>, RequestError>;

impl Connection {
    /// The next message; `None` at a clean end.
    fn read(&mut self) -> Result<Option<Message>, ServeError> {
        let mut lengths = [0; 8];
        match self.fill(&mut lengths)? {
            0 => return Ok(None),
            8 => {}
            _ => return Err(ServeError::Cut),
        }
        let [json_bytes, payload_bytes] = [0, 4].map(|at| {
            let bytes = lengths[at..at + 4].try_into().expect("there are eight");
            u32::from_be_bytes(bytes) as usize
        });
        if json_bytes > JSON_BYTES_MAX || payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(ServeError::TooLarge { json_bytes, payload_bytes });
        }
        let (mut text, mut payload) = (vec![0; json_bytes], vec![0; payload_bytes]);
        if self.fill(&mut text)? < json_bytes || self.fill(&mut payload)? < payload_bytes {
            return Err(ServeError::Cut);
        }
        let head = serde_json::from_slice(&text).map_err(ServeError::Json)?;
        Ok(Some(Message { head, payload }))
    }

    /// Reads until `bytes` are full, or to the end.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, ServeError> {
        let mut have = 0;
        while have < bytes.len() {
            match memfile::receive_with_descriptor(self.stream.as_fd(), &mut bytes[have..]) {
                Ok((0, _)) => break,
                Ok((count, descriptor)) => {
                    have += count;
                    self.descriptor = descriptor.or(self.descriptor.take());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ServeError::Io(error)),
            }
        }
        Ok(have)
    }

    /// Writes an answer; one that Tidegate would not read is a refusal.
    fn answer(&mut self, message: &Message, answer: Answer) -> Result<(), ServeError> {
        let id = message.head.get("id").cloned().unwrap_or(Value::Null);
        let refusal = |error: &RequestError| json!({"id": id, "error": error_chain(error)});
        match answer {
            Ok(mut fields) => {
                fields.insert("id".to_owned(), id.clone());
                let fields = Value::Object(fields);
                let bytes = fields.to_string().len();
                match bytes > JSON_BYTES_MAX {
                    true => self.write(&refusal(&RequestError::TooMuch { bytes })),
                    false => self.write(&fields),
                }
            }
            Err(error) => self.write(&refusal(&error)),
        }
    }

    fn write(&mut self, value: &Value) -> Result<(), ServeError> {
        let text = value.to_string();
        let mut bytes = Vec::with_capacity(8 + text.len());
        bytes.extend(u32::try_from(text.len()).expect("it was checked").to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(text.as_bytes());
        self.stream.write_all(&bytes).map_err(ServeError::Io)
    }
}

struct Server<'r> {
    runtime: &'r Runtime,
    decoder: ImageDecoder,
    /// In the order in which they were loaded; the first is used where a request names none.
    models: Vec<(String, Model)>,
    /// The last used one at the end.
    scenes: VecDeque<(u64, Size)>,
    memory: Option<(File, u64)>,
}

/// An image of a batch: its place there, and the size of its source.
struct Entry<'m> {
    at: usize,
    picture: Picture<'m>,
    source: Option<Size>,
}

impl Server<'_> {
    fn answer(&mut self, message: &Message, descriptor: &mut Option<OwnedFd>) -> Answer {
        let head = &message.head;
        match head.get("type").and_then(Value::as_str) {
            Some("memory") => self.share(head, descriptor.take()),
            Some("scene") => self.begin_scene(head),
            Some("background") => Err(RequestError::NoBackground),
            Some("load") => self.load(head),
            Some("unload") => self.unload(head),
            Some("train") => match text(head, "model") {
                Ok(model) => Err(self.find(Some(model)).map_or_else(
                    |error| error,
                    |_| RequestError::NoTraining { model: model.to_owned() },
                )),
                Err(error) => Err(error),
            },
            _ => {
                let found = head.get("type").unwrap_or(&Value::Null).to_string();
                Err(RequestError::Unknown { found: found.chars().take(100).collect() })
            }
        }
    }

    fn share(&mut self, head: &Map<String, Value>, descriptor: Option<OwnedFd>) -> Answer {
        let bytes = number(head, "bytes", 1)?;
        let descriptor = descriptor.ok_or(RequestError::NoDescriptor)?;
        self.memory = Some((File::from(descriptor), bytes));
        Ok(Map::new())
    }

    fn begin_scene(&mut self, head: &Map<String, Value>) -> Answer {
        let sides: Option<Vec<u64>> = head
            .get("source")
            .and_then(Value::as_array)
            .and_then(|sides| sides.iter().map(Value::as_u64).collect());
        let source = match sides.as_deref() {
            Some([width @ 1..=65_535, height @ 1..=65_535]) => {
                Size { width: *width as usize, height: *height as usize }
            }
            _ => return Err(RequestError::Source),
        };
        let scene = if head.contains_key("scene") { number(head, "scene", 0)? } else { 0 };
        self.scenes.retain(|(known, _)| *known != scene);
        self.scenes.push_back((scene, source));
        if self.scenes.len() > SCENES_MAX {
            self.scenes.pop_front();
        }
        let size = self.models.first().map_or(source, |(_, model)| model.size());
        Ok(fields(json!({"input": [size.width, size.height]})))
    }

    /// The size of the scene that a request is of; `None` for an image alone.
    fn scene(&mut self, head: &Map<String, Value>) -> Result<Option<Size>, RequestError> {
        let is_named = head.contains_key("scene");
        // Version 1 had one scene, which no request named.
        let is_first = !head.contains_key("model") && self.scenes.iter().any(|(id, _)| *id == 0);
        if !is_named && !is_first {
            return Ok(None);
        }
        let scene = if is_named { number(head, "scene", 0)? } else { 0 };
        let at = self.scenes.iter().position(|(known, _)| *known == scene);
        let entry = at.and_then(|at| self.scenes.remove(at)).ok_or(RequestError::NoScene)?;
        self.scenes.push_back(entry);
        Ok(Some(entry.1))
    }

    fn load(&mut self, head: &Map<String, Value>) -> Answer {
        let (name, path) = (text(head, "name")?, text(head, "path")?);
        let model = Model::load(self.runtime, &mut self.decoder, name, Path::new(path))?;
        match self.models.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = model,
            None => self.models.push((name.to_owned(), model)),
        }
        Ok(Map::new())
    }

    fn unload(&mut self, head: &Map<String, Value>) -> Answer {
        let name = text(head, "name")?;
        let before = self.models.len();
        self.models.retain(|(known, _)| known != name);
        match self.models.len() < before {
            true => Ok(Map::new()),
            false => Err(RequestError::NotLoaded { name: name.to_owned() }),
        }
    }

    /// The place of the model that a request names, or of the first.
    fn find(&self, name: Option<&str>) -> Result<usize, RequestError> {
        let known = || self.models.iter().map(|(known, _)| known.clone()).collect();
        match name {
            None if self.models.is_empty() => Err(RequestError::NoModels),
            None => Ok(0),
            Some(name) => {
                self.models.iter().position(|(known, _)| known == name).ok_or_else(|| {
                    match OF_PYTHON.contains(&name) {
                        true => RequestError::OfPython { name: name.to_owned() },
                        false => RequestError::NoModel { name: name.to_owned(), known: known() },
                    }
                })
            }
        }
    }

    /// Answers a batch; images for one model are looked at together.
    fn detect<'m>(&mut self, batch: &'m [Message]) -> Vec<(&'m Message, Answer)> {
        let mut answers: Vec<Option<Answer>> = batch.iter().map(|_| None).collect();
        let mut together: Vec<(usize, Vec<Entry<'m>>)> = Vec::new();
        for (at, message) in batch.iter().enumerate() {
            match self.entry(at, message) {
                Ok((model, entry)) => {
                    match together.iter_mut().find(|(known, _)| *known == model) {
                        Some((_, entries)) => entries.push(entry),
                        None => together.push((model, vec![entry])),
                    }
                }
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        for (model, entries) in together {
            let (model, decoder) = (&mut self.models[model].1, &mut self.decoder);
            let jobs: Vec<Job<'_>> =
                entries.iter().map(|entry| (&entry.picture, entry.source)).collect();
            let started = Instant::now();
            let detected = together_or_alone(model, decoder, &jobs);
            let took = started.elapsed();
            // The time of an image is its share of the batch's, and its own decoding.
            let decoded: Duration = detected.iter().flatten().map(|detected| detected.decode).sum();
            let share = took.saturating_sub(decoded) / entries.len() as u32;
            for (entry, detected) in entries.iter().zip(detected) {
                answers[entry.at] =
                    Some(detected.map(|detected| reply(&detected, share)).map_err(Into::into));
            }
        }
        let answers = answers.into_iter().map(|answer| answer.expect("each request was looked at"));
        batch.iter().zip(answers).collect()
    }

    fn entry<'m>(
        &mut self,
        at: usize,
        message: &'m Message,
    ) -> Result<(usize, Entry<'m>), RequestError> {
        let head = &message.head;
        let name = match head.contains_key("model") {
            true => Some(text(head, "model")?),
            false => None,
        };
        let model = self.find(name)?;
        let source = self.scene(head)?;
        Ok((model, Entry { at, picture: self.picture(message)?, source }))
    }

    fn picture<'m>(&self, message: &'m Message) -> Result<Picture<'m>, RequestError> {
        let head = &message.head;
        let shape = match head.get("shape") {
            None | Some(Value::Null) => None,
            Some(shape) => Some(sides(shape).ok_or(RequestError::Shape)?),
        };
        if !head.contains_key("offset") {
            return Ok(Picture { data: (&*message.payload).into(), shape });
        }
        let (offset, bytes) = (number(head, "offset", 0)?, number(head, "bytes", 0)?);
        let outside = RequestError::Outside { offset, bytes };
        let end = offset.checked_add(bytes);
        let (file, size) = self.memory.as_ref().ok_or(RequestError::Outside { offset, bytes })?;
        if end.is_none_or(|end| end > *size) || bytes > PAYLOAD_BYTES_MAX as u64 {
            return Err(outside);
        }
        // Copied: the other side may write over it once this request is answered.
        let mut data = vec![0; bytes as usize];
        file.read_exact_at(&mut data, offset).map_err(RequestError::Memory)?;
        Ok(Picture { data: data.into(), shape })
    }
}

/// Looks at images that came together; where that fails, each is looked at alone, so that one that fails takes no other along.
fn together_or_alone(
    model: &mut Model,
    decoder: &mut ImageDecoder,
    images: &[Job<'_>],
) -> Vec<Result<Detected, ModelError>> {
    match model.detect(decoder, images) {
        Ok(detected) => detected,
        Err(error) if images.len() == 1 => vec![Err(error)],
        Err(_) => {
            let alone = images.iter().flat_map(|image| match model.detect(decoder, &[*image]) {
                Ok(detected) => detected,
                Err(error) => vec![Err(error)],
            });
            alone.collect()
        }
    }
}

fn reply(detected: &Detected, share: Duration) -> Map<String, Value> {
    let found = &detected.found;
    let boxes = found
        .boxes
        .iter()
        .map(|([x1, y1, x2, y2, score], label)| json!([x1, y1, x2, y2, score, label]));
    let milliseconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let mut answer = fields(json!({
        "boxes": boxes.collect::<Vec<_>>(),
        "took_ms": milliseconds(share + detected.decode),
        "decode_ms": milliseconds(detected.decode),
        "size": [detected.size.width, detected.size.height],
    }));
    if !found.classes.is_empty() {
        answer.insert("classes".to_owned(), json!(found.classes));
    }
    if !found.poses.is_empty() {
        answer.insert("poses".to_owned(), json!(found.poses));
    }
    answer
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("an answer is made as an object"),
    }
}

fn sides(shape: &Value) -> Option<[usize; 3]> {
    let sides: Vec<usize> = shape
        .as_array()?
        .iter()
        .map(|side| side.as_u64().and_then(|side| usize::try_from(side).ok()))
        .collect::<Option<_>>()?;
    sides.try_into().ok()
}

fn number(head: &Map<String, Value>, field: &'static str, least: u64) -> Result<u64, RequestError> {
    let found = head.get(field).unwrap_or(&Value::Null);
    let value = found.as_u64().filter(|value| *value >= least);
    value.ok_or_else(|| RequestError::Number { field, least, found: shown(found) })
}

fn text<'h>(head: &'h Map<String, Value>, field: &'static str) -> Result<&'h str, RequestError> {
    let found = head.get(field).unwrap_or(&Value::Null);
    let text = found.as_str().filter(|text| !text.is_empty());
    text.ok_or_else(|| RequestError::Text { field, found: shown(found) })
}

fn shown(value: &Value) -> String {
    value.to_string().chars().take(100).collect()
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It broke.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// It ends in the middle.
    #[error("the stream ends inside a message")]
    Cut,
    /// A message that is too large.
    #[error("a message of {json_bytes} + {payload_bytes} bytes is over the limit")]
    TooLarge {
        /// Bytes of JSON.
        json_bytes: usize,
        /// Bytes behind it.
        payload_bytes: usize,
    },
    /// A message that is none.
    #[error("a message is not a JSON object")]
    Json(#[source] serde_json::Error),
}

/// Why a request is not carried out.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("unknown request {found}")]
    Unknown { found: String },
    #[error("{field} must be a whole number from {least}, not {found}")]
    Number { field: &'static str, least: u64, found: String },
    #[error("{field} must be a text, not {found}")]
    Text { field: &'static str, found: String },
    #[error("no descriptor came with the request for shared memory")]
    NoDescriptor,
    #[error("{bytes} bytes at {offset} are outside the shared memory")]
    Outside { offset: u64, bytes: u64 },
    #[error("the shared memory cannot be read")]
    Memory(#[source] io::Error),
    #[error("a shape is [height, width, channels]")]
    Shape,
    #[error("a scene request needs source: [width, height], each 1 to 65535")]
    Source,
    #[error("no scene was begun: send a scene request first")]
    NoScene,
    #[error("this detector has no background")]
    NoBackground,
    #[error("the model {model} does not learn")]
    NoTraining { model: String },
    #[error(
        "no model is loaded: put NAME.onnx and NAME.json into the folder that workers.models_dir names"
    )]
    NoModels,
    #[error("there is no model '{name}'; there are: {}", .known.join(" "))]
    NoModel { name: String, known: Vec<String> },
    #[error(
        "the model {name} is one of the Python worker, and none of this one; leave workers.runtime at \"python\" for it, or load a model of \
         yours by that name"
    )]
    OfPython { name: String },
    #[error("{name} was not loaded")]
    NotLoaded { name: String },
    #[error(
        "the answer has {bytes} bytes of JSON and may have {JSON_BYTES_MAX}: too much was found in the image"
    )]
    TooMuch { bytes: usize },
    #[error(transparent)]
    Model(#[from] ModelError),
}
