//! What durability costs, by hand: appends against a write per message, group commit against a sync per message, and opening.
//!
//! `durability FOLDER append|commit|open [GIB]`; the folder is to lie on the disk in question.

use std::{
    env, fs,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant as Stopwatch},
};

use tidegate_log::{
    CommitConfig, Durability, Files, FilesConfig, Log, LogConfig, LogWriter, Opened,
};
use tidegate_message::Instant;
use tidegate_sys::{clock::monotonic_nanos, folder::Folder};

fn main() {
    let mut arguments = env::args().skip(1);
    let (Some(folder), Some(what)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: durability FOLDER append|commit|open [GIB]");
        std::process::exit(2);
    };
    let folder = PathBuf::from(folder);
    fs::create_dir_all(&folder).expect("the folder can be made");
    match what.as_str() {
        "append" => append(&folder),
        "commit" => commit(&folder),
        "open" => {
            let gib = arguments.next().and_then(|gib| gib.parse().ok()).unwrap_or(10);
            open(&folder, gib);
        }
        other => eprintln!("{other} is not measured"),
    }
}

struct Running {
    writer: LogWriter<Files>,
    log: Log<Files>,
    commits: tidegate_log::Commits,
    flushing: thread::JoinHandle<()>,
}

fn start(folder: &Path, config: LogConfig, commit: CommitConfig) -> Running {
    let disk = Folder::open(folder).expect("the folder is ours");
    let files = FilesConfig { log_id: 1, opened: Instant::EPOCH, commit, keys: None };
    let Opened { files, flusher, commits, report } = Files::open(disk, files).expect("it opens");
    assert!(report.findings.is_empty(), "{report:?}");
    let clock = || Instant::from_nanos(monotonic_nanos());
    let flushing = thread::spawn(move || flusher.run(clock));
    let (writer, log) = Log::open(config, files).expect("the sizes fit");
    Running { writer, log, commits, flushing }
}

fn process_cpu() -> Duration {
    let nanos = tidegate_sys::clock::process_cpu_nanos(std::process::id()).expect("it runs");
    Duration::from_nanos(nanos as u64)
}

