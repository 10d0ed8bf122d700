//! The Wi-Fi-like medium, calibrated on latencies that were measured on a real channel.
//!
//! Table 1 of the Mez paper gives the 95th percentile of frame latency without any control, for six
//! frame sizes, with one camera and with five. Its senders are closed loops: a camera sends a frame,
//! waits until it has arrived, sleeps for 200 ms, and sends the next. The same senders run here over the
//! medium in virtual time, and few parameters are searched: the PHY rate and the constant delay from the
//! cells of one camera, the factors of the crowd from those of five.
//!
//! The fit says how far a simple model is from the paper's room, cell by cell; it does not make the
//! medium that room.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, time::Duration};

use tidegate_message::Instant;
use tidegate_sim::medium::{Ingress, Medium, PacketRef, PortId, Scenario};

/// Table 1 of the paper: kilobytes of a frame, p95 latency in ms with one camera and with five.
pub const TABLE_1: [(usize, f64, f64); 6] = [
    (610, 32.09, 150.28),
    (760, 35.16, 164.56),
    (970, 46.09, 262.43),
    (1390, 59.71, 382.47),
    (1670, 68.73, 606.98),
    (1740, 72.72, 617.16),
];

/// Cameras of the largest setting.
pub const CAMERAS: usize = 5;

/// How long a camera sleeps after a frame, give or take a tenth: without it, equal loops settle into
/// turns that never meet.
const SLEEP: Duration = Duration::from_millis(200);
/// Frames of each camera that count, after one that does not.
const FRAMES: usize = 24;
/// Bytes of a frame in one packet, and of the packet.
const PAYLOAD_BYTES: usize = 1448;
const HEADER_BYTES: usize = 52;

/// The parameters that are searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// PHY rate in Mbit/s.
    pub rate_mbit: f64,
    /// One-way delay beside the channel in ms.
    pub delay_ms: f64,
    /// Factor on the PHY rate with two stations waiting.
    pub two: f64,
    /// Factor with three or more.
    pub more: f64,
}

impl Parameters {
    /// The scenario with these parameters, as text.
    pub fn scenario(&self) -> String {
        let Self { rate_mbit, delay_ms, two, more } = self;
        let mut text = format!(
            "# Fitted to Table 1 of the Mez paper by `bench-frames calibrate`; not made by hand.\n\
             seed = 1\n\n[[medium]]\nname = \"wifi0\"\nkind = \"wifi\"\nrate = \"{rate_mbit:.1}Mbit\"\n\
             delay = \"{delay_ms:.2}ms\"\nerror = \"5%\"\nqueue = \"4MiB\"\n\
             crowd = [1.0, {two:.3}, {more:.3}]\ngateway = \"edge\"\nport = [\n  \
             {{ node = \"edge\", address = \"10.77.1.1/24\", wired = true }},\n"
        );
        for camera in 1..=CAMERAS {
            let address = 10 + camera;
            writeln!(
                text,
                "  {{ node = \"cam{camera}\", address = \"10.77.1.{address}/24\", default_route = true }},"
            )
            .expect("writing to a string succeeds");
        }
        text + "]\n\n[[medium]]\nname = \"lan0\"\nkind = \"wan\"\nrate = \"1Gbit\"\nqueue = \"4MiB\"\n\
             port = [\n  { node = \"edge\", address = \"10.77.2.1/24\" },\n  \
             { node = \"app\", address = \"10.77.2.2/24\", default_route = true },\n]\n"
    }
}

/// One cell of the table, measured in the paper and here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Kilobytes of a frame.
    pub kilobytes: usize,
    /// Cameras that send.
    pub cameras: usize,
    /// p95 latency in the paper, in ms.
    pub paper_ms: f64,
    /// p95 latency of the medium, in ms.
    pub fitted_ms: f64,
}

impl Cell {
    /// How far the medium is off, as a share of the paper's latency.
    pub fn error(&self) -> f64 {
        self.fitted_ms / self.paper_ms - 1.0
    }
}

