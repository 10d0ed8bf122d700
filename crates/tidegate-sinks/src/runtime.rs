//! The thread of a sink: gathers, hands over, acknowledges.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Display,
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_bus::Bus;
use tidegate_message::{Backoff, ID_PROPERTY};
use tidegate_process::random::random_bytes;
use tidegate_wire::mqtt::ReasonCode;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Batch, Counters, Destination, Record, Refusal, SinkReport, SinkSettings, Trouble, add,
    refused::{RefusedFile, Replay},
    session::{Session, SessionError, sys_topic},
};

/// How long a sink that is to stop tries to hand over what it holds.
const GRACE: Duration = Duration::from_secs(3);
/// Dead letters that are under way at a time.
const LETTERS_MAX: usize = 64;
/// A dead letter for which there is no room is tried again after this, and so is the file of those that cannot be one.
const LETTER_PAUSE: Duration = Duration::from_secs(1);
/// How often the sink looks whether a command wants refused messages given to the destination again.
const REPLAY_PAUSE: Duration = Duration::from_secs(1);
/// Longest reason in a dead letter, in bytes.
const REASON_BYTES_MAX: usize = 1000;

/// The outcome of a batch, with its parts.
struct Done {
    destination: Box<dyn Destination>,
    batch: Batch,
    result: Result<Vec<Refusal>, Trouble>,
}

/// The work of the destination.
enum Work {
    Idle(Box<dyn Destination>),
    Delivering(Pin<Box<dyn Future<Output = Done> + Send>>),
    /// The batch is tried again then.
    Resting(Box<dyn Destination>, Batch, Instant),
    /// Between two of the others.
    Between,
}

/// A message on its way to the dead letter topic.
struct Letter {
    record: Record,
    reason: String,
}

/// Messages on their way to the dead letter topic or the file of refused messages, all of one batch.
#[derive(Default)]
struct Letters {
    waiting: VecDeque<Letter>,
    sent: HashMap<u64, Letter>,
    /// There was no room for one.
    pauses_until: Option<Instant>,
    /// Those that cannot lie in a dead letter topic.
    unplaced: Vec<Letter>,
    /// The file takes none before that.
    file_rests_until: Option<Instant>,
}

/// Why a connection of a sink ended.
enum Ended {
    Stopped,
    Broken(SessionError),
}

impl From<SessionError> for Ended {
    fn from(error: SessionError) -> Self {
        Self::Broken(error)
    }
}

/// The state of the thread.
pub(super) struct Runtime {
    settings: SinkSettings,
    bus: Bus,
    counters: Arc<Counters>,
    stop: CancellationToken,
    work: Work,
    gathered: Batch,
    /// When the batch that grows is handed over at the latest.
    closes_at: Option<Instant>,
    letters: Letters,
    /// Refused messages that are given to the destination again.
    replay: Option<Replay>,
    /// When it is looked at whether there are any.
    replay_at: Option<Instant>,
    backoff: Backoff,
    /// Between sessions that break off.
    rest: Backoff,
    /// The trouble that was last reported.
    told: String,
    /// Whether it was reported of this connection that refused messages cannot be dead letters.
    told_unplaced: bool,
    /// The reason why the file takes none that was last reported.
    told_file: String,
    /// Whether it was reported that messages come round.
    told_looped: bool,
    said_up: Option<bool>,
    said_report: Option<SinkReport>,
}

impl Runtime {
    pub(super) fn new(
        settings: SinkSettings,
        destination: Box<dyn Destination>,
        bus: Bus,
        counters: Arc<Counters>,
        stop: CancellationToken,
    ) -> io::Result<Self> {
        counters.is_up.store(true, Ordering::Relaxed);
        let seed = u64::from_ne_bytes(random_bytes()?);
        let shortest = Duration::from_millis(50);
        let first = (settings.backoff_max / 100).max(shortest);
        Ok(Self {
            backoff: Backoff::with_jitter(first, settings.backoff_max, seed),
            rest: Backoff::with_jitter(shortest, Duration::from_secs(5), seed),
            settings,
            bus,
            counters,
            stop,
            work: Work::Idle(destination),
            gathered: Batch::default(),
            closes_at: None,
            letters: Letters::default(),
            replay: None,
            replay_at: None,
            told: String::new(),
            told_unplaced: false,
            told_file: String::new(),
            told_looped: false,
            said_up: None,
            said_report: None,
        })
    }

