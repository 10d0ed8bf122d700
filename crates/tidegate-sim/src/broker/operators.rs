//! The effects of admission on messages, by their numbers.

use bytes::Bytes;
use tidegate_broker::{Admission, Batch, Draft, Verdict};
use tidegate_message::{Identity, Instant, Payload};

use super::{
    oracle::{HEAD_BYTES, Treatment, number, payload, replaced_bytes},
    plan::EMITTED,
};

/// Passes, drops, replaces, or emits another one.
#[derive(Debug)]
pub(super) struct Operators {
    pub(super) change: bool,
}

impl Admission for Operators {
    fn admit(&mut self, _: Instant, _: &Identity, batch: &mut Batch) {
        for draft in batch.drafts.iter_mut().filter(|draft| !draft.payload.is_empty()) {
            let bytes: Bytes = draft.payload.to_contiguous();
            let number = number(&bytes);
            match Treatment::of(number, Some(self.change)) {
                Treatment::Pass => {}
                Treatment::Drop => draft.verdict = Verdict::Drop,
                Treatment::Replace => {
                    let payload = payload(number, true, replaced_bytes(bytes.len()));
                    draft.payload = Payload::from(payload);
                }
                Treatment::Emit => batch.emitted.push(Draft {
                    topic: EMITTED.into(),
                    payload: payload(number + 1, false, HEAD_BYTES).into(),
                    hops: draft.hops + 1,
                    retain: false,
                    ..draft.clone()
                }),
            }
        }
    }
}
