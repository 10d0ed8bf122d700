//! Frames from a client into a camera of the node.

use bytes::Bytes;
use tidegate_message::{CameraName, Code, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::{
    ApiError,
    client::Stub,
    failure,
    proto::{self, publish_response::Result as Answer},
};

/// A stream of frames into one camera; dropping it ends the stream and leaves the camera registered.
#[derive(Debug)]
pub struct Publisher {
    camera: CameraName,
    frame_bytes_max: u64,
    // One frame: `publish` waits for its answer before the next can be sent.
    frames: mpsc::Sender<proto::PublishRequest>,
    answers: Streaming<proto::PublishResponse>,
}

impl Publisher {
    pub(crate) async fn open(
        mut stub: Stub,
        camera: CameraName,
        frame_bytes_max: u64,
    ) -> Result<Self, ApiError> {
        let (frames, sent) = mpsc::channel(1);
        let answers = stub.publish(ReceiverStream::new(sent)).await.map_err(failure)?.into_inner();
        Ok(Self { camera, frame_bytes_max, frames, answers })
    }

    /// Appends one JPEG frame and waits until it is in the log; returns its capture time, which is the
    /// node's time of arrival if none is given.
    ///
    /// # Errors
    /// [`Code::FRAME_INVALID`], [`Code::FRAME_TOO_LARGE`] or [`Code::FRAME_TIMESTAMP`] for a frame that
    /// was refused: the next one may follow. [`Code::LINK_DOWN`] and every other code end the stream:
    /// open a new one.
    ///
    /// # Cancel safety
    /// Not cancel safe: the answer to a frame that was given up would be taken for that of the next.
    pub async fn publish(
        &mut self,
        captured_at: Option<Instant>,
        jpeg: Bytes,
    ) -> Result<Instant, ApiError> {
        if jpeg.len() as u64 > self.frame_bytes_max {
            let (bytes, max) = (jpeg.len(), self.frame_bytes_max);
            let message = format!("the frame has {bytes} bytes, the node accepts up to {max}");
            return Err(ApiError::new(Code::FRAME_TOO_LARGE, message));
        }
        let request = proto::PublishRequest {
            camera: self.camera.to_string(),
            captured_at: captured_at.map(Instant::as_nanos),
            jpeg,
        };
        // A send that fails means that the node ended the stream; its last answer says why.
        let _ = self.frames.send(request).await;
        match self.answers.message().await.map_err(failure)?.map(|answer| answer.result) {
            Some(Some(Answer::AcceptedAt(at))) => Ok(Instant::from_nanos(at)),
            Some(Some(Answer::Refused(refusal))) => {
                let code = Code::named(&refusal.code).unwrap_or(Code::INTERNAL);
                Err(ApiError::new(code, refusal.message))
            }
            Some(None) => Err(ApiError::new(Code::LINK_PROTOCOL, "the answer to a frame is empty")),
            None => Err(ApiError::new(Code::LINK_DOWN, "the node ended the stream of frames")),
        }
    }
}
