//! Flags of a connection: where the broker is, who comes, and whom to trust.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{ArgAction, Args};
use rustls::{
    ClientConfig, ConfigBuilder,
    client::{WantsClientCert, danger::ServerCertVerifier},
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject as _},
};
use tidegate_identity::pki::servers::{NotCertified, TrustedServers, certified};
use tidegate_wire::mqtt::{QoS, UserProperties, Version, Will};

use crate::{
    client::Options,
    flag::{qos, version},
    url::{BrokerUrl, UrlError},
};

/// Flags of a connection.
#[derive(Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub struct ConnectArgs {
    /// Broker's host, or its URL: mqtt://HOST, mqtts://HOST, ws://HOST/PATH, wss://HOST/PATH, each with :PORT if need be
    #[arg(short = 'h', long, value_name = "HOST|URL", default_value = "127.0.0.1")]
    pub host: BrokerUrl,
    /// Print help; the short flag is the host's, as users of mosquitto_pub and mosquitto_sub know it
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    /// Broker's port [default: 1883, or 8883 with --cafile; 8083 of ws, 8084 of wss]
    #[arg(short, long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Version of MQTT: 3.1, 3.1.1 or 5
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = version)]
    pub mqtt: Version,
    /// Client identifier; without it the broker chooses one
    #[arg(short, long, value_name = "ID", default_value = "")]
    pub id: String,
    /// Keep the session that the broker has of this client, and let it keep this one
    #[arg(short = 'c', long)]
    pub no_clean_start: bool,
    /// Seconds that the session outlives the connection (MQTT 5)
    #[arg(short = 'x', long, value_name = "SECONDS")]
    pub session_expiry: Option<u32>,
    /// Keep alive in seconds, 0 for none
    #[arg(short, long, value_name = "SECONDS", default_value_t = 60)]
    pub keep_alive: u16,
    /// User name
    #[arg(short, long, value_name = "NAME")]
    pub username: Option<String>,
    /// File whose first line is the password [default: $TIDEGATE_PASSWORD, with a user name]
    #[arg(short = 'P', long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Topic of a message that the broker sends if this client's connection ends without a DISCONNECT
    #[arg(long, value_name = "TOPIC")]
    pub will_topic: Option<String>,
    /// Its payload
    #[arg(long, value_name = "TEXT", requires = "will_topic", default_value = "")]
    pub will_payload: String,
    /// Its quality of service
    #[arg(long, value_name = "0|1|2", requires = "will_topic", default_value = "0", value_parser = qos)]
    pub will_qos: QoS,
    /// Whether the broker keeps it
    #[arg(long, requires = "will_topic")]
    pub will_retain: bool,
    /// Seconds before it is sent (MQTT 5)
    #[arg(long, value_name = "SECONDS", requires = "will_topic", default_value_t = 0)]
    pub will_delay: u32,
    /// TLS
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Seconds to wait for the connection and for each answer
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub timeout: u32,
}

/// Flags of TLS.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsArgs {
    /// Use TLS, and trust the certificates in this PEM file
    #[arg(long, value_name = "FILE")]
    pub cafile: Option<PathBuf>,
    /// This client's certificates, PEM
    #[arg(long, value_name = "FILE", requires_all = ["key", "cafile"])]
    pub cert: Option<PathBuf>,
    /// This client's key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

impl ConnectArgs {
    /// How to connect.
    ///
    /// # Errors
    /// Any of [`ConnectError`].
    pub fn options(&self, user_properties: UserProperties) -> Result<Options, ConnectError> {
        let tls = self.tls.config()?;
        let endpoint = self.host.endpoint(self.port, tls.is_some())?;
        let will = self.will_topic.clone().map(|topic| Will {
            topic,
            payload: self.will_payload.clone().into_bytes(),
            qos: self.will_qos,
            retain: self.will_retain,
            delay: self.will_delay,
            message_expiry: None,
            forwarded: Vec::new(),
        });
        Ok(Options {
            host: endpoint.host,
            port: endpoint.port,
            websocket: endpoint.websocket,
            tls: tls.map(Arc::new),
            version: self.mqtt,
            client_id: self.id.clone(),
            clean_start: !self.no_clean_start,
            keep_alive: self.keep_alive,
            session_expiry: self.session_expiry,
            username: self.username.clone(),
            password: password(self.password_file.as_deref(), self.username.is_some())?
                .map(String::into_bytes),
            will,
            user_properties,
            timeout: Duration::from_secs(u64::from(self.timeout.max(1))),
            ..Options::default()
        })
    }
}

/// The variable that holds a password.
const PASSWORD_VARIABLE: &str = "TIDEGATE_PASSWORD";

/// The first line of a file, or with a user name that of the variable `TIDEGATE_PASSWORD`: everybody on a machine can read the
/// arguments of a program.
///
/// # Errors
/// `Password` of [`ConnectError`].
pub(crate) fn password(
    path: Option<&Path>,
    has_user: bool,
) -> Result<Option<String>, ConnectError> {
    let text = match path {
        Some(path) => Some(
            fs::read_to_string(path)
                .map_err(|source| ConnectError::Password { path: path.to_owned(), source })?,
        ),
        None => env::var(PASSWORD_VARIABLE).ok().filter(|text| has_user && !text.is_empty()),
    };
    Ok(text.map(|text| text.lines().next().unwrap_or_default().to_owned()))
}

impl TlsArgs {
    /// TLS as the flags say; none without `--cafile`.
    ///
    /// # Errors
    /// `Pem` and `Tls` of [`ConnectError`].
    pub fn config(&self) -> Result<Option<ClientConfig>, ConnectError> {
        let Some(authority) = &self.cafile else { return Ok(None) };
        let trusted = Arc::new(TrustedServers::new(certificates(authority)?)?);
        let config = trusting(trusted)?;
        Ok(Some(match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|source| ConnectError::Pem { path: key.clone(), source })?;
                config.with_client_cert_resolver(certified(certificates(cert)?, key)?)
            }
            _ => config.with_no_client_auth(),
        }))
    }
}

/// TLS of a client that trusts what `verifier` does, without a certificate of its own yet.
pub(crate) fn trusting(
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier))
}

/// The certificates of a file; there is at least one.
fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .and_then(|found| if found.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(found) })
        .map_err(|source| ConnectError::Pem { path: path.clone(), source })
}

/// Why flags make no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The broker cannot be reached as it is named.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// A file of certificates or a key cannot be read.
    #[error("{} holds no certificate or key", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// Its fault.
        #[source]
        source: pem::Error,
    },
    /// The file of a password cannot be read.
    #[error("the password cannot be read from {}", path.display())]
    Password {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Certificates or key do not make a TLS connection.
    #[error("TLS cannot be used with these certificates")]
    Tls(#[from] rustls::Error),
    /// The own certificate and its key do not go together.
    #[error("--cert and --key do not go together")]
    Certified(#[from] NotCertified),
}
