//! Settings of this node's cameras, and the way to their edge node.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use tidegate_api::ApiError;
use tidegate_camera::{
    camera::{CameraSettings, DialSettings, Privacy},
    detector::DetectorSpec,
    frame_log::{FrameLogSettings, Place},
    source::{self, NetworkOptions, Rate, RtspTransport, SourceSpec},
};
use tidegate_config::{
    CameraSection, Config, ENTRY_META_BYTES_MAX, PrivacySection, problems::Problems,
};
use tidegate_doctor::node_keys;
use tidegate_frame::{
    controller::{ControllerConfig, LinkModel, MezPiConfig},
    knob::FrameLimits,
    privacy::{Cover, Mask, Regions},
    transfer::TransferConfig,
};
use tidegate_identity::pki::Kind;
use tidegate_log::{Durability, LogConfig};
use tidegate_message::{CameraName, Code, Confidential};
use tidegate_process::health::Health;
use tidegate_streams::{CAMERAS_MAX, OwnCamera};
use tidegate_sys::regular;
use tidegate_workers::SharedPool;
use tokio::sync::watch;
use zeroize::Zeroizing;

use super::{certificates::credentials, link_settings};

/// Where the logs of this node are. Keys that cannot be had leave them in memory: nothing is written in clear text that is to be
/// sealed, and a node delivers nevertheless.
fn place(config: &Config, durability: Durability) -> Place {
    if durability == Durability::Memory {
        return Place::Memory;
    }
    match node_keys(&config.log) {
        Ok(keys) => Place::Files {
            data_dir: config.node.data_dir.clone(),
            durability,
            keys: keys.map(Arc::new),
        },
        Err(error) => {
            let (code, error) = (error.code(), tidegate_message::error_chain(&error));
            tracing::error!(%code, error, "frames are kept in memory only");
            Place::Memory
        }
    }
}

/// The log of the camera called `name`.
fn camera_log(config: &Config, name: &CameraName) -> FrameLogSettings {
    let own = config.log_cameras.get(name.as_str());
    let bytes = own.and_then(|own| own.bytes).unwrap_or(config.log.camera_bytes);
    let age = own.and_then(|own| own.age).unwrap_or(config.log.camera_age);
    let durability = own.and_then(|own| own.durability).unwrap_or(config.log.durability);
    FrameLogSettings {
        size: log_config(bytes.0, config.frames.frame_bytes_max.0),
        age: (!age.is_zero()).then_some(age),
        place: place(config, durability),
    }
}

/// A log of at most `bytes_max` bytes whose segments hold the largest frame that is accepted.
pub(super) fn log_config(bytes_max: u64, frame_bytes_max: u64) -> LogConfig {
    let usual = LogConfig::bounded(bytes_max);
    let segment_bytes = usual.segment_bytes.max(frame_bytes_max + ENTRY_META_BYTES_MAX);
    LogConfig { segment_bytes, ..usual }
}

/// The options of a camera called `name`.
pub fn camera_settings(config: &Config, name: CameraName, source: String) -> CameraSettings {
    CameraSettings {
        log: camera_log(config, &name),
        name,
        size: None,
        frames_per_second: 0.0,
        source,
        limits: limits(config),
        privacy: privacy(config),
        health: Health::default(),
        future_max: config.frames.future_tolerance,
        tables: config.tables_dir(),
        transfer: transfer_config(config),
        frozen_after: None,
    }
}

/// The same camera, where a detector of ours that its private parts need is a model of `pool`.
pub(super) fn in_pool(settings: CameraSettings, pool: Option<&SharedPool>) -> CameraSettings {
    let Some(pool) = pool else { return settings };
    CameraSettings { privacy: settings.privacy.clone().in_pool(pool), ..settings }
}

/// A password file is no longer.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// The cameras that the node runs itself.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key, or the file that cannot be read.
pub(super) fn planned(config: &Config) -> Result<Vec<OwnCamera>, ApiError> {
    let mut problems = Problems::default();
    let enabled = config.cameras.iter().filter(|(_, section)| section.enabled);
    let count: usize =
        enabled.clone().map(|(_, section)| 1 + usize::from(section.substream.is_some())).sum();
    if count > CAMERAS_MAX {
        let text = format!(
            "camera: {count} cameras are configured, substreams included, and a node runs {CAMERAS_MAX} at most; run the others at other nodes"
        );
        problems.say(Code::CONFIG_INVALID, text);
    }
    let cameras = problems.take_all(enabled.map(|(name, section)| own(config, name, section)));
    problems.into_result()?;
    Ok(cameras.into_iter().flatten().collect())
}

