//! A sink at the bus: messages become records, and its own messages, dead letters and its state, are published.

use std::num::NonZeroU16;

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use tidegate_bus::{
    self as bus, Attached, Attachment, Bus, BusError, Deliveries, Delivery, Publication,
    PublishError, Publisher,
};
use tidegate_message::{ID_PROPERTY, Identity, IdentityKind, Instant, TIME_PROPERTY};
use tidegate_process::clock;
use tidegate_wire::mqtt::{
    EncodeError, ForwardedProperties, PacketId, PublishProperties, QoS, ReasonCode, RetainHandling,
    SubscribeFilter, Will,
};

use super::{DestinationSettings as Settings, SinkSettings, record::Record};

/// Payloads up to this are copied, one behind the other into pieces of memory of [`ROOM_BYTES`].
const COPIED_BYTES_MAX: usize = 4 << 10;
const ROOM_BYTES: usize = 64 << 10;
/// A user property (MQTT 5, 3.3.2.3.7) called [`ID_PROPERTY`], up to the length of its value.
const NAMED: &[u8] = b"\x26\x00\x0btidegate-id";
/// The same of [`PROPERTY`](tidegate_wire::mqtt::path::PROPERTY).
const PASSED: &[u8] = b"\x26\x00\x0ftidegate-bridge";

/// Why a sink is at the bus no longer, or not yet.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("a dead letter for this node's broker cannot be encoded")]
    Encode(#[from] EncodeError),
}

/// The connection.
#[derive(Debug)]
pub(super) struct Session {
    publisher: Publisher,
    deliveries: Deliveries,
    /// Room for what is copied of messages.
    room: BytesMut,
    /// Whether the destination passes properties on.
    keeps_properties: bool,
}

/// The topic of a sink's state, retained.
pub(super) fn sys_topic(name: &str, what: &str) -> String {
    format!("$SYS/broker/sink/{name}/{what}")
}

impl Session {
    /// Attaches the sink, subscribed to its topics.
    pub(super) async fn open(settings: &SinkSettings, bus: &Bus) -> Result<Self, SessionError> {
        let name = format!("sink {}", settings.name);
        let identity = Identity::new(IdentityKind::Internal, &name, &settings.client_id);
        let filters = settings.topics.iter().map(|filter| SubscribeFilter {
            retain_as_published: false,
            // Retained messages were published before, and to others.
            retain_handling: RetainHandling::DoNotSend,
            ..bus::filter_of(filter)
        });
        let attachment = Attachment {
            name,
            filters: filters.collect(),
            ends_others: true,
            session: settings.session.clone(),
            session_expiry: u32::MAX,
            receive_maximum: settings.session.inflight_max.and_then(NonZeroU16::new),
            will: Some(Will {
                topic: sys_topic(&settings.name, "state"),
                payload: b"0".to_vec(),
                qos: QoS::AtMostOnce,
                retain: true,
                delay: 0,
                message_expiry: None,
                forwarded: Vec::new(),
            }),
            ..Attachment::new(identity, &*settings.client_id)
        };
        let Attached { publisher, deliveries, .. } = bus.attach(attachment).await?;
        let keeps_properties =
            matches!(settings.destination, Settings::Mqtt(_) | Settings::Influx(_));
        Ok(Self { publisher, deliveries, room: BytesMut::new(), keeps_properties })
    }

