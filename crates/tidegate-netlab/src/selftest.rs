//! Ten seconds that tell whether this machine emulates links faithfully.
//!
//! Each check compares what processes in namespaces see with what the model says in virtual time:
//! round trips, the very packets that are lost, the rate of a WAN, the throughput of a Wi-Fi cell.

use std::{
    collections::HashSet,
    fmt, io,
    net::{SocketAddr, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use tidegate_sim::medium::{DropCause, Ingress, Medium, PacketRef, PortId, Scenario};

use crate::{Audit, Lab, LabError, Options};

/// IP and UDP headers.
const HEADER_BYTES: usize = 28;
const UDP_PORT: u16 = 9;

const WAN: &str = r#"
seed = 20
[[medium]]
name = "wan0"
kind = "wan"
rate = "20Mbit"
delay = "10ms"
port = [ { node = "a" }, { node = "b" } ]
"#;

const LOSSY: &str = r#"
seed = 21
[[medium]]
name = "wan0"
kind = "wan"
rate = "100Mbit"
delay = "5ms"
loss = "5%"
loss_burst = 2.0
port = [ { node = "a" }, { node = "b" } ]
"#;

const WIFI: &str = r#"
seed = 22
[[medium]]
name = "wifi0"
kind = "wifi"
rate = "24Mbit"
error = "5%"
port = [ { node = "edge", wired = true }, { node = "a" }, { node = "b" } ]
"#;

/// One comparison of the self-test.
#[derive(Clone, Debug)]
pub struct Check {
    /// The compared quantity.
    pub name: &'static str,
    /// The measured value.
    pub seen: String,
    /// The model's value.
    pub expected: String,
    /// Whether they agree.
    pub met: bool,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seen, expected, met } = self;
        let verdict = if *met { "met" } else { "FAILED" };
        write!(f, "{name:<36} {seen:>18}  expected {expected:<24} {verdict}")
    }
}

/// Runs all checks, handing each to `report` as it is done.
///
/// # Errors
/// [`SelftestError`] if a lab cannot be made or a socket fails; a check that is not met is no error.
pub fn run(options: &Options, mut report: impl FnMut(Check)) -> Result<(), SelftestError> {
    round_trips(options, &mut report)?;
    losses(options, &mut report)?;
    wan_rate(options, &mut report)?;
    wifi_throughput(options, &mut report)
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, Path::new("")).expect("the self-test's own scenarios are valid")
}

fn bind(lab: &Lab, node: &str) -> Result<(UdpSocket, SocketAddr), SelftestError> {
    let address = SocketAddr::from((lab.address(node)?, UDP_PORT));
    let socket = lab.within(node, || UdpSocket::bind(address))??;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    Ok((socket, address))
}

/// Sends `count` numbered packets of `bytes` (IP length), `batch` of them each millisecond.
fn send_paced(
    socket: &UdpSocket,
    to: SocketAddr,
    count: u32,
    batch: u32,
    bytes: usize,
) -> io::Result<()> {
    let mut payload = vec![0; bytes - HEADER_BYTES];
    let started = Instant::now();
    for number in 0..count {
        let due = Duration::from_millis((number / batch).into());
        thread::sleep(due.saturating_sub(started.elapsed()));
        payload[..4].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, to)?;
    }
    Ok(())
}

