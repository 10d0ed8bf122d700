//! A shard's hook into flows: the messages that concern them, the verdicts on those, and the messages that flows
//! publish.
//!
//! Of a message on a topic that no flow wants, a shard looks at one word that it remembers of the topic. A batch that flows want is
//! gone through once for each flow, and within it once for each part that holds keys of it. The lists that this takes are kept from
//! batch to batch; a published message is one of its own, which owns its topic and payload.
//!
//! ```text
//!  drafts ─▶ flows ─▶ published ─▶ other flows ─▶ published ─▶ … at most HOPS_MAX times, and until the descent's bounds are reached
//! ```
//!
//! Always true: a flow reads nothing that it published itself, nor messages derived from that; messages beyond the bounds are
//! published without being looked at, and counted; one batch is gone through with one set of flows, and where a flow of it was
//! exchanged since, with the one of that name which took its state over.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_broker::{Admission, Batch, Draft, Verdict, admission::HOPS_MAX};
use tidegate_flow::{
    Bad, Emission, EmittedPayload, Flow, Message, Models, Output, Spec, State, Verdict as Decision,
};
use tidegate_message::{Identity, Instant, Payload};
use tidegate_process::clock;
use tidegate_wire::mqtt::{ForwardedProperties, QoS};

use super::engine::{FLOWS_MAX, Flows, Running, Set};

/// Topics whose flows a shard remembers; a power of two.
const TOPICS: usize = 1024;
/// How often windows and keys that nothing more comes for are looked at.
const TICK: Duration = Duration::from_millis(200);
/// Places of a part's table that are looked at in one tick: all of 65,536 keys within some seconds.
const BLOCKS_A_TICK: u32 = 4096;
/// Flows look at what flows published until so many messages, or so many bytes of payloads, have come of it in one batch or tick:
/// several flows on `#` that notify multiply each message with each hop.
const DESCENT_MESSAGES_MAX: usize = 16_384;
const DESCENT_BYTES_MAX: usize = 16 << 20;
/// Messages of flows that are looked at together; after them it is seen whether that is reached.
const DESCENT_AT_ONCE: usize = 256;

/// User properties of a dead letter.
const FLOW_PROPERTY: &str = "tidegate-flow";
const REASON_PROPERTY: &str = "tidegate-reason";
const FIELD_PROPERTY: &str = "tidegate-field";

/// The flows, as one shard asks them.
pub struct Hook {
    flows: Arc<Flows>,
    set: Arc<Set>,
    generation: u64,
    shard: usize,
    /// By the place of the topic's text in memory, which lasts as long as it is here: a bit for each flow that wants it.
    topics: Vec<Option<(Arc<str>, u64)>>,
    /// For flows whose keys are parted, what knows the key of a message.
    routers: Vec<Option<Flow>>,
    next_tick: Option<Instant>,
    work: Work,
}

/// Scratch memory of a batch, kept for the next.
#[derive(Default)]
struct Work {
    output: Output,
    /// By draft: the flows that want it.
    wanted: Vec<u64>,
    /// By draft: whether one of them drops it, and what takes its payload's place.
    dropped: Vec<bool>,
    replaced: Vec<Option<Payload>>,
    /// Drafts that the flow at hand wants; those of the part at hand.
    chosen: Vec<usize>,
    group: Vec<usize>,
    hashes: Vec<Option<u64>>,
    parts: Vec<usize>,
    /// Payloads in several pieces, in one.
    flat: Vec<Option<Bytes>>,
    messages: Vec<Message<'static>>,
    /// Of the drafts of a batch.
    origins: Vec<Origin>,
    /// The bit of the flow at hand.
    flow: u64,
    made: Vec<Made>,
}

/// A message that a flow publishes.
struct Made {
    /// The place of the draft that it descends from.
    from: usize,
    /// The bit of the flow.
    flow: u64,
    is_letter: bool,
    draft: Draft,
}

/// Where a message comes from.
#[derive(Clone, Copy)]
struct Origin {
    /// A bit for each flow that it came of, directly or not: they do not read it.
    flows: u64,
    /// The draft of the batch that it is itself, or that it stands for as a dead letter, or a dead letter's dead letter.
    stands_for: Option<usize>,
}

