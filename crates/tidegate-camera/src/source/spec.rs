//! The description of a source on the command line and in configuration: `KIND:PLACE?option=value&…`.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

pub use tidegate_message::words::RtspTransport;
use tidegate_message::{
    FrameSize,
    confidential::{PLACES, without_secrets},
};
use zeroize::Zeroizing;

use super::{
    SourceError,
    address::{self, CameraAddress},
};

/// A checked source description. [`SourceSpec::parse`] reads it, its `Display` writes it, but for what may be secret in an address.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceSpec {
    /// `folder:DIR?fps=5&loop=1&prepare=1`: the JPEG files of a folder, by name.
    Folder {
        /// The folder.
        path: PathBuf,
        /// How many a second.
        rate: Rate,
        /// Start again after the last.
        repeat: bool,
        /// Read all files before the first frame.
        prepare: bool,
    },
    /// `watch:DIR?delete=1&old=1&fps=5`: the JPEG files that arrive in a folder and in those below, oldest first.
    Watch {
        /// The folder.
        path: PathBuf,
        /// Delete each file once it was taken.
        delete: bool,
        /// Take the files that are there already, too.
        old: bool,
        /// How many a second are taken at most; `None` takes all.
        rate: Option<Rate>,
    },
    /// `mjpeg:-`, `mjpeg:PATH?fps=5&loop=1`: JPEG images one after another, from standard input, a named pipe or a file.
    Mjpeg {
        /// Where the bytes come from; `None` is standard input.
        path: Option<PathBuf>,
        /// How many a second. A pipe without it gives frames as they come; a file without it plays at [`Rate::DEFAULT`].
        rate: Option<Rate>,
        /// Start again after the last; for files only.
        repeat: bool,
        /// Largest image that is accepted, in bytes.
        frame_bytes_max: usize,
    },
    /// `video:FILE?fps=10&loop=1&prepare=1`: a video file, through ffmpeg.
    Video {
        /// The file.
        path: PathBuf,
        /// How many a second; `None` is the file's own rate. At or below the file's own rate pictures are left out and time
        /// passes as in the file; above it the file plays faster.
        rate: Option<Rate>,
        /// Start again at the end.
        repeat: bool,
        /// Convert the whole file before the first frame, so that playing costs nothing.
        prepare: bool,
    },
    /// `rtsp://HOST/PATH`: a network camera, over TCP.
    Rtsp {
        /// The address, with its login.
        address: CameraAddress,
        /// How many a second are taken at most; `None` takes all. Not part of the description, whose options are the camera's.
        rate: Option<Rate>,
        /// How it is asked. Not part of the description either.
        options: NetworkOptions,
    },
    /// `http://HOST/PATH`, `https://HOST/PATH`: a network camera, by a stream of JPEG images or an image for each request.
    Http {
        /// The address, with its login.
        address: CameraAddress,
        /// The pace of single images, and how many of a stream are taken at most; `None` is one a second, and all. Not part of the
        /// description, whose options are the camera's.
        rate: Option<Rate>,
        /// How it is asked. Not part of the description either.
        options: NetworkOptions,
    },
    /// `v4l2:/dev/video0?size=1280x720&fps=15&copy=1`: a local camera, through ffmpeg.
    V4l2 {
        /// The device.
        device: PathBuf,
        /// Size to ask the camera for.
        size: Option<FrameSize>,
        /// Rate to ask the camera for.
        rate: Option<Rate>,
        /// Ask the camera for JPEG and pass its images on untouched.
        copy: bool,
    },
    /// `scene:street?size=1920x1080&fps=15&people=8&cars=2&seconds=10&seed=1&quality=95&loop=1`: a street that we draw, with
    /// known boxes.
    Scene {
        /// The scene to draw.
        scene: SceneSpec,
        /// How many a second.
        rate: Rate,
        /// Start again after the last frame; the motion has no seam.
        repeat: bool,
    },
}

/// How a network camera is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkOptions {
    /// How the packets of RTSP come.
    pub transport: RtspTransport,
    /// How long the camera may say nothing until it is opened again; `None` is 15 s.
    pub silent_max: Option<Duration>,
    /// The hardware that decodes what comes by RTSP, by ffmpeg's name for it; `None` is none.
    pub hwaccel: Option<String>,
}

