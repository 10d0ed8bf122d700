//! How the other node is reached: a link, an introduction, and what it has of this session.

use tidegate_link::{
    introduce::{self, Unwelcome},
    link::{Link, LinkError},
};
use tidegate_message::Code;
use tidegate_uplink::ProtocolError;
use tidegate_wire::{Record, Role, UplinkOpen, UplinkReady};

use crate::{Home, Reach, UplinkSettings, Visits};

/// Why an uplink has no link.
#[derive(Debug, thiserror::Error)]
pub(super) enum Down {
    #[error(transparent)]
    Unwelcome(#[from] Unwelcome),
    #[error("the other node has no address now")]
    Away,
    #[error("at {to} is {found}, whose key is not that of the member that was to be there")]
    Another { to: String, found: String },
    #[error("the other node acknowledged or expects messages that were never sent")]
    Protocol(#[from] ProtocolError),
}

impl From<LinkError> for Down {
    fn from(error: LinkError) -> Self {
        Unwelcome::from(error).into()
    }
}

impl Down {
    /// The stable code.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Unwelcome(error) => error.code(),
            Self::Away => Code::LINK_DOWN,
            Self::Another { .. } => Code::IDENTITY_REFUSED,
            Self::Protocol(_) => Code::LINK_PROTOCOL,
        }
    }
}

/// Takes the link that the other node has made, or dials, each address until one answers, and asks what of this session has come.
///
/// # Errors
/// [`Down`], of the address that was tried last.
pub(super) async fn dial(
    reach: Reach,
    visits: Visits,
    settings: UplinkSettings,
    home: Home,
    open: UplinkOpen,
) -> Result<(Link, UplinkReady), Down> {
    let mut last = Down::Away;
    if let Some(link) = visits.take() {
        match open_on(link, &open).await {
            Ok(opened) => return Ok(opened),
            Err(error) => last = error,
        }
    }
    for to in &*reach.addresses {
        match open_at(to, &settings, &home, &open).await {
            Ok(opened) => return Ok(opened),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn open_at(
    to: &str,
    settings: &UplinkSettings,
    home: &Home,
    open: &UplinkOpen,
) -> Result<(Link, UplinkReady), Down> {
    let role = (Role::Uplink, open.life);
    let visit =
        introduce::visit(to, &home.credentials, home.link.clone(), settings.transport, role);
    let (link, _) = visit.await?;
    let found = link.peer();
    if settings.peer.as_ref().is_some_and(|peer| peer.node != found.node) {
        return Err(Down::Another { to: to.to_owned(), found: found.to_string() });
    }
    open_on(link, open).await
}

async fn open_on(link: Link, open: &UplinkOpen) -> Result<(Link, UplinkReady), Down> {
    link.send(open.clone()).await?;
    match introduce::answer(&link).await? {
        Record::UplinkReady(ready) => Ok((link, ready)),
        other => Err(Unwelcome::Unexpected(other.name()).into()),
    }
}
