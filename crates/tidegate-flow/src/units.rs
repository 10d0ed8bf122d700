//! Quantities in configuration, as [`tidegate_message::quantity`] reads them.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};
use tidegate_message::quantity::{self, ByteCount};

/// For `serde(deserialize_with)`: at most 292 years, as many nanoseconds as 63 bits hold.
pub(crate) fn time_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let time = quantity::duration(&text).map_err(D::Error::custom)?;
    match i64::try_from(time.as_nanos()) {
        Ok(_) => Ok(time),
        Err(_) => {
            Err(D::Error::custom(format!("{text:?} is too long: at most 292 years, such as 10min")))
        }
    }
}

/// For `serde(deserialize_with)`.
pub(crate) fn duration_from<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    time_from(deserializer).map(Some)
}

/// For `serde(deserialize_with)`: at most 2^63 - 1.
pub(crate) fn bytes_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let ByteCount(bytes) = text.parse().map_err(D::Error::custom)?;
    match i64::try_from(bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => {
            Err(D::Error::custom(format!("{text:?} is too large: below 2^63 bytes, such as 64KiB")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Keys {
        #[serde(default, deserialize_with = "duration_from")]
        time: Option<Duration>,
        #[serde(default, deserialize_with = "bytes_from")]
        bytes: u64,
    }

    #[test]
    fn quantities_are_read_or_refused_by_name() {
        let keys: Keys = toml::from_str("time = \"1d\"\nbytes = \"64KB\"").unwrap();
        assert_eq!((keys.time, keys.bytes), (Some(Duration::from_secs(86_400)), 64_000));
        for (text, expected) in [
            ("time = \"100\"", "\"100\" is not a duration: a number with ns"),
            ("time = \"2e11min\"", "is not a duration"),
            ("time = \"150000d\"", "\"150000d\" is too long: at most 292 years"),
            ("bytes = \"64\"", "\"64\" is not a size: a number with B, kB"),
            ("bytes = \"9e9GiB\"", "\"9e9GiB\" is too large: below 2^63 bytes"),
        ] {
            let error = toml::from_str::<Keys>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
