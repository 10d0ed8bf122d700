//! The node link: records and frames between two nodes, over QUIC or TCP.
//!
//! ```text
//!  send ───────▶ control, critical: one ordered lane each ──┐
//!  ack ────────▶ newest wins, best effort ──────────────────┤  QUIC: streams by priority, datagrams
//!  send_frame ─▶ one stream for each frame, can be reset ───┼─────────────────────────────────────▶ recv
//!  send_bulk ──▶ a few at a time ───────────────────────────┘  TCP: chunks by priority, abort marks
//! ```
//!
//! QUIC is the first choice: a frame that is reset frees the path at once, and our own congestion control
//! (`congestion`) keeps the bytes in flight within a queue that the latency budget allows. Where UDP is
//! blocked, TCP carries the same records in chunks that small ones overtake, with the kernel's unsent bytes
//! bounded.
//!
//! The receiving side acknowledges by itself: a frame's first byte, then every 10 ms or 32 KiB, then its
//! last byte or its reset, with its receive times. The first bytes come at `first_at`; a capacity sample is
//! the bytes *between* two acks over the time between them.
//!
//! Queues, all bounded, and what happens when one is full: lanes and bulk wait (back-pressure); frames under
//! way are refused with [`LinkError::Busy`]; incoming records and frames wait, which slows the peer's lane or
//! stream; word of how far a frame has come is shed, since a newer one follows, but the last about it waits.
//!
//! Always true: both peers are authenticated before a link exists; what a peer sends never panics and never
//! allocates beyond the limits; the tasks of a link end when its last handle is dropped or it goes down; a
//! peer that is silent for [`LinkSettings::idle_timeout`] takes the link down.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_identity::pki::{PeerIdentity, PkiError};
use tidegate_message::{Code, Instant};
use tidegate_process::clock;
use tidegate_wire::{Ack, DecodeError, FrameHeader, Record};

mod congestion;
mod connect;
mod core;
mod frame;
mod lane;
mod offset;
mod quic;
mod tcp;

pub use connect::{Listener, dial};
pub use frame::{FrameSending, Outcome, Priority, Progress};
pub use tidegate_message::words::Transport;

/// The protocol's name in TLS (ALPN).
pub const PROTOCOL: &[u8] = b"tidegate/1";

/// Where a link reads its clock: the time that capture times and receive times are in.
pub type ClockFn = Arc<dyn Fn() -> Instant + Send + Sync>;

/// Settings of a link.
#[derive(Clone)]
pub struct LinkSettings {
    /// The longest queue that this link may build at the bottleneck, in time; default 10 ms. A tenth of the
    /// tightest latency bound is a good choice: shorter wastes capacity on jittery media, longer delays the
    /// next frame and a reset.
    pub queue_allowed: Duration,
    /// Congestion control of QUIC; default [`Congestion::QueueBound`].
    pub quic_congestion: Congestion,
    /// Each side says something at least this often; default 1 s, must be well below `idle_timeout`.
    pub keep_alive: Duration,
    /// A peer that is silent for this long takes the link down; default 3 s.
    pub idle_timeout: Duration,
    /// Longest time to connect and authenticate, for each transport; default 3 s.
    pub connect_timeout: Duration,
    /// With [`Transport::Auto`], how long QUIC is tried before TCP is tried as well; default 300 ms. Longer than
    /// a QUIC handshake takes on the slowest path where QUIC is wanted: three round trips or so.
    pub quic_head_start: Duration,
    /// Most frames under way at once; default 32.
    pub frames_max: usize,
    /// Most bytes of incoming frames and bulk that are being put together, of all links of one peer; default 256 MiB. Beyond
    /// it, the peer's newest frames are refused.
    pub assembly_bytes_max: usize,
    /// Most received items that wait for [`Link::recv`]; default 256.
    pub incoming_max: usize,
    /// Congestion control of TCP by name, such as `bbr` or `cubic`; default `None`, the system's.
    pub tcp_congestion: Option<String>,
    /// Most bytes that TCP may hold unsent in the kernel; default 32 KiB.
    pub tcp_unsent_bytes_max: u32,
    /// The clock of receive times; default [`clock::now`].
    pub clock: ClockFn,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            queue_allowed: Duration::from_millis(10),
            quic_congestion: Congestion::default(),
            keep_alive: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(3),
            quic_head_start: Duration::from_millis(300),
            frames_max: 32,
            assembly_bytes_max: 256 << 20,
            incoming_max: 256,
            tcp_congestion: None,
            tcp_unsent_bytes_max: 32 << 10,
            clock: Arc::new(clock::now),
        }
    }
}

/// How much QUIC has in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// Ours: as much as keeps the queue within [`LinkSettings::queue_allowed`].
    #[default]
    QueueBound,
    /// CUBIC (RFC 9438) as quinn has it, for comparison: it fills every queue, and random loss stops it.
    Cubic,
}

