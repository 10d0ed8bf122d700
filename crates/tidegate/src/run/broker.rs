//! The MQTT server as `[mqtt]` describes it: what holds for the whole broker.

use std::{sync::Arc, thread};

use tidegate_api::ApiError;
use tidegate_broker::{BrokerConfig, SessionConfig, TopicConfig};
use tidegate_config::{Config, MqttSection, Purpose, problems::Problems, words::Durability};
use tidegate_identity::access::Access;
use tidegate_message::check_topic_filter;
use tidegate_schedule::PolicyConfig;
use tidegate_server::{journal::JournalSettings, settings::ServerSettings, spill::SpillSettings};
use tidegate_uplink::hand_over;

use super::{
    audited_access::AuditedAccess,
    invalid,
    keys::{bytes_of, qos_of, versions_of},
    listeners,
    policies::{policies, tuned},
};

/// The settings of the MQTT server that `config` describes.
///
/// # Errors
/// [`Code::CONFIG_INVALID`](tidegate_message::Code::CONFIG_INVALID), naming the keys or the files.
pub(super) fn settings(
    config: &Config,
    access: Access,
    purpose: Purpose,
) -> Result<ServerSettings, ApiError> {
    let section = &config.mqtt;
    let mut problems = Problems::default();
    let broker = problems.take(broker(config)).unwrap_or_default();
    let listeners = problems.take_all(listeners::all(config, &broker, &access, purpose));
    problems.into_result()?;
    let access = Arc::new(AuditedAccess(access));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    Ok(ServerSettings {
        broker,
        listeners,
        shards: if section.shards == 0 { processors.min(255) } else { section.shards as usize },
        authorize: access.clone(),
        authenticator: access,
        operators: None,
        journal: (section.durability != Durability::Memory).then(|| JournalSettings {
            folder: config.node.data_dir.join("log/mqtt"),
            is_on_disk: section.durability == Durability::Disk,
            bytes_max: config.log.mqtt_bytes.0,
            commit_delay: config.log.mqtt_commit_delay,
        }),
        spill: (section.spill_bytes.0 > 0).then(|| SpillSettings {
            folder: config.node.data_dir.join("spill"),
            bytes_max: section.spill_bytes.0,
        }),
    })
}

/// The settings of the broker, for all listeners.
///
/// # Errors
/// [`Code::CONFIG_INVALID`](tidegate_message::Code::CONFIG_INVALID), naming the keys.
pub(super) fn broker(config: &Config) -> Result<BrokerConfig, ApiError> {
    let section = &config.mqtt;
    let mut problems = Problems::default();
    let policies = problems.take(policies(section)).unwrap_or_default();
    let marks = hand_over::sizes().map(|(filter, large_bytes)| {
        Ok(TopicConfig { filter, large_bytes: Some(large_bytes), overflow: None })
    });
    let topics = config.mqtt_topics.iter().map(|(name, topic)| {
        let key = format!("mqtt.topic.{name}.filter");
        check_topic_filter(&topic.filter, section.topic_levels_max as usize)
            .map_err(|error| invalid(&key, &error))?;
        Ok(TopicConfig {
            filter: topic.filter.clone(),
            large_bytes: topic.large_bytes.map(bytes_of),
            overflow: topic.overflow,
        })
    });
    let topics = problems.take_all(marks.chain(topics));
    problems.into_result()?;
    Ok(BrokerConfig {
        payload_bytes_max: section.payload_bytes_max.0,
        session_expiry_max: section.session_expiry_max,
        identity_share: section.identity_share,
        sessions_max: section.sessions_max as usize,
        subscriptions_max: section.subscriptions_max as usize,
        retained_max: section.retained_max as usize,
        check_retain_source: section.check_retain_source,
        inflight_max: section.inflight_max,
        receive_maximum: section.receive_maximum,
        topic_alias_max: section.topic_alias_max,
        topic_alias_out_max: section.topic_alias_out_max,
        keep_alive_max: u16::try_from(section.keepalive_max.as_secs()).unwrap_or(u16::MAX),
        session: session(section, &policies),
        topics,
        sys_interval: section.sys_interval,
        query_topic: section.policy_query_topic.as_str().into(),
        ..BrokerConfig::default()
    })
}

