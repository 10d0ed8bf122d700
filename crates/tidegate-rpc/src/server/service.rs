//! The calls: generated messages in, checked values to [`Cameras`] and [`Frames`], and back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::stream::{self, BoxStream, Stream, StreamExt};
use tidegate_api::{
    ApiError, Changes, EndReason, Event, FeedbackOf, Left, Member, RELAY_METADATA, Registration,
    ServerInfo, Sought, SubscribeRequest, SubscriptionId,
    proto::{self, publish_response as answer, subscribe_response as event},
};
use tidegate_identity::{auth::limits::Lease, callers::Callers};
use tidegate_message::{CameraName, Code, Instant};
use tidegate_process::clock;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    ServerConfig,
    status::{OrStatus as _, status},
    stubs::{
        configuration_server as configuration_wire, fabric_server as fabric_wire,
        frames_server as wire, sessions_server as sessions_wire,
    },
};
use crate::{Admin, Cameras, Frames, Identity};

/// The one service of the server.
pub(super) struct Service {
    cameras: Arc<dyn Cameras>,
    admin: Arc<dyn Admin>,
    callers: Arc<Callers>,
    node: String,
    frame_bytes_max: u64,
    /// Distinguishes the clients of this run from those of earlier ones.
    started_at: Instant,
    clients: AtomicU64,
    stop: CancellationToken,
}

impl Service {
    pub(super) fn new(
        cameras: Arc<dyn Cameras>,
        admin: Arc<dyn Admin>,
        config: &ServerConfig,
        callers: Arc<Callers>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            cameras,
            admin,
            callers,
            node: config.node.clone(),
            frame_bytes_max: config.frame_bytes_max,
            started_at: clock::now(),
            clients: AtomicU64::new(0),
            stop,
        }
    }

    /// The frames that the caller of a request may read: here, or at all members where it asks for that.
    fn frames<T>(&self, request: &Request<T>) -> Result<Arc<dyn Frames>, Status> {
        let (cameras, identity) = (self.cameras.clone(), caller(request)?);
        match request.metadata().get(RELAY_METADATA).map(|value| value.as_bytes()) {
            None => Ok(cameras.frames(identity)),
            Some(b"1") => Ok(cameras.frames_of_all(identity)),
            Some(_) => {
                let text = format!("{RELAY_METADATA} is 1, or is left out");
                Err(status(ApiError::new(Code::REQUEST_INVALID, text)))
            }
        }
    }
}

/// The caller of this request, as the gate has authenticated it.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Arc<Identity>, Status> {
    let known = request.extensions().get::<Arc<Identity>>().cloned();
    known.ok_or_else(|| {
        status(ApiError::new(Code::INTERNAL, "the caller was not looked at before its call"))
    })
}

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = BoxStream<'static, Result<T, Status>>;

#[tonic::async_trait]
impl sessions_wire::Sessions for Service {
    async fn list_sessions(
        &self,
        request: Request<proto::ListSessionsRequest>,
    ) -> Answer<proto::ListSessionsResponse> {
        let identity = caller(&request)?;
        let sessions =
            self.admin.sessions(&identity, request.into_inner().into()).await.or_status()?;
        Ok(Response::new(sessions.into()))
    }

    async fn end_sessions(
        &self,
        request: Request<proto::EndSessionsRequest>,
    ) -> Answer<proto::EndSessionsResponse> {
        let identity = caller(&request)?;
        let ended =
            self.admin.end_sessions(&identity, request.into_inner().into()).await.or_status()?;
        Ok(Response::new(proto::EndSessionsResponse { ended }))
    }
}

#[tonic::async_trait]
impl configuration_wire::Configuration for Service {
    async fn reload_configuration(
        &self,
        request: Request<proto::ReloadConfigurationRequest>,
    ) -> Answer<proto::ReloadConfigurationResponse> {
        let identity = caller(&request)?;
        let reloaded = self.admin.reload_configuration(&identity).await.or_status()?;
        Ok(Response::new(reloaded.into()))
    }
}

#[tonic::async_trait]
impl fabric_wire::Fabric for Service {
    async fn get_fabric(
        &self,
        request: Request<proto::GetFabricRequest>,
    ) -> Answer<proto::GetFabricResponse> {
        let fabric = self.admin.fabric(&caller(&request)?).or_status()?;
        Ok(Response::new(fabric.status().await.or_status()?.into()))
    }

