//! Flows as users meet them: described, compiled, run.

mod allocation;
mod applications;
mod bounds;
mod clock;
mod compile;
mod golden;
mod properties;
mod state;
mod unreadable;

use tidegate_message::Instant;

use crate::{EmittedPayload, Flow, Message, Models, Output, Spec, Specs, Verdict};

/// The flow of a TOML text without its section.
pub(crate) fn spec(toml: &str) -> Spec {
    let spec: Spec = toml::from_str(toml).unwrap_or_else(|error| panic!("{error}\n{toml}"));
    Spec { name: "test".to_owned(), ..spec }
}

fn flow(toml: &str) -> Flow {
    let spec = spec(toml);
    Flow::compile(&spec, &Models::new()).unwrap_or_else(|error| panic!("{error}"))
}

/// All that came of some messages, by topic and payload of each.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// `pass`, `drop` or the new payload.
    verdicts: Vec<String>,
    /// From, topic, and payload or the reason of a dead letter.
    emissions: Vec<(usize, String, String)>,
}

fn run(flow: &mut Flow, now: Instant, messages: &[(&str, &[u8])]) -> Outcome {
    let messages: Vec<_> =
        messages.iter().map(|(topic, payload)| Message { topic, payload }).collect();
    let mut output = Output::new();
    flow.run(now, &messages, &mut output);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let verdicts = output.verdicts().map(|verdict| match verdict {
        Verdict::Pass => "pass".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Replace(payload) => text(payload),
    });
    let emissions = output.emissions().map(|emission| {
        let payload = match emission.payload {
            EmittedPayload::Made(payload) => text(payload),
            EmittedPayload::Original(bad) => {
                let field = bad.field.and_then(|field| flow.field_name(field)).unwrap_or("-");
                format!("{field}: {}", bad.reason)
            }
        };
        (emission.from, emission.topic.to_owned(), payload)
    });
    Outcome { verdicts: verdicts.collect(), emissions: emissions.collect() }
}

/// The payloads of what is published, for messages on one topic.
fn published(flow: &mut Flow, payloads: &[&str]) -> Vec<String> {
    let messages: Vec<_> = payloads.iter().map(|payload| ("a/b", payload.as_bytes())).collect();
    let outcome = run(flow, Instant::EPOCH, &messages);
    outcome.emissions.into_iter().map(|(_, _, payload)| payload).collect()
}
