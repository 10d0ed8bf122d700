//! `[sink.NAME]`.

use std::{path::PathBuf, time::Duration};

use tidegate_message::{Confidential, Secret};

use super::{millis, seconds};
use crate::{
    ByteCount,
    words::{Overflow, SinkKind},
};

section! {
    /// `[sink.NAME]`: where messages go that others are to keep; see the chapter on sinks.
    SinkSection by kind: SinkKind {
        /// `parquet`, `postgres`, `influx`, `kafka`, `mqtt`, or `memory` for tests. Default `memory`.
        kind: SinkKind = SinkKind::Memory,
        /// Its topics: filters, separated by commas.
        topics: String = String::new(),
        /// Where messages go that the destination refuses for good. Default none: they are kept in the sink's file.
        dead_letter: Option<String> = None,
        /// Bytes of the file in which refused messages are kept that cannot lie in the dead letter topic (`tidegate sinks`); when they are
        /// reached, the sink waits. 0 for no file: such messages are lost, and counted. Default `64MiB`.
        refused_bytes_max: ByteCount = ByteCount(64 << 20),
        /// Where the destination is; each kind has its form. A folder's relative path begins at the folder of the file that names it.
        /// Default none.
        url: Option<Confidential> = None; not Memory,
        /// User name there, of an S3 store the access key. Default none.
        username: Option<Secret> = None; not Memory,
        /// File that holds the password, token or secret key, without the end of its line; a relative path as in `url`. Default none.
        password_file: Option<PathBuf> = None; not Memory,
        /// Authorities of the destination's certificate, PEM; a relative path as in `url`. Default none: those of the system.
        ca: Option<PathBuf> = None; not Memory,
        /// Messages of a batch at most, 1 to 60000. Default none: 10000, of `parquet` 50000, of `memory` 1000.
        batch_messages: Option<u32> = None,
        /// Bytes of a batch, from which on it is handed over. Default none: `8MiB`, of `parquet` `32MiB`, of `memory` `1MiB`.
        batch_bytes: Option<ByteCount> = None,
        /// Longest time that a message waits for others. Default none: `1s`, of `parquet` `1min`, of `memory` `100ms`.
        batch_age: Option<Duration> = None,
        /// Longest time that the destination has for one exchange of a batch. Default `1min`.
        timeout: Duration = Duration::from_secs(60),
        /// Longest wait between two tries. Default `30s`.
        backoff_max: Duration = Duration::from_secs(30),
        /// As in `[mqtt]`, for what waits here for the destination. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`. Default none: 1000000.
        queue_messages_max: Option<u32> = None,
        /// As in `[mqtt]`. Default none: `spill`.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`.
        overflow_qos0: Option<Overflow> = None,
        /// Of `memory`: messages that are held, the newest. Default none: 10000.
        memory_messages: Option<u32> = None; of Memory,
        /// Of `parquet` and `kafka`: `zstd`, `snappy`, `none`, and for `kafka` `gzip`. Default none: `zstd`.
        compression: Option<String> = None; of Parquet | Kafka,
        /// Of `parquet`: how files are parted, `hour`, `day` or `none`. Default none: `hour`.
        partition: Option<String> = None; of Parquet,
        /// Of `parquet`: the unit of the column `time`, `us` or `ns`; Spark 3 and others do not read `ns`. Default none: `us`.
        time_unit: Option<String> = None; of Parquet,
        /// Of `parquet` on S3: the region. Default none: `us-east-1`.
        region: Option<String> = None; of Parquet,
        /// Of `parquet` on S3: the address of a store that is not Amazon's. Default none.
        endpoint: Option<Confidential> = None; of Parquet,
        /// Of `postgres`: the table, with a schema or without. Default none: `messages`.
        table: Option<String> = None; of Postgres,
        /// Of `influx`: `lines` where payloads are lines of the protocol, `values` where they are numbers, JSON objects or text.
        /// Default none: `values`.
        encoding: Option<String> = None; of Influx,
        /// Of `influx` with `values`: the measurement. Default none: `mqtt`.
        measurement: Option<String> = None; of Influx,
        /// Of `kafka`: the topic there. Default none: `tidegate`.
        topic: Option<String> = None; of Kafka,
        /// Of `postgres` and `kafka`: whether the table or topic is made where there is none. Default none: true.
        create: Option<bool> = None; of Postgres | Kafka,
    }
}

/// The values of keys that are not set, where they are not for every kind or not the same for each.
impl SinkSection {
    /// `queue_messages_max`.
    pub const QUEUE_MESSAGES_MAX: u32 = 1_000_000;
    /// `memory_messages`.
    pub const MEMORY_MESSAGES: u32 = 10_000;
    /// `region`.
    pub const REGION: &str = "us-east-1";
    /// `table`.
    pub const TABLE: &str = "messages";
    /// `measurement`.
    pub const MEASUREMENT: &str = "mqtt";
    /// `topic`.
    pub const TOPIC: &str = "tidegate";

    /// Messages and bytes of a batch, and the longest wait of its first message: as the keys say, else as is usual for the kind.
    pub fn batch(&self) -> (u32, u64, Duration) {
        let (messages, bytes, age) = match self.kind {
            // Few large files are what those who read them want.
            SinkKind::Parquet => (50_000, 32 << 20, seconds(60)),
            // A ring takes few as easily as many, and what waits is not kept twice for long.
            SinkKind::Memory => (1_000, 1 << 20, millis(100)),
            _ => (10_000, 8 << 20, seconds(1)),
        };
        (
            self.batch_messages.unwrap_or(messages),
            self.batch_bytes.map_or(bytes, |count| count.0),
            self.batch_age.unwrap_or(age),
        )
    }
}