/// The content of the generated street.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SceneSpec {
    /// Size of each frame, 320x180 to 3840x2160; default 1920x1080.
    pub size: FrameSize,
    /// How many people walk, 0 to 40; default 8.
    pub people: u16,
    /// How many cars drive, 0 to 6; default 2.
    pub cars: u16,
    /// Length of the loop in seconds, 1 to 60; default 10.
    pub seconds: u16,
    /// Everything random follows from it; default 1.
    pub seed: u64,
    /// JPEG quality, 1 to 100; default 95.
    pub quality: u8,
}

impl SceneSpec {
    /// Smallest frame.
    pub const SIZE_MIN: FrameSize = FrameSize { width: 320, height: 180 };
    /// Largest frame.
    pub const SIZE_MAX: FrameSize = FrameSize { width: 3840, height: 2160 };
    /// Most people.
    pub const PEOPLE_MAX: u16 = 40;
    /// Most cars.
    pub const CARS_MAX: u16 = 6;
    /// Longest loop, in seconds.
    pub const SECONDS_MAX: u16 = 60;
}

impl Default for SceneSpec {
    fn default() -> Self {
        Self {
            size: FrameSize { width: 1920, height: 1080 },
            people: 8,
            cars: 2,
            seconds: 10,
            seed: 1,
            quality: 95,
        }
    }
}

/// Frames per second, in thousandths: 0.1 to 240.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    millihertz: u32,
}

impl Rate {
    /// Five frames a second, the rate of the Mez paper's experiments (section 5).
    pub const DEFAULT: Self = Self { millihertz: 5_000 };
    const MILLIHERTZ_MIN: u32 = 100;
    const MILLIHERTZ_MAX: u32 = 240_000;

    /// `per_second` frames a second, kept to a thousandth; `None` outside 0.1 to 240.
    pub fn new(per_second: f64) -> Option<Self> {
        let millihertz = (per_second * 1e3).round();
        let range = f64::from(Self::MILLIHERTZ_MIN)..=f64::from(Self::MILLIHERTZ_MAX);
        range.contains(&millihertz).then_some(Self { millihertz: millihertz as u32 })
    }

    /// Frames per 1000 seconds.
    pub const fn millihertz(self) -> u32 {
        self.millihertz
    }

    /// Frames per second.
    pub fn per_second(self) -> f64 {
        f64::from(self.millihertz) / 1e3
    }

    /// Time between frames, rounded down to a nanosecond.
    pub fn period(self) -> Duration {
        Duration::from_nanos(1_000_000_000_000 / u64::from(self.millihertz))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.per_second())
    }
}

impl SourceSpec {
    /// Largest JPEG image of an MJPEG stream unless the description says otherwise, in bytes.
    pub const FRAME_BYTES_MAX: usize = 16 << 20;

    /// Reads a description. A path without a kind is a folder if it is one, else a video file.
    ///
    /// # Errors
    /// [`SourceError::Spec`] names the part that is wrong and what may stand there.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        let wrong = |reason: SpecReason| SourceError::Spec { spec: shown(text), reason };
        if address::is_address(text) {
            let address = CameraAddress::parse(text).ok_or_else(|| wrong(SpecReason::Address))?;
            let options = NetworkOptions::default();
            return Ok(match address.is_http() {
                true => Self::Http { address, rate: None, options },
                false => Self::Rtsp { address, rate: None, options },
            });
        }
        // A machine of the network alone is no file, unless there is one of that name.
        let machine = text.split(['/', ':', '?']).next().unwrap_or_default();
        if (machine.parse::<IpAddr>().is_ok() || text.parse::<IpAddr>().is_ok())
            && !Path::new(text).exists()
        {
            return Err(wrong(SpecReason::Address));
        }
        let (kind, rest) = match text.split_once(':') {
            Some(pair) => pair,
            None if text.is_empty() => return Err(wrong(SpecReason::Empty)),
            None if PathBuf::from(text).is_dir() => ("folder", text),
            None => ("video", text),
        };
        // `video:rtsp://…` is no file, and what looks like a kind may be a user before a password.
        if rest.contains("://")
            || (!PLACES.contains(&kind) && !rest.starts_with("//") && rest.contains('@'))
        {
            return Err(wrong(SpecReason::Address));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Options::parse(query).map_err(wrong)?;
        if place.is_empty() {
            return Err(wrong(SpecReason::NoPlace));
        }
        let spec = Self::of_kind(kind, place, &mut options).map_err(wrong)?;
        options.finish().map_err(wrong)?;
        Ok(spec)
    }

