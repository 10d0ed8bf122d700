//! The demonstration itself, shortened.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidegate_api::exit_status;
use tidegate_message::Code;
use tidegate_netlab::{Lab, LabError, Options};
use tidegate_sim::medium::Scenario;

use crate::node;

/// Two emulated media at once would disturb each other's timing.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a lab can be made here; says why not.
fn lab_can_be_made() -> bool {
    let scenario = "[[medium]]\nname = \"w0\"\nkind = \"wan\"\nrate = \"1Mbit\"\nport = [\n\
                    { node = \"a\", address = \"10.79.1.1/24\" },\n{ node = \"b\", address = \"10.79.1.2/24\" },\n]\n";
    let scenario = Scenario::parse(scenario, Path::new("")).expect("the scenario is readable");
    match Lab::up(&scenario, &Options::default()) {
        Ok(_) => true,
        Err(error @ LabError::NeedsRoot { .. }) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// How well the bounds are kept is a figure of the machine: `bench-frames` has it, and the same scenario in virtual time meets its
/// verdict in the tests of `demo::simulated`.
#[test]
fn the_demo_ends_with_a_verdict_and_a_report() {
    let _alone = alone();
    if !lab_can_be_made() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("demo.html");
    let output = node::lab()
        .args(["demo", "--cameras", "3", "--for", "15s", "--report"])
        .arg(&report)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("the demo runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    let page = std::fs::read_to_string(&report).unwrap_or_default();
    assert!(page.contains("<svg") && page.ends_with("</html>\n"), "{said}{failed}");
    let checks = said.lines().filter(|line| line.starts_with("met  ") || line.starts_with("SHORT"));
    let (met, short): (Vec<_>, Vec<_>) = checks.partition(|line| line.starts_with("met  "));
    // Two of each camera, and one of the accuracy.
    assert!(met.len() + short.len() >= 7, "{said}{failed}");
    for name in ["cam1", "cam2", "cam3"] {
        let is_about = |line: &&&str| line[6..].starts_with(name) && !line.contains("no frame");
        assert_eq!(met.iter().chain(&short).filter(is_about).count(), 2, "{said}{failed}");
    }
    let verdict = if short.is_empty() { "VERDICT: met" } else { "VERDICT: not met" };
    assert!(said.contains(verdict), "{said}{failed}");
    let status = if short.is_empty() { 0 } else { exit_status(Code::BOUND_INFEASIBLE) };
    assert_eq!(output.status.code(), Some(status.into()), "{said}{failed}");
}

#[test]
fn the_demo_of_sensors_finds_above_what_was_sent_below() {
    let _alone = alone();
    if !lab_can_be_made() {
        return;
    }
    let output = node::lab()
        .args(["demo-sensors", "--rate", "100", "--for", "12s"])
        .output()
        .expect("the demo runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{failed}");
    // Four applications, what flows found, nothing else, the archive; and the link was cut in between.
    assert_eq!(said.lines().filter(|line| line.starts_with("met ")).count(), 7, "{said}");
    assert!(said.contains("  cut  ") && !said.contains("SHORT"), "{said}");
    assert!(said.contains("found by city, city-region, taxi, grid, fit,"), "{said}");
}

/// How soon faults are seen is a figure of the machine, and stands in the demonstration's own verdict; that nothing is lost is not.
#[test]
fn the_demo_of_many_nodes_loses_nothing_and_lets_no_revoked_node_in() {
    let _alone = alone();
    if !lab_can_be_made() {
        return;
    }
    let output = node::lab().args(["demo-fabric"]).output().expect("the demo runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    let (_, verdict) = said.split_once("\n\n").unwrap_or_default();
    for what in [
        "one map",
        "new subscription",
        "camera is found",
        "every subscriber sees all",
        "revoked is out",
    ] {
        assert!(verdict.contains(&format!("met   {what}: ")), "{what}: {said}{failed}");
    }
    let short = verdict.contains("SHORT ");
    let status = if short { exit_status(Code::BOUND_INFEASIBLE) } else { 0 };
    assert_eq!(output.status.code(), Some(status.into()), "{said}{failed}");
}

#[test]
fn a_report_that_cannot_be_written_is_a_clear_error() {
    let _alone = alone();
    if !lab_can_be_made() {
        return;
    }
    let output = node::lab()
        .args(["demo", "--cameras", "1", "--for", "1s", "--report", "/dev/full"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("the demo runs");
    let failed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{failed}");
    assert!(failed.contains("/dev/full cannot be written"), "{failed}");
}
