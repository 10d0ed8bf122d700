//! `[mqtt]`.

use std::{path::PathBuf, time::Duration};

use super::{millis, seconds};
use crate::{
    ByteCount,
    words::{Durability, MqttVersions, Overflow, Policy},
};

/// Bytes that the largest packet of a client has at least: the shortest ones that are of use have no more.
pub const PACKET_BYTES_LEAST: u64 = 20;
/// The longest packet of MQTT, which `run` checks against the protocol's own limit.
pub const PACKET_BYTES_MAX: u64 = 268_435_455 + 5;
/// Bytes of an identifier's prefix: some 30 follow it, and 65,535 are MQTT's limit.
const ID_PREFIX_BYTES_MAX: usize = 1_000;
/// The bound of prefixes of client identifiers, in words.
pub const ID_PREFIX_BOUND: &str =
    "at most 1000 bytes without control characters, and not $node/ at the beginning";

/// Whether identifiers of clients may begin so.
pub fn is_id_prefix(text: &str) -> bool {
    // Those are the identifiers of the node's own parts, which clients are refused.
    let is_of_parts = text.starts_with("$node/");
    text.len() <= ID_PREFIX_BYTES_MAX && !text.contains(char::is_control) && !is_of_parts
}

section! {
    /// `[mqtt]`: the MQTT broker of this node.
    MqttSection {
        /// Whether this node serves MQTT. Default true, on this machine alone until a listener says otherwise.
        enabled: bool = true; fixed,
        /// Threads that serve connections. Default 0: one for each processor.
        shards: u32 = 0; fixed
            => "at most 255" if |it, _| it.shards <= 255,
        /// The failures that sessions, their messages and retained messages survive: `memory` (none), `page` (the end of
        /// the process, however it ends) or `disk` (a loss of power). Default `page`.
        durability: Durability = Durability::Page; fixed,
        /// Users and what proves them, in Mosquitto's format; `tidegate passwd` writes it. Default none: `users` in
        /// node.data_dir, if `tidegate init` has made one.
        password_file: Option<PathBuf> = None,
        /// Rules for topics, in Mosquitto's grammar. Default none: every accepted client may publish and subscribe to
        /// everything.
        acl_file: Option<PathBuf> = None,
        /// Whether clients come in that prove nothing. Default none: at listeners on loopback, while no password file is named.
        allow_anonymous: Option<bool> = None,
        /// Bytes of messages that the node holds at most: waiting, in flight, retained and being received. Default `256MiB`.
        payload_bytes_max: ByteCount = ByteCount(256 << 20); fixed
            => "at least 1MiB" if |it, _| it.payload_bytes_max.0 >= 1 << 20,
        /// Largest packet of a client. Default `64MiB`.
        packet_bytes_max: ByteCount = ByteCount(64 << 20)
            => "from 20B to 256MiB less a few bytes"
                if |it, _| (PACKET_BYTES_LEAST..=PACKET_BYTES_MAX).contains(&it.packet_bytes_max.0)
            => "at most half of mqtt.payload_bytes_max"
                if |it, _| it.packet_bytes_max.0 <= it.payload_bytes_max.0 / 2,
        /// Bytes that may wait for one subscriber. Default `32MiB`.
        queue_bytes_max: ByteCount = ByteCount(32 << 20)
            => "at least 1KiB" if |it, _| it.queue_bytes_max.0 >= 1 << 10,
        /// Messages that may wait for one subscriber. Default 100000.
        queue_messages_max: u32 = 100_000,
        /// How long a session may be full and without a connection before its oldest messages are dropped, so that publishers are no
        /// longer refused or held up for it; `0s` for ever. Bridges, sinks and uplinks of this node are exempt. Default `1h`.
        queue_idle_max: Duration = Duration::from_secs(3600),
        /// Bytes on disk of messages that wait for subscribers under the overflow `spill`, of all of them; 0 for none. Default
        /// `1GiB`.
        spill_bytes: ByteCount = ByteCount(1 << 30); fixed
            => "0, or at least 1MiB" if |it, _| it.spill_bytes.0 == 0 || it.spill_bytes.0 >= 1 << 20,
        /// The policy for QoS 0 messages beyond that: `drop-oldest`, `drop-newest`, `latest` (of each topic the newest waits),
        /// `disconnect`, `block-publisher`, `spill` (they wait on disk; where that has no room either, the oldest go) or `spill-disconnect`
        /// (the same, and then as `disconnect`). Default `drop-oldest`.
        overflow_qos0: Overflow = Overflow::DropOldest,
        /// The same for QoS 1 and 2. Default `spill`. Bridges, sinks and uplinks of this node take `spill` as `spill-disconnect`: what was
        /// acknowledged for them is not dropped.
        overflow: Overflow = Overflow::Spill,
        /// When large messages start: `deadline`, `conservative`, `probabilistic`, `historic` or `none`. Default `deadline`.
        policy: Policy = Policy::Deadline,
        /// Of `deadline`: longest that a large message may predictably hold up a small one while the path is congested. Default
        /// `100ms`.
        policy_small_budget: Duration = Duration::from_millis(100),
        /// Of `deadline`: longest withholding of a large message. Default `5s`.
        policy_deadline: Duration = Duration::from_secs(5)
            => "at least 1ms" if |it, _| it.policy_deadline >= millis(1),
        /// Of `deadline`: part of the bytes that is the large class's while small messages wait all the time, 0 to 0.99. Default
        /// 0.2.
        policy_large_share: f64 = 0.2
            => "from 0 to 0.99" if |it, _| (0.0..=0.99).contains(&it.policy_large_share),
        /// Of the paper's policies: threshold_l, the round trip of a query where nothing is congested. Default `500ms`.
        policy_threshold_l: Duration = Duration::from_millis(500),
        /// Of the paper's policies: threshold_l is the mean of so many round trips instead. Default 0: it is fixed.
        policy_threshold_samples: u32 = 0
            => "at most 10000" if |it, _| it.policy_threshold_samples <= 10_000,
        /// Of the paper's policies: T_Q, the period of queries. Default `5s`.
        policy_query_period: Duration = Duration::from_secs(5)
            => "at least 100ms" if |it, _| it.policy_query_period >= millis(100),
        /// Of the paper's policies: bytes of a query. Default `10kB`.
        policy_query_bytes: ByteCount = ByteCount(10_000)
            => "from 1B to 1MiB" if |it, _| (1..=1 << 20).contains(&it.policy_query_bytes.0),
        /// Of the paper's policies: the topic of queries. Default `latency`.
        policy_query_topic: String = "latency".to_owned(); fixed,
        /// Of the paper's policies: D, the longest withholding. Default `20s`.
        policy_withhold_max: Duration = Duration::from_secs(20),
        /// Of the paper's policies: how a round trip grows with the size of its message: `linear`, or sizes with factors and
        /// straight lines between. Default `10kB:1, 1MB:10`.
        policy_size_profile: String = "10kB:1, 1MB:10".to_owned(),
        /// Of `probabilistic`: lambda, one divided by the mean seconds of congestion. Default 1 / 17.5.
        policy_lambda: f64 = 1.0 / 17.5
            => "above 0" if |it, _| it.policy_lambda > 0.0 && it.policy_lambda.is_finite(),
        /// Payloads over this are large. Default `10kB`.
        large_bytes: ByteCount = ByteCount(10_000)
            => "at most 4GiB" if |it, _| it.large_bytes.0 <= u64::from(u32::MAX),
        /// Longest time that a session outlives its connection. Default `168h`.
        session_expiry_max: Duration = Duration::from_secs(7 * 24 * 3600); fixed,
        /// Longest keep alive, also for clients that want none; `0s` lets them. MQTT 5 clients learn it, others that ask for more or
        /// for none are refused. Default `0s`.
        keepalive_max: Duration = Duration::ZERO; fixed
            => "at most 65535s" if |it, _| it.keepalive_max <= seconds(u64::from(u16::MAX)),
        /// QoS 1 and 2 messages in flight to one subscriber. Default 1024.
        inflight_max: u16 = 1024; fixed
            => "at least 1" if |it, _| it.inflight_max >= 1,
        /// QoS 2 messages of one publisher that wait for their release; MQTT 5 clients learn it as Receive Maximum. Default 1024.
        receive_maximum: u16 = 1024; fixed
            => "at least 1" if |it, _| it.receive_maximum >= 1,
        /// Topic aliases that a publisher may define; MQTT 5 clients learn it. Default 64.
        topic_alias_max: u16 = 64; fixed,
        /// Topic aliases that are defined towards a subscriber that takes them. Default 64.
        topic_alias_out_max: u16 = 64; fixed,
        /// Highest QoS of clients' messages, 0 to 2; MQTT 5 clients learn it. Default 2.
        max_qos: u32 = 2
            => "0, 1 or 2" if |it, _| it.max_qos <= 2,
        /// Whether clients may have messages retained; MQTT 5 clients learn it. Default true.
        retain_available: bool = true,
        /// Versions of MQTT that are spoken, of `3.1`, `3.1.1` and `5`, with commas between. Default all.
        accept_protocol_versions: MqttVersions = MqttVersions::ALL,
        /// Whether clients without an identifier are given one; else they are refused. Default true.
        allow_zero_length_clientid: bool = true,
        /// How identifiers begin that are given. Default `auto-`.
        auto_id_prefix: String = "auto-".to_owned()
            => ID_PREFIX_BOUND if |it, _| is_id_prefix(&it.auto_id_prefix),
        /// Whether topics may have control characters and non-characters (U+0001 to U+001F, U+007F to U+009F, U+FFFF and others);
        /// clients of libmosquitto disconnect when they get such a topic. Default false.
        topic_control_characters: bool = false,
        /// Retained messages. Default 1000000.
        retained_max: u32 = 1_000_000; fixed,
        /// Whether a retained message is sent to new subscriptions only while its publisher may still publish it. Default true.
        check_retain_source: bool = true; fixed,
        /// Sessions, with and without connection. Default 1000000.
        sessions_max: u32 = 1_000_000; fixed,
        /// The part that one user, certificate or, without a proof, address may have of the share of `payload_bytes_max`,
        /// `retained_max` and `sessions_max` that all others leave: 0.01 to 1, which is no bound. Default 0.75.
        identity_share: f64 = 0.75; fixed
            => "from 0.01 to 1" if |it, _| (0.01..=1.0).contains(&it.identity_share),
        /// Subscriptions of one session. Default 100000.
        subscriptions_max: u32 = 100_000; fixed,
        /// Levels of a topic. Default 256.
        topic_levels_max: u32 = 256
            => "from 1 to 65535" if |it, _| (1..=65_535).contains(&it.topic_levels_max),
        /// Length of a topic. Default `65535B`, the protocol's own.
        topic_bytes_max: ByteCount = ByteCount(65_535)
            => "from 1B to 65535B" if |it, _| (1..=65_535).contains(&it.topic_bytes_max.0),
        /// How often `$SYS` is published; `0s` for never. Default `10s`.
        sys_interval: Duration = Duration::from_secs(10); fixed,
    }
}
