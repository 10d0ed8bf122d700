//! Keys of sealed segments, and what they do.
//!
//! ```text
//!  node key ──HMAC(salt)──▶ wrapping key ──seals──▶ segment key ──HMAC──┬─▶ record key: ChaCha20-Poly1305, one nonce a record
//!  (a file)                 (used once)             (random)            └─▶ end key: HMAC of slots and trailer
//! ```
//!
//! ChaCha20-Poly1305 (RFC 8439) and not AES-GCM: boards of cameras have no instructions for AES, and its keys need no schedule
//! that would have to be cleared.
//!
//! **No nonce is used twice with one key.** A [`Sealer`] is made together with a random key of its own, counts its seals, and
//! cannot be cloned or made for a key that exists: a segment begun by another process is never continued, and a seal that failed
//! half-way has used up its number. A wrapping key is made from a salt of 256 random bits and seals once. The one part that may be
//! rewritten with the same key, the end of a segment, has a MAC that needs no nonce.
//!
//! Always true: keys that are held are cleared when they are dropped; nothing here prints one.

use std::{fmt, io, sync::Arc};

use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use zeroize::Zeroizing;

pub(crate) const KEY_BYTES: usize = 32;
pub(crate) const TAG_BYTES: usize = 16;
pub(crate) const MAC_BYTES: usize = 32;
/// Nonce and tag of a record.
pub(crate) const SEAL_BYTES: usize = 8 + TAG_BYTES;
pub(crate) const WRAP_BYTES: usize = 100;
const WRAP_CRC: usize = WRAP_BYTES - 4;
const WRAP_MAGIC: &[u8; 8] = b"TGLOGKEY";

type Key = Zeroizing<[u8; KEY_BYTES]>;

/// The key of a node, which opens the keys of its segments.
#[derive(Clone)]
pub struct NodeKey {
    key: Key,
    id: KeyId,
}

/// Names a node key, and does not tell it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 8]);

/// The keys that a sealed log is opened with.
#[derive(Clone, Debug)]
pub struct NodeKeys {
    /// Seals new segments, and takes over those that an older one has sealed.
    pub current: NodeKey,
    /// Keys that came before. They are not needed any more once a log was opened without a finding that says so.
    pub older: Vec<NodeKey>,
}

impl NodeKey {
    /// A new one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> io::Result<Self> {
        Ok(Self::new(random()?))
    }

    /// The one that has these bytes, all of which have to be random.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self::new(Zeroizing::new(bytes))
    }

    pub(crate) fn new(key: Key) -> Self {
        let named = derive(&key, b"tidegate node key id", b"");
        let id = KeyId(*named.first_chunk().expect("a MAC is longer"));
        Self { key, id }
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.key
    }

    /// Its name.
    pub fn id(&self) -> KeyId {
        self.id
    }

    fn wrapping(&self, salt: &[u8]) -> LessSafeKey {
        aead(&derive(&self.key, b"tidegate log wrap", salt))
    }

    /// A segment's key, sealed by this one for the segment with that header and seed.
    pub(crate) fn wrap(
        &self,
        segment: &RawKey,
        salt: &[u8; KEY_BYTES],
        header: &[u8],
        seed: u32,
    ) -> [u8; WRAP_BYTES] {
        let mut key = segment.0.clone();
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let sealed = self.wrapping(salt).seal_in_place_separate_tag(
            nonce,
            Aad::from(header),
            key.as_mut_slice(),
        );
        let tag = sealed.expect("a key is no long message");
        let parts = [&WRAP_MAGIC[..], &self.id.0, salt, key.as_slice(), tag.as_ref()];
        let mut wrap = [0; WRAP_BYTES];
        let mut rest = &mut wrap[..];
        for part in parts {
            let (room, left) = rest.split_at_mut(part.len());
            room.copy_from_slice(part);
            rest = left;
        }
        let crc = crc32c::crc32c_append(seed, &wrap[..WRAP_CRC]);
        wrap[WRAP_CRC..].copy_from_slice(&crc.to_le_bytes());
        wrap
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({})", self.id)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a wrap gave no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    /// The bytes are no wrap of this segment, or a damaged one.
    Damaged,
    /// It is whole, and the key that it needs is not here.
    OtherKey(KeyId),
    /// It is whole, its key is here and does not open it: it, or the header, was changed on purpose.
    Tampered,
}

/// Which node key has sealed a wrap of the segment with that seed, if the wrap is whole.
pub(crate) fn key_of(wrap: &[u8; WRAP_BYTES], seed: u32) -> Option<KeyId> {
    let crc = crc32c::crc32c_append(seed, &wrap[..WRAP_CRC]);
    let (magic, rest) = wrap.split_first_chunk()?;
    let is_whole = magic == WRAP_MAGIC && wrap[WRAP_CRC..] == crc.to_le_bytes();
    rest.first_chunk().filter(|_| is_whole).copied().map(KeyId)
}

