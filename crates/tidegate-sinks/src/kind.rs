//! The settings of each kind of destination.

use async_recursion::async_recursion as boxed;
use tidegate_process::reach::server;

use super::{Destination, SinkError, memory::Ring};

/// Where the messages of a sink go, and how.
#[derive(Clone, Debug, PartialEq)]
pub enum DestinationSettings {
    /// A ring in memory.
    Memory(Ring),
    /// Parquet files.
    #[cfg(feature = "parquet")]
    Parquet(super::parquet::ParquetSettings),
    /// A table of PostgreSQL.
    #[cfg(feature = "postgres")]
    Postgres(super::postgres::PostgresSettings),
    /// A database that takes line protocol.
    Influx(super::influx::InfluxSettings),
    /// A topic of Kafka.
    #[cfg(feature = "kafka")]
    Kafka(super::kafka::KafkaSettings),
    /// Another MQTT broker.
    Mqtt(super::mqtt::MqttSettings),
}

impl DestinationSettings {
    /// Makes the destination. It connects when it is first given something.
    ///
    /// # Errors
    /// The setting that it cannot be made of.
    pub fn open(&self) -> Result<Box<dyn Destination>, SinkError> {
        Ok(match self {
            Self::Memory(ring) => Box::new(ring.clone()),
            #[cfg(feature = "parquet")]
            Self::Parquet(settings) => Box::new(super::parquet::Parquet::open(settings)?),
            #[cfg(feature = "postgres")]
            Self::Postgres(settings) => Box::new(super::postgres::Postgres::new(settings.clone())),
            Self::Influx(settings) => Box::new(super::influx::Influx::new(settings.clone())),
            #[cfg(feature = "kafka")]
            Self::Kafka(settings) => Box::new(super::kafka::Kafka::new(settings.clone())),
            Self::Mqtt(settings) => Box::new(super::mqtt::Mqtt::new(settings.clone())),
        })
    }

    /// Whether it can be opened, without making anything.
    ///
    /// # Errors
    /// As for [`DestinationSettings::open`].
    pub fn look(&self) -> Result<(), SinkError> {
        match self {
            #[cfg(feature = "parquet")]
            Self::Parquet(settings) => super::parquet::look(settings),
            _ => self.open().map(drop),
        }
    }

    /// Connects to the destination and leaves again; nothing is stored there.
    ///
    /// # Errors
    /// Why it was not reached.
    #[boxed]
    pub async fn reach(&self) -> Result<(), String> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "parquet")]
            Self::Parquet(settings) => super::parquet::reach(settings).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(settings) => settings.reach().await,
            Self::Influx(settings) => {
                let target = tidegate_process::http::target(&settings.url);
                let (is_tls, host, port) = target.map_err(|error| error.to_string())?;
                server(&host, port, is_tls.then(|| settings.tls.clone())).await
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(settings) => {
                // One of them leads to the others.
                let mut missed = Vec::new();
                for broker in &settings.brokers {
                    let named = tidegate_message::host::host_and_port(broker);
                    let Some((host, port)) = named else { continue };
                    match server(host, port, settings.tls.clone()).await {
                        Ok(()) => return Ok(()),
                        Err(text) => missed.push(text),
                    }
                }
                Err(missed.join("; "))
            }
            Self::Mqtt(settings) => {
                server(&settings.host, settings.port, settings.tls.clone()).await
            }
        }
    }
}
