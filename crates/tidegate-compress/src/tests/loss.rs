//! Batches that are lost, damaged, repeated or from another life.

use super::*;

/// Messages that a sender keeps until they are acknowledged, here forever, and the batch of each.
pub(super) struct Link {
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) sent: Vec<Owned>,
    /// Where in `sent` each batch of the epoch begins.
    begins: Vec<usize>,
    pub(super) received: Vec<Owned>,
}

impl Link {
    pub(super) fn new(config: EncoderConfig) -> Self {
        Self {
            encoder: Encoder::new(config, 7, 99),
            decoder: Decoder::new(DecoderConfig::default(), 7),
            sent: Vec::new(),
            begins: Vec::new(),
            received: Vec::new(),
        }
    }

    /// Encodes what was sent from `at` on, `per_batch` a batch.
    pub(super) fn encode(&mut self, mut at: usize, per_batch: usize) -> Vec<Vec<u8>> {
        let mut batches = Vec::new();
        while at < self.sent.len() {
            let end = (at + per_batch).min(self.sent.len());
            for (topic, attributes, payload) in &self.sent[at..end] {
                self.encoder.push(Message { topic, attributes, payload }).unwrap();
            }
            assert_eq!(self.encoder.sequence() as usize, self.begins.len());
            self.begins.push(at);
            let mut batch = Vec::new();
            self.encoder.finish(&mut batch).unwrap();
            batches.push(batch);
            at = end;
        }
        batches
    }

    pub(super) fn decode(&mut self, batch: &[u8]) -> Result<(), DecodeError> {
        let mut decoded = Decoded::default();
        self.decoder.decode(batch, &mut decoded)?;
        self.received.extend(owned(&decoded));
        Ok(())
    }

    /// The sender goes back to where the receiver is; returns the first message that must be sent again.
    pub(super) fn resume(&mut self) -> usize {
        let sequence = self.decoder.sequence();
        self.encoder.resume(self.decoder.epoch(), sequence).unwrap();
        let at = self.begins.get(sequence as usize).copied().unwrap_or(self.sent.len());
        self.begins.truncate(sequence as usize);
        at
    }
}

#[test]
fn after_a_loss_only_what_was_lost_is_defined_again() {
    for config in every_config() {
        let mut link = Link::new(config);
        link.sent = workload(Workload::City, 200, 1000, Form::Natural);
        for batch in link.encode(0, 50) {
            link.decode(&batch).unwrap();
        }
        // Two batches of 20 messages get lost.
        let more = workload(Workload::City, 200, 1040, Form::Natural);
        link.sent.extend_from_slice(&more[1000..]);
        let before = link.encoder.counts().definitions;
        let lost = link.encode(1000, 20);
        let again = link.resume();
        assert_eq!(again, 1000);
        for batch in link.encode(again, 20) {
            link.decode(&batch).unwrap();
        }
        assert_eq!(link.received, link.sent);
        let redefined = link.encoder.counts().definitions - before;
        assert!(
            (1..=40).contains(&redefined),
            "{redefined} of 40 messages define their topic again"
        );
        assert_eq!(
            link.decode(&lost[0]),
            Err(DecodeError::Sequence { found: 20, expected: 22 }),
            "a lost batch that comes late is refused"
        );
        assert_eq!(link.received.len(), 1040);
    }
}

#[test]
fn a_new_epoch_knows_nothing_and_an_old_one_is_refused() {
    let mut link = Link::new(EncoderConfig::default());
    link.sent = workload(Workload::Grid, 20, 100, Form::Natural);
    let old = link.encode(0, 10);
    for batch in &old[..5] {
        link.decode(batch).unwrap();
    }
    link.decoder.restart(8);
    let error = link.decode(&old[5]).unwrap_err();
    assert_eq!(error, DecodeError::Epoch { found: 7, current: 8 });
    assert_eq!(link.encoder.resume(8, 0), Err(ResumeError::Epoch { asked: 8, current: 7 }));
    assert_eq!(link.encoder.resume(7, 11), Err(ResumeError::Sequence { asked: 11, next: 10 }));
    link.encoder.restart(8, 5);
    link.begins.clear();
    for batch in link.encode(50, 10) {
        link.decode(&batch).unwrap();
    }
    assert_eq!(link.received, link.sent);
}

