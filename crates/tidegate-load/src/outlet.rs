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
    AckKind, Connack, FixedHeader, Packet, PacketId, PublishHead, QoS, ReasonCode, Version,
    encode_ack,
};

use crate::{
    client::{ClientError, Options, Peer, dial},
    flow::{Exchange, PacketIds},
    socket::{Socket, SocketError},
    url::Endpoint,
};

/// Messages of one write.
pub(crate) const BATCH_BYTES: usize = 64 << 10;
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// How long a broker may take to close after a farewell.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
const SECOND: i64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Outlet {
    socket: Socket,
    peer: Peer,
    version: Version,
    /// None after CONNECT until the broker has answered.
    connack: Option<Box<Connack>>,
    keep_alive_nanos: i64,
    timeout: Duration,
    packet_bytes_max: usize,
    ids: PacketIds,
    /// Bytes pushed since nothing waited.
    batch_bytes: usize,
    /// Since when the socket has taken nothing.
    stuck_since: Option<i64>,
    wrote_at: i64,
    pinged_at: Option<i64>,
    is_readable: bool,
    input: Vec<u8>,
    /// MQTT that is no whole packet yet.
    partial: Vec<u8>,
    under_way: u64,
    exchanges: Exchanges,
}

/// What became of messages of QoS 1 and 2.
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
            version: options.version,
            connack: None,
            keep_alive_nanos: 0,
            timeout: options.timeout,
            packet_bytes_max: options.packet_bytes_max,
            ids: PacketIds::new(inflight.max(1)),
            batch_bytes: 0,
            stuck_since: None,
            wrote_at: monotonic_nanos(),
            pinged_at: None,
            is_readable: false,
            input: vec![0; READ_BYTES],
            partial: Vec::new(),
            under_way: 0,
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
                let greeting = Packet::Connect(Box::new(options.greeting()));
                greeting.encode(self.version, self.socket.out())?;
            }
            self.turn(monotonic_nanos())?;
            if let Some(connack) = self.connack.take() {
                return self.welcomed(options, connack);
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

    fn welcomed(&mut self, options: &Options, connack: Box<Connack>) -> Result<(), ClientError> {
        let properties = &connack.properties;
        if connack.reason.is_failure() {
            return Err(ClientError::Refused {
                peer: self.peer.clone(),
                reason: connack.reason,
                reason_string: properties.reason_string.clone(),
            });
        }
        let seconds = properties.server_keep_alive.unwrap_or(options.keep_alive);
        self.keep_alive_nanos = i64::from(seconds) * SECOND;
        self.ids.limit(properties.receive_maximum.map_or(u16::MAX, u16::from));
        let maximum = properties.maximum_packet_size.map_or(usize::MAX, |bytes| bytes as usize);
        self.packet_bytes_max = self.packet_bytes_max.min(maximum);
        self.connack = Some(connack);
        Ok(())
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
        let mut head = PublishHead {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: None,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            forwarded: &[],
            payload_bytes: payload.len(),
        };
        let packet_bytes = head.packet_bytes(self.version);
        if packet_bytes > self.packet_bytes_max {
            let (peer, maximum) = (self.peer.clone(), self.packet_bytes_max);
            return Err(ClientError::TooLarge { peer, packet_bytes, maximum });
        }
        if qos != QoS::AtMostOnce {
            let Some(id) = self.ids.take(0).and_then(PacketId::new) else { return Ok(false) };
            head.packet_id = Some(id);
            self.under_way += 1;
        }
        let out = self.socket.out();
        head.encode(self.version, out);
        out.extend_from_slice(payload);
        self.batch_bytes += packet_bytes;
        Ok(true)
    }

    /// Whether there is room for a message now.
    pub(crate) fn may_push(&self, qos: QoS) -> bool {
        self.batch_bytes < BATCH_BYTES && (qos == QoS::AtMostOnce || self.ids.any_free())
    }

    /// Whether all that was pushed is the kernel's.
    pub(crate) fn is_flushed(&self) -> bool {
        self.socket.is_flushed()
    }

    /// Whether all that was pushed is written, and of QoS 1 and 2 answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_flushed() && self.under_way == 0
    }

    /// What became of messages of QoS 1 and 2.
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
        self.ping(now)?;
        match self.socket.flush() {
            Ok(true) => {
                self.wrote_at = now;
                self.stuck_since = None;
            }
            Ok(false) => {}
            Err(error) => {
                // Who has gone may have said why.
                self.read()?;
                return Err(self.broke(error));
            }
        }
        if self.socket.is_flushed() {
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

    fn ping(&mut self, now: i64) -> Result<(), ClientError> {
        if self.keep_alive_nanos == 0 {
            return Ok(());
        }
        match self.pinged_at {
            Some(at) if now - at > self.timeout.as_nanos() as i64 => {
                return Err(ClientError::Silent { peer: self.peer.clone() });
            }
            Some(_) => {}
            None if now - self.wrote_at >= self.keep_alive_nanos / 2 && self.is_flushed() => {
                self.pinged_at = Some(now);
                Packet::Pingreq.encode(self.version, self.socket.out())?;
            }
            None => {}
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), ClientError> {
        loop {
            let read = self.socket.read(&mut self.input);
            let Some(bytes) = read.map_err(|error| self.broke(error))? else { return Ok(()) };
            let mut has_ended = false;
            if self.socket.is_plain() {
                self.partial.extend_from_slice(&self.input[..bytes]);
            } else {
                let unwrapped = self.socket.unwrap(&self.input[..bytes], &mut self.partial);
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
        let mut input = std::mem::take(&mut self.partial);
        let wrong = |source| ClientError::Packet { peer: self.peer.clone(), source };
        let maximum = self.packet_bytes_max;
        let mut packets = Vec::new();
        let mut at = 0;
        while let Some(header) = FixedHeader::decode(&input[at..], maximum).map_err(wrong)? {
            let Some(packet) = input[at..].get(..header.packet_bytes()) else { break };
            let body = &packet[header.header_bytes..];
            let decoded = Packet::decode(self.version, header.first, body).map_err(wrong)?;
            packets.push((header.first, decoded));
            at += header.packet_bytes();
        }
        for (first, packet) in packets {
            self.handle(first, packet)?;
        }
        input.drain(..at);
        self.partial = input;
        Ok(())
    }

    fn handle(&mut self, first: u8, packet: Packet<'_>) -> Result<(), ClientError> {
        let version = self.version;
        match packet {
            Packet::Connack(connack) if self.connack.is_none() => self.connack = Some(connack),
            Packet::Puback(ack) => self.complete(ack.packet_id, Exchange::Published, ack.reason),
            Packet::Pubrec(ack) if ack.reason.is_failure() => {
                self.complete(ack.packet_id, Exchange::Published, ack.reason);
            }
            Packet::Pubrec(ack) => {
                if self.ids.release(ack.packet_id.get()) {
                    let (kind, reason) = (AckKind::Pubrel, ReasonCode::SUCCESS);
                    encode_ack(version, kind, ack.packet_id, reason, self.socket.out());
                }
            }
            Packet::Pubcomp(ack) => {
                // Its message is the broker's since PUBREC, whatever it says of the identifier now.
                self.complete(ack.packet_id, Exchange::Released, ReasonCode::SUCCESS);
            }
            // A session that was there before may have subscriptions: what comes is taken and left.
            Packet::Publish(publish) => {
                let kind = match publish.qos {
                    QoS::AtMostOnce => return Ok(()),
                    QoS::AtLeastOnce => AckKind::Puback,
                    QoS::ExactlyOnce => AckKind::Pubrec,
                };
                if let Some(id) = publish.packet_id {
                    encode_ack(version, kind, id, ReasonCode::SUCCESS, self.socket.out());
                }
            }
            Packet::Pubrel(ack) => {
                let (kind, reason) = (AckKind::Pubcomp, ReasonCode::SUCCESS);
                encode_ack(version, kind, ack.packet_id, reason, self.socket.out());
            }
            Packet::Pingresp => self.pinged_at = None,
            Packet::Disconnect(disconnect) => {
                return Err(ClientError::Disconnected {
                    peer: self.peer.clone(),
                    reason: disconnect.reason,
                    reason_string: disconnect.reason_string,
                });
            }
            _ => return Err(ClientError::Unexpected { peer: self.peer.clone(), first }),
        }
        Ok(())
    }

    fn complete(&mut self, id: PacketId, from: Exchange, reason: ReasonCode) {
        if self.ids.complete(id.get(), from).is_none() {
            return; // of a connection before
        }
        self.under_way = self.under_way.saturating_sub(1);
        if reason.is_failure() {
            self.exchanges.refused += 1;
            self.exchanges.refusal.get_or_insert(reason);
        } else {
            self.exchanges.acknowledged += 1;
        }
    }

    /// Says farewell, and waits a moment until the broker has closed: to close first, with something of the broker's unread, resets
    /// the connection, and the broker may lose the farewell and publish the will.
    pub(crate) fn disconnect(mut self) {
        self.socket.end(&[0xE0, 0]);
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
    let under_way = |outlets: &[Outlet]| outlets.iter().map(|outlet| outlet.under_way).sum::<u64>();
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
