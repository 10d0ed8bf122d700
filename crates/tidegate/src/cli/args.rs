//! Arguments of the commands that run nodes.

use std::path::{Path, PathBuf};

use clap::Args;
use tidegate_api::ApiError;
use tidegate_camera::source::SourceSpec;
use tidegate_cli::remote::secret;
use tidegate_message::{AdaptationProfile, CameraName, Code};

use crate::run::source_spec;

/// Holds the password of a network camera.
const SOURCE_PASSWORD_VARIABLE: &str = "TIDEGATE_SOURCE_PASSWORD";

/// Arguments of `tidegate node`: everything is in the configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeArgs {}

/// Arguments of `tidegate camera`.
#[derive(Args, Clone, Debug)]
pub struct CameraArgs {
    /// Name of the camera and of its certificate
    #[arg(long, default_value = "cam1")]
    pub name: CameraName,
    /// Where frames come from: folder:DIR, watch:DIR, mjpeg:FILE, video:FILE, rtsp://…, http://…, v4l2:DEVICE or scene:street
    #[arg(long, default_value = "scene:street")]
    pub source: String,
    /// File whose first line is the password of an rtsp:// or http:// source, or USER:PASSWORD [default:
    /// $TIDEGATE_SOURCE_PASSWORD]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The edge node to dial, as host:port [default: link.edge of the configuration]
    #[arg(long, value_name = "HOST:PORT")]
    pub edge: Option<String>,
}

impl CameraArgs {
    /// The source, with its password.
    pub(super) fn spec(&self) -> Result<SourceSpec, ApiError> {
        source_with_password(&self.source, self.password_file.as_deref())
    }
}

/// A source, with the password that a file or a variable has for it.
pub(super) fn source_with_password(
    text: &str,
    file: Option<&Path>,
) -> Result<SourceSpec, ApiError> {
    let spec = source_spec(text)?;
    let is_address = spec.takes_password();
    if let Some(file) = file.filter(|_| !is_address) {
        let text = format!(
            "{} holds a password, and only an address of a network camera has one",
            file.display()
        );
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    let password = if is_address { secret(file, SOURCE_PASSWORD_VARIABLE)? } else { None };
    Ok(match password {
        Some(password) => spec.with_password(&password),
        None => spec,
    })
}

/// Arguments of `tidegate characterize`.
#[derive(Args, Clone, Debug)]
pub struct CharacterizeArgs {
    /// The scene: a video file, a folder of JPEGs, or any other source [default: the source of --camera]
    #[arg(long, value_name = "SOURCE", required_unless_present_any = ["link", "camera"])]
    pub clip: Option<String>,
    /// The camera that the table is for: it is written as NAME.table, where that camera finds it
    #[arg(long, value_name = "NAME", conflicts_with = "link")]
    pub camera: Option<CameraName>,
    /// File whose first line is the password of an rtsp:// or http:// clip, or USER:PASSWORD [default:
    /// $TIDEGATE_SOURCE_PASSWORD]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The detector: moving, person, face, or command, a program that speaks the detector protocol
    #[arg(long, default_value = "moving")]
    pub detector: String,
    /// The program of `--detector command`, with its arguments
    #[arg(long, value_name = "COMMAND")]
    pub detector_command: Option<String>,
    /// Which knobs: jpeg, or the paper's five as mez
    #[arg(long, default_value_t)]
    pub profile: AdaptationProfile,
    /// How many frames, spread over the clip
    #[arg(long, default_value_t = 120)]
    pub frames: usize,
    /// Compare with detections on the originals even where the source knows what is in its frames
    #[arg(long)]
    pub no_truth: bool,
    /// Scene class that the table is for
    #[arg(long)]
    pub scene: Option<CameraName>,
    /// Where to write the table; the picture goes next to it as SVG [default: CAMERA.table or tidegate.table in frames.tables_dir, else in the
    /// folder `tables` of the node's data, else here]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Measure latency over frame size from here to the edge node, with this camera's certificate, and fit the line
    /// that `mez-pi` needs
    #[arg(long, value_name = "CAMERA", conflicts_with = "clip")]
    pub link: Option<CameraName>,
    /// The edge node to measure to, as host:port [default: link.edge of the configuration]
    #[arg(long, value_name = "HOST:PORT", requires = "link")]
    pub edge: Option<String>,
}
