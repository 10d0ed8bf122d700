//! Frames through NATS: a server, publishers and subscribers, each where it is put, and the time from publish to callback.
//!
//! ```text
//!  Place cam1: nats-frames publish ──▶ Place edge: nats-server ──▶ Place app: nats-frames subscribe
//! ```
//!
//! A [`Place`] is a prefix such as `ip netns exec cam1`, so that the same run goes over loopback or over an emulated medium.
//!
//! Always true: the server ends with its [`NatsBench`]; a program that fails fails the run.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};

/// Where a program runs: the words before its own, none for here.
#[derive(Clone, Debug, Default)]
pub struct Place(pub Vec<String>);

impl Place {
    fn command(&self, program: &Path) -> Command {
        match self.0.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        }
    }
}

/// The frames that a camera sends.
#[derive(Clone, Debug)]
pub enum Frames {
    /// The JPEG files of a folder, in turn.
    Folder(PathBuf),
    /// Frames of this many bytes.
    Bytes(usize),
}

/// One publisher.
#[derive(Clone, Debug)]
pub struct Camera {
    /// Where it runs.
    pub place: Place,
    /// The subject that it publishes to.
    pub subject: String,
    /// Its frames.
    pub frames: Frames,
    /// Frames per second.
    pub fps: f64,
}

/// The fate of one camera's frames.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Frames that were published.
    pub sent: usize,
    /// Sequence number and milliseconds from publish to callback, by subscriber.
    pub by_subscriber: Vec<Vec<(u64, f64)>>,
}

impl Received {
    /// All latencies, in milliseconds.
    pub fn latencies_ms(&self) -> impl Iterator<Item = f64> + '_ {
        self.by_subscriber.iter().flatten().map(|(_, millis)| *millis)
    }
}

/// A server of its own.
pub struct NatsBench {
    script: Child,
    /// The script ends the server when this is closed.
    until: Option<ChildStdin>,
    url: String,
    program: PathBuf,
    version: String,
}

impl NatsBench {
    /// Starts a server at `place`, listening on `address`.
    ///
    /// # Errors
    /// The script that starts it has said why on stderr.
    pub fn start(root: &Path, place: &Place, address: &str) -> anyhow::Result<Self> {
        let version = std::fs::read_to_string(root.join("bench/peers/nats/SERVER_VERSION"))
            .context("reading the version of the NATS server")?;
        let mut script = place
            .command(&root.join("scripts/with-nats"))
            .args(["--host", address, "sh", "-c"])
            .arg("echo \"$NATS_URL\"; echo \"$NATS_FRAMES\"; exec cat >/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting scripts/with-nats")?;
        let until = script.stdin.take();
        let mut told =
            BufReader::new(script.stdout.take().context("the script's output is piped")?).lines();
        let mut line =
            || Some(told.next()?.ok()?.trim().to_owned()).filter(|line| !line.is_empty());
        let (Some(url), Some(program)) = (line(), line()) else {
            drop(until);
            let status = script.wait().context("waiting for scripts/with-nats")?;
            bail!("scripts/with-nats started no server, {status}");
        };
        Ok(Self { script, until, url, program: program.into(), version: version.trim().to_owned() })
    }

    /// The server's version.
    pub fn server_version(&self) -> &str {
        &self.version
    }

