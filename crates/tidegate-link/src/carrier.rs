//! The carrier between a camera and its edge node: a link, or, for a camera that lives in the node itself, memory.
//!
//! Always true: both ends of a [`local`] carrier are bounded; a frame sent over it is whole at the other end
//! at once.

use std::time::Duration;

use bytes::Bytes;
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_wire::{Ack, FrameHeader, Record};
use tokio::sync::mpsc;

pub use crate::link::Incoming;
use crate::link::{FrameSending, Link, LinkError, LinkSettings, Path, Priority, Transport};

/// Items on their way over a local carrier; the sender waits when it is full.
const LOCAL_MAX: usize = 64;

/// One end.
pub enum Carrier {
    /// A link to another node.
    Link(Link),
    /// Memory of this process.
    Local(Local),
}

/// One end of a carrier within this process.
#[derive(Debug)]
pub struct Local {
    out: mpsc::Sender<Incoming>,
    incoming: mpsc::Receiver<Incoming>,
}

/// The carrier is down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Down {
    /// Why, in one sentence.
    pub why: String,
}

/// The result of handing a frame over.
pub enum Sent {
    /// It is on its way; dropping this does not stop it.
    UnderWay(FrameSending),
    /// It is whole at the other end, with the word that says so.
    Whole(Ack),
    /// It was not taken: too many are under way.
    Refused,
}

/// Sends over a carrier, independently of its receiver.
pub enum Sender {
    /// Over a link.
    Link(Link),
    /// Within this process.
    Local(mpsc::Sender<Incoming>),
}

impl Sender {
    /// Sends a record without a body, in order within its class.
    ///
    /// # Errors
    /// The carrier is down.
    pub async fn send(&self, record: Record) -> Result<(), Down> {
        match self {
            Self::Link(link) => Ok(link.send(record).await?),
            Self::Local(out) => out.send(Incoming::Record(record)).await.map_err(gone),
        }
    }

    /// Sends a record with its body, behind everything else; waits while others are ahead.
    ///
    /// # Errors
    /// The carrier is down.
    pub async fn send_bulk(&self, record: Record, body: Bytes) -> Result<(), Down> {
        match self {
            Self::Link(link) => Ok(link.send_bulk(record, body).await?),
            Self::Local(out) => out.send(Incoming::Bulk { record, body }).await.map_err(gone),
        }
    }
}

/// Both ends of a carrier within this process.
pub fn local() -> (Carrier, Carrier) {
    let (to_left, left) = mpsc::channel(LOCAL_MAX);
    let (to_right, right) = mpsc::channel(LOCAL_MAX);
    let end = |out, incoming| Carrier::Local(Local { out, incoming });
    (end(to_right, left), end(to_left, right))
}

fn gone<T>(_: mpsc::error::SendError<T>) -> Down {
    Down { why: "the other end has ended".to_owned() }
}

impl From<LinkError> for Down {
    fn from(error: LinkError) -> Self {
        Self { why: error.to_string() }
    }
}

impl Carrier {
    /// The next item.
    ///
    /// # Errors
    /// The carrier is down.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn recv(&mut self) -> Result<Incoming, Down> {
        match self {
            Self::Link(link) => Ok(link.recv().await?),
            Self::Local(local) => {
                let ended = || Down { why: "the other end has ended".to_owned() };
                tokio::select! {
                    biased;
                    incoming = local.incoming.recv() => incoming.ok_or_else(ended),
                    () = local.out.closed() => Err(ended()),
                }
            }
        }
    }

    /// Sends a record without a body, in order within its class.
    ///
    /// # Errors
    /// The carrier is down.
    pub async fn send(&self, record: Record) -> Result<(), Down> {
        self.sender().send(record).await
    }

    /// A sender that is independent of the receiver: neither then waits for the other.
    pub fn sender(&self) -> Sender {
        match self {
            Self::Link(link) => Sender::Link(link.clone()),
            Self::Local(local) => Sender::Local(local.out.clone()),
        }
    }

    /// Sends a frame; a live one goes before those from the past, and is reset at its deadline.
    ///
    /// # Errors
    /// The carrier is down.
    pub async fn send_frame(
        &self,
        header: FrameHeader,
        body: Bytes,
        deadline: Instant,
        live: bool,
    ) -> Result<Sent, Down> {
        match self {
            Self::Link(link) => {
                let priority = if live { Priority::Live } else { Priority::InOrder };
                let sent = if deadline == Instant::MAX {
                    link.send_frame(header, body, priority)
                } else {
                    let left = deadline.since(clock::now());
                    let at = tokio::time::Instant::now() + left;
                    link.send_frame_until(header, body, priority, at)
                };
                match sent {
                    Ok(sending) => Ok(Sent::UnderWay(sending)),
                    Err(error @ (LinkError::Busy { .. } | LinkError::Length { .. })) => {
                        tracing::warn!(%error, "frame not sent");
                        Ok(Sent::Refused)
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Self::Local(local) => {
                let now = clock::now();
                let ack = Ack {
                    transfer: header.transfer,
                    frame: header.at,
                    received: header.bytes,
                    total: header.bytes,
                    first_at: now,
                    last_at: now,
                    complete: true,
                    reset_seen: false,
                };
                let frame = Incoming::Frame { header, body, first_at: now, last_at: now };
                local.out.send(frame).await.map_err(gone)?;
                Ok(Sent::Whole(ack))
            }
        }
    }

    /// How the path is doing; memory has none.
    pub fn path(&self) -> Option<Path> {
        match self {
            Self::Link(link) => Some(link.path()),
            Self::Local(_) => None,
        }
    }

    /// When bytes of a frame came last, whole or not yet; none before the first, and where frames come whole.
    pub fn frame_bytes_at(&self) -> Option<Instant> {
        match self {
            Self::Link(link) => link.frame_bytes_at(),
            Self::Local(_) => None,
        }
    }

    /// After which silence the carrier tells that the peer is gone.
    pub fn idle_timeout(&self) -> Duration {
        match self {
            Self::Link(link) => link.idle_timeout(),
            Self::Local(_) => LinkSettings::default().idle_timeout,
        }
    }

    /// Nanoseconds to add to the peer's time to get ours, and the uncertainty.
    pub fn clock_offset(&self) -> Option<(i64, Duration)> {
        match self {
            Self::Link(link) => {
                link.clock_offset().map(|(to_peer, off)| (to_peer.saturating_neg(), off))
            }
            Self::Local(_) => Some((0, Duration::ZERO)),
        }
    }

    /// `quic`, `tcp` or `local`.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Link(link) => match link.path().transport {
                Transport::Tcp => "tcp",
                Transport::Auto | Transport::Quic => "quic",
            },
            Self::Local(_) => "local",
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::FrameSize;
    use tidegate_wire::TransferId;

    use super::*;

    #[tokio::test]
    async fn a_local_frame_is_whole_and_acknowledged_at_once() {
        let (mut camera, mut node) = local();
        let header = FrameHeader::untouched(
            TransferId(1),
            Instant::from_millis(5),
            FrameSize { width: 1, height: 1 },
            3,
        );
        let body = Bytes::from_static(b"abc");
        let sent = camera.send_frame(header, body, Instant::MAX, true).await.unwrap();
        assert!(matches!(sent, Sent::Whole(Ack { complete: true, .. })));
        let Incoming::Frame { body, .. } = node.recv().await.unwrap() else { panic!("no frame") };
        assert_eq!(body, "abc");
        drop(node);
        assert!(camera.recv().await.is_err(), "the other end is gone");
    }
}
