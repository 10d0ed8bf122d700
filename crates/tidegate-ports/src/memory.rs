//! Cameras in memory, for the tests of services that read frames.
//!
//! A test hands out the subscriptions that there will be: [`Cameras::feed`] gives the end by which it sends events, and the next
//! subscription to that camera gets them. One that was not prepared finds no camera.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use tidegate_api::{
    ApiError, CameraInfo, Changes, Event, Original, Place, Started, SubscribeRequest,
    SubscriptionId,
};
use tidegate_message::{CameraName, Code, Demand, Instant};
use tokio::sync::mpsc;

use crate::{Frames, Subscription};

/// Events on their way to a subscriber: one, as a node's session has it.
const EVENTS_BUFFERED: usize = 1;

/// The end of a subscription by which its events are sent. It is closed once the subscriber has dropped its own.
pub type Feed = mpsc::Sender<Result<Event, ApiError>>;
type Events = mpsc::Receiver<Result<Event, ApiError>>;

/// The cameras of a node that is in memory; a clone has the same.
#[derive(Clone, Debug, Default)]
pub struct Cameras(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Subscriptions that were granted.
    granted: u64,
    cameras: BTreeMap<CameraName, CameraInfo>,
    elsewhere: BTreeMap<CameraName, Place>,
    feeds: BTreeMap<CameraName, VecDeque<Events>>,
    originals: BTreeMap<(CameraName, Instant), Original>,
    requests: Vec<SubscribeRequest>,
    fetched: Vec<(CameraName, Instant)>,
    changes: Vec<Changes>,
}

impl Cameras {
    /// Has a camera, or has it otherwise than before.
    pub fn add(&self, camera: CameraInfo) {
        self.known().cameras.insert(camera.name.clone(), camera);
    }

    /// Has another node serve a camera.
    pub fn move_to(&self, camera: CameraName, place: Place) {
        let mut known = self.known();
        known.cameras.remove(&camera);
        known.elsewhere.insert(camera, place);
    }

    /// Keeps an untouched frame of a camera.
    pub fn keep(&self, camera: CameraName, original: Original) {
        self.known().originals.insert((camera, original.captured_at), original);
    }

    /// The events of the next subscription to a camera.
    pub fn feed(&self, camera: CameraName) -> Feed {
        let (feed, events) = mpsc::channel(EVENTS_BUFFERED);
        self.known().feeds.entry(camera).or_default().push_back(events);
        feed
    }

    /// The requests that were granted so far.
    pub fn requests(&self) -> Vec<SubscribeRequest> {
        self.known().requests.clone()
    }

    /// The changes of demand that were taken up so far.
    pub fn changes(&self) -> Vec<Changes> {
        self.known().changes.clone()
    }

    /// The originals that were asked for so far.
    pub fn fetched(&self) -> Vec<(CameraName, Instant)> {
        self.known().fetched.clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic while it is held")
    }
}

impl Known {
    /// Refuses a camera that another node serves.
    fn is_here(&self, camera: &CameraName) -> Result<(), ApiError> {
        match self.elsewhere.get(camera) {
            Some(place) => Err(ApiError::elsewhere(camera, place.clone())),
            None => Ok(()),
        }
    }
}

fn unknown(camera: &CameraName) -> ApiError {
    ApiError::new(Code::CAMERA_UNKNOWN, format!("no camera {camera} is here"))
}

#[async_trait]
impl Frames for Cameras {
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        Ok(self.known().cameras.values().cloned().collect())
    }

    async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError> {
        let known = self.known();
        known.is_here(name)?;
        known.cameras.get(name).cloned().ok_or_else(|| unknown(name))
    }

    async fn subscribe(
        &self,
        request: SubscribeRequest,
    ) -> Result<Box<dyn Subscription>, ApiError> {
        let mut known = self.known();
        known.is_here(&request.camera)?;
        let feeds = known.feeds.get_mut(&request.camera);
        let events = feeds.and_then(VecDeque::pop_front).ok_or_else(|| unknown(&request.camera))?;
        known.granted += 1;
        let id = SubscriptionId(known.granted);
        let started = Mutex::new(Started { id, demand: request.demand });
        known.requests.push(request);
        Ok(Box::new(Fed { node: self.clone(), started, events }))
    }

    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError> {
        let mut known = self.known();
        known.is_here(camera)?;
        known.fetched.push((camera.clone(), captured_at));
        known.originals.get(&(camera.clone(), captured_at)).cloned().ok_or_else(|| {
            let text = format!("camera {camera} has no frame captured at {captured_at}");
            ApiError::new(Code::FRAME_MISSING, text)
        })
    }
}

