//! When something must be sent, and when an answer is overdue (sections 3.1.2.10 and 3.12).

use std::time::Duration;

use tidegate_message::Instant;

#[derive(Debug)]
pub(super) struct KeepAlive {
    answer_timeout: Duration,
    /// Zero for none.
    interval: Duration,
    sent_at: Instant,
    awaited: Awaited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Nothing,
    /// Since when the transport has CONNECT.
    Connack(Instant),
    /// PINGREQ waits to be sent: its answer cannot be late yet.
    Ping,
    Pingresp(Instant),
}

impl KeepAlive {
    pub(super) fn new(answer_timeout: Duration) -> Self {
        let (interval, sent_at) = (Duration::ZERO, Instant::EPOCH);
        Self { answer_timeout, interval, sent_at, awaited: Awaited::Nothing }
    }

    pub(super) fn begin(&mut self, now: Instant, seconds: u16) {
        self.interval = Duration::from_secs(seconds.into());
        self.sent_at = now;
        self.awaited = Awaited::Connack(now);
    }

    /// CONNACK came, which may set another keep alive (MQTT-3.2.2-21).
    pub(super) fn welcome(&mut self, server_seconds: Option<u16>) {
        if let Some(seconds) = server_seconds {
            self.interval = Duration::from_secs(seconds.into());
        }
        self.awaited = Awaited::Nothing;
    }

    pub(super) fn end(&mut self) {
        self.awaited = Awaited::Nothing;
    }

    #[inline]
    pub(super) fn sent(&mut self, now: Instant) {
        self.sent_at = now;
        if self.awaited == Awaited::Ping {
            self.awaited = Awaited::Pingresp(now);
        }
    }

    /// PINGRESP cannot have come by now.
    pub(super) fn postpone(&mut self, now: Instant) {
        if let Awaited::Pingresp(since) = &mut self.awaited {
            *since = now;
        }
    }

    /// Whether PINGREQ is to be written.
    pub(super) fn ping(&mut self) -> bool {
        let is_due = self.awaited == Awaited::Nothing;
        if is_due {
            self.awaited = Awaited::Ping;
        }
        is_due
    }

    /// PINGRESP came.
    pub(super) fn answered(&mut self) {
        if matches!(self.awaited, Awaited::Pingresp(_)) {
            self.awaited = Awaited::Nothing;
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.awaited {
            Awaited::Connack(since) | Awaited::Pingresp(since) => Some(since + self.answer_timeout),
            Awaited::Ping => None,
            Awaited::Nothing if self.interval.is_zero() => None,
            // Half of it, so that a ping that is late by as much is in time.
            Awaited::Nothing => Some(self.sent_at + self.interval / 2),
        }
    }

    /// The time that [`KeepAlive::poll_timeout`] named has come: which answer has not.
    pub(super) fn expire(&mut self) -> Option<&'static str> {
        match self.awaited {
            Awaited::Connack(_) => Some("CONNACK"),
            Awaited::Pingresp(_) => Some("PINGRESP"),
            Awaited::Ping | Awaited::Nothing => None,
        }
    }
}
