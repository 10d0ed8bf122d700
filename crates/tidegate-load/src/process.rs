//! Processor time and memory that another process has used, from its number.
//!
//! Always true: nothing here needs more than the right to read `/proc/PID`, resetting the peak aside, which needs that of the
//! process's owner.

use std::{fs, io, time::Duration};

/// Processor time and memory that a process has used up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// Processor time of all its threads, ended ones included, user and system together.
    pub cpu: Duration,
    /// Memory that it holds now, in bytes.
    pub resident_bytes: u64,
    /// Most that it held since its start or since [`reset_peak`], in bytes.
    pub resident_peak_bytes: u64,
}

/// The processor time and memory that `process` has used so far.
///
/// The time comes from the process's own clock, in nanoseconds; where the kernel does not give it, from `/proc/PID/stat`, in
/// ticks of 10 ms.
///
/// # Errors
/// There is no such process, or it may not be looked at.
pub fn usage(process: u32) -> Result<Usage, ProcessError> {
    let failed = |source| ProcessError { process, source };
    let status = fs::read_to_string(format!("/proc/{process}/status")).map_err(failed)?;
    let cpu = match tidegate_sys::clock::process_cpu_nanos(process) {
        Ok(nanos) => Duration::from_nanos(nanos.unsigned_abs()),
        Err(_) => {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).map_err(failed)?;
            ticks(&stat).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?
        }
    };
    Ok(Usage {
        cpu,
        resident_bytes: kibibytes(&status, "VmRSS:").unwrap_or(0) * 1024,
        resident_peak_bytes: kibibytes(&status, "VmHWM:").unwrap_or(0) * 1024,
    })
}

/// Lets the peak of `process` begin again at what it holds now.
///
/// # Errors
/// There is no such process, or it belongs to another user.
pub fn reset_peak(process: u32) -> Result<(), ProcessError> {
    fs::write(format!("/proc/{process}/clear_refs"), "5")
        .map_err(|source| ProcessError { process, source })
}

/// User and system time of `/proc/PID/stat`, fields 14 and 15. The second field is the program's name in parentheses, which may
/// hold spaces and parentheses itself.
fn ticks(stat: &str) -> Option<Duration> {
    const TICK: Duration = Duration::from_millis(10); // USER_HZ is 100 on every Linux that Rust supports
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * user.checked_add(system)?)
}

fn kibibytes(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// A process that cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[error("process {process} cannot be inspected")]
pub struct ProcessError {
    /// Its number.
    pub process: u32,
    /// The system's reason.
    #[source]
    pub source: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let before = usage(std::process::id()).unwrap();
        let mut kept = vec![1_u8; 8 << 20];
        for round in 0..200_u32 {
            kept.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3) ^ (round as u8));
        }
        let after = usage(std::process::id()).unwrap();
        assert!(kept.iter().any(|&byte| byte != 0));
        assert!(after.cpu > before.cpu);
        assert!(after.resident_bytes > 1 << 20);
        assert!(after.resident_peak_bytes >= after.resident_bytes);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let error = usage(u32::MAX).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound, "{error}");
    }

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 1 0 9";
        assert_eq!(ticks(stat), Some(Duration::from_secs(3)));
        assert_eq!(ticks("7 (x) S 1"), None);
        assert_eq!(kibibytes("Name:\tx\nVmHWM:\t   12 kB\n", "VmHWM:"), Some(12));
    }
}
