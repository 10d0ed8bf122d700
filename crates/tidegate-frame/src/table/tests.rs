mod import;

use std::{env, path::PathBuf};

use proptest::prelude::*;

use self::import::ImportError;
use super::*;

const GOLDEN: &str = include_str!("../../testdata/golden.table");

fn row(id: u32, bytes: f64, accuracy: f64) -> Row {
    let setting = KnobSetting::ORIGINAL;
    let label = String::new();
    let (precision, recall, took) = (None, None, None);
    Row { id, setting, label, bytes, accuracy, precision, recall, kept: 1.0, took }
}

fn golden() -> Table {
    let size = |width, height| FrameSize { width, height };
    Table {
        key: TableKey {
            profile: AdaptationProfile::Jpeg,
            source: size(1920, 1080),
            detector: "person".to_owned(),
            detector_input: size(1280, 720),
            scene: "street".to_owned(),
        },
        origin: Origin::Measured,
        original_bytes: 412_345.6,
        rows: vec![
            Row { precision: Some(0.91), recall: Some(0.88), ..row(0, 412_345.6, 1.0) },
            Row {
                setting: "1/2 q75".parse().unwrap(),
                took: Some(Duration::from_micros(5100)),
                ..row(7, 61_560.0, 0.968)
            },
            Row {
                label: "width 1600 skip 4 crf 40".to_owned(),
                precision: Some(0.5),
                recall: Some(0.75),
                kept: 0.2,
                ..row(9, 16_300.5, 0.733)
            },
        ],
        control: Some(Control { setting: "q90".parse().unwrap(), accuracy: 0.972 }),
        noise_floor: Some(0.028),
        note: "clip plaza.mp4, 42 frames\n234 boxes".to_owned(),
    }
}

#[test]
fn the_golden_file_reads_and_writes_to_the_byte() {
    assert_eq!(Table::parse("golden", GOLDEN).unwrap(), golden());
    assert_eq!(golden().to_text(), GOLDEN);
}

#[test]
fn a_malformed_line_is_named_with_what_is_wrong() {
    let replaced = |from: &str, to: &str| GOLDEN.replacen(from, to, 1);
    for (text, expected) in [
        (String::new(), "t:1: the first line of a table is \"tidegate-table 1\", not \"\""),
        (
            replaced("table 1", "table 2"),
            "t:1: table version 2 is not known, this program reads version 1",
        ),
        (replaced("jpeg", "png"), "t:2: unknown profile \"png\"; choose one of: jpeg mez"),
        (replaced("1920x1080", "big"), "t:3: source is not a size such as 1920x1080: \"big\""),
        (
            replaced("measured", "felt"),
            "t:7: unknown origin \"felt\"; choose one of: measured published assumed",
        ),
        (replaced("0.028", "1.5"), "t:9: noise-floor 1.5 is outside 0 to 1"),
        (replaced("row 7 61560", "row 7 many"), "t:15: bytes is not a number: \"many\""),
        (replaced("61560 0.968", "61560 96.8"), "t:15: accuracy 96.8 is outside 0 to 1.5"),
        (replaced("61560 0.968", "NaN 0.968"), "t:15: bytes NaN is outside 1 to 1000000000"),
        (replaced("row 7", "row 0"), "t:15: row 0 is given twice"),
        (
            replaced("row 7 61560 0.968 1 - - 5.1 1/2 q75", "row 7 61560"),
            "t:15: accuracy is missing",
        ),
        (replaced("scene", "place"), "t:6: unknown word \"place\"; a line starts with one of"),
        (replaced("control 0.972 q90", "scene twice"), "t:10: \"scene\" is given twice"),
        (replaced("scene street\n", ""), "t: the line \"scene\" is missing"),
        (
            replaced("detector person", "detector two words"),
            "t: detector and scene are single words",
        ),
        (GOLDEN.split("row").next().unwrap().to_owned(), "t: a table needs at least one row"),
    ] {
        let error = Table::parse("t", &text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\n  expected {expected}");
    }
    let error = Table::parse("t", &replaced("1/2 q75", "9/9 q75")).unwrap_err();
    assert!(matches!(error, TableError::Line { line: 15, fault: LineFault::Setting { .. }, .. }));
}

#[test]
fn a_table_survives_a_file_and_a_missing_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.table");
    fs::write(&path, golden().to_text()).unwrap();
    assert_eq!(Table::load(&path).unwrap(), golden());
    fs::write(folder.path().join("notes.txt"), "no table").unwrap();
    let mut set = TableSet::new();
    assert_eq!(set.load_folder(folder.path()).unwrap().count, 1);
    assert_eq!(set.get(&golden().key), Some(&golden()));
    fs::write(folder.path().join("b.table"), "junk").unwrap();
    let loaded = set.load_folder(folder.path()).unwrap();
    let refused: Vec<String> = loaded.refused.iter().map(ToString::to_string).collect();
    assert!(loaded.count == 1 && refused.len() == 1, "{loaded:?}");
    assert!(refused[0].contains("b.table:1:"), "{refused:?}");
    let missing = folder.path().join("none").join("x.table");
    assert!(Table::load(&missing).unwrap_err().to_string().contains("x.table"));
    let broken = Table { rows: vec![], ..golden() };
    assert!(matches!(broken.check("x.table"), Err(TableError::Content { .. })));
}

