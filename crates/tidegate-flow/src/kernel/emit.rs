//! What leaves a flow: notifications, and payloads that take the place of others.

use super::{Context, filter::is_set};
use crate::{
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
        let now_millis = context.now.as_nanos().div_euclid(1_000_000);
        for row in batch.alive.iter() {
            let index = usize::from(row);
            if self.when.is_some_and(|when| !is_set(batch.numbers[when][index])) {
                continue;
            }
            let message = &context.messages[index];
            let source = Source { batch, message, row, fixed: context.fixed, now_millis };
            let output = &mut *context.output;
            let start = output.bytes.len();
            if output.is_full() || !self.topic.render_topic(&source, &mut output.bytes) {
                context.stats.unsent += 1;
                continue;
            }
            let payload_start = output.bytes.len();
            self.content.render(&source, &mut output.bytes);
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
        let now_millis = context.now.as_nanos().div_euclid(1_000_000);
        for row in batch.alive.iter() {
            let index = usize::from(row);
            let message = &context.messages[index];
            let source = Source { batch, message, row, fixed: context.fixed, now_millis };
            let output = &mut *context.output;
            if output.is_full() {
                context.stats.unsent += 1;
                continue;
            }
            let start = output.bytes.len();
            self.content.render(&source, &mut output.bytes);
            let made = Made::replace(start, output.bytes.len());
            output.decide(context.first + index, made);
        }
    }
}
