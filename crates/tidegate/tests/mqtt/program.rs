//! A running node in a folder of its own.

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::Options;

use super::poll::poll;

/// Longest wait for anything.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// The program; it ends with this.
pub(crate) struct Program {
    folder: TempDir,
    child: Child,
    lines: Receiver<String>,
    health: Option<SocketAddr>,
    addresses: Vec<(String, SocketAddr)>,
}

impl Program {
    /// A node with those MQTT sections; each listener names port 0 and is found by [`Program::address`].
    pub(crate) fn start(mqtt: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
        Self::start_in(folder, mqtt)
    }

    pub(crate) fn start_in(folder: TempDir, mqtt: &str) -> Self {
        Self::start_as(Command::new(env!("CARGO_BIN_EXE_tidegate")), folder, mqtt)
    }

    /// The same, with those variables.
    pub(crate) fn start_with(folder: TempDir, mqtt: &str, variables: &[(&str, String)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Self::start_as(command, folder, mqtt)
    }

    /// A node with that umask.
    pub(crate) fn start_with_umask(umask: &str, folder: TempDir, mqtt: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {umask} && exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_tidegate"));
        Self::start_as(command, folder, mqtt)
    }

    /// A node of that user, whose group has the same number, as a service has a user of its own. At its first start its data is given to
    /// that user.
    pub(crate) fn start_of_user(user: u32, folder: TempDir, mqtt: &str) -> Self {
        let program = folder.path().join("tidegate");
        if !program.exists() {
            // Others may not go where the program was built.
            fs::copy(env!("CARGO_BIN_EXE_tidegate"), &program).expect("a copy");
            fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
            let mut give = Command::new("chown");
            give.args(["-R", &format!("{user}:{user}")]).arg(folder.path().join("data"));
            assert!(give.status().expect("chown").success());
        }
        let mut command = Command::new(program);
        command.uid(user).gid(user);
        Self::start_as(command, folder, mqtt)
    }

    /// A node whose journals are on a disk of so many MiB, in a mount namespace of its own; none where there can be none.
    pub(crate) fn start_on_small_disk(mebibytes: u32, mqtt: &str) -> Option<Self> {
        let can = Command::new("unshare").args(["-rm", "true"]).status();
        if !can.is_ok_and(|status| status.success()) {
            println!("skipped: no namespaces here");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
        let disk = folder.path().join("data/log");
        fs::create_dir_all(&disk).expect("a folder");
        let mount =
            format!("mount -t tmpfs -o mode=700,size={mebibytes}m tmpfs \"$0\" && exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &mount]).arg(disk).arg(env!("CARGO_BIN_EXE_tidegate"));
        Some(Self::start_as(command, folder, mqtt))
    }

    /// A node in the folder of that disk.
    pub(crate) fn start_on(disk: &SmallDisk, folder: TempDir, mqtt: &str) -> Self {
        let mut command = Command::new("nsenter");
        command.args(["-t", &disk.holder.id().to_string(), "-U", "-m", "--preserve-credentials"]);
        command.arg(env!("CARGO_BIN_EXE_tidegate"));
        Self::start_as(command, folder, mqtt)
    }

    /// A node in that folder whose journals are on a disk that can only be read; none where there can be none.
    pub(crate) fn start_on_read_only_disk(folder: TempDir, mqtt: &str) -> Option<Self> {
        let mount = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
        let unshared = |program: &str| {
            let mut command = Command::new("unshare");
            command.args(["-rm", "sh", "-c", mount]).arg(folder.path().join("data/log"));
            command.arg(program);
            command
        };
        if !unshared("true").status().is_ok_and(|status| status.success()) {
            println!("skipped: no such mounts here");
            return None;
        }
        let command = unshared(env!("CARGO_BIN_EXE_tidegate"));
        Some(Self::start_as(command, folder, mqtt))
    }

    fn start_as(mut command: Command, folder: TempDir, mqtt: &str) -> Self {
        let path = write_config(&folder, mqtt);
        let listeners = mqtt.matches("[mqtt.listener.").count();
        let mut child = command
            .args(["--config".as_ref(), path.as_os_str(), "node".as_ref()])
            .env("TIDEGATE_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let stderr = BufReader::new(child.stderr.take().expect("it was asked for"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut program = Self { folder, child, lines, health: None, addresses: Vec::new() };
        let address = |line: &str| field(line, "address=").parse().expect("an address");
        program.health = Some(address(&program.line_with("health served")));
        while program.addresses.len() < listeners {
            let line = program.line_with("MQTT served");
            program.addresses.push((field(&line, "listener="), address(&line)));
        }
        program
    }

    /// The next line of its log that holds `text`.
    pub(crate) fn line_with(&self, text: &str) -> String {
        self.line_with_any(&[text])
    }

    /// The next line of its log that holds one of `texts`.
    pub(crate) fn line_with_any(&self, texts: &[&str]) -> String {
        let end = Instant::now() + LONGEST;
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if texts.iter().any(|text| line.contains(text)) => return line,
                Ok(line) => seen.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no line with any of {texts:?} came, but:\n{}", seen.join("\n"));
                }
            }
        }
    }

    pub(crate) fn address(&self, listener: &str) -> SocketAddr {
        let found = self.addresses.iter().find(|(name, _)| name == listener);
        found.unwrap_or_else(|| panic!("no listener {listener}")).1
    }

    /// Where its API is served; to be asked once, and before other lines of its log.
    pub(crate) fn api(&self) -> SocketAddr {
        field(&self.line_with("node ready"), "api=").parse().expect("an address")
    }

    /// Its answer on readiness: the status, and all parts as JSON.
    pub(crate) fn readiness(&self) -> (u16, String) {
        let mut stream = TcpStream::connect(self.health.expect("it is served")).expect("a stream");
        let request = "GET /readyz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it takes it");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("a status"), answer)
    }

    /// Has it read other MQTT sections.
    pub(crate) fn reload(&self, mqtt: &str) {
        write_config(&self.folder, mqtt);
        self.hang_up();
    }

    /// Has it read its configuration again as that is.
    pub(crate) fn hang_up(&self) {
        signal(self.id(), "HUP");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Resident bytes now.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of it");
        let kilobytes: u64 =
            line.split_whitespace().nth(1).expect("a number").parse().expect("one");
        kilobytes << 10
    }

    /// Kills it without a word (SIGKILL), and gives its folder.
    pub(crate) fn kill(mut self) -> TempDir {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is our child");
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    /// Asks it to end and waits.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    /// The same, and gives its folder.
    pub(crate) fn stop_and_keep(mut self) -> TempDir {
        self.end();
        std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"))
    }

    /// Asks it to end and waits; its folder stays until this goes.
    pub(crate) fn end(&mut self) {
        signal(self.id(), "TERM");
        let ended = poll(LONGEST, || self.child.try_wait().expect("it is our child"));
        let status = ended.expect("it does not end");
        assert!(status.success(), "{status}");
    }
}

