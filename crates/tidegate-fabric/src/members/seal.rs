//! The keys and certificates behind shared records, which this crate knows nothing of.

use tidegate_wire::{NodeId, Sealed};

/// Seals records of this node, and opens those of others.
pub trait Seal {
    /// The bytes with this node's certificate and its signature of them.
    fn seal(&mut self, bytes: &[u8]) -> Sealed;

    /// The member that sealed them.
    ///
    /// # Errors
    /// [`SealError`]: they are to be refused.
    fn open(&mut self, sealed: &Sealed) -> Result<Signer, SealError>;

    /// Takes over a list of revoked certificates (RFC 5280, DER), of the authority whose key has that hash: from now on [`Seal::open`]
    /// refuses the members on it. Returns its version, the number of the list.
    ///
    /// # Errors
    /// [`SealError`]: it changes nothing.
    fn revoke(&mut self, authority: NodeId, list: &[u8]) -> Result<u64, SealError>;
}

/// The member that sealed something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signer {
    /// The hash of its key.
    pub node: NodeId,
    /// The name in its certificate.
    pub name: String,
}

/// Why a seal is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No authority that this node trusts has signed it: it is of another site.
    #[error("no authority that this node trusts has signed it")]
    Foreign,
    /// The signature is not one of these bytes by that key.
    #[error("its signature is not one of these bytes by the key of its certificate")]
    Signature,
    /// The authority has revoked the certificate.
    #[error("its certificate is revoked")]
    Revoked,
    /// It may be no member here.
    #[error("this node takes only listed nodes for members, and it is not one of them")]
    NotListed,
    /// The certificate, or the list, cannot be read or is not valid now.
    #[error("its certificate or list cannot be read, or is not valid at this time")]
    Unreadable,
}