/// Published messages of flows that are equally far from the batch, in order, and their origins.
#[derive(Default)]
struct Level {
    drafts: Vec<Draft>,
    origins: Vec<Origin>,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("shard", &self.shard).finish_non_exhaustive()
    }
}

impl Hook {
    pub(super) fn new(flows: Arc<Flows>, shard: usize) -> Self {
        let mut hook = Self {
            flows,
            set: Arc::default(),
            generation: 0,
            shard,
            topics: vec![None; TOPICS],
            routers: Vec::new(),
            next_tick: None,
            work: Work::default(),
        };
        hook.refresh();
        hook
    }

    /// Goes over to the flows that are to run now.
    fn refresh(&mut self) {
        let generation = self.flows.generation();
        if generation == self.generation {
            return;
        }
        self.set = self.flows.current();
        self.generation = generation;
        self.topics.fill(None);
        self.routers = self.set.flows.iter().map(|running| router(running)).collect();
    }

    /// A bit for each flow that wants messages of this topic.
    fn wanted(&mut self, topic: &Arc<str>) -> u64 {
        if self.set.flows.is_empty() {
            return 0;
        }
        let place = (topic.as_ptr().addr() >> 4) & (TOPICS - 1);
        if let Some((known, flows)) = &self.topics[place]
            && Arc::ptr_eq(known, topic)
        {
            return *flows;
        }
        let mut bits = 0;
        for (index, running) in self.set.flows.iter().enumerate() {
            let filters = &running.spec.topics;
            if filters.iter().any(|filter| tidegate_message::topic_matches(filter, topic)) {
                bits |= 1 << index;
            }
        }
        self.topics[place] = Some((topic.clone(), bits));
        bits
    }

    /// Asks the flows about a batch, and about what they publish.
    fn look_at(&mut self, now: Instant, batch: &mut Batch) {
        let mut origins = std::mem::take(&mut self.work.origins);
        origins.clear();
        let own = |index| Origin { flows: 0, stands_for: Some(index) };
        origins.extend((0..batch.drafts.len()).map(own));
        let mut published = Level::default();
        self.run(now, &mut batch.drafts, &origins, &mut published);
        self.work.origins = origins;
        self.descend(now, published, batch);
    }

    /// Runs the flows on `drafts`; their messages are added to `published`, in the order of the messages that they
    /// descend from.
    fn run(
        &mut self,
        now: Instant,
        drafts: &mut [Draft],
        origins: &[Origin],
        published: &mut Level,
    ) {
        let mut wanted = std::mem::take(&mut self.work.wanted);
        wanted.clear();
        let mut all = 0;
        for (draft, origin) in drafts.iter().zip(origins) {
            let passes = draft.verdict == Verdict::Pass;
            let flows = if passes { self.wanted(&draft.topic) & !origin.flows } else { 0 };
            all |= flows;
            wanted.push(flows);
        }
        let mut work = std::mem::take(&mut self.work);
        work.wanted = wanted;
        if all != 0 {
            work.begin(drafts);
            let set = self.set.clone();
            let mut rest = all;
            while rest != 0 {
                let flow = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let wants = |index: &usize| work.wanted[*index] >> flow & 1 == 1;
                let mut chosen = std::mem::take(&mut work.chosen);
                chosen.clear();
                chosen.extend((0..drafts.len()).filter(wants));
                work.chosen = chosen;
                work.flow = 1 << flow;
                let mut router = self.routers[flow].take();
                self.run_flow(now, &set.flows[flow], router.as_mut(), drafts, &mut work);
                self.routers[flow] = router;
            }
            for (index, draft) in drafts.iter_mut().enumerate() {
                if work.dropped[index] {
                    draft.verdict = Verdict::Drop;
                } else if let Some(payload) = work.replaced[index].take() {
                    draft.payload = payload;
                }
            }
            work.made.sort_by_key(|made| made.from);
            for Made { from, flow, is_letter, draft } in work.made.drain(..) {
                let origin = origins[from];
                published.drafts.push(draft);
                published.origins.push(Origin {
                    flows: origin.flows | flow,
                    stands_for: origin.stands_for.filter(|_| is_letter),
                });
            }
        }
        self.work = work;
    }

