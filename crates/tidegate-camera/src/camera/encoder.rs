//! The encoder of one camera: one thread, one transcoder, reused buffers.
//!
//! ```text
//!  engine ──Work──▶ bounded queue ──▶ thread: Coverer, Transcoder ──Done──▶ engine
//! ```
//!
//! Always true: the queue holds at most [`WORK_MAX`] pieces, more than all transfers of a camera ask for at once; private parts come covered to the transcoder, or
//! not at all; output buffers return to the pool when the link has let them go, so that a warmed-up encoder allocates no frame-sized memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
};

use bytes::Bytes;
use tidegate_frame::{
    engine::{Done, Job, Outcome},
    knob::{Applied, FrameError, FrameLimits, Transcoder, TransferState},
};
use tidegate_message::Instant;
use tidegate_process::clock;
use tidegate_wire::{Original, OriginalOutcome, TransferId};
use tokio::{runtime::Handle, sync::mpsc as async_mpsc};

use super::{Privacy, privacy::Coverer};

/// Pieces of work that may wait.
const WORK_MAX: usize = 256;
/// Buffers kept for reuse; a transfer has at most a few frames on their way.
const POOL_MAX: usize = 16;

enum Work {
    Encode(Job),
    Original(Original, Bytes),
    Sent(TransferId),
    Lost(TransferId),
    Forget(TransferId),
}

/// A result of the thread.
#[derive(Debug)]
pub(super) enum Finished {
    /// A job.
    Frame(Done),
    /// An original is covered.
    Original(Original, Bytes),
}

/// The encoder's thread; ends when this is dropped.
pub(super) struct Encoder {
    work: Option<mpsc::SyncSender<Work>>,
    thread: Option<JoinHandle<()>>,
}

/// The encoder is behind or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the encoder has {WORK_MAX} frames waiting, or has ended")]
pub(super) struct Busy;

impl Encoder {
    /// Starts the thread, which covers each frame by `privacy`; its results come out of the receiver.
    pub(super) fn start(
        limits: FrameLimits,
        privacy: Privacy,
    ) -> std::io::Result<(Self, async_mpsc::Receiver<Finished>)> {
        let coverer = Coverer::new(limits, privacy, Handle::current());
        let (work, jobs) = mpsc::sync_channel(WORK_MAX);
        // As many as there can be jobs: the thread never waits for the engine.
        let (done, results) = async_mpsc::channel(WORK_MAX);
        let thread = std::thread::Builder::new()
            .name("tidegate-encode".into())
            .spawn(move || run(limits, coverer, &jobs, &done))?;
        Ok((Self { work: Some(work), thread: Some(thread) }, results))
    }

    fn give(&self, work: Work) -> Result<(), Busy> {
        let sender = self.work.as_ref().expect("only drop takes the sender");
        sender.try_send(work).map_err(|_| Busy)
    }

    /// Takes up a frame.
    ///
    /// # Errors
    /// [`Busy`].
    pub(super) fn encode(&self, job: Job) -> Result<(), Busy> {
        self.give(Work::Encode(job))
    }

    /// Covers an original.
    ///
    /// # Errors
    /// [`Busy`].
    pub(super) fn cover(&self, original: Original, jpeg: Bytes) -> Result<(), Busy> {
        self.give(Work::Original(original, jpeg))
    }

    /// Says that the frame last encoded for a transfer was sent: differencing compares with it from now on.
    pub(super) fn sent(&self, transfer: TransferId) {
        // There is room: the queue holds more than all transfers have at once.
        let _ = self.give(Work::Sent(transfer));
    }

    /// Says that the frame last sent for a transfer did not arrive: differencing compares with none.
    pub(super) fn lost(&self, transfer: TransferId) {
        // A lost hint: the engine gives up a frame that is found unchanged against a picture that was not delivered.
        let _ = self.give(Work::Lost(transfer));
    }

    /// Forgets what a transfer has sent.
    pub(super) fn forget(&self, transfer: TransferId) {
        let _ = self.give(Work::Forget(transfer));
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the encoder thread panicked");
        }
    }
}

