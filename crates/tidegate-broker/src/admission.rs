//! The hook between decoding and routing: operators and rules live here.

use std::{fmt, sync::Arc};

use tidegate_message::{Identity, Instant, Payload};
use tidegate_wire::mqtt::QoS;

use crate::{
    message::{Body, MessageRef},
    session_state::SessionKey,
};

/// Messages that come from messages may come from messages again, this often.
pub const HOPS_MAX: u8 = 8;

/// Decides about the messages of one publisher, its will among them, in the order in which they came.
pub trait Admission: Send + fmt::Debug {
    /// Looks at `batch`: may change each draft and its verdict, and add what it emits.
    fn admit(&mut self, now: Instant, identity: &Identity, batch: &mut Batch);

    /// Whether messages of this topic are looked at. Those of others may be in a batch as well: an answer never overtakes that to
    /// what was published before.
    fn concerns(&mut self, topic: &Arc<str>) -> bool {
        let _ = topic;
        true
    }

    /// When to call [`Admission::handle_timeout`] next; none for never.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Adds to `batch.emitted` what is published because time has passed. It may be called before it is due.
    fn handle_timeout(&mut self, now: Instant, batch: &mut Batch) {
        let _ = (now, batch);
    }

    /// Counts for `$SYS/broker/NAME`, by name.
    fn report(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// The messages read at once from one publisher.
#[derive(Debug, Default)]
pub struct Batch {
    /// In order.
    pub drafts: Vec<Draft>,
    /// Published after the batch, in the node's name. Their hops must exceed those of the draft they came from; beyond
    /// [`HOPS_MAX`] they are dropped and counted.
    pub emitted: Vec<Draft>,
    /// Dead letters, each with the index of the draft that it stands for. They are published in the node's name as well, those of
    /// a draft before it is answered, and the draft is refused if one of them is, so that its publisher may send it again. For their
    /// hops the same holds.
    pub letters: Vec<(usize, Draft)>,
}

/// A message before it is routed.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Topic name, valid.
    pub topic: Arc<str>,
    /// Payload.
    pub payload: Payload,
    /// Properties that are forwarded unaltered, encoded.
    pub forwarded: Vec<u8>,
    /// Quality of service.
    pub qos: QoS,
    /// Whether it is to be retained.
    pub retain: bool,
    /// When it loses its worth, if ever.
    pub expires: Option<Instant>,
    /// Messages that it descends from.
    pub hops: u8,
    /// The verdict on it.
    pub verdict: Verdict,
}

impl Draft {
    /// The message, borrowed, as if it had just come in from that publisher; none for the node itself. Whether that is a peer, its
    /// route says.
    pub(crate) fn borrowed(&self, now: Instant, publisher: Option<SessionKey>) -> MessageRef<'_> {
        MessageRef {
            topic: &self.topic,
            payload: Body::Held(&self.payload),
            forwarded: &self.forwarded,
            qos: self.qos,
            retain: self.retain,
            is_from_peer: false,
            expires: self.expires,
            received: now,
            publisher,
        }
    }
}

impl From<MessageRef<'_>> for Draft {
    /// A message that comes from no other and passes.
    fn from(message: MessageRef<'_>) -> Self {
        Self {
            topic: message.topic.clone(),
            payload: message.payload.to_payload(),
            forwarded: message.forwarded.to_vec(),
            qos: message.qos,
            retain: message.retain,
            expires: message.expires,
            hops: 0,
            verdict: Verdict::Pass,
        }
    }
}

/// The verdict on a draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Routed as it is now, replaced or not; acknowledged.
    #[default]
    Pass,
    /// Not routed; acknowledged all the same, since its publisher did its part, unless a dead letter of it is refused.
    Drop,
}
