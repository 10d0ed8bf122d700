//! From a trace to a broker: reads on a thread of its own, publishes by the clock.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    thread,
    time::Duration,
};

use tidegate_sys::clock::monotonic_nanos;

use super::{
    OnBad, Options, Pace, Recognised, ReplayError, RowFault, Summary, Trace,
    csv::Field,
    reading::{self, Beginning, Reading},
    rows::{Rows, Step},
    schedule::{Clock, Devices, Held, Timeline},
};
use crate::{
    client::{self, ClientError},
    outlet::{self, Outlet},
};

/// Bytes that are read at a time, and how many times ahead.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS_AHEAD: usize = 4;
/// Rows by which a trace is to be recognised.
const FIRST_ROWS: usize = 64;
/// Rows that cannot be read among those.
const FIRST_BAD_ROWS: usize = 1000;
/// How soon a stop is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How soon rows of a slow standard input are noticed.
const STARVED_FOR: Duration = Duration::from_millis(2);
const PROGRESS_EVERY: i64 = 500_000_000;

/// Where a replay stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// For how long it has been playing.
    pub elapsed: Duration,
    /// Messages sent so far.
    pub messages: u64,
    /// How late the last ones left.
    pub late: Duration,
}

/// Plays `trace` to the broker until its end, until the options say so, or until `stop` is set. `recognised` is told once what the
/// trace is, `progress` twice a second how far it is.
///
/// Returns what was played, and why it ended early if something failed on the way.
///
/// # Errors
/// Any of [`ReplayError`], if nothing could be played at all.
pub fn play(
    trace: &Trace,
    options: &Options,
    broker: &client::Options,
    stop: &AtomicBool,
    recognised: impl FnOnce(&Recognised),
    progress: impl FnMut(&Progress),
) -> Result<(Summary, Option<ReplayError>), ReplayError> {
    options.check()?;
    let Some(mut source) = Source::open(trace, options, stop)? else {
        return Ok((Summary { is_stopped: true, ..Summary::default() }, None));
    };
    recognised(&source.input.recognised);
    let outlet = Outlet::connect(broker, options.inflight)?;
    let mut player = Player {
        options,
        outlets: [outlet],
        clock: Clock { start: monotonic_nanos() + 1_000_000, pace: options.pace },
        oldest_due: None,
        told_at: 0,
        late: 0,
        summary: Summary { devices: options.devices, ..Summary::default() },
        stop,
        progress,
    };
    let played = player.run(&mut source);
    // One message that is too long leaves the connection as it is.
    let is_lost = match &played {
        Err(ReplayError::Client(error)) => !matches!(error, ClientError::TooLarge { .. }),
        _ => false,
    };
    let Player { outlets, mut summary, .. } = player;
    let failure = match played {
        Err(error) if is_lost => Some(error),
        played => finish(outlets, &mut summary).err().or(played.err()),
    };
    source.input.count(&mut summary);
    Ok((summary, failure))
}

/// Waits until messages on the way have arrived, and ends the connection in order.
fn finish(mut outlets: [Outlet; 1], summary: &mut Summary) -> Result<(), ReplayError> {
    let settled = outlet::settle(&mut outlets, || false);
    let [outlet] = outlets;
    let exchanges = outlet.exchanges();
    summary.refused = exchanges.refused;
    summary.refusal = exchanges.refusal;
    settled?;
    outlet.disconnect();
    Ok(())
}

struct Player<'a, F> {
    options: &'a Options,
    outlets: [Outlet; 1],
    clock: Clock,
    /// Of what waits for the socket.
    oldest_due: Option<i64>,
    told_at: i64,
    /// Of the last batch, in nanoseconds.
    late: i64,
    summary: Summary,
    stop: &'a AtomicBool,
    progress: F,
}

