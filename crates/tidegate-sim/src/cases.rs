//! The cases that controllers are judged by: capacity steps, square waves, five cameras, a shaped trace.
//!
//! Frames are 1080p at 400 KB, vary by 7 % either way, and come out up to 10 % off the table's sizes,
//! which the transfer has to find out. Bounds are 100 ms and 0.95 unless a case says otherwise.

use std::{fmt::Write, path::Path, sync::Arc, time::Duration};

use tidegate_frame::{
    coordinator::CoordinatorConfig,
    table::{Table, TableSet},
    transfer::TransferConfig,
};
use tidegate_message::{
    AdaptationProfile, Bounds, ControllerKind, Delivery, Demand, FrameSize, WhenInfeasible,
};

use crate::{
    cameras::{Camera, Site},
    medium::Scenario,
};

/// A site with a name and the times at which its capacity changes.
#[derive(Clone, Debug)]
pub struct Case {
    /// The simulated case, in a few words.
    pub name: String,
    /// Times of the capacity steps, from the beginning.
    pub steps: Vec<Duration>,
    /// The site; every camera asks for `budget`.
    pub site: Site,
}

/// One-way delay of the modelled lines and of acknowledgements.
const DELAY: Duration = Duration::from_millis(2);
/// The delay of acknowledgements, the receiver's own time included.
const FEEDBACK: Duration = Duration::from_millis(5);
/// From last byte to callback: the live path has 5 ms for it.
const DELIVERY: Duration = Duration::from_millis(2);

impl Case {
    /// The same case with another controller for every camera.
    pub fn with_controller(&self, controller: ControllerKind) -> Self {
        let mut case = self.clone();
        case.site.cameras.iter_mut().for_each(|camera| camera.demand.controller = controller);
        case
    }

    /// The same case with another seed.
    pub fn with_seed(&self, seed: u64) -> Self {
        let mut case = self.clone();
        case.site.seed = seed;
        case
    }
}

/// The demand of most cases.
pub fn demand() -> Demand {
    Demand {
        bounds: Bounds::new(Duration::from_millis(100), 0.95).expect("bounds within their ranges"),
        controller: ControllerKind::Budget,
        delivery: Delivery::Latest,
        when_infeasible: WhenInfeasible::KeepLatency,
        profile: AdaptationProfile::Jpeg,
        frame_rate: None,
    }
}

/// A 1080p camera of `fps` frames a second that follows the default table.
pub fn camera(fps: u32) -> Camera {
    let tables = TableSet::builtin();
    let source = FrameSize { width: 1920, height: 1080 };
    let config = TransferConfig::default();
    let truth = tables.nearest(AdaptationProfile::Jpeg, source, &config.wanted);
    let truth = truth.expect("the default table is built in").clone();
    Camera {
        period: Duration::from_secs(1) / fps,
        phase: Duration::ZERO,
        bytes: 400e3,
        noise: 0.07,
        mismatch: 0.1,
        source,
        demand: demand(),
        then: None,
        config,
        tables: Arc::new(tables),
        truth,
        encode: (Duration::from_micros(2500), Duration::from_millis(8)),
    }
}

fn parse(text: &str) -> Scenario {
    Scenario::parse(text, Path::new("")).expect("the cases' scenarios are spelled right")
}

/// A line from `cam1` to `edge` that has each rate, in Mbit/s, from its time on, in seconds.
pub fn line(rates: &[(f64, f64)]) -> Scenario {
    let mut text = format!(
        "[[medium]]\nname = \"line\"\nkind = \"wan\"\nrate = \"{}Mbit\"\ndelay = \"{}ms\"\nqueue = \"1MiB\"\n",
        rates[0].1,
        DELAY.as_millis()
    );
    text += "step = [";
    for (at, rate) in &rates[1..] {
        write!(text, "{{ at = \"{at}s\", rate = \"{rate}Mbit\" }}, ")
            .expect("writing to a String cannot fail");
    }
    text += "]\n[[medium.port]]\nnode = \"edge\"\n[[medium.port]]\nnode = \"cam1\"\n";
    parse(&text)
}

/// A Wi-Fi-like channel with `count` cameras; `rates` are PHY rates from their times on, `crowd` the part
/// of it that is left while 1, 2, … stations have something to send.
pub fn channel(count: usize, rates: &[(f64, f64)], crowd: &[f64]) -> Scenario {
    let mut text = format!(
        "[[medium]]\nname = \"air\"\nkind = \"wifi\"\nrate = \"{}Mbit\"\ndelay = \"1ms\"\n\
         queue = \"1MiB\"\ncrowd = {crowd:?}\n",
        rates[0].1
    );
    text += "step = [";
    for (at, rate) in &rates[1..] {
        write!(text, "{{ at = \"{at}s\", rate = \"{rate}Mbit\" }}, ")
            .expect("writing to a String cannot fail");
    }
    text += "]\n[[medium.port]]\nnode = \"edge\"\nwired = true\n";
    for camera in 1..=count {
        writeln!(text, "[[medium.port]]\nnode = \"cam{camera}\"")
            .expect("writing to a String cannot fail");
    }
    parse(&text)
}

fn site(scenario: Scenario, cameras: Vec<Camera>, seconds: u64) -> Site {
    Site {
        seed: 1,
        length: Duration::from_secs(seconds),
        scenario,
        feedback: FEEDBACK,
        one_way: DELAY,
        delivery: DELIVERY,
        read_every: Duration::ZERO,
        held_up: (Duration::ZERO, Duration::ZERO),
        cameras,
        coordinator: None,
    }
}

