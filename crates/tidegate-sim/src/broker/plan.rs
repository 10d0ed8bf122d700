//! The plan of a seed: the node, its clients, their paths to it.

use std::{num::NonZeroU16, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use tidegate_broker::{BrokerConfig, Overflow, SessionConfig};
use tidegate_schedule::{DeadlineConfig, PaperConfig, Policy};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter, Version};

use super::link::Path;

/// Topics that are published to: ordinary ones, work for shared subscriptions, and `r`, whose messages are retained.
pub(super) const TOPICS: [&str; 8] = ["t/0", "t/1", "t/0", "t/1", "w/0", "w/1", "r/0", "r/1"];
/// Where admission emits to.
pub(super) const EMITTED: &str = "e/0";
/// The topic of latency queries.
pub(super) const QUERIES: &str = "latency";

/// Filters that a client may have. No two shared ones of one client, nor a plain one that matches the same: those who
/// get a message twice because they asked twice could not be distinguished from others.
const FILTERS: [&str; 9] = ["t/#", "t/+", "t/0", "t/1", "r/#", "r/0", "e/#", "x/#", QUERIES];
pub(super) const SHARED: [&str; 2] = ["$share/g/w/#", "$share/h/w/+"];

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shards: usize,
    pub(super) config: BrokerConfig,
    /// None for no operators; else whether they change anything.
    pub(super) operators: Option<bool>,
    /// Whether sessions outlive the node's crashes, and if so, whether those of its power.
    pub(super) keeps: Option<Keeps>,
    /// Longest time of a batch between shards.
    pub(super) peers_delay_max: Duration,
    /// Bytes of messages that may wait on disk, if any may.
    pub(super) spills: Option<u64>,
    /// Whether journals have little room at times.
    pub(super) fills: bool,
    /// How long clients publish and faults happen.
    pub(super) length: Duration,
    /// Between faults, on the average.
    pub(super) fault_gap: Duration,
    pub(super) clients: Vec<ClientPlan>,
}

/// The events that a node keeps its promises through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// The end of its process.
    Page,
    /// The loss of power.
    Disk,
}

#[derive(Clone, Debug)]
pub(super) struct ClientPlan {
    pub(super) version: Version,
    pub(super) path: Path,
    /// Seconds that its session outlives a connection.
    pub(super) expiry: u32,
    pub(super) keep_alive: u16,
    pub(super) receive_maximum: Option<NonZeroU16>,
    /// Aliases that it takes, and whether it uses those of the broker.
    pub(super) alias_maximum: u16,
    pub(super) uses_aliases: bool,
    pub(super) session: SessionConfig,
    pub(super) filters: Vec<SubscribeFilter>,
    pub(super) subscription_id: Option<u32>,
    /// Highest QoS that it publishes with; none if it does not.
    pub(super) publishes: Option<QoS>,
    pub(super) publish_gap: Duration,
    pub(super) payload_bytes_max: usize,
    /// Longest time before an acknowledgement.
    pub(super) answer_lag: Duration,
    /// Delay of its will in seconds, if it has one.
    pub(super) will: Option<u32>,
    /// Whether its subscriptions may be refused for want of room.
    pub(super) may_be_refused: bool,
}

impl ClientPlan {
    /// Whether its sessions outlive every fault.
    pub(super) fn is_lasting(&self) -> bool {
        self.expiry >= LASTING
    }
}

/// Seconds: longer than any run.
const LASTING: u32 = 3_600;

impl Plan {
    /// `crashes` lets the node be killed, with one seed of three by its power.
    pub(super) fn of(seed: u64, crashes: bool) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let random = &mut random;
        let payload_bytes_max = *[250_000, 1 << 20, 64 << 20].choose(random).expect("not empty");
        let config = BrokerConfig {
            payload_bytes_max,
            session_expiry_max: Duration::from_secs(2 * u64::from(LASTING)),
            receive_maximum: *[2, 10, 100].choose(random).expect("not empty"),
            topic_alias_max: random.random_range(0..3),
            inflight_bytes_max: *[20_000, 4 << 20].choose(random).expect("not empty"),
            sys_interval: Duration::from_secs(if random.random_ratio(1, 4) { 10 } else { 0 }),
            // All clients are of one identity.
            identity_share: [0.75, 0.2, 0.75, 1.0][(seed / 3 % 4) as usize],
            ..BrokerConfig::default()
        };
        let clients = random.random_range(4..8);
        Self {
            shards: random.random_range(1..4),
            keeps: if crashes {
                [None, Some(Keeps::Page), Some(Keeps::Disk)][(seed % 3) as usize]
            } else {
                None
            },
            spills: None,
            fills: false,
            operators: [None, None, Some(false), Some(true)][random.random_range(0..4)],
            peers_delay_max: millis(random, &[0, 1, 300]),
            length: Duration::from_secs(random.random_range(5..20)),
            fault_gap: millis(random, &[200, 1_000, 5_000, 60_000]),
            clients: (0..clients)
                .map(|number| client(number, payload_bytes_max as usize, random))
                .collect(),
            config,
        }
    }
}

