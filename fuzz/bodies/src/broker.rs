//! One broker among clients that send anything in any order.

use std::{io::IoSlice, sync::Arc, time::Duration};

use tidegate_broker::{
    AuthAnswer, Broker, BrokerConfig, CONTROL_BYTES_MAX, ConnectRequest, ConnectionKey, Output,
    Overflow, SLICES_MAX, SessionConfig, Shared, WRITE_BYTES_MAX,
};
use tidegate_message::{AllowAll, Identity, Instant};
use tidegate_wire::mqtt::{Connect, FixedHeader, Packet, ReasonCode, Version};

/// Bytes of messages that the broker may hold.
const BUDGET: u64 = 64 << 10;
/// Connections at a time.
const LINKS: usize = 4;
const EXPIRY_MAX: Duration = Duration::from_secs(60);
/// Answers that wait for a client before a shell reads nothing more from it.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Steps of four clients of one broker whose budget is tiny, after a byte for its settings: the budget is kept, what a client is
/// sent decodes and is no larger than it takes, and when all are gone and their sessions expired nothing is held.
///
/// A step is a byte for what is done and by whom, a byte for how much, and for what is sent as many bytes after them.
pub fn mqtt_broker(data: &[u8]) {
    let Some((&settings, mut steps)) = data.split_first() else { return };
    let mut world = World::new(settings);
    while let [what, count, rest @ ..] = steps {
        steps = rest;
        let at = usize::from(what & 3);
        match what >> 2 & 7 {
            0..=3 => {
                let (bytes, rest) = steps.split_at(steps.len().min(usize::from(*count)));
                steps = rest;
                world.send(at, bytes);
            }
            4 => world.links[at].room = usize::from(*count) << 4,
            5 => world.advance(Duration::from_millis(u64::from(*count).pow(2))),
            6 => world.close(at),
            _ => world.repeat(at, *count),
        }
        world.pump();
    }
    world.end();
}

struct World {
    shared: Arc<Shared>,
    broker: Broker,
    session: Arc<SessionConfig>,
    now: Instant,
    links: [Link; LINKS],
}

/// A connection to the broker, or none.
#[derive(Default)]
struct Link {
    key: Option<ConnectionKey>,
    version: Option<Version>,
    packet_bytes_max: usize,
    /// Bytes that the broker has not taken.
    input: Vec<u8>,
    /// Bytes that are no whole packet yet.
    output: Vec<u8>,
    /// Bytes that the kernel still takes.
    room: usize,
    is_blocked: bool,
    is_paused: bool,
    is_ending: bool,
}

impl World {
    fn new(settings: u8) -> Self {
        let overflows = [
            Overflow::DropOldest,
            Overflow::DropNewest,
            Overflow::Latest,
            Overflow::Disconnect,
            Overflow::BlockPublisher,
        ];
        let overflow = overflows[usize::from(settings % 5)];
        let session = SessionConfig {
            queue_bytes_max: 4 << 10,
            queue_messages_max: 16,
            overflow_qos0: overflow,
            overflow,
            large_bytes: 64,
            packet_bytes_max: 1 << 20,
            ..SessionConfig::default()
        };
        let config = BrokerConfig {
            payload_bytes_max: BUDGET,
            session_expiry_max: EXPIRY_MAX,
            sessions_max: 8,
            subscriptions_max: 8,
            retained_max: if settings & 0x80 == 0 { 4 } else { 0 },
            inflight_max: 4,
            receive_maximum: 4,
            copy_bytes_max: 32,
            session: session.clone(),
            sys_interval: Duration::ZERO,
            ..BrokerConfig::default()
        };
        let now = Instant::from_millis(1_700_000_000_000);
        let shared = Shared::new(config, 1, Arc::new(AllowAll), now);
        let broker = Broker::new(shared.clone(), 0, 1, now);
        let links = std::array::from_fn(|_| Link { room: usize::MAX, ..Link::default() });
        Self { shared, broker, session: Arc::new(session), now, links }
    }

    /// Some bytes of a client arrive.
    fn send(&mut self, at: usize, bytes: &[u8]) {
        let link = &mut self.links[at];
        // A shell reads no more from a client that is not served, which fills the client's side.
        if link.input.len() < CONTROL_BYTES_MAX && !link.is_ending {
            link.input.extend_from_slice(bytes);
        }
        if link.key.is_none() {
            self.open(at);
        }
    }

    /// Messages that wait for a client come again, many times.
    fn repeat(&mut self, at: usize, times: u8) {
        let bytes = self.links[at].input.repeat(usize::from(times >> 4));
        self.send(at, &bytes);
    }

    /// Looks for the CONNECT, as a shell does.
    fn open(&mut self, at: usize) {
        let link = &mut self.links[at];
        let header = match FixedHeader::decode(&link.input, CONTROL_BYTES_MAX) {
            Ok(Some(header)) if header.packet_bytes() <= link.input.len() => header,
            Ok(_) => return,
            Err(_) => return link.input.clear(),
        };
        let packet: Vec<u8> = link.input.drain(..header.packet_bytes()).collect();
        let body = &packet[header.header_bytes..];
        let (1, Ok(connect)) = (header.packet_type(), Connect::decode(body)) else {
            return link.input.clear();
        };
        let most = connect.properties.maximum_packet_size;
        link.packet_bytes_max = most.map_or(usize::MAX, |bytes| bytes as usize);
        link.version = Some(connect.version);
        let request = ConnectRequest {
            identity: Identity::anonymous(&connect.client_id),
            connect,
            config: self.session.clone(),
            authentication_data: None,
        };
        match self.broker.connect(self.now, request) {
            Ok(key) => link.key = Some(key),
            Err(refused) => {
                assert!(refused.connack.len() <= link.packet_bytes_max);
                link.input.clear();
            }
        }
    }

