//! Records of a peer on a link between members of a fabric.

use std::time::Duration;

use tidegate_fabric::{
    clients::{Client, Clients},
    interest::Wanted,
    members::{
        DialNumber, MemberSettings, Members, OwnSettings, Seal, SealError, Signer,
        limits::PRESENT_MAX,
    },
};
use tidegate_message::Instant;
use tidegate_wire::{
    MemberCameras, MemberRecord, NodeId, OwnerKind, Record, Sealed, SharedPart,
    limits::RECORD_BYTES_MAX,
};

/// Seals that all open, so that what is sealed is reached: the signer is the one that the record names.
struct Open;

impl Seal for Open {
    fn seal(&mut self, bytes: &[u8]) -> Sealed {
        let (certificate, signature) = Default::default();
        Sealed { certificate, signature, bytes: bytes.to_vec().into() }
    }

    fn open(&mut self, sealed: &Sealed) -> Result<Signer, SealError> {
        if let Ok(record) = MemberRecord::of_bytes(&sealed.bytes) {
            return Ok(Signer { node: record.node, name: record.name });
        }
        match MemberCameras::of_bytes(&sealed.bytes) {
            Ok(cameras) => Ok(Signer { node: cameras.node, name: String::new() }),
            Err(_) => Err(SealError::Unreadable),
        }
    }

    fn revoke(&mut self, _: NodeId, list: &[u8]) -> Result<u64, SealError> {
        list.first().map(|version| u64::from(*version)).ok_or(SealError::Unreadable)
    }
}

/// A member keeps its bounds whatever records a peer sends it, with seals that open, and what it sends can be read. Records that are shared
/// have one encoding.
pub fn member_records(data: &[u8]) {
    let now = Instant::EPOCH + Duration::from_secs(1);
    if let Ok(record) = MemberRecord::of_bytes(data) {
        assert_eq!(MemberRecord::of_bytes(&record.to_bytes()), Ok(record));
    }
    if let Ok(cameras) = MemberCameras::of_bytes(data) {
        assert_eq!(MemberCameras::of_bytes(&cameras.to_bytes()), Ok(cameras));
    }
    if let Ok(sealed) = Sealed::of_bytes(&data.to_vec().into()) {
        assert_eq!(sealed.to_bytes(), data);
    }
    let settings = MemberSettings {
        me: NodeId([7; 32]),
        name: "me".to_owned(),
        seeds: Vec::new(),
        retry_max: Duration::from_secs(5),
        own: OwnSettings::default(),
    };
    let mut members = Members::new(now, settings, Box::new(Open), None, 42, 1_700_000_000);
    let peer = NodeId([8; 32]);
    let mut clients = Clients::new(NodeId([7; 32]), 1);
    for (name, kind) in [("a", OwnerKind::User), ("b", OwnerKind::Anonymous)] {
        let (is_clean, is_connected) = (false, true);
        let (client, owner) = (name.into(), name.into());
        clients.connected(Client { client, kind, owner, began: now, is_clean, is_connected });
    }
    clients.linked(now, peer);
    let taken =
        members.handle_linked(now, peer, None, DialNumber::default()).expect("it is another node");
    let (mut wanted, mut rest) = (Wanted::default(), data);
    while let [kind, low, high, after @ ..] = rest {
        let count = usize::from(u16::from_le_bytes([*low, *high])) % RECORD_BYTES_MAX;
        let (bytes, after) = after.split_at(count.min(after.len()));
        rest = after;
        let record = match kind % 3 {
            // A shared record that is whole, without its frame: most would not find one that fits.
            0 => MemberRecord::of_bytes(bytes).ok().map(|record| {
                let sealed = Open.seal(bytes).to_bytes();
                let of = record.node;
                let kind = tidegate_wire::SharedKind::Member;
                let key = tidegate_wire::SharedKey { of, kind };
                let version = record.version;
                SharedPart { key, version, offset: 0, more: false, bytes: sealed }.into()
            }),
            _ => Record::decode(bytes).ok().flatten(),
        };
        let is_over = match record {
            Some(Record::Interests(interests)) => wanted.handle(interests).is_err(),
            Some(Record::ClientsHere(here)) => {
                clients.handle_here(now, peer, here);
                false
            }
            Some(Record::ClientClaims(claims)) => clients.handle_claims(now, peer, claims).is_err(),
            Some(record) => members.handle_record(now, taken.link, record).is_err(),
            None => false,
        };
        if is_over {
            return;
        }
        while let Some(save) = members.poll_save() {
            members.handle_saved(now, save.ticket);
        }
        while let Some(record) = members.poll_transmit(taken.link) {
            assert!(record.to_bytes().len() <= RECORD_BYTES_MAX, "it can be sent");
        }
        while let Some(record) = clients.poll_transmit(now, peer) {
            assert!(record.to_bytes().len() <= RECORD_BYTES_MAX, "it can be sent");
        }
        while clients.poll_event().is_some() {}
        while members.poll_event().is_some() {}
        assert!(members.counts().present <= PRESENT_MAX);
    }
}
