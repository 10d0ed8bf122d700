//! `[detect.NAME]`.

use std::{path::PathBuf, time::Duration};

use tidegate_message::{Bounds, Confidential, FrameRate, command};

use super::{millis, seconds};
use crate::{ByteCount, words::OriginalRule};

section! {
    /// `[detect.NAME]`: a detector that looks at live frames; see the chapter on live detection.
    DetectSection {
        /// Its cameras, separated by commas; `*` stands for any letters, alone for all cameras.
        cameras: String = String::new()
            => "names of cameras, separated by commas, such as cam1, yard-*" if |it, _| !it.cameras.trim().is_empty(),
        /// The model of the pool of `[workers]`: `face`, `person`, `recognize`, or one of yours. Default none: the first of the program.
        model: Option<String> = None,
        /// A program of yours that speaks the detector protocol, with its arguments, for this detector alone. Default none: the pool.
        command: Option<Confidential> = None
            => "a program and its arguments, every quote closed"
                if |it, _| it.command.as_ref().is_none_or(|text| command::split(text.expose()).is_some()),
        /// Longest time from the capture of a frame to its detection, `2ms` to `60s`; the detector's part is measured, and the frame has the
        /// rest. Default `500ms`.
        latency: Duration = millis(500)
            => "from 2ms to 60s" if |it, _| (millis(2)..=Bounds::LATENCY_MAX).contains(&it.latency),
        /// Least accuracy of the detector on frames as they arrive, as a fraction of that on the originals. Default 0.9.
        accuracy: f64 = 0.9
            => "from 0 to 1" if |it, _| (0.0..=1.0).contains(&it.accuracy),
        /// Most frames a second, 0.01 to 1000. Default none: as many as the camera makes, of which the newest is looked at.
        fps: Option<f64> = None
            => "from 0.01 to 1000" if |it, _| it.fps.is_none_or(|fps| FrameRate::new(fps).is_ok()),
        /// Topic of its messages; `{camera}` and `{detector}` stand for the two names. Default `detections/{camera}/{detector}`.
        topic: String = "detections/{camera}/{detector}".to_owned(),
        /// Quality of service of its messages, 0 or 1. Default 0.
        qos: u32 = 0
            => "0 or 1" if |it, _| it.qos <= 1,
        /// Lowest score that is reported, on the detector's own scale. Default 0: all.
        min_score: f64 = 0.0,
        /// The labels that are reported, separated by commas. Default none: all.
        labels: Option<String> = None,
        /// Whether the untouched frame of a detection that found something is fetched: `never` or `on-detection`. Default `never`.
        original: OriginalRule = OriginalRule::Never,
        /// From one such frame of a camera to the next at least. Default `1s`.
        original_every: Duration = seconds(1),
        /// Folder in which they are kept. A relative path begins at the folder of the file that names it. Default none: they are published, to the topic with
        /// `/original` behind it.
        original_dir: Option<PathBuf> = None,
        /// Bytes of that folder at most, from `1MiB`; the oldest frames go first. Default `1GiB`.
        original_bytes: ByteCount = ByteCount(1 << 30)
            => "1MiB at least" if |it, _| it.original_bytes.0 >= 1 << 20,
        /// Prefix of Home Assistant's discovery, `true` for its default `homeassistant`, `false` for none. Default `false`.
        home_assistant: String = "false".to_owned()
            => "true, false, or a topic without + and #" if |it, _| it.prefix().is_ok(),
        /// Whether it runs. Default true.
        enabled: bool = true,
    }
}

impl DetectSection {
    /// The prefix of Home Assistant's discovery; none if there is none.
    ///
    /// # Errors
    /// It is no topic.
    pub fn prefix(&self) -> Result<Option<&str>, tidegate_message::TopicError> {
        match &*self.home_assistant {
            "false" | "" => Ok(None),
            "true" => Ok(Some("homeassistant")),
            prefix => tidegate_message::check_topic_name(prefix, usize::MAX).map(|()| Some(prefix)),
        }
    }
}
