//! The cameras that a node knows, their streams, and the questions it has asked them.
//!
//! Always true: a camera name belongs to the first node key that registered it until it is unregistered, but
//! the key of a certificate of that camera takes it from one that only registered it; a stream lives while a
//! session reads it; records for a camera go through one bounded channel to the task that serves its link, and
//! a full channel is a link that is down.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tidegate_api::{ApiError, Event};
use tidegate_camera::frame_log::FrameLogSettings;
use tidegate_identity::{access::Identity, pki::Kind};
use tidegate_message::{CameraName, Code, Demand, Instant};
use tidegate_wire::{
    CameraAnnounce, CameraInfo, CameraInfoRequest, FetchOriginal, NodeId, Original, Record,
    StartTransfer, StopTransfer, TransferHints, TransferId, UpdateTransfer,
};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot, watch,
};

use super::{
    entry::Epoch,
    stream::{Begin, Reads, Stream},
    verdict::Verdicts,
};

/// Records on their way to one camera; more than this and its link has stalled.
pub(super) const RECORDS_MAX: usize = 256;
/// Longest wait for a camera node's answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Every camera by name.
#[derive(Default)]
pub(super) struct Cameras {
    by_name: Mutex<BTreeMap<CameraName, Arc<Camera>>>,
    /// Changes whenever a camera is reached, or no longer.
    reached: Arc<watch::Sender<()>>,
}

/// One camera, reachable or not.
pub(super) struct Camera {
    pub(super) name: CameraName,
    /// On the frames of all its streams, those that are yet to begin as well.
    pub(super) verdicts: Verdicts,
    state: Mutex<State>,
    reached: Arc<watch::Sender<()>>,
}

#[derive(Default)]
struct State {
    owner: Option<Owner>,
    life: Epoch,
    announce: Option<CameraAnnounce>,
    link: Option<Attached>,
    clock_offset: Option<(i64, Duration)>,
    /// Why it gives no frames although it is reached, if it said so.
    no_frames: Option<Arc<str>>,
    /// By which clock its frames are timed, if it said that something is wrong with it.
    capture_clock: Option<Arc<str>>,
    streams: BTreeMap<TransferId, Arc<Stream>>,
    questions: HashMap<u64, Question>,
}

/// The owner of a camera's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Its key.
    pub(super) node: NodeId,
    /// Whether its certificate is that camera's. An application's lets it publish under any name that no
    /// such certificate has claimed.
    pub(super) certified: bool,
}

impl Owner {
    pub(super) fn new(identity: &Identity, camera: &CameraName) -> Self {
        let certified =
            identity.certificate == Some(Kind::Camera) && identity.name() == camera.as_str();
        Self { node: identity.key, certified }
    }

    /// Whether it may hold the name although `holder` does.
    fn may_replace(self, holder: Self) -> bool {
        self.node == holder.node || (self.certified && !holder.certified)
    }
}

/// The link that reaches a camera now.
#[derive(Clone)]
struct Attached {
    /// Tells one attachment from the next, so that an old one cannot detach a new one.
    id: u64,
    records: mpsc::Sender<Record>,
    transport: String,
}

enum Question {
    Original(oneshot::Sender<(Original, Bytes)>),
    Info(oneshot::Sender<CameraInfo>),
}

/// The parts handed to the task that serves a link.
pub(super) struct Attachment {
    pub(super) id: u64,
    /// The camera's life that it serves.
    pub(super) life: Epoch,
    pub(super) records: mpsc::Receiver<Record>,
}

