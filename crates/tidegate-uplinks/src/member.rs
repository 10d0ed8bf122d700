//! The uplinks by which the members of a fabric carry messages to each other: one in each direction between any two of them.
//!
//! A member says which topics it wants ([`Course::topics`](crate::Course)); each of the others holds a session for it with those
//! subscriptions, in its name and as a peer: its rights are asked, and what one member has brought goes to no other. A *leaf*, for which this
//! node relays, counts among the clients of this node instead: what it brings goes to all others, and what others bring goes to it. Such an uplink has a
//! link only while there is something to carry, and for [`Peer::idle_max`] behind that, so that a thousand members do not keep a million
//! links. Both ends then keep no state of the codec either; what was published by then is acknowledged.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use tidegate_bus::{Bus, SessionConfig, part_id};
use tidegate_compress::{Compression, EncoderConfig};
use tidegate_link::link::Transport;
use tidegate_message::Identity;
use tidegate_uplink::FABRIC;
use tidegate_wire::NodeId;

use crate::UplinkSettings;

/// The code by which a link is closed that has nothing to carry: all that came over it was acknowledged.
pub(crate) const RESTS: u32 = 2;

/// A member of the fabric that an uplink goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// The hash of its key. The uplink carries nothing to a node of another.
    pub node: NodeId,
    /// The member itself, whose rights are asked for what it is sent, of the kind [`Node`](tidegate_message::IdentityKind::Node).
    pub identity: Identity,
    /// How long a link stays on which nothing is carried. The next message takes another one, which costs it some round trips.
    pub idle_max: Duration,
    /// Whether this node relays for it, so that it counts as a client here. [`Receivers::set_leaf`](crate::Receivers::set_leaf) says the same of what it brings.
    pub is_leaf: bool,
}

/// Where another node is reached now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Its link addresses, host and port each, tried in their order; none while it is known to be away: then it is not dialled.
    pub addresses: Arc<[String]>,
}

impl Reach {
    /// At those addresses.
    pub fn at<'a>(addresses: impl IntoIterator<Item = &'a str>) -> Self {
        Self { addresses: addresses.into_iter().map(str::to_owned).collect() }
    }
}

impl Peer {
    /// That member, which is no leaf; a link to it stays for a minute.
    pub fn new(node: NodeId, identity: Identity) -> Self {
        Self { node, identity, idle_max: Duration::from_secs(60), is_leaf: false }
    }

    /// The number by which this node's broker knows the sessions of a leaf.
    pub(crate) fn leaf(node: NodeId) -> NonZeroU64 {
        let first = node.0.first_chunk().copied().unwrap_or_default();
        NonZeroU64::new(u64::from_le_bytes(first)).unwrap_or(NonZeroU64::MIN)
    }

    /// Ends the sessions here of all members, for a node that takes part in no fabric any more; how many there were.
    pub async fn end_sessions(bus: &Bus) -> usize {
        let all = part_id("fabric", "");
        bus.end_sessions(move |client_id, _| client_id.starts_with(&all)).await
    }

    /// The client identifiers of the two sessions here of the uplink to a member.
    pub fn sessions(node: NodeId) -> [String; 2] {
        ["batched", "critical"].map(|what| part_id("fabric", &format!("{node}/{what}")))
    }
}

impl UplinkSettings {
    /// Those of an uplink to a member of the fabric, under `session` for what waits here.
    ///
    /// The codec keeps 1 MiB at most at each end: a node keeps as much for each of a thousand others that send at once. Batches are not
    /// compressed once more, for members are near, and wait for nothing.
    pub fn to_member(peer: Peer, session: &SessionConfig) -> Self {
        const WINDOW_BYTES: u64 = 4 << 20;
        Self {
            name: FABRIC.to_owned(),
            to: peer.identity.name.to_string(),
            // The end of a killed process is seen at once.
            transport: Transport::Tcp,
            topics: Vec::new(),
            critical: Vec::new(),
            critical_bytes_per_second: 16 << 20,
            // Messages of one turn go in one batch, and those that come while the link is busy in the next.
            batch_age: Duration::ZERO,
            batch_bytes: 64 << 10,
            window_bytes_max: WINDOW_BYTES as usize,
            flight_bytes_max: WINDOW_BYTES as usize,
            encoder: EncoderConfig {
                compression: Compression::None,
                state_bytes_max: 1 << 20,
                ..EncoderConfig::default()
            },
            names_messages: true,
            session: SessionConfig {
                is_peer: !peer.is_leaf,
                leaf: peer.is_leaf.then(|| Peer::leaf(peer.node)),
                inflight_max: Some(u16::MAX),
                inflight_bytes_max: Some(WINDOW_BYTES),
                ..session.clone()
            },
            retry_max: Duration::from_secs(5),
            peer: Some(peer),
        }
    }
}
