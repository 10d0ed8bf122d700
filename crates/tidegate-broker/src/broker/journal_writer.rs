//! The records that a shard writes to its journal.
//!
//! One record has a message for all of this shard: it is put together while the message is handed out, and appended after that
//! and before anything leaves.

use std::{collections::VecDeque, num::NonZeroU64, sync::Arc};

use tidegate_journal::{
    CameFrom, Journal, JournalCounts, JournalError, Opened, Options, RECORD_ADDS, Record,
    RetainedAs, Sent, StoredMessage, StoredWill, Waiting, user_bytes,
};
use tidegate_message::{IdentityKind, Instant, Payload, Position};
use tidegate_wire::mqtt::{PacketId, QoS};

pub(super) mod checkpoint;

use self::checkpoint::{Checkpoint, NoRoom};
use super::{Broker, Peer, lacking::Lacking};
use crate::{
    connection::WillMessage,
    message::{Body, Message, MessageRef},
    queue::Queued,
    retained::is_written,
    routes::Route,
    session::Session,
    shared::Shared,
    slab::Key,
    subscription::SubscriptionOptions,
};

/// Names what one shard sent to another: its shard in the low byte, the number above that. One word, since it goes with every
/// message between shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin(NonZeroU64);

impl Origin {
    fn new(shard: usize, number: u64) -> Self {
        Self(NonZeroU64::new(number << 8 | shard as u64).expect("numbers begin at 1"))
    }

    fn shard(self) -> u8 {
        self.0.get() as u8
    }

    fn number(self) -> u64 {
        self.0.get() >> 8
    }
}

/// The numbers that were given last.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) session: u64,
    pub(super) message: u64,
    pub(super) sent: u64,
    received: Option<Instant>,
}

impl Numbers {
    /// When a message that is written down was received: later than the one before. With the identifier in a session that is what another
    /// node knows it by, and identifiers begin again at each start: of messages that were read at once, one could pass for another.
    pub(super) fn received(&mut self, now: Instant) -> Instant {
        let after =
            self.received.map(|last| Instant::from_nanos(last.as_nanos().saturating_add(1)));
        let received = after.map_or(now, |after| now.max(after));
        self.received = Some(received);
        received
    }
}

/// The journal and what waits for it.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) journal: Box<dyn Journal>,
    shared: Arc<Shared>,
    /// Whether records become durable only later.
    pub(super) is_gated: bool,
    /// Records before it are durable.
    pub(super) durable: Position,
    /// It took no record when it was tried last.
    pub(super) is_failing: bool,
    /// For how many bytes it had no room then, at most [`WANTED_MAX`].
    pub(super) wanted: usize,
    /// For how many bytes in reserve it had none, at most [`WANTED_MAX`], and how often it is still asked for them.
    wanted_lasting: (usize, u8),
    /// Why.
    pub(super) error: Option<JournalError>,
    /// Why the last checkpoint that was given up found no room.
    refusal: Option<JournalError>,
    /// Whether it had room when it was last asked for some.
    pub(super) has_room: bool,
    /// Whether records may take the room that is held in reserve.
    uses_reserve: bool,
    pub(super) lacking: Lacking,
    /// Whether the shards know that a record which others rely on is missing.
    is_lacking: bool,
    /// Bytes of the records that room is held in reserve for, when they were counted last, and of such records since.
    pub(super) reserved: Reserved,
    pub(super) reserved_since: Reserved,
    /// Bytes that were appended, and that are to be reserved for what was, since it was looked whether there is room for more.
    unlooked: u64,
    scratch: Vec<u8>,
    /// Of the last record that an answer may depend on.
    pub(super) recorded: Option<Position>,
    /// Of the last record.
    pub(super) last: Option<Position>,
    recording: Recording,
    /// By shard, what was sent there, until it is in the journal there.
    pub(super) unconfirmed: Vec<VecDeque<Unconfirmed>>,
    /// Bytes of their records, alone.
    pub(super) unconfirmed_bytes: u64,
    /// By shard, the last that came from there, and the last of it that is reported as written here.
    pub(super) seen: Vec<u64>,
    pub(super) told: Vec<u64>,
    pub(super) seen_later: VecDeque<(Position, usize, u64)>,
    pub(super) owed: VecDeque<Owed>,
    /// The parts for other shards of the message that is being handed out.
    pub(super) sending: Vec<(usize, Peer)>,
    /// By shard.
    pub(super) peers_later: Vec<VecDeque<(Position, Peer)>>,
    pub(super) connections_later: VecDeque<(Position, Key)>,
    pub(super) checkpoint: Option<Checkpoint>,
    /// Whether it is to let go of what it can, since a journal has no room.
    pub(super) is_short: bool,
    /// A timer for it is set.
    pub(super) is_watched: bool,
    /// The checkpoint since which parts that are gone gave up messages for want of room.
    pub(super) gave_way_since: Option<u64>,
    /// Bytes of the journal after the last checkpoint.
    pub(super) checkpoint_bytes: u64,
    /// The last time that there was no room for a checkpoint, unless there was since.
    pub(super) no_room: Option<NoRoom>,
    pub(super) counts: JournalCounts,
}

