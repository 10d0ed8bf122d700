//! A client of this node's broker in the process, for tasks: what it reads and writes are packets of MQTT 5.
//!
//! The loopback connection holds little ([`LOCAL_BYTES`](super::server::LOCAL_BYTES)), so what waits, waits in the broker, under the
//! session's budget and overflow policy; whoever reads late makes it wait there.

use std::{io, num::NonZeroU16, time::Duration};

use tidegate_broker::{Bundle, SessionConfig};
use tidegate_message::Identity;
use tidegate_wire::mqtt::{
    AckKind, Connack, Connect, ConnectProperties, DecodeError, EncodeError, FixedHeader, Packet,
    PacketId, Publish, PublishHead, QoS, ReasonCode, RetainHandling, Subscribe, SubscribeFilter,
    Unsubscribe, Version, encode_ack,
};
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{self, Instant},
};

use super::{
    bundle::Bundles,
    server::{Connector, LocalParts},
};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// Longest wait for CONNACK and SUBACK.
const PATIENCE: Duration = Duration::from_secs(10);
const SUBSCRIBE_ID: PacketId = PacketId::MAX;

/// Identity and session of a local client.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// For logs.
    pub name: String,
    /// As whom rules judge it.
    pub identity: Identity,
    /// Its session goes by it.
    pub client_id: String,
    /// How long the session outlives the connection, in seconds; 0 ends it, `u32::MAX` keeps it for good.
    pub session_expiry: u32,
    /// QoS 1 messages that may be under way to it.
    pub receive_maximum: NonZeroU16,
    /// Longest packet that it takes; longer ones are not sent to it.
    pub packet_bytes_max: u32,
    /// Bounds of its queue.
    pub session: SessionConfig,
    /// Filters that it subscribes to, with QoS 1 at most, without messages that it publishes itself; retained messages come once.
    pub filters: Vec<String>,
}

/// A connection to this node's broker.
#[derive(Debug)]
pub struct Local {
    socket: TcpStream,
    bundles: Bundles,
    input: Vec<u8>,
    /// Bytes of `input` that were used up.
    read: usize,
    packet_bytes_max: usize,
    output: Vec<u8>,
    /// Bytes of `output` that were written.
    written: usize,
}

