//! The connection that both halves of a service share: the packets that are left where messages are none, and the end.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate_broker::{Acknowledged, Bundle, Empties, Handed, Message};
use tidegate_process::clock;
use tidegate_wire::mqtt::{
    Ack, Connect, Disconnect, FixedHeader, Packet, ReasonCode, SubscribeFilter, Version,
    client::{Client, ClientError, Config, Event, Limits, ReceiveBuffer, SendBuffer},
};

use crate::{
    BusError, RequestAnswer,
    pipe::{ClientEnd, Closed},
};

/// Longest packet of the broker's: an answer, or why it ends the connection.
pub(crate) const PACKET_BYTES_MAX: u32 = 64 << 10;

/// The type of PUBACK (MQTT 5, 2.1.2).
const PUBACK: u8 = 4;

/// A subscription or the end of one, as the broker answers it.
pub(crate) type Request = u64;

/// A connection to the broker.
#[derive(Debug)]
pub(crate) struct Line {
    end: ClientEnd,
    control: Mutex<Control>,
}

#[derive(Debug)]
struct Control {
    client: Client<Request>,
    input: ReceiveBuffer,
    output: SendBuffer,
    requests: Request,
    /// Whether the broker had the session.
    was_there: Option<bool>,
    /// Answers to messages, for the publisher: at most as many as those.
    acks: VecDeque<Ack>,
    /// Answers to requests: at most as many as those.
    answered: VecDeque<RequestAnswer>,
    ended: Option<BusError>,
}

impl Line {
    /// Begins a connection by `attach`, which is given the bytes of CONNECT and returns how many of them it wrote.
    pub(crate) fn open(
        connect: &Connect,
        attach: impl FnOnce(&[u8]) -> (ClientEnd, usize),
    ) -> Result<Self, BusError> {
        let config = Config { packet_bytes_max: PACKET_BYTES_MAX, ..Config::default() };
        let (mut client, mut output) = (Client::new(config), SendBuffer::default());
        client.connect(clock::now(), connect)?;
        output.fill(&mut client, clock::now());
        let (end, written) = attach(output.bytes());
        output.wrote(written);
        let control = Mutex::new(Control {
            client,
            input: ReceiveBuffer::default(),
            output,
            requests: 0,
            was_there: None,
            acks: VecDeque::new(),
            answered: VecDeque::new(),
            ended: None,
        });
        Ok(Self { end, control })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads packets that came and writes those that wait, which are also answers to what came. Gives `take` the state.
    ///
    /// # Errors
    /// The connection has ended, and `take` had nothing.
    pub(crate) fn turn<T>(
        &self,
        take: impl FnOnce(&mut Packets<'_>) -> Option<T>,
    ) -> Result<Option<T>, BusError> {
        let mut control = self.control();
        if control.ended.is_none()
            && let Err(error) = control.read(&self.end)
        {
            control.ended = Some(error);
        }
        control.write(&self.end);
        let taken = take(&mut Packets(&mut control));
        match &control.ended {
            Some(error) if taken.is_none() => Err(error.clone()),
            _ => Ok(taken),
        }
    }

    /// Waits for CONNACK; whether the broker had the session.
    pub(crate) async fn greet(&self) -> Result<bool, BusError> {
        loop {
            if let Some(was_there) = self.turn(|packets| packets.0.was_there)? {
                return Ok(was_there);
            }
            self.packets().await;
        }
    }

    /// Waits for the answer to a request, whose forerunners were answered.
    pub(crate) async fn answer(&self, request: Request) -> Result<Vec<ReasonCode>, BusError> {
        loop {
            match self.turn(|packets| packets.answered())? {
                Some(answer) if answer.request == request => return Ok(answer.reasons),
                Some(_) => {}
                None => self.packets().await,
            }
        }
    }

    /// Asks for messages.
    pub(crate) fn subscribe(&self, filters: Vec<SubscribeFilter>) -> Result<Request, BusError> {
        let mut control = self.control();
        let request = control.requests;
        control.client.subscribe(filters, None, request)?;
        control.requests += 1;
        control.write(&self.end);
        Ok(request)
    }

    /// Asks for messages no more.
    pub(crate) fn unsubscribe(&self, filters: Vec<String>) -> Result<Request, BusError> {
        let mut control = self.control();
        let request = control.requests;
        control.client.unsubscribe(filters, request)?;
        control.requests += 1;
        control.write(&self.end);
        Ok(request)
    }

    /// How many more requests may be under way.
    pub(crate) fn request_room(&self) -> usize {
        self.control().client.request_room()
    }

    /// The limits that the broker has stated.
    pub(crate) fn limits(&self) -> Limits {
        *self.control().client.limits()
    }

    /// Says farewell.
    pub(crate) fn disconnect(&self, reason: ReasonCode) -> Result<(), BusError> {
        let mut control = self.control();
        control.client.disconnect(Disconnect::new(reason))?;
        control.write(&self.end);
        Ok(())
    }

    /// Waits until there may be packets, or the end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn packets(&self) {
        self.end.packets().await;
    }

    /// Waits until there may be deliveries, or packets, or the end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn deliveries(&self) {
        self.end.deliveries().await;
    }

