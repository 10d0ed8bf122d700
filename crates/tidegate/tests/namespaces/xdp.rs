//! A filter in the kernel before the datagrams of a node, between two namespaces of a pair of devices.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::UdpSocket,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, Message, Options};
use tidegate_sys::{bpf::Counters, tun::Namespace};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter};

use crate::site::kill;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
const NODE: &str = "10.77.3.1";

/// Two namespaces with a pair of devices between them; they go with this.
struct Pair {
    near: String,
    far: String,
}

impl Pair {
    /// None where there can be none; a word about it then.
    fn up() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if let Err(error) = Counters::new(1) {
            println!("skipped: no programs at packets here: {error}");
            return None;
        }
        let prefix =
            format!("tgxdp-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let pair = Self { near: format!("{prefix}-n"), far: format!("{prefix}-f") };
        if !ip(&["netns", "add", &pair.near]) || !ip(&["netns", "add", &pair.far]) {
            println!("skipped: no network namespaces here");
            return None;
        }
        let (near, far) = (&pair.near, &pair.far);
        for arguments in [
            &[
                "-n", near, "link", "add", "tgx0", "type", "veth", "peer", "name", "tgx1", "netns",
                far,
            ][..],
            &["-n", near, "addr", "add", "10.77.3.1/24", "dev", "tgx0"],
            &["-n", far, "addr", "add", "10.77.3.2/24", "dev", "tgx1"],
            &["-n", near, "link", "set", "lo", "up"],
            &["-n", near, "link", "set", "tgx0", "up"],
            &["-n", far, "link", "set", "tgx1", "up"],
        ] {
            assert!(ip(arguments), "ip {arguments:?}");
        }
        Some(pair)
    }

