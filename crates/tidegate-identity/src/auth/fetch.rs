//! Keys of tokens from where the issuer publishes them: an HTTPS address that answers with a JWKS.
//!
//! ```text
//!  start, each refresh, a token with an unknown key ──▶ GET ──▶ KeySet ──▶ Authenticator
//!                                                                └──▶ DATA_DIR/state/token-keys-….json, for the next start
//! ```
//!
//! Always true: only HTTPS whose certificate is trusted; one request at a time, each with an end, and its answer
//! with a bound; a failed fetch leaves the keys as they were; redirections are not followed.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{Request, StatusCode, Uri, body::Bytes, header};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tidegate_api::ApiError;
use tidegate_message::{Code, Confidential};
use tidegate_process::{
    clock,
    http::{self, HttpClient, HttpError},
};
use tidegate_sys::files;
use tokio::{sync::watch, time::timeout};

use super::{
    Authenticator,
    authenticator::KeysChanged,
    keys::{KEY_SET_BYTES_MAX, KeySet, KeySetError},
};

/// Longest that one request may take.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether a token wants newer keys.
const LOOK: Duration = Duration::from_millis(500);
/// After a request that failed, the next one comes by itself after this.
const RETRY: Duration = Duration::from_secs(60);

/// Where keys are fetched, and how.
#[derive(Clone)]
pub struct Fetcher {
    url: Uri,
    /// The same, for messages: its query may hold a secret.
    shown: Confidential,
    tls: Arc<ClientConfig>,
    kept: PathBuf,
    refresh: Duration,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("url", &self.shown).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Fetches the keys at the address `text` from a server that `tls` trusts, every `refresh`, and keeps them in the
    /// file `kept`.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`], naming the key of the configuration, and what `tls` fails with.
    pub fn new(
        text: &str,
        tls: impl FnOnce() -> Result<Arc<ClientConfig>, ApiError>,
        kept: PathBuf,
        refresh: Duration,
    ) -> Result<Self, ApiError> {
        let shown = Confidential::from(text);
        let wrong = || {
            let text = format!("auth.token_keys_url is {shown}; it must be an https:// address");
            ApiError::new(Code::CONFIG_INVALID, text)
        };
        let url: Uri = text.parse().map_err(|_| wrong())?;
        let (is_tls, host, _) = http::target(&url).map_err(|_| wrong())?;
        if !is_tls || ServerName::try_from(host).is_err() {
            return Err(wrong());
        }
        Ok(Self { url, shown, tls: tls()?, kept, refresh })
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
        let request = Request::get(self.url.clone())
            .header(header::ACCEPT, "application/jwk-set+json, application/json")
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .body(Full::<Bytes>::default())
            .expect("an address that was parsed makes a request");
        let answer = HttpClient::new(self.tls.clone(), KEY_SET_BYTES_MAX).send(request).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            status => Err(FetchError::Status { status: status.as_u16() }),
        }
    }

    /// Fetches, and has the authenticator use the new keys.
    async fn renew(&self, authenticator: &Authenticator) -> Option<KeysChanged> {
        match self.fetch().await {
            Ok((keys, json)) => {
                let count = keys.len();
                let changed = authenticator.set_keys(Some(keys));
                if changed != KeysChanged::Same {
                    tracing::info!(count, url = %self.shown, "the keys of tokens have changed");
                    let folder = self.kept.parent().unwrap_or(Path::new(""));
                    let kept = files::folder(folder, files::PRIVATE_FOLDER)
                        .and_then(|()| files::put(&self.kept, &json, files::PRIVATE));
                    if let Err(error) = kept {
                        tracing::warn!(%error, path = %self.kept.display(), "keys of tokens cannot be kept");
                    }
                }
                Some(changed)
            }
            // The issuer has answered: none of the former keys is among its current ones.
            Err(FetchError::Keys(error @ KeySetError::NoneFits { .. })) => {
                tracing::error!(%error, url = %self.shown, "the issuer withdrew all keys: no token is accepted");
                match fs::remove_file(&self.kept) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::error!(%error, path = %self.kept.display(), "withdrawn keys cannot be removed");
                    }
                    _ => {}
                }
                Some(authenticator.set_keys(None))
            }
            Err(error) => {
                let error = tidegate_message::error_chain(&error);
                tracing::warn!(%error, url = %self.shown, "keys of tokens cannot be fetched; they stay as they were");
                None
            }
        }
    }
}

/// Keeps the authenticator's keys fresh until the sender of `fetchers` is dropped: by the newest fetcher there is. Calls
/// `withdrawn` when a key is gone that clients may have been accepted by.
pub async fn run(
    mut fetchers: watch::Receiver<Option<Fetcher>>,
    authenticator: Arc<Authenticator>,
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
        let renewed = fetcher.renew(&authenticator).await;
        if renewed == Some(KeysChanged::Withdrawn) {
            withdrawn();
        }
        let is_renewed = renewed.is_some();
        let due =
            clock::now() + if is_renewed { fetcher.refresh } else { RETRY.min(fetcher.refresh) };
        while clock::now() < due && !authenticator.takes_wish_for_keys() {
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

/// Why no keys came.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server cannot be reached, its certificate is not accepted, or its answer is not whole or too large.
    #[error("there is no answer")]
    Http(#[from] HttpError),
    /// It took too long.
    #[error("no whole answer came within {} s", REQUEST_MAX.as_secs())]
    TooSlow,
    /// The server has another answer.
    #[error("the server answers with status {status}")]
    Status {
        /// Which.
        status: u16,
    },
    /// The answer is no set of keys.
    #[error("the answer is not used")]
    Keys(#[source] KeySetError),
}
