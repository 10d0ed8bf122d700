//! A connection to this node's broker that publishes what an uplink brings, and knows which messages the broker has taken.

use std::{
    fmt::{self, Write as _},
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tidegate_bus::{
    self as bus, Answer, Attachment, Bundle, BundledPublication, Bus, BusError, SessionConfig,
    part_id,
};
use tidegate_compress::Message;
use tidegate_identity::access::Identity;
use tidegate_message::{ID_PROPERTY, LogLimiter};
use tidegate_process::clock;
use tidegate_uplink::{Attributes, FABRIC, Origin, Progress};
use tidegate_wire::mqtt::{
    PacketId, QoS, ReasonCode,
    path::{Direction, Stamps},
    put_user_property,
};

use super::{Ended, Receivers, repeats::Repeats};
use crate::sender::LOOPS_EVERY;

/// Messages that wait for the broker's answer, from which on there are many: the sender keeps each until it is told.
const MANY: u64 = 64;

/// Publishes numbered messages at this node's broker, and knows which it has taken.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) to_bus: bus::Publisher,
    /// The bundle to hand over next.
    bundle: Bundle,
    pub(super) progress: Progress,
    names: Names,
    /// Whether it publishes what another member of the fabric brings.
    is_peer: bool,
    /// Messages of that member that came before.
    pub(super) repeats: Repeats,
    /// None before a link.
    pub(super) passage: Option<Passage>,
    pub(super) counts: PublishCounts,
    refusals: LogLimiter,
    loops: LogLimiter,
}

/// The two nodes that a message passes.
#[derive(Debug)]
pub(super) struct Passage {
    /// This node's.
    ours: Stamps,
    /// The property that says that it left the other node; empty if that does not say its name.
    left: Vec<u8>,
    /// Whether they are the same node, so that all comes round.
    is_one: bool,
    looped: Arc<AtomicU64>,
    repeated: Arc<AtomicU64>,
}

impl Passage {
    pub(super) fn new(ours: &Stamps, theirs: &str, receivers: &Receivers) -> Result<Self, Ended> {
        let left = match theirs {
            "" => Vec::new(),
            name => Stamps::of(name).ok_or(Ended::Name)?.property(Direction::Out).to_vec(),
        };
        let is_one = left == ours.property(Direction::Out);
        let (looped, repeated) = (receivers.looped.clone(), receivers.repeated.clone());
        Ok(Self { ours: ours.clone(), left, is_one, looped, repeated })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PublishCounts {
    published: u64,
    /// Times that something was not let in by the rules.
    refused: u64,
    /// Messages that had been here before.
    looped: u64,
    /// Messages that came again.
    repeated: u64,
}

impl fmt::Display for PublishCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { published, refused, looped, repeated } = self;
        write!(f, "{published} published, {refused} refused, {looped} looped, {repeated} repeated")
    }
}

impl Publisher {
    pub(super) async fn attach(
        bus: &Bus,
        identity: &Identity,
        (uplink, leaf): (&str, Option<NonZeroU64>),
        what: &str,
    ) -> Result<Self, BusError> {
        let is_peer = uplink == FABRIC;
        let client_id = match is_peer {
            // Two nodes of one name take nothing from each other.
            true => part_id("fabric", &format!("{}/from/{what}", identity.key)),
            false => part_id("uplinks", &format!("{uplink}/{what}/{}", identity.name())),
        };
        let attachment = Attachment {
            name: format!("uplink {uplink} of {identity}"),
            // A refused message is sent again, with all that came after it.
            // The lower node has said which topics there may be.
            session: SessionConfig {
                ends_at_refusal: true,
                acknowledges_through: true,
                topic_levels_max: usize::from(u16::MAX),
                is_peer: is_peer && leaf.is_none(),
                leaf,
                ..SessionConfig::default()
            },
            // It publishes from its task, where it holds no lock.
            lends_thread: true,
            ..Attachment::new(identity.who().clone(), client_id)
        };
        Ok(Self {
            to_bus: bus.attach(attachment).await?.publisher,
            bundle: Bundle::default(),
            progress: Progress::default(),
            names: Names::default(),
            is_peer,
            repeats: Repeats::default(),
            passage: None,
            counts: PublishCounts::default(),
            refusals: LogLimiter::default(),
            loops: LogLimiter::every(LOOPS_EVERY),
        })
    }

    /// A life begins: numbers start over.
    pub(super) fn begin(&mut self, node: &str, uplink: &str, life: u64, mark: &'static str) {
        self.names = Names::new(node, uplink, life, mark);
        self.progress.begin();
        self.repeats.begin();
    }

    pub(super) fn has_room(&self) -> bool {
        self.to_bus.has_room()
    }

    /// Whether so much waits for the broker's answer that the sender is to know soon what was published.
    pub(super) fn has_many(&self) -> bool {
        self.to_bus.open() >= MANY
    }

