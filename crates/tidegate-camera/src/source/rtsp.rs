//! Pictures of a network camera: our own client of RTSP, and ffmpeg for what is no JPEG image already.
//!
//! ```text
//!  camera ─▶ Session ─▶ Assembler ─▶ units, bounded ─▶ Decoder (ffmpeg, by a pipe) ─▶ pictures
//!              │  packets, reports                      │ media time in, media time out  │
//!              └──────────▶ Timeline ───────────────────────────────────────────────────▶ capture time
//! ```
//!
//! We read the packets ourselves for three reasons. Their timestamps and the camera's sender reports say when a picture was
//! captured, which nothing that comes out of a decoder does. Passwords are sent to the camera and to no other program. And a picture
//! waits for nothing: a coded one goes to the decoder with its last packet, and not with the first of the next.
//!
//! Always true: a picture comes once, at its own size, with the time of its capture; pictures that a decoder cannot keep up with
//! are left out up to the next key, so that none waits for long, and the age of the others is right all the same.

mod assemble;
mod datagrams;
mod jpeg;
mod matroska;
mod packet;
mod sdp;
mod session;

use std::{
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::AsyncWriteExt,
    process::ChildStdin,
    sync::mpsc::{self, error::TrySendError},
    task::JoinHandle,
    time::{Instant as Moment, sleep, sleep_until},
};

use tidegate_message::{FrameSize, Instant};

pub use self::session::RtspError;
pub(super) use self::session::any_certificate;
use self::{
    assemble::{Assembler, Unit},
    packet::{Packet, Received},
    sdp::Coding,
    session::Session,
};
use super::{
    Picture, SourceClock, SourceError,
    address::CameraAddress,
    ffmpeg::{Decoder, Ffmpeg, Shown},
    spec::NetworkOptions,
    timeline::{CaptureClock, SenderReport, Timeline},
};

/// A camera that says nothing at all for so long, although it was asked to, is gone.
const SILENT_MAX: Duration = Duration::from_secs(15);
/// How soon a silent camera is asked whether it is there.
const PROBE_AFTER: Duration = Duration::from_secs(5);
/// A camera of which no picture can be shown for so long is opened again, whatever it sends: none is meant to be that slow.
const PICTURELESS_MAX: Duration = Duration::from_secs(60);
/// How long others of a picture's packets may come behind one that has a marker, until that is known to be the last.
const MARKED_FOR: Duration = Duration::from_millis(50);
/// Longest wait for a picture that a decoder can begin with: then it is begun without one where there are none, else the camera is opened
/// again.
const KEY_MAX: Duration = Duration::from_secs(5);
/// Coded pictures that wait for the decoder; more are left out up to the next key.
const UNITS_MAX: usize = 64;
/// A coded picture that waits for longer is left out, with all up to the next key: the decoder has fallen behind, and later ones would
/// be as old.
const BEHIND_MAX: Duration = Duration::from_secs(3);
/// A decoder that takes nothing for so long hangs.
const DECODER_MAX: Duration = Duration::from_secs(10);
/// The offset of media times on their way through the decoder, which takes no negative ones.
const MEDIA_BASE: i64 = 3_600_000_000_000;

/// The pictures of one camera.
pub(super) struct Camera {
    place: String,
    coding: Coding,
    timeline: Arc<Mutex<Timeline>>,
    units: mpsc::Receiver<Result<Timed, SourceError>>,
    network: JoinHandle<()>,
    clock: SourceClock,
    behind: Behind,
    left_out: LeftOut,
    /// A unit that its decoder has not taken.
    held: Option<Timed>,
    decoding: Option<Decoding>,
    ffmpeg: &'static Ffmpeg,
    /// By which hardware its decoder decodes.
    hwaccel: Option<String>,
    /// [`PICTURELESS_MAX`].
    pictureless_max: Duration,
}

/// A coded picture with its media time.
struct Timed {
    unit: Unit,
    media: i64,
}

/// Leaves out pictures that are too old to be decoded, and those that cannot be decoded without them.
#[derive(Default)]
struct Behind {
    /// Set while pictures are left out: when a key is given up.
    until: Option<Moment>,
}

/// Counts the pictures that were left out because of what was lost, or came too late.
#[derive(Debug, Default)]
struct LeftOut {
    /// Up to now, since the last that was decoded.
    now: u64,
    /// Before one that was decoded: none follows for the same reason.
    untold: u64,
    all: u64,
}

