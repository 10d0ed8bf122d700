//! Changes of a medium while it runs.

use std::{str::FromStr, time::Duration};

use super::unit::{FromText, Probability, Rate, UnitError};

/// New values for a running medium; `None` leaves one as it is.
///
/// In text form `MEDIUM key=value …` with the keys `rate`, `delay`, `loss`, `error`, `factor` and
/// `port`, for example `wifi0 port=cam5 factor=0.1`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Name of the medium.
    pub medium: String,
    /// Node whose port is meant; all ports of the medium if `None`. On a WAN a port stands for the
    /// direction that leaves it, on Wi-Fi for the station in both directions.
    pub port: Option<String>,
    /// Line rate (WAN) or PHY rate (Wi-Fi).
    pub rate: Option<Rate>,
    /// One-way delay. On Wi-Fi the whole medium has one.
    pub delay: Option<Duration>,
    /// Packet loss of a WAN.
    pub loss: Option<Probability>,
    /// Error rate of Wi-Fi MPDUs, of the whole medium.
    pub error: Option<Probability>,
    /// Factor on the rate, 0 or more: 0 cuts the link, 1 restores it. The factor of a port and the
    /// factor of the medium multiply.
    pub factor: Option<f64>,
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(text: &str) -> Result<Self, ChangeError> {
        let mut words = text.split_whitespace();
        let medium = words.next().ok_or(ChangeError::Nothing)?.to_owned();
        let mut change = Self { medium, ..Self::default() };
        let mut said = false;
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| ChangeError::Pair { word: word.into() })?;
            said |= key != "port";
            match key {
                "port" => change.port = Some(value.into()),
                "rate" => change.rate = Some(FromText::parse_text(value)?),
                "delay" => change.delay = Some(FromText::parse_text(value)?),
                "loss" => change.loss = Some(FromText::parse_text(value)?),
                "error" => change.error = Some(FromText::parse_text(value)?),
                "factor" => {
                    let factor = value.parse().ok().filter(|factor| factor_valid(*factor));
                    change.factor = Some(factor.ok_or(ChangeError::Factor)?);
                }
                _ => return Err(ChangeError::Key { key: key.into() }),
            }
        }
        if said { Ok(change) } else { Err(ChangeError::Nothing) }
    }
}

/// Whether a factor on a rate can be used.
pub(crate) fn factor_valid(factor: f64) -> bool {
    (0.0..=1000.0).contains(&factor)
}

/// Why a change was not made. A refused change changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No value in it.
    #[error("nothing to change; write MEDIUM key=value, such as \"wan0 rate=20Mbit\"")]
    Nothing,
    /// A word that is no pair.
    #[error("{word:?} is not key=value")]
    Pair {
        /// The word.
        word: String,
    },
    /// A key that does not exist.
    #[error("unknown key {key:?}; there are rate, delay, loss, error, factor and port")]
    Key {
        /// The key.
        key: String,
    },
    /// A value that cannot be read.
    #[error(transparent)]
    Value(#[from] UnitError),
    /// A factor outside its range.
    #[error("a factor is a number from 0 to 1000")]
    Factor,
    /// No medium of that name.
    #[error("no medium {medium:?}; there are: {known}")]
    Medium {
        /// The name.
        medium: String,
        /// Names that exist.
        known: String,
    },
    /// No port of that node, or one that has no radio.
    #[error("medium {medium:?} has no port {port:?} that can change; there are: {known}")]
    Port {
        /// The medium.
        medium: String,
        /// The node named.
        port: String,
        /// Nodes that can.
        known: String,
    },
    /// A value that this kind of medium does not have.
    #[error("medium {medium:?} has no {key} {place}")]
    Inapplicable {
        /// The medium.
        medium: String,
        /// The key.
        key: &'static str,
        /// Where it was asked for.
        place: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_from_text() {
        let change: Change = "wifi0 port=cam5 factor=0.1".parse().unwrap();
        assert_eq!(change.medium, "wifi0");
        assert_eq!(change.port.as_deref(), Some("cam5"));
        assert_eq!(change.factor, Some(0.1));
        for (text, error) in [
            ("", "nothing to change; write MEDIUM key=value, such as \"wan0 rate=20Mbit\""),
            (
                "wan0 port=a",
                "nothing to change; write MEDIUM key=value, such as \"wan0 rate=20Mbit\"",
            ),
            ("wan0 rate", "\"rate\" is not key=value"),
            ("wan0 factor=-1", "a factor is a number from 0 to 1000"),
            ("wan0 factor=NaN", "a factor is a number from 0 to 1000"),
            (
                "wan0 speed=1",
                "unknown key \"speed\"; there are rate, delay, loss, error, factor and port",
            ),
            ("wan0 loss=5", "\"5\" is not a share from \"0%\" to \"100%\""),
        ] {
            assert_eq!(text.parse::<Change>().unwrap_err().to_string(), error, "{text:?}");
        }
    }
}
