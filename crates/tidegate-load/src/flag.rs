//! Values of flags, as people write them.

use std::time::Duration;

use tidegate_wire::mqtt::{QoS, Version};

/// A version of MQTT as people write it.
///
/// # Errors
/// It is none.
pub fn version(text: &str) -> Result<Version, ArgError> {
    match text {
        "3.1" | "mqttv31" => Ok(Version::V3),
        "3.1.1" | "311" | "4" | "mqttv311" => Ok(Version::V4),
        "5" | "5.0" | "mqttv5" => Ok(Version::V5),
        _ => Err(ArgError::Version),
    }
}

/// A quality of service by its number.
///
/// # Errors
/// It is none.
pub fn qos(text: &str) -> Result<QoS, ArgError> {
    text.parse().ok().and_then(QoS::of_bits).ok_or(ArgError::Qos)
}

/// A time as a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, ArgError> {
    let seconds: f64 = text.parse().map_err(|_| ArgError::Duration)?;
    Duration::try_from_secs_f64(seconds).map_err(|_| ArgError::Duration)
}

/// Reason why a flag cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgError {
    /// No version of MQTT.
    #[error("a version of MQTT is 3.1, 3.1.1 or 5")]
    Version,
    /// No quality of service.
    #[error("a quality of service is 0, 1 or 2")]
    Qos,
    /// No time.
    #[error("a time is a number of seconds, or in a flow a number with its unit, such as 50ms")]
    Duration,
    /// No flow.
    #[error("a flow is NAME=BYTES,PERIOD,QOS, and its name one level of a topic")]
    Flow,
}
