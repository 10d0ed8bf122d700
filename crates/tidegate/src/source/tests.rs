//! Sources in virtual time, where waiting costs nothing, and on files that are made here.

use std::fs;

use tidegate_frame::knob::{FrameLimits, inspect};
use tidegate_message::FrameSize;

use super::*;

fn scene(frames_per_second: f64) -> SourceSpec {
    let size = FrameSize { width: 320, height: 180 };
    let scene = SceneSpec { size, people: 2, cars: 0, seconds: 1, ..SceneSpec::default() };
    SourceSpec::Scene { scene, rate: Rate::new(frames_per_second).unwrap(), repeat: true }
}

fn jpegs(count: usize) -> Vec<Bytes> {
    let SourceSpec::Scene { scene, .. } = scene(1.0) else { unreachable!("scene() is a scene") };
    let pictures = scene::Street::new(scene).film(Rate::new(count as f64).unwrap()).unwrap();
    pictures.into_iter().map(|picture| picture.jpeg).collect()
}

async fn frame(source: &mut Source) -> SourceFrame {
    source.next().await.expect("the source goes on").expect("the frame is good")
}

/// Virtual time from here on: files and threads before it would make the paused clock jump.
async fn virtual_time(spec: &SourceSpec) -> Source {
    let supply = Source::open(spec).await.unwrap();
    tokio::time::pause();
    supply
}

#[tokio::test]
async fn frames_come_exactly_on_the_cadence() {
    for rate in [5.0, 15.0, 30.0] {
        let mut source = virtual_time(&scene(rate)).await;
        let first = frame(&mut source).await;
        for index in 1..=60 {
            let next = frame(&mut source).await;
            assert_eq!(next.sequence, first.sequence + index, "every frame, once");
            let due = index as f64 / rate;
            let late = next.captured.since(first.captured).as_secs_f64() - due;
            // The timer wheel turns in milliseconds; the first frame may itself have been late by one.
            assert!(late.abs() < 0.0025, "frame {index} at {rate} fps is {late} s late");
        }
        assert_eq!(source.dropped(), 0);
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_slow_reader_gets_the_newest_frame_and_the_count_of_the_others() {
    let mut source = virtual_time(&scene(10.0)).await;
    let first = frame(&mut source).await;
    tokio::time::sleep(Duration::from_millis(1050)).await;
    let next = frame(&mut source).await;
    assert_eq!(next.sequence, first.sequence + 10);
    assert_eq!(source.dropped(), 9);
}

#[tokio::test]
async fn the_phase_moves_while_the_source_runs() {
    let mut source = virtual_time(&scene(5.0)).await;
    let control = source.control();
    frame(&mut source).await;
    for phase in [20, 150, 90] {
        let phase = Duration::from_millis(phase);
        assert!(control.set_phase(phase));
        frame(&mut source).await;
        let offset = frame(&mut source).await.captured.as_nanos().rem_euclid(200_000_000);
        let late = offset - phase.as_nanos() as i64;
        assert!((0..2_000_000).contains(&late), "{late} ns off the phase of {phase:?}");
    }
    assert!(control.set_rate(Rate::new(10.0).unwrap()));
    assert_eq!(control.rate(), Rate::new(10.0));
}

#[tokio::test]
async fn a_folder_is_played_by_name_and_a_broken_file_is_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let images = jpegs(2);
    fs::write(folder.path().join("b.jpg"), &images[1]).unwrap();
    fs::write(folder.path().join("a.JPG"), &images[0]).unwrap();
    fs::write(folder.path().join("aa.jpeg"), &images[0][..images[0].len() - 2]).unwrap();
    fs::write(folder.path().join("notes.txt"), "no image").unwrap();
    let spec = SourceSpec::parse(&format!("folder:{}?fps=4", folder.path().display())).unwrap();
    let mut source = Source::open(&spec).await.unwrap();
    assert_eq!(frame(&mut source).await.picture.jpeg, images[0]);
    let error = source.next().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("aa.jpeg"), "{error}");
    assert_eq!(frame(&mut source).await.picture.jpeg, images[1]);
    assert!(source.next().await.is_none());
    assert!(source.next().await.is_none(), "the end stays the end");
}

#[tokio::test]
async fn a_recorded_mjpeg_file_repeats_and_reads_evenly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip.mjpeg");
    let images = jpegs(6);
    fs::write(&path, images.concat()).unwrap();
    let spec = SourceSpec::parse(&format!("mjpeg:{}?loop=1", path.display())).unwrap();
    let read = read_pictures(&spec, 3).await.unwrap();
    let read: Vec<_> = read.into_iter().map(|picture| picture.jpeg).collect();
    assert_eq!(read, [images[0].clone(), images[2].clone(), images[4].clone()]);

    fs::write(&path, b"no image at all").unwrap();
    let mut source = Source::open(&spec).await.unwrap();
    let error = source.next().await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::Empty { .. }), "{error}");
    assert!(source.next().await.is_none());
}

#[tokio::test]
async fn a_named_pipe_gives_frames_as_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let mut source =
        Source::open(&SourceSpec::parse(&format!("mjpeg:{}", path.display())).unwrap())
            .await
            .unwrap();
    assert!(!source.is_paced());
    assert!(!source.control().set_phase(Duration::ZERO), "a live camera has its own cadence");
    for image in jpegs(3) {
        // A writer that comes and goes, as a restarted camera does.
        let (path, bytes) = (path.clone(), image.clone());
        tokio::task::spawn_blocking(move || fs::write(path, bytes)).await.unwrap().unwrap();
        assert_eq!(frame(&mut source).await.picture.jpeg, image);
    }
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    for (text, part) in [
        (format!("folder:{place}/none"), "none"),
        (format!("folder:{place}"), "holds no file named *.jpg"),
        (format!("mjpeg:{place}/none"), "none"),
        (format!("video:{place}/none.mp4"), "none.mp4"),
        (format!("v4l2:{place}/video9"), "video9"),
    ] {
        let error = Source::open(&SourceSpec::parse(&text).unwrap()).await.unwrap_err();
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

/// Runs where ffmpeg is installed; says so where it is not.
#[tokio::test]
async fn a_video_plays_from_memory_and_a_broken_one_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip.mkv");
    let mut command = tokio::process::Command::new("ffmpeg");
    command.args(["-v", "error", "-f", "lavfi", "-i", "testsrc=size=320x180:rate=10:duration=1"]);
    match command.args(["-c:v", "mjpeg"]).arg(&path).status().await {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            eprintln!("skipped: ffmpeg is not installed ({error}); run scripts/setup");
            return;
        }
    }
    let text = format!("video:{}?loop=1&prepare=1", path.display());
    let mut source = virtual_time(&SourceSpec::parse(&text).unwrap()).await;
    let first = frame(&mut source).await;
    let info = inspect(&first.picture.jpeg, &FrameLimits::default()).unwrap();
    assert_eq!(info.size, FrameSize { width: 320, height: 180 });
    for _ in 1..10 {
        frame(&mut source).await;
    }
    assert_eq!(
        frame(&mut source).await.picture.jpeg,
        first.picture.jpeg,
        "the eleventh is the first again"
    );
    tokio::time::resume();

    let half = format!("video:{}?fps=5", path.display());
    let read = read_pictures(&SourceSpec::parse(&half).unwrap(), 100).await.unwrap();
    assert_eq!(read.len(), 5, "a second at 5 fps");

    fs::write(&path, b"no video").unwrap();
    let error = Source::open(&SourceSpec::parse(&text).unwrap()).await.unwrap_err();
    assert!(matches!(error, SourceError::ProgramFailed { .. }), "{error}");
}