#[test]
fn the_front_holds_what_no_other_row_dominates() {
    let rows = [(1, 10.0, 0.5), (2, 20.0, 0.4), (3, 20.0, 0.7), (4, 30.0, 0.7), (5, 40.0, 1.0)];
    let rows = rows.map(|(id, bytes, accuracy)| row(id, bytes, accuracy)).to_vec();
    let table = Table { rows, ..golden() };
    assert_eq!(table.front().iter().map(|row| row.id).collect::<Vec<_>>(), [1, 3, 5]);
}

#[test]
fn the_cut_leaves_out_inaccurate_and_slow_rows_but_never_all() {
    let slow = Row { took: Some(Duration::from_millis(11)), ..row(3, 5.0, 0.99) };
    let table = Table { rows: vec![row(1, 10.0, 0.89), row(2, 20.0, 0.9), slow], ..golden() };
    assert_eq!(table.ladder(&Cut::default()).iter().map(|row| row.id).collect::<Vec<_>>(), [2]);
    let poor = Table { rows: vec![row(1, 10.0, 0.2), row(2, 20.0, 0.3)], ..golden() };
    assert_eq!(poor.ladder(&Cut::default()).iter().map(|row| row.id).collect::<Vec<_>>(), [1]);
}

#[test]
fn the_builtin_tables_have_the_published_rows_and_fronts() {
    let builtin = TableSet::builtin();
    let scene = |name: &str| builtin.iter().find(|table| table.key.scene == name).unwrap();
    // Rows, smallest and largest size in KB, and the Pareto front, as published.
    for (name, rows, smallest, front) in [
        ("jaad-simple", 16, 124.8, &[1623, 1540, 500][..]),
        ("jaad-medium", 3, 173.8, &[1100, 500]),
        ("jaad-complex", 2, 231.6, &[1100, 500]),
        ("duke-simple", 23, 80.1, &[2100, 2104, 2000, 2001, 500]),
        ("duke-medium", 9, 172.0, &[1602, 1603, 1102, 1001, 500]),
        ("duke-complex", 15, 371.7, &[1100, 1061, 1062, 600, 520, 521, 500]),
    ] {
        let table = scene(name);
        let ids: Vec<_> = table.front().iter().map(|row| row.id).collect();
        assert_eq!((table.rows.len(), &ids[..]), (rows, front), "{name}");
        assert!((table.by_bytes()[0].bytes / 1e3 - smallest).abs() < 0.1, "{name}");
        assert_eq!(table.row(500).unwrap().accuracy, 1.0, "{name}");
        assert!(table.note.contains("960x540") && table.note.contains("MIT"), "{name}");
    }
    let assumed = scene("any");
    assert_eq!(assumed.origin, Origin::Assumed);
    assert!(assumed.ladder(&Cut::default()).len() >= 4);
    let foreign = TableSet::foreign();
    assert_eq!(foreign.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [12, 11]);
}

#[test]
fn the_nearest_table_is_measured_before_assumed_and_never_for_another_detector() {
    let mut set = TableSet::builtin();
    let source = FrameSize { width: 1280, height: 720 };
    let wanted =
        |detector: &str| Wanted { detector: Some(detector.to_owned()), ..Wanted::default() };
    let find = |set: &TableSet, detector: &str| {
        let found = set.nearest(AdaptationProfile::Jpeg, source, &wanted(detector)).unwrap();
        (found.origin, found.key.source.width)
    };
    assert_eq!(find(&set, "person"), (Origin::Assumed, 1920));
    set.insert(golden());
    let small = TableKey { source: FrameSize { width: 640, height: 360 }, ..golden().key };
    set.insert(Table { key: small, ..golden() });
    assert_eq!(find(&set, "person"), (Origin::Measured, 1920));
    assert_eq!(find(&set, "car"), (Origin::Assumed, 1920));
    assert!(TableSet::new().nearest(AdaptationProfile::Jpeg, source, &Wanted::default()).is_none());
}

/// Where the published data lie, if this machine has them.
fn data() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    env::var_os("TIDEGATE_DATA").map_or_else(beside, PathBuf::from)
}

