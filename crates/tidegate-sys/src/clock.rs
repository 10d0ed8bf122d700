//! Clocks of the kernel as plain nanoseconds.
//!
//! Cores read no clock: a shell reads one of these and passes the value on as `now`. The three clocks
//! differ in what moves them: the monotonic clock only ever runs forward, the realtime clock can be
//! set, a thread's CPU clock runs while that thread computes.
//!
//! Always true: reading a clock allocates nothing and makes no system call where the kernel maps the
//! clock into the process (it does for the first two on common machines).

use std::{fs, io};

/// Nanoseconds of `CLOCK_MONOTONIC`: since some point near the boot of the machine, never backwards.
///
/// Values of one boot can be compared between processes of one machine, never between machines.
pub fn monotonic_nanos() -> i64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of `CLOCK_REALTIME`: since the Unix epoch, stepped whenever someone sets the clock.
pub fn realtime_nanos() -> i64 {
    read(libc::CLOCK_REALTIME)
}

/// Nanoseconds of processor time that the calling thread has used.
pub fn thread_cpu_nanos() -> i64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds of processor time that a process and its threads, ended ones included, have used.
///
/// # Errors
/// There is no such process (`EINVAL` or `ESRCH`).
pub fn process_cpu_nanos(process: u32) -> io::Result<i64> {
    // The kernel's bound. A clock's number has no room for more, and would be that of another process.
    const PROCESSES_MAX: u32 = 1 << 22;
    if process >= PROCESSES_MAX {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let mut clock = 0;
    // SAFETY: `clock` is a valid clockid_t that may be written to for the length of this call.
    match unsafe { libc::clock_getcpuclockid(process as libc::pid_t, &raw mut clock) } {
        0 => try_read(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The random identity that the kernel gave itself at its boot.
///
/// Two readings are equal if and only if the machine has not restarted in between, which no clock
/// can tell.
///
/// # Errors
/// `/proc` is not mounted, or the kernel's text is no UUID (`InvalidData`).
pub fn boot_id() -> io::Result<[u8; 16]> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    parse_uuid(text.trim()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{path} holds no UUID: {text:?}"))
    })
}

fn read(clock: libc::clockid_t) -> i64 {
    try_read(clock).expect("this clock exists in every Linux that std supports")
}

fn try_read(clock: libc::clockid_t) -> io::Result<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that the kernel may write to for the length of this call.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Ok(time.tv_sec * 1_000_000_000 + time.tv_nsec),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads 32 hexadecimal digits in groups of 8-4-4-4-12.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<&str> = text.split('-').collect();
    if groups.iter().map(|group| group.len()).ne([8, 4, 4, 4, 12]) {
        return None;
    }
    let mut bytes = [0; 16];
    let mut digits = groups.iter().flat_map(|group| group.chars()).map(|c| c.to_digit(16));
    for byte in &mut bytes {
        *byte = u8::try_from(digits.next()?? * 16 + digits.next()??).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_clock_never_runs_backwards() {
        let times: Vec<i64> = (0..1000).map(|_| monotonic_nanos()).collect();
        assert!(times.is_sorted());
    }

    #[test]
    fn realtime_clock_counts_from_the_unix_epoch() {
        let std = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let ours = u128::try_from(realtime_nanos()).unwrap();
        assert!(ours.abs_diff(std) < 60_000_000_000, "{ours} against {std}");
    }

    #[test]
    fn thread_clock_counts_computing() {
        let before = thread_cpu_nanos();
        let mut sum = 0_u64;
        while thread_cpu_nanos() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(thread_cpu_nanos() > before);
    }

    #[test]
    fn a_process_has_used_what_its_threads_have() {
        let used = process_cpu_nanos(std::process::id()).unwrap();
        assert!(used >= thread_cpu_nanos() / 2 && used > 0);
        assert!(process_cpu_nanos(u32::MAX).is_err());
        assert!(process_cpu_nanos(i32::MAX as u32).is_err());
        assert!(process_cpu_nanos((1 << 22) - 1).is_err());
    }

    #[test]
    fn boot_id_is_the_same_all_through_a_boot() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }

    #[test]
    fn only_uuids_are_read() {
        let mut expected = [0_u8; 16];
        expected[0] = 0x1f;
        expected[15] = 0xa0;
        for (text, bytes) in [
            ("1f000000-0000-0000-0000-0000000000a0", Some(expected)),
            ("1f000000-0000-0000-0000-0000000000A0", Some(expected)),
            ("1f000000-0000-0000-0000-0000000000g0", None),
            ("1f000000-0000-0000-0000-0000000000a", None),
            ("1f0000000000000000000000000000a0", None),
            ("1f000000-0000-0000-0000-é000000000a", None),
            ("", None),
        ] {
            assert_eq!(parse_uuid(text), bytes, "{text:?}");
        }
    }
}
