//! A node under load that is killed with SIGKILL, again and again, and what its clients find.
//!
//! ```text
//!  publishers ─▶ ┌──────────────┐ ─▶ subscribers whose sessions stay      ─▶ Ledger
//!  (QoS 1, 2)    │ tidegate node│ ─▶ one who asks what is retained        ─▶ Ledger
//!  camera node ─▶└──────────────┘ ─▶ an application that wants every frame ─▶ Frames
//!                   ▲ SIGKILL at seeded moments, on 1 to 8 shards, also while it starts; at times the camera's node, too
//! ```
//!
//! Clients count what they have seen: a message is acknowledged once its PUBACK or PUBCOMP has reached its publisher.

pub mod frames;
pub mod ledger;

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use bench_harness::{Figure, Report, Target};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};
use tidegate_wire::mqtt::{QoS, RetainHandling, SubscribeFilter, Version};

use self::{
    frames::{Applications, Frames},
    ledger::{Ledger, Totals},
};
use crate::{
    Plan,
    crowd::{Crowd, Event, SessionOptions},
    node::{CAMERA, Running, Site},
};

const KILLS: usize = 500;
const KILLS_QUICK: usize = 20;
const SEED: u64 = 1;
const PUBLISHERS: usize = 4;
/// Retained topics of each publisher and QoS.
const RETAINED: usize = 4;
/// Messages a second of each publisher, one of them for a round.
const RATES: [f64; 3] = [100.0, 250.0, 1_000.0];
/// Messages that a publisher leaves unacknowledged at most.
const WINDOW: usize = 16;
/// Messages that a subscriber may be behind: a queue that overflows ends its session's connection, as it should.
const BACKLOG: u64 = 4_000;
/// Of payloads; at times [`LARGE`].
const SIZES: [usize; 6] = [20, 20, 100, 200, 1_000, 4_000];
const LARGE: usize = 70_000;
/// Of clients after a start, and of what is under way at the end.
const PATIENCE: Duration = Duration::from_secs(60);
const SCENE: &str = "scene:street?size=320x180&fps=10&people=2&cars=1&quality=60&seed=1";
const SUBSCRIBERS: usize = 3;
/// The subscriber who comes and goes.
const ROVER: usize = 2;

/// Kills at random moments, of a node that keeps with the durability `class`.
///
/// # Errors
/// A node does not start, or clients do not come back to it.
pub fn kill(plan: &Plan, class: &'static str, report: &mut Report) -> anyhow::Result<()> {
    let kills = if plan.quick { KILLS_QUICK } else { KILLS };
    report.configuration(
        "kill",
        format!(
            "{kills} times SIGKILL for each class, seed {SEED}; {PUBLISHERS} publishers of 100, 250 or 1,000 messages a second, half QoS 2, \
             a fifth retained, 20 B to 4 kB and one in a hundred {LARGE} B; 3 subscribers with lasting sessions, one of MQTT 3.1.1, \
             one who comes and goes, each deaf before every third kill; a kill 0.3 to 1 s after all clients are back, one in ten \
             within 150 ms of the start; 1 to 8 shards; a camera of 10 fps whose node is killed every fourth time; an application \
             that publishes 20 fps"
        ),
    );
    let begun = Instant::now();
    let outcome = Run::new(plan, class)?.run(kills)?;
    outcome.rows(class, begun.elapsed(), report);
    Ok(())
}

/// One class.
struct Run {
    site: Site,
    crowd: Crowd,
    ledger: Ledger,
    random: SmallRng,
    /// Members of the crowd.
    publishers: Vec<usize>,
    subscribers: Vec<usize>,
    checker: Checker,
    events: Vec<(usize, Event)>,
    /// Up to when publishers have published what their rate allows.
    paced: Instant,
}

/// Checks the retained messages after each start.
struct Checker {
    member: usize,
    /// By flow, the least that is expected; none before it has asked.
    promised: Vec<Option<u32>>,
    /// By flow, whether it has come.
    came: Vec<bool>,
    is_asking: bool,
    /// Checks that were carried through.
    done: u64,
}

/// The result of a run.
struct Outcome {
    kills: usize,
    camera_kills: usize,
    early: usize,
    checks: u64,
    totals: Totals,
    ledger: Ledger,
    frames: Frames,
}