fn round_trips(options: &Options, report: &mut impl FnMut(Check)) -> Result<(), SelftestError> {
    const COUNT: u32 = 40;
    let lab = Lab::up(&scenario(WAN), options)?;
    let ((a, _), (b, b_address)) = (bind(&lab, "a")?, bind(&lab, "b")?);
    let done = AtomicBool::new(false);
    let trips = thread::scope(|scope| -> io::Result<Vec<Duration>> {
        let echo = scope.spawn(|| -> io::Result<()> {
            let mut packet = [0; 64];
            while !done.load(Ordering::Relaxed) {
                match b.recv_from(&mut packet) {
                    Ok((len, from)) => b.send_to(&packet[..len], from).map(drop)?,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        let mut trips = Vec::new();
        for _ in 0..COUNT {
            let sent = Instant::now();
            a.send_to(&[7; 36], b_address)?;
            a.recv(&mut [0; 64])?;
            trips.push(sent.elapsed());
        }
        done.store(true, Ordering::Relaxed);
        a.send_to(&[0], b_address)?;
        echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(trips)
    })?;
    // The fastest trip is the link's; on a busy machine the others also wait for a processor.
    let fastest = trips.into_iter().min().unwrap_or(Duration::MAX);
    report(Check {
        name: "WAN round trip, fastest of 40",
        seen: format!("{fastest:.2?}"),
        expected: "20.05ms to 21.5ms".into(),
        met: (20_050..=21_500).contains(&fastest.as_micros()),
    });
    audited(lab, "WAN idle", report)
}

fn losses(options: &Options, report: &mut impl FnMut(Check)) -> Result<(), SelftestError> {
    const COUNT: u32 = 2500;
    const BYTES: usize = 100;
    let config = scenario(LOSSY);
    let seed = options.seed.unwrap_or(config.seed);
    let mut medium = Medium::new(&config, seed);
    let expected: HashSet<u32> = (0..COUNT)
        .filter(|number| {
            let now = tidegate_message::Instant::from_millis((*number).into());
            let packet = PacketRef { len: BYTES, data: () };
            medium.ingress(now, PortId(0), PortId(1), packet) == Ingress::Admitted
        })
        .collect();
    let lab = Lab::up(&config, options)?;
    let ((a, _), (b, b_address)) = (bind(&lab, "a")?, bind(&lab, "b")?);
    let received = thread::scope(|scope| -> io::Result<HashSet<u32>> {
        let sender = scope.spawn(|| send_paced(&a, b_address, COUNT, 1, BYTES));
        let mut received = HashSet::new();
        let mut packet = [0; BYTES];
        loop {
            match b.recv(&mut packet) {
                Ok(_) => {
                    let [w, x, y, z, ..] = packet;
                    received.insert(u32::from_be_bytes([w, x, y, z]));
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if sender.is_finished() => break,
                Err(_) => {}
            }
        }
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(received)
    })?;
    let differing = received.symmetric_difference(&expected).count();
    report(Check {
        name: "packets lost, against the simulation",
        seen: format!("{} of {COUNT}", COUNT as usize - received.len()),
        expected: format!("{}, the same ones", COUNT as usize - expected.len()),
        met: differing == 0,
    });
    audited(lab, "WAN with loss", report)
}

fn wan_rate(options: &Options, report: &mut impl FnMut(Check)) -> Result<(), SelftestError> {
    let lab = Lab::up(&scenario(WAN), options)?;
    let ((a, _), (_b, b_address)) = (bind(&lab, "a")?, bind(&lab, "b")?);
    // 36 Mbit/s for 1.5 seconds onto a line of 20; the first half second fills the queue.
    let rate = thread::scope(|scope| -> Result<f64, SelftestError> {
        let sender = scope.spawn(|| send_paced(&a, b_address, 4500, 3, 1500));
        thread::sleep(Duration::from_millis(500));
        let rate = rates(&lab, Duration::from_millis(800))?[0];
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(rate)
    })?;
    report(Check {
        name: "rate of a full WAN line",
        seen: format!("{rate:.2} Mbit/s"),
        expected: "20 Mbit/s, 2 % off at most".into(),
        met: (rate / 20.0 - 1.0).abs() <= 0.02,
    });
    audited(lab, "WAN full", report)
}

fn wifi_throughput(options: &Options, report: &mut impl FnMut(Check)) -> Result<(), SelftestError> {
    let config = scenario(WIFI);
    let pairs = [(PortId(1), PortId(0)), (PortId(2), PortId(0))];
    let expected = forecast(&config, config.seed, &pairs, Duration::from_secs(20));
    let expected: f64 = expected.iter().sum();
    let lab = Lab::up(&config, options)?;
    let ((a, _), (b, _)) = (bind(&lab, "a")?, bind(&lab, "b")?);
    let (_edge, edge_address) = bind(&lab, "edge")?;
    let rate = thread::scope(|scope| -> Result<f64, SelftestError> {
        let senders = [&a, &b]
            .map(|socket| scope.spawn(move || send_paced(socket, edge_address, 5000, 2, 1500)));
        thread::sleep(Duration::from_millis(400));
        let rate = rates(&lab, Duration::from_millis(2000))?.iter().sum();
        for sender in senders {
            sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(rate)
    })?;
    report(Check {
        name: "throughput of a full Wi-Fi cell",
        seen: format!("{rate:.2} Mbit/s"),
        expected: format!("{expected:.2} Mbit/s, 5 % off"),
        met: (rate / expected - 1.0).abs() <= 0.05,
    });
    audited(lab, "Wi-Fi full", report)
}

/// Mbit/s of each direction over some time from now.
fn rates(lab: &Lab, over: Duration) -> Result<Vec<f64>, SelftestError> {
    let (before, started) = (lab.stats()?, Instant::now());
    thread::sleep(over);
    let (after, seconds) = (lab.stats()?, started.elapsed().as_secs_f64());
    let bytes = before.iter().zip(&after).map(|(a, b)| b.counters.out_bytes - a.counters.out_bytes);
    Ok(bytes.map(|bytes| bytes as f64 * 8.0 / 1e6 / seconds).collect())
}

fn audited(
    lab: Lab,
    name: &'static str,
    report: &mut impl FnMut(Check),
) -> Result<(), SelftestError> {
    let audit = lab.finish()?;
    let flaws: Vec<String> = audit.flaws().iter().map(ToString::to_string).collect();
    report(Check {
        name,
        seen: format!("p99 late {:.0?}", audit.lateness.p99),
        expected: if flaws.is_empty() {
            format!("at most {:?}", Audit::LATENESS_P99_MAX)
        } else {
            flaws.join("; ")
        },
        met: flaws.is_empty(),
    });
    Ok(())
}

/// The rates of the scenario in virtual time, in Mbit/s for each pair of ports, when each pair's
/// sender keeps its queue full of packets of 1500 bytes.
pub fn forecast(
    scenario: &Scenario,
    seed: u64,
    pairs: &[(PortId, PortId)],
    duration: Duration,
) -> Vec<f64> {
    let mut medium = Medium::new(scenario, seed);
    let mut bytes = vec![0; pairs.len()];
    let mut now = tidegate_message::Instant::EPOCH;
    let end = now + duration;
    medium.start(now);
    let mut next_fill = now;
    while now < end {
        if now >= next_fill {
            next_fill = now + Duration::from_millis(1);
            for (pair, &(from, to)) in pairs.iter().enumerate() {
                let packet = |_| PacketRef { len: crate::MTU, data: pair };
                // A full queue, or a path that does not exist, takes no more; a loss is only a loss.
                let full =
                    |fate| matches!(fate, Ingress::Dropped(DropCause::Queue | DropCause::NoPath));
                let _ = (0..1000).map(packet).find(|p| full(medium.ingress(now, from, to, *p)));
            }
        }
        while let Some(delivery) = medium.poll_deliver(now) {
            bytes[delivery.packet.data] += delivery.packet.len;
        }
        now = medium.poll_timeout().unwrap_or(end).max(now).min(next_fill).min(end);
    }
    bytes.iter().map(|bytes| *bytes as f64 * 8.0 / 1e6 / duration.as_secs_f64()).collect()
}

/// Why the self-test could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// The lab.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A socket in it.
    #[error("a socket in the lab failed")]
    Socket(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_fills_the_line() {
        let rates = forecast(&scenario(WAN), 1, &[(PortId(0), PortId(1))], Duration::from_secs(10));
        assert!((rates[0] - 20.0).abs() < 0.1, "{rates:?}");
        let pairs = [(PortId(1), PortId(0)), (PortId(2), PortId(0))];
        let rates = forecast(&scenario(WIFI), 1, &pairs, Duration::from_secs(10));
        let sum: f64 = rates.iter().sum();
        assert!((16.0..24.0).contains(&sum), "{rates:?}");
    }
}