    /// Tells the broker what was [acknowledged](Session::acknowledge) and published, and returns once there are messages, if it `takes`
    /// any, or answers to the sink's own.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(super) async fn turn(&mut self, takes: bool) -> Result<(), SessionError> {
        self.deliveries.settle();
        self.publisher.flush();
        tokio::select! {
            ready = self.deliveries.ready(), if takes => ready?,
            answered = self.publisher.answered() => answered?,
        }
        Ok(())
    }

    /// Whether the broker takes more dead letters now.
    pub(super) fn has_room(&self) -> bool {
        self.publisher.has_room()
    }

    /// The next answer to a message of the sink's own: its number, and what the broker says.
    pub(super) fn next_answer(&mut self) -> Result<Option<(u64, ReasonCode)>, SessionError> {
        let answer = self.publisher.next_answer()?;
        Ok(answer.map(|answer| (answer.numbers.start, answer.reason)))
    }

    /// The next message that there is.
    pub(super) fn next_message(&mut self) -> Result<Option<Record>, SessionError> {
        let (keeps_properties, room) = (self.keeps_properties, &mut self.room);
        let message = self.deliveries.next_message()?;
        Ok(message.map(|message| record(&message, keeps_properties, room)))
    }

    /// The broker may forget this message; it hears of it at the next [`Session::turn`].
    pub(super) fn acknowledge(&mut self, id: PacketId) {
        self.deliveries.acknowledge(id);
    }

    /// Publishes a dead letter, if there [is room](Session::has_room); its number. None if it is longer than what the broker takes: then
    /// nothing is sent.
    pub(super) fn send_letter(
        &mut self,
        topic: &str,
        payload: &[u8],
        user_properties: Vec<(&str, &str)>,
    ) -> Result<Option<u64>, SessionError> {
        let mut forwarded = Vec::new();
        ForwardedProperties { user_properties, ..Default::default() }.encode(&mut forwarded)?;
        let (qos, forwarded) = (QoS::AtLeastOnce, &*forwarded);
        let letter = Publication { topic, payload, qos, forwarded, ..Publication::default() };
        match self.publisher.push(&letter) {
            Err(PublishError::TooLarge { .. }) => Ok(None),
            published => Ok(published.map(Some).map_err(BusError::from)?),
        }
    }

    /// Publishes the sink's state, retained.
    pub(super) fn send_state(&mut self, topic: &str, payload: &[u8]) -> Result<(), SessionError> {
        let state = Publication { topic, payload, retain: true, ..Publication::default() };
        match self.publisher.push(&state) {
            // The next one says the same and more.
            Ok(_) | Err(PublishError::TooLarge { .. } | PublishError::NoRoom { .. }) => Ok(()),
            Err(error) => Err(BusError::from(error).into()),
        }
    }

    /// Leaves, and has the will say that the sink is not there.
    pub(super) fn farewell(&mut self) -> Result<(), SessionError> {
        // Nothing is heard behind what ends it.
        self.deliveries.settle();
        Ok(self.publisher.detach(ReasonCode::DISCONNECT_WITH_WILL)?)
    }
}

fn text(bytes: Bytes) -> ByteString {
    ByteString::try_from(bytes).expect("it is the text of a topic or a name")
}

/// A message as a record of the sink's own.
fn record(message: &bus::Message<'_>, keeps_properties: bool, room: &mut BytesMut) -> Record {
    let (id, measured) = said(message.forwarded());
    let (topic, payload, id, forwarded) = match message {
        bus::Message::One(Delivery { message, .. }) => {
            // Copied, so that the broker's memory goes where it came from; of a large one the payload is shared.
            let payload = if message.payload.len() > COPIED_BYTES_MAX {
                message.payload.to_contiguous()
            } else {
                copied(message.payload.segments().iter().map(|segment| &segment[..]), room)
            };
            let topic = copied([message.topic.as_bytes()], room);
            let id = id.map(|id| copied([id.as_bytes()], room));
            let forwarded = keeps_properties.then(|| copied([&message.forwarded[..]], room));
            (topic, payload, id, forwarded)
        }
        bus::Message::OfRun { memory, message, .. } => {
            let id = id.map(|id| memory.slice_ref(id.as_bytes()));
            let forwarded = keeps_properties.then(|| memory.slice(message.forwarded.clone()));
            let of = |place: &std::ops::Range<usize>| memory.slice(place.clone());
            (of(&message.topic), of(&message.payload), id, forwarded)
        }
    };
    Record {
        topic: text(topic),
        payload,
        qos: message.qos(),
        time: clock::to_wall(message.received()),
        measured,
        id: id.map(text),
        is_repeated: message.is_repeated(),
        forwarded: forwarded.unwrap_or_default(),
        expires: message.expires(),
        packet_id: message.packet_id(),
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
