//! The server's end: a state machine over messages, requests, blocks and observations.
//!
//! ```text
//!  handle(now, peer, datagram) ─▶ poll_event ─▶ Publish, Read ─▶ the shell ─▶ answer(now, request, …)
//!                                              Followed, Unfollowed         notify(now, path, …)
//!  handle_timeout(now)            poll_transmit, poll_timeout
//! ```
//!
//! Replies are piggy-backed on the acknowledgement if the shell answers within [`ServerConfig::separate_after`], else they travel by
//! themselves. Of each topic's states only the newest is sent to an observer that is behind: one at a time is under way to each
//! peer, and those that are not confirmable leave at most once a round trip. A notification is confirmable where the one before is
//! long ago, where sixteen have left without one, and once more where nothing newer followed one that was not: so who follows a
//! topic that came to rest has its last state, or is gone and taken from the list.
//!
//! A peer that has not shown that it is where it says is sent at most three times the bytes that it has sent; longer answers wait
//! until it has answered a ping with the reset that only the one at that address can send. That costs one round trip once, and
//! works with every client, which a challenge by the Echo option (RFC 9175) does not. Of those bytes enough for the ping is left.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use tidegate_message::Instant;

use super::{
    Block, Code, ContentFormat, DecodeError, Header, Message, MessageType, Method, Token, Transmit,
    exchange::{Exchanges, Outcome},
    observe::{Notice, Observers},
    outbox::Outbox,
    peer::Peers,
    slab::{Key, Slab},
    transmission::Random,
};

mod config;
mod deliver;
mod notify;
mod receive;
mod reply;

pub use config::{ServerConfig, Statistics};

/// The server's end of all its peers.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    random: Random,
    peers: Peers,
    exchanges: Exchanges,
    observers: Observers,
    /// Requests that the shell has not answered.
    open: Slab<Open>,
    timers: BTreeSet<(Instant, Timer)>,
    outbox: Outbox,
    events: VecDeque<Event>,
    /// Payloads of open requests and of those that have not arrived whole.
    held_bytes: usize,
    /// Reused by everything that is encoded.
    scratch: Vec<u8>,
    scratch_peers: Vec<Key>,
    statistics: Statistics,
}

impl Server {
    /// A server without peers. `seed` is fresh random bytes, from which identifiers and waits follow.
    pub fn new(mut config: ServerConfig, seed: [u8; 32]) -> Self {
        config.size_exponent = config.size_exponent.min(Block::SIZE_EXPONENT_MAX);
        Self {
            random: Random::new(seed),
            peers: Peers::new(config.peers_max),
            exchanges: Exchanges::new(config.exchanges_max, config.transmission),
            observers: Observers::new(),
            open: Slab::new(),
            timers: BTreeSet::new(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            held_bytes: 0,
            scratch: Vec::new(),
            scratch_peers: Vec::new(),
            statistics: Statistics::default(),
            config,
        }
    }

    /// A datagram arrived. Payloads in events are slices of it. Afterwards, take events and what leaves.
    ///
    /// # Errors
    ///
    /// Why it is no message. It is answered or ignored already: the error is for the log.
    pub fn handle(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        datagram: &Bytes,
    ) -> Result<(), DecodeError> {
        self.statistics.received += 1;
        let message = match Message::decode(datagram) {
            Ok(message) => message,
            Err(error) => {
                self.statistics.malformed += 1;
                let header = Header::decode(datagram)?;
                if header.message_type == MessageType::Confirmable {
                    self.send_reset(peer, header.id);
                }
                return Err(error);
            }
        };
        let is_confirmable = message.message_type == MessageType::Confirmable;
        match message.message_type {
            MessageType::Acknowledgement => self.acknowledged(now, peer, message.id),
            MessageType::Reset => self.rejected(now, peer, message.id),
            _ if message.code.is_request() => self.receive(now, peer, &message, datagram),
            // A ping, or a response to what was never asked.
            _ if is_confirmable => self.send_reset(peer, message.id),
            _ => {}
        }
        Ok(())
    }

    /// Time has passed: call at [`poll_timeout`](Self::poll_timeout), then take events and what leaves.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(due, timer)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Peer(peer) => self.peer_timeout(now, peer),
                Timer::Open(open) => self.open_timeout(now, open),
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); none if nothing waits for time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// The next datagram to send. Those that a call brought about are taken before the next call: at most two for a datagram, one for
    /// each that follows what is notified.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        let transmit = self.outbox.pop();
        self.statistics.sent += u64::from(transmit.is_some());
        transmit
    }

    /// The next event for the shell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Answers a request of [`Event::Publish`] or [`Event::Read`]. A request that was answered already, or that waited longer than
    /// [`ServerConfig::answer_timeout`], is left as it is.
    pub fn answer(&mut self, now: Instant, request: RequestKey, answer: Answer) {
        let Some(open) = self.close(Key::from_bits(request.0)) else { return };
        match (open.method, answer) {
            (Method::Get, Answer::Content(representation)) => {
                self.answer_content(now, open, &representation);
            }
            (_, answer) => {
                let mut outcome = answer.outcome(open.method);
                outcome.block1 = open.block1;
                self.conclude(now, &open, outcome);
            }
        }
    }

    /// A path has a new state, which its observers are sent. Does nothing if the path has no observer.
    pub fn notify(&mut self, now: Instant, path: &str, representation: &Representation) {
        self.notify_all(now, path, representation);
    }

    /// The state of a path is given again: its observers are notified if they know another one. Does nothing if the path has no
    /// observer.
    pub fn remind(&mut self, now: Instant, path: &str, representation: &Representation) {
        let notice = Notice::new(representation, self.config.size_exponent);
        if self.observers.latest_of(path).is_some_and(|latest| !latest.is_same(&notice)) {
            self.notify_all(now, path, representation);
        }
    }

    /// Ends all observations of a path: its observers are sent 4.04.
    pub fn end(&mut self, now: Instant, path: &str) {
        self.end_all(now, path);
    }

    /// The counts so far, and the memory held.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            peers: self.peers.len(),
            exchanges: self.exchanges.len(),
            observers: self.observers.len(),
            open: self.open.len(),
            held_bytes: self.held_bytes,
            ..self.statistics
        }
    }
}

