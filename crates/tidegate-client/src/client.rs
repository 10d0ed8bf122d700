//! The client: one connection to a node, shared by all its calls.

use std::{future::Future, sync::Arc, time::Duration};

use async_recursion::async_recursion as boxed;
use tidegate_message::{Backoff, CameraName, Code, Instant};
use tonic::{
    Request,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

use crate::{
    ApiError, CameraInfo, Credentials, EndSessions, FabricStatus, Feedback, FeedbackOf, Left,
    Located, MESSAGE_BYTES_MAX, Member, MembersPage, Original, Publisher, Registration,
    ReloadedConfiguration, Rule, ServerInfo, SessionInfo, SessionsPage, Sought, SubscribeRequest,
    Subscription,
    credentials::Shown,
    dial::{Dial, Dialled},
    elsewhere::Elsewhere,
    failure,
    proto::{
        self, configuration_client::ConfigurationClient, fabric_client::FabricClient,
        frames_client::FramesClient, sessions_client::SessionsClient,
    },
};

pub(crate) type Stub = FramesClient<InterceptedService<Channel, Shown>>;
type SessionsStub = SessionsClient<InterceptedService<Channel, Shown>>;
type FabricStub = FabricClient<InterceptedService<Channel, Shown>>;
type ConfigurationStub = ConfigurationClient<InterceptedService<Channel, Shown>>;

/// How a client connects and how hard it tries.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// How often in a row a broken connection is tried again before the call fails; 0 tries once. A
    /// subscription that receives an event starts counting from zero. Default 20, about a minute and a
    /// half.
    pub max_reconnects: u32,
    /// Wait before the first new try; doubles with each, up to `backoff_max`. Default 100 ms.
    pub backoff: Duration,
    /// Longest wait between two tries. Default 5 s.
    pub backoff_max: Duration,
    /// How long one connection attempt may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a call with one answer may take, FetchOriginal included. Default 30 s.
    pub call_timeout: Duration,
    /// The peer is asked for a sign of life this often; a link that is cut is noticed after twice that.
    /// Default 5 s.
    pub keep_alive: Duration,
    /// Bytes of one stream that may be under way unread. Less bounds what a slow application has waiting that wants every frame, more
    /// lets large frames flow over long links. Default 2 MiB.
    pub stream_window_bytes: u32,
    /// Whether calls about a camera that another node serves go there, see [`Client`]; otherwise they fail with
    /// [`Code::CAMERA_ELSEWHERE`], and [`ApiError::place`] names the node. Default true.
    pub follow: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            max_reconnects: 20,
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
            stream_window_bytes: 2 << 20,
            follow: true,
        }
    }
}

/// Streams that are not read must not starve those that are, so the connection's window holds many of
/// them. It is a permission, not an allocation.
const CONNECTION_WINDOW_BYTES: u32 = 512 << 20;

/// A client of one node. Cloning shares the connection.
///
/// Where nodes are one fabric, calls about a camera ([`camera`](Client::camera), [`subscribe`](Client::subscribe),
/// [`fetch_original`](Client::fetch_original), [`feedback`](Client::feedback) of a camera) go to the node that serves it, over a connection
/// of their own that is kept. The credentials are shown to that node only if its certificate is one that this connection would take: of
/// the same authority, for the [server name](Credentials::server_name) that was given or else for the host of its address. A client that
/// has connected without TLS follows nowhere. [`ConnectOptions::follow`] switches it off.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    stub: Stub,
    sessions: SessionsStub,
    configuration: ConfigurationStub,
    fabric: FabricStub,
    options: ConnectOptions,
    server: ServerInfo,
    endpoint: Arc<str>,
    /// None for a client that does not follow.
    elsewhere: Option<Arc<Elsewhere>>,
    /// Whether it hands frames on, and says nothing of the time that they took to come here.
    relays: bool,
}

impl Client {
    /// Connects to a node, such as `https://127.0.0.1:7080`, with default options.
    ///
    /// # Errors
    /// As [`Client::connect_with`].
    #[boxed]
    pub async fn connect(endpoint: &str, credentials: Credentials) -> Result<Self, ApiError> {
        // A first connection that fails is most often a wrong address: say so at once.
        let options = ConnectOptions { max_reconnects: 0, ..ConnectOptions::default() };
        let mut client = Self::connect_with(endpoint, credentials, options).await?;
        client.options.max_reconnects = ConnectOptions::default().max_reconnects;
        Ok(client)
    }

