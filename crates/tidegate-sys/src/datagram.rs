//! Datagrams of a UDP socket, many for one call of the kernel.
//!
//! ```text
//!  socket ─▶ io_uring: one request, a buffer of a ring for each datagram ─┐
//!         ─▶ recvmmsg: 64 at a call                                       ├─▶ Datagram { source, bytes }
//!         ─▶ recvfrom: one at a call                                      ┘
//! ```
//!
//! A system call costs about as much as what the kernel does for a small datagram. With a multishot request of io_uring and a ring
//! of provided buffers (kernel 6.1 and later) it is paid once for all that have come; `recvmmsg` pays it once for 64, and copies
//! more headers. Where the kernel joins datagrams of one sender (UDP_GRO) they are taken apart again here.
//!
//! Always true: each result is one datagram as it was sent, or says that it was cut; all buffers are made at the beginning.

mod batch;
mod message;
mod uring;

#[cfg(test)]
mod tests;

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    time::Duration,
};

use self::{batch::Batch, uring::Uring};

/// Longest payload of a datagram, and of several that the kernel joined.
pub const DATAGRAM_BYTES_MAX: usize = 65_535;

/// How datagrams are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The first of the others that the system has.
    #[default]
    Auto,
    /// A multishot request of io_uring.
    Uring,
    /// `recvmmsg`.
    Batch,
    /// `recvfrom`, without what is Linux's alone.
    Plain,
}

/// Options of a [`Receiver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// How it receives.
    pub method: Method,
    /// Longest payload, 1 to [`DATAGRAM_BYTES_MAX`]; longer ones are cut, and say so.
    pub bytes_max: usize,
    /// Whether the kernel may join datagrams of one sender. Cheaper by far where senders send many at once; buffers take
    /// 64 KiB each then, 17 MB together.
    pub joins: bool,
    /// Whether each datagram comes with its sender. By io_uring a datagram costs less without senders, and none are joined; where some
    /// are, and by other methods, the sender is given all the same.
    pub names_sources: bool,
}

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Its sender; may be none without [`ReceiverOptions::names_sources`].
    pub source: Option<SocketAddr>,
    /// Its payload, or the beginning of it.
    pub bytes: &'a [u8],
    /// Whether it was longer than [`ReceiverOptions::bytes_max`].
    pub is_cut: bool,
}

/// Receives the datagrams of a socket. It belongs to the thread that made it.
#[derive(Debug)]
pub struct Receiver {
    // Before the socket, so that nothing is received any more when that is closed.
    inner: Inner,
    socket: UdpSocket,
    bytes_max: usize,
}

#[derive(Debug)]
enum Inner {
    Uring(Box<Uring>),
    Batch(Box<Batch>),
    Plain(Vec<u8>),
}

impl Receiver {
    /// Receives from `socket` on this thread.
    ///
    /// # Errors
    /// The system's: of [`Method::Uring`] if there is no io_uring of kernel 6.1, or it is not permitted. [`Method::Auto`] tries
    /// the next one then. [`io::ErrorKind::InvalidInput`] if `bytes_max` is out of its range.
    pub fn new(socket: UdpSocket, options: ReceiverOptions) -> io::Result<Self> {
        let bytes_max = options.bytes_max;
        if !(1..=DATAGRAM_BYTES_MAX).contains(&bytes_max) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        socket.set_nonblocking(true)?;
        let joins = options.joins && options.method != Method::Plain;
        message::set_joins(socket.as_fd(), joins)?;
        let buffer_bytes = if joins { DATAGRAM_BYTES_MAX } else { bytes_max };
        let has_heads = joins || options.names_sources;
        let uring = || {
            let uring = Uring::new(&socket, buffer_bytes, joins, has_heads)?;
            Ok::<_, io::Error>(Inner::Uring(Box::new(uring)))
        };
        let batch = || Inner::Batch(Box::new(Batch::new(buffer_bytes)));
        let inner = match options.method {
            Method::Auto => uring().unwrap_or_else(|_| batch()),
            Method::Uring => uring()?,
            Method::Batch => batch(),
            // One more byte shows what was longer.
            Method::Plain => Inner::Plain(vec![0; bytes_max + 1]),
        };
        Ok(Self { inner, socket, bytes_max })
    }

    /// Which method is in use.
    pub fn method(&self) -> Method {
        match self.inner {
            Inner::Uring(_) => Method::Uring,
            Inner::Batch(_) => Method::Batch,
            Inner::Plain(_) => Method::Plain,
        }
    }

