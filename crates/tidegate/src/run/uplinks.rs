//! From the sections `[uplink.NAME]` to settings.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_broker::{Overflow, SessionConfig};
use tidegate_compress::{Compression, EncoderConfig};
use tidegate_config::{Config, UplinkSection, problems::Problems};
use tidegate_identity::{access::Access, pki::Kind};
use tidegate_link::link;
use tidegate_message::{Code, check_topic_filter, error_chain, host::host_and_port};
use tidegate_uplink::{TOPICS_MAX, layouts};
use tidegate_uplinks::{Home, Receivers, UplinkLinks, UplinkReport, UplinkSettings, Uplinks};
use tidegate_web::UplinkRow;
use tidegate_wire::Role;

use super::{
    broker::usual_session,
    cameras::resolve,
    certificates::credentials,
    findings::Findings,
    keys::list,
    link_settings,
    node_name::node_of_paths,
    part::{Changes, Exchange, Part, Ports, Reach, Running, Started, dropped},
};

/// The part that has the uplinks, and takes what comes over those of other nodes.
pub(super) struct Upwards;

#[async_trait]
impl Part for Upwards {
    fn name(&self) -> &'static str {
        "uplinks"
    }

    fn needs_certificate(&self) -> bool {
        true
    }

    fn is_configured(&self, config: &Config) -> bool {
        !config.uplinks.is_empty()
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        found.problems.take(planned(config));
    }

    fn reaches(&self, config: &Config) -> Vec<Reach> {
        let name = config.node.name.as_str();
        let (Ok(uplinks), Ok(credentials)) =
            (planned(config), credentials(config, Kind::Node, name))
        else {
            return Vec::new();
        };
        let reach = |uplink: UplinkSettings| -> Reach {
            let (credentials, settings) = (credentials.clone(), link_settings(config));
            let reached = async move {
                let address = resolve(&uplink.to).await.map_err(|error| error.chain())?;
                let link = link::dial(address, &credentials, settings, uplink.transport).await;
                let link =
                    link.map_err(|error| format!("{}: {}", uplink.to, error_chain(&error)))?;
                link.close(0, "the configuration was checked");
                Ok(())
            };
            (format!("uplink.{}.to", uplink.name), Box::pin(reached))
        };
        uplinks.into_iter().map(reach).collect()
    }

    fn sessions(&self, config: &Config) -> Vec<String> {
        config.uplinks.keys().flat_map(|name| UplinkSettings::sessions(name)).collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let (Some(site), Some(credentials)) = (&mut ports.site, &ports.credentials) else {
            return Ok(None);
        };
        let receivers = Arc::new(Receivers::new(config.link.uplink_bytes_max.0));
        let medium = site.streams.medium();
        site.links.serve(Role::Uplink, Arc::new(UplinkLinks::new(receivers.clone(), medium)));
        let (Some(bus), Some(server)) = (&ports.bus, ports.server.get().and_then(Weak::upgrade))
        else {
            return Ok(None);
        };
        let only_receives = config.uplinks.is_empty();
        let node: Arc<str> = node_of_paths(config, only_receives)?.into();
        receivers.serve_by(bus.clone(), &node);
        ports.receivers = Some(receivers.clone());
        let looped = Arc::downgrade(&receivers);
        server.shared().tell_in_sys("uplinks", move || {
            let counts = |receivers: Arc<Receivers>| {
                vec![("looped", receivers.looped()), ("repeated", receivers.repeated())]
            };
            looped.upgrade().map(counts)
        });
        let uplinks = Arc::new(RunningUplinks {
            uplinks: Mutex::default(),
            home: Home {
                node,
                bus: bus.clone(),
                credentials: credentials.clone(),
                link: link_settings(config),
            },
        });
        ports.tables.uplinks.show(&uplinks, RunningUplinks::rows);
        let begun = Begun(uplinks);
        begun.plan(config)?(&mut Changes::default())?;
        Ok(Some(Box::new(begun)))
    }
}

struct Begun(Arc<RunningUplinks>);