    /// The same source with that password, or `USER:PASSWORD` if its address names no user; only an address has one.
    pub fn with_password(self, password: &str) -> Self {
        match self {
            Self::Rtsp { address, rate, options } => {
                Self::Rtsp { address: address.with_password(password), rate, options }
            }
            Self::Http { address, rate, options } => {
                Self::Http { address: address.with_password(password), rate, options }
            }
            other => other,
        }
    }

    /// Whether it can have a password: whether it is an address.
    pub const fn takes_password(&self) -> bool {
        matches!(self, Self::Rtsp { .. } | Self::Http { .. })
    }

    /// Whether its address has a password in it.
    pub fn has_password(&self) -> bool {
        match self {
            Self::Rtsp { address, .. } | Self::Http { address, .. } => address.has_password(),
            _ => false,
        }
    }

    /// Its description as a configuration may have it, with a user and without a password, and that password as the first line of a file
    /// has it; none if it has none.
    pub fn parted(&self) -> (String, Option<Zeroizing<String>>) {
        match self {
            Self::Rtsp { address, .. } | Self::Http { address, .. } => address.parted(),
            other => (other.to_string(), None),
        }
    }

    /// The same source at so many frames a second: its pace, or of a network camera as many as are taken at most.
    pub fn with_rate(mut self, new: Rate) -> Self {
        match &mut self {
            Self::Folder { rate, .. } | Self::Scene { rate, .. } => *rate = new,
            Self::Mjpeg { rate, .. }
            | Self::Video { rate, .. }
            | Self::Rtsp { rate, .. }
            | Self::Http { rate, .. }
            | Self::Watch { rate, .. }
            | Self::V4l2 { rate, .. } => *rate = Some(new),
        }
        self
    }

    /// The same source with the login of another one, where both are network cameras and the other has one; a user in its own address
    /// stays.
    pub fn with_login_of(mut self, other: &Self) -> Self {
        if let Self::Rtsp { address, .. } | Self::Http { address, .. } = &mut self
            && let Self::Rtsp { address: other, .. } | Self::Http { address: other, .. } = other
        {
            address.take_login_of(other);
        }
        self
    }

    /// The same source asked in that way, as far as it is one that can be: only a network camera is, and only one by RTSP has packets and
    /// pictures that are decoded.
    pub fn with_options(mut self, new: NetworkOptions) -> Self {
        match &mut self {
            Self::Rtsp { options, .. } => *options = new,
            Self::Http { options, .. } => {
                *options =
                    NetworkOptions { silent_max: new.silent_max, ..NetworkOptions::default() };
            }
            _ => {}
        }
        self
    }

    /// Whether it is a camera that is asked by RTSP, and whether that is encrypted.
    pub const fn rtsp(&self) -> Option<bool> {
        match self {
            Self::Rtsp { address, .. } => Some(address.is_tls()),
            _ => None,
        }
    }

    /// The same source, a relative path of which begins at `folder`.
    pub fn beginning_at(mut self, folder: &Path) -> Self {
        match &mut self {
            Self::Folder { path, .. }
            | Self::Watch { path, .. }
            | Self::Mjpeg { path: Some(path), .. }
            | Self::Video { path, .. } => *path = folder.join(&path),
            _ => {}
        }
        self
    }

    /// As many frames a second as are taken at most of a camera that sets its own pace.
    pub(super) const fn rate_max(&self) -> Option<Rate> {
        match self {
            Self::Rtsp { rate, .. } | Self::Http { rate, .. } | Self::Watch { rate, .. } => *rate,
            _ => None,
        }
    }

