//! Characterization of a generated clip for a detector that loses a box with each quarter of the bytes.

use tempfile::TempDir;
use tidegate_frame::table::{TableSet, Wanted};

use super::*;
use crate::detector::fake::Fake;

/// Finds four boxes in frames of more than three fifths of the first one's bytes, and one in the smallest.
const BOXES_BY_BYTES: &str = r#"
first = detect.first = getattr(detect, "first", len(payload))
found = [[20 * i, 10, 20 * i + 16, 40, 0.9, "thing"] for i in range(4) if len(payload) >= first * i / 5]
time.sleep(0.002)
send({"id": id, "boxes": found, "took_ms": 1})"#;

struct Rig {
    folder: TempDir,
    _fake: Fake,
    arguments: Arguments,
}

impl Rig {
    fn new(detect: &str, frames: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::new(detect);
        let clip = "scene:street?size=320x240&fps=10&people=3&seed=1&seconds=3";
        let arguments = Arguments {
            clip: clip.parse().unwrap(),
            detector: fake.spec(),
            profile: AdaptationProfile::Jpeg,
            frames,
            scene: "street".to_owned(),
            use_truth: false,
            table_path: folder.path().join("clip.table"),
        };
        Self { folder, _fake: fake, arguments }
    }
}

#[tokio::test]
async fn a_table_says_what_each_setting_costs_and_is_worth() {
    let rig = Rig::new(BOXES_BY_BYTES, 13);
    let mut told = Vec::new();
    let report = run(&rig.arguments, &mut |progress| match progress {
        Progress::Originals { frames, boxes } => assert_eq!((frames, boxes), (13, 52)),
        Progress::Row { done, of, row } => told.push((done, of, row.setting)),
    })
    .await
    .unwrap();

    let settings = KnobSetting::ladder();
    let expected: Vec<_> =
        (1..).zip(&settings).map(|(done, setting)| (done, settings.len(), *setting)).collect();
    assert_eq!(told, expected, "every row is reported once");
    assert_eq!((report.boxes, report.truth), (52, Truth::Originals));
    assert_eq!(report.detector_took, Duration::from_millis(1));

    let table = &report.table;
    let whole = &table.rows[0];
    assert!(whole.setting.is_original());
    assert_eq!((whole.accuracy, whole.bytes, whole.kept), (1.0, table.original_bytes, 1.0));
    for row in &table.rows {
        // One box of four is a recall of 1/4 and so an F1 of 2/5, and so on; frames differ a little in size.
        let share = row.bytes / table.original_bytes;
        let expected = match share {
            ..0.15 => 0.4..=0.4,
            0.25..0.35 => 2.0 / 3.0..=2.0 / 3.0,
            0.45..0.55 => 6.0 / 7.0..=6.0 / 7.0,
            0.65.. => 1.0..=1.0,
            _ => 0.4..=1.0,
        };
        let near = expected.start() - 1e-9..=expected.end() + 1e-9;
        assert!(near.contains(&row.accuracy), "{}: {share} {}", row.setting, row.accuracy);
    }
    let worst = table.rows.iter().map(|row| row.accuracy).fold(1.0, f64::min);
    assert!(worst < 0.5, "the detector fails on the smallest frames: {worst}");

    // The table that a camera will read holds the measurements.
    let mut set = TableSet::new();
    assert_eq!(set.load_folder(rig.folder.path()).unwrap().count, 1);
    let wanted = Wanted { detector: Some("fake".to_owned()), ..Wanted::default() };
    let read = set.nearest(AdaptationProfile::Jpeg, table.key.source, &wanted).unwrap();
    assert_eq!((read.key.clone(), read.origin), (table.key.clone(), Origin::Measured));
    assert_eq!(read.rows.len(), settings.len());
    let picture = std::fs::read_to_string(&report.svg_path).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("</svg>"), "{picture:.80}");
}

#[tokio::test]
async fn the_papers_knobs_are_characterized_too() {
    let mut rig = Rig::new(BOXES_BY_BYTES, 13);
    rig.arguments.profile = AdaptationProfile::Mez;
    let report = run(&rig.arguments, &mut |_| {}).await.unwrap();
    assert_eq!(report.table.key.profile, AdaptationProfile::Mez);
    assert_eq!(report.table.rows.len(), KnobSetting::mez_ladder().len());
    assert!(report.table.rows.iter().any(|row| row.kept < 1.0), "differencing holds frames back");
    assert!(Table::load(&rig.arguments.table_path).is_ok());
}