/// The camera of a section, and that of its substream behind it.
fn own(config: &Config, name: &str, section: &CameraSection) -> Result<Vec<OwnCamera>, ApiError> {
    let wrong = |key: &str, text: &str| wrong(name, key, text);
    let camera: CameraName = name.parse().map_err(|error| {
        let text = format!("camera.{name} cannot be");
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(&error))
    })?;
    let mut sources = vec![source_of(config, name, "source", section.source.expose())?];
    let mut names = vec![camera];
    if let Some(text) = &section.substream {
        names.push(substream_name(config, name)?);
        sources.push(source_of(config, name, "substream", text.expose())?);
    }
    if let Some(file) = &section.password_file {
        if !sources.iter().any(SourceSpec::takes_password) {
            let text = "only an address of a network camera has a password; leave it out";
            return Err(wrong("password_file", text));
        }
        let read = regular::read_at_most(file, PASSWORD_BYTES_MAX).map(Zeroizing::new);
        let bytes = read.map_err(|error| {
            wrong("password_file", &format!("{} cannot be read", file.display())).caused_by(error)
        })?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| wrong("password_file", &format!("{} is no text", file.display())))?;
        let password = text.lines().next().unwrap_or_default();
        sources = sources.into_iter().map(|source| source.with_password(password)).collect();
    }
    let options = network(section, &sources).map_err(|(key, text)| wrong(key, text))?;
    let mut cameras: Vec<OwnCamera> = Vec::new();
    for (name, source) in names.into_iter().zip(sources) {
        let main = cameras.first();
        let mut source = source.with_options(options.clone());
        if let Some(main) = main {
            source = source.with_login_of(&main.source);
        }
        if let Some(rate) = section.fps.and_then(Rate::new) {
            source = source.with_rate(rate);
        }
        let settings = CameraSettings {
            // A recording keeps it; the rate of a network camera is measured.
            frames_per_second: section.fps.unwrap_or(0.0),
            frozen_after: (!section.frozen_after.is_zero()).then_some(section.frozen_after),
            ..camera_settings(config, name, source.to_string())
        };
        let substream_of = main.map(|main| main.settings.name.clone());
        cameras.push(OwnCamera { settings, source, substream_of });
    }
    Ok(cameras)
}

fn wrong(name: &str, key: &str, text: &str) -> ApiError {
    ApiError::new(Code::CONFIG_INVALID, format!("camera.{name}.{key}: {text}"))
}

/// The name of the substream of the camera called `name`.
fn substream_name(config: &Config, name: &str) -> Result<CameraName, ApiError> {
    let substream = CameraSection::substream_of(name);
    if config.cameras.contains_key(&substream) {
        let text = format!(
            "the substream is the camera {substream}, and [camera.{substream}] is in the configuration as well; take out one of the two, or give that section another name"
        );
        return Err(wrong(name, "substream", &text));
    }
    substream.parse().map_err(|error| {
        let text = format!("the substream is the camera {substream}, which cannot be");
        wrong(name, "substream", &text).caused_by(tidegate_message::error_chain(&error))
    })
}

/// The source that a key of a section names, without a password.
fn source_of(config: &Config, name: &str, key: &str, text: &str) -> Result<SourceSpec, ApiError> {
    let folder = config.path_of(&format!("camera.{name}.{key}"), Path::new(""));
    let source = source_in(&folder, text).map_err(|error| wrong(name, key, &error.chain()))?;
    if matches!(source, SourceSpec::Mjpeg { path: None, .. }) {
        let text =
            "mjpeg:- is the standard input, which a node does not read; name a file or a pipe";
        return Err(wrong(name, key, text));
    }
    if source.has_password() {
        let text = "a password in it is read by everyone who reads the configuration; leave USER in the address, and name a file that \
                    holds the password by password_file; a camera that takes its password as a parameter alone needs a node of its own, \
                    by tidegate camera --source";
        return Err(wrong(name, key, text));
    }
    Ok(source)
}

