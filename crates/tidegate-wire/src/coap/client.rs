//! The client's end, of one server: for tools and tests.
//!
//! Requests leave one after another (NSTART is 1), each with all its blocks; a confirmable one is sent again until it is acknowledged. A
//! request that follows a path yields its response, then each newer state, whole; those that a newer one overtook are left out.

use std::{collections::VecDeque, net::SocketAddr};

use bytes::Bytes;
use tidegate_message::Instant;

use super::{
    Block, Code, ContentFormat, EncodeError, Header, Message, MessageType, Method, OptionNumber,
    Options, Token, Transmission, Transmit, is_newer,
    outbox::Outbox,
    transmission::{Backoff, Random},
};

mod job;

use job::{Job, RESPONSE_BYTES_MAX, block2};

/// Most requests that wait for those before them.
const REQUESTS_MAX: usize = 1024;

/// The client's end.
#[derive(Debug)]
pub struct Client {
    server: SocketAddr,
    transmission: Transmission,
    random: Random,
    size_exponent: u8,
    next_id: u16,
    next_request: u64,
    waiting: VecDeque<Job>,
    current: Option<(Job, Stage)>,
    followed: Vec<Followed>,
    outbox: Outbox,
    events: VecDeque<ClientEvent>,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// The method.
    pub method: Method,
    /// Levels with `/` between them, and none before the first.
    pub path: String,
    /// The format of the payload.
    pub content_format: Option<ContentFormat>,
    /// The wanted format of the response.
    pub accept: Option<ContentFormat>,
    /// Of POST and PUT.
    pub payload: Bytes,
    /// For GET: whether newer states are wanted as well.
    pub follows: bool,
    /// Whether it is sent again until it is acknowledged.
    pub is_confirmable: bool,
}

impl ClientRequest {
    /// A confirmable request of a path, without a payload.
    pub fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            content_format: None,
            accept: None,
            payload: Bytes::new(),
            follows: false,
            is_confirmable: true,
        }
    }
}

/// Names a request of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestHandle(u64);

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The response, whole.
    Response {
        /// To which request.
        request: RequestHandle,
        /// How it went.
        code: Code,
        /// The format of the payload, if the server names it.
        content_format: Option<ContentFormat>,
        /// The value, or words for people if the code is that of an error.
        payload: Bytes,
        /// Whether notifications of newer states will follow.
        follows: bool,
    },
    /// A newer state of what is followed.
    Notification {
        /// By which request.
        request: RequestHandle,
        /// The format of the payload, if the server names it.
        content_format: Option<ContentFormat>,
        /// The value, whole.
        payload: Bytes,
    },
    /// The observation has ended.
    Ended {
        /// By which request.
        request: RequestHandle,
        /// Why.
        code: Code,
    },
    /// The request has no response, or what was followed cannot be had whole; whether the server did it is not known.
    Failed {
        /// Which request.
        request: RequestHandle,
        /// Why.
        failure: Failure,
    },
}

#[derive(Debug)]
enum Stage {
    /// It is sent again until it is acknowledged.
    Sent(Backoff),
    /// Its response is waited for.
    Acknowledged(Instant),
}

#[derive(Debug)]
struct Followed {
    handle: RequestHandle,
    request: ClientRequest,
    token: Token,
    sequence: u32,
    at: Instant,
}

