//! `[camera.NAME]`.

use std::{path::PathBuf, time::Duration};

use tidegate_message::Confidential;

use super::seconds;
use crate::words::RtspTransport;

section! {
    /// `[camera.NAME]`: a camera that this node runs itself, without a process or a certificate of its own; see the chapter on sources.
    CameraSection {
        /// Where its frames come from, as for `tidegate camera --source`: `rtsp://USER@HOST/PATH`, `http://HOST/PATH`, `folder:DIR`, `video:FILE` and others. A
        /// relative path begins at the folder of the file that names it. An address has no password: `password_file` names it.
        source: Confidential = Confidential::default()
            => "where frames come from, such as rtsp://USER@HOST/PATH, folder:DIR or video:FILE" if |it, _| !it.source.is_empty(),
        /// Where the frames of its substream come from: the same picture, smaller, which most network cameras have under a second address. The node runs it as a second
        /// camera called `NAME-sub`, with the other settings of this section, its password included. Default none.
        substream: Option<Confidential> = None
            => "where frames come from, such as rtsp://USER@HOST/PATH" if |it, _| it.substream.as_ref().is_none_or(|source| !source.is_empty()),
        /// File whose first line is the camera's password, or USER:PASSWORD where its address names no user. Default none.
        password_file: Option<PathBuf> = None,
        /// Frames a second, 0.1 to 240: the pace of a recording and of single pictures by HTTP, and as many as are taken at most of a network camera, the others of which
        /// are left out evenly. Default none: as `source` says, or as they come.
        fps: Option<f64> = None
            => "from 0.1 to 240" if |it, _| it.fps.is_none_or(|fps| (0.1..=240.0).contains(&fps)),
        /// How the packets of an rtsp:// camera come: `tcp`, over the connection by which it is asked, or `udp`, to ports of this machine, for cameras that know no other or are
        /// slow with it; what is lost is then lost. Default `tcp`.
        transport: RtspTransport = RtspTransport::Tcp,
        /// How long a network camera may say nothing until it is opened again. Default none: 15 s.
        timeout: Option<Duration> = None
            => "from 1s to 10min" if |it, _| it.timeout.is_none_or(|timeout| (seconds(1)..=seconds(600)).contains(&timeout)),
        /// Hardware that decodes the pictures of an rtsp:// camera, by ffmpeg's name for it: `auto`, `vaapi`, `cuda` and others, which `ffmpeg -hwaccels` lists. Default none.
        hwaccel: Option<String> = None
            => "a name of ffmpeg's, such as auto, vaapi or cuda" if |it, _| it.hwaccel.as_ref().is_none_or(|name| is_name(name)),
        /// After how long a picture that stays the same, to the last pixel, is taken for that of a frozen camera: it is then neither kept nor sent, and subscribers
        /// are told, until another comes. 0 is never; default 0. Not for pictures that may stay the same, such as those of a program or of a loop of one picture.
        frozen_after: Duration = seconds(0)
            => "0, or from 5s to 1d" if |it, _| it.frozen_after.is_zero() || (seconds(5)..=seconds(86_400)).contains(&it.frozen_after),
        /// Whether it runs. Default true.
        enabled: bool = true,
    }
}

impl CameraSection {
    /// The name of the camera that is the substream of the camera called `name`.
    pub fn substream_of(name: &str) -> String {
        format!("{name}-sub")
    }
}

/// Whether it is one of ffmpeg's names of hardware, and no option.
fn is_name(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}
