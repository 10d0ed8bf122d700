//! Live control of a running lab over a Unix socket: one datagram of text each way.
//!
//! `set MEDIUM key=value …` changes a medium (see [`Change`]), `stat` asks for the table of counters.
//! The answer begins with `error: ` if the command was refused.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_message::Instant;
use tidegate_sim::medium::{Change, DirectionStats, Medium};

/// How long the client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest command and answer, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Sends one command to the lab whose control socket is `path` and returns its answer.
///
/// # Errors
/// [`ControlError`] if the lab cannot be reached, is silent for five seconds, or refuses.
pub fn ask(path: &Path, command: &str) -> Result<String, ControlError> {
    let own = std::env::temp_dir().join(format!("tidegate-netlab-{}.ctl", std::process::id()));
    let answer = exchange(path, &own, command);
    // The file is there unless binding it failed, which the answer tells.
    let _ = fs::remove_file(&own);
    let answer = answer.map_err(|source| ControlError::Io { path: path.into(), source })?;
    match answer.strip_prefix("error: ") {
        Some(said) => Err(ControlError::Refused { said: said.trim().into() }),
        None => Ok(answer),
    }
}

fn exchange(path: &Path, own: &Path, command: &str) -> io::Result<String> {
    let socket = UnixDatagram::bind(own)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(command.as_bytes(), path)?;
    let mut answer = vec![0; TEXT_BYTES_MAX];
    let len = socket.recv(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
}

/// Answers every command that waits at the socket, which must be nonblocking.
pub(crate) fn answer<T>(socket: &UnixDatagram, medium: &mut Medium<T>, now: Instant) {
    let mut text = vec![0; TEXT_BYTES_MAX];
    while let Ok((len, from)) = socket.recv_from(&mut text) {
        let answer = match execute(&String::from_utf8_lossy(&text[..len]), medium, now) {
            Ok(answer) => answer,
            Err(refusal) => format!("error: {refusal}\n"),
        };
        if let Some(path) = from.as_pathname() {
            // A client that has gone misses its answer.
            let _ = socket.send_to(answer.as_bytes(), path);
        }
    }
}

fn execute<T>(text: &str, medium: &mut Medium<T>, now: Instant) -> Result<String, String> {
    let (verb, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    match verb {
        "stat" => Ok(table(&medium.stats())),
        "set" => {
            let change: Change = rest.parse().map_err(|error| format!("{error}"))?;
            medium.apply(now, &change).map_err(|error| error.to_string())?;
            Ok("ok\n".into())
        }
        _ => Err(format!("unknown command {verb:?}; there are set and stat")),
    }
}

/// The counters of all directions as an aligned table.
pub(crate) fn table(directions: &[DirectionStats]) -> String {
    let mut text = format!(
        "{:<10} {:<10} {:<10} {:>12} {:>7} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}\n",
        "medium",
        "from",
        "to",
        "rate",
        "queued",
        "in",
        "out",
        "lost",
        "full",
        "givenup",
        "retries",
        "collis",
        "busy_ms"
    );
    for direction in directions {
        let counters = &direction.counters;
        writeln!(
            text,
            "{:<10} {:<10} {:<10} {:>12} {:>7} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9.1}",
            direction.medium,
            direction.from,
            direction.to,
            direction.rate.to_string(),
            direction.queued_packets,
            counters.in_packets,
            counters.out_packets,
            counters.dropped_loss,
            counters.dropped_queue,
            counters.dropped_retry,
            counters.retries,
            counters.collisions,
            counters.busy.as_secs_f64() * 1e3,
        )
        .expect("writing to a string succeeds");
    }
    text
}

/// Why a lab did not obey a command.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The lab cannot be reached or does not answer.
    #[error("no answer from {path}; is a lab with this control socket up?", path = path.display())]
    Io {
        /// The control socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The lab refused.
    #[error("refused: {said}")]
    Refused {
        /// Its words.
        said: String,
    },
}

#[cfg(test)]
mod tests {
    use tidegate_sim::medium::Scenario;

    use super::*;

    #[test]
    fn commands_are_executed_or_refused_with_the_reason() {
        let text = "[[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"12Mbit\"\n\
             port = [ { node = \"a\" }, { node = \"b\" } ]\n";
        let scenario = Scenario::parse(text, Path::new("")).unwrap();
        let mut medium: Medium<()> = Medium::new(&scenario, 0);
        let mut run = |text: &str| execute(text, &mut medium, Instant::EPOCH);
        assert_eq!(run("set wan0 rate=20Mbit loss=1%").as_deref(), Ok("ok\n"));
        assert!(run("stat\n").unwrap().contains("20Mbit"));
        for (text, expected) in [
            ("", "unknown command \"\"; there are set and stat"),
            ("reset", "unknown command \"reset\"; there are set and stat"),
            ("set wan1 factor=1", "no medium \"wan1\"; there are: wan0"),
        ] {
            assert_eq!(run(text), Err(expected.to_owned()), "{text:?}");
        }
    }
}
