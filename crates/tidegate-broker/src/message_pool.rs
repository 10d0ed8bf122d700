//! A pool of released messages, whose memory is reused for new ones.
//!
//! Where messages go out as they are, hundreds are held at a time and let go together: a general allocator then cuts and joins the
//! same pieces over and over, at a fifth of all that a message costs.

use std::sync::Arc;

use bytes::Bytes;
use tidegate_message::Payload;

use crate::{
    budget::Charge,
    message::{Body, Message, MessageRef},
};

/// Messages that are kept, and bytes that one of them may have been charged with: together, and with [`SLACK_BYTES`], a shard's memory
/// for them outside the node's budget.
const KEPT_MAX: usize = 1024;
const KEPT_BYTES_MAX: u64 = 1 << 10;
/// Bytes of a payload's memory, and of its properties', that may be left over: a held message is charged by its
/// length.
const SLACK_BYTES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct MessagePool {
    /// Each of them is held here alone.
    messages: Vec<Arc<Message>>,
}

impl MessagePool {
    /// Returns a message that its holder does not need. If it is large, or others hold it, it is let go as any other.
    pub(crate) fn put(&mut self, mut message: Arc<Message>) {
        if self.messages.len() < KEPT_MAX
            && message.charged() <= KEPT_BYTES_MAX
            && let Some(alone) = Arc::get_mut(&mut message)
        {
            alone.give_back();
            self.messages.push(message);
        }
    }

    /// Holds a message under a charge taken before.
    pub(crate) fn hold(&mut self, message: &MessageRef<'_>, charge: Charge) -> Arc<Message> {
        let Body::Read(read) = message.payload else { return message.hold_charged(charge) };
        let Some(mut spare) = self.messages.pop() else { return message.hold_charged(charge) };
        let Some(alone) = Arc::get_mut(&mut spare) else { return message.hold_charged(charge) };
        let payload = refilled(std::mem::take(&mut alone.payload).into_contiguous(), read);
        let forwarded = refilled(std::mem::take(&mut alone.forwarded), message.forwarded);
        *alone = message.with(Payload::from(payload), forwarded, charge);
        spare
    }
}

/// `new`, in the memory of `old` if that has no other holder, and if it is of about that size.
fn refilled(old: Bytes, new: &[u8]) -> Bytes {
    match old.try_into_mut() {
        Ok(mut own) if (new.len()..=new.len() + SLACK_BYTES).contains(&own.capacity()) => {
            own.clear();
            own.extend_from_slice(new);
            own.freeze()
        }
        _ => Bytes::copy_from_slice(new),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::Instant;
    use tidegate_wire::mqtt::QoS;

    use super::*;
    use crate::budget::Budget;

    fn message<'a>(topic: &'a Arc<str>, payload: &'a [u8], forwarded: &'a [u8]) -> MessageRef<'a> {
        MessageRef {
            topic,
            payload: Body::Read(payload),
            forwarded,
            qos: QoS::AtLeastOnce,
            retain: false,
            is_from_peer: false,
            expires: Some(Instant::from_nanos(9)),
            received: Instant::from_nanos(7),
            publisher: None,
        }
    }

    #[test]
    fn a_reused_message_is_as_new_and_the_budget_is_repaid() {
        let budget = Budget::new(1 << 20);
        let mut pool = MessagePool::default();
        let hold = |pool: &mut MessagePool, message: MessageRef<'_>| {
            let charge = budget.charge(message.charge_bytes()).expect("there is room");
            pool.hold(&message, charge)
        };
        let (one, other) = (Arc::from("one"), Arc::from("other"));
        // Longer, shorter and empty ones follow each other.
        let bodies = [(40, 9), (60, 0), (3, 20), (0, 0), (700, 5), (1, 1)];
        let mut places = Vec::new();
        for (payload, forwarded) in bodies {
            for topic in [&one, &other] {
                let (payload, forwarded) = (vec![payload as u8; payload], vec![3; forwarded]);
                let message = message(topic, &payload, &forwarded);
                let held = hold(&mut pool, message);
                assert_eq!(budget.used(), message.charge_bytes());
                assert_eq!(budget.messages(), 1);
                assert_eq!(held.topic, *topic);
                assert_eq!(held.payload.to_contiguous(), payload);
                assert_eq!(held.forwarded, forwarded);
                assert_eq!((held.expires, held.received), (message.expires, message.received));
                places.push(Arc::as_ptr(&held));
                pool.put(held);
                assert_eq!((budget.used(), budget.messages()), (0, 0));
            }
        }
        assert!(places.iter().all(|place| *place == places[0]), "it is always the same memory");
    }

    #[test]
    fn little_is_not_held_in_much_memory() {
        let budget = Budget::new(1 << 20);
        let mut pool = MessagePool::default();
        let topic = Arc::from("t");
        for bytes in [800, 1, 60, 790, 30] {
            let body = vec![7; bytes];
            let message = message(&topic, &body, &body);
            let charge = budget.charge(message.charge_bytes()).expect("there is room");
            let mut held = pool.hold(&message, charge);
            let own = Arc::get_mut(&mut held).expect("there is no other holder");
            for part in [own.payload.to_contiguous(), own.forwarded.clone()] {
                assert_eq!(part, body);
            }
            let payload = std::mem::take(&mut own.payload).into_contiguous();
            for part in [payload, std::mem::take(&mut own.forwarded)] {
                let capacity = part.try_into_mut().expect("there is no other holder").capacity();
                assert!(capacity <= bytes + SLACK_BYTES, "{capacity} B for {bytes}");
            }
            let again = message.hold(&budget).expect("there is room");
            pool.put(again);
        }
    }

    #[test]
    fn messages_with_other_holders_and_large_ones_are_not_kept() {
        let budget = Budget::new(1 << 20);
        let mut pool = MessagePool::default();
        let topic = Arc::from("t");
        let large = vec![0; KEPT_BYTES_MAX as usize];
        let held = message(&topic, b"x", b"").hold(&budget).expect("there is room");
        let shared = held.clone();
        pool.put(held);
        pool.put(message(&topic, &large, b"").hold(&budget).expect("there is room"));
        assert!(pool.messages.is_empty());
        assert_eq!(
            (shared.payload.to_contiguous(), budget.messages()),
            (Bytes::from_static(b"x"), 1)
        );
        for _ in 0..KEPT_MAX {
            let all: Vec<_> = (0..2).map(|_| message(&topic, b"", b"").hold(&budget)).collect();
            all.into_iter().flatten().for_each(|held| pool.put(held));
        }
        assert_eq!(pool.messages.len(), KEPT_MAX);
    }
}
