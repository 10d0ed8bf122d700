//! Hands a thread's messages to this node's broker and waits for it: messages of QoS 0 in bundles, one acknowledgement
//! for many.
//!
//! Always true: messages that the broker has not taken are bounded, [`BUNDLES_MAX`] of at most [`BUNDLE_MESSAGES`] messages and
//! about [`BUNDLE_BYTES`] (one message may be longer): a caller with more waits for it. Each message is counted once, as published
//! when the
//! broker has taken it or as lost with a connection.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use tidegate_broker::{Bundle, Publication, SessionConfig};
use tidegate_process::clock;
use tidegate_server::{
    bundle::{Bundles, Exchanges},
    server::LocalParts,
};
use tidegate_wire::mqtt::{
    Connect, FixedHeader, Packet, PacketId, QoS, Version,
    client::{Client, ClientError, Config, ReceiveBuffer},
};

use super::{Context, IngestSettings};

/// Bytes and messages after which a bundle is closed.
const BUNDLE_BYTES: usize = 64 << 10;
const BUNDLE_MESSAGES: usize = 2 << 10;
/// Bundles that the broker has not taken.
const BUNDLES_MAX: usize = 16;
const _: () = assert!(BUNDLES_MAX * BUNDLE_MESSAGES < u16::MAX as usize);
/// Longest wait for the broker to let the listener in.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for it to take something, before the thread looks around.
const WAIT: Duration = Duration::from_millis(100);
/// Longest wait for it to take what there is when a listener stops.
const GRACE: Duration = Duration::from_secs(1);
/// Longest packet of the broker's: an acknowledgement, or why it ends.
const PACKET_BYTES_MAX: u32 = 64 << 10;

/// The messages to hand over, and the connection.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    connection: Option<Connection>,
    /// The bundle that grows, and those that were closed before, in order.
    growing: Parcel,
    closed: VecDeque<Parcel>,
    waiting_bytes: usize,
    exchanges: Exchanges,
    /// Bundles that were handed over and not acknowledged, in order.
    under_way: VecDeque<UnderWay>,
    outcome: Outcome,
}

/// The outcome of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Those that the broker has taken, and the bytes of their payloads.
    pub(super) published: u64,
    pub(super) published_bytes: u64,
    /// Those that it may not have: its connection ended.
    pub(super) lost: u64,
}

#[derive(Debug, Default)]
struct Parcel {
    bundle: Bundle,
    payload_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Messages that were ever handed over, up to its last.
    end: u64,
    messages: u64,
    payload_bytes: u64,
}

#[derive(Debug)]
struct Connection {
    /// Does not block, but for [`Connection::wait`].
    socket: TcpStream,
    bundles: Bundles,
    input: ReceiveBuffer,
}

impl HandOver {
    /// One more message, with user properties, encoded. Its topic is one.
    #[inline]
    pub(super) fn push(&mut self, topic: &str, payload: &[u8], retain: bool, user: &[u8]) {
        let publication = Publication {
            topic: topic.as_bytes(),
            payload,
            forwarded: user,
            qos: QoS::AtMostOnce,
            retain,
            message_expiry: None,
            // It gets one when it is handed over.
            id: PacketId::MIN,
        };
        let Parcel { bundle, payload_bytes } = &mut self.growing;
        bundle.push(&publication, |_| {});
        *payload_bytes += payload.len() as u64;
        self.waiting_bytes += topic.len() + user.len() + payload.len();
        if bundle.bytes() >= BUNDLE_BYTES || bundle.len() >= BUNDLE_MESSAGES {
            self.close();
        }
    }

