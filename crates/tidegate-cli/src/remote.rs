//! The node that a command talks to, and as whom.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use async_recursion::async_recursion as boxed;
use clap::Args;
use tidegate_api::ApiError;
use tidegate_client::{Client, Credentials};
use tidegate_config::Config;
use tidegate_identity::pki::NODE_SERVER_NAME;
use tidegate_message::{CameraName, Code};
use tidegate_sys::regular;
use zeroize::Zeroizing;

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
    /// User to log in as instead; its password is in --password-file or in $TIDEGATE_PASSWORD
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

impl RemoteArgs {
    /// A client of the node.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] for credentials that cannot be read, and those of the connection.
    #[boxed]
    pub async fn connect(&self, config: &Config) -> Result<Client, ApiError> {
        let usual = || config.node.api_listen.to_string();
        self.connect_to(config, &self.node.clone().unwrap_or_else(usual)).await
    }

    /// A client of the node at that address, as the same.
    ///
    /// # Errors
    /// Those of [`RemoteArgs::connect`].
    #[boxed]
    pub async fn connect_to(&self, config: &Config, address: &str) -> Result<Client, ApiError> {
        let credentials = self.credentials(config)?;
        Client::connect(&endpoint(address), credentials.server_name(NODE_SERVER_NAME)).await
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
                config.how_to_certify("application", name)
            );
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(error.chain())
        })
    }
}

/// The address of an API that was written as `host:port` or as `https://host:port`.
fn endpoint(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("https://{text}") }
}

/// The first line of a file, or else of a variable; none if there is neither.
///
/// # Errors
/// [`Code::CONFIG_INVALID`] if the file cannot be read.
pub fn secret(path: Option<&Path>, variable: &str) -> Result<Option<Zeroizing<String>>, ApiError> {
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
