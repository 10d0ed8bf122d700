//! The connections to the APIs of other members, one to each, made when it is needed.
//!
//! Always true: the node at the other end has the key of the member that is meant; a member that was not reached is tried again after
//! [`AGAIN`], however many wait for it.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls_pki_types::ServerName;
use tidegate_api::ApiError;
use tidegate_client::{Client, ConnectOptions, Dial, Io};
use tidegate_identity::pki::{
    Credentials, NODE_SERVER_NAME, PeerIdentity, PkiError, Revocations, Serial,
};
use tidegate_message::{Code, Instant, error_chain};
use tidegate_process::clock;
use tidegate_wire::NodeId;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{Member, Members};

const HTTP2: &[u8] = b"h2";
/// How long one address may take to answer, and a member in all.
const ADDRESS_MAX: Duration = Duration::from_secs(2);
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Addresses of a member that are tried.
const ADDRESSES_MAX: usize = 8;
/// A member that was not reached is not tried before.
const AGAIN: Duration = Duration::from_secs(1);
/// A connection that was not asked for so long is kept by the streams that use it, and by nothing else.
const UNUSED_MAX: Duration = Duration::from_secs(60);
/// A member that hangs is noticed after twice that, while something is asked of it: about as soon as a camera that hangs is.
const KEEP_ALIVE: Duration = Duration::from_millis(1500);
/// How long a call with one answer may take: a member waits for its camera for five seconds.
const CALL_MAX: Duration = Duration::from_secs(8);
/// Tries of a stream whose connection broke: a minute and a half, in which a member restarts.
const TRIES: u32 = 40;
/// Bytes of one stream under way unread: more waits at the member, which sends the newest.
const WINDOW_BYTES: u32 = 1 << 20;

/// The connections of a relay.
pub(crate) struct Connections {
    dialler: Arc<Dialler>,
    revocations: Arc<Revocations>,
    by_node: Mutex<HashMap<NodeId, Entry>>,
}

struct Entry {
    used_at: Instant,
    /// Held by whoever connects.
    slot: Arc<tokio::sync::Mutex<Slot>>,
}

#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    Made(Arc<Connection>),
    Failed {
        at: Instant,
        code: Code,
        text: String,
    },
}

/// A connection to a member, which is made again by itself where it broke.
pub(crate) struct Connection {
    client: Client,
    /// Of the certificate that was shown last.
    serial: Arc<Mutex<Option<Serial>>>,
    revocations: Arc<Revocations>,
}

impl Connection {
    /// For calls on behalf of the one that is named so.
    pub(crate) fn on_behalf(&self, named: &[u8]) -> Client {
        self.client.on_behalf(named)
    }

    /// The same for a subscription, which goes on where its connection is made again.
    pub(crate) fn lasting(&self, named: &[u8]) -> Client {
        self.client.on_behalf(named).with_reconnects(TRIES)
    }

    /// Waits until the certificate of the member is revoked.
    pub(crate) async fn revoked(&self) -> String {
        let serial = self.serial.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match serial {
            Some(serial) => {
                let reason = self.revocations.revoked(&serial).await.reason;
                format!("its certificate {serial} was revoked: {reason}")
            }
            None => std::future::pending().await,
        }
    }
}

impl Connections {
    pub(crate) fn new(
        credentials: &Credentials,
        members: Arc<dyn Members>,
    ) -> Result<Self, PkiError> {
        let tls = TlsConnector::from(Arc::new(credentials.client_tls(HTTP2)?));
        Ok(Self {
            dialler: Arc::new(Dialler { members, tls }),
            revocations: credentials.revocations().clone(),
            by_node: Mutex::default(),
        })
    }

