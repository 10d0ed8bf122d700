//! The frames of all members for one caller.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use tidegate_api::{ApiError, CameraInfo, Original, Started, SubscribeRequest, SubscriptionId};
use tidegate_client::Client;
use tidegate_identity::access::Identity;
use tidegate_message::{Action, CameraName, Code, Instant, Target};
use tidegate_ports::{Frames, Subscription};
use tidegate_process::clock;
use tokio::time::{sleep, timeout};

use crate::{
    IDS_FROM, Member, Relay,
    connections::Connection,
    refusals,
    stream::{Relayed, Stream, asked},
};

/// How long a member may take to list its cameras: a page waits for all of them.
const LIST_MAX: Duration = Duration::from_millis(1500);
/// Members that are asked at a time.
const ASKED_MAX: usize = 32;
/// How long a subscription may take to begin.
const BEGIN_MAX: Duration = Duration::from_secs(8);
/// How often a stream looks whether its member is still one.
const LOOK: Duration = Duration::from_secs(1);

/// The frames of this node and, through it, of others.
pub(crate) struct Through {
    pub(crate) relay: Arc<Relay>,
    /// Of this node, for the same caller.
    pub(crate) here: Arc<dyn Frames>,
    pub(crate) identity: Arc<Identity>,
}

/// A member that is reached, for the caller.
struct Reached {
    member: Member,
    connection: Arc<Connection>,
    named: Vec<u8>,
}

impl Reached {
    fn client(&self) -> Client {
        self.connection.on_behalf(&self.named)
    }
}

impl Through {
    /// The member that has a camera which this node has not, as `refusal` says; that refusal where there is none.
    async fn reach(&self, camera: &CameraName, refusal: ApiError) -> Result<Reached, ApiError> {
        if !matches!(refusal.code(), Code::CAMERA_ELSEWHERE | Code::CAMERA_UNKNOWN) {
            return Err(refusal);
        }
        let relay = &self.relay;
        let named = match self.identity.named() {
            Ok(named) => named,
            Err(error) if refusal.code() == Code::CAMERA_ELSEWHERE => return Err(error),
            Err(_) => return Err(refusal),
        };
        // One that is offline at its member is listed there, as this node lists its own.
        let listed = || relay.members.find(relay.listings.with_camera(camera, &named)?);
        let Some(member) = relay.members.with_camera(camera).or_else(listed) else {
            return Err(refusal);
        };
        if member.addresses.is_empty() {
            return Err(refusals::without_address(&member, refusal));
        }
        match relay.connections.to(&member).await {
            Ok(connection) => Ok(Reached { member, connection, named }),
            Err(error) => Err(refusals::of_member(&member, camera, error)),
        }
    }

    fn may(&self, action: Action, camera: &CameraName) -> Result<(), ApiError> {
        self.relay.access.may("api", &self.identity, action, Target::Camera(camera.as_str()))
    }

    /// The cameras that a member shows the caller.
    async fn of_member(&self, member: Member, named: &[u8]) -> Vec<CameraInfo> {
        let (relay, of, now) = (&self.relay, member.node, clock::now());
        if let Some(fresh) = relay.listings.fresh(of, named, now) {
            return fresh;
        }
        let asked = async {
            let connection = relay.connections.to(&member).await?;
            connection.on_behalf(named).cameras().await
        };
        // One that is missed is not waited for; its streams say when it is back.
        let told = match member.is_doubted || member.addresses.is_empty() {
            true => None,
            false => timeout(LIST_MAX, asked).await.ok(),
        };
        match told {
            Some(Ok(mut cameras)) => {
                cameras.iter_mut().for_each(|camera| camera.node = Some(member.name.clone()));
                relay.listings.put(of, named, now, cameras.clone());
                cameras
            }
            Some(Err(error)) if error.code() == Code::ACTION_DENIED => {
                tracing::debug!(
                    member = member.name,
                    error = error.chain(),
                    "a member shows its cameras to no one here"
                );
                relay.listings.put(of, named, now, Vec::new());
                Vec::new()
            }
            _ => {
                let mut cameras = relay.listings.last(of, named).unwrap_or_default();
                for camera in &mut cameras {
                    camera.online = false;
                    camera.transport = String::new();
                    camera.no_frames =
                        Some(format!("node {}, which has it, does not answer", member.name));
                }
                cameras
            }
        }
    }

