//! Many datagrams by one request of io_uring, each in a buffer of a ring.

use std::{
    io,
    mem::{ManuallyDrop, zeroed},
    net::UdpSocket,
    os::fd::AsRawFd as _,
    time::Duration,
};

use io_uring::{IoUring, cqueue, opcode, types};

use super::{
    Datagram,
    message::{CONTROL_BYTES, NAME_BYTES, Sink, address, is_of_others, segment_bytes},
};
use crate::pool::Pool;

/// Buffers of the ring where each is of one datagram, and where each may hold many that were joined; powers of two.
const BUFFERS: u16 = 1024;
const BUFFERS_JOINED: u16 = 256;
/// Bytes in a buffer before name, control message and payload (`struct io_uring_recvmsg_out`).
const HEADER_BYTES: usize = 16;
/// So many datagrams at once say that many more come: then it is waited for several, so that waking is paid once for them.
const MANY: usize = 16;
/// Datagrams to wait for then, and for how long at most; the system's timers may take as long again.
const TOGETHER: usize = 64;
const TOGETHER_WAIT: Duration = Duration::from_micros(50);
/// The group of our buffers; the ring has no other.
const GROUP: u16 = 0;
const RECEIVE: u64 = 1;
const CANCEL: u64 = 2;

/// A ring, its request and its buffers.
pub(super) struct Uring {
    ring: ManuallyDrop<IoUring>,
    /// Says how much of a buffer is for name and control message; the kernel copies it when the request is made. None where a
    /// buffer holds the payload alone.
    header: Option<Box<libc::msghdr>>,
    socket: types::Fd,
    pool: ManuallyDrop<Pool>,
    /// Whether the request is with the kernel.
    is_armed: bool,
    /// Whether many came at once the last time.
    are_many: bool,
    /// A completion that came while the ring was made.
    first: Option<cqueue::Entry>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uring({:?}, armed: {})", *self.pool, self.is_armed)
    }
}

impl Uring {
    pub(super) fn new(
        socket: &UdpSocket,
        payload_bytes: usize,
        joins: bool,
        has_heads: bool,
    ) -> io::Result<Self> {
        let count = if joins { BUFFERS_JOINED } else { BUFFERS };
        // One thread makes requests and takes completions: the kernel then works when it is entered, and interrupts no
        // thread.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(2 * u32::from(BUFFERS))
            .build(8)?;
        // Of a payload alone, one more byte shows what was longer.
        let head_bytes = if has_heads { HEADER_BYTES + NAME_BYTES + CONTROL_BYTES } else { 1 };
        let buffer_bytes = (head_bytes + payload_bytes).next_multiple_of(64);
        let mut pool = Pool::new(count, buffer_bytes)?;
        let header = has_heads.then(|| {
            // SAFETY: msghdr is plain data for which all zeros is a value.
            let mut header: Box<libc::msghdr> = Box::new(unsafe { zeroed() });
            header.msg_namelen = NAME_BYTES as libc::socklen_t;
            header.msg_controllen = if joins { CONTROL_BYTES as _ } else { 0 };
            header
        });
        // SAFETY: the pool is unmapped only after the ring has ended its request and is closed, or never.
        unsafe { pool.register(&ring, GROUP)? };
        let mut uring = Self {
            ring: ManuallyDrop::new(ring),
            header,
            socket: types::Fd(socket.as_raw_fd()),
            pool: ManuallyDrop::new(pool),
            is_armed: false,
            are_many: false,
            first: None,
        };
        // Whether this kernel knows the request is seen now rather than later.
        uring.arm()?;
        uring.ring.submit()?;
        uring.first = uring.ring.completion().next();
        if uring.first.as_ref().is_some_and(|entry| entry.result() == -libc::EINVAL) {
            uring.is_armed = false;
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(uring)
    }

    pub(super) fn names_sources(&self) -> bool {
        self.header.is_some()
    }

    pub(super) fn receive<T: FnMut(Datagram<'_>) -> bool>(
        &mut self,
        wait: Duration,
        mut sink: Sink<'_, T>,
    ) -> io::Result<()> {
        let before = *sink.count;
        loop {
            if !self.is_armed {
                self.arm()?;
            }
            let is_empty = self.first.is_none() && self.ring.completion().is_empty();
            if is_empty && !self.enter(wait)? {
                return Ok(());
            }
            self.take(&mut sink)?;
            let count = *sink.count - before;
            self.are_many = count >= MANY;
            // That a request has ended, for want of a free buffer, says nothing of what waits in the socket.
            if count > 0 {
                return Ok(());
            }
        }
    }

    /// Gives out what has come.
    fn take<T: FnMut(Datagram<'_>) -> bool>(&mut self, sink: &mut Sink<'_, T>) -> io::Result<()> {
        let Self { ring, header, pool, is_armed, first, .. } = self;
        let mut failed = None;
        for entry in first.take().into_iter().chain(ring.completion()) {
            if entry.user_data() != RECEIVE {
                continue;
            }
            if !cqueue::more(entry.flags()) {
                *is_armed = false;
            }
            let Ok(bytes) = usize::try_from(entry.result()) else {
                let error = io::Error::from_raw_os_error(-entry.result());
                // Without a free buffer the request ends; it is made again once they are back.
                if entry.result() != -libc::ENOBUFS && !is_of_others(&error) {
                    failed = Some(error);
                }
                continue;
            };
            let goes_on = match cqueue::buffer_select(entry.flags()) {
                Some(buffer) => {
                    let goes_on = give(pool.held(buffer, bytes), header.as_deref(), sink);
                    pool.provide(buffer);
                    goes_on
                }
                // An empty datagram may come without a buffer where that would hold the payload alone.
                None if header.is_none() && bytes == 0 => sink.give(None, &[], None, false),
                None => continue,
            };
            if !goes_on {
                break;
            }
        }
        pool.publish();
        failed.map_or(Ok(()), Err)
    }

    /// Makes the request; it is with the kernel when that is entered next.
    fn arm(&mut self) -> io::Result<()> {
        let request = match &self.header {
            Some(header) => {
                opcode::RecvMsgMulti::new(self.socket, &raw const **header, GROUP).build()
            }
            None => opcode::RecvMulti::new(self.socket, GROUP).build(),
        };
        let request = request.user_data(RECEIVE);
        // SAFETY: `header` lives on the heap as long as the ring; the socket is open as long, for `Receiver` closes it after
        // this; the buffers that the kernel writes to are those provided.
        let pushed = unsafe { self.ring.submission().push(&request) };
        pushed.map_err(|_| io::Error::other("the ring has no room for a request"))?;
        self.is_armed = true;
        Ok(())
    }

    /// Waits for a completion, or for several first where many came before; false if there was none, or a signal came.
    fn enter(&mut self, wait: Duration) -> io::Result<bool> {
        if std::mem::take(&mut self.are_many) && self.wait(TOGETHER, wait.min(TOGETHER_WAIT))? {
            return Ok(true);
        }
        self.wait(1, wait)
    }

    fn wait(&mut self, count: usize, wait: Duration) -> io::Result<bool> {
        let wait = types::Timespec::from(wait);
        let arguments = types::SubmitArgs::new().timespec(&wait);
        match self.ring.submitter().submit_with_args(count, &arguments) {
            Ok(_) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {
                    Ok(!self.ring.completion().is_empty())
                }
                _ => Err(error),
            },
        }
    }