impl LeftOut {
    /// Pictures are decoded again.
    fn is_over(&mut self) {
        self.untold += std::mem::take(&mut self.now);
    }

    /// The number of those that are to be told, and of all.
    fn tell(&mut self) -> Option<(u64, u64)> {
        let pictures = std::mem::take(&mut self.untold);
        self.all += pictures;
        (pictures > 0).then_some((pictures, self.all))
    }
}

/// Whether a coded picture is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Yes,
    No,
    /// No key comes: those that do refer to what was left out.
    KeyMissing,
}

impl Behind {
    /// Whether a unit that waited for so long is decoded.
    fn takes(&mut self, now: Moment, waited: Duration, is_key: bool) -> Takes {
        if waited > BEHIND_MAX {
            self.until = Some(now + KEY_MAX);
        } else if is_key {
            self.until = None;
        }
        match self.until {
            None => Takes::Yes,
            Some(until) if now < until => Takes::No,
            Some(_) => Takes::KeyMissing,
        }
    }
}

/// A running decoder.
struct Decoding {
    decoder: Decoder,
    /// None once no more is to be fed.
    feed: Option<mpsc::Sender<Timed>>,
    feeding: JoinHandle<()>,
    format: u32,
    /// Size of its first picture.
    size: Option<FrameSize>,
}

impl Decoding {
    /// Whether a picture is of another size than those before.
    fn resized(&mut self, size: Option<FrameSize>) -> bool {
        size.is_some_and(|size| *self.size.get_or_insert(size) != size)
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.feeding.abort();
    }
}

impl std::fmt::Debug for Camera {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Camera")
            .field("place", &self.place)
            .field("coding", &self.coding)
            .finish_non_exhaustive()
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.network.abort();
    }
}

impl Camera {
    /// Connects to a camera and has it play; captures are timed by `clock`.
    ///
    /// # Errors
    /// [`SourceError::Rtsp`].
    pub(super) async fn open(
        address: &CameraAddress,
        options: &NetworkOptions,
        clock: &SourceClock,
    ) -> Result<Self, SourceError> {
        let place = address.to_string();
        let (session, media) = Session::open(address, options.transport)
            .await
            .map_err(|source| failed(&place, source))?;
        let coding = media.coding;
        let timeline =
            Arc::new(Mutex::new(Timeline::new(media.clock_hertz, session.round_trip() / 2)));
        let (sender, units) = mpsc::channel(UNITS_MAX);
        let network = Network {
            place: place.clone(),
            session,
            assembler: Assembler::new(media),
            timeline: timeline.clone(),
            clock: clock.clone(),
            units: sender,
            silent_max: options.silent_max.unwrap_or(SILENT_MAX),
        };
        let network = tokio::spawn(network.run());
        Ok(Self {
            place,
            coding,
            timeline,
            units,
            network,
            clock: clock.clone(),
            behind: Behind::default(),
            left_out: LeftOut::default(),
            held: None,
            decoding: None,
            ffmpeg: Ffmpeg::installed(),
            hwaccel: options.hwaccel.clone(),
            pictureless_max: PICTURELESS_MAX,
        })
    }