    /// Adds to `batch` what flows published, and what other flows publish of that.
    fn descend(&mut self, now: Instant, mut level: Level, batch: &mut Batch) {
        let (mut messages, mut bytes) = (0, 0);
        while !level.drafts.is_empty() {
            let mut next = Level::default();
            let drafts = level.drafts.chunks_mut(DESCENT_AT_ONCE);
            for (drafts, origins) in drafts.zip(level.origins.chunks(DESCENT_AT_ONCE)) {
                if messages >= DESCENT_MESSAGES_MAX
                    || bytes >= DESCENT_BYTES_MAX
                    || drafts[0].hops >= HOPS_MAX
                {
                    self.pass_over(now, drafts, origins);
                    continue;
                }
                let first = next.drafts.len();
                self.run(now, drafts, origins, &mut next);
                messages += next.drafts.len() - first;
                bytes += next.drafts[first..].iter().map(|made| made.payload.len()).sum::<usize>();
            }
            for (draft, origin) in level.drafts.into_iter().zip(level.origins) {
                match origin.stands_for {
                    Some(index) => batch.letters.push((index, draft)),
                    None => batch.emitted.push(draft),
                }
            }
            level = next;
        }
    }

    /// Counts messages that flows want and do not look at.
    fn pass_over(&mut self, now: Instant, drafts: &[Draft], origins: &[Origin]) {
        let mut counts = [0; FLOWS_MAX];
        for (draft, origin) in drafts.iter().zip(origins) {
            let mut rest = self.wanted(&draft.topic) & !origin.flows;
            while rest != 0 {
                counts[rest.trailing_zeros() as usize] += 1;
                rest &= rest - 1;
            }
        }
        for (running, count) in self.set.flows.iter().zip(counts).filter(|(_, count)| *count > 0) {
            let counters = &running.counters;
            counters.unseen.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
            if let Some(count) = counters.unseen_lines.add(now, count) {
                tracing::warn!(flow = %running.name, count, "messages pass without being looked at by other flows, since too many came of one batch, or of each other; since the last such line");
            }
        }
    }

    /// Runs the messages of `work.chosen` in one flow.
    fn run_flow(
        &self,
        now: Instant,
        running: &Arc<Running>,
        router: Option<&mut Flow>,
        drafts: &[Draft],
        work: &mut Work,
    ) {
        let parts = running.parts();
        if parts == 1 || running.state == State::None {
            work.group.clone_from(&work.chosen);
            self.run_part(now, running, self.shard % parts, drafts, work);
            return;
        }
        work.parts.clear();
        if let Some(router) = router {
            let mut hashes = std::mem::take(&mut work.hashes);
            let chosen = std::mem::take(&mut work.chosen);
            work.with_messages(drafts, &chosen, |messages, _| {
                router.key_hashes(now, messages, &mut hashes);
            });
            // A message without a key is bad, and any part may say so.
            work.parts.extend(
                hashes.iter().map(|hash| hash.map_or(0, |hash| Running::part_of(hash, parts))),
            );
            (work.hashes, work.chosen) = (hashes, chosen);
        } else {
            work.parts.resize(work.chosen.len(), 0);
        }
        for part in 0..parts {
            work.group.clear();
            let (chosen, of) = (&work.chosen, &work.parts);
            let mine = chosen.iter().zip(of).filter(|(_, of)| **of == part);
            work.group.extend(mine.map(|(index, _)| *index));
            if !work.group.is_empty() {
                self.run_part(now, running, part, drafts, work);
            }
        }
    }

    /// Runs the messages of `work.group` in one part of a flow.
    fn run_part(
        &self,
        now: Instant,
        running: &Arc<Running>,
        part: usize,
        drafts: &[Draft],
        work: &mut Work,
    ) {
        let group = std::mem::take(&mut work.group);
        let ran = work.with_messages(drafts, &group, |messages, output| {
            // Held while the batch runs, and no longer.
            match running.part(part).as_mut() {
                Some(flow) => {
                    flow.set_wall_ahead(clock::wall_ahead());
                    flow.run(now, messages, output);
                    true
                }
                None => false,
            }
        });
        if ran {
            self.take(now, running, drafts, &group, work);
        } else if let Some(next) = self.flows.current().find(&running.name) {
            // Another has its state. The bits of this batch keep their meaning: the hook's own set stays until the next.
            let chosen = std::mem::replace(&mut work.chosen, group.clone());
            let parts = std::mem::take(&mut work.parts);
            let mut router = router(&next);
            self.run_flow(now, &next, router.as_mut(), drafts, work);
            (work.chosen, work.parts) = (chosen, parts);
        }
        work.group = group;
    }