/// Items received over a link.
#[derive(Debug)]
pub enum Incoming {
    /// A record of the control or critical class.
    Record(Record),
    /// The parts of our frame that the peer has.
    Ack(Ack),
    /// A whole frame.
    Frame {
        /// Its header.
        header: FrameHeader,
        /// Its bytes, `header.bytes` of them.
        body: Bytes,
        /// When the first byte of the body came, by our clock.
        first_at: Instant,
        /// When the last byte came, by our clock.
        last_at: Instant,
    },
    /// The peer gave a frame up, which will not become whole.
    FrameReset {
        /// Its header.
        header: FrameHeader,
        /// Bytes of the body that had come.
        received: u64,
        /// When the reset was seen, by our clock.
        at: Instant,
    },
    /// A bulk record with its body.
    Bulk {
        /// The record.
        record: Record,
        /// The bytes that came with it.
        body: Bytes,
    },
}

/// How the path to the peer is doing.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// The transport of the link: never `Auto`.
    pub transport: Transport,
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Shortest round-trip time of late: without a queue.
    pub rtt_min: Duration,
    /// Bytes sent and neither acknowledged nor lost.
    pub in_flight: u64,
    /// Most bytes that may be in flight.
    pub window: u64,
    /// Estimated delivery rate in bytes per second; 0 before the first sample.
    pub delivery_rate: u64,
    /// Packets lost so far.
    pub lost: u64,
    /// Loss events so far.
    pub congestion_events: u64,
}

/// An authenticated link to one peer. Clones share it; the last one dropped closes it.
#[derive(Clone)]
pub struct Link {
    handle: Arc<core::Handle>,
}

impl Link {
    /// Where the peer is.
    pub fn peer_address(&self) -> SocketAddr {
        self.handle.core.peer_address
    }

    /// Where its tasks run: whoever serves the link does it there, so that what comes wakes up one thread.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.handle.core.runtime
    }

    /// The peer.
    pub fn peer(&self) -> &PeerIdentity {
        &self.handle.core.peer
    }

    /// Sends a record of the control or critical class, in order within its class. Waits while the lane is
    /// full.
    ///
    /// # Errors
    /// [`LinkError::Down`]; [`LinkError::Class`] for records that go with a body.
    ///
    /// # Cancel safety
    /// The record is queued whole or not at all.
    pub async fn send(&self, record: impl Into<Record>) -> Result<(), LinkError> {
        self.handle.core.send(&record.into()).await
    }

    /// Starts sending a frame on a stream of its own and returns at once.
    ///
    /// # Errors
    /// [`LinkError::Down`]; [`LinkError::Busy`] with [`LinkSettings::frames_max`] frames under way;
    /// [`LinkError::Length`] unless the header states the body's length.
    pub fn send_frame(
        &self,
        header: FrameHeader,
        body: Bytes,
        priority: Priority,
    ) -> Result<FrameSending, LinkError> {
        self.handle.core.send_frame(header, body, priority, None)
    }

    /// As [`send_frame`](Self::send_frame), and resets the frame at `deadline` if the peer has not said by then
    /// that it is whole.
    ///
    /// # Errors
    /// As [`send_frame`](Self::send_frame).
    pub fn send_frame_until(
        &self,
        header: FrameHeader,
        body: Bytes,
        priority: Priority,
        deadline: tokio::time::Instant,
    ) -> Result<FrameSending, LinkError> {
        self.handle.core.send_frame(header, body, priority, Some(deadline))
    }

    /// Queues a bulk record with its body. Bulk travels a few bodies at a time, behind everything else; those under way
    /// may overtake each other. Waits while the queue is full.
    ///
    /// # Errors
    /// [`LinkError::Down`]; [`LinkError::Class`] unless the record is bulk; [`LinkError::Length`] for a body
    /// over the limit.
    ///
    /// # Cancel safety
    /// The record is queued whole or not at all.
    pub async fn send_bulk(&self, record: impl Into<Record>, body: Bytes) -> Result<(), LinkError> {
        self.handle.core.send_bulk(&record.into(), body).await
    }

    /// The next thing that came. With several callers each item goes to one of them.
    ///
    /// # Errors
    /// [`LinkError::Down`] once the link is down and everything that came before was handed out.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn recv(&self) -> Result<Incoming, LinkError> {
        self.handle.recv().await
    }

    /// After which silence of the peer it goes down; see [`LinkSettings::idle_timeout`].
    pub fn idle_timeout(&self) -> Duration {
        self.handle.core.idle_timeout()
    }

    /// Has this end say something every `keep_alive`, from the next time on, and take the link down after a silence of `idle_timeout`,
    /// from the next bytes of the peer on. Over QUIC the silence stays that of its [`LinkSettings`].
    pub fn set_liveness(&self, keep_alive: Duration, idle_timeout: Duration) {
        self.handle.core.set_liveness(keep_alive, idle_timeout);
    }

    /// When bytes of a frame came last, whole or not yet; none before the first.
    pub fn frame_bytes_at(&self) -> Option<Instant> {
        self.handle.core.frame_bytes_at()
    }

    /// How the path is doing now.
    pub fn path(&self) -> Path {
        self.handle.core.path()
    }

    /// Nanoseconds to add to our clock to get the peer's, and how wrong that may be; `None` before the first
    /// exchange.
    pub fn clock_offset(&self) -> Option<(i64, Duration)> {
        self.handle.core.clock_offset()
    }

    /// Takes the link down and tells the peer why. Further calls do nothing.
    pub fn close(&self, code: u32, reason: &str) {
        self.handle.core.close(code, reason);
    }

    /// Why the link is down; `None` while it is up.
    pub fn down(&self) -> Option<DownReason> {
        self.handle.core.down()
    }

    /// Returns once the link is down.
    pub async fn closed(&self) -> DownReason {
        self.handle.core.closed().await
    }
}

