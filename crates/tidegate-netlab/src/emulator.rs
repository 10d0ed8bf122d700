//! The thread that moves packets between devices and the medium.
//!
//! Per packet: one read, one write, no allocation after warm-up. While packets are due within a tick the
//! thread sleeps whole ticks and then delivers and reads all there is; otherwise it waits for the next
//! event or packet. A tick of 100 us halves the processor time against waking for every packet and
//! delays a packet by 50 us on average.

use std::{
    cell::RefCell,
    io,
    os::{fd::AsFd, unix::net::UnixDatagram},
    rc::Rc,
    sync::mpsc::{Receiver, Sender, TryRecvError},
    time::Duration,
};

use hdrhistogram::Histogram;
use tidegate_message::Instant;
use tidegate_sim::medium::{
    Change, ChangeError, Delivery, DirectionStats, Ingress, Medium, PacketRef, PortId, Scenario,
};
use tidegate_sys::{
    clock,
    tun::{PollSet, Tun},
};

use crate::{MTU, audit::Lateness, control};

/// Packets read from one device before the others have their turn.
const BATCH: usize = 256;

/// A request of the lab to the running emulator.
pub(crate) enum Request {
    Apply(Change, Sender<Result<(), ChangeError>>),
    Stats(Sender<Vec<DirectionStats>>),
    Stop,
}

/// The emulator's report at the end of a run.
pub(crate) struct Report {
    pub(crate) duration: Duration,
    pub(crate) cpu: Duration,
    pub(crate) delivered: u64,
    pub(crate) lateness: Lateness,
    pub(crate) refused: u64,
    pub(crate) ignored: u64,
    pub(crate) directions: Vec<DirectionStats>,
}

/// Everything the emulator runs on; it is assembled on the thread that runs it.
pub(crate) struct Setup {
    pub(crate) scenario: Scenario,
    pub(crate) seed: u64,
    pub(crate) tick: Duration,
    /// The devices, in order of the ports.
    pub(crate) devices: Vec<Tun>,
    pub(crate) requests: Receiver<Request>,
    /// Gets a datagram with every request.
    pub(crate) wake: UnixDatagram,
    pub(crate) control: Option<UnixDatagram>,
}

pub(crate) fn run(setup: &Setup) -> io::Result<Report> {
    let mut emulator = Emulator {
        medium: Medium::new(&setup.scenario, setup.seed),
        routes: Routes::new(&setup.scenario),
        devices: &setup.devices,
        pool: Rc::default(),
        lateness: Histogram::new_with_max(60_000_000_000, 2)
            .expect("the bounds of the histogram are valid"),
        delivered: 0,
        refused: 0,
        ignored: 0,
    };
    let wake = setup.devices.len();
    let files = setup.devices.iter().map(AsFd::as_fd).chain([setup.wake.as_fd()]);
    let mut ready = PollSet::new(files.chain(setup.control.as_ref().map(AsFd::as_fd)));
    let (started, started_cpu) = (now(), clock::thread_cpu_nanos());
    emulator.medium.start(started);
    loop {
        emulator.deliver();
        let wait = emulator.medium.poll_timeout().map(|next| next.since(now()));
        if wait.is_some_and(|wait| wait < setup.tick) {
            std::thread::sleep(setup.tick);
            ready.wait(Some(Duration::ZERO))?;
        } else {
            ready.wait(wait)?;
        }
        for port in (0..setup.devices.len()).filter(|port| ready.is_ready(*port)) {
            emulator.read(port)?;
        }
        if ready.is_ready(wake) && !emulator.answer(setup) {
            break;
        }
        if let Some(socket) = setup.control.as_ref().filter(|_| ready.is_ready(wake + 1)) {
            control::answer(socket, &mut emulator.medium, now());
        }
    }
    let percentile = |p| Duration::from_nanos(emulator.lateness.value_at_percentile(p));
    Ok(Report {
        duration: now().since(started),
        cpu: Duration::from_nanos((clock::thread_cpu_nanos() - started_cpu).unsigned_abs()),
        delivered: emulator.delivered,
        lateness: Lateness {
            p50: percentile(50.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            max: Duration::from_nanos(emulator.lateness.max()),
        },
        refused: emulator.refused,
        ignored: emulator.ignored,
        directions: emulator.medium.stats(),
    })
}

struct Emulator<'a> {
    medium: Medium<Buffer>,
    routes: Routes,
    devices: &'a [Tun],
    pool: Rc<Pool>,
    lateness: Histogram<u64>,
    delivered: u64,
    refused: u64,
    ignored: u64,
}

