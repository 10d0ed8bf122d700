//! Ends: after the last packets have left, after a time, or at once.

use std::{collections::VecDeque, fmt, io};

use rustls::{CertificateError, OtherError};
use tidegate_broker::ConnectionKey;
use tidegate_identity::pki::known::UnknownCertificate;
use tidegate_message::{Instant, Refusal};
use tidegate_process::clock;
use tidegate_wire::mqtt::ReasonCode;

use super::{LINGER, Shard, Stage, visits::why_ended};

impl Shard {
    pub(super) fn broke(&mut self, now: Instant, slot: usize, error: &io::Error) {
        let connection = self.slots[slot].as_deref();
        let peer = connection.and_then(|connection| connection.peer);
        tracing::debug!(%error, peer = peer.map(tracing::field::display), "connection broke");
        if let Some(connection) = connection
            && matches!(connection.stage, Stage::Opening)
        {
            if let Some(refusal) = refusal_of(error) {
                self.parts.authenticator.refused("", connection.address(), refusal);
            }
            // A port scan resets it as well.
            if let Some(cause) = error.get_ref() {
                let (peer, listener) = (connection.peer, &connection.settings);
                match unknown_certificate(cause) {
                    Some(why) => self.visits.refused(now, None, peer, listener, why),
                    None => self.visits.refused(now, None, peer, listener, cause),
                }
            }
        }
        self.end_connection(now, slot, Some(error));
    }

    pub(super) fn say_and_close(&mut self, now: Instant, slot: usize, bytes: &[u8]) {
        // There may be nothing that the client takes.
        if !bytes.is_empty() {
            self.say(now, slot, bytes);
        }
        self.begin_closing(now, slot);
    }

    /// A connection that the broker has ended lasts until its last packets have left, or for [`LINGER`].
    pub(super) fn end_if_flushed(&mut self, now: Instant, slot: usize, key: ConnectionKey) {
        if !self.is_open(slot, key) || !self.broker.is_flushed(key) {
            return;
        }
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        if connection.is_ending && connection.transport.is_clear() {
            self.leaves(now, slot, key, None);
            self.broker.closed(now, key);
            self.begin_closing(now, slot);
        }
    }

    /// Lets the peer read its last packets, then closes.
    pub(super) fn begin_closing(&mut self, now: Instant, slot: usize) {
        let id = self.id(slot);
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        connection.stage = Stage::Closing;
        connection.is_paused = false;
        connection.rests_until = None;
        connection.left = Vec::new();
        connection.left_charge = None;
        connection.connect_bytes = 0;
        self.lobby.release(slot);
        connection.bundles = VecDeque::new();
        connection.lease = None;
        connection.transport.end();
        self.closings.push_back((now + LINGER, id));
        self.queue(slot);
    }

    /// Ends a connection at once.
    pub(super) fn drop_connection(&mut self, now: Instant, slot: usize) {
        self.end_connection(now, slot, None);
    }

    /// The broker is about to hear that a connection is gone.
    fn leaves(&mut self, now: Instant, slot: usize, key: ConnectionKey, error: Option<&io::Error>) {
        let Some(connection) = self.slots[slot].as_deref_mut() else { return };
        let Some(visitor) = connection.visitor.take() else { return };
        let error = error.map(|error| error as &dyn fmt::Display);
        let why = why_ended(self.broker.why_ended(key), error);
        let (peer, listener) = (connection.peer, &connection.settings);
        self.visits.disconnected(now, &visitor, peer, listener, &why);
    }

    fn end_connection(&mut self, now: Instant, slot: usize, error: Option<&io::Error>) {
        if let Some(connection) = self.slots[slot].as_deref()
            && let Stage::Open(key) = connection.stage
        {
            self.leaves(now, slot, key, error);
        }
        if let Some(connection) = self.displace(slot)
            && let Stage::Open(key) = connection.stage
        {
            self.broker.closed(now, key);
        }
    }

