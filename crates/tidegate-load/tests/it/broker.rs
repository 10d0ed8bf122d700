//! A mosquitto of a test's own.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::poll::poll;

/// A running mosquitto, ended when dropped.
pub(crate) struct Mosquitto {
    child: Child,
    pub(crate) port: u16,
    _folder: tempfile::TempDir,
}

impl Mosquitto {
    /// None, and a word about it, where mosquitto is not installed.
    pub(crate) fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let folder = tempfile::tempdir().expect("a folder for a test");
        let path = folder.path().join("mosquitto.conf");
        let lines =
            format!("listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n");
        std::fs::write(&path, lines).expect("the folder is ours");
        let spawn = |program| {
            let mut command = Command::new(program);
            command.arg("-c").arg(&path).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let Ok(child) = spawn("mosquitto").or_else(|_| spawn("/usr/sbin/mosquitto")) else {
            println!("skipped: mosquitto is not installed");
            return None;
        };
        let broker = Self { child, port, _folder: folder };
        let listens = || TcpStream::connect(("127.0.0.1", port)).ok();
        assert!(poll(Duration::from_secs(10), listens).is_some(), "mosquitto does not listen");
        Some(broker)
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
