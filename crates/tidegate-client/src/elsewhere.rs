//! Cameras of other nodes: a call about one goes to the node that serves it.
//!
//! ```text
//! call ──▶ the node that is remembered for the camera ── not there ──┐
//!   └────▶ the node of this client ◀─────────────────────────────────┘
//!               │ elsewhere            │ elsewhere
//!               └──▶ the named node ───┴──▶ the named node ── elsewhere ──▶ fails
//! ```
//!
//! Always true: a token or a password goes to another node over TLS alone, and only where its certificate is one that the first connection
//! would take: of the same authority, for the name that was given or else for the host of the address. A client whose first connection has
//! no TLS follows nowhere. A node that answers by another name than the one that was named serves no call. A call makes two steps at most.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_recursion::async_recursion as boxed;
use tidegate_api::Place;
use tidegate_message::{CameraName, Code};

use crate::{ApiError, Client, ConnectOptions, Credentials};

/// One step leads to the node; the second is for a camera that has just moved and of which the first node has not heard.
const STEPS_MAX: usize = 2;
/// Cameras whose nodes are remembered, and so the connections that are kept at most; the one that was asked for least recently is forgotten.
const CAMERAS_MAX: usize = 256;
/// Addresses of a node that are tried.
const ADDRESSES_MAX: usize = 8;

/// The nodes that serve cameras which the node of a client does not.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    credentials: Credentials,
    options: ConnectOptions,
    /// The camera that was asked for last stands last. Cameras of one node share its connection.
    known: Mutex<VecDeque<(CameraName, Client)>>,
}

impl Elsewhere {
    pub(crate) fn new(credentials: Credentials, options: &ConnectOptions) -> Self {
        // The caller tries again, beginning with its own node: the camera may be elsewhere by then.
        let options = ConnectOptions { max_reconnects: 0, follow: false, ..options.clone() };
        Self { credentials, options, known: Mutex::default() }
    }

    /// Makes a call about a camera at the node that serves it, beginning with `own`; once, without waits.
    ///
    /// # Errors
    /// As the call fails; [`Code::LINK_DOWN`] or [`Code::IDENTITY_REFUSED`] if a node that was named is not reached.
    pub(crate) async fn call<A, F>(
        &self,
        own: &Client,
        camera: &CameraName,
        call: impl Fn(Client) -> F,
    ) -> Result<A, ApiError>
    where
        F: Future<Output = Result<A, ApiError>>,
    {
        if let Some(known) = self.known(camera) {
            match call(known.clone()).await {
                Err(error) if is_away(error.code()) => self.lose(&known),
                Err(error) if is_missing(error.code()) => {} // the connection may serve yet
                result => return result,
            }
        }
        let mut named: Option<(Client, Place)> = None;
        let mut steps = 0;
        loop {
            let at = named.as_ref().map_or(own, |(client, _)| client);
            let error = match (call(at.clone()).await, &named) {
                (Err(error), _) if error.code() == Code::CAMERA_ELSEWHERE => error,
                (Err(error), Some((_, place))) if is_away(error.code()) => {
                    self.lose(at);
                    return Err(unreached(own, camera, place, error));
                }
                (result, Some((client, _))) => {
                    self.remember(camera, client);
                    return result;
                }
                (result, None) => {
                    self.forget(camera);
                    return result;
                }
            };
            let Some(place) = error.place().filter(|place| !place.addresses.is_empty()).cloned()
            else {
                return Err(error);
            };
            steps += 1;
            if steps > STEPS_MAX {
                self.forget(camera);
                let (here, there) = (own.node(), &place.node);
                let text = format!(
                    "camera {camera} was not found from node {here} in {STEPS_MAX} steps: node {} says that it is at node {there}",
                    at.node()
                );
                return Err(ApiError::new(Code::CAMERA_ELSEWHERE, text).at(place));
            }
            let next = self.reach(at, camera, &place).await?;
            named = Some((next, place));
        }
    }

    /// A client of the node that `from` named.
    #[boxed]
    async fn reach(
        &self,
        from: &Client,
        camera: &CameraName,
        place: &Place,
    ) -> Result<Client, ApiError> {
        let endpoints = place.addresses.iter().take(ADDRESSES_MAX);
        let endpoints: Vec<_> = endpoints.map(|address| format!("https://{address}")).collect();
        if let Some(client) = self.connected(&place.node, &endpoints) {
            return Ok(client);
        }
        let mut last: Option<ApiError> = None;
        for endpoint in &endpoints {
            let connected =
                Client::connect_with(endpoint, self.credentials.clone(), self.options.clone());
            let error = match connected.await {
                Ok(client) if client.node() == place.node => return Ok(client),
                // The address is one of a private network, of which there are many.
                Ok(client) => ApiError::new(
                    Code::LINK_DOWN,
                    format!("node {} answers at {endpoint}", client.node()),
                ),
                Err(error) => error,
            };
            // A refusal says more than an address that leads nowhere from here.
            if last.as_ref().is_none_or(|last| last.code() == Code::LINK_DOWN) {
                last = Some(error);
            }
        }
        let none = || ApiError::new(Code::LINK_DOWN, "it has no address");
        Err(unreached(from, camera, place, last.unwrap_or_else(none)))
    }

    fn known(&self, camera: &CameraName) -> Option<Client> {
        let mut known = self.lock();
        let place = known.iter().position(|(held, _)| held == camera)?;
        let entry = known.remove(place)?;
        let client = entry.1.clone();
        known.push_back(entry);
        Some(client)
    }

    fn connected(&self, node: &str, endpoints: &[String]) -> Option<Client> {
        let known = self.lock();
        let is_it = |client: &Client| {
            client.node() == node && endpoints.iter().any(|it| it == client.endpoint())
        };
        known.iter().map(|(_, client)| client).find(|client| is_it(client)).cloned()
    }

    fn remember(&self, camera: &CameraName, client: &Client) {
        let mut known = self.lock();
        known.retain(|(held, _)| held != camera);
        if known.len() == CAMERAS_MAX {
            known.pop_front();
        }
        known.push_back((camera.clone(), client.clone()));
    }

    fn forget(&self, camera: &CameraName) {
        self.lock().retain(|(held, _)| held != camera);
    }

    /// Forgets a node, for all cameras.
    fn lose(&self, client: &Client) {
        self.lock().retain(|(_, held)| held.endpoint() != client.endpoint());
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(CameraName, Client)>> {
        // Whole between two of its methods, none of which panics.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The node is not reached, or is no longer who it was.
fn is_away(code: Code) -> bool {
    matches!(code, Code::LINK_DOWN | Code::IDENTITY_REFUSED | Code::IDENTITY_REVOKED)
}

/// The node is there, and the camera may be at another by now.
fn is_missing(code: Code) -> bool {
    matches!(code, Code::CAMERA_ELSEWHERE | Code::CAMERA_UNKNOWN | Code::CAMERA_OFFLINE)
}

fn unreached(from: &Client, camera: &CameraName, place: &Place, error: ApiError) -> ApiError {
    let code = if is_away(error.code()) { error.code() } else { Code::LINK_DOWN };
    let (node, addresses) = (&place.node, place.addresses.join(" or "));
    let text = format!(
        "node {} says that camera {camera} is at node {node}, which is not reached at {addresses}",
        from.node()
    );
    ApiError::new(code, text).at(place.clone()).caused_by(error.chain())
}
