//! How the other node is reached: a link, an introduction, and what it has of this session.

use std::time::Duration;

use tidegate_identity::pki::Credentials;
use tidegate_link::link::{self, Incoming, Link, LinkError, LinkSettings};
use tidegate_message::Code;
use tidegate_uplink::ProtocolError;
use tidegate_wire::{BootId, Features, Hello, MINOR, Record, Role, UplinkOpen, UplinkReady};

use crate::UplinkSettings;

/// Longest wait for the other node's answers when a link begins.
const GREETING_MAX: Duration = Duration::from_secs(5);

/// Why an uplink has no link.
#[derive(Debug, thiserror::Error)]
pub(super) enum Down {
    #[error("the host of {to} is not known")]
    Resolve {
        to: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the link cannot be made")]
    Link(#[from] LinkError),
    #[error("the other node refuses the uplink ({code}): {text}")]
    Refused { code: String, text: String },
    #[error("the other node did not answer in {} s", GREETING_MAX.as_secs())]
    Silent,
    #[error("the other node answered with {0}, which is not expected here")]
    Unexpected(&'static str),
    #[error("the other node acknowledged or expects messages that were never sent")]
    Protocol(#[from] ProtocolError),
}

impl Down {
    /// The stable code.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Link(error) => error.code(),
            Self::Refused { code, .. } => Code::named(code).unwrap_or(Code::IDENTITY_REFUSED),
            Self::Unexpected(_) | Self::Protocol(_) => Code::LINK_PROTOCOL,
            Self::Resolve { .. } | Self::Silent => Code::LINK_DOWN,
        }
    }
}

/// Dials, and asks what of this session has come.
///
/// # Errors
/// [`Down`].
pub(super) async fn dial(
    settings: UplinkSettings,
    credentials: Credentials,
    config: LinkSettings,
    open: UplinkOpen,
) -> Result<(Link, UplinkReady), Down> {
    let resolve = |source| Down::Resolve { to: settings.to.clone(), source };
    let addresses: Vec<_> =
        tokio::net::lookup_host(&*settings.to).await.map_err(resolve)?.collect();
    let mut last =
        Down::Resolve { to: settings.to.clone(), source: std::io::ErrorKind::NotFound.into() };
    let mut made = None;
    for address in addresses {
        match link::dial(address, &credentials, config.clone(), settings.transport).await {
            Ok(link) => {
                made = Some(link);
                break;
            }
            Err(error) => last = error.into(),
        }
    }
    let Some(link) = made else { return Err(last) };
    let hello = Hello {
        minor: MINOR,
        node: credentials.identity().node,
        epoch: open.life,
        boot: BootId(tidegate_sys::clock::boot_id().unwrap_or_default()),
        role: Role::Uplink,
        features: Features::KNOWN,
        camera: None,
    };
    link.send(hello).await?;
    match answer(&link).await? {
        Record::Welcome(_) => {}
        other => return Err(Down::Unexpected(other.name())),
    }
    link.send(open).await?;
    match answer(&link).await? {
        Record::UplinkReady(ready) => Ok((link, ready)),
        other => Err(Down::Unexpected(other.name())),
    }
}

/// The next answer of the other node; its refusal is an error.
async fn answer(link: &Link) -> Result<Record, Down> {
    let answer = async {
        loop {
            return match link.recv().await? {
                // It comes again.
                Incoming::Record(Record::Share(_)) => continue,
                Incoming::Record(Record::Refused(refused)) => {
                    Err(Down::Refused { code: refused.code, text: refused.text })
                }
                Incoming::Record(record) => Ok(record),
                _ => Err(Down::Unexpected("a body")),
            };
        }
    };
    tokio::time::timeout(GREETING_MAX, answer).await.map_err(|_| Down::Silent)?
}
