//! A running link emulation.

use std::{
    fs, io,
    net::Ipv4Addr,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::mpsc::{Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use tidegate_sim::medium::{Change, ChangeError, DirectionStats, Scenario};
use tidegate_sys::{
    sched::{self, SchedError},
    tun::{TUN_PATH, Tun, TunError},
};

use crate::{
    Audit, MTU,
    awake::Awake,
    emulator::{self, Report, Request, Setup},
    namespace::{OwnedNamespace, unique_prefix},
};

/// Packets that a device holds until the emulator reads them: enough for 100 ms at a gigabit per
/// second, so that a late emulator delays packets and does not lose them.
const DEVICE_PACKETS: usize = 10_000;
/// Above other threads, below what the kernel itself runs in real time.
const REAL_TIME_PRIORITY: u8 = 10;

/// How a lab runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Real-time priority for the emulator, and no rest for idle processors. Default true; without it
    /// figures from a busy or a virtual machine are worthless. If the kernel refuses the priority, the
    /// lab runs without, and [`Lab::warning`] says so.
    pub real_time: bool,
    /// How long the emulator sleeps while packets are due all the time. Default 100 us: half the
    /// processor time of waking for each packet, and 50 us of delay on average. 0 wakes for each.
    pub tick: Duration,
    /// The prefix of namespace names; the node's name follows. Default: unique on this machine.
    pub prefix: Option<String>,
    /// Path of a control socket for [`control::ask`](crate::control::ask). Default none.
    pub control: Option<PathBuf>,
    /// Seed of all chance, if not the scenario's.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        let tick = Duration::from_micros(100);
        Self { real_time: true, tick, prefix: None, control: None, seed: None }
    }
}

/// A running link emulation; everything it made is removed when it is dropped.
///
/// Processes that were started with [`Lab::exec`] are their owner's: end them first, what is left
/// of them has no network any more.
#[derive(Debug)]
pub struct Lab {
    // Fields are dropped in this order: the emulator stops and closes its devices, then the
    // namespaces go.
    emulator: Emulator,
    warning: Option<SchedError>,
    /// Held for its end.
    _awake: Option<Awake>,
    /// Held for its end, which removes the file.
    _control: Option<ControlFile>,
    nodes: Vec<Node>,
}

/// A node of a running lab.
#[derive(Debug)]
pub struct Node {
    name: String,
    namespace: OwnedNamespace,
    /// Name of the medium, which is that of the device, and address there.
    addresses: Vec<(String, Ipv4Addr)>,
}

impl Node {
    /// The name that the scenario gives it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its namespace, as `ip netns exec` takes it.
    pub fn namespace(&self) -> &str {
        &self.namespace.name
    }

    /// Its devices, named as the media, with their addresses; never empty.
    pub fn addresses(&self) -> &[(String, Ipv4Addr)] {
        &self.addresses
    }
}

impl Lab {
    /// Makes the namespaces and devices of a scenario and starts to move packets.
    ///
    /// # Errors
    /// [`LabError::NeedsRoot`] where namespaces and devices cannot be made, others if making one
    /// failed. Nothing is left behind.
    pub fn up(scenario: &Scenario, options: &Options) -> Result<Self, LabError> {
        check_rights()?;
        let prefix = options.prefix.clone().unwrap_or_else(unique_prefix);
        let mut nodes = Vec::new();
        for name in scenario.nodes() {
            let namespace = OwnedNamespace::create(format!("{prefix}{name}"))?;
            nodes.push(Node { name: name.into(), namespace, addresses: Vec::new() });
        }
        let mut devices = Vec::new();
        for (_, medium, port) in scenario.ports() {
            let node = nodes.iter_mut().find(|node| node.name == port.node);
            let node = node.expect("a node was made for every port");
            devices.push(node.namespace.within(|| Tun::open(&medium.name)).map_err(enter)??);
            let device = &medium.name;
            let (address, length) = port.address;
            let mut lines = format!(
                "link set lo up\n\
                 link set dev {device} mtu {MTU} txqueuelen {DEVICE_PACKETS} up\n\
                 address add {address}/{length} dev {device}\n"
            );
            if port.default_route {
                lines += &format!("route add default dev {device}\n");
            }
            for (network, length) in &port.routes {
                lines += &format!("route add {network}/{length} dev {device}\n");
            }
            node.namespace.ip_batch(&lines)?;
            node.addresses.push((device.clone(), address));
        }
        for node in nodes.iter().filter(|node| node.addresses.len() > 1) {
            let forward = || fs::write("/proc/sys/net/ipv4/ip_forward", "1");
            node.namespace.within(forward).and_then(|written| written).map_err(enter)?;
        }
        let control = options.control.as_deref().map(ControlFile::bind).transpose()?;
        let awake = options.real_time.then(Awake::start).transpose();
        let awake = awake.map_err(|source| LabError::Emulator { source })?;
        let (emulator, warning) = Emulator::start(scenario, options, devices, control.as_ref())?;
        Ok(Self { emulator, warning, _awake: awake, _control: control, nodes })
    }