impl<F: FnMut(&Progress)> Player<'_, F> {
    fn run(&mut self, source: &mut Source<'_>) -> Result<(), ReplayError> {
        let end = self.options.duration.map(|time| {
            let nanos = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
            self.clock.start.saturating_add(nanos)
        });
        let mut cue = Cue::default();
        let mut next = source.advance(&mut cue)?;
        let mut failure = None;
        loop {
            let now = monotonic_nanos();
            if self.stop.load(Ordering::Relaxed) {
                self.summary.is_stopped = true;
                break;
            }
            if end.is_some_and(|end| now >= end) {
                break;
            }
            if next == Next::Starved {
                next = source.advance(&mut cue)?;
            }
            let is_short = |summary: &Summary| {
                self.options.messages_max.is_none_or(|most| summary.messages < most)
            };
            while next == Next::Message && is_short(&self.summary) {
                let due = self.clock.due(cue.played);
                let payload = &cue.row[cue.payload_at..];
                if due > now || !self.outlets[0].push(&cue.topic, payload, self.options.qos)? {
                    break;
                }
                self.oldest_due.get_or_insert(due);
                self.summary.messages += 1;
                self.summary.payload_bytes += payload.len() as u64;
                match source.advance(&mut cue) {
                    Ok(following) => next = following,
                    // Messages that have been pushed are sent first.
                    Err(error) => (next, failure) = (Next::End, Some(error)),
                }
            }
            self.turn()?;
            if next == Next::End || !is_short(&self.summary) {
                break;
            }
            let mut until = match next {
                Next::Message => self.clock.due(cue.played),
                _ => now.saturating_add(STARVED_FOR.as_nanos() as i64),
            };
            until = until.min(end.unwrap_or(i64::MAX));
            self.wait(until)?;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Writes, reads, and looks at the clock.
    fn turn(&mut self) -> Result<(), ReplayError> {
        self.outlets[0].turn(monotonic_nanos())?;
        let now = monotonic_nanos();
        if self.outlets[0].is_flushed()
            && let Some(due) = self.oldest_due.take()
        {
            self.summary.elapsed = nanos(now - self.clock.start);
            if self.options.pace != Pace::Unpaced {
                self.late = (now - due).max(0);
                self.summary.latest = self.summary.latest.max(Some(nanos(self.late)));
            }
        }
        if now - self.told_at >= PROGRESS_EVERY {
            self.told_at = now;
            (self.progress)(&Progress {
                elapsed: nanos(now - self.clock.start),
                messages: self.summary.messages,
                late: nanos(self.late),
            });
        }
        Ok(())
    }

    /// Waits for what is due then, for room where something that is due finds none, or for whatever the broker says.
    fn wait(&mut self, until: i64) -> Result<(), ReplayError> {
        let left = nanos(until - monotonic_nanos());
        // A message that is due and was not taken waits for room or an acknowledgement, unless a full batch has just left.
        let is_stuck = !self.outlets[0].may_push(self.options.qos);
        let timeout = if is_stuck { LOOK_EVERY } else { left.min(LOOK_EVERY) };
        Ok(outlet::wait(&mut self.outlets, timeout)?)
    }
}

fn nanos(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// A message to be sent.
#[derive(Debug, Default)]
struct Cue {
    /// When, in nanoseconds of the trace.
    played: i128,
    topic: String,
    row: Vec<u8>,
    /// Where the payload begins in the row.
    payload_at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Message,
    /// None yet.
    Starved,
    End,
}

/// Messages in the order in which they are due.
struct Source<'a> {
    input: Input<'a>,
    /// Rows that several devices play, and the devices.
    held: Option<(Held, Devices)>,
    /// Of the laps before.
    base: i128,
}

impl<'a> Source<'a> {
    /// Opens the trace and finds out what it is; holds all of it where that is needed. None if it was stopped before.
    fn open(
        trace: &'a Trace,
        options: &'a Options,
        stop: &AtomicBool,
    ) -> Result<Option<Self>, ReplayError> {
        let Some(input) = Input::open(trace, options, stop)? else { return Ok(None) };
        let mut source = Self { input, held: None, base: 0 };
        let is_held = options.devices > 1 || (options.repeat && *trace == Trace::StandardInput);
        if is_held {
            let mut held = Held::default();
            let mut cue = Cue::default();
            loop {
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                // The largest number: what is wrong with a topic shows here, before anything is sent.
                match source.input.next(options.devices, &mut cue, LOOK_EVERY)? {
                    Found::Row(time) if held.push(time, &cue.row) => {}
                    Found::Row(_) => {
                        return Err(ReplayError::TooLarge { trace: trace.to_string() });
                    }
                    Found::Starved => {}
                    Found::End => break,
                }
            }
            if held.len() == 0 {
                return Err(source.input.no_row());
            }
            let period = source.input.timeline.period();
            let Options { devices, seed, repeat, .. } = *options;
            let devices = Devices::new(&held, devices, seed, period, repeat);
            source.held = Some((held, devices));
        }
        Ok(Some(source))
    }

    fn advance(&mut self, cue: &mut Cue) -> Result<Next, ReplayError> {
        if self.held.is_some() { self.advance_held(cue) } else { self.advance_read(cue) }
    }

    fn advance_held(&mut self, cue: &mut Cue) -> Result<Next, ReplayError> {
        let Some((held, devices)) = &mut self.held else { return Ok(Next::End) };
        let Some((played, device, index)) = devices.next() else { return Ok(Next::End) };
        cue.played = played;
        cue.row.clear();
        cue.row.extend_from_slice(held.row(index));
        devices.advance(held);
        // Nothing is wrong with it: it was read before.
        let filled = self.input.fill(device + 1, cue);
        filled.map_err(|fault| self.input.bad(index as u64 + 1, fault))?;
        Ok(Next::Message)
    }

    fn advance_read(&mut self, cue: &mut Cue) -> Result<Next, ReplayError> {
        loop {
            match self.input.next(1, cue, Duration::ZERO)? {
                Found::Row(time) => {
                    cue.played = self.base + i128::from(time);
                    return Ok(Next::Message);
                }
                Found::Starved => return Ok(Next::Starved),
                Found::End if !self.input.options.repeat => return Ok(Next::End),
                Found::End => {
                    let period = self.input.timeline.period();
                    if self.input.timeline.again() == 0 {
                        return Err(self.input.no_row());
                    }
                    self.base += i128::from(period);
                    self.input.reopen()?;
                }
            }
        }
    }
}

/// A row that was found.
enum Found {
    /// With its time in the trace.
    Row(i64),
    Starved,
    End,
}

/// The rows of a trace, read ahead by a thread.
struct Input<'a> {
    trace: &'a Trace,
    options: &'a Options,
    chunks: Receiver<io::Result<Vec<u8>>>,
    rows: Rows,
    reading: Reading,
    recognised: Recognised,
    /// The first rows, which were looked at before.
    first: VecDeque<First>,
    timeline: Timeline,
    fields: Vec<Field>,
    bad_rows: u64,
    first_bad: Option<String>,
    /// Bad rows are those of the trace, counted once.
    counts_bad: bool,
}

