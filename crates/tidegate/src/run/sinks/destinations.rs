//! From `[sink.NAME]` to where its messages go.

use tidegate_config::{Config, Purpose, SinkSection, words::SinkKind};
use tidegate_identity::pki::servers;
use tidegate_message::{Confidential, Secret, host::host_and_port};
use tidegate_sinks::{DestinationSettings, SinkError, memory::Ring};

use crate::run::{keys, node_name::numbered_node};

/// Where the messages of the sink called `name` go, which has so many messages under way at most.
///
/// # Errors
/// The problem, with the key or the file; [`SinkError::LeftOut`] if this build has no such destination.
pub(super) fn of(
    name: &str,
    section: &SinkSection,
    config: &Config,
    under_way_max: u16,
    purpose: Purpose,
) -> Result<DestinationSettings, SinkError> {
    #[cfg(not(feature = "sink-kafka"))]
    let _ = under_way_max;
    match section.kind {
        SinkKind::Memory => {
            let messages = section.memory_messages.unwrap_or(SinkSection::MEMORY_MESSAGES);
            Ok(DestinationSettings::Memory(Ring::new(messages.max(1) as usize)))
        }
        #[cfg(feature = "sink-parquet")]
        SinkKind::Parquet => parquet(name, section, config),
        #[cfg(feature = "sink-postgres")]
        SinkKind::Postgres => postgres(name, section),
        SinkKind::Influx => influx(name, section, config, purpose),
        #[cfg(feature = "sink-kafka")]
        SinkKind::Kafka => kafka(name, section, under_way_max),
        SinkKind::Mqtt => mqtt(name, section, config, purpose),
        #[cfg(not(all(
            feature = "sink-parquet",
            feature = "sink-postgres",
            feature = "sink-kafka"
        )))]
        kind => Err(SinkError::LeftOut { kind: kind.word() }),
    }
}

fn wrong(problem: impl Into<String>) -> SinkError {
    SinkError::Destination { problem: problem.into(), source: None }
}

fn url<'a>(section: &'a SinkSection, form: &str) -> Result<&'a str, SinkError> {
    let url = section.url.as_ref().filter(|url| !url.is_empty());
    url.map(Confidential::expose).ok_or_else(|| wrong(format!("url must be {form}")))
}

/// An address for a message, which shows no secret.
fn shown(url: &str) -> Confidential {
    url.into()
}

/// The user name, and the password in its file.
fn login(section: &SinkSection) -> Result<(Option<String>, Option<Secret>), SinkError> {
    let read = section.password_file.as_ref().map(|path| {
        keys::password(path).map_err(|error| SinkError::Destination {
            problem: format!("password_file {} cannot be read", path.display()),
            source: Some(error.into()),
        })
    });
    Ok((keys::username(section.username.as_ref()), read.transpose()?))
}

/// Both of these, or none.
#[cfg(any(feature = "sink-parquet", feature = "sink-kafka"))]
fn whole_login(section: &SinkSection) -> Result<Option<(String, Secret)>, SinkError> {
    match login(section)? {
        (Some(user), Some(password)) => Ok(Some((user, password))),
        (None, None) => Ok(None),
        _ => Err(wrong("username and password_file go together; name both")),
    }
}

/// The choice of a key among these words, of which the first stands for none.
#[cfg(any(feature = "sink-parquet", feature = "sink-kafka"))]
fn chosen<T: Clone>(key: &str, text: Option<&str>, words: &[(&str, T)]) -> Result<T, SinkError> {
    let text = text.unwrap_or(words[0].0);
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, choice)| choice.clone()).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        wrong(format!("{key} is {text:?}; choose {}", tidegate_config::words::listed(&words)))
    })
}

/// The trusted authorities: those in `ca`, else those of the system. Without TLS no authorities are needed, and a
/// system may have none.
fn tls(
    name: &str,
    section: &SinkSection,
    is_used: bool,
) -> Result<std::sync::Arc<rustls::ClientConfig>, SinkError> {
    let failed = |problem: String, error: &dyn std::error::Error| SinkError::Destination {
        problem,
        source: Some(tidegate_message::error_chain(error).into()),
    };
    if section.ca.is_some() && !is_used {
        return Err(wrong("ca means nothing without TLS"));
    }
    if is_used {
        let tls = servers::client_tls(&format!("sink.{name}.ca"), section.ca.as_deref());
        return tls.map_err(|error| failed("TLS cannot be spoken".to_owned(), &error));
    }
    tidegate_process::tls::client_of(rustls::RootCertStore::empty())
        .map_err(|error| failed("TLS cannot be spoken".to_owned(), &error))
}

