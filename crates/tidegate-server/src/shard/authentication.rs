//! Extended authentication (MQTT 5, section 4.12): SCRAM-SHA-256, before a connection is open and on one that is.

use tidegate_broker::{AuthAnswer, ConnectionKey};
use tidegate_message::{Instant, Proof, Refusal};
use tidegate_wire::mqtt::{Auth, Connect, Packet, ReasonCode, Version};

use super::{Shard, Stage, packet_bytes_max};
use crate::settings::Scram;

/// The one method of extended authentication.
pub(super) const SCRAM: &str = "SCRAM-SHA-256";

impl Shard {
    /// CONNECT brought the client's first message.
    pub(super) fn begin_scram(&mut self, now: Instant, slot: usize, mut connect: Box<Connect>) {
        let first = connect.properties.authentication_data.take().unwrap_or_default();
        let connection = self.slots[slot].as_deref_mut().expect("it just spoke");
        let proof = Proof {
            client: connect.client_id.clone(),
            address: connection.address(),
            ..Proof::default()
        };
        match self.parts.authenticator.clone().scram(proof, &first) {
            Ok(scram) => {
                let challenge = Packet::Auth(challenge(&scram.challenge));
                let mut out = Vec::new();
                challenge.encode(Version::V5, &mut out).expect("a challenge is short");
                if out.len() > packet_bytes_max(&connect) {
                    // MQTT-3.1.2-24
                    return self.refuse(now, slot, &connect, ReasonCode::PACKET_TOO_LARGE);
                }
                connection.stage = Stage::Exchanging(connect, Some(scram));
                self.say(now, slot, &out);
            }
            Err(refusal) => self.refuse(now, slot, &connect, reason_of(refusal)),
        }
    }

    /// AUTH brought the last.
    pub(super) fn exchanged(
        &mut self,
        now: Instant,
        slot: usize,
        connect: Box<Connect>,
        scram: Option<Scram>,
        auth: &Auth,
    ) {
        let is_next = auth.reason == ReasonCode::CONTINUE_AUTHENTICATION
            && auth.method.as_deref() == Some(SCRAM);
        let Some(scram) = scram.filter(|_| is_next) else {
            return self.refuse(now, slot, &connect, ReasonCode::PROTOCOL_ERROR);
        };
        match (scram.finish)(auth.data.as_deref().unwrap_or_default()) {
            Ok((identity, data)) => self.answered(now, slot, connect, Ok(identity), Some(data)),
            Err(refusal) => self.answered(now, slot, connect, Err(refusal), None),
        }
    }

    /// AUTH on a connection that is open (section 4.12.1).
    pub(super) fn reauthenticate(&mut self, key: ConnectionKey, auth: &Auth) {
        let Some(connection) = self
            .by_key
            .get(key.slot as usize)
            .and_then(|&slot| self.slots.get_mut(slot)?.as_deref_mut())
        else {
            return;
        };
        if !matches!(connection.stage, Stage::Open(open) if open == key) {
            return;
        }
        let data = auth.data.as_deref().unwrap_or_default();
        let step = match connection.scram.take() {
            None => {
                let proof = Proof { address: connection.address(), ..Proof::default() };
                self.parts.authenticator.clone().scram(proof, data).map(|mut scram| {
                    let challenge = std::mem::take(&mut scram.challenge);
                    connection.scram = Some(scram);
                    AuthAnswer::Challenge(challenge)
                })
            }
            Some(scram) => (scram.finish)(data)
                .map(|(identity, data)| AuthAnswer::Accept { identity, data: Some(data) }),
        };
        let answer = step.unwrap_or_else(|refusal| {
            tracing::info!(peer = connection.peer.map(tracing::field::display), %refusal, "re-authentication failed");
            // A DISCONNECT has no other reason for it (MQTT-3.14.2-1).
            AuthAnswer::Refuse(ReasonCode::NOT_AUTHORIZED)
        });
        self.broker.authenticated(key, answer);
    }
}

fn challenge(data: &[u8]) -> Auth {
    Auth {
        reason: ReasonCode::CONTINUE_AUTHENTICATION,
        method: Some(SCRAM.to_owned()),
        data: Some(data.to_owned()),
        ..Auth::default()
    }
}

pub(super) fn reason_of(refusal: Refusal) -> ReasonCode {
    match refusal {
        Refusal::BadCredentials | Refusal::BadToken => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        Refusal::ProofRequired | Refusal::BadCertificate | Refusal::Revoked => {
            ReasonCode::NOT_AUTHORIZED
        }
        Refusal::TooMany => ReasonCode::CONNECTION_RATE_EXCEEDED,
        Refusal::KeysAwaited => ReasonCode::SERVER_BUSY,
        Refusal::Connections => ReasonCode::QUOTA_EXCEEDED,
    }
}