/// Events for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer gives a value: answer it.
    Publish(Publish),
    /// A peer asks for a value: answer it.
    Read(Read),
    /// A path has its first observer. Call [`Server::notify`] with each new state from now on, and once with the state that there
    /// is, since it may have changed after it was read.
    Followed {
        /// The path.
        path: String,
    },
    /// A path has no observer any more.
    Unfollowed {
        /// The path.
        path: String,
    },
}

/// A value that a peer gives, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    /// For [`Server::answer`].
    pub request: RequestKey,
    /// The sender.
    pub peer: SocketAddr,
    /// POST or PUT.
    pub method: Method,
    /// The levels of the path with `/` between them: a valid topic name.
    pub path: String,
    /// The parts of the query with `&` between them; empty if there is none.
    pub query: String,
    /// The format of the payload, if the peer names it.
    pub content_format: Option<ContentFormat>,
    /// The value, byte for byte.
    pub payload: Bytes,
}

/// A value that a peer asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// For [`Server::answer`].
    pub request: RequestKey,
    /// The asking peer.
    pub peer: SocketAddr,
    /// The levels of the path with `/` between them: a valid topic name.
    pub path: String,
    /// The parts of the query with `&` between them; empty if there is none.
    pub query: String,
    /// Whether it will follow the path if it is answered with [`Answer::Content`].
    pub follows: bool,
}

/// Names a request until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(u64);

/// The answer to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 2.04: the value is taken.
    Accept,
    /// 2.01: the value is taken, and is the first of its topic.
    Create,
    /// 2.05: the value that was asked for. The only answer to [`Event::Read`] that makes the peer follow.
    Content(Representation),
    /// 4.00, with a sentence for people.
    RefuseBad(&'static str),
    /// 4.03: the peer may not.
    Refuse,
    /// 4.04: there is no value.
    NotFound,
    /// 4.13: the value is too large.
    RefuseLarge {
        /// The most bytes that are taken.
        bytes_max: u32,
    },
    /// 4.15: such values are not taken.
    RefuseFormat,
    /// 5.03: not now.
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// 5.00: something failed here.
    Fail,
}

/// A value and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Representation {
    /// The format of the payload, if that is known.
    pub content_format: Option<ContentFormat>,
    /// The value.
    pub payload: Bytes,
    /// How long it holds; a minute if nothing is said (RFC 7252, 5.10.5).
    pub max_age: Option<Duration>,
}

impl Answer {
    fn outcome(self, method: Method) -> Outcome {
        let fail = || Outcome::new(Code::INTERNAL_SERVER_ERROR, "the request failed here");
        match self {
            // GET has no use for these, nor PUT for a value.
            Self::Accept | Self::Create if method == Method::Get => fail(),
            Self::Accept | Self::Content(_) => Outcome::new(Code::CHANGED, ""),
            Self::Create => Outcome::new(Code::CREATED, ""),
            Self::RefuseBad(why) => Outcome::new(Code::BAD_REQUEST, why),
            Self::Refuse => Outcome::new(Code::FORBIDDEN, ""),
            Self::NotFound => Outcome::new(Code::NOT_FOUND, ""),
            Self::RefuseLarge { bytes_max } => Outcome {
                size1: Some(bytes_max),
                ..Outcome::new(Code::REQUEST_ENTITY_TOO_LARGE, "")
            },
            Self::RefuseFormat => Outcome::new(Code::UNSUPPORTED_CONTENT_FORMAT, ""),
            Self::Busy { retry_after } => busy(retry_after),
            Self::Fail => fail(),
        }
    }
}

fn busy(retry_after: Duration) -> Outcome {
    let seconds = retry_after.as_secs().clamp(1, u64::from(u32::MAX)) as u32;
    Outcome { max_age: Some(seconds), ..Outcome::new(Code::SERVICE_UNAVAILABLE, "") }
}

/// A request that the shell has not answered.
#[derive(Debug)]
struct Open {
    to: ReplyTo,
    fingerprint: u32,
    method: Method,
    /// The path to follow, if the peer asks for that.
    follow: Option<String>,
    accept: Option<ContentFormat>,
    block1: Option<Block>,
    block2: Option<Block>,
    held_bytes: usize,
    received: Instant,
    due: Instant,
}

/// Where a reply goes, and how.
#[derive(Clone, Copy, Debug)]
struct ReplyTo {
    peer: Key,
    id: u16,
    token: Token,
    is_confirmable: bool,
    /// Whether the request's acknowledgement has left, so that the reply travels by itself.
    is_acknowledged: bool,
    no_response: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Peer(Key),
    Open(Key),
}
