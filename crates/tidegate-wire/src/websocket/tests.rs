use proptest::prelude::*;

use super::*;

/// A decoder's result, output and replies for `pieces`.
type Decoded = (Result<Flow, FrameError>, Vec<u8>, Vec<u8>);

fn decode<'a>(mut decoder: Decoder, pieces: impl IntoIterator<Item = &'a [u8]>) -> Decoded {
    let (mut out, mut reply) = (Vec::new(), Vec::new());
    let mut result = Ok(Flow::Open);
    for piece in pieces {
        result = decoder.decode(piece, &mut out, &mut reply);
    }
    (result, out, reply)
}

fn of_server() -> Decoder {
    Decoder::of_server(Masks::new([5; 32]))
}

/// A client's frame with a mask.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(first & 0x0f, payload, Some([0x37, 0xfa, 0x21, 0x3d]), &mut frame);
    frame[0] = first;
    frame
}

#[test]
fn examples_of_rfc_6455_are_read() {
    // Section 5.7, with binary in place of text, which MQTT does not take.
    let ping = [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    let masked_pong = [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let masked_hello = [0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let open = Ok(Flow::Open);
    assert_eq!(decode(Decoder::of_client(), [&masked_hello[..]]), (open, b"Hello".into(), vec![]));
    assert_eq!(decode(Decoder::of_client(), [&masked_pong[..]]), (open, vec![], vec![]));
    let fragments = [0x02, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
    assert_eq!(decode(of_server(), [&fragments[..]]), (open, b"Hello".into(), vec![]));
    let (result, out, reply) = decode(of_server(), [&ping[..]]);
    assert_eq!((result, out), (open, vec![]));
    assert_eq!(decode(Decoder::of_client(), [&reply[..]]), (open, vec![], vec![]));
    assert_eq!(reply[0], 0x8a, "a pong, masked as a client's are");

    let hello = masked(0x82, b"Hello");
    assert_eq!(hello, masked_hello);
    for (bytes, header) in [
        (5, &[0x82, 0x05][..]),
        (256, &[0x82, 0x7e, 0x01, 0x00]),
        (65536, &[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        assert_eq!(binary_header(bytes).as_bytes(), header);
    }
}

#[test]
fn control_frames_come_between_fragments() {
    let mut input = masked(0x02, b"ab");
    input.extend(masked(0x89, b"there?"));
    input.extend(masked(0x00, b"")); // an empty fragment is one
    input.extend(masked(0x8a, b"late"));
    input.extend(masked(0x80, b"cd"));
    input.extend(masked(0x82, b"e"));
    input.extend(masked(0x88, &[0x03, 0xe9, b'b', b'y', b'e']));
    input.extend(masked(0x82, b"after the close"));
    let (result, out, reply) = decode(Decoder::of_client(), [&input[..]]);
    assert_eq!(result, Ok(Flow::Closed(Some(CloseCode::AWAY))));
    assert_eq!(out, b"abcde");
    assert_eq!(reply, [&[0x8a, 6][..], b"there?", &[0x88, 2, 0x03, 0xe9]].concat());
}

#[test]
fn errors_close_with_their_code() {
    let frame = |first, payload: &[u8]| masked(first, payload);
    let masked_server = masked(0x82, b"x");
    for (input, error, code) in [
        (frame(0x81, b"text"), FrameError::Text, 1003),
        (frame(0x01, b"te"), FrameError::Text, 1003),
        (frame(0xc2, b"x"), FrameError::ReservedBits, 1002),
        (frame(0x83, b"x"), FrameError::UnknownOpcode { opcode: 3 }, 1002),
        (frame(0x8b, b"x"), FrameError::UnknownOpcode { opcode: 11 }, 1002),
        (frame(0x80, b"x"), FrameError::NothingToContinue, 1002),
        ([frame(0x02, b"x"), frame(0x82, b"y")].concat(), FrameError::NotContinued, 1002),
        (frame(0x09, b"x"), FrameError::LargeControl, 1002),
        (frame(0x89, &[0; 126]), FrameError::LargeControl, 1002),
        (vec![0x82, 0x01, 0x00], FrameError::NotMasked, 1002),
        (vec![0x82, 0xfe, 0, 125, 1, 2, 3, 4], FrameError::LongLength, 1002),
        (vec![0x82, 0xff, 0, 0, 0, 0, 0, 0, 255, 255, 1, 2, 3, 4], FrameError::LongLength, 1002),
        (
            vec![0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4],
            FrameError::TooLarge { bytes: 0xff << 56, bytes_max: 1000 },
            1009,
        ),
        (frame(0x82, &[0; 1001]), FrameError::TooLarge { bytes: 1001, bytes_max: 1000 }, 1009),
        (frame(0x88, &[3]), FrameError::Close, 1002),
        (frame(0x88, &[0x03, 0xed]), FrameError::Close, 1002), // 1005 is never sent
        (frame(0x88, &[0x03, 0xe8, 0xff]), FrameError::CloseReason, 1007),
    ] {
        let decoder = Decoder::of_client().with_frame_bytes_max(1000);
        let (result, _, reply) = decode(decoder, [&input[..], &masked(0x89, b"more")]);
        assert_eq!(result, Err(error), "{input:x?}");
        let [high, low] = u16::to_be_bytes(code);
        assert_eq!(reply, [0x88, 2, high, low], "{input:x?}");
    }
    assert_eq!(decode(of_server(), [&masked_server[..]]).0, Err(FrameError::Masked));
    assert_eq!(decode(Decoder::of_client(), [&masked(0x88, b"")[..]]).2, [0x88, 0]);
}

#[test]
fn client_and_server_read_each_other() {
    let mut masks = Masks::new([9; 32]);
    for bytes in [0, 1, 125, 126, 65535, 65536, 70001] {
        let payload: Vec<u8> = (0..bytes).map(|number| number as u8).collect();
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        encode_binary(&payload, Some(masks.next_mask()), &mut to_server);
        encode_binary(&payload, None, &mut to_client);
        assert_eq!(to_client[..to_client.len() - bytes], *binary_header(bytes).as_bytes());
        assert_eq!(decode(Decoder::of_client(), [&to_server[..]]).1, payload);
        assert_eq!(decode(of_server(), [&to_client[..]]).1, payload);
    }
    assert_ne!(masks.next_mask(), masks.next_mask());
    let mut close = Vec::new();
    encode_close(CloseCode::NORMAL, Some(masks.next_mask()), &mut close);
    let closed = decode(Decoder::of_client(), [&close[..]]).0;
    assert_eq!(closed, Ok(Flow::Closed(Some(CloseCode::NORMAL))));
}

/// Mostly frames that make sense, some that do not.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let first = prop::sample::select(vec![
        0x82, 0x82, 0x82, 0x02, 0x00, 0x80, 0x89, 0x8a, 0x88, 0x81, 0xc2,
    ]);
    let frame = (first, prop::collection::vec(any::<u8>(), 0..200))
        .prop_map(|(first, payload)| masked(first, &payload));
    prop::collection::vec(frame, 0..8).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn any_cut_gives_the_same(
        input in prop_oneof![stream(), prop::collection::vec(any::<u8>(), 0..300)],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.extend([0, input.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &input[pair[0]..pair[1]]);
        let whole = decode(Decoder::of_client(), [&input[..]]);
        prop_assert_eq!(&decode(Decoder::of_client(), pieces), &whole);
        prop_assert_eq!(&decode(Decoder::of_client(), input.chunks(1)), &whole);
        prop_assert!(whole.2.len() <= input.len() + 32);
        let _ = decode(of_server(), [&input[..]]);
    }

    #[test]
    fn mask_is_that_of_each_byte(key: [u8; 4], bytes: Vec<u8>, cut: prop::sample::Index) {
        let expected: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect();
        let (mut mask, mut bytes, at) = (Mask::new(key), bytes.clone(), cut.index(bytes.len() + 1));
        let (head, tail) = bytes.split_at_mut(at);
        mask.apply(head);
        mask.apply(tail);
        prop_assert_eq!(bytes, expected);
    }
}

/// A message, and whether it is text.
type Text = (Vec<u8>, bool);

/// The messages of a decoder that takes at most ten bytes each, or why it ended.
fn messages(frames: &[u8]) -> (Vec<Text>, Result<Flow, FrameError>) {
    let mut decoder = Decoder::of_client().with_messages(10);
    let (mut out, mut reply, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let mut flow = Ok(Flow::Open);
    // Byte by byte: however the input is cut, messages are the same.
    for byte in frames {
        flow = decoder.decode(&[*byte], &mut out, &mut reply);
        while let Some(end) = decoder.poll_message() {
            all.push((out.drain(..end.bytes).collect(), end.is_text));
        }
        if flow != Ok(Flow::Open) {
            break;
        }
    }
    (all, flow)
}

/// A masked frame, of the key 0: the payload as it is.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, 0x80 | payload.len() as u8, 0, 0, 0, 0];
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn messages_are_told_by_their_ends() {
    let frames = [
        frame(0x81, b"text"),
        frame(0x02, b"01234"),
        frame(0x89, b"ping"),
        frame(0x00, b"567"),
        frame(0x80, b"89"),
        frame(0x82, b""),
        frame(0x01, b""),
        frame(0x80, b"end"),
    ];
    let (all, flow) = messages(&frames.concat());
    let expected = [("text", true), ("0123456789", false), ("", false), ("end", true)];
    let expected: Vec<_> =
        expected.iter().map(|(text, is_text)| (text.as_bytes().to_vec(), *is_text)).collect();
    assert_eq!((all, flow), (expected, Ok(Flow::Open)));
}

#[test]
fn a_message_that_grows_too_large_ends_it() {
    let frames = [frame(0x01, b"012345"), frame(0x80, b"67890")];
    let (all, flow) = messages(&frames.concat());
    assert!(all.is_empty());
    assert_eq!(flow, Err(FrameError::TooLarge { bytes: 11, bytes_max: 10 }));
    let (_, flow) = messages(&[frame(0x01, b"a"), frame(0x81, b"b")].concat());
    assert_eq!(flow, Err(FrameError::NotContinued));
}

#[test]
fn a_close_has_as_much_of_its_reason_as_fits() {
    let long = "é".repeat(100);
    for (reason, sent) in [("", ""), ("try again", "try again"), (long.as_str(), &long[..122])] {
        let mut bytes = Vec::new();
        encode_close_with(CloseCode::TRY_AGAIN_LATER, reason, &mut bytes);
        let mut expected = vec![0x88, 2 + sent.len() as u8, 0x03, 0xf5];
        expected.extend_from_slice(sent.as_bytes());
        assert_eq!(bytes, expected);
        let mut decoder = Decoder::of_server(Masks::new([1; 32]));
        let flow = decoder.decode(&bytes, &mut Vec::new(), &mut Vec::new());
        assert_eq!(flow, Ok(Flow::Closed(Some(CloseCode::TRY_AGAIN_LATER))));
    }
}