/// The record of the message that is being handed out.
#[derive(Debug, Default)]
struct Recording {
    number: u64,
    /// Plain subscriptions have had theirs.
    is_shared: bool,
    origin: Option<Origin>,
    noted: Option<(u64, PacketId)>,
    retained: Option<RetainedAs>,
    waiting: Vec<Waiting>,
    sent: Vec<(u8, u64, Sent)>,
}

/// Messages that another shard has not confirmed.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    pub(super) number: u64,
    pub(super) topic: Arc<str>,
    /// None clears what is retained.
    pub(super) message: Option<Arc<Message>>,
    pub(super) sent: Sent,
}

impl Unconfirmed {
    /// Bytes of its record: about, and not less.
    pub(super) fn bytes(&self) -> u64 {
        let message = self.message.as_deref().map_or(0, Message::record_bytes);
        let sent = match &self.sent {
            Sent::Retained(RetainedAs { client, source, .. }) => {
                let client = client.as_deref().map_or(0, str::len) as u64;
                client
                    + source.as_ref().map_or(0, |source| user_bytes(&source.user, &source.groups))
            }
            Sent::Group(name) => name.len() as u64,
            Sent::Plain => 0,
        };
        RECORD_ADDS + self.topic.len() as u64 + message + sent
    }
}

/// Bytes of records that a journal must find room for, whatever else fills the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reserved {
    /// Of what no subscriber takes away by receiving it: sessions, retained messages.
    pub(super) lasting: u64,
    /// Of those by which exchanges of QoS 2 and wills end.
    pub(super) exchanges: u64,
}

impl Reserved {
    pub(super) fn bytes(&self) -> u64 {
        self.lasting + self.exchanges
    }

    pub(super) fn add(&mut self, other: Self) {
        self.lasting += other.lasting;
        self.exchanges += other.exchanges;
    }
}

/// An answer that waits for the disk.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) after: Position,
    pub(super) key: Key,
    pub(super) packet: Vec<u8>,
}

/// A journal that has room for so much takes records again, whatever it had no room for.
const WANTED_MAX: usize = 1 << 20;
/// It is asked so often for room in reserve that it did not have.
const LASTING_TRIES: u8 = 16;
/// Approximate bytes of a record besides its message.
const RECORD_BYTES: usize = 4 << 10;
/// And for each session that waits.
const WAITING_BYTES: usize = 64;
/// Bytes of the records by which a QoS 2 exchange with a subscriber ends: that it begins, that PUBREC came, that PUBCOMP came.
pub(super) const EXCHANGE_BYTES: u64 = 3 * RECORD_ADDS;
/// Room for what comes while it is looked whether there is room, and during a checkpoint.
pub(super) const SLACK_BYTES: u64 = 64 << 10;

