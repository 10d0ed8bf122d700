//! The decision of one source of rules, and of several together.

use std::sync::Arc;

use tidegate_message::Decision;

/// The decision of one source of rules, with the rule that made it.
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
    /// The decision of this source alone: without an allowing rule, deny.
    pub(crate) fn or_deny(self) -> Decision {
        match self {
            Self::Allow(rule) => Decision::allow(Arc::clone(rule)),
            Self::Deny(rule) | Self::Silent(rule) => Decision::deny(Arc::clone(rule)),
        }
    }

    /// The decision of two sources together: a rule that denies wins over one that allows, wherever the two stand.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Deny(_), _) => self,
            (_, Self::Deny(_)) => other,
            (Self::Allow(_), _) => self,
            (Self::Silent(_), _) => other,
        }
    }
}
