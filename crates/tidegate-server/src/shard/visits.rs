//! Log lines about clients that come and go: one line each, and in a flood a sum.
//!
//! Always true: a shard writes at most [`LINES_MAX`] of these lines at once and [`LINES_PER_SECOND`] a second from then on, since a
//! line takes time that clients wait for; further ones are counted, and summed up in one line every [`SUMS_EVERY`].

use std::{fmt, net::SocketAddr, time::Duration};

use tidegate_broker::{Denied, Ended};
use tidegate_message::{Identity, IdentityKind, Instant};
use tidegate_wire::mqtt::{Connect, ReasonCode, Version};

use crate::settings::ListenerSettings;

/// Lines of a shard that may follow each other at once: a fleet of a thousand comes back.
const LINES_MAX: u32 = 1000;
/// And how many come after those.
const LINES_PER_SECOND: u32 = 20;
/// The same for refusals, of which one client can make any number.
const REFUSALS_MAX: u32 = 50;
const REFUSALS_PER_SECOND: u32 = 1;
/// How often what has no line is summed up.
const SUMS_EVERY: Duration = Duration::from_secs(10);
/// Longest client identifier and user name in a line, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Of one shard.
#[derive(Debug)]
pub(super) struct Visits {
    lines: Lines,
    refusals: Lines,
    connected: u64,
    disconnected: u64,
    refused: u64,
    denied: u64,
    /// When the first was counted that has no line.
    since: Option<Instant>,
}

/// A client that is connected, as the log names it.
#[derive(Debug)]
pub(super) struct Visitor {
    client: Box<str>,
    user: Box<str>,
    version: &'static str,
}

/// How many lines may be written.
#[derive(Debug)]
struct Lines {
    most: u32,
    each: Duration,
    /// When all may be written again, if none is until then.
    full_at: Instant,
}

impl Lines {
    fn new(most: u32, per_second: u32) -> Self {
        Self { most, each: Duration::from_secs(1) / per_second, full_at: Instant::EPOCH }
    }

    fn may_write(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.each;
        let may = full_at.since(now) <= self.each * self.most;
        if may {
            self.full_at = full_at;
        }
        may
    }
}

impl Visitor {
    pub(super) fn new(connect: &Connect, identity: &Identity) -> Self {
        let user = match (&*identity.name, identity.kind) {
            (_, IdentityKind::Anonymous) | ("", _) => identity.kind.word().to_owned(),
            (name, kind) => format!("{} {name}", kind.word()),
        };
        Self {
            client: cut(&connect.client_id).into(),
            user: cut(&user).into(),
            version: word(connect.version),
        }
    }

    pub(super) fn client(&self) -> &str {
        &self.client
    }

    pub(super) fn user(&self) -> &str {
        &self.user
    }
}

impl Default for Visits {
    fn default() -> Self {
        Self {
            lines: Lines::new(LINES_MAX, LINES_PER_SECOND),
            refusals: Lines::new(REFUSALS_MAX, REFUSALS_PER_SECOND),
            connected: 0,
            disconnected: 0,
            refused: 0,
            denied: 0,
            since: None,
        }
    }
}

impl Visits {
    pub(super) fn connected(
        &mut self,
        now: Instant,
        visitor: &Visitor,
        peer: Option<SocketAddr>,
        listener: &ListenerSettings,
    ) {
        if !self.lines.may_write(now) {
            self.connected += 1;
            self.since.get_or_insert(now);
            return;
        }
        let Visitor { client, user, version } = visitor;
        tracing::info!(%client, user, address = %Address(peer), listener = %listener.name, version, "connected");
    }

    pub(super) fn disconnected(
        &mut self,
        now: Instant,
        visitor: &Visitor,
        peer: Option<SocketAddr>,
        listener: &ListenerSettings,
        why: &dyn fmt::Display,
    ) {
        if !self.lines.may_write(now) {
            self.disconnected += 1;
            self.since.get_or_insert(now);
            return;
        }
        let Visitor { client, user, version } = visitor;
        tracing::info!(%client, user, address = %Address(peer), listener = %listener.name, version, %why, "disconnected");
    }

    /// A connection that did not come to be; `connect` as far as it was read.
    pub(super) fn refused(
        &mut self,
        now: Instant,
        connect: Option<(&str, Option<&str>, Version)>,
        peer: Option<SocketAddr>,
        listener: &ListenerSettings,
        why: &dyn fmt::Display,
    ) {
        if !self.refusals.may_write(now) {
            self.refused += 1;
            self.since.get_or_insert(now);
            return;
        }
        let address = Address(peer);
        let listener = &listener.name;
        match connect {
            Some((client, user, version)) => {
                let (client, user) = (cut(client), user.map(cut).unwrap_or_default());
                let version = word(version);
                tracing::info!(%client, user, %address, %listener, version, %why, "connection refused");
            }
            None => tracing::info!(%address, %listener, %why, "connection refused"),
        }
    }

