//! How another machine comes into a site without carrying keys about: an invitation, redeemed once.
//!
//! ```text
//!  node with the authority's key                                   another machine
//!  tidegate invite cam7 ──▶ invitations.json, TOKEN ─ ─by hand─ ─▶ tidegate join TOKEN
//!        Enrolment ◀──────── TLS, authority by its hash ──────────── new public key, secret, proof of the private key
//!                  ─────────▶ certificate, authority ─────────────▶ cam7.pem, cam7.key, ca.pem
//! ```
//!
//! Always true: an invitation makes one certificate, of the name and kind that it was made for, before it expires; a private key
//! never leaves the machine that it is for; of a secret, only its hash is kept.

mod client;
mod invitations;
mod server;
#[cfg(test)]
mod tests;
mod token;

pub use self::{
    client::{JoinError, Joined, join},
    invitations::{Invitation, InvitationError, Invitations},
    server::{EnrolError, Enrolment},
    token::{Token, TokenError},
};

/// The protocol, as TLS names it (ALPN).
const PROTOCOL: &[u8] = b"tidegate-enrol/1";
/// Longest question or answer, in bytes.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// The question of a joining machine, as a line of JSON; bytes are base64.
#[derive(serde::Deserialize, serde::Serialize)]
struct Question {
    /// Which invitation.
    id: String,
    /// Its secret.
    secret: String,
    /// A point of P-256, uncompressed (SEC 1, section 2.3.3).
    public_key: String,
    /// The text of [`proof_of`], signed with the private key (ECDSA with SHA-256, as ASN.1).
    proof: String,
}

/// The answer.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
enum Answer {
    /// A certificate, in PEM, and the authority's.
    Welcome { kind: String, name: String, certificate: String, authority: String },
    /// Why not.
    Refused { why: String },
}

/// The text that is signed to show possession of the private key.
fn proof_of(id: &[u8], secret: &[u8]) -> Vec<u8> {
    [PROTOCOL, b"\0", id, secret].concat()
}