impl Client {
    /// A client of `server`. `seed` is fresh random bytes, from which identifiers, tokens and waits follow.
    pub fn new(server: SocketAddr, transmission: Transmission, seed: [u8; 32]) -> Self {
        let mut random = Random::new(seed);
        Self {
            server,
            transmission,
            next_id: random.next_u16(),
            random,
            size_exponent: Block::SIZE_EXPONENT_MAX,
            next_request: 0,
            waiting: VecDeque::new(),
            current: None,
            followed: Vec::new(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
        }
    }

    /// Sends and asks for blocks of `16 << size_exponent` bytes; 6, 1024 bytes, unless this is called.
    #[must_use]
    pub fn with_size_exponent(mut self, size_exponent: u8) -> Self {
        self.size_exponent = size_exponent.min(Block::SIZE_EXPONENT_MAX);
        self
    }

    /// Asks, once the requests before are done.
    ///
    /// # Errors
    ///
    /// - `Full` if too many requests wait.
    /// - `Encode` if a level of the path is too long, or there are too many.
    pub fn request(
        &mut self,
        now: Instant,
        request: ClientRequest,
    ) -> Result<RequestHandle, QueueError> {
        if self.waiting.len() >= REQUESTS_MAX {
            return Err(QueueError::Full { requests_max: REQUESTS_MAX });
        }
        let handle = RequestHandle(self.next_request);
        let job = Job::new(handle, request, self.size_exponent);
        job.options()?;
        self.next_request += 1;
        self.waiting.push_back(job);
        self.start(now);
        Ok(handle)
    }

    /// Follows no longer. The server learns it by a reset when it next sends something.
    pub fn unfollow(&mut self, request: RequestHandle) {
        self.followed.retain(|followed| followed.handle != request);
    }

    /// A datagram of the server arrived.
    pub fn handle(&mut self, now: Instant, datagram: &[u8]) {
        let Ok(message) = Message::decode(datagram) else {
            let header = Header::decode(datagram).ok();
            if let Some(header) = header
                && header.message_type == MessageType::Confirmable
            {
                self.send_empty(MessageType::Reset, header.id);
            }
            return;
        };
        let is_current = self.current.as_ref().is_some_and(|(job, _)| job.id == message.id);
        match message.message_type {
            MessageType::Reset if is_current => self.fail(now, Failure::Reset),
            MessageType::Acknowledgement if is_current => self.acknowledged(now, &message),
            MessageType::Reset | MessageType::Acknowledgement => {}
            _ => self.arrived(now, &message),
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some((job, stage)) = &mut self.current else { return };
        match stage {
            Stage::Sent(backoff) if backoff.due <= now => {
                if !backoff.expire(now, &self.transmission) {
                    return self.fail(now, Failure::NotAcknowledged);
                }
                self.outbox.push(self.server, &job.datagram);
            }
            Stage::Acknowledged(until) if *until <= now => self.fail(now, Failure::NoResponse),
            _ => {}
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.current.as_ref()?.1 {
            Stage::Sent(backoff) => Some(backoff.due),
            Stage::Acknowledged(until) => Some(*until),
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.outbox.pop()
    }

    /// The outcomes of requests.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Sends the next request, if none is under way.
    fn start(&mut self, now: Instant) {
        if self.current.is_none()
            && let Some(job) = self.waiting.pop_front()
        {
            self.launch(now, job);
        }
    }

    /// Sends the next message of a job.
    fn launch(&mut self, now: Instant, mut job: Job) {
        self.next_id = self.next_id.wrapping_add(1);
        job.id = self.next_id;
        let token: Vec<u8> = (0..2).flat_map(|_| self.random.next_u16().to_be_bytes()).collect();
        job.token = Token::new(&token).expect("four bytes are a token");
        let options = job.options().expect("the same options were encoded before");
        let part = job.part();
        let message_type = match job.request.is_confirmable {
            true => MessageType::Confirmable,
            false => MessageType::NonConfirmable,
        };
        let message = Message {
            message_type,
            code: job.request.method.code(),
            id: job.id,
            token: job.token,
            options: options.as_options(),
            payload: &job.request.payload[job.sent_bytes..job.sent_bytes + part],
        };
        let mut datagram = Vec::new();
        message.encode(&mut datagram).expect("a block and its options fit");
        self.outbox.push(self.server, &datagram);
        job.datagram = datagram;
        let stage = match job.request.is_confirmable {
            true => Stage::Sent(Backoff::begin(now, &self.transmission, &mut self.random)),
            false => Stage::Acknowledged(now + self.transmission.non_lifetime()),
        };
        self.current = Some((job, stage));
    }

    fn acknowledged(&mut self, now: Instant, message: &Message<'_>) {
        let Some((job, stage)) = &mut self.current else { return };
        if message.code == Code::EMPTY {
            if matches!(stage, Stage::Sent(_)) {
                *stage = Stage::Acknowledged(now + self.transmission.exchange_lifetime());
            }
        } else if message.token == job.token {
            self.responded(now, message);
        }
    }

    /// A message that is no acknowledgement: a response by itself, a notification, or nothing that is known.
    fn arrived(&mut self, now: Instant, message: &Message<'_>) {
        let is_confirmable = message.message_type == MessageType::Confirmable;
        let is_response = message.code.is_response();
        let token = message.token;
        let is_current = self.current.as_ref().is_some_and(|(job, _)| job.token == token);
        let followed = self.followed.iter().position(|followed| followed.token == token);
        if !is_response || (!is_current && followed.is_none()) {
            if is_confirmable || is_response {
                self.send_empty(MessageType::Reset, message.id);
            }
            return;
        }
        if is_confirmable {
            self.send_empty(MessageType::Acknowledgement, message.id);
        }
        match followed {
            Some(at) => self.notified(now, at, message),
            None => self.responded(now, message),
        }
    }

    /// The response to the job's last message.
    fn responded(&mut self, now: Instant, message: &Message<'_>) {
        let Some((mut job, _)) = self.current.take() else { return };
        let options = message.options;
        if message.code == Code::CONTINUE && job.takes_continue(options) {
            return self.launch(now, job);
        }
        let block = block2(options);
        if let Some(sequence) = options.number(OptionNumber::OBSERVE)
            && job.request.follows
            && message.code.is_success()
        {
            job.is_followed = true;
            let Job { handle, token, .. } = job;
            let request = job.request.clone();
            self.followed.push(Followed { handle, request, token, sequence, at: now });
        }
        if !message.code.is_success() && job.goes_on() && job.restart().is_ok() {
            return self.launch(now, job);
        }
        if message.code.is_success()
            && let Some(block) = block.filter(|block| block.more || block.number > 0)
        {
            match job.takes_block(block, options, message.payload) {
                Ok(true) => return self.launch(now, job),
                Ok(false) => {}
                Err(failure) => {
                    self.current = Some((job, Stage::Acknowledged(now)));
                    return self.fail(now, failure);
                }
            }
        } else {
            job.received = message.payload.to_vec();
        }
        self.finish(now, job, message);
    }

    fn finish(&mut self, now: Instant, job: Job, message: &Message<'_>) {
        let request = job.handle;
        let content_format = content_format(message.options);
        let payload = Bytes::from(job.received);
        match job.notification {
            None => self.events.push_back(ClientEvent::Response {
                request,
                code: message.code,
                content_format,
                payload,
                follows: job.is_followed,
            }),
            Some(sequence) => {
                // A newer one may have come in the meantime.
                let is_latest = |followed: &Followed| {
                    followed.handle == request && followed.sequence == sequence
                };
                if message.code.is_success() && self.followed.iter().any(is_latest) {
                    let notification =
                        ClientEvent::Notification { request, content_format, payload };
                    self.events.push_back(notification);
                }
            }
        }
        self.start(now);
    }

    /// Something arrived under the token of what is followed.
    fn notified(&mut self, now: Instant, at: usize, message: &Message<'_>) {
        let followed = &mut self.followed[at];
        let request = followed.handle;
        let Some(sequence) =
            message.options.number(OptionNumber::OBSERVE).filter(|_| message.code.is_success())
        else {
            self.followed.remove(at);
            self.events.push_back(ClientEvent::Ended { request, code: message.code });
            return;
        };
        if !is_newer(followed.sequence, followed.at, sequence, now) {
            return;
        }
        (followed.sequence, followed.at) = (sequence, now);
        let Some(block) = block2(message.options).filter(|block| block.more) else {
            self.events.push_back(ClientEvent::Notification {
                request,
                content_format: content_format(message.options),
                payload: Bytes::copy_from_slice(message.payload),
            });
            return;
        };
        let again = ClientRequest { follows: false, ..followed.request.clone() };
        let mut job = Job::new(request, again, self.size_exponent);
        job.notification = Some(sequence);
        if job.takes_block(block, message.options, message.payload) == Ok(true) {
            // An older one that has not been fetched is not fetched any more.
            self.waiting.retain(|job| job.handle != request || job.notification.is_none());
            self.waiting.push_front(job);
            self.start(now);
        }
    }

    fn fail(&mut self, now: Instant, failure: Failure) {
        let Some((job, _)) = self.current.take() else { return };
        let request = job.handle;
        self.followed.retain(|followed| followed.handle != request);
        self.events.push_back(ClientEvent::Failed { request, failure });
        self.start(now);
    }

    fn send_empty(&mut self, message_type: MessageType, id: u16) {
        let mut datagram = Vec::new();
        Message::empty(message_type, id).encode(&mut datagram).expect("it is four bytes");
        self.outbox.push(self.server, &datagram);
    }
}

fn content_format(options: Options<'_>) -> Option<ContentFormat> {
    let value = options.number(OptionNumber::CONTENT_FORMAT)?;
    u16::try_from(value).ok().map(ContentFormat)
}

/// Why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It was never acknowledged.
    #[error("the server has not acknowledged it, however often it was sent")]
    NotAcknowledged,
    /// Its response never came.
    #[error("the server has not responded")]
    NoResponse,
    /// The server does not take such messages.
    #[error("the server has refused the message")]
    Reset,
    /// The value changed faster than its blocks could be fetched.
    #[error("the value kept changing while its blocks were fetched")]
    KeptChanging,
    /// The response is too large.
    #[error("the response has more than {RESPONSE_BYTES_MAX} bytes")]
    TooLarge,
}

/// Why a request cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// Too many requests wait.
    #[error("{requests_max} requests wait already")]
    Full {
        /// The limit.
        requests_max: usize,
    },
    /// It cannot be put into a message.
    #[error("the request cannot be put into a message")]
    Encode(#[from] EncodeError),
}