impl Emulator<'_> {
    fn deliver(&mut self) {
        let mut now = now();
        while let Some(Delivery { port, packet, due }) = self.medium.poll_deliver(now) {
            let bytes = &packet.data.bytes()[..packet.len];
            self.refused += u64::from(self.devices[port.0].write(bytes).is_err());
            self.delivered += 1;
            // The write took the time of the receiver's network stack: more is due now.
            now = self::now();
            self.lateness.saturating_record(now.nanos_since(due).unsigned_abs());
        }
    }

    /// Takes what a node has sent.
    fn read(&mut self, port: usize) -> io::Result<()> {
        for _ in 0..BATCH {
            let mut buffer = Pool::take(&self.pool);
            let Some(len) = self.devices[port].read(buffer.bytes_mut())? else { return Ok(()) };
            match self.routes.destination(port, &buffer.bytes()[..len.min(MTU)]) {
                Some(to) if len <= MTU => {
                    let packet = PacketRef { len, data: buffer };
                    // A dropped packet is counted by the medium.
                    let (Ingress::Admitted | Ingress::Dropped(_)) =
                        self.medium.ingress(now(), PortId(port), PortId(to), packet);
                }
                _ => self.ignored += 1,
            }
        }
        Ok(())
    }

    /// Answers the lab; false if it wants the emulator to stop.
    fn answer(&mut self, setup: &Setup) -> bool {
        while setup.wake.recv(&mut [0; 8]).is_ok() {}
        loop {
            match setup.requests.try_recv() {
                // The asking side may have gone, then no one waits for the answer.
                Ok(Request::Apply(change, reply)) => {
                    let _ = reply.send(self.medium.apply(now(), &change));
                }
                Ok(Request::Stats(reply)) => {
                    let _ = reply.send(self.medium.stats());
                }
                Err(TryRecvError::Empty) => return true,
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_nanos())
}

/// Where packets go by their destination address.
struct Routes {
    ports: Vec<Route>,
}

struct Route {
    /// The other ports of the medium, by address.
    peers: Vec<([u8; 4], usize)>,
    /// Where packets for other addresses go.
    other: Option<usize>,
}

impl Routes {
    fn new(scenario: &Scenario) -> Self {
        let mut ports = Vec::new();
        for medium in &scenario.media {
            let first = ports.len();
            for port in 0..medium.ports.len() {
                let peers = medium.ports.iter().enumerate().filter(|(peer, _)| *peer != port);
                let peers: Vec<_> =
                    peers.map(|(peer, config)| (config.address.0.octets(), first + peer)).collect();
                let gateway = medium.gateway.map(|gateway| first + gateway);
                let only = (peers.len() == 1).then(|| peers[0].1);
                ports.push(Route { other: gateway.filter(|g| *g != first + port).or(only), peers });
            }
        }
        Self { ports }
    }

    /// The port an IPv4 packet from `port` goes to, `None` if it is not such a packet or has no receiver.
    fn destination(&self, port: usize, packet: &[u8]) -> Option<usize> {
        let route = &self.ports[port];
        let version = packet.first()? >> 4;
        let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
        if version != 4 || address[0] >= 224 {
            return None;
        }
        let peer = route.peers.iter().find(|(peer, _)| *peer == address);
        peer.map(|(_, port)| *port).or(route.other)
    }
}

/// Buffers that wait to be used again.
#[derive(Default)]
struct Pool {
    free: RefCell<Vec<Box<[u8]>>>,
}

/// One byte more than a packet may have, so that a longer one is seen to be longer.
const BUFFER_BYTES: usize = MTU + 1;

impl Pool {
    fn take(pool: &Rc<Self>) -> Buffer {
        let bytes = pool.free.borrow_mut().pop().unwrap_or_else(|| vec![0; BUFFER_BYTES].into());
        Buffer { bytes: Some(bytes), pool: Rc::clone(pool) }
    }
}

/// A buffer that goes back to its pool when dropped, wherever the medium drops it.
struct Buffer {
    bytes: Option<Box<[u8]>>,
    pool: Rc<Pool>,
}

impl Buffer {
    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().expect("a buffer has its bytes until it is dropped")
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut().expect("a buffer has its bytes until it is dropped")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().extend(self.bytes.take());
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn packets_go_to_their_address_or_the_gateway() {
        let text = "[[medium]]\nname = \"wifi0\"\nkind = \"wifi\"\nrate = \"1Mbit\"\n\
             gateway = \"edge\"\nport = [ { node = \"edge\" }, { node = \"a\" }, { node = \"b\" } ]\n\
             [[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"1Mbit\"\n\
             port = [ { node = \"edge\" }, { node = \"app\" } ]\n";
        let routes = Routes::new(&Scenario::parse(text, Path::new("")).unwrap());
        let packet = |version: u8, to: [u8; 4]| {
            let mut packet = [0; 20];
            packet[0] = version << 4 | 5;
            packet[16..].copy_from_slice(&to);
            packet
        };
        for (from, to, expected) in [
            (1, [10, 77, 1, 1], Some(0)),
            (1, [10, 77, 1, 3], Some(2)),
            (1, [10, 77, 2, 2], Some(0)), // by the gateway
            (0, [10, 77, 9, 9], None),    // the gateway itself knows no further
            (0, [224, 0, 0, 1], None),    // multicast has no receiver
            (3, [10, 77, 2, 2], Some(4)),
            (4, [10, 77, 1, 2], Some(3)), // the only other port
        ] {
            assert_eq!(routes.destination(from, &packet(4, to)), expected, "{from} to {to:?}");
        }
        assert_eq!(routes.destination(1, &packet(6, [10, 77, 1, 1])), None);
        assert_eq!(routes.destination(1, &[0x45; 19]), None);
    }

    #[test]
    fn buffers_are_used_again() {
        let pool = Rc::default();
        let first = Pool::take(&pool).bytes().as_ptr();
        assert_eq!(Pool::take(&pool).bytes().as_ptr(), first);
    }
}
