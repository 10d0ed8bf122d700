//! Nine cameras as MJPEG, as a page of nine tiles shows them: the processor that 20 viewers take beyond the first, and whether one that does not read
//! holds up the others.

use std::{
    fmt::Write as _,
    fs,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target};
use tidegate_load::vision::{self, Link};

use crate::{
    Plan, images,
    node::{Node, NodeConfig},
    site::Place,
};

const CAMERAS: usize = 9;
const FPS: f64 = 5.0;
const BYTES: usize = 50_000;
const VIEWERS: usize = 20;
/// Most of a core, in per cent, beyond what one viewer takes.
const CPU_MAX: f64 = 5.0;
/// Least frames a second of each stream while a viewer does not read.
const FPS_MIN: f64 = 4.75;
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest wait for a camera that the node has just begun to read.
const REGISTERED_MAX: Duration = Duration::from_secs(20);
/// For the streams to come to an even pace.
const SETTLE: Duration = Duration::from_secs(2);
/// Each opens some five hundred streams.
const RUNS_MAX: usize = 2;

/// Processor time by plain HTTP and by TLS, and a viewer that does not read.
///
/// # Errors
/// The node does not serve, or a stream ends.
pub fn mjpeg(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let length = Duration::from_secs(if plan.quick { 4 } else { 8 });
    let folder = tempfile::tempdir().context("making a folder for pictures")?;
    for number in 0..10 {
        let made = images::jpeg_of(&images::noise(640, 360, 20.0, number + 1), BYTES)?;
        fs::write(folder.path().join(format!("{number}.jpg")), made)?;
    }
    report.configuration(
        "mjpeg",
        format!(
            "{CAMERAS} cameras of 640 x 360, {FPS} frames a second of some {} KB; a viewer has a connection for each; {} s; beyond encoding: \
             what {VIEWERS} viewers take beyond one",
            BYTES / 1000,
            length.as_secs()
        ),
    );
    let mut more =
        "[log]\ncamera_bytes = \"16MiB\"\n\n[frames]\nframe_bytes_max = \"1MiB\"\n".to_owned();
    for number in 0..CAMERAS {
        let source = format!("folder:{}?fps={FPS}&loop=1", folder.path().display());
        let _ = write!(more, "\n[camera.cam{number}]\nsource = {source:?}\n");
    }
    for (name, is_tls) in [("without TLS", false), ("TLS", true)] {
        let config = NodeConfig { pictures: !is_tls, more: more.clone(), ..NodeConfig::default() };
        let (mut cpu, mut rate, mut beside_slow) = (Vec::new(), Vec::new(), Vec::new());
        let measured = (0..plan.runs.min(RUNS_MAX)).try_for_each(|_| {
            let node = Node::start(Place::Here, &config)?;
            let target = node.pictures("127.0.0.1", is_tls)?;
            let one = watch(&node, &target, 1, 0, length)?;
            let all = watch(&node, &target, VIEWERS, 0, length)?;
            let with_slow = watch(&node, &target, VIEWERS, 1, length)?;
            cpu.push(all.cpu_percent - one.cpu_percent);
            rate.push(all.bytes_per_second / 1e6);
            beside_slow.push(with_slow.fps_min);
            anyhow::Ok(())
        });
        if let Err(error) = measured {
            report.figure(
                Figure::new(format!("mjpeg, {name}, {VIEWERS} viewers beyond one, of a core"), "%")
                    .target(Target::AtMost(CPU_MAX))
                    .note(format!("not measured: {error:#}")),
            );
            continue;
        }
        let figure =
            Figure::new(format!("mjpeg, {name}, {VIEWERS} viewers beyond one, of a core"), "%")
                .ours(cpu)
                .note(format!("{:.1} MB a second", bench_harness::median(&rate)));
        report.figure(if is_tls { figure } else { figure.target(Target::AtMost(CPU_MAX)) });
        report.figure(
            Figure::new(
                format!("mjpeg, {name}, slowest stream beside one that is not read"),
                "fps",
            )
            .ours(beside_slow)
            .target(Target::AtLeast(FPS_MIN)),
        );
    }
    Ok(())
}

struct Watched {
    cpu_percent: f64,
    bytes_per_second: f64,
    /// Of the slowest stream.
    fps_min: f64,
}

/// Has viewers watch all cameras, and others that ask and never read.
fn watch(
    node: &Node,
    target: &vision::Target,
    viewers: usize,
    idle: usize,
    length: Duration,
) -> anyhow::Result<Watched> {
    let stop = AtomicBool::new(false);
    let streams = viewers * CAMERAS;
    let ready = Arc::new(Barrier::new(streams + 1));
    // One after the other: a node bounds the handshakes that one address has under way.
    let opening = Mutex::new(());
    let counts: Vec<[AtomicU64; 2]> = (0..streams).map(|_| Default::default()).collect();
    // A stream that is asked for and not read: the kernel's buffers take some seconds of it.
    let mut held = Vec::new();
    for _ in 0..idle {
        for camera in 0..CAMERAS {
            held.push(open(target, camera)?);
        }
    }
    let watched = thread::scope(|scope| {
        let threads: Vec<_> = (0..streams)
            .map(|number| {
                let (ready, counts) = (ready.clone(), &counts[number]);
                let (opening, stop) = (&opening, &stop);
                let thread = thread::Builder::new().stack_size(256 << 10);
                thread.spawn_scoped(scope, move || {
                    let opened = {
                        let _turn = opening.lock();
                        open(target, number % CAMERAS)
                    };
                    ready.wait();
                    opened?.read(counts, stop)
                })
            })
            .collect::<Result<_, _>>()
            .context("starting viewers")?;
        ready.wait();
        thread::sleep(SETTLE);
        let of = |counts: &[AtomicU64; 2]| counts.each_ref().map(|c| c.load(Ordering::Relaxed));
        let before: Vec<_> = counts.iter().map(of).collect();
        let (cpu, began) = (node.cpu()?, Instant::now());
        thread::sleep(length);
        let used = node.cpu()?.own - cpu.own;
        let seconds = began.elapsed().as_secs_f64();
        let after: Vec<_> = counts.iter().map(of).collect();
        stop.store(true, Ordering::Relaxed);
        let threads: Vec<thread::ScopedJoinHandle<'_, anyhow::Result<()>>> = threads;
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let moved = |which: usize| {
            before
                .iter()
                .zip(&after)
                .map(move |(before, after)| (after[which] - before[which]) as f64)
        };
        anyhow::Ok(Watched {
            cpu_percent: used / seconds * 100.0,
            bytes_per_second: moved(1).sum::<f64>() / seconds,
            fps_min: moved(0).fold(f64::INFINITY, f64::min) / seconds,
        })
    })?;
    drop(held);
    Ok(watched)
}

