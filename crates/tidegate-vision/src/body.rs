//! Bodies of requests: bounded and charged while they come, and the image in them.
//!
//! ```text
//!  image/jpeg, image/png, application/octet-stream ──▶ the body itself, without a copy where it came in one piece
//!  multipart/form-data, field image ─────────────────▶ a part of the body, without a copy
//!  application/x-www-form-urlencoded, image=BASE64 ──▶ decoded
//!  application/json, {"image": "BASE64"} ────────────▶ decoded
//! ```
//!
//! Always true: nothing is decoded before the whole body is there, and no more of one is held than an image of the largest size has in
//! that form.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{
    body::{Body, HttpBody as _},
    http::{HeaderMap, header},
};
use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use memchr::memmem;
use serde::Deserialize;
use tidegate_rpc::BodyError;
use tidegate_wire::NodeId;
use tokio::time::timeout;

use crate::{
    budget::{Budget, Charge},
    buffers::{Buffer, Buffers},
    image,
    refused::{Refused, RequestError},
};

/// Bytes of a body in addition to its image: headers of parts, names, other fields.
const BESIDE_BYTES: usize = 64 << 10;
/// Longest value of a field that is not the image.
const FIELD_BYTES_MAX: usize = 1024;
/// Longest head of a part.
const PART_HEAD_BYTES_MAX: usize = 8 << 10;
/// Parts of one body.
const PARTS_MAX: usize = 64;

/// Base64 with or without padding at its end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The form of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Raw,
    Multipart(String),
    Urlencoded,
    Json,
}

impl Form {
    /// By the type that the request names; a body without one is an image.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Refused> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(Self::Raw) };
        let text = String::from_utf8_lossy(value.as_bytes());
        let (kind, rest) = text.split_once(';').unwrap_or((&text, ""));
        match kind.trim().to_ascii_lowercase().as_str() {
            "image/jpeg" | "image/jpg" | "image/png" | "application/octet-stream" => Ok(Self::Raw),
            "application/x-www-form-urlencoded" => Ok(Self::Urlencoded),
            "application/json" => Ok(Self::Json),
            "multipart/form-data" => match attribute(rest, "boundary") {
                Some(boundary) if (1..=70).contains(&boundary.len()) => {
                    Ok(Self::Multipart(boundary.to_owned()))
                }
                _ => Err(RequestError::Boundary.into()),
            },
            _ => Err(Refused::Type { found: text.escape_debug().take(100).collect() }),
        }
    }

    /// Most bytes of a body of this form with an image of at most `image_bytes_max`.
    fn bytes_max(&self, image_bytes_max: usize) -> usize {
        match self {
            Self::Raw => image_bytes_max,
            Self::Multipart(_) => image_bytes_max.saturating_add(BESIDE_BYTES),
            // Base64 has four bytes for three, with line ends; of percent signs a form has three for some of these.
            Self::Urlencoded | Self::Json => (image_bytes_max / 2 * 3).saturating_add(BESIDE_BYTES),
        }
    }
}

/// Most bytes of a request of the Open Inference Protocol with an image of at most `image_bytes_max`.
pub(crate) fn inference_bytes_max(image_bytes_max: usize) -> usize {
    Form::Json.bytes_max(image_bytes_max)
}

/// Where bodies are received.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    pub(crate) budget: Arc<Budget>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) image_bytes_max: usize,
    pub(crate) silent_max: Duration,
}

/// A body that is there, charged to its caller until it is dropped.
#[derive(Debug)]
pub(crate) struct Received {
    form: Form,
    body: Bytes,
    image_bytes_max: usize,
    buffers: Arc<Buffers>,
    charge: Charge,
}

