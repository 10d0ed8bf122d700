//! A connection to this node's broker that publishes what an uplink brings, and knows which messages the broker has taken.

use std::{
    fmt,
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
use tidegate_uplink::{Attributes, Progress};
use tidegate_wire::mqtt::{
    PacketId, QoS, ReasonCode,
    path::{Direction, Stamps},
    put_user_property,
};

use super::Ended;
use crate::sender::LOOPS_EVERY;

/// Publishes numbered messages at this node's broker, and knows which it has taken.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) to_bus: bus::Publisher,
    /// The bundle to hand over next.
    bundle: Bundle,
    pub(super) progress: Progress,
    /// The prefix of names.
    name: String,
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
}

impl Passage {
    pub(super) fn new(ours: &Stamps, theirs: &str, looped: &Arc<AtomicU64>) -> Result<Self, Ended> {
        let left = match theirs {
            "" => Vec::new(),
            name => Stamps::of(name).ok_or(Ended::Name)?.property(Direction::Out).to_vec(),
        };
        let is_one = left == ours.property(Direction::Out);
        Ok(Self { ours: ours.clone(), left, is_one, looped: looped.clone() })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PublishCounts {
    published: u64,
    /// Times that something was not let in by the rules.
    refused: u64,
    /// Messages that had been here before.
    looped: u64,
}

impl fmt::Display for PublishCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { published, refused, looped } = self;
        write!(f, "{published} published, {refused} refused, {looped} looped")
    }
}

impl Publisher {
    pub(super) async fn attach(
        bus: &Bus,
        identity: &Identity,
        uplink: &str,
        what: &str,
    ) -> Result<Self, BusError> {
        let client_id = part_id("uplinks", &format!("{uplink}/{what}/{}", identity.name()));
        let attachment = Attachment {
            name: format!("uplink {uplink} of {identity}"),
            // A refused message is sent again, with all that came after it.
            // The lower node has said which topics there may be.
            session: SessionConfig {
                ends_at_refusal: true,
                acknowledges_through: true,
                topic_levels_max: usize::from(u16::MAX),
                ..SessionConfig::default()
            },
            ..Attachment::new(identity.who().clone(), client_id)
        };
        Ok(Self {
            to_bus: bus.attach(attachment).await?.publisher,
            bundle: Bundle::default(),
            progress: Progress::default(),
            name: String::new(),
            passage: None,
            counts: PublishCounts::default(),
            refusals: LogLimiter::default(),
            loops: LogLimiter::every(LOOPS_EVERY),
        })
    }

    /// A life begins: numbers start over.
    pub(super) fn begin(&mut self, node: &str, uplink: &str, life: u64, mark: &str) {
        self.name = format!("{node}/{uplink}/{life:x}{mark}/");
        self.progress.begin();
    }

    pub(super) fn has_room(&self) -> bool {
        self.to_bus.has_room()
    }

    pub(super) fn publish(&mut self, message: Message<'_>, names: bool) -> Result<(), Ended> {
        let attributes = Attributes::of(message.attributes)?;
        let number = self.progress.count();
        let passage = self.passage.as_ref().expect("messages come over a link");
        if passage.is_one || !attributes.may_enter(&passage.ours) {
            passage.looped.fetch_add(1, Relaxed);
            self.counts.looped += 1;
            if let Some(count) = self.loops.add(clock::now(), 1) {
                let topic = String::from_utf8_lossy(message.topic);
                tracing::warn!(uplink = self.name, %topic, count,
                    "messages that were at this node before are not published again; `count` is since the last such line");
            }
            return Ok(());
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
            // It gets one when it is handed over.
            id: PacketId::MIN,
        };
        let name = &mut self.name;
        self.bundle.push(&publication, |forwarded| {
            if is_unnamed {
                let name_len = name.len();
                name.push_str(itoa::Buffer::new().format(number));
                put_user_property(ID_PROPERTY, name, forwarded)
                    .expect("names of nodes and uplinks are short texts");
                name.truncate(name_len);
            }
            // Behind the name: sinks look for that first.
            forwarded.extend_from_slice(&passage.left);
        });
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
        self.progress.acknowledged(self.to_bus.first());
    }

    /// Takes the broker's answers.
    pub(super) fn settle(&mut self) -> Result<(), Ended> {
        let taken = self.take_answers();
        self.progress.acknowledged(self.to_bus.first());
        taken
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
                    tracing::warn!(uplink = self.name, %reason, topic, count,
                        "message not published; count since the last such line");
                }
            }
        }
    }
}
