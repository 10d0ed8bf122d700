//! Messages that did not reach a subscriber.

/// Messages that did not reach a subscriber, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The oldest or newest, because the subscriber's queue was full.
    pub queue_full: u64,
    /// The subscriber's queue was full, and the disk took nothing.
    pub spill_full: u64,
    /// The disk did not give it back.
    pub spill_lost: u64,
    /// A newer one of the topic came, under `latest`.
    pub conflated: u64,
    /// The node's budget for payloads was full.
    pub budget_full: u64,
    /// Expired before it could be sent.
    pub expired: u64,
    /// Larger than the subscriber takes.
    pub too_large: u64,
    /// The right to it was taken away while it waited.
    pub not_allowed: u64,
    /// It waited, or was not acknowledged, when its session ended, and no other member of a shared subscription took it.
    pub session_ended: u64,
    /// A message of QoS 1 or 2 for a shared subscription: all members that may have it were away, and keep nothing meanwhile,
    /// since they subscribe with QoS 0.
    pub members_away: u64,
}

impl Dropped {
    /// All together.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }

    /// Each reason with its count.
    pub fn by_reason(&self) -> [(&'static str, u64); 10] {
        let &Self {
            queue_full,
            spill_full,
            spill_lost,
            conflated,
            budget_full,
            expired,
            too_large,
            not_allowed,
            session_ended,
            members_away,
        } = self;
        [
            ("queue_full", queue_full),
            ("spill_full", spill_full),
            ("spill_lost", spill_lost),
            ("conflated", conflated),
            ("budget_full", budget_full),
            ("expired", expired),
            ("too_large", too_large),
            ("not_allowed", not_allowed),
            ("session_ended", session_ended),
            ("members_away", members_away),
        ]
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.queue_full += other.queue_full;
        self.spill_full += other.spill_full;
        self.spill_lost += other.spill_lost;
        self.conflated += other.conflated;
        self.budget_full += other.budget_full;
        self.expired += other.expired;
        self.too_large += other.too_large;
        self.not_allowed += other.not_allowed;
        self.session_ended += other.session_ended;
        self.members_away += other.members_away;
    }
}
