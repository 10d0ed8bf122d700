//! The settings of an MQTT server.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use rustls_pki_types::CertificateDer;
use tidegate_broker::{Admission, BrokerConfig, SessionConfig};
use tidegate_identity::{
    auth::limits::Lease,
    pki::{Revocations, known::Known},
};
pub use tidegate_message::words::Protocol;
use tidegate_message::{
    Authorize, Identity, IdentityKind, Proof, Refusal, origins::Origins, quantity,
    words::ProxyProtocol,
};
use tidegate_schedule::{PolicyConfig, Threshold};
use tidegate_wire::{mqtt::Connect, websocket::Paths};

use super::{
    journal::JournalSettings,
    listen::{ListenAddress, SocketMode},
    spill::SpillSettings,
};

/// A server of some listeners and shards.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Settings of the broker.
    pub broker: BrokerConfig,
    /// Where clients connect.
    pub listeners: Vec<ListenerSettings>,
    /// Threads that serve connections, 1 to 255.
    pub shards: usize,
    /// Authenticates clients.
    pub authenticator: Arc<dyn Authenticate>,
    /// Decides their rights.
    pub authorize: Arc<dyn Authorize>,
    /// Operators on messages before they are routed.
    pub operators: Option<Arc<dyn Operators>>,
    /// How sessions and retained messages outlive the process; none if they do not.
    pub journal: Option<JournalSettings>,
    /// Where messages wait that find no room in memory; none if they do not.
    pub spill: Option<SpillSettings>,
}

/// Operators that look at messages before they are routed, and may change, drop and emit some.
pub trait Operators: Send + Sync + std::fmt::Debug {
    /// The operators on the shard of this number; none if there is nothing to do.
    fn admission(&self, shard: usize) -> Option<Box<dyn Admission>>;
}

/// Where clients connect.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// Its name, for logs.
    pub name: Arc<str>,
    /// Where.
    pub listen: ListenAddress,
    /// The mode of a socket of the file system.
    pub socket_mode: SocketMode,
    /// The protocol.
    pub protocol: Protocol,
    /// Which headers of the PROXY protocol stand before all else; none if it is not spoken.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Where MQTT is, with WebSocket.
    pub paths: Paths,
    /// The pages of other sites that may open a WebSocket.
    pub origins: Arc<Origins>,
    /// Certificate and clients' authorities, with TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Owners of the certificates that `tls` takes; none if it asks for none.
    pub known: Option<Arc<Known>>,
    /// The revoked certificates of clients, which `tls` checks as well.
    pub revocations: Vec<Arc<Revocations>>,
    /// The site's authority, if clients may come with its certificates: these say by a URI who they are.
    pub site: Arc<[CertificateDer<'static>]>,
    /// Connections at a time.
    pub connections_max: usize,
    /// Longest time from a connection to its CONNECT, TLS and WebSocket included.
    pub connect_timeout: Duration,
    /// Whether clients come in that prove nothing.
    pub anonymous: bool,
    /// The identity given to every client of this listener; none: authenticate.
    pub identity: Option<Identity>,
    /// Settings of the sessions of its clients.
    pub sessions: SessionSettings,
    /// Congestion control, such as `bbr` or `cubic`; the system's if none.
    pub tcp_congestion: Option<String>,
    /// Messages that a client may publish a second, and a second's worth at once; a client that sends more is read from
    /// no faster.
    /// None for any.
    pub publish_rate_max: Option<NonZeroU32>,
}

impl ListenerSettings {
    /// A listener of plain TCP at that address, with the defaults of the configuration, that requires a proof.
    pub fn new(name: &str, listen: SocketAddr) -> Self {
        Self {
            name: name.into(),
            listen: listen.into(),
            socket_mode: SocketMode::default(),
            protocol: Protocol::Tcp,
            proxy_protocol: None,
            paths: Paths::of(["/mqtt", "/"]),
            origins: Arc::default(),
            tls: None,
            known: None,
            revocations: Vec::new(),
            site: Arc::new([]),
            connections_max: 100_000,
            connect_timeout: Duration::from_secs(10),
            anonymous: false,
            identity: None,
            sessions: SessionSettings::default(),
            tcp_congestion: None,
            publish_rate_max: None,
        }
    }
}

/// Settings of sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionSettings {
    /// For a policy that a client names.
    pub policies: Arc<PolicyConfig>,
    /// Of all.
    pub usual: Arc<SessionConfig>,
    /// Of some users, by user name.
    pub users: Arc<HashMap<String, Arc<SessionConfig>>>,
}

