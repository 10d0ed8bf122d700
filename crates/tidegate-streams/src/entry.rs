//! An entry of a stream log for one frame: its header, its times, its bytes.
//!
//! The meta part of a log entry is the frame's record as it travelled, preceded by its arrival, so that a
//! reader of the link can read a log.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, BufMut, BytesMut};
use tidegate_api::Stages;
use tidegate_log::Entry;
use tidegate_message::Instant;
use tidegate_wire::{FrameHeader, Record, Unchanged};

/// One epoch of a camera's clock, from one start to the next; a later one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Epoch {
    /// Counts the epochs that this node has seen of the camera, from 1.
    pub(super) ordinal: u64,
    /// The camera's number of it.
    pub(super) epoch: u64,
}

/// When a frame came, by the edge node's clock, and by which of its camera's clocks it was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The epoch that its capture time counts in.
    pub(super) life: Epoch,
    /// First byte.
    pub(super) first_at: Instant,
    /// Last byte.
    pub(super) last_at: Instant,
    /// Nanoseconds to add to the camera's time to get the edge's.
    pub(super) offset_nanos: i64,
}

/// The meta of an entry of a stream log.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meta {
    /// A frame; its bytes are the entry's body.
    Frame(FrameHeader),
    /// A marker without a body.
    Unchanged(Unchanged),
}

/// Bytes of the arrival in front of the record.
const ARRIVAL_BYTES: usize = 40;

/// Writes the meta part of an entry into `out`, which is cleared first.
pub(super) fn encode(out: &mut BytesMut, arrival: Arrival, meta: &Meta) {
    out.clear();
    out.put_u64_le(arrival.life.ordinal);
    out.put_u64_le(arrival.life.epoch);
    out.put_i64_le(arrival.first_at.as_nanos());
    out.put_i64_le(arrival.last_at.as_nanos());
    out.put_i64_le(arrival.offset_nanos);
    match meta {
        Meta::Frame(header) => Record::FrameHeader(header.clone()).encode(out),
        Meta::Unchanged(marker) => Record::Unchanged(*marker).encode(out),
    }
}

/// Reads the meta part of an entry; `None` only if this program did not write it.
pub(super) fn decode(entry: &Entry) -> Option<(Arrival, Meta)> {
    let mut bytes = &entry.meta[..];
    if bytes.len() < ARRIVAL_BYTES {
        return None;
    }
    let arrival = Arrival {
        life: Epoch { ordinal: bytes.get_u64_le(), epoch: bytes.get_u64_le() },
        first_at: Instant::from_nanos(bytes.get_i64_le()),
        last_at: Instant::from_nanos(bytes.get_i64_le()),
        offset_nanos: bytes.get_i64_le(),
    };
    match Record::decode(bytes) {
        Ok(Some(Record::FrameHeader(header))) => Some((arrival, Meta::Frame(header))),
        Ok(Some(Record::Unchanged(marker))) => Some((arrival, Meta::Unchanged(marker))),
        _ => None,
    }
}

impl Arrival {
    /// An instant of the camera's clock, by the edge's.
    pub(super) fn local(&self, camera: Instant) -> Instant {
        Instant::from_nanos(camera.as_nanos().saturating_add(self.offset_nanos))
    }
}

/// Where the time of a frame went, up to `handed_at` by the edge's clock.
pub(super) fn stages(header: &FrameHeader, arrival: &Arrival, handed_at: Instant) -> Stages {
    let sent_at = arrival.local(header.at + header.sent);
    Stages {
        // Replayed frames count from sending: their wait in the camera's log is no latency.
        capture: if header.replayed { Duration::ZERO } else { header.encode_started },
        encode: header.encode_ended.saturating_sub(header.encode_started),
        queue: if header.replayed {
            Duration::ZERO
        } else {
            header.sent.saturating_sub(header.encode_ended)
        },
        network: arrival.last_at.since(sent_at),
        delivery: handed_at.since(arrival.last_at),
    }
}

/// The text as a shared one.
pub(super) fn shared(text: &str) -> Arc<str> {
    Arc::from(text)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_message::{FrameSize, Position};
    use tidegate_wire::TransferId;

    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            transfer: TransferId(3),
            at: Instant::from_millis(1_000),
            bytes: 5,
            size: FrameSize { width: 960, height: 540 },
            original_bytes: 400_000,
            row: 7,
            setting: "1/2 q75".into(),
            accuracy: 0.97,
            accuracy_kept: true,
            replayed: false,
            encode_started: Duration::from_millis(2),
            encode_ended: Duration::from_millis(8),
            sent: Duration::from_millis(9),
            source_size: Some(FrameSize { width: 1920, height: 1080 }),
        }
    }

    #[test]
    fn meta_survives_the_log() {
        let arrival = Arrival {
            life: Epoch { ordinal: 2, epoch: 77 },
            first_at: Instant::from_millis(1_012),
            last_at: Instant::from_millis(1_030),
            offset_nanos: -5,
        };
        let marker = Unchanged { transfer: TransferId(3), at: Instant::from_millis(1_000) };
        for meta in [Meta::Frame(header()), Meta::Unchanged(marker)] {
            let mut out = BytesMut::new();
            encode(&mut out, arrival, &meta);
            let entry = Entry {
                position: Position(0),
                at: Instant::from_millis(1_000),
                meta: out.freeze(),
                body: Bytes::new(),
            };
            assert_eq!(decode(&entry), Some((arrival, meta)));
        }
    }

    #[test]
    fn stages_add_up_to_the_latency() {
        let ms = Instant::from_millis;
        let arrival = Arrival {
            life: Epoch::default(),
            first_at: ms(1_512),
            last_at: ms(1_530),
            offset_nanos: 500_000_000,
        };
        let stages = stages(&header(), &arrival, ms(1_533));
        assert_eq!(stages.network, Duration::from_millis(21));
        assert_eq!(stages.total(), Duration::from_millis(33));
    }
}
