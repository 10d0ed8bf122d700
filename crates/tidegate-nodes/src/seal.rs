//! The keys of this node, for records that members share.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use tidegate_fabric::members::{Seal, SealError, Signer};
use tidegate_identity::pki::{self, Credentials};
use tidegate_wire::{NodeId, Sealed};

/// The nodes that may be members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Join {
    /// Each that has a node's certificate of this site.
    #[default]
    Certificate,
    /// Those of these names alone.
    Listed(Arc<BTreeSet<String>>),
}

impl Join {
    /// Whether a node of that name may be a member.
    pub(crate) fn lets(&self, name: &str) -> bool {
        match self {
            Self::Certificate => true,
            Self::Listed(names) => names.contains(name),
        }
    }
}

/// The credentials of this node, and the nodes that it takes for members.
pub(crate) struct Keys {
    pub(crate) credentials: Credentials,
    pub(crate) join: Join,
}

impl Seal for Keys {
    fn seal(&mut self, bytes: &[u8]) -> Sealed {
        let (certificate, signature) = match self.credentials.seal(bytes) {
            Ok((certificate, signature)) => (certificate.as_ref().to_vec(), signature),
            Err(error) => {
                // Others refuse it. That the key can sign was seen at the start.
                let error = tidegate_message::error_chain(&error);
                tracing::error!(error, "a record of this node is not signed");
                (Vec::new(), Vec::new())
            }
        };
        let (certificate, signature) = (certificate.into(), signature.into());
        Sealed { certificate, signature, bytes: Bytes::copy_from_slice(bytes) }
    }

    fn open(&mut self, sealed: &Sealed) -> Result<Signer, SealError> {
        let Sealed { certificate, signature, bytes } = sealed;
        let opened = self.credentials.open_sealed(certificate, signature, bytes);
        let peer = opened.map_err(|error| match error {
            pki::SealError::Untrusted(_)
            | pki::SealError::Identity(_)
            | pki::SealError::NotNode(_) => SealError::Foreign,
            pki::SealError::Expired(_) | pki::SealError::NotYetValid(_) => SealError::Unreadable,
            pki::SealError::Revoked { .. } => SealError::Revoked,
            pki::SealError::Key { .. } | pki::SealError::Sign(_) | pki::SealError::Forged(_) => {
                SealError::Signature
            }
        })?;
        if !self.join.lets(&peer.name) {
            return Err(SealError::NotListed);
        }
        Ok(Signer { node: peer.node, name: peer.name })
    }

    fn revoke(&mut self, authority: NodeId, list: &[u8]) -> Result<u64, SealError> {
        let revocations = self.credentials.revocations();
        revocations.adopt(list).map_err(|error| {
            let error = tidegate_message::error_chain(&error);
            tracing::warn!(error, "a list of revoked certificates that a member sent is refused");
            SealError::Unreadable
        })?;
        let shared = revocations.shared();
        let held = shared.iter().find(|held| held.authority == authority);
        held.map(|held| held.version).ok_or(SealError::Foreign)
    }
}