    /// Runs until nothing moves any more.
    fn pump(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..LINKS {
                moved |= self.feed(at);
            }
            while let Some(key) = self.broker.poll_dirty() {
                moved = true;
                match self.links.iter().position(|link| link.key == Some(key)) {
                    Some(at) => self.flush(at),
                    None => panic!("a connection that was closed has something to send"),
                }
            }
            while let Some(output) = self.broker.poll_output() {
                moved = true;
                self.handle(output);
            }
            let budget = self.shared.budget();
            assert!(budget.used() <= budget.limit() && budget.peak() <= budget.limit());
            if !moved {
                return;
            }
        }
    }

    fn feed(&mut self, at: usize) -> bool {
        let link = &mut self.links[at];
        let Some(key) = link.key else { return false };
        let is_full = self.broker.answer_bytes(key) > ANSWER_BYTES_MAX;
        if link.input.is_empty() || link.is_paused || link.is_ending || is_full {
            return false;
        }
        let taken = self.broker.receive(self.now, key, &link.input);
        link.input.drain(..taken);
        assert!(link.input.len() <= CONTROL_BYTES_MAX, "{} bytes are left", link.input.len());
        taken > 0
    }

    fn flush(&mut self, at: usize) {
        let link = &mut self.links[at];
        let Some(key) = link.key else { return };
        if link.room > 0 && link.is_blocked {
            link.is_blocked = false;
            self.broker.writable(key);
        }
        loop {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.broker.transmit(self.now, key, &mut slices);
            let offered: usize = slices[..count].iter().map(|slice| slice.len()).sum();
            assert!(offered <= WRITE_BYTES_MAX);
            if offered == 0 {
                break;
            }
            let bytes = taken(&slices[..count], link.room);
            link.room -= if link.room == usize::MAX { 0 } else { bytes.len() };
            link.is_blocked = bytes.len() < offered;
            self.broker.transmitted(self.now, key, bytes.len(), link.is_blocked);
            link.hear(&bytes);
            if link.is_blocked {
                break;
            }
        }
        if link.is_ending && self.broker.is_flushed(key) {
            self.close(at);
        }
    }

    fn handle(&mut self, output: Output) {
        let (Output::Close(key)
        | Output::Pause(key)
        | Output::Resume(key)
        | Output::Auth(key, _)
        | Output::Denied(key, _)
        | Output::Subscribed(key, ..)) = &output
        else {
            panic!("no word of clients is asked for")
        };
        let key = *key;
        let Some(at) = self.links.iter().position(|link| link.key == Some(key)) else { return };
        match output {
            Output::Close(_) => {
                self.links[at].is_ending = true;
                self.flush(at);
            }
            Output::Pause(_) => self.links[at].is_paused = true,
            Output::Resume(_) => self.links[at].is_paused = false,
            Output::Auth(_, auth) => {
                let data = auth.data;
                let answer = match data.as_deref() {
                    Some([b'a', ..]) => {
                        AuthAnswer::Accept { identity: Identity::anonymous("client"), data }
                    }
                    Some([b'c', ..]) => AuthAnswer::Challenge(b"c".to_vec()),
                    _ => AuthAnswer::Refuse(ReasonCode::NOT_AUTHORIZED),
                };
                self.broker.authenticated(key, answer);
            }
            Output::Denied(..) => {}
            Output::Subscribed(..) => panic!("no SUBACK is held"),
            Output::Client(..) => unreachable!("looked at above"),
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(key) = self.links[at].key {
            self.broker.closed(self.now, key);
        }
        self.links[at] = Link { room: usize::MAX, ..Link::default() };
    }

    fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
        self.broker.handle_timeout(self.now);
        for at in 0..LINKS {
            self.flush(at);
        }
    }

    /// All go, and all time passes.
    fn end(&mut self) {
        for at in 0..LINKS {
            self.close(at);
            self.pump();
        }
        // Wills that were delayed are queued, and expire with their sessions.
        for _ in 0..3 {
            self.advance(2 * EXPIRY_MAX);
            self.pump();
        }
        assert_eq!(self.broker.statistics().sessions, 0, "sessions that do not expire");
        assert_eq!(self.shared.subscriptions(), 0, "subscriptions without a session");
        if self.shared.retained_count() == 0 {
            assert_eq!(self.shared.budget().used(), 0, "bytes that were not given back");
        }
    }
}

impl Link {
    /// The client reads.
    fn hear(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
        let version = self.version.expect("it is connected");
        let mut rest = &self.output[..];
        while let Some(header) = FixedHeader::decode(rest, usize::MAX).expect("a header") {
            let Some(packet) = rest.get(..header.packet_bytes()) else { break };
            assert!(packet.len() <= self.packet_bytes_max, "the client takes no such packet");
            let body = &packet[header.header_bytes..];
            Packet::decode(version, header.first, body)
                .unwrap_or_else(|error| panic!("{error}: {packet:02x?}"));
            rest = &rest[header.packet_bytes()..];
        }
        self.output = rest.to_vec();
    }
}

/// The part that a kernel with so much room takes.
fn taken(slices: &[IoSlice<'_>], room: usize) -> Vec<u8> {
    slices.iter().flat_map(|slice| slice.iter().copied()).take(room).collect()
}
