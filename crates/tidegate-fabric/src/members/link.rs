//! A link to another member: what it lacks of the records here, and what has come of its own.
//!
//! Nothing is queued for a link but the keys of records that its peer lacks, so that a slow one costs no more than those.

use std::{collections::BTreeSet, time::Duration};

use bytes::{Bytes, BytesMut};
use tidegate_message::Instant;
use tidegate_wire::{
    DigestEntry, MemberDigest, NodeId, Record, SharedKey, SharedKind, SharedPart,
    limits::{CRITICAL_PART_BYTES_MAX, DIGEST_ENTRIES_MAX, SHARED_BYTES_MAX},
};

use super::{DialNumber, MemberError, limits::*, table::Table};

#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: NodeId,
    /// Whether this node dialled.
    pub(super) is_ours: bool,
    /// The dial by which it came.
    pub(super) number: DialNumber,
    pub(super) since: Instant,
    /// Records that the peer lacks, in the order in which they are sent: lists of revoked certificates before the records that they
    /// refuse, and members before what is said of them.
    behind: BTreeSet<(u8, SharedKey)>,
    sending: Option<Sending>,
    receiving: Option<Receiving>,
    says_hash: bool,
    /// The list that is being sent: behind which record it continues.
    listing: Option<Option<SharedKey>>,
    /// When a list is to be sent, and when the last one was.
    list_at: Option<Instant>,
    listed_at: Option<Instant>,
    list_wait: Duration,
    /// The last record of the peer's list, while more of it follows.
    listed: Option<SharedKey>,
}

#[derive(Debug)]
struct Sending {
    key: SharedKey,
    version: u64,
    bytes: Bytes,
    at: usize,
}

#[derive(Debug)]
struct Receiving {
    key: SharedKey,
    version: u64,
    at: usize,
    /// None of a record that is held as it is, or newer.
    bytes: Option<BytesMut>,
}

impl Link {
    pub(super) fn new(now: Instant, peer: NodeId, is_ours: bool, number: DialNumber) -> Self {
        Self {
            peer,
            is_ours,
            number,
            since: now,
            behind: BTreeSet::new(),
            sending: None,
            receiving: None,
            // Most links that come again are between nodes that have the same.
            says_hash: true,
            listing: None,
            list_at: None,
            listed_at: None,
            list_wait: LIST_WAIT,
            listed: None,
        }
    }

    // ---- to the peer

    /// The peer lacks that record.
    pub(super) fn lacks(&mut self, key: SharedKey) {
        self.behind.insert((rank(key.kind), key));
    }

    /// The peer has that record.
    fn has(&mut self, key: SharedKey) {
        self.behind.remove(&(rank(key.kind), key));
    }

    /// Whether the peer has been sent a record, or it never was to be.
    pub(super) fn was_sent(&self, key: SharedKey) -> bool {
        !self.behind.contains(&(rank(key.kind), key))
            && self.sending.as_ref().is_none_or(|sending| sending.key != key)
    }

    pub(super) fn say_hash(&mut self) {
        self.says_hash = true;
    }