/// A finished search.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The parameters that were found.
    pub parameters: Parameters,
    /// The twelve cells.
    pub cells: Vec<Cell>,
}

impl Fit {
    /// The cell that is furthest off.
    pub fn worst(&self) -> f64 {
        worst(&self.cells)
    }
}

/// Searches the parameters; a minute or so of one core in a release build.
///
/// The search descends along one parameter after the other with steps that halve; it is the same in
/// every run.
pub fn fit() -> Fit {
    let mut parameters = Parameters { rate_mbit: 290.0, delay_ms: 9.0, two: 0.8, more: 0.45 };
    let alone = |p: &Parameters| worst(&cells(p, 1));
    let crowded = |p: &Parameters| worst(&cells(p, CAMERAS));
    descend(
        &mut parameters,
        alone,
        &mut [(|p| &mut p.rate_mbit, 20.0, 50.0..=900.0), (|p| &mut p.delay_ms, 1.5, 0.0..=30.0)],
    );
    descend(
        &mut parameters,
        crowded,
        &mut [(|p| &mut p.more, 0.12, 0.05..=1.0), (|p| &mut p.two, 0.12, 0.05..=1.0)],
    );
    let mut all = cells(&parameters, 1);
    all.extend(cells(&parameters, CAMERAS));
    Fit { parameters, cells: all }
}

/// Fits, and writes the scenario that was found to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path) -> std::io::Result<Fit> {
    let fit = fit();
    let mut text = fit.parameters.scenario();
    text += "\n# p95 latency of a frame, ms: paper, here, error\n";
    for cell in &fit.cells {
        let Cell { kilobytes, cameras, paper_ms, fitted_ms } = cell;
        writeln!(
            text,
            "# {cameras} cameras {kilobytes:>4} KB {paper_ms:>7.2} {fitted_ms:>7.2} {:>+6.1} %",
            cell.error() * 100.0
        )
        .expect("writing to a string succeeds");
    }
    std::fs::write(path, text)?;
    Ok(fit)
}

/// A parameter, its first step and its range.
type Axis = (fn(&mut Parameters) -> &mut f64, f64, std::ops::RangeInclusive<f64>);

fn descend(parameters: &mut Parameters, cost: impl Fn(&Parameters) -> f64, axes: &mut [Axis]) {
    let mut best = cost(parameters);
    for _ in 0..8 {
        let mut moved = false;
        for (field, step, range) in axes.iter() {
            for step in [*step, -step] {
                let mut trial = *parameters;
                let value = field(&mut trial);
                *value = (*value + step).clamp(*range.start(), *range.end());
                let found = cost(&trial);
                if found < best {
                    (*parameters, best, moved) = (trial, found, true);
                    break;
                }
            }
        }
        if !moved {
            axes.iter_mut().for_each(|(_, step, _)| *step /= 2.0);
        }
    }
}

fn cells(parameters: &Parameters, cameras: usize) -> Vec<Cell> {
    let scenario = Scenario::parse(&parameters.scenario(), Path::new(""))
        .expect("the scenario of parameters in range is valid");
    cells_of(&scenario, cameras)
}

fn cells_of(scenario: &Scenario, cameras: usize) -> Vec<Cell> {
    let cell = |(kilobytes, one, five)| Cell {
        kilobytes,
        cameras,
        paper_ms: if cameras == 1 { one } else { five },
        fitted_ms: latency_p95(scenario, cameras, kilobytes * 1000).as_secs_f64() * 1e3,
    };
    TABLE_1.into_iter().map(cell).collect()
}

fn worst(cells: &[Cell]) -> f64 {
    cells.iter().map(|cell| cell.error().abs()).fold(0.0, f64::max)
}

