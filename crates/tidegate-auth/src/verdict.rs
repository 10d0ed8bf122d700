//! What one source of rules says, and what several say together.

use std::sync::Arc;

use tidegate_message::Decision;

/// What one source of rules says, with the rule that says it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict<'a> {
    /// A rule forbids it.
    Deny(&'a Arc<str>),
    /// A rule lets it be, and none forbids it.
    Allow(&'a Arc<str>),
    /// No rule speaks of it; the text says whose.
    Silent(&'a Arc<str>),
}

impl Verdict<'_> {
    /// What comes of this source alone: what nothing allows is denied.
    pub(crate) fn or_deny(self) -> Decision {
        match self {
            Self::Allow(rule) => Decision::allow(Arc::clone(rule)),
            Self::Deny(rule) | Self::Silent(rule) => Decision::deny(Arc::clone(rule)),
        }
    }

    /// What two sources say together: a rule that forbids wins over one that allows, wherever the two stand.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Deny(_), _) => self,
            (_, Self::Deny(_)) => other,
            (Self::Allow(_), _) => self,
            (Self::Silent(_), _) => other,
        }
    }
}
