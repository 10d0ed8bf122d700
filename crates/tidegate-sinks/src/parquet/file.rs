//! From messages to the bytes of a Parquet file.

use std::sync::Arc;

use bytes::Bytes;
use parquet::{
    basic::{Compression as Codec, Encoding, ZstdLevel},
    data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        properties::{WriterProperties, WriterVersion},
        writer::{SerializedColumnWriter, SerializedFileWriter},
    },
    schema::{parser::parse_message_type, types::ColumnPath},
};
use sha2::{Digest as _, Sha256};
use tidegate_message::Instant;

use super::{BatchNumber, Compression, TimeUnit};
use crate::Record;

/// The columns, in order. `time` is when this node received the message, or when its value was measured, if the message says so.
const SCHEMA: &str = "
message message {
    REQUIRED INT64 time (TIMESTAMP(UNIT,true));
    REQUIRED BYTE_ARRAY topic (STRING);
    REQUIRED BYTE_ARRAY payload;
    REQUIRED INT32 qos (INTEGER(8,true));
    OPTIONAL BYTE_ARRAY id (STRING);
}
";

/// A whole file.
pub(super) struct File {
    pub(super) bytes: Bytes,
    /// When the first message was received.
    pub(super) first: Instant,
    /// Of the messages and their batch, as hexadecimal digits: the same for the same messages of one batch.
    pub(super) digest: String,
}

/// The file of these messages, at least one, of that batch.
///
/// # Errors
/// The library's, which has no reason for one here.
pub(super) fn encode(
    records: &[&Record],
    batch: BatchNumber,
    compression: Compression,
    time_unit: TimeUnit,
) -> Result<File, ParquetError> {
    let codec = match compression {
        Compression::Zstd => Codec::ZSTD(ZstdLevel::try_new(1)?),
        Compression::Snappy => Codec::SNAPPY,
        Compression::None => Codec::UNCOMPRESSED,
    };
    let column = |name: &str| ColumnPath::from(name);
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(codec)
        .set_created_by(concat!("tidegate ", env!("CARGO_PKG_VERSION")).to_owned())
        // Times grow; payloads seldom repeat.
        .set_column_dictionary_enabled(column("time"), false)
        .set_column_encoding(column("time"), Encoding::DELTA_BINARY_PACKED)
        .set_column_dictionary_enabled(column("id"), false)
        .set_column_encoding(column("id"), Encoding::DELTA_BYTE_ARRAY)
        .build();
    let (unit, nanos) = match time_unit {
        TimeUnit::Microseconds => ("MICROS", 1_000),
        TimeUnit::Nanoseconds => ("NANOS", 1),
    };
    let schema = Arc::new(parse_message_type(&SCHEMA.replace("UNIT", unit))?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    let bytes = |bytes: &[u8]| ByteArray::from(bytes.to_vec());
    let mut place = 0;
    while let Some(mut column) = group.next_column()? {
        match place {
            0 => {
                let time = |record: &&Record| record.measured.unwrap_or(record.time).as_nanos();
                let times: Vec<i64> =
                    records.iter().map(|record| time(record).div_euclid(nanos)).collect();
                column.typed::<Int64Type>().write_batch(&times, None, None)?;
            }
            1 => write_bytes(
                &mut column,
                records.iter().map(|record| bytes(record.topic.as_bytes())),
            )?,
            2 => write_bytes(
                &mut column,
                // Shared with what was read: not copied.
                records.iter().map(|record| ByteArray::from(record.payload.clone())),
            )?,
            3 => {
                let levels: Vec<i32> = records.iter().map(|record| record.qos as i32).collect();
                column.typed::<Int32Type>().write_batch(&levels, None, None)?;
            }
            _ => {
                let present: Vec<i16> =
                    records.iter().map(|record| i16::from(record.id.is_some())).collect();
                let ids = records.iter().filter_map(|record| record.id.as_ref());
                let ids: Vec<ByteArray> = ids.map(|id| bytes(id.as_bytes())).collect();
                column.typed::<ByteArrayType>().write_batch(&ids, Some(&present), None)?;
            }
        }
        column.close()?;
        place += 1;
    }
    group.close()?;
    let (first, digest) = (records[0].time, digest(records, batch));
    Ok(File { bytes: writer.into_inner()?.into(), first, digest })
}

fn write_bytes(
    column: &mut SerializedColumnWriter<'_>,
    values: impl Iterator<Item = ByteArray>,
) -> Result<(), ParquetError> {
    let values: Vec<ByteArray> = values.collect();
    column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
    Ok(())
}

fn digest(records: &[&Record], batch: BatchNumber) -> String {
    let mut digest = Sha256::new();
    // Without a name messages may be all alike and still be two, in two batches.
    if records.iter().any(|record| record.id.is_none()) {
        digest.update(batch.life.to_le_bytes());
        digest.update(batch.number.to_le_bytes());
    }
    for record in records {
        digest.update(record.time.as_nanos().to_le_bytes());
        digest.update([record.qos as u8, u8::from(record.id.is_some())]);
        let id = record.id.as_deref().unwrap_or_default();
        for part in [record.topic.as_bytes(), &record.payload, id.as_bytes()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
    }
    digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
