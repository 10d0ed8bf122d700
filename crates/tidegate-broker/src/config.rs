//! Settings of a broker.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use tidegate_message::{
    TopicError, check_topic_characters, check_topic_filter, check_topic_name, split_shared,
    topic_matches,
};
use tidegate_wire::mqtt::{QoS, Version};

pub use tidegate_message::words::Overflow;
use tidegate_schedule::{Policy, PolicyError};

use crate::reach::Reach;

/// Settings of all shards of a node.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// Bytes that the node holds at most of messages, queued, in flight, retained and being received, and of filters and
    /// aliases beyond a few kilobytes of each client. Default 256 MiB.
    pub payload_bytes_max: u64,
    /// The part of the memory, the retained messages and the sessions not used by others that one identity may have: of bytes
    /// that its messages take which are retained or wait for its sessions, of packets of it that have not come whole, of its
    /// wills and filters, of retained messages, and of sessions that it left behind. Above 0, at most 1, which is no bound. Those
    /// who prove nothing count by address, parts of this program not at all. Default 0.75.
    pub identity_share: f64,
    /// Longest time that a session outlives its connection; longer requests are cut, which MQTT 5 clients learn
    /// in CONNACK. Default seven days.
    pub session_expiry_max: Duration,
    /// Sessions, with and without a connection. Default 1,000,000.
    pub sessions_max: usize,
    /// Subscriptions of one session. Default 100,000.
    pub subscriptions_max: usize,
    /// Retained messages. Default 1,000,000.
    pub retained_max: usize,
    /// This node among those that are one broker, by the first bytes of its identifier: its retained messages then have stamps, by which all of
    /// them decide which value of a topic is the newest. Default none, where a node is by itself.
    pub member: Option<u64>,
    /// Whether a retained message is sent to new subscriptions only while its publisher may still publish it, as Mosquitto does it.
    /// Default true.
    pub check_retain_source: bool,
    /// QoS 1 and 2 messages in flight to one subscriber, where it does not ask for fewer. Default 1,024.
    pub inflight_max: u16,
    /// Bytes of QoS 1 and 2 messages in flight to one subscriber, unless its path holds more. Default 4 MiB; one message
    /// may always be in flight.
    pub inflight_bytes_max: u64,
    /// QoS 2 messages of one publisher that wait for their release. Default 1,024.
    pub receive_maximum: u16,
    /// Topic aliases that a publisher may define. Default 64.
    pub topic_alias_max: u16,
    /// Topic aliases defined towards a subscriber that takes them. Default 64.
    pub topic_alias_out_max: u16,
    /// Longest keep alive in seconds, and the one of clients that want none; 0 lets them. MQTT 5 clients learn it in CONNACK,
    /// others are refused with "identifier rejected", as Mosquitto does it. Default 0.
    pub keep_alive_max: u16,
    /// Payloads up to this are copied into the subscriber's output, larger ones go by reference. Default 4 KiB.
    pub copy_bytes_max: usize,
    /// The settings of sessions whose listener and user say nothing else.
    pub session: SessionConfig,
    /// Exceptions by topic, first match decides.
    pub topics: Vec<TopicConfig>,
    /// How often `$SYS` is published; zero for never. Default 10 s.
    pub sys_interval: Duration,
    /// The topic of latency queries, for the paper's policies: a name without wildcards. Default `latency`.
    pub query_topic: Arc<str>,
}

