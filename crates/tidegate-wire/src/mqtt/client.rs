//! An MQTT client as a state machine: bytes and commands in, events and bytes out; no socket and no clock.
//!
//! ```text
//!  publish · subscribe · acknowledge · disconnect ─┐
//!  connect(now, CONNECT) ──────────────────────────┼─▶ transmit(now) ─▶ bytes ─▶ server
//!  handle_timeout(now): PINGREQ ───────────────────┘      ▲ PUBACK, PUBREC, PUBREL, PUBCOMP
//!  server ─▶ bytes ─▶ receive(&mut input) ─▶ Event …  ────┘
//! ```
//!
//! # Order of calls
//!
//! 1. [`Client::connect`] once the transport is open (TCP, TLS, WebSocket). It may be called again for every new transport.
//! 2. For bytes that arrived: [`Client::receive`] until it returns none. The rest of its input is the beginning of a packet and
//!    comes first in the next input; [`ReceiveBuffer`] does that, and [`SendBuffer`] the same for what a transport does not take.
//! 3. Commands, in any order, once [`Event::Connected`] came.
//! 4. After 1, 2, 3 and 6: [`Client::transmit`] as soon as the transport takes bytes.
//! 5. [`Client::poll_timeout`]: when to call `handle_timeout` at the latest. It changes with each of the other calls.
//! 6. [`Client::handle_timeout`] when that time has come.
//! 7. [`Client::closed`] once the transport has ended, or after an error of `receive` or `handle_timeout`: the connection is of no
//!    more use then, and commands are refused.
//!
//! # Bounds
//!
//! [`Config`] and CONNECT bound what the server may do, CONNACK bounds what this side does ([`Limits`]): unacknowledged messages
//! (Receive Maximum, 3.1.2.11.3 and 3.2.2.3.3), the largest packet (3.1.2.11.4 and 3.2.2.3.6), topic aliases. Before MQTT 5, which
//! has none of these properties, the bounds of [`Config`] hold alone. [`Client::output_bytes`] waits for `transmit`; whoever publishes
//! looks at it.
//!
//! A payload is copied once, into the bytes to transmit; once more if the session outlives its connections, since it may have to be
//! sent again. A message that arrives is borrowed from the input. Extended authentication (AUTH, 4.12) is not spoken.
//!
//! # Always true
//!
//! - A message of QoS 1 or 2 is sent again, with DUP, its identifier and in its order, when the session is resumed
//!   (MQTT-4.4.0-1, MQTT-4.6.0-1); instead of a message that the server has (PUBREC came), its PUBREL is (MQTT-4.3.3-8).
//! - A message of QoS 2 is given out once per exchange, over all connections of a session.
//! - The state of a session goes when the server has none (MQTT-3.2.2-5); [`Event::Connected`] says so.
//! - Never more messages of QoS 1 and 2 are unacknowledged than the server takes, on a resumed connection too (MQTT-3.3.4-9).
//! - No bytes of a server reach a panic.

mod arrivals;
mod buffer;
mod error;
mod exchanges;
mod keep_alive;
mod limits;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, num::NonZeroU16, time::Duration};

use tidegate_message::Instant;

use self::{
    arrivals::Arrivals,
    exchanges::{Exchanges, Resend, Stage},
    keep_alive::KeepAlive,
};
pub use self::{
    buffer::{ReceiveBuffer, SendBuffer},
    error::{ClientError, PublishError, SubscribeError},
    limits::Limits,
};
use super::{
    Ack, AckKind, Connack, Connect, Disconnect, EncodeError, FixedHeader, PACKET_BYTES_MAX, Packet,
    PacketId, Publish, PublishHead, PublishProperties, QoS, ReasonCode, Subscribe, SubscribeFilter,
    Unsubscribe, UserProperties, Version, codec, encode_ack,
};

