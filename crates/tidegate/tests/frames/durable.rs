//! Real nodes that are killed, and what is there when they return.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use futures::StreamExt;
use tempfile::TempDir;
use tidegate_client::{
    Client, Credentials, Delivery, Event, Frame, Instant, Missed, MissedWhy, Registration,
    SubscribeRequest, Subscription,
};
use tidegate_identity::pki::{self, InitRequest};
use tokio::time::timeout;

use crate::{poll_async::poll, world::captured};

/// Some megabytes in a few seconds.
const SCENE: &str = "scene:street?size=960x540&fps=15&people=3&seed=1";
const LONGEST: Duration = Duration::from_secs(120);

/// The folder of one site, on which its nodes run.
pub(crate) struct Site {
    folder: TempDir,
    /// Where its edge node listens: ports that were free.
    api: SocketAddr,
    link: SocketAddr,
    /// The environment of its programs.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// A node's process; killed when dropped.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Site {
    pub(crate) fn new(more: &str) -> Self {
        // Next to the build: the system's temporary folder may be in memory.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let request = InitRequest { cameras: vec!["cam1".into()], ..InitRequest::default() };
        pki::init(&folder.path().join("data/pki"), &request).expect("certificates");
        let free = || {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            socket.local_addr().expect("its address")
        };
        let (api, link) = (free(), free());
        // Segments of 2 MiB. Written once: a node that starts may read it at any time.
        let config = format!(
            "[node]\ndata_dir = {:?}\napi_listen = \"{api}\"\n\
             [link]\nlisten = \"{link}\"\nreconnect_backoff_max = \"500ms\"\n\
             [frames]\nframe_bytes_max = \"1MB\"\n[mqtt]\nenabled = false\n\
             [log]\ncamera_bytes = \"32MiB\"\nstream_bytes = \"16MiB\"\n{more}",
            folder.path().join("data"),
        );
        fs::write(folder.path().join("tidegate.toml"), config).expect("a configuration");
        Self { folder, api, link, variables: Vec::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn data(&self) -> PathBuf {
        self.path("data")
    }

    fn camera_log(&self, camera: &str) -> PathBuf {
        self.data().join("log/camera").join(camera)
    }

    /// The segments of a camera's log, oldest first.
    fn segments(&self, camera: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.camera_log(camera)).expect("the log's folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<PathBuf> =
            paths.filter(|path| path.extension().is_some_and(|end| end == "segment")).collect();
        paths.sort();
        paths
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.current_dir(self.folder.path()).args(["--config", "tidegate.toml"]).args(arguments);
        command.env("TIDEGATE_LOG", "info").env("NO_COLOR", "1").stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::of(self.command(arguments))
    }

    pub(crate) fn edge(&self) -> Running {
        let edge = self.start(&["node"]);
        edge.line_with("node ready");
        edge
    }

    pub(crate) fn camera(&self) -> Running {
        self.camera_to(self.link)
    }

    fn camera_to(&self, link: SocketAddr) -> Running {
        let edge = link.to_string();
        self.start(&["camera", "--name", "cam1", "--source", SCENE, "--edge", &edge])
    }

    fn doctor(&self) -> Output {
        self.command(&["doctor", "--json"]).output().expect("the doctor")
    }

    pub(crate) async fn client(&self) -> Client {
        let file = |name: &str| self.data().join("pki").join(name);
        let credentials =
            Credentials::load(file("ca.pem"), file("application.pem"), file("application.key"));
        let credentials = credentials.expect("the application's certificate");
        Client::connect(&format!("https://{}", self.api), credentials).await.expect("a client")
    }
}

impl Running {
    fn of(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        let stderr = BufReader::new(child.stderr.take().expect("it was asked for"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line of its log that holds `text`.
    fn line_with(&self, text: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(LONGEST) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with {text:?}, but:\n{}", seen.join("\n")),
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn wait_for_camera(client: &Client) {
    let name = "cam1".parse().unwrap();
    let there = poll(LONGEST, async || {
        client.camera(&name).await.ok().filter(|c| c.online && c.newest_at.is_some())
    });
    there.await.expect("the camera comes");
}

pub(crate) fn request(delivery: Delivery) -> SubscribeRequest {
    let mut request = SubscribeRequest::new("cam1", Duration::from_secs(2), 0.5).expect("bounds");
    request.demand.delivery = delivery;
    request
}

/// The next frame, and the ones reported as missed before it.
pub(crate) async fn next_frame(subscription: &mut Subscription, missed: &mut Vec<Missed>) -> Frame {
    let next = async {
        while let Some(event) = subscription.next().await {
            match event.expect("the subscription holds") {
                Event::Frame(frame) => return frame,
                Event::Missed(told) => missed.push(told),
                _ => {}
            }
        }
        panic!("the subscription ended");
    };
    timeout(LONGEST, next).await.expect("a frame comes")
}

/// Frames until `count` have come that were captured at `from` or later.
async fn frames_from(subscription: &mut Subscription, from: Instant, count: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    while frames.iter().filter(|frame: &&Frame| frame.captured_at >= from).count() < count {
        frames.push(next_frame(subscription, &mut Vec::new()).await);
    }
    frames
}

/// Whether a frame had been captured well before each kill: in the last moment it may have been on its way and not written yet.
fn is_written(at: Instant, kills: &[Instant]) -> bool {
    const MOMENT: Duration = Duration::from_millis(200);
    !kills.iter().any(|&kill| at <= kill && kill.since(at) < MOMENT)
}

/// Every frame that was delivered came once, in order, and none is missing of those in the camera's log.
async fn assert_all_came(client: &Client, times: &[Instant], kills: &[Instant]) {
    assert!(times.is_sorted_by(|one, next| one < next), "in order, none twice: {times:?}");
    let kept = captured(client, "cam1", times).await;
    let written = |times: &[Instant]| -> Vec<Instant> {
        times.iter().copied().filter(|&at| is_written(at, kills)).collect()
    };
    assert_eq!(written(times), written(&kept), "none missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_camera_node_returns_with_all_it_had_captured() {
    let site = Site::new("");
    let _edge = site.edge();
    let client = site.client().await;
    let mut camera = site.camera();
    wait_for_camera(&client).await;
    let mut subscription = client.subscribe(request(Delivery::Every)).await.expect("subscribed");
    let mut watching = client.subscribe(request(Delivery::Latest)).await.expect("subscribed");
    let mut seen = Vec::new();
    let mut missed = Vec::new();
    let mut kills = Vec::new();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
    for round in 0..3 {
        let restarted = tidegate_process::clock::now();
        seen.extend(frames_from(&mut subscription, restarted, 20).await);
        let before = next_frame(&mut watching, &mut missed).await;
        camera.kill();
        kills.push(tidegate_process::clock::now());
        if round == 1 {
            // It captures, reaches no one, and is killed again.
            let alone = site.camera_to(nowhere);
            alone.line_with("frames of an earlier run are there");
            let before = site.segments("cam1");
            // One comes with the first frame, if none had come before, and the next is made ready early: the third new one comes
            // once a segment is full, which takes dozens of frames.
            let captured = poll(LONGEST, async || {
                let now = site.segments("cam1");
                let new = now.iter().filter(|segment| !before.contains(segment));
                (new.count() >= 3).then_some(())
            });
            captured.await.expect("it captures");
            alone.kill();
            kills.push(tidegate_process::clock::now());
            missed.clear();
        }
        let returned = tidegate_process::clock::now();
        camera = site.camera();
        // Frames from before the kill are read first.
        let mut after = next_frame(&mut watching, &mut missed).await;
        while after.captured_at < returned {
            after = next_frame(&mut watching, &mut missed).await;
        }
        assert!(after.captured_at > before.captured_at);
        assert_eq!(after.epoch, before.epoch, "its clock continues");
        // A subscription to the newest alone learns which it missed; one to every frame gets them, see below.
        let down = missed.iter().filter(|missed| missed.why == MissedWhy::LinkDown);
        let count: u64 = down.map(|missed| missed.count).sum();
        assert!(round != 1 || count >= 15, "{missed:?}");
    }
    seen.extend(frames_from(&mut subscription, tidegate_process::clock::now(), 20).await);
    let epoch = seen[0].epoch;
    assert!(seen.iter().all(|frame| frame.epoch == epoch));
    let times: Vec<Instant> = seen.iter().map(|frame| frame.captured_at).collect();
    assert_all_came(&client, &times, &kills).await;
    let original = client.fetch_original(&"cam1".parse().unwrap(), times[0]).await;
    assert_eq!(
        original.expect("it was captured three kills ago").jpeg.len() as u64,
        seen[0].original_bytes
    );
    assert!(!site.camera_log("cam1").join("0000000000000000.damaged").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_edge_node_returns_with_what_applications_published() {
    let site = Site::new("");
    let edge = site.edge();
    let registration =
        Registration { camera: "door".parse().unwrap(), size: None, frames_per_second: None };
    let client = site.client().await;
    client.register(registration.clone()).await.expect("registered");
    let mut publisher = client.publish(registration.camera.clone()).await.expect("a publisher");
    let jpeg = bytes::Bytes::from(crate::deliver::world_jpeg());
    let mut published = Vec::new();
    for _ in 0..50 {
        published.push(publisher.publish(None, jpeg.clone()).await.expect("published"));
    }
    edge.kill();
    let _edge = site.edge();
    let client = site.client().await;
    client.register(registration.clone()).await.expect("registered again");
    for &at in &published {
        let original = client.fetch_original(&registration.camera, at).await;
        assert_eq!(original.expect("it was published").jpeg, jpeg);
    }
    let mut publisher = client.publish(registration.camera.clone()).await.expect("a publisher");
    let at = publisher.publish(None, jpeg).await.expect("published");
    published.push(at);
    assert_eq!(published, captured(&client, "door", &published).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_go_on_without_a_loss_when_both_nodes_were_killed() {
    let site = Site::new("");
    let (mut edge, mut camera) = (site.edge(), site.camera());
    let client = site.client().await;
    wait_for_camera(&client).await;
    let mut subscription = client.subscribe(request(Delivery::Every)).await.expect("subscribed");
    let (mut times, mut kills) = (Vec::new(), Vec::new());
    for kills_camera in [false, true, true] {
        let from = tidegate_process::clock::now();
        let frames = frames_from(&mut subscription, from, 20).await;
        times.extend(frames.iter().map(|frame| frame.captured_at));
        edge.kill();
        if kills_camera {
            camera.kill();
            kills.push(tidegate_process::clock::now());
            camera = site.camera();
        }
        edge = site.edge();
    }
    let frames = frames_from(&mut subscription, tidegate_process::clock::now(), 20).await;
    times.extend(frames.iter().map(|frame| frame.captured_at));
    assert_all_came(&client, &times, &kills).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_that_flips_while_a_camera_is_down_costs_a_frame_at_most() {
    let site = Site::new("");
    let _edge = site.edge();
    let client = site.client().await;
    let camera = site.camera();
    wait_for_camera(&client).await;
    let mut subscription = client.subscribe(request(Delivery::Every)).await.expect("subscribed");
    let segments = || site.segments("cam1");
    let mut seen = Vec::new();
    while segments().len() < 4 {
        seen.push(next_frame(&mut subscription, &mut Vec::new()).await);
    }
    // A frame is on its way before it is written; those that follow it are written after it.
    for _ in 0..3 {
        next_frame(&mut subscription, &mut Vec::new()).await;
    }
    drop(subscription);
    camera.kill();
    assert_eq!(site.doctor().status.code(), Some(0));
    for path in segments() {
        flip(&path, 300_000);
    }
    let flipped = segments().len();
    let found = site.doctor();
    assert_eq!(found.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&found.stdout).expect("JSON");
    let lost = json["logs"][0]["lost"].as_u64().expect("a number");
    assert!((flipped as u64 - 2..=flipped as u64).contains(&lost), "{lost} of {flipped}: {json:#}");
    let _camera = site.camera();
    wait_for_camera(&client).await;
    let times: Vec<Instant> = seen.iter().map(|frame| frame.captured_at).collect();
    let kept = captured(&client, "cam1", &times).await;
    assert!(kept.is_sorted() && kept.iter().all(|at| times.contains(at)));
    let missing = times.len() - kept.len();
    assert!((1..=flipped).contains(&missing), "{missing} frames for {flipped} bytes");
}

fn flip(path: &Path, offset: usize) {
    let mut bytes = fs::read(path).expect("a segment");
    bytes[offset] ^= 0xff;
    fs::write(path, bytes).expect("a segment");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_camera_log_opens_with_its_key_and_another_key_stops_no_delivery() {
    let site = Site::new("at_rest = \"sealed\"\nkey_file = \"node.key\"\n");
    let key = site.folder.path().join("node.key");
    let make = |path: &Path| {
        let status = site.command(&["key"]).arg(path).stdout(Stdio::null()).status();
        assert!(status.expect("it runs").success());
    };
    make(&key);
    let _edge = site.edge();
    let client = site.client().await;
    let mut camera = site.camera();
    wait_for_camera(&client).await;
    let mut subscription = client.subscribe(request(Delivery::Every)).await.expect("subscribed");
    let first = next_frame(&mut subscription, &mut Vec::new()).await;
    // A frame is on its way before it is written; those that follow it are written after it.
    for _ in 0..10 {
        next_frame(&mut subscription, &mut Vec::new()).await;
    }
    let name = "cam1".parse().unwrap();
    let kept = site.folder.path().join("kept.key");
    for (is_right, what) in
        [(true, "the same key"), (false, "another key"), (true, "the key again")]
    {
        camera.kill();
        if !is_right {
            fs::rename(&key, &kept).expect("a file");
            make(&key);
        } else if kept.exists() {
            fs::rename(&kept, &key).expect("a file");
        }
        camera = site.camera();
        if !is_right {
            camera.line_with("frames are kept in memory only");
            assert_eq!(site.doctor().status.code(), Some(1));
        }
        wait_for_camera(&client).await;
        next_frame(&mut subscription, &mut Vec::new()).await;
        // The frame may have been under way before the camera ended, and its new link may take a while.
        let fetch = async || client.fetch_original(&name, first.captured_at).await;
        if is_right {
            poll(Duration::from_secs(20), async || fetch().await.ok()).await;
        }
        let original = fetch().await;
        assert_eq!(original.is_ok(), is_right, "{what}: {:?}", original.err());
    }
}

/// In a mount namespace of its own, with a small file system where the log is to be.
fn camera_on_small_disk(site: &Site, bytes: &str) -> Option<Running> {
    let can = Command::new("unshare").args(["-rm", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: no namespaces here");
        return None;
    }
    let edge = site.link.to_string();
    let plain = site.command(&["camera", "--name", "cam1", "--source", SCENE, "--edge", &edge]);
    fs::create_dir_all(site.data().join("log")).expect("a folder");
    let script = format!("mount -t tmpfs -o mode=700,size={bytes} tmpfs \"$0\" && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).arg(site.data().join("log"));
    command.arg(plain.get_program()).args(plain.get_args());
    command.current_dir(site.folder.path());
    command.env("TIDEGATE_LOG", "info").env("NO_COLOR", "1").stdin(Stdio::null());
    Some(Running::of(command))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_makes_a_log_smaller_and_stops_no_delivery() {
    for (bytes, told) in [
        ("13m", "the log drops its oldest frames before it reaches its size"),
        ("1m", "frames are not stored; they are delivered from memory"),
    ] {
        let site = Site::new("");
        let _edge = site.edge();
        let client = site.client().await;
        let Some(camera) = camera_on_small_disk(&site, bytes) else { return };
        wait_for_camera(&client).await;
        let mut subscription =
            client.subscribe(request(Delivery::Every)).await.expect("subscribed");
        let lines = thread::spawn(move || {
            camera.line_with(told);
            camera
        });
        let mut seen = Vec::new();
        while !lines.is_finished() {
            seen.push(next_frame(&mut subscription, &mut Vec::new()).await.captured_at);
        }
        let _camera = lines.join().expect("it is reported");
        for _ in 0..20 {
            seen.push(next_frame(&mut subscription, &mut Vec::new()).await.captured_at);
        }
        let newest = &seen[seen.len() - 20..];
        assert_eq!(newest, captured(&client, "cam1", newest).await, "{bytes}");
    }
}