impl NodeKeys {
    /// The key in a wrap of the segment with that header and seed, and whether the current node key has sealed it.
    pub(crate) fn unwrap(
        &self,
        wrap: &[u8; WRAP_BYTES],
        header: &[u8],
        seed: u32,
    ) -> Result<(RawKey, bool), Locked> {
        let id = key_of(wrap, seed).ok_or(Locked::Damaged)?;
        let (salt, rest) = wrap[WRAP_MAGIC.len() + id.0.len()..].split_at(KEY_BYTES);
        let (sealed, rest) = rest.split_first_chunk::<KEY_BYTES>().expect("a wrap is longer");
        let tag = *rest.first_chunk::<TAG_BYTES>().expect("a wrap is longer");
        let mut keys = std::iter::once(&self.current).chain(&self.older);
        let node = keys.find(|key| key.id == id).ok_or(Locked::OtherKey(id))?;
        let mut key = Zeroizing::new(*sealed);
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let opened = node.wrapping(salt).open_in_place_separate_tag(
            nonce,
            Aad::from(header),
            tag.into(),
            key.as_mut_slice(),
            0..,
        );
        match opened {
            Ok(_) => Ok((RawKey(key), id == self.current.id)),
            Err(_) => Err(Locked::Tampered),
        }
    }

    /// Seals a segment's key again, with the current node key.
    pub(crate) fn rewrap(
        &self,
        key: &RawKey,
        header: &[u8],
        seed: u32,
    ) -> io::Result<[u8; WRAP_BYTES]> {
        Ok(self.current.wrap(key, &*random()?, header, seed))
    }
}

/// The key of a segment as its header has it, sealed.
pub(crate) struct RawKey(Key);

impl RawKey {
    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(crate) fn derive(&self) -> SegmentKey {
        let records = derive(&self.0, b"tidegate log records", b"");
        let ends = derive(&self.0, b"tidegate log ends", b"");
        SegmentKey(Arc::new(Derived { records, ends }))
    }
}

/// Opens the records of a segment, and proves its end.
#[derive(Clone)]
pub(crate) struct SegmentKey(Arc<Derived>);

struct Derived {
    records: Key,
    ends: Key,
}

impl SegmentKey {
    /// Opens content in place. `head` is what was authenticated with it. Returns whether it is what was sealed.
    pub(crate) fn open(&self, seal: &[u8; SEAL_BYTES], head: &[u8], content: &mut [u8]) -> bool {
        let (&number, tag) = seal.split_first_chunk().expect("a seal is longer");
        let tag = *tag.first_chunk::<TAG_BYTES>().expect("a seal is longer");
        let key = aead(&self.0.records);
        let nonce = nonce(u64::from_le_bytes(number));
        key.open_in_place_separate_tag(nonce, Aad::from(head), tag.into(), content, 0..).is_ok()
    }

    /// The MAC of the slots or the trailer, as `what` says.
    pub(crate) fn mac(&self, what: &[u8], bytes: &[u8]) -> [u8; MAC_BYTES] {
        *derive(&self.0.ends, what, bytes)
    }

    /// Whether this is the MAC of those bytes, in constant time.
    pub(crate) fn is_mac(&self, what: &[u8], bytes: &[u8], mac: &[u8]) -> bool {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.ends.as_slice());
        hmac::verify(&key, &[what, bytes].concat(), mac).is_ok()
    }
}

/// Seals the records of one segment, each with a nonce of its own.
pub(crate) struct Sealer {
    key: SegmentKey,
    sealed: u64,
}

impl Sealer {
    /// A sealer, and its new key to be wrapped.
    pub(crate) fn generate() -> io::Result<(Self, RawKey)> {
        let raw = RawKey(random()?);
        Ok((Self { key: raw.derive(), sealed: 0 }, raw))
    }

    #[cfg(test)]
    pub(crate) fn of(raw: &RawKey) -> Self {
        Self { key: raw.derive(), sealed: 0 }
    }

    pub(crate) fn key(&self) -> SegmentKey {
        self.key.clone()
    }

    /// Seals content in place, and authenticates `head` with it.
    pub(crate) fn seal(&mut self, head: &[u8], content: &mut [u8]) -> [u8; SEAL_BYTES] {
        let number = self.sealed;
        self.sealed += 1;
        let key = aead(&self.key.0.records);
        let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from(head), content);
        let tag = tag.expect("a segment is below 4 GiB, and a message below 256");
        let mut seal = [0; SEAL_BYTES];
        seal[..8].copy_from_slice(&number.to_le_bytes());
        seal[8..].copy_from_slice(tag.as_ref());
        seal
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Made for each use, which costs a copy, so that none of its memory outlives the call uncleared for long.
fn aead(key: &Key) -> LessSafeKey {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_slice());
    LessSafeKey::new(key.expect("the key has the length of the algorithm"))
}