/// Settings of a session, by listener, by user, or for all.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionConfig {
    /// Largest packet that is accepted from the client, in bytes; MQTT 5 clients learn it in CONNACK. Default the protocol's
    /// own limit, 256 MiB and four bytes.
    pub packet_bytes_max: u32,
    /// Versions of MQTT that are spoken. Default all.
    pub versions: Versions,
    /// Most QoS of messages from and for the client: MQTT 5 clients learn it (Maximum QoS), a client that publishes
    /// with more is disconnected (0x9B), and subscriptions are granted no more. Nothing to a client of this process.
    /// Default 2.
    pub max_qos: QoS,
    /// Whether messages may be retained: MQTT 5 clients learn if not (Retain Available), and a client that tries is disconnected
    /// (0x9A). Nothing to a client of this process. Default true.
    pub retain_available: bool,
    /// Whether a client may come without an identifier and is given one. Default true.
    pub allow_zero_length_client_id: bool,
    /// How identifiers begin that are given. Default `auto-`.
    pub auto_id_prefix: Arc<str>,
    /// Whether topics and filters may have [control characters](tidegate_message::check_topic_characters). Default false.
    pub topic_control_characters: bool,
    /// Levels of a topic or filter that the client names; `$share/GROUP` before a filter does not count. Default 256.
    pub topic_levels_max: usize,
    /// Bytes of a topic or filter that the client names, `$share/GROUP/` included. Default 65,535, the protocol's own limit.
    pub topic_bytes_max: usize,
    /// Bytes of the messages that wait for one subscriber, in memory; one may always wait, and under [`Overflow::Disconnect`] one
    /// more than has room. Default 32 MiB.
    pub queue_bytes_max: u64,
    /// Messages that wait for one subscriber, in memory and on disk. Default 100,000.
    pub queue_messages_max: usize,
    /// How long a session may be full and without a connection before its oldest messages are dropped, and counted, whatever
    /// [`SessionConfig::overflow`] says, so that its publishers are no longer refused or held up for it; zero forever. Default 1 h.
    pub queue_idle_max: Duration,
    /// The policy for QoS 0 messages beyond that. Default [`Overflow::DropOldest`].
    pub overflow_qos0: Overflow,
    /// The policy for QoS 1 and 2 messages beyond that. Default [`Overflow::Spill`].
    pub overflow: Overflow,
    /// When large messages start. Default `deadline`.
    pub policy: Policy,
    /// Payloads over this are large, in bytes (threshold_s of the paper). Default 10,000.
    pub large_bytes: u32,
    /// Instead of [`BrokerConfig::inflight_max`]. Default none.
    pub inflight_max: Option<u16>,
    /// Instead of [`BrokerConfig::inflight_bytes_max`]. Default none.
    pub inflight_bytes_max: Option<u64>,
    /// Whether the client is a part of this process, which ends with it: [`BrokerConfig::keep_alive_max`] asks nothing of it.
    /// Default false.
    pub is_local: bool,
    /// Whether a connection ends with the first message that is not accepted for want of room, in MQTT 5 as before it: those
    /// behind it are then not taken either, and a publisher that sends all of them again keeps their order. In MQTT 5 one of QoS
    /// 1 that is larger than all memory is refused by its PUBACK, since it would come again forever. Default false.
    pub ends_at_refusal: bool,
    /// Whether a PUBACK stands for all messages of QoS 1 before the one that it names as well, and its reason for the worst of
    /// theirs; where one was not allowed, or can never be held, its reason string, in MQTT 5, is the topic of the first. Only for parts of this process
    /// that ask for it, and with `ends_at_refusal`. Default false.
    pub acknowledges_through: bool,
    /// Whether messages are handed out as they are held ([`Broker::take_deliveries`](crate::Broker::take_deliveries)) and not sent
    /// in packets, so that no Maximum Packet Size holds for them, and may be acknowledged many at a time
    /// ([`Broker::acknowledge_deliveries`](crate::Broker::acknowledge_deliveries)); all else is as with packets. Default false.
    pub hands_out: bool,
    /// Whether it is a peer session: one by which messages leave for another member of the fabric, or come from it. A message that a
    /// peer session publishes goes to no peer session, live or retained: one hop, since each member has sent its own to each other one.
    /// None of its SUBACKs waits. The mark outlives the process, with the session and with what a peer published. Default false.
    pub is_peer: bool,
    /// The leaf whose session it is, by a number of the node's own: another member of the fabric, for which this node relays. It counts among the
    /// clients of this node; but no message that a leaf publishes goes back to it, live or retained, and such a one goes to no shared
    /// subscription, except where the leaf chose this node for one. Its subscriptions are known to who has made them, so that none of its
    /// SUBACKs waits. The mark does not outlive the process: the session has it again once it is connected. Default none.
    pub leaf: Option<NonZeroU64>,
}

/// Versions of MQTT that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions([bool; 3]);

impl Versions {
    /// Those that are named.
    pub fn of(versions: impl IntoIterator<Item = Version>) -> Self {
        let mut spoken = Self([false; 3]);
        versions.into_iter().for_each(|version| spoken.0[version as usize] = true);
        spoken
    }

    /// Whether that version is one of them.
    pub fn has(self, version: Version) -> bool {
        self.0[version as usize]
    }
}

/// All.
impl Default for Versions {
    fn default() -> Self {
        Self([true; 3])
    }
}

/// Exceptions for topics.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// Which topics.
    pub filter: String,
    /// Another size threshold.
    pub large_bytes: Option<u32>,
    /// Another overflow, for every QoS.
    pub overflow: Option<Overflow>,
}

