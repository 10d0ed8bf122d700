//! The flows that run, and their exchange for others while messages pass.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_flow::{CompileError, Flow, Models, SnapshotError, Spec, State, Stats};
use tidegate_message::LogLimiter;

use super::{
    Hook,
    file::{FlowFile, FlowFileError},
    state_file,
};

/// Most flows of a node: which of them a topic concerns is one word.
pub const FLOWS_MAX: usize = 64;
/// Most parts that the keys of a flow are shared out to.
const PARTS_MAX: usize = 64;
/// Fewest keys of a part: the least that a flow keeps.
const PART_KEYS_MIN: u32 = 1024;

/// All flows of a node.
#[derive(Debug)]
pub struct Flows {
    current: Mutex<Arc<Set>>,
    /// Counts the sets.
    generation: AtomicU64,
    shards: usize,
    seeds: Seeds,
}

/// A file of flows, and how they are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSettings {
    /// Its name in errors.
    pub section: String,
    /// The file.
    pub file: PathBuf,
    /// Folder of the models, tables and sets that its flows name; none for `models` next to the file.
    pub models_dir: Option<PathBuf>,
    /// Filters in place of those in the file; none for those.
    pub topics: Option<Vec<String>>,
    /// How often their state is written to the disk, where it is.
    pub state_interval: Duration,
}

/// The seeds of hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seeds {
    /// Of keys: for this process alone.
    pub(super) keys: u64,
    /// Of the values that sketches count: as long as their state.
    pub(super) sketches: u64,
}

/// The flows of a time, by name.
#[derive(Debug, Default)]
pub(super) struct Set {
    pub(super) flows: Vec<Arc<Running>>,
    /// Whether time does anything to one of them.
    pub(super) ticks: bool,
}

/// One flow at work.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) name: Arc<str>,
    pub(super) spec: Spec,
    pub(super) models: Models,
    pub(super) state: State,
    pub(super) state_interval: Duration,
    /// None once another set has taken its state over.
    parts: Box<[Mutex<Option<Flow>>]>,
    pub(super) state_bytes: u64,
    ticks: bool,
    pub(super) counters: Counters,
}

/// Counts of a flow in the engine, in addition to its [`Stats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) passed: AtomicU64,
    pub(super) replaced: AtomicU64,
    pub(super) dropped: AtomicU64,
    /// Messages of other flows that it would have read, had there been fewer.
    pub(super) unseen: AtomicU64,
    pub(super) bad_lines: LogLimiter,
    pub(super) unseen_lines: LogLimiter,
}

/// One flow of a plan.
#[derive(Debug)]
pub struct Planned {
    spec: Spec,
    models: Models,
    state_interval: Duration,
    /// None where the running flow continues.
    parts: Option<(State, Vec<Flow>)>,
}

/// Flows that can be run: read, compiled, with room for their state.
#[derive(Debug, Default)]
pub struct Plan {
    flows: BTreeMap<String, Planned>,
}

impl Flows {
    /// None yet, of a node of so many shards. `sketch_seed` is the same from start to start.
    pub fn new(shards: usize, key_seed: u64, sketch_seed: u64) -> Arc<Self> {
        let seeds = Seeds { keys: key_seed, sketches: sketch_seed };
        Arc::new(Self { current: Mutex::default(), generation: AtomicU64::new(1), shards, seeds })
    }

    /// The flows that the files describe. Nothing that runs is changed yet.
    ///
    /// # Errors
    /// [`PlanError`], naming the section, and the file and flow.
    pub fn plan(&self, files: &[FlowSettings]) -> Result<Plan, PlanError> {
        let mut wrong = Vec::new();
        let plan = self.plan_all(files, &mut wrong);
        wrong.into_iter().next().map_or(Ok(plan), Err)
    }

    /// The valid flows; the problems of others are added to `wrong`, of each file and of each flow the first mistake.
    pub fn plan_all(&self, files: &[FlowSettings], wrong: &mut Vec<PlanError>) -> Plan {
        let mut plan = Plan::default();
        for settings in files {
            let section = &settings.section;
            let file = match FlowFile::read(&settings.file, settings.models_dir.as_deref()) {
                Ok(file) => file,
                Err(source) => {
                    wrong.push(PlanError::File { section: section.clone(), source });
                    continue;
                }
            };
            for (mut spec, models) in file.flows {
                if let Some(topics) = &settings.topics {
                    spec.topics.clone_from(topics);
                }
                let added = self.add(&mut plan, section, spec, models, settings.state_interval);
                wrong.extend(added.err());
            }
        }
        plan
    }

