use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::Field,
};
use tidegate_message::Instant;

use super::*;

/// A row as it is read: time, topic, payload, qos and id.
type Row = (i64, String, Vec<u8>, i8, Option<String>);

fn rows(path: &std::path::Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| {
            let fields: Vec<Field> =
                row.unwrap().into_columns().into_iter().map(|(_, f)| f).collect();
            let [time, topic, payload, qos, id] = fields.try_into().unwrap();
            let Field::Str(topic) = topic else { panic!("{topic:?}") };
            let Field::Bytes(payload) = payload else { panic!("{payload:?}") };
            let Field::Byte(qos) = qos else { panic!("{qos:?}") };
            let time = match time {
                Field::Long(time) | Field::TimestampMicros(time) => time,
                other => panic!("{other:?}"),
            };
            let id = match id {
                Field::Null => None,
                Field::Str(id) => Some(id),
                other => panic!("{other:?}"),
            };
            (time, topic, payload.data().to_vec(), qos, id)
        })
        .collect()
}

fn files(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(folder).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

fn sink(folder: &std::path::Path, partition: Partition, compression: Compression) -> Parquet {
    let place = Place::Folder(folder.to_owned());
    let time_unit = TimeUnit::Nanoseconds;
    Parquet::open(&ParquetSettings { place, partition, compression, time_unit }).unwrap()
}

/// 2026-01-31, 23:59:59 UTC.
const LATE: i64 = 1_769_903_999;

fn batch() -> Batch {
    let record = |second: i64, payload: &[u8]| {
        let time = Instant::from_nanos(second * 1_000_000_000 + 5);
        Record::new("site/ä", payload.to_vec(), time)
    };
    let named = Record { id: Some("edge/1/7".into()), ..record(LATE, b"\xff\x00") };
    Batch::from_iter([record(LATE, b"one"), record(LATE + 1, b"two"), named, record(LATE + 1, b"")])
}

#[tokio::test]
async fn files_hold_the_messages_of_the_hour_in_which_they_came() {
    for compression in [Compression::Zstd, Compression::Snappy, Compression::None] {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = sink(folder.path(), Partition::Hour, compression);
        assert_eq!(sink.deliver(&batch()).await.unwrap(), []);
        let found = files(folder.path());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("date=2026-01-31/hour=23/1769903999000000005-"), "{found:?}");
        assert!(found[1].starts_with("date=2026-02-01/hour=00/1769904000000000005-"), "{found:?}");
        let topic = "site/ä".to_owned();
        let time = LATE * 1_000_000_000 + 5;
        let later = time + 1_000_000_000;
        assert_eq!(
            rows(&folder.path().join(&found[0])),
            [
                (time, topic.clone(), b"one".to_vec(), 0, None),
                (time, topic.clone(), b"\xff\x00".to_vec(), 0, Some("edge/1/7".to_owned())),
            ]
        );
        assert_eq!(
            rows(&folder.path().join(&found[1])),
            [(later, topic.clone(), b"two".to_vec(), 0, None), (later, topic, vec![], 0, None)]
        );
    }
}