    /// The nodes, in the scenario's order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of that name.
    ///
    /// # Errors
    /// [`LabError::UnknownNode`].
    pub fn node(&self, name: &str) -> Result<&Node, LabError> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| LabError::UnknownNode {
            node: name.into(),
            known: self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(" "),
        })
    }

    /// The node's address on its first medium.
    ///
    /// # Errors
    /// [`LabError::UnknownNode`].
    pub fn address(&self, node: &str) -> Result<Ipv4Addr, LabError> {
        Ok(self.node(node)?.addresses[0].1)
    }

    /// Why the emulator runs without the real-time priority that was asked for.
    pub fn warning(&self) -> Option<&SchedError> {
        self.warning.as_ref()
    }

    /// Starts a process inside a node. It keeps the caller's files, folder and variables; only the
    /// network is the node's.
    ///
    /// # Errors
    /// [`LabError::UnknownNode`], or [`LabError::Spawn`].
    pub fn exec(&self, node: &str, mut command: Command) -> Result<Child, LabError> {
        let namespace = &self.node(node)?.namespace.namespace;
        let started = namespace.attach(&mut command).and_then(|()| command.spawn());
        started.map_err(|source| {
            let program = command.get_program().to_string_lossy().into_owned();
            LabError::Spawn { program, node: node.into(), source }
        })
    }

    /// Runs a closure on a thread inside a node and returns its result. Sockets that it makes stay
    /// in the node wherever they are used later.
    ///
    /// # Errors
    /// [`LabError::UnknownNode`], or [`LabError::Enter`].
    ///
    /// # Panics
    /// If the closure does.
    pub fn within<R: Send>(
        &self,
        node: &str,
        work: impl FnOnce() -> R + Send,
    ) -> Result<R, LabError> {
        self.node(node)?.namespace.within(work).map_err(enter)
    }

    /// Changes a medium now.
    ///
    /// # Errors
    /// [`LabError::Change`] if the change is refused, [`LabError::Stopped`] if the emulator has
    /// failed; [`Lab::finish`] then says why.
    pub fn apply(&self, change: Change) -> Result<(), LabError> {
        Ok(self.emulator.ask(|reply| Request::Apply(change, reply))??)
    }

    /// Counters of every direction now.
    ///
    /// # Errors
    /// [`LabError::Stopped`] if the emulator has failed; [`Lab::finish`] then says why.
    pub fn stats(&self) -> Result<Vec<DirectionStats>, LabError> {
        self.emulator.ask(Request::Stats)
    }

    /// Stops, removes the namespaces, and reports how it went.
    ///
    /// # Errors
    /// [`LabError::Emulator`] if the emulator had failed, [`LabError::Enter`] if the kernel's own
    /// drops cannot be read.
    pub fn finish(mut self) -> Result<Audit, LabError> {
        let real_time = self.emulator.real_time;
        let kernel_dropped = self.kernel_dropped()?;
        let Report { duration, cpu, delivered, lateness, refused, ignored, directions } =
            self.emulator.stop()?;
        Ok(Audit {
            duration,
            cpu,
            real_time,
            delivered,
            lateness,
            kernel_dropped,
            refused,
            ignored,
            directions,
        })
    }

    /// Packets that devices dropped before the emulator could read them.
    fn kernel_dropped(&self) -> Result<u64, LabError> {
        let mut dropped = 0;
        for node in &self.nodes {
            let read = || fs::read_to_string("/proc/thread-self/net/dev");
            let text = node.namespace.within(read).and_then(|text| text).map_err(enter)?;
            for (device, _) in &node.addresses {
                dropped += sent_dropped(&text, device).unwrap_or(0);
            }
        }
        Ok(dropped)
    }
}

/// The column of dropped packets on their way out, of one device in `/proc/net/dev`.
fn sent_dropped(text: &str, device: &str) -> Option<u64> {
    let of_device = |line: &str| {
        let (name, columns) = line.split_once(':')?;
        (name.trim() == device).then(|| columns.to_owned())
    };
    let columns = text.lines().find_map(of_device)?;
    // Eight columns of receiving, then bytes, packets, errors, dropped of sending.
    columns.split_whitespace().nth(11)?.parse().ok()
}

/// The emulator's thread.
#[derive(Debug)]
struct Emulator {
    requests: Sender<Request>,
    wake: UnixDatagram,
    thread: Option<JoinHandle<io::Result<Report>>>,
    real_time: bool,
}