impl TopicConfig {
    /// The exception that holds for a topic.
    pub(crate) fn of<'a>(exceptions: &'a [Self], topic: &str) -> Option<&'a Self> {
        exceptions.iter().find(|exception| topic_matches(&exception.filter, topic))
    }
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            payload_bytes_max: 256 << 20,
            identity_share: 0.75,
            session_expiry_max: Duration::from_secs(7 * 24 * 3600),
            sessions_max: 1_000_000,
            subscriptions_max: 100_000,
            retained_max: 1_000_000,
            member: None,
            check_retain_source: true,
            inflight_max: 1024,
            inflight_bytes_max: 4 << 20,
            receive_maximum: 1024,
            topic_alias_max: 64,
            topic_alias_out_max: 64,
            keep_alive_max: 0,
            copy_bytes_max: 4 << 10,
            session: SessionConfig::default(),
            topics: Vec::new(),
            sys_interval: Duration::from_secs(10),
            query_topic: "latency".into(),
        }
    }
}

impl BrokerConfig {
    /// Whether the settings of policies are such that the broker can work with them.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_policies(&self) -> Result<(), PolicyConfigError> {
        check_topic_name(&self.query_topic, self.session.topic_levels_max)
            .map_err(PolicyConfigError::QueryTopic)?;
        Ok(self.session.policy.check()?)
    }
}

/// Why the settings of policies cannot be worked with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PolicyConfigError {
    /// [`BrokerConfig::query_topic`] is none.
    #[error("the topic of latency queries is not a topic name")]
    QueryTopic(#[source] TopicError),
    /// Of the policy of all sessions.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            packet_bytes_max: tidegate_wire::mqtt::PACKET_BYTES_MAX,
            versions: Versions::default(),
            max_qos: QoS::ExactlyOnce,
            retain_available: true,
            allow_zero_length_client_id: true,
            auto_id_prefix: "auto-".into(),
            topic_control_characters: false,
            topic_levels_max: 256,
            topic_bytes_max: 65_535,
            queue_bytes_max: 32 << 20,
            queue_messages_max: 100_000,
            queue_idle_max: Duration::from_secs(3600),
            overflow_qos0: Overflow::DropOldest,
            overflow: Overflow::Spill,
            policy: Policy::default(),
            large_bytes: 10_000,
            inflight_max: None,
            inflight_bytes_max: None,
            is_local: false,
            ends_at_refusal: false,
            acknowledges_through: false,
            hands_out: false,
            is_peer: false,
            leaf: None,
        }
    }
}

impl SessionConfig {
    /// The subscribers that its messages are for.
    pub(crate) fn reach(&self) -> Reach {
        match self.leaf {
            _ if self.is_peer => Reach::Own,
            Some(leaf) => Reach::Leaf(leaf),
            None => Reach::All,
        }
    }

    /// Whether it is that of another node of one broker: a peer's, or a leaf's.
    pub(crate) fn is_of_node(&self) -> bool {
        self.is_peer || self.leaf.is_some()
    }

    /// The policy for messages of that QoS whose topic has no policy of its own.
    pub(crate) fn overflow_of(&self, qos: QoS) -> Overflow {
        if qos == QoS::AtMostOnce { self.overflow_qos0 } else { self.overflow }
    }

    /// Whether the client may publish to `topic`, by its form.
    pub(crate) fn check_topic_name(&self, topic: &str) -> Result<(), TopicError> {
        self.check_topic_bytes(topic)?;
        check_topic_name(topic, self.topic_levels_max)
    }

    /// Whether the client may subscribe to `filter`, by its form; gives its part without `$share/GROUP/`.
    pub(crate) fn check_topic_filter<'a>(&self, filter: &'a str) -> Result<&'a str, TopicError> {
        self.check_topic_bytes(filter)?;
        let inner = split_shared(filter)?.map_or(filter, |shared| shared.filter);
        check_topic_filter(inner, self.topic_levels_max)?;
        Ok(inner)
    }

    /// Whether a topic or filter has characters that are refused here.
    pub(crate) fn check_topic_characters(&self, text: &str) -> Result<(), TopicError> {
        if self.topic_control_characters { Ok(()) } else { check_topic_characters(text) }
    }

    /// The highest QoS of what the client publishes and gets.
    pub(crate) fn max_qos(&self) -> QoS {
        if self.is_local { QoS::ExactlyOnce } else { self.max_qos }
    }

    /// Whether the client's messages may be retained.
    pub(crate) fn retains(&self) -> bool {
        self.retain_available || self.is_local
    }

    fn check_topic_bytes(&self, text: &str) -> Result<(), TopicError> {
        let (bytes, limit) = (text.len(), self.topic_bytes_max);
        if bytes > limit { Err(TopicError::TooLong { bytes, limit }) } else { Ok(()) }
    }
}
