//! Which word of the configuration is which of the parts'.

use tidegate_broker::Versions;
use tidegate_camera::{camera::Originals, source::RtspTransport};
use tidegate_config::words;
use tidegate_ingest::{Format, Kind};
use tidegate_link::link::Transport;
use tidegate_server::{bridge::RemoteVersion, journal, settings::Protocol};
use tidegate_sys::{bpf::Mode, datagram::Method};
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

/// A word of the configuration, as the part of the program has it that it is for.
pub(super) trait Translate<T> {
    fn translated(self) -> T;
}

macro_rules! same {
    ($($word:ident is $of:path { $($variant:ident),+ })+) => {$(
        impl Translate<$of> for words::$word {
            fn translated(self) -> $of {
                type Of = $of;
                match self {
                    $(words::$word::$variant => Of::$variant,)+
                }
            }
        }
    )+};
}

same! {
    CameraTransport is RtspTransport { Tcp, Udp }
    Cover is tidegate_frame::privacy::Cover { Fill, Blur }
    DatagramFormat is Format { Payload, TopicPayload, Line }
    Durability is tidegate_log::Durability { Memory, Page, Disk }
    IngestKind is Kind { Udp, Coap, Http, WebSocket }
    Originals is Originals { Covered, Clear }
    Overflow is tidegate_broker::Overflow { DropOldest, DropNewest, Latest, Disconnect, BlockPublisher, Spill, SpillDisconnect }
    Protocol is Protocol { Tcp, Tls, WebSocket, SecureWebSocket }
    ProxyProtocol is tidegate_wire::proxy::Accepted { V1, V2, Any }
    ReceiveMethod is Method { Auto, Uring, Batch, Plain }
    RemoteVersion is RemoteVersion { Auto, V4, V5 }
    Transport is Transport { Auto, Quic, Tcp }
    XdpMode is Mode { Auto, Native, Generic }
}

impl Translate<Versions> for words::MqttVersions {
    fn translated(self) -> Versions {
        let known = [Version::V3, Version::V4, Version::V5];
        Versions::of(
            known.into_iter().zip(self.spoken()).filter_map(|(known, is)| is.then_some(known)),
        )
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config::Config;
    use tidegate_frame::{
        controller::{LinkModel, MezPiConfig},
        coordinator::CoordinatorConfig,
    };

    use super::*;

    #[test]
    fn words_and_defaults_are_those_of_the_parts() {
        for (word, overflow) in words::Overflow::WORDS {
            let overflow: tidegate_broker::Overflow = overflow.translated();
            assert_eq!(overflow.word(), *word);
        }
        for (word, method) in words::ReceiveMethod::WORDS {
            let method: Method = method.translated();
            assert_eq!(method.word(), *word);
        }
        for (word, mode) in words::XdpMode::WORDS {
            let mode: Mode = mode.translated();
            assert_eq!(mode.word(), *word);
        }
        for (word, policy) in words::Policy::WORDS {
            assert_eq!(policy.word(), *word);
            let known: tidegate_schedule::Policy = word.parse().expect("it is known");
            assert_eq!(known.as_str(), *word);
        }
        let all: Versions = words::MqttVersions::ALL.translated();
        assert_eq!(all, Versions::default());
        let some: words::MqttVersions = "3.1, 5".parse().expect("two versions");
        let some: Versions = some.translated();
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