    async fn list_members(
        &self,
        request: Request<proto::ListMembersRequest>,
    ) -> Answer<proto::ListMembersResponse> {
        let fabric = self.admin.fabric(&caller(&request)?).or_status()?;
        let members = fabric.members(request.into_inner().into()).await.or_status()?;
        Ok(Response::new(members.into()))
    }

    async fn locate(
        &self,
        request: Request<proto::LocateRequest>,
    ) -> Answer<proto::LocateResponse> {
        let fabric = self.admin.fabric(&caller(&request)?).or_status()?;
        let sought = Sought::try_from(request.into_inner()).or_status()?;
        let members = fabric.locate(&sought).await.or_status()?;
        let members = members.into_iter().map(Into::into).collect();
        Ok(Response::new(proto::LocateResponse { members }))
    }

    async fn list_rules(
        &self,
        request: Request<proto::ListRulesRequest>,
    ) -> Answer<proto::ListRulesResponse> {
        let fabric = self.admin.fabric(&caller(&request)?).or_status()?;
        Ok(Response::new(fabric.rules(&request.get_ref().after).into()))
    }

    async fn forget_member(
        &self,
        request: Request<proto::ForgetMemberRequest>,
    ) -> Answer<proto::ForgetMemberResponse> {
        let fabric = self.admin.fabric(&caller(&request)?).or_status()?;
        let Member { id, name, .. } = fabric.forget(&request.get_ref().member).await.or_status()?;
        Ok(Response::new(proto::ForgetMemberResponse { id, name }))
    }

    async fn leave_fabric(
        &self,
        request: Request<proto::LeaveFabricRequest>,
    ) -> Answer<proto::LeaveFabricResponse> {
        let fabric = self.admin.fabric(&caller(&request)?).or_status()?;
        let Left { unsent, unsent_to } = fabric.leave().await.or_status()?;
        Ok(Response::new(proto::LeaveFabricResponse { unsent, unsent_to }))
    }
}

#[tonic::async_trait]
impl wire::Frames for Service {
    async fn connect(
        &self,
        request: Request<proto::ConnectRequest>,
    ) -> Answer<proto::ConnectResponse> {
        let identity = caller(&request)?;
        let ordinal = self.clients.fetch_add(1, Ordering::Relaxed);
        let client_id = format!("{}-{:x}-{ordinal}", self.node, self.started_at.as_nanos());
        let program = request.get_ref().client.escape_debug();
        tracing::info!(%identity, %program, client_id, "a client connected");
        let info = ServerInfo {
            client_id,
            node: self.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            server_at: clock::now(),
            frame_bytes_max: self.frame_bytes_max,
        };
        Ok(Response::new(info.into()))
    }

