//! User properties of MQTT (MQTT 5, section 3.3.2.3.7) that Tidegate gives a meaning.

/// The user property by which a message is known wherever it comes: `NODE/UPLINK/LIFE/NUMBER`.
pub const ID_PROPERTY: &str = "tidegate-id";

/// The user property by which nodes that are one broker decide which of two retained values of a topic is the newer, in sixteen hexadecimal
/// digits each: the time of the value on the clock of the node where it was published, `-`, and that node. `+` stands for `-` where a node
/// repeats what it retains.
pub const RETAINED_PROPERTY: &str = "tidegate-retained";

/// The user property that says when a value was measured, where its payload does not: nanoseconds since 1970, in decimal digits.
pub const TIME_PROPERTY: &str = "tidegate-time";
