//! `grpc.health.v1`: whether the node answers calls, for balancers and for `grpc_health_probe`.

use futures::stream::{self, BoxStream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::health_stubs::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_server::Health,
};

/// The services that are served as long as the node is; the empty name is the node.
const SERVICES: [&str; 5] = [
    "",
    "tidegate.v1.Configuration",
    "tidegate.v1.Detect",
    "tidegate.v1.Frames",
    "tidegate.v1.Sessions",
];

/// Serves until `stop`.
#[derive(Clone)]
pub(super) struct HealthService {
    pub(super) stop: CancellationToken,
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

impl HealthService {
    /// None of a service that there is not.
    fn status(&self, service: &str) -> Option<ServingStatus> {
        SERVICES.contains(&service).then(|| match self.stop.is_cancelled() {
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
            let text =
                format!("there is no service of that name; there are: {}", SERVICES.join(" "));
            Status::not_found(text) // as the protocol has it
        })?;
        Ok(Response::new(answer(status)))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let status = self.status(&request.get_ref().service);
        let now = stream::iter([Ok(answer(status.unwrap_or(ServingStatus::ServiceUnknown)))]);
        let stop = self.stop.clone();
        let last = stream::once(async move {
            stop.cancelled().await;
            Ok(answer(ServingStatus::NotServing))
        });
        let answers = match status {
            Some(_) => now.chain(last).boxed(),
            // It may be there one day, says the protocol: the call stays open.
            None => {
                now.chain(stream::pending().take_until(self.stop.clone().cancelled_owned())).boxed()
            }
        };
        Ok(Response::new(answers))
    }
}
