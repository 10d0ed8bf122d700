//! A sink's connection to this node's broker: packets and messages in, events out. Messages come as the broker holds them, and are
//! acknowledged many at a time; all else are packets.

use std::{io, num::NonZeroU16, time::Duration};

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use tidegate_broker::{Delivery, Handed, Run, RunMessage, SessionConfig};
use tidegate_message::{ID_PROPERTY, Identity, IdentityKind, Instant, TIME_PROPERTY};
use tidegate_process::clock;
use tidegate_server::{
    deliveries::Deliveries,
    server::{Connector, LocalParts},
};
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, Disconnect, EncodeError, ForwardedProperties, PacketId,
    PublishProperties, QoS, ReasonCode, RetainHandling, SubscribeFilter, Version, Will,
    client::{
        Client, ClientError, Config, Event as ClientEvent, Publication, PublishError,
        ReceiveBuffer, SendBuffer, SubscribeError,
    },
};
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant as Moment, timeout_at},
};

use super::{SinkKind, SinkSettings, record::Record};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Payloads up to this are copied, one behind the other into pieces of memory of [`ROOM_BYTES`].
const COPIED_BYTES_MAX: usize = 4 << 10;
const ROOM_BYTES: usize = 64 << 10;
/// Longest wait for this node's broker to answer CONNECT.
const GREETING: Duration = Duration::from_secs(10);
/// A user property (MQTT 5, 3.3.2.3.7) called [`ID_PROPERTY`], up to the length of its value.
const NAMED: &[u8] = b"\x26\x00\x0btidegate-id";
/// The same of [`PROPERTY`](tidegate_server::bridge::PROPERTY).
const PASSED: &[u8] = b"\x26\x00\x0ftidegate-bridge";

/// A message or an answer of the broker.
#[derive(Debug)]
pub(super) enum Event {
    /// A message.
    Message(Record),
    /// The answer to a message of the sink's own.
    Acknowledged(PacketId, ReasonCode),
}

/// Why the connection ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("the connection to this node's broker broke")]
    Io(#[source] io::Error),
    #[error("this node's broker closed the connection")]
    Closed,
    #[error("this node's broker did not answer within {} s", GREETING.as_secs())]
    Silent,
    #[error("this node's broker refuses the connection: {0}")]
    Refused(ReasonCode),
    #[error("this node's broker ended the connection: {0}")]
    Disconnected(ReasonCode),
    #[error("this node's broker refuses the sink's subscription to {filter:?}: {reason}")]
    Filter { filter: String, reason: ReasonCode },
    #[error("this node's broker broke the protocol")]
    Protocol(#[source] ClientError),
    #[error(
        "this node's broker sent the message to {topic} as a packet; a sink takes messages in memory alone"
    )]
    Message { topic: String },
    #[error("a packet for this node's broker cannot be encoded")]
    Encode(#[from] EncodeError),
    #[error("the sink's own message cannot be published")]
    Publish(#[source] PublishError),
    #[error("the sink's topics cannot be subscribed to")]
    Subscribe(#[from] SubscribeError),
}

impl From<ClientError> for SessionError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused { reason, .. } => Self::Refused(reason),
            ClientError::Disconnected { reason, .. } => Self::Disconnected(reason),
            error => Self::Protocol(error),
        }
    }
}

/// The connection.
#[derive(Debug)]
pub(super) struct Session {
    stream: TcpStream,
    client: Client<()>,
    input: ReceiveBuffer,
    output: SendBuffer,
    deliveries: Deliveries,
    /// Messages that were handed out as one.
    run: Option<Held>,
    /// Room for what is copied of messages.
    room: BytesMut,
    /// Whether the destination passes properties on.
    keeps_properties: bool,
    filters: Vec<String>,
}

/// Where a sink's state is told, retained.
pub(super) fn sys_topic(name: &str, what: &str) -> String {
    format!("$SYS/broker/sink/{name}/{what}")
}

