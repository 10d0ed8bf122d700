//! `[timer.NAME]`.

use std::time::Duration;

use tidegate_message::Secret;

use super::{millis, seconds};

section! {
    /// `[timer.NAME]`: a message that is published again and again, to poll a device that answers when asked, or as a sign of life.
    TimerSection {
        /// Its topic, without wildcards.
        topic: String = String::new()
            => "a topic, such as zigbee2mqtt/lamp/get" if |it, _| !it.topic.is_empty(),
        /// Its payload, as text; it may be a command with a secret, and is not shown. Default none: it is empty.
        payload: Option<Secret> = None,
        /// The time from one message to the next; the first is published when the node starts. Messages that were missed while the
        /// machine slept are not made up for. Default `1min`.
        every: Duration = Duration::from_secs(60)
            => "from 100ms to 7d" if |it, _| (millis(100)..=seconds(7 * 24 * 3600)).contains(&it.every),
        /// Its quality of service, 0 or 1. Default 0.
        qos: u32 = 0
            => "0 or 1" if |it, _| it.qos <= 1,
        /// Whether the newest is retained. Default false.
        retain: bool = false,
    }
}
