//! One connection that publishes: many messages in one write, and as many of QoS 1 and 2 under way as the broker takes.
//!
//! ```text
//!  push … push ─▶ batch ─▶ turn: write what the socket takes, read acknowledgements, ping ─▶ wait for sockets or the next message
//! ```
//!
//! [`crate::client`] waits for each acknowledgement, which is right for a few messages; this is for many of them, and for whoever
//! has a timetable to keep: nothing but [`wait`] blocks once the connection is there.
//!
//! Always true: messages leave in the order in which they were pushed; no more than [`BATCH_BYTES`] and one message wait unwritten;
//! what a broker refuses of QoS 1 and 2 is counted, not sent again.

use std::{
    io,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_sys::clock::monotonic_nanos;
use tidegate_wire::mqtt::{
    Disconnect, PacketId, QoS, ReasonCode,
    client::{self as mqtt, Event, Publication, PublishError, ReceiveBuffer},
};

use crate::{
    client::{ClientError, Options, Peer, dial},
    socket::{Socket, SocketError},
    url::Endpoint,
};

/// Messages of one write.
pub(crate) const BATCH_BYTES: usize = 64 << 10;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// How long a broker may take to close after a farewell.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Outlet {
    socket: Socket,
    peer: Peer,
    client: mqtt::Client<()>,
    timeout: Duration,
    /// Bytes pushed since nothing waited.
    batch_bytes: usize,
    /// Since when the socket has taken nothing.
    stuck_since: Option<i64>,
    is_readable: bool,
    input: Vec<u8>,
    /// MQTT that is no whole packet yet.
    partial: ReceiveBuffer,
    exchanges: Exchanges,
}

/// Outcomes of messages of QoS 1 and 2.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchanges {
    pub(crate) acknowledged: u64,
    pub(crate) refused: u64,
    /// Why the first of them was.
    pub(crate) refusal: Option<ReasonCode>,
}

impl Outlet {
    /// Connects, and waits for the broker's welcome. At most `inflight` messages of QoS 1 and 2 will be under way.
    ///
    /// # Errors
    /// Any of [`ClientError`], but `Publish` and `Subscribe`.
    pub(crate) fn connect(options: &Options, inflight: u16) -> Result<Self, ClientError> {
        let peer = Peer::of(options);
        let tcp = dial(options, &peer)?;
        tcp.set_nonblocking(true)
            .map_err(|source| ClientError::Io { peer: peer.clone(), source })?;
        let endpoint = Endpoint {
            host: options.host.clone(),
            port: options.port,
            websocket: options.websocket.clone(),
        };
        let mut outlet = Self {
            socket: Socket::new(tcp),
            peer,
            client: mqtt::Client::new(mqtt::Config {
                inflight_max: inflight.try_into().unwrap_or(PacketId::MIN),
                ..options.config()
            }),
            timeout: options.timeout,
            batch_bytes: 0,
            stuck_since: None,
            is_readable: false,
            input: vec![0; READ_BYTES],
            partial: ReceiveBuffer::default(),
            exchanges: Exchanges::default(),
        };
        let opened = outlet.socket.open(&endpoint, options.tls.as_ref());
        opened.map_err(|error| outlet.broke(error))?;
        outlet.greet(options)?;
        Ok(outlet)
    }

    fn greet(&mut self, options: &Options) -> Result<(), ClientError> {
        let until = Instant::now() + self.timeout;
        let mut has_greeted = false;
        loop {
            if !has_greeted && self.socket.is_open() {
                has_greeted = true;
                self.client.connect(now(), &options.greeting())?;
            }
            self.turn(monotonic_nanos())?;
            if self.client.is_connected() {
                return Ok(());
            }
            if !has_greeted && self.socket.is_open() {
                // The broker waits for CONNECT now.
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let wanted = match (has_greeted, options.websocket.is_some()) {
                    (true, _) => "CONNACK",
                    (false, true) => "a WebSocket",
                    (false, false) => "TLS",
                };
                return Err(self.timed_out(wanted));
            }
            wait(std::slice::from_mut(self), left)?;
        }
    }