    /// Its name in messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The next picture and when it was captured; `None` once the camera has ended its stream.
    pub(super) async fn next(&mut self) -> Result<Option<(Picture, Instant)>, SourceError> {
        enum Did {
            Came(Option<Result<Timed, SourceError>>),
            Shown(Result<Option<(Bytes, Shown)>, SourceError>),
            Fed,
            Hangs(Duration),
        }
        // From when it was asked: a picture that is not wanted is not waited for.
        let asked_at = Moment::now();
        // Behind the picture that followed them: frames come again.
        if let Some((pictures, all)) = self.left_out.tell() {
            return Err(SourceError::LeftOut { place: self.place.clone(), pictures, all });
        }
        loop {
            if self.held.is_some() && self.coding == Coding::Jpeg {
                let Timed { unit, media } = self.held.take().expect("looked at just now");
                return Ok(Some(self.picture(unit.bytes, media)));
            }
            self.choose_decoder().await?;
            let waits = self.held.is_some();
            let (decoder, feed) = match &mut self.decoding {
                Some(Decoding { decoder, feed, .. }) => (Some(decoder), feed.clone()),
                None => (None, None),
            };
            let did = tokio::select! {
                biased;
                shown = async {
                    match decoder {
                        Some(decoder) => decoder.next().await,
                        None => pending().await,
                    }
                } => Did::Shown(shown),
                room = async {
                    match &feed {
                        Some(feed) => feed.reserve().await,
                        None => pending().await,
                    }
                }, if waits => {
                    if let (Ok(room), Some(timed)) = (room, self.held.take()) {
                        room.send(timed);
                    }
                    Did::Fed
                }
                came = self.units.recv(), if !waits => Did::Came(came),
                () = sleep(DECODER_MAX), if waits => Did::Hangs(DECODER_MAX),
                () = sleep_until(asked_at + self.pictureless_max) => Did::Hangs(self.pictureless_max),
            };
            match did {
                Did::Fed => {}
                Did::Came(Some(Ok(timed))) => {
                    let waited = self.clock.now().since(timed.unit.arrived);
                    self.left_out.now += timed.unit.left_out;
                    match self.behind.takes(Moment::now(), waited, timed.unit.is_key) {
                        Takes::Yes => {
                            self.left_out.is_over();
                            self.held = Some(timed);
                        }
                        Takes::No => self.left_out.now += 1,
                        Takes::KeyMissing => {
                            let place = self.place.clone();
                            return Err(SourceError::KeyMissing { place, after: KEY_MAX });
                        }
                    }
                }
                Did::Came(Some(Err(error))) => return Err(error),
                Did::Came(None) => return Ok(None),
                Did::Shown(Ok(Some((jpeg, Shown { nanos, size })))) => {
                    let resized =
                        self.decoding.as_mut().is_some_and(|decoding| decoding.resized(size));
                    if resized {
                        // A decoder writes pictures of one size; later ones are for another, which a new connection brings.
                        return Err(SourceError::Ended { place: self.place.clone() });
                    }
                    let media = nanos.map(|nanos| nanos - MEDIA_BASE);
                    let newest = || self.timeline().newest();
                    let media = media.unwrap_or_else(newest);
                    return Ok(Some(self.picture(jpeg, media)));
                }
                // It has shown all that it was fed, and another format follows.
                Did::Shown(Ok(None))
                    if self.decoding.as_ref().is_some_and(|old| old.feed.is_none()) =>
                {
                    self.decoding = None;
                }
                Did::Shown(Ok(None)) => {
                    return Err(SourceError::Ended { place: self.place.clone() });
                }
                Did::Shown(Err(error)) => return Err(error),
                Did::Hangs(after) => {
                    let said = self.decoding.as_ref().map(|decoding| decoding.decoder.said());
                    return Err(SourceError::stalled(
                        &self.place,
                        after,
                        &said.unwrap_or_default(),
                    ));
                }
            }
        }
    }

    fn picture(&self, jpeg: Bytes, media: i64) -> (Picture, Instant) {
        // A rate that is still being found may put it into the future.
        let captured = self.timeline().captured(media).min(self.clock.now());
        (Picture { jpeg, truth: None }, captured)
    }

    /// By which clock its pictures are timed.
    pub(super) fn clock(&self) -> CaptureClock {
        self.timeline().clock()
    }

    fn timeline(&self) -> MutexGuard<'_, Timeline> {
        lock(&self.timeline)
    }

    /// Starts a decoder for a unit that has none; one for another format is first let end.
    async fn choose_decoder(&mut self) -> Result<(), SourceError> {
        let Some(timed) = &self.held else { return Ok(()) };
        match &mut self.decoding {
            Some(decoding) if decoding.format != timed.unit.format => decoding.feed = None,
            Some(_) => {}
            None => {
                let (decoder, input) =
                    Decoder::piped(self.ffmpeg, self.place.clone(), self.hwaccel.as_deref())
                        .await?;
                let (feed, units) = mpsc::channel(1);
                let feeding = tokio::spawn(fill(input, units, self.coding));
                let format = timed.unit.format;
                self.decoding =
                    Some(Decoding { decoder, feed: Some(feed), feeding, format, size: None });
            }
        }
        Ok(())
    }
}

/// When a camera is to be asked again whether it is there: in time for it, and soon after it has fallen silent.
fn probe_at(every: Duration, asked_at: Moment, heard_at: Moment, after: Duration) -> Moment {
    (asked_at + every).min(heard_at.max(asked_at) + after)
}

fn lock(timeline: &Mutex<Timeline>) -> MutexGuard<'_, Timeline> {
    timeline.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(place: &str, source: RtspError) -> SourceError {
    SourceError::Rtsp { place: place.to_owned(), source }
}

