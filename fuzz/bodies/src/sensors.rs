//! Batches of sensor messages: any bytes of a peer, and round trips of encoded messages.

use bench_comprex::{ComprexConfig, ComprexDecoder, ComprexEncoder};
use tidegate_compress::{
    Compression, Decoded, Decoder, DecoderConfig, Encoder, EncoderConfig, Layout, Message,
};

/// Takes parts of an input: a length of one byte, then as many bytes as there are of it.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.byte()?).min(self.0.len());
        let (part, rest) = self.0.split_at(len);
        self.0 = rest;
        Some(part)
    }
}

fn config(choice: u8) -> EncoderConfig {
    EncoderConfig {
        columns: choice & 1 != 0,
        compression: match choice >> 1 & 3 {
            0 | 1 => Compression::None,
            2 => Compression::Zstd(1),
            _ => Compression::ZstdStream(1),
        },
        layout: match choice >> 3 & 3 {
            0 => Layout::Auto,
            1 => Layout::Json,
            2 => Layout::Csv(b','),
            _ => Layout::Line,
        },
        topics_max: if choice & 0x20 != 0 { 3 } else { 1000 },
        ..EncoderConfig::default()
    }
}

/// Bodies from a peer, one after the other, with headers that fit: no panic, no more state than its limit, and whatever does decode
/// has the lengths that its header says.
pub fn sensor_batch(data: &[u8]) {
    let mut parts = Parts(data);
    let Some(choice) = parts.byte() else { return };
    let limits =
        DecoderConfig { topics_max: 64, state_bytes_max: 1 << 16, body_bytes_max: 1 << 20 };
    let mut decoder = Decoder::new(limits, 1);
    let mut decoded = Decoded::default();
    while let Some(body) = parts.next() {
        // Most messages have no checksum that fits; the work on a body before its checksum is tried here.
        let (messages, bytes) = (parts.byte().unwrap_or(0), parts.byte().unwrap_or(0));
        let mut batch = vec![
            0x10 | choice & 7,
            1,
            decoder.sequence() as u8 & 0x7f,
            messages & 0x7f,
            bytes & 0x7f,
        ];
        batch.extend_from_slice(&[body.len() as u8 & 0x7f | 0x80, (body.len() >> 7) as u8]);
        batch.extend_from_slice(&[0; 4]);
        batch.extend_from_slice(body);
        if let Ok(header) = decoder.decode(&batch, &mut decoded) {
            assert_eq!(decoded.len(), header.messages as usize);
            assert_eq!(decoded.bytes().len(), header.message_bytes as usize);
        } else {
            assert!(decoded.is_empty());
        }
        assert!(decoder.topics() <= limits.topics_max);
        assert!(decoder.state_bytes() <= limits.state_bytes_max + (1 << 20));
        let _ = Decoder::new(limits, 1).decode(body, &mut decoded);
    }
}

/// Messages, in batches, some of which are lost or damaged: they come back as they were, once and in order.
pub fn sensor_messages(data: &[u8]) {
    let mut parts = Parts(data);
    let Some(choice) = parts.byte() else { return };
    let mut messages = Vec::new();
    while let (Some(head), Some(payload)) = (parts.byte(), parts.next()) {
        messages.push((head, payload));
    }
    let mut encoder = Encoder::new(config(choice), 1, 99);
    let mut decoder = Decoder::new(DecoderConfig::default(), 1);
    let mut decoded = Decoded::default();
    let (mut at, mut losses) = (0, 0);
    // Where each batch begins.
    let mut begins = vec![0];
    let mut batch = Vec::new();
    while at < messages.len() {
        let begin = at;
        let len = usize::from(messages[at].0 >> 4) + 1;
        for (head, payload) in messages[at..].iter().take(len) {
            let topic = [b't', head & 7];
            let attributes = &[1][..usize::from(head >> 3 & 1)];
            if encoder.push(Message { topic: &topic, attributes, payload }).is_err() {
                break;
            }
            at += 1;
        }
        assert!(at > begin, "an empty batch takes a message");
        batch.clear();
        encoder.finish(&mut batch).expect("it holds a message");
        // A few losses, so that this ends.
        if messages[begin].0 & 7 == 7 && losses < 8 {
            losses += 1;
            let sequence = decoder.sequence();
            encoder.resume(1, sequence).expect("the decoder is behind");
            at = begins[sequence as usize];
            begins.truncate(sequence as usize + 1);
            continue;
        }
        decoder.decode(&batch, &mut decoded).expect("an encoded batch decodes");
        assert_eq!(decoded.len(), at - begin);
        for ((head, payload), message) in messages[begin..at].iter().zip(decoded.iter()) {
            assert_eq!(message.topic, [b't', head & 7]);
            assert_eq!(message.attributes.len(), usize::from(head >> 3 & 1));
            assert_eq!(message.payload, *payload);
        }
        assert_eq!(encoder.state_bytes(), decoder.state_bytes());
        begins.push(at);
    }
}

/// The paper's scheme: any bytes are a batch or an error, and what is encoded comes back once corrections are in.
pub fn comprex(data: &[u8]) {
    let (mut decoder, mut into) = (ComprexDecoder::new(), ComprexDecoder::new());
    for _ in 0..2 {
        let (mut came, mut log, mut log_end) = (Vec::new(), Vec::new(), 0);
        let result = decoder.decode(data, |topic, _, payload| {
            came.extend_from_slice(topic);
            came.extend_from_slice(payload);
        });
        assert_eq!(into.decode_into(data, &mut log, |_, _, end| log_end = end), result);
        assert_eq!((log_end, &log), (log.len(), &came));
    }
    let _ = decoder.correct(data, |_, _, _| {});

    let mut parts = Parts(data);
    let Some(choice) = parts.byte() else { return };
    let max = u32::from(choice & 15);
    let config = ComprexConfig {
        max_n: max,
        max_store: max,
        batch_bytes: 200,
        topics_max: 6,
        forgets: choice & 16 != 0,
    };
    let (mut encoder, mut decoder) = (ComprexEncoder::new(config), ComprexDecoder::new());
    let mut into = ComprexDecoder::new();
    let mut sent: [Vec<&[u8]>; 4] = Default::default();
    let mut came: [Vec<Vec<u8>>; 4] = Default::default();
    let mut put = |topic: &[u8], number: u64, payload: &[u8]| {
        let came = &mut came[usize::from(topic[0])];
        let number = number as usize;
        assert!(number <= came.len());
        if number == came.len() {
            came.push(Vec::new());
        }
        came[number] = payload.to_vec();
    };
    while let (Some(head), Some(payload)) = (parts.byte(), parts.next()) {
        sent[usize::from(head & 3)].push(payload);
        let batch = encoder.push(&[head & 3], payload).expect("it is short");
        for batch in batch.into_iter().chain([encoder.finish()]) {
            decoder.decode(&batch, &mut put).expect("an encoded batch decodes");
            into.decode_into(&batch, &mut Vec::new(), |_, _, _| {})
                .expect("an encoded batch decodes");
        }
        decoder.correct(&encoder.take_critical(), &mut put).expect("an encoded batch decodes");
    }
    encoder.settle();
    decoder.correct(&encoder.take_critical(), &mut put).expect("an encoded batch decodes");
    for (sent, came) in sent.iter().zip(&came) {
        assert!(sent == came);
    }
    assert_eq!(encoder.counts().lost, 0);
}