    /// Whether it tells who sent what.
    pub fn names_sources(&self) -> bool {
        match &self.inner {
            Inner::Uring(uring) => uring.names_sources(),
            Inner::Batch(_) | Inner::Plain(_) => true,
        }
    }

    /// Tells who sent what from now on, by another method if it must. Datagrams that have come and were not taken are given to
    /// `take`, without senders yet.
    #[must_use]
    pub fn naming_sources(self, mut take: impl FnMut(Datagram<'_>)) -> Self {
        let Self { inner, socket, bytes_max } = self;
        let inner = match inner {
            Inner::Uring(uring) if !uring.names_sources() => {
                let (mut count, mut take) = (0, |datagram: Datagram<'_>| {
                    take(datagram);
                    true
                });
                uring.end(message::Sink { bytes_max, count: &mut count, take: &mut take });
                match Uring::new(&socket, bytes_max, false, true) {
                    Ok(uring) => Inner::Uring(Box::new(uring)),
                    Err(_) => Inner::Batch(Box::new(Batch::new(bytes_max))),
                }
            }
            other => other,
        };
        Self { inner, socket, bytes_max }
    }

    /// Waits for datagrams, `wait` at most (where many came before, 50 us more), and gives those that are there to `take`, until it returns false. Returns how many.
    ///
    /// # Errors
    /// The system's. Those of earlier answers, such as a port without a listener, are passed over.
    pub fn receive(
        &mut self,
        wait: Duration,
        mut take: impl FnMut(Datagram<'_>) -> bool,
    ) -> io::Result<usize> {
        let bytes_max = self.bytes_max;
        let mut count = 0;
        let received = message::Sink { bytes_max, count: &mut count, take: &mut take };
        match &mut self.inner {
            Inner::Uring(uring) => uring.receive(wait, received)?,
            Inner::Batch(batch) => batch.receive(self.socket.as_fd(), wait, received)?,
            Inner::Plain(buffer) => plain(&self.socket, buffer, wait, received)?,
        }
        Ok(count)
    }

    /// Datagrams that the kernel dropped because the socket's buffer was full, or because they were damaged; since the
    /// socket was made, modulo 2³².
    ///
    /// # Errors
    /// The system's, on kernels before 4.12.
    pub fn dropped(&self) -> io::Result<u32> {
        message::dropped(self.socket.as_fd())
    }

    /// Its socket.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}

impl Method {
    /// Each with its word.
    pub const WORDS: &[(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("io-uring", Self::Uring),
        ("recvmmsg", Self::Batch),
        ("plain", Self::Plain),
    ];

    /// Its word in configuration.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, method)| *method == self).expect("each has its word").0
    }
}

/// Most datagrams of one call that takes them one by one.
const PLAIN_MAX: usize = 64;

fn plain<T: FnMut(Datagram<'_>) -> bool>(
    socket: &UdpSocket,
    buffer: &mut [u8],
    wait: Duration,
    mut sink: message::Sink<'_, T>,
) -> io::Result<()> {
    for turn in 0..PLAIN_MAX {
        match socket.recv_from(buffer) {
            Ok((count, source)) => {
                if !sink.give(Some(source), &buffer[..count], None, false) {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if turn > 0 || !readable(socket.as_fd(), wait)? {
                    return Ok(());
                }
            }
            Err(error) if message::is_of_others(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until there is something to read; false if there was nothing for that long, or a signal came.
fn readable(socket: BorrowedFd<'_>, wait: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // Rounded up: a wait of less than a millisecond is one.
    let millis = i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // SAFETY: the kernel reads and writes one pollfd, which `poll` is, during this call only.
    let ready = unsafe { libc::poll(&raw mut poll, 1, millis) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

/// Gives the socket a receive buffer of `bytes`, beyond the system's limit where this process may. Returns what it has, which the
/// kernel doubles for its own book-keeping.
///
/// # Errors
/// The system's.
pub fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    message::set_receive_buffer(socket, bytes)
}

/// Has the kernel cut each payload that is sent into datagrams of `bytes` (UDP_SEGMENT); 0 for none.
///
/// # Errors
/// The system's, on kernels before 4.18.
pub fn set_segment(socket: BorrowedFd<'_>, bytes: u16) -> io::Result<()> {
    message::set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(bytes))
}