/// A small disk for the logs of a folder, in a mount namespace of its own: nodes have it one after another. It goes with this.
pub(crate) struct SmallDisk {
    holder: Child,
}

impl SmallDisk {
    /// One of so many MiB; none where there can be none.
    pub(crate) fn start(folder: &TempDir, mebibytes: u32) -> Option<Self> {
        let disk = folder.path().join("data/log");
        fs::create_dir_all(&disk).expect("a folder");
        let mount = format!(
            "mount -t tmpfs -o mode=700,size={mebibytes}m tmpfs \"$0\" && echo ready && exec cat"
        );
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &mount]).arg(disk);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = command.spawn().ok()?;
        let mut line = String::new();
        let stdout = holder.stdout.as_mut().expect("it was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("a pipe");
        let disk = Self { holder };
        if line != "ready\n" {
            println!("skipped: no namespaces here");
            return None;
        }
        Some(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The value behind a name in a line of the log.
fn field(line: &str, name: &str) -> String {
    let rest = line.split_once(name).unwrap_or_else(|| panic!("no {name} in {line}")).1;
    rest.split_whitespace().next().expect("a value").to_owned()
}

fn write_config(folder: &TempDir, mqtt: &str) -> PathBuf {
    let config = format!(
        "[node]\ndata_dir = {:?}\napi_listen = \"127.0.0.1:0\"\nhealth_listen = \"127.0.0.1:0\"\n[link]\nlisten = \"127.0.0.1:0\"\n{mqtt}",
        folder.path().join("data")
    );
    let path = folder.path().join("tidegate.toml");
    fs::write(&path, config).expect("a configuration");
    path
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process that the test started.
pub(crate) fn signal(process: u32, name: &str) {
    let kill = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(kill.expect("kill").success());
}

/// How to connect to that listener.
pub(crate) fn options_of(address: SocketAddr) -> Options {
    Options { host: address.ip().to_string(), port: address.port(), ..Options::default() }
}
