//! One thread of a run: an event queue, its connections, and what may leave when.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    io,
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering, mpsc},
};

use hdrhistogram::Histogram;
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tidegate_sys::clock::{monotonic_nanos, thread_cpu_nanos};

use crate::{
    connection::{Connection, Context, Lost, Receiver, Stage, Work},
    flow::Publisher,
    layout::{self, Role},
    meter::Counts,
    packet::Stamp,
    process::{self, Usage},
    shared::{Board, Shared},
    socket::Socket,
    spec::Spec,
};

/// Connections being made at one time, so that no listener's queue overflows.
const CONNECTING_MAX: usize = 128;
/// Writes of one publisher before others have their turn.
const WRITES_MAX: usize = 4;
const SECOND: i64 = 1_000_000_000;
/// Longest sleep without an event: a stop or an end is noticed then at the latest.
const SLEEP_NANOS: i64 = 100_000_000;
/// A message due this soon is not worth a sleep.
const SPIN_NANOS: i64 = 10_000;

const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

/// Where connections go.
#[derive(Clone, Copy)]
pub(crate) struct Targets {
    pub(crate) publish: SocketAddr,
    pub(crate) subscribe: SocketAddr,
}

impl Targets {
    fn of(self, role: Role) -> SocketAddr {
        match role {
            Role::Publisher(_) | Role::Idle(_) => self.publish,
            Role::Subscriber(_) | Role::Stalled(_) => self.subscribe,
        }
    }
}

pub(crate) struct Worker<'a> {
    index: usize,
    targets: Targets,
    epoll: OwnedFd,
    timer: OwnedFd,
    timer_at: i64,
    /// Connections that are still to be made.
    roles: std::vec::IntoIter<Role>,
    fillers: Vec<Arc<[u8]>>,
    /// Started connections, closed ones included: an event names one by its place.
    connections: Vec<Connection>,
    /// Places of the publishers, by their number within this worker.
    publishers: Vec<Option<u32>>,
    connecting: usize,
    connected: u64,
    failures: BTreeMap<String, u64>,
    /// Publishers that may write, and connections that may have more to read.
    ready: VecDeque<u32>,
    readable: VecDeque<u32>,
    /// When timed publishers are due.
    timetable: BinaryHeap<Reverse<(i64, u32)>>,
    context: Context<'a>,
    marks: Vec<Mark>,
    ticked_at: i64,
    window_timeouts: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Waiting,
    Sending,
    Draining,
}

/// Counts up to a moment.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) at: i64,
    pub(crate) cpu_nanos: i64,
    pub(crate) counts: Vec<Counts>,
    /// Of the broker; from the first worker alone.
    pub(crate) usage: Option<Usage>,
}

