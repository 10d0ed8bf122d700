//! How a node that dials introduces itself: the other half of [`roles`](crate::roles).

use std::{net::SocketAddr, time::Duration};

use tidegate_identity::pki::Credentials;
use tidegate_message::Code;
use tidegate_wire::{BootId, Features, Hello, MINOR, Record, Role, Welcome};

use crate::link::{self, Incoming, Link, LinkError, LinkSettings, Transport};

/// Longest wait for an answer of the other node while a link begins.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Why another node was not reached, or did not take this one in.
#[derive(Debug, thiserror::Error)]
pub enum Unwelcome {
    /// The name of its host leads nowhere.
    #[error("the host of {to} is not known")]
    Resolve {
        /// Host and port.
        to: String,
        /// The resolver's reason.
        #[source]
        source: std::io::Error,
    },
    /// No link, or it ended.
    #[error("the link cannot be made")]
    Link(#[from] LinkError),
    /// The other node says why.
    #[error("the other node refuses this one ({code}): {text}")]
    Refused {
        /// Its code.
        code: String,
        /// Its reason.
        text: String,
    },
    /// It says nothing.
    #[error("the other node did not answer in {} s", ANSWER_MAX.as_secs())]
    Silent,
    /// It says something else.
    #[error("the other node answered with {0}, which is not expected here")]
    Unexpected(&'static str),
}

impl Unwelcome {
    /// The stable code.
    pub fn code(&self) -> Code {
        match self {
            Self::Link(error) => error.code(),
            Self::Refused { code, .. } => Code::named(code).unwrap_or(Code::IDENTITY_REFUSED),
            Self::Unexpected(_) => Code::LINK_PROTOCOL,
            Self::Resolve { .. } | Self::Silent => Code::LINK_DOWN,
        }
    }
}

/// Dials a host and port, each address of the host until one answers, and is welcomed there in `role`. `epoch` tells one start of the role
/// from another.
///
/// # Errors
/// [`Unwelcome`], of the address that was tried last.
pub async fn visit(
    to: &str,
    credentials: &Credentials,
    settings: LinkSettings,
    transport: Transport,
    (role, epoch): (Role, u64),
) -> Result<(Link, Welcome), Unwelcome> {
    let resolve = |source| Unwelcome::Resolve { to: to.to_owned(), source };
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host(to).await.map_err(resolve)?.collect();
    let mut last = resolve(std::io::ErrorKind::NotFound.into());
    for address in addresses {
        match link::dial(address, credentials, settings.clone(), transport).await {
            Ok(link) => {
                let welcome = introduce(&link, credentials, role, epoch).await?;
                return Ok((link, welcome));
            }
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// Says who this node is, and in which role it comes; the other node's welcome.
async fn introduce(
    link: &Link,
    credentials: &Credentials,
    role: Role,
    epoch: u64,
) -> Result<Welcome, Unwelcome> {
    let hello = Hello {
        minor: MINOR,
        node: credentials.identity().node,
        epoch,
        boot: BootId(tidegate_sys::clock::boot_id().unwrap_or_default()),
        role,
        features: Features::KNOWN,
        camera: None,
    };
    link.send(hello).await?;
    match answer(link).await? {
        Record::Welcome(welcome) => Ok(welcome),
        other => Err(Unwelcome::Unexpected(other.name())),
    }
}

/// The next answer of the other node; its refusal is an error.
///
/// # Errors
/// [`Unwelcome`].
pub async fn answer(link: &Link) -> Result<Record, Unwelcome> {
    let answer = async {
        loop {
            return match link.recv().await? {
                // It comes again.
                Incoming::Record(Record::Share(_)) => continue,
                Incoming::Record(Record::Refused(refused)) => {
                    Err(Unwelcome::Refused { code: refused.code, text: refused.text })
                }
                Incoming::Record(record) => Ok(record),
                _ => Err(Unwelcome::Unexpected("a body")),
            };
        }
    };
    tokio::time::timeout(ANSWER_MAX, answer).await.map_err(|_| Unwelcome::Silent)?
}
