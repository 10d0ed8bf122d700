//! Two nodes with certificates, and records to send.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use tidegate_identity::{
    auth::audit::Audit,
    pki::{self, Credentials, InitRequest},
};
use tidegate_link::link::{Incoming, Link, LinkSettings, Listener, Transport, dial};
use tidegate_message::{FrameSize, Instant};
use tidegate_wire::{FrameHeader, TransferId};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

/// A site with one node and one camera.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) edge: Credentials,
    pub(crate) cam1: Credentials,
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cameras = vec!["cam1".to_owned()];
        pki::init(dir.path(), &InitRequest { cameras, ..InitRequest::default() }).unwrap();
        let load = |name| pki::load(dir.path(), name).unwrap();
        Self { edge: load("edge"), cam1: load("cam1"), dir }
    }

    pub(crate) async fn listen(&self, config: LinkSettings) -> Listener {
        Listener::bind(LOOPBACK.parse().unwrap(), &self.edge, config, Audit::default())
            .await
            .unwrap()
    }

    /// Both ends of a link: the camera's and the edge node's.
    pub(crate) async fn pair(&self, transport: Transport) -> (Link, Link, Listener) {
        let mut listener = self.listen(LinkSettings::default()).await;
        let address = listener.local_address();
        let (camera, edge) = self.connect(&mut listener, address, transport).await;
        (camera, edge, listener)
    }

    pub(crate) async fn connect(
        &self,
        listener: &mut Listener,
        address: SocketAddr,
        transport: Transport,
    ) -> (Link, Link) {
        let dialled = dial(address, &self.cam1, LinkSettings::default(), transport);
        let (camera, edge) = tokio::join!(dialled, listener.accept());
        (camera.unwrap(), edge.unwrap())
    }
}

pub(crate) fn header(millis: i64, bytes: usize) -> FrameHeader {
    FrameHeader {
        transfer: TransferId(7),
        at: Instant::from_millis(millis),
        bytes: bytes as u64,
        size: FrameSize { width: 1920, height: 1080 },
        original_bytes: 500_000,
        row: 12,
        setting: "scale 1/2 quality 60".to_owned(),
        accuracy: 0.97,
        accuracy_kept: true,
        replayed: false,
        encode_started: Duration::from_millis(1),
        encode_ended: Duration::from_millis(6),
        sent: Duration::from_millis(7),
        source_size: Some(FrameSize { width: 1920, height: 1080 }),
    }
}

/// Bytes that differ everywhere, so that misplaced ones are noticed.
pub(crate) fn body(bytes: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out.into()
}

/// The next item that `wanted` accepts; others are passed over.
pub(crate) async fn next<T>(link: &Link, mut wanted: impl FnMut(Incoming) -> Option<T>) -> T {
    let search = async {
        loop {
            if let Some(found) = wanted(link.recv().await.unwrap()) {
                return found;
            }
        }
    };
    tokio::time::timeout(PATIENCE, search).await.expect("it comes in time")
}

pub(crate) async fn next_frame(link: &Link) -> (FrameHeader, Bytes) {
    next(link, |item| match item {
        Incoming::Frame { header, body, .. } => Some((header, body)),
        _ => None,
    })
    .await
}
