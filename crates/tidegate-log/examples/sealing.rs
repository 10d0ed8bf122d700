//! What sealing costs: the median time of an append, of passing on what was just appended, and of a read, sealed and in clear text,
//! in turn.
//!
//! `cargo run --release -p tidegate-log --example sealing -- FOLDER`

use std::{error::Error, path::Path, time::Instant as Clock};

use bytes::Bytes;
use tidegate_log::{
    Durability, Files, FilesConfig, Log, LogConfig, NodeKey, NodeKeys, Opened, Store,
};
use tidegate_message::{Instant, Position};
use tidegate_sys::folder::Folder;

const ENTRIES: u64 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder for the files")?;
    println!("bytes  sealed  append µs  live µs  read µs");
    for round in 0..3 {
        for bytes in [1_000, 100_000, 500_000] {
            for is_sealed in [false, true] {
                let path = Path::new(&folder).join(format!("{round}-{bytes}-{is_sealed}"));
                let [append, live, read] = measure(&path, bytes, is_sealed)?;
                println!("{bytes:>6} {is_sealed:>6} {append:>9.1} {live:>9.2} {read:>9.1}");
                std::fs::remove_dir_all(path)?;
            }
        }
    }
    Ok(())
}

/// Median times of an append, of reading what was just appended and of reading what was before, in microseconds.
fn measure(path: &Path, bytes: usize, is_sealed: bool) -> Result<[f64; 3], Box<dyn Error>> {
    let current = NodeKey::generate()?;
    let keys = is_sealed.then_some(NodeKeys { current, older: Vec::new() });
    let (opened, commit) = (Instant::EPOCH, Default::default());
    let config = FilesConfig { log_id: 1, opened, commit, keys };
    let Opened { files, flusher, .. } = Files::open(Folder::open(path)?, config)?;
    let (mut writer, log) = Log::open(LogConfig::bounded(64 << 20), Store::files(files))?;
    let body: Bytes = (0..bytes).map(|byte| (byte * 31) as u8).collect::<Vec<u8>>().into();
    let mut times = [const { Vec::new() }; 3];
    for number in 1..=ENTRIES {
        let at = Instant::from_nanos(i64::try_from(number)?);
        let mut time = |what: usize, begun: Clock| times[what].push(begun.elapsed());
        let begun = Clock::now();
        let position = writer.append_shared(Durability::Page, at, b"camera", &body)?;
        time(0, begun);
        for (what, position) in [(1, position.0), (2, position.0.saturating_sub(1))] {
            let begun = Clock::now();
            let entry = log.entry(Position(position))?.ok_or("it was appended")?;
            time(what, begun);
            assert_eq!(entry.body.len(), bytes);
        }
    }
    drop(flusher);
    Ok(times.map(|mut times| {
        times.sort();
        times[times.len() / 2].as_secs_f64() * 1e6
    }))
}
