//! Real servers, started by the scripts of this repository for as long as a test needs them.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

/// A running server; it ends when this is dropped.
pub(crate) struct Peer {
    script: Child,
    /// The script's output: the values of the variables that were asked for.
    pub(crate) told: Vec<String>,
}

/// Where a server is not installed, as the scripts say it (EX_UNAVAILABLE).
const UNAVAILABLE: i32 = 69;

impl Peer {
    /// Has `scripts/NAME` start its server, and reads those variables from it; none, with a line that says so, where the server
    /// is not installed.
    pub(crate) fn start(name: &str, variables: &[&str]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name);
        // It tells what it knows, then waits until no one listens any more.
        let values: Vec<String> = variables.iter().map(|name| format!("\"${name}\"")).collect();
        let told = format!("printf '%s\\n' {}; exec cat >/dev/null", values.join(" "));
        let mut script = Command::new(script)
            .args(["sh", "-c", &told])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the script is there");
        let lines = BufReader::new(script.stdout.take().expect("it is piped")).lines();
        let told: Vec<String> = lines.take(variables.len()).map_while(Result::ok).collect();
        if told.len() == variables.len() {
            return Some(Self { script, told });
        }
        let ended = script.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(UNAVAILABLE), "{said}");
        println!("skipped: {}", said.lines().last().unwrap_or("it is not installed"));
        None
    }

    /// Ends it now.
    pub(crate) fn stop(mut self) -> ExitStatus {
        drop(self.script.stdin.take());
        self.script.wait().expect("it ends")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let ended = self.script.wait();
        assert!(ended.is_ok(), "the script was not waited for: {ended:?}");
    }
}

/// Sends a signal to a server.
pub(crate) fn signal(pid: &str, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), pid]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{signal} to {pid}");
}
