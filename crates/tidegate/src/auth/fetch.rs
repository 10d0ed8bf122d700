//! Keys of tokens from where the issuer publishes them: an HTTPS address that answers with a JWKS.
//!
//! ```text
//!  start, each refresh, a token with an unknown key ──▶ GET ──▶ KeySet ──▶ Doors
//!                                                                └──▶ DATA_DIR/state/token-keys-….json, for the next start
//! ```
//!
//! Always true: only HTTPS whose certificate an authority vouches for; one request at a time, each with an end, and its answer
//! with a bound; what cannot be fetched leaves the keys as they were; redirections are not followed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode, Uri, body::Bytes, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig,
    crypto::ring,
    version::{TLS12, TLS13},
};
use rustls_pki_types::ServerName;
use sha2::{Digest as _, Sha256};
use tidegate_client::ApiError;
use tidegate_message::Code;
use tokio::{net::TcpStream, sync::watch, time::timeout};
use tokio_rustls::TlsConnector;

use super::{
    Doors,
    doors::KeysChanged,
    keys::{KEY_SET_BYTES_MAX, KeySet, KeySetError},
};
use crate::{clock, config::Config};

/// Longest that one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether a token wants newer keys.
const LOOK: Duration = Duration::from_millis(500);
/// After a request that failed, the next one comes by itself after this.
const RETRY: Duration = Duration::from_secs(60);

/// Where keys are fetched, and how.
#[derive(Clone, Debug)]
pub struct Fetcher {
    url: Uri,
    host: String,
    port: u16,
    tls: Arc<ClientConfig>,
    kept: PathBuf,
    refresh: Duration,
}

/// Where keys that were fetched from `url` are kept for the next start. They are public. Those of another address are others'.
pub(super) fn kept_path(config: &Config, url: &str) -> PathBuf {
    let digest = Sha256::digest(url);
    let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    config.node.data_dir.join(format!("state/token-keys-{name}.json"))
}

impl Fetcher {
    /// As `[auth]` says; none if no keys are fetched.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`], naming the key.
    pub fn of(config: &Config) -> Result<Option<Self>, ApiError> {
        let section = &config.auth;
        let Some(text) = &section.token_keys_url else { return Ok(None) };
        let wrong = || {
            let text = format!("auth.token_keys_url is {text:?}; it must be an https:// address");
            ApiError::new(Code::CONFIG_INVALID, text)
        };
        let url: Uri = text.parse().map_err(|_| wrong())?;
        let host = url.host().filter(|_| url.scheme_str() == Some("https")).ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        ServerName::try_from(host.as_str()).map_err(|_| wrong())?;
        let ca = section.token_keys_ca.as_deref();
        let roots = crate::mqtt::authorities("auth.token_keys_ca", ca)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| {
                ApiError::new(Code::INTERNAL, "TLS cannot be configured").caused_by(error)
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Some(Self {
            port: url.port_u16().unwrap_or(443),
            url,
            host,
            tls: Arc::new(tls),
            kept: kept_path(config, text),
            refresh: section.token_keys_refresh,
        }))
    }

    /// The keys of now.
    ///
    /// # Errors
    /// [`FetchError`].
    ///
    /// # Cancel safety
    /// Dropping it ends the connection.
    pub async fn fetch(&self) -> Result<(KeySet, Bytes), FetchError> {
        let json = timeout(REQUEST_MAX, self.get()).await.map_err(|_| FetchError::TooSlow)??;
        Ok((KeySet::parse(&json).map_err(FetchError::Keys)?, json))
    }