/// Why a local connection ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The system's.
    #[error("the connection to this node's broker broke")]
    Io(#[from] io::Error),
    /// It said no.
    #[error("this node's broker refuses the connection: {0}")]
    Refused(ReasonCode),
    /// It does not let it subscribe.
    #[error("this node's broker refuses the subscription to {filter}: {reason}")]
    Subscription {
        /// To which filter.
        filter: String,
        /// Why.
        reason: ReasonCode,
    },
    /// It ended it.
    #[error("this node's broker ended the connection: {0}")]
    Disconnected(ReasonCode),
    /// It sent a packet other than the expected one.
    #[error("this node's broker sent {0}")]
    Unexpected(&'static str),
    /// It sent bytes that are not a packet.
    #[error("this node's broker sent bytes that are not an MQTT packet")]
    Packet(#[from] DecodeError),
    /// A packet of ours cannot be.
    #[error("a packet for this node's broker cannot be encoded")]
    Encode(#[from] EncodeError),
    /// It does not answer.
    #[error("this node's broker did not answer in {} s", PATIENCE.as_secs())]
    Silent,
}

impl Local {
    /// Connects and subscribes. Whether the session was there before.
    ///
    /// # Errors
    /// [`LocalError`].
    pub async fn connect(
        connector: &Connector,
        options: LocalOptions,
    ) -> Result<(Self, bool), LocalError> {
        let LocalOptions { name, identity, session, client_id, .. } = options;
        let LocalParts { socket, bundles, .. } =
            connector.open_local(&name, identity, session, &client_id)?;
        socket.set_nonblocking(true)?;
        let mut local = Self {
            socket: TcpStream::from_std(socket)?,
            bundles,
            input: Vec::new(),
            read: 0,
            packet_bytes_max: options.packet_bytes_max as usize,
            output: Vec::new(),
            written: 0,
        };
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: options.session_expiry == 0,
            keep_alive: 0,
            client_id,
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties {
                session_expiry: Some(options.session_expiry),
                receive_maximum: Some(options.receive_maximum),
                maximum_packet_size: Some(options.packet_bytes_max),
                ..ConnectProperties::default()
            },
        };
        local.send(&Packet::Connect(Box::new(connect)))?;
        let connack = local.answer(|packet| match packet {
            Packet::Connack(connack) => Ok(*connack),
            _ => Err(LocalError::Unexpected("a packet other than CONNACK")),
        });
        let Connack { session_present, reason, .. } = connack.await?;
        if reason.is_failure() {
            return Err(LocalError::Refused(reason));
        }
        local.subscribe(options.filters).await?;
        Ok((local, session_present))
    }

    async fn subscribe(&mut self, filters: Vec<String>) -> Result<(), LocalError> {
        if filters.is_empty() {
            return Ok(());
        }
        let asked = filters.iter().map(|filter| SubscribeFilter {
            filter: filter.clone(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::SendIfNew,
        });
        let subscribe = Subscribe {
            packet_id: SUBSCRIBE_ID,
            subscription_id: None,
            user_properties: Vec::new(),
            filters: asked.collect(),
        };
        self.send(&Packet::Subscribe(subscribe))?;
        // Messages of the session that was may come before it: they wait in `input`.
        let deadline = Instant::now() + PATIENCE;
        let mut passed = 0;
        let reasons = loop {
            // Reading takes away what was used up.
            let at = self.read + passed;
            if let Some(header) = FixedHeader::decode(&self.input[at..], self.packet_bytes_max)?
                && self.input.len() >= at + header.packet_bytes()
            {
                let whole = at..at + header.packet_bytes();
                let body = &self.input[at + header.header_bytes..whole.end];
                match Packet::decode(Version::V5, header.first, body)? {
                    Packet::Suback(suback) => {
                        let reasons = suback.reasons;
                        self.input.drain(whole);
                        break reasons;
                    }
                    Packet::Publish(_) => passed += header.packet_bytes(),
                    _ => return Err(LocalError::Unexpected("a packet other than SUBACK")),
                }
                continue;
            }
            self.wait(deadline).await?;
        };
        let refused = filters.into_iter().zip(reasons).find(|(_, reason)| reason.is_failure());
        match refused {
            Some((filter, reason)) => Err(LocalError::Subscription { filter, reason }),
            None => Ok(()),
        }
    }

    /// The next packet, as `take` understands it.
    async fn answer<T>(
        &mut self,
        take: impl FnOnce(Packet<'_>) -> Result<T, LocalError>,
    ) -> Result<T, LocalError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(packet) = self.packet()? {
                return take(packet);
            }
            self.wait(deadline).await?;
        }
    }

    async fn wait(&mut self, deadline: Instant) -> Result<(), LocalError> {
        time::timeout_at(deadline, self.turn(true)).await.map_err(|_| LocalError::Silent)?
    }

    /// Waits until something was written of what waits to be, or, if `reads`, something was read.
    ///
    /// # Errors
    /// [`LocalError::Io`].
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn turn(&mut self, reads: bool) -> Result<(), LocalError> {
        let interest = match (reads, self.is_flushed()) {
            (true, true) => Interest::READABLE,
            (true, false) => Interest::READABLE | Interest::WRITABLE,
            (false, false) => Interest::WRITABLE,
            (false, true) => return std::future::pending().await,
        };
        loop {
            let ready = self.socket.ready(interest).await?;
            let mut is_done = false;
            if ready.is_writable() {
                is_done |= self.write()?;
            }
            if reads && ready.is_readable() {
                is_done |= self.read()?;
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// Writes what can be written now; whether anything was.
    fn write(&mut self) -> io::Result<bool> {
        let before = self.written;
        while self.written < self.output.len() {
            match self.socket.try_write(&self.output[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let is_done = self.written > before;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
        Ok(is_done)
    }

    /// Reads what can be read at once; whether anything was.
    fn read(&mut self) -> io::Result<bool> {
        self.input.drain(..self.read);
        self.read = 0;
        if self.input.is_empty() {
            // Memory that one long packet needed is not kept for ever.
            self.input.shrink_to(4 * READ_BYTES);
        }
        self.input.reserve(READ_BYTES);
        match self.socket.try_read_buf(&mut self.input) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the next whole packet of those that were read; none until more is.
    ///
    /// # Errors
    /// [`LocalError::Packet`]; [`LocalError::Disconnected`].
    pub fn packet(&mut self) -> Result<Option<Packet<'_>>, LocalError> {
        let left = &self.input[self.read..];
        let Some(header) = FixedHeader::decode(left, self.packet_bytes_max)? else {
            return Ok(None);
        };
        if left.len() < header.packet_bytes() {
            return Ok(None);
        }
        let body = self.read + header.header_bytes..self.read + header.packet_bytes();
        self.read = body.end;
        match Packet::decode(Version::V5, header.first, &self.input[body])? {
            Packet::Disconnect(disconnect) => Err(LocalError::Disconnected(disconnect.reason)),
            packet => Ok(Some(packet)),
        }
    }

    /// Takes the next message; none until more is read. Packets that are neither PUBLISH nor of use to a subscriber are passed over.
    ///
    /// # Errors
    /// As [`Local::packet`].
    pub fn message(&mut self) -> Result<Option<Publish<'_>>, LocalError> {
        // Asked twice, since a borrow that is returned from within a loop lasts for all of it.
        while let Some(header) =
            FixedHeader::decode(&self.input[self.read..], self.packet_bytes_max)?
        {
            const PUBLISH: u8 = 3;
            if header.packet_type() == PUBLISH {
                return match self.packet()? {
                    Some(Packet::Publish(publish)) => Ok(Some(publish)),
                    _ => Ok(None),
                };
            }
            if self.packet()?.is_none() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Queues a packet to be written.
    ///
    /// # Errors
    /// [`LocalError::Encode`].
    pub fn send(&mut self, packet: &Packet<'_>) -> Result<(), LocalError> {
        Ok(packet.encode(Version::V5, &mut self.output)?)
    }

    /// Has the broker publish messages, without packets and whatever waits to be written. With a session that
    /// [acknowledges through](SessionConfig::acknowledges_through), their last PUBACK is for all of them.
    pub fn hand_over(&self, bundle: Bundle) {
        self.bundles.put(bundle);
    }

    /// A bundle to put messages into, with room for about as many as `like` has had.
    pub fn empty(&self, like: &Bundle) -> Bundle {
        self.bundles.empty(like)
    }

    /// Lets go of memory that is kept for bundles to come.
    pub fn forget_empties(&self) {
        self.bundles.forget_empties();
    }

    /// Queues a message to be written.
    pub fn publish(&mut self, head: &PublishHead<'_>, payload: &[u8]) {
        debug_assert_eq!(head.payload_bytes, payload.len());
        head.encode(Version::V5, &mut self.output);
        self.output.extend_from_slice(payload);
    }

    /// Queues the end of subscriptions. Messages that wait by them still come.
    ///
    /// # Errors
    /// [`LocalError::Encode`].
    pub fn unsubscribe(&mut self, filters: Vec<String>) -> Result<(), LocalError> {
        if filters.is_empty() {
            return Ok(());
        }
        self.send(&Packet::Unsubscribe(Unsubscribe {
            packet_id: SUBSCRIBE_ID,
            user_properties: Vec::new(),
            filters,
        }))
    }

    /// Queues the acknowledgement of a message of QoS 1.
    pub fn acknowledge(&mut self, packet_id: PacketId) {
        encode_ack(Version::V5, AckKind::Puback, packet_id, ReasonCode::SUCCESS, &mut self.output);
    }

    /// Writes what can be written without waiting.
    ///
    /// # Errors
    /// [`LocalError::Io`].
    pub fn flush(&mut self) -> Result<(), LocalError> {
        if !self.is_flushed() {
            self.write()?;
        }
        Ok(())
    }

    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        self.output.len() - self.written
    }

    /// Whether nothing waits to be written.
    pub fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }
}
