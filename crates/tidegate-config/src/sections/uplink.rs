//! `[uplink.NAME]`.

use std::time::Duration;

use tidegate_message::Confidential;

use crate::{
    ByteCount,
    words::{Overflow, Transport},
};

section! {
    /// `[uplink.NAME]`: messages published here are published at another node as well, compact and in batches.
    UplinkSection {
        /// The other node's link (`link.listen`), as host and port.
        to: Confidential = Confidential::default(),
        /// `auto`, `quic` or `tcp`. Default `auto`: TCP only where QUIC does not get through.
        transport: Transport = Transport::Auto,
        /// The topics to carry: filters, separated by commas.
        topics: String = String::new(),
        /// The topics that travel at once and before all else: filters, separated by commas. Default none.
        critical: String = String::new(),
        /// Bytes of such messages a second, and at once. Default `1MiB`.
        critical_bytes_per_second: ByteCount = ByteCount(1 << 20),
        /// Longest time that a message waits for others of its batch. Default `20ms`.
        batch_age: Duration = Duration::from_millis(20),
        /// Bytes of a batch before zstd. Default `64KiB`.
        batch_bytes: ByteCount = ByteCount(64 << 10),
        /// How batches are compressed once more: `none`, `zstd:LEVEL`, or `zstd-stream:LEVEL` for all of a link as one. Default
        /// `zstd:1`.
        compression: String = "zstd:1".to_owned(),
        /// How payloads are cut where it is not to be found from the first: `FILTER = LAYOUT`, separated by commas; see the chapter on
        /// uplinks. Default none.
        layouts: String = String::new(),
        /// Whether the fields of a batch stand in columns, which zstd likes. Default false.
        columns: bool = false,
        /// Topics that both ends know at once, as far as `state_bytes` goes, at most 16777216. Default 1048576.
        topics_max: u32 = 1 << 20,
        /// Bytes that either end keeps of them, at most `64GiB`; the other end an eighth of its `link.uplink_bytes_max` at most.
        /// Default `256MiB`.
        state_bytes: ByteCount = ByteCount(256 << 20),
        /// Bytes of messages that were sent and wait to be acknowledged; the rest waits in the queue. Default `16MiB`.
        window_bytes: ByteCount = ByteCount(16 << 20),
        /// Bytes of batches on their way. Default `4MiB`: more than bandwidth times round trip.
        flight_bytes: ByteCount = ByteCount(4 << 20),
        /// Whether messages are published there with their name, the user property `tidegate-id`. Default true.
        names: bool = true,
        /// As in `[mqtt]`, for what waits here. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// Messages that wait here, in memory and on disk. Default 100000000.
        queue_messages_max: u32 = 100_000_000,
        /// As in `[mqtt]`. Default none: `spill` if `mqtt.spill_bytes` is not 0.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`. Default none: as for QoS 1.
        overflow_qos0: Option<Overflow> = None,
        /// Longest wait between two tries to reach the other node; the first is a twentieth of it. Default `5s`.
        reconnect_backoff_max: Duration = Duration::from_secs(5),
    }
}
