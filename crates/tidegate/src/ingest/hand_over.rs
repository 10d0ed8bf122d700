//! What a thread hands to this node's broker and waits for: messages of QoS 0 in bundles, one acknowledgement for many.
//!
//! Always true: what the broker has not taken is bounded, [`BUNDLES_MAX`] of about [`BUNDLE_BYTES`]; whoever has more waits for it.

use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use tidegate_broker::{Publication, SessionConfig};
use tidegate_wire::mqtt::{FixedHeader, Packet, QoS, Version};

use super::{
    Context, IngestSettings,
    inlet::{Inlet, InletError},
};
use crate::mqtt::{
    bundle::{Bundle, Bundles, Exchanges},
    server::LocalParts,
};

/// Bytes of messages after which they are handed over, however many more there may be.
const BUNDLE_BYTES: usize = 64 << 10;
/// Messages after which they are, so that all that are under way have identifiers.
const BUNDLE_MESSAGES: usize = 2 << 10;
/// Bundles that the broker has not taken.
const BUNDLES_MAX: usize = 16;
const _: () = assert!((BUNDLES_MAX + 1) * BUNDLE_MESSAGES < u16::MAX as usize);
/// Longest wait for the broker to let the listener in.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest wait for it to take something, before the thread looks around.
const WAIT: Duration = Duration::from_millis(100);
/// Longest packet of the broker's: an acknowledgement, or why it ends.
const PACKET_BYTES_MAX: usize = 64 << 10;

/// What waits to be handed over, and the connection.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    connection: Option<Connection>,
    bundle: Bundle,
    exchanges: Exchanges,
    /// Of each bundle that is not acknowledged, the messages up to its end.
    under_way: VecDeque<u64>,
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    bundles: Bundles,
    input: Vec<u8>,
}

impl HandOver {
    /// One more message. Its topic is one.
    #[inline]
    pub(super) fn push(&mut self, topic: &str, payload: &[u8], retain: bool) {
        let publication = Publication {
            topic: topic.as_bytes(),
            payload,
            forwarded: &[],
            qos: QoS::AtMostOnce,
            retain,
            message_expiry: None,
            id: self.exchanges.begin(),
        };
        self.bundle.push(&publication, |_| {});
    }

    /// Whether it is time to hand over what there is.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.bundle.bytes() >= BUNDLE_BYTES || self.bundle.len() >= BUNDLE_MESSAGES
    }

    /// Whether there is nothing to hand over.
    pub(super) fn is_empty(&self) -> bool {
        self.bundle.is_empty()
    }

    /// Hands over what there is; false if the broker has taken nothing for a while, and it is to be tried again.
    ///
    /// # Errors
    /// The system's, or what the broker says: the connection is gone, and so are these messages and those that it had not taken.
    pub(super) fn flush(
        &mut self,
        context: &Context,
        settings: &IngestSettings,
    ) -> io::Result<bool> {
        let flushed = self.try_flush(context, settings);
        if flushed.is_err() {
            *self = Self::default();
        }
        flushed
    }

    fn try_flush(&mut self, context: &Context, settings: &IngestSettings) -> io::Result<bool> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(context, settings)?),
        };
        if self.under_way.len() >= BUNDLES_MAX {
            connection.read(&mut self.exchanges)?;
            let taken = self.exchanges.acknowledged();
            while self.under_way.pop_front_if(|end| *end <= taken).is_some() {}
            if self.under_way.len() >= BUNDLES_MAX {
                return Ok(false);
            }
        }
        self.under_way.push_back(self.exchanges.handed());
        let room = self.bundle.like();
        connection.bundles.put(std::mem::replace(&mut self.bundle, room));
        Ok(true)
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
        let mut inlet: Inlet<()> = Inlet::new(&client_id, PACKET_BYTES_MAX);
        (&socket).write_all(inlet.output())?;
        let (mut buffer, mut events) = ([0; 1024], Vec::new());
        while events.is_empty() {
            match (&socket).read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => inlet.receive(&buffer[..count], &mut events).map_err(io::Error::other)?,
            }
        }
        socket.set_read_timeout(Some(WAIT))?;
        Ok(Self { socket, bundles, input: Vec::new() })
    }

    /// Waits for acknowledgements, for some time, and notes those that came.
    fn read(&mut self, exchanges: &mut Exchanges) -> io::Result<()> {
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => return Ok(()),
                _ => return Err(error),
            },
        }
        let mut taken = 0;
        while let Some(header) =
            FixedHeader::decode(&self.input[taken..], PACKET_BYTES_MAX).map_err(io::Error::other)?
        {
            let Some(packet) = self.input[taken..].get(..header.packet_bytes()) else { break };
            let body = &packet[header.header_bytes..];
            match Packet::decode(Version::V5, header.first, body).map_err(io::Error::other)? {
                // Nobody is told what became of a datagram.
                Packet::Puback(ack) => exchanges.end(ack.packet_id).map_err(io::Error::other)?,
                Packet::Disconnect(end) => {
                    return Err(io::Error::other(InletError::Ended(end.reason)));
                }
                _ => {}
            }
            taken += header.packet_bytes();
        }
        self.input.drain(..taken);
        Ok(())
    }
}