#[cfg(feature = "sink-parquet")]
fn parquet(
    name: &str,
    section: &SinkSection,
    config: &Config,
) -> Result<DestinationSettings, SinkError> {
    use tidegate_sinks::parquet::{
        Compression, ParquetSettings, Partition, Place, S3Place, TimeUnit,
    };

    let url = url(section, "a folder, or s3://BUCKET/PREFIX")?;
    let compressions =
        [("zstd", Compression::Zstd), ("snappy", Compression::Snappy), ("none", Compression::None)];
    let compression = chosen("compression", section.compression.as_deref(), &compressions)?;
    let partitions =
        [("hour", Partition::Hour), ("day", Partition::Day), ("none", Partition::None)];
    let partition = chosen("partition", section.partition.as_deref(), &partitions)?;
    let units = [("us", TimeUnit::Microseconds), ("ns", TimeUnit::Nanoseconds)];
    let time_unit = chosen("time_unit", section.time_unit.as_deref(), &units)?;
    let place = match url.split_once("://") {
        None => Place::Folder(config.path_of(&format!("sink.{name}.url"), url.as_ref())),
        Some(("file", path)) if path.starts_with('/') => Place::Folder(path.into()),
        Some(("s3", rest)) => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(wrong(format!("url is {}, which names no bucket", shown(url))));
            }
            let endpoint = section.endpoint.as_ref().map(|url| url.expose().to_owned());
            if endpoint.as_ref().is_some_and(|url| url.contains(['@', '?'])) {
                return Err(wrong(
                    "endpoint must be an address alone; user name and password have keys of their own",
                ));
            }
            let is_tls = endpoint.as_ref().is_none_or(|endpoint| endpoint.starts_with("https://"));
            let is_plain = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
            if !is_tls && !is_plain {
                return Err(wrong("endpoint must be an http:// or https:// address"));
            }
            Place::S3(S3Place {
                bucket: bucket.to_owned(),
                prefix: prefix.trim_matches('/').to_owned(),
                endpoint,
                region: section.region.as_deref().unwrap_or(SinkSection::REGION).to_owned(),
                keys: whole_login(section)?,
                tls: tls(name, section, is_tls)?,
            })
        }
        Some(_) => {
            return Err(wrong(format!(
                "url is {}; it must be a folder, or s3://BUCKET/PREFIX",
                shown(url)
            )));
        }
    };
    if matches!(place, Place::Folder(_)) {
        for (key, is_set) in [
            ("username", section.username.is_some()),
            ("password_file", section.password_file.is_some()),
            ("ca", section.ca.is_some()),
            ("endpoint", section.endpoint.is_some()),
            ("region", section.region.is_some()),
        ] {
            if is_set {
                return Err(wrong(format!("{key} means nothing for a folder")));
            }
        }
    }
    let settings = ParquetSettings { place, partition, compression, time_unit };
    Ok(DestinationSettings::Parquet(settings))
}

#[cfg(feature = "sink-postgres")]
fn postgres(name: &str, section: &SinkSection) -> Result<DestinationSettings, SinkError> {
    use tidegate_sinks::postgres::PostgresSettings;

    let url = url(section, "an address such as postgresql://user@host/database")?;
    let table = section.table.as_deref().unwrap_or(SinkSection::TABLE);
    if table.is_empty() || table.split('.').any(str::is_empty) || table.contains('\0') {
        return Err(wrong(format!("table is {table:?}; it must be a name, or SCHEMA.NAME")));
    }
    let mut settings = PostgresSettings::new(url, table)?;
    settings.create = section.create.unwrap_or(true);
    let (username, password) = login(section)?;
    if let Some(username) = username {
        settings.config.user(username);
    }
    if let Some(password) = password {
        settings.config.password(&*password);
    }
    let speaks_tls = settings.speaks_tls();
    let tls = tls(name, section, speaks_tls)?;
    settings.tls = speaks_tls.then_some(tls);
    Ok(DestinationSettings::Postgres(settings))
}