/// One camera on a line that alternates between two rates (Mbit/s) every `every` seconds for a minute.
pub fn steps(fps: u32, high: f64, low: f64, every: f64) -> Case {
    let times = (0..).map(|index| f64::from(index) * every).take_while(|at| *at < 60.0);
    let rates: Vec<(f64, f64)> = times
        .enumerate()
        .map(|(index, at)| (at, if index % 2 == 0 { high } else { low }))
        .collect();
    Case {
        name: format!("{high:.0}/{low:.0} Mbit/s every {every:.0} s, {fps} fps"),
        steps: rates[1..].iter().map(|(at, _)| Duration::from_secs_f64(*at)).collect(),
        site: site(line(&rates), vec![camera(fps)], 60),
    }
}

/// One camera, for a minute, on a line that has each rate (Mbit/s) from its time on, in seconds.
pub fn stepped(fps: u32, rates: &[(f64, f64)]) -> Case {
    let name = format!("{rates:?}, {fps} fps");
    Case { name, steps: vec![], site: site(line(rates), vec![camera(fps)], 60) }
}

/// One camera on a line of constant rate (Mbit/s).
pub fn constant(fps: u32, rate: f64) -> Case {
    Case {
        name: format!("{rate:.0} Mbit/s, {fps} fps"),
        steps: vec![],
        site: site(line(&[(0.0, rate)]), vec![camera(fps)], 30),
    }
}

/// The same cameras with frames of `width` by `height` and `bytes`: a substream, or a camera on a microcontroller.
pub fn smaller(case: Case, width: u16, height: u16, bytes: f64) -> Case {
    let mut case = case;
    for camera in &mut case.site.cameras {
        camera.source = FrameSize { width, height };
        camera.bytes = bytes;
        let truth =
            camera.tables.nearest(AdaptationProfile::Jpeg, camera.source, &camera.config.wanted);
        camera.truth = truth.expect("the default table is built in").clone();
    }
    case.name = format!("{}, frames of {bytes} B", case.name);
    case
}

/// How five cameras share a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All capture at the same moment and no one coordinates them.
    Aligned,
    /// Captures are spread over the period, shares are not given.
    Staggered,
    /// All start at the same moment; the edge node gives shares and spreads the captures.
    Coordinated,
}

/// Five cameras on one channel of 200 Mbit/s PHY rate; with `crowded`, it has 55 % of that while more than
/// two of them send.
pub fn five(fps: u32, sharing: Sharing, crowded: bool) -> Case {
    let crowd: &[f64] = if crowded { &[1.0, 1.0, 0.55] } else { &[1.0] };
    let cameras = (0..5).map(|index| {
        let one = camera(fps);
        let spread =
            if sharing == Sharing::Staggered { one.period / 5 * index } else { Duration::ZERO };
        Camera { phase: spread + Duration::from_millis(u64::from(index)), ..one }
    });
    let mut site = site(channel(5, &[(0.0, 200.0)], crowd), cameras.collect(), 30);
    site.coordinator = (sharing == Sharing::Coordinated).then(CoordinatorConfig::default);
    let crowded = if crowded { ", crowded" } else { "" };
    let name = format!("5 cameras, {fps} fps, {sharing:?}{crowded}").to_lowercase();
    Case { name, steps: vec![], site }
}

/// Two coordinated cameras, for a minute, on one channel that has each PHY rate (Mbit/s) from its time on, in seconds.
pub fn two(fps: u32, rates: &[(f64, f64)]) -> Case {
    let cameras = (0..2).map(|_| camera(fps)).collect();
    let mut site = site(channel(2, rates, &[1.0]), cameras, 60);
    site.coordinator = Some(CoordinatorConfig::default());
    Case { name: format!("2 cameras, {fps} fps, {rates:?}"), steps: vec![], site }
}

/// A video at 30 frames a second with a published profile (`mot`) on a line that is shaped to 25, 7.5, 5
/// and again 25 Mbit/s, two minutes each.
pub fn shaped_trace() -> Case {
    let table = stand_in(TableSet::foreign().iter().find(|table| table.key.scene == "mot"));
    let mut tables = TableSet::new();
    tables.insert(table.clone());
    let mut one = camera(30);
    one.bytes = table.original_bytes;
    one.mismatch = 0.0;
    one.truth = table;
    one.tables = Arc::new(tables);
    one.config.cut.accuracy_min = 0.0;
    one.demand.bounds =
        Bounds::new(Duration::from_millis(100), 0.7).expect("bounds within their ranges");
    let rates = [(0.0, 25.0), (120.0, 7.5), (240.0, 5.0), (360.0, 25.0)];
    Case {
        name: "25/7.5/5/25 Mbit/s, profile mot, 30 fps".to_owned(),
        steps: rates[1..].iter().map(|(at, _)| Duration::from_secs_f64(*at)).collect(),
        site: site(line(&rates), vec![one], 480),
    }
}

/// A video codec's table with settings of ours standing in for its own, so that rows can be distinguished.
fn stand_in(table: Option<&Table>) -> Table {
    let mut table = table.expect("the published profiles are built in").clone();
    for (quality, row) in (1..).zip(&mut table.rows) {
        row.setting = format!("q{quality}").parse().expect("a quality within its range");
    }
    table
}

/// Every case of the comparison.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for fps in [5, 15] {
        cases.extend([
            constant(fps, 200.0),
            constant(fps, 20.0),
            steps(fps, 200.0, 20.0, 10.0),
            steps(fps, 300.0, 30.0, 10.0),
            steps(fps, 300.0, 30.0, 2.0),
        ]);
        for crowded in [false, true] {
            for sharing in [Sharing::Aligned, Sharing::Staggered, Sharing::Coordinated] {
                cases.push(five(fps, sharing, crowded));
            }
        }
    }
    cases.push(shaped_trace());
    cases
}
