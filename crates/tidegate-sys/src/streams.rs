//! Many stream sockets by one io_uring: multishot receive into provided buffers, and sending on from the same buffers.
//!
//! ```text
//!  socket ─▶ one request each, made once ─▶ a buffer of the pool ─▶ [`Event::Received`] ─▶ given back, or sent on and then given back
//! ```
//!
//! A request to receive stays with the kernel until the stream ends or the pool is empty; it is made again by itself in the second
//! case. All of a turn's requests to send reach the kernel in the system call that waits for the next turn.

use std::{
    io,
    mem::ManuallyDrop,
    net::TcpListener,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::pool::Pool;

/// The group of our buffers; the ring has no other.
const GROUP: u16 = 0;
const ENTRIES: u32 = 4096;
/// A request's number: its kind in the first byte, then a buffer where it has one, and the stream in the last four.
const ACCEPT: u64 = 1 << 56;
const RECEIVE: u64 = 2 << 56;
const SEND: u64 = 3 << 56;
const KIND: u64 = 0xff << 56;

/// Sockets, the ring that serves them and its buffers. Made and used on one thread.
#[derive(Debug)]
pub struct Streams {
    ring: ManuallyDrop<Ring>,
    /// Never unmapped: requests that a closed ring still ends may write to it for a while.
    pool: ManuallyDrop<Pool>,
    listener: TcpListener,
    sockets: Vec<OwnedFd>,
    /// Streams whose request found no free buffer.
    starved: Vec<u32>,
}

struct Ring(IoUring);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IoUring")
    }
}

/// Event of a turn.
#[derive(Debug)]
pub enum Event<'a> {
    /// A connection came; [`Streams::add`] takes it.
    Accepted(OwnedFd),
    /// Bytes of a stream, at most as many as a buffer holds.
    Received {
        /// The number that [`Streams::add`] gave.
        stream: u32,
        /// The bytes, in the order of the stream.
        bytes: &'a [u8],
    },
    /// The stream ended or broke.
    Ended(u32),
}

/// Next use of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Their buffer is free.
    Done,
    /// They are sent on to this stream from the buffer that they came in.
    SendTo(u32),
}