    /// The flows of one file.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn plan_file(&self, path: &Path, models: Option<&Path>) -> Result<Plan, PlanError> {
        let section = path.display().to_string();
        let file = FlowFile::read(path, models)
            .map_err(|source| PlanError::File { section: section.clone(), source })?;
        let mut plan = Plan::default();
        for (spec, models) in file.flows {
            self.add(&mut plan, &section, spec, models, Duration::MAX)?;
        }
        Ok(plan)
    }

    fn add(
        &self,
        plan: &mut Plan,
        section: &str,
        mut spec: Spec,
        models: Models,
        state_interval: Duration,
    ) -> Result<(), PlanError> {
        spec.hash_seed = self.seeds.keys;
        spec.sketch_seed = self.seeds.sketches;
        if plan.flows.contains_key(&spec.name) {
            return Err(PlanError::Twice { section: section.to_owned(), name: spec.name });
        }
        if plan.flows.len() == FLOWS_MAX {
            return Err(PlanError::TooMany { section: section.to_owned() });
        }
        let runs = self.current().find(&spec.name);
        let goes_on = runs.is_some_and(|running| {
            running.spec == spec
                && running.models == models
                && running.state_interval == state_interval
        });
        let parts = if goes_on {
            None
        } else {
            let compiled = compile(&spec, &models, self.shards);
            Some(compiled.map_err(|source| PlanError::Compile {
                section: section.to_owned(),
                source: Box::new(source),
            })?)
        };
        let name = spec.name.clone();
        plan.flows.insert(name, Planned { spec, models, state_interval, parts });
        Ok(())
    }

    /// Runs the flows of `plan` from now on, and no others. State is kept where the descriptions of the operators are the same;
    /// otherwise a flow begins with the state in `folder`, if there is one. Which flows are new, other or gone, by name.
    pub fn commit(&self, plan: Plan, folder: Option<&Path>) -> Vec<String> {
        let mut current = self.lock_current();
        let mut changed = Vec::new();
        let mut flows = Vec::new();
        // Locked until the others are in their place: their counts are added there.
        let mut retired: Vec<(Arc<Running>, Vec<Vec<u8>>)> = Vec::new();
        for (name, planned) in plan.flows {
            let before = current.find(&name);
            let Some((state, mut parts)) = planned.parts else {
                if let Some(before) = before {
                    flows.push(before);
                }
                continue;
            };
            changed.push(name.clone());
            let snapshots = match &before {
                Some(before) => {
                    let snapshots = before.retire();
                    retired.push((before.clone(), snapshots.clone()));
                    Some(snapshots)
                }
                None => folder.and_then(|folder| state_file::read(folder, &name)),
            };
            if let Some(snapshots) = snapshots {
                match take_up(&mut parts, &snapshots) {
                    Ok(text) => tracing::info!(flow = %name, "{text}"),
                    Err(error) => {
                        // Those of a flow that runs are whole.
                        if let Some(folder) = folder {
                            state_file::set_aside(folder, &name, &error);
                        }
                    }
                }
            }
            flows.push(Arc::new(Running::new(
                planned.spec,
                planned.models,
                state,
                planned.state_interval,
                parts,
            )));
        }
        for gone in current.flows.iter().filter(|old| !flows.iter().any(|new| new.name == old.name))
        {
            changed.push(gone.name.to_string());
            let snapshots = gone.retire();
            if let Some(folder) = folder
                && gone.state != State::None
                && let Err(error) = state_file::write(folder, &gone.name, &snapshots)
            {
                tracing::warn!(flow = %gone.name, error = %tidegate_message::error_chain(&error), "the state of a flow is lost");
            }
        }
        changed.sort();
        changed.dedup();
        let ticks = flows.iter().any(|running| running.ticks);
        *current = Arc::new(Set { flows, ticks });
        self.generation.fetch_add(1, Ordering::Release);
        drop(retired);
        changed
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn current(&self) -> Arc<Set> {
        self.lock_current().clone()
    }

    fn lock_current(&self) -> MutexGuard<'_, Arc<Set>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hook of one shard for its messages.
    pub fn hook(self: &Arc<Self>, shard: usize) -> Hook {
        Hook::new(self.clone(), shard)
    }

    /// The counts of each flow since it was compiled, by name: messages that passed, were replaced or dropped, and the rest.
    pub fn stats(&self) -> Vec<(Arc<str>, [u64; 3], Stats)> {
        let set = self.current();
        let all = set.flows.iter().map(|running| {
            let counters = &running.counters;
            let counts = [&counters.passed, &counters.replaced, &counters.dropped];
            let counts = counts.map(|count| count.load(Ordering::Relaxed));
            (running.name.clone(), counts, running.stats())
        });
        all.collect()
    }
}

impl Plan {
    /// The names of its flows.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.flows.keys().map(String::as_str)
    }

    /// The most bytes of state of a flow that is not running yet.
    pub fn state_bytes(&self, name: &str) -> Option<u64> {
        let (_, parts) = self.flows.get(name)?.parts.as_ref()?;
        Some(parts.iter().map(Flow::state_bytes).sum())
    }

    /// The description of a flow.
    pub fn spec(&self, name: &str) -> Option<&Spec> {
        self.flows.get(name).map(|planned| &planned.spec)
    }
}

impl Set {
    pub(super) fn find(&self, name: &str) -> Option<Arc<Running>> {
        self.flows.iter().find(|running| &*running.name == name).cloned()
    }
}

