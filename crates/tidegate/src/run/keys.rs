//! Keys that several sections have, and what they stand for.

use std::{io, path::Path};

use tidegate_broker::Versions;
use tidegate_config::{ByteCount, words::MqttVersions};
use tidegate_message::Secret;
use tidegate_server::journal;
use tidegate_sys::regular;
use tidegate_wire::mqtt::{QoS, Version};

// Limits of other crates that the configuration repeats.
const _: () = {
    assert!(
        tidegate_config::FRAME_BYTES_MOST == tidegate_api::MESSAGE_BYTES_MAX as u64 - (1 << 20)
    );
    assert!(tidegate_config::PACKET_BYTES_MAX == tidegate_wire::mqtt::PACKET_BYTES_MAX as u64);
    assert!(tidegate_config::MQTT_BYTES_MIN == journal::BYTES_MIN);
};

/// A checked QoS.
pub(super) fn qos_of(number: u32) -> QoS {
    u8::try_from(number).ok().and_then(QoS::of_bits).expect("it was checked")
}

/// The versions of MQTT of those words.
pub(super) fn versions_of(words: MqttVersions) -> Versions {
    let known = [Version::V3, Version::V4, Version::V5];
    Versions::of(
        known.into_iter().zip(words.spoken()).filter_map(|(known, is)| is.then_some(known)),
    )
}

/// Bytes of a limit that the broker counts in 32 bits.
pub(super) fn bytes_of(count: ByteCount) -> u32 {
    u32::try_from(count.0).unwrap_or(u32::MAX)
}

/// The parts of a text that is a list with commas between.
pub(super) fn list(text: &str) -> Vec<String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// A user name, which was read as text.
pub(super) fn username(name: Option<&Secret>) -> Option<String> {
    name.map(|name| str::from_utf8(name).expect("it was read as text").to_owned())
}

/// The content of a password file, without the end of its line.
pub(super) fn password(file: &Path) -> io::Result<Secret> {
    let mut password = regular::read(file)?;
    while password.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        password.pop();
    }
    Ok(password.into())
}

/// The session `$usual`, with the queue that a section describes in place of its own.
macro_rules! queued {
    ($section:expr, $usual:expr, $policies:expr) => {{
        let (section, usual) = ($section, $usual);
        tidegate_broker::SessionConfig {
            queue_bytes_max: section.queue_bytes_max.map_or(usual.queue_bytes_max, |count| count.0),
            overflow_qos0: section.overflow_qos0.unwrap_or(usual.overflow_qos0),
            overflow: section.overflow.unwrap_or(usual.overflow),
            policy: match section.policy {
                Some(policy) => $crate::run::policies::tuned($policies, policy),
                None => usual.policy,
            },
            large_bytes: section.large_bytes.map_or(usual.large_bytes, $crate::run::keys::bytes_of),
            ..usual
        }
    }};
}
pub(super) use queued;

#[cfg(test)]
mod tests {
    use tidegate_config::{Config, words::Policy};
    use tidegate_frame::{
        controller::{LinkModel, MezPiConfig},
        coordinator::CoordinatorConfig,
    };

    use super::*;

    #[test]
    fn words_and_defaults_are_those_of_the_parts() {
        for (word, policy) in Policy::WORDS {
            assert_eq!(policy.word(), *word);
            let known: tidegate_schedule::Policy = word.parse().expect("it is known");
            assert_eq!(known.as_str(), *word);
        }
        assert_eq!(versions_of(MqttVersions::ALL), Versions::default());
        let some = versions_of("3.1, 5".parse().expect("two versions"));
        assert_eq!(some, Versions::of([Version::V3, Version::V5]));
        let config = Config::default();
        let (mez_pi, usual, line) = (&config.mez_pi, MezPiConfig::default(), LinkModel::paper());
        assert_eq!(mez_pi.slope_ms_per_megabyte, line.slope_ms_per_byte * 1e6);
        assert_eq!(mez_pi.intercept_ms, line.intercept_ms);
        assert_eq!(mez_pi.k1_bytes_per_ms, usual.k1_bytes_per_ms);
        assert_eq!(mez_pi.k2_bytes_per_ms_second, usual.k2_bytes_per_ms_second);
        assert_eq!((mez_pi.threshold, mez_pi.interval), (usual.threshold, usual.interval));
        assert_eq!(config.link.sensor_share, CoordinatorConfig::default().sensors);
    }
}