impl Run {
    fn new(plan: &Plan, class: &str) -> anyhow::Result<Self> {
        let site = Site::new(
            &plan.folder,
            &[CAMERA.to_owned()],
            &format!(
                "durability = \"{class}\"\n\n[log]\ndurability = \"{class}\"\ncamera_bytes = \"1GiB\"\nmqtt_bytes = \"256MiB\"\n\n\
                 [frames]\nframe_bytes_max = \"1MB\"\n"
            ),
        )?;
        let mut crowd = Crowd::new(site.mqtt);
        let mut ledger = Ledger::new(SUBSCRIBERS);
        let lasting = |client_id: String| SessionOptions {
            client_id,
            session_expiry: 86_400,
            ..SessionOptions::default()
        };
        let mut publishers = Vec::new();
        for publisher in 0..PUBLISHERS {
            let version = if publisher == 0 { Version::V4 } else { Version::V5 };
            let options = SessionOptions { version, ..lasting(format!("publisher-{publisher}")) };
            publishers.push(crowd.join(options));
            for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                ledger.flow(format!("k/{publisher}/{}", qos as u8), qos, false);
                for topic in 0..RETAINED {
                    ledger.flow(format!("r/{publisher}/{}/{topic}", qos as u8), qos, true);
                }
            }
        }
        let subscribers = vec![
            crowd.join(SessionOptions {
                receive_maximum: std::num::NonZeroU16::new(20),
                ..lasting("subscriber-0".to_owned())
            }),
            crowd.join(SessionOptions {
                version: Version::V4,
                ..lasting("subscriber-1".to_owned())
            }),
            crowd.join(lasting("subscriber-2".to_owned())),
        ];
        let member = crowd
            .join(SessionOptions { client_id: "checker".to_owned(), ..SessionOptions::default() });
        let checker =
            Checker { member, promised: Vec::new(), came: Vec::new(), is_asking: false, done: 0 };
        Ok(Self {
            site,
            crowd,
            ledger,
            random: SmallRng::seed_from_u64(SEED),
            publishers,
            subscribers,
            checker,
            events: Vec::new(),
            paced: Instant::now(),
        })
    }

    fn run(mut self, kills: usize) -> anyhow::Result<Outcome> {
        // Subscriptions come before the first message, or no one is owed it.
        let mut node = self.start()?;
        self.until(|run| run.crowd.is_complete(), "clients are let in", &mut node)?;
        for subscriber in self.subscribers.clone() {
            self.crowd.session(subscriber).subscribe(vec![filter("k/#")])?;
        }
        self.turns(Duration::from_millis(300), &mut node)?;
        let mut camera = self.site.start_camera(CAMERA, SCENE)?;
        let pki = self.site.path("data/pki");
        let applications = Applications::start(self.site.endpoint(), pki, CAMERA);
        self.until(|_| applications.delivered() > 0, "a first frame", &mut node)?;
        let (mut early, mut camera_kills) = (0, 0);
        for kill in 0..kills {
            self.ledger.moment = format!("seed {SEED}, kill {kill}");
            ensure!(!applications.have_ended(), "{}", ended(applications.finish()));
            let is_early = kill > 0 && self.random.random_ratio(1, 10);
            if is_early {
                early += 1;
                let within = Duration::from_millis(self.random.random_range(0..150));
                self.turns(within, &mut node)?;
            } else {
                self.until(|run| run.crowd.is_complete(), "clients come back", &mut node)?;
                // Now and then applications have time to reach the present.
                let millis = if kill % 20 == 19 { 3_000 } else { 300 };
                let length = Duration::from_millis(self.random.random_range(millis..millis + 700));
                self.load(length, &mut node)?;
            }
            node.kill()?;
            if self.random.random_ratio(1, 4) {
                camera.kill()?;
                camera = self.site.start_camera(CAMERA, SCENE)?;
                camera_kills += 1;
            }
            camera.check()?;
            node = self.start()?;
            if kill % 50 == 49 {
                eprintln!(
                    "bench-durability: {} kills, {} frames, {:?}",
                    kill + 1,
                    applications.delivered(),
                    self.ledger.found.words
                );
            }
        }
        self.ledger.moment = format!("seed {SEED}, after {kills} kills");
        self.settle(&mut node)?;
        for fault in std::mem::take(&mut self.crowd.faults) {
            self.ledger.fault(fault);
        }
        let frames = applications.finish()?;
        let totals = self.ledger.totals();
        Ok(Outcome {
            kills,
            camera_kills,
            early,
            checks: self.checker.done,
            totals,
            ledger: self.ledger,
            frames,
        })
    }

    fn start(&mut self) -> anyhow::Result<Running> {
        let shards = [1, 2, 2, 3, 8].choose(&mut self.random).expect("not empty");
        self.crowd.come(self.subscribers[ROVER]);
        if self.random.random_ratio(1, 3) {
            self.crowd.leave(self.subscribers[ROVER]);
        }
        self.site.start(&[format!("mqtt.shards={shards}")])
    }

    /// Publishes meanwhile.
    fn load(&mut self, length: Duration, node: &mut Running) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.paced = begun;
        let leaves_at = self
            .random
            .random_ratio(1, 3)
            .then(|| length.mul_f64(self.random.random_range(0.2..0.8)));
        let mut has_left = false;
        let rate = *RATES.choose(&mut self.random).expect("not empty");
        let deaf_at: Vec<(usize, Duration)> = self
            .subscribers
            .iter()
            .filter_map(|member| {
                let lasts = Duration::from_millis(self.random.random_range(0..200));
                self.random.random_ratio(1, 3).then(|| (*member, length.saturating_sub(lasts)))
            })
            .collect();
        while begun.elapsed() < length {
            self.publish(rate);
            for (member, at) in &deaf_at {
                self.crowd.deafen(*member, begun.elapsed() >= *at);
            }
            if leaves_at.is_some_and(|at| begun.elapsed() > at) && !has_left {
                has_left = true;
                self.crowd.abort(self.subscribers[ROVER]);
            }
            self.turn(Duration::from_millis(2))?;
        }
        // The kill finds messages, acknowledgements and deliveries under way.
        self.paced = Instant::now().checked_sub(Duration::from_millis(20)).unwrap_or(begun);
        self.publish(rate);
        self.crowd.write();
        thread::sleep(Duration::from_micros(self.random.random_range(0..3_000)));
        for member in self.subscribers.clone() {
            self.crowd.deafen(member, false);
        }
        node.check()
    }

    /// Publishes as much as the rate allows by now.
    fn publish(&mut self, rate: f64) {
        let due = (self.paced.elapsed().as_secs_f64() * rate) as u32;
        self.paced += Duration::from_secs_f64(f64::from(due) / rate);
        if self.ledger.backlog() > BACKLOG {
            return;
        }
        for (publisher, &member) in self.publishers.iter().enumerate() {
            for _ in 0..due {
                let session = self.crowd.session(member);
                if session.room() == 0 || session.pending() >= WINDOW {
                    break;
                }
                let of_qos = publisher * 2 + self.random.random_range(0..2);
                let topic = match self.random.random_ratio(1, 5) {
                    true => 1 + self.random.random_range(0..RETAINED),
                    false => 0,
                };
                let flow = of_qos * (1 + RETAINED) + topic;
                let is_large = topic == 0 && self.random.random_ratio(1, 100);
                let bytes = *SIZES.choose(&mut self.random).expect("not empty");
                let (name, payload) =
                    self.ledger.publish(flow, if is_large { LARGE } else { bytes });
                let flow = &self.ledger.flows()[flow];
                session.publish(name, &flow.topic, &payload, flow.qos, flow.retain);
            }
        }
    }

    /// Lets clients be, without new messages.
    fn turns(&mut self, length: Duration, node: &mut Running) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < length {
            self.turn(Duration::from_millis(1))?;
        }
        node.check()
    }

    fn until(
        &mut self,
        is_so: impl Fn(&Self) -> bool,
        what: &str,
        node: &mut Running,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !is_so(self) {
            self.turn(Duration::from_millis(2))?;
            node.check()?;
            if begun.elapsed() > PATIENCE {
                bail!("{}: waited {} s until {what}", self.ledger.moment, PATIENCE.as_secs());
            }
        }
        Ok(())
    }

    /// Until everything that was promised has come, or nothing more comes.
    fn settle(&mut self, node: &mut Running) -> anyhow::Result<()> {
        self.crowd.come(self.subscribers[ROVER]);
        self.until(|run| run.crowd.is_complete(), "clients come back", node)?;
        let (mut missing, mut since) = (u64::MAX, Instant::now());
        loop {
            self.turns(Duration::from_millis(200), node)?;
            let owed: usize =
                self.publishers.iter().map(|m| self.crowd.member(*m).session.pending()).sum();
            let now = self.ledger.missing() + owed as u64;
            if now < missing {
                (missing, since) = (now, Instant::now());
            }
            if now == 0 || since.elapsed() > PATIENCE / 4 {
                break;
            }
        }
        // Repetitions may still be under way.
        self.turns(Duration::from_secs(1), node)?;
        self.crowd.abort(self.checker.member);
        self.crowd.come(self.checker.member);
        let done = self.checker.done;
        let begun = Instant::now();
        while self.checker.done == done && begun.elapsed() < PATIENCE / 4 {
            self.turn(Duration::from_millis(5))?;
        }
        if self.checker.done == done {
            for flow in 0..self.checker.came.len() {
                if self.checker.promised[flow].is_some() && !self.checker.came[flow] {
                    self.ledger.not_retained(flow);
                }
            }
        }
        node.check()
    }

    fn turn(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.crowd.turn(timeout, &mut events)?;
        for (member, event) in events.drain(..) {
            self.handle(member, event)?;
        }
        self.events = events;
        Ok(())
    }

    fn handle(&mut self, member: usize, event: Event) -> anyhow::Result<()> {
        let subscriber = self.subscribers.iter().position(|it| *it == member);
        match event {
            Event::Connected { session_present, was_expected } => {
                if let Some(subscriber) = subscriber {
                    self.ledger.connected(subscriber);
                }
                if was_expected && !session_present {
                    self.ledger.session_lost(member);
                    if subscriber.is_some() {
                        self.crowd.session(member).subscribe(vec![filter("k/#")])?;
                    }
                }
                if member == self.checker.member {
                    self.checker.promised = self.ledger.promised();
                    self.checker.came = vec![false; self.checker.promised.len()];
                    self.checker.is_asking = true;
                    self.crowd.session(member).subscribe(vec![filter("r/#")])?;
                }
            }
            Event::Refused(reason) => {
                self.ledger.fault(format!("client {member} is told {}", reason.name()));
            }
            Event::Subscribed(reasons) => {
                if let Some(reason) = reasons.iter().find(|reason| reason.is_failure()) {
                    self.ledger.fault(format!("a subscription is refused: {}", reason.name()));
                }
            }
            Event::Acknowledged { number, reason } => self.ledger.acknowledged(number, reason),
            Event::Message(message) => match subscriber {
                Some(subscriber) => self.ledger.delivered(subscriber, &message),
                None if message.retain && self.checker.is_asking => {
                    let checker = &mut self.checker;
                    if let Some(flow) = self.ledger.retained(&message, &checker.promised) {
                        checker.came[flow] = true;
                    }
                    let all = checker.promised.iter().zip(&checker.came);
                    if all.into_iter().all(|(promised, came)| *came || promised.is_none()) {
                        checker.is_asking = false;
                        checker.done += 1;
                    }
                }
                None => {} // what is published while the checker is there
            },
        }
        Ok(())
    }
}