    /// Ends the connections of those who proved nothing, where their listener now asks for a proof.
    pub(super) fn kick_anonymous(&mut self) {
        for connection in self.slots.iter().flatten() {
            if let Stage::Open(key) = connection.stage
                && connection.is_anonymous
                && !connection.listener.settings().anonymous
            {
                let text = "anonymous access is no longer allowed";
                self.broker.end(key, ReasonCode::ADMINISTRATIVE_ACTION, text);
            }
        }
    }

    /// Ends connections that were authenticated by a token.
    pub(super) fn kick_tokens(&mut self) {
        for connection in self.slots.iter().flatten() {
            if let Stage::Open(key) = connection.stage
                && connection.expires_at.is_some()
            {
                let text = "other tokens are accepted now";
                self.broker.end(key, ReasonCode::ADMINISTRATIVE_ACTION, text);
            }
        }
    }

    /// Ends the connections of those whose certificate was revoked.
    pub(super) fn kick_revoked(&mut self) {
        for connection in self.slots.iter().flatten() {
            if let Stage::Open(key) = connection.stage
                && connection.is_revoked()
            {
                self.parts.authenticator.refused("", connection.address(), Refusal::Revoked);
                let text = "the certificate was revoked";
                self.broker.end(key, ReasonCode::NOT_AUTHORIZED, text);
            }
        }
    }

    /// Ends the connections of those whose certificate their listener takes no longer: its authority, or its fingerprint, was taken out.
    pub(super) fn kick_unknown(&mut self) {
        for connection in self.slots.iter_mut().flatten() {
            if let Stage::Open(key) = connection.stage
                && connection.is_unknown()
            {
                self.parts.authenticator.refused("", connection.address(), Refusal::BadCertificate);
                let text = "the certificate is no longer taken here";
                self.broker.end(key, ReasonCode::NOT_AUTHORIZED, text);
            }
        }
    }

    /// Ends connections that took too long to open or to close.
    pub(super) fn give_up(&mut self, now: Instant) {
        self.visits.sum_up(now, false);
        while let Some((_, id)) = self.openings.pop_front_if(|(at, _)| *at <= now) {
            let Some(connection) = self.connection(id) else { continue };
            if !matches!(connection.stage, Stage::Open(_) | Stage::Closing) {
                let (peer, listener) = (connection.peer, connection.settings.clone());
                let why = format!("no CONNECT came within {:?}", listener.connect_timeout);
                self.visits.refused(now, None, peer, &listener, &why);
                self.drop_connection(now, id.slot);
            }
        }
        while let Some((_, id)) = self.closings.pop_front_if(|(at, _)| *at <= now) {
            if self.connection(id).is_some() {
                self.drop_connection(now, id.slot);
            }
        }
        while let Some(entry) = self.resting.first_entry()
            && entry.key().0 <= now
        {
            let id = entry.remove();
            if let Some(connection) = self.connection(id) {
                connection.rests_until = None;
                self.queue(id.slot);
            }
        }
        while let Some(entry) = self.expiring.first_entry()
            && entry.key().0 <= clock::latest_wall(now)
        {
            let key = entry.remove();
            self.broker.end(key, ReasonCode::NOT_AUTHORIZED, "the token has expired");
        }
        if self.accepts_at.is_some_and(|at| at <= now) {
            self.accepts_at = None;
            for at in 0..self.parts.listeners.len() {
                self.accept(now, at);
            }
        }
    }
}

/// Why a certificate was not taken that might be if it were known; TLS shows that as bytes.
fn unknown_certificate<'a>(
    cause: &'a (dyn std::error::Error + Send + Sync + 'static),
) -> Option<&'a UnknownCertificate> {
    match cause.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
            why.downcast_ref::<UnknownCertificate>()
        }
        _ => None,
    }
}

/// The objection of TLS to a client's certificate; none if it was something else.
fn refusal_of(error: &io::Error) -> Option<Refusal> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => Some(Refusal::Revoked),
        rustls::Error::InvalidCertificate(_) => Some(Refusal::BadCertificate),
        rustls::Error::NoCertificatesPresented => Some(Refusal::ProofRequired),
        _ => None,
    }
}