    async fn get(&self) -> Result<Bytes, FetchError> {
        let socket =
            TcpStream::connect((&*self.host, self.port)).await.map_err(FetchError::Connect)?;
        let name =
            ServerName::try_from(self.host.clone()).expect("it was checked when it was read");
        let stream = TlsConnector::from(self.tls.clone())
            .connect(name, socket)
            .await
            .map_err(FetchError::Connect)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(FetchError::Http)?;
        let authority = self.url.authority().map_or("", |authority| authority.as_str());
        let path = self.url.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path)
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/jwk-set+json, application/json")
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())
            .expect("an address that was parsed makes a request");
        let answer = async {
            let answer = sender.send_request(request).await.map_err(FetchError::Http)?;
            if answer.status() != StatusCode::OK {
                return Err(FetchError::Status { status: answer.status().as_u16() });
            }
            let body = Limited::new(answer.into_body(), KEY_SET_BYTES_MAX);
            Ok(body.collect().await.map_err(FetchError::Body)?.to_bytes())
        };
        let mut connection = std::pin::pin!(connection);
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            // It drives the answer, which is told as well if it breaks.
            _ = &mut connection => answer.await,
        }
    }

    /// Fetches, and has the doors go by what came.
    async fn renew(&self, doors: &Doors) -> Option<KeysChanged> {
        match self.fetch().await {
            Ok((keys, json)) => {
                let count = keys.len();
                let changed = doors.set_keys(Some(keys));
                if changed != KeysChanged::Same {
                    tracing::info!(count, url = %self.url, "other keys of tokens");
                    if let Err(error) = keep(&self.kept, &json) {
                        tracing::warn!(%error, path = %self.kept.display(), "keys of tokens cannot be kept");
                    }
                }
                Some(changed)
            }
            // The issuer has spoken: none of the keys of before is among its keys of now.
            Err(FetchError::Keys(error @ KeySetError::NoneFits { .. })) => {
                tracing::error!(%error, url = %self.url, "the issuer withdrew all keys: no token is accepted");
                match fs::remove_file(&self.kept) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::error!(%error, path = %self.kept.display(), "withdrawn keys cannot be removed");
                    }
                    _ => {}
                }
                Some(doors.set_keys(None))
            }
            Err(error) => {
                let error = crate::error_chain(&error);
                tracing::warn!(%error, url = %self.url, "keys of tokens cannot be fetched; they stay as they were");
                None
            }
        }
    }
}

/// Keeps the doors in keys until the sender of `fetchers` is dropped: by the newest fetcher there is. Calls `withdrawn` when a
/// key is gone, by which somebody may have come in.
pub async fn run(
    mut fetchers: watch::Receiver<Option<Fetcher>>,
    doors: Arc<Doors>,
    withdrawn: impl Fn(),
) {
    loop {
        let fetcher = fetchers.borrow_and_update().clone();
        let Some(fetcher) = fetcher else {
            if fetchers.changed().await.is_err() {
                return;
            }
            continue;
        };
        let renewed = fetcher.renew(&doors).await;
        if renewed == Some(KeysChanged::Withdrawn) {
            withdrawn();
        }
        let is_renewed = renewed.is_some();
        let due =
            clock::now() + if is_renewed { fetcher.refresh } else { RETRY.min(fetcher.refresh) };
        while clock::now() < due && !doors.takes_wish_for_keys() {
            tokio::select! {
                changed = fetchers.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

/// Whole or not at all.
fn keep(path: &Path, json: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&beside, json)?;
    fs::rename(&beside, path)
}

/// Why no keys came.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server cannot be reached, or its certificate is not accepted.
    #[error("the server cannot be reached")]
    Connect(#[source] io::Error),
    /// It took too long.
    #[error("no whole answer came within {} s", REQUEST_MAX.as_secs())]
    TooSlow,
    /// The server does not speak HTTP/1.1 as it should.
    #[error("the server broke off")]
    Http(#[source] hyper::Error),
    /// The server has another answer.
    #[error("the server answers with status {status}")]
    Status {
        /// Which.
        status: u16,
    },
    /// The answer is too large or not whole.
    #[error("the answer is not whole, or larger than {KEY_SET_BYTES_MAX} bytes")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is no set of keys.
    #[error("the answer is not used")]
    Keys(#[source] KeySetError),
}
