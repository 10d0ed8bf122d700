//! Messages from the broker to a service, as the broker holds them.

use std::{borrow::Cow, collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_broker::{Acknowledged, Delivery, Handed, Message as HeldMessage, Run, RunMessage};
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_wire::mqtt::{PacketId, QoS, ReasonCode, SubscribeFilter};

use crate::{BusError, line::Line};

/// The messages of one session. Those of QoS 1 come again, also to the next connection of the session, until they are acknowledged.
#[derive(Debug)]
pub struct Deliveries {
    line: Arc<Line>,
    taken: VecDeque<Handed>,
    /// Of all that was taken last.
    taken_bytes: usize,
    /// Where the last message lies.
    last: Last,
    /// Acknowledged here, and not reported to the shard yet.
    settled: Vec<Acknowledged>,
    /// Of QoS 0, used, and not given back.
    used: Vec<Arc<HeldMessage>>,
    lacking: Lacking,
}

/// The broker's answer to [`Deliveries::subscribe`] or [`Deliveries::unsubscribe`]: what was granted has taken effect. Each message
/// that is published from then on, at whatever shard, comes by the filters that were subscribed to, and by none that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAnswer {
    /// The number of the request.
    pub request: u64,
    /// For each filter, in the order of the request, the quality of service that is granted, success, or why it is refused.
    pub reasons: Vec<ReasonCode>,
}

impl RequestAnswer {
    /// The filters that were refused, by their places in the request, each with the reason. Of a subscription:
    /// [`ReasonCode::NOT_AUTHORIZED`] by the rules, [`ReasonCode::QUOTA_EXCEEDED`] for want of room, which may be there later,
    /// [`ReasonCode::TOPIC_FILTER_INVALID`] over the limits of topics. Of the end of one: [`ReasonCode::NO_SUBSCRIPTION_EXISTED`] is
    /// none of them.
    pub fn refused(&self) -> impl Iterator<Item = (usize, ReasonCode)> {
        let reasons = self.reasons.iter().copied().enumerate();
        reasons.filter(|(_, reason)| reason.is_failure())
    }
}

/// Subscriptions that the broker had no room for.
#[derive(Debug, Default)]
struct Lacking {
    filters: Vec<SubscribeFilter>,
    /// The request by which they were asked for again, until it is answered.
    asked: Option<u64>,
    /// When they are asked for next.
    asks_at: Option<Instant>,
}

/// How often subscriptions are asked for that the broker had no room for.
const ASKS_EVERY: Duration = Duration::from_secs(2);

/// Fewer used messages than these are let go of here: to give them back would wake the shard for little.
const GIVEN_BACK_MIN: usize = 64;

/// The memory of a message that was given out.
#[derive(Debug, Default)]
enum Last {
    #[default]
    None,
    One(Delivery),
    OfRun {
        run: Run,
        memory: Bytes,
        message: Option<RunMessage>,
    },
}

/// A message, borrowed from what the broker holds.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// By itself.
    One(&'a Delivery),
    /// One of those that came in one piece of memory.
    OfRun {
        /// All of them.
        run: &'a Run,
        /// The memory.
        memory: &'a Bytes,
        /// Where in it.
        message: &'a RunMessage,
    },
}

