//! CONNECT and SUBSCRIBE, as far as a load needs them.

use tidegate_wire::mqtt::{Connect, RetainHandling, SubscribeFilter};

use crate::{
    layout::{self, Role},
    spec::Spec,
};

/// A clean session, no will.
pub(crate) fn connect(spec: &Spec, role: Role) -> Connect {
    Connect {
        keep_alive: spec.keep_alive,
        username: spec.username.clone(),
        password: spec.password.clone().map(String::into_bytes),
        ..Connect::new(spec.version, role.client_id(&spec.client_prefix))
    }
}

/// Filters that the connection subscribes to.
pub(crate) fn filters(spec: &Spec, role: Role) -> Vec<SubscribeFilter> {
    let filter = |filter| SubscribeFilter {
        filter,
        maximum_qos: spec.subscribe_qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::DoNotSend,
    };
    layout::filters(spec, role).into_iter().map(filter).collect()
}