struct RunningUplinks {
    uplinks: Mutex<Uplinks>,
    home: Home,
}

#[async_trait]
impl Running for Begun {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let planned = planned(new)?;
        Ok(Box::new(move |changes| {
            let RunningUplinks { uplinks, home } = &*self.0;
            let mut uplinks = uplinks.lock().unwrap_or_else(PoisonError::into_inner);
            for name in uplinks.exchange(planned, home) {
                tracing::info!(uplink = name, "uplink started, stopped or restarted");
                changes.note("uplink", &name);
            }
            Ok(())
        }))
    }

    /// Waits until what is published is carried by all uplinks; not for ever, since a node serves without them as well.
    async fn ready(&self) {
        const LONGEST: Duration = Duration::from_secs(10);
        let uplinks = self.0.uplinks.lock().unwrap_or_else(PoisonError::into_inner).held();
        for mut held in uplinks {
            let waited = tokio::time::timeout(LONGEST, held.wait_for(|held| *held > 0)).await;
            if !matches!(waited, Ok(Ok(_))) {
                tracing::warn!("an uplink does not take messages yet");
            }
        }
    }

    async fn stop(self: Box<Self>) {
        dropped("uplinks", self).await;
    }
}

impl RunningUplinks {
    /// The uplinks, by name, with what they said last.
    fn rows(&self) -> Vec<UplinkRow> {
        let uplinks = self.uplinks.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(name, to, said): (String, String, UplinkReport)| UplinkRow {
            name,
            to,
            up: said.up,
            messages: said.messages,
            message_bytes: said.message_bytes,
            bytes: said.bytes,
            critical: said.critical,
            held_bytes: said.held_bytes,
            refused: said.refused,
        };
        uplinks.reports().into_iter().map(row).collect()
    }
}

/// Most state of one uplink, at each end: of as many topics as there may be, of some thousand bytes each.
const STATE_BYTES_MAX: u64 = 64 << 30;

