//! Dead letters: messages that cannot be used, under a topic for them.

use crate::{
    bad::Bad,
    message::{Made, Output},
    stats::Stats,
    template::{Source, Template},
};

/// Publishes a message as a dead letter, in its own place: it goes no further under its topic, unless it cannot be published so.
pub(crate) fn bury(
    topic: &Template,
    source: &Source<'_>,
    bad: Bad,
    from: usize,
    output: &mut Output,
    stats: &mut Stats,
) {
    let start = output.bytes.len();
    if topic.render_topic(source, &mut output.bytes) {
        output.emit_original(from, start, bad);
        output.decide(from, Made::DROP);
        stats.emitted += 1;
    } else {
        stats.unsent += 1;
    }
}
