//! The edge node's part: the share of each camera of a shared medium, and when it should capture.
//!
//! A camera sees the whole medium during its own burst, so five cameras that each trust what they measured
//! over-commit it fivefold. The coordinator sees how the frames of each one arrive and answers with a share; what
//! frames of other cameras took meanwhile is counted out. Shares are of airtime: the camera whose table promises it
//! least accuracy is raised first, as long as all together fit; without tables all get the same. It also spreads the
//! captures over the frame period: frames that do not meet may be larger and arrive sooner.
//!
//! Batches of sensor messages on the same medium have a part of their own, which cameras are not given.
//!
//! Everything is soft state. A share that is not renewed expires at the camera, which then relies on its
//! own measurements; a camera that is silent expires here. Phases are those of arrivals, by the edge's own
//! clock, so no clock but that one matters.
//!
//! Always true: the airtime of all shares together is at most the whole; every camera gets some.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tidegate_message::{CameraName, Instant};

/// Settings of the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatorConfig {
    /// Part of the medium that is given out, 0 to 1. Default 0.8, the same as the senders' duty.
    pub duty: f64,
    /// Part of the medium that batches of sensor messages may use in addition to the frames, 0 to 1 less `duty`.
    /// Default 0.1.
    pub sensors: f64,
    /// How often shares are sent again. Default 1 s.
    pub renew: Duration,
    /// How long a share holds, and after how long a silent camera is forgotten. Default 5 s.
    pub valid_for: Duration,
    /// Whether captures are spread over the period. Default true.
    pub stagger: bool,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            duty: 0.8,
            sensors: 0.1,
            renew: Duration::from_secs(1),
            valid_for: Duration::from_secs(5),
            stagger: true,
        }
    }
}

/// A quality a camera could send at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Mean bytes of a captured frame: size times the fraction that is sent.
    pub bytes: f64,
    /// Normalized F1.
    pub accuracy: f64,
}

/// Events that the coordinator is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A transfer of a camera on this medium began, with the front of its table if it is known.
    Joined {
        /// The camera.
        camera: CameraName,
        /// Its qualities, fewest bytes first; empty if unknown.
        qualities: Vec<Quality>,
    },
    /// A frame of a camera came whole.
    Report {
        /// The camera.
        camera: CameraName,
        /// Pace at which its bytes arrived.
        bytes_per_second: f64,
        /// Time between the camera's frames.
        period: Duration,
        /// When the first byte of the frame arrived, by the edge's clock.
        arrived: Instant,
        /// Time from its first byte to its last.
        took: Duration,
    },
    /// A frame of a camera came that is too short to measure the medium.
    Heard {
        /// The camera.
        camera: CameraName,
        /// Pace that it shows at least.
        at_least: f64,
        /// When its first byte arrived, by the edge's clock.
        arrived: Instant,
        /// Time from its first byte to its last.
        took: Duration,
    },
    /// The camera's last transfer ended.
    Left {
        /// The camera.
        camera: CameraName,
    },
}

/// Frames shorter than this do not measure the medium: their burst fits in one turn on the air.
const SAMPLE_BYTES_MIN: u64 = 16 << 10;
/// Bytes of the first packet, which come at the start of the time that a frame takes and not within it.
const PACKET_BYTES: u64 = 1200;
/// Time that a frame of one turn is taken to need.
const TURN: Duration = Duration::from_millis(8);

impl Input {
    /// A frame of `bytes` that came whole, `took` after its first byte `arrived`; its camera has one each `period`.
    pub fn arrival(
        camera: CameraName,
        bytes: u64,
        period: Duration,
        arrived: Instant,
        took: Duration,
    ) -> Self {
        let after_first = bytes.saturating_sub(PACKET_BYTES) as f64;
        if bytes >= SAMPLE_BYTES_MIN && !took.is_zero() {
            let bytes_per_second = after_first / took.as_secs_f64();
            return Self::Report { camera, bytes_per_second, period, arrived, took };
        }
        let at_least = after_first / took.max(TURN).as_secs_f64();
        Self::Heard { camera, at_least, arrived, took }
    }
}

