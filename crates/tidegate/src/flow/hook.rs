//! What a shard asks of flows: which messages concern them, what becomes of those, and what is published.
//!
//! Of a message on a topic that no flow wants, a shard looks at one word that it remembers of the topic. A batch that flows want is
//! gone through once for each flow, and within it once for each part that holds keys of it. The lists that this takes are kept from
//! batch to batch; what is published is a message of its own, which owns its topic and payload.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_broker::{Admission, Batch, Draft, Verdict, admission::HOPS_MAX};
use tidegate_flow::{
    Bad, Emission, EmittedPayload, Flow, Message, Models, Output, Spec, State, Verdict as Decision,
};
use tidegate_message::{Identity, Instant, Payload};
use tidegate_wire::mqtt::{ForwardedProperties, QoS};

use super::engine::{Flows, Running, Set};

/// Topics whose flows a shard remembers; a power of two.
const TOPICS: usize = 1024;
/// How often windows and keys that nothing more comes for are looked at.
const TICK: Duration = Duration::from_millis(200);
/// Places of a part's table that are looked at in one tick: all of 65,536 keys within some seconds.
const BLOCKS_A_TICK: u32 = 4096;

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

/// What a batch needs, kept for the next.
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
    /// What is published, and the draft that it descends from.
    made: Vec<(usize, Draft)>,
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
        let routers = self.set.flows.iter().map(|running| {
            (running.parts() > 1 && running.state == State::ByKey)
                .then(|| router(&running.spec))
                .flatten()
        });
        self.routers = routers.collect();
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

    /// Asks the flows about `drafts`; what they publish is added to `emitted`, in the order of what it descends from.
    fn run(&mut self, now: Instant, drafts: &mut [Draft], emitted: &mut Vec<Draft>) {
        let mut wanted = std::mem::take(&mut self.work.wanted);
        wanted.clear();
        let mut all = 0;
        for draft in drafts.iter() {
            let passes = draft.verdict == Verdict::Pass && draft.hops <= HOPS_MAX;
            let flows = if passes { self.wanted(&draft.topic) } else { 0 };
            all |= flows;
            wanted.push(flows);
        }
        let mut work = std::mem::take(&mut self.work);
        work.wanted = wanted;
        if all != 0 {
            work.begin(drafts);
            let mut rest = all;
            while rest != 0 {
                let flow = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                let wants = |index: &usize| work.wanted[*index] >> flow & 1 == 1;
                let mut chosen = std::mem::take(&mut work.chosen);
                chosen.clear();
                chosen.extend((0..drafts.len()).filter(wants));
                work.chosen = chosen;
                self.run_flow(now, flow, drafts, &mut work);
            }
            for (index, draft) in drafts.iter_mut().enumerate() {
                if work.dropped[index] {
                    draft.verdict = Verdict::Drop;
                } else if let Some(payload) = work.replaced[index].take() {
                    draft.payload = payload;
                }
            }
            work.made.sort_by_key(|(from, _)| *from);
            emitted.extend(work.made.drain(..).map(|(_, draft)| draft));
        }
        self.work = work;
    }

    /// What flows publish, flows may want.
    fn descend(&mut self, now: Instant, mut first: usize, emitted: &mut Vec<Draft>) {
        while first < emitted.len() {
            let mut level = emitted.split_off(first);
            self.run(now, &mut level, emitted);
            let next = emitted.split_off(first);
            first += level.len();
            emitted.append(&mut level);
            emitted.extend(next);
        }
    }

    fn run_flow(&mut self, now: Instant, flow: usize, drafts: &[Draft], work: &mut Work) {
        let running = self.set.flows[flow].clone();
        let parts = running.parts();
        if parts == 1 || running.state == State::None {
            work.group.clone_from(&work.chosen);
            self.run_part(now, &running, self.shard % parts, drafts, work);
            return;
        }
        if let Some(router) = self.routers.get_mut(flow).and_then(Option::as_mut) {
            let mut hashes = std::mem::take(&mut work.hashes);
            let chosen = std::mem::take(&mut work.chosen);
            work.with_messages(drafts, &chosen, |messages, _| {
                router.key_hashes(now, messages, &mut hashes);
            });
            work.parts.clear();
            // What has no key is bad, and any part says so.
            work.parts.extend(
                hashes.iter().map(|hash| hash.map_or(0, |hash| Running::part_of(hash, parts))),
            );
            (work.hashes, work.chosen) = (hashes, chosen);
        }
        for part in 0..parts {
            work.group.clear();
            let (chosen, of) = (&work.chosen, &work.parts);
            let mine = chosen.iter().zip(of).filter(|(_, of)| **of == part);
            work.group.extend(mine.map(|(index, _)| *index));
            if !work.group.is_empty() {
                self.run_part(now, &running, part, drafts, work);
            }
        }
    }

    /// Runs the messages of `work.group` in one part of a flow.
    fn run_part(
        &mut self,
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
                    flow.run(now, messages, output);
                    true
                }
                None => false,
            }
        });
        if !ran {
            // Another set is in its place, with its state.
            self.refresh();
            work.chosen.clone_from(&group);
            if let Some(flow) = self.set.flows.iter().position(|next| next.name == running.name) {
                self.run_flow(now, flow, drafts, work);
            }
            work.group = group;
            return;
        }
        self.take(now, running, drafts, &group, work);
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
            work.made.push((from, draft(running, &drafts[from], &emission, field)));
        }
        let bad = work.output.bad().len() as u64;
        if let Some((first, why)) = work.output.bad().next()
            && let Some(count) = running.counters.bad(now, bad)
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
        let Batch { drafts, emitted } = batch;
        let first = emitted.len();
        self.run(now, drafts, emitted);
        self.descend(now, first, emitted);
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
        let first = batch.emitted.len();
        self.refresh();
        self.next_tick = Some(now + TICK);
        let mut work = std::mem::take(&mut self.work);
        let set = self.set.clone();
        for running in set.flows.iter().filter(|running| running.state != State::None) {
            for part in 0..running.parts() {
                let mut part = running.part(part);
                let Some(flow) = part.as_mut() else { continue };
                flow.tick(now, BLOCKS_A_TICK, &mut work.output);
                drop(part);
                for emission in work.output.emissions() {
                    batch.emitted.push(draft(running, &nobody(), &emission, |_| None));
                }
            }
        }
        self.work = work;
        self.descend(now, first, &mut batch.emitted);
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

/// What knows the keys of a flow's messages: the flow without operators.
fn router(spec: &Spec) -> Option<Flow> {
    let bad = tidegate_flow::BadPolicy::Skip;
    let spec = Spec { steps: Vec::new(), bad, ..spec.clone() };
    match Flow::compile(&spec, &Models::new()) {
        Ok(flow) => Some(flow),
        Err(error) => {
            // A flow that was compiled compiles without its steps; all messages go to the first part otherwise.
            tracing::error!(%error, "the keys of a flow cannot be told");
            None
        }
    }
}

/// What a flow publishes as a message in the node's name. It is sent at QoS 1, so that whoever wants to be sure is.
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

/// What a window that ends by itself descends from.
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
