//! A node with one MQTT listener, run by the program `tidegate`.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};

/// Longest wait for a node to listen.
const LONGEST: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) fn lab() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-lab"));
    // A configuration of the folder that tests run in is none of theirs.
    command.current_dir(env::temp_dir()).stdin(Stdio::null());
    command
}

/// The node; it ends with this.
pub(crate) struct Node {
    pub(crate) broker: SocketAddr,
    child: Child,
    _folder: TempDir,
}

impl Node {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        pki::init(&data.join("pki"), &InitRequest::default()).expect("certificates");
        let config = folder.path().join("tidegate.toml");
        let text = format!(
            "[node]\ndata_dir = {data:?}\napi_listen = \"127.0.0.1:0\"\nhealth_listen = \"127.0.0.1:0\"\n\n[link]\nlisten = \"127.0.0.1:0\"\n\n\
             [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
        );
        fs::write(&config, text).expect("a configuration");
        let lab = std::path::Path::new(env!("CARGO_BIN_EXE_tidegate-lab"));
        let program = lab.with_file_name("tidegate");
        assert!(program.is_file(), "build it first: cargo build --package tidegate");
        let mut child = Command::new(program)
            .args(["--config".as_ref(), config.as_os_str(), "node".as_ref()])
            .env("TIDEGATE_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let stderr = BufReader::new(child.stderr.take().expect("it was asked for"));
        // One address; then the log is read to its end, so that the node never waits for a reader.
        let (sender, served) = mpsc::sync_channel(1);
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if let Some(address) = line.split("address=").nth(1)
                    && line.contains("MQTT served")
                {
                    let address = address.split_whitespace().next().unwrap_or_default();
                    let _ = sender.try_send(address.trim_matches('"').to_owned());
                }
            }
        });
        let began = Instant::now();
        let address = served.recv_timeout(LONGEST);
        let address = address.unwrap_or_else(|_| panic!("not served in {:?}", began.elapsed()));
        Self { broker: address.parse().expect("an address"), child, _folder: folder }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
