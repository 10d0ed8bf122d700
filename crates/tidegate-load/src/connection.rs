//! One connection of a load: what its bytes mean, and what it answers.

use std::{error::Error as _, sync::atomic::Ordering};

use tidegate_message::Instant;
use tidegate_wire::mqtt::{
    EncodeError, PacketId, QoS, ReasonCode, Version,
    client::{Client, ClientError, Config, Event, SubscribeError},
};

use crate::{
    flow::Publisher,
    greeting,
    layout::{self, Role},
    meter::Meter,
    packet::{self, Header, Malformed, Stamp},
    shared::Shared,
    socket::{Socket, SocketError},
    spec::Spec,
    track::{Arrival, Sequence},
};

/// Bytes of one read, and of the messages of one write.
pub(crate) const READ_BYTES: usize = 256 << 10;
pub(crate) const WRITE_BYTES: usize = 64 << 10;
/// Reads of one connection before others have their turn.
const READS_MAX: usize = 4;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    /// All but the messages themselves, of which only identifiers pass through it.
    pub(crate) client: Client<u8>,
    pub(crate) role: Role,
    pub(crate) stage: Stage,
    pub(crate) work: Work,
    /// Beginning of a packet whose rest has not come.
    partial: Vec<u8>,
    /// A message whose payload has not all come.
    tail: Option<Tail>,
    /// When something was last written.
    pub(crate) wrote_at: i64,
    /// Whether it waits in the worker's list of those that may write.
    pub(crate) queued: bool,
    /// Whether it waits in the worker's timetable.
    pub(crate) timed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// TCP connects.
    Connecting,
    /// TLS and WebSocket open.
    Opening,
    /// CONNECT was sent.
    Greeting,
    /// SUBSCRIBE was sent.
    Subscribing,
    Ready,
    Closed,
}

#[derive(Debug)]
pub(crate) enum Work {
    None,
    Publish(Box<Publisher>),
    Receive(Box<Receiver>),
}

/// Sequences of the messages that a subscriber has received.
#[derive(Debug)]
pub(crate) struct Receiver {
    first_publisher: u32,
    flows: u32,
    sequences: Vec<Sequence>,
}

#[derive(Clone, Copy, Debug)]
struct Tail {
    left: usize,
    first: u8,
    packet_id: u16,
    payload_bytes: usize,
    stamp: Stamp,
}

/// State that the connections of one worker share.
pub(crate) struct Context<'a> {
    pub(crate) shared: &'a Shared<'a>,
    pub(crate) spec: &'a Spec,
    pub(crate) now: i64,
    /// The measured part.
    pub(crate) measured: std::ops::Range<i64>,
    pub(crate) meters: Vec<Meter>,
    /// Messages that are none of this load's.
    pub(crate) foreign: u64,
    /// Flow and number of the messages received last, not yet reported to their publisher.
    credit: (u32, u64),
    /// Publishers whose window has more room.
    pub(crate) woken: Vec<u32>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes that the layers gave.
    plain: Vec<u8>,
    /// Exchanges that wait for an acknowledgement.
    pub(crate) unacknowledged: u64,
}

impl<'a> Context<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>) -> Self {
        Self {
            shared,
            spec: shared.spec,
            now: 0,
            measured: i64::MAX..i64::MAX,
            meters: shared.spec.flows.iter().map(|_| Meter::new()).collect(),
            foreign: 0,
            credit: (0, 0),
            woken: Vec::new(),
            input: vec![0; READ_BYTES],
            output: Vec::with_capacity(2 * WRITE_BYTES),
            plain: Vec::new(),
            unacknowledged: 0,
        }
    }

    #[inline]
    fn received(&mut self, flow: u32) {
        if self.credit.0 != flow {
            self.tell_publisher();
            self.credit.0 = flow;
        }
        self.credit.1 += 1;
    }

    fn tell_publisher(&mut self) {
        let (flow, messages) = std::mem::take(&mut self.credit);
        if messages > 0 && self.shared.windows {
            let publisher = flow >> 8;
            self.shared.credit(publisher, flow & 0xFF).fetch_add(messages, Ordering::Relaxed);
            self.woken.push(publisher);
        }
    }
}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Lost {
    Socket(SocketError),
    Refused { packet: &'static str, reason: ReasonCode },
    Malformed,
    Protocol(ClientError),
    Subscribe(SubscribeError),
    Unsayable(EncodeError),
    TimedOut,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => {
                write!(f, "{error}")?;
                error.source().map_or(Ok(()), |source| write!(f, ": {source}"))
            }
            Self::Refused { packet, reason } => write!(f, "{packet}: {reason}"),
            Self::Malformed => write!(f, "the broker sent bytes that are not MQTT"),
            Self::Protocol(error) => write!(f, "{error}"),
            Self::Subscribe(error) => write!(f, "{error}"),
            Self::Unsayable(error) => write!(f, "{error}"),
            Self::TimedOut => write!(f, "timed out"),
        }
    }
}

