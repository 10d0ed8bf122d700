//! WebSocket: the opening and the frames, of either end.

use std::sync::Arc;

use tidegate_wire::websocket::{
    ClientHandshake, Decoder, Flow, FrameError, Handshake, Masks, Paths, REQUEST_BYTES_MAX, Step,
    encode_binary,
};

/// Frames, after a byte for who reads them and one for where they are cut: however that is, output, replies and end are the
/// same, replies are bounded by the input, nothing follows an end, what came out is encoded and decoded to itself, and messages end
/// at the same places.
pub fn websocket_frames(data: &[u8]) {
    let [who, cut, input @ ..] = data else { return };
    let (of_server, small) = (who & 1 != 0, who & 2 != 0);
    let new = || {
        let decoder = match of_server {
            true => Decoder::of_server(Masks::new([7; 32])),
            false => Decoder::of_client(),
        };
        if small { decoder.with_frame_bytes_max(1 << 10) } else { decoder }
    };
    let mut decoder = new();
    let (mut out, mut reply) = (Vec::new(), Vec::new());
    let end = decoder.decode(input, &mut out, &mut reply);
    let pieces = decode_pieces(new(), input, usize::from(*cut) + 1);
    assert_eq!((&pieces.0, &pieces.1, pieces.2), (&out, &reply, end));

    assert!(out.len() <= input.len());
    // A client's replies have a mask of four bytes each, and answer frames of two bytes at least.
    let most = if of_server { 3 * input.len() + 8 } else { input.len() + 4 };
    assert!(reply.len() <= most, "{} bytes answer {}", reply.len(), input.len());
    if end != Ok(Flow::Open) {
        let before = (out.len(), reply.len());
        assert_eq!(decoder.decode(input, &mut out, &mut reply), end);
        assert_eq!((out.len(), reply.len()), before);
    }

    let mut encoded = Vec::new();
    encode_binary(&out, (!of_server).then_some([1, 2, 3, *cut]), &mut encoded);
    let again = match of_server {
        true => Decoder::of_server(Masks::new([7; 32])),
        false => Decoder::of_client(),
    };
    let (decoded, replied, flow) = decode_pieces(again, &encoded, encoded.len());
    assert_eq!((decoded, replied.len(), flow), (out, 0, Ok(Flow::Open)));
    let messages = |piece: usize| messages(new().with_messages(MESSAGE_BYTES), input, piece);
    assert_eq!(messages(usize::from(*cut) + 1), messages(input.len().max(1)));
}

/// Longest message of those that are delimited by their ends.
const MESSAGE_BYTES: u64 = 1 << 10;

/// Payloads of messages, and whether each is text.
type Messages = Vec<(Vec<u8>, bool)>;

/// Messages by their ends, each within its bound, and how it ended.
fn messages(
    mut decoder: Decoder,
    input: &[u8],
    piece: usize,
) -> (Messages, Result<Flow, FrameError>) {
    let (mut out, mut reply, mut end) = (Vec::new(), Vec::new(), Ok(Flow::Open));
    let mut all = Vec::new();
    for part in input.chunks(piece) {
        end = decoder.decode(part, &mut out, &mut reply);
        while let Some(message) = decoder.poll_message() {
            assert!(message.bytes as u64 <= MESSAGE_BYTES);
            all.push((out.drain(..message.bytes).collect(), message.is_text));
        }
        assert!(out.len() as u64 <= MESSAGE_BYTES, "an unfinished message is bounded");
    }
    (all, end)
}

fn decode_pieces(
    mut decoder: Decoder,
    input: &[u8],
    piece: usize,
) -> (Vec<u8>, Vec<u8>, Result<Flow, FrameError>) {
    let (mut out, mut reply, mut end) = (Vec::new(), Vec::new(), Ok(Flow::Open));
    for part in input.chunks(piece) {
        end = decoder.decode(part, &mut out, &mut reply);
    }
    (out, reply, end)
}

/// A request or an answer, after a byte for where it is cut: however that is, either end comes to the same; answers are short;
/// and what follows a request or an answer of ours is handed on as it is.
pub fn websocket_handshake(data: &[u8]) {
    let Some((&cut, input)) = data.split_first() else { return };
    let piece = usize::from(cut) + 1;
    let opening = || Handshake::new(Paths::of(["/mqtt"]), Arc::default(), false);
    let whole = opening().receive(input);
    let mut server = opening();
    let mut step = Step::More;
    let mut parts = input.chunks(piece);
    while step == Step::More
        && let Some(part) = parts.next()
    {
        step = server.receive(part);
    }
    if let Step::Accept { rest, .. } = &mut step {
        parts.for_each(|part| rest.extend_from_slice(part));
    }
    assert_eq!(step, whole);
    match &whole {
        Step::More => assert!(input.len() < REQUEST_BYTES_MAX),
        Step::Accept { response, rest } => {
            assert!(response.starts_with(b"HTTP/1.1 101 ") && input.ends_with(rest));
        }
        Step::Refuse { response, .. } => {
            assert!(response.starts_with(b"HTTP/1.1 4") && response.len() < 512);
        }
    }

    let begin = || ClientHandshake::begin("host", "/mqtt", [7; 16]).expect("it can be asked for");
    let whole = begin().0.receive(input);
    let mut client = begin().0;
    let mut got = Ok(None);
    let mut parts = input.chunks(piece);
    while got == Ok(None)
        && let Some(part) = parts.next()
    {
        got = client.receive(part);
    }
    if let Ok(Some(rest)) = &mut got {
        parts.for_each(|part| rest.extend_from_slice(part));
    }
    assert_eq!(got, whole);

    let (mut client, mut request) = begin();
    request.extend_from_slice(input);
    let Step::Accept { mut response, rest } = opening().receive(&request) else {
        panic!("our own request is refused");
    };
    assert_eq!(rest, input);
    response.extend_from_slice(input);
    assert_eq!(client.receive(&response), Ok(Some(input.to_vec())));
}