/// Writes units to a decoder until there are no more, or it takes none.
async fn fill(mut input: ChildStdin, mut units: mpsc::Receiver<Timed>, coding: Coding) {
    // A decoder that has gone says why by its exit.
    if input.write_all(&matroska::head(coding)).await.is_err() {
        return;
    }
    while let Some(Timed { unit, media }) = units.recv().await {
        let step = u64::try_from((media + MEDIA_BASE) / matroska::STEP_NANOS).unwrap_or(0);
        let before = matroska::before(step, unit.is_key, unit.bytes.len());
        if input.write_all(&before).await.is_err() || input.write_all(&unit.bytes).await.is_err() {
            return;
        }
    }
}

/// The side of the camera that reads from the network, whatever the decoder does.
struct Network {
    place: String,
    session: Session,
    assembler: Assembler,
    timeline: Arc<Mutex<Timeline>>,
    clock: SourceClock,
    units: mpsc::Sender<Result<Timed, SourceError>>,
    /// [`SILENT_MAX`], or what is set.
    silent_max: Duration,
}

impl Network {
    async fn run(mut self) {
        let Err(error) = self.receive().await else { return };
        // Waits for room: earlier pictures are still to be shown.
        let _ = self.units.send(Err(error)).await;
    }

    async fn receive(&mut self) -> Result<(), SourceError> {
        let every = self.session.alive_every();
        let (mut asked_at, mut heard_at) = (Moment::now(), Moment::now());
        let mut key_at = Some(Moment::now() + KEY_MAX);
        let mut marked_at = None;
        loop {
            if self.assembler.is_marked() {
                marked_at.get_or_insert_with(Moment::now);
            } else {
                marked_at = None;
            }
            let whole_at = marked_at.map(|at| at + MARKED_FOR);
            // Asked in time to answer before it counts as gone.
            let after = PROBE_AFTER.min(self.silent_max / 3);
            let probe_at = probe_at(every, asked_at, heard_at, after);
            let received = tokio::select! {
                received = self.session.receive() => Some(received.map_err(|error| match error {
                    RtspError::Closed => SourceError::Ended { place: self.place.clone() },
                    error => failed(&self.place, error),
                })?),
                () = sleep_until(probe_at) => None,
                () = sleep_until(whole_at.unwrap_or(probe_at)), if whole_at.is_some() => {
                    self.assembler.end_marked();
                    self.hand_on();
                    continue;
                }
                // The reader of the pictures is gone.
                () = self.units.closed() => return Ok(()),
            };
            let now = Moment::now();
            match received {
                None => {
                    self.session.keep_alive().await.map_err(|error| failed(&self.place, error))?;
                    asked_at = now;
                }
                Some(received) => {
                    // Where pictures come by UDP, that the camera answers says nothing of them.
                    if !(self.session.is_by_udp() && matches!(received, Received::Other)) {
                        heard_at = now;
                    }
                    match received {
                        Received::Pictures(bytes) => self.packet(bytes),
                        Received::Report(bytes) => self.report(&bytes),
                        Received::Other => {
                            lock(&self.timeline).way_is_at_most(self.session.round_trip() / 2);
                        }
                    }
                }
            }
            if now >= heard_at + self.silent_max {
                return Err(SourceError::stalled(&self.place, self.silent_max, ""));
            }
            if !self.assembler.waits() {
                key_at = None;
            } else if now >= *key_at.get_or_insert(now + KEY_MAX) {
                key_at = None;
                if !self.assembler.begin_anyway() && self.assembler.has_begun() {
                    let place = self.place.clone();
                    return Err(SourceError::KeyMissing { place, after: KEY_MAX });
                }
            }
        }
    }

    fn packet(&mut self, bytes: Bytes) {
        let Some(packet) = Packet::parse(bytes) else { return };
        self.assembler.take(self.clock.now(), &packet);
        self.hand_on();
    }

    /// Hands on the pictures that are whole.
    fn hand_on(&mut self) {
        while let Some(unit) = self.assembler.next() {
            let busy = unit.whole.since(unit.arrived);
            let media = lock(&self.timeline).arrived(unit.arrived, unit.timestamp, busy);
            match self.units.try_send(Ok(Timed { unit, media })) {
                Ok(()) => {}
                Err(TrySendError::Full(full)) => {
                    let left_out = full.map_or(0, |timed| timed.unit.left_out + 1);
                    self.assembler.skip_to_key(left_out);
                }
                Err(TrySendError::Closed(_)) => return,
            }
        }
    }

