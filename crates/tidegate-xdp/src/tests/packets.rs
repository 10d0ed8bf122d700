//! Packets, made for tests.

use std::net::IpAddr;

use super::PORT;

/// A datagram as it comes in by Ethernet.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) vlans: Vec<u16>,
    pub(crate) to: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: u8,
    /// Options of IPv4, or an extension header of IPv6; in words of 32 bits.
    pub(crate) options: Vec<u32>,
    /// Flags and offset of a fragment.
    pub(crate) fragment: u16,
    pub(crate) payload: Vec<u8>,
    /// Bytes after the datagram.
    pub(crate) trailer: usize,
}

impl Packet {
    pub(crate) fn new(to: &str, payload: &[u8]) -> Self {
        Self {
            vlans: Vec::new(),
            to: to.parse().unwrap(),
            port: PORT,
            protocol: 17,
            options: Vec::new(),
            fragment: 0x4000,
            payload: payload.to_vec(),
            trailer: 0,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0x02; 12];
        for vlan in &self.vlans {
            bytes.extend([0x81, 0x00]);
            bytes.extend(vlan.to_be_bytes());
        }
        let udp_bytes = 8 + self.payload.len() as u16;
        let options_bytes = 4 * self.options.len() as u16;
        let options = self.options.iter().flat_map(|word| word.to_be_bytes());
        match self.to {
            IpAddr::V4(to) => {
                bytes.extend([0x08, 0x00]);
                bytes.extend([0x45 + self.options.len() as u8, 0]);
                bytes.extend((20 + options_bytes + udp_bytes).to_be_bytes());
                bytes.extend([0xab, 0xcd]);
                bytes.extend(self.fragment.to_be_bytes());
                bytes.extend([64, self.protocol, 0, 0, 192, 0, 2, 1]);
                bytes.extend(to.octets());
            }
            IpAddr::V6(to) => {
                bytes.extend([0x86, 0xdd, 0x6a, 0xbc, 0xde, 0xf0]);
                bytes.extend((options_bytes + udp_bytes).to_be_bytes());
                bytes.extend([self.protocol, 64]);
                bytes.extend([0x20; 16]);
                bytes.extend(to.octets());
            }
        }
        bytes.extend(options);
        bytes.extend(9999_u16.to_be_bytes());
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(udp_bytes.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(&self.payload);
        bytes.extend(vec![0x37; self.trailer]);
        bytes
    }
}
