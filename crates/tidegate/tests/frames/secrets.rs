//! A network camera's password is hidden from other users of a machine.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    time::Duration,
};

use tidegate_load::camera::{Camera, Clip, Coding, Options};

use crate::poll::poll;

/// Longest wait for the decoder to run.
const STARTED_MAX: Duration = Duration::from_secs(60);

/// The processes that a process has started.
fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// The arguments or environment of a process, as text.
fn seen(process: u32, what: &str) -> String {
    let bytes = fs::read(format!("/proc/{process}/{what}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

#[test]
fn a_cameras_password_is_in_no_argument_of_any_process() {
    let clip = match Clip::make(Coding::H264, 10.0, 200) {
        Ok(clip) => clip,
        Err(error) => {
            return eprintln!("skipped: no clip can be made here ({error}); run scripts/setup");
        }
    };
    let login = Some(("u5er".to_owned(), "s3cret".to_owned()));
    let camera = Camera::start(clip, Options { login, ..Options::default() }).unwrap();
    let place = camera.address();
    let folder = tempfile::tempdir().unwrap();
    for (source, variable) in [
        (format!("rtsp://u5er:s3cret@{place}/live?user=u5er&password=s3cret"), None),
        (format!("rtsp://u5er@{place}/live"), Some("s3cret")),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["characterize", "--frames", "100000", "--clip", &source, "-o", "a.table"]);
        command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(password) = variable {
            command.env("TIDEGATE_SOURCE_PASSWORD", password);
        }
        let mut child = command.spawn().unwrap();
        let decoder = || {
            let first = children(child.id()).first().copied();
            first.filter(|&decoder| seen(decoder, "cmdline").contains("ffmpeg"))
        };
        let decoder = poll(STARTED_MAX, decoder);
        let decoder = decoder.unwrap_or_else(|| panic!("no decoder was started for {source}"));
        let arguments =
            [seen(child.id(), "cmdline"), seen(decoder, "cmdline"), seen(decoder, "environ")];
        child.kill().unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        child.wait().unwrap();
        for text in arguments.iter().chain([&said]) {
            assert!(!text.contains("s3cret"), "{text}");
        }
        assert!(arguments[0].contains(&format!("{place}/live")), "{}", arguments[0]);
    }
}