/// Names transfers, questions and attachments: never one twice.
static NEXT: AtomicU64 = AtomicU64::new(1);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Cameras {
    fn map(&self) -> MutexGuard<'_, BTreeMap<CameraName, Arc<Camera>>> {
        self.by_name.lock().expect("no panic while cameras are looked up")
    }

    pub(super) fn all(&self) -> Vec<Arc<Camera>> {
        self.map().values().cloned().collect()
    }

    /// The camera of that name, for a caller that may know of those for which `may_know` is true.
    ///
    /// # Errors
    /// [`Code::CAMERA_UNKNOWN`], naming the cameras that it may know of.
    pub(super) fn named(
        &self,
        name: &CameraName,
        may_know: impl Fn(&CameraName) -> bool,
    ) -> Result<Arc<Camera>, ApiError> {
        let map = self.map();
        map.get(name).cloned().ok_or_else(|| {
            let known = map.keys().filter(|known| may_know(known)).map(CameraName::as_str);
            let known: Vec<&str> = known.take(20).collect();
            let known = if known.is_empty() {
                "none that you may see has registered".to_owned()
            } else {
                format!("registered are {}", known.join(", "))
            };
            ApiError::new(Code::CAMERA_UNKNOWN, format!("no camera is called {name}; {known}"))
        })
    }

    /// Whether a camera of that name is there and reached.
    pub(super) fn is_online(&self, name: &CameraName) -> bool {
        self.map().get(name).is_some_and(|camera| camera.is_online())
    }

    /// The cameras that are reached, in order.
    pub(super) fn online(&self) -> Vec<CameraName> {
        self.all().iter().filter(|one| one.is_online()).map(|one| one.name.clone()).collect()
    }

    /// Changes whenever those do.
    pub(super) fn reached(&self) -> watch::Receiver<()> {
        self.reached.subscribe()
    }

    /// Takes up a link that reaches the announced camera, and asks again for what its streams still want.
    ///
    /// A second link of the same node key replaces the first: the first is dead and not yet noticed.
    ///
    /// # Errors
    /// [`Code::CAMERA_TAKEN`] if another holds the name.
    pub(super) fn attach(
        &self,
        announce: CameraAnnounce,
        owner: Owner,
        epoch: u64,
        transport: String,
    ) -> Result<(Arc<Camera>, Attachment), ApiError> {
        let name = announce.name.clone();
        let camera = self
            .map()
            .entry(name.clone())
            .or_insert_with(|| {
                Arc::new(Camera {
                    name,
                    verdicts: Verdicts::default(),
                    state: Mutex::default(),
                    reached: self.reached.clone(),
                })
            })
            .clone();
        let (sender, records) = mpsc::channel(RECORDS_MAX);
        let mut state = camera.state();
        if state.owner.is_some_and(|holder| !owner.may_replace(holder)) {
            return Err(taken(&camera.name));
        }
        state.owner = Some(owner);
        state.announce = Some(announce);
        let restarted = state.life.ordinal != 0 && state.life.epoch != epoch;
        if state.life.ordinal == 0 || restarted {
            state.life = Epoch { ordinal: state.life.ordinal + 1, epoch };
        }
        let life = state.life;
        // It says so again over its new link.
        (state.no_frames, state.capture_clock) = (None, None);
        state.questions.clear();
        let id = next();
        let streams: Vec<Arc<Stream>> = state.streams.values().cloned().collect();
        state.link = Some(Attached { id, records: sender, transport });
        drop(state);
        self.reached.send_replace(());
        for stream in streams {
            camera.resume(&stream, life);
            stream.tell(Event::CameraOnline);
        }
        Ok((camera, Attachment { id, life, records }))
    }

    /// Whether `owner` may be the camera of that name.
    ///
    /// # Errors
    /// [`Code::CAMERA_TAKEN`] if another holds the name.
    pub(super) fn may_attach(&self, name: &CameraName, owner: Owner) -> Result<(), ApiError> {
        match self.map().get(name) {
            Some(camera)
                if camera.state().owner.is_some_and(|holder| !owner.may_replace(holder)) =>
            {
                Err(taken(name))
            }
            _ => Ok(()),
        }
    }

    /// Lets go of a name whose holder is offline; its sessions wait for the next.
    pub(super) fn release_if_offline(&self, name: &CameraName) {
        if let Some(camera) = self.map().get(name) {
            let mut state = camera.state();
            if state.link.is_none() {
                state.owner = None;
            }
        }
    }

    /// Forgets a camera; its sessions end.
    pub(super) fn remove(&self, name: &CameraName) -> Option<Arc<Camera>> {
        let camera = self.map().remove(name)?;
        camera.end();
        Some(camera)
    }

    /// Forgets a camera, as [`Self::remove`] does, unless its name belongs to a key other than `node`.
    pub(super) fn remove_unless_of_another(&self, name: &CameraName, node: NodeId) {
        let mut map = self.map();
        let Some(camera) = map.get(name).cloned() else { return };
        if camera.state().owner.is_some_and(|holder| holder.node != node) {
            return;
        }
        map.remove(name);
        drop(map);
        camera.end();
    }
}