/// All that is wrong with what MQTT clients are served by; nothing is written.
pub(super) fn problems(config: &Config, access: &Access) -> Problems {
    let mut problems = Problems::default();
    let broker = problems.take(broker(config)).unwrap_or_default();
    problems.take_all(listeners::all(config, &broker, access, Purpose::Check));
    problems
}

/// The settings of sessions for which nothing else is said.
///
/// # Errors
/// [`Code::CONFIG_INVALID`](tidegate_message::Code::CONFIG_INVALID), naming the key.
pub(super) fn usual_session(config: &Config) -> Result<SessionConfig, ApiError> {
    Ok(session(&config.mqtt, &policies(&config.mqtt)?))
}

fn session(section: &MqttSection, policies: &PolicyConfig) -> SessionConfig {
    SessionConfig {
        packet_bytes_max: bytes_of(section.packet_bytes_max),
        topic_levels_max: section.topic_levels_max as usize,
        topic_bytes_max: section.topic_bytes_max.0 as usize,
        queue_bytes_max: section.queue_bytes_max.0,
        queue_messages_max: section.queue_messages_max as usize,
        queue_idle_max: section.queue_idle_max,
        versions: versions_of(section.accept_protocol_versions),
        max_qos: qos_of(section.max_qos),
        retain_available: section.retain_available,
        allow_zero_length_client_id: section.allow_zero_length_clientid,
        auto_id_prefix: section.auto_id_prefix.as_str().into(),
        topic_control_characters: section.topic_control_characters,
        overflow_qos0: section.overflow_qos0,
        overflow: section.overflow,
        policy: tuned(policies, section.policy),
        large_bytes: bytes_of(section.large_bytes),
        ..SessionConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use tidegate_config::words;
    use tidegate_schedule::{DeadlineConfig, PaperConfig, Policy, SizeProfile, Threshold};

    use super::*;
    use crate::run::users;

    fn access(config: &Config) -> Result<Access, ApiError> {
        Ok(Access { authenticator: Arc::new(users::open(config)?), ..Access::default() })
    }

    #[test]
    fn policies_have_their_numbers() {
        let settings = |text: &str| {
            let text = format!("[mqtt]\n{text}\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n");
            let config = Config::parse(Path::new("site.toml"), &text)?;
            settings(&config, access(&config)?, Purpose::Run)
        };
        let found = settings(
            "policy = \"probabilistic\"\npolicy_lambda = 0.5\npolicy_threshold_samples = 9\npolicy_query_period = \"1s\"\n\
             policy_size_profile = \"1kB:1, 2kB:3\"\npolicy_query_topic = \"rtt\"\npolicy_small_budget = \"7ms\"\n",
        );
        let found = found.unwrap();
        let session = &found.listeners[0].sessions.usual;
        let expected = PaperConfig {
            threshold_l: Threshold::MovingAverage { samples: 9 },
            query_period: Duration::from_secs(1),
            profile: SizeProfile::Points(vec![(1_000, 1.0), (2_000, 3.0)]),
            lambda: 0.5,
            ..PaperConfig::default()
        };
        assert_eq!(session.policy, Policy::Probabilistic(expected));
        assert_eq!(&*found.broker.query_topic, "rtt");
        // A client that names another policy has that one's numbers.
        let deadline = tuned(&found.listeners[0].sessions.policies, words::Policy::Deadline);
        let expected =
            DeadlineConfig { small_budget: Duration::from_millis(7), ..DeadlineConfig::default() };
        assert_eq!(deadline, Policy::Deadline(expected));
        assert_eq!(
            settings("").unwrap().broker.session,
            SessionConfig { packet_bytes_max: 64 << 20, ..SessionConfig::default() }
        );
        for (text, expected) in [
            ("policy_size_profile = \"2kB:1, 1kB:3\"", "mqtt.policy_size_profile"),
            ("policy_size_profile = \"2kB:0\"", "mqtt.policy_size_profile"),
            ("policy_query_topic = \"a/#\"", "mqtt.policy_query_topic"),
            ("policy_large_share = 1.0", "from 0 to 0.99"),
            ("policy_lambda = 0.0", "above 0"),
        ] {
            let error = tidegate_message::error_chain(&settings(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