impl Keeper {
    pub(super) fn new(journal: Box<dyn Journal>, shared: Arc<Shared>) -> Self {
        let shards = shared.shards();
        Self {
            is_gated: journal.is_gated(),
            durable: journal.durable(),
            journal,
            shared,
            is_failing: false,
            wanted: 0,
            wanted_lasting: (0, 0),
            error: None,
            refusal: None,
            has_room: true,
            uses_reserve: false,
            lacking: Lacking::new(shards),
            is_lacking: false,
            reserved: Reserved::default(),
            reserved_since: Reserved::default(),
            // No room is held in reserve yet.
            unlooked: SLACK_BYTES + 1,
            scratch: Vec::new(),
            recorded: None,
            last: None,
            recording: Recording::default(),
            unconfirmed: (0..shards).map(|_| VecDeque::new()).collect(),
            unconfirmed_bytes: 0,
            seen: vec![0; shards],
            told: vec![0; shards],
            seen_later: VecDeque::new(),
            owed: VecDeque::new(),
            sending: Vec::new(),
            peers_later: (0..shards).map(|_| VecDeque::new()).collect(),
            connections_later: VecDeque::new(),
            checkpoint: None,
            is_short: false,
            is_watched: false,
            gave_way_since: None,
            checkpoint_bytes: 0,
            no_room: None,
            counts: JournalCounts::default(),
        }
    }

    /// Replaces a writer that took nothing: records that other shards have not confirmed, and reports to them, stay as they are.
    pub(super) fn succeed(&mut self, former: Self) {
        // Whether it takes records shows when it is tried.
        self.is_failing = former.is_failing;
        self.unconfirmed = former.unconfirmed;
        self.unconfirmed_bytes = former.unconfirmed_bytes;
        self.lacking = former.lacking;
        self.is_lacking = former.is_lacking;
        self.seen = former.seen;
        self.told = former.told;
        self.is_watched = former.is_watched;
        self.counts = former.counts;
    }

    /// Appends a record. One that cannot be appended is counted; then nothing more is promised, until a checkpoint has made up for it.
    pub(super) fn append(&mut self, record: &Record) -> Option<Position> {
        self.append_with(record, record.makes_room())
    }

    /// Appends a record for which no room is held in reserve, though there is for others of its kind.
    pub(super) fn append_spare(&mut self, record: &Record) {
        self.append_with(record, false);
    }

    /// Appends a record by which something ends that room is held in reserve for.
    fn append_end(&mut self, record: &Record) -> Option<Position> {
        self.append_with(record, true)
    }

    fn append_with(&mut self, record: &Record, may_use_reserve: bool) -> Option<Position> {
        match self.put(record, may_use_reserve) {
            Ok(position) => Some(position),
            Err(error) => {
                self.lacking.note(record);
                self.tell_lacking();
                self.fail(&error);
                None
            }
        }
    }

    /// Appends a record of a checkpoint. One that cannot be appended is counted, and nothing more is lacking than before: the record that it
    /// repeats is still there.
    pub(super) fn repeat(&mut self, record: &Record) -> Option<Position> {
        match self.put(record, record.makes_room()) {
            Ok(position) => Some(position),
            Err(error) => {
                self.refusal = Some(error);
                None
            }
        }
    }

    /// The checkpoint that begins the journal found no room.
    pub(super) fn lack_all(&mut self) {
        self.lacking.note_all();
        self.tell_lacking();
        if let Some(error) = self.refusal.take() {
            self.fail(&error);
        }
    }

