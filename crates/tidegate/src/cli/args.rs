//! Arguments that several commands share, and those of the commands that run nodes.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use clap::Args;
use tidegate_api::ApiError;
use tidegate_camera::source::SourceSpec;
use tidegate_client::{Client, Credentials};
use tidegate_config::Config;
use tidegate_identity::pki::{Kind, NODE_SERVER_NAME};
use tidegate_message::{AdaptationProfile, CameraName, Code};
use tidegate_sys::regular;
use zeroize::Zeroizing;

use crate::run::{how_to_make, source_spec};

/// Which node to talk to, and as whom.
#[derive(Args, Clone, Debug)]
pub struct RemoteArgs {
    /// Address of the node's API, as host:port or https://host:port [default: node.api_listen of the configuration]
    #[arg(long, value_name = "HOST:PORT")]
    pub node: Option<String>,
    /// Name of the certificate to show, from the `pki` folder
    #[arg(long = "as", value_name = "NAME", default_value = "application")]
    pub identity: CameraName,
    /// File that holds a token (JWT) to show instead of a certificate [default: $TIDEGATE_TOKEN, if it is set]
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    pub token_file: Option<PathBuf>,
    /// User to be instead; its password is in --password-file or in $TIDEGATE_PASSWORD
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File that holds the user's password, without the end of its line
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
}

/// The variable that holds a token.
const TOKEN_VARIABLE: &str = "TIDEGATE_TOKEN";
/// The variable that holds a user's password.
const PASSWORD_VARIABLE: &str = "TIDEGATE_PASSWORD";
/// Holds the password of a network camera.
const SOURCE_PASSWORD_VARIABLE: &str = "TIDEGATE_SOURCE_PASSWORD";

impl RemoteArgs {
    /// A client of the node.
    pub(super) async fn connect(&self, config: &Config) -> Result<Client, ApiError> {
        let credentials = self.credentials(config)?;
        let usual = || config.node.api_listen.to_string();
        let endpoint = endpoint(&self.node.clone().unwrap_or_else(usual));
        Client::connect(&endpoint, credentials.server_name(NODE_SERVER_NAME)).await
    }

    /// The credentials to show. Secrets come from files or variables: every user of a machine can read the arguments
    /// of a program.
    fn credentials(&self, config: &Config) -> Result<Credentials, ApiError> {
        let pki = config.pki_dir();
        let authority = || {
            let path = pki.join("ca.pem");
            regular::read(&path).map(Credentials::from_authority).map_err(|error| {
                let text = format!("authority certificate {} cannot be read", path.display());
                ApiError::new(Code::CONFIG_INVALID, text).caused_by(error)
            })
        };
        if let Some(user) = &self.user {
            let password = secret(self.password_file.as_deref(), PASSWORD_VARIABLE)?;
            let password = password.ok_or_else(|| {
                let text = format!(
                    "the password of {user:?} is needed: --password-file or ${PASSWORD_VARIABLE}"
                );
                ApiError::new(Code::CONFIG_INVALID, text)
            })?;
            return authority()?.password(user, password.as_bytes());
        }
        if let Some(token) = secret(self.token_file.as_deref(), TOKEN_VARIABLE)? {
            return authority()?.token(&token);
        }
        let file = |end: &str| pki.join(format!("{}.{end}", self.identity));
        Credentials::load(pki.join("ca.pem"), file("pem"), file("key")).map_err(|error| {
            if file("pem").exists() && file("key").exists() && pki.join("ca.pem").exists() {
                return error;
            }
            let name = self.identity.as_str();
            let text = format!(
                "no usable certificate for the application {name}; {}; or --user or --token-file shows something else",
                how_to_make(config, Kind::Application, name)
            );
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(error.chain())
        })
    }
}

/// The address of an API that was written as `host:port` or as `https://host:port`.
fn endpoint(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("https://{text}") }
}

/// Arguments of `tidegate node`: everything is in the configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct NodeArgs {}

/// Arguments of `tidegate camera`.
#[derive(Args, Clone, Debug)]
pub struct CameraArgs {
    /// Name of the camera and of its certificate
    #[arg(long, default_value = "cam1")]
    pub name: CameraName,
    /// Where frames come from: folder:DIR, mjpeg:FILE, video:FILE, rtsp://…, v4l2:DEVICE or scene:street
    #[arg(long, default_value = "scene:street")]
    pub source: String,
    /// File whose first line is the password of an rtsp:// source, or USER:PASSWORD [default:
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
    let is_address = matches!(spec, SourceSpec::Rtsp { .. });
    if let Some(file) = file.filter(|_| !is_address) {
        let text =
            format!("{} holds a password, and only an rtsp:// source has one", file.display());
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
    /// The scene: a video file, a folder of JPEGs, or any other source
    #[arg(long, value_name = "SOURCE", required_unless_present = "link")]
    pub clip: Option<String>,
    /// File whose first line is the password of an rtsp:// clip, or USER:PASSWORD [default:
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
    /// Where to write the table; the picture goes next to it as SVG [default: tidegate.table, in
    /// frames.tables_dir if that is set]
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

/// The first line of a file, or else of a variable; none if there is neither.
fn secret(path: Option<&Path>, variable: &str) -> Result<Option<Zeroizing<String>>, ApiError> {
    let text = match path {
        Some(path) => Some(fs::read_to_string(path).map_err(|error| {
            let text = format!("{} cannot be read", path.display());
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(error)
        })?),
        None => env::var(variable).ok().filter(|text| !text.is_empty()),
    };
    let text = text.map(Zeroizing::new);
    Ok(text.map(|text| Zeroizing::new(text.lines().next().unwrap_or_default().to_owned())))
}

/// Text from elsewhere without what would steer a terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