    /// Takes a message to be written by the next [`Outlet::turn`]; false if there is no room for it now. The topic is a valid one.
    ///
    /// # Errors
    /// `TooLarge`, if it is longer than the broker takes.
    pub(crate) fn push(
        &mut self,
        topic: &str,
        payload: &[u8],
        qos: QoS,
    ) -> Result<bool, ClientError> {
        if !self.may_push(qos) {
            return Ok(false);
        }
        let before = self.client.output_bytes();
        let message = Publication { topic, payload, qos, ..Publication::default() };
        match self.client.publish(&message, ()) {
            Ok(_) => {}
            Err(PublishError::NoRoom { .. }) => return Ok(false),
            Err(error) => return Err(ClientError::of_publish(self.peer.clone(), error)),
        }
        self.batch_bytes += self.client.output_bytes() - before;
        Ok(true)
    }

    /// Whether there is room for a message now.
    pub(crate) fn may_push(&self, qos: QoS) -> bool {
        self.batch_bytes < BATCH_BYTES && (qos == QoS::AtMostOnce || self.client.room() > 0)
    }

    /// Whether all that was pushed is the kernel's.
    pub(crate) fn is_flushed(&self) -> bool {
        self.socket.is_flushed() && self.client.output_bytes() == 0
    }

    /// Whether all that was pushed is written, and of QoS 1 and 2 answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_flushed() && self.client.unacknowledged() == 0
    }

    /// Outcomes of messages of QoS 1 and 2.
    pub(crate) fn exchanges(&self) -> Exchanges {
        self.exchanges
    }

    /// Writes as far as the socket takes it, reads what is there, and keeps the connection alive.
    ///
    /// # Errors
    /// Any of [`ClientError`] that ends a connection.
    pub(crate) fn turn(&mut self, now: i64) -> Result<(), ClientError> {
        if std::mem::take(&mut self.is_readable) {
            self.read()?;
        }
        let time = tidegate_message::Instant::from_nanos(now);
        let timed = self.client.handle_timeout(time);
        timed.map_err(|error| ClientError::of_machine(self.peer.clone(), error))?;
        if self.socket.is_flushed() {
            self.client.transmit(time, self.socket.out());
        }
        match self.socket.flush() {
            Ok(true) => self.stuck_since = None,
            Ok(false) => {}
            Err(error) => {
                // A broker that has gone may have said why.
                self.read()?;
                return Err(self.broke(error));
            }
        }
        if self.is_flushed() {
            self.batch_bytes = 0;
            self.stuck_since = None;
            return Ok(());
        }
        let stuck = now - *self.stuck_since.get_or_insert(now);
        if stuck > self.timeout.as_nanos() as i64 {
            return Err(self.timed_out("room for more messages"));
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), ClientError> {
        loop {
            let read = self.socket.read(&mut self.input);
            let Some(bytes) = read.map_err(|error| self.broke(error))? else { return Ok(()) };
            let mut has_ended = false;
            if self.socket.is_plain() {
                self.partial.extend(&self.input[..bytes]);
            } else {
                let unwrapped = self.socket.unwrap(&self.input[..bytes], self.partial.spare());
                has_ended = unwrapped.map_err(|error| self.broke(error))?;
            }
            self.take()?;
            if has_ended {
                return Err(ClientError::Closed { peer: self.peer.clone() });
            }
            if bytes < READ_BYTES {
                return Ok(());
            }
        }
    }

    /// Handles the packets that are whole.
    fn take(&mut self) -> Result<(), ClientError> {
        let mut input = self.partial.bytes();
        loop {
            let event = self.client.receive(&mut input);
            match event.map_err(|error| ClientError::of_machine(self.peer.clone(), error))? {
                Some(Event::Acknowledged { reason, .. }) if reason.is_failure() => {
                    self.exchanges.refused += 1;
                    self.exchanges.refusal.get_or_insert(reason);
                }
                Some(Event::Acknowledged { .. }) => self.exchanges.acknowledged += 1,
                // A session that was there before may have subscriptions: what comes is taken and left.
                Some(_) => {}
                None => break,
            }
        }
        let left = input.len();
        self.partial.keep(left);
        Ok(())
    }

    /// Says farewell, and waits a moment until the broker has closed: to close first, with something of the broker's unread, resets
    /// the connection, and the broker may lose the farewell and publish the will.
    pub(crate) fn disconnect(mut self) {
        let mut farewell = Vec::new();
        // After a failure there may be nothing to leave: the connection ends either way.
        if self.client.disconnect(Disconnect::default()).is_ok() {
            self.client.transmit(now(), &mut farewell);
        }
        self.socket.end(&farewell);
        self.socket.linger(FAREWELL_MAX);
    }

    fn timed_out(&self, wanted: &'static str) -> ClientError {
        ClientError::TimedOut { peer: self.peer.clone(), wanted, timeout: self.timeout }
    }

    fn broke(&self, error: SocketError) -> ClientError {
        let peer = self.peer.clone();
        match error {
            SocketError::Ended => ClientError::Closed { peer },
            SocketError::Io(source) if source.kind() == io::ErrorKind::ConnectionReset => {
                ClientError::Closed { peer }
            }
            SocketError::Io(source) => ClientError::Io { peer, source },
            SocketError::Layer(error) => ClientError::of_layer(peer, error),
        }
    }
}