fn run(
    limits: FrameLimits,
    coverer: Coverer,
    jobs: &mpsc::Receiver<Work>,
    done: &async_mpsc::Sender<Finished>,
) {
    let mut covered = Covered { coverer, last: None };
    let mut transcoder = Transcoder::new(limits);
    let mut states: HashMap<TransferId, TransferState> = HashMap::new();
    let pool = Pool::default();
    while let Ok(work) = jobs.recv() {
        match work {
            Work::Sent(transfer) => {
                if let Some(state) = states.get_mut(&transfer) {
                    state.sent();
                }
            }
            Work::Lost(transfer) => {
                if let Some(state) = states.get_mut(&transfer) {
                    state.lost();
                }
            }
            Work::Forget(transfer) => {
                states.remove(&transfer);
            }
            Work::Encode(job) => {
                let state = states.entry(job.transfer).or_default();
                let started = clock::now();
                let damaged = transcoder.damaged();
                let mut out = pool.take();
                let applied = covered
                    .of(job.frame, &job.jpeg, &pool)
                    .and_then(|jpeg| transcoder.apply_for(state, &jpeg, &job.setting, &mut out));
                let outcome = match applied {
                    Ok(Applied::Encoded { size }) => {
                        Ok(Outcome::Encoded { body: pool.share(out), size })
                    }
                    Ok(Applied::Unchanged { changed }) => {
                        pool.give_back(out);
                        Ok(Outcome::Unchanged { changed })
                    }
                    Err(error) => {
                        pool.give_back(out);
                        Err(error)
                    }
                };
                let Job { transfer, frame, .. } = job;
                warn_of_damage(damaged, transcoder.damaged(), frame);
                let ended = clock::now();
                let frame = Done { transfer, frame, started, ended, outcome };
                if done.blocking_send(Finished::Frame(frame)).is_err() {
                    return;
                }
            }
            Work::Original(original, jpeg) => {
                let body = match covered.of(original.at, &jpeg, &pool) {
                    Ok(body) => body,
                    Err(error) => {
                        tracing::warn!(at = %original.at, %error, "the privacy regions of an original cannot be covered, and it is not sent");
                        continue;
                    }
                };
                let outcome = OriginalOutcome::Found { bytes: body.len() as u64 };
                let original = Original { outcome, ..original };
                if done.blocking_send(Finished::Original(original, body)).is_err() {
                    return;
                }
            }
        }
    }
}

/// Says that a frame was read in part: of the first such, the second, the fourth and so on, so that a camera whose every frame is
/// damaged does not fill the log.
fn warn_of_damage(before: u64, damaged: u64, frame: Instant) {
    if damaged > before && damaged.is_power_of_two() {
        tracing::warn!(%frame, damaged, "the picture data of a frame is wrong or missing in part; the readable part of it is sent");
    }
}

/// Frames that are covered. The last one is kept: the transfers of a camera ask for the same frame.
struct Covered {
    coverer: Coverer,
    last: Option<(Instant, Bytes)>,
}

impl Covered {
    fn of(&mut self, at: Instant, jpeg: &Bytes, pool: &Pool) -> Result<Bytes, FrameError> {
        if !self.coverer.covers() {
            return Ok(jpeg.clone());
        }
        if let Some((frame, jpeg)) = &self.last
            && *frame == at
        {
            return Ok(jpeg.clone());
        }
        let mut out = pool.take();
        if let Err(error) = self.coverer.cover(at, jpeg, &mut out) {
            pool.give_back(out);
            return Err(error);
        }
        let jpeg = pool.share(out);
        self.last = Some((at, jpeg.clone()));
        Ok(jpeg)
    }
}

/// Buffers that come back when the last clone of what they held is dropped.
#[derive(Clone, Default)]
struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

struct Pooled {
    buffer: Vec<u8>,
    pool: Pool,
}

impl Pool {
    fn take(&self) -> Vec<u8> {
        self.0.lock().expect("no panic while a buffer moves").pop().unwrap_or_default()
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut free = self.0.lock().expect("no panic while a buffer moves");
        if free.len() < POOL_MAX {
            free.push(buffer);
        }
    }

    fn share(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Pooled { buffer, pool: self.clone() })
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_with_their_capacity() {
        let pool = Pool::default();
        let mut buffer = pool.take();
        buffer.extend_from_slice(&[1; 1000]);
        let (address, shared) = (buffer.as_ptr(), pool.share(buffer));
        let clone = shared.clone();
        drop(shared);
        assert!(pool.take().is_empty(), "still held by the clone");
        drop(clone);
        let again = pool.take();
        assert_eq!(again.as_ptr(), address);
        assert!(again.is_empty() && again.capacity() >= 1000);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_frame_that_is_no_jpeg_is_refused_and_the_next_job_served() {
        let (encoder, mut results) =
            Encoder::start(FrameLimits::default(), Privacy::default()).unwrap();
        for frame in 1..=2 {
            let job = Job {
                transfer: TransferId(1),
                frame: Instant::from_nanos(frame),
                jpeg: Bytes::from_static(b"no jpeg"),
                setting: "q50".parse().unwrap(),
            };
            encoder.encode(job).unwrap();
            let Some(Finished::Frame(done)) = results.recv().await else { panic!("a job is done") };
            assert_eq!(done.frame, Instant::from_nanos(frame));
            assert_eq!(done.outcome.unwrap_err(), FrameError::NotJpeg);
        }
    }
}
