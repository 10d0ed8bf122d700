//! The parts of a node that are clients of its broker: bridges, sinks, uplinks, listeners for ingest, detectors, pages.
//!
//! ```text
//!  configured ─▶ its session waits for it, for as long as that takes
//!    │    ▲
//!    │    └── configured again: it takes what waits
//!    ▼    │
//!  gone ──┴─▶ its session is kept for PART_GRACE, refuses no publisher meanwhile, then ends; what is dropped is counted
//! ```
//!
//! The same grace have sessions for members of the fabric that this node does not know, as after a loss of its folder: what waits there is
//! for a node that may exist.
//!
//! A part has the same client identifier in each process, so that its session and what waits there outlast a restart. Such identifiers
//! begin with [`PART_PREFIX`], and a client from outside is refused with one: else any of them could take the place of a part, or leave a
//! session behind that keeps it out.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tidegate_journal::RecoveredSession;
use tidegate_message::{Identity, IdentityKind, Instant};

use super::{Broker, journal_writer::done};
use crate::{
    config::{Overflow, SessionConfig},
    session::Session,
    slab::Key,
    timers::Timer,
};

/// Begins the client identifiers of a node's own parts.
pub const PART_PREFIX: &str = "$node/";

/// How long the session of a part is kept that is no longer configured. A mistake of Friday evening is found on Monday.
pub const PART_GRACE: Duration = Duration::from_secs(72 * 3600);

/// Messages that wait for a part that is gone at most, or as many as waited before: as for a sink by default.
const GONE_MESSAGES_MAX: usize = 1_000_000;

/// The client identifier of a part of the node, such as `$node/sink/archive`.
pub fn part_id(kind: &str, name: &str) -> String {
    format!("{PART_PREFIX}{kind}/{name}")
}

/// Whether that is the client identifier of a part of a node.
pub(super) fn is_part_id(client_id: &str) -> bool {
    client_id.starts_with(PART_PREFIX)
}

impl Session {
    /// Whether it is one of a part of the node that outlasts the process.
    fn is_of_part(&self) -> bool {
        self.identity.kind == IdentityKind::Internal && !self.is_remainder() && self.is_kept()
    }

    /// Whether it is one for another member of the fabric that outlasts the process.
    fn is_for_member(&self) -> bool {
        // One of a leaf is known by its name: its mark comes with its connection.
        let is_of_node = self.identity.kind == IdentityKind::Node && is_part_id(&self.client_id);
        (self.config.is_peer || is_of_node) && !self.is_remainder() && self.is_kept()
    }

    /// Whether it ends only after [`PART_GRACE`] once its owner is gone.
    pub(super) fn has_grace(&self) -> bool {
        self.is_of_part() || self.is_for_member()
    }

    /// Whether it is one of a user that outlasts a connection.
    fn is_of_user(&self) -> bool {
        self.identity.kind == IdentityKind::User && !self.is_remainder() && self.is_kept()
    }
}

impl Broker {
    /// The parts of the node with these client identifiers are configured, and no others. Sessions of others end after
    /// [`PART_GRACE`], unless their part comes back before.
    pub fn configure_parts(&mut self, now: Instant, configured: &HashSet<String>) {
        self.mark_gone(now, &|session| {
            session.is_of_part().then(|| !configured.contains(&*session.client_id))
        });
    }

    /// The users that `is_gone` is true of are no longer known, and all others are. The sessions of gone users refuse no publisher, as those
    /// of parts; the caller ends them.
    pub fn mark_gone_users(&mut self, now: Instant, is_gone: &dyn Fn(&Identity) -> bool) {
        self.mark_gone(now, &|session| session.is_of_user().then(|| is_gone(&session.identity)));
    }

    /// Members of the fabric whose sessions `is_unknown` is true of are not known here, and all others are. Sessions of unknown ones end
    /// after [`PART_GRACE`], unless the member comes before. One that is served is of a member that has come.
    pub fn mark_unknown_members(
        &mut self,
        now: Instant,
        is_unknown: &dyn Fn(&str, &Identity) -> bool,
    ) {
        self.mark_gone(now, &|session| {
            let waits = session.is_for_member() && session.connection.is_none();
            waits.then(|| is_unknown(&session.client_id, &session.identity))
        });
    }