    /// Takes messages until it is stopped.
    pub(super) async fn run(mut self) {
        loop {
            let began = Instant::now();
            let ended = self.carry().await;
            // Messages that were not acknowledged come again, from the broker.
            self.gathered = Batch::default();
            self.closes_at = None;
            self.letters = Letters::default();
            self.work = match std::mem::replace(&mut self.work, Work::Between) {
                Work::Delivering(delivery) => tokio::select! {
                    () = self.stop.cancelled() => break,
                    done = delivery => Work::Idle(done.destination),
                },
                Work::Resting(destination, ..) => Work::Idle(destination),
                other => other,
            };
            let Ended::Broken(error) = ended else { break };
            if let Work::Idle(destination) = &mut self.work {
                destination.begin_anew();
            }
            self.step_back();
            let error = tidegate_message::error_chain(&error);
            tracing::warn!(sink = %self.settings.name, %error, "the sink's session broke off");
            if began.elapsed() > Duration::from_secs(10) {
                self.rest.reset();
            }
            let pause = self.rest.next_wait();
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        tracing::info!(sink = %self.settings.name, report = %self.counters.report(), "sink stopped");
    }

    /// One connection to the broker, until it ends.
    async fn carry(&mut self) -> Ended {
        let opened = tokio::select! {
            () = self.stop.cancelled() => return Ended::Stopped,
            opened = Session::open(&self.settings, &self.bus) => opened,
        };
        let mut session = match opened {
            Ok(session) => session,
            Err(error) => return Ended::Broken(error),
        };
        self.said_up = None;
        self.said_report = None;
        self.told_unplaced = false;
        let ended = match self.turn(&mut session).await {
            Ok(()) => Ended::Stopped,
            Err(error) => Ended::Broken(error),
        };
        if matches!(ended, Ended::Stopped)
            && let Err(error) = self.leave(&mut session)
        {
            let error = tidegate_message::error_chain(&error);
            tracing::debug!(sink = %self.settings.name, %error, "the sink left without a farewell");
        }
        ended
    }

    async fn turn(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let mut leaves_at: Option<Instant> = None;
        let interval = self.settings.sys_interval;
        let mut reports_at = (!interval.is_zero()).then(Instant::now);
        loop {
            let now = Instant::now();
            loop {
                self.drain(session)?;
                // Before the next batch: letters that cannot be sent hold it up no longer.
                self.send_letters(session, now)?;
                self.keep_unplaced(session, now);
                if !self.begin(now, leaves_at.is_some()) {
                    break;
                }
            }
            if leaves_at.is_some_and(|at| now >= at || self.is_done()) {
                return Ok(());
            }
            self.say(session, &mut reports_at, now)?;
            let waits = matches!(self.work, Work::Idle(_)) && self.letters.is_empty();
            let closes_at = self.closes_at.filter(|_| waits);
            let replay_at = self.replay_at.filter(|_| waits);
            let Letters { pauses_until, file_rests_until, .. } = self.letters;
            let wakes_at =
                [leaves_at, closes_at, reports_at, replay_at, pauses_until, file_rests_until];
            let wakes_at = wakes_at.into_iter().flatten().min();
            // While there is no room, messages wait at the broker.
            let takes = !self.is_full();
            tokio::select! {
                biased;
                () = self.stop.cancelled(), if leaves_at.is_none() => {
                    leaves_at = Some(Instant::now() + GRACE);
                }
                done = self.work.next() => self.finish(session, done),
                () = sleep_until(wakes_at.unwrap_or(now)), if wakes_at.is_some() => {}
                turned = session.turn(takes) => turned?,
            }
        }
    }

    /// Whether nothing is held that could be handed over now.
    fn is_done(&self) -> bool {
        let is_idle = match self.work {
            Work::Idle(_) => self.gathered.is_empty(),
            // A batch that was refused a moment ago is not taken now.
            Work::Resting(..) => true,
            Work::Delivering(_) | Work::Between => false,
        };
        is_idle && self.letters.is_empty()
    }

    fn is_full(&self) -> bool {
        self.gathered.records().len() >= self.settings.batch_messages as usize
            || self.gathered.bytes() >= self.settings.batch_bytes
    }

    /// Takes answers, and messages as long as there is room for them.
    fn drain(&mut self, session: &mut Session) -> Result<(), SessionError> {
        while let Some((number, reason)) = session.next_answer()? {
            self.answered(session, number, reason);
        }
        while !self.is_full()
            && let Some(record) = session.next_message()?
        {
            if self.gathered.is_empty() {
                self.closes_at = Some(Instant::now() + self.settings.batch_age);
            }
            self.gathered.push(record);
        }
        Ok(())
    }

    /// Hands over what is due; whether there is room again.
    fn begin(&mut self, now: Instant, is_last: bool) -> bool {
        let is_due = self.is_full() || is_last || self.closes_at.is_some_and(|at| at <= now);
        let is_free = matches!(self.work, Work::Idle(_)) && self.letters.is_empty();
        match std::mem::replace(&mut self.work, Work::Between) {
            Work::Idle(destination) if is_free && !is_last && self.has_replay(now) => {
                match self.next_replayed(now) {
                    Some(batch) => self.deliver(destination, batch),
                    None => self.work = Work::Idle(destination),
                }
                return true;
            }
            Work::Idle(destination) if is_free && is_due && !self.gathered.is_empty() => {
                self.closes_at = None;
                let batch = std::mem::take(&mut self.gathered);
                self.deliver(destination, batch);
                return true;
            }
            Work::Resting(destination, batch, until) if until <= now => {
                self.deliver(destination, batch);
            }
            other => self.work = other,
        }
        false
    }

    /// Whether refused messages are to be given to the destination again.
    fn has_replay(&mut self, now: Instant) -> bool {
        let Some(file) = &self.settings.refused else { return false };
        if self.replay.is_none() && self.replay_at.is_none_or(|at| at <= now) {
            self.replay_at = Some(now + REPLAY_PAUSE);
            match Replay::open(file) {
                Ok(Some(replay)) => {
                    tracing::info!(sink = %self.settings.name, file = %file.replay().display(),
                        "refused messages are given to the destination again");
                    self.replay = Some(replay);
                }
                Ok(None) => {}
                Err(error) => self.tell_file(&error),
            }
        }
        self.replay.is_some()
    }

    /// The next of these messages; none where that was all, or they cannot be read.
    fn next_replayed(&mut self, now: Instant) -> Option<Batch> {
        let SinkSettings { name, batch_messages, batch_bytes, .. } = &self.settings;
        let read = self.replay.as_mut()?.next(*batch_messages, *batch_bytes);
        match read {
            Ok(Some(batch)) => return Some(batch),
            Ok(None) => {
                tracing::info!(sink = %name, "all refused messages were given to the destination again");
            }
            Err(error) => self.tell_file(&error),
        }
        self.replay = None;
        self.replay_at = Some(now + REPLAY_PAUSE);
        None
    }

    /// The batch under way was dropped with all that was to become of it.
    fn step_back(&mut self) {
        if let Some(Err(error)) = self.replay.as_mut().map(Replay::step_back) {
            self.tell_file(&error);
            self.replay = None;
        }
    }

    fn deliver(&mut self, mut destination: Box<dyn Destination>, batch: Batch) {
        let limit = self.settings.timeout;
        self.work = Work::Delivering(Box::pin(async move {
            let result = within(limit, &batch, destination.deliver(&batch)).await;
            Done { destination, batch, result }
        }));
    }

    fn finish(&mut self, session: &mut Session, done: Option<Done>) {
        // A rest is over.
        let Some(Done { destination, batch, result }) = done else { return };
        let looped = batch.take_passed_over();
        if looped > 0 {
            add(&self.counters.looped, looped);
            // Where two nodes send each other what they get, it is of all of it.
            if !std::mem::replace(&mut self.told_looped, true) {
                tracing::warn!(sink = %self.settings.name, count = looped,
                    "messages that were at that broker before are not sent again; further ones are only counted");
            }
        }
        match result {
            Ok(refusals) => {
                self.work = Work::Idle(destination);
                self.backoff.reset();
                if !self.counters.is_up.swap(true, Ordering::Relaxed) {
                    tracing::info!(sink = %self.settings.name, report = %self.counters.report(), "sink up");
                }
                self.told.clear();
                self.taken(session, batch, refusals);
            }
            Err(trouble) => {
                add(&self.counters.failures, 1);
                self.counters.is_up.store(false, Ordering::Relaxed);
                let pause = self.backoff.next_wait();
                let pause = trouble.after.map_or(pause, |after| after.max(pause));
                let error = tidegate_message::error_chain(&trouble);
                // An unchanged error is not logged again.
                if error != self.told {
                    tracing::warn!(sink = %self.settings.name, %error, messages = batch.records().len(), "sink down; it tries again");
                    self.told = error;
                }
                self.work = Work::Resting(destination, batch, Instant::now() + pause);
            }
        }
    }

    /// Acknowledges the messages taken; refused ones go to the dead letter topic first.
    fn taken(&mut self, session: &mut Session, batch: Batch, refusals: Vec<Refusal>) {
        let count = batch.records().len() as u64 - refusals.len() as u64;
        add(&self.counters.batches, 1);
        add(&self.counters.messages, count);
        add(&self.counters.refused, refusals.len() as u64);
        if let Some(first) = refusals.first() {
            let topic = &batch.records()[first.place].topic;
            tracing::warn!(sink = %self.settings.name, count = refusals.len(), %topic, reason = %first.reason,
                dead_letter = self.settings.dead_letter.as_deref().unwrap_or("none"), "the destination refuses messages for good");
        }
        let has_letters = self.settings.dead_letter.is_some();
        let mut refusals = refusals.into_iter().peekable();
        for (place, mut record) in batch.into_records().into_iter().enumerate() {
            if let Some(Refusal { reason, at, .. }) =
                refusals.next_if(|refusal| refusal.place == place)
            {
                record.time = at.unwrap_or(record.time);
                let letter = Letter { record, reason };
                match has_letters {
                    true => self.letters.waiting.push_back(letter),
                    false => self.letters.unplaced.push(letter),
                }
                continue;
            }
            add(&self.counters.bytes, record.payload.len() as u64);
            if let Some(id) = record.packet_id {
                session.acknowledge(id);
            }
        }
    }

    fn send_letters(&mut self, session: &mut Session, now: Instant) -> Result<(), SessionError> {
        if self.letters.pauses_until.is_some_and(|until| until > now) {
            return Ok(());
        }
        self.letters.pauses_until = None;
        while self.letters.sent.len() < LETTERS_MAX
            && session.has_room()
            && let Some(letter) = self.letters.waiting.pop_front()
        {
            self.send_letter(session, letter)?;
        }
        Ok(())
    }

    /// Writes the messages that cannot lie in a dead letter topic to the sink's file, and acknowledges those that are there. Where it takes
    /// none, the sink waits.
    fn keep_unplaced(&mut self, session: &mut Session, now: Instant) {
        let Letters { unplaced, file_rests_until, .. } = &mut self.letters;
        if unplaced.is_empty() || file_rests_until.is_some_and(|until| until > now) {
            return;
        }
        *file_rests_until = None;
        let counter = match self.settings.refused {
            Some(_) => &self.counters.kept,
            None => &self.counters.lost,
        };
        let count = match &self.settings.refused {
            // They would come again forever.
            None => Ok(unplaced.len()),
            Some(file) => {
                file.append(unplaced.iter().map(|letter| (&letter.record, &*letter.reason)))
            }
        };
        let settled = unplaced.drain(..*count.as_ref().unwrap_or(&0));
        add(counter, settled.len() as u64);
        for id in settled.filter_map(|letter| letter.record.packet_id) {
            session.acknowledge(id);
        }
        if unplaced.is_empty() {
            self.told_file.clear();
            return;
        }
        *file_rests_until = Some(now + LETTER_PAUSE);
        self.counters.is_up.store(false, Ordering::Relaxed);
        match count {
            Ok(_) => self.tell_file(&"it is as long as refused_bytes_max allows"),
            Err(error) => self.tell_file(&error),
        }
    }

    /// Reports that the file of refused messages does not serve, once for each reason.
    fn tell_file(&mut self, error: &dyn Display) {
        let error = error.to_string();
        if error != self.told_file {
            let file = self.settings.refused.as_ref().map(RefusedFile::refused);
            tracing::error!(sink = %self.settings.name, file = %file.unwrap_or_default().display(), %error,
                "the file of refused messages cannot be used: the sink waits until it can; look at them by tidegate sinks");
            self.told_file = error;
        }
    }

    fn send_letter(&mut self, session: &mut Session, letter: Letter) -> Result<(), SessionError> {
        let topic = self.settings.dead_letter.as_deref();
        let topic = topic.expect("letters wait only where there is a topic for them");
        let reason = &letter.reason[..letter.reason.floor_char_boundary(REASON_BYTES_MAX)];
        // A destination may quote what it was given; MQTT's text has no U+0000.
        let reason = reason.replace('\0', " ");
        let mut properties = vec![
            ("tidegate-sink", &*self.settings.name),
            ("tidegate-topic", &*letter.record.topic),
            ("tidegate-reason", &*reason),
        ];
        properties.extend(letter.record.id.as_deref().map(|id| (ID_PROPERTY, id)));
        match session.send_letter(topic, &letter.record.payload, properties)? {
            Some(number) => drop(self.letters.sent.insert(number, letter)),
            None => self.take_back(letter, &"it is longer than a packet may be"),
        }
        Ok(())
    }

    /// A message will lie in no dead letter topic.
    fn take_back(&mut self, letter: Letter, why: &dyn Display) {
        // One such failure means many.
        if !std::mem::replace(&mut self.told_unplaced, true) {
            let file = self.settings.refused.as_ref().map(RefusedFile::refused).unwrap_or_default();
            let becomes = if self.settings.refused.is_some() { "kept in the file" } else { "lost" };
            tracing::error!(sink = %self.settings.name, topic = %letter.record.topic,
                dead_letter = self.settings.dead_letter.as_deref().unwrap_or("none"), %why, file = %file.display(),
                "a refused message cannot lie in the dead letter topic: it is {becomes}, and others like it are only counted");
        }
        self.letters.unplaced.push(letter);
    }

    /// The broker has answered a message of the sink's own, which may be a letter.
    fn answered(&mut self, session: &mut Session, number: u64, reason: ReasonCode) {
        let Some(letter) = self.letters.sent.remove(&number) else { return };
        if reason == ReasonCode::QUOTA_EXCEEDED {
            self.letters.waiting.push_front(letter);
            self.letters.pauses_until = Some(Instant::now() + LETTER_PAUSE);
            return;
        }
        // A success to MQTT; but letters are not retained, so that it is gone.
        if reason.is_failure() || reason == ReasonCode::NO_MATCHING_SUBSCRIBERS {
            self.take_back(letter, &reason);
            return;
        }
        add(&self.counters.dead_lettered, 1);
        if let Some(id) = letter.record.packet_id {
            session.acknowledge(id);
        }
    }

    /// Tells under `$SYS` what is new.
    fn say(
        &mut self,
        session: &mut Session,
        reports_at: &mut Option<Instant>,
        now: Instant,
    ) -> Result<(), SessionError> {
        let name = &self.settings.name;
        let is_up = self.counters.is_up.load(Ordering::Relaxed);
        if self.said_up != Some(is_up) {
            self.said_up = Some(is_up);
            let state: &[u8] = if is_up { b"1" } else { b"0" };
            session.send_state(&sys_topic(name, "state"), state)?;
        }
        if reports_at.is_some_and(|at| at <= now) {
            *reports_at = Some(now + self.settings.sys_interval);
            let report = self.counters.report();
            if self.said_report != Some(report) {
                self.said_report = Some(report);
                let json = serde_json::to_vec(&report).expect("numbers are JSON");
                session.send_state(&sys_topic(name, "report"), &json)?;
            }
        }
        Ok(())
    }

    fn leave(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let mut report_now = Some(Instant::now());
        self.say(session, &mut report_now, Instant::now())?;
        session.farewell()
    }
}

/// The result of delivering `batch`, or trouble once it has made no step for `limit`.
async fn within(
    limit: Duration,
    batch: &Batch,
    mut delivering: Pin<Box<dyn Future<Output = Result<Vec<Refusal>, Trouble>> + Send + '_>>,
) -> Result<Vec<Refusal>, Trouble> {
    loop {
        let before = batch.steps();
        match timeout(limit, &mut delivering).await {
            Ok(result) => return result,
            Err(_) if batch.steps() > before => {}
            Err(_) => {
                let text =
                    format!("the destination made no progress with a batch within {limit:?}");
                return Err(Trouble::new(text));
            }
        }
    }
}

impl Work {
    /// The outcome of the batch under way; none when a rest is over.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    async fn next(&mut self) -> Option<Done> {
        match self {
            Self::Delivering(delivery) => Some(delivery.await),
            Self::Resting(.., until) => {
                sleep_until(*until).await;
                None
            }
            Self::Idle(_) | Self::Between => std::future::pending().await,
        }
    }
}

impl Letters {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty() && self.unplaced.is_empty()
    }
}
