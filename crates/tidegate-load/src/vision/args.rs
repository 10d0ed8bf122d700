//! The flags of a load of images, for any program that flattens them.

use std::{env, fs, io, path::PathBuf, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::{Args, ValueEnum};
use rustls::ClientConfig;
use tidegate_identity::pki::servers::AnyServer;

use super::{
    images::{Frames, ImageError, load},
    link::Target,
    spec::{Connection, Counting, VisionSpec},
};
use crate::{
    connect::{ConnectError, TlsArgs, password, trusting},
    flag::seconds,
    url::{UrlError, host_and_port},
};

/// Ports: those of the paper's server for plain connections, ours with TLS.
const HTTP_PORT: u16 = 8008;
const TCP_PORT: u16 = 8011;
const TLS_PORT: u16 = 7080;
/// The variable that holds a token.
const TOKEN_VARIABLE: &str = "TIDEGATE_TOKEN";

/// Flags that make a [`VisionSpec`].
#[derive(Args, Clone, Debug)]
pub struct VisionArgs {
    /// Server's host, with a port if it is not the usual one: 8008, for TCP 8011, for gRPC and with --tls 7080
    #[arg(long, short, value_name = "HOST[:PORT]")]
    pub server: String,
    /// Path to send images to, such as /v1/detect/face, or for gRPC a model's name; a WebSocket of the old paths is behind /ws by itself
    #[arg(long, short, value_name = "PATH", default_value = "/detector/detect/")]
    pub endpoint: String,
    /// How images are sent
    #[arg(
        long,
        short,
        value_enum,
        default_value = "rest",
        alias = "connection-method",
        value_name = "WAY"
    )]
    pub connection: Connection,
    /// Make a connection for each request, as multi_client.py does with REST
    #[arg(long)]
    pub connection_per_request: bool,
    /// Image to send, JPEG or PNG, or a video whose frames are sent (takes ffmpeg); may be repeated
    #[arg(long, short, value_name = "FILE", alias = "filename")]
    pub file: Vec<PathBuf>,
    /// Folder of images to send (*.jpg, *.jpeg, *.png)
    #[arg(long, short, value_name = "FOLDER")]
    pub directory: Option<PathBuf>,
    /// Number of times that each client sends all images
    #[arg(long, short, value_name = "N", default_value_t = 1, alias = "repeat", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Send for so many seconds instead
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "repeats")]
    pub seconds: Option<Duration>,
    /// Clients, each a thread with a connection
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub threads: u32,
    /// Requests per second of all clients together, due whether answers come or not; latency counts from when each was due
    #[arg(long, value_name = "RATE")]
    pub rate: Option<f64>,
    /// Requests of each client that are sent first and not measured
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warm_up: u32,
    /// How the network alone is timed: a fresh TCP connect each 100 ms, or not at all. ICMP takes rights, so PING is the same
    #[arg(
        long,
        short,
        value_enum,
        ignore_case = true,
        default_value = "socket",
        alias = "network-latency",
        value_name = "WAY"
    )]
    pub network: Network,
    /// Of a video, send every Nth frame
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub skip_frames: u32,
    /// Send frames of a video as large as they are, not as 240 x 180
    #[arg(long, alias = "fullsize")]
    pub full_size: bool,
    /// Use TLS, as --cafile alone does, too
    #[arg(long)]
    pub tls: bool,
    /// Trust any certificate of the server
    #[arg(long, requires = "tls", alias = "noverify")]
    pub insecure: bool,
    /// The name in the server's certificate, where that is not its host
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Certificates
    #[command(flatten)]
    pub certificates: TlsArgs,
    /// User to log in as; the password is in --password-file or in $TIDEGATE_PASSWORD
    #[arg(long, value_name = "NAME", conflicts_with = "token_file")]
    pub user: Option<String>,
    /// File whose first line is the user's password
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
    /// File whose first line is a token to show [default: $TIDEGATE_TOKEN, if it is set]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Ask the server for the use of its machine (/server/usage/) each 1.5 s
    #[arg(long)]
    pub server_stats: bool,
    /// Print each answer
    #[arg(long)]
    pub show_responses: bool,
    /// Seconds to wait for a connection and for each part of an answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub timeout: Duration,
}

/// How the network alone is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// A fresh TCP connect.
    #[value(alias = "ping")]
    Socket,
    /// Not at all.
    None,
}

impl VisionArgs {
    /// The load that these flags ask for, with its images read.
    ///
    /// # Errors
    /// Any of [`VisionArgsError`].
    pub fn spec(&self) -> Result<VisionSpec, VisionArgsError> {
        let (host, port) = host_and_port(&self.server, false)?;
        let tls = self.tls()?;
        let port = port.unwrap_or(match (self.connection, tls.is_some()) {
            (_, true) | (Connection::Grpc | Connection::GrpcStream, _) => TLS_PORT,
            (Connection::Tcp, false) => TCP_PORT,
            _ => HTTP_PORT,
        });
        let stats_port = match self.connection {
            Connection::Tcp => HTTP_PORT,
            connection if connection.is_grpc() && tls.is_none() => HTTP_PORT,
            _ => port,
        };
        if self.timeout.is_zero() {
            return Err(VisionArgsError::Timeout);
        }
        let frames = Frames { every: self.skip_frames, full_size: self.full_size };
        Ok(VisionSpec {
            target: Target {
                host,
                port,
                tls: tls.map(Arc::new),
                server_name: self.server_name.clone(),
                timeout: self.timeout,
            },
            endpoint: self.endpoint.clone(),
            connection: self.connection,
            connection_per_request: self.connection_per_request,
            authorization: self.authorization()?,
            images: load(&self.file, self.directory.as_deref(), frames)?,
            threads: self.threads,
            counting: self.seconds.map_or(Counting::Repeats(self.repeats), Counting::For),
            rate: self.rate,
            warm_up: self.warm_up,
            network: self.network == Network::Socket,
            stats_port: self.server_stats.then_some(stats_port),
            keep_times: false,
        })
    }

