//! `tidegate.v1.Detect`: images in, boxes back.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use tidegate_api::{
    ApiError,
    proto::{self, detect_response::Result as Answered},
};
use tidegate_identity::callers::Callers;
use tidegate_message::Code;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    service::caller,
    status::{OrStatus as _, status},
    stubs::detect_server as wire,
};
use crate::{Detection, Identity};

/// Images of one stream that are under way; the proto says so, too.
const WINDOW: usize = 8;

/// The calls, in front of a [`Detection`].
pub(super) struct DetectService {
    detection: Arc<dyn Detection>,
    callers: Arc<Callers>,
    stop: CancellationToken,
}

impl DetectService {
    pub(super) fn new(
        detection: Arc<dyn Detection>,
        callers: Arc<Callers>,
        stop: CancellationToken,
    ) -> Self {
        Self { detection, callers, stop }
    }
}

async fn detected(
    detection: &dyn Detection,
    identity: &Identity,
    model: &str,
    image: Bytes,
) -> Result<Answered, ApiError> {
    if model.is_empty() {
        let text = "the request names no model; set `model`, to face or person for example";
        return Err(ApiError::new(Code::DETECT_INVALID, text));
    }
    detection.detect(identity, model, image).await.map(Answered::Detected)
}

#[tonic::async_trait]
impl wire::Detect for DetectService {
    async fn detect(
        &self,
        request: Request<proto::DetectRequest>,
    ) -> Result<Response<proto::DetectResponse>, Status> {
        let identity = caller(&request)?;
        let _held = self.callers.enter(&identity).or_status()?; // until the answer
        let proto::DetectRequest { model, image, id } = request.into_inner();
        let result = detected(&*self.detection, &identity, &model, image).await.or_status()?;
        Ok(Response::new(proto::DetectResponse { id, result: Some(result) }))
    }

    type DetectStreamStream = BoxStream<'static, Result<proto::DetectResponse, Status>>;

    async fn detect_stream(
        &self,
        request: Request<Streaming<proto::DetectRequest>>,
    ) -> Result<Response<Self::DetectStreamStream>, Status> {
        let identity = caller(&request)?;
        let lease = self.callers.enter(&identity).or_status()?;
        let detection = self.detection.clone();
        let answers = request.into_inner().map(move |request| {
            let (detection, identity) = (detection.clone(), identity.clone());
            async move {
                let proto::DetectRequest { model, image, id } = request?;
                let result = detected(&*detection, &identity, &model, image).await;
                let result = match result {
                    Ok(found) => found,
                    // The stream is of no more use to a caller that is known no longer.
                    Err(error)
                        if matches!(
                            error.code(),
                            Code::IDENTITY_REFUSED | Code::IDENTITY_REVOKED
                        ) =>
                    {
                        return Err(status(error));
                    }
                    Err(error) => {
                        let (code, message) = (error.code().to_string(), error.chain());
                        Answered::Refused(proto::Refusal { code, message })
                    }
                };
                Ok(proto::DetectResponse { id, result: Some(result) })
            }
        });
        let stop = self.stop.clone().cancelled_owned();
        let answers = answers.buffer_unordered(WINDOW).take_until(stop).map(move |answer| {
            let _held = &lease; // as long as the stream
            answer
        });
        Ok(Response::new(answers.boxed()))
    }
}