/// The share of a camera.
#[derive(Clone, Debug, PartialEq)]
pub struct Allotment {
    /// The camera.
    pub camera: CameraName,
    /// Bytes per second it may use; nothing lifts the limit, for a camera that has the medium alone.
    pub bytes_per_second: Option<f64>,
    /// Time by which it should delay its captures, once; zero to leave them.
    pub shift: Duration,
    /// How long the share holds.
    pub valid_for: Duration,
}

#[derive(Clone, Debug)]
struct Member {
    qualities: Vec<Quality>,
    heard: Instant,
    measured: Option<Measured>,
    shifted: Option<Instant>,
}

/// Last frames of a camera, of which the one counts that found most of the medium: none finds more than there is.
const ARRIVALS: usize = 4;

#[derive(Clone, Debug)]
struct Measured {
    /// The last frames, newest first.
    recent: VecDeque<FrameArrival>,
    period: Duration,
}

/// How a frame arrived.
#[derive(Clone, Copy, Debug)]
struct FrameArrival {
    bytes_per_second: f64,
    at: Instant,
    took: Duration,
}

impl FrameArrival {
    /// Time for which both were arriving.
    fn overlap(&self, other: &Self) -> Duration {
        let end = (self.at + self.took).min(other.at + other.took);
        end.since(self.at.max(other.at))
    }
}

impl Measured {
    /// Another frame has come.
    fn took_in(&mut self, frame: FrameArrival) {
        self.recent.truncate(ARRIVALS - 1);
        self.recent.push_front(frame);
    }

    /// The fastest of its frames, whether they met others or not.
    fn seen(&self) -> f64 {
        self.recent.iter().map(|frame| frame.bytes_per_second).fold(0.0, f64::max)
    }

    /// The part of the time in which `frame`, of another camera, arrived that the frames of this one took of the medium, 0 to 1; and the
    /// part in which both arrived.
    fn takes_of(&self, frame: &FrameArrival) -> (f64, f64) {
        let took = frame.took.as_secs_f64().max(1e-6);
        let seen = self.seen();
        let (mut takes, mut both) = (0.0, 0.0);
        for own in &self.recent {
            let overlap = own.overlap(frame).as_secs_f64() / took;
            both += overlap;
            takes += overlap * own.bytes_per_second / seen;
        }
        (takes, both)
    }
}

/// The coordinator of one medium.
#[derive(Clone, Debug)]
pub struct Coordinator {
    config: CoordinatorConfig,
    members: BTreeMap<CameraName, Member>,
    renew_at: Instant,
    allotments: VecDeque<Allotment>,
}

impl Coordinator {
    /// A coordinator of no cameras yet.
    pub fn new(now: Instant, config: CoordinatorConfig) -> Self {
        let renew_at = now + config.renew;
        Self { config, members: BTreeMap::new(), renew_at, allotments: VecDeque::new() }
    }

    /// Bytes per second that all batches of sensor messages together may use in addition to the frames: a part of the smallest
    /// capacity that a camera measured, since where their senders are is not known. The measurements count as they are, not
    /// without what other cameras' frames took: batches must leave room for those frames. Without limit while no camera
    /// measures anything.
    pub fn sensors(&self, now: Instant) -> Option<f64> {
        let valid_for = self.config.valid_for;
        let heard = self.members.values().filter(|member| now.since(member.heard) < valid_for);
        let measured = heard.filter_map(|member| member.measured.as_ref()).map(Measured::seen);
        measured.min_by(f64::total_cmp).map(|least| least * self.config.sensors)
    }

    /// Its settings.
    pub fn config(&self) -> &CoordinatorConfig {
        &self.config
    }

    /// Whether that camera has joined, and was not forgotten for its silence since.
    pub fn is_member(&self, camera: &CameraName) -> bool {
        self.members.contains_key(camera)
    }