    /// Rules refused what a client asked for. The audit log names it by the same client identifier, user, target and rule.
    pub(super) fn denied(
        &mut self,
        now: Instant,
        visitor: &Visitor,
        peer: Option<SocketAddr>,
        listener: &ListenerSettings,
        denied: &Denied,
    ) {
        if !self.refusals.may_write(now) {
            self.denied += 1;
            self.since.get_or_insert(now);
            return;
        }
        let Visitor { client, user, .. } = visitor;
        let (target, rule) = (cut(&denied.target).escape_debug(), cut(&denied.rule));
        tracing::info!(%client, user, address = %Address(peer), listener = %listener.name, action = denied.action.word(), %target, rule,
            "not allowed by the rules");
    }

    /// Says what had no line of its own, once in a while.
    pub(super) fn sum_up(&mut self, now: Instant, is_last: bool) {
        let Some(since) = self.since else { return };
        if !is_last && now.since(since) < SUMS_EVERY {
            return;
        }
        let Self { connected, disconnected, refused, denied, .. } = *self;
        tracing::warn!(
            connected,
            disconnected,
            denied,
            refused,
            "more clients connected and disconnected, or were refused, than are logged one by one"
        );
        (self.connected, self.disconnected, self.refused) = (0, 0, 0);
        (self.denied, self.since) = (0, None);
    }
}

/// Why a connection that was open is not any more.
pub(super) fn why_ended(ended: Option<&Ended>, error: Option<&dyn fmt::Display>) -> String {
    match (ended, error) {
        (Some(Ended { is_by_client: true, reason, .. }), _) if *reason == ReasonCode::SUCCESS => {
            "the client disconnected".to_owned()
        }
        (Some(Ended { is_by_client: true, reason, .. }), _) => {
            format!("the client disconnected: {reason}")
        }
        (Some(Ended { reason, text: Some(text), .. }), _) => format!("{reason}: {text}"),
        (Some(Ended { reason, text: None, .. }), _) => reason.to_string(),
        (None, Some(error)) => format!("the connection broke: {error}"),
        (None, None) => "the client closed the connection without a DISCONNECT".to_owned(),
    }
}

/// An address with its port, or none where there is none, as with sockets of the file system.
struct Address(Option<SocketAddr>);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("unknown"),
        }
    }
}

fn word(version: Version) -> &'static str {
    match version {
        Version::V3 => "3.1",
        Version::V4 => "3.1.1",
        Version::V5 => "5",
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(NAME_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_leaves_lines_for_those_who_come_in() {
        let mut visits = Visits::default();
        let now = Instant::from_millis(1_000_000);
        let listener = ListenerSettings::new("main", ([127, 0, 0, 1], 1883).into());
        let connect = Some(("c", None, Version::V4));
        for _ in 0..10_000 {
            visits.refused(now, connect, None, &listener, &"no");
        }
        assert_eq!(visits.refused, 10_000 - u64::from(REFUSALS_MAX));
        assert!(visits.lines.may_write(now), "others have lines of their own");
        visits.sum_up(now, false);
        assert_ne!(visits.refused, 0, "not yet");
        visits.sum_up(now + SUMS_EVERY, false);
        assert_eq!((visits.refused, visits.since), (0, None));
        assert!(visits.refusals.may_write(now + SUMS_EVERY), "and refusals have some again");
    }

    #[test]
    fn each_end_has_its_cause() {
        let ended = |is_by_client, reason, text: Option<&str>| {
            Some(Ended { is_by_client, reason, text: text.map(Into::into) })
        };
        for (ended, error, expected) in [
            (None, None, "without a DISCONNECT"),
            (None, Some("reset"), "broke: reset"),
            (ended(true, ReasonCode::SUCCESS, None), None, "the client disconnected"),
            (ended(false, ReasonCode::SESSION_TAKEN_OVER, None), Some("reset"), "taken over"),
            (
                ended(false, ReasonCode::PROTOCOL_ERROR, Some("a second CONNECT")),
                None,
                "a second CONNECT",
            ),
        ] {
            let error = error.as_ref().map(|error| error as &dyn fmt::Display);
            let why = why_ended(ended.as_ref(), error).to_lowercase();
            assert!(why.contains(&expected.to_lowercase()), "{why}");
        }
    }
}
