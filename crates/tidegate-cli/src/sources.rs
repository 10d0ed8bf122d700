//! Sources that are tried before a node runs them, and cameras of the local networks.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use async_recursion::async_recursion as boxed;
use clap::Args;
use tidegate_api::ApiError;
use tidegate_camera::{
    discovery::{self, Found as Camera},
    source::{CaptureClock, Source, SourceError, SourceFrame, SourceSpec},
};
use tidegate_frame::knob::{FrameLimits, inspect};
use tidegate_message::{Code, FrameSize, error_chain};
use tidegate_sys::net;
use tokio::time::timeout;

use crate::program::{Output, aligned, plain, print};

/// How long frames are counted once the first has come.
const COUNT_FOR: Duration = Duration::from_secs(6);

/// The findings about a source.
#[derive(Debug)]
pub struct Found {
    source: String,
    size: FrameSize,
    /// Of the frames that came, on average.
    frame_bytes: u64,
    frames: u64,
    /// Pictures that its source left out, since they refer to what was lost.
    left_out: u64,
    frames_per_second: f64,
    /// From opening it to its first frame.
    first_after: Duration,
    /// How old that was when it came.
    first_age: Duration,
    /// By which clock its frames are timed, as far as that could be found out; none for those that are timed when they are played.
    clock: Option<CaptureClock>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { source, size, frame_bytes, frames_per_second, first_after, first_age, .. } =
            self;
        let kilobytes = *frame_bytes as f64 / 1e3;
        write!(
            f,
            "{}: {size}, {frames_per_second:.1} frames a second of {kilobytes:.0} kB; the first came after {:.2} s and was {:.2} s old",
            plain(source),
            first_after.as_secs_f64(),
            first_age.as_secs_f64(),
        )?;
        if self.left_out > 0 {
            let left_out = self.left_out;
            write!(f, "; pictures left out, since parts of the stream were lost: {left_out}")?;
        }
        match self.clock {
            Some(clock) => write!(f, "; {clock}"),
            None => Ok(()),
        }
    }
}

impl Found {
    /// As one line of JSON.
    pub fn json(&self) -> String {
        let json = serde_json::json!({
            "source": self.source,
            "width": self.size.width,
            "height": self.size.height,
            "frame_bytes": self.frame_bytes,
            "frames": self.frames,
            "left_out": self.left_out,
            "frames_per_second": self.frames_per_second,
            "first_after_ms": self.first_after.as_secs_f64() * 1e3,
            "first_age_ms": self.first_age.as_secs_f64() * 1e3,
            "capture_clock": self.clock.map(|clock| clock.to_string()),
            "capture_clock_sound": self.clock.map(CaptureClock::is_sound),
        });
        format!("{json}\n")
    }
}

