//! A video file: its pictures, each once, each at its own size, in slots of the wanted rate.
//!
//! A file has no fixed rate: phones and cameras save pictures as they come. Each picture has its slot, the one that its time in the
//! file falls into; a slot of which the file has no picture stays empty, and one of which it has several gets the first.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tidegate_message::FrameSize;

use super::{
    Picture, Rate, SourceError,
    ffmpeg::{self, Decoder, Shown},
};

/// A pause in a file that is longer is left out.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The pictures of a file.
#[derive(Debug)]
pub(super) struct Video {
    path: PathBuf,
    rate: Rate,
    repeat: bool,
    decoder: Decoder,
    /// Size of the decoder's first picture: it scales all others to it.
    size: Option<FrameSize>,
    /// The file has pictures of several sizes: it is played again by us, not by the decoder.
    is_mixed: bool,
    /// Whether the decoder has given a picture.
    is_begun: bool,
    /// Decoders that were started for what follows.
    restarts: u64,
    /// The slot that is asked for next, and what is taken from those of the file.
    next_slot: i64,
    shift: Option<i64>,
    held: Option<(i64, Picture)>,
}

impl Video {
    /// Plays a file whose own rate is `own`, at most `rate` pictures a second of the file's time.
    pub(super) async fn open(path: &Path, rate: Rate, repeat: bool) -> Result<Self, SourceError> {
        let decoder = ffmpeg::play_video(path, rate, Duration::ZERO, repeat).await?;
        Ok(Self {
            path: path.to_owned(),
            rate,
            repeat,
            decoder,
            size: None,
            is_mixed: false,
            is_begun: false,
            restarts: 0,
            next_slot: 0,
            shift: None,
            held: None,
        })
    }

    pub(super) fn place(&self) -> &str {
        self.decoder.place()
    }

    /// The picture of the next slot, if any; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Option<Picture>>, SourceError> {
        if self.held.is_none() {
            self.held = self.decoded().await?;
        }
        let Some((slot, _)) = &self.held else { return Ok(None) };
        let due = *slot <= self.next_slot;
        self.next_slot += 1;
        Ok(Some(self.held.take_if(|_| due).map(|(_, picture)| picture)))
    }

    /// Leaves out the pictures of `slots` slots, or as many as come without another decoder: waiting for one would be late again.
    pub(super) async fn skip(&mut self, slots: u64) {
        let restarts = self.restarts;
        for _ in 0..slots {
            match self.next().await {
                Err(error) if error.is_final() => return,
                Ok(None) => return,
                _ if self.restarts != restarts => return,
                _ => {}
            }
        }
    }

    /// The next picture and its slot.
    async fn decoded(&mut self) -> Result<Option<(i64, Picture)>, SourceError> {
        loop {
            let Some((jpeg, Shown { nanos, size })) = self.decoder.next().await? else {
                if !(self.repeat && self.is_mixed) {
                    return Ok(None);
                }
                if !self.is_begun {
                    return Err(SourceError::Empty { path: self.path.clone(), wanted: "video" });
                }
                self.restart(Duration::ZERO).await?;
                self.shift = None;
                continue;
            };
            if size.is_some_and(|size| *self.size.get_or_insert(size) != size) {
                // This one was scaled. A decoder that begins with it gives it as it is.
                let Some(from) = nanos.and_then(|nanos| u64::try_from(nanos).ok()) else {
                    return Err(SourceError::Ended { place: self.place().to_owned() });
                };
                self.is_mixed = true;
                self.restart(Duration::from_nanos(from)).await?;
                continue;
            }
            self.is_begun = true;
            return Ok(Some((self.slot(nanos), Picture { jpeg, truth: None })));
        }
    }

    async fn restart(&mut self, from: Duration) -> Result<(), SourceError> {
        self.decoder = ffmpeg::play_video(&self.path, self.rate, from, false).await?;
        (self.size, self.is_begun) = (None, false);
        self.restarts += 1;
        Ok(())
    }

    /// The slot of a picture with that time in the file.
    fn slot(&mut self, nanos: Option<i64>) -> i64 {
        let Some(nanos) = nanos else { return self.next_slot };
        let slot =
            (nanos as f64 / 1e9 * self.rate.per_second() + ffmpeg::SLOT_BEGINS).floor() as i64;
        let shift = self.shift.get_or_insert(slot - self.next_slot);
        let pause_max = (PAUSE_MAX.as_secs_f64() * self.rate.per_second()).ceil() as i64;
        if slot - *shift > self.next_slot + pause_max {
            *shift = slot - self.next_slot;
        }
        slot - *shift
    }
}
