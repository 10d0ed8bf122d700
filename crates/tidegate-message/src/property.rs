//! User properties of MQTT (MQTT 5, section 3.3.2.3.7) that Tidegate gives a meaning.

/// The user property by which a message is known wherever it comes: `NODE/UPLINK/LIFE/NUMBER`.
pub const ID_PROPERTY: &str = "tidegate-id";

/// The user property that says when a value was measured, where its payload does not: nanoseconds since 1970, in decimal digits.
pub const TIME_PROPERTY: &str = "tidegate-time";