/// Waits for frames of a source, and counts them. The source keeps what it has: no file is deleted.
///
/// # Errors
/// [`Code::CAMERA_OFFLINE`] with the cause; [`Code::CONFIG_INVALID`] for a source that is none.
#[boxed(?Send)]
pub async fn try_source(spec: &SourceSpec, wait: u32) -> Result<Found, ApiError> {
    let wait = Duration::from_secs(wait.into());
    let opened = Instant::now();
    let mut last = None;
    let tried = timeout(wait, first_frame(spec, &mut last)).await;
    let nothing = |why: String| {
        ApiError::new(Code::CAMERA_OFFLINE, format!("{spec} gave no frame")).caused_by(why)
    };
    let (mut source, size, first) = match tried {
        Ok(Ok(first)) => first,
        Ok(Err(why)) => return Err(nothing(why)),
        Err(_) => {
            let late = format!("none came within {} s", wait.as_secs());
            return Err(nothing(last.map_or(late.clone(), |last| format!("{late}; {last}"))));
        }
    };
    let (first_after, first_age) = (opened.elapsed(), source.age(&first));
    let began = Instant::now();
    let (mut frames, mut bytes) = (1, first.picture.jpeg.len() as u64);
    let mut newest = (first.sequence, began);
    let mut left_out = 0;
    while let Some(left) = COUNT_FOR.checked_sub(began.elapsed())
        && let Ok(Some(next)) = timeout(left, source.next()).await
    {
        match next {
            Ok(frame) => {
                frames += 1;
                bytes += frame.picture.jpeg.len() as u64;
                newest = (frame.sequence, Instant::now());
            }
            Err(SourceError::LeftOut { pictures, .. }) => left_out += pictures,
            Err(_) => {}
        }
    }
    let (sequence, at) = newest;
    let seconds = at.duration_since(began).as_secs_f64();
    // Those that were overtaken count: the source has them.
    let passed = (sequence - first.sequence) as f64;
    let frames_per_second = if seconds > 0.0 { passed / seconds } else { 0.0 };
    let clock = source.clock();
    let (source, frame_bytes) = (spec.to_string(), bytes / frames);
    let rate = frames_per_second;
    Ok(Found {
        source,
        size,
        frame_bytes,
        frames,
        left_out,
        frames_per_second: rate,
        first_after,
        first_age,
        clock,
    })
}

/// Opens a source and waits for a frame that can be carried; keeps the last reason why one was not.
async fn first_frame(
    spec: &SourceSpec,
    last: &mut Option<String>,
) -> Result<(Source, FrameSize, SourceFrame), String> {
    let mut source = Source::open(&spec.for_trial()).await.map_err(|error| error_chain(&error))?;
    while let Some(next) = source.next().await {
        match next {
            Ok(frame) => match inspect(&frame.picture.jpeg, &FrameLimits::default()) {
                Ok(inspected) => return Ok((source, inspected.seen_size(), frame)),
                Err(error) => *last = Some(error_chain(&error)),
            },
            // The next picture may be sound.
            Err(
                error @ (SourceError::NotJpeg { .. }
                | SourceError::Damaged { .. }
                | SourceError::LeftOut { .. }
                | SourceError::Picture { .. }),
            ) => *last = Some(error_chain(&error)),
            Err(error) => return Err(error_chain(&error)),
        }
    }
    Err(last.take().unwrap_or_else(|| "it has ended without a picture".to_owned()))
}

/// The way to look for cameras.
#[derive(Args, Debug)]
pub struct DiscoverArgs {
    /// Seconds to wait for answers
    #[arg(long, default_value_t = 4, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=60))]
    wait: u32,
    /// Address of this machine to ask by; may be repeated [default: each that is not loopback, IPv4]
    #[arg(long = "by", value_name = "ADDRESS")]
    own: Vec<IpAddr>,
    /// Where to ask, if not all cameras by multicast
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = discovery::MULTICAST)]
    to: SocketAddr,
    /// How to print what has answered
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Asks for cameras and prints those that answer.
///
/// # Errors
/// [`Code::LINK_DOWN`] if no network can be asked, and those of the output.
#[boxed(?Send)]
pub async fn discover(args: &DiscoverArgs) -> Result<(), ApiError> {
    let failed = |error: io::Error| {
        ApiError::new(Code::LINK_DOWN, "no network can be asked for cameras; --by names an address")
            .caused_by(error)
    };
    let own = match &args.own[..] {
        [] => {
            let mut own = net::own_addresses().map_err(failed)?;
            own.retain(|address| address.is_ipv4() == args.to.is_ipv4());
            own
        }
        own => own.to_vec(),
    };
    let wait = Duration::from_secs(args.wait.into());
    let found = discovery::search(&own, args.to, wait).await.map_err(failed)?;
    print(&match args.output {
        Output::Table => cameras_found(&found),
        Output::Json => {
            let cameras = found.iter().map(|camera| {
                serde_json::json!({
                    "address": camera.address.map(|address| address.to_string()),
                    "name": camera.name,
                    "hardware": camera.hardware,
                    "location": camera.location,
                    "services": camera.services,
                    "id": camera.id,
                })
            });
            format!("{:#}\n", serde_json::Value::Array(cameras.collect()))
        }
    })
}