impl From<ClientError> for Lost {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { reason, .. } => Self::Refused { packet: "CONNACK", reason },
            ClientError::Disconnected { reason, .. } => {
                Self::Refused { packet: "DISCONNECT", reason }
            }
            ClientError::Packet(_) => Self::Malformed,
            error => Self::Protocol(error),
        }
    }
}

impl From<SubscribeError> for Lost {
    fn from(error: SubscribeError) -> Self {
        Self::Subscribe(error)
    }
}

impl From<EncodeError> for Lost {
    fn from(error: EncodeError) -> Self {
        Self::Unsayable(error)
    }
}

impl From<SocketError> for Lost {
    fn from(error: SocketError) -> Self {
        Self::Socket(error)
    }
}

impl From<Malformed> for Lost {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Connection {
    pub(crate) fn new(socket: Socket, role: Role, work: Work, spec: &Spec) -> Self {
        let inflight_max = spec.inflight.try_into().unwrap_or(PacketId::MIN);
        Self {
            socket,
            client: Client::new(Config { inflight_max, ..Config::default() }),
            role,
            stage: Stage::Connecting,
            work,
            partial: Vec::new(),
            tail: None,
            wrote_at: 0,
            queued: false,
            timed: false,
        }
    }

    /// The socket may be written to: it is connected, or takes bytes again.
    pub(crate) fn writable(&mut self, context: &mut Context<'_>) -> Result<(), Lost> {
        if self.stage == Stage::Connecting {
            self.socket.open(context.shared.endpoint, context.spec.tls.as_ref())?;
            self.stage = Stage::Opening;
            self.greet(context)?;
        }
        self.flush(context.now)
    }

    /// Sends CONNECT once everything below MQTT is open.
    fn greet(&mut self, context: &Context<'_>) -> Result<(), Lost> {
        if self.stage == Stage::Opening && self.socket.is_open() {
            self.stage = Stage::Greeting;
            let now = Instant::from_nanos(context.now);
            self.client.connect(now, &greeting::connect(context.spec, self.role))?;
        }
        Ok(())
    }

    /// Writes what waits, as far as the socket takes it.
    pub(crate) fn flush(&mut self, now: i64) -> Result<(), Lost> {
        self.client.transmit(Instant::from_nanos(now), self.socket.out());
        if self.socket.flush()? {
            self.wrote_at = now;
        }
        Ok(())
    }

    /// Sends what may leave. Returns whether more may leave at once.
    pub(crate) fn publish(&mut self, context: &mut Context<'_>) -> Result<bool, Lost> {
        self.flush(context.now)?;
        let Work::Publish(publisher) = &mut self.work else { return Ok(false) };
        if self.stage != Stage::Ready || !self.socket.is_flushed() {
            return Ok(false);
        }
        let Context { shared, spec, output, meters, unacknowledged, .. } = context;
        output.clear();
        let (number, copies) = (publisher.number, publisher.copies);
        let more = publisher.fill(
            context.now,
            (output, WRITE_BYTES),
            &mut self.client,
            |flow| shared.credit(number, flow as u32).load(Ordering::Relaxed),
            |flow| {
                let meter = &mut meters[flow];
                meter.counts.sent += 1;
                meter.counts.due += u64::from(copies);
                *unacknowledged += u64::from(spec.flows[flow].qos as u8 > 0);
            },
        );
        if self.socket.write(output)? {
            self.wrote_at = context.now;
        }
        Ok(more && self.socket.is_flushed())
    }