struct Fed {
    node: Cameras,
    started: Mutex<Started>,
    events: Events,
}

#[async_trait]
impl Subscription for Fed {
    fn started(&self) -> Started {
        *self.started.lock().expect("no panic while it is held")
    }

    async fn next_event(&mut self) -> Option<Result<Event, ApiError>> {
        self.events.recv().await
    }

    async fn update(&self, changes: Changes) -> Result<Demand, ApiError> {
        let mut started = self.started.lock().expect("no panic while it is held");
        started.demand = changes.apply(started.demand)?;
        self.node.known().changes.push(changes);
        Ok(started.demand)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tidegate_api::EndReason;

    use super::*;

    fn name(text: &str) -> CameraName {
        text.parse().expect("a name")
    }

    fn request() -> SubscribeRequest {
        SubscribeRequest::new("cam1", Duration::from_secs(1), 0.5).expect("bounds")
    }

    fn camera(name: &CameraName) -> CameraInfo {
        CameraInfo {
            name: name.clone(),
            online: true,
            size: None,
            frames_per_second: 5.0,
            frame_bytes: 0,
            oldest_at: None,
            newest_at: None,
            log_bytes: 0,
            log_bytes_max: 0,
            transfers: 0,
            subscriptions: 0,
            transport: String::new(),
            clock_offset: None,
            no_frames: None,
            capture_clock: None,
            substream_of: None,
            node: None,
        }
    }

    #[tokio::test]
    async fn prepared_subscription_gets_its_events_and_no_other_is_granted() {
        let cameras = Cameras::default();
        let feed = cameras.feed(name("cam1"));
        let mut subscription = cameras.subscribe(request()).await.expect("one is prepared");
        let error = cameras.subscribe(request()).await.err().expect("a second is not");
        assert_eq!(error.code(), Code::CAMERA_UNKNOWN);
        feed.send(Ok(Event::CameraOnline)).await.expect("it runs");
        assert!(matches!(subscription.next_event().await, Some(Ok(Event::CameraOnline))));
        let changes = Changes { latency: Some(Duration::from_millis(200)), ..Changes::default() };
        let demand = subscription.update(changes).await.expect("in range");
        assert_eq!((demand, cameras.changes()), (subscription.started().demand, vec![changes]));
        drop(subscription);
        let ended = feed.send(Ok(Event::Ended(EndReason::Complete))).await;
        assert!(ended.is_err(), "its subscriber is gone");
    }

    #[tokio::test]
    async fn camera_of_another_node_is_refused_with_its_place() {
        let cameras = Cameras::default();
        let (cam1, at) = (name("cam1"), Instant::from_millis(5));
        let original = Original { captured_at: at, jpeg: Bytes::from_static(b"jpeg") };
        cameras.keep(cam1.clone(), original.clone());
        cameras.add(camera(&cam1));
        assert_eq!(cameras.camera(&cam1).await.expect("it is here"), camera(&cam1));
        assert_eq!(cameras.fetch_original(&cam1, at).await.expect("it is kept"), original);
        let place = Place { node: "yard".to_owned(), addresses: vec!["10.0.0.7:7080".to_owned()] };
        cameras.move_to(cam1.clone(), place.clone());
        assert_eq!(cameras.cameras().await.expect("they are listed"), []);
        let refused = [
            cameras.camera(&cam1).await.err(),
            cameras.subscribe(request()).await.err(),
            cameras.fetch_original(&cam1, at).await.err(),
        ];
        for error in refused.map(|error| error.expect("it is at another node")) {
            assert_eq!((error.code(), error.place()), (Code::CAMERA_ELSEWHERE, Some(&place)));
        }
    }
}