impl Running {
    fn new(
        spec: Spec,
        models: Models,
        state: State,
        state_interval: Duration,
        parts: Vec<Flow>,
    ) -> Self {
        Self {
            name: spec.name.as_str().into(),
            state_bytes: parts.iter().map(Flow::state_bytes).sum(),
            ticks: parts.iter().any(Flow::ticks),
            parts: parts.into_iter().map(|flow| Mutex::new(Some(flow))).collect(),
            spec,
            models,
            state,
            state_interval,
            counters: Counters::default(),
        }
    }

    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The flow of a part; none inside once it is retired.
    pub(super) fn part(&self, index: usize) -> MutexGuard<'_, Option<Flow>> {
        self.parts[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part that a key of this hash belongs to. Tables use the upper bits of a hash, so that these are other ones.
    #[inline]
    pub(super) fn part_of(hash: u64, parts: usize) -> usize {
        (hash & (parts as u64 - 1)) as usize
    }

    /// Takes the flow out of all parts, so that the next user looks for the next set, and gives their snapshots.
    fn retire(&self) -> Vec<Vec<u8>> {
        // All at once: no message is counted behind its part's snapshot.
        let mut parts: Vec<_> = (0..self.parts.len()).map(|index| self.part(index)).collect();
        parts.iter_mut().filter_map(|part| part.take()).map(|flow| flow.snapshot()).collect()
    }

    pub(super) fn stats(&self) -> Stats {
        let parts = (0..self.parts.len()).filter_map(|at| self.part(at).as_ref().map(Flow::stats));
        parts.fold(Stats::default(), |sum, stats| sum.plus(&stats))
    }
}

/// The parts of a flow for so many shards.
fn compile(
    spec: &Spec,
    models: &Models,
    shards: usize,
) -> Result<(State, Vec<Flow>), CompileError> {
    // As it is written: its bounds hold for the whole.
    let whole = Flow::compile(spec, models)?;
    let state = whole.state();
    let count = match state {
        State::Whole => 1,
        State::None => shards,
        State::ByKey if shards == 1 => 1,
        State::ByKey => (2 * shards).next_power_of_two().min(PARTS_MAX),
    };
    if count == 1 {
        return Ok((state, vec![whole]));
    }
    drop(whole);
    let share = spec.keys_max.div_ceil(count as u32).max(PART_KEYS_MIN);
    // Hashes do not part keys evenly: six standard deviations more leave no part short, where memory allows it.
    let ample = share.saturating_add((6.0 * f64::from(share).sqrt()).ceil() as u32);
    let parts = |keys: u32| -> Result<Vec<Flow>, CompileError> {
        let spec = Spec {
            keys_max: if state == State::ByKey { keys } else { spec.keys_max },
            ..spec.clone()
        };
        (0..count).map(|_| Flow::compile(&spec, models)).collect()
    };
    let bytes = |parts: &[Flow]| parts.iter().map(Flow::state_bytes).sum::<u64>();
    let ample = parts(ample)?;
    if bytes(&ample) <= spec.state_bytes_max {
        Ok((state, ample))
    } else {
        Ok((state, parts(share)?))
    }
}

/// Gives the keys of `snapshots` to the parts that they belong to; says how that went.
fn take_up(parts: &mut [Flow], snapshots: &[Vec<u8>]) -> Result<String, SnapshotError> {
    let snapshots: Vec<&[u8]> = snapshots.iter().map(Vec::as_slice).collect();
    let count = parts.len();
    let (mut keys, mut left_out) = (0, 0);
    let mut anew = Vec::new();
    for (index, part) in parts.iter_mut().enumerate() {
        let is_own = |hash| Running::part_of(hash, count) == index;
        let restored = part.restore_all(&snapshots, is_own)?;
        keys += restored.keys;
        left_out += restored.keys_left_out;
        anew = restored.began_anew;
    }
    let mut text = format!("continues with the state of {keys} keys");
    if left_out > 0 {
        text.push_str(&format!("; {left_out} were left out"));
    }
    if !anew.is_empty() {
        text.push_str(&format!("; started over: {}", anew.join(", ")));
    }
    Ok(text)
}

/// Why flows cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A file of flows was not taken.
    #[error("flow.{section}.file")]
    File {
        /// The section.
        section: String,
        /// The error.
        source: FlowFileError,
    },
    /// A flow cannot be compiled.
    #[error("flow.{section}.file describes a flow that cannot be run")]
    Compile {
        /// The section.
        section: String,
        /// The error.
        source: Box<CompileError>,
    },
    /// Two flows have one name.
    #[error(
        "flow.{section}.file describes flow {name:?}, which another file describes as well; rename one"
    )]
    Twice {
        /// The second section.
        section: String,
        /// The flow.
        name: String,
    },
    /// There are more flows than a node runs.
    #[error(
        "with flow.{section} there are more than {FLOWS_MAX} flows, which is the most; join some, or disable one"
    )]
    TooMany {
        /// The section that was one too many.
        section: String,
    },
}
