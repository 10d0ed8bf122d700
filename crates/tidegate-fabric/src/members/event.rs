//! Events for the shell, refusals that are counted, and errors that end a link.

use bytes::Bytes;
use tidegate_wire::{DecodeError, NodeId};

use super::SealError;

/// Something that the shell may act on, or show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member that this node did not know of.
    Joined(NodeId),
    /// A member has another record: addresses, position or such.
    Changed(NodeId),
    /// The cameras at a member are others.
    Cameras(NodeId),
    /// A member is missed, by this node or another.
    Doubted(NodeId),
    /// A member is lost, as others say too.
    Lost(NodeId),
    /// A member that was doubted, lost, or gone by its own word is here.
    Returned(NodeId),
    /// A member has left by its own word.
    Left(NodeId),
    /// A person has forgotten a member.
    Forgotten(NodeId),
    /// Nothing is held of a member any more: it went long ago, and others went later.
    Dropped(NodeId),
    /// The certificate of a member is revoked, and nothing of it is held any more. Its links are to be ended.
    Revoked(NodeId),
    /// A list of revoked certificates that is newer than the one before. [`Seal::revoke`](super::Seal::revoke) has taken it over already;
    /// this tells whoever shows or writes it.
    Revocations {
        /// The hash of the authority's key.
        authority: NodeId,
        /// The list (DER).
        list: Bytes,
    },
    /// Two members have one name and different keys.
    SameName {
        /// The name.
        name: String,
        /// The members, the lower one first.
        nodes: [NodeId; 2],
    },
    /// A record of this node has a higher version than it ever wrote: its folder was restored, or lost. It has a new start now.
    Restored,
    /// Another process uses the key of this node and lives, since a folder was copied. Neither is of use until one of them has a key of
    /// its own.
    SameKey,
    /// That process was not seen for [`limits::SAME_KEY_WITHIN`](super::limits::SAME_KEY_WITHIN): this node is of use again.
    SameKeyOver,
    /// Events were too many: those that the shell did not ask for in time are gone, and it is to look at all members.
    Missed,
}

/// Why a record of a peer is not taken over. The link stays: the peer may have it of others, and mean well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The one that is held is as new.
    #[error("version {found} is not newer than {held}, which is held")]
    Old {
        /// The version of the peer's.
        found: u64,
        /// The version that is held.
        held: u64,
    },
    /// The bytes are no such record.
    #[error("the record cannot be read")]
    Unreadable(#[from] DecodeError),
    /// The seal is not right.
    #[error("the seal of the record is refused")]
    Seal(#[from] SealError),
    /// It is signed by another than it is about, or its parts say otherwise than it does.
    #[error("the record says {field} otherwise than its seal and its parts do")]
    Contradicts {
        /// The field.
        field: &'static str,
    },
    /// A field is out of its range.
    #[error("{field} {found} of the record is not within {least} and {most}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The least that is allowed.
        least: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// No more members are allowed.
    #[error(
        "{most} members are here, and no more are allowed: forget those that are not to come back, or run two fabrics"
    )]
    TooMany {
        /// The most that are allowed.
        most: usize,
    },
    /// The records of all members are as many bytes as are allowed.
    #[error(
        "records of {most} bytes are held, and no more are allowed: announce fewer cameras, or run two fabrics"
    )]
    TooLarge {
        /// The most that are allowed.
        most: usize,
    },
    /// The member went before all those that are still remembered.
    #[error("the member went before all gone ones that are still remembered")]
    LongGone,
    /// Its member writes records more often than any that keeps to the rules.
    #[error("its member writes records more often than they are taken over")]
    TooOften,
    /// Cameras of a member that is not known.
    #[error("cameras are at a member that is not known")]
    NoMember,
    /// No more lists of revoked certificates are allowed.
    #[error("lists of {most} authorities are held, and no more are allowed")]
    TooManyLists {
        /// The most that are allowed.
        most: usize,
    },
}

/// How a peer breaks the protocol. Its link is to be ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The link is none of those that there are.
    #[error("the link is over, or was never taken")]
    NoLink,
    /// A record that has no place on a link between members' lists.
    #[error("a record {found} came where digests and shared records are expected")]
    Unexpected {
        /// Its name.
        found: &'static str,
    },
    /// A part of a record does not follow the one before it.
    #[error(
        "a part of a record begins at byte {found}, and {expected} bytes have come: parts follow each other"
    )]
    Gap {
        /// Where it begins.
        found: u32,
        /// How many bytes have come.
        expected: u32,
    },
    /// A record is longer than any of its kind.
    #[error("a record has more than {most} bytes, which is the limit of its kind")]
    TooLong {
        /// The limit.
        most: usize,
    },
    /// A list of records is not in order.
    #[error("a list of records is not in order: each is to be greater than the one before")]
    Unordered,
}

/// Why a link is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TurnedAway {
    /// The other end is this node, or has its key.
    #[error(
        "the other end has the key of this node: leave its own address out of the seeds, and give each node a key of its own"
    )]
    Myself,
    /// There is a link to that node, and it is the one that both keep.
    #[error("there is a link to that node, which both keep")]
    HasLink,
    /// This node has left.
    #[error("this node has left the fabric: start it again to come back")]
    Leaving,
}

/// Why a member is not forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// No such member is known.
    #[error("no member {0} is known: `tidegate fabric members` lists all")]
    Unknown(NodeId),
    /// It is this node.
    #[error("{0} is this node: let it leave")]
    Myself(NodeId),
    /// It has a link, and would be back at once.
    #[error("member {0} is linked and would be back at once: stop it, or revoke its certificate")]
    Linked(NodeId),
}

/// Numbers since the process began, but for those of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Members that are here, this node among them, now.
    pub present: usize,
    /// Members that are lost, left or forgotten and still remembered, now.
    pub gone: usize,
    /// Links, now.
    pub links: usize,
    /// Bytes of all records that are held, now.
    pub bytes: usize,
    /// Records that were taken over.
    pub taken: u64,
    /// Records that were not newer.
    pub old: u64,
    /// Records that were refused for another reason.
    pub refused: u64,
    /// Of those, the ones whose certificate is revoked.
    pub revoked: u64,
    /// Of those, the ones for which there was no room.
    pub no_room: u64,
    /// Of those, the ones that came too soon behind others of the same member.
    pub too_often: u64,
    /// Lists that were sent since two nodes did not have the same.
    pub lists: u64,
}