    /// Connects to a node.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] for an endpoint or credentials that cannot be used,
    /// [`Code::IDENTITY_REFUSED`] if one side does not accept the other's certificate,
    /// [`Code::LINK_DOWN`] if the node is not reached within `max_reconnects` further tries.
    pub async fn connect_with(
        endpoint: &str,
        credentials: Credentials,
        options: ConnectOptions,
    ) -> Result<Self, ApiError> {
        let invalid = |error: tonic::transport::Error| {
            let message = format!("the endpoint {endpoint:?} or its credentials cannot be used");
            ApiError::new(Code::CONFIG_INVALID, message).caused_by(error)
        };
        let address = Endpoint::from_shared(endpoint.to_owned())
            .and_then(|address| address.tls_config(credentials.tls()))
            .map_err(invalid)?;
        let is_tls = address.uri().scheme_str() == Some("https");
        let elsewhere = (options.follow && is_tls)
            .then(|| Arc::new(Elsewhere::new(credentials.clone(), &options)));
        let channel = tuned(address, &options).connect_lazy();
        let shown = credentials.shown();
        Self::on(channel, shown, endpoint, options, elsewhere, false).await
    }

    /// A client over connections that `dial` makes, one at a time, with TLS and whatever they are to prove: for a node that hands on what
    /// another one has. It follows nowhere, the times of its frames end where that node has handed them over, and a connection without a call
    /// is asked for no sign of life. `name` is the node's in errors.
    ///
    /// # Errors
    /// [`Code::LINK_DOWN`] if no connection can be made or no node answers by it; as the node refuses the caller.
    pub async fn over(name: &str, dial: Dial, options: ConnectOptions) -> Result<Self, ApiError> {
        let options = ConnectOptions { follow: false, ..options };
        // TLS is below: the channel is a plain one.
        let channel = tuned(Endpoint::from_static("http://node.tidegate.internal"), &options)
            .keep_alive_while_idle(false)
            .connect_with_connector_lazy(Dialled(dial));
        Self::on(channel, Shown::default(), name, options, None, true).await
    }

