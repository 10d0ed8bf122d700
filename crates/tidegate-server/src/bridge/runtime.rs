//! The thread of a bridge: two clients and a relay between them, on one poll.
//!
//! ```text
//!  prepare: session here ─▶ carry: remote, then local ─▶ turn: read, relay, write, ping ─▶ rest, with a growing wait ─┐
//!                              ▲────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use mio::{Events, Poll, Token};
use tidegate_bus::{Host as _, block};
use tidegate_message::{Backoff, Instant};
use tidegate_process::clock;
use tidegate_wire::mqtt::{
    Disconnect, EncodeError, QoS, ReasonCode, RetainHandling, SubscribeFilter, Version,
    client::{ClientError, Publication, SubscribeError},
    path::{Direction, Stamps},
};

use super::{
    BridgeError, BridgeSettings, KEEPS_REMOTE, RemoteVersion,
    line::{Line, READ_BYTES, watch},
    relay::{Counters, Fault, Relay, Side, Way},
    topics::Topics,
};
use crate::{server::Connector, transport::ReadOutcome};

/// Reads and writes before the poll is asked what else is new.
const TURNS_MAX: usize = 4;
/// Longest wait of the poll.
const POLL_MAX: Duration = Duration::from_secs(60);
/// A connection that lasted this long was a good one: the next try comes soon.
const STEADY: Duration = Duration::from_secs(10);
/// How often subscriptions are asked for that a broker had no room for.
const ASKS_EVERY: Duration = Duration::from_secs(5);
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_millis(500);

// Token 0 is the waker's.
pub(super) const LOCAL: Token = Token(1);
pub(super) const REMOTE: Token = Token(2);

