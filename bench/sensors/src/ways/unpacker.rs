//! From datagrams to messages, at the host, which appends them to a log in memory.

use bench_comprex::ComprexDecoder;
use tidegate_compress::{Decoded, Decoder, DecoderConfig};

use super::{Way, packer::Header};
use crate::messages::Messages;

/// The kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Messages, or the end of a batch of them, which are in the log.
    Messages {
        /// Number of the first.
        first: u64,
        /// How many.
        count: u32,
    },
    /// A part of a batch, or corrections.
    Part,
    /// Nothing that can be read: a codec must start over, unless it is about to.
    Refused,
}

/// Corrections of comprex: messages, and their numbers within their topics.
#[derive(Clone, Debug, Default)]
pub struct Corrections {
    /// The messages.
    pub messages: Messages,
    /// Of each its number.
    pub numbers: Vec<u64>,
}

/// Takes datagrams apart.
#[derive(Debug)]
pub struct Unpacker {
    way: Way,
    form: Form,
    epoch: u16,
    /// The datagram that is expected.
    next: u32,
    /// The beginning of a batch of several datagrams.
    part: Vec<u8>,
    /// The corrections so far.
    pub corrections: Corrections,
}

#[derive(Debug)]
enum Form {
    Frames,
    Comprex(Box<ComprexDecoder>),
    Rows(Box<Decoder>, Decoded),
}

impl Form {
    fn new(way: Way, epoch: u16) -> Self {
        match way {
            Way::Ours => {
                let decoder = Decoder::new(DecoderConfig::default(), u64::from(epoch));
                Self::Rows(Box::new(decoder), Decoded::default())
            }
            Way::FlowComprex => Self::Comprex(Box::default()),
            _ => Self::Frames,
        }
    }
}

impl Unpacker {
    /// One that expects the first datagram of a packer.
    pub fn new(way: Way) -> Self {
        Self {
            way,
            form: Form::new(way, 0),
            epoch: 0,
            next: 0,
            part: Vec::new(),
            corrections: Corrections::default(),
        }
    }

    /// The epoch whose datagrams can be read.
    pub fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Takes a datagram; its messages are appended to `log`.
    pub fn take(&mut self, mut datagram: &[u8], log: &mut Messages) -> Taken {
        let Some(header) = Header::take(&mut datagram) else { return Taken::Refused };
        let is_next = header.number == self.next;
        self.next = header.number.wrapping_add(1);
        if let Form::Frames = self.form {
            let before = log.len();
            take_frames(datagram, log);
            let count = (log.len() - before) as u32;
            return Taken::Messages { first: header.first, count };
        }
        if header.epoch != self.epoch {
            // From before its beginning again.
            return Taken::Refused;
        }
        if !is_next {
            return self.refuse();
        }
        self.part.extend_from_slice(datagram);
        if header.follow > 0 {
            return Taken::Part;
        }
        let batch = std::mem::take(&mut self.part);
        let taken = self.decode(&header, &batch, log);
        self.part = batch;
        self.part.clear();
        taken.unwrap_or_else(|| self.refuse())
    }

    fn decode(&mut self, header: &Header, batch: &[u8], log: &mut Messages) -> Option<Taken> {
        match &mut self.form {
            Form::Frames => {}
            Form::Comprex(decoder) if header.corrects => {
                let Corrections { messages, numbers } = &mut self.corrections;
                let keep = |topic: &[u8], number: u64, payload: &[u8]| {
                    messages.push(topic, payload);
                    numbers.push(number);
                };
                decoder.correct(batch, keep).ok()?;
                return Some(Taken::Part);
            }
            Form::Comprex(decoder) => {
                log.append_decoded(decoder, batch).ok()?;
            }
            Form::Rows(decoder, decoded) => {
                decoder.decode(batch, decoded).ok()?;
                log.append(decoded);
            }
        }
        Some(Taken::Messages { first: header.first, count: header.count })
    }

    fn refuse(&mut self) -> Taken {
        self.epoch = self.epoch.wrapping_add(1);
        self.form = Form::new(self.way, self.epoch);
        self.part.clear();
        Taken::Refused
    }
}

/// Takes messages that are framed by two lengths each, up to the first that is not whole.
fn take_frames(mut datagram: &[u8], log: &mut Messages) {
    while let Some((lengths, rest)) = datagram.split_first_chunk::<4>() {
        let topic_len = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
        let payload_len = usize::from(u16::from_le_bytes([lengths[2], lengths[3]]));
        let Some((message, rest)) = rest.split_at_checked(topic_len + payload_len) else { return };
        let (topic, payload) = message.split_at(topic_len);
        log.push(topic, payload);
        datagram = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ways::packer::Packer;

    const COUNT: u64 = 30_000;

    fn payload(number: u64) -> String {
        format!("{number:08},{:04}", number * 7 % 9999)
    }

    fn packed(way: Way) -> Packer {
        let mut packer = Packer::new(way);
        for number in 0..COUNT {
            let topic = format!("a/topic/{:03}", number % 100);
            packer.push(number, topic.as_bytes(), payload(number).as_bytes(), 0).unwrap();
        }
        packer.finish();
        packer
    }

    #[test]
    fn what_is_packed_comes_out() {
        for way in Way::ALL.into_iter().filter(|way| *way != Way::FlowComprex) {
            let (mut unpacker, mut log) = (Unpacker::new(way), Messages::default());
            let mut expected = 0;
            for datagram in packed(way).datagrams().iter() {
                match unpacker.take(datagram, &mut log) {
                    Taken::Messages { first, count } => {
                        assert_eq!(first, expected, "{way:?}");
                        expected += u64::from(count);
                    }
                    taken => assert_eq!((taken, way), (Taken::Part, Way::Ours)),
                }
            }
            assert_eq!(log.len() as u64, COUNT, "{way:?}");
            for (number, message) in log.iter().enumerate() {
                assert_eq!(message.payload, payload(number as u64).as_bytes(), "{way:?}");
            }
        }
    }

    #[test]
    fn a_codec_that_lost_a_datagram_begins_anew() {
        for way in [Way::FlowComprex, Way::Ours] {
            let (mut unpacker, mut log) = (Unpacker::new(way), Messages::default());
            let mut packer = packed(way);
            let (mut refused, mut sent) = (0, 0);
            for datagram in packer.datagrams().iter().skip(1) {
                refused += u32::from(unpacker.take(datagram, &mut log) == Taken::Refused);
                sent += 1;
            }
            assert_eq!(refused, sent, "{way:?}");
            assert_eq!((unpacker.epoch(), log.len()), (1, 0), "{way:?}");

            packer.datagrams().clear();
            packer.restart(way, unpacker.epoch());
            packer.push(COUNT, b"a/topic/000", b"new", 0).unwrap();
            packer.close();
            for datagram in packer.datagrams().iter() {
                let taken = unpacker.take(datagram, &mut log);
                assert_eq!(taken, Taken::Messages { first: COUNT, count: 1 }, "{way:?}");
            }
            assert_eq!(log.message(0).payload, b"new");
        }
    }
}