fn influx(
    name: &str,
    section: &SinkSection,
    config: &Config,
    purpose: Purpose,
) -> Result<DestinationSettings, SinkError> {
    use tidegate_sinks::influx::{Encoding, InfluxSettings};

    let form =
        "where lines are posted, such as http://host:8086/api/v2/write?org=ORG&bucket=BUCKET";
    let text = url(section, form)?;
    let url: hyper::Uri =
        text.parse().map_err(|_| wrong(format!("url is {}; it must be {form}", shown(text))))?;
    let is_tls = url.scheme_str() == Some("https");
    if (!is_tls && url.scheme_str() != Some("http")) || url.host().is_none() {
        return Err(wrong(format!("url is {}; it must be {form}", shown(text))));
    }
    if text.contains('@') {
        return Err(wrong("url must hold no user name and no password; there are keys for them"));
    }
    let encoding = match (section.encoding.as_deref(), &section.measurement) {
        (Some("lines"), None) => Encoding::Lines,
        (Some("lines"), Some(_)) => {
            return Err(wrong("measurement means nothing where payloads are lines already"));
        }
        (None | Some("values"), measurement) => Encoding::Values {
            measurement: measurement.as_deref().unwrap_or(SinkSection::MEASUREMENT).to_owned(),
        },
        (Some(other), _) => {
            return Err(wrong(format!("encoding is {other:?}; choose lines or values")));
        }
    };
    let authorization = match login(section)? {
        (None, None) => None,
        (None, Some(token)) => Some([&b"Token "[..], &token].concat().into()),
        (Some(user), Some(password)) => {
            let both = [user.as_bytes(), b":", &*password].concat();
            let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, both);
            Some(format!("Basic {encoded}").into_bytes().into())
        }
        (Some(_), None) => return Err(wrong("username needs a password_file as well")),
    };
    let tls = tls(name, section, is_tls)?;
    let node = numbered(config, purpose)?;
    let places = Some(super::folder(config).join(format!("{name}.{}", super::PLACES)));
    let settings = InfluxSettings { url, authorization, encoding, tls, node, places };
    Ok(DestinationSettings::Influx(settings))
}

/// The name of the node among those that a message passed.
fn numbered(config: &Config, purpose: Purpose) -> Result<String, SinkError> {
    numbered_node(config, purpose).map_err(|error| SinkError::Destination {
        problem: "the node has no number".to_owned(),
        source: Some(error.into()),
    })
}

fn mqtt(
    name: &str,
    section: &SinkSection,
    config: &Config,
    purpose: Purpose,
) -> Result<DestinationSettings, SinkError> {
    use tidegate_sinks::mqtt::MqttSettings;

    let form =
        "mqtt://HOST:PORT, or mqtts://HOST:PORT with TLS, and no user, for whom there are keys";
    let text = url(section, form)?;
    let wrong_url = || wrong(format!("url is {}; it must be {form}", shown(text)));
    let (scheme, remote) = text.split_once("://").ok_or_else(wrong_url)?;
    let is_tls = match scheme {
        "mqtt" => false,
        "mqtts" => true,
        _ => return Err(wrong_url()),
    };
    let (host, port) = host_and_port(remote)
        .filter(|(host, _)| !host.contains(['@', '/']))
        .ok_or_else(wrong_url)?;
    let (username, password) = login(section)?;
    if password.is_some() && username.is_none() {
        return Err(wrong("password_file needs a username as well"));
    }
    let tls = tls(name, section, is_tls)?;
    let node = numbered(config, purpose)?;
    Ok(DestinationSettings::Mqtt(MqttSettings {
        host: host.to_owned(),
        port,
        tls: is_tls.then_some(tls),
        client_id: format!("{node}.sink.{name}"),
        username,
        password,
        node,
    }))
}

#[cfg(feature = "sink-kafka")]
fn kafka(
    name: &str,
    section: &SinkSection,
    under_way_max: u16,
) -> Result<DestinationSettings, SinkError> {
    use tidegate_sinks::kafka::{Compression, KafkaSettings};

    let form = "brokers, such as kafka://one:9092,two:9092, or kafkas:// with TLS, and no user, for whom there are keys";
    let text = url(section, form)?;
    let wrong_url = || wrong(format!("url is {}; it must be {form}", shown(text)));
    let (scheme, brokers) = text.split_once("://").ok_or_else(wrong_url)?;
    let is_tls = match scheme {
        "kafka" => false,
        "kafkas" => true,
        _ => return Err(wrong_url()),
    };
    let brokers: Vec<String> = brokers.split(',').map(|broker| broker.trim().to_owned()).collect();
    if !brokers.iter().all(|broker| host_and_port(broker).is_some()) {
        return Err(wrong_url());
    }
    let topic = section.topic.as_deref().unwrap_or(SinkSection::TOPIC).to_owned();
    let is_named = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if topic.is_empty() || topic.len() > 249 || !topic.chars().all(is_named) {
        let rule = "from 1 to 249 letters, digits, dots, underscores and hyphens";
        return Err(wrong(format!("topic is {topic:?}; Kafka's have {rule}")));
    }
    let compressions = [
        ("zstd", Compression::Zstd),
        ("snappy", Compression::Snappy),
        ("gzip", Compression::Gzip),
        ("none", Compression::None),
    ];
    let compression = chosen("compression", section.compression.as_deref(), &compressions)?;
    let login = whole_login(section)?;
    let tls = tls(name, section, is_tls)?;
    Ok(DestinationSettings::Kafka(KafkaSettings {
        brokers,
        topic,
        create: section.create.unwrap_or(true),
        compression,
        login,
        tls: is_tls.then_some(tls),
        under_way_max: under_way_max.into(),
    }))
}