    async fn register(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Answer<proto::RegisterResponse> {
        let identity = caller(&request)?;
        let registration = Registration::try_from(request.into_inner()).or_status()?;
        self.cameras.register(&identity, registration).await.or_status()?;
        Ok(Response::new(proto::RegisterResponse {}))
    }

    async fn unregister(
        &self,
        request: Request<proto::UnregisterRequest>,
    ) -> Answer<proto::UnregisterResponse> {
        let identity = caller(&request)?;
        let camera = name(&request.into_inner().camera)?;
        self.cameras.unregister(&identity, &camera).await.or_status()?;
        Ok(Response::new(proto::UnregisterResponse {}))
    }

    type PublishStream = Answers<proto::PublishResponse>;

    async fn publish(
        &self,
        request: Request<Streaming<proto::PublishRequest>>,
    ) -> Answer<Self::PublishStream> {
        let identity = caller(&request)?;
        let publication = Publication {
            lease: self.callers.enter(&identity).or_status()?,
            identity,
            requests: request.into_inner(),
            cameras: self.cameras.clone(),
            frame_bytes_max: self.frame_bytes_max,
            camera: None,
        };
        // Back-pressure: the next frame is read when the answer to this one is taken up.
        let answers = stream::unfold(Some(publication), |publication| async {
            let mut publication = publication?;
            match publication.next().await.transpose()? {
                Ok(answer) => Some((Ok(answer), Some(publication))),
                Err(status) => Some((Err(status), None)),
            }
        });
        let stop = self.stop.clone().cancelled_owned();
        Ok(Response::new(answers.take_until(stop).boxed()))
    }

    async fn list_cameras(
        &self,
        request: Request<proto::ListCamerasRequest>,
    ) -> Answer<proto::ListCamerasResponse> {
        let cameras = self.frames(&request)?.cameras().await.or_status()?;
        let cameras = cameras.into_iter().map(Into::into).collect();
        Ok(Response::new(proto::ListCamerasResponse { cameras }))
    }

    async fn get_camera_info(
        &self,
        request: Request<proto::GetCameraInfoRequest>,
    ) -> Answer<proto::GetCameraInfoResponse> {
        let camera = name(&request.get_ref().camera)?;
        let camera = self.frames(&request)?.camera(&camera).await.or_status()?;
        Ok(Response::new(proto::GetCameraInfoResponse { camera: Some(camera.into()) }))
    }

    type SubscribeStream = Answers<proto::SubscribeResponse>;

    async fn subscribe(
        &self,
        request: Request<proto::SubscribeRequest>,
    ) -> Answer<Self::SubscribeStream> {
        let identity = caller(&request)?;
        let lease = self.callers.enter(&identity).or_status()?;
        let frames = self.frames(&request)?;
        let request = SubscribeRequest::try_from(request.into_inner()).or_status()?;
        future_is_left(&request, clock::now()).or_status()?;
        let subscription = frames.subscribe(request).await.or_status()?;
        let started = event::Event::Started(subscription.started().into());
        let last = Some(Ok(Event::Ended(EndReason::Shutdown)));
        let events = stream::unfold(subscription, |mut subscription| async {
            let event = subscription.next_event().await?;
            Some((event, subscription))
        });
        let events = until(events, self.stop.clone(), last)
            .map(|event| event.map(Into::into).map_err(status));
        let events = stream::once(async { Ok(started) }).chain(events);
        let answers = events.map(move |event| {
            let _held = &lease; // as long as the stream
            Ok(proto::SubscribeResponse { event: Some(event?) })
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn update_subscription(
        &self,
        request: Request<proto::UpdateSubscriptionRequest>,
    ) -> Answer<proto::UpdateSubscriptionResponse> {
        let identity = caller(&request)?;
        let request = request.into_inner();
        let changes = Changes::try_from(request.changes.unwrap_or_default()).or_status()?;
        let id = SubscriptionId(request.subscription_id);
        let demand = self.cameras.update(&identity, id, changes).await.or_status()?;
        Ok(Response::new(proto::UpdateSubscriptionResponse { demand: Some(demand.into()) }))
    }

    async fn unsubscribe(
        &self,
        request: Request<proto::UnsubscribeRequest>,
    ) -> Answer<proto::UnsubscribeResponse> {
        let identity = caller(&request)?;
        let id = SubscriptionId(request.into_inner().subscription_id);
        Ok(Response::new(self.cameras.unsubscribe(&identity, id).await.or_status()?.into()))
    }

    async fn fetch_original(
        &self,
        request: Request<proto::FetchOriginalRequest>,
    ) -> Answer<proto::FetchOriginalResponse> {
        let frames = self.frames(&request)?;
        let request = request.into_inner();
        let captured_at = Instant::from_nanos(request.captured_at);
        let camera = name(&request.camera)?;
        let original = frames.fetch_original(&camera, captured_at).await.or_status()?;
        Ok(Response::new(original.into()))
    }

    type FeedbackStream = Answers<proto::FeedbackResponse>;

    async fn feedback(
        &self,
        request: Request<proto::FeedbackRequest>,
    ) -> Answer<Self::FeedbackStream> {
        let identity = caller(&request)?;
        let lease = self.callers.enter(&identity).or_status()?;
        let of = FeedbackOf::try_from(request.into_inner()).or_status()?;
        let verdicts = self.cameras.feedback(&identity, of).await.or_status()?;
        let verdicts = until(ReceiverStream::new(verdicts), self.stop.clone(), None);
        let answers = verdicts.map(move |verdict| {
            let _held = &lease; // as long as the stream
            Ok(proto::FeedbackResponse { verdict: Some(verdict.into()) })
        });
        Ok(Response::new(answers.boxed()))
    }
}

/// One Publish call.
struct Publication {
    identity: Arc<Identity>,
    lease: Lease,
    requests: Streaming<proto::PublishRequest>,
    cameras: Arc<dyn Cameras>,
    frame_bytes_max: u64,
    /// Named by the first message.
    camera: Option<CameraName>,
}

impl Publication {
    /// The answer to the next frame, none when the client is through.
    async fn next(&mut self) -> Result<Option<proto::PublishResponse>, Status> {
        let Some(request) = self.requests.message().await.map_err(too_large)? else {
            return Ok(None);
        };
        let camera = self.camera(&request.camera)?;
        let bytes = request.jpeg.len() as u64;
        // A client that sends faster than it may is read from no faster.
        if let Some(until) = self.lease.meter().spend(clock::now(), 1, bytes) {
            tokio::time::sleep(until.since(clock::now())).await;
        }
        let result = if bytes > self.frame_bytes_max {
            let max = self.frame_bytes_max;
            let message = format!("the frame has {bytes} bytes, this node accepts up to {max}");
            Err(ApiError::new(Code::FRAME_TOO_LARGE, message))
        } else {
            let captured_at = request.captured_at.map(Instant::from_nanos);
            self.cameras.publish(&self.identity, &camera, captured_at, request.jpeg).await
        };
        let result = match result {
            Ok(at) => answer::Result::AcceptedAt(at.as_nanos()),
            Err(error) if refuses_one_frame(error.code()) => {
                tracing::debug!(%camera, code = %error.code(), %error, "a frame was refused");
                let (code, message) = (error.code().to_string(), error.chain());
                answer::Result::Refused(proto::Refusal { code, message })
            }
            Err(error) => return Err(status(error)),
        };
        Ok(Some(proto::PublishResponse { result: Some(result) }))
    }

    /// The camera of a message, which may name it again but not another one.
    fn camera(&mut self, text: &str) -> Result<CameraName, Status> {
        let unknown = |message: String| ApiError::new(Code::CAMERA_UNKNOWN, message);
        match &self.camera {
            Some(camera) if text.is_empty() || camera.as_str() == text => Ok(camera.clone()),
            Some(camera) => {
                let text = text.escape_debug();
                let message = format!("this stream is for {camera}; open another one for {text}");
                Err(status(unknown(message)))
            }
            None if text.is_empty() => {
                Err(status(unknown("the first message of Publish names its camera".to_owned())))
            }
            None => Ok(self.camera.insert(name(text)?).clone()),
        }
    }
}

/// Whether the failure is the frame's own, so that the next one may follow.
fn refuses_one_frame(code: Code) -> bool {
    matches!(code, Code::FRAME_INVALID | Code::FRAME_TOO_LARGE | Code::FRAME_TIMESTAMP)
}

/// A message over the limit is the one failure of the transport that is a frame's fault.
fn too_large(refused: Status) -> Status {
    match refused.code() {
        tonic::Code::OutOfRange => status(ApiError::new(Code::FRAME_TOO_LARGE, refused.message())),
        _ => refused,
    }
}

/// The items of `values`, and after `stop` only `last`.
fn until<T: Send + 'static>(
    values: impl Stream<Item = T> + Send + 'static,
    stop: CancellationToken,
    last: Option<T>,
) -> impl Stream<Item = T> + Send + 'static {
    let stopped = stop.clone();
    let last = stream::once(async move { last.filter(|_| stopped.is_cancelled()) });
    values.take_until(stop.cancelled_owned()).chain(last.filter_map(std::future::ready))
}

fn name(text: &str) -> Result<CameraName, Status> {
    text.parse::<CameraName>().or_status()
}

/// A subscription from now on that ends in the past asks for nothing.
fn future_is_left(request: &SubscribeRequest, now: Instant) -> Result<(), ApiError> {
    match request.to {
        Some(to) if request.from.is_none() && to <= now => {
            let message = format!("`to` ({to}) has passed; name `from` to read the past");
            Err(ApiError::new(Code::RANGE_INVALID, message))
        }
        _ => Ok(()),
    }
}
