//! CoAP: messages, and a server among peers that say anything.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use tidegate_message::Instant;
use tidegate_wire::coap::{
    Answer, Code, Event, Header, Message, MessageType, Representation, RequestKey, Server,
    ServerConfig,
};

const PEERS: usize = 6;

/// A message that decodes is encoded to the same bytes, and its options are in order.
pub fn coap_message(data: &[u8]) {
    let Ok(message) = Message::decode(data) else { return };
    let mut encoded = Vec::new();
    message.encode(&mut encoded).expect("a decoded message can be encoded");
    assert_eq!(encoded, data);
    let numbers: Vec<u16> = message.options.iter().map(|(number, _)| number.0).collect();
    assert!(numbers.is_sorted());
    let header = Header::decode(data).expect("a message has a header");
    assert_eq!((header.id, header.code), (message.id, message.code));
}

/// Steps of peers, of the shell and of time, each with a byte for what and one for who or how much, and for a datagram its length. For any input: the server's
/// memory keeps its bounds; a payload is handed on no longer than is allowed; a peer that has not shown where it is gets three times its bytes at most;
/// observations and their ends alternate; in the end nothing waits.
pub fn coap_server(data: &[u8]) {
    let mut world = World::new();
    let mut rest = data;
    while let [what, amount, after @ ..] = rest {
        rest = after;
        let amount = usize::from(*amount);
        match what % 8 {
            0..=3 => {
                let Some((&count, after)) = rest.split_first() else { break };
                let (datagram, after) = after.split_at(usize::from(count).min(after.len()));
                rest = after;
                world.say(amount % PEERS, datagram);
            }
            4 => world.answer(amount),
            5 => world.notify(amount * 16),
            6 => world.react(amount),
            _ => world.pass(Duration::from_millis(amount as u64 * amount as u64 * 2)),
        }
        world.check();
    }
    world.end();
}

struct World {
    server: Server,
    now: Instant,
    open: Vec<RequestKey>,
    followed: Vec<String>,
    peers: [Peer; PEERS],
}

#[derive(Default)]
struct Peer {
    said_bytes: usize,
    told_bytes: usize,
    /// Whether it has acknowledged or reset what only it has seen.
    is_there: bool,
    /// Confirmable messages that it was sent.
    told: Vec<u16>,
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8], 5683))
}

impl World {
    fn new() -> Self {
        let config = ServerConfig {
            peers_max: 4,
            exchanges_max: 16,
            open_max: 8,
            open_per_peer_max: 4,
            payload_bytes_max: 100,
            held_bytes_max: 300,
            observers_max: 5,
            observers_per_peer_max: 3,
            ..ServerConfig::default()
        };
        Self {
            server: Server::new(config, [7; 32]),
            now: Instant::from_millis(1_700_000_000_000),
            open: Vec::new(),
            followed: Vec::new(),
            peers: Default::default(),
        }
    }

    fn say(&mut self, peer: usize, datagram: &[u8]) {
        self.peers[peer].said_bytes += datagram.len();
        // It may have guessed an identifier, which no rule forbids.
        if Header::decode(datagram).is_ok_and(|header| {
            matches!(header.message_type, MessageType::Acknowledgement | MessageType::Reset)
        }) {
            self.peers[peer].is_there = true;
        }
        let datagram = Bytes::copy_from_slice(datagram);
        let _ = self.server.handle(self.now, address(peer), &datagram);
    }

    fn answer(&mut self, kind: usize) {
        if self.open.is_empty() {
            return;
        }
        let request = self.open.remove(kind % self.open.len());
        let value = |bytes: usize| Representation {
            payload: Bytes::from(vec![b'v'; bytes]),
            ..Representation::default()
        };
        let answer = match kind % 8 {
            0 => Answer::Accept,
            1 => Answer::Create,
            2 => Answer::Refuse,
            3 => Answer::Busy { retry_after: Duration::from_secs(1) },
            4 => Answer::NotFound,
            _ => Answer::Content(value(kind * 20)),
        };
        self.server.answer(self.now, request, answer);
    }

    fn notify(&mut self, bytes: usize) {
        let payload = Bytes::from(vec![b'n'; bytes]);
        let value = Representation { payload, ..Representation::default() };
        let paths: Vec<String> = self.followed.clone();
        match bytes % 7 {
            0 => paths.iter().for_each(|path| self.server.end(self.now, path)),
            _ => paths.iter().for_each(|path| self.server.notify(self.now, path, &value)),
        }
    }

    /// A peer acknowledges or resets the last confirmable message that it was sent.
    fn react(&mut self, amount: usize) {
        let peer = amount % PEERS;
        let Some(id) = self.peers[peer].told.pop() else { return };
        let message_type = match amount & 0x80 {
            0 => MessageType::Acknowledgement,
            _ => MessageType::Reset,
        };
        let mut datagram = Vec::new();
        Message::empty(message_type, id).encode(&mut datagram).expect("it is four bytes");
        self.say(peer, &datagram);
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.server.handle_timeout(self.now);
    }

    fn check(&mut self) {
        while let Some(transmit) = self.server.poll_transmit() {
            let number = (0..PEERS).find(|number| address(*number) == transmit.peer);
            let peer = &mut self.peers[number.expect("it is one of the peers")];
            let message =
                Message::decode(transmit.datagram).expect("each datagram sent is a message");
            if message.message_type == MessageType::Confirmable {
                assert!(message.code == Code::EMPTY || message.code.is_response());
                peer.told.push(message.id);
            }
            peer.told_bytes += transmit.datagram.len();
            assert!(peer.is_there || peer.told_bytes <= 3 * peer.said_bytes);
        }
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Publish(publish) => {
                    assert!(publish.payload.len() <= 100);
                    self.open.push(publish.request);
                }
                Event::Read(read) => self.open.push(read.request),
                Event::Followed { path } => {
                    assert!(!self.followed.contains(&path));
                    self.followed.push(path);
                }
                Event::Unfollowed { path } => {
                    let at = self.followed.iter().position(|it| *it == path);
                    self.followed.remove(at.expect("it was followed"));
                }
            }
        }
        let held = self.server.statistics();
        assert!(held.peers <= 4 && held.exchanges <= 16 && held.open <= 8, "{held:?}");
        assert!(held.held_bytes <= 300 && held.observers <= 5, "{held:?}");
        assert!(held.observers >= self.followed.len());
    }

    fn end(&mut self) {
        for _ in 0..1_000 {
            let Some(due) = self.server.poll_timeout() else { break };
            self.now = self.now.max(due);
            self.server.handle_timeout(self.now);
            self.check();
        }
        assert_eq!(self.server.poll_timeout(), None, "something waits for ever");
        let held = self.server.statistics();
        assert_eq!((held.open, held.held_bytes), (0, 0));
    }
}