    /// Bytes that wait to be handed over.
    #[inline]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Whether it is time to hand over what there is.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether there is nothing to hand over.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting_bytes == 0
    }

    fn close(&mut self) {
        let growing = &self.growing.bundle;
        let connection = self.connection.as_ref();
        let bundle = connection
            .map_or_else(|| growing.like(), |connection| connection.bundles.empty(growing));
        let parcel = std::mem::replace(&mut self.growing, Parcel { bundle, payload_bytes: 0 });
        self.closed.push_back(parcel);
    }

    /// Hands over what there is; false if the broker has taken nothing for a while, and it is to be tried again. A connection that
    /// has ended is opened again.
    ///
    /// # Errors
    /// There is no connection, and what there was to hand over is lost.
    pub(super) fn flush(
        &mut self,
        context: &Context,
        settings: &IngestSettings,
    ) -> io::Result<bool> {
        if !self.growing.bundle.is_empty() {
            self.close();
        }
        // One that ends at once, and again, is none.
        for _ in 0..2 {
            if self.connection.is_none() {
                match Connection::open(context, settings) {
                    Ok(connection) => self.connection = Some(connection),
                    Err(error) => {
                        self.give_up();
                        return Err(error);
                    }
                }
            }
            match self.try_flush() {
                Ok(is_flushed) => return Ok(is_flushed),
                Err(error) => {
                    tracing::warn!(ingest = %settings.name, %error, "the connection to the broker broke");
                    self.end();
                }
            }
        }
        self.give_up();
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn try_flush(&mut self) -> io::Result<bool> {
        self.read(false)?;
        while let Some(mut parcel) = self.closed.pop_front() {
            if self.under_way.len() >= BUNDLES_MAX {
                let read = self.read(true);
                if read.is_err() || self.under_way.len() >= BUNDLES_MAX {
                    self.closed.push_front(parcel);
                    return read.map(|()| false);
                }
            }
            parcel.bundle.number(|| self.exchanges.begin());
            let (messages, payload_bytes) = (parcel.bundle.len() as u64, parcel.payload_bytes);
            self.waiting_bytes -= parcel.bundle.bytes();
            self.under_way.push_back(UnderWay {
                end: self.exchanges.handed(),
                messages,
                payload_bytes,
            });
            let connection = self.connection.as_ref().expect("it is flushed to");
            connection.bundles.put(parcel.bundle);
        }
        Ok(true)
    }

    /// Takes the acknowledgements that have come, if `waits` after some time for the first.
    fn read(&mut self, waits: bool) -> io::Result<()> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if waits {
            connection.wait()?;
        }
        let read = connection.read(&mut self.exchanges);
        let taken = self.exchanges.acknowledged();
        while let Some(all) = self.under_way.pop_front_if(|all| all.end <= taken) {
            self.outcome.published += all.messages;
            self.outcome.published_bytes += all.payload_bytes;
        }
        read
    }

    /// Looks what the broker has taken, and whether the connection still is.
    pub(super) fn settle(&mut self) {
        if !self.under_way.is_empty() && self.read(false).is_err() {
            self.end();
        }
    }

    /// Hands over what there is and waits until the broker has taken it, for some time; then all else is lost.
    pub(super) fn finish(&mut self) {
        let until = Instant::now() + GRACE;
        if !self.growing.bundle.is_empty() {
            self.close();
        }
        while self.connection.is_some()
            && (!self.is_empty() || !self.under_way.is_empty())
            && Instant::now() < until
        {
            if self.go_on().is_err() {
                break;
            }
        }
        self.end();
        self.give_up();
    }

    /// Hands over what the broker takes, and waits for some time for an answer that is owed.
    fn go_on(&mut self) -> io::Result<()> {
        self.try_flush()?;
        if self.under_way.is_empty() { Ok(()) } else { self.read(true) }
    }

    /// The outcome of messages since the last call.
    pub(super) fn take_outcome(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }

    /// The connection has ended.
    fn end(&mut self) {
        let open = self.exchanges.open();
        let under_way: u64 = self.under_way.drain(..).map(|all| all.messages).sum();
        self.outcome.published += under_way - open;
        self.outcome.lost += open;
        self.exchanges = Exchanges::default();
        self.connection = None;
    }

    /// Messages that could not be handed over are lost.
    fn give_up(&mut self) {
        self.outcome.lost +=
            self.closed.drain(..).map(|parcel| parcel.bundle.len() as u64).sum::<u64>();
        self.waiting_bytes = 0;
    }
}

impl Connection {
    /// As whom the listener is.
    fn open(context: &Context, settings: &IngestSettings) -> io::Result<Self> {
        let client_id = format!("ingest/{}", settings.name);
        let identity = settings.identity.clone().expect("a listener for datagrams has one");
        let session = SessionConfig {
            ends_at_refusal: true,
            acknowledges_through: true,
            ..settings.session.clone()
        };
        let LocalParts { socket, bundles, .. } =
            context.connector.open_local(&client_id, identity, session, &client_id)?;
        socket.set_read_timeout(Some(CONNECT))?;
        let mut client: Client<()> =
            Client::new(Config { packet_bytes_max: PACKET_BYTES_MAX, ..Config::default() });
        let connect = Connect::new(Version::V5, client_id);
        client.connect(clock::now(), &connect).map_err(io::Error::other)?;
        let mut output = Vec::new();
        client.transmit(clock::now(), &mut output);
        (&socket).write_all(&output)?;
        let (mut buffer, mut input) = ([0; 1024], ReceiveBuffer::default());
        while !client.is_connected() {
            match (&socket).read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => input.extend(&buffer[..count]),
            }
            let mut bytes = input.bytes();
            client.receive(&mut bytes).map_err(io::Error::other)?;
            let left = bytes.len();
            input.keep(left);
        }
        socket.set_read_timeout(Some(WAIT))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, bundles, input })
    }

    /// Waits for something to read, for some time.
    fn wait(&mut self) -> io::Result<()> {
        self.socket.set_nonblocking(false)?;
        let came = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(true)?;
        came.map(|_| ()).or_else(none_yet)
    }

    /// Notes the acknowledgements that have come.
    fn read(&mut self, exchanges: &mut Exchanges) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.input.extend(&buffer[..count]);
                    self.take(exchanges)?;
                    if count < buffer.len() {
                        return Ok(());
                    }
                }
                Err(error) => return none_yet(error),
            }
        }
    }

    fn take(&mut self, exchanges: &mut Exchanges) -> io::Result<()> {
        let mut rest = self.input.bytes();
        while let Some(header) =
            FixedHeader::decode(rest, PACKET_BYTES_MAX as usize).map_err(io::Error::other)?
            && let Some((packet, after)) = rest.split_at_checked(header.packet_bytes())
        {
            rest = after;
            let body = &packet[header.header_bytes..];
            match Packet::decode(Version::V5, header.first, body).map_err(io::Error::other)? {
                // One for many, of identifiers that no client gave. The sender of a datagram is told nothing.
                Packet::Puback(ack) => exchanges.end(ack.packet_id).map_err(io::Error::other)?,
                Packet::Disconnect(end) => {
                    let (reason, reason_string) = (end.reason, end.reason_string);
                    let ended = ClientError::Disconnected { reason, reason_string };
                    return Err(io::Error::other(ended));
                }
                _ => {}
            }
        }
        let left = rest.len();
        self.input.keep(left);
        Ok(())
    }
}

/// Whether nothing is wrong but that there is nothing.
fn none_yet(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}
