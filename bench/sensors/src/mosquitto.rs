//! Debian's mosquitto as a process on a port of loopback, with its limits raised so that it loses nothing.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(15);

/// A running broker; it ends when dropped.
#[derive(Debug)]
pub struct Mosquitto {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Mosquitto {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// It is not there, or does not listen.
    pub fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("making a folder for mosquitto")?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
        let address = free.local_addr().context("finding a free port")?;
        drop(free);
        let file = folder.path().join("mosquitto.conf");
        let text = format!(
            "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nlog_dest none\nset_tcp_nodelay true\n\
             max_inflight_messages 65535\nmax_queued_messages 0\n",
            address.port()
        );
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        // Debian has it where only root's path leads.
        let usual = std::path::Path::new("/usr/sbin/mosquitto");
        let program = if usual.exists() { usual.as_os_str() } else { "mosquitto".as_ref() };
        let mut command = Command::new(program);
        command.arg("-c").arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("starting mosquitto")?;
        let mut broker = Self { child, address, _folder: folder };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = broker.child.try_wait().context("looking at mosquitto")?;
            ensure!(ended.is_none() && began.elapsed() < PATIENCE, "mosquitto does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(broker)
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
