//! The options of a subscription that matter to each message, and the memory that it takes.

use tidegate_wire::mqtt::QoS;

/// The options of a subscription that matter to each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubscriptionOptions {
    /// Most that messages come with.
    pub qos: QoS,
    /// Whether the client's own messages do not come back.
    pub no_local: bool,
    /// Whether messages keep their retain flag.
    pub retain_as_published: bool,
    /// Whether it is of a session that is written down.
    pub is_written: bool,
    /// Subscription Identifier; 0 for none.
    pub id: u32,
}

/// Bytes of filters that each session may have outside the node's budget.
pub(crate) const FILTERS_OWN_BYTES: u64 = 8 << 10;

/// Bytes of a subscription: its filter, and its places here and in the index.
pub(crate) fn filter_bytes(filter: &str) -> u64 {
    2 * filter.len() as u64 + 96
}
