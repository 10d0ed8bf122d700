//! CoAP over UDP: a shell around the state machine of [`tidegate_wire::coap`].
//!
//! ```text
//!  socket ─▶ Server::handle ─▶ Publish ─▶ Publisher ─▶ PUBACK ─▶ Server::answer ─▶ socket
//!                              Read ────▶ what is retained ──────┘
//!                              Followed ▶ a subscription ─▶ Server::notify
//! ```
//!
//! PUT sets the value of a topic, which is retained; POST brings a message, which is retained where the listener says so.
//!
//! Always true: a request is answered after the broker has taken its message; the observers of a topic here share one subscription
//! there, however many they are.

use std::{
    collections::VecDeque, io, net::SocketAddr, os::fd::AsFd as _, sync::Arc, thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tidegate_identity::auth;
use tidegate_message::{Action, Authorize as _, Instant, Target};
use tidegate_process::clock;
use tidegate_sys::datagram::set_receive_buffer;
use tidegate_wire::{
    coap::{
        Answer, ContentFormat, Event, Link, Method, Publish, Read, Representation, RequestKey,
        Server, ServerConfig,
    },
    mqtt::{ForwardedProperties, ReasonCode},
};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use super::{
    Context, IngestError, IngestSettings, Live, Parts,
    counters::add,
    message::Message,
    publisher::{Publisher, PublisherTask, Unanswered},
    spawn,
};

/// Longest datagram: a block of 1024 bytes with the longest options that are taken fits many times.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Datagrams that are read before what they brought about is sent.
const READS_MAX: usize = 64;
/// When a device that was answered that there is no room may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// When subscriptions are asked for again that found no room on their way.
const FOLLOW_AGAIN: Duration = Duration::from_millis(20);

pub(super) fn start(
    (context, stop, pulse): Parts,
    socket: std::net::UdpSocket,
) -> Result<JoinHandle<()>, IngestError> {
    let settings = context.live().settings.clone();
    let name = settings.name.clone();
    let failed = |source| IngestError::Start { name: name.clone(), source };
    set_receive_buffer(socket.as_fd(), settings.receive_buffer_bytes).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let seed = auth::password::random().map_err(|error| failed(io::Error::other(error)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let server = Server::new(config(&settings), seed);
    spawn(&name, move || {
        let served = runtime.block_on(async {
            let beating = tokio::spawn(pulse.keep());
            let served = serve(context.clone(), socket, server, stop).await;
            beating.abort();
            served
        });
        if let Err(error) = served {
            tracing::error!(ingest = %context.live().settings.name, %error, "the listener ended");
        }
    })
}

fn config(settings: &IngestSettings) -> ServerConfig {
    let usual = ServerConfig::default();
    let formats = [
        ContentFormat::TEXT,
        ContentFormat::OCTET_STREAM,
        ContentFormat::JSON,
        ContentFormat::CBOR,
        ContentFormat::SENML_JSON,
        ContentFormat::SENML_CBOR,
    ];
    let topics = Link {
        path: String::new(),
        resource_type: Some("tidegate.topics".to_owned()),
        interface: Some("core.p".to_owned()),
        content_formats: formats.to_vec(),
        is_observable: true,
    };
    ServerConfig {
        payload_bytes_max: settings.message_bytes_max,
        path_bytes_max: usual.path_bytes_max.min(settings.topic_max.1),
        path_levels_max: usual.path_levels_max.min(settings.topic_max.0),
        retry_after: RETRY_AFTER,
        links: vec![topics],
        ..usual
    }
}

/// The result of a request to the broker.
enum Done {
    Published {
        request: RequestKey,
        is_first: bool,
        bytes: u64,
        reason: Result<ReasonCode, Unanswered>,
    },
    Followed {
        path: String,
        reason: Result<ReasonCode, Unanswered>,
    },
}

struct Coap {
    context: Arc<Context>,
    server: Server,
    publisher: Publisher,
    /// At most as many as there are requests that are not answered, and subscriptions.
    doing: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Topics that are to be followed, or no longer, in order; at most one for each observation.
    following: VecDeque<(bool, String)>,
}

async fn serve(
    context: Arc<Context>,
    socket: std::net::UdpSocket,
    server: Server,
    stop: CancellationToken,
) -> io::Result<()> {
    let socket = UdpSocket::from_std(socket)?;
    let settings = context.live().settings.clone();
    let (task, publisher, mut arrivals) =
        PublisherTask::new(context.bus.clone(), settings.name, settings.identity, settings.session);
    let last = CancellationToken::new();
    let publishing = tokio::spawn(task.run(last.clone()));
    let doing = FuturesUnordered::new();
    let following = VecDeque::new();
    let mut coap = Coap { context, server, publisher, doing, following };
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        coap.events();
        coap.follow();
        while let Some(transmit) = coap.server.poll_transmit() {
            // A datagram without room in the socket is lost as on any network, and sent again where it matters.
            if let Err(error) = socket.try_send_to(transmit.datagram, transmit.peer) {
                tracing::trace!(%error, peer = %transmit.peer, "a datagram did not leave");
            }
        }
        let wake = coap.server.poll_timeout();
        // Each is cancel safe: received datagrams and answers are taken when they are there.
        tokio::select! {
            () = stop.cancelled() => break,
            received = socket.recv_from(&mut buffer) => {
                let mut received = received;
                for _ in 0..READS_MAX {
                    match received {
                        Ok((count, peer)) => coap.receive(peer, &buffer[..count]),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        // An error of an earlier datagram, whose receiver is gone.
                        Err(error) => {
                            tracing::trace!(%error, "a datagram was not received");
                            break;
                        }
                    }
                    received = socket.try_recv_from(&mut buffer);
                }
            }
            Some(done) = coap.doing.next() => coap.done(done),
            Some(message) = arrivals.recv() => coap.arrived(message),
            () = clock::sleep_until(wake), if wake.is_some() => coap.server.handle_timeout(clock::now()),
            () = tokio::time::sleep(FOLLOW_AGAIN), if !coap.following.is_empty() => {}
        }
    }
    drop(coap);
    last.cancel();
    publishing.await.map_err(io::Error::other)
}

impl Coap {
    fn receive(&mut self, peer: SocketAddr, datagram: &[u8]) {
        let counters = &self.context.counters;
        add(&counters.received, 1);
        add(&counters.received_bytes, datagram.len() as u64);
        let datagram = Bytes::copy_from_slice(datagram);
        if let Err(error) = self.server.handle(clock::now(), peer, &datagram) {
            add(&counters.invalid, 1);
            tracing::debug!(%peer, %error, "a datagram is not a message of CoAP");
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Publish(publish) => self.publish(publish),
                Event::Read(read) => {
                    let answer = self.read(&read);
                    self.server.answer(clock::now(), read.request, answer);
                }
                Event::Followed { path } => self.following.push_back((true, path)),
                Event::Unfollowed { path } => self.following.push_back((false, path)),
            }
        }
    }

    fn publish(&mut self, publish: Publish) {
        let (live, now) = (self.context.live(), clock::now());
        let request = publish.request;
        if let Some(answer) = self.refuses(&live, now, &publish) {
            self.server.answer(now, request, answer);
            return;
        }
        live.meter.spend(now, 1, 0);
        let retain = live.settings.retain || publish.method == Method::Put;
        let is_first = retain && self.context.bus.retained_message(&publish.path).is_none();
        let content_type = publish.content_format.and_then(ContentFormat::media_type);
        let bytes = publish.payload.len() as u64;
        let message = Message {
            topic: publish.path.into(),
            payload: publish.payload,
            retain,
            content_type: content_type.map(Into::into),
            passed: Bytes::new(),
            user: Vec::new(),
        };
        let publisher = self.publisher.clone();
        self.doing.push(Box::pin(async move {
            let reasons = publisher.publish(vec![message]).await;
            let reason = reasons.map(|reasons| reasons[0]);
            Done::Published { request, is_first, bytes, reason }
        }));
    }

    /// Why a value is not taken, if it is not.
    fn refuses(&self, live: &Live, now: Instant, publish: &Publish) -> Option<Answer> {
        let (settings, counters) = (&live.settings, &self.context.counters);
        if publish.payload.len() > settings.message_bytes_max {
            add(&counters.too_large, 1);
            let bytes_max = u32::try_from(settings.message_bytes_max).unwrap_or(u32::MAX);
            return Some(Answer::RefuseLarge { bytes_max });
        }
        if settings.check_topic(&publish.path).is_err() {
            add(&counters.invalid, 1);
            return Some(Answer::RefuseBad(
                "the path is longer, or has more levels, than topics have here",
            ));
        }
        if let Some(until) = live.meter.spend(now, 0, 0) {
            add(&counters.limited, 1);
            return Some(Answer::Busy { retry_after: until.since(now) });
        }
        None
    }

    /// The retained message of a topic.
    fn read(&self, read: &Read) -> Answer {
        let settings = &self.context.live().settings;
        let identity = settings.identity.as_ref().expect("a listener for CoAP has one");
        let authenticator = &self.context.access.authenticator;
        let may = |action, target| authenticator.decide(identity, action, target).allow;
        if !may(Action::Subscribe, Target::Filter(&read.path))
            || !may(Action::Receive, Target::Topic(&read.path))
        {
            add(&self.context.counters.denied, 1);
            return Answer::Refuse;
        }
        let now = clock::now();
        match self.context.bus.retained_message(&read.path) {
            Some(message) => {
                let properties = ForwardedProperties::decode(&message.forwarded).ok();
                let content_type = properties.and_then(|properties| properties.content_type);
                Answer::Content(Representation {
                    content_format: content_type.and_then(ContentFormat::of_media_type),
                    payload: message.payload.to_contiguous(),
                    max_age: message.expires.map(|at| at.since(now)),
                })
            }
            // An observer is sent whatever comes, from nothing on.
            None if read.follows => Answer::Content(Representation::default()),
            None => Answer::NotFound,
        }
    }

    /// Hands on which topics are followed, in order, as long as there is room.
    fn follow(&mut self) {
        while let Some((is_followed, path)) = self.following.pop_front() {
            let handed = if is_followed {
                self.publisher.try_subscribe(path.clone()).map(|answered| {
                    self.doing.push(Box::pin(async move {
                        let reasons = answered.await.map_err(|_| Unanswered);
                        Done::Followed { path, reason: reasons.map(|reasons| reasons[0]) }
                    }));
                })
            } else {
                self.publisher.try_unsubscribe(path)
            };
            if let Err(path) = handed {
                self.following.push_front((is_followed, path));
                return;
            }
        }
    }

    fn done(&mut self, done: Done) {
        let (now, counters) = (clock::now(), &self.context.counters);
        match done {
            Done::Published { request, is_first, bytes, reason } => {
                let busy = Answer::Busy { retry_after: RETRY_AFTER };
                let (counter, answer) = match reason {
                    Ok(reason) if reason.0 < 0x80 => {
                        add(&counters.published_bytes, bytes);
                        let answer = if is_first { Answer::Create } else { Answer::Accept };
                        (&counters.published, answer)
                    }
                    Ok(ReasonCode::NOT_AUTHORIZED) => (&counters.denied, Answer::Refuse),
                    Ok(ReasonCode::QUOTA_EXCEEDED) | Err(Unanswered) => (&counters.refused, busy),
                    Ok(_) => (&counters.refused, Answer::Fail),
                };
                add(counter, 1);
                self.server.answer(now, request, answer);
            }
            Done::Followed { path, reason } => {
                // Without an answer the connection broke; it asks again by itself.
                if reason.is_ok_and(|reason| reason.0 >= 0x80) {
                    add(&counters.denied, 1);
                    self.server.end(now, &path);
                }
            }
        }
    }

    /// A topic that is followed has a new value.
    fn arrived(&mut self, message: Message) {
        let content_format = message.content_type.as_deref().and_then(ContentFormat::of_media_type);
        let payload = message.payload;
        let value = Representation { content_format, payload, max_age: None };
        // The retained message comes with the subscription, which is made because a device was just answered with it.
        if message.retain {
            self.server.remind(clock::now(), &message.topic, &value);
        } else {
            self.server.notify(clock::now(), &message.topic, &value);
        }
    }
}