/// The way to ask the sources of a section; or the key that has no meaning for any of them, and why.
fn network(
    section: &CameraSection,
    sources: &[SourceSpec],
) -> Result<NetworkOptions, (&'static str, &'static str)> {
    let options = NetworkOptions {
        transport: section.transport,
        silent_max: section.timeout,
        hwaccel: section.hwaccel.clone(),
    };
    let is_udp = options.transport == RtspTransport::Udp;
    let has_rtsp = sources.iter().any(|source| source.rtsp().is_some());
    if is_udp && !has_rtsp {
        Err(("transport", "only an rtsp:// camera has one; leave it out"))
    } else if is_udp && sources.iter().any(|source| source.rtsp() == Some(true)) {
        Err((
            "transport",
            "pictures of an rtsps:// camera would not be encrypted by udp; leave it out, or name the camera by rtsp://",
        ))
    } else if options.hwaccel.is_some() && !has_rtsp {
        Err(("hwaccel", "only the pictures of an rtsp:// camera are decoded; leave it out"))
    } else if options.silent_max.is_some() && !sources.iter().any(SourceSpec::takes_password) {
        Err(("timeout", "only a network camera has one; leave it out"))
    } else {
        Ok(options)
    }
}

/// A source by its description, a relative path of which begins at `folder`.
fn source_in(folder: &Path, text: &str) -> Result<SourceSpec, ApiError> {
    // A path alone is looked at to know what it is.
    match text.contains(':') {
        true => source_spec(text).map(|source| source.beginning_at(folder)),
        false => source_spec(&folder.join(text).to_string_lossy()),
    }
}

/// The source of a camera of the configuration, or of a substream there, with its password.
///
/// # Errors
/// [`Code::CAMERA_UNKNOWN`], naming those there are, and [`Code::CONFIG_INVALID`].
pub fn camera_source(config: &Config, name: &CameraName) -> Result<SourceSpec, ApiError> {
    let of_it = |main: &str, section: &CameraSection| {
        main == name.as_str()
            || (section.substream.is_some() && CameraSection::substream_of(main) == name.as_str())
    };
    let found = config.cameras.iter().find(|(main, section)| of_it(main, section));
    let Some((main, section)) = found else {
        let known: Vec<&str> = config.cameras.keys().map(String::as_str).collect();
        let known = match known.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}", known.join(", ")),
        };
        let text = format!("no camera {name} is in the configuration; {known}");
        return Err(ApiError::new(Code::CAMERA_UNKNOWN, text));
    };
    let cameras = own(config, main, section)?;
    let camera = cameras.into_iter().find(|camera| camera.settings.name == *name);
    Ok(camera.expect("it is the camera of the section or its substream").source)
}

/// The cameras that a running node has, exchanged on a reload.
pub(super) struct OwnCameras {
    /// The settings that are fixed from start to stop.
    started: Config,
    /// The pool in which detectors are asked; none: each camera has a program of its own.
    pool: Option<SharedPool>,
    running: Mutex<watch::Sender<Vec<OwnCamera>>>,
}

impl OwnCameras {
    /// Those that the node starts with, and the end by which it hears of others.
    pub(super) fn of(
        config: &Config,
        pool: Option<SharedPool>,
    ) -> Result<(Self, watch::Receiver<Vec<OwnCamera>>), ApiError> {
        let (sender, _) = watch::channel(Vec::new());
        let cameras = Self { started: config.clone(), pool, running: Mutex::new(sender) };
        let planned = cameras.planned(config)?;
        let sender = cameras.running.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send_replace(planned);
        let receiver = sender.subscribe();
        drop(sender);
        Ok((cameras, receiver))
    }

    /// Those of `new`, with the other settings that the node was started with.
    pub(super) fn planned(&self, new: &Config) -> Result<Vec<OwnCamera>, ApiError> {
        let cameras = planned(&Config {
            cameras: new.cameras.clone(),
            log_cameras: new.log_cameras.clone(),
            origins: new.origins.clone(),
            ..self.started.clone()
        })?;
        let in_pool = |camera: OwnCamera| OwnCamera {
            settings: in_pool(camera.settings, self.pool.as_ref()),
            ..camera
        };
        Ok(cameras.into_iter().map(in_pool).collect())
    }