    /// Completes once the caller may see no more, or the member is none any more.
    fn lost(&self, reached: &Reached, camera: &CameraName) -> BoxFuture<'static, ApiError> {
        let (relay, identity, camera) = (self.relay.clone(), self.identity.clone(), camera.clone());
        let (connection, member) = (reached.connection.clone(), reached.member.clone());
        async move {
            let target = Target::Camera(camera.as_str());
            let left = async {
                while relay.members.find(member.node).is_some() {
                    sleep(LOOK).await;
                }
            };
            let why = tokio::select! {
                error = relay.access.lost("api", &identity, Action::Frames, target) => return error,
                why = connection.revoked() => why,
                () = left => "it is no member any more".to_owned(),
            };
            let node = &member.name;
            let text = format!("camera {camera} is at node {node}, which is asked no more: {why}");
            ApiError::new(Code::LINK_DOWN, text)
        }
        .boxed()
    }
}

#[async_trait]
impl Frames for Through {
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        let there = async {
            let Ok(named) = &self.identity.named() else { return Vec::new() };
            let relay = &self.relay;
            // One that reaches none now still lists those that it knows, if it has listed any.
            let lists = |member: &Member| {
                let listed = || relay.listings.last(member.node, named);
                member.has_cameras || listed().is_some_and(|cameras| !cameras.is_empty())
            };
            let members: Vec<_> = relay.members.present().into_iter().filter(lists).collect();
            let lists = stream::iter(members).map(|member| self.of_member(member, named));
            lists.buffer_unordered(ASKED_MAX).concat().await
        };
        let (here, mut there) = tokio::join!(self.here.cameras(), there);
        let mut cameras = here?;
        let (relay, identity) = (&self.relay, &self.identity);
        there.retain(|camera| {
            relay.access.allows(identity, Action::Frames, Target::Camera(camera.name.as_str()))
        });
        // Of two of one name the one that is reached stands, and of two that are this node's.
        there.append(&mut cameras);
        there.sort_by(|one, other| {
            let rank = |camera: &CameraInfo| (!camera.online, camera.node.is_some());
            one.name.cmp(&other.name).then(rank(one).cmp(&rank(other)))
        });
        there.dedup_by(|second, first| second.name == first.name);
        Ok(there)
    }

    async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError> {
        let refusal = match self.here.camera(name).await {
            Ok(camera) => return Ok(camera),
            Err(refusal) => refusal,
        };
        let reached = self.reach(name, refusal).await?;
        let told = reached.client().camera(name).await;
        let told = told.map_err(|error| refusals::of_member(&reached.member, name, error))?;
        Ok(CameraInfo { node: Some(reached.member.name), ..told })
    }

    async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Box<dyn Subscription>, ApiError> {
        let refusal = match self.here.subscribe(request.clone()).await {
            Ok(subscription) => return Ok(subscription),
            Err(refusal) => refusal,
        };
        let SubscribeRequest { camera, demand, .. } = &request;
        let (camera, demand) = (camera.clone(), *demand);
        let reached = self.reach(&camera, refusal).await?;
        let relay = &self.relay;
        let place = relay.places.clone().try_acquire_owned().map_err(|_| refusals::full())?;
        let refused = |error| refusals::of_member(&reached.member, &camera, error);
        let wanted = SubscribeRequest { demand: asked(demand, &reached.member)?, ..request };
        let client = reached.connection.lasting(&reached.named);
        let begun = timeout(BEGIN_MAX, client.subscribe(wanted)).await.unwrap_or_else(|_| {
            let text = format!("no frame is promised within {} s", BEGIN_MAX.as_secs());
            Err(ApiError::new(Code::LINK_DOWN, text))
        });
        let upstream = begun.map_err(refused)?;
        let lost = self.lost(&reached, &camera);
        let mut running = relay.running();
        let id = SubscriptionId(IDS_FROM + running.granted);
        running.granted += 1;
        let stream = Arc::new(Stream::new(
            self.identity.clone(),
            camera,
            reached.member,
            upstream.handle().clone(),
            Started { id, demand },
        ));
        running.streams.insert(id, stream.clone());
        drop(running);
        Ok(Box::new(Relayed::new(relay.clone(), stream, upstream, lost, place)))
    }

    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError> {
        let refusal = match self.here.fetch_original(camera, captured_at).await {
            Ok(original) => return Ok(original),
            Err(refusal) => refusal,
        };
        let reached = self.reach(camera, refusal).await?;
        let relay = &self.relay;
        let _place = relay.places.try_acquire().map_err(|_| refusals::full())?;
        let fetched = reached.client().fetch_original(camera, captured_at).await;
        let fetched =
            fetched.map_err(|error| refusals::of_member(&reached.member, camera, error))?;
        // The member may take its time, and the right may be gone meanwhile.
        self.may(Action::FetchOriginal, camera)?;
        Ok(fetched)
    }
}
