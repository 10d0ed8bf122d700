//! Files and printed texts of a node: journals, segments of logs, keys, settings, invitations; and a detector's answers.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use tidegate_broker::{Broker, BrokerConfig, Shared};
use tidegate_config::Config;
use tidegate_identity::enrol::Token;
use tidegate_journal::{Found, Record, Recovered, Replay};
use tidegate_log::{
    Durability, Files, FilesConfig, KeyFile, Log, LogConfig, NodeKey, NodeKeys, Opened,
    segment_named, simulated::SimulatedDisk, survey,
};
use tidegate_message::{AllowAll, Instant, Position};
use tidegate_sim::broker::Tape;
use tidegate_workers::protocol::{self, Reply};

/// Now, where something is restored.
const NOW: Instant = Instant::from_millis(1_700_000_000_000);
const LOG_ID: u64 = 7;
/// Bytes of a segment, and of a log that has room for four.
const SEGMENT: u64 = 8 << 10;
const SIZE: LogConfig = LogConfig { bytes_max: 4 * SEGMENT, segment_bytes: SEGMENT };
/// Records of a log before its files are edited: they fill more than one segment.
const RECORDS: u64 = 20;
/// Where the checksum of a segment's header is.
const HEADER_CRC: usize = 76;

/// Records of the journals of a node's shards, after a byte for how many there are: each after a byte for its shard and two for its
/// length. One that decodes is encoded to itself. For any records together, a node begins with them, and its journal of them means
/// the same to the next.
pub fn journal_records(data: &[u8]) {
    let Some((&shards, mut input)) = data.split_first() else { return };
    let shards = usize::from(shards % 3) + 1;
    let mut replays: Vec<Replay> = (0..shards).map(|_| Replay::default()).collect();
    while let [shard, high, low, rest @ ..] = input {
        let bytes = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (record, rest) = rest.split_at(bytes);
        input = rest;
        let record = Bytes::copy_from_slice(record);
        if let Ok(decoded) = Record::decode(&record) {
            let mut encoded = Vec::new();
            decoded.encode(&mut encoded);
            encoded.extend_from_slice(&decoded.payload().to_contiguous());
            let again = Record::decode(&Bytes::from(encoded));
            assert_eq!(again.expect("an encoded record decodes"), decoded);
            replays[usize::from(*shard) % shards].apply(decoded);
        }
    }
    let written = begin_with(shards, Recovered::join(replays));
    let first = written.found;
    assert_eq!((first.lost, first.handed_over), (0, 0));
    // Another number of shards.
    let again = begin_with(shards % 3 + 1, written).found;
    assert_eq!(again, first);
}

/// The state in the journals of a node that began with the recovered one.
fn begin_with(shards: usize, recovered: Recovered) -> Recovered {
    let Found { sessions, retained, .. } = recovered.found;
    let shared = Shared::new(BrokerConfig::default(), shards, Arc::new(AllowAll), NOW);
    let mut brokers: Vec<Broker> =
        (0..shards).map(|shard| Broker::new(shared.clone(), shard, 1, NOW)).collect();
    Broker::restore_all(&mut brokers, NOW, recovered);
    let tapes: Vec<Tape> = (0..shards).map(|_| Tape::new(false)).collect();
    for (broker, tape) in brokers.iter_mut().zip(&tapes) {
        broker.keep(Box::new(tape.clone()));
        broker.flush_journal().expect("tapes do not fail");
    }
    let written = Recovered::join(tapes.iter().map(Tape::replay).collect());
    let there: usize = brokers.iter().map(|broker| broker.sessions(usize::MAX).len()).sum();
    assert_eq!(written.found.sessions, there);
    // Sessions that had ended by now are gone, and no more than that are there.
    assert!(there <= sessions && written.found.retained <= retained);
    written
}

/// Names and contents.
type LogFiles = Vec<(String, Vec<u8>)>;

/// The files of a log: in clear, and sealed.
static LOGS: LazyLock<[LogFiles; 2]> = LazyLock::new(|| [None, keys()].map(a_log));

fn keys() -> Option<NodeKeys> {
    Some(NodeKeys { current: NodeKey::from_bytes([1; 32]), older: Vec::new() })
}

fn at(number: u64) -> Instant {
    Instant::from_millis(number as i64)
}

fn body(number: u64) -> Vec<u8> {
    (0..500).map(|at| (number as u8).wrapping_mul(31).wrapping_add(at as u8)).collect()
}

fn a_log(keys: Option<NodeKeys>) -> LogFiles {
    let disk = SimulatedDisk::new(5);
    let config = FilesConfig { log_id: LOG_ID, opened: at(0), commit: Default::default(), keys };
    let Opened { files, mut flusher, .. } = Files::open(disk.clone(), config).expect("it is empty");
    let (mut writer, _log) = Log::open(SIZE, files).expect("it is empty");
    for number in 0..RECORDS {
        let appended =
            writer.append_durably(Durability::Page, at(number + 1), b"meta", &body(number));
        appended.expect("there is room");
    }
    flusher.turn(&|| at(RECORDS + 1));
    writer.flush().expect("the disk does not fail");
    let names = (0..100).map(|id| format!("{id:016x}.segment"));
    names.filter_map(|name| disk.bytes_of(&name).map(|bytes| (name, bytes))).collect()
}