/// Results of a worker.
pub(crate) struct Outcome {
    pub(crate) connected: u64,
    pub(crate) failures: BTreeMap<String, u64>,
    /// Over the whole run, by flow.
    pub(crate) flows: Vec<(Counts, Histogram<u64>)>,
    /// Beginning and end of the measured part; empty if it did not begin.
    pub(crate) marks: Vec<Mark>,
    pub(crate) foreign: u64,
    pub(crate) window_timeouts: u64,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>, index: usize, targets: Targets) -> io::Result<Self> {
        let spec = shared.spec;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), edges)?;
        epoll::add(&epoll, &shared.workers[index].wake, EventData::new_u64(WAKE), edges)?;
        let roles = layout::roles(spec, index as u32);
        let fillers =
            spec.flows.iter().map(|flow| filler(flow.payload_bytes as usize - Stamp::BYTES));
        Ok(Self {
            index,
            targets,
            epoll,
            timer,
            timer_at: 0,
            connections: Vec::with_capacity(roles.len()),
            publishers: vec![
                None;
                spec.publishers.div_ceil(u32::from(spec.threads.max(1))) as usize
            ],
            roles: roles.into_iter(),
            fillers: fillers.collect(),
            connecting: 0,
            connected: 0,
            failures: BTreeMap::new(),
            ready: VecDeque::new(),
            readable: VecDeque::new(),
            timetable: BinaryHeap::new(),
            context: Context::new(shared),
            marks: Vec::new(),
            ticked_at: 0,
            window_timeouts: 0,
            phase: Phase::Connecting,
        })
    }

    /// Runs until the run is over; `settled` gets a message once every connection is ready or has failed.
    pub(crate) fn run(mut self, settled: &mpsc::Sender<()>) -> io::Result<Outcome> {
        let shared = self.context.shared;
        let begun = monotonic_nanos();
        let connect_until = begun + self.spec().connect_timeout.as_nanos() as i64;
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1024];
        self.ticked_at = begun;
        while !shared.finish.load(Ordering::Acquire) {
            if self.phase == Phase::Connecting {
                self.connect_more();
            }
            let timeout = self.sleep()?;
            let (events, _) = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => continue,
                waited => waited?,
            };
            self.context.now = monotonic_nanos();
            for event in &*events {
                self.event(event.data.u64(), event.flags);
            }
            for _ in 0..self.readable.len() {
                if let Some(place) = self.readable.pop_front() {
                    self.read(place);
                }
            }
            self.step(connect_until, settled);
            self.publish();
            self.tell();
        }
        if self.marks.len() == 1 {
            self.mark();
        }
        self.connections.iter_mut().for_each(Connection::disconnect);
        Ok(Outcome {
            connected: self.connected,
            failures: self.failures,
            flows: self.context.meters.into_iter().map(|meter| meter.finish()).collect(),
            marks: self.marks,
            foreign: self.context.foreign,
            window_timeouts: self.window_timeouts,
        })
    }

    fn spec(&self) -> &'a Spec {
        self.context.spec
    }

    fn board(&self) -> &'a Board {
        &self.context.shared.workers[self.index]
    }

    /// How long to wait for events; sets the timer for what is due sooner than milliseconds can say.
    fn sleep(&mut self) -> io::Result<Timespec> {
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !self.ready.is_empty() || !self.readable.is_empty() {
            return Ok(nothing);
        }
        if self.phase == Phase::Sending {
            let next_mark = [self.context.measured.start, self.context.measured.end];
            let due = self.timetable.peek().map_or(i64::MAX, |&Reverse((due, _))| due);
            let at = next_mark.get(self.marks.len()).map_or(due, |&mark| due.min(mark));
            if at <= monotonic_nanos() + SPIN_NANOS {
                return Ok(nothing);
            }
            if at != self.timer_at {
                self.timer_at = at;
                let it_value = Timespec { tv_sec: at / SECOND, tv_nsec: at % SECOND };
                let time = Itimerspec { it_interval: nothing, it_value };
                timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time)?;
            }
            if self.spec().threads > 1 && self.context.shared.windows {
                // Set before the windows are looked at for the last time: who receives after that sees it and wakes us.
                self.board().waiting.store(true, Ordering::SeqCst);
                self.wake_publishers();
                if !self.ready.is_empty() {
                    return Ok(nothing);
                }
            }
        }
        Ok(Timespec { tv_sec: 0, tv_nsec: SLEEP_NANOS })
    }

    fn event(&mut self, data: u64, flags: EventFlags) {
        match data {
            TIMER => self.timer_at = 0,
            WAKE => {
                let mut count = [0; 8];
                let _ = rustix::io::read(&self.board().wake, &mut count); // only whether it was set matters
                self.board().waiting.store(false, Ordering::SeqCst);
            }
            _ => {
                let place = data as u32;
                if flags.contains(EventFlags::OUT) {
                    self.write(place);
                }
                if flags.intersects(
                    EventFlags::IN | EventFlags::RDHUP | EventFlags::ERR | EventFlags::HUP,
                ) {
                    self.read(place);
                }
            }
        }
    }

    /// Takes the step that the time calls for: an end of connecting, a start, a mark, a second.
    fn step(&mut self, connect_until: i64, settled: &mpsc::Sender<()>) {
        let shared = self.context.shared;
        let now = self.context.now;
        if self.phase == Phase::Connecting {
            if now > connect_until {
                self.roles = Vec::new().into_iter();
                for place in 0..self.connections.len() as u32 {
                    let stage = self.connections[place as usize].stage;
                    if !matches!(stage, Stage::Ready | Stage::Closed) {
                        self.lose(place, &Lost::TimedOut);
                    }
                }
            }
            if self.connecting == 0 && self.roles.as_slice().is_empty() {
                self.phase = Phase::Waiting;
                self.tell();
                let _ = settled.send(()); // who does not listen has stopped the run
            }
        }
        if self.phase == Phase::Waiting {
            let start = shared.start_at.load(Ordering::Acquire);
            if start != 0 && now >= start {
                self.start(start);
            }
        }
        if self.phase == Phase::Sending {
            if self.marks.is_empty() && now >= self.context.measured.start {
                self.mark();
            }
            let ended = self.marks.len() == 1 && now >= self.context.measured.end;
            if ended || shared.stop.load(Ordering::Acquire) {
                if self.marks.len() == 1 {
                    self.mark();
                }
                self.phase = Phase::Draining;
            }
        }
        if now - self.ticked_at >= SECOND {
            self.ticked_at = now;
            self.tick();
        }
    }

    fn start(&mut self, start: i64) {
        let (shared, spec) = (self.context.shared, self.spec());
        let warm = start + spec.warm_up.as_nanos() as i64;
        self.context.measured = warm..warm + spec.duration.as_nanos() as i64;
        self.phase = Phase::Sending;
        let subscribed = |number: u32| shared.subscribed[number as usize].load(Ordering::Acquire);
        let all = layout::copies(spec, 0, subscribed);
        for place in 0..self.connections.len() {
            let connection = &mut self.connections[place];
            if let (Stage::Ready, Work::Publish(publisher)) =
                (connection.stage, &mut connection.work)
            {
                let copies = match spec.topology {
                    crate::Topology::Pairs => layout::copies(spec, publisher.number, subscribed),
                    _ => all,
                };
                publisher.start(start, spec.publishers, copies);
                self.enqueue(place as u32);
            }
        }
    }

    fn mark(&mut self) {
        let usage = match self.spec().process {
            Some(process) if self.index == 0 => process::usage(process).ok(),
            _ => None,
        };
        self.marks.push(Mark {
            at: monotonic_nanos(),
            cpu_nanos: thread_cpu_nanos(),
            counts: self.context.meters.iter().map(|meter| meter.counts).collect(),
            usage,
        });
    }

    /// Once a second: pings, and windows that nothing opens any more.
    fn tick(&mut self) {
        let now = self.context.now;
        let keep_alive = i64::from(self.spec().keep_alive) * SECOND;
        for place in 0..self.connections.len() as u32 {
            let connection = &mut self.connections[place as usize];
            if connection.stage != Stage::Ready {
                continue;
            }
            if keep_alive > 0
                && now - connection.wrote_at >= keep_alive / 2
                && let Err(lost) = connection.ping(now)
            {
                self.lose(place, &lost);
                continue;
            }
            let shared = self.context.shared;
            if self.phase == Phase::Sending
                && shared.windows
                && let Work::Publish(publisher) = &mut self.connections[place as usize].work
            {
                let (number, copies) = (publisher.number, publisher.copies);
                let mut stood = false;
                for (index, flow) in publisher.flows.iter_mut().enumerate() {
                    let received = shared.credit(number, index as u32).load(Ordering::Relaxed);
                    stood |= flow.forgive(copies, received);
                }
                if stood {
                    self.window_timeouts += 1;
                    self.enqueue(place);
                }
            }
        }
    }

    fn connect_more(&mut self) {
        while self.connecting < CONNECTING_MAX {
            let Some(role) = self.roles.next() else { return };
            match self.connect(role) {
                Ok(()) => self.connecting += 1,
                Err(error) => *self.failures.entry(error.to_string()).or_default() += 1,
            }
        }
    }

    fn connect(&mut self, role: Role) -> io::Result<()> {
        use socket2::{Domain, Protocol, Type};
        let spec = self.spec();
        let target = self.targets.of(role);
        let socket = socket2::Socket::new(
            Domain::for_address(target),
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        if matches!(role, Role::Stalled(_)) {
            socket.set_recv_buffer_size(spec.stalled_receive_buffer_bytes as usize)?;
        }
        if spec.source_addresses > 0 && target.is_ipv4() {
            let turn = (self.connections.len() % usize::from(spec.source_addresses)) as u8;
            let source = IpAddr::V4(Ipv4Addr::new(127, 0, turn / 250, 2 + turn % 250));
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        match socket.connect(&target.into()) {
            Err(error)
                if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
            {
                return Err(error);
            }
            _ => {}
        }
        let socket = TcpStream::from(socket);
        let place = self.connections.len() as u32;
        let all = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &socket, EventData::new_u64(u64::from(place)), all)?;
        let work = match role {
            Role::Publisher(number) => {
                self.publishers[(number / u32::from(spec.threads.max(1))) as usize] = Some(place);
                Work::Publish(Box::new(Publisher::new(spec, number, &self.fillers)))
            }
            Role::Subscriber(number) => Work::Receive(Box::new(Receiver::new(spec, number))),
            Role::Stalled(_) | Role::Idle(_) => Work::None,
        };
        self.connections.push(Connection::new(Socket::new(socket), role, work, spec));
        Ok(())
    }

    fn write(&mut self, place: u32) {
        let connection = &mut self.connections[place as usize];
        if connection.stage == Stage::Closed {
            return;
        }
        match connection.writable(&mut self.context) {
            Err(lost) => self.lose(place, &lost),
            Ok(()) => self.enqueue(place),
        }
    }

    fn read(&mut self, place: u32) {
        let connection = &mut self.connections[place as usize];
        let before = connection.stage;
        if matches!(before, Stage::Closed | Stage::Connecting) {
            return; // an error of connecting comes with the event for writing
        }
        match connection.readable(&mut self.context) {
            Err(lost) => self.lose(place, &lost),
            Ok(more) => {
                if more {
                    self.readable.push_back(place);
                }
                if before != Stage::Ready && self.connections[place as usize].stage == Stage::Ready
                {
                    self.joined(place);
                }
                self.enqueue(place);
            }
        }
        self.wake_receivers_publishers();
    }

    /// A connection is ready.
    fn joined(&mut self, place: u32) {
        self.connecting -= 1;
        self.connected += 1;
        let connection = &self.connections[place as usize];
        match connection.role {
            Role::Subscriber(number) => {
                self.context.shared.subscribed[number as usize].store(true, Ordering::Release);
            }
            Role::Stalled(_) => {
                // It never reads again, so what comes is no event. It is in the queue: it was added when it was made.
                let _ = epoll::delete(&self.epoll, connection.socket.tcp());
            }
            Role::Publisher(_) | Role::Idle(_) => {}
        }
    }

    fn lose(&mut self, place: u32, lost: &Lost) {
        let connection = &mut self.connections[place as usize];
        let reason = if connection.stage == Stage::Ready {
            self.connected -= 1;
            format!("while running: {lost}")
        } else {
            self.connecting -= 1;
            lost.to_string()
        };
        *self.failures.entry(reason).or_default() += 1;
        connection.stage = Stage::Closed;
        // The descriptor stays until the end, so that its number is no other's; the peer sees the end at once.
        connection.socket.shutdown();
        let _ = epoll::delete(&self.epoll, connection.socket.tcp());
    }

    /// A publisher may have something to write.
    fn enqueue(&mut self, place: u32) {
        let connection = &mut self.connections[place as usize];
        if self.phase == Phase::Sending
            && !connection.queued
            && connection.stage == Stage::Ready
            && matches!(connection.work, Work::Publish(_))
        {
            connection.queued = true;
            self.ready.push_back(place);
        }
    }

    /// Messages that were received open windows, here or in other workers.
    fn wake_receivers_publishers(&mut self) {
        let threads = usize::from(self.spec().threads.max(1));
        let mut others = false;
        while let Some(publisher) = self.context.woken.pop() {
            if publisher as usize % threads != self.index {
                others = true;
            } else if let Some(place) = self.publishers[publisher as usize / threads] {
                self.enqueue(place);
            }
        }
        if others {
            for board in &self.context.shared.workers {
                if board.waiting.load(Ordering::SeqCst)
                    && board.waiting.swap(false, Ordering::SeqCst)
                {
                    board.wake();
                }
            }
        }
    }

    /// Publishers whose messages others receive look at their windows.
    fn wake_publishers(&mut self) {
        let shared = self.context.shared;
        for index in 0..self.publishers.len() {
            let Some(place) = self.publishers[index] else { continue };
            let Connection { work, client, socket, .. } = &mut self.connections[place as usize];
            let Work::Publish(publisher) = work else { continue };
            let received = |number, flow| shared.credit(number, flow as u32).load(Ordering::SeqCst);
            if publisher.may_fill(client, received) && socket.is_flushed() {
                self.enqueue(place);
            }
        }
    }

    /// Lets publishers write that are due or have room.
    fn publish(&mut self) {
        if self.phase != Phase::Sending {
            while let Some(place) = self.ready.pop_front() {
                self.connections[place as usize].queued = false;
            }
            return;
        }
        while let Some(&Reverse((due, place))) = self.timetable.peek() {
            if due > self.context.now {
                break;
            }
            self.timetable.pop();
            self.connections[place as usize].timed = false;
            self.enqueue(place);
        }
        for _ in 0..self.ready.len() {
            let Some(place) = self.ready.pop_front() else { return };
            let connection = &mut self.connections[place as usize];
            connection.queued = false;
            if connection.stage != Stage::Ready {
                continue;
            }
            let mut more = Ok(true);
            for _ in 0..WRITES_MAX {
                self.context.now = monotonic_nanos();
                more = connection.publish(&mut self.context);
                if !matches!(more, Ok(true)) {
                    break;
                }
            }
            match more {
                Err(lost) => {
                    self.lose(place, &lost);
                    continue;
                }
                Ok(true) => self.enqueue(place),
                Ok(false) => {}
            }
            let connection = &mut self.connections[place as usize];
            if let Work::Publish(publisher) = &connection.work
                && let Some(due) = publisher.due()
                && due > self.context.now // or it waits for an acknowledgement, or for the socket
                && !connection.timed
            {
                connection.timed = true;
                self.timetable.push(Reverse((due, place)));
            }
        }
    }

    /// Tells the others what has been done.
    fn tell(&self) {
        let board = self.board();
        let mut all = Counts::default();
        self.context.meters.iter().for_each(|meter| all.add(&meter.counts));
        board.connected.store(self.connected, Ordering::Relaxed);
        board.sent.store(all.sent, Ordering::Relaxed);
        board.due.store(all.due, Ordering::Relaxed);
        board.received.store(all.received, Ordering::Relaxed);
        board.received_once.store(all.received_once(), Ordering::Relaxed);
        board.unacknowledged.store(self.context.unacknowledged, Ordering::Relaxed);
        if self.phase == Phase::Draining {
            let waits = |connection: &&Connection| {
                connection.stage == Stage::Ready && !connection.socket.is_flushed()
            };
            let unwritten = self.connections.iter().filter(waits).count();
            board.unwritten.store(unwritten as u64, Ordering::Release);
            board.stopped.store(true, Ordering::Release);
        }
    }
}

/// Bytes that do not compress.
fn filler(bytes: usize) -> Arc<[u8]> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}
