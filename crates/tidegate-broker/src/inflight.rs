//! QoS 1 and 2 messages on their way to one subscriber (MQTT 5, section 4.3 and 4.4).

use std::{
    collections::{HashSet, VecDeque},
    num::NonZeroU16,
    sync::Arc,
};

use tidegate_wire::mqtt::{PacketId, QoS};

use crate::{
    accounts::Account,
    bundle::{Publication, Run},
    message::Message,
    queue::Queued,
};

/// The packet that a message in flight waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    Puback,
    Pubrec,
    Pubcomp,
}

#[derive(Debug)]
pub(crate) struct Entry {
    /// Of the first message, if it is a run.
    pub(crate) id: PacketId,
    pub(crate) awaits: Awaits,
    /// The message, where it must be sent again to the next connection.
    pub(crate) kept: Option<Box<Queued>>,
    /// Whether it was sent, so that the next time is a repetition (MQTT-3.3.1-1, MQTT-3.3.1-3).
    pub(crate) is_sent: bool,
    /// Messages under consecutive identifiers, instead of one: they are kept as one, and as long as a connection lasts.
    run: Option<Box<Run>>,
    bytes: u64,
    is_large: bool,
}

impl Entry {
    /// Messages that it stands for.
    pub(crate) fn len(&self) -> usize {
        self.run.as_ref().map_or(1, |run| run.len())
    }

    /// Bytes of messages that are kept for another try.
    fn kept_bytes(&self) -> u64 {
        let one = self.kept.as_ref().map_or(0, |queued| queued.message.charged());
        one + self.run.as_ref().map_or(0, |run| run.charged())
    }
}

/// The exchanges, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Inflight {
    entries: VecDeque<Entry>,
    last_id: u16,
    /// Identifiers after that one that are known to be free.
    free_ahead: u16,
    bytes: u64,
    kept_bytes: u64,
    large: usize,
    /// In whose share what is kept counts.
    account: Option<Arc<Account>>,
    /// Bytes of it that count there while a client is connected, about; otherwise each message counts by itself, and nothing changes.
    noted: Option<u64>,
}

/// The memory of a connected client's exchanges counts in steps, so that the usual exchange costs nothing.
const NOTED_BYTES: u64 = 4 << 10;

impl Inflight {
    /// The kept messages count in the share of `account` from now on.
    pub(crate) fn set_account(&mut self, account: Option<Arc<Account>>, is_connected: bool) {
        self.leave_account();
        if let Some(account) = account.as_ref().filter(|_| !is_connected) {
            self.kept_messages().for_each(|message| message.hold_for(account));
        }
        self.noted = (account.is_some() && is_connected).then_some(0);
        self.account = account;
        self.note();
    }

    fn leave_account(&mut self) {
        let Some(account) = self.account.take() else { return };
        match self.noted.take() {
            Some(noted) => account.subtract(noted),
            None => self.kept_messages().for_each(|message| message.release_for(&account)),
        }
    }

