//! A wall clock that is set by hours while nodes run.

use std::{fs, path::Path, process::Command, time::Duration};

use tidegate_client::{Delivery, Instant};

use crate::{
    durable::{Site, next_frame, request, wait_for_camera},
    world::captured,
};

/// The library that shows a program another wall clock: one with the offset in a file.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The variables that do so, or none where that is not installed.
fn wall_clock_of(file: &Path) -> Option<[(&'static str, String); 4]> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let library = folders.map(|folder| folder.join(LIBRARY)).find(|library| library.exists())?;
    let variables = [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    Some(variables)
}

/// The wall clock's seconds, as a program sees them with those variables.
fn seen(variables: &[(&str, String)]) -> i64 {
    let mut date = Command::new("date");
    date.arg("+%s").envs(variables.iter().map(|(name, value)| (name, value)));
    let output = date.output().expect("date");
    String::from_utf8(output.stdout).expect("digits").trim().parse().expect("seconds")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_go_on_while_the_wall_clock_jumps() {
    let mut site = Site::new("");
    let file = site.path("clock");
    fs::write(&file, "+0").expect("a file");
    let Some(variables) = wall_clock_of(&file) else {
        return println!("skipped: libfaketime is not installed");
    };
    site.variables = variables.to_vec();
    let (_edge, _camera) = (site.edge(), site.camera());
    let client = site.client().await;
    wait_for_camera(&client).await;
    let mut subscription = client.subscribe(request(Delivery::Every)).await.expect("subscribed");
    let mut frames = Vec::new();
    for offset in ["+0", "+5h", "-5h", "+0"] {
        let before = seen(&variables);
        fs::write(&file, offset).expect("a file");
        let jump = (seen(&variables) - before).abs();
        assert!(offset == "+0" && frames.is_empty() || jump > 17_000, "{jump} s, not hours");
        for _ in 0..20 {
            frames.push(next_frame(&mut subscription, &mut Vec::new()).await);
        }
    }
    assert!(frames.iter().all(|frame| frame.epoch == frames[0].epoch));
    let times: Vec<Instant> = frames.iter().map(|frame| frame.captured_at).collect();
    assert_eq!(times, captured(&client, "cam1", &times).await, "in order, none missing");
    // As far apart as they were captured: 15 a second.
    let took = times[times.len() - 1].since(times[0]);
    assert!(took < Duration::from_secs(120), "{took:?}");
}