    fn put(&mut self, record: &Record, may_use_reserve: bool) -> Result<Position, JournalError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        record.encode(&mut scratch);
        let payload = record.payload();
        let bytes = RECORD_ADDS + (scratch.len() + payload.len()) as u64;
        let may_too = may_use_reserve && !self.uses_reserve;
        if may_too {
            self.journal.use_reserve(true);
        }
        let appended = self.journal.append(&scratch, &payload);
        if may_too {
            self.journal.use_reserve(false);
        }
        self.scratch = scratch;
        match appended {
            Ok(position) => {
                self.counts.records += 1;
                if record.is_lasting() {
                    self.reserved_since.lasting += bytes;
                }
                let (exchanges, received) = record.begins();
                let exchanges = EXCHANGE_BYTES * exchanges as u64 + RECORD_ADDS * received as u64;
                self.reserved_since.exchanges += exchanges;
                self.unlooked += bytes + exchanges;
                self.recorded = Some(position);
                self.last = Some(position);
                Ok(position)
            }
            Err(error) => {
                self.counts.failures += 1;
                self.has_room = false;
                Err(error)
            }
        }
    }

    /// Whether records of so many bytes can be appended, and all that is relied on until now was.
    pub(super) fn ensure(&mut self, bytes: usize) -> bool {
        self.ensure_with(bytes, 0)
    }

    /// Whether there is room now for what there was none for. The reserve cannot always grow, whatever becomes of the disk: after a while no
    /// more of it is asked for.
    pub(super) fn try_again(&mut self) -> bool {
        let (lasting, tries) = self.wanted_lasting;
        let has_room = self.ensure_with(self.wanted.max(1), if tries > 0 { lasting } else { 0 });
        self.wanted_lasting = (lasting, tries.saturating_sub(1));
        has_room
    }

    /// Tells the shards whether what is relied on is lacking.
    pub(super) fn tell_lacking(&mut self) {
        let is_lacking = self.lacking.is_relied_on();
        if std::mem::replace(&mut self.is_lacking, is_lacking) != is_lacking {
            self.shared.note_lacking(is_lacking);
        }
    }

    /// Lets records take the room that is held in reserve from now on, or no longer.
    pub(super) fn use_reserve(&mut self, may: bool) {
        self.uses_reserve = may;
        self.journal.use_reserve(may);
    }

    /// Looks whether there is room where records were appended for long without asking: those of messages from other shards are.
    pub(super) fn look_for_room(&mut self) {
        if self.unlooked > SLACK_BYTES {
            self.ensure(SLACK_BYTES as usize);
        }
    }

    /// The same; so many of the bytes may be of what no subscriber takes away.
    fn ensure_with(&mut self, bytes: usize, lasting: usize) -> bool {
        self.unlooked = 0;
        // A checkpoint says again what is counted already.
        let since = if self.checkpoint.is_some() { 0 } else { self.reserved_since.bytes() };
        let all = self.reserved.bytes() + since + self.unconfirmed_bytes + lasting as u64;
        // Records that come until it is looked again are not counted yet.
        self.journal.want_reserve(all + all / 4 + 2 * SLACK_BYTES);
        let ensured = match self.journal.failure() {
            Some(error) => Err(error),
            None => self.journal.ensure(bytes),
        };
        self.has_room = ensured.is_ok();
        match ensured {
            // Later records would be lost with earlier ones that they rely on: with their session, say.
            Ok(()) if self.lacking.is_relied_on() => false,
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                self.error = None;
                self.shared.note_journal(false);
                tracing::info!("the journal of the MQTT sessions takes records again");
                true
            }
            Ok(()) => true,
            Err(error) => {
                self.wanted = bytes.min(WANTED_MAX);
                self.wanted_lasting = (lasting.min(WANTED_MAX), LASTING_TRIES);
                self.fail(&error);
                false
            }
        }
    }

    pub(super) fn fail(&mut self, error: &JournalError) {
        self.error.get_or_insert_with(|| error.clone());
        if !self.is_failing {
            self.is_failing = true;
            self.shared.note_journal(true);
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::error!(code = %error.code(), %error, cause, "messages that are to be kept are refused from now on");
        }
    }

    /// A session waits for a message no longer.
    pub(super) fn done(&mut self, session: u64, number: u64) {
        if session == 0 || number == 0 {
            return;
        }
        let own = self.recording.number;
        if own > 0 && number >= own {
            // It is not written yet.
            let is_it =
                |waiting: &Waiting| waiting.session == session && own.max(waiting.again) == number;
            self.recording.waiting.retain(|waiting| !is_it(waiting));
        } else {
            self.append(&Record::Done { session, number });
        }
    }

    /// Writes a message for one session that waits for it.
    pub(super) fn write_queued(&mut self, session: u64, queued: &Queued) {
        let waiting = waiting(session, queued, None);
        let record = message_record(queued.begun(), queued.number, None, waiting);
        if self.append(&record).is_none() {
            self.lacking.note_arrival(&record);
        }
    }

    /// Where the last record is.
    pub(super) fn last_record(&self) -> Option<Position> {
        self.last
    }

    /// Whether the record at that position, if it is one, is durable.
    pub(super) fn is_durable(&self, position: Position) -> bool {
        position < self.durable
    }
}

