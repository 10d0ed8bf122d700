//! Senders, their rights to publish, and their rates.

use std::{net::IpAddr, sync::Arc};

use tidegate_api::ApiError;
use tidegate_identity::{
    access,
    auth::{
        self,
        audit::{Entry, Outcome},
        limits::Lease,
    },
    callers::{Callers, Peer},
};
use tidegate_message::{Action, Authorize as _, Code, Identity, Instant, Target};

use super::{Context, Live, refused::Refused};

/// The name of this front in the audit log.
const FRONT: &str = "ingest";

/// Authenticates senders at the node.
#[derive(Debug)]
pub(super) struct Senders {
    context: Arc<Context>,
    callers: Callers,
}

/// A sender that was accepted.
#[derive(Debug)]
pub(super) struct Caller {
    who: Identity,
    /// Its identity; none without a proof.
    shown: Option<Arc<access::Identity>>,
    /// Counts as one connection of its identity.
    lease: Lease,
}

impl Senders {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let callers = Callers::new(context.access.clone(), FRONT);
        Self { context, callers }
    }

    /// The sender that shows `authorization`, or nothing.
    ///
    /// # Errors
    /// [`Refused::Access`].
    pub(super) async fn enter(
        &self,
        live: &Live,
        peer: &Peer,
        address: IpAddr,
        authorization: Option<&[u8]>,
    ) -> Result<Caller, Refused> {
        let authorization = authorization.map(of_influx);
        let shown = self.callers.by_authorization(peer, authorization.as_deref()).await?;
        let who = match (&shown, &live.settings.identity) {
            (Some(shown), _) => shown.who().clone(),
            (None, Some(identity)) => Identity { address: Some(address), ..identity.clone() },
            (None, None) => {
                let text =
                    "no credentials were sent: send a token, or a user name with its password";
                return Err(ApiError::new(Code::IDENTITY_REFUSED, text).into());
            }
        };
        let lease = self.context.access.authenticator.meter(&who).enter().map_err(|refusal| {
            ApiError::new(Code::LIMIT_REACHED, format!("{} is refused: {refusal}", named(&who)))
        })?;
        Ok(Caller { who, shown, lease })
    }

    /// Whether the caller may publish to that topic.
    ///
    /// # Errors
    /// [`Refused::Access`] by the rule; it is written to the audit log.
    pub(super) fn may_publish(&self, caller: &Caller, topic: &str) -> Result<(), Refused> {
        let access = &self.context.access;
        if let Some(shown) = &caller.shown {
            access.still_holds(shown)?;
        }
        let target = Target::Topic(topic);
        let rule = if topic.starts_with("$SYS/") {
            "$SYS is the node's own".into()
        } else {
            let decision = access.authenticator.decide(&caller.who, Action::Publish, target);
            if decision.allow {
                return Ok(());
            }
            decision.rule
        };
        access.audit.tell(|| Entry {
            what: Action::Publish.word().to_owned(),
            target: target.to_string(),
            rule: rule.to_string(),
            ..Entry::of(auth::now().wall, FRONT, &caller.who, Outcome::Refused)
        });
        let text = format!("{} may not publish {topic}: {rule}", named(&caller.who));
        Err(ApiError::new(Code::ACTION_DENIED, text).into())
    }

    /// Whether more is taken now, of all and of this caller.
    ///
    /// # Errors
    /// [`Refused::Rate`].
    pub(super) fn may_send(
        &self,
        live: &Live,
        caller: &Caller,
        now: Instant,
    ) -> Result<(), Refused> {
        let meters = [&live.meter, caller.lease.meter()];
        match meters.iter().filter_map(|meter| meter.spend(now, 0, 0)).max() {
            Some(until) => Err(Refused::Rate { after: until.since(now) }),
            None => Ok(()),
        }
    }

    /// So much was taken.
    pub(super) fn spend(
        &self,
        live: &Live,
        caller: &Caller,
        now: Instant,
        messages: u64,
        bytes: u64,
    ) {
        live.meter.spend(now, messages, bytes);
        caller.lease.meter().spend(now, messages, bytes);
    }
}

fn named(who: &Identity) -> String {
    match &*who.name {
        "" => "nobody".to_owned(),
        name => format!("{} {name}", who.kind.word()),
    }
}

/// InfluxDB's clients say `Token TOKEN`, or `Token USER:PASSWORD` where it is asked for by its first version's users.
fn of_influx(authorization: &[u8]) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let Some((scheme, rest)) = authorization.split_at_checked(6) else {
        return authorization.to_vec();
    };
    if !scheme.eq_ignore_ascii_case(b"token ") {
        return authorization.to_vec();
    }
    match rest.contains(&b':') {
        true => format!("Basic {}", STANDARD.encode(rest)).into_bytes(),
        false => [b"Bearer ", rest].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_influxdb_are_read_as_what_they_are() {
        for (text, expected) in [
            ("Token abc", "Bearer abc"),
            ("token ada:x", "Basic YWRhOng="),
            ("Basic YWRhOng=", "Basic YWRhOng="),
            ("Tok", "Tok"),
        ] {
            assert_eq!(of_influx(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }
}