impl<'a> Message<'a> {
    /// Topic name.
    pub fn topic(&self) -> &'a str {
        match self {
            Self::One(delivery) => &delivery.message.topic,
            Self::OfRun { memory, message, .. } => {
                std::str::from_utf8(&memory[message.topic.clone()])
                    .expect("the broker has taken it as a topic")
            }
        }
    }

    /// Payload: borrowed, if it lies in one piece.
    pub fn payload(&self) -> Cow<'a, [u8]> {
        match self {
            Self::One(delivery) => match delivery.message.payload.segments() {
                [] => Cow::Borrowed(&[]),
                [whole] => Cow::Borrowed(whole),
                segments => Cow::Owned(segments.concat()),
            },
            Self::OfRun { memory, message, .. } => Cow::Borrowed(&memory[message.payload.clone()]),
        }
    }

    /// Properties that are forwarded unaltered, encoded as in PUBLISH without their length.
    pub fn forwarded(&self) -> &'a [u8] {
        match self {
            Self::One(delivery) => &delivery.message.forwarded,
            Self::OfRun { memory, message, .. } => &memory[message.forwarded.clone()],
        }
    }

    /// The lower one of its quality of service and the subscription's.
    pub fn qos(&self) -> QoS {
        match self {
            Self::One(delivery) => delivery.qos,
            Self::OfRun { run, .. } => run.qos(),
        }
    }

    /// Whether it was retained, or, where the subscription keeps that, published to be.
    pub fn retain(&self) -> bool {
        match self {
            Self::One(delivery) => delivery.retain,
            Self::OfRun { .. } => false,
        }
    }

    /// Whether it may have been delivered before.
    pub fn is_repeated(&self) -> bool {
        match self {
            Self::One(delivery) => delivery.is_repeated,
            Self::OfRun { .. } => false,
        }
    }

    /// When this node received it.
    pub fn received(&self) -> Instant {
        match self {
            Self::One(delivery) => delivery.message.received,
            Self::OfRun { run, .. } => run.received(),
        }
    }

    /// When it loses its worth, if ever.
    pub fn expires(&self) -> Option<Instant> {
        match self {
            Self::One(delivery) => delivery.message.expires,
            Self::OfRun { .. } => None,
        }
    }

    /// The shared subscription that it came by, as `$share/NAME/FILTER`.
    pub fn group(&self) -> Option<&'a str> {
        match self {
            Self::One(delivery) => delivery.group.as_deref(),
            Self::OfRun { .. } => None,
        }
    }

    /// For [`Deliveries::acknowledge`]; none with QoS 0.
    pub fn packet_id(&self) -> Option<PacketId> {
        match self {
            Self::One(delivery) => delivery.packet_id,
            Self::OfRun { message, .. } => message.packet_id,
        }
    }
}

impl Deliveries {
    pub(crate) fn new(line: Arc<Line>, lacking: Vec<SubscribeFilter>) -> Self {
        let (taken, settled) = (VecDeque::new(), Vec::new());
        let lacking = Lacking { filters: lacking, ..Lacking::default() };
        Self { line, taken, taken_bytes: 0, last: Last::None, settled, used: Vec::new(), lacking }
    }

    /// Asks again for subscriptions that the broker had no room for, if it is time; when it is the next time.
    fn ask_again(&mut self) -> Result<Option<Instant>, BusError> {
        let lacking = &mut self.lacking;
        if lacking.filters.is_empty() {
            return Ok(None);
        }
        if let Some(request) = lacking.asked
            && let Some(reasons) = self.line.turn(|packets| packets.answered_to(request))?
        {
            lacking.asked = None;
            let mut reasons = reasons.into_iter();
            // A right that was taken away meanwhile is not asked for for ever.
            lacking.filters.retain(|_| reasons.next() == Some(ReasonCode::QUOTA_EXCEEDED));
            if lacking.filters.is_empty() {
                return Ok(None);
            }
        }
        let now = clock::now();
        let at = *lacking.asks_at.get_or_insert(now + ASKS_EVERY);
        if at > now {
            return Ok(Some(at));
        }
        if lacking.asked.is_none() && self.line.request_room() > 0 {
            lacking.asked = Some(self.line.subscribe(lacking.filters.clone())?);
        }
        let next = now + ASKS_EVERY;
        lacking.asks_at = Some(next);
        Ok(Some(next))
    }

