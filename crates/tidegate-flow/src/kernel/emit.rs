//! The output of a flow: notifications, and payloads that take the place of others.

use super::{Context, filter::is_set};
use crate::{
    bad::{Bad, Reason},
    dead_letter::bury,
    message::Made,
    template::{Content, Source, Template},
};

/// Publishes a message.
#[derive(Debug)]
pub(crate) struct Notify {
    pub(crate) topic: Template,
    pub(crate) content: Content,
    pub(crate) when: Option<usize>,
}

impl Notify {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let batch = &*context.batch;
        if let Some(when) = self.when {
            // Most of the time there is nothing to notify, which is seen of many rows at a time.
            let values = &batch.numbers[when][..batch.alive.end()];
            if !values.iter().fold(false, |any, value| any | is_set(*value)) {
                return;
            }
        }
        let now_millis = context.wall.as_nanos().div_euclid(1_000_000);
        for row in batch.alive.iter() {
            let index = usize::from(row);
            if self.when.is_some_and(|when| !is_set(batch.numbers[when][index])) {
                continue;
            }
            let message = &context.messages[index];
            let source = Source { batch, message, row, fixed: context.fixed, now_millis };
            let output = &mut *context.output;
            let start = output.bytes.len();
            if !self.topic.render_topic(&source, &mut output.bytes) {
                context.stats.unsent += 1;
                continue;
            }
            let payload_start = output.bytes.len();
            if !self.content.render(&source, &mut output.bytes) {
                output.bytes.truncate(start);
                context.stats.unsent += 1;
                continue;
            }
            output.emit(context.first + index, start, payload_start);
            context.stats.emitted += 1;
        }
    }
}

/// Replaces the payload of messages that are forwarded.
#[derive(Debug)]
pub(crate) struct Replace {
    pub(crate) content: Content,
}

impl Replace {
    pub(super) fn run(&self, context: &mut Context<'_, '_>) {
        let batch = &*context.batch;
        let now_millis = context.wall.as_nanos().div_euclid(1_000_000);
        for row in batch.alive.iter() {
            let index = usize::from(row);
            let message = &context.messages[index];
            let source = Source { batch, message, row, fixed: context.fixed, now_millis };
            let output = &mut *context.output;
            let start = output.bytes.len();
            let from = context.first + index;
            if self.content.render(&source, &mut output.bytes) {
                output.decide(from, Made::replace(start, output.bytes.len()));
                continue;
            }
            // A payload that was to be replaced must not be seen as it came.
            output.bytes.truncate(start);
            output.decide(from, Made::DROP);
            let bad = Bad { reason: Reason::NoRoom, field: None };
            context.stats.bad[bad.reason as usize] += 1;
            output.note_bad(from, bad);
            if let Some(topic) = context.dead_letter {
                bury(topic, &source, bad, from, output, context.stats);
            }
        }
    }
}