/// The 95th percentile of frame latency when `cameras` of a scenario with nodes `edge` and `cam1`, `cam2`,
/// … send frames of `bytes` to the edge in closed loops, over all cameras.
///
/// A frame that loses a packet never completes, and its camera stops: the scenario's queue must hold a
/// whole frame.
pub fn latency_p95(scenario: &Scenario, cameras: usize, bytes: usize) -> Duration {
    let paths: Vec<(PortId, PortId)> =
        (1..=cameras).filter_map(|camera| scenario.path(&format!("cam{camera}"), "edge")).collect();
    let mut medium: Medium<usize> = Medium::new(scenario, scenario.seed);
    medium.start(Instant::EPOCH);
    let packets = bytes.div_ceil(PAYLOAD_BYTES);
    let mut waiting = vec![0; paths.len()];
    let mut sent_at = vec![Instant::EPOCH; paths.len()];
    let mut latencies = vec![Vec::new(); paths.len()];
    // When which camera sends next.
    let mut sends: BTreeMap<(Instant, usize), ()> = BTreeMap::new();
    for camera in 0..paths.len() {
        sends.insert((Instant::EPOCH + sleep(camera, 0), camera), ());
    }
    while latencies.iter().any(|of_camera: &Vec<Duration>| of_camera.len() <= FRAMES) {
        let next_send = sends.keys().next().copied();
        let next_event = medium.poll_timeout();
        let Some(now) = next_send.map(|(at, _)| at).into_iter().chain(next_event).min() else {
            break;
        };
        if let Some((at, camera)) = next_send.filter(|(at, _)| *at <= now) {
            sends.remove(&(at, camera));
            sent_at[camera] = now;
            let (from, to) = paths[camera];
            for packet in 0..packets {
                let payload = PAYLOAD_BYTES.min(bytes - packet * PAYLOAD_BYTES);
                let packet = PacketRef { len: payload + HEADER_BYTES, data: camera };
                waiting[camera] +=
                    usize::from(medium.ingress(now, from, to, packet) == Ingress::Admitted);
            }
        }
        while let Some(delivery) = medium.poll_deliver(now) {
            let camera = delivery.packet.data;
            waiting[camera] -= 1;
            if waiting[camera] == 0 {
                latencies[camera].push(now.since(sent_at[camera]));
                sends.insert((now + sleep(camera, latencies[camera].len()), camera), ());
            }
        }
    }
    let mut all: Vec<Duration> =
        latencies.into_iter().flat_map(|l| l.into_iter().skip(1)).collect();
    all.sort();
    all.get((all.len() * 95).div_ceil(100).saturating_sub(1)).copied().unwrap_or(Duration::MAX)
}

/// The sleep of a camera after its n-th frame, spread evenly by the golden ratio.
fn sleep(camera: usize, frame: usize) -> Duration {
    let spread = ((camera * 1009 + frame) as f64 * 0.618_033_988_749_895).fract();
    SLEEP.mul_f64(0.9 + 0.2 * spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_frames_and_more_cameras_wait_longer() {
        let parameters = Parameters { rate_mbit: 300.0, delay_ms: 8.0, two: 0.9, more: 0.6 };
        let scenario = Scenario::parse(&parameters.scenario(), Path::new("")).unwrap();
        let one = latency_p95(&scenario, 1, 610_000);
        // 610 KB at 300 Mbit/s are 16.3 ms, then the channel's overheads and 8 ms of delay.
        assert!((25.0..40.0).contains(&(one.as_secs_f64() * 1e3)), "{one:?}");
        assert!(latency_p95(&scenario, 1, 1_740_000) > one);
        assert!(latency_p95(&scenario, 5, 610_000) > one * 2);
        assert_eq!(latency_p95(&scenario, 1, 610_000), one, "equal runs are equal");
    }

    #[test]
    fn the_fitted_scenario_is_within_fifteen_percent_of_every_cell() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/wifi-mez.toml");
        let scenario = Scenario::load(&path).unwrap();
        for cell in cells_of(&scenario, 1).into_iter().chain(cells_of(&scenario, CAMERAS)) {
            assert!(cell.error().abs() <= 0.15, "{cell:?}");
        }
    }
}