    pub(crate) fn take(&self, taken: &mut VecDeque<Handed>, used_bytes: usize) -> usize {
        self.end.take(taken, used_bytes)
    }

    pub(crate) fn settle(&self, settled: &mut Vec<Acknowledged>) {
        self.end.settle(settled);
    }

    pub(crate) fn give_back(&self, used: &mut Vec<Arc<Message>>) {
        self.end.give_back(used);
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        self.end.set_away(is_away);
    }

    pub(crate) fn repeat_retained(&self) {
        self.end.repeat_retained();
    }

    pub(crate) fn hand_over(&self, bundle: Bundle) {
        self.end.hand_over(bundle);
    }

    pub(crate) fn empties(&self) -> &Empties {
        self.end.empties()
    }
}

/// The packets that came.
pub(crate) struct Packets<'a>(&'a mut Control);

impl Packets<'_> {
    /// The next answer to a message.
    pub(crate) fn ack(&mut self) -> Option<Ack> {
        self.0.acks.pop_front()
    }

    /// Whether there is one.
    pub(crate) fn has_ack(&self) -> bool {
        !self.0.acks.is_empty()
    }

    /// The next answer to a request.
    pub(crate) fn answered(&mut self) -> Option<RequestAnswer> {
        self.0.answered.pop_front()
    }

    /// The next answer to a request other than that.
    pub(crate) fn answered_but(&mut self, own: Option<Request>) -> Option<RequestAnswer> {
        let at = self.0.answered.iter().position(|answer| Some(answer.request) != own)?;
        self.0.answered.remove(at)
    }

    /// The answer to that request, whatever came before it.
    pub(crate) fn answered_to(&mut self, request: Request) -> Option<Vec<ReasonCode>> {
        let at = self.0.answered.iter().position(|answer| answer.request == request)?;
        self.0.answered.remove(at).map(|answer| answer.reasons)
    }

    /// Whether there is one.
    pub(crate) fn has_answered(&self) -> bool {
        !self.0.answered.is_empty()
    }
}

impl Control {
    fn write(&mut self, end: &ClientEnd) {
        self.output.fill(&mut self.client, clock::now());
        if !self.output.is_empty() {
            let count = end.write(self.output.bytes());
            self.output.wrote(count);
        }
    }

    fn read(&mut self, end: &ClientEnd) -> Result<(), BusError> {
        loop {
            let has_come = end.read(self.input.spare());
            let mut rest = self.input.bytes();
            let taken: Result<(), BusError> = loop {
                let header = FixedHeader::decode(rest, PACKET_BYTES_MAX as usize);
                let header = match header {
                    Ok(Some(header)) => header,
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(ClientError::from(error).into()),
                };
                let Some((packet, after)) = rest.split_at_checked(header.packet_bytes()) else {
                    break Ok(());
                };
                rest = after;
                let body = &packet[header.header_bytes..];
                // Messages have identifiers that the client does not know of.
                if header.packet_type() == PUBACK {
                    match Packet::decode(Version::V5, header.first, body) {
                        Ok(Packet::Puback(ack)) => self.acks.push_back(ack),
                        Ok(_) => unreachable!("the type was looked at"),
                        Err(error) => break Err(ClientError::from(error).into()),
                    }
                    continue;
                }
                match self.client.handle(header.first, body) {
                    Ok(Some(Event::Connected { connack, .. })) => {
                        self.was_there = Some(connack.session_present);
                    }
                    Ok(Some(
                        Event::Subscribed { token: request, reasons }
                        | Event::Unsubscribed { token: request, reasons },
                    )) => self.answered.push_back(RequestAnswer { request, reasons }),
                    // Of messages a session that is handed them gets only latency queries in packets, which the client answers.
                    Ok(_) => {}
                    Err(error) => break Err(error.into()),
                }
            };
            let left = rest.len();
            self.input.keep(left);
            taken?;
            match has_come {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Closed) => return Err(BusError::Closed),
            }
        }
    }
}
