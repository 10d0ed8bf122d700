//! Namespaces by name, made and removed with the `ip` program.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use tidegate_sys::tun::Namespace;

use crate::LabError;

/// Where named namespaces are bound.
const FOLDER: &str = "/run/netns";
/// How names of labs without a prefix of their own begin; the process id follows.
const PREFIX: &str = "tglab-";

/// A prefix that no other lab on this machine has.
pub(crate) fn unique_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A namespace that is removed when dropped.
#[derive(Debug)]
pub(crate) struct OwnedNamespace {
    pub(crate) name: String,
    pub(crate) namespace: Namespace,
}

impl OwnedNamespace {
    pub(crate) fn create(name: String) -> Result<Self, LabError> {
        ip(&["netns", "add", &name], "")?;
        match Namespace::open(&Path::new(FOLDER).join(&name)) {
            Ok(namespace) => Ok(Self { name, namespace }),
            Err(error) => {
                remove(&name)?;
                Err(error.into())
            }
        }
    }

    /// Runs lines of `ip` commands inside.
    pub(crate) fn ip_batch(&self, lines: &str) -> Result<(), LabError> {
        ip(&["-n", &self.name, "-batch", "-"], lines)
    }

    /// Runs a closure on a thread inside; sockets and devices that it makes stay inside.
    pub(crate) fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| self.namespace.enter().map(|()| work()));
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for OwnedNamespace {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.name) {
            eprintln!(
                "namespace {} stays behind, remove it with `ip netns del`: {error}",
                self.name
            );
        }
    }
}

fn remove(name: &str) -> Result<(), LabError> {
    ip(&["netns", "del", name], "")
}

fn ip(arguments: &[&str], input: &str) -> Result<(), LabError> {
    let command = || format!("ip {}", arguments.join(" "));
    let start = |source| LabError::Ip { command: command(), source };
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(mut stdin) = child.stdin.take() {
        io::Write::write_all(&mut stdin, input.as_bytes()).map_err(start)?;
    }
    let output = child.wait_with_output().map_err(start)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::IpRefused { command: command(), said })
}

/// Removes namespaces of labs whose process is gone, and says which.
///
/// # Errors
/// [`SweepError`] if the namespaces cannot be listed or one cannot be removed.
pub fn sweep() -> Result<Vec<String>, SweepError> {
    remove_all(|name| {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let process = process.and_then(|process| process.parse::<u32>().ok());
        process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists())
    })
}

/// Removes every namespace whose name begins with `prefix`, even if it is in use, and says which.
///
/// # Errors
/// [`SweepError`] if the prefix is empty, the namespaces cannot be listed, or one cannot be removed.
pub fn sweep_prefix(prefix: &str) -> Result<Vec<String>, SweepError> {
    if prefix.is_empty() {
        return Err(SweepError::Prefix);
    }
    remove_all(|name| name.starts_with(prefix))
}

fn remove_all(chosen: impl Fn(&str) -> bool) -> Result<Vec<String>, SweepError> {
    let list = |source| SweepError::List { path: FOLDER.into(), source };
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(list(error)),
    };
    let mut removed = Vec::new();
    for entry in entries {
        let name = entry.map_err(list)?.file_name().to_string_lossy().into_owned();
        if chosen(&name) {
            remove(&name).map_err(|source| SweepError::Remove { source: Box::new(source) })?;
            removed.push(name);
        }
    }
    Ok(removed)
}

/// Why namespaces were not removed.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// An empty prefix would mean every namespace of the machine.
    #[error("an empty prefix would remove every namespace of this machine")]
    Prefix,
    /// The namespaces cannot be listed.
    #[error("cannot list {path}", path = path.display())]
    List {
        /// Their folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// One of them cannot be removed.
    #[error("cannot remove a namespace")]
    Remove {
        /// Why.
        source: Box<LabError>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_unique_and_never_empty() {
        assert_ne!(unique_prefix(), unique_prefix());
        assert!(matches!(sweep_prefix(""), Err(SweepError::Prefix)));
    }
}