    async fn on(
        channel: Channel,
        shown: Shown,
        endpoint: &str,
        options: ConnectOptions,
        elsewhere: Option<Arc<Elsewhere>>,
        relays: bool,
    ) -> Result<Self, ApiError> {
        let stub = frames(&channel, &shown);
        let client = concat!("tidegate-client/", env!("CARGO_PKG_VERSION")).to_owned();
        let hello = proto::ConnectRequest { client };
        let answer = retry(&options, |_| {
            let (mut stub, hello) = (stub.clone(), call(&options, hello.clone()));
            async move { stub.connect(hello).await.map_err(failure) }
        })
        .await
        .map_err(|error| match error.code() {
            Code::LINK_DOWN => {
                ApiError::new(Code::LINK_DOWN, format!("no node answers at {endpoint}"))
                    .caused_by(error.chain())
            }
            _ => error,
        })?;
        Ok(Self {
            sessions: SessionsClient::with_interceptor(channel.clone(), shown.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            configuration: ConfigurationClient::with_interceptor(channel.clone(), shown.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            fabric: FabricClient::with_interceptor(channel.clone(), shown)
                .max_decoding_message_size(MESSAGE_BYTES_MAX),
            channel,
            stub,
            options,
            server: answer.into_inner().into(),
            endpoint: endpoint.into(),
            elsewhere,
            relays,
        })
    }

    /// The same connection for calls about frames on behalf of the caller that is named so; another node takes that of a member of its fabric
    /// alone.
    #[must_use]
    pub fn on_behalf(&self, named: &[u8]) -> Self {
        let stub = frames(&self.channel, &Shown::on_behalf(named));
        Self { stub, ..self.clone() }
    }

    /// The same with another number of tries for a subscription whose connection broke.
    #[must_use]
    pub fn with_reconnects(&self, max_reconnects: u32) -> Self {
        let options = ConnectOptions { max_reconnects, ..self.options.clone() };
        Self { options, ..self.clone() }
    }

    /// The node's description of itself.
    pub fn server(&self) -> &ServerInfo {
        &self.server
    }

    /// Every camera of the node, in order of their names; none of other nodes.
    ///
    /// # Errors
    /// [`Code::LINK_DOWN`] if the node is not reached.
    #[boxed]
    pub async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        let answer = self
            .retry(proto::ListCamerasRequest {}, async |mut stub, request| {
                stub.list_cameras(request).await
            })
            .await?;
        answer.cameras.into_iter().map(TryInto::try_into).collect()
    }

    /// One camera.
    ///
    /// # Errors
    /// [`Code::CAMERA_UNKNOWN`] if there is none of that name.
    #[boxed]
    pub async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError> {
        let request = proto::GetCameraInfoRequest { camera: name.to_string() };
        let answer = self
            .retry_at(name, request, async |mut stub, request| stub.get_camera_info(request).await)
            .await?;
        let lacking = || ApiError::new(Code::LINK_PROTOCOL, "the answer holds no camera");
        answer.camera.ok_or_else(lacking)?.try_into()
    }

    /// Announces a camera whose frames this client will publish.
    ///
    /// # Errors
    /// [`Code::CAMERA_TAKEN`] if another live node holds the name, [`Code::ACTION_DENIED`] if this
    /// identity may not hold it.
    pub async fn register(&self, registration: Registration) -> Result<(), ApiError> {
        let request = proto::RegisterRequest::from(registration);
        self.retry(request, async |mut stub, request| stub.register(request).await).await?;
        Ok(())
    }

    /// Takes a camera back.
    ///
    /// # Errors
    /// [`Code::CAMERA_UNKNOWN`] if it is not registered, [`Code::ACTION_DENIED`] if it is another's.
    pub async fn unregister(&self, camera: &CameraName) -> Result<(), ApiError> {
        let request = proto::UnregisterRequest { camera: camera.to_string() };
        self.retry(request, async |mut stub, request| stub.unregister(request).await).await?;
        Ok(())
    }

    /// A stream of frames into a camera that was registered.
    ///
    /// # Errors
    /// [`Code::LINK_DOWN`] if the node is not reached.
    pub async fn publish(&self, camera: CameraName) -> Result<Publisher, ApiError> {
        Publisher::open(self.stub.clone(), camera, self.server.frame_bytes_max).await
    }

    /// Frames of one camera. See [`Subscription`] for what happens when the connection breaks.
    ///
    /// # Errors
    /// [`Code::RANGE_INVALID`], [`Code::TABLE_MISSING`], [`Code::CAMERA_UNKNOWN`], and what the node
    /// says of this request.
    #[boxed]
    pub async fn subscribe(&self, request: SubscribeRequest) -> Result<Subscription, ApiError> {
        Subscription::open(self.clone(), request).await
    }

    /// The untouched frame that was captured at `captured_at`.
    ///
    /// # Errors
    /// [`Code::FRAME_MISSING`] if the log no longer, or never, had it; [`Code::CAMERA_OFFLINE`] if the
    /// camera's log cannot be reached now.
    #[boxed]
    pub async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError> {
        let request = proto::FetchOriginalRequest {
            camera: camera.to_string(),
            captured_at: captured_at.as_nanos(),
        };
        let answer = self
            .retry_at(camera, request, async |mut stub, request| stub.fetch_original(request).await)
            .await?;
        Ok(answer.into())
    }

    /// A verdict for each frame of a subscription's transfer, or of all transfers of a camera. A subscription is sought at this node alone:
    /// [`Subscription::feedback`] asks the one that serves it.
    ///
    /// # Errors
    /// [`Code::SUBSCRIPTION_UNKNOWN`] or [`Code::CAMERA_UNKNOWN`].
    pub async fn feedback(&self, of: FeedbackOf) -> Result<Feedback, ApiError> {
        let camera = match &of {
            FeedbackOf::Camera(camera) => Some(camera.clone()),
            FeedbackOf::Subscription(_) => None,
        };
        let request = proto::FeedbackRequest::from(of);
        let open = async |at: Self| {
            let answer = at.stub.clone().feedback(request.clone()).await;
            Ok(Feedback::new(answer.map_err(failure)?.into_inner()))
        };
        match camera {
            Some(camera) => self.at_camera(&camera, open).await,
            None => open(self.clone()).await,
        }
    }

    /// Sessions of MQTT clients at the node, in order of their clients' identifiers; as many as are asked for, or fewer where these are
    /// much to send; none if there are no more.
    ///
    /// # Errors
    /// [`Code::ACTION_DENIED`] without the right `admin` on the node, [`Code::LIMIT_REACHED`] if it serves no MQTT.
    pub async fn sessions(&self, page: SessionsPage) -> Result<Vec<SessionInfo>, ApiError> {
        let request = proto::ListSessionsRequest::from(page);
        let answer = retry(&self.options, |_| {
            let (mut stub, asked) = (self.sessions.clone(), call(&self.options, request.clone()));
            async move { stub.list_sessions(asked).await.map_err(failure) }
        });
        answer.await?.into_inner().sessions.into_iter().map(TryInto::try_into).collect()
    }

    /// Ends sessions of MQTT clients, with their connections and what waits for them; how many there were.
    ///
    /// # Errors
    /// As for [`Client::sessions`].
    pub async fn end_sessions(&self, which: EndSessions) -> Result<u64, ApiError> {
        let request = proto::EndSessionsRequest::from(which);
        let answer = retry(&self.options, |_| {
            let (mut stub, asked) = (self.sessions.clone(), call(&self.options, request.clone()));
            async move { stub.end_sessions(asked).await.map_err(failure) }
        });
        Ok(answer.await?.into_inner().ended)
    }

    /// Has the node read its configuration again, all of it or nothing; says what came of it.
    ///
    /// # Errors
    /// [`Code::ACTION_DENIED`] without the right `admin` on the node, [`Code::LIMIT_REACHED`] while another reload is under way.
    #[boxed]
    pub async fn reload_configuration(&self) -> Result<ReloadedConfiguration, ApiError> {
        let answer = retry(&self.options, |_| {
            let mut stub = self.configuration.clone();
            let asked = call(&self.options, proto::ReloadConfigurationRequest {});
            async move { stub.reload_configuration(asked).await.map_err(failure) }
        });
        Ok(answer.await?.into_inner().into())
    }

    /// The fabric that the node is a member of, as it sees it.
    ///
    /// # Errors
    /// [`Code::ACTION_DENIED`] without the right `admin` on the node, [`Code::FABRIC_OFF`] if it is a member of none.
    #[boxed]
    pub async fn fabric(&self) -> Result<FabricStatus, ApiError> {
        let answer = retry(&self.options, |_| {
            let mut stub = self.fabric.clone();
            let asked = call(&self.options, proto::GetFabricRequest {});
            async move { stub.get_fabric(asked).await.map_err(failure) }
        });
        Ok(answer.await?.into_inner().into())
    }

    /// Members of the fabric in order of their identities; as many as are asked for, or fewer where these are much to send; none if there
    /// are no more.
    ///
    /// # Errors
    /// As for [`Client::fabric`].
    #[boxed]
    pub async fn members(&self, page: MembersPage) -> Result<Vec<Member>, ApiError> {
        let request = proto::ListMembersRequest::from(page);
        let answer = retry(&self.options, |_| {
            let (mut stub, asked) = (self.fabric.clone(), call(&self.options, request.clone()));
            async move { stub.list_members(asked).await.map_err(failure) }
        });
        answer.await?.into_inner().members.into_iter().map(TryInto::try_into).collect()
    }

    /// The members that a topic, a camera or a position leads to, each with the reason; none for a topic without subscribers.
    ///
    /// # Errors
    /// As for [`Client::fabric`]; [`Code::CAMERA_UNKNOWN`] for a camera that is at no member.
    #[boxed]
    pub async fn locate(&self, sought: Sought) -> Result<Vec<Located>, ApiError> {
        let request = proto::LocateRequest::from(sought);
        let answer = retry(&self.options, |_| {
            let (mut stub, asked) = (self.fabric.clone(), call(&self.options, request.clone()));
            async move { stub.locate(asked).await.map_err(failure) }
        });
        Ok(answer.await?.into_inner().members.into_iter().map(Into::into).collect())
    }

    /// Rules that the node has, in order of their subjects, those behind `after`; none if there are no more. Nodes of one site are meant to
    /// have the same.
    ///
    /// # Errors
    /// As for [`Client::fabric`].
    #[boxed]
    pub async fn rules(&self, after: &str) -> Result<Vec<Rule>, ApiError> {
        let request = proto::ListRulesRequest { after: after.to_owned() };
        let answer = retry(&self.options, |_| {
            let (mut stub, asked) = (self.fabric.clone(), call(&self.options, request.clone()));
            async move { stub.list_rules(asked).await.map_err(failure) }
        });
        Ok(answer.await?.into_inner().rules.into_iter().map(Into::into).collect())
    }

    /// Has all members forget one that does not come back, by its name or its identity; its identity and its name.
    ///
    /// # Errors
    /// As for [`Client::fabric`]; [`Code::MEMBER_UNKNOWN`] if there is none of that name, [`Code::MEMBER_HERE`] for one that is here.
    #[boxed]
    pub async fn forget_member(&self, member: &str) -> Result<(String, String), ApiError> {
        let request = proto::ForgetMemberRequest { member: member.to_owned() };
        let answer = retry(&self.options, |_| {
            let (mut stub, asked) = (self.fabric.clone(), call(&self.options, request.clone()));
            async move { stub.forget_member(asked).await.map_err(failure) }
        });
        let proto::ForgetMemberResponse { id, name } = answer.await?.into_inner();
        Ok((id, name))
    }

    /// Has the node leave its fabric, once it has sent what waits for the members that it reaches.
    ///
    /// # Errors
    /// As for [`Client::fabric`]; [`Code::LIMIT_REACHED`] if that takes longer than a call lasts; it still leaves.
    #[boxed]
    pub async fn leave_fabric(&self) -> Result<Left, ApiError> {
        let answer = retry(&self.options, |_| {
            let mut stub = self.fabric.clone();
            let asked = call(&self.options, proto::LeaveFabricRequest {});
            async move { stub.leave_fabric(asked).await.map_err(failure) }
        });
        let proto::LeaveFabricResponse { unsent, unsent_to } = answer.await?.into_inner();
        Ok(Left { unsent, unsent_to })
    }

    pub(crate) fn stub(&self) -> Stub {
        self.stub.clone()
    }

    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// Whether it hands frames on.
    pub(crate) fn relays(&self) -> bool {
        self.relays
    }

    /// The address that it was made with.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The node's name.
    pub(crate) fn node(&self) -> &str {
        &self.server.node
    }

    /// Makes a call about a camera once, at the node that serves it.
    pub(crate) async fn at_camera<A, F>(
        &self,
        camera: &CameraName,
        call: impl Fn(Self) -> F,
    ) -> Result<A, ApiError>
    where
        F: Future<Output = Result<A, ApiError>>,
    {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.call(self, camera, call).await,
            None => call(self.clone()).await,
        }
    }