#[test]
fn the_builtin_tables_are_the_published_ones() {
    let published = |path: String| match fs::read_to_string(data().join(&path)) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            eprintln!(
                "skipped: {path} is not here; TIDEGATE_DATA names the folder of the published tables"
            );
            None
        }
        Err(error) => panic!("{path}: {error}"),
    };
    for table in TableSet::builtin().iter().filter(|table| table.origin == Origin::Published) {
        let scene = &table.key.scene;
        if let Some(csv) = published(format!("mez-tables/{scene}.csv")) {
            assert_eq!(*table, Table::from_mez_csv(scene, &csv).unwrap());
        }
        // The names of the knobs say the same as the ids: 500(R-1)+100(C-1)+20(K-1)+5(D-1)+(F-1).
        if let Some(names) = published(format!("mez-tables/{scene}-knobs.txt")) {
            let digits = |text: &str| -> Vec<u32> {
                text.chars().filter_map(|character| character.to_digit(10)).collect()
            };
            for line in names.lines().filter(|line| !line.is_empty()) {
                let (id, knobs) = line.split_once('=').unwrap();
                let id: u32 = id.trim_start_matches("comb").parse().unwrap();
                let [r, c, k, d, f] = digits(knobs)[..] else { panic!("{line}") };
                let expected = 500 * (r - 1) + 100 * (c - 1) + 20 * (k - 1) + 5 * (d - 1) + f - 1;
                assert_eq!(id, expected, "{scene}");
                assert!(table.row(id).is_some(), "{scene} {id}");
            }
        }
    }
    for table in TableSet::foreign().iter() {
        let scene = &table.key.scene;
        if let Some(csv) = published(format!("awstream/{scene}.profile.csv")) {
            assert_eq!(*table, Table::from_bandwidth_profile(scene, &csv).unwrap());
        }
    }
}

#[test]
fn a_broken_published_table_is_refused_by_line_and_field() {
    for (csv, expected) in [
        (
            "500,1,1,1,1,99\n\n501,x,1,1,1,99",
            "line 3: bytes is not a number of zero or more: \"x\"",
        ),
        ("500,1,1,1", "line 1: recall is missing"),
        ("501,10,1,1,1,99", "row 500, the unmodified frame, is missing"),
        ("999999,10,1,1,1,99", "line 1: the id is not a combination of knobs"),
    ] {
        assert_eq!(Table::from_mez_csv("s", csv).unwrap_err().to_string(), expected);
    }
    assert!(matches!(Table::from_bandwidth_profile("s", ""), Err(ImportError::Table(_))));
}

fn any_row() -> impl Strategy<Value = Row> {
    let unit = 0.0..=1.0f64;
    let numbers = (1.0..1e9f64, 0.0..=1.5f64, 1e-3..=1.0f64);
    let stated = (proptest::option::of(unit.clone()), proptest::option::of(unit));
    let setting = proptest::sample::select(KnobSetting::ladder());
    let label = "([a-z][a-z0-9 ]{0,10}[a-z])?";
    (numbers, stated, proptest::option::of(0u64..60_000), setting, label).prop_map(
        |((bytes, accuracy, kept), (precision, recall), took, setting, label)| {
            let took = took.map(Duration::from_millis);
            Row { id: 0, setting, label, bytes, accuracy, precision, recall, kept, took }
        },
    )
}

proptest! {
    #[test]
    fn any_table_reads_back_as_written(mut rows in proptest::collection::vec(any_row(), 1..40)) {
        rows.iter_mut().zip(0..).for_each(|(row, id)| row.id = id);
        let table = Table { rows, ..golden() };
        prop_assert_eq!(Table::parse("t", &table.to_text()).unwrap(), table);
    }

    #[test]
    fn no_row_of_the_front_is_dominated_and_every_other_is(
        rows in proptest::collection::vec((1.0..50.0f64, 0.0..1.0f64), 1..30),
    ) {
        let rows = rows.iter().zip(0..).map(|(&(b, a), id)| row(id, b.round(), (a * 20.0).round() / 20.0));
        let table = Table { rows: rows.collect(), ..golden() };
        let front: Vec<u32> = table.front().iter().map(|row| row.id).collect();
        for row in &table.rows {
            let matched = table.rows.iter().any(|other| {
                other.id != row.id && other.bytes <= row.bytes && other.accuracy >= row.accuracy
                    && front.contains(&other.id)
            });
            prop_assert_eq!(front.contains(&row.id), !matched, "row {}", row.id);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "(tidegate-table 1\n)?[ -~\n]{0,300}") {
        let _ = Table::parse("t", &text);
    }
}