    /// The same source for a trial, which takes nothing from it: the files of a watched folder stay.
    pub fn for_trial(&self) -> Self {
        let mut spec = self.clone();
        if let Self::Watch { delete, .. } = &mut spec {
            *delete = false;
        }
        spec
    }

    /// The same source for a trial, and without its loop.
    pub(super) fn once(&self) -> Self {
        let mut spec = self.for_trial();
        match &mut spec {
            Self::Folder { repeat, .. }
            | Self::Mjpeg { repeat, .. }
            | Self::Video { repeat, .. }
            | Self::Scene { repeat, .. } => *repeat = false,
            Self::Rtsp { .. } | Self::Http { .. } | Self::V4l2 { .. } | Self::Watch { .. } => {}
        }
        spec
    }

    /// Whether opening it again may help after it failed: a camera comes back, a broken file does not.
    pub(super) const fn can_reopen(&self) -> bool {
        matches!(
            self,
            Self::Rtsp { .. } | Self::Http { .. } | Self::V4l2 { .. } | Self::Watch { .. }
        )
    }

    /// Whether each picture waits until it is taken: those of a camera in the network are overtaken by newer ones, and those of files are all
    /// wanted.
    pub(super) const fn waits_for_consumer(&self) -> bool {
        matches!(self, Self::Watch { .. })
    }

    fn of_kind(kind: &str, place: &str, options: &mut Options<'_>) -> Result<Self, SpecReason> {
        Ok(match kind {
            "folder" => Self::Folder {
                path: place.into(),
                rate: options.rate()?.unwrap_or(Rate::DEFAULT),
                repeat: options.flag("loop", false)?,
                prepare: options.flag("prepare", false)?,
            },
            "watch" => {
                let delete = options.flag("delete", false)?;
                // Files that are deleted are all new ones.
                let old = options.flag("old", delete)?;
                Self::Watch { path: place.into(), delete, old, rate: options.rate()? }
            }
            "mjpeg" => Self::Mjpeg {
                path: (place != "-").then(|| place.into()),
                rate: options.rate()?,
                repeat: options.flag("loop", false)?,
                frame_bytes_max: options
                    .number("max", 1024, 1 << 30)?
                    .unwrap_or(Self::FRAME_BYTES_MAX),
            },
            "video" => Self::Video {
                path: place.into(),
                rate: options.rate()?,
                repeat: options.flag("loop", false)?,
                prepare: options.flag("prepare", false)?,
            },
            "v4l2" => Self::V4l2 {
                device: place.into(),
                size: options.size()?,
                rate: options.rate()?,
                copy: options.flag("copy", false)?,
            },
            "scene" if place == "street" => {
                let rate = options.rate()?.unwrap_or(Rate::DEFAULT);
                let scene = options.scene()?;
                Self::Scene { scene, rate, repeat: options.flag("loop", true)? }
            }
            "scene" => return Err(SpecReason::Scene(place.to_owned())),
            other => return Err(SpecReason::Kind(other.to_owned())),
        })
    }
}

/// A source's description, right or wrong, as messages and lists may show it: an address without what may be secret in it.
pub fn shown(text: &str) -> String {
    let kind = text.split(':').next().unwrap_or_default();
    let is_place = PLACES.contains(&kind) || !text.contains(':');
    if is_place && !text.contains("://") { text.to_owned() } else { without_secrets(text) }
}