impl Session {
    /// Connects, and asks for the sink's topics; whether they are had is told later.
    pub(super) async fn open(
        settings: &SinkSettings,
        connector: &Connector,
    ) -> Result<Self, SessionError> {
        let name = format!("sink {}", settings.name);
        let identity = Identity::new(IdentityKind::Internal, &name, &settings.client_id);
        let config = SessionConfig { hands_out: true, ..settings.session.clone() };
        let opened = connector.open_local(&name, identity, config, &settings.client_id);
        let LocalParts { socket, deliveries, .. } = opened.map_err(SessionError::Io)?;
        socket.set_nonblocking(true).map_err(SessionError::Io)?;
        let mut session = Self {
            stream: TcpStream::from_std(socket).map_err(SessionError::Io)?,
            client: Client::new(Config::default()),
            input: ReceiveBuffer::default(),
            output: SendBuffer::default(),
            deliveries,
            run: None,
            room: BytesMut::new(),
            keeps_properties: matches!(
                settings.destination.kind(),
                SinkKind::Mqtt | SinkKind::Influx
            ),
            filters: settings.topics.clone(),
        };
        let connect = Connect {
            clean_start: false,
            will: Some(Will {
                topic: sys_topic(&settings.name, "state"),
                payload: b"0".to_vec(),
                qos: QoS::AtMostOnce,
                retain: true,
                delay: 0,
                message_expiry: None,
                forwarded: Vec::new(),
            }),
            properties: ConnectProperties {
                session_expiry: Some(u32::MAX),
                receive_maximum: settings.session.inflight_max.and_then(NonZeroU16::new),
                ..ConnectProperties::default()
            },
            ..Connect::new(Version::V5, settings.client_id.clone())
        };
        session.client.connect(clock::now(), &connect)?;
        session.greet().await?;
        if !settings.unwanted.is_empty() {
            session.client.unsubscribe(settings.unwanted.clone(), ())?;
        }
        let filters = settings.topics.iter().map(|filter| SubscribeFilter {
            filter: filter.clone(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: true,
            retain_as_published: false,
            // Retained messages were published before, and to others.
            retain_handling: RetainHandling::DoNotSend,
        });
        session.client.subscribe(filters.collect(), None, ())?;
        Ok(session)
    }

    /// Waits for CONNACK.
    async fn greet(&mut self) -> Result<(), SessionError> {
        let deadline = Moment::now() + GREETING;
        loop {
            let mut input = self.input.bytes();
            self.client.receive(&mut input)?;
            let left = input.len();
            self.input.keep(left);
            if self.client.is_connected() {
                return Ok(());
            }
            let turned = timeout_at(deadline, self.turn(true)).await;
            turned.map_err(|_| SessionError::Silent)??;
        }
    }

    /// Tells the broker what was [acknowledged](Session::acknowledge), writes what waits and reads once, as soon as one of them goes, or
    /// returns once there are messages; reads nothing unless it is told to.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn turn(&mut self, reads: bool) -> Result<(), SessionError> {
        self.deliveries.settle();
        self.output.fill(&mut self.client, clock::now());
        let interest = match (reads, !self.output.is_empty()) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => return std::future::pending().await,
        };
        let ready = tokio::select! {
            ready = self.stream.ready(interest) => ready.map_err(SessionError::Io)?,
            () = self.deliveries.come(), if reads => return Ok(()),
        };
        if ready.is_writable() && !self.output.is_empty() {
            match self.stream.try_write(self.output.bytes()) {
                Ok(count) => self.output.wrote(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(SessionError::Io(error)),
            }
        }
        if reads && ready.is_readable() {
            let spare = self.input.spare();
            spare.reserve(READ_BYTES);
            match self.stream.try_read_buf(spare) {
                Ok(0) => return Err(SessionError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(SessionError::Io(error)),
            }
        }
        Ok(())
    }

    /// Whether all that was said was written.
    pub(super) fn is_written(&self) -> bool {
        self.output.is_empty() && self.client.output_bytes() == 0
    }

    /// How many more dead letters the broker takes now.
    pub(super) fn room(&self) -> usize {
        self.client.room()
    }

    /// The next event of what was read.
    pub(super) fn next(&mut self) -> Result<Option<Event>, SessionError> {
        if let Some((id, reason)) = self.answer()? {
            return Ok(Some(Event::Acknowledged(id, reason)));
        }
        loop {
            let mut run = self.run.as_mut();
            let next = run.as_mut().and_then(|held| held.run.pop());
            if let (Some(held), Some(message)) = (run, next) {
                return Ok(Some(Event::Message(held.record(message, self.keeps_properties))));
            }
            self.run = None;
            match self.deliveries.poll() {
                Some(Handed::One(delivery)) => {
                    let record = record(&delivery, self.keeps_properties, &mut self.room);
                    return Ok(Some(Event::Message(record)));
                }
                Some(Handed::Run(run)) => self.run = Some(Held { memory: run.memory(), run }),
                None => return Ok(None),
            }
        }
    }

    /// The next answer to a message of the sink's own.
    fn answer(&mut self) -> Result<Option<(PacketId, ReasonCode)>, SessionError> {
        let mut input = self.input.bytes();
        let answer = loop {
            match self.client.receive(&mut input)? {
                Some(ClientEvent::Acknowledged { packet_id, reason, .. }) => {
                    break Some((packet_id, reason));
                }
                Some(ClientEvent::Subscribed { reasons, .. }) => {
                    let failed = reasons.iter().position(|reason| reason.is_failure());
                    if let Some(place) = failed {
                        let filter = self.filters.get(place).cloned().unwrap_or_default();
                        return Err(SessionError::Filter { filter, reason: reasons[place] });
                    }
                }
                Some(ClientEvent::Message(message)) => {
                    let topic = message.topic.into_owned();
                    return Err(SessionError::Message { topic });
                }
                Some(_) => {}
                None => break None,
            }
        };
        let left = input.len();
        self.input.keep(left);
        Ok(answer)
    }

    /// The broker may forget this message; it hears of it at the next [`Session::turn`].
    pub(super) fn acknowledge(&mut self, id: PacketId) {
        self.deliveries.acknowledge(id);
    }

    /// Publishes a dead letter, if there is [`room`](Session::room). None if it is longer than what the broker takes: then nothing
    /// is sent.
    pub(super) fn send_letter(
        &mut self,
        topic: &str,
        payload: &[u8],
        user_properties: Vec<(&str, &str)>,
    ) -> Result<Option<PacketId>, SessionError> {
        let mut forwarded = Vec::new();
        ForwardedProperties { user_properties, ..Default::default() }.encode(&mut forwarded)?;
        let (qos, forwarded) = (QoS::AtLeastOnce, &*forwarded);
        let letter = Publication { topic, payload, qos, forwarded, ..Publication::default() };
        match self.client.publish(&letter, ()) {
            Err(PublishError::TooLarge { .. }) => Ok(None),
            published => published.map_err(SessionError::Publish),
        }
    }

    /// Publishes the sink's state, retained.
    pub(super) fn send_state(&mut self, topic: &str, payload: &[u8]) -> Result<(), SessionError> {
        let state = Publication { topic, payload, retain: true, ..Publication::default() };
        match self.client.publish(&state, ()) {
            Ok(_) | Err(PublishError::TooLarge { .. } | PublishError::Retain) => Ok(()),
            Err(error) => Err(SessionError::Publish(error)),
        }
    }

    /// Leaves, and has the will say that the sink is not there.
    pub(super) fn farewell(&mut self) -> Result<(), SessionError> {
        // Nothing is heard behind what ends it.
        self.deliveries.settle();
        let reason = ReasonCode::DISCONNECT_WITH_WILL;
        Ok(self.client.disconnect(Disconnect::new(reason))?)
    }
}

/// Messages that were handed out as one, and the memory that they lie in.
#[derive(Debug)]
struct Held {
    run: Run,
    memory: Bytes,
}

impl Held {
    fn record(&self, message: RunMessage, keeps_properties: bool) -> Record {
        let RunMessage { topic, forwarded, payload, packet_id } = message;
        let (id, measured) = said(&self.memory[forwarded.clone()]);
        Record {
            topic: text(self.memory.slice(topic)),
            payload: self.memory.slice(payload),
            qos: self.run.qos(),
            time: clock::to_wall(self.run.received()),
            measured,
            id: id.map(|id| text(self.memory.slice_ref(id.as_bytes()))),
            is_repeated: false,
            forwarded: if keeps_properties { self.memory.slice(forwarded) } else { Bytes::new() },
            expires: None,
            packet_id,
        }
    }
}

fn text(bytes: Bytes) -> ByteString {
    ByteString::try_from(bytes).expect("it is the text of a topic or a name")
}

/// A message as a record of the sink's own, so that the broker's memory goes where it came from; of a large one the payload is shared.
fn record(delivery: &Delivery, keeps_properties: bool, room: &mut BytesMut) -> Record {
    let Delivery { message, qos, packet_id, is_repeated } = delivery;
    let payload = if message.payload.len() > COPIED_BYTES_MAX {
        message.payload.to_contiguous()
    } else {
        copied(message.payload.segments().iter().map(|segment| &segment[..]), room)
    };
    let (id, measured) = said(&message.forwarded);
    Record {
        topic: text(copied([message.topic.as_bytes()], room)),
        payload,
        qos: *qos,
        time: clock::to_wall(message.received),
        measured,
        id: id.map(|id| text(copied([id.as_bytes()], room))),
        is_repeated: *is_repeated,
        forwarded: if keeps_properties {
            copied([&message.forwarded[..]], room)
        } else {
            Bytes::new()
        },
        expires: message.expires,
        packet_id: *packet_id,
    }
}

/// A copy of `parts`, behind those before it.
fn copied<'a>(parts: impl IntoIterator<Item = &'a [u8]> + Clone, room: &mut BytesMut) -> Bytes {
    let bytes = parts.clone().into_iter().map(<[u8]>::len).sum();
    if room.capacity() < bytes {
        *room = BytesMut::with_capacity(ROOM_BYTES.max(bytes));
    }
    parts.into_iter().for_each(|part| room.extend_from_slice(part));
    room.split().freeze()
}

/// The value that `bytes` begin with, and what stands behind it.
fn value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*count)))
}

/// The name of a message among its properties, and when it was measured.
fn said(forwarded: &[u8]) -> (Option<&str>, Option<Instant>) {
    // Properties that the broker holds were decoded where they came in. An uplink names most messages and says which node they left, and
    // they have no other property.
    if let Some((text, rest)) = forwarded.strip_prefix(NAMED).and_then(value)
        && (rest.is_empty()
            || rest.strip_prefix(PASSED).and_then(value).is_some_and(|(_, rest)| rest.is_empty()))
    {
        return (std::str::from_utf8(text).ok(), None);
    }
    if forwarded.is_empty() {
        return (None, None);
    }
    let Ok(properties) = PublishProperties::decode(forwarded) else { return (None, None) };
    let last = |wanted: &str| {
        let of = properties.user_properties().filter(|(name, _)| *name == wanted);
        of.last().map(|(_, value)| value)
    };
    let measured = last(TIME_PROPERTY).and_then(|nanos| nanos.parse().ok());
    (last(ID_PROPERTY), measured.map(Instant::from_nanos))
}