fn now() -> tidegate_message::Instant {
    tidegate_message::Instant::from_nanos(monotonic_nanos())
}

/// Waits until one of the connections has something to read or takes bytes that wait, at most for `timeout`.
///
/// # Errors
/// `Io` of [`ClientError`], if the system cannot wait.
pub(crate) fn wait(outlets: &mut [Outlet], timeout: Duration) -> Result<(), ClientError> {
    let time = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let mut sockets: Vec<_> = outlets
        .iter()
        .map(|outlet| {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, !outlet.is_flushed());
            PollFd::new(outlet.socket.tcp(), wanted)
        })
        .collect();
    match poll(&mut sockets, Some(&time)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
        Ok(_) => {}
        Err(error) => {
            let Some(outlet) = outlets.first() else { return Ok(()) };
            return Err(ClientError::Io { peer: outlet.peer.clone(), source: error.into() });
        }
    }
    let come = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
    let ready: Vec<_> = sockets.iter().map(|socket| socket.revents().intersects(come)).collect();
    for (outlet, is_ready) in outlets.iter_mut().zip(ready) {
        outlet.is_readable = is_ready;
    }
    Ok(())
}

/// Writes what waits and waits for what is under way, as long as anything comes of it. Ends early once `is_over` says so.
///
/// # Errors
/// Any of [`ClientError`] that ends a connection; `TimedOut` after the connections' timeout without any answer.
pub(crate) fn settle(
    outlets: &mut [Outlet],
    is_over: impl Fn() -> bool,
) -> Result<(), ClientError> {
    let under_way = |outlets: &[Outlet]| {
        outlets.iter().map(|outlet| outlet.client.unacknowledged()).sum::<usize>()
    };
    let (mut before, mut since) = (under_way(outlets), monotonic_nanos());
    loop {
        let now = monotonic_nanos();
        outlets.iter_mut().try_for_each(|outlet| outlet.turn(now))?;
        let Some(open) = outlets.iter().find(|outlet| !outlet.is_settled()) else { return Ok(()) };
        let left = under_way(outlets);
        if left != before || !open.is_flushed() {
            (before, since) = (left, now);
        }
        if now - since > open.timeout.as_nanos() as i64 {
            return Err(open.timed_out("an acknowledgement"));
        }
        if is_over() {
            return Ok(());
        }
        wait(outlets, Duration::from_millis(100))?;
    }
}
