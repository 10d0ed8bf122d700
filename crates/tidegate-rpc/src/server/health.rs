//! `grpc.health.v1`: whether the node answers calls, for balancers and for `grpc_health_probe`.

use std::{future::ready, sync::Arc, time::Duration};

use futures::stream::{self, BoxStream, StreamExt as _};
use tidegate_identity::callers::Callers;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    health_stubs::{
        HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
        health_server::Health,
    },
    service::caller,
    status::OrStatus as _,
};

/// The services that are served as long as the node is; the empty name is the node.
const SERVICES: [&str; 5] = [
    "",
    "tidegate.v1.Configuration",
    "tidegate.v1.Fabric",
    "tidegate.v1.Frames",
    "tidegate.v1.Sessions",
];
/// The service of nodes that look at images.
const DETECT: &str = "tidegate.v1.Detect";
/// How often the credentials of a caller that watches are looked at again.
const CREDENTIALS_CHECKED: Duration = Duration::from_secs(1);

/// Serves until `stop`.
#[derive(Clone)]
pub(super) struct HealthService {
    pub(super) has_detection: bool,
    pub(super) callers: Arc<Callers>,
    pub(super) stop: CancellationToken,
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

impl HealthService {
    fn services(&self) -> impl Iterator<Item = &'static str> {
        SERVICES.into_iter().chain(self.has_detection.then_some(DETECT))
    }

    /// None of a service that there is not.
    fn status(&self, service: &str) -> Option<ServingStatus> {
        self.services().any(|known| known == service).then(|| match self.stop.is_cancelled() {
            true => ServingStatus::NotServing,
            false => ServingStatus::Serving,
        })
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = self.status(&request.get_ref().service);
        let status = status.ok_or_else(|| {
            let known: Vec<&str> = self.services().collect();
            let text = format!("there is no service of that name; there are: {}", known.join(" "));
            Status::not_found(text) // as the protocol has it
        })?;
        Ok(Response::new(answer(status)))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let identity = caller(&request)?;
        let lease = self.callers.enter(&identity).or_status()?;
        let status = self.status(&request.get_ref().service);
        let now = stream::iter([Ok(answer(status.unwrap_or(ServingStatus::ServiceUnknown)))]);
        let (stop, callers) = (self.stop.clone(), self.callers.clone());
        let last = stream::once(async move {
            let _held = lease; // as long as the stream
            loop {
                match timeout(CREDENTIALS_CHECKED, stop.cancelled()).await {
                    Ok(()) => break,
                    Err(_) => callers.still_holds(&identity).or_status()?,
                }
            }
            Ok(answer(ServingStatus::NotServing))
        });
        // A service that there is not may be there one day, says the protocol: the call stays open.
        let is_known = status.is_some();
        let last = last.filter(move |answer| ready(is_known || answer.is_err()));
        Ok(Response::new(now.chain(last).boxed()))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_identity::access::Access;

    use super::*;

    #[tokio::test]
    async fn detection_is_healthy_only_where_it_is_served() {
        for has_detection in [true, false] {
            let callers = Arc::new(Callers::new(Access::default(), "api"));
            let health = HealthService { has_detection, callers, stop: CancellationToken::new() };
            let of = |service: &str| Request::new(HealthCheckRequest { service: service.into() });
            let found = health.check(of(DETECT)).await;
            assert_eq!(found.is_ok(), has_detection);
            let unknown = health.check(of("cats")).await.unwrap_err();
            assert_eq!(unknown.message().contains(DETECT), has_detection, "{unknown:?}");
        }
    }
}
