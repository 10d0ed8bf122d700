//! The promises of the packets' own modules, from the outside.

use super::*;

mod clauses;
mod golden;
mod oracle;
mod random;

/// The one packet that `bytes` are.
fn decode(version: Version, bytes: &[u8]) -> Result<Packet<'_>, DecodeError> {
    let header = FixedHeader::decode(bytes, usize::MAX)?.expect("the fixed header is whole");
    assert_eq!(header.packet_bytes(), bytes.len(), "the remaining length is that of {bytes:02x?}");
    Packet::decode(version, header.first, &bytes[header.header_bytes..])
}

fn encode(version: Version, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes).unwrap_or_else(|error| panic!("{packet:?}: {error}"));
    bytes
}

fn id(id: u16) -> PacketId {
    PacketId::new(id).unwrap()
}

fn connect(version: Version) -> Connect {
    Connect {
        version,
        bridge: false,
        clean_start: true,
        keep_alive: 60,
        client_id: "cam".to_owned(),
        will: None,
        username: None,
        password: None,
        properties: ConnectProperties::default(),
    }
}
