//! By what a message of a member of the fabric is known again when it comes twice: when its node received it, and the identifier that
//! its session there gave it. Both are in the journal of that node, so they are the same when the message comes from a later process.
//!
//! A batch is followed by those of its messages, in their order, and by how many bytes that takes (u32, little endian):
//!
//! ```text
//!  QoS 0:  0
//!  else:   varint(1 + zigzag(identifier - the one before - 1)) · varint(zigzag(nanoseconds - those before))
//! ```
//!
//! A critical message follows its own ([`BYTES`] of them): i64 nanoseconds, u16 identifier, 0 for QoS 0, little endian.
//!
//! Always true: two messages of one session have different ones, since an identifier comes again only after 65,534 others.

use bytes::Bytes;
use tidegate_message::{Instant, varint};
use tidegate_wire::mqtt::PacketId;

/// Bytes of the one of a critical message.
pub(crate) const BYTES: usize = 10;

/// By what a message of QoS 1 or 2 is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// When its node received it, by the clock there.
    pub received: Instant,
    /// Its identifier in the session that it is read from.
    pub id: PacketId,
}

/// Appends those of a batch.
pub(crate) fn put_all(origins: impl Iterator<Item = Option<Origin>>, out: &mut Vec<u8>) {
    let start = out.len();
    let mut last = (0_u16, 0_i64);
    for origin in origins {
        let Some(Origin { received, id }) = origin else {
            varint::put(out, 0);
            continue;
        };
        let (id, nanos) = (id.get(), received.as_nanos());
        let step = i64::from(id) - i64::from(last.0) - 1;
        varint::put(out, 1 + varint::zigzag(step));
        varint::put(out, varint::zigzag(nanos.wrapping_sub(last.1)));
        last = (id, nanos);
    }
    let bytes = u32::try_from(out.len() - start).expect("a batch has some thousand messages");
    out.extend_from_slice(&bytes.to_le_bytes());
}

/// Takes those of a batch from its end, into `origins`; none if they are none.
pub(crate) fn split_all(body: &Bytes, origins: &mut Vec<Option<Origin>>) -> Option<Bytes> {
    origins.clear();
    let (rest, bytes) = body.split_last_chunk()?;
    let bytes = usize::try_from(u32::from_le_bytes(*bytes)).ok()?;
    let batch_bytes = rest.len().checked_sub(bytes)?;
    let mut rest = &rest[batch_bytes..];
    let mut last = (0_u16, 0_i64);
    while !rest.is_empty() {
        let Some(step) = varint::take(&mut rest)?.checked_sub(1) else {
            origins.push(None);
            continue;
        };
        let id = i64::from(last.0).checked_add(varint::unzigzag(step))?.checked_add(1)?;
        let id = PacketId::new(u16::try_from(id).ok()?)?;
        let nanos = last.1.wrapping_add(varint::unzigzag(varint::take(&mut rest)?));
        origins.push(Some(Origin { received: Instant::from_nanos(nanos), id }));
        last = (id.get(), nanos);
    }
    Some(body.slice(..batch_bytes))
}

/// The one of a critical message.
pub(crate) fn put(origin: Option<Origin>) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    if let Some(Origin { received, id }) = origin {
        out[..8].copy_from_slice(&received.as_nanos().to_le_bytes());
        out[8..].copy_from_slice(&id.get().to_le_bytes());
    }
    out
}

/// Takes the one of a critical message from its end; none if there is none.
pub(crate) fn split(whole: &[u8]) -> Option<(&[u8], Option<Origin>)> {
    let (message, origin) = whole.split_last_chunk::<BYTES>()?;
    let (nanos, id) = origin.split_first_chunk()?;
    let id = PacketId::new(u16::from_le_bytes([id[0], id[1]]));
    let received = Instant::from_nanos(i64::from_le_bytes(*nanos));
    Some((message, id.map(|id| Origin { received, id })))
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    fn origin(nanos: i64, id: u16) -> Option<Origin> {
        PacketId::new(id).map(|id| Origin { received: Instant::from_nanos(nanos), id })
    }

    #[test]
    fn those_of_a_batch_come_back_behind_it() {
        for origins in [
            vec![],
            vec![None; 3],
            vec![origin(i64::MAX, 1), origin(i64::MIN, 65_535), None, origin(0, 1)],
            (1..1_000).map(|id| origin(1_700_000_000_000_000_000, id)).collect(),
        ] {
            let mut body = b"batch".to_vec();
            put_all(origins.iter().copied(), &mut body);
            let mut found = vec![None];
            let batch = split_all(&body.into(), &mut found).expect("they were put there");
            assert_eq!((&*batch, found), (&b"batch"[..], origins));
        }
        // Messages that came together take two bytes each.
        let mut body = Vec::new();
        put_all((1..=100).map(|id| origin(1 << 60, id)), &mut body);
        assert_eq!(body.len(), 4 + 10 + 99 * 2);
    }

    #[test]
    fn bytes_that_are_none_are_refused() {
        let mut random = StdRng::seed_from_u64(1);
        let mut found = Vec::new();
        for bytes in [&[][..], &[1, 0, 0], &[2, 0, 0, 0], &[1, 1, 0, 0, 0], &[0x80, 1, 0, 0, 0]] {
            assert_eq!(split_all(&Bytes::copy_from_slice(bytes), &mut found), None, "{bytes:?}");
        }
        for _ in 0..10_000 {
            let mut body: Vec<u8> =
                (0..random.random_range(0..40)).map(|_| random.random()).collect();
            body.extend_from_slice(&(body.len() as u32).to_le_bytes());
            // No bytes lead to a panic.
            let _ = split_all(&body.into(), &mut found);
        }
        assert_eq!(split(&[0; BYTES - 1]), None);
    }

    #[test]
    fn that_of_a_critical_message_comes_back() {
        for one in [None, origin(-1, 1), origin(i64::MAX, 65_535)] {
            let whole = [&b"message"[..], &put(one)].concat();
            assert_eq!(split(&whole), Some((&b"message"[..], one)));
        }
    }
}