impl Receiver {
    /// Receives the body of a request in that form.
    pub(crate) async fn receive(
        &self,
        caller: NodeId,
        form: Form,
        body: Body,
    ) -> Result<Received, Refused> {
        let bytes_max = form.bytes_max(self.image_bytes_max);
        let (body, charge) = self.collect(caller, body, bytes_max).await?;
        let (image_bytes_max, buffers) = (self.image_bytes_max, self.buffers.clone());
        Ok(Received { form, body, image_bytes_max, buffers, charge })
    }

    /// Receives at most `bytes_max`.
    pub(crate) async fn collect(
        &self,
        caller: NodeId,
        mut body: Body,
        bytes_max: usize,
    ) -> Result<(Bytes, Charge), Refused> {
        let announced = body.size_hint().lower();
        if announced > bytes_max as u64 {
            return Err(Refused::TooLarge { bytes_max });
        }
        let announced = usize::try_from(announced).unwrap_or(bytes_max);
        let mut charge = self.budget.open(caller);
        let mut gathered: Option<Buffer> = None;
        loop {
            let frame = timeout(self.silent_max, body.frame()).await;
            let frame = frame.map_err(|_| Refused::Slow { after: self.silent_max })?;
            let data = match frame {
                None => break,
                Some(Err(error)) => return Err(BodyError::of(&error).into()),
                // Trailers say nothing here.
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            let before = gathered.as_ref().map_or(0, |gathered| gathered.len());
            let bytes = before + data.len();
            if bytes > bytes_max {
                return Err(Refused::TooLarge { bytes_max });
            }
            charge.hold(bytes)?;
            if before == 0 && body.is_end_stream() {
                return Ok((data, charge));
            }
            // Room for what is announced, but no more than comes: an announcement costs its sender nothing.
            let room = announced.min(bytes.saturating_mul(8)).max(bytes);
            let gathered = gathered.get_or_insert_with(|| self.buffers.take(room));
            gathered.extend_from_slice(&data);
        }
        Ok((gathered.map(Buffer::into_bytes).unwrap_or_default(), charge))
    }
}

impl Received {
    /// The image, and the charge that lasts as long as it is held.
    pub(crate) fn image(self) -> Result<(Bytes, Charge), Refused> {
        let image = match &self.form {
            Form::Raw => self.body.clone(),
            Form::Multipart(boundary) => {
                part(&self.body, boundary, "image")?.ok_or(RequestError::NoImage)?
            }
            // A program that names no type of its own, such as curl, sends an image as a form.
            Form::Urlencoded if image::begins(&self.body) => self.body.clone(),
            Form::Urlencoded => {
                let value = field(&self.body, "image").ok_or(RequestError::NoImage)?;
                self.decoded(value, true)?
            }
            Form::Json => {
                let Json { image } =
                    serde_json::from_slice(&self.body).map_err(RequestError::Json)?;
                let image = image.ok_or(RequestError::NoImage)?;
                self.decoded(image.0.as_bytes(), false)?
            }
        };
        if image.len() > self.image_bytes_max {
            return Err(Refused::TooLarge { bytes_max: self.image_bytes_max });
        }
        Ok((image, self.charge))
    }

    /// A short field other than the image; none if it is missing, or no text.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        match &self.form {
            Form::Raw => None,
            Form::Multipart(boundary) => {
                let value = part(&self.body, boundary, name).ok()??;
                (value.len() <= FIELD_BYTES_MAX).then(|| String::from_utf8(value.to_vec()).ok())?
            }
            Form::Urlencoded => {
                let value = field(&self.body, name)?;
                let text =
                    str::from_utf8(value).ok().filter(|text| text.len() <= FIELD_BYTES_MAX)?;
                tidegate_device::query::decode(&text.replace('+', " "))
            }
            Form::Json => {
                let object: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
                object.get(name)?.as_str().map(str::to_owned)
            }
        }
    }

    fn decoded(&self, text: &[u8], has_escapes: bool) -> Result<Bytes, Refused> {
        Ok(decode(text, has_escapes, &self.buffers)?.into_bytes())
    }
}

#[derive(Deserialize)]
struct Json<'a> {
    #[serde(borrow)]
    image: Option<Text<'a>>,
}

