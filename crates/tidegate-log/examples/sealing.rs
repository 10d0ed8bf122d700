//! What sealing costs: the median time of an append and of a read, sealed and in clear text, in turn.
//!
//! `cargo run --release -p tidegate-log --example sealing -- FOLDER`

use std::{error::Error, path::Path, time::Instant as Clock};

use tidegate_log::{Durability, Files, FilesConfig, Log, LogConfig, NodeKey, NodeKeys, Opened};
use tidegate_message::{Instant, Position};
use tidegate_sys::folder::Folder;

const ENTRIES: u64 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder for the files")?;
    println!("bytes  sealed  append µs  read µs");
    for round in 0..3 {
        for bytes in [1_000, 100_000] {
            for is_sealed in [false, true] {
                let path = Path::new(&folder).join(format!("{round}-{bytes}-{is_sealed}"));
                let (append, read) = measure(&path, bytes, is_sealed)?;
                println!("{bytes:>6} {is_sealed:>6} {append:>9.1} {read:>9.1}");
                std::fs::remove_dir_all(path)?;
            }
        }
    }
    Ok(())
}

/// Median time of an append and of a read, in microseconds.
fn measure(path: &Path, bytes: usize, is_sealed: bool) -> Result<(f64, f64), Box<dyn Error>> {
    let current = NodeKey::generate()?;
    let keys = is_sealed.then_some(NodeKeys { current, older: Vec::new() });
    let (opened, commit) = (Instant::EPOCH, Default::default());
    let config = FilesConfig { log_id: 1, opened, commit, keys };
    let Opened { files, flusher, .. } = Files::open(Folder::open(path)?, config)?;
    let (mut writer, log) = Log::open(LogConfig::bounded(64 << 20), files)?;
    let body: Vec<u8> = (0..bytes).map(|byte| (byte * 31) as u8).collect();
    let (mut appends, mut reads) = (Vec::new(), Vec::new());
    for number in 0..ENTRIES {
        let at = Instant::from_nanos(i64::try_from(number)? + 1);
        let begun = Clock::now();
        writer.append_durably(Durability::Page, at, b"camera", &body)?;
        appends.push(begun.elapsed());
        let begun = Clock::now();
        let entry = log.entry(Position(number))?.ok_or("it was appended")?;
        reads.push(begun.elapsed());
        assert_eq!(entry.body.len(), bytes);
    }
    drop(flusher);
    let median = |times: &mut Vec<std::time::Duration>| {
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    Ok((median(&mut appends), median(&mut reads)))
}