fn derive(key: &Key, what: &[u8], of: &[u8]) -> Key {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.as_slice()));
    context.update(what);
    context.update(of);
    let mut derived = Zeroizing::new([0; KEY_BYTES]);
    derived.copy_from_slice(context.sign().as_ref());
    derived
}

pub(crate) fn random<const N: usize>() -> io::Result<Zeroizing<[u8; N]>> {
    let mut bytes = Zeroizing::new([0; N]);
    let filled = SystemRandom::new().fill(bytes.as_mut_slice());
    filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealer_never_repeats_a_nonce_and_no_two_have_one_key() {
        let (mut first, _) = Sealer::generate().unwrap();
        let (mut second, _) = Sealer::generate().unwrap();
        let mut seals = std::collections::HashSet::new();
        let mut contents = std::collections::HashSet::new();
        for number in 0..100_u64 {
            for sealer in [&mut first, &mut second] {
                let mut content = *b"the same content";
                let seal = sealer.seal(b"head", &mut content);
                assert_eq!(seal[..8], number.to_le_bytes());
                assert!(seals.insert(seal) && contents.insert(content));
            }
        }
    }

    #[test]
    fn opened_content_equals_sealed_content() {
        let (mut sealer, raw) = Sealer::generate().unwrap();
        let mut content = *b"a frame";
        let seal = sealer.seal(b"head", &mut content);
        assert_ne!(&content, b"a frame");
        let key = raw.derive();
        let opened = |seal: &[u8; SEAL_BYTES], head: &[u8], mut content: [u8; 7]| {
            key.open(seal, head, &mut content).then_some(content)
        };
        assert_eq!(opened(&seal, b"head", content), Some(*b"a frame"));
        assert_eq!(opened(&seal, b"Head", content), None);
        for bit in 0..SEAL_BYTES * 8 {
            let mut seal = seal;
            seal[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&seal, b"head", content), None, "bit {bit} of the seal");
        }
        for bit in 0..7 * 8 {
            let mut content = content;
            content[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&seal, b"head", content), None, "bit {bit}");
        }
    }

    #[test]
    fn a_wrap_tells_damage_another_key_and_tampering_apart() {
        let keys = |byte| NodeKeys { current: NodeKey::from_bytes([byte; 32]), older: Vec::new() };
        let raw = RawKey::from_bytes([9; 32]);
        let wrap = keys(1).rewrap(&raw, b"header", 7).unwrap();
        let why = |keys: &NodeKeys, wrap: &[u8; WRAP_BYTES], header: &[u8], seed| {
            keys.unwrap(wrap, header, seed).map(|(key, is_current)| (*key.0, is_current))
        };
        assert_eq!(why(&keys(1), &wrap, b"header", 7), Ok(([9; 32], true)));
        let rotated = NodeKeys { older: vec![keys(1).current], ..keys(2) };
        assert_eq!(why(&rotated, &wrap, b"header", 7), Ok(([9; 32], false)));
        let other = Locked::OtherKey(keys(1).current.id());
        assert_eq!(why(&keys(2), &wrap, b"header", 7), Err(other));
        assert_eq!(why(&keys(1), &wrap, b"Header", 7), Err(Locked::Tampered));
        assert_eq!(why(&keys(1), &wrap, b"header", 8), Err(Locked::Damaged), "another segment's");
        for bit in 0..WRAP_BYTES * 8 {
            let mut changed = wrap;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(why(&keys(1), &changed, b"header", 7), Err(Locked::Damaged), "bit {bit}");
            let crc = crc32c::crc32c_append(7, &changed[..WRAP_CRC]);
            changed[WRAP_CRC..].copy_from_slice(&crc.to_le_bytes());
            let expected = match bit / 8 {
                0..8 => Err(Locked::Damaged),
                8..16 => Err(Locked::OtherKey(KeyId(*changed[8..].first_chunk().unwrap()))),
                16..WRAP_CRC => Err(Locked::Tampered),
                _ => Ok(([9; 32], true)),
            };
            assert_eq!(why(&keys(1), &changed, b"header", 7), expected, "bit {bit}, mended");
        }
    }

    #[test]
    fn keys_are_not_printed() {
        let keys = NodeKeys { current: NodeKey::from_bytes([0xab; 32]), older: Vec::new() };
        let printed = format!("{keys:?}");
        assert!(!printed.contains("abab") && !printed.contains("171"), "{printed}");
    }
}