/// One of the first rows.
enum First {
    Row(u64, Vec<u8>),
    Bad(u64, RowFault),
}

impl<'a> Input<'a> {
    fn open(
        trace: &'a Trace,
        options: &'a Options,
        stop: &AtomicBool,
    ) -> Result<Option<Self>, ReplayError> {
        let name = trace.to_string();
        let unread = |source| ReplayError::Read { trace: name.clone(), source };
        let chunks = read_ahead(trace).map_err(unread)?;
        let mut rows = Rows::new();
        let (mut first, mut good) = (VecDeque::new(), Vec::new());
        let mut format = options.format;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let Some(format) = format else {
                // By a whole line, or as much as a row may have.
                let ahead = rows.ahead().trim_ascii_start();
                let is_enough = rows.has_ended()
                    || ahead.contains(&b'\n')
                    || ahead.len() > super::ROW_BYTES_MAX;
                if is_enough {
                    format = Some(reading::recognise(ahead));
                } else {
                    receive(&chunks, &mut rows, LOOK_EVERY).map_err(unread)?;
                }
                continue;
            };
            if first.is_empty() {
                match format {
                    super::Format::Csv => rows.read_csv(options.delimiter),
                    super::Format::Senml => rows.read_json(),
                    super::Format::Riotbench => {}
                }
            }
            match rows.next() {
                Step::Row { line, bytes } => {
                    good.push((line, bytes.to_vec()));
                    first.push_back(First::Row(line, bytes.to_vec()));
                }
                // Where nothing but such rows comes, it is no trace.
                Step::Bad { line, fault }
                    if options.on_bad == OnBad::Skip && first.len() < FIRST_BAD_ROWS =>
                {
                    first.push_back(First::Bad(line, fault));
                    continue;
                }
                Step::Bad { line, fault } => {
                    return Err(ReplayError::Bad { trace: name, line, fault });
                }
                Step::Starved => {
                    receive(&chunks, &mut rows, LOOK_EVERY).map_err(unread)?;
                    continue;
                }
                Step::End if good.is_empty() => return Err(ReplayError::NoRow { trace: name }),
                Step::End => {}
            }
            let is_all = good.len() >= FIRST_ROWS || (rows.has_ended() && rows.ahead().is_empty());
            let beginning = Beginning { trace: &name, rows: &good, is_all };
            let Some((reading, has_header)) = Reading::begin(options, format, beginning)? else {
                continue;
            };
            if has_header {
                let is_row = |one: &First| matches!(one, First::Row(..));
                first.iter().position(is_row).and_then(|place| first.remove(place));
            }
            let recognised = reading.recognised(has_header);
            let timeline = Timeline::new(options.pace, options.devices, recognised.time.is_some());
            return Ok(Some(Self {
                trace,
                options,
                chunks,
                rows,
                reading,
                recognised,
                first,
                timeline,
                fields: Vec::new(),
                bad_rows: 0,
                first_bad: None,
                counts_bad: true,
            }));
        }
    }

    /// Begins the file again.
    fn reopen(&mut self) -> Result<(), ReplayError> {
        self.counts_bad = false;
        self.chunks = read_ahead(self.trace).map_err(|source| self.unread(source))?;
        self.rows = Rows::new();
        match self.recognised.format {
            super::Format::Csv => self.rows.read_csv(self.options.delimiter),
            super::Format::Senml => self.rows.read_json(),
            super::Format::Riotbench => {}
        }
        let mut skips_header = self.recognised.has_header;
        while skips_header {
            match self.rows.next() {
                Step::Row { .. } => skips_header = false,
                Step::End => return Ok(()),
                Step::Bad { .. } => {} // it was counted before
                Step::Starved => {
                    let received = receive(&self.chunks, &mut self.rows, LOOK_EVERY);
                    received.map_err(|source| self.unread(source))?;
                }
            }
        }
        Ok(())
    }

    /// Puts the next row that can be read into `cue`, as that device sends it; waits for it as long as that.
    fn next(&mut self, device: u32, cue: &mut Cue, wait: Duration) -> Result<Found, ReplayError> {
        loop {
            let (line, fault) = match self.first.pop_front() {
                Some(First::Row(line, bytes)) => {
                    cue.row = bytes;
                    (line, None)
                }
                Some(First::Bad(line, fault)) => (line, Some(fault)),
                None => match self.rows.next() {
                    Step::Row { line, bytes } => {
                        cue.row.clear();
                        cue.row.extend_from_slice(bytes);
                        (line, None)
                    }
                    Step::Bad { line, fault } => (line, Some(fault)),
                    Step::End => return Ok(Found::End),
                    Step::Starved => {
                        let received = receive(&self.chunks, &mut self.rows, wait);
                        if !received.map_err(|source| self.unread(source))? {
                            return Ok(Found::Starved);
                        }
                        continue;
                    }
                },
            };
            match fault.map_or_else(|| self.fill(device, cue), Err) {
                Ok(time) => return Ok(Found::Row(self.timeline.place(time))),
                Err(fault) => self.leave_out(line, fault)?,
            }
        }
    }

    /// Fills topic and payload from the row; returns its time.
    fn fill(&mut self, device: u32, cue: &mut Cue) -> Result<Option<i64>, RowFault> {
        let parsed = self.reading.parse(&cue.row, &mut self.fields)?;
        let time = self.reading.time(&parsed)?;
        self.reading.topic(&parsed, device, &mut cue.topic)?;
        cue.payload_at = cue.row.len() - self.reading.payload(&cue.row).len();
        Ok(time)
    }

    /// A row cannot be read: it is counted and left out, or it ends the replay.
    fn leave_out(&mut self, line: u64, fault: RowFault) -> Result<(), ReplayError> {
        if self.options.on_bad == OnBad::Stop {
            return Err(self.bad(line, fault));
        }
        if self.counts_bad {
            self.bad_rows += 1;
            self.first_bad.get_or_insert_with(|| format!("line {line}, {fault}"));
        }
        Ok(())
    }

    fn bad(&self, line: u64, fault: RowFault) -> ReplayError {
        ReplayError::Bad { trace: self.trace.to_string(), line, fault }
    }

    fn unread(&self, source: io::Error) -> ReplayError {
        ReplayError::Read { trace: self.trace.to_string(), source }
    }

    fn no_row(&self) -> ReplayError {
        ReplayError::NoRow { trace: self.trace.to_string() }
    }

    fn count(&self, summary: &mut Summary) {
        summary.bad_rows = self.bad_rows;
        summary.first_bad.clone_from(&self.first_bad);
        summary.reordered_rows = self.timeline.reordered();
    }
}

