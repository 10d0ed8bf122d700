//! Who may do what to which.

use std::{fmt, net::IpAddr, sync::Arc};

/// Who asks. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// How it was established.
    pub kind: IdentityKind,
    /// User name, or the name in the certificate; empty for nobody in particular.
    pub name: Arc<str>,
    /// Groups that it belongs to, sorted.
    pub groups: Arc<[Arc<str>]>,
    /// Name of the program it asks through, such as an MQTT client identifier; rules may name it.
    pub client: Arc<str>,
}

/// How an identity was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdentityKind {
    /// Nobody proved anything.
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

/// What is asked for.
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
    /// Place and run functions.
    Functions,
    /// Administer the node.
    Admin,
}

/// What it is asked of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target<'a> {
    /// A topic name.
    Topic(&'a str),
    /// A topic filter.
    Filter(&'a str),
    /// A camera, by name.
    Camera(&'a str),
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

/// The one door that every front asks.
pub trait Authorize: Send + Sync + fmt::Debug {
    /// Whether `identity` may do `action` to `target`.
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision;

    /// Changes whenever an earlier decision may no longer hold.
    fn generation(&self) -> u64;

    /// Whether every [`Action::Receive`] is allowed whose subscription was; then nobody need ask for each message.
    fn receives_all(&self) -> bool;
}

/// What somebody shows at a door.
#[derive(Clone, Default)]
pub struct Proof {
    /// User name.
    pub username: Option<String>,
    /// Password.
    pub password: Option<Vec<u8>>,
    /// Common name of a certificate that the door has verified.
    pub certificate: Option<String>,
    /// Name of the program, such as an MQTT client identifier.
    pub client: String,
    /// Where it comes from.
    pub address: Option<IpAddr>,
}

/// Says nothing of the password.
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

/// Why somebody is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// User name or password are wrong; which of them is not told.
    #[error("user name or password is wrong")]
    BadCredentials,
    /// The door wants a proof and got none.
    #[error("this listener does not let anybody in without a user name or certificate")]
    ProofRequired,
    /// Too many wrong ones before; try later.
    #[error("too many failed attempts; try again later")]
    TooMany,
}

impl Identity {
    /// Nobody in particular, through the program `client`.
    pub fn anonymous(client: &str) -> Self {
        Self::new(IdentityKind::Anonymous, "", client)
    }

    /// An identity without groups.
    pub fn new(kind: IdentityKind, name: &str, client: &str) -> Self {
        Self { kind, name: name.into(), groups: Arc::new([]), client: client.into() }
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

/// Lets everybody do everything: for loopback without rules, and for tests.
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