#[test]
fn a_shard_that_was_reset_is_defined_again_and_no_other() {
    let mut link = Link::new(EncoderConfig::default());
    link.sent = workload(Workload::City, 600, 1200, Form::Natural);
    for batch in link.encode(0, 100) {
        link.decode(&batch).unwrap();
    }
    let before = link.encoder.counts().definitions;
    link.encoder.reset_shard(3);
    let more = workload(Workload::City, 600, 3000, Form::Natural);
    link.sent.extend_from_slice(&more[1200..]);
    for batch in link.encode(1200, 100) {
        link.decode(&batch).unwrap();
    }
    assert_eq!(link.received, link.sent);
    // Topics are numbered densely: of 600, numbers 3, 259 and 515 are in shard 3. New topics aside, which come for the first time.
    let redefined = link.encoder.counts().definitions - before;
    let new = link.encoder.topics() as u64 - before;
    assert_eq!(redefined - new, 600u64.div_ceil(SHARDS as u64));
}

#[test]
fn a_shard_that_both_ends_reset_is_defined_again_and_no_other() {
    for config in every_config() {
        let mut link = Link::new(config);
        let messages = workload(Workload::City, 600, 6000, Form::Natural);
        link.sent = messages[..3000].to_vec();
        for batch in link.encode(0, 100) {
            link.decode(&batch).unwrap();
        }
        let before = (link.encoder.counts().definitions, link.encoder.topics() as u64);
        for shard in [3, 255] {
            let mut kept = link.decoder.topics();
            link.decoder.reset_shard(shard);
            kept -= link.decoder.topics();
            assert_eq!(kept, (usize::from(shard)..before.1 as usize).step_by(SHARDS).count());
        }
        assert_eq!(link.resume(), 3000);
        link.encoder.reset_shard(3);
        link.encoder.reset_shard(255);
        link.sent = messages.clone();
        for batch in link.encode(3000, 100) {
            link.decode(&batch).unwrap();
        }
        assert!(link.received == messages);
        let topics = link.encoder.topics() as u64;
        let lost = |shard: u64| (shard..before.1).step_by(SHARDS).count() as u64;
        let redefined = link.encoder.counts().definitions - before.0 - (topics - before.1);
        assert_eq!(redefined, lost(3) + lost(255));
        assert_eq!(link.encoder.state_bytes(), link.decoder.state_bytes());
    }
}

#[test]
fn topics_that_only_a_damaged_batch_named_are_defined_again_by_their_shard() {
    const TOPICS: usize = 700;
    let messages: Vec<Owned> = (0..3 * TOPICS)
        .map(|n| {
            let payload = format!("{},{}", n / TOPICS + 20, n * 31 % 97);
            (format!("t/{}", n % TOPICS).into_bytes(), vec![], payload.into_bytes())
        })
        .collect();
    let mut resets = 0;
    for seed in 0..160 {
        let mut link = Link::new(EncoderConfig::default());
        link.sent = messages[..2 * TOPICS].to_vec();
        for batch in link.encode(0, 100) {
            link.decode(&batch).unwrap();
        }
        let before = link.encoder.counts().definitions;
        let (mut at, mut is_damaged, mut redefined_max) = (2 * TOPICS, true, 0);
        while at < messages.len() {
            link.sent = messages[..(at + 50).min(messages.len())].to_vec();
            let mut batch = link.encode(at, 50).remove(0);
            if is_damaged {
                let place = batch.len() - 1 - seed / 8;
                batch[place] ^= 1 << (seed % 8);
            }
            let Err(error) = link.decode(&batch) else {
                at = link.sent.len();
                continue;
            };
            at = link.resume();
            redefined_max += 50;
            if let Some(shard) = error.lost_shard() {
                link.decoder.reset_shard(shard);
                link.encoder.reset_shard(shard);
                redefined_max += TOPICS.div_ceil(SHARDS) as u64;
                resets += usize::from(!is_damaged);
            }
            is_damaged = false;
        }
        assert!(link.received == messages, "seed {seed}");
        let redefined = link.encoder.counts().definitions - before;
        assert!(redefined <= redefined_max, "seed {seed}: {redefined}");
    }
    assert!(resets > 5, "{resets} batches named what was lost");
}

