//! A probe of the link to the edge node: how long a frame of a given size takes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate_link::link::{Link, LinkError, Outcome, Priority};
use tidegate_message::FrameSize;
use tidegate_process::clock;
use tidegate_wire::{FrameHeader, TransferId};

use crate::camera::{self, CameraError, DialSettings};

/// No transfer has this name: the edge node acknowledges the frame and drops it.
const NO_TRANSFER: TransferId = TransferId(0);

/// A link that carries probes.
pub struct Probe {
    link: Link,
}

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The edge node could not be reached or did not accept us.
    #[error("the edge node cannot be probed")]
    Connect(#[from] CameraError),
    /// The link broke.
    #[error("the link broke")]
    Link(#[from] LinkError),
    /// The frame did not arrive.
    #[error("a probe of {bytes} bytes did not arrive: {outcome:?}")]
    Lost {
        /// Its size.
        bytes: usize,
        /// Its outcome.
        outcome: Outcome,
    },
}

impl Probe {
    /// Connects with a camera's certificate and offers no camera: that camera's own node is not disturbed.
    ///
    /// # Errors
    /// [`ProbeError::Connect`].
    pub async fn connect(options: &DialSettings) -> Result<Self, ProbeError> {
        let epoch = u64::try_from(clock::now().as_nanos()).unwrap_or(1);
        Ok(Self { link: camera::introduce(None, options, epoch).await? })
    }

    /// Sends a frame of that many bytes; returns the time from its first byte to its last byte's arrival.
    ///
    /// # Errors
    /// [`ProbeError::Link`] and [`ProbeError::Lost`].
    pub async fn measure(&self, bytes: usize) -> Result<Duration, ProbeError> {
        let header = FrameHeader::untouched(
            NO_TRANSFER,
            clock::now(),
            FrameSize { width: 1, height: 1 },
            bytes as u64,
        );
        let started = Instant::now();
        let sending = self.link.send_frame(header, Bytes::from(vec![0; bytes]), Priority::Live)?;
        match sending.done().await {
            // The acknowledgement took its way back.
            Outcome::Sent => Ok(started.elapsed().saturating_sub(self.link.path().rtt_min / 2)),
            outcome => Err(ProbeError::Lost { bytes, outcome }),
        }
    }
}
