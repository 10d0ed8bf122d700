//! Which word of the configuration is which of the parts'.

use tidegate_broker::Versions;
use tidegate_camera::camera::Originals;
use tidegate_ingest::{Format, Kind};
use tidegate_link::link::Transport;
use tidegate_server::{bridge::RemoteVersion, journal, settings::Protocol};
use tidegate_sys::{bpf::Mode, datagram::Method};
use tidegate_wire::mqtt::Version;

use crate::{
    config::{self, words},
    logging::LogFormat,
};

// Limits of other crates that the configuration repeats.
const _: () = {
    assert!(config::FRAME_BYTES_MOST == tidegate_api::MESSAGE_BYTES_MAX as u64 - (1 << 20));
    assert!(config::PACKET_BYTES_MAX == tidegate_wire::mqtt::PACKET_BYTES_MAX as u64);
    assert!(config::MQTT_BYTES_MIN == journal::BYTES_MIN);
};

macro_rules! same {
    ($($word:ident is $of:path { $($variant:ident),+ })+) => {$(
        impl From<words::$word> for $of {
            fn from(word: words::$word) -> Self {
                match word {
                    $(words::$word::$variant => Self::$variant,)+
                }
            }
        }
    )+};
}

same! {
    Cover is tidegate_frame::privacy::Cover { Fill, Blur }
    DatagramFormat is Format { Payload, TopicPayload, Line }
    Durability is tidegate_log::Durability { Memory, Page, Disk }
    IngestKind is Kind { Udp, Coap, Http, WebSocket }
    LogFormat is LogFormat { Text, Json }
    Originals is Originals { Covered, Clear }
    Overflow is tidegate_broker::Overflow { DropOldest, DropNewest, Latest, Disconnect, BlockPublisher, Spill }
    Protocol is Protocol { Tcp, Tls, WebSocket, SecureWebSocket }
    ProxyProtocol is tidegate_wire::proxy::Accepted { V1, V2, Any }
    ReceiveMethod is Method { Auto, Uring, Batch, Plain }
    RemoteVersion is RemoteVersion { Auto, V4, V5 }
    Transport is Transport { Auto, Quic, Tcp }
    XdpMode is Mode { Auto, Native, Generic }
}

impl From<words::MqttVersions> for Versions {
    fn from(versions: words::MqttVersions) -> Self {
        let known = [Version::V3, Version::V4, Version::V5];
        Self::of(
            known.into_iter().zip(versions.spoken()).filter_map(|(known, is)| is.then_some(known)),
        )
    }
}

#[cfg(test)]
mod tests {
    use tidegate_frame::{
        controller::{LinkModel, MezPiConfig},
        coordinator::CoordinatorConfig,
    };

    use super::*;
    use crate::config::Config;

    #[test]
    fn words_and_defaults_are_those_of_the_parts() {
        for (word, overflow) in words::Overflow::WORDS {
            assert_eq!(tidegate_broker::Overflow::from(*overflow).word(), *word);
        }
        for (word, method) in words::ReceiveMethod::WORDS {
            assert_eq!(Method::from(*method).word(), *word);
        }
        for (word, mode) in words::XdpMode::WORDS {
            assert_eq!(Mode::from(*mode).word(), *word);
        }
        for (word, policy) in words::Policy::WORDS {
            assert_eq!(policy.word(), *word);
            let known: tidegate_broker::schedule::Policy = word.parse().expect("it is known");
            assert_eq!(known.as_str(), *word);
        }
        assert_eq!(Versions::from(words::MqttVersions::ALL), Versions::default());
        let some: words::MqttVersions = "3.1, 5".parse().expect("two versions");
        assert_eq!(Versions::from(some), Versions::of([Version::V3, Version::V5]));
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