/// The uplinks that `config` describes.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key.
fn planned(config: &Config) -> Result<Vec<UplinkSettings>, ApiError> {
    if let Some(name) = config.uplinks.keys().next().filter(|_| !config.mqtt.enabled) {
        let text =
            format!("uplink.{name} carries what the MQTT broker has, but mqtt.enabled is false");
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    let usual = usual_session(config)?;
    let mut problems = Problems::default();
    let uplinks = config.uplinks.iter();
    let uplinks =
        problems.take_all(uplinks.map(|(name, section)| uplink(config, name, section, &usual)));
    problems.into_result()?;
    Ok(uplinks)
}

fn uplink(
    config: &Config,
    name: &str,
    section: &UplinkSection,
    usual: &SessionConfig,
) -> Result<UplinkSettings, ApiError> {
    let wrong = |key: &str, bound: &str| {
        ApiError::new(Code::CONFIG_INVALID, format!("uplink.{name}.{key} must be {bound}"))
    };
    let mut problems = Problems::default();
    if host_and_port(section.to.expose()).is_none() {
        problems.note(wrong("to", "a host and a port, such as core.example:7443"));
    }
    let levels = config.mqtt.topic_levels_max as usize;
    let filters = |key: &str, text: &str| {
        let checked =
            list(text).into_iter().map(|filter| match check_topic_filter(&filter, levels) {
                Ok(()) if !filter.starts_with("$share/") => Ok(filter),
                Ok(()) => Err(wrong(key, "of filters that are not shared")),
                Err(error) => Err(wrong(key, "of filters").caused_by(error_chain(&error))),
            });
        checked.collect::<Result<Vec<_>, _>>()
    };
    let topics = problems.take(filters("topics", &section.topics));
    if topics.as_ref().is_some_and(Vec::is_empty) {
        problems.note(wrong("topics", "at least one filter; `#` stands for all topics"));
    }
    let critical = problems.take(filters("critical", &section.critical));
    let layouts = layouts::read(&section.layouts, levels).map_err(|problem| {
        ApiError::new(Code::CONFIG_INVALID, format!("uplink.{name}.layouts: {problem}"))
    });
    let layouts = problems.take(layouts);
    let compression = compression(&section.compression)
        .ok_or_else(|| wrong("compression", "none, zstd:LEVEL or zstd-stream:LEVEL, 1 to 19"));
    let compression = problems.take(compression);
    for (key, is_right, bound) in [
        (
            "batch_age",
            (Duration::from_millis(1)..=Duration::from_secs(10)).contains(&section.batch_age),
            "from 1ms to 10s",
        ),
        ("batch_bytes", (1 << 10..=1 << 20).contains(&section.batch_bytes.0), "from 1KiB to 1MiB"),
        (
            "window_bytes",
            (1 << 20..=1 << 30).contains(&section.window_bytes.0),
            "from 1MiB to 1GiB",
        ),
        (
            "flight_bytes",
            (64 << 10..=32 << 20).contains(&section.flight_bytes.0),
            "from 64KiB to 32MiB",
        ),
        ("topics_max", (1..=TOPICS_MAX).contains(&section.topics_max), "from 1 to 16777216"),
        (
            "state_bytes",
            (1 << 20..=STATE_BYTES_MAX).contains(&section.state_bytes.0),
            "from 1MiB to 64GiB",
        ),
        (
            "critical_bytes_per_second",
            section.critical_bytes_per_second.0 >= 1 << 10,
            "at least 1KiB",
        ),
        (
            "reconnect_backoff_max",
            section.reconnect_backoff_max >= Duration::from_millis(100),
            "at least 100ms",
        ),
    ] {
        if !is_right {
            problems.note(wrong(key, bound));
        }
    }
    problems.into_result()?;
    let (topics, critical) = (topics.unwrap_or_default(), critical.unwrap_or_default());
    let size = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    let overflow = match config.mqtt.spill_bytes.0 {
        0 => usual.overflow,
        _ => Overflow::Spill,
    };
    let overflow = section.overflow.unwrap_or(overflow);
    Ok(UplinkSettings {
        name: name.to_owned(),
        to: section.to.expose().to_owned(),
        transport: section.transport,
        topics,
        critical,
        critical_bytes_per_second: section.critical_bytes_per_second.0,
        batch_age: section.batch_age,
        batch_bytes: size(section.batch_bytes.0),
        window_bytes_max: size(section.window_bytes.0),
        flight_bytes_max: size(section.flight_bytes.0),
        encoder: EncoderConfig {
            layouts: layouts.unwrap_or_default(),
            columns: section.columns,
            compression: compression.unwrap_or(Compression::None),
            topics_max: section.topics_max as usize,
            state_bytes_max: section.state_bytes.0,
            ..EncoderConfig::default()
        },
        names_messages: section.names,
        session: SessionConfig {
            queue_bytes_max: section.queue_bytes_max.map_or(usual.queue_bytes_max, |bytes| bytes.0),
            queue_messages_max: section.queue_messages_max as usize,
            overflow,
            overflow_qos0: section.overflow_qos0.unwrap_or(overflow),
            // A batch of thousands is one round trip, and what is under way is bounded by the window alone.
            inflight_max: Some(u16::MAX),
            inflight_bytes_max: Some(section.window_bytes.0),
            ..usual.clone()
        },
        retry_max: section.reconnect_backoff_max,
        peer: None,
    })
}

fn compression(text: &str) -> Option<Compression> {
    let level = |text: &str| text.parse().ok().filter(|level| (1..=19).contains(level));
    match text.split_once(':') {
        None if text == "none" => Some(Compression::None),
        Some(("zstd", text)) => level(text).map(Compression::Zstd),
        Some(("zstd-stream", text)) => level(text).map(Compression::ZstdStream),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tidegate_compress::Layout;

    use super::*;

    fn of(text: &str) -> Result<Vec<UplinkSettings>, ApiError> {
        let config = Config::parse(Path::new("site.toml"), text).expect("its keys are known");
        planned(&config)
    }

    #[test]
    fn sections_become_settings() {
        assert!(of("").expect("none is right").is_empty());
        let uplinks = of(
            "[uplink.plant]\nto = \"core.example:7443\"\ntopics = \"city/#, taxi/+\"\ncritical = \"alarm/#\"\n\
             compression = \"zstd-stream:3\"\nbatch_age = \"50ms\"\nlayouts = \"raw/# = opaque\"\n\
             columns = true\n",
        )
        .expect("it is right");
        let [plant] = &uplinks[..] else { panic!("{uplinks:?}") };
        assert_eq!(plant.topics, ["city/#", "taxi/+"]);
        assert_eq!(plant.critical, ["alarm/#"]);
        assert_eq!(plant.encoder.layouts, [("raw/#".to_owned(), Layout::Opaque)]);
        assert_eq!(plant.encoder.compression, Compression::ZstdStream(3));
        assert!(plant.encoder.columns);
        assert_eq!(plant.session.inflight_max, Some(u16::MAX));
        assert_eq!(plant.session.inflight_bytes_max, Some(16 << 20));
        assert_eq!(plant.session.overflow, Overflow::Spill);
        assert_eq!((plant.encoder.topics_max, plant.encoder.state_bytes_max), (1 << 20, 256 << 20));
    }

    #[test]
    fn an_uplink_may_know_ten_million_topics() {
        let uplinks = of(
            "[uplink.plant]\nto = \"core.example:7443\"\ntopics = \"#\"\ntopics_max = 16777216\n\
             state_bytes = \"64GiB\"\n",
        )
        .expect("it is right");
        let [plant] = &uplinks[..] else { panic!("{uplinks:?}") };
        assert_eq!((plant.encoder.topics_max, plant.encoder.state_bytes_max), (16 << 20, 64 << 30));
    }

    #[test]
    fn problems_are_named() {
        for (text, expected) in [
            ("topics = \"#\"", "uplink.u.to must be a host and a port"),
            ("to = \"x:1\"", "uplink.u.topics must be at least one filter"),
            ("to = \"x:0\"\ntopics = \"#\"", "uplink.u.to must be a host and a port"),
            ("to = \"x:1\"\ntopics = \"a/#/b\"", "uplink.u.topics must be of filters"),
            ("to = \"x:1\"\ntopics = \"$share/g/a\"", "uplink.u.topics must be of filters that"),
            (
                "to = \"x:1\"\ntopics = \"#\"\ncompression = \"zstd:20\"",
                "uplink.u.compression must",
            ),
            ("to = \"x:1\"\ntopics = \"#\"\nbatch_age = \"0s\"", "uplink.u.batch_age must be from"),
            (
                "to = \"x:1\"\ntopics = \"#\"\nwindow_bytes = \"1KiB\"",
                "uplink.u.window_bytes must be",
            ),
            (
                "to = \"x:1\"\ntopics = \"#\"\nlayouts = \"raw/# = u24le\"",
                "uplink.u.layouts: u24le is not a field",
            ),
            ("to = \"x:1\"\ntopics = \"#\"\ntopics_max = 0", "uplink.u.topics_max must be"),
            (
                "to = \"x:1\"\ntopics = \"#\"\ntopics_max = 16777217",
                "uplink.u.topics_max must be from 1 to 16777216",
            ),
            (
                "to = \"x:1\"\ntopics = \"#\"\nstate_bytes = \"65GiB\"",
                "uplink.u.state_bytes must be from 1MiB to 64GiB",
            ),
        ] {
            let error = of(&format!("[uplink.u]\n{text}\n")).expect_err(text);
            let chain = error.chain();
            let text = format!("[uplink.u]\n{text}\n");
            assert!(chain.contains(expected), "{text}: {error:?}");
            assert_eq!(error.code(), Code::CONFIG_INVALID);
        }
        let error = of("[mqtt]\nenabled = false\n[uplink.u]\nto = \"x:1\"\ntopics = \"#\"\n");
        assert!(error.is_err_and(|error| error.message().contains("mqtt.enabled is false")));
    }
}