impl Plan {
    /// The same, where what finds no room waits on disk, for everyone.
    pub(super) fn spilling(mut self) -> Self {
        for client in &mut self.clients {
            client.session.overflow = Overflow::SpillDisconnect;
            client.session.overflow_qos0 = Overflow::SpillDisconnect;
            client.session.queue_messages_max = 100_000;
        }
        self.spills = Some(u64::MAX);
        self
    }

    /// Two clients publish to others that read from all topics and have little room each, under every policy, on as many shards as
    /// there are clients. The publishers know of every message whether it was accepted.
    pub(super) fn overflowing(mut self, seed: u64) -> Self {
        const OVERFLOWS: [Overflow; 7] = [
            Overflow::DropOldest,
            Overflow::DropNewest,
            Overflow::Latest,
            Overflow::Disconnect,
            Overflow::BlockPublisher,
            Overflow::Spill,
            Overflow::SpillDisconnect,
        ];
        let random = &mut SmallRng::seed_from_u64(seed);
        self.shards = random.random_range(2..6);
        self.operators = None;
        self.peers_delay_max = millis(random, &[1, 50, 300]);
        self.config.receive_maximum = 100;
        self.spills = Some(*[0, 20_000, 1 << 20].choose(random).expect("not empty"));
        for (number, client) in self.clients.iter_mut().enumerate() {
            client.expiry = LASTING;
            client.will = None;
            if number < 2 {
                client.filters.clear();
                client.publishes = Some(QoS::ExactlyOnce);
                client.publish_gap = millis(random, &[5, 20]);
                client.payload_bytes_max = *[300, 6_000].choose(random).expect("not empty");
                continue;
            }
            client.publishes = None;
            client.session.overflow = *OVERFLOWS.choose(random).expect("not empty");
            client.session.queue_messages_max = random.random_range(1..40);
            client.session.queue_bytes_max = *[10_000, 32 << 20].choose(random).expect("not empty");
            client.filters = filters(client.version, QoS::ExactlyOnce, random);
            client.filters.retain(|filter| filter.filter != "t/#");
            let is_5 = client.version == Version::V5;
            client.filters.push(SubscribeFilter {
                filter: "t/#".to_owned(),
                maximum_qos: if random.random() { QoS::ExactlyOnce } else { QoS::AtLeastOnce },
                no_local: false,
                retain_as_published: is_5,
                retain_handling: RetainHandling::Send,
            });
        }
        self
    }
}

impl Plan {
    /// Two clients publish to others that lose nothing and are away or slow at times, and the journal of each shard has little room at
    /// times: large records find none where small ones do. The node is killed often.
    pub(super) fn filling(mut self, seed: u64) -> Self {
        let random = &mut SmallRng::seed_from_u64(seed);
        self.fills = true;
        self.keeps = Some([Keeps::Page, Keeps::Disk][(seed % 2) as usize]);
        self.shards = random.random_range(1..5);
        self.peers_delay_max = millis(random, &[1, 50, 300]);
        self.fault_gap = millis(random, &[100, 300, 1_000]);
        self.config.payload_bytes_max = 64 << 20;
        self.config.identity_share = 1.0;
        self.config.receive_maximum = 100;
        for (number, client) in self.clients.iter_mut().enumerate() {
            client.expiry = LASTING;
            client.may_be_refused = true;
            client.session.queue_messages_max = 100_000;
            client.session.queue_bytes_max = 32 << 20;
            // That one was dropped may find no room either, and then it is back.
            let firm = [Overflow::Disconnect, Overflow::BlockPublisher];
            client.session.overflow = *firm.choose(random).expect("not empty");
            client.payload_bytes_max = *[6_000, 70_000].choose(random).expect("not empty");
            if number < 2 {
                client.filters.clear();
                client.publishes = Some(QoS::ExactlyOnce);
                client.publish_gap = millis(random, &[5, 20]);
                continue;
            }
            client.publishes = None;
            client.answer_lag = millis(random, &[0, 50, 2_000]);
            client.filters = filters(client.version, QoS::ExactlyOnce, random);
            // Plain ones: what members of groups hand on is tested by itself.
            client.filters.retain(|asked| !asked.filter.starts_with("$share/"));
        }
        self
    }
}

fn millis(random: &mut SmallRng, choices: &[u64]) -> Duration {
    Duration::from_millis(*choices.choose(random).expect("not empty"))
}