fn cameras_found(found: &[Camera]) -> String {
    if found.is_empty() {
        return "no camera has answered; those in other networks, and those with ONVIF switched off, do not\n".to_owned();
    }
    let rows = found.iter().map(|camera| {
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { plain(text) };
        [
            camera.address.map_or_else(|| "-".to_owned(), |address| address.to_string()),
            or_dash(&camera.name),
            or_dash(&camera.hardware),
            or_dash(&camera.location),
            or_dash(camera.services.first().map_or("", String::as_str)),
        ]
    });
    let text = aligned(["ADDRESS", "NAME", "HARDWARE", "LOCATION", "SERVICE"], rows);
    format!(
        "{text}the maker's manual names the address of its stream: try `tidegate cameras test rtsp://USER@ADDRESS/PATH --ask-password`\n"
    )
}

#[cfg(test)]
mod tests {
    use tidegate_camera::source::read_pictures;

    use super::*;

    #[test]
    fn cameras_that_have_answered_are_listed() {
        let camera = Camera {
            address: Some(IpAddr::from([192, 0, 2, 7])),
            name: "Hall\u{1b}".to_owned(),
            services: vec!["http://192.0.2.7/onvif".to_owned()],
            ..Camera::default()
        };
        let text = cameras_found(&[camera]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["192.0.2.7", "Hall\u{fffd}", "-", "-", "http://192.0.2.7/onvif"]
        );
        assert!(lines[2].contains("cameras test rtsp://USER@ADDRESS/PATH"), "{text}");
        assert!(cameras_found(&[]).contains("no camera has answered"));
    }

    #[tokio::test]
    async fn a_trial_deletes_no_picture() {
        let folder = tempfile::tempdir().expect("a folder");
        let scene = "scene:street?size=320x180&fps=20".parse().expect("a source");
        let mut scene = Source::open(&scene).await.expect("it is one");
        for number in 0..3 {
            let frame = scene.next().await.expect("it repeats").expect("it gives pictures");
            let path = folder.path().join(format!("{number}.jpg"));
            std::fs::write(path, &frame.picture.jpeg).expect("a file");
        }
        let spec = format!("watch:{}?delete=1", folder.path().display()).parse().expect("a source");
        let found = try_source(&spec, 60).await.expect("it gives frames");
        assert_eq!(found.frames, 3, "each was taken");
        let clip = read_pictures(&spec, 3).await.expect("it gives pictures");
        assert_eq!(clip.len(), 3);
        let left = std::fs::read_dir(folder.path()).expect("it is there").count();
        assert_eq!(left, 3, "nothing is deleted");
    }

    #[tokio::test]
    async fn the_findings_about_a_source_are_told() {
        let spec = "scene:street?size=320x180&fps=20".parse().expect("a source");
        let found = try_source(&spec, 60).await.expect("it gives frames");
        assert_eq!(found.size, FrameSize { width: 320, height: 180 });
        assert!(found.frames > 1 && found.frames_per_second > 1.0, "{found}");
        let json: serde_json::Value = found.json().parse().expect("it is JSON");
        assert_eq!((&json["width"], &json["height"]), (&320.into(), &180.into()));
        assert!(found.to_string().contains("320x180, "), "{found}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.jpg");
        std::fs::write(&path, b"no picture").expect("a file");
        let spec = format!("folder:{}?loop=1", folder.path().display()).parse().expect("a source");
        let error = try_source(&spec, 1).await.expect_err("it has no picture");
        assert!(error.chain().contains("is not a JPEG image"), "{}", error.chain());
        assert_eq!(error.code(), Code::CAMERA_OFFLINE);
    }
}