    /// Takes what a part made of the messages of `group`.
    fn take(
        &self,
        now: Instant,
        running: &Running,
        drafts: &[Draft],
        group: &[usize],
        work: &mut Work,
    ) {
        let [mut passed, mut replaced, mut dropped] = [0, 0, 0];
        for (index, decision) in group.iter().zip(work.output.verdicts()) {
            match decision {
                Decision::Pass => passed += 1,
                Decision::Replace(payload) => {
                    replaced += 1;
                    work.replaced[*index] = Some(Payload::from(payload.to_vec()));
                }
                Decision::Drop => {
                    dropped += 1;
                    work.dropped[*index] = true;
                }
            }
        }
        let counters = &running.counters;
        for (counter, count) in [
            (&counters.passed, passed),
            (&counters.replaced, replaced),
            (&counters.dropped, dropped),
        ] {
            counter.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        }
        let field = |bad: Bad| {
            let fields = &running.spec.parse.fields;
            bad.field.and_then(|field| fields.get(usize::from(field))).map(|field| &*field.name)
        };
        for emission in work.output.emissions() {
            let from = group[emission.from];
            let is_letter = matches!(emission.payload, EmittedPayload::Original(_));
            let draft = draft(running, &drafts[from], &emission, field);
            work.made.push(Made { from, flow: work.flow, is_letter, draft });
        }
        let bad = work.output.bad().len() as u64;
        if let Some((first, why)) = work.output.bad().next()
            && let Some(count) = running.counters.bad_lines.add(now, bad)
        {
            tracing::warn!(flow = %running.name, topic = %drafts[group[first]].topic, field = field(why).unwrap_or("-"),
                reason = why.reason.word(), count, "messages that cannot be read, since the last such line");
        }
    }
}

impl Admission for Hook {
    fn concerns(&mut self, topic: &Arc<str>) -> bool {
        self.refresh();
        self.wanted(topic) != 0
    }

    fn admit(&mut self, now: Instant, _: &Identity, batch: &mut Batch) {
        self.refresh();
        self.look_at(now, batch);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        // One shard looks after all of them; a new set is looked at when it is seen.
        (self.shard == 0 && self.set.ticks).then(|| self.next_tick.unwrap_or(Instant::EPOCH))
    }

    fn handle_timeout(&mut self, now: Instant, batch: &mut Batch) {
        // One shard looks after all of them.
        if self.shard != 0 || self.next_tick.is_some_and(|at| now < at) {
            return;
        }
        self.refresh();
        self.next_tick = Some(now + TICK);
        let mut work = std::mem::take(&mut self.work);
        let mut published = Level::default();
        let flows = self.set.flows.iter().enumerate();
        for (index, running) in flows.filter(|(_, running)| running.state != State::None) {
            for part in 0..running.parts() {
                let mut part = running.part(part);
                let Some(flow) = part.as_mut() else { continue };
                flow.set_wall_ahead(clock::wall_ahead());
                flow.tick(now, BLOCKS_A_TICK, &mut work.output);
                drop(part);
                for emission in work.output.emissions() {
                    published.drafts.push(draft(running, &nobody(), &emission, |_| None));
                    published.origins.push(Origin { flows: 1 << index, stands_for: None });
                }
            }
        }
        self.work = work;
        self.descend(now, published, batch);
    }

    fn report(&self) -> Vec<(String, u64)> {
        let mut lines = Vec::new();
        for running in &self.flows.current().flows {
            let stats = running.stats();
            let counters = &running.counters;
            let load = |count: &std::sync::atomic::AtomicU64| {
                count.load(std::sync::atomic::Ordering::Relaxed)
            };
            for (name, count) in [
                ("messages", stats.messages),
                ("passed", load(&counters.passed)),
                ("replaced", load(&counters.replaced)),
                ("dropped", load(&counters.dropped)),
                ("unseen", load(&counters.unseen)),
                ("filtered", stats.filtered),
                ("emitted", stats.emitted),
                ("unsent", stats.unsent),
                ("bad", stats.bad.iter().sum()),
                ("mended", stats.mended),
                ("late", stats.late),
                ("unlearned", stats.unlearned),
                ("keys", u64::from(stats.keys)),
                ("evicted", stats.evicted),
                ("expired", stats.expired),
                ("state/bytes", running.state_bytes),
            ] {
                lines.push((format!("flows/{}/{name}", running.name), count));
            }
            for (reason, count) in tidegate_flow::Reason::ALL.iter().zip(stats.bad) {
                if count > 0 {
                    lines.push((format!("flows/{}/bad/{}", running.name, reason.word()), count));
                }
            }
        }
        lines
    }
}

