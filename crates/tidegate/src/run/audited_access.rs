//! Authentication and access control for the MQTT server; refusals are written to the audit log.

use std::{net::IpAddr, sync::Arc};

use tidegate_identity::{
    access::Access,
    auth::{
        self, Rejected,
        audit::{Entry, Outcome},
        limits::Lease,
    },
};
use tidegate_message::{Action, Authorize, Decision, Identity, LogLimiter, Proof, Refusal, Target};
use tidegate_process::clock;
use tidegate_server::settings::{Authenticate, Scram};

/// The rights of a node, as the MQTT server asks for them.
#[derive(Debug)]
pub(super) struct AuditedAccess(pub(super) Access);

impl Authenticate for AuditedAccess {
    fn authenticate(&self, proof: &Proof) -> Result<Identity, Refusal> {
        match self.0.authenticator.authenticate(proof, auth::now()) {
            Ok(admitted) => Ok(admitted.identity),
            Err(rejected) => Err(self.rejected(proof, proof.username.as_deref(), &rejected)),
        }
    }

    fn recall(&self, proof: &Proof) -> Option<Result<Identity, Refusal>> {
        Some(match self.0.authenticator.recall(proof, auth::now())? {
            Ok(admitted) => Ok(admitted.identity),
            Err(rejected) => Err(self.rejected(proof, proof.username.as_deref(), &rejected)),
        })
    }

    fn generation(&self) -> u64 {
        Authorize::generation(&*self.0.authenticator)
    }

    fn is_slow(&self, proof: &Proof) -> bool {
        proof.password.is_some() || proof.username.is_some()
    }

    fn scram(self: Arc<Self>, proof: Proof, first: &[u8]) -> Result<Scram, Refusal> {
        let (scram, challenge) = self.0.authenticator.begin_scram(first)?;
        let finish = Box::new(move |last: &[u8]| {
            let user = scram.claimed_user().to_owned();
            let finished = self.0.authenticator.finish_scram(scram, last, &proof, auth::now());
            let (admitted, last) =
                finished.map_err(|rejected| self.rejected(&proof, Some(&user), &rejected))?;
            Ok((admitted.identity, last))
        });
        Ok(Scram { challenge, finish })
    }

    fn enter(&self, identity: &Identity) -> Result<Option<Lease>, Refusal> {
        self.0.authenticator.meter(identity).enter().map(Some)
    }

    fn refused(&self, client: &str, address: Option<IpAddr>, refusal: Refusal) {
        self.0.audit.tell(|| login(client, address, None, refusal.to_string()));
    }
}

/// Refusals are logged, but for messages that a filter brought and a rule keeps back: those are many, and were not asked
/// for one by one.
impl Authorize for AuditedAccess {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        let decision = self.0.authenticator.decide(identity, action, target);
        if !decision.allow && action != Action::Receive {
            self.0.audit.tell(|| Entry {
                what: action.word().to_owned(),
                target: target.to_string(),
                rule: decision.rule.to_string(),
                ..Entry::of(auth::now().wall, "mqtt", identity, Outcome::Refused)
            });
        }
        decision
    }

    fn still_allows(&self, identity: &Identity, action: Action, target: Target<'_>) -> bool {
        self.0.authenticator.decide(identity, action, target).allow
    }

    fn generation(&self) -> u64 {
        Authorize::generation(&*self.0.authenticator)
    }

    fn receives_all(&self) -> bool {
        self.0.authenticator.receives_all()
    }
}

/// Tokens that are not accepted: of anyone who reaches a listener.
static REFUSED: LogLimiter = LogLimiter::of_strangers();

impl AuditedAccess {
    fn rejected(&self, proof: &Proof, user: Option<&str>, rejected: &Rejected) -> Refusal {
        let why = tidegate_message::error_chain(rejected);
        if rejected.token.is_some()
            && let Some(tokens) = REFUSED.add(clock::now(), 1)
        {
            let address = proof.address.map(tracing::field::display);
            tracing::info!(client = %proof.client, address, error = why, tokens, "a token is not accepted");
        }
        self.0.audit.tell(|| login(&proof.client, proof.address, user, why));
        rejected.refusal
    }
}

/// A client that was refused.
fn login(client: &str, from: Option<IpAddr>, user: Option<&str>, why: String) -> Entry {
    Entry {
        at: auth::now().wall,
        outcome: Outcome::Refused,
        who: user.map(|user| format!("user {user}")).unwrap_or_default(),
        client: client.to_owned(),
        from,
        front: "mqtt",
        what: "login".to_owned(),
        target: String::new(),
        rule: why,
    }
}
