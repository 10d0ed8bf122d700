//! Calls of a member on behalf of its own caller.
//!
//! Always true: no other node, no application and no user asks for another; such a call is refused, and not served as if it were the node's.

use std::sync::Arc;

use tidegate_api::{ApiError, BEHALF_METADATA};
use tidegate_identity::{access::Identity, pki::Kind};
use tidegate_message::Code;
use tidegate_wire::NodeId;
use tonic::{codegen::http::HeaderMap, metadata::MetadataMap};

/// Whether the node with that key is a member of the fabric of this one.
pub type IsMember = dyn Fn(NodeId) -> bool + Send + Sync;

/// The one for whom a call is: the caller itself, or the one that a member names.
pub(super) fn caller(
    caller: Arc<Identity>,
    headers: &HeaderMap,
    is_member: Option<&IsMember>,
) -> Result<Arc<Identity>, ApiError> {
    if !headers.contains_key(BEHALF_METADATA) {
        return Ok(caller);
    }
    if caller.certificate != Some(Kind::Node) {
        let text = format!("{caller} asks on behalf of another, and only nodes may");
        return Err(ApiError::new(Code::ACTION_DENIED, text));
    }
    // A node that has just started may not have met its members yet: they try again.
    if !is_member.is_some_and(|is_member| is_member(caller.key)) {
        let text = format!(
            "{caller} asks on behalf of another, and is no member of the fabric that this node knows; try again in a moment"
        );
        return Err(ApiError::new(Code::MEMBER_UNKNOWN, text));
    }
    let metadata = MetadataMap::from_headers(headers.clone());
    let mut values = metadata.get_all_bin(BEHALF_METADATA).iter();
    let named = values.next().filter(|_| values.next().is_none());
    let named = named.and_then(|value| value.to_bytes().ok()).ok_or_else(|| {
        let text = format!("{caller} sends {BEHALF_METADATA} more than once, or not in base64");
        ApiError::new(Code::REQUEST_INVALID, text)
    })?;
    Identity::on_behalf(&caller, &named).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use tidegate_identity::auth::Admitted;
    use tidegate_message::IdentityKind;

    use super::*;

    fn of(certificate: Option<Kind>, key: u8) -> Arc<Identity> {
        let who = tidegate_message::Identity::new(IdentityKind::Node, "yard", "");
        let admitted = Admitted::by_certificate(who);
        let key = NodeId([key; 32]);
        Arc::new(Identity { admitted, certificate, serial: None, key, through: None })
    }

    #[test]
    fn members_alone_ask_for_others() {
        let headers = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(BEHALF_METADATA, value.parse().expect("a header"));
            }
            headers
        };
        // {"kind":"user","name":"ada"}
        let ada = "eyJraW5kIjoidXNlciIsIm5hbWUiOiJhZGEifQ";
        let is_member = |node: NodeId| node == NodeId([1; 32]);
        let as_itself = caller(of(None, 9), &headers(&[]), None).expect("it asks for itself");
        assert_eq!((as_itself.name(), as_itself.through.is_none()), ("yard", true));
        let known = caller(of(Some(Kind::Node), 1), &headers(&[ada]), Some(&is_member));
        assert_eq!(known.expect("a member").to_string(), "user ada through node yard");
        for (who, is_member, values, code) in [
            (of(Some(Kind::Node), 1), None, &[ada][..], Code::MEMBER_UNKNOWN),
            (of(Some(Kind::Node), 2), Some(&is_member as &IsMember), &[ada], Code::MEMBER_UNKNOWN),
            (of(Some(Kind::Application), 1), Some(&is_member), &[ada], Code::ACTION_DENIED),
            (of(None, 1), Some(&is_member), &[ada], Code::ACTION_DENIED),
            (of(Some(Kind::Node), 1), Some(&is_member), &[ada, ada], Code::REQUEST_INVALID),
            (of(Some(Kind::Node), 1), Some(&is_member), &["?"], Code::REQUEST_INVALID),
            (of(Some(Kind::Node), 1), Some(&is_member), &[""], Code::REQUEST_INVALID),
        ] {
            let refused = caller(who, &headers(values), is_member).expect_err("it is refused");
            assert_eq!(refused.code(), code, "{values:?}: {refused}");
        }
    }
}
