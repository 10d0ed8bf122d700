//! TUN devices and network namespaces.
//!
//! A TUN device is the end of a network that a program emulates: packets that a node sends there are read here,
//! one IP packet at a time, and packets written here reach the node. A device is made in the network namespace
//! of the thread that opens it, so a thread that has entered a namespace needs no device to be moved.
//!
//! Always true: a device vanishes with its [`Tun`]; the kernel segments before the device, since
//! no offload is ever announced, so each read is one packet of at most the device's MTU.

use std::{
    fs::File,
    io,
    marker::PhantomData,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// The device that TUN devices are made through.
pub const TUN_PATH: &str = "/dev/net/tun";

/// A TUN device of IP packets without a header of its own, nonblocking.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
}

impl Tun {
    /// Makes a device in the calling thread's network namespace. It is down and has no address.
    ///
    /// # Errors
    /// [`TunError`], with nothing left behind.
    pub fn open(name: &str) -> Result<Self, TunError> {
        let mut request = name_request(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: the path is a C string and `open` keeps no reference to it.
        let fd = unsafe { libc::open(c"/dev/net/tun".as_ptr(), flags) };
        if fd < 0 {
            return Err(TunError::Unavailable { source: io::Error::last_os_error() });
        }
        // SAFETY: `fd` was just opened and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is, during this call only.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } != 0 {
            let source = io::Error::last_os_error();
            return Err(TunError::Create { name: name.into(), source });
        }
        Ok(Self { fd, name: name.into() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads one packet into `buffer`, its length, or `None` if there is none now. A packet longer than
    /// the buffer is cut to it.
    ///
    /// # Errors
    /// As the kernel says; `EBADFD` after the device was deleted from outside.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`, borrowed for the call.
            let read = unsafe {
                libc::read(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len())
            };
            match usize::try_from(read) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// Writes one packet, which the node then receives.
    ///
    /// # Errors
    /// As the kernel says: `EIO` while the device is down, `EINVAL` for what is no IP packet.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        loop {
            // SAFETY: the kernel reads `packet.len()` bytes of `packet`, borrowed for the call.
            let written =
                unsafe { libc::write(self.fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) };
            if written >= 0 {
                return Ok(());
            }
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            }
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn name_request(name: &str) -> Result<libc::ifreq, TunError> {
    let valid = |byte: &u8| byte.is_ascii_graphic() && *byte != b'/' && *byte != b'%';
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || !name.as_bytes().iter().all(valid) {
        return Err(TunError::Name { name: name.into() });
    }
    // SAFETY: ifreq is plain data for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Opens the namespace bound to a path, as `ip netns add` binds it under `/run/netns`.
    ///
    /// # Errors
    /// [`TunError::Namespace`] if there is none.
    pub fn open(path: &Path) -> Result<Self, TunError> {
        let file =
            File::open(path).map_err(|source| TunError::Namespace { path: path.into(), source })?;
        Ok(Self { file })
    }

    /// Moves the calling thread into the namespace. There is no way back: use a thread for it.
    ///
    /// # Errors
    /// As the kernel says; `EPERM` without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> io::Result<()> {
        enter(self.file.as_raw_fd())
    }

    /// Has a command run in the namespace once it is spawned.
    ///
    /// # Errors
    /// As the kernel says when the namespace cannot be kept open for the command.
    pub fn attach(&self, command: &mut Command) -> io::Result<()> {
        let file = self.file.try_clone()?;
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(move || enter(file.as_raw_fd())) };
        Ok(())
    }
}

fn enter(fd: libc::c_int) -> io::Result<()> {
    // SAFETY: setns takes numbers and touches no memory of ours.
    match unsafe { libc::setns(fd, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Files that are waited for together.
#[derive(Debug)]
pub struct PollSet<'fd> {
    files: Vec<libc::pollfd>,
    borrowed: PhantomData<BorrowedFd<'fd>>,
}

impl<'fd> PollSet<'fd> {
    /// A set of the given files, which are then known by their index.
    pub fn new(files: impl IntoIterator<Item = BorrowedFd<'fd>>) -> Self {
        let file = |fd: BorrowedFd<'_>| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        Self { files: files.into_iter().map(file).collect(), borrowed: PhantomData }
    }

    /// Waits until a file is readable, has failed, or `timeout` has passed (`None`: no limit). A
    /// signal ends the wait early, with no file ready.
    ///
    /// # Errors
    /// As the kernel says.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        });
        let pointer = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = self.files.len() as libc::nfds_t;
        // SAFETY: `files` has `count` entries that the kernel may write, and `pointer` is null or
        // points to `timeout`, which outlives the call.
        let status =
            unsafe { libc::ppoll(self.files.as_mut_ptr(), count, pointer, std::ptr::null()) };
        if status >= 0 {
            return Ok(());
        }
        self.files.iter_mut().for_each(|file| file.revents = 0);
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        }
    }

    /// Whether the last wait found the `index`-th file readable or failed.
    pub fn is_ready(&self, index: usize) -> bool {
        self.files[index].revents != 0
    }
}

/// Why there is no device or namespace.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// A name that no device can have.
    #[error("{name:?} is not a device name: 1 to 15 visible characters without '/' and '%'")]
    Name {
        /// The name.
        name: String,
    },
    /// No TUN devices here.
    #[error("cannot open {TUN_PATH}")]
    Unavailable {
        /// Why.
        source: io::Error,
    },
    /// The device cannot be made.
    #[error("cannot make TUN device {name}")]
    Create {
        /// Its name.
        name: String,
        /// Why: `EPERM` without `CAP_NET_ADMIN`, `EBUSY` if the name is taken.
        source: io::Error,
    },
    /// No such namespace.
    #[error("cannot open network namespace {path}", path = path.display())]
    Namespace {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_device_can_have_are_refused() {
        for name in ["", "a-name-of-16-chr", "a b", "a/b", "tun%d", "caf\u{e9}"] {
            assert!(matches!(Tun::open(name), Err(TunError::Name { .. })), "{name:?}");
        }
    }

    #[test]
    fn a_poll_tells_which_file_is_readable() {
        let (a, b) = std::os::unix::net::UnixDatagram::pair().expect("sockets");
        let mut set = PollSet::new([a.as_fd(), b.as_fd()]);
        set.wait(Some(Duration::ZERO)).expect("polls");
        assert!(!set.is_ready(0) && !set.is_ready(1));
        a.send(b"x").expect("sends");
        set.wait(None).expect("polls");
        assert!(!set.is_ready(0) && set.is_ready(1));
    }

    #[test]
    fn a_device_vanishes_with_its_handle() {
        let exists = || Path::new("/sys/class/net/tg-sys-test").exists();
        match Tun::open("tg-sys-test") {
            Ok(tun) => {
                assert!(exists());
                assert_eq!(tun.read(&mut [0; 64]).ok(), Some(None), "nothing to read");
                assert!(tun.write(&[0; 20]).is_err(), "a device that is down takes nothing");
                drop(tun);
                assert!(!exists());
            }
            Err(error) => println!("skipped: {TUN_PATH} needs root: {error}"),
        }
    }
}