    fn kept_messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        let kept = self.entries.iter().filter_map(|entry| entry.kept.as_ref());
        kept.filter_map(|queued| queued.message.memory())
    }

    /// Something was begun or ended.
    #[inline]
    fn note(&mut self) {
        if let (Some(account), Some(noted)) = (&self.account, &mut self.noted)
            && self.kept_bytes.abs_diff(*noted) > NOTED_BYTES
        {
            account.subtract(*noted);
            account.add(self.kept_bytes);
            *noted = self.kept_bytes;
        }
    }

    /// Exchanges that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().map(Entry::len).sum()
    }

    /// Payload bytes that are on their way.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of messages that are kept for another try.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Large messages among them.
    pub(crate) fn large(&self) -> usize {
        self.large
    }

    /// Begins an exchange.
    pub(crate) fn begin(
        &mut self,
        qos: QoS,
        bytes: usize,
        is_large: bool,
        kept: Option<Box<Queued>>,
    ) -> PacketId {
        let id = self.next_id();
        self.begin_as(id, qos, bytes, is_large, kept);
        self.note_sent(id);
        id
    }

    /// Begins an exchange under an [identifier](Self::next_id) that nothing has begun under yet, and that nothing is
    /// [sent](Self::note_sent) under yet either.
    pub(crate) fn begin_as(
        &mut self,
        id: PacketId,
        qos: QoS,
        bytes: usize,
        is_large: bool,
        kept: Option<Box<Queued>>,
    ) {
        self.push(id, awaited(qos), bytes as u64, is_large, kept);
    }

    /// The exchange that began last, or else the one of that identifier, has had its first PUBLISH.
    pub(crate) fn note_sent(&mut self, id: PacketId) {
        let entry = self.entries.iter_mut().rev().find(|entry| entry.id == id);
        entry.expect("it was begun").is_sent = true;
    }

    fn push(
        &mut self,
        id: PacketId,
        awaits: Awaits,
        bytes: u64,
        is_large: bool,
        kept: Option<Box<Queued>>,
    ) {
        let entry = Entry { id, awaits, kept, is_sent: false, run: None, bytes, is_large };
        self.bytes += bytes;
        self.kept_bytes += entry.kept_bytes();
        self.large += usize::from(is_large);
        self.entries.push_back(entry);
        self.note();
    }

    /// Begins exchanges of QoS 1 for the first messages of a run, as many as there are consecutive identifiers for; gives those that
    /// it did not begin.
    pub(crate) fn begin_run(&mut self, run: &mut Run) -> Option<Run> {
        let first = self.next_id();
        let ahead = self.free_ahead.min(u16::MAX - first.get());
        let more = ahead.min(u16::try_from(run.len() - 1).unwrap_or(u16::MAX));
        self.last_id += more;
        self.free_ahead -= more;
        let rest = run.split_off(usize::from(more) + 1);
        run.begin(first);
        self.push_run(self.entries.len(), run.clone());
        rest
    }

    fn push_run(&mut self, at: usize, run: Run) {
        let bytes = run.payload_bytes();
        self.bytes += bytes;
        self.kept_bytes += run.charged();
        self.note();
        let id = run.first_id().expect("it was begun");
        let (awaits, run) = (Awaits::Puback, Some(Box::new(run)));
        let entry = Entry { id, awaits, kept: None, is_sent: true, run, bytes, is_large: false };
        self.entries.insert(at, entry);
    }

    /// Continues an exchange of an earlier process, which may have sent it: with its message, or accepted already.
    pub(crate) fn restore(&mut self, id: PacketId, kept: Option<Box<Queued>>) {
        let awaits = kept.as_ref().map_or(Awaits::Pubcomp, |queued| awaited(queued.qos));
        let bytes = kept.as_ref().map_or(0, |queued| queued.payload_bytes() as u64);
        self.push(id, awaits, bytes, false, kept);
        self.note_sent(id);
        self.free_ahead = 0;
    }

    /// Continues an exchange of QoS 1 whose identifier is lost: with another one, which is not among `used`.
    pub(crate) fn restore_repeated(&mut self, kept: Box<Queued>, used: &HashSet<PacketId>) {
        let id = loop {
            let id = self.next_id();
            if !used.contains(&id) {
                break id;
            }
        };
        let bytes = kept.payload_bytes() as u64;
        self.push(id, Awaits::Puback, bytes, false, Some(kept));
        self.note_sent(id);
    }

    /// An identifier that is free; another one each time.
    pub(crate) fn next_id(&mut self) -> PacketId {
        loop {
            while self.free_ahead == 0 {
                // How far ahead the nearest identifier in use lies: those before it stay free until they are given.
                let next = self.last_id.wrapping_add(1);
                self.free_ahead = u16::MAX;
                for entry in &self.entries {
                    let len = entry.len() as u16;
                    let passed = next.wrapping_sub(entry.id.get());
                    if passed < len {
                        // In use, with those of its run that follow it.
                        self.free_ahead = 0;
                        self.last_id = next.wrapping_add(len - passed - 1);
                        break;
                    }
                    self.free_ahead = self.free_ahead.min(passed.wrapping_neg());
                }
            }
            self.last_id = self.last_id.wrapping_add(1);
            self.free_ahead -= 1;
            if let Some(id) = NonZeroU16::new(self.last_id) {
                return id;
            }
        }
    }

    fn position(&self, id: PacketId, awaits: Awaits) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == id && entry.awaits == awaits)
    }

    /// Ends the exchanges from `first` on that are of one run, at most `most`; how many they are.
    pub(crate) fn end_run(&mut self, first: PacketId, most: u16) -> u16 {
        let passed = |entry: &Entry| first.get().wrapping_sub(entry.id.get());
        let is_its = |entry: &Entry| usize::from(passed(entry)) < entry.len();
        // Identifiers are in use once: behind one that is no run there is none, and usually the first is found.
        let found = self.entries.iter().position(is_its);
        let Some(at) = found.filter(|at| self.entries[*at].run.is_some()) else { return 0 };
        let entry = self.entries.remove(at).expect("found");
        self.forget(&entry);
        let start = usize::from(passed(&entry));
        let run = *entry.run.expect("looked at above");
        let end = run.len().min(start + usize::from(most));
        // The rest lies before and behind.
        for part in [run.part(end..run.len()), run.part(0..start)] {
            if !part.is_empty() {
                self.push_run(at, part);
            }
        }
        (end - start) as u16
    }

    /// Has the messages of runs kept one by one, as `keep` does it: a connection that comes is sent them so.
    pub(crate) fn part_runs(&mut self, mut keep: impl FnMut(&Publication<'_>, &Run) -> Queued) {
        if self.entries.iter().all(|entry| entry.run.is_none()) {
            return;
        }
        for entry in std::mem::take(&mut self.entries) {
            let Some(run) = &entry.run else {
                self.entries.push_back(entry);
                continue;
            };
            self.forget(&entry);
            for (publication, id) in run.publications().zip(entry.id.get()..=u16::MAX) {
                let id = PacketId::new(id).expect("a run ends with the identifiers");
                let kept = Some(Box::new(keep(&publication, run)));
                self.push(id, Awaits::Puback, publication.payload.len() as u64, false, kept);
                self.note_sent(id);
            }
        }
    }

    /// The packet that the exchange of that identifier waits for; none if there is no exchange.
    pub(crate) fn awaits(&self, id: PacketId) -> Option<Awaits> {
        let is_its =
            |entry: &&Entry| usize::from(id.get().wrapping_sub(entry.id.get())) < entry.len();
        self.entries.iter().find(is_its).map(|entry| entry.awaits)
    }

    /// Ends an exchange that awaited this, and gives the message that was kept for it; nothing if there is no such exchange.
    pub(crate) fn end(&mut self, id: PacketId, awaits: Awaits) -> Option<Option<Box<Queued>>> {
        let Some(at) = self.position(id, awaits).filter(|at| self.entries[*at].run.is_none())
        else {
            let is_of_run = awaits == Awaits::Puback && self.end_run(id, 1) == 1;
            return is_of_run.then_some(None);
        };
        let entry = self.entries.remove(at).expect("found");
        self.forget(&entry);
        Some(entry.kept)
    }

    fn forget(&mut self, entry: &Entry) {
        self.bytes -= entry.bytes;
        self.kept_bytes -= entry.kept_bytes();
        self.large -= usize::from(entry.is_large);
        self.note();
    }

    /// A QoS 2 message was accepted: from here on only its identifier matters. False if there is no such exchange.
    pub(crate) fn release(&mut self, id: PacketId) -> bool {
        if let Some(at) = self.position(id, Awaits::Pubrec) {
            let entry = &mut self.entries[at];
            entry.awaits = Awaits::Pubcomp;
            self.bytes -= entry.bytes;
            self.kept_bytes -= entry.kept.as_ref().map_or(0, |queued| queued.message.charged());
            self.large -= usize::from(entry.is_large);
            (entry.bytes, entry.is_large, entry.kept) = (0, false, None);
            self.note();
            return true;
        }
        // PUBREC may come twice.
        self.position(id, Awaits::Pubcomp).is_some()
    }

    /// The messages to send again to a new connection, in order (section 4.4).
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The exchanges, in order, once no client is there for whom they would continue.
    pub(crate) fn into_entries(mut self) -> impl Iterator<Item = Entry> {
        self.leave_account();
        std::mem::take(&mut self.entries).into_iter()
    }

    /// Forgets what cannot be sent again.
    pub(crate) fn keep_resendable(&mut self) {
        let entries = std::mem::take(&mut self.entries);
        for entry in entries {
            if entry.kept.is_some() || entry.awaits == Awaits::Pubcomp {
                self.entries.push_back(entry);
            } else {
                self.forget(&entry);
            }
        }
    }
}

