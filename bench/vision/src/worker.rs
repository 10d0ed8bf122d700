//! A detector that finds one box in every image, however long that is to take: a program for the node under test.
//!
//! It speaks version 2 of the detector protocol without shared memory, so that its images travel through the socket: an upper bound of what a
//! worker costs.

use std::{
    env,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

/// Where the node tells its socket.
const SOCKET_VARIABLE: &str = "TIDEGATE_DETECTOR_SOCKET";
/// Most bytes of a request's JSON and of an image.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
const IMAGE_BYTES_MAX: usize = 64 << 20;
/// Requests that it takes before it has answered the first.
const IN_FLIGHT: u32 = 8;

/// Serves the node that started this process until it closes.
///
/// # Errors
/// There is no such node, or it does not speak the protocol.
pub fn serve(takes: Duration) -> anyhow::Result<()> {
    let path = env::var_os(SOCKET_VARIABLE)
        .with_context(|| format!("{SOCKET_VARIABLE} is not set; a node starts this program"))?;
    let mut stream = UnixStream::connect(path).context("connecting to the node")?;
    // One that is to take its time is given the next image when it has answered, as a detector that is busy is.
    let in_flight = if takes.is_zero() { IN_FLIGHT } else { 1 };
    let models =
        ["face", "person", "object", "echo"].map(|name| json!({"name": name, "kind": "detection"}));
    let hello = json!({
        "type": "hello", "protocol": 2, "detector": "bench", "background": false, "memory": false,
        "in_flight": in_flight, "batch": 1, "scenes": 16, "models": models,
    });
    send(&mut stream, &hello)?;
    let mut input = io::BufReader::with_capacity(64 << 10, stream.try_clone()?);
    let mut image = Vec::new();
    while let Some(request) = receive(&mut input, &mut image)? {
        send(&mut stream, &answer(&request, &image, takes))?;
    }
    Ok(())
}

/// The next request, with its payload in `image`; none at the end.
fn receive(input: &mut impl Read, image: &mut Vec<u8>) -> anyhow::Result<Option<Value>> {
    let mut lengths = [0; 8];
    match input.read_exact(&mut lengths) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read.context("reading from the node")?,
    }
    let length = |at: usize| {
        let bytes = lengths[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(bytes) as usize
    };
    ensure!(
        length(0) <= MESSAGE_BYTES_MAX && length(4) <= IMAGE_BYTES_MAX,
        "a message is too long"
    );
    let mut text = vec![0; length(0)];
    input.read_exact(&mut text).context("reading from the node")?;
    image.resize(length(4), 0);
    input.read_exact(image).context("reading from the node")?;
    Ok(Some(serde_json::from_slice(&text).context("reading a request")?))
}

fn send(output: &mut impl Write, message: &Value) -> anyhow::Result<()> {
    let text = message.to_string();
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(text.as_bytes());
    output.write_all(&bytes).context("answering the node")
}

fn answer(request: &Value, image: &[u8], takes: Duration) -> Value {
    let id = &request["id"];
    match request["type"].as_str() {
        Some("scene") => json!({"id": id, "input": request["source"]}),
        Some("detect") => {
            let began = Instant::now();
            let Some([width, height]) = size(image) else {
                return json!({"id": id, "error": "this is no JPEG and no PNG"});
            };
            thread::sleep(takes);
            let took_ms = began.elapsed().as_secs_f64() * 1e3;
            json!({
                "id": id, "boxes": [[0, 0, width, height, 1.0, "picture"]], "took_ms": took_ms, "decode_ms": 0.0,
                "size": [width, height],
            })
        }
        _ => json!({"id": id}),
    }
}

/// Width and height as the header has them.
fn size(image: &[u8]) -> Option<[u32; 2]> {
    if image.starts_with(b"\x89PNG\r\n\x1a\n") {
        let side = |at: usize| Some(u32::from_be_bytes(image.get(at..at + 4)?.try_into().ok()?));
        return Some([side(16)?, side(20)?]);
    }
    let mut at = 2;
    loop {
        let [0xff, marker, high, low] = *image.get(at..at + 4)? else { return None };
        // The frame header (ITU-T T.81, B.2.2); tables of Huffman's and arithmetic coding have numbers among these.
        if matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
            let side = |at: usize| {
                Some(u32::from(u16::from_be_bytes([*image.get(at)?, *image.get(at + 1)?])))
            };
            return Some([side(at + 7)?, side(at + 5)?]);
        }
        at += 2 + usize::from(u16::from_be_bytes([high, low]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{jpeg, png, portrait};

    #[test]
    fn sizes_are_read_from_headers() {
        let picture = portrait(1);
        assert_eq!(size(&png(&picture).unwrap()), Some([180, 240]));
        assert_eq!(size(&jpeg(&picture, 80).unwrap()), Some([180, 240]));
        assert_eq!(size(b"%PDF-1.7 and more of it"), None);
        assert_eq!(size(&[0xff, 0xd8]), None);
    }

    #[test]
    fn requests_are_answered_by_their_id() {
        let image = jpeg(&portrait(1), 80).unwrap();
        let request = json!({"id": 3, "type": "detect", "model": "face"});
        let text = request.to_string();
        let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(&(image.len() as u32).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&image);
        let mut payload = Vec::new();
        let read = receive(&mut &bytes[..], &mut payload).unwrap().unwrap();
        assert_eq!((&read, &payload), (&request, &image));
        assert_eq!(receive(&mut &b""[..], &mut payload).unwrap(), None);
        let said = answer(&read, &payload, Duration::ZERO);
        assert_eq!((&said["id"], &said["size"]), (&json!(3), &json!([180, 240])));
        assert_eq!(said["boxes"][0], json!([0, 0, 180, 240, 1.0, "picture"]));
        assert!(answer(&read, b"no image", Duration::ZERO)["error"].is_string());
        let scene = json!({"id": 4, "type": "scene", "source": [640, 480]});
        assert_eq!(answer(&scene, &[], Duration::ZERO), json!({"id": 4, "input": [640, 480]}));
    }
}