/// Gives what has been read to `rows`, or that it is the end; false if nothing came in time.
fn receive(
    chunks: &Receiver<io::Result<Vec<u8>>>,
    rows: &mut Rows,
    wait: Duration,
) -> io::Result<bool> {
    let received = match chunks.try_recv() {
        Err(TryRecvError::Empty) if wait.is_zero() => return Ok(false),
        Err(TryRecvError::Empty) => match chunks.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            received => received.ok(),
        },
        received => received.ok(),
    };
    match received.transpose()? {
        Some(bytes) => rows.push(&bytes),
        None => rows.end(),
    }
    Ok(true)
}

/// Reads the trace on a thread, which ends with it, with an error, or when nobody receives any more. One that waits for a standard
/// input that says nothing ends with the process.
fn read_ahead(trace: &Trace) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, chunks) = sync_channel(CHUNKS_AHEAD);
    match trace {
        Trace::File(path) => {
            let file = File::open(path)?;
            thread::spawn(move || read_all(file, &sender));
        }
        Trace::StandardInput => {
            thread::spawn(move || read_all(io::stdin(), &sender));
        }
    }
    Ok(chunks)
}

fn read_all(mut input: impl Read, sender: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = match input.read(&mut chunk) {
            Ok(0) => return,
            Ok(bytes) => {
                chunk.truncate(bytes);
                Ok(chunk)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = read.is_err();
        if sender.send(read).is_err() || is_last {
            return;
        }
    }
}

/// The recognised trace, its first messages, at most so many, and the counts; without a broker.
#[cfg(test)]
#[expect(clippy::type_complexity, reason = "a test takes it apart at once")]
pub(super) fn cues(
    trace: &Trace,
    options: &Options,
    stop: &AtomicBool,
    most: usize,
) -> Result<(Recognised, Vec<(i128, String, Vec<u8>)>, Summary), ReplayError> {
    let mut source = Source::open(trace, options, stop)?.expect("no test stops it");
    let (mut cue, mut cues) = (Cue::default(), Vec::new());
    while cues.len() < most {
        match source.advance(&mut cue)? {
            Next::Message => {
                let payload = cue.row[cue.payload_at..].to_vec();
                cues.push((cue.played, cue.topic.clone(), payload));
            }
            Next::Starved => thread::yield_now(),
            Next::End => break,
        }
    }
    let mut summary = Summary::default();
    source.input.count(&mut summary);
    Ok((source.input.recognised, cues, summary))
}