/// Steps that a client takes on its own, and its bounds where the protocol names none.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Messages of QoS 1 and 2 under way to the server at a time, and requests (SUBSCRIBE, UNSUBSCRIBE) beside them, if the server
    /// takes as many. Default 64.
    pub inflight_max: NonZeroU16,
    /// Largest packet taken, in bytes; Maximum Packet Size of CONNECT if that is less. Default 256 MiB, the protocol's own.
    pub packet_bytes_max: u32,
    /// Whether a message is acknowledged as soon as it is given out, or by [`Client::acknowledge`]. Default true.
    pub acknowledges: bool,
    /// Whether packet identifiers are taken from 65,535 downwards rather than from 1 upwards: for a caller that passes on messages
    /// under the identifiers of another sender, which begins with 1. Default false.
    pub ids_from_the_end: bool,
    /// Longest wait for CONNACK and for PINGRESP. Default 10 s.
    pub answer_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            inflight_max: NonZeroU16::new(64).expect("not zero"),
            packet_bytes_max: PACKET_BYTES_MAX,
            acknowledges: true,
            ids_from_the_end: false,
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// A message to publish.
#[derive(Clone, Copy, Debug, Default)]
pub struct Publication<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// Quality of service.
    pub qos: QoS,
    /// Whether the server keeps it for later subscribers.
    pub retain: bool,
    /// Message Expiry Interval in seconds. Left out before MQTT 5.
    pub message_expiry: Option<u32>,
    /// Topic Alias to use for the topic from now on. Left out before MQTT 5.
    pub topic_alias: Option<NonZeroU16>,
    /// Further properties, encoded and without a length ([`super::ForwardedProperties`]). Left out before MQTT 5.
    pub forwarded: &'a [u8],
}

/// A message that arrived, borrowed from the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Topic name; owned if a topic alias stood for it.
    pub topic: Cow<'a, str>,
    /// Payload.
    pub payload: &'a [u8],
    /// Quality of service it came with.
    pub qos: QoS,
    /// Whether the server had kept it.
    pub retain: bool,
    /// Whether it may have been sent before.
    pub dup: bool,
    /// Identifier for [`Client::acknowledge`]; there with QoS 1 and 2 alone.
    pub packet_id: Option<PacketId>,
    /// MQTT 5's properties.
    pub properties: PublishProperties<'a>,
}

/// An event that received bytes brought. `T` is the token that the caller gave with a message or a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a, T> {
    /// The server let the client in.
    Connected {
        /// Its answer; whether it has the session.
        connack: Box<Connack>,
        /// Whether it should have it: it was there before, and was to outlive the connection.
        was_expected: bool,
    },
    /// A message.
    Message(Message<'a>),
    /// PUBREC: the server has a message of QoS 2 and will not want it again. `Acknowledged` follows.
    Received {
        /// Of the exchange.
        packet_id: PacketId,
        /// Success, or that nothing subscribes.
        reason: ReasonCode,
    },
    /// The exchange of a published message is over.
    Acknowledged {
        /// As given to [`Client::publish`].
        token: T,
        /// Of the exchange; free again.
        packet_id: PacketId,
        /// Of PUBACK or PUBREC: success, that nothing subscribes, or why the server refused it. Also why it could not be sent again.
        reason: ReasonCode,
        /// Text for people that the server added.
        reason_string: Option<String>,
    },
    /// The answer to SUBSCRIBE.
    Subscribed {
        /// As given to [`Client::subscribe`].
        token: T,
        /// For each filter, in order: the quality of service granted, or why there is no subscription.
        reasons: Vec<ReasonCode>,
    },
    /// The answer to UNSUBSCRIBE.
    Unsubscribed {
        /// As given to [`Client::unsubscribe`].
        token: T,
        /// For each filter, in order; empty before MQTT 5.
        reasons: Vec<ReasonCode>,
    },
}

/// A client and its session. See the module for the order of calls.
#[derive(Debug)]
pub struct Client<T> {
    config: Config,
    version: Version,
    state: State,
    output: Vec<u8>,
    limits: Limits,
    packet_bytes_max: usize,
    keep_alive: KeepAlive,
    exchanges: Exchanges<T>,
    arrivals: Arrivals,
    /// Topics by alias, as they were sent to the server.
    aliases: Vec<Option<Box<str>>>,
    /// Exchanges of an earlier connection that the limits of this one rule out.
    unsendable: Vec<(PacketId, ReasonCode)>,
    /// Whether the session outlives the connection.
    is_kept: bool,
    /// Whether the server has had the session.
    is_known: bool,
    asked_for_clean: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no connection, or it has ended.
    Closed,
    /// CONNECT was written.
    Connecting,
    Connected,
    /// DISCONNECT was written: nothing more is, and what arrives is still given out.
    Leaving,
}

