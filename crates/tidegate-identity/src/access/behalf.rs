//! A caller of one node, as that node names it to another one that it asks on the caller's behalf.
//!
//! Always true: no proof of the caller travels. The node that is asked takes the word of a member for who it is, and decides by its own
//! rules what both may see.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidegate_api::ApiError;
use tidegate_message::{Code, IdentityKind};

use super::{Identity, kind_of};
use crate::{auth::Admitted, pki::Kind};

/// Longest such name: headers of a call are bounded as well.
const NAMED_BYTES_MAX: usize = 4 << 10;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    /// The purpose of its certificate, or [`USER`].
    kind: String,
    name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
}

/// The kind of one that has shown a password or a token, or for whom the configuration vouches.
const USER: &str = "user";

impl Identity {
    /// How this node names the caller to another one.
    ///
    /// # Errors
    /// [`Code::ACTION_DENIED`] for one that another node cannot know: a stranger, or one for whom another node asks;
    /// [`Code::LIMIT_REACHED`] if its name and its groups are longer than 4 KiB.
    pub fn named(&self) -> Result<Vec<u8>, ApiError> {
        let who = self.who();
        let is_known = self.certificate.is_some() || who.kind == IdentityKind::User;
        if !is_known || self.through.is_some() {
            let text = format!("{self} is shown the cameras of this node alone");
            return Err(ApiError::new(Code::ACTION_DENIED, text));
        }
        let named = Named {
            kind: self.certificate.map_or(USER, Kind::as_str).to_owned(),
            name: who.name.to_string(),
            groups: who.groups.iter().map(ToString::to_string).collect(),
        };
        let text = serde_json::to_vec(&named).expect("a struct of texts is JSON");
        if text.len() > NAMED_BYTES_MAX {
            let text = format!(
                "the name and the groups of {self} have {} bytes, and other nodes take up to {NAMED_BYTES_MAX}; it is shown the cameras of \
                 this node alone",
                text.len()
            );
            return Err(ApiError::new(Code::LIMIT_REACHED, text));
        }
        Ok(text)
    }

