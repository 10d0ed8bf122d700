//! The machine of the figures: without it a number cannot be compared with another.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

use serde::Serialize;

/// The machine and the checkout at the time of a bench. A fact that cannot be read is an empty string or zero, and says so in
/// the report by being so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// Kernel name and release.
    pub kernel: String,
    /// Name and version of the distribution.
    pub distribution: String,
    /// Default congestion control of TCP.
    pub tcp_congestion: String,
    /// Load averages over 1, 5 and 15 minutes when the bench began.
    pub load: [f64; 3],
    /// Revision of the checkout, with `-dirty` when tracked files differ from it.
    pub revision: String,
    /// Compiler.
    pub compiler: String,
    /// Whether this bench was built with optimization.
    pub optimized: bool,
}

impl Machine {
    /// Reads all of it now.
    #[must_use]
    pub fn read() -> Self {
        Self {
            processor: field(&text("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_bytes(&text("/proc/meminfo")).unwrap_or_default(),
            kernel: text("/proc/sys/kernel/ostype").trim().to_owned()
                + " "
                + text("/proc/sys/kernel/osrelease").trim(),
            distribution: pretty_name(&text("/etc/os-release")).unwrap_or_default(),
            tcp_congestion: text("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
            load: load(),
            revision: said("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
            compiler: said("rustc", &["--version"]),
            optimized: !cfg!(debug_assertions),
        }
    }
}

/// Load averages over 1, 5 and 15 minutes; zeros where the system does not tell.
#[must_use]
pub fn load() -> [f64; 3] {
    let mut averages = [0.0; 3];
    for (average, word) in averages.iter_mut().zip(text("/proc/loadavg").split_whitespace()) {
        *average = word.parse().unwrap_or_default();
    }
    averages
}

/// The folder above the working directory that holds the bench of that name.
///
/// # Errors
/// There is none: it was started outside of a checkout.
pub fn root(bench: &str) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the working directory is gone")?;
    let is_root = |folder: &&Path| folder.join("bench").join(bench).join("Cargo.toml").is_file();
    let found = here.ancestors().find(is_root).map(Path::to_owned);
    found.with_context(|| {
        format!("run bench-{bench} within the checkout: it needs bench/peers and scripts")
    })
}

/// First line of what a program says about itself, such as its version; empty when it cannot be run.
#[must_use]
pub fn said(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        return String::new();
    };
    let out = String::from_utf8_lossy(&output.stdout);
    out.lines().next().unwrap_or_default().trim().to_owned()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field(lines: &str, key: &str) -> Option<String> {
    lines.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kibibytes: u64 = field(meminfo, "MemTotal")?.strip_suffix(" kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_kernels_lines() {
        assert_eq!(
            field("processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\n", "model name").as_deref(),
            Some("Some CPU @ 2.00GHz")
        );
        assert_eq!(memory_bytes("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16_777_216));
        assert_eq!(memory_bytes("MemTotal: many\n"), None);
        assert_eq!(
            pretty_name("ID=debian\nPRETTY_NAME=\"Debian 12\"\n").as_deref(),
            Some("Debian 12")
        );
    }

    #[test]
    fn a_program_that_is_missing_says_nothing() {
        assert_eq!(said("tidegate-no-such-program", &[]), "");
    }

    #[test]
    fn this_machine_has_cores() {
        assert!(Machine::read().cores > 0);
    }
}