/// Why a connection of a bridge ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the bridge stops")]
    Stopped,
    #[error("the address of {0} cannot be looked up")]
    Resolve(String, #[source] io::Error),
    #[error("no connection to {0}")]
    Connect(String, #[source] io::Error),
    #[error("{0:?} is not allowed as the name of a TLS server: write a DNS name or an IP address")]
    ServerName(String),
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    #[error("the connection to {0} broke")]
    Io(Side, #[source] io::Error),
    #[error("{0} closed the connection")]
    Closed(Side),
    #[error("{0} does not answer")]
    Silent(Side),
    #[error("the CONNECT for {0} cannot be encoded")]
    Encode(Side, #[source] EncodeError),
    #[error("no session with {0}")]
    NoSession(Side, #[source] ClientError),
    #[error("{0} cannot be subscribed to")]
    Subscribe(Side, #[source] SubscribeError),
    #[error(transparent)]
    Overlap(BridgeError),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Broken {
    /// Whether a remote may have said so because it does not know the version.
    pub(super) fn is_for_version(&self) -> bool {
        match self {
            Self::Closed(_) => true,
            Self::NoSession(_, ClientError::Refused { reason, .. }) => {
                *reason == ReasonCode::UNSUPPORTED_PROTOCOL_VERSION
            }
            Self::NoSession(..) => true,
            Self::Io(_, error) => error.kind() == io::ErrorKind::ConnectionReset,
            _ => false,
        }
    }
}

/// How the remote is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    V5,
    /// MQTT 3.1.1 with the bridge bit.
    Bridge,
    V4,
}

impl Mode {
    /// For the log.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::V5 => "5",
            Self::Bridge => "3.1.1 with the bridge bit",
            Self::V4 => "3.1.1",
        }
    }
}

/// The terms on which both sides are connected.
struct Carried {
    mode: Mode,
    session_present: bool,
    retained: RetainHandling,
    qos_max: QoS,
}

/// The state of the thread.
pub(super) struct Runtime {
    pub(super) settings: BridgeSettings,
    pub(super) connector: Connector,
    pub(super) poll: Poll,
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
    pub(super) relay: Relay,
    /// The client identifier of the session here.
    pub(super) local_id: String,
    /// In how many seconds from the farewell on the session at the remote ends; [`KEEPS_REMOTE`] if it stays.
    remote_ends: Arc<AtomicU32>,
    pub(super) modes: Vec<Mode>,
    /// Which of them is tried next.
    pub(super) mode: usize,
    /// Sessions that were new at their last connection, while the other side does not know it yet.
    pub(super) is_new: [bool; 2],
    /// Whether the remote session has the subscriptions of this process.
    is_subscribed: bool,
    /// Whether it was reported that messages come round.
    told_looped: bool,
    pub(super) buffer: Vec<u8>,
    backoff: Backoff,
}

impl Runtime {
    pub(super) fn remote_ends(&self) -> Arc<AtomicU32> {
        self.remote_ends.clone()
    }

    pub(super) fn new(
        settings: BridgeSettings,
        connector: Connector,
        poll: Poll,
        stop: Arc<AtomicBool>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let first = (settings.backoff_max / 100).max(Duration::from_millis(50));
        let seed = u64::from_ne_bytes(tidegate_process::random::random_bytes()?);
        let backoff = Backoff::with_jitter(first, settings.backoff_max, seed);
        let (local, remote) = (&settings.local_prefix, &settings.remote_prefix);
        let out = Topics::new(&settings.topics_out, local, remote, None);
        let back = Topics::new(&settings.topics_in, remote, local, Some("$SYS/"));
        // A remote may be silent for as long as this side.
        let answer_timeout = match settings.keep_alive {
            0 => settings.connect_timeout,
            seconds => Duration::from_secs(seconds.into()),
        };
        let mut relay = Relay::new(
            Way::new(out, Direction::Out),
            Way::new(back, Direction::In),
            Stamps::new(&settings.node),
            settings.retain,
            answer_timeout,
        );
        relay.local.packet_bytes_max = settings.packet_bytes_max as usize;
        let modes = match settings.version {
            RemoteVersion::Auto => vec![Mode::V5, Mode::Bridge, Mode::V4],
            RemoteVersion::V4 => vec![Mode::Bridge, Mode::V4],
            RemoteVersion::V5 => vec![Mode::V5],
        };
        Ok(Self {
            local_id: BridgeSettings::local_id(&settings.name),
            remote_ends: Arc::new(AtomicU32::new(KEEPS_REMOTE)),
            settings,
            connector,
            poll,
            stop,
            counters,
            relay,
            modes,
            mode: 0,
            is_new: [false; 2],
            is_subscribed: false,
            told_looped: false,
            buffer: vec![0; READ_BYTES],
            backoff,
        })
    }

    /// Carries messages until it is stopped.
    pub(super) fn run(mut self) {
        let (mut is_prepared, mut has_session) = (false, false);
        let mut told = String::new();
        while !self.is_stopped() {
            if !is_prepared {
                match self.prepare() {
                    // Messages that wait in the session are carried, whatever it lacks.
                    Ok(is_subscribed) => (is_prepared, has_session) = (is_subscribed, true),
                    Err(Broken::Stopped) => break,
                    Err(error) => {
                        let error = tidegate_message::error_chain(&error);
                        tracing::warn!(bridge = %self.settings.name, %error, "the bridge has no session with this node's broker");
                    }
                }
            }
            if has_session {
                let began = clock::now();
                let connects = self.counters.connects.load(Ordering::Relaxed);
                let Err(error) = self.carry();
                if matches!(error, Broken::Stopped) {
                    break;
                }
                let was_up = self.counters.connects.load(Ordering::Relaxed) > connects;
                if was_up && clock::now().since(began) > STEADY {
                    self.backoff.reset();
                }
                let text = tidegate_message::error_chain(&error);
                if error.is_for_version() && !was_up && self.mode > 0 {
                    tracing::info!(bridge = %self.settings.name, error = %text, next = self.modes[self.mode].word(), "another version of MQTT is tried");
                    continue;
                }
                // An unchanged error is not logged again.
                if was_up || text != told {
                    tracing::warn!(bridge = %self.settings.name, error = %text, report = %self.counters.report(), "bridge down");
                    told = text;
                }
            }
            self.rest();
        }
        tracing::info!(bridge = %self.settings.name, report = %self.counters.report(), "bridge stopped");
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn rest(&mut self) {
        let until = clock::now() + self.backoff.next_wait();
        let mut events = Events::with_capacity(8);
        while !self.is_stopped() {
            let left = until.since(clock::now());
            if left.is_zero() || self.poll.poll(&mut events, Some(left)).is_err() {
                return;
            }
        }
    }

    // ---- connections

    /// Makes the session here before the remote is there, so that messages wait for it from now on. Whether it has all subscriptions.
    fn prepare(&mut self) -> Result<bool, Broken> {
        let mut line = self.connect_local(1, RetainHandling::DoNotSend, QoS::ExactlyOnce)?;
        // The will says that the bridge is not connected.
        self.leave(Side::Local, Disconnect::new(ReasonCode::DISCONNECT_WITH_WILL));
        self.drain(&mut line, Side::Local)?;
        let deadline = clock::now() + self.settings.connect_timeout;
        loop {
            match line.read(&mut self.buffer) {
                Ok(ReadOutcome::End) | Err(_) => return self.has_subscriptions(),
                Ok(ReadOutcome::Bytes(_)) => {}
                Ok(ReadOutcome::WouldBlock) => {
                    self.wait(&mut line, deadline, Side::Local)?;
                }
            }
        }
    }

    /// Whether the session here has all subscriptions that it is to have.
    fn has_subscriptions(&mut self) -> Result<bool, Broken> {
        let has = self.local_filters()?;
        let mut wanted = self.relay.way(Side::Local).topics.filters().iter();
        Ok(wanted.all(|wanted| has.iter().any(|has| **has == **wanted)))
    }

    pub(super) fn local_filters(&self) -> Result<Vec<Arc<str>>, Broken> {
        let asked = self.connector.filters(&self.local_id);
        block::on(self.settings.connect_timeout, asked).ok_or(Broken::Silent(Side::Local))
    }

    pub(super) fn subscribe(
        &mut self,
        side: Side,
        retain_handling: RetainHandling,
        maximum_qos: QoS,
    ) -> Result<(), Broken> {
        // Options that MQTT 3.1.1 does not have; the bridge bit stands for them there.
        let is_v5 = self.relay.end(side).client.version() == Version::V5;
        let retain_as_published = is_v5 && self.settings.retain;
        let filters = self.relay.way(side).topics.filters().iter().map(|filter| SubscribeFilter {
            filter: filter.clone(),
            maximum_qos,
            no_local: is_v5,
            retain_as_published,
            retain_handling: if is_v5 { retain_handling } else { RetainHandling::Send },
        });
        let filters: Vec<_> = filters.collect();
        if filters.is_empty() {
            return Ok(());
        }
        let end = self.relay.end(side);
        let asked = end.client.subscribe(filters, None, ());
        end.is_asked = true;
        asked.map(drop).map_err(|error| Broken::Subscribe(side, error))
    }

    pub(super) fn state_topic(&self) -> String {
        format!("$SYS/broker/connection/{}/state", self.settings.name)
    }

    fn publish_state(&mut self, payload: &[u8]) {
        let topic = self.state_topic();
        let state = Publication { topic: &topic, payload, retain: true, ..Publication::default() };
        if let Err(error) = self.relay.local.client.publish(&state, ()) {
            tracing::warn!(bridge = %self.settings.name, %error, "the state of the bridge is not published");
        }
    }

    // ---- carrying

    /// Connects to both and carries messages until something breaks.
    fn carry(&mut self) -> Result<Infallible, Broken> {
        self.relay.local.reset();
        let (mut remote, session_present) = self.connect_remote()?;
        // The next connection tries the best one again: a remote may be another one after it was away.
        let mode = self.modes[std::mem::take(&mut self.mode)];
        self.is_new[Side::Remote as usize] |= !session_present;
        let limits = *self.relay.remote.client.limits();
        let receive_maximum = u16::try_from(limits.receive_maximum).unwrap_or(u16::MAX);
        // A side that lost its retained messages with its session is sent all of them.
        let handling = |other_is_new| {
            if other_is_new { RetainHandling::Send } else { RetainHandling::SendIfNew }
        };
        // A session that is new here is the one that `prepare` made.
        let out = handling(self.is_new.contains(&true));
        let mut local = self.connect_local(receive_maximum, out, limits.qos_max)?;
        let [local_is_new, remote_is_new] = std::mem::take(&mut self.is_new);
        self.relay.out.begin(local_is_new, remote_is_new);
        self.relay.back.begin(remote_is_new, local_is_new);
        // Before MQTT 5 each subscription brings all retained messages.
        if mode == Mode::V5 || remote_is_new || local_is_new || !self.is_subscribed {
            let qos_max = self.settings.qos.min(limits.qos_max);
            self.subscribe(Side::Remote, handling(local_is_new), qos_max)?;
            self.is_subscribed = true;
        }
        self.publish_state(b"1");
        self.counters.connects.fetch_add(1, Ordering::Relaxed);
        let carried = Carried { mode, session_present, retained: out, qos_max: limits.qos_max };
        let broken = match self.turn(&mut local, &mut remote, &carried) {
            Err(broken) => broken,
            Ok(never) => match never {},
        };
        if matches!(broken, Broken::Stopped) {
            self.farewell(&mut local, &mut remote);
        }
        Err(broken)
    }

    fn turn(
        &mut self,
        local: &mut Line,
        remote: &mut Line,
        &Carried { mode, session_present, retained, qos_max }: &Carried,
    ) -> Result<Infallible, Broken> {
        let mut is_up = false;
        let mut asks_at = clock::now() + ASKS_EVERY;
        // Packets may have come behind CONNACK.
        self.relay.take(Side::Remote, clock::now(), &self.counters)?;
        self.relay.take(Side::Local, clock::now(), &self.counters)?;
        loop {
            let mut is_busy = false;
            for _ in 0..TURNS_MAX {
                is_busy = self.pass(Side::Local, local, remote)?;
                is_busy |= self.pass(Side::Remote, remote, local)?;
                if !is_busy {
                    break;
                }
            }
            if !is_up && !self.relay.local.is_asked && !self.relay.remote.is_asked {
                // Both have its subscriptions: messages that are published from now on pass.
                is_up = true;
                tracing::info!(bridge = %self.settings.name, host = %self.settings.host, port = self.settings.port,
                    version = mode.word(), session_present, "bridge up");
            }
            if !self.told_looped
                && let Some(topic) = &self.relay.looped
            {
                tracing::warn!(bridge = %self.settings.name, topic,
                    "a message that was at that node before is not passed on; further ones are only counted");
                self.told_looped = true;
            }
            let now = clock::now();
            if self.relay.local.lacks_room && !self.relay.local.is_asked && asks_at <= now {
                self.subscribe(Side::Local, retained, qos_max.min(self.settings.qos))?;
                self.flush(local, Side::Local)?;
                asks_at = now + ASKS_EVERY;
            }
            let is_reading = self.is_written(local, Side::Local);
            let client = &mut self.relay.remote.client;
            if !is_reading {
                // An answer cannot be missed while nothing is read.
                client.postpone(now);
            }
            let pinged = client.handle_timeout(now);
            pinged.map_err(|error| Broken::Fault(Fault::Client(Side::Remote, error)))?;
            self.flush(remote, Side::Remote)?;
            let due = self.relay.remote.client.poll_timeout();
            let asks = self.relay.local.lacks_room.then_some(asks_at.max(now));
            let wake_at = due.into_iter().chain(asks).fold(now + POLL_MAX, Instant::min);
            let wake_at = if is_busy { now } else { wake_at };
            watch(&mut self.poll, &mut [(LOCAL, local), (REMOTE, remote)], wake_at)
                .map_err(|error| Broken::Io(Side::Local, error))?;
            if self.is_stopped() {
                return Err(Broken::Stopped);
            }
        }
    }

    /// Writes what waits for the other side; if nothing is left there, reads once from this one. Whether there is more to do.
    fn pass(&mut self, side: Side, from: &mut Line, to: &mut Line) -> Result<bool, Broken> {
        self.flush(to, side.other())?;
        if !self.is_written(to, side.other()) {
            return Ok(false);
        }
        if self.relay.is_held(side) {
            return Ok(false);
        }
        // Packets that were held before continue, and those that are complete now.
        let is_more = self.read(from, side)?;
        self.relay.take(side, clock::now(), &self.counters)?;
        self.flush(to, side.other())?;
        self.flush(from, side)?;
        Ok(is_more)
    }

    fn is_written(&mut self, line: &Line, side: Side) -> bool {
        let end = self.relay.end(side);
        line.is_written(&end.output)
    }

    /// Reads once; false if there is nothing to read for now.
    pub(super) fn read(&mut self, line: &mut Line, side: Side) -> Result<bool, Broken> {
        match line.read(&mut self.buffer) {
            Ok(ReadOutcome::Bytes(count)) => {
                self.relay.end(side).input.extend_from_slice(&self.buffer[..count]);
                Ok(true)
            }
            Ok(ReadOutcome::WouldBlock) => Ok(false),
            Ok(ReadOutcome::End) => Err(Broken::Closed(side)),
            Err(error) => Err(Broken::Io(side, error)),
        }
    }

    /// Writes what waits for one side, as far as its socket takes it.
    pub(super) fn flush(&mut self, line: &mut Line, side: Side) -> Result<(), Broken> {
        self.relay.fill(side, clock::now());
        let end = self.relay.end(side);
        if line.write(&mut end.output).map_err(|error| Broken::Io(side, error))? {
            let now = clock::now();
            end.client.transmitted(now);
            // Nor can an answer to a ping that has not left: a long payload may stand before it.
            end.client.postpone(now);
        }
        Ok(())
    }

    /// Writes all that waits for one side.
    fn drain(&mut self, line: &mut Line, side: Side) -> Result<(), Broken> {
        let deadline = clock::now() + FAREWELL;
        loop {
            self.flush(line, side)?;
            if self.is_written(line, side) {
                return Ok(());
            }
            self.wait(line, deadline, side)?;
        }
    }

    /// Waits for one connection alone.
    pub(super) fn wait(
        &mut self,
        line: &mut Line,
        deadline: Instant,
        side: Side,
    ) -> Result<(), Broken> {
        if clock::now() >= deadline {
            return Err(Broken::Silent(side));
        }
        let watched = watch(&mut self.poll, &mut [(side.token(), line)], deadline);
        watched.map_err(|error| Broken::Io(side, error))?;
        if self.is_stopped() { Err(Broken::Stopped) } else { Ok(()) }
    }

    /// Leaves both brokers, if that can be said between two packets.
    fn farewell(&mut self, local: &mut Line, remote: &mut Line) {
        if self.relay.is_between(Side::Remote) {
            let seconds = self.remote_ends.load(Ordering::Acquire);
            let session_expiry = Some(seconds).filter(|seconds| *seconds != KEEPS_REMOTE);
            self.leave(Side::Remote, Disconnect { session_expiry, ..Disconnect::default() });
        }
        if self.relay.is_between(Side::Local) {
            // With the will, which says that the bridge is not connected.
            self.leave(Side::Local, Disconnect::new(ReasonCode::DISCONNECT_WITH_WILL));
        }
        for (line, side) in [(remote, Side::Remote), (local, Side::Local)] {
            let deadline = clock::now() + FAREWELL;
            while self.flush(line, side).is_ok()
                && !self.is_written(line, side)
                && clock::now() < deadline
            {
                if watch(&mut self.poll, &mut [(side.token(), line)], deadline).is_err() {
                    break;
                }
            }
            line.end();
        }
    }

    fn leave(&mut self, side: Side, disconnect: Disconnect) {
        let left = self.relay.end(side).client.disconnect(disconnect);
        left.expect("a DISCONNECT without texts is short");
    }
}

impl Side {
    pub(super) fn token(self) -> Token {
        match self {
            Self::Local => LOCAL,
            Self::Remote => REMOTE,
        }
    }
}