/// Edits of the files of a log, five bytes each, after a byte for whether it is sealed: it is looked at and opened, what can be read
/// is in order, what is sealed is what was written, and it takes more.
pub fn log_segments(data: &[u8]) {
    let Some((&kind, edits)) = data.split_first() else { return };
    let is_sealed = kind & 1 == 1;
    let mut files = LOGS[usize::from(is_sealed)].clone();
    for edit in edits.chunks_exact(5).take(1_000) {
        let &[file, what, high, low, value] = edit else { unreachable!("five bytes each") };
        let count = files.len();
        let file = usize::from(file) % count;
        let offset = usize::from(u16::from_be_bytes([high, low]));
        let bytes = &mut files[file].1;
        match what % 8 {
            0..=2 => bytes.get_mut(offset).into_iter().for_each(|byte| *byte = value),
            3 => bytes.get_mut(offset).into_iter().for_each(|byte| *byte ^= 1 << (value % 8)),
            4 => bytes.truncate(offset),
            5 if bytes.len() >= HEADER_CRC + 4 => {
                let crc = crc32c::crc32c(&bytes[..HEADER_CRC]);
                bytes[HEADER_CRC..HEADER_CRC + 4].copy_from_slice(&crc.to_le_bytes());
            }
            6 => {
                let other = usize::from(value) % count;
                let taken = std::mem::take(&mut files[file].1);
                files[file].1 = std::mem::replace(&mut files[other].1, taken);
            }
            _ => bytes.resize((bytes.len() + offset).min(64 << 10), value),
        }
    }
    let disk = SimulatedDisk::new(9);
    let keys = keys().filter(|_| is_sealed);
    for (name, bytes) in files {
        let id = segment_named(&name).expect("the name of a segment");
        let seen = survey(LOG_ID, id, &bytes, keys.as_ref());
        assert!(seen.positions.is_none_or(|(first, end)| first < end));
        disk.put(&name, bytes);
    }
    open(disk, keys);
}

fn open(disk: SimulatedDisk, keys: Option<NodeKeys>) {
    let is_sealed = keys.is_some();
    let opened = at(RECORDS + 1);
    let config = FilesConfig { log_id: LOG_ID, opened, commit: Default::default(), keys };
    let Ok(Opened { files, .. }) = Files::open(disk, config) else { return };
    let Ok((mut writer, log)) = Log::open(SIZE, files) else { return };
    let mut last: Option<(Position, Instant)> = None;
    for entry in log.range(..) {
        let Ok(entry) = entry else { continue };
        let found = (entry.position, entry.at);
        assert!(last.is_none_or(|last| last.0 < found.0 && last.1 < found.1));
        last = Some(found);
        // A checksum can be forged, a seal cannot.
        if is_sealed {
            let number = entry.position.0;
            assert_eq!((found.1, &entry.body[..]), (at(number + 1), &body(number)[..]));
        }
    }
    let next = log.last_at().map_or(opened, |last| last.max(opened));
    let Some(next) = next.as_nanos().checked_add(1).map(Instant::from_nanos) else { return };
    let position = writer.append_durably(Durability::Page, next, b"meta", b"more");
    let position = position.expect("the disk has room");
    assert!(last.is_none_or(|last| position > last.0));
    let entry = log.entry(position).expect("just appended").expect("just appended");
    assert_eq!((entry.at, &entry.body[..]), (next, &b"more"[..]));
}

/// A key file is one or is none.
pub fn key_file(data: &[u8]) {
    let Some(file) = KeyFile::parse(data) else { return };
    let again = KeyFile::parse(data).expect("as before");
    match (file, again) {
        (KeyFile::Key(one), KeyFile::Key(other)) => assert_eq!(one.id(), other.id()),
        (KeyFile::Passphrase(one), KeyFile::Passphrase(other)) => assert_eq!(one, other),
        _ => panic!("a file of another kind the second time"),
    }
}

/// A configuration that is taken is printed to what is taken and says the same, or is refused where a secret was hidden.
pub fn node_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let parse = |text: &str| Config::parse(Path::new("fuzz.toml"), text);
    let Ok(config) = parse(text) else { return };
    let shown = config.to_string();
    match parse(&shown) {
        Ok(again) => assert_eq!(config.differences(&again), [], "{shown}"),
        Err(error) => assert!(shown.contains("***"), "{error:?}\n{shown}"),
    }
}

/// An invitation that is read prints to what is read as the same.
pub fn invitation(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(token) = text.parse::<Token>() else { return };
    let again: Token = token.to_string().parse().expect("a printed token parses");
    assert!(again == token);
    assert!(!format!("{token:?}").contains(token.to_string().rsplit('.').next().unwrap_or("?")));
}

/// A detector's hello and its answer: boxes are as many as may be and lie somewhere, all numbers are finite, a hello is within its limits.
pub fn detector_reply(data: &[u8]) {
    if let Ok(hello) = protocol::parse_hello(data) {
        assert!((1..=hello.in_flight).contains(&hello.batch));
        assert!(hello.in_flight <= protocol::IN_FLIGHT_MAX);
        assert!((1..=protocol::SCENES_MAX).contains(&hello.scenes));
    }
    let Ok(reply) = Reply::parse(data) else { return };
    if let Ok(size) = reply.input() {
        assert!(size.width > 0 && size.height > 0);
    }
    if let Ok(found) = reply.found() {
        assert!(found.boxes.len() <= protocol::BOXES_MAX);
        for detection in &found.boxes {
            let rect = detection.rect;
            assert!(rect.area().is_finite() && rect.area() >= 0.0, "{rect:?}");
            assert!(detection.score.is_finite());
        }
        assert!(found.classes.iter().all(|(score, _)| score.is_finite()));
        assert!(found.poses.iter().flatten().flatten().all(|value| value.is_finite()));
    }
}