impl Work {
    fn begin(&mut self, drafts: &[Draft]) {
        self.dropped.clear();
        self.dropped.resize(drafts.len(), false);
        self.replaced.clear();
        self.replaced.resize(drafts.len(), None);
        self.flat.clear();
        let is_cut = |draft: &Draft| draft.payload.segments().len() > 1;
        self.flat.extend(
            drafts.iter().map(|draft| is_cut(draft).then(|| draft.payload.to_contiguous())),
        );
        self.made.clear();
    }

    /// Calls `run` with the drafts of these places as messages.
    fn with_messages<T>(
        &mut self,
        drafts: &[Draft],
        group: &[usize],
        run: impl FnOnce(&[Message<'_>], &mut Output) -> T,
    ) -> T {
        let mut messages = reused(std::mem::take(&mut self.messages));
        for index in group {
            let draft = &drafts[*index];
            let payload: &[u8] = match &self.flat[*index] {
                Some(flat) => flat,
                None => &draft.payload.segments()[0],
            };
            messages.push(Message { topic: &draft.topic, payload });
        }
        let result = run(&messages, &mut self.output);
        self.messages = reused(messages);
        result
    }
}

/// An empty vector with the same memory: the standard library collects in place what is as large and aligned as before.
fn reused<'a>(mut messages: Vec<Message<'_>>) -> Vec<Message<'a>> {
    messages.clear();
    messages.into_iter().map(|_| unreachable!("it was cleared")).collect()
}

/// The flow without operators, to find the keys of a flow's messages, where they are parted.
fn router(running: &Running) -> Option<Flow> {
    if running.parts() == 1 || running.state != State::ByKey {
        return None;
    }
    let bad = tidegate_flow::BadPolicy::Skip;
    let spec = Spec { steps: Vec::new(), bad, ..running.spec.clone() };
    match Flow::compile(&spec, &Models::new()) {
        Ok(flow) => Some(flow),
        Err(error) => {
            // A flow that was compiled compiles without its steps; all messages go to the first part otherwise.
            tracing::error!(%error, "the keys of a flow cannot be found");
            None
        }
    }
}

/// A message of a flow, published in the node's name. It is sent at QoS 1, so that each subscriber can choose.
fn draft<'a>(
    running: &Running,
    from: &Draft,
    emission: &Emission<'_>,
    field: impl Fn(Bad) -> Option<&'a str>,
) -> Draft {
    let (payload, forwarded, qos) = match emission.payload {
        EmittedPayload::Made(payload) => {
            (Payload::from(payload.to_vec()), Vec::new(), QoS::AtLeastOnce)
        }
        EmittedPayload::Original(bad) => {
            let mut forwarded = Vec::new();
            let user_properties = vec![
                (FLOW_PROPERTY, &*running.name),
                (REASON_PROPERTY, bad.reason.word()),
                (FIELD_PROPERTY, field(bad).unwrap_or("")),
            ];
            let properties = ForwardedProperties { user_properties, ..Default::default() };
            if let Err(error) = properties.encode(&mut forwarded) {
                tracing::debug!(flow = %running.name, %error, "a dead letter goes without its reason");
                forwarded.clear();
            }
            (from.payload.clone(), forwarded, from.qos)
        }
    };
    Draft {
        topic: emission.topic.into(),
        payload,
        forwarded,
        qos,
        retain: false,
        expires: None,
        hops: from.hops + 1,
        verdict: Verdict::Pass,
    }
}

/// The origin of a window that ends by itself.
fn nobody() -> Draft {
    Draft {
        topic: "".into(),
        payload: Payload::default(),
        forwarded: Vec::new(),
        qos: QoS::AtLeastOnce,
        retain: false,
        expires: None,
        hops: 0,
        verdict: Verdict::Pass,
    }
}

#[cfg(test)]
mod tests;