    /// Lets all cameras publish for `seconds` to `subscribers` subscribers each, which run at `place`.
    ///
    /// # Errors
    /// A program of the run failed, or wrote samples that cannot be read.
    pub fn run(
        &self,
        place: &Place,
        cameras: &[Camera],
        subscribers: usize,
        seconds: f64,
    ) -> anyhow::Result<Vec<Received>> {
        let folder = tempfile::tempdir().context("making a folder for the samples")?;
        let file = |what: &str, index: usize| folder.path().join(format!("{what}-{index}.csv"));
        let mut running = Running::default();
        for (index, camera) in cameras.iter().enumerate() {
            let mut subscriber = place.command(&self.program);
            // Two seconds beyond the last frame: one that has not come by then is lost.
            subscriber.args(["subscribe", "--url", &self.url, "--subject", &camera.subject]);
            subscriber.args(["--subscribers", &subscribers.to_string()]);
            subscriber.args(["--seconds", &(seconds + 2.0).to_string()]);
            subscriber.args(["--csv", &argument(&file("received", index))]).stderr(Stdio::piped());
            running.start_subscriber(&mut subscriber)?;
        }
        for (index, camera) in cameras.iter().enumerate() {
            let mut publisher = camera.place.command(&self.program);
            publisher.args(["publish", "--url", &self.url, "--subject", &camera.subject]);
            publisher.args(["--fps", &camera.fps.to_string(), "--seconds", &seconds.to_string()]);
            publisher.args(["--csv", &argument(&file("sent", index))]);
            match &camera.frames {
                Frames::Folder(folder) => publisher.args(["--frames", &argument(folder)]),
                Frames::Bytes(bytes) => publisher.args(["--bytes", &bytes.to_string()]),
            };
            running.0.push(publisher.spawn().context("starting a publisher")?);
        }
        running.finish()?;
        (0..cameras.len())
            .map(|index| {
                let sent = read(&file("sent", index))?.lines().skip(1).count();
                let by_subscriber = received(&read(&file("received", index))?, subscribers)?;
                Ok(Received { sent, by_subscriber })
            })
            .collect()
    }
}

impl Drop for NatsBench {
    fn drop(&mut self) {
        drop(self.until.take());
        if let Err(error) = self.script.wait() {
            eprintln!("bench-frames: scripts/with-nats cannot be waited for: {error}");
        }
    }
}

/// Programs of one run, which end with it.
#[derive(Default)]
struct Running(Vec<Child>);

impl Running {
    /// Starts a subscriber and waits for it to have subscribed.
    fn start_subscriber(&mut self, command: &mut Command) -> anyhow::Result<()> {
        let mut child = command.spawn().context("starting a subscriber")?;
        let said = child.stderr.take().context("the subscriber's messages are piped")?;
        self.0.push(child);
        let mut said = BufReader::new(said);
        let mut line = String::new();
        said.read_line(&mut line).context("reading the subscriber's messages")?;
        ensure!(line.trim() == "ready", "the subscriber says: {}", line.trim());
        // Keeps the pipe open and empty, so that a later message does not block or kill the subscriber.
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                eprintln!("{line}");
            }
        });
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        for child in &mut self.0 {
            let status = child.wait().context("waiting for a program of the run")?;
            ensure!(status.success(), "a program of the run ended with {status}");
        }
        self.0.clear();
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only what a failed run has left.
        for child in &mut self.0 {
            if child.kill().is_ok() {
                let _ = child.wait();
            }
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// Reads `subscriber,sequence,sent_ns,received_ns,bytes`.
fn received(csv: &str, subscribers: usize) -> anyhow::Result<Vec<Vec<(u64, f64)>>> {
    let mut by_subscriber = vec![Vec::new(); subscribers];
    for (number, line) in csv.lines().enumerate().skip(1) {
        let values: Result<Vec<i64>, _> = line.split(',').map(str::parse).collect();
        let values = values.with_context(|| format!("line {} is {line:?}", number + 1))?;
        let &[subscriber, sequence, sent, received, _] = &*values else {
            bail!("line {} has {} values, not 5", number + 1, values.len());
        };
        let frames =
            usize::try_from(subscriber).ok().and_then(|index| by_subscriber.get_mut(index));
        let frames =
            frames.with_context(|| format!("line {} names subscriber {subscriber}", number + 1))?;
        frames.push((u64::try_from(sequence)?, (received - sent) as f64 / 1e6));
    }
    Ok(by_subscriber)
}

/// A path as an argument.
fn argument(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_by_subscriber() {
        let csv = "subscriber,sequence,sent_ns,received_ns,bytes\n0,0,1000000,3500000,9\n1,0,1000000,2000000,9\n";
        assert_eq!(received(csv, 2).unwrap(), [vec![(0, 2.5)], vec![(0, 1.0)]]);
        for (wrong, said) in [
            ("h\n0,0,1\n", "line 2 has 3 values"),
            ("h\n0,x,1,2,3\n", "line 2 is"),
            ("h\n5,0,1,2,3\n", "line 2 names subscriber 5"),
        ] {
            assert!(received(wrong, 1).unwrap_err().to_string().contains(said), "{wrong}");
        }
    }
}