impl Emulator {
    fn start(
        scenario: &Scenario,
        options: &Options,
        devices: Vec<Tun>,
        control: Option<&ControlFile>,
    ) -> Result<(Self, Option<SchedError>), LabError> {
        let thread_error = |source| LabError::Emulator { source };
        let (wake, woken) = UnixDatagram::pair().map_err(thread_error)?;
        for socket in [&wake, &woken] {
            socket.set_nonblocking(true).map_err(thread_error)?;
        }
        let (requests, received) = channel();
        let setup = Setup {
            scenario: scenario.clone(),
            seed: options.seed.unwrap_or(scenario.seed),
            tick: options.tick,
            devices,
            requests: received,
            wake: woken,
            control: control
                .map(|file| file.socket.try_clone())
                .transpose()
                .map_err(thread_error)?,
        };
        let real_time = options.real_time;
        let (ready, priority) = channel();
        let thread = std::thread::Builder::new().name("link-emulator".into());
        let thread = thread.spawn(move || {
            let priority = if real_time { sched::real_time(REAL_TIME_PRIORITY) } else { Ok(()) };
            let slack = sched::timer_slack(Duration::from_micros(1));
            // The lab waits for this answer, so it is there to take it.
            let _ = ready.send(priority.and(slack));
            emulator::run(&setup)
        });
        let thread = Some(thread.map_err(thread_error)?);
        let warning = priority.recv().map_err(|_| LabError::Stopped)?.err();
        let real_time = real_time && warning.is_none();
        Ok((Self { requests, wake, thread, real_time }, warning))
    }

    fn ask<A>(&self, request: impl FnOnce(Sender<A>) -> Request) -> Result<A, LabError> {
        let (reply, answer) = channel();
        self.tell(request(reply))?;
        answer.recv().map_err(|_| LabError::Stopped)
    }

    fn tell(&self, request: Request) -> Result<(), LabError> {
        self.requests.send(request).map_err(|_| LabError::Stopped)?;
        match self.wake.send(&[0]) {
            // A full socket wakes as well as one more datagram would.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(LabError::Stopped),
            _ => Ok(()),
        }
    }

    fn stop(&mut self) -> Result<Report, LabError> {
        // An emulator that has stopped by itself tells why when it is joined.
        let _ = self.tell(Request::Stop);
        let thread = self.thread.take().ok_or(LabError::Stopped)?;
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended.map_err(|source| LabError::Emulator { source })
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.tell(Request::Stop);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the link emulator panicked");
        }
    }
}

/// A control socket whose file is removed when dropped.
#[derive(Debug)]
struct ControlFile {
    path: PathBuf,
    socket: UnixDatagram,
}

impl ControlFile {
    fn bind(path: &Path) -> Result<Self, LabError> {
        let control = |source| LabError::Control { path: path.into(), source };
        let socket = UnixDatagram::bind(path).map_err(control)?;
        socket.set_nonblocking(true).map_err(control)?;
        Ok(Self { path: path.into(), socket })
    }
}

impl Drop for ControlFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("control socket {} stays behind: {error}", self.path.display());
        }
    }
}

/// Refuses early and in plain words where a lab cannot be made.
fn check_rights() -> Result<(), LabError> {
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let needed = 1 << NET_ADMIN | 1 << SYS_ADMIN;
    if rights & needed != needed {
        return Err(LabError::NeedsRoot { reason: "this process may not make network namespaces" });
    }
    if fs::File::open(TUN_PATH).is_err() {
        return Err(LabError::NeedsRoot { reason: "this machine has no usable /dev/net/tun" });
    }
    Ok(())
}

fn enter(source: io::Error) -> LabError {
    LabError::Enter { source }
}

/// Why a lab is not up, or did not obey a command.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Namespaces and devices are for root, or for `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`.
    #[error(
        "{reason}: link emulation needs root and {TUN_PATH}; the same scenario runs in virtual \
         time: tidegate-netlab check SCENARIO --for 60s"
    )]
    NeedsRoot {
        /// The missing part.
        reason: &'static str,
    },
    /// The `ip` program cannot be run.
    #[error("cannot run `{command}`; it is in the package iproute2")]
    Ip {
        /// The command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// The `ip` program refused.
    #[error("`{command}` failed: {said}")]
    IpRefused {
        /// The command.
        command: String,
        /// Its message.
        said: String,
    },
    /// A device or namespace cannot be made.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// A namespace cannot be entered or read.
    #[error("cannot work inside a namespace")]
    Enter {
        /// Why.
        source: io::Error,
    },
    /// The control socket cannot be made.
    #[error("cannot make control socket {path}", path = path.display())]
    Control {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No node of that name.
    #[error("no node {node:?}; there are: {known}")]
    UnknownNode {
        /// The name.
        node: String,
        /// Names that exist.
        known: String,
    },
    /// A process cannot be started.
    #[error("cannot start {program} in node {node}")]
    Spawn {
        /// The program.
        program: String,
        /// The node.
        node: String,
        /// Why.
        source: io::Error,
    },
    /// A change was refused.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The emulator has stopped by itself.
    #[error("the link emulator has stopped")]
    Stopped,
    /// The emulator failed.
    #[error("the link emulator failed")]
    Emulator {
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_of_dropped_packets_is_found() {
        let text = "Inter-|   Receive            |  Transmit\n face |bytes ...\n\
             lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
             wan0: 0 0 0 7 0 0 0 0 900 6 0 42 0 0 0 0\n";
        assert_eq!(sent_dropped(text, "wan0"), Some(42));
        assert_eq!(sent_dropped(text, "wan"), None);
    }
}