/// Most bytes that the record of a message takes, about: for so many sessions here, and for all shards.
pub(super) fn record_bytes(message: &MessageRef<'_>, sessions: usize, shards: usize) -> usize {
    let texts = message.payload.len() + message.topic.len() + message.forwarded.len();
    texts + WAITING_BYTES * (sessions + shards) + RECORD_BYTES
}

/// See [`Keeper::done`].
pub(super) fn done(keeper: &mut Option<Box<Keeper>>, session: &Session, number: u64) {
    if let Some(keeper) = keeper {
        keeper.done(session.number, number);
    }
}

impl Broker {
    /// Counts of the shard's journal, if it has one.
    pub fn journal_counts(&self) -> Option<JournalCounts> {
        let keeper = self.keeper.as_ref()?;
        Some(JournalCounts { bytes: keeper.journal.bytes(), ..keeper.counts })
    }

    /// Writes a record, if there is a journal and the session is written down.
    pub(super) fn write(&mut self, session: u64, record: impl FnOnce() -> Record) {
        if session > 0
            && let Some(keeper) = &mut self.keeper
        {
            keeper.append(&record());
        }
    }

    // ---- sessions

    /// Writes that a client has come to its session, or that its session is one that ends with its connection from now on.
    pub(super) fn write_opened(&mut self, now: Instant, key: Key) {
        let Some(keeper) = &mut self.keeper else { return };
        let session = self.sessions.get_mut(key).expect("it was just opened");
        if session.is_kept() {
            if session.number == 0 {
                self.numbers.session += 1;
                session.number = self.numbers.session;
            }
            let connection = session.connection.and_then(|key| self.connections.get(key));
            let will = connection.and_then(|connection| connection.will.as_deref());
            if keeper.append(&opened(session, will)).is_some() {
                session.will_is_written = will.is_some();
            } else {
                self.write_will_ended(now, key);
            }
        } else if session.number > 0 {
            self.write_will_ended(now, key);
            let session = self.sessions.get_mut(key).expect("it was just opened");
            let number = std::mem::take(&mut session.number);
            self.write(number, || Record::Ended { session: number });
        }
    }

    /// Writes that a will is not to come after a restart which would by the records, whatever fills the disk; the session as if it had no
    /// connection.
    pub(super) fn write_will_ended(&mut self, now: Instant, key: Key) {
        let Some(keeper) = &mut self.keeper else { return };
        let session = self.sessions.get_mut(key).filter(|session| session.will_is_written);
        let Some(session) = session.filter(|session| session.number > 0) else { return };
        let (number, expiry) = (session.number, session.expiry);
        let ends_at = session.ends_at.or(expiry.map(|expiry| now + expiry));
        let record = Record::Closed { session: number, expiry, ends_at, will: None };
        session.will_is_written = keeper.append_end(&record).is_none();
    }

    /// Writes that a session has no connection.
    pub(super) fn write_closed(&mut self, key: Key) {
        if let Some(keeper) = &mut self.keeper
            && let Some(session) = self.sessions.get_mut(key)
            && session.number > 0
        {
            let has_will = session.will.is_some();
            let record = closed(session);
            let appended = match session.will_is_written && !has_will {
                true => keeper.append_end(&record),
                false => keeper.append(&record),
            };
            if appended.is_some() {
                session.will_is_written = has_will;
            }
        }
    }

    // ---- messages

    /// Whether a message is to be written down, on whatever shard.
    #[inline]
    pub(super) fn must_write(&self, route: &Route, message: &MessageRef<'_>) -> bool {
        self.keeper.is_some()
            && ((message.qos > QoS::AtMostOnce && route.is_written())
                || (message.retain && is_written(message.topic)))
    }