impl FromStr for SourceSpec {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        Self::parse(text)
    }
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = Vec::new();
        let mut option = |name: &str, value: Option<String>| {
            options.extend(value.map(|value| format!("{name}={value}")));
        };
        let yes = |flag: bool| flag.then(|| "1".to_owned());
        match self {
            Self::Folder { path, rate, repeat, prepare } => {
                option("fps", Some(rate.to_string()));
                option("loop", yes(*repeat));
                option("prepare", yes(*prepare));
                write!(f, "folder:{}", path.display())?;
            }
            Self::Watch { path, delete, old, rate } => {
                option("delete", yes(*delete));
                option("old", (old != delete).then(|| u8::from(*old).to_string()));
                option("fps", rate.map(|rate| rate.to_string()));
                write!(f, "watch:{}", path.display())?;
            }
            Self::Mjpeg { path, rate, repeat, frame_bytes_max } => {
                option("fps", rate.map(|rate| rate.to_string()));
                option("loop", yes(*repeat));
                let other_max = *frame_bytes_max != Self::FRAME_BYTES_MAX;
                option("max", other_max.then(|| frame_bytes_max.to_string()));
                match path {
                    Some(path) => write!(f, "mjpeg:{}", path.display())?,
                    None => f.write_str("mjpeg:-")?,
                }
            }
            Self::Video { path, rate, repeat, prepare } => {
                option("fps", rate.map(|rate| rate.to_string()));
                option("loop", yes(*repeat));
                option("prepare", yes(*prepare));
                write!(f, "video:{}", path.display())?;
            }
            Self::Rtsp { address, .. } | Self::Http { address, .. } => write!(f, "{address}")?,
            Self::V4l2 { device, size, rate, copy } => {
                option("size", size.map(|size| size.to_string()));
                option("fps", rate.map(|rate| rate.to_string()));
                option("copy", yes(*copy));
                write!(f, "v4l2:{}", device.display())?;
            }
            Self::Scene { scene, rate, repeat } => {
                let SceneSpec { size, people, cars, seconds, seed, quality } = scene;
                write!(
                    f,
                    "scene:street?size={size}&fps={rate}&people={people}&cars={cars}&seconds={seconds}\
                     &seed={seed}&quality={quality}&loop={}",
                    u8::from(*repeat)
                )?;
            }
        }
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

/// Problems of a source description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecReason {
    /// Nothing was given.
    #[error("it is empty; give a kind and a place, such as scene:street or folder:DIR")]
    Empty,
    /// No such kind.
    #[error("there is no kind {0:?}; choose one of: folder watch mjpeg video rtsp http v4l2 scene")]
    Kind(String),
    /// No such scene.
    #[error("there is no scene {0:?}; choose: street")]
    Scene(String),
    /// An address that is none.
    #[error(
        "an address is written rtsp://HOST/PATH or http://HOST/PATH, or with USER@ before the host and --password-file; a character of a password that means \
         something there as %XX"
    )]
    Address,
    /// Nothing between the colon and the options.
    #[error("nothing follows the kind; name a folder, file, device, '-' or scene")]
    NoPlace,
    /// An option that is not `name=value`, or is given twice.
    #[error("option {0:?} is not written name=value, or is given twice")]
    Option(String),
    /// An option that this kind does not have.
    #[error("it has no option {name:?}; it has: {known}")]
    UnknownOption {
        /// The option.
        name: String,
        /// The ones there are, separated by spaces.
        known: String,
    },
    /// A value that the option does not take.
    #[error("{name}={value} is not {expected}")]
    Value {
        /// The option.
        name: String,
        /// The value given.
        value: String,
        /// The allowed values.
        expected: String,
    },
}

/// Options not yet asked for, and the names that were asked for.
struct Options<'a> {
    given: BTreeMap<&'a str, &'a str>,
    known: Vec<&'static str>,
}

