//! Packets, as a filter looks at them: where in one the payload of a datagram is.
//!
//! ```text
//!  Ethernet, a VLAN tag or none ─▶ IPv4 without options, whole ─▶ UDP ─▶ payload
//!                               └▶ IPv6 without extensions ────┘
//! ```
//!
//! Checksums are not looked at, neither of IP nor of UDP. A damaged packet is dropped if its fields say so, as the kernel would drop it by
//! its checksum; one that passes meets that check afterwards.

use crate::filter::{Filter, Reach, Verdict};

pub(crate) const ETHERNET_BYTES: usize = 14;
pub(crate) const VLAN_BYTES: usize = 4;
pub(crate) const IPV4_BYTES: usize = 20;
pub(crate) const IPV6_BYTES: usize = 40;
pub(crate) const UDP_BYTES: usize = 8;

pub(crate) const TYPE_VLAN: u16 = 0x8100;
pub(crate) const TYPE_IPV4: u16 = 0x0800;
pub(crate) const TYPE_IPV6: u16 = 0x86dd;
/// Version 4, and a header of five words.
pub(crate) const IPV4_PLAIN: u8 = 0x45;
/// More fragments, or an offset.
pub(crate) const IPV4_FRAGMENT: u16 = 0x3fff;
pub(crate) const PROTOCOL_UDP: u8 = 17;

impl Filter {
    /// The decision on a packet, beginning with its Ethernet header; none for a packet that is not, or cannot be recognized as, for its
    /// port and address: that passes uncounted.
    pub fn decide_packet(&self, packet: &[u8]) -> Option<Verdict> {
        let (datagram, bytes) = self.datagram(packet)?;
        let bytes_expected = UDP_BYTES + usize::from(self.payload_bytes);
        // Ethernet fills short packets up, so that what stands behind a datagram says nothing.
        let is_as_said = usize::from(bytes) == bytes_expected
            && usize::from(word(datagram, 4)?) == bytes_expected;
        match datagram.get(UDP_BYTES..bytes_expected) {
            Some(payload) if is_as_said => Some(self.decide(payload)),
            _ => Some(Verdict::Unusual),
        }
    }

    /// The datagram in a packet that is for this port, with what follows it, and its bytes as IP has it.
    fn datagram<'a>(&self, packet: &'a [u8]) -> Option<(&'a [u8], u16)> {
        let (mut kind, mut rest) = (word(packet, 12)?, packet.get(ETHERNET_BYTES..)?);
        if kind == TYPE_VLAN {
            (kind, rest) = (word(rest, 2)?, rest.get(VLAN_BYTES..)?);
        }
        let (datagram, bytes) = match kind {
            TYPE_IPV4 => {
                let (header, datagram) = rest.split_at_checked(IPV4_BYTES)?;
                let is_plain = header[0] == IPV4_PLAIN
                    && header[9] == PROTOCOL_UDP
                    && word(header, 6)? & IPV4_FRAGMENT == 0
                    && self.destination.v4.has(&header[16..20]);
                let bytes = word(header, 2)?.wrapping_sub(IPV4_BYTES as u16);
                is_plain.then_some((datagram, bytes))?
            }
            TYPE_IPV6 => {
                let (header, datagram) = rest.split_at_checked(IPV6_BYTES)?;
                let is_plain = header[0] >> 4 == 6
                    && header[6] == PROTOCOL_UDP
                    && self.destination.v6.has(&header[24..40]);
                is_plain.then_some((datagram, word(header, 4)?))?
            }
            _ => return None,
        };
        let is_whole = datagram.len() >= UDP_BYTES;
        (is_whole && word(datagram, 2)? == self.port).then_some((datagram, bytes))
    }
}

impl<const N: usize> Reach<[u8; N]> {
    fn has(&self, address: &[u8]) -> bool {
        match self {
            Self::None => false,
            Self::One(one) => one == address,
            Self::Any => true,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