    /// Whether it can be.
    #[cold]
    pub(super) fn can_write(&mut self, route: &Route, message: &MessageRef<'_>) -> bool {
        let Some(keeper) = &mut self.keeper else { return true };
        let bytes = record_bytes(message, route.on(self.shard).len(), self.shared.shards());
        // That makes more room than it takes.
        let clears = message.retain && message.payload.is_empty();
        // Until another shard has it in its journal, it stays in this one, whether it was delivered or not.
        let is_lasting = (message.retain && !clears) || self.shared.shards() > 1;
        let lasting = if is_lasting { bytes } else { 0 };
        let can = (keeper.ensure_with(bytes, lasting) && !self.shared.has_failing_journal())
            || (clears
                && keeper.journal.failure().is_none()
                // A session that waits for it must be known to be there after a restart.
                && !(route.is_written() && self.shared.has_lacking_journal())
                && keeper.journal.ensure_last(bytes).is_ok());
        if !can {
            keeper.counts.refused += 1;
        }
        can
    }

    /// The number in the journal of the message that is being handed out, for that session.
    #[inline]
    pub(super) fn message_number(
        keeper: &mut Option<Box<Keeper>>,
        numbers: &mut Numbers,
        session: u64,
    ) -> u64 {
        let Some(keeper) = keeper else { return 0 };
        let recording = &mut keeper.recording;
        let is_known =
            recording.is_shared && recording.waiting.iter().any(|w| w.session == session);
        if recording.number == 0 || is_known {
            numbers.message += 1;
            if is_known {
                return numbers.message;
            }
            recording.number = numbers.message;
        }
        recording.number
    }

    /// The next delivery is by a shared subscription.
    pub(super) fn note_shared(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.recording.is_shared = true;
        }
    }

    /// A session waits for the message that is being handed out, under that number.
    pub(super) fn note_waiting(
        keeper: &mut Option<Box<Keeper>>,
        number: u64,
        mut waiting: Waiting,
    ) {
        if let Some(keeper) = keeper {
            waiting.again = if number == keeper.recording.number { 0 } else { number };
            keeper.recording.waiting.push(waiting);
        }
    }

    /// The message that is handed out next came under that identifier.
    pub(super) fn note_received(&mut self, session: u64, id: PacketId) {
        if session > 0
            && let Some(keeper) = &mut self.keeper
        {
            keeper.recording.noted = Some((session, id));
        }
    }

    /// The message that was handed out is not accepted, so that its identifier is as it was.
    pub(super) fn forget_received(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.recording.noted = None;
        }
    }

    /// Writes the identifier of a message that needed no record of its own.
    pub(super) fn write_received(&mut self) {
        if let Some(keeper) = &mut self.keeper
            && let Some((session, id)) = keeper.recording.noted.take()
        {
            keeper.append(&Record::Noted { session, id });
        }
    }

    /// Begins the record that answers depend on.
    #[inline]
    pub(super) fn begin_record(&mut self, origin: Option<Origin>) {
        if let Some(keeper) = &mut self.keeper {
            keeper.recorded = None;
            keeper.recording.origin = origin;
        }
    }

    /// It is retained under that number, in the journal of the shard that owns its topic.
    pub(super) fn note_retained(
        &mut self,
        message: &MessageRef<'_>,
        held: Option<&Arc<Message>>,
        retained: RetainedAs,
    ) {
        if self.keeper.is_none() || !is_written(message.topic) {
            return;
        }
        let owner = self.shared.owner_of(message.topic);
        if owner == self.shard {
            let keeper = self.keeper.as_mut().expect("looked at above");
            keeper.recording.retained = Some(retained);
            return;
        }
        let sent = || Sent::Retained(retained.clone());
        let topic = message.topic;
        if let Some(origin) = self.note_sent(owner, topic, held, true, sent) {
            let (topic, held) = (topic.clone(), held.cloned());
            self.send(owner, Peer::Retained(topic, held, Box::new(retained), origin));
        }
    }

    /// Writes what another shard retained of a topic that this one owns.
    pub(super) fn write_retained(
        &mut self,
        now: Instant,
        topic: &Arc<str>,
        message: Option<&Arc<Message>>,
        retained: RetainedAs,
    ) {
        if let Some(keeper) = &mut self.keeper {
            keeper.recording.retained = Some(retained);
        }
        let nothing = MessageRef { retain: true, ..MessageRef::new(topic, Body::Read(&[]), now) };
        let retained = message.map_or(nothing, |message| message.borrowed());
        self.end_record(&retained, message);
    }

    /// Notes that the message goes to another shard, to be written there.
    pub(super) fn note_sent(
        &mut self,
        shard: usize,
        topic: &Arc<str>,
        message: Option<&Arc<Message>>,
        is_written: bool,
        sent: impl FnOnce() -> Sent,
    ) -> Option<super::PeerOrigin> {
        let keeper = self.keeper.as_mut().filter(|_| is_written)?;
        self.numbers.sent += 1;
        let (number, sent) = (self.numbers.sent, sent());
        keeper.recording.sent.push((shard as u8, number, sent.clone()));
        let (topic, message) = (topic.clone(), message.cloned());
        let entry = Unconfirmed { number, topic, message, sent };
        keeper.unconfirmed_bytes += entry.bytes();
        keeper.unconfirmed[shard].push_back(entry);
        Some(super::PeerOrigin(Origin::new(self.shard, number)))
    }

    /// Sends to another shard what the message that is being handed out is there.
    pub(super) fn send(&mut self, shard: usize, peer: Peer) {
        match &mut self.keeper {
            Some(keeper) if keeper.is_gated => keeper.sending.push((shard, peer)),
            _ => self.peers[shard].push(peer),
        }
    }

    /// Writes the record of the message that was handed out, if it needs one. False if that found no room.
    #[inline]
    pub(super) fn end_record(
        &mut self,
        message: &MessageRef<'_>,
        held: Option<&Arc<Message>>,
    ) -> bool {
        let mut is_written = true;
        if let Some(keeper) = &mut self.keeper {
            let recording = &keeper.recording;
            let is_needed = !recording.waiting.is_empty()
                || !recording.sent.is_empty()
                || recording.retained.is_some();
            if is_needed || recording.origin.is_some() {
                is_written = keeper.write_message(message, held, is_needed);
            } else {
                (keeper.recording.number, keeper.recording.is_shared) = (0, false);
            }
            if keeper.is_gated {
                self.send_after_disk();
            }
        }
        is_written
    }
}