    fn report(&self, bytes: &[u8]) {
        if let Some(report) = SenderReport::find(bytes) {
            lock(&self.timeline).reported(self.clock.now(), SourceClock::wall(), report);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_load::camera::{self, Clip, Options};

    use super::*;
    use crate::source::ffmpeg::tests::made_up;

    #[test]
    fn a_camera_is_asked_in_time_and_again_once_it_is_silent() {
        let start = Moment::now();
        let at = |millis| start + Duration::from_millis(millis);
        for (every, asked, heard, expected) in [
            // A session that ends after a second is kept alive twice within it.
            (500, 0, 0, 500),
            (500, 500, 499, 1_000),
            (2_000, 2_000, 9_000, 4_000),
            (5_000, 0, 0, 5_000),
            (30_000, 0, 0, 5_000),
            (30_000, 0, 29_000, 30_000),
            // Not at once again: the answer takes its time.
            (30_000, 5_000, 0, 10_000),
        ] {
            let every = Duration::from_millis(every);
            let found = probe_at(every, at(asked), at(heard), PROBE_AFTER) - start;
            assert_eq!(found, Duration::from_millis(expected), "{every:?} {asked} {heard}");
        }
    }

    #[test]
    fn pictures_that_waited_too_long_are_left_out_up_to_the_next_key() {
        let (start, mut behind) = (Moment::now(), Behind::default());
        for (at, waited, is_key, expected) in [
            (0, 0, true, Takes::Yes),
            (1, 2_999, false, Takes::Yes),
            (2, 3_001, false, Takes::No),
            // It depends on the one before.
            (3, 2_000, false, Takes::No),
            // A key that is too old itself is followed by others that are.
            (4, 3_500, true, Takes::No),
            (5, 0, false, Takes::No),
            (6, 0, true, Takes::Yes),
            (7, 0, false, Takes::Yes),
            // A camera whose keys are far apart, or that sends none.
            (10, 4_000, false, Takes::No),
            (5_009, 0, false, Takes::No),
            (5_010, 0, false, Takes::KeyMissing),
            (5_011, 0, true, Takes::Yes),
        ] {
            let waited = Duration::from_millis(waited);
            let found = behind.takes(start + Duration::from_millis(at), waited, is_key);
            assert_eq!(found, expected, "{at}");
        }
    }

    #[test]
    fn pictures_that_are_left_out_are_counted_and_told_once_others_come() {
        let mut left_out = LeftOut { now: 2, ..LeftOut::default() };
        assert_eq!(left_out.tell(), None, "more may be");
        left_out.is_over();
        assert_eq!((left_out.tell(), left_out.tell()), (Some((2, 2)), None));
        left_out.now = 1;
        left_out.is_over();
        left_out.is_over();
        assert_eq!((left_out.tell(), left_out.tell()), (Some((1, 3)), None));
    }

    /// A camera whose packets come, and of which nothing can be shown.
    #[tokio::test]
    async fn a_decoder_that_shows_nothing_is_said_to_with_its_last_words() {
        let clip = match Clip::make(camera::Coding::H264, 25.0, 100) {
            Ok(clip) => clip,
            Err(error) => {
                eprintln!("skipped: no camera can be made here ({error}); run scripts/setup");
                return;
            }
        };
        let camera = camera::Camera::start(clip, Options::default()).unwrap();
        let address = CameraAddress::parse(&format!("rtsp://{}/live", camera.address())).unwrap();
        let (_folder, ffmpeg) = made_up(
            "[ \"$2\" = -h ] && exit 0\necho '[error] no such profile' >&2\nexec cat >/dev/null\n",
        );
        let mut source = Camera::open(&address, &NetworkOptions::default(), &SourceClock::start())
            .await
            .unwrap();
        source.ffmpeg = Box::leak(Box::new(ffmpeg));
        source.pictureless_max = Duration::from_millis(1_500);
        let error = tokio::time::timeout(Duration::from_secs(30), source.next()).await;
        let error = error.expect("it is given up").unwrap_err();
        assert!(error.is_final(), "the camera is opened again");
        let error = error.to_string();
        for part in ["gave no image for 1 s", "(ffmpeg says: [error] no such profile)"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