#[test]
fn each_byte_of_a_batch_damaged_in_turn_loses_nothing() {
    for config in every_config() {
        let mut link = Link::new(config);
        link.sent = workload(Workload::City, 12, 60, Form::Natural);
        let batches = link.encode(0, 20);
        let last = batches.last().unwrap();
        for at in 0..last.len() {
            for bit in [0x01, 0x80] {
                let mut damaged = last.clone();
                damaged[at] ^= bit;
                let mut other = Link::new(link.config());
                other.sent = link.sent.clone();
                other.encode(0, 20);
                for batch in &batches[..2] {
                    other.decode(batch).unwrap();
                }
                // A bit that says nothing, in a zstd frame's header, may be damaged without a difference.
                if other.decode(&damaged).is_err() {
                    assert_eq!(other.received, link.sent[..40]);
                    let again = other.resume();
                    for batch in other.encode(again, 20) {
                        other.decode(&batch).unwrap();
                    }
                }
                assert_eq!(other.received, other.sent, "byte {at} of {}", last.len());
            }
        }
    }
}

impl Link {
    fn config(&self) -> EncoderConfig {
        self.encoder.config().clone()
    }
}

#[test]
fn a_batch_cut_anywhere_is_refused() {
    let mut link = Link::new(EncoderConfig::default());
    link.sent = workload(Workload::Taxi, 5, 20, Form::Natural);
    let batch = link.encode(0, 20).remove(0);
    for len in 0..batch.len() {
        let mut decoder = Decoder::new(DecoderConfig::default(), 7);
        assert!(decoder.decode(&batch[..len], &mut Decoded::default()).is_err(), "{len} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Batches get lost, damaged and repeated, evictions happen, connections break: all messages arrive once, in order.
    #[test]
    fn all_arrives_once_and_in_order_over_a_link_that_breaks(
        messages in proptest::collection::vec(message(), 1..200),
        fates in proptest::collection::vec((0u8..10, any::<prop::sample::Index>(), any::<u8>()), 1..80),
        per_batch in 1usize..12,
        topics_max in 3usize..6,
        columns: bool,
        compression in prop_oneof![Just(Compression::None), Just(Compression::ZstdStream(1))],
        body_bytes in prop_oneof![Just(1), Just(64 << 10)],
    ) {
        let config = EncoderConfig { columns, compression, topics_max, body_bytes, ..EncoderConfig::default() };
        let mut link = Link::new(config);
        let mut epoch = 7;
        let mut fates = fates.into_iter();
        let mut at = 0;
        // Each connection sends what the receiver does not have, until something breaks; in the end nothing does.
        loop {
            link.sent = messages.clone();
            let batches = link.encode_some(at, per_batch);
            let mut broke = false;
            for batch in batches {
                match fates.next() {
                    Some((0, ..)) => broke = true, // lost, and all after it
                    Some((1, index, bits)) if bits != 0 => {
                        let mut damaged = batch.clone();
                        let at = index.index(damaged.len());
                        damaged[at] ^= bits;
                        broke = link.decode(&damaged).is_err();
                    }
                    Some((2, ..)) => {
                        link.decode(&batch).unwrap();
                        prop_assert!(link.decode(&batch).unwrap_err().is_harmless(), "a batch is taken once");
                    }
                    Some((3, ..)) => {
                        epoch += 1;
                        link.decoder.restart(epoch);
                        broke = true;
                    }
                    _ => link.decode(&batch).unwrap(),
                }
                if broke {
                    break;
                }
            }
            if !broke && link.received.len() == messages.len() {
                break;
            }
            if link.encoder.epoch() == epoch {
                at = link.resume();
            } else {
                link.encoder.restart(epoch, 3);
                link.begins.clear();
                at = link.received.len();
            }
        }
        prop_assert_eq!(&link.received, &messages);
    }
}

impl Link {
    /// As [`Link::encode`], but batches end early where the encoder asks for it.
    fn encode_some(&mut self, mut at: usize, per_batch: usize) -> Vec<Vec<u8>> {
        let mut batches = Vec::new();
        while at < self.sent.len() {
            self.begins.push(at);
            for (topic, attributes, payload) in self.sent[at..].iter().take(per_batch) {
                match self.encoder.push(Message { topic, attributes, payload }) {
                    Ok(()) => at += 1,
                    Err(EncodeError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            let mut batch = Vec::new();
            self.encoder.finish(&mut batch).unwrap();
            batches.push(batch);
        }
        batches
    }
}

#[test]
fn numbers_that_changed_hands_in_lost_batches_count_once() {
    let config = EncoderConfig {
        state_bytes_max: 100_000,
        layout: Layout::Opaque,
        ..EncoderConfig::default()
    };
    let mut link = Link::new(config);
    link.decoder =
        Decoder::new(DecoderConfig { state_bytes_max: 100_000, ..DecoderConfig::default() }, 7);
    let topic = |number: u32, payload: usize, attributes: usize| -> Owned {
        (format!("t/{number}").into_bytes(), vec![1; attributes], vec![number as u8; payload])
    };
    link.sent.extend((0..20).map(|number| topic(number, 4000, 0)));
    for batch in link.encode(0, 4) {
        link.decode(&batch).unwrap();
    }
    // One that pushes out many, and small ones that take their numbers: all lost.
    link.sent.push(topic(100, 10, 60_000));
    link.sent.extend((200..215).map(|number| topic(number, 10, 0)));
    link.encode(20, 1);
    let again = link.resume();
    for batch in link.encode(again, 1) {
        link.decode(&batch).unwrap();
    }
    assert_eq!(link.received, link.sent);
}

#[test]
fn a_batch_that_begins_otherwise_after_a_loss_finds_room() {
    let mut link = Link::new(EncoderConfig { topics_max: 1, ..EncoderConfig::default() });
    link.sent = texts("a", &["1"]);
    link.encode(0, 1);
    link.encoder.resume(7, 0).unwrap();
    link.begins.clear();
    link.sent = texts("b", &["2"]);
    let batch = link.encode(0, 1).remove(0);
    link.decode(&batch).unwrap();
    assert_eq!(link.received, link.sent);
}

#[test]
fn undefinitions_after_a_loss_fill_half_a_batch_at_most() {
    let config = EncoderConfig { body_bytes: 1000, ..EncoderConfig::default() };
    let mut link = Link::new(config);
    link.sent = workload(Workload::City, 2000, 2000, Form::Natural);
    link.encode(0, 100);
    let again = link.resume();
    let mut lens = Vec::new();
    for at in again..link.sent.len() {
        let (topic, attributes, payload) = &link.sent[at];
        link.encoder.push(Message { topic, attributes, payload }).unwrap();
        if link.encoder.is_due() || at + 1 == link.sent.len() {
            let mut batch = Vec::new();
            lens.push(link.encoder.finish(&mut batch).unwrap().body_bytes);
            let mut decoded = Decoded::default();
            link.decoder.decode(&batch, &mut decoded).unwrap();
            link.received.extend(owned(&decoded));
        }
    }
    assert_eq!(link.received, link.sent);
    assert!(lens.iter().all(|len| *len < 1300), "{lens:?}");
    assert_eq!(link.encoder.state_bytes(), link.decoder.state_bytes());
}

#[test]
fn the_longest_message_after_a_loss_of_many_topics_finds_room_in_its_batch() {
    const TOPICS: u32 = 600_000;
    // As much as there may be of them, so that the decoder may have no room for others.
    let state_bytes_max = u64::from(TOPICS) * 80;
    let config =
        EncoderConfig { layout: Layout::Opaque, state_bytes_max, ..EncoderConfig::default() };
    let mut encoder = Encoder::new(config, 7, 99);
    let limits = DecoderConfig { state_bytes_max, ..DecoderConfig::default() };
    let (mut decoder, mut decoded, mut batch) =
        (Decoder::new(limits, 7), Decoded::default(), Vec::new());
    let mut send = |encoder: &mut Encoder, topic: &[u8], payload: &[u8]| {
        encoder.push(Message { topic, attributes: b"", payload }).unwrap();
        batch.clear();
        encoder.finish(&mut batch).unwrap();
        decoder.decode(&batch, &mut decoded).unwrap();
        assert_eq!(decoded.bytes().strip_prefix(topic), Some(payload));
        (decoder.topics(), decoder.state_bytes())
    };
    send(&mut encoder, b"first", b"1");
    for topic in 0..TOPICS {
        let topic = topic.to_be_bytes();
        let message = Message { topic: &topic, attributes: b"", payload: b"1" };
        if encoder.push(message) == Err(EncodeError::Full) {
            encoder.finish(&mut Vec::new()).unwrap();
            encoder.push(message).unwrap();
        }
    }
    encoder.resume(7, 1).unwrap();
    let long = vec![1; PAYLOAD_BYTES_MAX];
    send(&mut encoder, b"long", &long);
    send(&mut encoder, b"long", &long);
    assert_eq!(send(&mut encoder, b"first", b"2").0, 2);
}