    /// Runs `work` on a thread in the namespace of the senders.
    fn far<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace =
            Namespace::open(&Path::new("/run/netns").join(&self.far)).expect("it is there");
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                namespace.enter().expect("root may");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The system's tools' description of the node's device.
    fn device(&self) -> String {
        let output = Command::new("ip").args(["-n", &self.near, "link", "show", "tgx0"]).output();
        String::from_utf8_lossy(&output.expect("ip runs").stdout).into_owned()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // One that was not made cannot be removed.
        ip(&["netns", "del", &self.near]);
        ip(&["netns", "del", &self.far]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let status = Command::new("ip").args(arguments).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A node in its namespace, with what it says.
struct Node {
    folder: TempDir,
    process: Option<Child>,
    lines: Receiver<String>,
}

impl Node {
    /// With that in the section of its listener, run by `runner`.
    fn start(pair: &Pair, listener: &str, runner: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
        write(&folder, listener);
        let program = env!("CARGO_BIN_EXE_tidegate");
        let words: Vec<&str> = runner.iter().copied().chain([program]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg("--config")
            .arg(folder.path().join("tidegate.toml"))
            .arg("node")
            .env("TIDEGATE_LOG", "info")
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let namespace =
            Namespace::open(&Path::new("/run/netns").join(&pair.near)).expect("it is there");
        namespace.attach(&mut command).expect("it stays open");
        let mut process = command.spawn().expect("the program");
        let said = BufReader::new(process.stderr.take().expect("it was asked for"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let node = Self { folder, process: Some(process), lines };
        node.line_with("ingest served");
        node
    }

    /// The next line that holds `text`.
    fn line_with(&self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        let mut seen = String::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen.extend([&*line, "\n"]),
                Err(_) => panic!("no line with {text:?} came, but:\n{seen}"),
            }
        }
    }

    /// Has it go by another configuration.
    fn reload(&self, listener: &str) {
        write(&self.folder, listener);
        let id = self.process.as_ref().expect("it runs").id().to_string();
        let told = Command::new("kill").args(["-HUP", &id]).status();
        assert!(told.expect("a `kill` program").success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        kill(self.process.take());
    }
}

fn write(folder: &TempDir, listener: &str) {
    let config = format!(
        "[node]\ndata_dir = {:?}\n[link]\nlisten = \"127.0.0.1:0\"\n[mqtt]\nsys_interval = \"1s\"\n\
         [mqtt.listener.main]\nlisten = \"{NODE}:1883\"\nallow_anonymous = true\n\
         [ingest.meters]\nlisten = \"{NODE}:7070\"\ntopic = \"meters\"\nallow_anonymous = true\n{listener}\n",
        folder.path().join("data")
    );
    fs::write(folder.path().join("tidegate.toml"), config).expect("a configuration");
}

fn filter(mode: &str, keep: &str) -> String {
    format!(
        "xdp_interface = \"tgx0\"\nxdp_mode = \"{mode}\"\n\
         xdp_fields = \"n as u16be at 0; t at 2 length 6 decimals 1\"\nxdp_keep = \"{keep}\""
    )
}

/// A message of that layout.
fn meter(n: u16, t: &str) -> Vec<u8> {
    [&n.to_be_bytes()[..], format!("{t:>6}").as_bytes()].concat()
}

fn subscriber(filter: &str) -> Client {
    let options = Options { host: NODE.to_owned(), port: 1883, ..Options::default() };
    let mut client = Client::connect(options).expect("the broker listens");
    let filter = SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: true,
        retain_handling: RetainHandling::Send,
    };
    client.subscribe(&[filter]).expect("it may subscribe");
    client
}

fn next(client: &mut Client) -> Message {
    client.receive(PATIENCE).expect("the broker is there").expect("a message comes")
}

/// Sends those messages and returns what arrives, up to and with the last of them, which must.
fn through(meters: &mut Client, messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let socket = UdpSocket::bind("10.77.3.2:0").expect("an address of ours");
    for message in messages {
        socket.send_to(message, (NODE, 7070)).expect("it leaves");
    }
    let last = messages.last().expect("there is one");
    let mut arrived = Vec::new();
    while arrived.last() != Some(last) {
        arrived.push(next(meters).payload.to_vec());
    }
    arrived
}

/// Waits until the node has counted so.
fn counted(expected: &[(&str, u64)]) {
    let mut sys = subscriber("$SYS/broker/ingest/meters/#");
    let mut waited: Vec<_> = expected.to_vec();
    while !waited.is_empty() {
        let message = next(&mut sys);
        let name = message.topic.rsplit('/').next().unwrap_or_default().to_owned();
        let count = String::from_utf8_lossy(&message.payload).into_owned();
        waited.retain(|(known, expected)| *known != name || count != expected.to_string());
    }
}

#[test]
fn datagrams_below_the_threshold_do_not_come_in() {
    for mode in ["native", "generic"] {
        let Some(pair) = Pair::up() else { return };
        let mut node = Node::start(&pair, &filter(mode, "t > 75.0"), &[]);
        let line = node.line_with("datagrams are filtered in the kernel");
        assert!(line.contains(mode), "{line}");
        assert!(pair.device().contains("prog/xdp"), "{}", pair.device());
        let mut sent: Vec<Vec<u8>> = (0..100)
            .flat_map(|n| [meter(n, "75.0"), meter(n, "75.1"), meter(n, "-80.0"), meter(n, "7x.0")])
            .collect();
        sent.push(b"longer than it should be".to_vec());
        sent.push(meter(100, "9999.9"));
        let mut kept = sent.clone();
        kept.retain(|message| ![&b"  75.0"[..], b" -80.0"].contains(&&message[2..]));
        let mut meters = pair.far(|| subscriber("meters"));
        assert_eq!(pair.far(|| through(&mut meters, &sent)), kept, "{mode}");
        pair.far(|| {
            counted(&[
                ("xdp_kept", 101),
                ("xdp_dropped", 200),
                ("xdp_unusual", 101),
                ("received", 202),
                ("published", 202),
            ]);
        });

        // Another threshold, and none.
        node.reload(&filter(mode, "t < 0"));
        node.line_with("configuration of MQTT reloaded");
        let sent = [meter(1, "80.0"), meter(2, "0.0"), meter(3, "-0.1")];
        assert_eq!(pair.far(|| through(&mut meters, &sent)), sent[2..], "{mode}");
        pair.far(|| counted(&[("xdp_kept", 102), ("xdp_dropped", 202), ("received", 203)]));
        node.reload("");
        node.line_with("configuration of MQTT reloaded");
        assert!(!pair.device().contains("prog/xdp"), "{}", pair.device());
        assert_eq!(pair.far(|| through(&mut meters, &sent)), sent, "{mode}");

        // It goes with the process, however that ends.
        node.reload(&filter(mode, "t < 0"));
        node.line_with("configuration of MQTT reloaded");
        assert!(pair.device().contains("prog/xdp"), "{}", pair.device());
        kill(node.process.take());
        let end = Instant::now() + PATIENCE;
        while pair.device().contains("prog/xdp") {
            assert!(Instant::now() < end, "{}", pair.device());
        }
    }
}

#[test]
fn a_node_that_may_not_filter_says_so_and_receives_all() {
    let Some(pair) = Pair::up() else { return };
    let runner = ["setpriv", "--bounding-set=-bpf,-net_admin,-sys_admin"];
    let can = Command::new(runner[0]).args([runner[1], "true"]).stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: no setpriv here that knows the capabilities");
        return;
    }
    let node = Node::start(&pair, &filter("auto", "t > 75.0"), &runner);
    let line = node.line_with("no filter runs in the kernel");
    assert!(line.contains("CAP_BPF and CAP_NET_ADMIN"), "{line}");
    let sent = [meter(1, "75.0"), meter(2, "75.1")];
    let mut meters = pair.far(|| subscriber("meters"));
    assert_eq!(pair.far(|| through(&mut meters, &sent)), sent);
    pair.far(|| counted(&[("xdp_kept", 0), ("xdp_dropped", 0), ("received", 2)]));
    // An interface that is not there is no reason to receive nothing either.
    node.reload(&filter("auto", "t > 75.0").replace("tgx0", "tgx9"));
    node.line_with("no filter runs in the kernel");
    assert_eq!(pair.far(|| through(&mut meters, &sent)), sent);
}