/// A stream of a camera, behind the head of its answer.
struct Stream {
    link: Link,
    /// Bytes left of the chunk that is read; none if the answer comes without chunks.
    chunk: Option<usize>,
}

/// Asks for a camera's stream, once the camera is there.
fn open(target: &vision::Target, camera: usize) -> anyhow::Result<Stream> {
    let end = Instant::now() + REGISTERED_MAX;
    loop {
        match ask(target, camera) {
            Err(error) if Instant::now() < end && error.to_string().contains(" 404") => {
                thread::sleep(Duration::from_millis(50));
            }
            asked => return asked,
        }
    }
}

/// Asks for a camera's stream and reads the head of the answer.
fn ask(target: &vision::Target, camera: usize) -> anyhow::Result<Stream> {
    let mut link = target.connect().context("connecting to the node")?;
    let request = format!(
        "GET /cameras/cam{camera}/mjpeg?fps={FPS}&latency_ms=1000&accuracy=1 HTTP/1.1\r\nHost: {}\r\n\r\n",
        target.authority()
    );
    link.send(request.as_bytes())?;
    let head = link.until(b"\r\n\r\n", HEAD_BYTES_MAX)?;
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    ensure!(
        head.starts_with("http/1.1 200"),
        "the stream of cam{camera} was refused: {}",
        head.lines().next().unwrap_or_default()
    );
    let chunk = head.contains("transfer-encoding: chunked").then_some(0);
    Ok(Stream { link, chunk })
}

impl Stream {
    /// Counts frames and bytes until it is to stop.
    fn read(&mut self, counts: &[AtomicU64; 2], stop: &AtomicBool) -> anyhow::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let mut left = self.part()?;
            while left > 0 {
                let taken = self.there()?.min(left);
                self.skip(taken);
                left -= taken;
                counts[1].fetch_add(taken as u64, Ordering::Relaxed);
            }
            counts[0].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads the head of the next part; returns the length of its image.
    fn part(&mut self) -> anyhow::Result<usize> {
        let mut head = Vec::new();
        // Byte by byte: a head is short, and may lie across chunks.
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(head.len() < HEAD_BYTES_MAX, "the head of a part has no end");
            self.there()?;
            head.push(self.link.held()[0]);
            self.skip(1);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        length.and_then(|length| length.trim().parse().ok()).context("a part without a length")
    }

    /// Waits for bytes of the stream; returns how many are there.
    fn there(&mut self) -> anyhow::Result<usize> {
        if self.chunk == Some(0) {
            let mut line = self.link.until(b"\r\n", HEAD_BYTES_MAX)?;
            if line == b"\r\n" {
                line = self.link.until(b"\r\n", HEAD_BYTES_MAX)?; // behind the chunk before
            }
            let digits = String::from_utf8_lossy(&line);
            let bytes = usize::from_str_radix(digits.trim(), 16).context("reading a chunk")?;
            ensure!(bytes > 0, "the node ended the stream");
            self.chunk = Some(bytes);
        }
        if self.link.held().is_empty() {
            self.link.fill()?;
        }
        Ok(self.link.held().len().min(self.chunk.unwrap_or(usize::MAX)))
    }

    fn skip(&mut self, bytes: usize) {
        self.link.skip(bytes);
        self.chunk = self.chunk.map(|left| left - bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
    };

    use super::*;

    #[test]
    fn frames_are_counted_with_and_without_chunks() {
        const PLAIN: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n--b\r\nContent-Length: 3\r\n\r\nabc\r\n--b\r\ncontent-length: 2\r\n\r\nde";
        const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\n--b\r\nContent-Length: 3\r\n\r\nab\r\n1\r\nc\r\n5\r\n\r\n--b\r\n19\r\n\r\ncontent-length: 2\r\n\r\nde\r\n";
        for bytes in [PLAIN, CHUNKED] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = thread::spawn(move || {
                let (mut tcp, _) = listener.accept().unwrap();
                // A request that is not read would reset the connection.
                let request = BufReader::new(tcp.try_clone().unwrap()).lines();
                assert!(request.map_while(Result::ok).any(|line| line.is_empty()));
                bytes.chunks(7).for_each(|piece| tcp.write_all(piece).unwrap());
            });
            let (host, timeout) = ("127.0.0.1".to_owned(), Duration::from_secs(10));
            let target = vision::Target { host, port, tls: None, server_name: None, timeout };
            let mut stream = ask(&target, 0).unwrap();
            let counts = Default::default();
            // It counts both, and then the server is gone.
            assert!(stream.read(&counts, &AtomicBool::new(false)).is_err());
            server.join().unwrap();
            assert_eq!(counts.map(AtomicU64::into_inner), [2, 5]);
        }
    }
}