impl Camera {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while a camera's state is held")
    }

    /// Ends its sessions, and lets go of its link.
    fn end(&self) {
        let streams = std::mem::take(&mut self.state().streams);
        for stream in streams.values() {
            stream.end(tidegate_wire::EndReason::SourceEnded);
        }
        self.state().link = None;
        self.reached.send_replace(());
    }

    /// Lets go of the link of that attachment, unless a newer one has taken its place.
    pub(super) fn detach(&self, attachment: u64, why: &str) {
        let mut state = self.state();
        if state.link.as_ref().is_none_or(|link| link.id != attachment) {
            return;
        }
        state.link = None;
        (state.no_frames, state.capture_clock) = (None, None);
        state.questions.clear();
        let streams: Vec<_> = state.streams.values().cloned().collect();
        drop(state);
        self.reached.send_replace(());
        for stream in streams {
            stream.tell(Event::CameraOffline(why.into()));
        }
    }

    /// The life that its newest link serves or served.
    pub(super) fn life(&self) -> Epoch {
        self.state().life
    }

    pub(super) fn is_online(&self) -> bool {
        self.state().link.is_some()
    }

    pub(super) fn announce(&self) -> Option<CameraAnnounce> {
        self.state().announce.clone()
    }

    /// Why it gives no frames although it is reached, if it said so.
    pub(super) fn no_frames(&self) -> Option<Arc<str>> {
        self.state().no_frames.clone()
    }

    /// By which clock its frames are timed, if something is wrong with it.
    pub(super) fn capture_clock(&self) -> Option<Arc<str>> {
        self.state().capture_clock.clone()
    }

    /// Its frames are timed by that clock, or by a sound one. Whether that is news.
    pub(super) fn set_capture_clock(&self, said: Option<Arc<str>>) -> bool {
        let mut state = self.state();
        let is_news = state.capture_clock != said;
        state.capture_clock = said;
        is_news
    }

    /// It gives no frames for that reason, or gives some again. Whether that is news.
    pub(super) fn set_no_frames(&self, why: Option<Arc<str>>) -> bool {
        let mut state = self.state();
        if state.no_frames == why {
            return false;
        }
        state.no_frames.clone_from(&why);
        // Under the lock, so that a stream that begins meanwhile is notified once.
        for stream in state.streams.values() {
            stream.tell(why.clone().map_or(Event::CameraOnline, Event::NoFrames));
        }
        true
    }

    pub(super) fn transport(&self) -> String {
        self.state().link.as_ref().map(|link| link.transport.clone()).unwrap_or_default()
    }

    pub(super) fn stream(&self, transfer: TransferId) -> Option<Arc<Stream>> {
        self.state().streams.get(&transfer).cloned()
    }

    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        self.state().streams.values().cloned().collect()
    }

    /// Sends a record to the camera's node.
    ///
    /// # Errors
    /// [`Code::CAMERA_OFFLINE`] if no link reaches it.
    pub(super) fn tell(&self, record: impl Into<Record>) -> Result<(), ApiError> {
        let state = self.state();
        let offline = || {
            let text = format!("camera {} is registered but its node cannot be reached", self.name);
            ApiError::new(Code::CAMERA_OFFLINE, text)
        };
        let link = state.link.as_ref().ok_or_else(offline)?;
        link.records.try_send(record.into()).map_err(|_| offline())
    }

    pub(super) fn set_clock_offset(&self, offset: Option<(i64, Duration)>) {
        self.state().clock_offset = offset;
    }

    /// Nanoseconds to add to the camera's time to get ours, and the uncertainty.
    pub(super) fn clock_offset(&self) -> Option<(i64, Duration)> {
        self.state().clock_offset
    }

    /// Joins a running live stream other than `own` whose frames keep what `demand` asks and whose log
    /// reaches back to `from`, if there is one. The caller leaves it again with [`Camera::leave`] and the same
    /// `reads`.
    pub(super) fn join(
        &self,
        demand: &Demand,
        hints: &TransferHints,
        from: Option<Instant>,
        reads: Reads,
        own: Option<&Stream>,
    ) -> Option<Arc<Stream>> {
        let state = self.state();
        let fits = |stream: &&Arc<Stream>| {
            let running = stream.demand();
            stream.is_open()
                && own.is_none_or(|own| own.transfer != stream.transfer)
                && stream.hints == *hints
                && running.bounds.imply(demand.bounds)
                && Demand { bounds: demand.bounds, ..running } == *demand
                // The log of a stream of every frame that begins earlier holds all of the past that was asked for.
                && from.is_none_or(|from| stream.oldest().is_some_and(|oldest| oldest <= from))
        };
        let stream = state.streams.values().find(fits).cloned()?;
        // Under the lock, so that it cannot stop between the look and the count.
        stream.enter(reads);
        Some(stream)
    }

    /// Leaves a stream; the last one to leave stops it. Returns whether it was the last.
    pub(super) fn leave(&self, stream: &Stream, reads: Reads) -> bool {
        let mut state = self.state();
        if !stream.exit(reads) {
            return false;
        }
        state.streams.remove(&stream.transfer);
        drop(state);
        // A camera that is away has forgotten the transfer with its link.
        let _ = self.tell(StopTransfer { transfer: stream.transfer });
        true
    }

    /// Starts a stream of its own for `demand`, joined once.
    ///
    /// # Errors
    /// [`Code::CAMERA_OFFLINE`] if no link reaches the camera.
    pub(super) fn start_stream(
        &self,
        demand: Demand,
        hints: TransferHints,
        begin: Begin,
        log: FrameLogSettings,
    ) -> Result<Arc<Stream>, ApiError> {
        let Begin { range, after, reads } = begin;
        let (transfer, life) = (TransferId(next()), self.life());
        let stream = Stream::new(self.name.clone(), life, transfer, demand, hints, range, log)
            .map_err(|error| {
                ApiError::new(Code::LIMIT_REACHED, "no stream log").caused_by(error)
            })?;
        let stream = Arc::new(stream);
        stream.enter(reads);
        if let Some((life, after)) = after {
            stream.begin_after(life, after);
        }
        // The stream is known before the camera is asked: its first frame may be quicker than we are.
        let mut state = self.state();
        if let Some(why) = &state.no_frames {
            stream.tell(Event::NoFrames(why.clone()));
        }
        state.streams.insert(transfer, stream.clone());
        drop(state);
        if let Err(error) = self.tell(start(&stream, life)) {
            self.state().streams.remove(&transfer);
            // Another session may have joined it meanwhile.
            stream.refuse(error.code(), error.message().into());
            return Err(error);
        }
        Ok(stream)
    }

    /// Changes what a stream must keep, if one session alone reads it; says whether it did.
    ///
    /// A camera that is offline is asked for the new demand when it is back.
    ///
    /// # Errors
    /// [`Code::LIMIT_REACHED`] if its link has stalled; nothing has changed then.
    pub(super) fn update_if_alone(
        &self,
        stream: &Stream,
        demand: Demand,
    ) -> Result<bool, ApiError> {
        // Under the lock, so that no session joins between the look and the change.
        let state = self.state();
        if stream.sessions() > 1 {
            return Ok(false);
        }
        let room = state.link.as_ref().map(|link| link.records.try_reserve());
        if let Some(Err(TrySendError::Full(()))) = room {
            let text = format!("{RECORDS_MAX} records wait for camera {}: try again", self.name);
            return Err(ApiError::new(Code::LIMIT_REACHED, text));
        }
        // Before the camera is notified, whose answer may be quicker than we are.
        stream.set_demand(demand);
        if let Some(Ok(room)) = room {
            room.send(UpdateTransfer { transfer: stream.transfer, demand }.into());
        }
        Ok(true)
    }

    /// Asks for a stream again over a new link.
    fn resume(&self, stream: &Stream, life: Epoch) {
        stream.asked_again();
        // If the new link breaks at once, the next one asks again.
        let _ = self.tell(start(stream, life));
    }

    /// Asks for an untouched frame.
    ///
    /// # Errors
    /// [`Code::CAMERA_OFFLINE`] if no link reaches the camera.
    pub(super) fn ask_original(
        &self,
        at: Instant,
    ) -> Result<Asked<'_, (Original, Bytes)>, ApiError> {
        let (sender, answer) = oneshot::channel();
        let asked = Asked { camera: self, request: next(), answer };
        self.state().questions.insert(asked.request, Question::Original(sender));
        self.tell(FetchOriginal { request: asked.request, at })?;
        Ok(asked)
    }

    /// Asks what the camera is and has.
    ///
    /// # Errors
    /// [`Code::CAMERA_OFFLINE`] if no link reaches the camera.
    pub(super) fn ask_info(&self) -> Result<Asked<'_, CameraInfo>, ApiError> {
        let (sender, answer) = oneshot::channel();
        let asked = Asked { camera: self, request: next(), answer };
        self.state().questions.insert(asked.request, Question::Info(sender));
        self.tell(CameraInfoRequest { request: asked.request })?;
        Ok(asked)
    }

    /// Hands an answer to the asking session; an answer that is not waited for any more is dropped.
    pub(super) fn answer_original(&self, original: Original, body: Bytes) {
        let question = self.state().questions.remove(&original.request);
        if let Some(Question::Original(asker)) = question {
            let _ = asker.send((original, body));
        }
    }

    /// Hands an answer to the asking session; an answer that is not waited for any more is dropped.
    pub(super) fn answer_info(&self, info: CameraInfo) {
        let question = self.state().questions.remove(&info.request);
        if let Some(Question::Info(asker)) = question {
            let _ = asker.send(info);
        }
    }
}

