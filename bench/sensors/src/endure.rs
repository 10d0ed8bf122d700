//! Whether anything is lost, doubled or out of order while the link is cut and the node above is killed.
//!
//! ```text
//!  devices, QoS 1 ─▶ edge node ══ 100 Mbit/s, cut three times ══ core node, killed twice ─▶ Parquet files
//! ```
//!
//! Messages sent and those in the files are compared topic by topic: how many, and a hash of all payloads in their order. Rows whose
//! `id` has been seen are left out first, as any reader of such files does.

use std::{
    collections::HashMap,
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bench_harness::{Figure, Report, Target};
use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::Field,
};
use tidegate_load::sensors::Workload;
use tidegate_netlab::{Lab, Options};
use tidegate_sim::medium::{Change, Scenario};
use tidegate_wire::mqtt::QoS;

use crate::{
    Plan,
    devices::{self, Load},
    node::{Node, Place, Site},
};

const SCENARIO: &str = r#"
seed = 5
[[medium]]
name = "up0"
kind = "wan"
rate = "100Mbit"
delay = "5ms"
queue = "1MiB"
port = [
  { node = "edge", address = "10.79.1.1/24" },
  { node = "core", address = "10.79.1.2/24" },
]
"#;
const CORE: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 79, 1, 2);

const DEVICES: u64 = 2000;
/// Messages per second. Two processors that carry all of this at 40,000 hold out for some nine minutes: then the edge ends the devices'
/// connection.
const RATE: f64 = 25_000.0;
/// When the link is cut and when the upper node is killed, as parts of the whole.
const CUTS: [f64; 3] = [0.1, 0.4, 0.7];
const KILLS: [f64; 2] = [0.25, 0.6];
/// All has arrived once the sink has had nothing for so long.
const QUIET: Duration = Duration::from_secs(15);
/// Longest wait for that.
const SETTLE: Duration = Duration::from_secs(300);

/// The messages of a topic: how many, and a hash of all in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Chain {
    count: u64,
    hash: u64,
}

impl Chain {
    fn add(&mut self, payload: &[u8]) {
        let mut hasher = DefaultHasher::new();
        (self.hash, payload).hash(&mut hasher);
        *self = Self { count: self.count + 1, hash: hasher.finish() };
    }
}

type Topics = HashMap<String, Chain>;

/// Cuts, kills, and what is left of what was sent.
///
/// # Errors
/// Without root; a node cannot be had, or its files cannot be read.
pub fn endure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let time = Duration::from_secs(if plan.quick { 60 } else { 600 });
    let cut = time / 30;
    report.configuration("endure", format!("CITY, {RATE} messages/s of {DEVICES} devices, QoS 1, page, for {time:?}; {} cuts of {cut:?}, {} kills", CUTS.len(), KILLS.len()));
    let scenario = Scenario::parse(SCENARIO, Path::new(""))?;
    let lab = Lab::up(&scenario, &Options::default())?;
    let site = Site::new(Some(CORE))?;
    let archive = site.path(Place::Core, "archive");
    fs::create_dir_all(&archive).with_context(|| format!("making {}", archive.display()))?;
    let page = "durability = \"page\"";
    site.configure(
        Place::Core,
        page,
        &format!(
            "[sink.log]\nkind = \"parquet\"\ntopics = \"#\"\nurl = {archive:?}\nbatch_age = \"2s\"\n"
        ),
    )?;
    site.configure(
        Place::Edge,
        page,
        &format!(
            "[uplink.core]\nto = \"{}\"\ntopics = \"#\"\nreconnect_backoff_max = \"1s\"\n",
            site.link
        ),
    )?;
    let mut core = Some(site.start(Place::Core, Some(&lab))?);
    let mut edge = site.start(Place::Edge, Some(&lab))?;
    edge.wait_for("uplink served").or_else(|_| edge.wait_for("uplink takes messages"))?;
    let load = Load {
        workload: Workload::City,
        devices: DEVICES,
        seed: plan.seed,
        qos: QoS::AtLeastOnce,
        rate: RATE,
        time,
    };
    let mut sent = Topics::new();
    thread::scope(|scope| -> anyhow::Result<()> {
        let sending = scope.spawn(|| {
            lab.within("edge", || {
                devices::publish(site.address(Place::Edge), &load, |topic, payload| {
                    let topic = String::from_utf8_lossy(topic).into_owned();
                    sent.entry(topic).or_default().add(payload);
                })
            })
        });
        disturb(&lab, &site, &mut core, time, cut)?;
        let sent = sending.join().map_err(|_| anyhow::anyhow!("the devices panicked"))???;
        eprintln!("bench-sensors: {sent} messages sent");
        Ok(())
    })?;
    let core = core.context("the upper node runs")?;
    lab.within("core", || settled(&core))??;
    core.end()?;
    edge.end()?;
    let (kept, doubled) = read(&archive)?;
    let audit = lab.finish()?;
    let total = |topics: &Topics| topics.values().map(|chain| chain.count).sum::<u64>();
    let lost: u64 = sent
        .iter()
        .map(|(topic, chain)| {
            chain.count.saturating_sub(kept.get(topic).map_or(0, |chain| chain.count))
        })
        .sum();
    let more: u64 = kept
        .iter()
        .map(|(topic, chain)| {
            chain.count.saturating_sub(sent.get(topic).map_or(0, |chain| chain.count))
        })
        .sum();
    let others = sent.iter().filter(|(topic, chain)| kept.get(*topic) != Some(chain)).count();
    let note = format!(
        "{} messages of {} topics sent, {} rows, {doubled} of them with an id that was there; p99 lateness of the emulator {:?}",
        total(&sent),
        sent.len(),
        total(&kept) + doubled,
        audit.lateness.p99,
    );
    let figure = |name: &str, value: u64| {
        Figure::new(format!("cuts and kills, {name}"), "")
            .ours([value as f64])
            .target(Target::Exactly(0.0))
    };
    report.figure(figure("messages lost", lost).note(note));
    report.figure(figure("messages twice after the sink's key", more));
    report.figure(figure("topics that are not what was sent, in order", others as u64));
    Ok(())
}