    /// Has just these run from now on, and names those that are new, gone or other than they were, each with the name of its section.
    pub(super) fn exchange(&self, planned: Vec<OwnCamera>) -> BTreeSet<(CameraName, CameraName)> {
        let sender = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = BTreeSet::new();
        let is_among = |camera: &OwnCamera, others: &[OwnCamera]| {
            others.iter().any(|other| other.is_like(camera))
        };
        let running = sender.borrow().clone();
        let gone = running.iter().filter(|camera| !is_among(camera, &planned));
        let come = planned.iter().filter(|camera| !is_among(camera, &running));
        changed.extend(gone.chain(come).map(|camera| {
            let name = &camera.settings.name;
            (name.clone(), camera.substream_of.as_ref().unwrap_or(name).clone())
        }));
        if !changed.is_empty() {
            sender.send_replace(planned);
        }
        changed
    }
}

/// The private parts of the cameras' frames.
fn privacy(config: &Config) -> Privacy {
    let section = &config.privacy;
    let masks = |regions: &Regions, cover| -> Vec<Mask> {
        regions.0.iter().map(|region| Mask { region: *region, cover }).collect()
    };
    let masks = [masks(&section.blur, Cover::Blur), masks(&section.fill, Cover::Fill)].concat();
    let found = detector(section);
    Privacy {
        masks: masks.into(),
        found: found.map(|spec| (spec, section.detected)),
        originals: section.originals,
    }
}

/// The detector that finds the regions to cover, if any are covered.
fn detector(section: &PrivacySection) -> Option<DetectorSpec> {
    let name = section.detector.as_deref()?;
    let spec =
        DetectorSpec::parse(name, section.detector_command.as_ref().map(Confidential::expose));
    Some(spec.expect("the configuration was checked"))
}

fn transfer_config(config: &Config) -> TransferConfig {
    let section = &config.mez_pi;
    let mez_pi = MezPiConfig {
        model: LinkModel {
            slope_ms_per_byte: section.slope_ms_per_megabyte / 1e6,
            intercept_ms: section.intercept_ms,
            ..LinkModel::paper()
        },
        k1_bytes_per_ms: section.k1_bytes_per_ms,
        k2_bytes_per_ms_second: section.k2_bytes_per_ms_second,
        threshold: section.threshold,
        interval: section.interval,
    };
    let controllers = ControllerConfig { mez_pi, ..ControllerConfig::default() };
    TransferConfig { controllers, ..TransferConfig::default() }
}

fn limits(config: &Config) -> FrameLimits {
    FrameLimits {
        bytes_max: usize::try_from(config.frames.frame_bytes_max.0).unwrap_or(usize::MAX),
        pixels_max: config.frames.frame_pixels_max,
    }
}

/// How the camera called `name` reaches its edge node.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] without a certificate or an address.
pub async fn dial_settings(
    config: &Config,
    name: &CameraName,
    edge: Option<&str>,
) -> Result<DialSettings, ApiError> {
    Ok(DialSettings {
        edge: resolve(edge.unwrap_or(config.link.edge.expose())).await?,
        transport: config.link.transport,
        credentials: credentials(config, Kind::Camera, name.as_str())?,
        link: link_settings(config),
        reconnects_max: (config.link.max_reconnects > 0).then_some(config.link.max_reconnects),
        retry_max: config.link.reconnect_backoff_max,
    })
}

/// A source by its description; a path that exists is a folder or a video file.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming what is wrong with the description.
pub fn source_spec(text: &str) -> Result<SourceSpec, ApiError> {
    let path = Path::new(text);
    let described = match (path.is_dir(), path.is_file()) {
        (true, _) => format!("folder:{text}"),
        (_, true) => format!("video:{text}"),
        _ => text.to_owned(),
    };
    described.parse().map_err(|error: tidegate_camera::source::SourceError| {
        ApiError::new(Code::CONFIG_INVALID, format!("{:?} is no source", source::shown(text)))
            .caused_by(tidegate_message::error_chain(&error))
    })
}