/// Why a link is down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// [`Link::close`] was called here, or the last handle was dropped.
    #[error("closed here: {reason}")]
    ClosedHere {
        /// The reason given.
        reason: String,
    },
    /// The peer closed it.
    #[error("closed by the peer with code {code}: {reason}")]
    ClosedByPeer {
        /// The code given.
        code: u32,
        /// The reason given.
        reason: String,
    },
    /// Nothing came from the peer for too long.
    #[error("nothing came from the peer for {} ms", after.as_millis())]
    Silent {
        /// For how long.
        after: Duration,
    },
    /// The transport failed.
    #[error("the connection broke: {reason}")]
    Broken {
        /// Its message.
        reason: String,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the link protocol: {0}")]
    Protocol(ProtocolError),
}

/// How a peer broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A record could not be decoded.
    #[error("{0}")]
    Record(#[from] DecodeError),
    /// A record came where it does not belong.
    #[error("{name} came on {on}")]
    Misplaced {
        /// The record's name.
        name: &'static str,
        /// Where it came.
        on: &'static str,
    },
    /// A body is not as long as its header says, or too long.
    #[error("a body of {bytes} bytes came where {expected} were announced")]
    Length {
        /// Bytes that came.
        bytes: u64,
        /// Bytes announced, or the limit.
        expected: u64,
    },
    /// A stream or chunk of a sort that does not exist.
    #[error("stream type {kind} is unknown")]
    Stream {
        /// Its type.
        kind: u8,
    },
}

/// Why a link could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The link is down.
    #[error("link down: {0}")]
    Down(DownReason),
    /// The address could not be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The peer could not be reached.
    #[error("cannot reach {address} over {transport:?}: {reason}")]
    Unreachable {
        /// Its address.
        address: SocketAddr,
        /// The transport tried last.
        transport: Transport,
        /// The failure.
        reason: String,
    },
    /// One side did not accept the other's certificate.
    #[error(
        "the certificates of this node and of {address} do not fit together: {reason}; \
         check that both come from one `tidegate init`"
    )]
    Refused {
        /// The peer's address.
        address: SocketAddr,
        /// The message of TLS.
        reason: String,
    },
    /// The authority has taken back one of the two certificates.
    #[error("the certificate of {} was revoked; a new one comes by `tidegate invite`", whose(*.ours, .address))]
    Revoked {
        /// The peer's address.
        address: SocketAddr,
        /// Whether it is ours, and not the peer's.
        ours: bool,
    },
    /// Our own credentials do not serve.
    #[error(transparent)]
    Credentials(#[from] PkiError),
    /// Too many frames are under way.
    #[error("{limit} frames are under way, which is the limit; reset one or raise frames_max")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// A body is not as long as its header says, or too long.
    #[error("the body has {bytes} bytes, {expected} are announced or allowed")]
    Length {
        /// The body's length.
        bytes: u64,
        /// The length in its header, or the limit.
        expected: u64,
    },
    /// The record is of a class that another method sends.
    #[error("{name} is not sent this way")]
    Class {
        /// The record's name.
        name: &'static str,
    },
    /// The operating system refused a socket or an option.
    #[error("cannot set up a socket")]
    Socket(#[source] io::Error),
}

fn whose(ours: bool, address: &SocketAddr) -> String {
    if ours { "this node".to_owned() } else { address.to_string() }
}

impl LinkError {
    /// The stable code.
    pub const fn code(&self) -> Code {
        match self {
            Self::Refused { .. } | Self::Credentials(_) => Code::IDENTITY_REFUSED,
            Self::Revoked { .. } => Code::IDENTITY_REVOKED,
            _ => Code::LINK_DOWN,
        }
    }
}