/// Cuts the link and kills the upper node, each at its time.
fn disturb(
    lab: &Lab,
    site: &Site,
    core: &mut Option<Node>,
    time: Duration,
    cut: Duration,
) -> anyhow::Result<()> {
    enum What {
        Cut,
        Mend,
        Kill,
    }
    let mut plan: Vec<(Duration, What)> = Vec::new();
    for part in CUTS {
        plan.push((time.mul_f64(part), What::Cut));
        plan.push((time.mul_f64(part) + cut, What::Mend));
    }
    plan.extend(KILLS.map(|part| (time.mul_f64(part), What::Kill)));
    plan.sort_by_key(|(at, _)| *at);
    let change = |text: &str| -> anyhow::Result<()> {
        let change: Change = text.parse().context("a change of the link")?;
        Ok(lab.apply(change)?)
    };
    let began = Instant::now();
    for (at, what) in plan {
        thread::sleep(at.saturating_sub(began.elapsed()));
        match what {
            What::Cut => change("up0 factor=0")?,
            What::Mend => change("up0 factor=1")?,
            What::Kill => {
                core.take().context("the upper node runs")?.kill()?;
                *core = Some(site.start(Place::Core, Some(lab))?);
            }
        }
    }
    Ok(())
}

/// Waits until the sink has had nothing for a while.
fn settled(core: &Node) -> anyhow::Result<()> {
    let mut reader = core.reader("$SYS/broker/sink/log/report")?;
    let began = Instant::now();
    let (mut last, mut since) = (Vec::new(), Instant::now());
    while since.elapsed() < QUIET {
        ensure!(began.elapsed() < SETTLE, "messages still come {SETTLE:?} after the last was sent");
        if let Some(message) = reader.receive(Duration::from_millis(500))?
            && message.payload != last
        {
            (last, since) = (message.payload, Instant::now());
        }
    }
    Ok(())
}

/// The content of the files, by topic, and how many rows were left out because their `id` was there.
fn read(folder: &Path) -> anyhow::Result<(Topics, u64)> {
    let mut paths = Vec::new();
    files(folder, &mut paths)?;
    // Partitions and names begin with the time.
    paths.sort();
    let (mut topics, mut doubled) = (Topics::new(), 0);
    // By all of an id but its number, which are bits.
    let mut seen = HashMap::<String, Vec<u64>>::new();
    for path in paths {
        let file = File::open(&path).with_context(|| format!("reading {}", path.display()))?;
        for row in SerializedFileReader::new(file)?.get_row_iter(None)? {
            let (mut topic, mut payload, mut id) = (None, None, None);
            for (name, field) in row?.into_columns() {
                match (name.as_str(), field) {
                    ("topic", Field::Str(text)) => topic = Some(text),
                    ("payload", Field::Bytes(bytes)) => payload = Some(bytes),
                    ("id", Field::Str(text)) => id = Some(text),
                    _ => {}
                }
            }
            let (topic, payload) = topic.zip(payload).context("a row has topic and payload")?;
            let id = id.context("a row has an id")?;
            let (life, number) = id.rsplit_once('/').context("an id has a number")?;
            let number: usize = number.parse().with_context(|| format!("{id:?} is not an id"))?;
            if !seen.contains_key(life) {
                seen.insert(life.to_owned(), Vec::new());
            }
            let bits = seen.get_mut(life).context("it is there")?;
            if bits.len() <= number / 64 {
                bits.resize(number / 64 + 1, 0);
            }
            if bits[number / 64] & 1 << (number % 64) != 0 {
                doubled += 1;
                continue;
            }
            bits[number / 64] |= 1 << (number % 64);
            topics.entry(topic).or_default().add(payload.data());
        }
    }
    Ok((topics, doubled))
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            found.push(path);
        }
    }
    Ok(())
}
