//! Settings of this node's cameras, and the way to their edge node.

use std::{net::SocketAddr, path::Path, sync::Arc};

use tidegate_api::ApiError;
use tidegate_camera::{
    camera::{CameraSettings, DialSettings, Privacy},
    detector::DetectorSpec,
    frame_log::{FrameLogSettings, KeyFiles, KeysError, Place},
    source::{self, SourceSpec},
};
use tidegate_config::{Config, ENTRY_META_BYTES_MAX, LogSection, PrivacySection, words::AtRest};
use tidegate_frame::{
    controller::{ControllerConfig, LinkModel, MezPiConfig},
    knob::FrameLimits,
    privacy::{Cover, Mask, Regions},
    transfer::TransferConfig,
};
use tidegate_identity::pki::Kind;
use tidegate_log::{Durability, LogConfig, NodeKeys};
use tidegate_message::{CameraName, Code};
use tidegate_process::health::Health;

use super::{certificates::credentials, link_settings, words::Translate as _};

/// The keys that `[log]` names; none if logs are in clear text.
///
/// # Errors
/// [`KeysError`], which names the setting.
pub fn node_keys(section: &LogSection) -> Result<Option<NodeKeys>, KeysError> {
    let (AtRest::Sealed, Some(current)) = (section.at_rest, &section.key_file) else {
        return Ok(None);
    };
    let (older, passphrase) = (&section.older_key_file, &section.passphrase_file);
    let files = KeyFiles { current, older: older.as_deref(), passphrase: passphrase.as_deref() };
    files.read().map(Some)
}

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
        place: place(config, durability.translated()),
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
        tables: config.frames.tables_dir.clone(),
        transfer: transfer_config(config),
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
        found: found.map(|spec| (spec, section.detected.translated())),
        originals: section.originals.translated(),
    }
}

/// The detector that finds the regions to cover, if any are covered.
fn detector(section: &PrivacySection) -> Option<DetectorSpec> {
    let name = section.detector.as_deref()?;
    let spec = DetectorSpec::parse(name, section.detector_command.as_deref());
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
        edge: resolve(edge.unwrap_or(&config.link.edge)).await?,
        transport: config.link.transport.translated(),
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
    let invalid = || format!("no address was found of {edge:?}; write it as host:port");
    let mut found = tokio::net::lookup_host(edge)
        .await
        .map_err(|error| ApiError::new(Code::CONFIG_INVALID, invalid()).caused_by(error))?;
    found.next().ok_or_else(|| ApiError::new(Code::CONFIG_INVALID, invalid()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