/// A text of JSON, where it stands unless it has escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The bytes that a base64 text stands for: of either alphabet, with white space, with the start of a `data:` URL before it, and with
/// percent signs in a form.
pub(crate) fn decode(
    text: &[u8],
    has_escapes: bool,
    buffers: &Arc<Buffers>,
) -> Result<Buffer, RequestError> {
    let mut clean = buffers.take(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let byte = match byte {
            b'%' if has_escapes => {
                let (digits, after) = rest.split_at_checked(2).ok_or(RequestError::Escape)?;
                rest = after;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                match (digit(digits[0]), digit(digits[1])) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err(RequestError::Escape),
                }
            }
            byte => byte,
        };
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'-' => clean.push(b'+'),
            b'_' => clean.push(b'/'),
            // `data:image/jpeg;base64,`
            b',' if clean.starts_with(b"data:") => clean.clear(),
            byte => clean.push(byte),
        }
    }
    let mut out = buffers.take(0);
    out.resize(base64::decoded_len_estimate(clean.len()), 0);
    let length = BASE64.decode_slice(&clean, &mut out).map_err(RequestError::Base64)?;
    out.truncate(length);
    Ok(out)
}

/// The value of a field of a form, as it is written.
fn field<'b>(body: &'b [u8], name: &str) -> Option<&'b [u8]> {
    body.split(|byte| *byte == b'&').find_map(|pair| {
        let at = memchr::memchr(b'=', pair)?;
        (pair[..at] == *name.as_bytes()).then(|| &pair[at + 1..])
    })
}

/// The content of the part of that name; none if there is none.
fn part(body: &Bytes, boundary: &str, name: &str) -> Result<Option<Bytes>, RequestError> {
    let delimiter = format!("\r\n--{boundary}");
    let finder = memmem::Finder::new(&delimiter);
    // The first one need not begin with the end of a line.
    let mut at = match body.strip_prefix(&delimiter.as_bytes()[2..]) {
        Some(_) => delimiter.len() - 2,
        None => finder.find(body).ok_or(RequestError::Part)? + delimiter.len(),
    };
    for _ in 0..PARTS_MAX {
        let rest = &body[at..];
        if rest.starts_with(b"--") {
            return Ok(None);
        }
        let line = memmem::find(rest, b"\r\n").ok_or(RequestError::Part)?;
        let head = &rest[line..rest.len().min(line + PART_HEAD_BYTES_MAX)];
        let end = memmem::find(head, b"\r\n\r\n").ok_or(RequestError::Part)?;
        let content = at + line + end + 4;
        // An empty part ends with the end of its head.
        let length = finder.find(&body[content - 2..]).ok_or(RequestError::Part)?;
        let content_end = (content - 2 + length).max(content);
        if is_named(&head[..end], name) {
            return Ok(Some(body.slice(content..content_end)));
        }
        at = content - 2 + length + delimiter.len();
    }
    Err(RequestError::Part)
}

/// Whether the head of a part says that this is its name.
fn is_named(head: &[u8], name: &str) -> bool {
    let text = String::from_utf8_lossy(head);
    text.split("\r\n").any(|line| {
        line.split_once(':').is_some_and(|(field, value)| {
            field.trim().eq_ignore_ascii_case("content-disposition")
                && attribute(value, "name") == Some(name)
        })
    })
}