#[tokio::test]
async fn times_are_of_a_unit_that_readers_know_unless_another_is_asked_for() {
    use parquet::basic::{LogicalType, TimeUnit as Unit};

    let time = LATE * 1_000_000_000 + 5_999;
    let measured = time - 10_000_000_000;
    let record = |measured| Record { measured, ..Record::new("a", "1", Instant::from_nanos(time)) };
    let batch = Batch::from_iter([record(None), record(Some(Instant::from_nanos(measured)))]);
    for (time_unit, nanos) in [(TimeUnit::default(), 1_000), (TimeUnit::Nanoseconds, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::Folder(folder.path().to_owned());
        let (partition, compression) = (Partition::None, Compression::Zstd);
        let settings = ParquetSettings { place, partition, compression, time_unit };
        Parquet::open(&settings).unwrap().deliver(&batch).await.unwrap();
        let path = folder.path().join(&files(folder.path())[0]);
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let unit = if nanos == 1_000 { Unit::MICROS } else { Unit::NANOS };
        let expected = LogicalType::timestamp(true, unit);
        assert_eq!(schema.column(0).logical_type_ref(), Some(&expected));
        let times: Vec<i64> = rows(&path).into_iter().map(|row| row.0).collect();
        assert_eq!(times, [time / nanos, measured / nanos]);
    }
}

#[tokio::test]
async fn a_batch_that_comes_again_replaces_its_own_files() {
    for (partition, count) in [(Partition::Hour, 2), (Partition::Day, 2), (Partition::None, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = sink(folder.path(), partition, Compression::Zstd);
        let number = sink.batch.number;
        for _ in 0..3 {
            // As if it had failed behind its last file.
            sink.batch.number = number;
            sink.deliver(&batch()).await.unwrap();
        }
        let found = files(folder.path());
        assert_eq!(found.len(), count, "{found:?}");
        let other = Batch::from_iter([Record::new("b", "x", Instant::from_nanos(LATE))]);
        sink.deliver(&other).await.unwrap();
        assert_eq!(files(folder.path()).len(), count + 1);
    }
}

#[tokio::test]
async fn messages_that_are_alike_lie_in_files_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let open = || sink(folder.path(), Partition::Hour, Compression::Zstd);
    let mut sink = open();
    let alike = Record::new("a", "x", Instant::from_nanos(LATE * 1_000_000_000));
    let batch = |record: &Record| Batch::from_iter([record.clone()]);
    for expected in 1..=3 {
        sink.deliver(&batch(&alike)).await.unwrap();
        assert_eq!(files(folder.path()).len(), expected, "batch {expected} in one life");
    }
    open().deliver(&batch(&alike)).await.unwrap();
    assert_eq!(files(folder.path()).len(), 4, "one in the next life");
    // A name tells whether it is the same one, in whichever batch of whichever life.
    let named = |id: &str| Record { id: Some(id.into()), ..alike.clone() };
    for (id, expected) in [("edge/1/7", 5), ("edge/1/8", 6), ("edge/1/7", 6)] {
        sink.deliver(&batch(&named(id))).await.unwrap();
        assert_eq!(files(folder.path()).len(), expected, "{id}");
    }
    open().deliver(&batch(&named("edge/1/8"))).await.unwrap();
    assert_eq!(files(folder.path()).len(), 6);
}

#[tokio::test]
async fn a_try_that_failed_has_the_names_of_the_one_that_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = sink(folder.path(), Partition::Hour, Compression::Zstd);
    // A file where the folder of the later part would have to be.
    std::fs::write(folder.path().join("date=2026-02-01"), "").unwrap();
    sink.deliver(&batch()).await.unwrap_err();
    let of_first = files(folder.path());
    assert_eq!(of_first.len(), 2, "{of_first:?}");
    std::fs::remove_file(folder.path().join("date=2026-02-01")).unwrap();
    assert_eq!(sink.deliver(&batch()).await.unwrap(), []);
    let found = files(folder.path());
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0], of_first[0]);
}

#[tokio::test]
async fn a_folder_that_takes_nothing_is_trouble_and_leaves_no_half_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = sink(folder.path(), Partition::Hour, Compression::Zstd);
    // A file where a folder would have to be.
    std::fs::write(folder.path().join("date=2026-01-31"), "").unwrap();
    let error = tidegate_message::error_chain(&sink.deliver(&batch()).await.unwrap_err());
    assert!(error.contains("date=2026-01-31/hour=23"), "{error}");
    assert_eq!(files(folder.path()), ["date=2026-01-31"]);
    std::fs::remove_file(folder.path().join("date=2026-01-31")).unwrap();
    assert_eq!(sink.deliver(&batch()).await.unwrap(), []);
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn the_hours_of_a_day_are_of_one_date() {
    for days in [-1, 0, 20_484] {
        let expected = CivilDate::of_days(days);
        assert_eq!(date(days * 24 * HOUR), expected, "day {days}");
        assert_eq!(date((days + 1) * 24 * HOUR - 1), expected, "the end of day {days}");
    }
}