/// A question to a camera. Dropping it forgets the question, at either end.
pub(super) struct Asked<'camera, T> {
    camera: &'camera Camera,
    request: u64,
    /// Closes if the link breaks.
    answer: oneshot::Receiver<T>,
}

impl<T> Asked<'_, T> {
    /// The camera's answer.
    ///
    /// # Errors
    /// [`Code::CAMERA_OFFLINE`] if the link breaks, or nothing comes within [`ANSWER_MAX`].
    pub(super) async fn answer(mut self) -> Result<T, ApiError> {
        let name = &self.camera.name;
        let why = match tokio::time::timeout(ANSWER_MAX, &mut self.answer).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(_)) => format!("the link to camera {name} broke before it answered"),
            Err(_) => format!("camera {name} did not answer within {} s", ANSWER_MAX.as_secs()),
        };
        Err(ApiError::new(Code::CAMERA_OFFLINE, why))
    }
}

impl<T> Drop for Asked<'_, T> {
    fn drop(&mut self) {
        self.camera.state().questions.remove(&self.request);
    }
}

fn taken(name: &CameraName) -> ApiError {
    let text = format!(
        "camera name {name} belongs to another node key; unregister it there, or choose another name"
    );
    ApiError::new(Code::CAMERA_TAKEN, text)
}

/// Asks for a stream, or for what follows of one that has come some way, in this life of its camera.
///
/// A camera node that has restarted holds only frames of its new life: all of them are news, whatever its clock says now.
/// A first capture time that was reached by its old clock is behind it by its new one, too.
fn start(stream: &Stream, life: Epoch) -> StartTransfer {
    let (first, to) = stream.range;
    let (from, resume_after) = match stream.reached() {
        (of, None) => (first, (of != life).then_some(Instant::MIN)),
        (of, Some(reached)) => {
            let same = of == life;
            // A subscription to the past wants the frames between, of a live stream, too.
            let filled = || first.filter(|_| same).unwrap_or(Instant::MIN);
            let from = stream.fills_gaps().then(filled);
            (from, Some(if same { reached } else { Instant::MIN }))
        }
    };
    let (transfer, demand, hints) = (stream.transfer, stream.demand(), stream.hints.clone());
    StartTransfer { transfer, demand, from, to, resume_after, hints }
}

#[cfg(test)]
mod tests;