impl SessionSettings {
    /// The settings of a session: of the listener, or of the user, with the policy that the client asks for.
    pub fn session_of(&self, identity: &Identity, connect: &Connect) -> Arc<SessionConfig> {
        let user = (identity.kind != IdentityKind::Anonymous).then_some(&*identity.name);
        let session = user.and_then(|user| self.users.get(user)).unwrap_or(&self.usual);
        let asked = |wanted: &str| {
            let properties = connect.properties.user_properties.iter();
            properties.rev().find(|(name, _)| name == wanted).map(|(_, value)| &**value)
        };
        let policy = asked(POLICY_PROPERTY);
        let threshold = asked(THRESHOLD_PROPERTY);
        if policy.is_none() && threshold.is_none() {
            return session.clone();
        }
        let mut session = SessionConfig::clone(session);
        match policy.map(|word| self.policies.policy(word)) {
            Some(Ok(policy)) => session.policy = policy,
            Some(Err(error)) => {
                tracing::info!(client = %connect.client_id, %error, "policy ignored");
            }
            None => {}
        }
        let threshold = threshold.map(quantity::duration);
        match (threshold, session.policy.paper_mut()) {
            (Some(Ok(threshold)), Some(paper)) => paper.threshold_l = Threshold::Fixed(threshold),
            (Some(Err(error)), _) => {
                tracing::info!(client = %connect.client_id, %error, "latency threshold ignored");
            }
            (Some(Ok(_)), None) | (None, _) => {}
        }
        Arc::new(session)
    }
}

/// The user property of CONNECT by which a client names the policy for its messages.
pub const POLICY_PROPERTY: &str = "tidegate-policy";
/// The user property of CONNECT by which a client names threshold_l of the paper's policies, such as `500ms`.
pub const THRESHOLD_PROPERTY: &str = "tidegate-latency-threshold";

/// Authenticates clients.
pub trait Authenticate: Send + Sync + std::fmt::Debug {
    /// The identity that `proof` proves.
    ///
    /// # Errors
    /// [`Refusal`].
    fn authenticate(&self, proof: &Proof) -> Result<Identity, Refusal>;

    /// The same, if it is known without taking long: because it was found out before, or because of too many wrong proofs.
    fn recall(&self, proof: &Proof) -> Option<Result<Identity, Refusal>> {
        let _ = proof;
        None
    }

    /// Counts the exchanges of users and rules.
    fn generation(&self) -> u64 {
        0
    }

    /// One connection more of `identity`; it counts as long as the lease lives. None if connections are not counted.
    ///
    /// # Errors
    /// [`Refusal::Connections`].
    fn enter(&self, identity: &Identity) -> Result<Option<Lease>, Refusal> {
        let _ = identity;
        Ok(None)
    }

    /// Is notified of a client that was refused without authentication.
    fn refused(&self, client: &str, address: Option<IpAddr>, refusal: Refusal) {
        let _ = (client, address, refusal);
    }

    /// Whether the answer takes long, as with passwords; it is then given on a thread of its own.
    fn is_slow(&self, proof: &Proof) -> bool;

    /// The SCRAM-SHA-256 exchange (RFC 7677) of a client, if users can have one.
    ///
    /// # Errors
    /// [`Refusal`].
    fn scram(self: Arc<Self>, proof: Proof, first: &[u8]) -> Result<Scram, Refusal>;
}

/// A SCRAM exchange under way.
pub struct Scram {
    /// The challenge to send to the client.
    pub challenge: Vec<u8>,
    /// Takes the client's answer; gives who it is and what to send it.
    pub finish: Box<FinishScram>,
}

/// Handles the client's answer.
pub type FinishScram = dyn FnOnce(&[u8]) -> Result<(Identity, Vec<u8>), Refusal> + Send;

impl std::fmt::Debug for Scram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scram")
    }
}

/// Accepts every client as anonymous: for tests and for loopback without users.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllAnonymous;

impl Authenticate for AllAnonymous {
    fn authenticate(&self, proof: &Proof) -> Result<Identity, Refusal> {
        Ok(Identity::anonymous(&proof.client))
    }

    fn is_slow(&self, _: &Proof) -> bool {
        false
    }

    fn scram(self: Arc<Self>, _: Proof, _: &[u8]) -> Result<Scram, Refusal> {
        Err(Refusal::BadCredentials)
    }
}
