//! Identities and rights: certificates, their revocation and their enrolment, checks of passwords and tokens, rights at
//! the API and at links, and the audit log.

pub mod access;
pub mod auth;
pub mod callers;
pub mod enrol;
pub mod pki;