    /// The connection to a member.
    ///
    /// # Errors
    /// [`Code::LINK_DOWN`] if it is not reached, [`Code::IDENTITY_REFUSED`] if one of both nodes does not take the other's certificate.
    pub(crate) async fn to(&self, member: &Member) -> Result<Arc<Connection>, ApiError> {
        let slot = self.slot(member.node);
        let mut slot = slot.lock().await;
        match &*slot {
            Slot::Made(connection) => return Ok(connection.clone()),
            Slot::Failed { at, code, text } if clock::now().since(*at) < AGAIN => {
                return Err(ApiError::new(*code, text.clone()));
            }
            Slot::Empty | Slot::Failed { .. } => {}
        }
        let late = || {
            let text = format!("it does not answer within {} s", CONNECT_MAX.as_secs());
            Err(ApiError::new(Code::LINK_DOWN, text))
        };
        let made = timeout(CONNECT_MAX, self.connect(member)).await.unwrap_or_else(|_| late());
        match made {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *slot = Slot::Made(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                *slot = Slot::Failed { at: clock::now(), code: error.code(), text: error.chain() };
                Err(error)
            }
        }
    }

    fn slot(&self, node: NodeId) -> Arc<tokio::sync::Mutex<Slot>> {
        let now = clock::now();
        let mut by_node = self.by_node.lock().unwrap_or_else(PoisonError::into_inner);
        by_node.retain(|_, entry| now.since(entry.used_at) < UNUSED_MAX);
        let entry =
            by_node.entry(node).or_insert_with(|| Entry { used_at: now, slot: Arc::default() });
        entry.used_at = now;
        entry.slot.clone()
    }

    async fn connect(&self, member: &Member) -> Result<Connection, ApiError> {
        let serial = Arc::<Mutex<Option<Serial>>>::default();
        let (dialler, node, shown) = (self.dialler.clone(), member.node, serial.clone());
        let dial: Dial = Arc::new(move || {
            let (dialler, shown) = (dialler.clone(), shown.clone());
            Box::pin(async move {
                let (stream, peer) = dialler.dial(node).await?;
                *shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer.serial);
                Ok(Box::new(stream) as Box<dyn Io>)
            })
        });
        let options = ConnectOptions {
            max_reconnects: 0,
            backoff_max: Duration::from_secs(2),
            connect_timeout: CONNECT_MAX,
            call_timeout: CALL_MAX,
            keep_alive: KEEP_ALIVE,
            stream_window_bytes: WINDOW_BYTES,
            ..ConnectOptions::default()
        };
        let client = Client::over(&member.name, dial, options).await?;
        Ok(Connection { client, serial, revocations: self.revocations.clone() })
    }
}

/// Dials members where they say now that they are.
struct Dialler {
    members: Arc<dyn Members>,
    tls: TlsConnector,
}

impl Dialler {
    async fn dial(&self, node: NodeId) -> io::Result<(TlsStream<TcpStream>, PeerIdentity)> {
        let gone = || io::Error::other("it is no member of the fabric any more");
        let member = self.members.find(node).ok_or_else(gone)?;
        let mut last = io::Error::other("it names no address of its API");
        for address in member.addresses.iter().take(ADDRESSES_MAX) {
            let late = || Err(io::ErrorKind::TimedOut.into());
            let tried = timeout(ADDRESS_MAX, self.shake_hands(address, node)).await;
            match tried.unwrap_or_else(|_| late()) {
                Ok(made) => return Ok(made),
                Err(error) => last = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
        Err(last)
    }

    async fn shake_hands(
        &self,
        address: &str,
        node: NodeId,
    ) -> io::Result<(TlsStream<TcpStream>, PeerIdentity)> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from(NODE_SERVER_NAME).expect("it is a name of DNS");
        let stream = self.tls.connect(name, socket).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer =
            PeerIdentity::of_chain(chain).map_err(|error| io::Error::other(error_chain(&error)))?;
        // The address is one of a private network, of which there are many; or another node answers for it.
        if peer.node != node {
            let text = format!("node {} answers there, with another key", peer.name);
            return Err(io::Error::other(text));
        }
        Ok((stream, peer))
    }
}