    /// Tells what happened. Words of a camera that is no [member](Coordinator::is_member) are ignored.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Joined { camera, mut qualities } => {
                qualities
                    .retain(|q| q.bytes.is_finite() && q.bytes > 0.0 && q.accuracy.is_finite());
                qualities.sort_by(|a, b| a.bytes.total_cmp(&b.bytes));
                let member = Member { qualities, heard: now, measured: None, shifted: None };
                self.members.insert(camera, member);
                self.renew_at = now;
            }
            Input::Report { camera, bytes_per_second, period, arrived, took } => {
                let sane = bytes_per_second.is_finite() && bytes_per_second > 0.0;
                let Some(member) = self.members.get_mut(&camera) else { return };
                member.heard = now;
                if !sane || period.is_zero() {
                    return;
                }
                let measured = member
                    .measured
                    .get_or_insert_with(|| Measured { recent: VecDeque::new(), period });
                measured.period = period;
                measured.took_in(FrameArrival { bytes_per_second, at: arrived, took });
            }
            Input::Heard { camera, at_least, arrived, took } => {
                let Some(member) = self.members.get_mut(&camera) else { return };
                member.heard = now;
                // A medium that was slow once has given this camera a share of short frames alone, which never measure it again.
                if let Some(measured) = member.measured.as_mut().filter(|m| at_least > m.seen()) {
                    measured.took_in(FrameArrival {
                        bytes_per_second: at_least,
                        at: arrived,
                        took,
                    });
                }
            }
            Input::Left { camera } => {
                if self.members.remove(&camera).is_some() {
                    self.renew_at = now;
                }
            }
        }
    }

    /// The next share to send to a camera, if any.
    pub fn poll(&mut self, now: Instant) -> Option<Allotment> {
        if now >= self.renew_at {
            self.renew_at = now + self.config.renew;
            self.allot(now);
        }
        self.allotments.pop_front()
    }

    /// When to ask [`Coordinator::poll`] again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.allotments.is_empty() {
            return Some(Instant::MIN);
        }
        (!self.members.is_empty()).then_some(self.renew_at)
    }

    fn allot(&mut self, now: Instant) {
        let valid_for = self.config.valid_for;
        self.members.retain(|_, member| now.since(member.heard) < valid_for);
        self.allotments.clear();
        let shares = self.shares();
        let shifts = self.shifts(now);
        for (((camera, _), share), shift) in self.members.iter().zip(shares).zip(shifts) {
            self.allotments.push_back(Allotment {
                camera: camera.clone(),
                bytes_per_second: share,
                shift,
                valid_for,
            });
        }
    }

    /// Bytes a second that each member would find with the medium to itself, in their order; nothing for one that is unmeasured.
    ///
    /// A frame that meets those of other cameras finds a part of the medium: what those take is counted out, as far as the medium is
    /// even among them. Frames of which some are left out may meet every time, and a share of a part would be too small for any.
    fn rates(&self) -> Vec<Option<f64>> {
        let rate = |(index, member): (usize, &Member)| {
            let others = || {
                let others = self.members.values().enumerate().filter(move |(of, _)| *of != index);
                others.filter_map(|(_, other)| other.measured.as_ref())
            };
            let alone = |frame: &FrameArrival| {
                let (mut left, mut shared, mut met) = (1.0, 0.0, 1.0);
                for (takes, both) in others().map(|other| other.takes_of(frame)) {
                    left -= takes;
                    shared += both;
                    met += f64::from(u8::from(both > 0.0));
                }
                // Never less than an even part.
                frame.bytes_per_second / f64::max(left, 1.0 - shared / met).clamp(1.0 / met, 1.0)
            };
            Some(member.measured.as_ref()?.recent.iter().map(alone).fold(0.0, f64::max))
        };
        self.members.values().enumerate().map(rate).collect()
    }

    /// The share of each member, in their order; nothing for one that is alone or unmeasured.
    fn shares(&self) -> Vec<Option<f64>> {
        let members: Vec<&Member> = self.members.values().collect();
        if members.len() < 2 {
            return vec![None; members.len()];
        }
        let equal = self.config.duty / members.len() as f64;
        let rates = self.rates();
        let airtime = self.raised(&members, &rates).unwrap_or_else(|| vec![equal; members.len()]);
        let shares = rates.into_iter().zip(airtime);
        // The sender uses its own duty of the share, so what is given is airtime over duty.
        shares.map(|(rate, airtime)| rate.map(|rate| rate * airtime / self.config.duty)).collect()
    }

    /// Airtime of each member after raising the least accurate one as long as all fit; nothing if a table
    /// or a measurement is missing, or if not even the smallest frames fit.
    fn raised(&self, members: &[&Member], rates: &[Option<f64>]) -> Option<Vec<f64>> {
        let loads: Option<Vec<Vec<(f64, f64)>>> = members
            .iter()
            .zip(rates)
            .map(|(member, rate)| {
                let whole = (*rate)? * member.measured.as_ref()?.period.as_secs_f64();
                let load = |quality: &Quality| (quality.bytes / whole, quality.accuracy);
                Some(member.qualities.iter().map(load).collect())
                    .filter(|loads: &Vec<_>| !loads.is_empty())
            })
            .collect();
        let loads = loads?;
        let mut level = vec![0; loads.len()];
        let used =
            |level: &[usize]| -> f64 { level.iter().zip(&loads).map(|(&l, q)| q[l].0).sum() };
        if used(&level) > self.config.duty {
            return None;
        }
        let mut fixed = vec![false; loads.len()];
        while let Some(poorest) = (0..loads.len())
            .filter(|&index| !fixed[index])
            .min_by(|&a, &b| loads[a][level[a]].1.total_cmp(&loads[b][level[b]].1))
        {
            level[poorest] += 1;
            if level[poorest] == loads[poorest].len() || used(&level) > self.config.duty {
                level[poorest] -= 1;
                fixed[poorest] = true;
            }
        }
        let spare = (self.config.duty - used(&level)) / loads.len() as f64;
        Some(level.iter().zip(&loads).map(|(&level, load)| load[level].0 + spare).collect())
    }

    /// By how much each member should delay its captures, in their order.
    fn shifts(&mut self, now: Instant) -> Vec<Duration> {
        let count = self.members.len();
        let mut first: Option<Instant> = None;
        let stagger = self.config.stagger && count > 1;
        let members = self.members.values_mut().enumerate();
        members
            .map(|(index, member)| {
                let measured = member.measured.as_ref().filter(|_| stagger);
                let last = measured.and_then(|m| Some((m.recent.front()?.at, m.period)));
                let Some((arrived, period)) = last else { return Duration::ZERO };
                let first = *first.get_or_insert(arrived);
                // Frames that arrived before the last shift took effect do not count.
                let unsettled = |at: Instant| arrived <= at + period * 2;
                if member.shifted.is_some_and(unsettled) {
                    return Duration::ZERO;
                }
                let slot = period / u32::try_from(count).unwrap_or(u32::MAX);
                let wanted = slot * u32::try_from(index).unwrap_or(0);
                let ahead = arrived.nanos_since(first);
                let cycle = i64::try_from(period.as_nanos()).unwrap_or(i64::MAX).max(1);
                let wanted = i64::try_from(wanted.as_nanos()).unwrap_or(0);
                let shift = wanted.saturating_sub(ahead).rem_euclid(cycle);
                let shift = Duration::from_nanos(shift.unsigned_abs());
                // A frame a quarter of a slot off meets no other: leave it.
                if shift < slot / 4 || period - shift < slot / 4 {
                    return Duration::ZERO;
                }
                member.shifted = Some(now);
                shift
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: f64 = 125_000.0;

    fn name(index: usize) -> CameraName {
        format!("cam{index}").parse().unwrap()
    }

    fn at(millis: i64) -> Instant {
        Instant::from_millis(1_000_000 + millis)
    }

    fn ladder() -> Vec<Quality> {
        [(55e3, 0.964), (60e3, 0.968), (113e3, 0.975), (400e3, 1.0)]
            .map(|(bytes, accuracy)| Quality { bytes, accuracy })
            .to_vec()
    }

    fn join(coordinator: &mut Coordinator, cameras: &[(Vec<Quality>, f64, i64)]) {
        for (index, (qualities, megabits, phase)) in cameras.iter().enumerate() {
            let camera = name(index);
            coordinator.handle(
                at(0),
                Input::Joined { camera: camera.clone(), qualities: qualities.clone() },
            );
            let bytes_per_second = megabits * MEGABIT;
            let period = Duration::from_millis(200);
            let (arrived, took) = (at(*phase), Duration::ZERO);
            let report = Input::Report { camera, bytes_per_second, period, arrived, took };
            coordinator.handle(at(0), report);
        }
    }

    fn allotments(coordinator: &mut Coordinator, now: Instant) -> Vec<Allotment> {
        std::iter::from_fn(|| coordinator.poll(now)).collect()
    }

    #[test]
    fn a_camera_alone_is_not_limited() {
        let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
        join(&mut coordinator, &[(ladder(), 100.0, 0)]);
        let told = allotments(&mut coordinator, at(0));
        assert_eq!(
            (told.len(), told[0].bytes_per_second, told[0].shift),
            (1, None, Duration::ZERO)
        );
    }

    #[test]
    fn shares_never_exceed_the_medium_and_every_camera_gets_some() {
        for tables in [false, true] {
            for megabits in [5.0, 20.0, 100.0, 1000.0] {
                let qualities = if tables { ladder() } else { vec![] };
                let cameras = vec![(qualities, megabits, 0); 5];
                let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
                join(&mut coordinator, &cameras);
                let told = allotments(&mut coordinator, at(0));
                let shares: Vec<f64> = told.iter().filter_map(|a| a.bytes_per_second).collect();
                let total: f64 = shares.iter().sum::<f64>() / (megabits * MEGABIT);
                assert_eq!(shares.len(), 5);
                assert!(total < 1.0 + 1e-9 && total > 0.99, "{total}");
                assert!(shares.iter().all(|share| *share > 0.0));
            }
        }
    }

    #[test]
    fn the_camera_whose_table_promises_least_is_raised_first() {
        let hard = [(50e3, 0.91), (100e3, 0.95), (200e3, 0.99)]
            .map(|(bytes, accuracy)| Quality { bytes, accuracy });
        let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
        // 20 Mbit/s and 5 frames a second carry 400 KB a period, 0.8 of which is given out.
        join(&mut coordinator, &[(hard.to_vec(), 20.0, 0), (ladder(), 20.0, 0)]);
        let told = allotments(&mut coordinator, at(0));
        let frame = |index: usize| told[index].bytes_per_second.unwrap() * 0.8 * 0.2;
        assert!(frame(0) >= 200e3, "{}", frame(0));
        assert!((113e3..400e3).contains(&frame(1)), "{}", frame(1));
    }

    #[test]
    fn captures_are_spread_over_the_period_and_then_left() {
        let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
        let mut phases = [3, 3, 4, 5, 3];
        let cameras: Vec<_> = phases.iter().map(|&phase| (ladder(), 100.0, phase)).collect();
        join(&mut coordinator, &cameras);
        let mut last = Vec::new();
        for second in 0..5 {
            last = allotments(&mut coordinator, at(second * 1000));
            for (index, told) in last.iter().enumerate() {
                phases[index] += told.shift.as_millis() as i64;
                let arrived = at((second + 1) * 1000 - 200 + phases[index] % 200);
                let (camera, period) = (name(index), Duration::from_millis(200));
                let (bytes_per_second, took) = (100.0 * MEGABIT, Duration::ZERO);
                let report = Input::Report { camera, bytes_per_second, period, arrived, took };
                coordinator.handle(at((second + 1) * 1000 - 1), report);
            }
        }
        assert!(last.iter().all(|told| told.shift.is_zero()));
        let mut sorted = phases.map(|phase| phase % 200);
        sorted.sort_unstable();
        let gaps = sorted.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(gaps.clone().all(|gap| (30..=50).contains(&gap)), "{sorted:?}");
    }

    #[test]
    fn a_silent_camera_is_forgotten_and_the_rest_get_its_part() {
        let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
        join(&mut coordinator, &[(vec![], 100.0, 0), (vec![], 100.0, 0)]);
        assert_eq!(allotments(&mut coordinator, at(0)).len(), 2);
        let report = Input::Report {
            camera: name(0),
            bytes_per_second: 100.0 * MEGABIT,
            period: Duration::from_millis(200),
            arrived: at(5000),
            took: Duration::ZERO,
        };
        coordinator.handle(at(5000), report);
        assert_eq!(coordinator.poll_timeout(), Some(at(1000)));
        let told = allotments(&mut coordinator, at(5001));
        assert_eq!(
            told.iter().map(|a| (&a.camera, a.bytes_per_second)).collect::<Vec<_>>(),
            [(&name(0), None)]
        );
    }

    #[test]
    fn sensors_have_a_part_beside_frames_and_no_limit_without() {
        let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
        assert_eq!(coordinator.sensors(at(0)), None);
        join(&mut coordinator, &[(vec![], 100.0, 0), (vec![], 20.0, 0)]);
        let sensors = coordinator.sensors(at(0)).expect("cameras have measured");
        assert!((sensors - 2.0 * MEGABIT).abs() < 1.0, "{sensors}");
        assert_eq!(coordinator.sensors(at(4_999)), Some(sensors));
        assert_eq!(coordinator.sensors(at(5_000)), None, "no camera was heard for long");
    }

    #[test]
    fn frames_that_meet_every_time_have_the_share_of_those_that_never_do() {
        let period = Duration::from_millis(500);
        let whole = 16.0 * MEGABIT;
        // Frames of 200 KB of three cameras begin so many milliseconds apart, and share the medium evenly while they meet.
        let shares = |apart: i64| {
            let mut arrivals = [(0, 0, 200e3); 3];
            let mut millis = 0;
            while arrivals.iter().any(|(.., left)| *left > 0.0) {
                let is_arriving =
                    |index: usize, left: f64| millis >= index as i64 * apart && left > 0.0;
                let met = arrivals.iter().enumerate().filter(|(i, a)| is_arriving(*i, a.2)).count();
                for (index, (begin, end, left)) in arrivals.iter_mut().enumerate() {
                    if is_arriving(index, *left) {
                        *left -= whole / 1e3 / met as f64;
                        (*begin, *end) = (index as i64 * apart, millis + 1);
                    }
                }
                millis += 1;
            }
            let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
            join(&mut coordinator, &[(vec![], 1.0, 0), (vec![], 1.0, 0), (vec![], 1.0, 0)]);
            for number in 1..=12 {
                for (index, (begin, end, _)) in arrivals.into_iter().enumerate() {
                    let took = Duration::from_millis((end - begin) as u64);
                    let report = Input::Report {
                        camera: name(index),
                        bytes_per_second: 200e3 / took.as_secs_f64(),
                        period,
                        arrived: at(number * 500 + begin),
                        took,
                    };
                    coordinator.handle(at(number * 500 + end), report);
                }
            }
            coordinator.shares().into_iter().map(|share| share.unwrap() / whole).collect::<Vec<_>>()
        };
        for apart in [0, 120] {
            let shares = shares(apart);
            assert!(shares.iter().all(|share| (share * 3.0 - 1.0).abs() < 0.02), "{shares:?}");
        }
        // Never more than there is, however they meet.
        for apart in [10, 30, 60, 90] {
            let shares = shares(apart);
            let fits = |share: &f64| (0.75..1.02).contains(&(share * 3.0));
            assert!(shares.iter().all(fits), "{apart} ms: {shares:?}");
        }
    }

    #[test]
    fn nonsense_reports_change_nothing() {
        let mut coordinator = Coordinator::new(at(0), CoordinatorConfig::default());
        join(&mut coordinator, &[(ladder(), 100.0, 0), (ladder(), 100.0, 0)]);
        let before = coordinator.shares();
        for (rate, period) in [(f64::NAN, 200), (-1.0, 200), (f64::INFINITY, 200), (1e6, 0)] {
            let period = Duration::from_millis(period);
            let arrived = Instant::MAX;
            for camera in [name(0), name(9)] {
                let (bytes_per_second, took) = (rate, Duration::MAX);
                let report = Input::Report { camera, bytes_per_second, period, arrived, took };
                coordinator.handle(at(0), report);
            }
        }
        assert_eq!(coordinator.shares(), before);
    }
}