    /// Reads what is there. Returns whether there may be more.
    pub(crate) fn readable(&mut self, context: &mut Context<'_>) -> Result<bool, Lost> {
        if matches!(self.role, Role::Stalled(_)) && self.stage == Stage::Ready {
            return Ok(false);
        }
        let mut input = std::mem::take(&mut context.input);
        let result = if self.socket.is_plain() {
            self.read_plain(&mut input, context)
        } else {
            self.read_layered(&mut input, context)
        };
        context.input = input;
        context.tell_publisher();
        let more = result?;
        self.flush(context.now)?;
        Ok(more)
    }

    fn read_plain(&mut self, input: &mut [u8], context: &mut Context<'_>) -> Result<bool, Lost> {
        for _ in 0..READS_MAX {
            let kept = self.partial.len();
            let room = input.len() - kept;
            let Some(bytes) = self.socket.read(&mut input[kept..])? else { return Ok(false) };
            context.now = tidegate_sys::clock::monotonic_nanos();
            input[..kept].copy_from_slice(&self.partial);
            self.take(&input[..kept + bytes], context)?;
            if bytes < room {
                // Less than asked for: the socket is empty, and the next byte makes a new edge.
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read_layered(&mut self, input: &mut [u8], context: &mut Context<'_>) -> Result<bool, Lost> {
        for _ in 0..READS_MAX {
            let Some(bytes) = self.socket.read(input)? else { return Ok(false) };
            context.now = tidegate_sys::clock::monotonic_nanos();
            let mut plain = std::mem::take(&mut context.plain);
            plain.clear();
            plain.extend_from_slice(&self.partial);
            let has_ended = self.socket.unwrap(&input[..bytes], &mut plain)?;
            self.greet(context)?;
            self.take(&plain, context)?;
            context.plain = plain;
            if has_ended {
                return Err(SocketError::Ended.into());
            }
            if bytes < input.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Handles the packets of `input`, and keeps the beginning of one.
    fn take(&mut self, input: &[u8], context: &mut Context<'_>) -> Result<(), Lost> {
        let used = self.consume(input, context)?;
        self.partial.clear();
        self.partial.extend_from_slice(&input[used..]);
        if self.partial.len() > READ_BYTES / 2 { Err(Lost::Malformed) } else { Ok(()) }
    }

    /// Handles the packets of `input` and returns the bytes they took.
    fn consume(&mut self, input: &[u8], context: &mut Context<'_>) -> Result<usize, Lost> {
        let v5 = context.spec.version == Version::V5;
        let mut at = 0;
        if let Some(tail) = &mut self.tail {
            at = tail.left.min(input.len());
            tail.left -= at;
            if tail.left > 0 {
                return Ok(at);
            }
            let Tail { first, packet_id, payload_bytes, stamp, .. } = *tail;
            self.tail = None;
            self.arrive(first, packet_id, payload_bytes, stamp, context);
        }
        while let Some(header) = packet::header(&input[at..])? {
            let body = &input[at + header.header_bytes..];
            if header.first >> 4 == 3 {
                let Some(head) = packet::publish_head(header, v5, body)? else { break };
                let payload_bytes = header.body_bytes - head.payload_at;
                if payload_bytes >= Stamp::BYTES {
                    let Some(stamp) = body[head.payload_at.min(body.len())..].first_chunk() else {
                        break;
                    };
                    let stamp = Stamp::read(stamp);
                    if body.len() < header.body_bytes {
                        self.tail = Some(Tail {
                            left: header.body_bytes - body.len(),
                            first: header.first,
                            packet_id: head.packet_id,
                            payload_bytes,
                            stamp,
                        });
                        return Ok(input.len());
                    }
                    self.arrive(header.first, head.packet_id, payload_bytes, stamp, context);
                } else if body.len() < header.body_bytes {
                    break;
                } else {
                    context.foreign += 1;
                    self.answer(header.first, head.packet_id);
                }
            } else {
                let Some(body) = body.get(..header.body_bytes) else { break };
                self.control(header, body, context)?;
            }
            at += header.header_bytes + header.body_bytes;
        }
        Ok(at)
    }

    /// A message is all here.
    #[inline]
    fn arrive(
        &mut self,
        first: u8,
        packet_id: u16,
        payload_bytes: usize,
        stamp: Stamp,
        context: &mut Context<'_>,
    ) {
        let Work::Receive(receiver) = &mut self.work else {
            context.foreign += 1;
            return self.answer(first, packet_id);
        };
        match receiver.observe(stamp) {
            None => context.foreign += 1,
            Some(arrival) => {
                let meter = &mut context.meters[(stamp.flow & 0xFF) as usize];
                meter.counts.received += 1;
                meter.counts.received_bytes += payload_bytes as u64;
                match arrival {
                    Arrival::Duplicate => meter.counts.duplicated += 1,
                    Arrival::OutOfOrder => meter.counts.out_of_order += 1,
                    Arrival::InOrder => {}
                }
                if context.measured.contains(&stamp.sent_at) {
                    meter.record((context.now - stamp.sent_at).max(0) as u64);
                }
                if arrival != Arrival::Duplicate {
                    context.received(stamp.flow);
                }
            }
        }
        self.answer(first, packet_id);
    }

    #[inline]
    fn answer(&mut self, first: u8, packet_id: u16) {
        let qos = match first & 0x06 {
            0x02 => QoS::AtLeastOnce,
            0x04 => QoS::ExactlyOnce,
            _ => return,
        };
        if let Some(id) = PacketId::new(packet_id) {
            self.client.answer(qos, id, ReasonCode::SUCCESS);
        }
    }

    /// A packet that is no message.
    fn control(
        &mut self,
        header: Header,
        body: &[u8],
        context: &mut Context<'_>,
    ) -> Result<(), Lost> {
        match self.client.handle(header.first, body)? {
            Some(Event::Acknowledged { token, reason, .. }) => {
                context.unacknowledged -= 1;
                if !reason.is_failure() {
                    context.meters[usize::from(token)].counts.acknowledged += 1;
                }
            }
            Some(Event::Connected { .. }) => {
                self.stage = match self.role {
                    Role::Subscriber(_) | Role::Stalled(_) => {
                        let filters = greeting::filters(context.spec, self.role);
                        self.client.subscribe(filters, None, 0)?;
                        Stage::Subscribing
                    }
                    Role::Publisher(_) | Role::Idle(_) => Stage::Ready,
                };
            }
            Some(Event::Subscribed { reasons, .. }) => {
                if let Some(reason) = reasons.into_iter().find(|reason| reason.is_failure()) {
                    return Err(Lost::Refused { packet: "SUBACK", reason });
                }
                self.stage = Stage::Ready;
            }
            // PINGRESP, PUBREC, PUBREL.
            _ => {}
        }
        Ok(())
    }

    /// Says that this connection is alive.
    pub(crate) fn ping(&mut self, now: i64) -> Result<(), Lost> {
        if self.socket.is_flushed() {
            self.socket.out().extend_from_slice(&[0xC0, 0]);
        }
        self.flush(now)
    }

    /// Says farewell, if the socket takes it.
    pub(crate) fn disconnect(&mut self) {
        if self.stage == Stage::Ready && self.socket.is_flushed() {
            self.socket.end(&[0xE0, 0]);
        }
        self.stage = Stage::Closed;
    }
}

impl Receiver {
    pub(crate) fn new(spec: &Spec, subscriber: u32) -> Self {
        let (first_publisher, publishers) = layout::heard(spec, subscriber);
        let flows = spec.flows.len() as u32;
        Self {
            first_publisher,
            flows,
            sequences: vec![Sequence::default(); publishers as usize * flows as usize],
        }
    }

    /// None if the message is none of this load's.
    #[inline]
    fn observe(&mut self, stamp: Stamp) -> Option<Arrival> {
        let publisher = (stamp.flow >> 8).checked_sub(self.first_publisher)?;
        let flow = stamp.flow & 0xFF;
        if flow >= self.flows {
            return None;
        }
        let index = publisher as usize * self.flows as usize + flow as usize;
        Some(self.sequences.get_mut(index)?.observe(stamp.sequence))
    }
}
