//! The input and the output of a flow.

use std::ops::Range;

use crate::bad::Bad;

/// A message as a flow sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Topic name, valid.
    pub topic: &'a str,
    /// Payload, in one piece.
    pub payload: &'a [u8],
}

/// The results for a batch of messages. Reused from batch to batch: nothing is allocated once its buffers are large
/// enough.
#[derive(Debug, Default)]
pub struct Output {
    verdicts: Vec<Made>,
    emissions: Vec<Emitted>,
    /// Messages that could not be read.
    bad: Vec<(u32, Bad)>,
    /// The bytes of topics and payloads that were made.
    pub(crate) bytes: Vec<u8>,
}

/// The verdict on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It continues unchanged.
    Pass,
    /// It continues with this payload.
    Replace(&'a [u8]),
    /// It goes no further.
    Drop,
}

/// A message that a flow publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emission<'a> {
    /// The place in the batch, from 0, of the message that it descends from.
    pub from: usize,
    /// Topic name, valid.
    pub topic: &'a str,
    /// Payload.
    pub payload: EmittedPayload<'a>,
}

/// The payload of a message that a flow publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmittedPayload<'a> {
    /// Made by the flow.
    Made(&'a [u8]),
    /// A dead letter: the payload of the message that it descends from, untouched, and why it was not read.
    Original(Bad),
}

/// A verdict in 8 bytes without a pointer, so that a batch of them is filled in like an array of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    start: u32,
    end: u32,
}

impl Made {
    /// Ranges end before [`OUTPUT_BYTES_MAX`] and one emission.
    pub(crate) const PASS: Self = Self { start: u32::MAX, end: 0 };
    pub(crate) const DROP: Self = Self { start: u32::MAX, end: 1 };

    /// The payload is `bytes[start..end]` of the output.
    pub(crate) fn replace(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }
}

#[derive(Clone, Debug)]
struct Emitted {
    from: u32,
    /// Breaks ties, so that a sort need not be stable.
    order: u32,
    topic: Range<u32>,
    payload: Payload,
}

#[derive(Clone, Debug)]
enum Payload {
    Made(Range<u32>),
    Original(Bad),
}

impl Output {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The verdict on each message of the batch, in order.
    pub fn verdicts(&self) -> impl ExactSizeIterator<Item = Verdict<'_>> {
        self.verdicts.iter().map(|made| match *made {
            Made::PASS => Verdict::Pass,
            Made::DROP => Verdict::Drop,
            Made { start, end } => Verdict::Replace(self.slice(&(start..end))),
        })
    }

    /// The messages to publish, in the order of the messages that they descend from, and for one message in the order of the
    /// steps.
    pub fn emissions(&self) -> impl ExactSizeIterator<Item = Emission<'_>> {
        self.emissions.iter().map(|emitted| Emission {
            from: emitted.from as usize,
            topic: std::str::from_utf8(self.slice(&emitted.topic))
                .expect("topics are made of text alone"),
            payload: match &emitted.payload {
                Payload::Made(range) => EmittedPayload::Made(self.slice(range)),
                Payload::Original(bad) => EmittedPayload::Original(*bad),
            },
        })
    }

    /// The messages that could not be read, by their place in the batch, and why, in order.
    pub fn bad(&self) -> impl ExactSizeIterator<Item = (usize, Bad)> {
        self.bad.iter().map(|(from, bad)| (*from as usize, *bad))
    }

    fn slice(&self, range: &Range<u32>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    pub(crate) fn clear(&mut self) {
        self.verdicts.clear();
        self.emissions.clear();
        self.bad.clear();
        self.bytes.clear();
    }

    /// Adds verdicts of `count` more messages, and returns the place of the first.
    pub(crate) fn begin(&mut self, count: usize, made: Made) -> usize {
        let first = self.verdicts.len();
        self.verdicts.resize(first + count, made);
        first
    }

    pub(crate) fn decide(&mut self, from: usize, made: Made) {
        self.verdicts[from] = made;
    }

    pub(crate) fn note_bad(&mut self, from: usize, bad: Bad) {
        self.bad.push((from as u32, bad));
    }

    pub(crate) fn emission_count(&self) -> usize {
        self.emissions.len()
    }

    /// Publishes `bytes[topic_start..payload_start]` as the topic and what follows as the payload.
    pub(crate) fn emit(&mut self, from: usize, topic_start: usize, payload_start: usize) {
        let payload = Payload::Made(payload_start as u32..self.bytes.len() as u32);
        self.push(from, topic_start..payload_start, payload);
    }

    /// Publishes the payload of a message on `bytes[topic_start..]`.
    pub(crate) fn emit_original(&mut self, from: usize, topic_start: usize, bad: Bad) {
        self.push(from, topic_start..self.bytes.len(), Payload::Original(bad));
    }

    fn push(&mut self, from: usize, topic: Range<usize>, payload: Payload) {
        self.emissions.push(Emitted {
            from: from as u32,
            order: self.emissions.len() as u32,
            topic: topic.start as u32..topic.end as u32,
            payload,
        });
    }

    /// Brings what was emitted since `first`, step after step, into the order of the messages.
    pub(crate) fn sort_from(&mut self, first: usize) {
        let new = &mut self.emissions[first..];
        if !new.is_sorted_by_key(|emitted| emitted.from) {
            new.sort_unstable_by_key(|emitted| (emitted.from, emitted.order));
        }
    }
}

/// Most bytes of topics and payloads that one run makes: the excess is not published, and counted. One part of a template may exceed
/// it by the escapes of one text, which is far from the range of 32 bits.
pub(crate) const OUTPUT_BYTES_MAX: usize = 16 << 20;
const _: () = assert!(OUTPUT_BYTES_MAX * 8 < u32::MAX as usize / 2);
