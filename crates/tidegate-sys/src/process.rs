//! The process as a whole.

use std::io;

/// Asks a process to end (SIGTERM).
///
/// # Errors
/// There is no such process, or it belongs to another user.
pub fn terminate(process: u32) -> io::Result<()> {
    let process = libc::pid_t::try_from(process).map_err(|_| io::ErrorKind::InvalidInput)?;
    // 0 and below stand for groups of processes.
    if process <= 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: kill(2) touches no memory of ours.
    match unsafe { libc::kill(process, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps the memory of this process from disks and from other processes of its user: no core dump is written or handed to a
/// helper, and no process without privileges may attach to it (prctl(2), `PR_SET_DUMPABLE`). Programs that it starts are as
/// usual again, but for the size of their core dumps, which stays 0.
///
/// # Errors
/// The kernel's; it refuses neither of the two by its documentation.
pub fn keep_memory_private() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `none` is a valid rlimit and lives through the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let off: libc::c_ulong = 0;
    // SAFETY: this option takes one integer and touches no memory of ours.
    match unsafe { libc::prctl(libc::PR_SET_DUMPABLE, off) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