    /// [`Self::retry`] at the node that serves a camera.
    async fn retry_at<Q: Clone, A, F>(
        &self,
        camera: &CameraName,
        request: Q,
        method: impl Fn(Stub, Request<Q>) -> F,
    ) -> Result<A, ApiError>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let once = |at: Self| {
            let sent = method(at.stub, call(&self.options, request.clone()));
            async move { sent.await.map_err(failure) }
        };
        let answer = retry(&self.options, |_| self.at_camera(camera, once)).await?;
        Ok(answer.into_inner())
    }

    /// A call with one request and one answer, tried again while the node is away.
    async fn retry<Q: Clone, A, F>(
        &self,
        request: Q,
        method: impl Fn(Stub, Request<Q>) -> F,
    ) -> Result<A, ApiError>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let answer = retry(&self.options, |_| {
            let sent = method(self.stub.clone(), call(&self.options, request.clone()));
            async move { sent.await.map_err(failure) }
        })
        .await?;
        Ok(answer.into_inner())
    }
}

/// The endpoint with the times and windows of `options`.
fn tuned(endpoint: Endpoint, options: &ConnectOptions) -> Endpoint {
    endpoint
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keep_alive)
        .keep_alive_timeout(options.keep_alive)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(options.stream_window_bytes)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

fn frames(channel: &Channel, shown: &Shown) -> Stub {
    FramesClient::with_interceptor(channel.clone(), shown.clone())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

fn call<Q>(options: &ConnectOptions, request: Q) -> Request<Q> {
    let mut request = Request::new(request);
    request.set_timeout(options.call_timeout);
    request
}

/// Calls `attempt` again with growing waits while it fails because the peer is away.
pub(crate) async fn retry<A, F>(
    options: &ConnectOptions,
    mut attempt: impl FnMut(u32) -> F,
) -> Result<A, ApiError>
where
    F: Future<Output = Result<A, ApiError>>,
{
    let mut tries = 0;
    let mut backoff = Backoff::new(options.backoff, options.backoff_max);
    loop {
        match attempt(tries).await {
            Err(error) if error.code() == Code::LINK_DOWN && tries < options.max_reconnects => {
                tokio::time::sleep(backoff.next_wait()).await;
                tries += 1;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_their_bound() {
        let options = ConnectOptions { max_reconnects: 8, ..ConnectOptions::default() };
        let began = tokio::time::Instant::now();
        let mut tried = Vec::new();
        let result: Result<(), _> = retry(&options, |_| {
            tried.push(began.elapsed().as_millis());
            async { Err(ApiError::new(Code::LINK_DOWN, "no")) }
        })
        .await;
        assert_eq!(result.unwrap_err().code(), Code::LINK_DOWN);
        let waits: Vec<_> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_peer_that_is_away_is_tried_again() {
        let options = ConnectOptions { max_reconnects: 3, ..ConnectOptions::default() };
        for (code, expected) in [(Code::LINK_DOWN, 4), (Code::CAMERA_UNKNOWN, 1)] {
            let mut calls = 0;
            let result: Result<(), _> = retry(&options, |_| {
                calls += 1;
                async move { Err(ApiError::new(code, "no")) }
            })
            .await;
            assert_eq!(result.unwrap_err().code(), code);
            assert_eq!(calls, expected, "{code}");
        }
    }
}