    pub(super) fn publish(
        &mut self,
        message: Message<'_>,
        origin: Option<Origin>,
        names: bool,
    ) -> Result<(), Ended> {
        let attributes = Attributes::of(message.attributes)?;
        let number = self.progress.count();
        let passage = self.passage.as_ref().expect("messages come over a link");
        if passage.is_one || !attributes.may_enter(&passage.ours) {
            passage.looped.fetch_add(1, Relaxed);
            self.counts.looped += 1;
            if let Some(count) = self.loops.add(clock::now(), 1) {
                let topic = String::from_utf8_lossy(message.topic);
                tracing::warn!(uplink = self.names.prefix, %topic, count,
                    "messages that were at this node before are not published again; `count` is since the last such line");
            }
            return Ok(());
        }
        if origin.is_some_and(|origin| self.repeats.has(origin)) {
            passage.repeated.fetch_add(1, Relaxed);
            self.counts.repeated += 1;
            return Ok(());
        }
        if attributes.group.is_some() && !self.is_peer {
            return Err(Ended::Group);
        }
        let is_unnamed = names && !attributes.is_named();
        let publication = BundledPublication {
            topic: message.topic,
            payload: message.payload,
            forwarded: attributes.forwarded,
            // QoS 2 was taken as 1 where it was read: twice is possible only across a loss of this node's state.
            qos: attributes.qos.min(QoS::AtLeastOnce),
            retain: attributes.retain,
            message_expiry: attributes.expiry,
            group: attributes.group.unwrap_or_default().as_bytes(),
            // It gets one when it is handed over.
            id: PacketId::MIN,
        };
        let names = &mut self.names;
        self.bundle.push(&publication, |forwarded| {
            if is_unnamed {
                put_user_property(ID_PROPERTY, names.name(origin, number), forwarded)
                    .expect("names of nodes and uplinks are short texts");
            }
            // Behind the name: sinks look for that first.
            forwarded.extend_from_slice(&passage.left);
        });
        if self.is_peer {
            self.repeats.hand_over(origin);
        }
        self.counts.published += 1;
        Ok(())
    }

    /// Hands over what was published since [`Progress::expect`].
    pub(super) fn hand_over(&mut self) {
        let messages = self.bundle.len() as u64;
        if !self.bundle.is_empty() {
            let room = self.to_bus.empty(&self.bundle);
            self.to_bus.publish(std::mem::replace(&mut self.bundle, room));
        }
        self.progress.hand_over(self.to_bus.begun(), messages);
        self.acknowledged();
    }

    /// Takes the broker's answers.
    pub(super) fn settle(&mut self) -> Result<(), Ended> {
        let taken = self.take_answers();
        self.acknowledged();
        taken
    }

    fn acknowledged(&mut self) {
        self.progress.acknowledged(self.to_bus.first());
        self.repeats.acknowledged(self.to_bus.first());
    }

    fn take_answers(&mut self) -> Result<(), Ended> {
        loop {
            let answer = match self.to_bus.next_answer() {
                Ok(Some(answer)) => answer,
                Ok(None) => return Ok(()),
                Err(BusError::Disconnected { reason: ReasonCode::QUOTA_EXCEEDED, .. }) => {
                    return Err(Ended::NoRoom);
                }
                Err(BusError::Disconnected {
                    reason: ReasonCode::TOPIC_NAME_INVALID | ReasonCode::MALFORMED_PACKET,
                    ..
                }) => return Err(Ended::Topic),
                Err(error) => return Err(error.into()),
            };
            let Answer { reason, text: topic, .. } = answer;
            if reason.is_failure() {
                self.counts.refused += 1;
                if let Some(count) = self.refusals.add(clock::now(), 1) {
                    let topic = topic.unwrap_or_default();
                    tracing::warn!(uplink = self.names.prefix, %reason, topic, count,
                        "message not published; count since the last such line");
                }
            }
        }
    }
}

/// The names of messages: `NODE/UPLINK/LIFE/NUMBER`; where a message has an origin `NODE/UPLINK/RECEIVED/IDENTIFIER`, which stays when it
/// comes from a later process of its node. Critical ones are marked.
#[derive(Debug, Default)]
struct Names {
    /// `NODE/UPLINK/LIFE/`.
    prefix: String,
    /// Bytes of `NODE/UPLINK/` in it.
    uplink_bytes: usize,
    mark: &'static str,
    /// The name that was asked for last.
    name: String,
}

impl Names {
    fn new(node: &str, uplink: &str, life: u64, mark: &'static str) -> Self {
        let mut prefix = format!("{node}/{uplink}/");
        let uplink_bytes = prefix.len();
        // A text takes all of it.
        let _ = write!(prefix, "{life:x}{mark}/");
        Self { prefix, uplink_bytes, mark, name: String::new() }
    }

    fn name(&mut self, origin: Option<Origin>, number: u64) -> &str {
        let Self { prefix, uplink_bytes, mark, name } = self;
        name.clear();
        match origin {
            None => {
                name.push_str(prefix);
                name.push_str(itoa::Buffer::new().format(number));
            }
            Some(Origin { received, id }) => {
                name.push_str(&prefix[..*uplink_bytes]);
                let _ = write!(name, "{:x}{mark}/{id}", received.as_nanos());
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::Instant;

    use super::*;

    #[test]
    fn names_are_of_the_origin_where_there_is_one() {
        let origin = PacketId::new(7).map(|id| Origin { received: Instant::from_nanos(255), id });
        for (mark, expected) in [
            ("", ["edge/$fabric/1f/12", "edge/$fabric/ff/7"]),
            ("!", ["edge/$fabric/1f!/12", "edge/$fabric/ff!/7"]),
        ] {
            let mut names = Names::new("edge", "$fabric", 31, mark);
            assert_eq!([None, origin].map(|origin| names.name(origin, 12).to_owned()), expected);
        }
    }
}
