//! The paths of HTTP on the port of the API.

use std::sync::{Arc, Weak};

use tidegate_identity::access::Access;
use tidegate_rpc::Router;
use tidegate_web::{FlowRow, SinkRow, Tables, UplinkRow, WebSettings};
use tokio_util::sync::CancellationToken;

use super::reload::Served;

/// The paths for callers that are known, and those for everybody.
pub(super) fn paths(
    served: Option<&Arc<Served>>,
    access: Access,
    stop: CancellationToken,
) -> (Router, Router) {
    let bus = served.map(|served| served.service.bus());
    let tables = Arc::new(Shown(served.map(Arc::downgrade)));
    let known = tidegate_web::router(WebSettings { access, bus, tables, stop });
    (known, tidegate_web::page())
}

/// The services of this node; none where it serves no MQTT, and once it stops.
struct Shown(Option<Weak<Served>>);

impl Shown {
    fn rows<T>(&self, of: impl FnOnce(&Served) -> Vec<T>) -> Vec<T> {
        let served = self.0.as_ref().and_then(Weak::upgrade);
        served.map(|served| of(&served)).unwrap_or_default()
    }
}

impl Tables for Shown {
    fn sinks(&self) -> Vec<SinkRow> {
        self.rows(|served| served.service.sinks())
    }

    fn uplinks(&self) -> Vec<UplinkRow> {
        self.rows(Served::uplinks)
    }

    fn flows(&self) -> Vec<FlowRow> {
        self.rows(|served| served.service.flows())
    }
}
