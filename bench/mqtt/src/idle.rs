//! Connections that only ping, and how many fit into one broker.
//!
//! Clients are held by child processes of this program, since a process has 20,000 descriptors here and the broker needs its own.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use bench_harness::{Figure, Owned, Report, Target};
use rustix::process::{Resource, getrlimit, setrlimit};
use tidegate_wire::mqtt::{Connect, ConnectProperties, Packet, Version};

use crate::{
    Plan,
    broker::{Broker, Kind, Programs, Setup},
};

/// Connections of the row that has a target.
const IDLE: u32 = 5_000;
/// Most kilobytes of one.
const IDLE_KB_MAX: f64 = 5.0;
/// Sockets of one broker.
const SOCKETS: u32 = 19_000;
/// Connections of one child.
const CHILD_CONNECTIONS: u32 = 9_500;
/// For memory to come to rest.
const SETTLE: Duration = Duration::from_secs(1);

/// Memory of a connection that does nothing, in the broker and in the kernel; then as many as one process may have.
///
/// # Errors
/// Ours does not serve, or does not take the connections.
pub fn idle(
    plan: &Plan,
    programs: &Programs,
    contenders: &[Kind],
    report: &mut Report,
) -> anyhow::Result<()> {
    let runs = if plan.quick { 1 } else { plan.runs };
    let mut held: Vec<(Kind, Vec<Held>)> =
        contenders.iter().map(|kind| (*kind, Vec::new())).collect();
    let mut failed = Vec::new();
    for _ in 0..runs {
        for (kind, held) in &mut held {
            match hold(programs, *kind, IDLE) {
                Ok(one) => held.push(one),
                Err(error) if *kind == Kind::Tidegate => return Err(error),
                Err(error) => failed.push(format!("{}: {error:#}", kind.name())),
            }
        }
    }
    let of = |kind: Kind, pick: fn(&Held) -> f64| -> Vec<f64> {
        held.iter().filter(|(of, _)| *of == kind).flat_map(|(_, held)| held).map(pick).collect()
    };
    for peer in contenders.iter().filter(|kind| **kind != Kind::Tidegate) {
        let mut figure = Figure::new(
            format!("idle, {IDLE} connections, resident each, beside {}", peer.name()),
            "KB",
        )
        .ours(of(Kind::Tidegate, |held| held.resident_kb))
        .peer(of(*peer, |held| held.resident_kb))
        .peer_name(peer.name());
        if *peer == Kind::Mosquitto {
            figure = figure.target(Target::AtMost(IDLE_KB_MAX));
        }
        report.figure(figure);
    }
    if !contenders.contains(&Kind::Mosquitto) {
        let figure = Figure::new(format!("idle, {IDLE} connections, resident each"), "KB");
        let ours = of(Kind::Tidegate, |held| held.resident_kb);
        report.figure(figure.ours(ours).target(Target::AtMost(IDLE_KB_MAX)));
    }
    let mut kernel = Figure::new(
        format!("idle, {IDLE} connections, kernel's socket memory each, both ends"),
        "KB",
    )
    .ours(of(Kind::Tidegate, |held| held.kernel_kb))
    .peer(of(Kind::Mosquitto, |held| held.kernel_kb))
    .peer_name(Kind::Mosquitto.name());
    if !failed.is_empty() {
        kernel = kernel.note(failed.join("; "));
    }
    report.figure(kernel);
    if !plan.quick {
        let many = hold(programs, Kind::Tidegate, SOCKETS)?;
        let figure = Figure::new("idle, sockets in one broker process", "");
        report.figure(
            figure
                .ours([f64::from(many.answered)])
                .target(Target::AtLeast(f64::from(SOCKETS)))
                .note("each was pinged and answered; clients in child processes of 9,500"),
        );
        let figure = Figure::new(format!("idle, {SOCKETS} connections, resident each"), "KB");
        report.figure(figure.ours([many.resident_kb]));
    }
    Ok(())
}

struct Held {
    resident_kb: f64,
    kernel_kb: f64,
    answered: u32,
}