/// The attribute of that name among `; name="value"; other=value`.
fn attribute<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.split(';').find_map(|part| {
        let (found, value) = part.trim().split_once('=')?;
        let value = value.trim();
        let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        found.trim().eq_ignore_ascii_case(name).then(|| bare.unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::images;

    fn receiver() -> Receiver {
        Receiver {
            budget: Arc::new(Budget::new(1 << 20)),
            buffers: Arc::default(),
            image_bytes_max: 100_000,
            silent_max: Duration::from_secs(1),
        }
    }

    async fn image(kind: &str, body: impl Into<Body>) -> Result<Bytes, Refused> {
        let mut headers = HeaderMap::new();
        if !kind.is_empty() {
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
        }
        let form = Form::of(&headers)?;
        let received = receiver().receive(NodeId([1; 32]), form, body.into()).await?;
        received.image().map(|(image, _)| image)
    }

    fn in_lines(text: &str, end: &str) -> String {
        let lines: Vec<&str> =
            text.as_bytes().chunks(76).map(|line| str::from_utf8(line).unwrap()).collect();
        lines.join(end) + end
    }

    #[tokio::test]
    async fn an_image_is_found_in_every_form() {
        let jpeg = images::jpeg(180, 240);
        let text = base64::engine::general_purpose::STANDARD.encode(&jpeg);
        assert!(text.contains('+') && text.contains('/') && text.ends_with('='), "{text}");
        let url = text.replace('+', "-").replace('/', "_");
        let escaped = text.replace('+', "%2B").replace('/', "%2f").replace('=', "%3D");
        let lines = in_lines(&text, "\r\n");
        let in_form = lines.replace('+', "%2B").replace("\r\n", "%0D%0A");
        let parts = |head: &str| {
            let start = format!(
                "--xyz\r\nContent-Disposition: form-data; name=\"subject\"\r\n\r\nAnn\r\n--xyz\r\n{head}\r\n\r\n"
            );
            [start.as_bytes(), &jpeg, b"\r\n--xyz--\r\n"].concat()
        };
        let (form, multipart) =
            ("application/x-www-form-urlencoded", "multipart/form-data; boundary=xyz");
        for (kind, body) in [
            ("image/jpeg", jpeg.clone()),
            ("IMAGE/JPEG; q=1", jpeg.clone()),
            ("", jpeg.clone()),
            (form, jpeg.clone()),
            (form, format!("image={escaped}").into_bytes()),
            (form, format!("image={text}").into_bytes()), // a plus that is not escaped
            (form, format!("subject=a%20b&image={escaped}&x=1").into_bytes()),
            (form, format!("image={in_form}").into_bytes()),
            ("application/json", format!("{{\"image\": \"{text}\"}}").into_bytes()),
            (
                "application/json",
                serde_json::json!({ "x": [1], "image": lines }).to_string().into(),
            ),
            (
                "application/json",
                format!("{{\"image\": \"data:image/jpeg;base64,{url}\"}}").into_bytes(),
            ),
            (
                multipart,
                parts(
                    "Content-Disposition: form-data; name=\"image\"; filename=\"a;b.jpg\"\r\nContent-Type: image/jpeg",
                ),
            ),
            (
                "multipart/form-data; boundary=\"xyz\"",
                parts("content-disposition:form-data;name=image"),
            ),
        ] {
            let found = image(kind, body).await;
            assert!(found.as_ref().is_ok_and(|found| *found == jpeg), "{kind}: {found:?}");
        }
    }

    #[tokio::test]
    async fn what_is_no_image_is_named() {
        let long = vec![b'A'; 150_000];
        let (form, json) = ("application/x-www-form-urlencoded", "application/json");
        let multipart = "multipart/form-data; boundary=xyz";
        for (kind, body, status, text) in [
            ("text/html", b"x".to_vec(), 415, "a body of type \"text/html\" is not taken"),
            ("image/webp", b"x".to_vec(), 415, "\"image/webp\" is not taken"),
            (form, b"x=1".to_vec(), 400, "no image"),
            (form, b"image=%4".to_vec(), 400, "percent sign"),
            (form, b"image=A".to_vec(), 400, "not base64"),
            (form, b"image=AA*A".to_vec(), 400, "not base64"),
            (json, b"{".to_vec(), 400, "not a JSON object"),
            (json, b"{\"image\": 7}".to_vec(), 400, "not a JSON object"),
            (json, b"{}".to_vec(), 400, "no image"),
            ("multipart/form-data", b"".to_vec(), 400, "boundary"),
            (multipart, b"--xyz--".to_vec(), 400, "no image"),
            (multipart, b"nothing".to_vec(), 400, "not made of parts"),
            (
                multipart,
                b"--xyz\r\nContent-Disposition: form-data; name=image\r\n\r\ncut".to_vec(),
                400,
                "cut off",
            ),
            ("image/png", long.clone(), 413, "at most 100000 bytes"),
            (
                json,
                [b"{\"image\": \"", &long[..140_000], b"\"}"].concat(),
                413,
                "at most 100000 bytes",
            ),
            (json, vec![b' '; 300_000], 413, "at most 215536 bytes"),
        ] {
            let refused = image(kind, body).await.expect_err(text);
            assert_eq!(refused.status().as_u16(), status, "{kind}: {refused}");
            assert!(refused.message().contains(text), "{kind}: {}", refused.message());
        }
    }

    #[tokio::test]
    async fn fields_are_found_beside_the_image() {
        let multipart = Form::Multipart("xyz".to_owned());
        let parts = b"--xyz\r\nContent-Disposition: form-data; name=\"subject\"\r\n\r\nAnn Lee\r\n--xyz\r\n\
                      Content-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--xyz--";
        for (form, body) in [
            (multipart, &parts[..]),
            (Form::Urlencoded, b"image=AA&subject=Ann+Lee"),
            (Form::Urlencoded, b"subject=Ann%20Lee&empty="),
            (Form::Json, br#"{"subject": "Ann Lee", "empty": ""}"#),
        ] {
            let received =
                receiver().receive(NodeId([1; 32]), form, Body::from(body)).await.unwrap();
            assert_eq!(received.field("subject").as_deref(), Some("Ann Lee"), "{received:?}");
            assert_eq!(received.field("owner"), None);
            assert!(received.field("empty").is_none_or(|text| text.is_empty()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_charged_while_it_comes_and_waited_for_so_long() {
        let receiver = receiver();
        let chunk = |bytes: usize| Ok::<_, std::io::Error>(Bytes::from(vec![7; bytes]));
        let never = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        let parts = futures::stream::iter([chunk(10), chunk(20)]);
        let body = Body::from_stream(futures::StreamExt::chain(parts, never));
        let refused = receiver.receive(NodeId([1; 32]), Form::Raw, body).await.unwrap_err();
        assert!(matches!(refused, Refused::Slow { .. }), "{refused}");

        let parts = [chunk(10), chunk(20), Err(std::io::ErrorKind::ConnectionReset.into())];
        let body = Body::from_stream(futures::stream::iter(parts));
        let refused = receiver.receive(NodeId([1; 32]), Form::Raw, body).await.unwrap_err();
        assert!(matches!(refused, Refused::Body(BodyError::Broken)), "{refused}");

        let body = Body::from_stream(futures::stream::iter((0..9).map(move |_| chunk(20_000))));
        let refused = receiver.receive(NodeId([1; 32]), Form::Raw, body).await.unwrap_err();
        assert!(matches!(refused, Refused::TooLarge { .. }), "{refused}");

        // All of the above was given back.
        let mut all = receiver.budget.open(NodeId([2; 32]));
        assert!(all.hold((1 << 20) / 4 * 3).is_ok());
        let body = Body::from(vec![7; 90_000]);
        let received = receiver.receive(NodeId([1; 32]), Form::Raw, body).await.unwrap();
        let body = Body::from(vec![7; 100_000]);
        let more = receiver.receive(NodeId([1; 32]), Form::Raw, body).await;
        assert!(more.is_ok(), "{more:?}");
        let body = Body::from(vec![7; 100_000]);
        let refused = receiver.receive(NodeId([1; 32]), Form::Raw, body).await.unwrap_err();
        assert!(matches!(refused, Refused::NoRoom(_)), "{refused}");
        drop(received);
    }
}
