//! The datagram by which a node names its links to a local network, by multicast.
//!
//! ```text
//!  "TGN" │ version 1 │ node, 32 bytes │ port of its links, 2 bytes, big-endian
//! ```
//!
//! The address is the one that it comes from. Anyone can send one: it says whom to ask, and no more.

use crate::NodeId;

/// The first version, and the only one.
const VERSION: u8 = 1;
const MAGIC: &[u8; 3] = b"TGN";

/// A node, and the port of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The hash of its key.
    pub node: NodeId,
    /// The port at which it takes links over TCP, from 1 on.
    pub port: u16,
}

impl Announcement {
    /// Bytes of one.
    pub const BYTES: usize = 38;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..3].copy_from_slice(MAGIC);
        bytes[3] = VERSION;
        bytes[4..36].copy_from_slice(&self.node.0);
        bytes[36..].copy_from_slice(&self.port.to_be_bytes());
        bytes
    }

    /// Reads one; none if it is something else. A later version may have more behind the same fields.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<3>()?;
        let (&version, rest) = rest.split_first()?;
        let (node, rest) = rest.split_first_chunk::<32>()?;
        let (port, _) = rest.split_first_chunk::<2>()?;
        let port = u16::from_be_bytes(*port);
        (magic == MAGIC && version >= VERSION && port > 0)
            .then_some(Self { node: NodeId(*node), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcement_has_the_bytes_that_it_always_had() {
        let announcement = Announcement { node: NodeId([7; 32]), port: 7443 };
        let mut bytes = b"TGN\x01".to_vec();
        bytes.extend_from_slice(&[7; 32]);
        bytes.extend_from_slice(&[0x1d, 0x13]);
        assert_eq!(announcement.encode()[..], bytes[..]);
        assert_eq!(Announcement::decode(&bytes), Some(announcement));
        bytes.push(9);
        bytes[3] = 2;
        assert_eq!(Announcement::decode(&bytes), Some(announcement), "of a later version");
    }

    #[test]
    fn other_datagrams_are_none() {
        let bytes = Announcement { node: NodeId([7; 32]), port: 7443 }.encode();
        for (at, value) in [(0, b'X'), (3, 0)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Announcement::decode(&other), None, "{at}");
        }
        let mut without_port = bytes;
        without_port[36..].fill(0);
        assert_eq!(Announcement::decode(&without_port), None);
        for length in 0..bytes.len() {
            assert_eq!(Announcement::decode(&bytes[..length]), None, "{length} bytes");
        }
    }
}