fn append(folder: &Path) {
    println!(
        "bytes | ours ns [cpu] | write(2) over one file ns [cpu] | wall | cpu | write(2) to new files ns [cpu] | wall | cpu"
    );
    for (bytes, count) in [(100, 2_000_000_u64), (1000, 600_000), (10_000, 60_000)] {
        let body = vec![0x5a; bytes];
        let config = LogConfig { bytes_max: 256 << 20, segment_bytes: 16 << 20 };
        let path = folder.join("ours");
        let Running { mut writer, log, flushing, .. } =
            start(&path, config, CommitConfig::default());
        let mut time = 0;
        let mut run = |count: u64| {
            let (begin, cpu) = (Stopwatch::now(), process_cpu());
            for _ in 0..count {
                time += 1;
                let at = Instant::from_nanos(time);
                writer.append_durably(Durability::Page, at, b"", &body).expect("there is room");
            }
            (begin.elapsed(), process_cpu() - cpu)
        };
        // Twice around, so that every segment was used before.
        let lap = (256 << 20) / (bytes as u64 + 56);
        let (first, _) = run(lap);
        println!("{bytes}: {} ns each on the first lap", first.as_nanos() / u128::from(lap));
        run(lap);
        let theirs_path = folder.join("theirs");
        let mut theirs = fs::File::create(&theirs_path).expect("a file can be made");
        let mut rolled = (Duration::ZERO, Duration::ZERO);
        let mut files = Rolling::new(folder.join("rolling"));
        let mut ours = (Duration::ZERO, Duration::ZERO);
        let mut written = (Duration::ZERO, Duration::ZERO);
        let mut record = vec![0; 32];
        record.extend_from_slice(&body);
        let rounds = 5;
        for round in 0..rounds {
            let took = run(count / rounds);
            ours = (ours.0 + took.0, ours.1 + took.1);
            // Theirs is in its steady state, too: a file of the same size, written over from its second lap on.
            let (begin, cpu) = (Stopwatch::now(), process_cpu());
            let mut offset = 0;
            for number in 0..count / rounds {
                // The same record: a head with position and CRC.
                record[16..24].copy_from_slice(&number.to_le_bytes());
                let crc = crc32c::crc32c(&record[4..]);
                record[..4].copy_from_slice(&crc.to_le_bytes());
                theirs.write_at(&record, offset).expect("it is written");
                offset += record.len() as u64;
            }
            let took = (begin.elapsed(), process_cpu() - cpu);
            if round > 0 {
                // Theirs as logs do it: segments of the same size, the oldest removed at the same limit.
                let (begin, cpu) = (Stopwatch::now(), process_cpu());
                for number in 0..count / rounds {
                    record[16..24].copy_from_slice(&number.to_le_bytes());
                    let crc = crc32c::crc32c(&record[4..]);
                    record[..4].copy_from_slice(&crc.to_le_bytes());
                    files.append(&record);
                }
                rolled.0 += begin.elapsed();
                rolled.1 += process_cpu() - cpu;
            }
            if round > 0 {
                written.0 += took.0;
                written.1 += took.1;
            }
        }
        theirs.flush().expect("it is written");
        let each = |took: Duration, rounds_counted: u64| {
            took.as_nanos() as f64 / (count / rounds * rounds_counted) as f64
        };
        let (our_wall, our_cpu) = (each(ours.0, rounds), each(ours.1, rounds));
        let (their_wall, their_cpu) = (each(written.0, rounds - 1), each(written.1, rounds - 1));
        let (new_wall, new_cpu) = (each(rolled.0, rounds - 1), each(rolled.1, rounds - 1));
        println!(
            "{bytes} | {our_wall:.0} [{our_cpu:.0}] | {their_wall:.0} [{their_cpu:.0}] | {:.1} | {:.1} | {new_wall:.0} [{new_cpu:.0}] | {:.1} | {:.1}",
            their_wall / our_wall,
            their_cpu / our_cpu,
            new_wall / our_wall,
            new_cpu / our_cpu,
        );
        drop((writer, log));
        flushing.join().expect("the flusher ends");
        fs::remove_dir_all(&path).expect("ours");
        fs::remove_file(&theirs_path).expect("ours");
    }
}

/// A log in plain files, written to message by message.
struct Rolling {
    folder: PathBuf,
    file: Option<(fs::File, u64)>,
    begun: u64,
}

impl Rolling {
    fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).expect("the folder can be made");
        Self { folder, file: None, begun: 0 }
    }

    fn append(&mut self, record: &[u8]) {
        if self.file.as_ref().is_none_or(|(_, used)| *used >= 16 << 20) {
            let name = |number: u64| self.folder.join(number.to_string());
            if self.begun >= 16 {
                fs::remove_file(name(self.begun - 16)).expect("it is there");
            }
            let file = fs::File::create(name(self.begun)).expect("a file can be made");
            self.file = Some((file, 0));
            self.begun += 1;
        }
        let (file, used) = self.file.as_mut().expect("it was just opened");
        file.write_all(record).expect("it is written");
        *used += record.len() as u64;
    }
}

impl Drop for Rolling {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).expect("ours");
    }
}