impl<T> Client<T> {
    /// A client that was never connected.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            version: Version::V5,
            state: State::Closed,
            output: Vec::new(),
            limits: Limits::default(),
            packet_bytes_max: config.packet_bytes_max as usize,
            keep_alive: KeepAlive::new(config.answer_timeout),
            exchanges: Exchanges::new(config.inflight_max, config.ids_from_the_end),
            arrivals: Arrivals::default(),
            aliases: Vec::new(),
            unsendable: Vec::new(),
            is_kept: false,
            is_known: false,
            asked_for_clean: true,
        }
    }

    // ---- connections

    /// Begins on a new transport with that CONNECT, whose version holds for the connection. The state of the former connection is gone;
    /// a session is kept unless Clean Start says otherwise.
    ///
    /// # Errors
    /// A CONNECT that cannot be encoded; the client is closed then.
    pub fn connect(&mut self, now: Instant, connect: &Connect) -> Result<(), EncodeError> {
        self.closed();
        if connect.clean_start {
            self.forget();
        }
        connect.encode(&mut self.output)?;
        let properties = &connect.properties;
        self.version = connect.version;
        self.asked_for_clean = connect.clean_start;
        self.is_kept = match connect.version {
            Version::V5 => properties.session_expiry.is_some_and(|seconds| seconds > 0),
            Version::V3 | Version::V4 => !connect.clean_start,
        };
        self.packet_bytes_max = self.config.packet_bytes_max as usize;
        if let Some(bytes) = properties.maximum_packet_size.filter(|_| self.is_v5()) {
            self.packet_bytes_max = self.packet_bytes_max.min(bytes as usize);
        }
        self.arrivals.begin(connect);
        self.keep_alive.begin(now, connect.keep_alive);
        self.state = State::Connecting;
        Ok(())
    }

    /// The transport has ended: bytes that were not transmitted and requests that were not answered are dropped, and so are messages
    /// that were not acknowledged if the session does not outlive the connection.
    pub fn closed(&mut self) {
        self.state = State::Closed;
        self.output.clear();
        self.aliases.clear();
        self.unsendable.clear();
        self.keep_alive.end();
        self.arrivals.end();
        if self.is_kept {
            self.exchanges.end();
        } else {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.exchanges.clear();
        self.arrivals.forget();
        self.is_known = false;
    }

    /// Whether the server let the client in, and neither has said goodbye.
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// The version of the last CONNECT.
    pub fn version(&self) -> Version {
        self.version
    }

    fn is_v5(&self) -> bool {
        self.version == Version::V5
    }

    /// Limits that the server stated in CONNACK.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Writes DISCONNECT. Nothing is written after it. Before [`Client::connect`] nothing happens.
    ///
    /// # Errors
    /// A packet that cannot be encoded.
    pub fn disconnect(&mut self, disconnect: Disconnect) -> Result<(), EncodeError> {
        if matches!(self.state, State::Connecting | State::Connected) {
            Packet::Disconnect(disconnect).encode(self.version, &mut self.output)?;
            self.state = State::Leaving;
        }
        Ok(())
    }

    // ---- messages and requests to the server

    /// How many more messages of QoS 1 and 2 the server takes now; 0 without connection.
    #[inline]
    pub fn room(&self) -> usize {
        if self.is_connected() { self.exchanges.room() } else { 0 }
    }

    /// How many more requests, SUBSCRIBE and UNSUBSCRIBE, may be under way; 0 without connection.
    pub fn request_room(&self) -> usize {
        if self.is_connected() { self.exchanges.request_room() } else { 0 }
    }

    /// Messages of QoS 1 and 2 that were not acknowledged to the end, of earlier connections too.
    #[inline]
    pub fn unacknowledged(&self) -> usize {
        self.exchanges.messages()
    }

    /// Tokens of those messages and of requests that are not answered, in no order.
    pub fn tokens(&self) -> impl Iterator<Item = &T> {
        self.exchanges.tokens()
    }

    /// The token of the exchange with that identifier, while it is open.
    pub fn token(&self, packet_id: PacketId) -> Option<&T> {
        self.exchanges.token(packet_id)
    }

    /// Publishes a message. Returns its identifier with QoS 1 and 2, whose [`Event::Acknowledged`] returns `token`; with QoS 0 `token` is
    /// dropped.
    ///
    /// # Errors
    /// [`PublishError`]; nothing was written then.
    pub fn publish(
        &mut self,
        message: &Publication<'_>,
        token: T,
    ) -> Result<Option<PacketId>, PublishError> {
        if !self.is_connected() {
            return Err(PublishError::NotConnected);
        }
        self.limits.check(message)?;
        let mut head = PublishHead {
            dup: false,
            qos: message.qos,
            retain: message.retain,
            topic: message.topic,
            packet_id: None,
            topic_alias: None,
            message_expiry: message.message_expiry,
            subscription_ids: &[],
            forwarded: message.forwarded,
            payload_bytes: message.payload.len(),
        };
        let packet_bytes = head.packet_bytes(self.version);
        if packet_bytes > self.limits.packet_bytes_max {
            let maximum = self.limits.packet_bytes_max;
            return Err(PublishError::TooLarge { packet_bytes, maximum });
        }
        if message.qos != QoS::AtMostOnce {
            let unacknowledged = self.exchanges.messages();
            let begun = self.exchanges.begin(Stage::Published(message.qos), token);
            head.packet_id = Some(begun.ok_or(PublishError::NoRoom { unacknowledged })?);
        }
        let alias = message.topic_alias.filter(|_| self.is_v5());
        if self.is_kept
            && let Some(id) = head.packet_id
        {
            // Without its alias, which ends with the connection.
            let mut packet = Vec::with_capacity(packet_bytes);
            head.encode(self.version, &mut packet);
            packet.extend_from_slice(message.payload);
            self.exchanges.keep(id, packet.into_boxed_slice());
        }
        if let Some(alias) = alias {
            head.topic_alias = Some(alias);
            if self.is_told(alias, message.topic) {
                head.topic = "";
            }
        }
        self.output.reserve(packet_bytes);
        head.encode(self.version, &mut self.output);
        self.output.extend_from_slice(message.payload);
        Ok(head.packet_id)
    }

    /// Whether the server knows that the alias stands for the topic; from now on it does.
    fn is_told(&mut self, alias: NonZeroU16, topic: &str) -> bool {
        let at = usize::from(alias.get());
        if self.aliases.len() <= at {
            self.aliases.resize(at + 1, None);
        }
        let known = &mut self.aliases[at];
        let is_told = known.as_deref() == Some(topic);
        if !is_told {
            *known = Some(topic.into());
        }
        is_told
    }

    /// Opens the exchange of a message of QoS 1 or 2 whose PUBLISH the caller writes itself, after all that [`transmit`](Self::transmit)
    /// gave: for a caller that has the packet encoded already. None if there is no room. Such a message is not sent again, so that the
    /// session must not outlive the connection.
    #[inline]
    pub fn begin(&mut self, qos: QoS, token: T) -> Option<PacketId> {
        debug_assert!(!self.is_kept, "a message that is not kept cannot be sent again");
        if self.is_connected() { self.exchanges.begin(Stage::Published(qos), token) } else { None }
    }

    /// Subscribes; [`Event::Subscribed`] answers.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing was written then.
    pub fn subscribe(
        &mut self,
        filters: Vec<SubscribeFilter>,
        subscription_id: Option<u32>,
        token: T,
    ) -> Result<PacketId, SubscribeError> {
        self.limits.check_filters(&filters, subscription_id)?;
        self.request(Stage::Subscribing, token, |packet_id| {
            let user_properties = UserProperties::new();
            Packet::Subscribe(Subscribe { packet_id, subscription_id, user_properties, filters })
        })
    }

    /// Ends subscriptions; [`Event::Unsubscribed`] answers. Messages that the server had queued still arrive.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing was written then.
    pub fn unsubscribe(
        &mut self,
        filters: Vec<String>,
        token: T,
    ) -> Result<PacketId, SubscribeError> {
        self.request(Stage::Unsubscribing, token, |packet_id| {
            let user_properties = UserProperties::new();
            Packet::Unsubscribe(Unsubscribe { packet_id, user_properties, filters })
        })
    }

    fn request(
        &mut self,
        stage: Stage,
        token: T,
        packet: impl FnOnce(PacketId) -> Packet<'static>,
    ) -> Result<PacketId, SubscribeError> {
        if !self.is_connected() {
            return Err(SubscribeError::NotConnected);
        }
        let maximum = self.config.inflight_max;
        let id = self.exchanges.begin(stage, token).ok_or(SubscribeError::NoRoom { maximum })?;
        if let Err(error) = packet(id).encode(self.version, &mut self.output) {
            self.exchanges.finish(id);
            return Err(error.into());
        }
        Ok(id)
    }

    // ---- messages from the server

    /// Acknowledges a message that was given out, where [`Config::acknowledges`] is false: PUBACK or PUBREC with that reason. Must be
    /// called in the order in which the messages came (MQTT-4.6.0-2, MQTT-4.6.0-3). The rest of an exchange of QoS 2 is answered
    /// without it. False if no message of that identifier waits, as after the connection it came by has ended.
    pub fn acknowledge(&mut self, packet_id: PacketId, reason: ReasonCode) -> bool {
        let Some(qos) = self.arrivals.acknowledge(packet_id, reason) else { return false };
        self.answer(qos, packet_id, reason);
        true
    }

    /// Acknowledges a message whose PUBLISH the caller reads itself and does not hand to [`Client::receive`]. Nothing of it is
    /// remembered: neither that a message of QoS 2 came before, nor how many are open.
    #[inline]
    pub fn answer(&mut self, qos: QoS, packet_id: PacketId, reason: ReasonCode) {
        let kind = match qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => AckKind::Puback,
            QoS::ExactlyOnce => AckKind::Pubrec,
        };
        self.put_ack(kind, packet_id, reason);
    }

    #[inline]
    fn put_ack(&mut self, kind: AckKind, packet_id: PacketId, reason: ReasonCode) {
        if self.is_connected() {
            encode_ack(self.version, kind, packet_id, reason, &mut self.output);
        }
    }

    // ---- bytes and time

    /// Moves the bytes to be sent to the end of `out`; false if there are none. An empty `out` is exchanged for them and not copied to.
    /// The caller sends them at once.
    #[inline]
    pub fn transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        if self.output.is_empty() {
            return false;
        }
        if out.is_empty() {
            std::mem::swap(out, &mut self.output);
        } else {
            out.append(&mut self.output);
        }
        self.keep_alive.sent(now);
        true
    }

    /// Tells that bytes which the caller wrote itself were sent (as after [`Client::begin`]): the server hears of the client.
    #[inline]
    pub fn transmitted(&mut self, now: Instant) {
        self.keep_alive.sent(now);
    }

    /// The wait for PINGRESP begins again, if there is one: for a caller that does not read for now, or whose transport still
    /// has bytes that stand before PINGREQ.
    pub fn postpone(&mut self, now: Instant) {
        self.keep_alive.postpone(now);
    }

    /// Bytes that wait for [`Client::transmit`].
    #[inline]
    pub fn output_bytes(&self) -> usize {
        self.output.len()
    }

    /// When to call [`Client::handle_timeout`] at the latest; none if there is nothing to wait for.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Connecting | State::Connected => self.keep_alive.poll_timeout(),
            State::Closed | State::Leaving => None,
        }
    }

    /// Writes PINGREQ if nothing was sent for half of the keep alive. May be called at any time.
    ///
    /// # Errors
    /// `Silent`: CONNACK or PINGRESP did not come in time.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ClientError> {
        if self.poll_timeout().is_none_or(|at| now < at) {
            return Ok(());
        }
        if let Some(wanted) = self.keep_alive.expire() {
            self.state = State::Closed;
            return Err(ClientError::Silent { wanted, after: self.config.answer_timeout });
        }
        self.ping();
        Ok(())
    }

    /// Writes PINGREQ now, unless the answer to one is awaited.
    pub fn ping(&mut self) {
        if self.is_connected() && self.keep_alive.ping() {
            self.output.extend_from_slice(&[0xc0, 0]);
        }
    }

    /// The next event in `input`, whose packets are taken off its beginning; none if what is left is no whole packet.
    ///
    /// # Errors
    /// [`ClientError`]; the connection is of no more use, and [`Client::closed`] follows.
    #[inline]
    pub fn receive<'i>(
        &mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Event<'i, T>>, ClientError> {
        if let Some(event) = self.next_unsendable() {
            return Ok(Some(event));
        }
        loop {
            let header = FixedHeader::decode(input, self.packet_bytes_max).inspect_err(|_| {
                self.state = State::Closed;
            })?;
            let Some(header) = header else { break };
            let Some((packet, rest)) = input.split_at_checked(header.packet_bytes()) else { break };
            *input = rest;
            let event = self.handle(header.first, &packet[header.header_bytes..])?;
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// The event that one packet brings, for a caller that found its borders itself.
    ///
    /// # Errors
    /// As [`Client::receive`].
    #[inline]
    pub fn handle<'i>(
        &mut self,
        first: u8,
        body: &'i [u8],
    ) -> Result<Option<Event<'i, T>>, ClientError> {
        let handled = self.dispatch(first, body);
        if handled.is_err() {
            self.state = State::Closed;
        }
        handled
    }

    #[inline]
    fn dispatch<'i>(
        &mut self,
        first: u8,
        body: &'i [u8],
    ) -> Result<Option<Event<'i, T>>, ClientError> {
        // Most packets of a connection are PUBLISH or an acknowledgement of two bytes.
        if matches!(self.state, State::Connected | State::Leaving) {
            if first >> 4 == 3 {
                return self.arrived(Publish::decode(self.version, first, body)?);
            }
            if let [high, low] = *body
                && let Some(kind) = AckKind::of_first(first)
                && let Some(id) = PacketId::new(u16::from_be_bytes([high, low]))
            {
                return self.answered(kind, id, ReasonCode::SUCCESS, None);
            }
        }
        self.handle_other(first, body)
    }

    fn handle_other<'i>(
        &mut self,
        first: u8,
        body: &'i [u8],
    ) -> Result<Option<Event<'i, T>>, ClientError> {
        let packet = Packet::decode(self.version, first, body)?;
        match (self.state, packet) {
            (State::Connecting, Packet::Connack(connack)) => self.welcomed(connack).map(Some),
            // The client left before it was let in.
            (State::Leaving, Packet::Connack(_)) => Ok(None),
            (State::Connecting | State::Closed, _) => self.misplaced(first),
            (_, Packet::Puback(ack)) => self.acknowledged(AckKind::Puback, ack),
            (_, Packet::Pubrec(ack)) => self.acknowledged(AckKind::Pubrec, ack),
            (_, Packet::Pubrel(ack)) => self.acknowledged(AckKind::Pubrel, ack),
            (_, Packet::Pubcomp(ack)) => self.acknowledged(AckKind::Pubcomp, ack),
            (_, Packet::Suback(ack)) => {
                let token =
                    self.end("SUBACK", ack.packet_id, |stage| stage == Stage::Subscribing)?;
                Ok(Some(Event::Subscribed { token, reasons: ack.reasons }))
            }
            (_, Packet::Unsuback(ack)) => {
                let id = ack.packet_id;
                let token = self.end("UNSUBACK", id, |stage| stage == Stage::Unsubscribing)?;
                Ok(Some(Event::Unsubscribed { token, reasons: ack.reasons }))
            }
            (_, Packet::Pingresp) => {
                self.keep_alive.answered();
                Ok(None)
            }
            (_, Packet::Disconnect(Disconnect { reason, reason_string, .. })) if self.is_v5() => {
                Err(ClientError::Disconnected { reason, reason_string })
            }
            _ => self.misplaced(first),
        }
    }

    fn misplaced<E>(&self, first: u8) -> Result<E, ClientError> {
        let packet = codec::NAMES[usize::from(first >> 4)];
        let before_connack = self.state == State::Connecting;
        Err(ClientError::Unexpected { packet, first, before_connack })
    }

    fn welcomed<'i>(&mut self, connack: Box<Connack>) -> Result<Event<'i, T>, ClientError> {
        if connack.reason.is_failure() {
            let reason_string = connack.properties.reason_string;
            return Err(ClientError::Refused { reason: connack.reason, reason_string });
        }
        if connack.session_present && self.asked_for_clean {
            return Err(ClientError::SessionPresent);
        }
        self.limits = Limits::of(&connack);
        self.keep_alive.welcome(connack.properties.server_keep_alive);
        self.is_kept &= connack.properties.session_expiry != Some(0);
        let was_expected = self.is_known;
        if !connack.session_present {
            self.forget();
        }
        self.is_known = self.is_kept;
        self.exchanges.resume(self.limits.receive_maximum);
        self.state = State::Connected;
        self.resend();
        Ok(Event::Connected { connack, was_expected })
    }

    /// Sends again what an earlier connection left, as far as the server takes it.
    fn resend(&mut self) {
        while let Some((id, resend)) = self.exchanges.next_resend() {
            match resend {
                Resend::Release => {
                    encode_ack(
                        self.version,
                        AckKind::Pubrel,
                        id,
                        ReasonCode::SUCCESS,
                        &mut self.output,
                    );
                }
                Resend::Message(qos, packet) => {
                    if let Some(reason) = self.limits.rules_out(qos, packet) {
                        self.unsendable.push((id, reason));
                        continue;
                    }
                    const DUP: u8 = 0b1000;
                    let at = self.output.len();
                    self.output.extend_from_slice(packet);
                    self.output[at] |= DUP;
                }
            }
        }
    }

    #[inline]
    fn next_unsendable<'i>(&mut self) -> Option<Event<'i, T>> {
        let (packet_id, reason) = self.unsendable.pop()?;
        let token = self.exchanges.finish(packet_id)?;
        Some(Event::Acknowledged { token, packet_id, reason, reason_string: None })
    }

    fn acknowledged<'i>(
        &mut self,
        kind: AckKind,
        ack: Ack,
    ) -> Result<Option<Event<'i, T>>, ClientError> {
        self.answered(kind, ack.packet_id, ack.reason, ack.reason_string)
    }

    #[inline]
    fn answered<'i>(
        &mut self,
        kind: AckKind,
        packet_id: PacketId,
        reason: ReasonCode,
        reason_string: Option<String>,
    ) -> Result<Option<Event<'i, T>>, ClientError> {
        let unasked = ClientError::Unasked { packet: kind.name(), id: packet_id };
        let stage = self.exchanges.stage(packet_id);
        let reason = match (kind, stage) {
            (AckKind::Pubrel, _) => {
                self.arrivals.release(packet_id);
                self.put_ack(AckKind::Pubcomp, packet_id, ReasonCode::SUCCESS);
                return Ok(None);
            }
            (AckKind::Puback, Some(Stage::Published(QoS::AtLeastOnce))) => reason,
            (AckKind::Pubrec, Some(Stage::Published(QoS::ExactlyOnce))) if reason.is_failure() => {
                reason
            }
            (AckKind::Pubrec, Some(Stage::Published(QoS::ExactlyOnce))) => {
                self.exchanges.release(packet_id, reason);
                self.put_ack(AckKind::Pubrel, packet_id, ReasonCode::SUCCESS);
                return Ok(Some(Event::Received { packet_id, reason }));
            }
            // Sent again by a server that has not seen PUBREL: it is answered again.
            (AckKind::Pubrec, Some(Stage::Released(_))) if !reason.is_failure() => {
                self.put_ack(AckKind::Pubrel, packet_id, ReasonCode::SUCCESS);
                return Ok(None);
            }
            // The message is the server's since PUBREC, whatever PUBCOMP says of the identifier.
            (AckKind::Pubcomp, Some(Stage::Released(received))) => received,
            _ => return Err(unasked),
        };
        let token = self.exchanges.finish(packet_id).ok_or(unasked)?;
        if self.exchanges.is_resending() {
            self.resend();
        }
        Ok(Some(Event::Acknowledged { token, packet_id, reason, reason_string }))
    }

    /// Ends a request.
    fn end(
        &mut self,
        packet: &'static str,
        id: PacketId,
        is_it: impl FnOnce(Stage) -> bool,
    ) -> Result<T, ClientError> {
        let stage = self.exchanges.stage(id);
        let token = if stage.is_some_and(is_it) { self.exchanges.finish(id) } else { None };
        token.ok_or(ClientError::Unasked { packet, id })
    }

    fn arrived<'i>(&mut self, publish: Publish<'i>) -> Result<Option<Event<'i, T>>, ClientError> {
        let topic = self.arrivals.topic(&publish)?;
        let Publish { dup, qos, retain, packet_id, properties, payload, .. } = publish;
        if let Some(id) = packet_id {
            let arrival = self.arrivals.arrive(id, qos, self.config.acknowledges)?;
            if arrival.is_answered {
                self.answer(qos, id, ReasonCode::SUCCESS);
            }
            if !arrival.is_new {
                return Ok(None);
            }
        }
        let message = Message { topic, payload, qos, retain, dup, packet_id, properties };
        Ok(Some(Event::Message(message)))
    }
}