#[tokio::test]
async fn too_few_boxes_make_no_table() {
    let rig = Rig::new(BOXES_BY_BYTES, 12);
    let error = run(&rig.arguments, &mut |_| {}).await.unwrap_err();
    let CharacterizeError::TooFewBoxes { frames: 12, boxes: 48, needed: BOXES_MIN } = error else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("--frames"), "the way out: {error}");
    assert!(!rig.arguments.table_path.exists());
}

#[tokio::test]
async fn a_detector_that_is_right_nowhere_makes_no_table() {
    let mut rig = Rig::new(
        r#"send({"id": id, "boxes": [[0, 0, 2, 2, 0.9, "thing"]] * 4, "took_ms": 1})"#,
        30,
    );
    rig.arguments.use_truth = true;
    let error = run(&rig.arguments, &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, CharacterizeError::Blind), "{error}");
    assert!(!rig.arguments.table_path.exists());
}

/// The frame turned by its EXIF, as a camera that hangs on its side says.
fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let exif =
        b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x01\0\0\0\0\0\0";
    let mut exif = exif.to_vec();
    exif[29] = orientation;
    [&jpeg[..2], &exif, &jpeg[2..]].concat()
}

#[tokio::test]
async fn a_folder_with_bad_pictures_is_characterized_by_the_others() {
    // Refuses what is marked, and else finds four boxes.
    let mut rig = Rig::new(
        r#"
if b"no thanks" in payload: send({"id": id, "error": "no thanks"})
else: send({"id": id, "boxes": [[20 * i, 10, 20 * i + 16, 40, 0.9, "thing"] for i in range(4)], "took_ms": 1})"#,
        100,
    );
    let frames = source::read_pictures(&rig.arguments.clip, 13).await.unwrap();
    let clip = rig.folder.path().join("clip");
    std::fs::create_dir(&clip).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(clip.join(name), bytes).unwrap();
    for (index, frame) in frames.iter().enumerate() {
        write(&format!("{index:02}.jpg"), &frame.jpeg);
    }
    let good = &frames[0].jpeg;
    let table = good.windows(2).position(|w| w == [0xff, 0xdb]).unwrap();
    write("00 empty.jpg", b"");
    write("01 other.jpg", b"GIF89a");
    write("02 cut.jpg", &good[..100]);
    write("03 tables are missing.jpg", &[&good[..table], &good[table + 69..]].concat());
    write("04 refused.jpg", &[&good[..2], b"\xff\xfe\0\x0bno thanks", &good[2..]].concat());
    // These are read as other programs read them.
    write("05 no end.jpg", &good[..good.len() - 2]);
    write("06 two starts.jpg", &[&[0xff, 0xd8], &good[..]].concat());
    rig.arguments.clip = format!("folder:{}", clip.display()).parse().unwrap();
    let report = run(&rig.arguments, &mut |_| {}).await.unwrap();
    assert_eq!(report.boxes, 15 * 4);
    assert!(report.table.note.contains("15 frames, 60 boxes; 2 more frames could not be used"));

    std::fs::remove_dir_all(&clip).unwrap();
    std::fs::create_dir(&clip).unwrap();
    write("only.jpg", b"GIF89a");
    let error = run(&rig.arguments, &mut |_| {}).await.unwrap_err();
    assert!(matches!(error, CharacterizeError::NoFrames), "{error}");
}

#[tokio::test]
async fn a_turned_clip_is_seen_turned_by_the_detector_in_every_row() {
    // Finds nothing in a picture that is not turned, and nothing where the scene is not that of the picture as it is seen.
    let mut rig = Rig::new(
        r#"
seen = b"Exif\0\0MM\0\x2a" in payload and detect.source == [240, 320]
found = [[20 * i, 10, 20 * i + 16, 300, 0.9, "thing"] for i in range(4)] if seen else []
send({"id": id, "boxes": found, "took_ms": 1})"#,
        100,
    );
    let frames = source::read_pictures(&rig.arguments.clip, 13).await.unwrap();
    let clip = rig.folder.path().join("clip");
    std::fs::create_dir(&clip).unwrap();
    for (index, frame) in frames.iter().enumerate() {
        std::fs::write(clip.join(format!("{index:02}.jpg")), turned(&frame.jpeg, 6)).unwrap();
    }
    rig.arguments.clip = format!("folder:{}", clip.display()).parse().unwrap();
    for profile in [AdaptationProfile::Jpeg, AdaptationProfile::Mez] {
        rig.arguments.profile = profile;
        let report = run(&rig.arguments, &mut |_| {}).await.unwrap();
        for row in &report.table.rows {
            assert!(row.accuracy > 0.999, "{} is worth {}", row.setting, row.accuracy);
        }
        assert_eq!(
            report.table.key.source,
            FrameSize { width: 320, height: 240 },
            "as it is stored"
        );
    }
}