fn commit(folder: &Path) {
    let seconds = Duration::from_secs(5);
    let body = vec![0x5a; 100];
    let mut file = fs::File::create(folder.join("theirs")).expect("a file can be made");
    let begin = Stopwatch::now();
    let mut synced = 0_u64;
    while begin.elapsed() < seconds {
        file.write_all(&body).expect("it is written");
        file.sync_data().expect("it is synced");
        synced += 1;
    }
    let each = synced as f64 / begin.elapsed().as_secs_f64();
    println!("one fdatasync a message: {each:.0}/s");
    // As fast as they can with so many in flight each, or paced: so many microseconds between two of one producer.
    for (delay, window, pace) in
        [(10, 1, 0), (10, 256, 0), (10, 4096, 1280), (20, 4096, 1280), (50, 4096, 1280)]
    {
        let path = folder.join("ours");
        let config = LogConfig { bytes_max: 256 << 20, segment_bytes: 16 << 20 };
        let delay_max = Duration::from_millis(delay);
        let commit = CommitConfig { delay_max, ..CommitConfig::default() };
        let Running { writer, log, commits, flushing } = start(&path, config, commit);
        let writer = Mutex::new((writer, 0_i64));
        let total = AtomicU64::new(0);
        let latencies = Mutex::new(Vec::new());
        let before = commits.counts().flushes;
        let begin = Stopwatch::now();
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    let mut waiting = std::collections::VecDeque::new();
                    let mut next = Stopwatch::now();
                    while begin.elapsed() < seconds {
                        if pace > 0 {
                            next += Duration::from_micros(pace);
                            thread::sleep(next.saturating_duration_since(Stopwatch::now()));
                        }
                        let asked = Stopwatch::now();
                        let mut locked = writer.lock().expect("nobody panics");
                        locked.1 += 1;
                        let at = Instant::from_nanos(locked.1);
                        let position = locked
                            .0
                            .append_durably(Durability::Disk, at, b"", &body)
                            .expect("there is room");
                        drop(locked);
                        waiting.push_back((position, asked));
                        if waiting.len() >= window {
                            let (position, _) = waiting[0];
                            commits.wait(position).expect("the disk works");
                        }
                        if waiting.len() >= window || pace > 0 {
                            let now = Stopwatch::now();
                            while let Some(&(position, asked)) = waiting.front()
                                && commits.poll(position).is_some()
                            {
                                mine.push(now - asked);
                                waiting.pop_front();
                            }
                        }
                    }
                    total.fetch_add(mine.len() as u64, Ordering::Relaxed);
                    latencies.lock().expect("nobody panics").extend(mine);
                });
            }
        });
        let rate = total.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
        let mut latencies = latencies.into_inner().expect("nobody panics");
        latencies.sort();
        let at = |percent: usize| latencies[latencies.len() * percent / 100];
        let flushes = commits.counts().flushes - before;
        println!(
            "64 producers, {window} in flight each, one in {pace} us, delay {delay} ms: {rate:.0}/s, {:.0} x, p50 {:?}, p99 {:?}, {} per flush",
            rate / each,
            at(50),
            at(99),
            total.load(Ordering::Relaxed) / flushes.max(1),
        );
        drop((writer, log));
        flushing.join().expect("the flusher ends");
        fs::remove_dir_all(&path).expect("ours");
    }
    fs::remove_file(folder.join("theirs")).expect("ours");
}

fn open(folder: &Path, gib: u64) {
    let path = folder.join("ours");
    for (segment_bytes, bytes) in [(64 << 20, 100_000), (8 << 20, 1000)] {
        let config = LogConfig { bytes_max: (gib + 1) << 30, segment_bytes };
        let Running { mut writer, log, flushing, .. } =
            start(&path, config.clone(), CommitConfig::default());
        let body = vec![0x5a; bytes];
        let mut time = 0;
        while log.bytes() < gib << 30 {
            time += 1;
            let at = Instant::from_nanos(time);
            writer.append_durably(Durability::Page, at, b"", &body).expect("there is room");
        }
        let entries = log.entries();
        drop((writer, log));
        flushing.join().expect("the flusher ends");
        for cache in ["warm", "dropped"] {
            if cache == "dropped" {
                let dropped = fs::write("/proc/sys/vm/drop_caches", "3");
                if let Err(error) = dropped {
                    println!("skipped: the cache was not dropped: {error}");
                    continue;
                }
            }
            let begin = Stopwatch::now();
            let Running { writer, log, flushing, .. } =
                start(&path, config.clone(), CommitConfig::default());
            let opened = begin.elapsed();
            assert_eq!(log.entries(), entries);
            let found = log.nearest_before(Instant::from_nanos(time / 2)).expect("it reads");
            println!(
                "{gib} GiB in segments of {} MiB, {entries} entries of {bytes} B, cache {cache}: opened in {opened:?}, first read after {:?}, {:?}",
                segment_bytes >> 20,
                begin.elapsed(),
                found.map(|entry| entry.position)
            );
            drop((writer, log));
            flushing.join().expect("the flusher ends");
        }
        fs::remove_dir_all(&path).expect("ours");
    }
}
