//! How old a network camera's pictures are, by a clock that stands in them, compared with their reported age.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bench_harness::{Figure, Report, Target, Tolerance, percentile};
use tidegate_camera::source::{Source, SourceSpec};
use tidegate_jpeg::{Codec, Header, Limits, Planes};
use tidegate_load::camera::{self, Camera, Clip, Coding, Options};

use crate::Plan;

/// Frames a second.
const RATES: [f64; 4] = [1.0, 5.0, 10.0, 25.0];
/// The delay of the camera's own encoder; its sender reports include it.
const ENCODER: Duration = Duration::from_millis(60);
/// Tolerance of a picture's age, in addition to one frame's time.
const ALLOWED_MS: f64 = 20.0;

/// The observations of one camera, in milliseconds.
struct Seen {
    /// Real ages.
    ages: Vec<f64>,
    /// Real age less the reported one.
    untold: Vec<f64>,
}

/// Real age, and its difference from the reported one, for each coding and rate.
///
/// # Errors
/// A camera or its pictures cannot be had.
pub fn age(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    for coding in Coding::ALL {
        for rate in RATES {
            let seconds = if plan.quick { 4.0 } else { 15.0 } + 4.0 / rate;
            let clip = Clip::make(coding, rate, (60.0 * rate) as u16).context("making the clip")?;
            let options = Options { reports: Some(0), encoder: ENCODER, ..Options::default() };
            let camera = Camera::start(clip, options)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (mut ages, mut untold) = (Vec::new(), Vec::new());
            for run in 0..plan.runs {
                let seen = runtime.block_on(watch(&camera, seconds))?;
                ages.push(percentile(&seen.ages, 0.5));
                untold.push(percentile(&seen.untold, 0.95));
                report.samples(format!("age, {coding:?}, {rate} fps, run {run}, ms"), seen.ages);
            }
            let name = format!("age, {coding:?} at {rate} fps");
            report.figure(Figure::new(format!("{name}, p50"), "ms").ours(ages));
            report.figure(
                Figure::new(format!("{name}, p95 of real less told"), "ms")
                    .ours(untold)
                    .target(Target::AtMost(1000.0 / rate + ALLOWED_MS))
                    .tolerance(Tolerance::None),
            );
        }
    }
    Ok(())
}

async fn watch(camera: &Camera, seconds: f64) -> anyhow::Result<Seen> {
    let spec = SourceSpec::parse(&format!("rtsp://{}/live", camera.address()))?;
    let mut source = Source::open(&spec).await?;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut seen = Seen { ages: Vec::new(), untold: Vec::new() };
    while let Ok(frame) =
        tokio::time::timeout(until.saturating_duration_since(Instant::now()), source.next()).await
    {
        let frame = frame.context("the camera ended")??;
        let (now, told) = (SystemTime::now().duration_since(UNIX_EPOCH)?, source.age(&frame));
        let count = count(&frame.picture.jpeg).context("a picture does not show its count")?;
        let age = now.saturating_sub(camera.captured(count, now));
        seen.ages.push(age.as_secs_f64() * 1e3);
        seen.untold.push((age.as_secs_f64() - told.as_secs_f64()) * 1e3);
    }
    anyhow::ensure!(!seen.ages.is_empty(), "no picture came within {seconds} s");
    Ok(seen)
}

fn count(jpeg: &[u8]) -> Option<u16> {
    let header = Header::read(jpeg, &Limits::default()).ok()?;
    let mut planes = Planes::default();
    let _read = Codec::new().decode_planes(jpeg, &header, 8, true, &mut planes, None).ok()?;
    let (_, _, stride, luma) = planes.plane(0);
    camera::read_count(luma, stride)
}
