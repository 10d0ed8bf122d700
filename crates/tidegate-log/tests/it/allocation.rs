//! Once a log has wrapped, appending takes no memory, and reading only the count of each slice. In files, each segment takes some.

use allocation_counter::measure;
use tidegate_log::{Durability, Files, FilesConfig, Log, LogConfig, Opened};
use tidegate_sys::folder::Folder;

use crate::support::{Scratch, at, log_of};

#[test]
fn a_wrapped_log_appends_without_allocating() {
    let (mut writer, log) = log_of(8, 1 << 16);
    let body = vec![1; 9_000];
    let mut time = 0;
    let mut append = |entries: u64| {
        for _ in 0..entries {
            time += 1;
            // Sizes that change from lap to lap.
            let bytes = body.len() - (time * 131 % 700) as usize;
            writer.append(at(time), b"meta", &body[..bytes]).unwrap();
        }
    };
    append(1_000);
    let first = log.first().unwrap().unwrap().position;
    let used = measure(|| append(1_000));
    assert_eq!(used.count_total, 0, "{used:?}");
    assert!(log.first().unwrap().unwrap().position.0 >= first.0 + 1_000, "it wrapped meanwhile");
}

#[test]
fn reading_an_entry_allocates_once_and_copies_nothing() {
    let (mut writer, log) = log_of(8, 1 << 16);
    for time in 0..5 {
        writer.append(at(time), b"meta", &[0; 10_000]).unwrap();
    }
    let mut reader = log.reader_from(at(0));
    let used = measure(|| while reader.next().unwrap().is_some() {});
    assert_eq!(used.count_total, 5, "{used:?}");
    assert!(used.bytes_total < 5 * 100, "{used:?}");
    let used = measure(|| assert!(reader.next().unwrap().is_none()));
    assert_eq!(used.count_total, 0, "asking in vain: {used:?}");
}

#[test]
fn a_log_in_files_allocates_for_segments_and_not_for_entries() {
    let scratch = Scratch::new("allocation");
    let config = FilesConfig { log_id: 1, opened: at(0), commit: Default::default(), keys: None };
    let disk = Folder::open(&scratch.path("log")).unwrap();
    let Opened { files, mut flusher, .. } = Files::open(disk, config).unwrap();
    let config = LogConfig { bytes_max: 8 << 20, segment_bytes: 1 << 20 };
    let (mut writer, log) = Log::open(config, files).unwrap();
    let mut time = 0;
    let mut append = |entries: u64| {
        for _ in 0..entries {
            time += 1;
            let appended = writer.append_durably(Durability::Disk, at(time), b"meta", &[7; 100]);
            appended.unwrap();
        }
    };
    append(100);
    let used = measure(|| append(5_000));
    assert_eq!(used.count_total, 0, "within a segment: {used:?}");
    let mut lap = || {
        append(20_000);
        flusher.turn(&|| at(1));
    };
    (0..5).for_each(|_| lap());
    let (used, first) = (measure(&mut lap), log.first().unwrap().unwrap().position);
    assert!(first.0 > 0 && used.count_total < 100, "three segments: {used:?}");
}