impl Keeper {
    #[cold]
    fn write_message(
        &mut self,
        message: &MessageRef<'_>,
        held: Option<&Arc<Message>>,
        is_needed: bool,
    ) -> bool {
        let Recording { number, origin, noted, retained, waiting, sent, .. } =
            std::mem::take(&mut self.recording);
        let origin = origin.map(|origin| (origin.shard(), origin.number()));
        let record = if is_needed {
            let payload = match held {
                Some(held) => held.payload.clone(),
                // An empty payload clears a topic.
                None => Payload::default(),
            };
            let forwarded = held.map(|held| held.forwarded.clone()).unwrap_or_default();
            Record::Message(StoredMessage {
                number,
                origin,
                noted,
                retained,
                waiting,
                sent,
                qos: message.qos,
                retain: message.retain,
                is_from_peer: message.is_from_peer,
                expires: message.expires,
                received: message.received,
                topic: message.topic.clone(),
                forwarded,
                payload,
            })
        } else {
            let (shard, number) = origin.expect("the caller looked");
            Record::Seen { shard, number, and_before: false }
        };
        let appended = self.append(&record);
        if let Some((shard, number)) = origin {
            self.seen[usize::from(shard)] = number;
        }
        if appended.is_none() {
            self.lacking.note_arrival(&record);
        }
        appended.is_some()
    }
}

/// How a session waits for a message.
pub(super) fn waiting(session: u64, queued: &Queued, begun: Option<PacketId>) -> Waiting {
    let (qos, retain) = (queued.qos, queued.retain);
    let (ids, group) = (queued.ids.as_slice().to_vec(), queued.group.clone());
    Waiting { session, again: 0, qos, retain, ids, begun, group }
}