    /// Ends the request and gives out what came before that.
    pub(super) fn end<T: FnMut(Datagram<'_>) -> bool>(mut self, mut sink: Sink<'_, T>) {
        self.disarm(|header, pool, entry| {
            if let (Some(buffer), Ok(bytes)) =
                (cqueue::buffer_select(entry.flags()), usize::try_from(entry.result()))
            {
                give(pool.held(buffer, bytes), header, &mut sink);
            }
        });
    }

    /// Ends the request, and shows what has come; the kernel writes to no buffer any more if it is not armed then.
    fn disarm(&mut self, mut show: impl FnMut(Option<&libc::msghdr>, &Pool, &cqueue::Entry)) {
        let cancel = opcode::AsyncCancel::new(RECEIVE).build().user_data(CANCEL);
        // SAFETY: the request refers to no memory.
        if self.is_armed && unsafe { self.ring.submission().push(&cancel) }.is_err() {
            return;
        }
        for _ in 0..16 {
            while let Some(entry) = self.first.take().or_else(|| self.ring.completion().next()) {
                if entry.user_data() == RECEIVE {
                    show(self.header.as_deref(), &self.pool, &entry);
                    self.is_armed &= cqueue::more(entry.flags());
                }
            }
            if !self.is_armed || self.wait(1, Duration::from_millis(100)).is_err() {
                return;
            }
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.is_armed {
            self.disarm(|_, _, _| {});
        }
        let has_ended = !self.is_armed;
        // SAFETY: nothing is used any more after this.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if has_ended {
            // SAFETY: likewise; and no request is left that the kernel could write for.
            unsafe { ManuallyDrop::drop(&mut self.pool) };
        }
        // Else the memory stays: a leak is better than a write to memory that has another owner.
    }
}

/// Gives out what a buffer holds. Whether more is wanted.
#[inline]
fn give<T: FnMut(Datagram<'_>) -> bool>(
    held: &[u8],
    header: Option<&libc::msghdr>,
    sink: &mut Sink<'_, T>,
) -> bool {
    let Some(header) = header else { return sink.give(None, held, None, false) };
    let Ok(message) = types::RecvMsgOut::parse(held, header) else { return true };
    let Some(source) = address(message.name_data()) else { return true };
    let segment = segment_bytes(message.control_data());
    sink.give(Some(source), message.payload_data(), segment, message.is_payload_truncated())
}
