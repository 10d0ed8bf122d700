//! A node in this process.

use std::{fs, sync::Arc};

use anyhow::Context as _;
use tempfile::TempDir;
use tidegate::run::{Node, users};
use tidegate_config::Config;
use tidegate_identity::access::Access;
use tidegate_process::health::Health;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Bytes that sockets for datagrams are to have.
pub(crate) const BUFFER_BYTES: usize = 8 << 20;

/// A broker of one shard in this process, with a listener for datagrams called `bench`.
pub(crate) struct InProcess {
    pub(crate) node: Node,
    _reactor: Runtime,
    /// Goes when the node has ended.
    _folder: TempDir,
}

impl InProcess {
    /// `flow` is the text of a file of flows, or nothing.
    pub(crate) fn start(flow: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for a node")?;
        fs::write(folder.path().join("flows.toml"), flow).context("writing a flow")?;
        let more = if flow.is_empty() { "" } else { "[flow.bench]\nfile = \"flows.toml\"\n" };
        let data = folder.path().join("data");
        let text = format!(
            "[node]\ndata_dir = {data:?}\n[mqtt]\nshards = 1\ndurability = \"memory\"\nallow_anonymous = true\n\
             [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n\
             [ingest.bench]\nlisten = \"127.0.0.1:0\"\ntopic = \"vehicle/oil\"\nmessage_bytes_max = \"2000B\"\n\
             receive_joined = false\nreceive_buffer_bytes = \"{BUFFER_BYTES}B\"\n{more}"
        );
        let config = Config::parse(&folder.path().join("bench.toml"), &text)?;
        let authenticator = Arc::new(users::open(&config)?);
        let access = Access { authenticator, ..Access::default() };
        let reactor = Runtime::new().context("starting a runtime")?;
        let stop = CancellationToken::new();
        let node = Node::start(&config, access, None, Health::default(), stop);
        let node = reactor.block_on(node)?;
        Ok(Self { node, _reactor: reactor, _folder: folder })
    }
}