    /// The caller that `node` names, on whose behalf it asks.
    ///
    /// # Errors
    /// [`Code::REQUEST_INVALID`] if it is none.
    pub fn on_behalf(node: &Arc<Self>, named: &[u8]) -> Result<Self, ApiError> {
        let wrong = |cause: &dyn std::error::Error| {
            let text = format!("{node} names no caller that this node understands");
            ApiError::new(Code::REQUEST_INVALID, text).caused_by(cause.to_string())
        };
        if named.len() > NAMED_BYTES_MAX {
            let text = format!(
                "{node} names a caller in {} bytes, and up to {NAMED_BYTES_MAX} are taken",
                named.len()
            );
            return Err(ApiError::new(Code::REQUEST_INVALID, text));
        }
        let Named { kind, name, groups } =
            serde_json::from_slice(named).map_err(|error| wrong(&error))?;
        let certificate = match &*kind {
            USER => None,
            word => Some(word.parse::<Kind>().map_err(|()| {
                let text = format!(
                    "{node} names a caller of the kind {}, which is none",
                    kind.escape_debug()
                );
                ApiError::new(Code::REQUEST_INVALID, text)
            })?),
        };
        let mut groups: Vec<Arc<str>> = groups.iter().map(|group| (&**group).into()).collect();
        groups.sort_unstable();
        let who = tidegate_message::Identity {
            groups: groups.into(),
            ..tidegate_message::Identity::new(
                certificate.map_or(IdentityKind::User, kind_of),
                &name,
                &node.to_string(),
            )
        };
        // The member vouches for it, as an authority does for a certificate.
        let admitted = Admitted::by_certificate(who);
        let (key, through) = (node.key, Some(node.clone()));
        Ok(Self { admitted, certificate, serial: None, key, through })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_message::{Action, Target};
    use tidegate_wire::NodeId;

    use super::*;
    use crate::{
        access::Access,
        auth::{Authenticator, Source, Sources, password::DecoyKey},
    };

    fn of(kind: IdentityKind, certificate: Option<Kind>, name: &str) -> Identity {
        let who = tidegate_message::Identity {
            groups: ["b", "a"].map(Into::into).into(),
            ..tidegate_message::Identity::new(kind, name, "")
        };
        Identity {
            admitted: Admitted::by_certificate(who),
            certificate,
            serial: None,
            key: NodeId([1; 32]),
            through: None,
        }
    }

    fn node() -> Arc<Identity> {
        of(IdentityKind::Node, Some(Kind::Node), "yard").into()
    }

    #[test]
    fn caller_is_named_and_understood_and_no_further() {
        for (kind, certificate, shown) in [
            (IdentityKind::User, None, "user ä da through node yard"),
            (
                IdentityKind::Certificate,
                Some(Kind::Application),
                "application ä da through node yard",
            ),
            (IdentityKind::Node, Some(Kind::Camera), "camera ä da through node yard"),
        ] {
            let caller = of(kind, certificate, "ä da");
            let understood = Identity::on_behalf(&node(), &caller.named().unwrap()).unwrap();
            assert_eq!(understood.to_string(), shown);
            assert_eq!((understood.who().kind, understood.certificate), (kind, certificate));
            assert_eq!(*understood.who().groups, ["a".into(), "b".into()]);
            assert!(!understood.is(&caller), "it comes by another way");
            assert_eq!(understood.named().unwrap_err().code(), Code::ACTION_DENIED, "one hop");
        }
        let stranger = of(IdentityKind::Anonymous, None, "").named();
        assert_eq!(stranger.unwrap_err().code(), Code::ACTION_DENIED);
        let long = of(IdentityKind::User, None, &"x".repeat(NAMED_BYTES_MAX)).named();
        assert_eq!(long.unwrap_err().code(), Code::LIMIT_REACHED);
        for named in ["", "null", r#"{"kind":"user"}"#, r#"{"kind":"king","name":"ada"}"#] {
            let refused = Identity::on_behalf(&node(), named.as_bytes()).unwrap_err();
            assert_eq!(refused.code(), Code::REQUEST_INVALID, "{named}");
        }
    }

    #[test]
    fn node_and_caller_both_need_the_right_and_nothing_else_is_asked_for_others() {
        let roles = "[role.see]\nframes = true\nfetch-original = true\n\
                     [role.door]\nframes = [\"door\"]\npublish = [\"camera:door\"]\n\
                     [user.ada]\nroles = [\"door\"]\n[user.bob]\nroles = [\"see\"]\n[node.yard]\nroles = [\"see\"]\n";
        let sources = Sources {
            passwords: None,
            acl: None,
            roles: Some(Source { path: "roles.toml".into(), text: roles.to_owned().into() }),
            tokens: None,
            allow_anonymous: false,
            administrator: None,
            decoy_key: DecoyKey([0; 32]),
        };
        let authenticator = Arc::new(Authenticator::new(sources).expect("rules"));
        let access = Access { authenticator, ..Access::default() };
        let other = Arc::new(of(IdentityKind::Node, Some(Kind::Node), "mast"));
        for (node, user, action, camera, expected) in [
            (&node(), "ada", Action::Frames, "door", true),
            (&node(), "ada", Action::Frames, "hall", false),
            (&node(), "bob", Action::Frames, "hall", true),
            (&node(), "bob", Action::FetchOriginal, "hall", true),
            (&node(), "ada", Action::FetchOriginal, "door", false),
            (&node(), "ada", Action::Publish, "door", false),
            (&other, "bob", Action::Frames, "hall", false),
        ] {
            let caller = of(IdentityKind::User, None, user);
            let caller = Identity::on_behalf(node, &caller.named().unwrap()).unwrap();
            let allowed = access.allows(&caller, action, Target::Camera(camera));
            assert_eq!(allowed, expected, "{caller}: {action:?} {camera}");
        }
    }
}