/// The answer to the PUBLISH of an exchange.
fn awaited(qos: QoS) -> Awaits {
    if qos == QoS::AtLeastOnce { Awaits::Puback } else { Awaits::Pubrec }
}

impl Drop for Inflight {
    fn drop(&mut self) {
        self.leave_account();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_in_use_is_not_given_again() {
        let mut inflight = Inflight::default();
        let first = inflight.begin(QoS::AtLeastOnce, 1, false, None);
        let second = inflight.begin(QoS::AtLeastOnce, 1, false, None);
        for _ in 0..70_000 {
            let id = inflight.begin(QoS::AtLeastOnce, 1, false, None);
            assert!(id != first && id != second);
            assert!(inflight.end(id, Awaits::Puback).is_some());
        }
        assert_eq!((inflight.len(), inflight.bytes()), (2, 2));
        // More than once around, with many in use anywhere.
        let mut used: Vec<_> =
            (0..500).map(|_| inflight.begin(QoS::AtLeastOnce, 0, false, None)).collect();
        for round in 0..200_000 {
            let id = inflight.begin(QoS::AtLeastOnce, 0, false, None);
            assert!(id != first && id != second && !used.contains(&id));
            let ended = std::mem::replace(&mut used[round * 7 % 450], id);
            assert!(inflight.end(ended, Awaits::Puback).is_some());
        }
    }

    #[test]
    fn qos_2_takes_two_steps() {
        let mut inflight = Inflight::default();
        let id = inflight.begin(QoS::ExactlyOnce, 9, true, None);
        assert!(inflight.end(id, Awaits::Puback).is_none());
        assert!(inflight.release(id));
        assert!(inflight.release(id)); // PUBREC again
        assert_eq!((inflight.bytes(), inflight.large(), inflight.len()), (0, 0, 1));
        assert!(inflight.end(id, Awaits::Pubcomp).is_some());
        assert!(inflight.end(id, Awaits::Pubcomp).is_none());
    }
}
