//! A process that is killed while it appends.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use tidegate_log::{Durability, Files, FilesConfig, Log, LogConfig, Opened};
use tidegate_message::{Instant, Position};
use tidegate_sys::{clock::monotonic_nanos, folder::Folder};

use crate::support::{Scratch, at, bytes_of};

const KILLS: u64 = 30;
const FOLDER: &str = "TIDEGATE_LOG_KILLED";
const CONFIG: LogConfig = LogConfig { bytes_max: 64 << 20, segment_bytes: 64 << 10 };

fn open(folder: &Path) -> Opened {
    let config =
        FilesConfig { log_id: 1, opened: Instant::EPOCH, commit: Default::default(), keys: None };
    Files::open(Folder::open(folder).expect("the lock went with the process"), config).unwrap()
}

/// Appends as fast as it can, and says of each entry what is kept: `p` in the page cache, `d` on the disk.
fn append_until_killed(folder: &Path) {
    let Opened { files, flusher, commits, .. } = open(folder);
    let flushing = thread::spawn(|| flusher.run(|| Instant::from_nanos(monotonic_nanos())));
    let (mut writer, log) = Log::open(CONFIG, files).unwrap();
    let mut out = std::io::stdout();
    while !flushing.is_finished() {
        let number = log.end().0;
        let durability = if number % 50 == 0 { Durability::Disk } else { Durability::Page };
        let body = bytes_of(number, (number % 2000) as usize);
        let position =
            writer.append_durably(durability, at(number as i64), b"meta", &body).unwrap();
        assert_eq!(position, Position(number));
        if durability == Durability::Disk {
            commits.wait(position).unwrap();
        }
        writeln!(out, "{number}").unwrap();
    }
}

#[test]
fn entries_appended_by_a_killed_process_are_there() {
    if let Some(folder) = env::var_os(FOLDER) {
        return append_until_killed(Path::new(&folder));
    }
    let scratch = Scratch::new("killed");
    let folder = scratch.path("log");
    let mut last_said = None;
    for kill in 0..KILLS {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "kill::entries_appended_by_a_killed_process_are_there",
                "--nocapture",
            ])
            .env(FOLDER, &folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let numbers = lines.map_while(Result::ok).filter_map(|line| line.parse::<u64>().ok());
        // How far it gets depends on the kill; its output after that still counts.
        for (said, number) in numbers.enumerate() {
            last_said = Some(number);
            if said as u64 == 10 + kill * 37 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();

        let Opened { files, report, .. } = open(&folder);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let (_writer, log) = Log::open(CONFIG, files).unwrap();
        let last = last_said.expect("it has said something");
        assert!(log.end() > Position(last), "{last} was appended, {} is next", log.end());
        let mut next = 0;
        for entry in log.range(..) {
            let entry = entry.unwrap();
            assert_eq!(entry.position, Position(next));
            assert_eq!(entry.body, bytes_of(next, (next % 2000) as usize));
            next += 1;
        }
        assert_eq!(log.end(), Position(next));
    }
}
