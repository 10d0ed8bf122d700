//! `[mqtt.user.NAME]`.

use crate::{
    ByteCount,
    words::{Overflow, Policy},
};

section! {
    /// `[mqtt.user.NAME]`: settings for one user in place of those of the listener.
    MqttUserSection {
        /// As in `[mqtt]`. Default none.
        queue_bytes_max: Option<ByteCount> = None,
        /// As in `[mqtt]`.
        overflow_qos0: Option<Overflow> = None,
        /// As in `[mqtt]`.
        overflow: Option<Overflow> = None,
        /// As in `[mqtt]`.
        policy: Option<Policy> = None,
        /// As in `[mqtt]`.
        large_bytes: Option<ByteCount> = None,
    }
}