    fn tls(&self) -> Result<Option<ClientConfig>, VisionArgsError> {
        match (self.certificates.config()?, self.insecure) {
            (Some(_), true) => Err(VisionArgsError::TrustTwice),
            (Some(config), false) => Ok(Some(config)),
            (None, true) => {
                let any = trusting(Arc::new(AnyServer::default())).map_err(ConnectError::Tls)?;
                Ok(Some(any.with_no_client_auth()))
            }
            (None, false) if self.tls => Err(VisionArgsError::NoAuthority),
            (None, false) => Ok(None),
        }
    }

    fn authorization(&self) -> Result<Option<String>, VisionArgsError> {
        if let Some(user) = &self.user {
            let password = password(self.password_file.as_deref(), true)?;
            let password = password.ok_or(VisionArgsError::NoPassword)?;
            return Ok(Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))));
        }
        let token = match &self.token_file {
            Some(path) => {
                let unread = |source| VisionArgsError::TokenFile { path: path.clone(), source };
                Some(fs::read_to_string(path).map_err(unread)?)
            }
            // A variable is for every program, and TCP has no login.
            None if self.connection == Connection::Tcp => None,
            None => env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()),
        };
        let first = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
        let token = token.map(first);
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(VisionArgsError::Token);
        }
        Ok(token.map(|token| format!("Bearer {token}")))
    }
}

/// Reason why flags make no load.
#[derive(Debug, thiserror::Error)]
pub enum VisionArgsError {
    /// The server cannot be reached as it is named.
    #[error(transparent)]
    Host(#[from] UrlError),
    /// Certificates or secrets cannot be read.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There are no images.
    #[error(transparent)]
    Images(#[from] ImageError),
    /// The file of a token cannot be read.
    #[error("the token cannot be read from {}", path.display())]
    TokenFile {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// TLS without an authority.
    #[error(
        "--tls needs an authority to trust: --cafile FILE, or --insecure to trust any certificate"
    )]
    NoAuthority,
    /// Two ways to trust.
    #[error("--cafile and --insecure exclude each other: trust this authority, or any certificate")]
    TrustTwice,
    /// No password for the user.
    #[error("the user's password is needed: --password-file or $TIDEGATE_PASSWORD")]
    NoPassword,
    /// A token with characters that it cannot have.
    #[error("the token has characters that cannot stand in a request")]
    Token,
    /// No time at all.
    #[error("a --timeout of 0 leaves no time for any answer; give it a second or more")]
    Timeout,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        vision: VisionArgs,
    }

    /// The load of these flags, with one image.
    fn spec(flags: &str) -> Result<VisionSpec, VisionArgsError> {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("one.jpg");
        fs::write(&image, b"\xff\xd8").unwrap();
        let image = image.display().to_string();
        let words = ["vision", "-f", &image].into_iter().chain(flags.split_whitespace());
        Program::try_parse_from(words).unwrap().vision.spec()
    }

    #[test]
    fn ports_follow_the_connection() {
        for (flags, host, port) in [
            ("-s edge", "edge", 8008),
            ("-s edge -c websocket", "edge", 8008),
            ("-s edge -c tcp", "edge", 8011),
            ("-s edge --connection-method socket", "edge", 8011),
            ("-s edge --tls --insecure", "edge", 7080),
            ("-s edge -c grpc", "edge", 7080),
            ("-s edge -c grpc-stream --tls --insecure", "edge", 7080),
            ("-s edge:9 -c tcp", "edge", 9),
            ("-s [::1]:9", "::1", 9),
        ] {
            let spec = spec(flags).unwrap();
            assert_eq!((&*spec.target.host, spec.target.port), (host, port), "{flags}");
        }
        assert_eq!(spec("-s edge -c tcp --server-stats").unwrap().stats_port, Some(8008));
        assert_eq!(spec("-s edge --server-stats").unwrap().stats_port, Some(8008));
        assert!(!spec("-s edge -n NONE").unwrap().network);
        assert!(spec("-s edge --network-latency PING").unwrap().network);
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_a_way_out() {
        for (flags, expected) in [
            ("-s edge --tls", "--cafile FILE, or --insecure"),
            ("-s a_b]", "is not a host"),
            ("-s edge --timeout 0", "give it a second or more"),
            ("-s edge --user ann --password-file /nonexistent", "password cannot be read"),
            ("-s edge --token-file /nonexistent", "the token cannot be read from /nonexistent"),
        ] {
            let error = spec(flags).unwrap_err().to_string();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }

    #[test]
    fn a_login_is_sent_as_http_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "open sesame\nmore\n").unwrap();
        let user = spec(&format!("-s edge --user ann --password-file {}", file.display())).unwrap();
        // "ann:open sesame"
        assert_eq!(user.authorization.as_deref(), Some("Basic YW5uOm9wZW4gc2VzYW1l"));
        fs::write(&file, "a.b.c\n").unwrap();
        let token = spec(&format!("-s edge --token-file {}", file.display())).unwrap();
        assert_eq!(token.authorization.as_deref(), Some("Bearer a.b.c"));
        fs::write(&file, "a b\n").unwrap();
        let error = spec(&format!("-s edge --token-file {}", file.display())).unwrap_err();
        assert!(matches!(error, VisionArgsError::Token), "{error}");
    }
}
