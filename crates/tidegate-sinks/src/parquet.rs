//! Parquet files in a folder or an object store, parted as Hive does.
//!
//! ```text
//!  batch ─▶ by hour ─▶ date=2026-01-31/hour=07/1769842800000000000-0f3a….parquet, complete or absent
//! ```
//!
//! # What is promised
//!
//! A file is named by its batch and by its content, so that a batch that is tried again replaces its own files and makes no others, and
//! messages that are all alike do not replace each other. A file is named by its batch and by what is in it, so that a batch that is tried
//! again replaces its own
//! files and makes no others, and messages that are all alike do not replace each other. After the node was killed between writing and
//! acknowledging, or when the sink's session broke off there, messages come again and may be in two files: those that carry `tidegate-id`
//! can be distinguished by the column `id`. At least once, then; as durable as the disk, or the store.

mod file;
mod store;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use async_trait::async_trait;
use object_store::{ObjectStore, PutOptions, PutPayload, path::Path};
use rustls::ClientConfig;
use tidegate_message::{CivilDate, Secret};
use tidegate_process::random::random_bytes;

use self::file::encode;
use super::{Batch, Destination, Record, Refusal, SinkError, Trouble};

/// Nanoseconds of an hour.
const HOUR: i64 = 3_600_000_000_000;

/// Where files go, and how.
#[derive(Clone, Debug)]
pub struct ParquetSettings {
    /// The folder or store.
    pub place: Place,
    /// How files are parted.
    pub partition: Partition,
    /// How columns are compressed.
    pub compression: Compression,
    /// The unit of times.
    pub time_unit: TimeUnit,
}

/// Two are the same by what was configured, whatever files said that were read for it.
impl PartialEq for ParquetSettings {
    fn eq(&self, other: &Self) -> bool {
        (&self.place, self.partition, self.compression, self.time_unit)
            == (&other.place, other.partition, other.compression, other.time_unit)
    }
}

/// A folder or store.
#[derive(Clone, Debug)]
pub enum Place {
    /// A folder; it is made if it is not there.
    Folder(PathBuf),
    /// A bucket of an S3-compatible store.
    S3(S3Place),
}

/// A bucket of an S3-compatible store.
#[derive(Clone, Debug)]
pub struct S3Place {
    /// The bucket.
    pub bucket: String,
    /// The prefix of the names of files, without a slash at its end; empty for none.
    pub prefix: String,
    /// The store's address; Amazon's own if none.
    pub endpoint: Option<String>,
    /// Region.
    pub region: String,
    /// Access key and secret key; requests are not signed without.
    pub keys: Option<(String, Secret)>,
    /// The trusted authorities.
    pub tls: Arc<ClientConfig>,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Folder(a), Self::Folder(b)) => a == b,
            (Self::S3(a), Self::S3(b)) => {
                let of = |place: &S3Place| {
                    let S3Place { bucket, prefix, endpoint, region, keys, tls: _ } = place.clone();
                    (bucket, prefix, endpoint, region, keys)
                };
                of(a) == of(b)
            }
            _ => false,
        }
    }
}

/// How files are parted, by the time at which messages were received, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partition {
    /// `date=…/hour=…`.
    #[default]
    Hour,
    /// `date=…`.
    Day,
    /// Not at all.
    None,
}

/// How columns are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// zstd at level 1: sensors' values gain little from higher ones.
    #[default]
    Zstd,
    /// Snappy.
    Snappy,
    /// Not at all.
    None,
}

/// The unit of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeUnit {
    /// Microseconds, which every reader knows; Spark before 4 reads no others of a logical type.
    #[default]
    Microseconds,
    /// Nanoseconds, as this node knows them.
    Nanoseconds,
}

/// The destination.
#[derive(Debug)]
pub(super) struct Parquet {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    partition: Partition,
    compression: Compression,
    time_unit: TimeUnit,
    /// Of the batch under way.
    batch: BatchNumber,
}

/// Which batch: no other has the same.
#[derive(Clone, Copy, Debug)]
struct BatchNumber {
    /// A random number of the destination, a new one at each start.
    life: u64,
    /// Batches that were taken before.
    number: u64,
}

impl Parquet {
    /// # Errors
    /// The folder cannot be made, or the store not be configured.
    pub(super) fn open(settings: &ParquetSettings) -> Result<Self, SinkError> {
        let (store, prefix) = store::open(&settings.place)?;
        let &ParquetSettings { partition, compression, time_unit, .. } = settings;
        let life = random_bytes().map_err(|error| SinkError::Destination {
            problem: "files cannot be named".to_owned(),
            source: Some(error.into()),
        })?;
        let batch = BatchNumber { life: u64::from_ne_bytes(life), number: 0 };
        Ok(Self { store, prefix, partition, compression, time_unit, batch })
    }

    /// Where the file of these messages lies.
    fn path(&self, part: i64, file: &file::File) -> Path {
        let name = format!("{}-{}.parquet", file.first.as_nanos(), file.digest);
        let folder = match self.partition {
            Partition::None => String::new(),
            Partition::Day => format!("date={}/", date(part * HOUR)),
            Partition::Hour => {
                format!("date={}/hour={:02}/", date(part * HOUR), part.rem_euclid(24))
            }
        };
        let prefix = &self.prefix;
        let separator = if prefix.is_empty() { "" } else { "/" };
        Path::from(format!("{prefix}{separator}{folder}{name}"))
    }

    /// In which part a message lies: its hour since the epoch, the first one of its day, or 0.
    fn part(&self, record: &Record) -> i64 {
        let hour = record.time.as_nanos().div_euclid(HOUR);
        match self.partition {
            Partition::Hour => hour,
            Partition::Day => hour.div_euclid(24) * 24,
            Partition::None => 0,
        }
    }
}

#[async_trait]
impl Destination for Parquet {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        let mut parts: BTreeMap<i64, Vec<&Record>> = BTreeMap::new();
        for record in batch.records() {
            parts.entry(self.part(record)).or_default().push(record);
        }
        for (part, records) in parts {
            let file = encode(&records, self.batch, self.compression, self.time_unit)
                .map_err(|error| Trouble::of("a Parquet file cannot be made", error))?;
            let path = self.path(part, &file);
            let payload = PutPayload::from_bytes(file.bytes);
            let put = self.store.put_opts(&path, payload, PutOptions::default()).await;
            put.map_err(|error| Trouble::of(format!("{path} cannot be written"), error))?;
            batch.step();
        }
        self.batch.number += 1;
        Ok(Vec::new())
    }
}

/// The day of that many nanoseconds since the epoch.
fn date(nanos: i64) -> CivilDate {
    CivilDate::of_days(nanos.div_euclid(24 * HOUR))
}

/// Whether it can be opened, without making anything.
pub(super) fn look(settings: &ParquetSettings) -> Result<(), SinkError> {
    store::look(&settings.place)
}

/// Connects to a store that is elsewhere, and leaves again.
pub(super) async fn reach(settings: &ParquetSettings) -> Result<(), String> {
    store::reach(&settings.place).await
}

#[cfg(test)]
mod tests;
