//! The bytes of a message.

use bytes::Bytes;

/// The bytes of one message: contiguous or in segments, shared and counted.
///
/// Cloning shares the bytes. A payload that was received into pooled segments keeps them; only
/// [`Payload::to_contiguous`] copies, and only if there is more than one segment.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    segments: Segments,
    bytes: usize,
}

#[derive(Clone, Debug)]
enum Segments {
    One(Bytes),
    Many(std::sync::Arc<[Bytes]>),
}

impl Default for Segments {
    fn default() -> Self {
        Self::One(Bytes::new())
    }
}

impl Payload {
    /// A payload of the given segments, in order. Empty segments are left out.
    pub fn from_segments(segments: impl IntoIterator<Item = Bytes>) -> Self {
        let mut kept: Vec<Bytes> = segments.into_iter().filter(|s| !s.is_empty()).collect();
        let bytes = kept.iter().map(Bytes::len).sum();
        let segments = match kept.len() {
            0 | 1 => Segments::One(kept.pop().unwrap_or_default()),
            _ => Segments::Many(kept.into()),
        };
        Self { segments, bytes }
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the payload holds no byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The segments in order; one empty segment if the payload is empty.
    pub fn segments(&self) -> &[Bytes] {
        match &self.segments {
            Segments::One(one) => std::slice::from_ref(one),
            Segments::Many(many) => many,
        }
    }

    /// The whole payload as one region: shared if it is in one segment, copied if in several.
    pub fn to_contiguous(&self) -> Bytes {
        match &self.segments {
            Segments::One(one) => one.clone(),
            Segments::Many(many) => many.concat().into(),
        }
    }

    /// As [`Payload::to_contiguous`], and of one segment without a further reference to it.
    pub fn into_contiguous(self) -> Bytes {
        match self.segments {
            Segments::One(one) => one,
            Segments::Many(many) => many.concat().into(),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self { bytes: bytes.len(), segments: Segments::One(bytes) }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

/// Equal bytes are equal payloads, however they are cut into segments.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        let flat = |p: &Self| p.segments().to_vec().into_iter().flatten();
        self.bytes == other.bytes && flat(self).eq(flat(other))
    }
}

impl Eq for Payload {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_segment_is_shared_not_copied() {
        let bytes = Bytes::from(vec![1, 2, 3]);
        let payload = Payload::from_segments([Bytes::new(), bytes.clone()]);
        assert_eq!(payload.to_contiguous().as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn equality_ignores_the_cuts() {
        let cut = Payload::from_segments([Bytes::from_static(b"ab"), Bytes::from_static(b"c")]);
        assert_eq!(cut.len(), 3);
        assert_eq!(cut, Payload::from(Bytes::from_static(b"abc")));
        assert_ne!(cut, Payload::from(Bytes::from_static(b"abd")));
        assert_eq!(cut.to_contiguous(), "abc");
    }
}
