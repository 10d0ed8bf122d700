//! Terminals that people type secrets into.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

/// A terminal that does not show what is typed, until this is dropped.
#[derive(Debug)]
pub struct Silenced {
    terminal: OwnedFd,
    before: libc::termios,
}

/// Has a terminal not show what is typed, but for the ends of lines (termios(3): `ECHO` off, `ECHONL` on).
///
/// # Errors
/// The system's: `ENOTTY` for what is no terminal.
pub fn silence(terminal: impl AsFd) -> io::Result<Silenced> {
    let terminal = terminal.as_fd().try_clone_to_owned()?;
    let before = settings(terminal.as_fd())?;
    let mut silent = before;
    silent.c_lflag &= !libc::ECHO;
    silent.c_lflag |= libc::ECHONL;
    set(terminal.as_fd(), &silent)?;
    Ok(Silenced { terminal, before })
}

impl Drop for Silenced {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _ = set(self.terminal.as_fd(), &self.before);
    }
}

fn settings(terminal: BorrowedFd<'_>) -> io::Result<libc::termios> {
    let mut found = MaybeUninit::uninit();
    // SAFETY: the descriptor is open while it is borrowed, and `found` has room for one termios.
    match unsafe { libc::tcgetattr(terminal.as_raw_fd(), found.as_mut_ptr()) } {
        // SAFETY: the call succeeded and so has filled it.
        0 => Ok(unsafe { found.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(terminal: BorrowedFd<'_>, new: &libc::termios) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed, and `new` is a whole termios. Input typed before is kept.
    match unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSADRAIN, new) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::fd::FromRawFd as _, ptr};

    use super::*;

    /// The two ends of a new pseudo-terminal.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let (mut near, mut far) = (-1, -1);
        // SAFETY: both have room for a descriptor; the other arguments may be null.
        let made = unsafe {
            libc::openpty(&raw mut near, &raw mut far, ptr::null_mut(), ptr::null(), ptr::null())
        };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        // SAFETY: both were just opened and have no other owner.
        unsafe { (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far)) }
    }

    #[test]
    fn a_terminal_is_silent_until_it_is_let_go() {
        let (_near, far) = terminal();
        let flags = || settings(far.as_fd()).unwrap().c_lflag & (libc::ECHO | libc::ECHONL);
        let before = flags();
        assert_ne!(before & libc::ECHO, 0, "a new one shows what is typed");
        let silenced = silence(&far).unwrap();
        assert_eq!(flags(), libc::ECHONL);
        drop(silenced);
        assert_eq!(flags(), before);
    }

    #[test]
    fn a_missing_terminal_is_reported() {
        let file = fs::File::open("/dev/null").unwrap();
        assert_eq!(silence(&file).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}
