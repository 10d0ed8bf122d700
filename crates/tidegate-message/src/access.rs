//! Identities, actions and targets of access rules.

use std::{fmt, net::IpAddr, sync::Arc};

use zeroize::Zeroizing;

use crate::Instant;

/// An authenticated or anonymous client. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// How it was established.
    pub kind: IdentityKind,
    /// User name, or the name in the certificate; empty for an anonymous client.
    pub name: Arc<str>,
    /// Groups that it belongs to, sorted.
    pub groups: Arc<[Arc<str>]>,
    /// Name of the program it asks through, such as an MQTT client identifier; rules may name it.
    pub client: Arc<str>,
    /// Where it comes from, if it came over a network.
    pub address: Option<IpAddr>,
    /// Until when what it showed holds, by the wall clock; none forever.
    pub until: Option<Instant>,
}

/// How an identity was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdentityKind {
    /// No proof was given.
    Anonymous,
    /// A user name and a proof.
    User,
    /// A certificate of an application or device.
    Certificate,
    /// A node of the site.
    Node,
    /// This node itself: wills it keeps, bridges and `$SYS`.
    Internal,
}

/// The action that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Send a message to a topic.
    Publish,
    /// Ask for the messages of a filter.
    Subscribe,
    /// Be sent a message of a topic, asked for by a filter that was allowed.
    Receive,
    /// Receive frames of a camera.
    Frames,
    /// Fetch untouched frames of a camera.
    FetchOriginal,
    /// Have a model look at an image.
    Detect,
    /// Place and run functions.
    Functions,
    /// Administer the node.
    Admin,
}

impl Action {
    /// Each with its word. Topics that may be received are those that may be subscribed to.
    const WORDS: [(&str, Self); 8] = [
        ("publish", Self::Publish),
        ("subscribe", Self::Subscribe),
        ("receive", Self::Receive),
        ("frames", Self::Frames),
        ("fetch-original", Self::FetchOriginal),
        ("detect", Self::Detect),
        ("functions", Self::Functions),
        ("admin", Self::Admin),
    ];

    /// Its word in files of rules and on the command line.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, action)| *action == self).expect("each has its word").0
    }

    /// The action of that word, if there is one.
    pub fn named(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, action)| *action)
    }
}

impl IdentityKind {
    /// Its word in logs and on the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::User => "user",
            Self::Certificate => "certificate",
            Self::Node => "node",
            Self::Internal => "internal",
        }
    }
}

/// The target of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target<'a> {
    /// A topic name.
    Topic(&'a str),
    /// A topic filter.
    Filter(&'a str),
    /// A camera, by name.
    Camera(&'a str),
    /// A model that looks at images, by name.
    Model(&'a str),
    /// The node.
    Node,
}

/// Whether, and by which rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it may.
    pub allow: bool,
    /// The rule that decided, as its owner wrote it, with its place; for logs and for people.
    pub rule: Arc<str>,
}

/// The one interface that every front asks for permission.
pub trait Authorize: Send + Sync + fmt::Debug {
    /// Whether `identity` may do `action` to `target`.
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision;

    /// Whether `identity`, which did `action` to `target` before, still may: this is no attempt, so that a denial is nothing to be written
    /// down as an attempt.
    fn still_allows(&self, identity: &Identity, action: Action, target: Target<'_>) -> bool {
        self.decide(identity, action, target).allow
    }

    /// Changes whenever an earlier decision may no longer hold.
    fn generation(&self) -> u64;

    /// Whether every [`Action::Receive`] is allowed, to any identity and even if it subscribed under former rules; then the
    /// question need not be asked for each message.
    fn receives_all(&self) -> bool;
}

/// As `home/door`, `camera:yard`, `model:face` or `node`.
impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(text) | Self::Filter(text) => f.write_str(text),
            Self::Camera(name) => write!(f, "camera:{name}"),
            Self::Model(name) => write!(f, "model:{name}"),
            Self::Node => f.write_str("node"),
        }
    }
}

/// The proof of identity that a client shows.
#[derive(Clone, Default)]
pub struct Proof {
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<Secret>,
    /// Token of an identity provider (a JWT).
    pub token: Option<Secret>,
    /// The name in a verified certificate, and the kind of identity that it names.
    pub certificate: Option<(IdentityKind, String)>,
    /// Name of the program, such as an MQTT client identifier.
    pub client: String,
    /// Where it comes from.
    pub address: Option<IpAddr>,
}

/// Bytes that prove something: shown nowhere, and cleared when they are dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        text.as_bytes().to_vec().into()
    }
}

impl std::ops::Deref for Secret {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Says nothing of it.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Says nothing of the password and the token.
impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proof")
            .field("username", &self.username)
            .field("certificate", &self.certificate)
            .field("client", &self.client)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Why a client was not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// User name or password are wrong; the client does not learn which.
    #[error("user name or password is wrong")]
    BadCredentials,
    /// The listener requires a proof and got none.
    #[error("this listener requires a user name or a certificate")]
    ProofRequired,
    /// Too many wrong ones before; try later.
    #[error("too many failed attempts; try again later")]
    TooMany,
    /// The token is not accepted.
    #[error("the token is not accepted")]
    BadToken,
    /// The token may be good, but the keys to check it with are not here yet.
    #[error("the keys that tokens are checked with are being fetched; try again")]
    KeysAwaited,
    /// The certificate is none that is accepted.
    #[error("the certificate is not accepted")]
    BadCertificate,
    /// The authority has taken the certificate back.
    #[error("the certificate was revoked")]
    Revoked,
    /// As many connections of that identity as may be are there.
    #[error("this identity has as many connections as it may have")]
    Connections,
}

impl Identity {
    /// An anonymous client, through the program `client`.
    pub fn anonymous(client: &str) -> Self {
        Self::new(IdentityKind::Anonymous, "", client)
    }

    /// An identity without groups.
    pub fn new(kind: IdentityKind, name: &str, client: &str) -> Self {
        Self {
            kind,
            name: name.into(),
            groups: Arc::new([]),
            client: client.into(),
            address: None,
            until: None,
        }
    }

    /// Whether it asks from this machine: over loopback, or from inside the program.
    pub fn is_local(&self) -> bool {
        match self.address {
            Some(address) => address.to_canonical().is_loopback(),
            None => self.kind == IdentityKind::Internal,
        }
    }
}

impl Decision {
    /// Allowed by `rule`.
    pub fn allow(rule: impl Into<Arc<str>>) -> Self {
        Self { allow: true, rule: rule.into() }
    }

    /// Denied by `rule`.
    pub fn deny(rule: impl Into<Arc<str>>) -> Self {
        Self { allow: false, rule: rule.into() }
    }
}

/// Allows everything to everyone: for loopback without rules, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Authorize for AllowAll {
    fn decide(&self, _: &Identity, _: Action, _: Target<'_>) -> Decision {
        Decision::allow("no rules are configured")
    }

    fn generation(&self) -> u64 {
        0
    }

    fn receives_all(&self) -> bool {
        true
    }
}