pub(crate) async fn resolve(edge: &str) -> Result<SocketAddr, ApiError> {
    let shown = Confidential::from(edge);
    let invalid = || format!("no address was found of {shown}; write it as host:port");
    let mut found = tokio::net::lookup_host(edge)
        .await
        .map_err(|error| ApiError::new(Code::CONFIG_INVALID, invalid()).caused_by(error))?;
    found.next().ok_or_else(|| ApiError::new(Code::CONFIG_INVALID, invalid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(text: &str) -> String {
        let config = Config::parse(Path::new("/site/site.toml"), text).expect("a configuration");
        let error = planned(&config).map(|cameras| cameras.len()).expect_err("it is wrong");
        let causes: Vec<String> = match std::error::Error::source(&error) {
            Some(problems) => problems.to_string().lines().map(str::to_owned).collect(),
            None => vec![error.chain()],
        };
        causes.join("\n") + &error.chain()
    }

    #[test]
    fn a_camera_that_cannot_be_is_named_with_its_key() {
        for (text, expected) in [
            ("[camera.'a b']\nsource = \"scene:street\"\n", "camera.a b cannot be"),
            ("[camera.a]\nsource = \"scene:beach\"\n", "camera.a.source: "),
            (
                "[camera.a]\nsource = \"mjpeg:-\"\n",
                "camera.a.source: mjpeg:- is the standard input",
            ),
            (
                "[camera.a]\nsource = \"rtsp://me:s3cret@cam/1\"\n",
                "camera.a.source: a password in it is read by everyone",
            ),
            (
                "[camera.a]\nsource = \"http://cam/s.cgi?user=me&pwd=s3cret\"\n",
                "camera.a.source: a password in it is read by everyone",
            ),
            (
                "[camera.a]\nsource = \"scene:street\"\npassword_file = \"x\"\n",
                "camera.a.password_file: only an address of a network camera has a password",
            ),
            (
                "[camera.a]\nsource = \"rtsp://me@cam/1\"\npassword_file = \"none\"\n",
                "camera.a.password_file: /site/none cannot be read",
            ),
            (
                "[camera.a]\nsource = \"http://cam/1\"\ntransport = \"udp\"\n",
                "camera.a.transport: only an rtsp:// camera has one",
            ),
            (
                "[camera.a]\nsource = \"rtsps://cam/1\"\ntransport = \"udp\"\n",
                "camera.a.transport: pictures of an rtsps:// camera would not be encrypted",
            ),
            (
                "[camera.a]\nsource = \"scene:street\"\nhwaccel = \"auto\"\n",
                "camera.a.hwaccel: only the pictures of an rtsp:// camera are decoded",
            ),
            (
                "[camera.a]\nsource = \"folder:x\"\ntimeout = \"5s\"\n",
                "camera.a.timeout: only a network camera has one",
            ),
            (
                "[camera.a]\nsource = \"scene:street\"\nsubstream = \"scene:beach\"\n",
                "camera.a.substream: ",
            ),
            (
                "[camera.a]\nsource = \"rtsp://me@cam/1\"\nsubstream = \"rtsp://me:s3cret@cam/2\"\n",
                "camera.a.substream: a password in it is read by everyone",
            ),
            (
                "[camera.a]\nsource = \"rtsp://cam/1\"\nsubstream = \"rtsps://cam/2\"\ntransport = \"udp\"\n",
                "camera.a.transport: pictures of an rtsps:// camera would not be encrypted",
            ),
            (
                "[camera.a]\nsource = \"scene:street\"\nsubstream = \"folder:x\"\n\
                 [camera.a-sub]\nsource = \"scene:street\"\nenabled = false\n",
                "camera.a.substream: the substream is the camera a-sub, and [camera.a-sub] is in the configuration as well",
            ),
        ] {
            let chain = chain(text);
            assert!(chain.contains(expected), "{text}: {chain}");
            assert!(!chain.contains("s3cret"), "{chain}");
        }
        let long = "x".repeat(62);
        let text =
            format!("[camera.{long}]\nsource = \"scene:street\"\nsubstream = \"folder:x\"\n");
        assert!(chain(&text).contains(&format!("{long}-sub, which cannot be")), "{}", chain(&text));
        let substream = "substream = \"folder:x\"\n";
        for (count, substream) in [(CAMERAS_MAX + 1, ""), (CAMERAS_MAX / 2 + 1, substream)] {
            let many: String = (0..count)
                .map(|n| format!("[camera.c{n}]\nsource = \"scene:street\"\n{substream}"))
                .collect();
            assert!(chain(&many).contains("a node runs 256 at most"), "{}", chain(&many));
        }
    }

    #[test]
    fn two_cameras_of_one_name_are_refused_with_their_line() {
        let text = "[camera.a]\nsource = \"scene:street\"\n[camera.a]\nsource = \"folder:x\"\n";
        let error = Config::parse(Path::new("/site/site.toml"), text).expect_err("one is too many");
        let chain = tidegate_message::error_chain(&error);
        assert!(chain.contains("site.toml:3: a is there a second time"), "{chain}");
    }

    #[test]
    fn cameras_are_exchanged_by_what_is_other_than_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("pw"), "first\n").expect("a file");
        let config = |text: &str| {
            Config::parse(&folder.path().join("site.toml"), text).expect("a configuration")
        };
        let a = "[camera.a]\nsource = \"folder:pictures\"\nfps = 2\n";
        let b = "[camera.b]\nsource = \"rtsp://me@cam/1\"\npassword_file = \"pw\"\n";
        let (cameras, running) =
            OwnCameras::of(&config(&format!("{a}{b}")), None).expect("it is right");
        let SourceSpec::Folder { path, rate, .. } = running.borrow()[0].source.clone() else {
            panic!("a folder");
        };
        assert_eq!((path, rate.per_second()), (folder.path().join("pictures"), 2.0));
        let exchange = |text: &str| -> Vec<String> {
            let changed = cameras.exchange(cameras.planned(&config(text)).expect("right"));
            changed.into_iter().map(|(name, _)| name.to_string()).collect()
        };
        assert_eq!(exchange(&format!("{a}{b}")), [""; 0]);
        assert!(!running.has_changed().expect("it is there"));
        let log = "[log.camera.a]\nage = \"1h\"\n";
        assert_eq!(exchange(&format!("{a}{b}{log}")), ["a"]);
        std::fs::write(folder.path().join("pw"), "second\n").expect("a file");
        assert_eq!(exchange(&format!("{a}{b}{log}")), ["b"], "its password is another");
        let slow = b.replace(
            "password_file",
            "timeout = \"1min\"\ntransport = \"udp\"\nhwaccel = \"vaapi\"\npassword_file",
        );
        assert_eq!(exchange(&format!("{a}{slow}{log}")), ["b"], "it is asked in another way");
        let SourceSpec::Rtsp { options, .. } = running.borrow()[1].source.clone() else {
            panic!("a network camera");
        };
        let expected = NetworkOptions {
            transport: RtspTransport::Udp,
            silent_max: Some(std::time::Duration::from_secs(60)),
            hwaccel: Some("vaapi".to_owned()),
        };
        assert_eq!(options, expected);
        assert_eq!(exchange(&format!("{a}frozen_after = \"5s\"\n{slow}{log}")), ["a"]);
        assert_eq!(exchange(&format!("{a}{b}{log}")), ["a", "b"]);
        let c = "[camera.c]\nsource = \"scene:street\"\n";
        assert_eq!(exchange(&format!("{a}enabled = false\n{b}{c}{log}")), ["a", "c"]);
        assert_eq!(running.borrow().len(), 2);
    }

    #[test]
    fn a_substream_is_a_camera_of_its_own_that_comes_changes_and_goes_with_its_camera() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("pw"), "s3cret\n").expect("a file");
        let config = |text: &str| {
            Config::parse(&folder.path().join("site.toml"), text).expect("a configuration")
        };
        let gate = "[camera.gate]\nsource = \"scene:street\"\n";
        let hall = "[camera.hall]\nsource = \"rtsp://me@cam/1\"\npassword_file = \"pw\"\ntransport = \"udp\"\n\
                    timeout = \"1min\"\nhwaccel = \"vaapi\"\nfps = 5\nfrozen_after = \"9s\"\n";
        let sub = "substream = \"rtsp://cam/2\"\n[log.camera.hall-sub]\nage = \"1h\"\n";
        let (cameras, running) =
            OwnCameras::of(&config(&format!("{gate}{hall}")), None).expect("it is right");
        let exchange = |text: &str| -> Vec<String> {
            let changed = cameras.exchange(cameras.planned(&config(text)).expect("right"));
            changed.into_iter().map(|(name, section)| format!("{name} of {section}")).collect()
        };
        let with = format!("{gate}{hall}{sub}");
        assert_eq!(exchange(&with), ["hall-sub of hall"], "the camera itself is not touched");
        let own = running.borrow().clone();
        let names = own.iter().map(|camera| camera.settings.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["gate", "hall", "hall-sub"]);
        let [_, main, of_it] = &own[..] else { panic!("three cameras") };
        assert_eq!((&main.substream_of, &of_it.substream_of), (&None, &"hall".parse().ok()));
        let expected = "rtsp://me:s3cret@cam/2".parse::<SourceSpec>().expect("a source");
        let expected = expected.with_rate(Rate::new(5.0).expect("a rate"));
        let options = NetworkOptions {
            transport: RtspTransport::Udp,
            silent_max: Some(std::time::Duration::from_secs(60)),
            hwaccel: Some("vaapi".to_owned()),
        };
        assert_eq!(of_it.source, expected.with_options(options));
        assert_eq!(of_it.settings.frozen_after, main.settings.frozen_after);
        assert_eq!(main.settings.log.age, None);
        assert_eq!(of_it.settings.log.age, Some(std::time::Duration::from_secs(3600)));
        let of_name = camera_source(&config(&with), &"hall-sub".parse().expect("a name"));
        assert_eq!(of_name.expect("it is there"), of_it.source);

        let other = with.replace("cam/2", "cam/3");
        assert_eq!(exchange(&other), ["hall-sub of hall"]);
        assert_eq!(exchange(&other.replace("1min", "2min")), ["hall of hall", "hall-sub of hall"]);
        let off = other.replace("fps = 5", "enabled = false");
        assert_eq!(exchange(&off), ["hall of hall", "hall-sub of hall"]);
        assert_eq!(exchange(&with), ["hall of hall", "hall-sub of hall"]);
        // A camera with the same source in a section of its own is another one.
        let plain = "[camera.a]\nsource = \"scene:street\"\n";
        assert_eq!(exchange(plain).len(), 4);
        exchange(&format!("{plain}substream = \"folder:x\"\n"));
        let apart = format!("{plain}[camera.a-sub]\nsource = \"folder:x\"\n");
        assert_eq!(exchange(&apart), ["a-sub of a", "a-sub of a-sub"]);
    }

    #[test]
    fn settings_hold_for_the_stream_for_which_they_have_a_meaning() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("pw"), "me:s3cret\n").expect("a file");
        let text = "[camera.a]\nsource = \"folder:x\"\nsubstream = \"rtsp://cam/2\"\npassword_file = \"pw\"\ntimeout = \"2s\"\n\
                    [camera.b]\nsource = \"rtsp://cam/1\"\nsubstream = \"http://other@cam/2\"\npassword_file = \"pw\"\ntransport = \"udp\"\n";
        let config = Config::parse(&folder.path().join("site.toml"), text).expect("it is right");
        let planned = planned(&config).expect("it is right");
        let sources: Vec<String> = planned.iter().map(|camera| camera.source.parted().0).collect();
        let pictures = format!("folder:{}", folder.path().join("x").display());
        assert!(sources[0].starts_with(&pictures), "{}", sources[0]);
        assert_eq!(sources[1..], ["rtsp://me@cam/2", "rtsp://me@cam/1", "http://other@cam/2"]);
        let passwords: Vec<_> = planned.iter().map(|camera| camera.source.parted().1).collect();
        assert!(passwords[0].is_none());
        assert!(
            passwords[1..].iter().all(|text| text.as_deref().is_some_and(|text| text == "s3cret"))
        );
    }

    #[test]
    fn detectors_that_the_configuration_takes_are_ones() {
        for name in ["", "face", "person", "moving", "command", "hand"] {
            for command in ["", "look --fast 'a b'", "look 'a", " "] {
                let text =
                    format!("[privacy]\ndetector = {name:?}\ndetector_command = {command:?}\n");
                let config = Config::parse(Path::new("site.toml"), &text);
                let command = Some(command).filter(|command| !command.is_empty());
                let expected = match (name, command) {
                    ("", None) => true,
                    ("moving", _) => false,
                    _ => DetectorSpec::parse(name, command).is_ok(),
                };
                assert_eq!(config.is_ok(), expected, "{name:?} {command:?}");
                if let Ok(config) = config {
                    assert_eq!(detector(&config.privacy).is_some(), !name.is_empty());
                }
            }
        }
    }
}
