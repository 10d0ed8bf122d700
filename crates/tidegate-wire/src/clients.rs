//! Records by which members find client identifiers that are in use at two of them.
//!
//! ```text
//!  ClientsHere: how many clients are connected, and the time there ─▶ on a new link, both ways
//!  ClientClaims: clients that are connected at the sender ─▶ all from the end that has fewer, and each that connects later
//!         ◀───── ClientClaims: those of them that are in use here, too; or the verdict on them
//! ```
//!
//! Of two members the one whose [`NodeId`](crate::NodeId) is lower gives verdicts, so that there is one.

use bytes::BytesMut;
use tidegate_message::Instant;

use crate::{
    code::{DecodeError, Field, Input, choice, fields},
    limits::{CLIENT_CLAIMS_MAX, CRITICAL_PART_BYTES_MAX},
    member::{put_list, take_list},
};

/// The first word about clients on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientsHere {
    /// Drawn by chance when the sender's process began: its times cannot be compared with those of another process.
    pub process: u64,
    /// The time at the sender, which the times of its claims go by. It need not be the time of day.
    pub now: Instant,
    /// How many clients are connected to it.
    pub count: u32,
}

/// Clients that are connected to the sender, and verdicts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientClaims {
    /// The clients, at most [`CLIENT_CLAIMS_MAX`].
    pub claims: Vec<ClientClaim>,
    /// Verdicts on clients of the receiver, at most [`CLIENT_CLAIMS_MAX`].
    pub verdicts: Vec<ClientVerdict>,
    /// Identifiers in dispute, whose client has left the sender, at most [`CLIENT_CLAIMS_MAX`].
    pub ended: Vec<String>,
}

/// A client of the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientClaim {
    /// Its identifier.
    pub client: String,
    /// Its identity.
    pub owner: ClientOwner,
    /// When it connected last, by the sender's time.
    pub began: Instant,
    /// Whether it wanted no session of before.
    pub is_clean: bool,
    /// Whether it is connected; otherwise its session waits for it.
    pub is_connected: bool,
}

/// A verdict on a client of the receiver, whose identifier is in use at the sender, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientVerdict {
    /// Its identifier.
    pub client: String,
    /// Which connection of it, by its [`ClientClaim::began`].
    pub began: Instant,
    /// The identity of the client at the sender.
    pub owner: ClientOwner,
    /// Whether that one wanted no session of before.
    pub is_clean: bool,
    /// Whether the identifier is another owner's, so that both clients stay. Otherwise the client at the sender connected later.
    pub is_disputed: bool,
    /// Whether both were connected before the two members had a link.
    pub is_met: bool,
}

/// The identity of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientOwner {
    /// How it was shown.
    pub kind: OwnerKind,
    /// The name of that user or certificate.
    pub name: String,
}

/// How a client showed whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwnerKind {
    /// Not at all.
    Anonymous,
    /// By a user name and a proof.
    User,
    /// By the certificate of an application or device.
    Certificate,
    /// By the certificate of a node.
    Node,
}

choice!(OwnerKind { Anonymous = 1, User = 2, Certificate = 3, Node = 4 });
fields!(ClientsHere { process, now, count });
fields!(ClientOwner { kind, name });
fields!(ClientClaim { client, owner, began, is_clean, is_connected });
fields!(ClientVerdict { client, began, owner, is_clean, is_disputed, is_met });

impl Field for ClientClaims {
    fn put(&self, out: &mut BytesMut) {
        put_list(&self.claims, CLIENT_CLAIMS_MAX, out);
        put_list(&self.verdicts, CLIENT_CLAIMS_MAX, out);
        put_list(&self.ended, CLIENT_CLAIMS_MAX, out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, DecodeError> {
        input.field = "claims";
        let claims = take_list(input, CLIENT_CLAIMS_MAX)?;
        input.field = "verdicts";
        let verdicts = take_list(input, CLIENT_CLAIMS_MAX)?;
        input.field = "ended";
        Ok(Self { claims, verdicts, ended: take_list(input, CLIENT_CLAIMS_MAX)? })
    }
}

impl ClientClaims {
    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.verdicts.is_empty() && self.ended.is_empty()
    }
}

/// Counts how much of a record is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientRoom {
    entries: usize,
    bytes: usize,
}

impl ClientRoom {
    /// Takes the room of an entry with texts of so many bytes; whether there was as much.
    pub fn take(&mut self, text_bytes: usize) -> bool {
        // At most: two lengths, kind and time of a claim or a verdict, and three truth values.
        let bytes = self.bytes + text_bytes + 2 * 2 + 1 + 8 + 3;
        let is_room = self.entries < CLIENT_CLAIMS_MAX && bytes <= CRITICAL_PART_BYTES_MAX;
        if is_room {
            (self.entries, self.bytes) = (self.entries + 1, bytes);
        }
        is_room
    }
}