    /// Goes by whether the owners of sessions are gone; `is_gone` has nothing to say of others.
    fn mark_gone(&mut self, now: Instant, is_gone: &dyn Fn(&Session) -> Option<bool>) {
        let changed = self.sessions.iter().filter_map(|(key, session)| {
            let is_gone = is_gone(session).filter(|is_gone| *is_gone != session.is_gone)?;
            Some((key, is_gone))
        });
        let changed: Vec<(Key, bool)> = changed.collect();
        for (key, is_gone) in changed {
            let session = self.sessions.get_mut(key).expect("found above");
            session.is_gone = is_gone;
            if session.connection.is_some() {
                // Its farewell is on its way.
                continue;
            }
            if is_gone {
                self.begin_grace(now, key);
            } else {
                self.end_grace(key);
            }
        }
    }

    /// The owner of a session without a connection is gone. From now on it refuses no publisher: its messages wait on the disk as long
    /// as that has room, then the oldest go. That of a part or a member ends after [`PART_GRACE`].
    pub(super) fn begin_grace(&mut self, now: Instant, key: Key) {
        let own = self.session_key(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.has_grace() {
            // A grace that began in an earlier process continues.
            let ends_at = session.ends_at.unwrap_or(Instant::MAX).min(now + PART_GRACE);
            self.timers.cancel(session.ends_at.replace(ends_at), Timer::SessionEnd(key));
            self.timers.set(ends_at, Timer::SessionEnd(key));
            let (client, messages) = (&session.client_id, session.queue.len());
            let left_s = ends_at.since(now).as_secs();
            if session.is_of_part() {
                tracing::warn!(%client, messages, left_s,
                    "the session of a part that is no longer configured: it ends after that time, unless the part is configured again; `tidegate sessions end` ends it at once");
            } else {
                tracing::warn!(%client, messages, left_s,
                    "the session of a member that this node does not know: it ends after that time, unless the member comes; `tidegate sessions end` ends it at once");
            }
        }
        self.timers.cancel(session.idles_at.take(), Timer::Idle(key));
        let config = &session.config;
        session.before_grace.get_or_insert_with(|| config.clone());
        session.config = Arc::new(SessionConfig {
            queue_messages_max: config
                .queue_messages_max
                .max(session.queue.len())
                .max(GONE_MESSAGES_MAX),
            queue_bytes_max: config.queue_bytes_max.max(session.queue.bytes()),
            overflow: Overflow::SpillDisconnect,
            ..SessionConfig::clone(config)
        });
        session.set_idle(true);
        session.is_full = false;
        self.shared.forget_full(&session.state);
        session.note_behind(&self.shared);
        let blocks = std::mem::take(&mut session.blocks);
        if let Some(gives) = self.reclaim_heap.note(key, session) {
            self.shared.note_gives(self.shard, gives);
        }
        self.release(blocks, own);
        self.write_closed(key);
    }

    /// The part of a session is configured again, or its user or member known.
    fn end_grace(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.has_grace() {
            self.timers.cancel(session.ends_at.take(), Timer::SessionEnd(key));
        }
        if let Some(config) = session.before_grace.take() {
            session.config = config;
        }
        session.set_idle(false);
        session.note_behind(&self.shared);
        self.write_closed(key);
        self.watch_idle(key);
    }

    /// Ends the session of a part or member that was gone for long.
    pub(super) fn tell_grace_over(&self, key: Key) {
        let is_meant = |session: &&Session| session.is_gone && session.has_grace();
        if let Some(session) = self.sessions.get(key).filter(is_meant) {
            let dropped = session.queue.len() + session.inflight.len();
            tracing::warn!(client = %session.client_id, dropped,
                "the session of a part that is no longer configured, or of a member that is not known, has ended, and what waited there is dropped");
        }
    }

    /// A journal has no room: parts and users that are gone give up the older half of what waits for them on this shard. Again only once a checkpoint
    /// has shown what that was worth.
    pub(super) fn give_up_gone(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        if keeper.gave_way_since == Some(keeper.counts.checkpoints) {
            return;
        }
        let gone = self.sessions.iter().filter(|(_, session)| session.is_gone);
        let gone: Vec<Key> =
            gone.filter(|(_, session)| !session.queue.is_empty()).map(|(key, _)| key).collect();
        if !gone.is_empty() {
            keeper.gave_way_since = Some(keeper.counts.checkpoints);
        }
        for key in gone {
            let session = self.sessions.get_mut(key).expect("found above");
            let count = session.queue.len().div_ceil(2);
            for _ in 0..count {
                let Some(dropped) = session.queue.drop_oldest_if(|_| true) else { break };
                done(&mut self.keeper, session, dropped.number);
                session.dropped.queue_full += 1;
                self.statistics.dropped.queue_full += 1;
            }
            session.note_behind(&self.shared);
            tracing::warn!(client = %session.client_id, dropped = count, left = session.queue.len(),
                "the journal has no room: the older half of what waits for a part that is no longer configured, or for a user or member that is gone, is dropped");
        }
    }
}

/// Gives sessions of parts the client identifiers that parts have now. In states of before, the one of a sink had a number of its node
/// behind its name, that of an uplink began otherwise, and a bridge had another one in each process: the last of those is taken over, and
/// the others are of parts that are gone.
pub(super) fn adopt(sessions: &mut [RecoveredSession]) {
    let mut taken: HashSet<String> =
        sessions.iter().map(|session| session.opened.client_id.to_string()).collect();
    let mut last: HashMap<String, usize> = HashMap::new();
    for (at, session) in sessions.iter().enumerate() {
        let Some(name) = name_now(session).filter(|name| !taken.contains(name)) else { continue };
        let age = |at: usize| (sessions[at].was_connected, sessions[at].ends_at);
        let known = last.entry(name).or_insert(at);
        if age(at) > age(*known) {
            *known = at;
        }
    }
    for (name, at) in last {
        sessions[at].opened.client_id = name.as_str().into();
        taken.insert(name);
    }
}

fn name_now(session: &RecoveredSession) -> Option<String> {
    let opened = &session.opened;
    if opened.kind != IdentityKind::Internal {
        return None;
    }
    let is_number = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let levels: Vec<&str> = opened.client_id.split('/').collect();
    match levels[..] {
        [kind @ ("bridge" | "sink"), name, number] if is_number(number) => {
            Some(part_id(kind, name))
        }
        ["uplink", name, feed @ ("batched" | "critical")] => {
            Some(part_id("uplink", &format!("{name}/{feed}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_journal::Opened;
    use tidegate_wire::mqtt::Version;

    use super::*;

    fn session(
        client_id: &str,
        kind: IdentityKind,
        ends_s: u64,
        connected: bool,
    ) -> RecoveredSession {
        let opened = Opened {
            session: 1,
            client_id: client_id.into(),
            kind,
            user: "".into(),
            groups: Vec::new(),
            version: Version::V5,
            expiry: None,
            will: None,
            from: None,
            overflow: None,
            is_peer: false,
        };
        RecoveredSession {
            opened,
            expiry: None,
            ends_at: Some(Instant::EPOCH + Duration::from_secs(ends_s)).filter(|_| !connected),
            was_connected: connected,
            will: None,
            subscriptions: Vec::new(),
            inflight: Vec::new(),
            queue: Vec::new(),
            received: Vec::new(),
        }
    }

    #[test]
    fn sessions_of_earlier_states_have_the_names_of_now() {
        use IdentityKind::{Internal, User};
        let cases = [
            ("sink/archive/0123456789abcdef", Internal, 1, false, "$node/sink/archive"),
            ("sink/archive/0123456789abcdef", User, 1, false, "sink/archive/0123456789abcdef"),
            ("uplink/core/batched", Internal, 0, true, "$node/uplink/core/batched"),
            ("uplink/core/critical", Internal, 0, true, "$node/uplink/core/critical"),
            ("bridge/a/0000000000000001", Internal, 1, false, "bridge/a/0000000000000001"),
            // The last of those that are left, since it ends last.
            ("bridge/a/0000000000000002", Internal, 3, false, "$node/bridge/a"),
            ("bridge/a/0000000000000003", Internal, 2, false, "bridge/a/0000000000000003"),
            ("bridge/b/0000000000000004", Internal, 0, true, "$node/bridge/b"),
            ("bridge/b/0000000000000005", Internal, 9, false, "bridge/b/0000000000000005"),
            // There is one already.
            ("bridge/c/0000000000000006", Internal, 9, false, "bridge/c/0000000000000006"),
            ("$node/bridge/c", Internal, 1, false, "$node/bridge/c"),
            ("watch", Internal, 1, false, "watch"),
        ];
        let mut sessions: Vec<_> = cases
            .iter()
            .map(|(id, kind, ends_s, connected, _)| session(id, *kind, *ends_s, *connected))
            .collect();
        adopt(&mut sessions);
        for (session, (id, .., expected)) in sessions.iter().zip(cases) {
            assert_eq!(&*session.opened.client_id, expected, "{id}");
        }
    }
}