impl Streams {
    /// A ring that accepts from `listener` and has `buffers` of `buffer_bytes` each; the number is rounded up to a power of two.
    ///
    /// # Errors
    /// The system's: there is no io_uring of kernel 6.1 or later, or it is not permitted.
    pub fn new(listener: TcpListener, buffers: u16, buffer_bytes: usize) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(2 * ENTRIES)
            .build(ENTRIES)?;
        let count = buffers.clamp(1, 1 << 15).next_power_of_two();
        let mut pool = Pool::new(count, buffer_bytes)?;
        // SAFETY: the pool is never unmapped.
        unsafe { pool.register(&ring, GROUP)? };
        let mut streams = Self {
            ring: ManuallyDrop::new(Ring(ring)),
            pool: ManuallyDrop::new(pool),
            listener,
            sockets: Vec::new(),
            starved: Vec::new(),
        };
        streams.accept()?;
        Ok(streams)
    }

    /// Takes a connected stream socket and receives from it from now on. Its number is one more than that of the socket before.
    ///
    /// # Errors
    /// The system takes no more requests.
    pub fn add(&mut self, socket: OwnedFd) -> io::Result<u32> {
        let stream = u32::try_from(self.sockets.len())
            .map_err(|_| io::Error::other("more streams than a number counts"))?;
        self.sockets.push(socket);
        self.receive(stream)?;
        Ok(stream)
    }

    /// Waits for at least one event and shows all that came. For what was received `each` says what becomes of it; for other events
    /// its answer has no meaning. Streams that are to be sent to and that are unknown count as [`Then::Done`].
    ///
    /// # Errors
    /// The system's; an error of `each`, before which the turn ends.
    pub fn turn<E: From<io::Error>>(
        &mut self,
        mut each: impl FnMut(&mut Adder<'_>, Event<'_>) -> Result<Then, E>,
    ) -> Result<(), E> {
        loop {
            match self.ring.0.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut added = Vec::new();
        let mut has_free = false;
        loop {
            let next = self.ring.0.completion().next();
            let Some(entry) = next else { break };
            let stream = entry.user_data() as u32;
            let mut adder = Adder { known: self.sockets.len(), added: &mut added };
            match entry.user_data() & KIND {
                ACCEPT => {
                    if !cqueue::more(entry.flags()) {
                        self.accept()?;
                    }
                    if entry.result() < 0 {
                        return Err(io::Error::from_raw_os_error(-entry.result()).into());
                    }
                    // SAFETY: a completion of accept hands over a descriptor that has no other owner.
                    let socket = unsafe { OwnedFd::from_raw_fd(entry.result()) };
                    each(&mut adder, Event::Accepted(socket))?;
                }
                RECEIVE => {
                    let buffer = cqueue::buffer_select(entry.flags());
                    match (usize::try_from(entry.result()), buffer) {
                        (Ok(bytes), Some(buffer)) if bytes > 0 => {
                            let bytes = self.pool.held(buffer, bytes);
                            match each(&mut adder, Event::Received { stream, bytes })? {
                                Then::SendTo(to) if (to as usize) < self.sockets.len() => {
                                    let length = bytes.len();
                                    self.send(to, buffer, length)?;
                                }
                                _ => {
                                    self.pool.provide(buffer);
                                    has_free = true;
                                }
                            }
                            if !cqueue::more(entry.flags()) {
                                self.receive(stream)?;
                            }
                        }
                        _ if entry.result() == -libc::ENOBUFS => self.starved.push(stream),
                        (_, buffer) => {
                            buffer.into_iter().for_each(|buffer| self.pool.provide(buffer));
                            each(&mut adder, Event::Ended(stream))?;
                        }
                    }
                }
                // Whether the other end took it is seen by its own request.
                _ => {
                    self.pool.provide((entry.user_data() >> 32) as u16);
                    has_free = true;
                }
            }
            for socket in added.drain(..) {
                self.add(socket)?;
            }
        }
        self.pool.publish();
        if has_free {
            for stream in std::mem::take(&mut self.starved) {
                self.receive(stream)?;
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        let listener = types::Fd(self.listener.as_raw_fd());
        self.push(&opcode::AcceptMulti::new(listener).build().user_data(ACCEPT))
    }

    fn receive(&mut self, stream: u32) -> io::Result<()> {
        let socket = types::Fd(self.sockets[stream as usize].as_raw_fd());
        let request = opcode::RecvMulti::new(socket, GROUP).build();
        self.push(&request.user_data(RECEIVE | u64::from(stream)))
    }

    /// The buffer goes back to the pool when the system has taken all of it.
    fn send(&mut self, to: u32, buffer: u16, length: usize) -> io::Result<()> {
        let socket = types::Fd(self.sockets[to as usize].as_raw_fd());
        let bytes = self.pool.held(buffer, length);
        let request = opcode::Send::new(socket, bytes.as_ptr(), bytes.len() as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        self.push(&request.user_data(SEND | u64::from(buffer) << 32 | u64::from(to)))
    }

    fn push(&mut self, request: &squeue::Entry) -> io::Result<()> {
        for _ in 0..2 {
            // SAFETY: requests refer to buffers of the pool, which is never unmapped, and to sockets, which live as long as the ring;
            // a buffer that is sent from is provided again only when the request has completed.
            if unsafe { self.ring.0.submission().push(request) }.is_ok() {
                return Ok(());
            }
            self.ring.0.submit()?;
        }
        Err(io::Error::other("the ring has no room for a request"))
    }
}

/// Takes connections while a turn shows events.
#[derive(Debug)]
pub struct Adder<'a> {
    known: usize,
    added: &'a mut Vec<OwnedFd>,
}

impl Adder<'_> {
    /// As [`Streams::add`]; receiving begins after this event.
    pub fn add(&mut self, socket: OwnedFd) -> u32 {
        self.added.push(socket);
        (self.known + self.added.len() - 1) as u32
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // SAFETY: nothing uses the ring after this. It is closed before the sockets; the pool stays mapped.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, TcpStream},
    };

    use super::*;

    /// Two clients, each of which gets the bytes of the other, however few buffers there are.
    #[test]
    fn bytes_are_sent_on_in_order_and_buffers_come_back() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut streams = match Streams::new(listener, 2, 64) {
            Ok(streams) => streams,
            Err(error) => {
                eprintln!("skipped: no io_uring with multishot receive here: {error}");
                return;
            }
        };
        let sent: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        let clients = std::thread::spawn(move || {
            let mut from = TcpStream::connect(address).unwrap();
            let mut to = TcpStream::connect(address).unwrap();
            to.write_all(b"x").unwrap();
            from.read_exact(&mut [0]).unwrap();
            let writer = std::thread::spawn(move || {
                from.write_all(&sent).unwrap();
                from
            });
            let mut got = vec![0; expected.len()];
            to.read_exact(&mut got).unwrap();
            drop(writer.join().unwrap());
            assert_eq!(got, expected);
        });
        let (mut known, mut ended) = (0, 0);
        while ended < 1 {
            streams
                .turn(|adder, event| {
                    Ok::<_, io::Error>(match event {
                        Event::Accepted(socket) => {
                            assert_eq!(adder.add(socket), known);
                            known += 1;
                            Then::Done
                        }
                        Event::Received { stream, .. } => Then::SendTo(1 - stream),
                        Event::Ended(_) => {
                            ended += 1;
                            Then::Done
                        }
                    })
                })
                .unwrap();
        }
        clients.join().unwrap();
    }
}