fn client(number: usize, budget: usize, random: &mut SmallRng) -> ClientPlan {
    let version = if random.random_ratio(1, 3) { Version::V4 } else { Version::V5 };
    let session = session(random);
    // A session that may end while its client believes in it makes an honest client's QoS 2 come twice or not at all: an
    // identifier of the old one then means another message.
    let expiry = match (version, random.random_range(0..6)) {
        (_, 0) => 0,
        (Version::V5, 1) => random.random_range(1..8),
        _ => LASTING,
    };
    let qos_max = if expiry > 0 && expiry < LASTING { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
    // A client that is not read from acknowledges nothing: two that publish to each other and block each other wait
    // forever. A client that is disconnected because of its own message publishes it again, and is again.
    let ends = |overflow| matches!(overflow, Overflow::BlockPublisher | Overflow::Disconnect);
    let ends = ends(session.overflow) || ends(session.overflow_qos0);
    // Before MQTT 5 a refusal ends the connection, and the message comes again with the next: whose own messages fill the
    // memory would never fetch them.
    let is_short = budget < 64 << 20 && version == Version::V4;
    let most = if is_short { QoS::AtMostOnce } else { qos_max };
    let publishes = (!(ends && session.queue_messages_max < 100_000)
        && (number < 2 || random.random_ratio(1, 2)))
    .then_some(most);
    ClientPlan {
        version,
        path: Path {
            rate: *[20_000, 200_000, 10_000_000].choose(random).expect("not empty"),
            delay: millis(random, &[0, 5, 100]),
            segment_bytes_max: *[300, 1_460, 9_000, 60_000].choose(random).expect("not empty"),
            window_bytes: *[4_000, 64 << 10].choose(random).expect("not empty"),
        },
        expiry,
        keep_alive: *[0, 0, 3, 20].choose(random).expect("not empty"),
        receive_maximum: NonZeroU16::new(*[0, 1, 2, 10].choose(random).expect("not empty")),
        alias_maximum: random.random_range(0..3),
        uses_aliases: random.random(),
        session,
        filters: filters(version, qos_max, random),
        subscription_id: random.random_ratio(1, 3).then_some(number as u32 + 1),
        publishes,
        publish_gap: millis(random, &[20, 100, 500]),
        payload_bytes_max: if random.random() { 6_000 } else { 70_000.min(budget / 3) },
        answer_lag: millis(random, &[0, 0, 50, 2_000]),
        // A will needs memory: where what waits for a client takes all of it, the client could not come to fetch that.
        will: (budget >= 64 << 20 && random.random_ratio(1, 2))
            .then(|| random.random_range(0..3) * 2),
        may_be_refused: false,
    }
}

fn session(random: &mut SmallRng) -> SessionConfig {
    const OVERFLOWS: [Overflow; 5] = [
        Overflow::DropOldest,
        Overflow::DropNewest,
        Overflow::Latest,
        Overflow::Disconnect,
        Overflow::BlockPublisher,
    ];
    let usual = SessionConfig::default();
    let is_tiny = random.random_ratio(1, 2);
    SessionConfig {
        queue_bytes_max: if is_tiny { random.random_range(1..50_000) } else { 32 << 20 },
        queue_messages_max: if is_tiny { random.random_range(1..50) } else { 100_000 },
        overflow_qos0: *OVERFLOWS.choose(random).expect("not empty"),
        overflow: *OVERFLOWS.choose(random).expect("not empty"),
        policy: match random.random_range(0..8) {
            0 | 1 => Policy::None,
            2 => Policy::Conservative(PaperConfig::default()),
            3 => Policy::Probabilistic(PaperConfig::default()),
            4 => Policy::Historic(PaperConfig::default()),
            5 => Policy::Deadline(DeadlineConfig {
                small_budget: Duration::from_millis(1),
                deadline: Duration::from_secs(1),
                ..DeadlineConfig::default()
            }),
            _ => Policy::default(),
        },
        large_bytes: *[1_000, usual.large_bytes].choose(random).expect("not empty"),
        ..usual
    }
}

fn filters(version: Version, qos_max: QoS, random: &mut SmallRng) -> Vec<SubscribeFilter> {
    let plain: Vec<&str> = FILTERS.into_iter().filter(|_| random.random_ratio(2, 5)).collect();
    let shared = SHARED.choose(random).filter(|_| random.random()).copied();
    let qos = |random: &mut SmallRng| {
        let all = [QoS::ExactlyOnce, QoS::ExactlyOnce, QoS::AtLeastOnce, QoS::AtMostOnce];
        (*all.choose(random).expect("not empty")).min(qos_max)
    };
    let is_5 = version == Version::V5;
    let filter = |filter: &str| SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: qos(random),
        no_local: is_5 && !filter.starts_with('$') && random.random_ratio(1, 4),
        retain_as_published: is_5 && random.random_ratio(1, 4),
        retain_handling: if is_5 && random.random_ratio(1, 4) {
            RetainHandling::SendIfNew
        } else {
            RetainHandling::Send
        },
    };
    plain.into_iter().chain(shared).map(filter).collect()
}