fn ended(frames: anyhow::Result<Frames>) -> String {
    frames.map_or_else(|error| format!("{error:#}"), |_| "the applications have ended".to_owned())
}

fn filter(filter: &str) -> SubscribeFilter {
    SubscribeFilter {
        filter: filter.to_owned(),
        maximum_qos: QoS::ExactlyOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    }
}

impl Outcome {
    fn rows(self, class: &str, took: Duration, report: &mut Report) {
        let Self { kills, camera_kills, early, checks, totals, ledger, frames } = self;
        let found = &ledger.found;
        let name = |what: &str| format!("{kills} kills, {class}, {what}");
        let none = |what: &str, count: f64| {
            Figure::new(name(what), "").ours([count]).target(Target::Exactly(0.0))
        };
        let lost = none("QoS 1 acknowledged, deliveries lost", totals.lost[0] as f64).note(format!(
            "{} acknowledged, {SUBSCRIBERS} deliveries each, {} repetitions; {early} kills during a start; {:.0} s",
            totals.acknowledged[0],
            totals.repeated[0],
            took.as_secs_f64()
        ));
        report.figure(lost);
        let lost = none("QoS 2 acknowledged, deliveries lost", totals.lost[1] as f64);
        report.figure(lost.note(format!("{} acknowledged", totals.acknowledged[1])));
        report.figure(none("QoS 2 delivered twice", totals.repeated[1] as f64));
        report.figure(none("order broken", found.disordered as f64));
        report.figure(none(
            "order broken among messages in flight at a kill",
            found.disordered_in_flight as f64,
        ));
        let old = none("retained, lost or older than acknowledged", found.retained_old as f64);
        report.figure(old.note(format!("{checks} times all retained topics were looked at")));
        report.figure(none("sessions lost", found.sessions_lost as f64));
        report.figure(none("altered messages and broken protocol", found.altered as f64));
        let lost = none("camera's frames, lost", frames.lost as f64);
        report.figure(lost.note(format!(
            "{} delivered; its node was killed {camera_kills} times; subscriptions renewed {} times",
            frames.delivered, frames.renewed
        )));
        report.figure(none("camera's frames, twice or out of order", frames.repeated as f64));
        let forgotten = frames.forgotten as f64;
        report.figure(none("camera's frames, delivered and not in its log", forgotten));
        let lost = frames.acknowledged_lost as f64;
        let lost = none("frames of an application, acknowledged and lost", lost);
        report.figure(lost.note(format!("{} acknowledged", frames.acknowledged)));
        let twice = frames.published_twice as f64;
        report.figure(none("frames of an application, twice", twice));
        let mut words = ledger.lost_words();
        words.extend(found.words.iter().cloned());
        if !words.is_empty() {
            report.attach(format!("kill-{class}.txt"), words.join("\n") + "\n");
            for words in words {
                eprintln!("bench-durability: {class}: {words}");
            }
        }
        if found.refused > 0 {
            eprintln!("bench-durability: {class}: {} messages were refused", found.refused);
        }
    }
}
