//! `tidegate cameras`: the cameras of a node.

use async_recursion::async_recursion as boxed;
use clap::Args;
use tidegate_api::{ApiError, CameraInfo};
use tidegate_config::{ByteCount, Config};
use tidegate_message::{CameraName, Instant};
use tidegate_process::clock;

use crate::{
    program::{Output, aligned, print},
    remote::RemoteArgs,
};

/// Arguments of `tidegate cameras`.
#[derive(Args, Debug)]
pub struct CamerasArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// How to print them
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Prints the cameras of a node.
///
/// # Errors
/// Those of the call, and of the output.
#[boxed(?Send)]
pub async fn run(config: &Config, args: &CamerasArgs) -> Result<(), ApiError> {
    let cameras = args.remote.connect(config).await?.cameras().await?;
    match args.output {
        Output::Table => print(&table(&cameras, clock::now())),
        Output::Json => print(&json(&cameras)),
    }
}

fn table(cameras: &[CameraInfo], now: Instant) -> String {
    let head = [
        "NAME", "STATE", "VIA", "SIZE", "FPS", "FRAME", "LOG", "NEWEST", "STREAMS", "CLOCK",
        "SUB OF",
    ];
    let mut text = aligned(head, cameras.iter().map(|camera| row(camera, now)));
    for camera in cameras {
        if let Some(why) = &camera.no_frames {
            text.push_str(&format!(
                "{} gives no frames: {}\n",
                camera.name,
                crate::program::plain(why)
            ));
        }
    }
    for camera in cameras {
        if let Some(said) = &camera.capture_clock {
            text.push_str(&format!("{}: {}\n", camera.name, crate::program::plain(said)));
        }
    }
    if cameras.is_empty() {
        text.push_str("no camera is registered; `tidegate cameras add` has the node run one\n");
    }
    text
}

fn row(camera: &CameraInfo, now: Instant) -> [String; 11] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        camera.name.to_string(),
        match (camera.online, &camera.no_frames) {
            (false, _) => "offline",
            (true, Some(_)) => "no frames",
            (true, None) => "online",
        }
        .to_owned(),
        or_dash(Some(crate::program::plain(&camera.transport)).filter(|via| !via.is_empty())),
        or_dash(camera.size.map(|size| size.to_string())),
        format!("{:.1}", camera.frames_per_second),
        rounded(camera.frame_bytes),
        format!("{} of {}", rounded(camera.log_bytes), ByteCount(camera.log_bytes_max)),
        or_dash(camera.newest_at.map(|at| format!("{:.1} s ago", now.since(at).as_secs_f64()))),
        format!("{} for {}", camera.transfers, camera.subscriptions),
        or_dash(camera.clock_offset.map(|clock| {
            let (offset, error) =
                (clock.offset_nanos as f64 / 1e6, clock.uncertainty.as_secs_f64() * 1e3);
            format!("{offset:+.2} ±{error:.2} ms")
        })),
        or_dash(camera.substream_of.as_ref().map(ToString::to_string)),
    ]
}

/// A size for people: three digits and a unit.
pub(crate) fn rounded(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        ..1e3 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.0} kB", bytes / 1e3),
        ..1e9 => format!("{:.2} MB", bytes / 1e6),
        _ => format!("{:.2} GB", bytes / 1e9),
    }
}

fn json(cameras: &[CameraInfo]) -> String {
    let cameras: Vec<serde_json::Value> = cameras
        .iter()
        .map(|camera| {
            serde_json::json!({
                "name": camera.name.as_str(),
                "online": camera.online,
                "no_frames": camera.no_frames,
                "capture_clock": camera.capture_clock,
                "substream_of": camera.substream_of.as_ref().map(CameraName::as_str),
                "via": camera.transport,
                "width": camera.size.map(|size| size.width),
                "height": camera.size.map(|size| size.height),
                "frames_per_second": camera.frames_per_second,
                "frame_bytes": camera.frame_bytes,
                "oldest_at": camera.oldest_at.map(Instant::as_nanos),
                "newest_at": camera.newest_at.map(Instant::as_nanos),
                "log_bytes": camera.log_bytes,
                "log_bytes_max": camera.log_bytes_max,
                "transfers": camera.transfers,
                "subscriptions": camera.subscriptions,
                "clock_offset_nanos": camera.clock_offset.map(|clock| clock.offset_nanos),
                "clock_uncertainty_nanos":
                    camera.clock_offset.map(|clock| clock.uncertainty.as_nanos() as u64),
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(cameras))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_api::ClockOffset;

    use super::*;

    fn cameras() -> Vec<CameraInfo> {
        let north = CameraInfo {
            name: "north".parse().unwrap(),
            online: true,
            size: "1920x1080".parse().ok(),
            frames_per_second: 14.96,
            frame_bytes: 412_345,
            oldest_at: Some(Instant::from_millis(1000)),
            newest_at: Some(Instant::from_millis(9900)),
            log_bytes: 73_400_320,
            log_bytes_max: 1 << 30,
            transfers: 1,
            subscriptions: 3,
            transport: "quic".to_owned(),
            clock_offset: Some(ClockOffset {
                offset_nanos: -1_250_000,
                uncertainty: Duration::from_micros(400),
            }),
            no_frames: None,
            capture_clock: None,
            substream_of: None,
            node: None,
        };
        let blind = CameraInfo {
            name: "yard-1".parse().unwrap(),
            substream_of: "north".parse().ok(),
            transfers: 0,
            subscriptions: 1,
            no_frames: Some("its frames are refused: too \u{7} large".to_owned()),
            ..north.clone()
        };
        let gone = CameraInfo {
            name: "yard-2".parse().unwrap(),
            online: false,
            size: None,
            frames_per_second: 0.0,
            frame_bytes: 0,
            oldest_at: None,
            newest_at: None,
            log_bytes: 0,
            transfers: 0,
            subscriptions: 0,
            transport: String::new(),
            clock_offset: None,
            ..north.clone()
        };
        vec![north, blind, gone]
    }

    #[test]
    fn the_table_is_golden() {
        let expected = "\
NAME    STATE      VIA   SIZE       FPS   FRAME   LOG               NEWEST     STREAMS  CLOCK           SUB OF
north   online     quic  1920x1080  15.0  412 kB  73.40 MB of 1GiB  0.1 s ago  1 for 3  -1.25 ±0.40 ms  -
yard-1  no frames  quic  1920x1080  15.0  412 kB  73.40 MB of 1GiB  0.1 s ago  0 for 1  -1.25 ±0.40 ms  north
yard-2  offline    -     -          0.0   0 B     0 B of 1GiB       -          0 for 0  -               -
yard-1 gives no frames: its frames are refused: too \u{fffd} large
";
        assert_eq!(table(&cameras(), Instant::from_millis(10_000)), expected);
        assert!(
            table(&[], Instant::EPOCH).ends_with("`tidegate cameras add` has the node run one\n")
        );
    }

    #[test]
    fn the_json_holds_every_field() {
        let parsed: serde_json::Value = serde_json::from_str(&json(&cameras())).unwrap();
        assert_eq!(parsed[0]["newest_at"], 9_900_000_000_i64);
        assert_eq!(parsed[0]["clock_offset_nanos"], -1_250_000);
        assert_eq!(parsed[0]["no_frames"], serde_json::Value::Null);
        assert_eq!(parsed[1]["no_frames"], "its frames are refused: too \u{7} large");
        assert_eq!(parsed[2]["width"], serde_json::Value::Null);
        assert_eq!(parsed[1]["substream_of"], "north");
        assert_eq!(parsed[2].as_object().unwrap().len(), 18);
    }
}