    /// The next message; none for now.
    ///
    /// # Errors
    /// [`BusError`]: the connection has ended. Messages that were not acknowledged come again to the next one, if the session outlives it.
    pub fn next_message(&mut self) -> Result<Option<Message<'_>>, BusError> {
        if !self.step()? {
            return Ok(None);
        }
        Ok(match &self.last {
            Last::One(delivery) => Some(Message::One(delivery)),
            Last::OfRun { run, memory, message } => {
                message.as_ref().map(|message| Message::OfRun { run, memory, message })
            }
            Last::None => None,
        })
    }

    /// Goes to the next message, if there is one.
    fn step(&mut self) -> Result<bool, BusError> {
        loop {
            if let Last::OfRun { run, message, .. } = &mut self.last
                && let Some(next) = run.pop()
            {
                *message = Some(next);
                return Ok(true);
            }
            if let Last::One(Delivery { message, packet_id: None, .. }) =
                std::mem::take(&mut self.last)
            {
                self.used.push(message);
            }
            if self.taken.is_empty() {
                self.line.turn::<()>(|_| None)?;
                self.take();
            }
            match self.taken.pop_front() {
                Some(Handed::One(delivery)) => {
                    self.last = Last::One(delivery);
                    return Ok(true);
                }
                Some(Handed::Run(run)) => {
                    self.last = Last::OfRun { memory: run.memory(), run, message: None };
                }
                None => return Ok(false),
            }
        }
    }

    /// Takes all that waits; messages taken before are used up.
    fn take(&mut self) {
        if self.used.len() >= GIVEN_BACK_MIN {
            self.line.give_back(&mut self.used);
        }
        self.used.clear();
        self.taken_bytes = self.line.take(&mut self.taken, self.taken_bytes);
    }

    /// Tells the broker what was acknowledged, then waits for a message, or for the answer to a request.
    ///
    /// # Errors
    /// As [`Deliveries::next_message`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn ready(&mut self) -> Result<(), BusError> {
        self.settle();
        loop {
            let asks_at = self.ask_again()?;
            let is_answered =
                self.line.turn(|packets| packets.has_answered().then_some(()))?.is_some();
            if is_answered || self.has_more() {
                return Ok(());
            }
            tokio::select! {
                () = self.line.deliveries() => {}
                () = clock::sleep_until(asks_at) => {}
            }
        }
    }

    /// Whether there is a message.
    fn has_more(&mut self) -> bool {
        if let Last::OfRun { run, .. } = &self.last
            && !run.is_empty()
        {
            return true;
        }
        if self.taken.is_empty() {
            self.take();
        }
        !self.taken.is_empty()
    }

    /// Notes that a message is needed no more, by its [`Message::packet_id`]: [`Deliveries::settle`] and [`Deliveries::ready`] tell the
    /// broker. One of QoS 0 needs no acknowledgement.
    pub fn acknowledge(&mut self, id: impl Into<Option<PacketId>>) {
        if let Some(id) = id.into() {
            Acknowledged::push(&mut self.settled, id);
        }
    }

    /// Tells the broker what was acknowledged.
    pub fn settle(&mut self) {
        self.line.settle(&mut self.settled);
    }

    /// Tells the broker whether the service reaches nobody to hand messages to, as where they are for another node: members of shared
    /// subscriptions who do are chosen before it then. From the start of a connection it does.
    pub fn set_away(&self, is_away: bool) {
        self.line.set_away(is_away);
    }

    /// Asks for all retained messages of its subscriptions once more, for another member of the fabric, which may have lost them.
    pub fn repeat_retained(&self) {
        self.line.repeat_retained();
    }

    /// Asks for the messages of more topics, of at most as many filters as fit into a packet of MQTT, while the service is attached;
    /// [`Deliveries::next_answer`] answers, by the number that this returns. A filter that the session has gets the new options. Messages
    /// by the new filters may come before the answer.
    ///
    /// # Errors
    /// [`BusError::Subscribe`]: 64 requests wait for their answers ([`Deliveries::request_room`] says how many more may), or it cannot be
    /// made.
    pub fn subscribe(&mut self, filters: Vec<SubscribeFilter>) -> Result<u64, BusError> {
        self.line.subscribe(filters)
    }

    /// Asks for those of some topics no more; what waits by them still comes, and may come after the answer. Answered as
    /// [`Deliveries::subscribe`].
    ///
    /// # Errors
    /// As [`Deliveries::subscribe`].
    pub fn unsubscribe(&mut self, filters: Vec<String>) -> Result<u64, BusError> {
        self.line.unsubscribe(filters)
    }

    /// How many more requests may be under way.
    pub fn request_room(&self) -> usize {
        self.line.request_room()
    }

    /// Waits for an answer to a request, or the end of the connection, whatever messages there are.
    ///
    /// # Errors
    /// As [`Deliveries::next_message`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn answered(&self) -> Result<(), BusError> {
        while self.line.turn(|packets| packets.has_answered().then_some(()))?.is_none() {
            self.line.packets().await;
        }
        Ok(())
    }

    /// The next answer to a request; none for now. [`Deliveries::ready`] and [`Deliveries::answered`] wait for it.
    ///
    /// # Errors
    /// As [`Deliveries::next_message`].
    pub fn next_answer(&mut self) -> Result<Option<RequestAnswer>, BusError> {
        self.ask_again()?;
        // The answer to what was asked for again is looked at there.
        let own = self.lacking.asked;
        self.line.turn(|packets| packets.answered_but(own))
    }
}