impl<'a> Options<'a> {
    fn parse(query: &'a str) -> Result<Self, SpecReason> {
        let mut given = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((name, value)) if given.insert(name, value).is_none() => {}
                // A flag may stand alone.
                None if given.insert(pair, "1").is_none() => {}
                _ => return Err(SpecReason::Option(pair.to_owned())),
            }
        }
        Ok(Self { given, known: Vec::new() })
    }

    fn take<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecReason> {
        self.known.push(name);
        let Some(value) = self.given.remove(name) else { return Ok(None) };
        let wrong = || SpecReason::Value {
            name: name.into(),
            value: value.into(),
            expected: expected.into(),
        };
        read(value).map(Some).ok_or_else(wrong)
    }

    fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, SpecReason> {
        let read = |text: &str| match text {
            "1" | "true" | "yes" => Some(true),
            "0" | "false" | "no" => Some(false),
            _ => None,
        };
        Ok(self.take(name, "1 or 0", read)?.unwrap_or(default))
    }

    fn number<T>(&mut self, name: &'static str, low: T, high: T) -> Result<Option<T>, SpecReason>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let expected = format!("a whole number from {low} to {high}");
        let read = |text: &str| text.parse().ok().filter(|number| (&low..=&high).contains(&number));
        self.take(name, &expected, read)
    }

    fn rate(&mut self) -> Result<Option<Rate>, SpecReason> {
        let read = |text: &str| text.parse().ok().and_then(Rate::new);
        self.take("fps", "a number of frames per second from 0.1 to 240", read)
    }

    fn size(&mut self) -> Result<Option<FrameSize>, SpecReason> {
        self.take("size", "a frame size such as 1920x1080", |text| text.parse().ok())
    }

    fn scene(&mut self) -> Result<SceneSpec, SpecReason> {
        let default = SceneSpec::default();
        let (low, high) = (SceneSpec::SIZE_MIN, SceneSpec::SIZE_MAX);
        let read = |text: &str| {
            text.parse().ok().filter(|size: &FrameSize| {
                (low.width..=high.width).contains(&size.width)
                    && (low.height..=high.height).contains(&size.height)
            })
        };
        let size = self.take("size", &format!("a frame size from {low} to {high}"), read)?;
        Ok(SceneSpec {
            size: size.unwrap_or(default.size),
            people: self.number("people", 0, SceneSpec::PEOPLE_MAX)?.unwrap_or(default.people),
            cars: self.number("cars", 0, SceneSpec::CARS_MAX)?.unwrap_or(default.cars),
            seconds: self.number("seconds", 1, SceneSpec::SECONDS_MAX)?.unwrap_or(default.seconds),
            seed: self.number("seed", 0, u64::MAX)?.unwrap_or(default.seed),
            quality: self.number("quality", 1, 100)?.unwrap_or(default.quality),
        })
    }

    fn finish(self) -> Result<(), SpecReason> {
        match self.given.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(SpecReason::UnknownOption {
                name: name.to_owned(),
                known: if self.known.is_empty() { "none".into() } else { self.known.join(" ") },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_round_trip() {
        for text in [
            "folder:frames?fps=5",
            "folder:/a b/c?fps=29.97&loop=1&prepare=1",
            "watch:/srv/ftp/hall",
            "watch:/srv/ftp/hall?delete=1",
            "watch:in?delete=1&old=0&fps=2",
            "watch:in?old=1",
            "mjpeg:-",
            "mjpeg:/run/cam.fifo?fps=15&loop=1&max=100000",
            "video:clip.mp4",
            "video:clip.mp4?fps=10&loop=1&prepare=1",
            "rtsp://10.0.0.7:8554/stream?channel=1&subtype=2",
            "http://cam/snapshot.jpg?channel=1",
            "https://cam:8443/video.mjpg",
            "v4l2:/dev/video0",
            "v4l2:/dev/video0?size=1280x720&fps=15&copy=1",
            "scene:street?size=1920x1080&fps=15&people=8&cars=2&seconds=10&seed=1&quality=95&loop=1",
        ] {
            assert_eq!(SourceSpec::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn no_description_shows_a_password() {
        for text in [
            "rtsp://u5er:s3cret@cam/1",
            "RTSP://u5er:s3cret@cam/1",
            "rtsp:u5er:s3cret@cam",
            "http://u5er:s3cret@cam/1",
            "https://u5er:s3cret@cam/1?pwd=s3cret",
            "http://u5er:s3cret@cam/<>?pwd=s3cret",
            "rtmp://cam/live?key=s3cret",
            "video:rtsp://u5er:s3cret@cam/1",
            "mjpeg:http://u5er:s3cret@cam/1?fps=5",
            "folder:rtsp://cam/1?user=u5er&password=s3cret",
            "u5er:s3cret@cam",
            "rtsp://u5er:s3cret@",
            "rtsp://u5er:s3cret/x@cam:99999/1",
            "rtsp://cam/1?user=u5er&password=s3cret",
        ] {
            let told = match SourceSpec::parse(text) {
                Ok(spec) => format!("{spec} {spec:?}"),
                Err(error) => {
                    format!("{error} {error:?} {}", tidegate_message::error_chain(&error))
                }
            };
            let told = format!("{told} {}", shown(text));
            assert!(!told.contains("s3cret"), "{text}: {told}");
        }
        for text in ["folder:/data/a@b:c", "clip=1.mp4", "scene:street?fps=5"] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn a_password_is_parted_from_its_address_and_comes_back() {
        for (text, parted, password) in [
            ("rtsp://u5er:s3cret@cam/1", "rtsp://u5er@cam/1", Some("s3cret")),
            ("https://a%40b:c%3Ad@cam:8443/1?x=2", "https://a%40b@cam:8443/1?x=2", Some("c:d")),
            ("http://:a:b@cam/1", "http://cam/1", Some(":a:b")),
            ("http://me@cam/1", "http://me@cam/1", None),
            ("http://cam/1", "http://cam/1", None),
            ("scene:street?fps=5", "scene:street", None),
        ] {
            let spec = SourceSpec::parse(text).unwrap();
            let (shown, secret) = spec.parted();
            assert!(shown.starts_with(parted), "{shown}");
            assert_eq!(secret.as_ref().map(|secret| secret.as_str()), password, "{text}");
            let again = SourceSpec::parse(&shown).unwrap();
            assert!(!again.has_password(), "{shown}");
            let again = match &secret {
                Some(secret) => again.with_password(secret),
                None => again,
            };
            assert_eq!(again, spec, "{text}");
        }
    }

    #[test]
    fn a_trial_takes_nothing_away() {
        for (text, trial) in [
            ("watch:in?delete=1", "watch:in?old=1"),
            ("watch:in?delete=1&old=0", "watch:in"),
            ("watch:in?fps=2", "watch:in?fps=2"),
            ("folder:in?fps=5&loop=1", "folder:in?fps=5&loop=1"),
        ] {
            let spec = SourceSpec::parse(text).unwrap();
            assert_eq!(spec.for_trial().to_string(), trial);
            assert_eq!(spec.once(), spec.for_trial().once(), "{text}");
        }
    }

    #[test]
    fn defaults_are_filled_in() {
        let Ok(SourceSpec::Scene { scene, rate, repeat: true }) = SourceSpec::parse("scene:street")
        else {
            panic!("scene:street is a looping scene");
        };
        assert_eq!((scene, rate), (SceneSpec::default(), Rate::DEFAULT));
        assert_eq!(
            SourceSpec::parse("clip.mp4").unwrap(),
            SourceSpec::parse("video:clip.mp4").unwrap()
        );
        assert_eq!(
            SourceSpec::parse("video:clip.mp4?loop").unwrap(),
            SourceSpec::parse("video:clip.mp4?loop=1").unwrap()
        );
    }

    #[test]
    fn problems_are_named_with_the_way_out() {
        for (text, expected) in [
            ("", "it is empty"),
            ("folder:", "nothing follows the kind"),
            ("192.0.2.7", "an address is written rtsp://HOST/PATH or http://HOST/PATH"),
            ("192.0.2.7:554/stream1", "an address is written rtsp://HOST/PATH"),
            ("2001:db8::1", "an address is written rtsp://HOST/PATH"),
            ("ftp:x", "there is no kind \"ftp\"; choose one of: folder"),
            ("scene:beach", "there is no scene \"beach\"; choose: street"),
            ("folder:x?speed=3", "it has no option \"speed\"; it has: fps loop prepare"),
            ("folder:x?fps=0", "fps=0 is not a number of frames per second from 0.1 to 240"),
            ("folder:x?fps=nan", "fps=nan is not a number"),
            (
                "folder:x?fps=5&fps=6",
                "option \"fps=6\" is not written name=value, or is given twice",
            ),
            ("folder:x?loop=2", "loop=2 is not 1 or 0"),
            ("scene:street?people=99", "people=99 is not a whole number from 0 to 40"),
            ("scene:street?size=10x10", "size=10x10 is not a frame size from 320x180 to 3840x2160"),
            ("scene:street?quality=-1", "quality=-1 is not a whole number from 1 to 100"),
        ] {
            let error = SourceSpec::parse(text).unwrap_err();
            let SourceError::Spec { reason, .. } = &error else { panic!("{text}: {error}") };
            assert!(reason.to_string().contains(expected), "{text}: {reason}");
        }
    }
}
