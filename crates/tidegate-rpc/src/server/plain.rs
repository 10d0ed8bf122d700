//! A listener without TLS and without a login, for pages and pictures: displays, players and home automation that know neither.
//!
//! Every caller has the rights of one configured user, whatever it shows. Callers at different addresses are told apart, as different callers
//! of the API are.
//!
//! Always true: no password, token or cookie is taken, and no body is read; a browser's request for a page of another site is refused, also
//! where that site's name leads here; at most so many connections are open, half of them at most from one address.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use sha2::{Digest as _, Sha256};
use tidegate_identity::{access::Identity, auth::Admitted, callers::Peer};
use tidegate_message::IdentityKind;
use tidegate_process::{
    arrivals::{TurnedAway, network},
    clock,
    descriptors::Front,
    newcomers::Newcomers,
    places::Places,
};
use tidegate_wire::NodeId;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ServerError,
    connection::{Caller, Connection},
    http1,
    room::Room,
    web::{self, Web},
};

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where and for whom to listen.
#[derive(Clone, Debug)]
pub struct PlainSettings {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The user whose rights every caller has.
    pub user: String,
    /// Names under which browsers may ask, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Connections at a time, at least 2; half of them at most from one address.
    pub connections_max: usize,
}

/// A listener that does not serve yet.
#[derive(Debug)]
pub struct Plain {
    listener: TcpListener,
    address: SocketAddr,
    settings: PlainSettings,
    known: Router,
    public: Router,
}

impl Plain {
    /// Listens. Requests to paths of `known` have the extensions `Arc<Identity>`, the configured user, `Arc<dyn Frames>` and `Arc<dyn Cameras>`; those of
    /// `public` have none.
    ///
    /// # Errors
    /// [`ServerError::Plain`] if the address is taken or is none of this machine.
    pub async fn bind(
        settings: PlainSettings,
        known: Router,
        public: Router,
    ) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Plain { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, settings, known, public })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, and then until the answers under way and WebSockets have ended.
    pub(super) async fn serve(self, web: Web, stop: CancellationToken) {
        let Self { listener, settings, known, public, .. } = self;
        let PlainSettings { user, hosts, connections_max, .. } = settings;
        let router = web::plain(web, hosts, known, public);
        let (mut connections, living) = (JoinSet::new(), TaskTracker::new());
        let (mut places, turned_away) = (Places::default(), TurnedAway::default());
        let newcomers = Newcomers::of_places(connections_max);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => http1::report(ended),
                accepted = listener.accept() => match accepted {
                    Ok((socket, peer)) => {
                        let Some(place) = places.take(peer.ip(), connections_max, Front::Api) else {
                            turned_away.one(clock::now(), peer, Front::Api);
                            continue;
                        };
                        let caller = caller(&user, peer);
                        let greeted = Connection::plain(socket, caller.clone(), place);
                        match greeted.and_then(|connection| connection.watched(&living)) {
                            Ok(connection) => {
                                let guest = newcomers.begin(peer.ip()).over(connection);
                                connections.spawn(
                                    http1::converse(guest, caller, router.clone(), stop.clone()),
                                );
                            }
                            Err(error) => tracing::debug!(%error, %peer, "a connection was gone before it was served"),
                        }
                    }
                    Err(error) => {
                        // Most likely out of file descriptors: wait for some to come free.
                        tracing::warn!(%error, "no connection without TLS was accepted");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        while let Some(ended) = connections.join_next().await {
            http1::report(ended);
        }
        living.close();
        living.wait().await;
    }
}

fn caller(user: &str, peer: SocketAddr) -> Arc<Caller> {
    let identity = Arc::new(identity(user, peer.ip()));
    let partial = Arc::new(Room::of_peer());
    Arc::new(Caller { peer: Peer::new(peer, Some(identity)), partial })
}

/// The caller at that address, with the rights of `user`.
fn identity(user: &str, address: IpAddr) -> Identity {
    // Nothing proves that a program of this machine is its administrator, who may do more from here.
    let shown = Some(address).filter(|address| !address.to_canonical().is_loopback());
    let who = tidegate_message::Identity {
        address: shown,
        ..tidegate_message::Identity::new(IdentityKind::User, user, "web")
    };
    let key = NodeId(Sha256::digest(format!("user {user} at {}", network(address))).into());
    // The configuration vouches for it, as an authority does for a certificate: no password can change under it.
    Identity { key, ..Identity::of_user(Admitted::by_certificate(who)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_have_the_rights_of_the_user_and_are_told_apart_by_address() {
        let [near, far, same] = ["127.0.0.1", "192.0.2.1", "192.0.2.1"]
            .map(|address| identity("wall", address.parse().unwrap()));
        assert_eq!((near.name(), near.who().kind), ("wall", IdentityKind::User));
        assert_eq!((near.who().address, far.who().address), (None, "192.0.2.1".parse().ok()));
        assert!(near.key != far.key && far.key == same.key);
    }
}
