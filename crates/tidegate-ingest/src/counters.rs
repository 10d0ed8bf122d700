//! Counts of a listener.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters of a listener, from its start on.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)+
        }

        /// Counts of a listener since it began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct IngestReport {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            pub(super) fn report(&self) -> IngestReport {
                IngestReport { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl IngestReport {
            /// Each count with its name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}

counters! {
    /// Datagrams, requests or messages of a connection that came in.
    received,
    /// Their bytes, without headers.
    received_bytes,
    /// Messages handed to the broker.
    published,
    /// Bytes of their payloads.
    published_bytes,
    /// Malformed: no topic, no line, no JSON.
    invalid,
    /// Longer than the listener takes.
    too_large,
    /// Faster than the listener or an identity may.
    limited,
    /// Without the right, or without a valid proof.
    denied,
    /// Refused by the broker, for want of room or for another reason.
    refused,
    /// Messages that had been at this node before, came round and were not published again.
    looped,
    /// Datagrams that the kernel dropped because they came faster than they were taken.
    dropped,
    /// Connections or requests that took too long.
    timed_out,
    /// Connections that were accepted.
    connections,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