    /// When a list is to be sent.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.list_at
    }

    /// Returns whether a list begins.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        let is_due = self.list_at.take_if(|at| *at <= now).is_some();
        if is_due {
            self.listing = Some(None);
            self.listed_at = Some(now);
            self.list_wait = (self.list_wait * 2).min(LIST_WAIT_MAX);
        }
        is_due
    }

    pub(super) fn poll_transmit(&mut self, table: &Table) -> Option<Record> {
        if std::mem::take(&mut self.says_hash) {
            let (hash, entries) = (table.hash(), Vec::new());
            let digest = MemberDigest { hash, lists: false, more: false, entries };
            return Some(Record::MemberDigest(digest));
        }
        if let Some(behind) = self.listing {
            return Some(Record::MemberDigest(self.list(table, behind)));
        }
        if self.sending.is_none() {
            self.sending = self.next_of(table);
        }
        let sending = self.sending.as_mut()?;
        let end = (sending.at + CRITICAL_PART_BYTES_MAX).min(sending.bytes.len());
        let more = end < sending.bytes.len();
        let part = SharedPart {
            key: sending.key,
            version: sending.version,
            offset: u32::try_from(sending.at).expect("records are at most SHARED_BYTES_MAX"),
            more,
            bytes: sending.bytes.slice(sending.at..end),
        };
        sending.at = end;
        if !more {
            self.sending = None;
        }
        Some(Record::SharedPart(part))
    }

    fn next_of(&mut self, table: &Table) -> Option<Sending> {
        loop {
            let (_, key) = self.behind.pop_first()?;
            // It was dropped meanwhile.
            let Some(shared) = table.shared(key) else { continue };
            return Some(Sending {
                key,
                version: shared.version,
                bytes: shared.bytes.clone(),
                at: 0,
            });
        }
    }

    fn list(&mut self, table: &Table, behind: Option<SharedKey>) -> MemberDigest {
        let mut left = table.shared_after(behind);
        let entry = |(key, shared): (&SharedKey, &super::table::Shared)| DigestEntry {
            key: *key,
            version: shared.version,
        };
        let entries: Vec<_> = left.by_ref().take(DIGEST_ENTRIES_MAX).map(entry).collect();
        let more = left.next().is_some();
        self.listing = more.then(|| entries.last().map(|entry| entry.key));
        MemberDigest { hash: table.hash(), lists: true, more, entries }
    }

    // ---- from the peer

    /// The peer's hash, and its list or a part of it. Afterwards this node knows which records the peer lacks.
    pub(super) fn handle_digest(
        &mut self,
        now: Instant,
        table: &Table,
        digest: &MemberDigest,
    ) -> Result<(), MemberError> {
        let is_equal = digest.hash == table.hash();
        // A hash that differs by what is on its way to the peer says nothing.
        let is_on_its_way = !self.behind.is_empty() || self.sending.is_some();
        let is_explained = !digest.lists && is_on_its_way;
        if digest.lists {
            self.compare(table, digest, is_equal)?;
        }
        if is_equal {
            (self.list_at, self.list_wait) = (None, LIST_WAIT);
        } else if self.list_at.is_none() && self.listing.is_none() && !is_explained {
            // The peer lists as well: each learns what the other lacks.
            self.list_at = Some(self.listed_at.map_or(now, |at| now.max(at + self.list_wait)));
        }
        Ok(())
    }

    fn compare(
        &mut self,
        table: &Table,
        digest: &MemberDigest,
        is_equal: bool,
    ) -> Result<(), MemberError> {
        let before = self.listed;
        let mut last = before;
        for entry in &digest.entries {
            if last.is_some_and(|last| last >= entry.key) {
                return Err(MemberError::Unordered);
            }
            last = Some(entry.key);
        }
        self.listed = last.filter(|_| digest.more);
        if is_equal {
            return Ok(());
        }
        let mut theirs = digest.entries.iter().peekable();
        for (key, shared) in table.shared_after(before) {
            if digest.more && last.is_none_or(|last| *key > last) {
                break;
            }
            while theirs.next_if(|entry| entry.key < *key).is_some() {}
            let has = theirs.next_if(|entry| entry.key == *key);
            if has.is_none_or(|entry| entry.version < shared.version) {
                self.behind.insert((rank(key.kind), *key));
            }
        }
        Ok(())
    }

    /// A record or a part of it. Returns the whole record once all of it is there, without its bytes if it is held as it is, or newer.
    pub(super) fn handle_part(
        &mut self,
        table: &Table,
        part: SharedPart,
    ) -> Result<Option<(SharedKey, u64, Option<Bytes>)>, MemberError> {
        let SharedPart { key, version, offset, more, bytes } = part;
        if offset == 0 {
            let held = table.shared(key).map(|held| held.version);
            if held.is_some_and(|held| version >= held) {
                self.has(key);
            }
            // Numbers go before versions, and stand in the record.
            let is_wanted = held.is_none_or(|held| match key.kind {
                SharedKind::Member => version != held,
                SharedKind::Cameras | SharedKind::Revocations => version > held,
            });
            let bytes = is_wanted.then(BytesMut::new);
            self.receiving = Some(Receiving { key, version, at: 0, bytes });
        }
        let follows = self.receiving.as_mut().filter(|receiving| {
            receiving.at == offset as usize && (receiving.key, receiving.version) == (key, version)
        });
        let Some(receiving) = follows else {
            let expected = self.receiving.as_ref().map_or(0, |receiving| receiving.at as u32);
            return Err(MemberError::Gap { found: offset, expected });
        };
        let most = bytes_max(key.kind);
        receiving.at += bytes.len();
        if receiving.at > most {
            return Err(MemberError::TooLong { most });
        }
        // An empty part that promises more would never end.
        if more && bytes.is_empty() {
            return Err(MemberError::Gap { found: offset, expected: offset + 1 });
        }
        if !more && offset == 0 {
            let is_wanted = receiving.bytes.is_some();
            self.receiving = None;
            return Ok(Some((key, version, is_wanted.then_some(bytes))));
        }
        if let Some(whole) = &mut receiving.bytes {
            whole.extend_from_slice(&bytes);
        }
        if more {
            return Ok(None);
        }
        let whole = self.receiving.take().and_then(|receiving| receiving.bytes);
        Ok(Some((key, version, whole.map(BytesMut::freeze))))
    }

    /// Something came of the last list: another may follow soon.
    pub(super) fn has_gained(&mut self) {
        self.list_wait = LIST_WAIT;
    }
}

fn rank(kind: SharedKind) -> u8 {
    match kind {
        SharedKind::Revocations => 0,
        SharedKind::Member => 1,
        SharedKind::Cameras => 2,
    }
}

fn bytes_max(kind: SharedKind) -> usize {
    match kind {
        SharedKind::Member => MEMBER_BYTES_MAX,
        SharedKind::Cameras => CAMERAS_BYTES_MAX,
        SharedKind::Revocations => SHARED_BYTES_MAX,
    }
}
