//! Sessions over sockets, all on one thread: members that want to be connected are connected again and again.
//!
//! ```text
//!  Crowd::turn: connect ─▶ write what waits ─▶ poll ─▶ read ─▶ (member, Event) …
//! ```

mod session;

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::session::{Event, Message, Session, SessionOptions};

/// Between two attempts to connect.
const RETRY: Duration = Duration::from_millis(10);
/// Written to a member's socket at a time, and the most that waits for it.
const WAITING_MAX: usize = 256 << 10;
/// Read in a turn from one member, so that others have theirs.
const READ_BYTES: usize = 256 << 10;

/// Clients of one broker.
#[derive(Debug)]
pub struct Crowd {
    address: SocketAddr,
    members: Vec<Member>,
    input: Vec<u8>,
    /// How a broker broke the protocol.
    pub faults: Vec<String>,
}

/// One client.
#[derive(Debug)]
pub struct Member {
    /// Its session: the messages that it owes and is owed.
    pub session: Session,
    /// Whether it wants to be connected.
    pub comes: bool,
    /// Whether it reads nothing for now.
    pub is_deaf: bool,
    /// How often the broker let it in.
    pub connections: u64,
    socket: Option<TcpStream>,
    out: Vec<u8>,
    out_at: usize,
    retry_at: Instant,
}

impl Crowd {
    /// An empty crowd, for the broker at `address`.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self { address, members: Vec::new(), input: vec![0; READ_BYTES], faults: Vec::new() }
    }

    /// One more, who wants to be connected; returns which.
    pub fn join(&mut self, options: SessionOptions) -> usize {
        self.members.push(Member::new(options));
        self.members.len() - 1
    }

    /// Another member that wants to be connected, in the place of one that left.
    pub fn replace(&mut self, member: usize, options: SessionOptions) {
        self.members[member] = Member::new(options);
    }

    /// A member.
    #[must_use]
    pub fn member(&self, member: usize) -> &Member {
        &self.members[member]
    }

    /// Its session, to publish and subscribe.
    pub fn session(&mut self, member: usize) -> &mut Session {
        &mut self.members[member].session
    }

    /// Whether it reads what it is sent.
    pub fn deafen(&mut self, member: usize, is_deaf: bool) {
        self.members[member].is_deaf = is_deaf;
    }

    /// Whether it has room for `bytes` more without waiting for its socket.
    #[must_use]
    pub fn takes(&self, member: usize) -> bool {
        let member = &self.members[member];
        member.session.is_connected() && member.out.len() - member.out_at < WAITING_MAX
    }

    /// From now on it wants to be connected.
    pub fn come(&mut self, member: usize) {
        self.members[member].comes = true;
    }

    /// It says goodbye and stays away.
    pub fn leave(&mut self, member: usize) {
        let member = &mut self.members[member];
        if member.session.is_connected() {
            member.session.disconnect();
            let _ = member.write(); // its connection may have ended already
        }
        member.part();
        member.comes = false;
    }

    /// Its connection ends without a word, and it stays away.
    pub fn abort(&mut self, member: usize) {
        let member = &mut self.members[member];
        member.part();
        member.comes = false;
    }

    /// Whether all who want to be connected are.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.members.iter().all(|member| !member.comes || member.session.is_connected())
    }

    /// Writes what waits, and reads nothing.
    pub fn write(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.socket.is_some()) {
            if member.write().is_err() {
                member.part();
            }
        }
    }

    /// Does what there is to do, or waits for it, `timeout` at most; appends what came of it to `events`.
    ///
    /// # Errors
    /// The system has no poll(2).
    pub fn turn(
        &mut self,
        timeout: Duration,
        events: &mut Vec<(usize, Event)>,
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        for member in &mut self.members {
            if member.comes && member.socket.is_none() && member.retry_at <= now {
                member.connect(self.address);
            }
        }
        self.write();
        let listens = |member: &Member| member.socket.is_some() && !member.is_deaf;
        let of: Vec<usize> =
            (0..self.members.len()).filter(|member| listens(&self.members[*member])).collect();
        let mut sockets: Vec<PollFd<'_>> = of
            .iter()
            .filter_map(|member| {
                let member = &self.members[*member];
                let mut wanted = PollFlags::IN;
                wanted.set(PollFlags::OUT, member.out_at < member.out.len());
                member.socket.as_ref().map(|socket| PollFd::new(socket, wanted))
            })
            .collect();
        let timeout = Timespec::try_from(timeout).context("a timeout is short")?;
        match poll(&mut sockets, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for sockets"),
        }
        let ready: Vec<bool> = sockets.iter().map(|socket| !socket.revents().is_empty()).collect();
        for (at, _) in of.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
            let member = &mut self.members[at];
            let read = member.read(&mut self.input);
            let mut is_refused = false;
            while let Some(event) = member.session.poll_event() {
                member.connections += u64::from(matches!(event, Event::Connected { .. }));
                is_refused |= matches!(event, Event::Refused(_));
                events.push((at, event));
            }
            match read {
                Ok(()) if is_refused => member.part(),
                Ok(()) => {}
                Err(ReadError::Gone) => member.part(),
                Err(ReadError::Fault(fault)) => {
                    self.faults.push(format!("client {at}: {fault}"));
                    member.part();
                }
            }
        }
        Ok(())
    }
}

enum ReadError {
    Gone,
    Fault(String),
}

impl Member {
    fn new(options: SessionOptions) -> Self {
        Self {
            session: Session::new(options),
            comes: true,
            is_deaf: false,
            connections: 0,
            socket: None,
            out: Vec::new(),
            out_at: 0,
            retry_at: Instant::now(),
        }
    }

    fn connect(&mut self, address: SocketAddr) {
        self.retry_at = Instant::now() + RETRY;
        // On loopback this does not wait; a node that is down refuses at once.
        let connected = TcpStream::connect(address)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .and_then(|socket| socket.set_nodelay(true).map(|()| socket));
        if let Ok(socket) = connected {
            self.socket = Some(socket);
            self.session.begin();
        }
    }

    fn part(&mut self) {
        self.socket = None;
        self.session.end();
        self.out.clear();
        self.out_at = 0;
        self.retry_at = Instant::now() + RETRY;
    }

    fn write(&mut self) -> io::Result<()> {
        self.session.poll_transmit(&mut self.out);
        let Some(socket) = &mut self.socket else { return Ok(()) };
        while self.out_at < self.out.len() {
            match socket.write(&self.out[self.out_at..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.out_at += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.out_at = 0;
        Ok(())
    }

    fn read(&mut self, input: &mut [u8]) -> Result<(), ReadError> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        match socket.read(input) {
            Ok(0) => Err(ReadError::Gone),
            Ok(bytes) => self
                .session
                .receive(&input[..bytes])
                .map_err(|error| ReadError::Fault(error.to_string())),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(ReadError::Gone),
            },
        }
    }
}