fn hold(programs: &Programs, kind: Kind, count: u32) -> anyhow::Result<Held> {
    let broker = programs.start(kind, &Setup::default())?;
    thread::sleep(SETTLE);
    let (resident, kernel) = (broker.usage()?.resident_bytes, kernel_bytes()?);
    let mut children = Vec::new();
    let mut left = count;
    while left > 0 {
        let share = left.min(CHILD_CONNECTIONS);
        children.push(Holder::start(&broker, share, children.len())?);
        left -= share;
    }
    for child in &mut children {
        child.line("held")?;
    }
    thread::sleep(SETTLE);
    let resident_after = broker.usage()?.resident_bytes;
    let kernel_after = kernel_bytes()?;
    let mut answered = 0;
    for child in &mut children {
        answered += child.ping()?;
    }
    let each = |bytes: u64| bytes as f64 / 1000.0 / f64::from(count);
    Ok(Held {
        resident_kb: each(resident_after.saturating_sub(resident)),
        kernel_kb: each(kernel_after.saturating_sub(kernel)),
        answered,
    })
}

/// The kernel's memory for TCP sockets, in bytes.
fn kernel_bytes() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/net/sockstat").context("reading /proc/net/sockstat")?;
    let line = text.lines().find(|line| line.starts_with("TCP:"));
    let mut words = line.unwrap_or_default().split_whitespace().skip_while(|word| *word != "mem");
    let pages: u64 =
        words.nth(1).and_then(|pages| pages.parse().ok()).context("no TCP memory in sockstat")?;
    Ok(pages * 4096 + slab_bytes())
}

/// The kernel's caches of sockets, which `sockstat` leaves out; zero where they are not known.
fn slab_bytes() -> u64 {
    let text = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let of = |line: &str| -> Option<u64> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        if !["TCP", "sock_inode_cache", "filp", "tw_sock_TCP", "eventpoll_epi"].contains(&name) {
            return None;
        }
        let active: u64 = words.next()?.parse().ok()?;
        let bytes: u64 = words.nth(1)?.parse().ok()?;
        Some(active * bytes)
    };
    text.lines().filter_map(of).sum()
}

/// A child process that holds connections.
struct Holder {
    child: Owned,
    said: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(broker: &Broker, count: u32, index: usize) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("finding this program")?;
        // A source address has ports for some 28,000 connections to one target.
        let source = Ipv4Addr::new(127, 0, 0, 2 + index as u8);
        let mut child: Child = Command::new(own)
            .args(["hold", &broker.target(), &count.to_string(), &source.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a holder of connections")?;
        let said = child.stdout.take().context("a holder's output is piped")?;
        Ok(Self { child: Owned::new(child), said: BufReader::new(said) })
    }

    fn line(&mut self, expected: &str) -> anyhow::Result<u32> {
        let mut line = String::new();
        self.said.read_line(&mut line).context("reading what a holder says")?;
        let Some(number) = line.trim().strip_prefix(expected) else {
            bail!("a holder of connections said {:?}, not {expected}", line.trim());
        };
        number.trim().parse().with_context(|| format!("a holder said {line:?}"))
    }

    /// How many connections answer.
    fn ping(&mut self) -> anyhow::Result<u32> {
        let to = self.child.0.stdin.as_mut().context("a holder's input is piped")?;
        to.write_all(b"ping\n").context("asking a holder to ping")?;
        self.line("answered")
    }
}

/// A child process: connects `count` clients to `target` from `source`, says so, pings all on request, and ends with its input.
///
/// # Errors
/// A connection fails.
pub fn holder(target: SocketAddr, count: u32, source: Ipv4Addr) -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit); // what is not allowed shows as a failed connection
    let mut clients = Vec::new();
    for number in 0..count {
        let client = greet(target, source, number);
        clients.push(client.with_context(|| format!("connection {number}"))?);
    }
    println!("held {count}");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        let mut answered = 0;
        for client in &mut clients {
            let mut answer = [0; 2];
            let asked = client.write_all(&[0xC0, 0]).and_then(|()| client.read_exact(&mut answer));
            answered += u32::from(asked.is_ok() && answer == [0xD0, 0]);
        }
        println!("answered {answered}");
        line.clear();
    }
    Ok(())
}

fn greet(target: SocketAddr, source: Ipv4Addr, number: u32) -> anyhow::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    socket.connect(&target.into())?;
    let mut client = TcpStream::from(socket);
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    let connect = Connect {
        version: Version::V4,
        bridge: false,
        clean_start: true,
        keep_alive: 600, // rumqttd refuses 0
        client_id: format!("idle{}n{number}", source.octets()[3]), // NATS takes no dots
        will: None,
        username: None,
        password: None,
        properties: ConnectProperties::default(),
    };
    let mut packet = Vec::new();
    Packet::Connect(Box::new(connect)).encode(Version::V4, &mut packet)?;
    client.write_all(&packet)?;
    let mut answer = [0; 4];
    client.read_exact(&mut answer)?;
    ensure!(answer == [0x20, 2, 0, 0], "refused with {answer:?}");
    Ok(client)
}
