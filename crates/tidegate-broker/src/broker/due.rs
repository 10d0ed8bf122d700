//! Timed work: silence, expiry, wills, `$SYS`.

use std::time::Duration;

use tidegate_message::{IdentityKind, Instant};
use tidegate_wire::mqtt::ReasonCode;

use super::{Broker, journal_writer::done, sys::HEAVIEST};
use crate::{
    connection::{STALLED, Stall, silence},
    slab::Key,
    timers::Timer,
};

/// Retained messages that are forgotten in one step, and the least time to the next: all together within seconds, though
/// a million expire at once, and no client waits for longer than a fraction of a millisecond.
const RETAINED_STEP: usize = 256;
const RETAINED_PAUSE: Duration = Duration::from_millis(1);
/// How often a session is looked at that has been away for too long and is over half full: a publisher of another shard that asks
/// it and others for a place may find it full, and publish to none.
const IDLE_LOOK: Duration = Duration::from_secs(60);

impl Broker {
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.watch_journal(now);
        self.tick_admission(now);
        while let Some(timer) = self.timers.due(now) {
            match timer {
                Timer::Silence(key) => self.silent(now, key),
                Timer::Wake(key) => self.woken(now, key),
                Timer::SessionEnd(key) => {
                    self.statistics.expired_sessions += 1;
                    self.tell_grace_over(key);
                    self.end_session(now, key);
                }
                Timer::Will(key) => {
                    let Some(session) = self.sessions.get_mut(key) else { continue };
                    if let Some((will, _)) = session.will.take() {
                        self.publish_will(now, key, &will);
                        self.write_closed(key);
                    }
                }
                Timer::Idle(key) => self.idle(now, key),
                Timer::Lapse(key) => {
                    if let Some(session) = self.sessions.get_mut(key) {
                        session.lapses_at = None;
                        self.lapse(now, key);
                        self.watch_lapse(key);
                    }
                }
                Timer::HandOn(key) => self.hand_on_more(now, key),
                Timer::Filters(key) => self.more_filters(now, key),
                Timer::Suback(number) => self.release_suback(number),
                Timer::Retained => self.forget_expired(now),
                Timer::Journal => self.go_on_with_journal(now),
                Timer::Sys => {
                    let holding =
                        self.sessions(HEAVIEST).into_iter().filter(|s| s.held_bytes() > 0);
                    self.shared.report(self.shard, self.statistics(), holding.collect());
                    if self.shard == 0 {
                        self.publish_sys(now);
                    }
                    self.timers.set(now + self.shared.config().sys_interval, Timer::Sys);
                }
            }
        }
    }

    /// Looks at a connection when it has been silent for too long, unless it is looked at earlier.
    pub(super) fn watch_silence(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if let Some(at) = connection.silence_ends()
            && connection.silence_at.is_none_or(|set| at < set)
        {
            self.timers.cancel(connection.silence_at.replace(at), Timer::Silence(key));
            self.timers.set(at, Timer::Silence(key));
        }
    }

    fn silent(&mut self, now: Instant, key: Key) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.silence_at = None;
        let session = connection.session.and_then(|key| self.sessions.get(key));
        if session.is_some_and(|session| session.blocked_by > 0) {
            // It is we who do not read.
            connection.last_heard = now;
        }
        let keep_alive = connection.keep_alive;
        if keep_alive > 0 && connection.last_heard + silence(keep_alive) <= now {
            let text = "nothing came for one and a half times the keep alive";
            return self.disconnect(key, ReasonCode::KEEP_ALIVE_TIMEOUT, Some(text));
        }
        if let Some(receiving) = &mut connection.receiving
            && connection.last_heard + STALLED <= now
        {
            let refusals = self.shared.refusals();
            if receiving.refusals < refusals {
                let text = "the rest of a large message does not come, and others need its memory";
                return self.disconnect(key, ReasonCode::QUOTA_EXCEEDED, Some(text));
            }
            receiving.looked_at = now;
        }
        if let Some(stall) = &mut connection.stall
            && stall.looked_at + STALLED <= now
        {
            let (written, refusals) = (connection.outbox.written(), self.shared.refusals());
            if stall.written == written && stall.refusals < refusals {
                let text =
                    "this client takes nothing of what it is sent, and others need the memory";
                return self.disconnect(key, ReasonCode::QUOTA_EXCEEDED, Some(text));
            }
            *stall = Stall { written, looked_at: now, refusals };
        }
        self.watch_silence(key);
    }

    /// Looks at a session that has no connection, and is full or may soon be, when it has been away for too long.
    pub(super) fn watch_idle(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let longest = session.config.queue_idle_max;
        let Some(since) = session.away_since else { return };
        // Parts of this node come back, and were promised that nothing is lost.
        let is_own = session.config.is_local || session.identity.kind == IdentityKind::Internal;
        if is_own
            || longest.is_zero()
            || session.is_idle
            || !(session.holds_up() || session.is_behind() || session.queue.firm_bytes() > 0)
        {
            return;
        }
        let at = since + longest;
        if session.idles_at.is_none_or(|earlier| session.holds_up() && at < earlier) {
            self.timers.cancel(session.idles_at.replace(at), Timer::Idle(key));
            self.timers.set(at, Timer::Idle(key));
        }
    }

    /// A session was away for long: if it is still full, publishers are not refused or held up for it any more.
    fn idle(&mut self, now: Instant, key: Key) {
        let own = self.session_key(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.idles_at = None;
        if !session.holds_up() && !session.holds_share(&self.shared) {
            if session.is_behind() || session.queue.firm_bytes() > 0 {
                // Another shard may find it full without a message that comes here, and its identity may come to have its share.
                session.idles_at = Some(now + IDLE_LOOK);
                self.timers.set(now + IDLE_LOOK, Timer::Idle(key));
            }
            return;
        }
        session.gives_way = !session.holds_up();
        session.set_idle(true);
        self.shared.forget_full(&session.state);
        tracing::warn!(client = %session.client_id, user = %session.identity.name, messages = session.queue.len(),
            bytes = session.queue.bytes(), away_s = session.config.queue_idle_max.as_secs(),
            "its queue is full, or its identity has its share of the memory, and it has been away for long: its oldest messages are dropped from now on (mqtt.queue_idle_max)");
        let blocks = std::mem::take(&mut session.blocks);
        if let Some(gives) = self.reclaim_heap.note(key, session) {
            self.shared.note_gives(self.shard, gives);
        }
        self.release(blocks, own);
    }

    /// Looks at the messages that wait for a session when some expire, unless they are looked at earlier.
    pub(super) fn watch_lapse(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if let Some(at) = session.queue.next_expiry()
            && session.lapses_at.is_none_or(|set| at < set)
        {
            self.timers.cancel(session.lapses_at.replace(at), Timer::Lapse(key));
            self.timers.set(at, Timer::Lapse(key));
        }
    }

    /// Takes expired messages out of a session's queue: they occupy no place, no memory, and block no publisher.
    pub(super) fn lapse(&mut self, now: Instant, key: Key) {
        let own = self.session_key(key);
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.queue.next_expiry().is_none_or(|at| now < at) {
            return;
        }
        let lapsed = session.queue.lapse(now);
        for queued in &lapsed {
            done(&mut self.keeper, session, queued.number);
        }
        session.dropped.expired += lapsed.len() as u64;
        self.statistics.dropped.expired += lapsed.len() as u64;
        let behind = session.note_behind(&self.shared);
        let released = if behind { Vec::new() } else { std::mem::take(&mut session.blocks) };
        let connection = session.connection;
        self.release(released, own);
        if let Some(key) = connection {
            self.end_drained(key);
        }
    }

    /// Looks at retained messages when one expires, unless they are looked at earlier.
    pub(super) fn watch_retained(&mut self, at: Instant) {
        if self.retained_at.is_none_or(|set| at < set) {
            self.timers.cancel(self.retained_at.replace(at), Timer::Retained);
            self.timers.set(at, Timer::Retained);
        }
    }

    fn forget_expired(&mut self, now: Instant) {
        self.retained_at = None;
        if let Some(next) = self.shared.forget_expired(now, RETAINED_STEP) {
            self.watch_retained(next.max(now + RETAINED_PAUSE));
        }
    }
}
