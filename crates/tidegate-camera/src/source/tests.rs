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

/// An address of this machine that others reach, if it has one. Nothing is sent.
pub(super) fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// A picture of that size.
pub(super) fn jpeg_of(width: u16, height: u16) -> Bytes {
    let size = FrameSize { width, height };
    let spec = SceneSpec { size, people: 1, cars: 0, seconds: 1, ..SceneSpec::default() };
    let pictures = scene::Street::new(spec).film(Rate::new(1.0).unwrap()).unwrap();
    pictures[0].jpeg.clone()
}

pub(super) fn jpegs(count: usize) -> Vec<Bytes> {
    let SourceSpec::Scene { scene, .. } = scene(1.0) else { unreachable!("scene() is a scene") };
    let pictures = scene::Street::new(scene).film(Rate::new(count as f64).unwrap()).unwrap();
    pictures.into_iter().map(|picture| picture.jpeg).collect()
}

async fn frame(source: &mut Source) -> SourceFrame {
    source.next().await.expect("the source continues").expect("the frame is good")
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
    fs::write(folder.path().join("aa.jpeg"), &images[0][..100]).unwrap();
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
async fn a_file_that_other_programs_open_is_played() {
    let folder = tempfile::tempdir().unwrap();
    let image = &jpegs(1)[0];
    let bare = &image[..image.len() - 2];
    for (name, bytes) in [
        ("1 no end.jpg", bare.to_vec()),
        ("2 two starts.jpg", [&[0xff, 0xd8], &image[..]].concat()),
        ("3 trailer.jpg", [&image[..], &[0; 500]].concat()),
    ] {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    // Half of a picture, and stray bytes between two segments, are as they are.
    let half = [&image[..image.len() / 2], &[0xff, 0xd9]].concat();
    fs::write(folder.path().join("4 half.jpg"), &half[..half.len() - 2]).unwrap();
    let stray = [&image[..20], b"stray", &image[20..]].concat();
    fs::write(folder.path().join("5 stray.jpg"), &stray).unwrap();
    let spec = SourceSpec::parse(&format!("folder:{}", folder.path().display())).unwrap();
    let read = read_pictures(&spec, 100).await.unwrap();
    let expected = [image, image, image, &Bytes::from(half), &Bytes::from(stray)];
    assert_eq!(read.iter().map(|picture| &picture.jpeg).collect::<Vec<_>>(), expected);
    for picture in read {
        assert!(inspect(&picture.jpeg, &FrameLimits::default()).is_ok());
    }
}

#[tokio::test]
async fn a_batch_read_at_once_leaves_out_unreadable_messages() {
    let folder = tempfile::tempdir().unwrap();
    let images = jpegs(2);
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("1.jpg", &images[0]);
    write("3.jpg", &images[1]);
    let text = format!("folder:{}?loop=1&fps=10", folder.path().display());
    let prepared = SourceSpec::parse(&format!("{text}&prepare=1")).unwrap();
    for bad in [&b""[..], b"GIF89a", &images[0][..100], b"\xff\xd8\xff\xd9"] {
        // First, in the middle, and last.
        for name in ["0.jpg", "2.jpg", "4.jpg"] {
            write(name, bad);
        }
        fs::create_dir_all(folder.path().join("5.jpg")).unwrap();
        let read = read_pictures(&SourceSpec::parse(&text).unwrap(), 100).await.unwrap();
        assert_eq!(
            read.iter().map(|picture| &picture.jpeg).collect::<Vec<_>>(),
            [&images[0], &images[1]]
        );
        let mut source = virtual_time(&prepared).await;
        for index in 0..6 {
            assert_eq!(frame(&mut source).await.picture.jpeg, images[index % 2]);
        }
        tokio::time::resume();
    }
    write("1.jpg", b"");
    write("3.jpg", b"");
    let error = Source::open(&prepared).await.unwrap_err();
    assert!(matches!(error, SourceError::Empty { .. }), "{error}");
    assert!(read_pictures(&SourceSpec::parse(&text).unwrap(), 100).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_stream_without_end_markers_is_played() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clip.mjpeg");
    let images = jpegs(3);
    let bare: Vec<&[u8]> = images.iter().map(|image| &image[..image.len() - 2]).collect();
    fs::write(&path, bare.concat()).unwrap();
    let spec = SourceSpec::parse(&format!("mjpeg:{}", path.display())).unwrap();
    let read = read_pictures(&spec, 100).await.unwrap();
    assert_eq!(read.into_iter().map(|picture| picture.jpeg).collect::<Vec<_>>(), images);
    // Among whole images, one that breaks off is lost, and only that one.
    fs::write(&path, [&images[0], bare[1], &images[2]].concat()).unwrap();
    let read = read_pictures(&spec, 100).await.unwrap();
    let read: Vec<_> = read.into_iter().map(|picture| picture.jpeg).collect();
    assert_eq!(read, [images[0].clone(), images[2].clone()]);
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

#[test]
fn frames_are_thinned_evenly_and_to_no_more_than_the_rate() {
    for (camera, wanted, expected) in
        [(30.0, 10.0, 101), (25.0, 10.0, 101), (10.0, 10.0, 101), (5.0, 10.0, 51), (12.5, 2.0, 21)]
    {
        let mut thinner = Thinner::new(Rate::new(wanted));
        let mut taken = Vec::new();
        for frame in 0..=(camera * 10.0) as i64 {
            // A camera is no clock: every frame is a little late or early.
            let jitter = [0, 3, -4, 1, -2][frame as usize % 5];
            let at = Instant::from_millis(10_000 + (frame as f64 * 1e3 / camera) as i64 + jitter);
            if thinner.takes(at) {
                taken.push(at);
            }
        }
        assert!(taken.len().abs_diff(expected) <= 2, "{camera} to {wanted}: {}", taken.len());
        let most = Duration::from_secs_f64(1.0 / camera.min(wanted) + 1.1 / camera);
        for pair in taken.windows(2) {
            assert!(pair[1].since(pair[0]) <= most, "{camera} to {wanted}: {pair:?}");
        }
    }
    // Frames that did not come in a pause are not made up for.
    let mut thinner = Thinner::new(Rate::new(1.0));
    let taken =
        (0..50).filter(|tick| thinner.takes(Instant::from_millis(60_000 + tick * 20))).count();
    assert!(taken <= 2, "{taken}");
    let taken =
        (0..50).filter(|tick| thinner.takes(Instant::from_millis(90_000 + tick * 20))).count();
    assert!(taken <= 2, "{taken}");
    let mut all = Thinner::new(None);
    assert!((0..9).all(|tick| all.takes(Instant::from_millis(tick))));
}

#[tokio::test]
async fn a_recording_that_is_not_there_yet_is_played_once_it_is() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pictures");
    let spec = SourceSpec::parse(&format!("folder:{}?fps=50", folder.display())).unwrap();
    let mut source = Source::start(&spec);
    let error = source.next().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("cannot read"), "{error}");
    fs::create_dir(&folder).unwrap();
    let error = source.next().await.unwrap().unwrap_err();
    assert!(matches!(error, SourceError::Empty { .. }), "{error}");
    let images = jpegs(2);
    for (name, image) in ["1.jpg", "2.jpg"].iter().zip(&images) {
        fs::write(place.path().join(name), image).unwrap();
        fs::rename(place.path().join(name), folder.join(name)).unwrap();
    }
    let first = loop {
        match source.next().await.expect("it goes on") {
            Ok(frame) => break frame,
            Err(error) => assert!(!error.to_string().contains("JPEG"), "{error}"),
        }
    };
    assert!(images.contains(&first.picture.jpeg));
    while let Some(frame) = source.next().await {
        frame.expect("the frame is good");
    }
}

#[tokio::test(start_paused = true)]
async fn a_recording_that_was_away_continues_and_skips_nothing() {
    let place = tempfile::tempdir().unwrap();
    let (clip, other) = (place.path().join("clip.mjpeg"), place.path().join("other"));
    let images = jpegs(2).concat();
    fs::write(&clip, &images).unwrap();
    let spec = SourceSpec::parse(&format!("mjpeg:{}?fps=5&loop=1", clip.display())).unwrap();
    let mut source = Source::start(&spec);
    source.next().await.unwrap().expect("a frame");
    fs::write(&clip, b"").unwrap();
    let mut errors = 0;
    while errors < 20 {
        errors += u32::from(source.next().await.expect("it is tried again").is_err());
    }
    fs::write(&other, &images).unwrap();
    fs::rename(&other, &clip).unwrap();
    while source.next().await.expect("it is tried again").is_err() {}
    assert!(source.dropped() < 20, "{} for minutes without it", source.dropped());
}

#[tokio::test]
async fn missing_parts_are_named() {
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

/// The content of the pictures of a made-up network camera, and their metadata.
mod network {
    use std::time::Instant as Moment;

    use tidegate_jpeg::{Codec, Header, Limits, Planes};
    use tidegate_load::camera::{self, Camera, Clip, Coding, Options};

    use super::*;

    /// A frame of a made-up camera.
    struct Seen {
        count: u16,
        /// By how much its capture is misjudged; positive where it is taken for newer than it is.
        misjudged: f64,
        /// How old it was when it came.
        age: f64,
    }

    fn count(jpeg: &[u8]) -> Option<u16> {
        let header = Header::read(jpeg, &Limits::default()).ok()?;
        let mut planes = Planes::default();
        let _read = Codec::new().decode_planes(jpeg, &header, 8, true, &mut planes, None).ok()?;
        let (width, _, stride, luma) = planes.plane(0);
        assert_eq!((width, header.height), (camera::WIDTH, camera::HEIGHT as u16));
        camera::read_count(luma, stride)
    }

    /// A camera, unless ffmpeg is missing or cannot code so.
    fn start(
        coding: Coding,
        frames_per_second: f64,
        frames: u16,
        options: Options,
    ) -> Option<Camera> {
        match Clip::make(coding, frames_per_second, frames) {
            Ok(clip) => Some(Camera::start(clip, options).unwrap()),
            Err(error) => {
                eprintln!("skipped: {coding:?} cannot be made here ({error}); run scripts/setup");
                None
            }
        }
    }

    async fn open(camera: &Camera, login: &str) -> Source {
        let text = format!("rtsp://{login}{}/live", camera.address());
        Source::open(&SourceSpec::parse(&text).unwrap()).await.unwrap()
    }

    /// All frames that come within `seconds`.
    async fn watch(camera: &Camera, source: &mut Source, seconds: f64) -> Vec<Seen> {
        let until = Moment::now() + Duration::from_secs_f64(seconds);
        let mut seen = Vec::new();
        while let Ok(frame) =
            tokio::time::timeout(until.saturating_duration_since(Moment::now()), source.next())
                .await
        {
            let frame = match frame.expect("the camera continues") {
                // By packets that are lost, or a decoder that has too little time.
                Err(SourceError::LeftOut { .. }) => continue,
                frame => frame.expect("each frame is good"),
            };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let told = now.saturating_sub(source.age(&frame)).as_secs_f64();
            let count = count(&frame.picture.jpeg).expect("the picture shows its count");
            let captured = camera.captured(count, now).as_secs_f64();
            seen.push(Seen {
                count,
                misjudged: told - captured,
                age: now.as_secs_f64() - captured,
            });
        }
        seen
    }

    fn percentile(of: impl Iterator<Item = f64>, part: f64) -> f64 {
        let mut all: Vec<f64> = of.collect();
        all.sort_by(f64::total_cmp);
        all[((all.len() - 1) as f64 * part).round() as usize]
    }

    #[tokio::test]
    async fn a_picture_is_as_old_as_its_clock_says() {
        for (coding, frames_per_second, seconds) in [
            (Coding::H264, 25.0, 3.0),
            (Coding::H264, 5.0, 3.0),
            (Coding::H265, 10.0, 3.0),
            (Coding::Jpeg, 25.0, 2.0),
            (Coding::H264, 1.0, 5.0),
        ] {
            for reports in [None, Some(0)] {
                let options = Options { reports, ..Options::default() };
                let frames = (20.0 * frames_per_second) as u16;
                let Some(camera) = start(coding, frames_per_second, frames, options) else {
                    continue;
                };
                let mut source = open(&camera, "").await;
                let seen = watch(&camera, &mut source, seconds).await;
                let case = format!("{coding:?} at {frames_per_second} fps, reports {reports:?}");
                assert!(
                    seen.len() as f64 >= seconds * frames_per_second / 3.0,
                    "{case}: {} frames",
                    seen.len()
                );
                assert!(seen.is_sorted_by(|a, b| a.count < b.count), "{case}: each once, in order");
                let worst = percentile(seen.iter().map(|seen| seen.misjudged), 0.95);
                let period = 1.0 / frames_per_second;
                assert!(
                    (-0.02..=period + 0.02).contains(&worst),
                    "{case}: reported {worst:.3} s too new"
                );
                // A picture that waited for the next one in a decoder would be a period old. Of short ones a busy machine may take as
                // much.
                let age = percentile(seen.iter().map(|seen| seen.age), 0.5);
                assert!(period < 0.2 || age < period, "{case}: {age:.3} s old");
            }
        }
    }

    /// The source comes when the only key is gone; its first picture is shown once its stripes are whole.
    #[tokio::test]
    async fn a_stream_without_keys_is_shown() {
        let Some(camera) = start(Coding::H264Stripes, 10.0, 400, Options::default()) else {
            return;
        };
        // The key is that of the first picture, which a camera that was started before does not send.
        let mut source = open(&camera, "").await;
        let seen = watch(&camera, &mut source, 10.0).await;
        assert!(seen.len() >= 10, "{} frames", seen.len());
        assert!(seen.is_sorted_by(|a, b| a.count + 1 == b.count), "each once, in order");
    }

    async fn open_by_udp(camera: &Camera) -> Source {
        let spec = SourceSpec::parse(&format!("rtsp://{}/live", camera.address())).unwrap();
        let transport = RtspTransport::Udp;
        let spec = spec.with_options(NetworkOptions { transport, ..NetworkOptions::default() });
        Source::open(&spec).await.unwrap()
    }

    #[tokio::test]
    async fn pictures_come_by_udp_whatever_becomes_of_their_packets() {
        for (coding, udp_faults, at_least) in [
            (Coding::H264, (0, 0), 0.9),
            (Coding::H264, (0, 3), 0.9),
            (Coding::Jpeg, (0, 5), 0.9),
            // A lost packet costs all up to the next key, which comes each second.
            (Coding::H264, (101, 0), 0.2),
            (Coding::Jpeg, (101, 0), 0.5),
        ] {
            let options = Options { reports: Some(0), udp_faults, ..Options::default() };
            let Some(camera) = start(coding, 10.0, 200, options) else { return };
            let mut source = open_by_udp(&camera).await;
            let seen = watch(&camera, &mut source, 4.0).await;
            let case = format!("{coding:?} {udp_faults:?}");
            assert!(seen.is_sorted_by(|a, b| a.count < b.count), "{case}: each once, in order");
            let span = seen.last().map_or(0, |last| last.count - seen[0].count + 1);
            let part = seen.len() as f64 / f64::from(span.max(1));
            assert!(seen.len() > 5 && part >= at_least, "{case}: {} of {span}", seen.len());
        }
    }

    #[tokio::test]
    async fn what_the_cameras_own_encoder_takes_is_part_of_the_age() {
        let encoder = Duration::from_millis(400);
        for (ahead, known) in [(0, true), (3_600_000_000_000, false)] {
            let options = Options { reports: Some(ahead), encoder, ..Options::default() };
            let Some(camera) = start(Coding::H264, 10.0, 200, options) else { return };
            let mut source = open(&camera, "").await;
            watch(&camera, &mut source, 1.5).await;
            let seen = watch(&camera, &mut source, 2.0).await;
            let misjudged = percentile(seen.iter().map(|seen| seen.misjudged), 0.95);
            // A clock that is an hour ahead says nothing of a delay. A period and 20 ms is what may be misjudged.
            let expected = if known { 0.0 } else { encoder.as_secs_f64() };
            assert!((misjudged - expected).abs() < 0.12, "ahead {ahead}: {misjudged:.3} s too new");
        }
    }

    #[tokio::test]
    async fn pictures_that_a_camera_has_kept_are_told_to_be_old() {
        let options = Options { backlog: Duration::from_secs(3), ..Options::default() };
        let Some(camera) = start(Coding::H264, 10.0, 200, options) else { return };
        let mut source = open(&camera, "").await;
        let seen = watch(&camera, &mut source, 2.0).await;
        for seen in &seen {
            assert!(
                seen.misjudged < 0.12,
                "{}: {:.3} s too new at {:.3} s of age",
                seen.count,
                seen.misjudged,
                seen.age
            );
        }
        // Most of what was kept has been caught up with.
        let newest = seen.last().expect("there were pictures");
        assert!(newest.age < 1.5, "the newest is {:.3} s old", newest.age);
    }

    #[tokio::test]
    async fn a_login_is_used_and_its_lack_is_said_without_it() {
        let login = Some(("me".to_owned(), "s3/cr@t".to_owned()));
        let options = Options { login, ..Options::default() };
        let Some(camera) = start(Coding::Jpeg, 10.0, 20, options) else { return };
        let mut source = open(&camera, "me:s3%2Fcr%40t@").await;
        assert!(!watch(&camera, &mut source, 0.5).await.is_empty());
        for (login, expected) in [
            ("", "asks for a user and a password"),
            ("me:s3cret@", "refuses the user or the password"),
        ] {
            let text = format!("rtsp://{login}{}/live", camera.address());
            let error = Source::open(&SourceSpec::parse(&text).unwrap()).await.unwrap_err();
            let told = tidegate_message::error_chain(&error);
            assert!(told.contains(expected) && !told.contains("s3cret"), "{told}");
        }
        drop(camera);
    }

    #[tokio::test]
    async fn a_camera_that_is_away_is_said_to_be_and_tried_again() {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let spec = SourceSpec::parse(&format!("rtsp://me:s3cret@{address}/live")).unwrap();
        let mut source = Source::open(&spec).await.unwrap();
        for _ in 0..2 {
            let error = source.next().await.expect("it continues").unwrap_err();
            let told = tidegate_message::error_chain(&error);
            assert!(told.contains("cannot be reached") && !told.contains("s3cret"), "{told}");
        }
    }

    #[tokio::test]
    async fn a_slow_camera_is_waited_for() {
        let Some(camera) = start(Coding::H264, 0.5, 20, Options::default()) else { return };
        let mut source = open(&camera, "").await;
        let seen = watch(&camera, &mut source, 13.0).await;
        assert!(seen.len() >= 4, "{} frames", seen.len());
        assert!(
            seen.is_sorted_by(|a, b| a.count + 1 == b.count),
            "none is left out, and none is made up"
        );
    }
}

/// Video files as cameras and phones write them.
mod files {
    use super::*;

    /// Runs ffmpeg in `folder`; false where there is none.
    async fn ffmpeg(folder: &std::path::Path, arguments: &str) -> bool {
        let mut command = tokio::process::Command::new("ffmpeg");
        command
            .args(["-nostdin", "-v", "error", "-y"])
            .args(arguments.split(' '))
            .current_dir(folder);
        match command.status().await {
            Ok(status) => {
                assert!(status.success(), "{arguments}");
                true
            }
            Err(error) => {
                eprintln!("skipped: ffmpeg is not installed ({error}); run scripts/setup");
                false
            }
        }
    }

    async fn read(path: &std::path::Path, options: &str) -> Vec<Picture> {
        let spec = SourceSpec::parse(&format!("video:{}{options}", path.display())).unwrap();
        read_pictures(&spec, 1000).await.unwrap()
    }

    #[tokio::test]
    async fn streams_in_programs_and_lists_are_played() {
        let folder = tempfile::tempdir().unwrap();
        let test = "-f lavfi -i testsrc=size=320x180:rate=10:duration=2 -pix_fmt yuv420p -c:v libx264 -preset ultrafast -g 10";
        for name in ["a.ts", "a.m2ts", "a.m3u8", "a.mp4", "a.mkv"] {
            if !ffmpeg(folder.path(), &format!("{test} {name}")).await {
                return;
            }
            let pictures = read(&folder.path().join(name), "").await;
            assert_eq!(pictures.len(), 20, "{name}");
        }
    }

    #[tokio::test]
    async fn no_picture_is_made_up_where_a_recording_has_none() {
        let folder = tempfile::tempdir().unwrap();
        // Two seconds at 25 fps, then four at 3 fps.
        let test = "-f lavfi -i testsrc=size=320x180:rate=25:duration=6 -vf select=lt(t\\,2)+not(mod(n\\,8)) -c:v mjpeg a.mkv";
        if !ffmpeg(folder.path(), test).await {
            return;
        }
        let path = folder.path().join("a.mkv");
        let made = 50 + (50..150).filter(|n| n % 8 == 0).count();
        for options in ["?fps=25", "?fps=25&prepare=1"] {
            let pictures = read(&path, options).await;
            let mut different: Vec<_> =
                pictures.iter().map(|picture| picture.jpeg.clone()).collect();
            different.dedup();
            assert_eq!((pictures.len(), different.len()), (made, made), "{options}");
        }
        let spec =
            SourceSpec::parse(&format!("video:{}?fps=25&prepare=1", path.display())).unwrap();
        let mut source = virtual_time(&spec).await;
        let mut times = Vec::new();
        while let Some(frame) = source.next().await {
            times.push(frame.unwrap().captured);
        }
        let gap = times[made - 1].since(times[made - 2]).as_secs_f64();
        assert!((gap - 0.32).abs() < 0.01, "time passes as in the file: {gap}");
        tokio::time::resume();
        assert_eq!(
            read(&path, "?fps=5").await.len(),
            11 + made - 50,
            "left out, and not filled up"
        );
    }

    #[tokio::test]
    async fn a_recording_that_changes_its_size_is_played_at_each() {
        let folder = tempfile::tempdir().unwrap();
        let test = |size: &str, name: &str| {
            format!(
                "-f lavfi -i testsrc=size={size}:rate=10:duration=1 -pix_fmt yuv420p -c:v libx264 -preset ultrafast {name}.ts"
            )
        };
        if !ffmpeg(folder.path(), &test("320x180", "a")).await {
            return;
        }
        ffmpeg(folder.path(), &test("640x360", "b")).await;
        ffmpeg(folder.path(), "-i concat:a.ts|b.ts -c copy c.ts").await;
        let spec = |options: &str| {
            SourceSpec::parse(&format!("video:{}{options}", folder.path().join("c.ts").display()))
                .unwrap()
        };
        let widths = |pictures: &[Bytes]| -> Vec<u16> {
            let size = |jpeg: &Bytes| inspect(jpeg, &FrameLimits::default()).unwrap().size.width;
            pictures.iter().map(size).collect()
        };
        let once: Vec<_> = read_pictures(&spec(""), 1000)
            .await
            .unwrap()
            .into_iter()
            .map(|picture| picture.jpeg)
            .collect();
        assert_eq!(widths(&once), [[320; 10], [640; 10]].concat());
        let mut source = Source::open(&spec("?loop=1")).await.unwrap();
        let mut repeated = Vec::new();
        while repeated.len() < 45 {
            repeated.push(frame(&mut source).await.picture.jpeg);
        }
        let repeated = widths(&repeated);
        assert!(repeated.windows(2).filter(|pair| pair[0] != pair[1]).count() >= 3, "{repeated:?}");
    }
}