/// A message for one session that waits for it.
pub(super) fn message_record(
    message: &Message,
    number: u64,
    origin: Option<(u8, u64)>,
    waiting: Waiting,
) -> Record {
    Record::Message(StoredMessage { number, origin, waiting: vec![waiting], ..message.into() })
}

impl From<&Message> for StoredMessage {
    /// A message without subscribers.
    fn from(message: &Message) -> Self {
        Self {
            number: 0,
            origin: None,
            noted: None,
            retained: None,
            waiting: Vec::new(),
            sent: Vec::new(),
            qos: message.qos,
            retain: message.retain,
            is_from_peer: message.is_from_peer,
            expires: message.expires,
            received: message.received,
            topic: message.topic.clone(),
            forwarded: message.forwarded.clone(),
            payload: message.payload.clone(),
        }
    }
}

pub(super) fn opened(session: &Session, will: Option<&WillMessage>) -> Record {
    let identity = &session.identity;
    Record::Opened(Opened {
        session: session.number,
        client_id: session.client_id.clone(),
        kind: identity.kind,
        user: identity.name.clone(),
        groups: identity.groups.to_vec(),
        version: session.version,
        expiry: session.expiry,
        will: will.map(stored_will),
        from: came_from(session),
        is_peer: session.config.is_peer,
        overflow: Some(session.before_grace.as_ref().unwrap_or(&session.config).overflow.number()),
    })
}

fn came_from(session: &Session) -> Option<CameFrom> {
    let identity = &session.identity;
    match identity.address {
        _ if identity.kind != IdentityKind::Anonymous => None,
        Some(address) => Some(CameFrom::Address(address)),
        // One that an earlier version wrote counts in no share.
        None => session.account.as_ref().map(|_| CameFrom::Machine),
    }
}

pub(super) fn closed(session: &Session) -> Record {
    Record::Closed {
        session: session.number,
        expiry: session.expiry,
        ends_at: session.ends_at,
        will: session.will.as_ref().map(|(will, at)| (stored_will(will), *at)),
    }
}

fn stored_will(will: &WillMessage) -> StoredWill {
    let WillMessage { message, delay, expiry } = will;
    StoredWill {
        topic: message.topic.clone(),
        payload: message.payload.to_contiguous(),
        forwarded: message.forwarded.clone(),
        qos: message.qos,
        retain: message.retain,
        delay: *delay,
        expiry: *expiry,
    }
}

impl From<SubscriptionOptions> for Options {
    fn from(options: SubscriptionOptions) -> Self {
        let SubscriptionOptions { qos, no_local, retain_as_published, id, .. } = options;
        Self { qos, no_local, retain_as_published, id }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_journal::Source;

    use super::checkpoint::cleared;
    use super::*;

    #[test]
    fn a_record_that_no_other_shard_has_confirmed_is_counted_with_client_and_user() {
        let long: Arc<str> = "n".repeat(2_000).into();
        let source = |groups: Arc<[Arc<str>]>| Source {
            kind: IdentityKind::User,
            user: long.clone(),
            groups,
        };
        let retained = |client: Option<&Arc<str>>, source: Option<Source>| {
            Sent::Retained(RetainedAs { sequence: u64::MAX, client: client.cloned(), source })
        };
        let groups: Arc<[Arc<str>]> = (0..20).map(|_| long.clone()).collect();
        for sent in [
            Sent::Plain,
            Sent::Group((*long).into()),
            retained(None, None),
            retained(Some(&long), None),
            retained(Some(&long), Some(source(Arc::default()))),
            retained(Some(&long), Some(source(groups))),
        ] {
            let topic: Arc<str> = "t".into();
            let record = cleared(&topic, vec![(1, u64::MAX, sent.clone())]);
            let mut encoded = Vec::new();
            Record::Message(record).encode(&mut encoded);
            let unconfirmed = Unconfirmed { number: u64::MAX, topic, message: None, sent };
            assert!(unconfirmed.bytes() >= encoded.len() as u64, "{unconfirmed:?}");
        }
    }
}
