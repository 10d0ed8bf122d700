//! Detection over real sockets, by a detector of these tests and by small programs that speak the detector protocol.

mod classic;
mod client;
mod front;
pub(crate) mod images;
mod inference;
mod listener;
mod openapi;
mod requests;
mod sockets;
mod streams;
mod workers;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::Extension;
use bytes::Bytes;
use tidegate_identity::{
    access::{Access, Identity},
    auth::{Admitted, Authenticator, Source, Sources, password::DecoyKey},
};
use tidegate_message::{Detection, IdentityKind, Rect};
use tidegate_ports::{DetectError, Looker, Outcome, Request, Times};
use tidegate_wire::NodeId;
use tidegate_workers::{MessageError, NotLoaded, WorkerError};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use self::client::Reply;
use crate::{Detector, ModelInfo, Models, Vision, VisionSettings, router};

/// The findings of each test's detector.
pub(crate) fn outcome() -> Outcome {
    let rect = Rect::new(10.0, 20.0, 40.0, 60.0).unwrap();
    Outcome {
        boxes: vec![Detection { rect, score: 0.75, label: "face".into() }],
        classes: vec![(0.5, "cat".to_owned())],
        poses: vec![vec![[1.0, 2.0, 0.25]]],
        size: None,
        times: Times::new(
            Duration::from_micros(3001),
            Duration::from_micros(1),
            Duration::from_micros(2),
        ),
    }
}

/// The stages of an answer are all of its time, to the microsecond each.
pub(crate) fn assert_stages_sum(times: &serde_json::Value) {
    let ms = |stage: &str| times[stage].as_f64().unwrap_or_else(|| panic!("{stage}: {times}"));
    let sum = ms("queue_ms") + ms("decode_ms") + ms("infer_ms");
    assert!((ms("total_ms") - sum).abs() < 0.004, "{times}");
    assert!(ms("queue_ms") > 0.0 && ms("infer_ms") > 0.0, "{times}");
}

/// A detector whose models do what their names say; an image of one pixel has nothing in it.
#[derive(Debug)]
struct Echo {
    models: Vec<&'static str>,
    /// The model `gated` waits for its permits.
    gate: Semaphore,
    under_way: AtomicUsize,
    most: AtomicUsize,
    asked: Mutex<Vec<Request>>,
    taught: Mutex<Vec<String>>,
}

/// Counts a request as under way, also one that is dropped.
struct UnderWay<'a>(&'a Echo);

impl<'a> UnderWay<'a> {
    fn begin(echo: &'a Echo) -> Self {
        let now = echo.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        echo.most.fetch_max(now, Ordering::SeqCst);
        Self(echo)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Echo {
    fn new(models: &[&'static str]) -> Arc<Self> {
        Arc::new(Self {
            models: models.to_vec(),
            gate: Semaphore::new(0),
            under_way: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            asked: Mutex::default(),
            taught: Mutex::default(),
        })
    }

    fn usual() -> Arc<Self> {
        Self::new(&[
            "face",
            "person",
            "recognize",
            "gated",
            "busy",
            "dead",
            "nonsense",
            "refuses",
            "away",
        ])
    }
}

#[async_trait]
impl Looker for Echo {
    async fn look(&self, request: Request) -> Result<Outcome, DetectError> {
        let size = request.size.expect("the size of an image is known");
        let _under_way = UnderWay::begin(self);
        let name = request.model.clone().unwrap_or_default();
        self.asked.lock().unwrap().push(request);
        let retry_after = Duration::from_millis(1500);
        match name.as_str() {
            "busy" => return Err(DetectError::Busy { waiting: 3, retry_after }),
            "away" => {
                let source = Arc::new(WorkerError::NoProgram);
                return Err(DetectError::NoWorker { retry_after, source });
            }
            "dead" => return Err(DetectError::Worker { source: Arc::new(WorkerError::NoProgram) }),
            "nonsense" => {
                let source = MessageError::Field { field: "scores", expected: "finite numbers" };
                return Err(DetectError::Answer {
                    program: "x".to_owned(),
                    source: Arc::new(source),
                });
            }
            "refuses" => return Err(DetectError::Refused { message: "too dark".to_owned() }),
            "gated" => self.gate.acquire().await.unwrap().forget(),
            "beyond" => {
                let rect = Rect::new(-10.0, 5.0, 1e5, 9.0).unwrap();
                let boxes = vec![Detection { rect, score: 0.5, label: "long".into() }];
                return Ok(Outcome { boxes, ..outcome() });
            }
            name if self.models.contains(&name) => {}
            _ => {
                let known = self.models.iter().map(|name| (*name).to_owned()).collect();
                return Err(DetectError::UnknownModel { name, known });
            }
        }
        let mut found = outcome();
        // A program takes the time that it says it has taken, however fast the machine is.
        let (began, said) = (std::time::Instant::now(), found.times.decode + found.times.infer);
        while began.elapsed() <= said {
            std::hint::spin_loop();
        }
        if (size.width, size.height) == (1, 1) {
            (found.boxes, found.classes, found.poses) = (Vec::new(), Vec::new(), Vec::new());
        }
        Ok(found)
    }
}

#[async_trait]
impl Detector for Echo {
    fn looker(self: Arc<Self>, _: NodeId) -> Arc<dyn Looker> {
        self
    }

    async fn models(&self) -> Result<Models, DetectError> {
        let model = |name: &&str| ModelInfo {
            name: (*name).to_owned(),
            is_loaded: *name == "lost",
            failed: (*name == "lost").then(|| "its file is gone".to_owned()),
            ..ModelInfo::default()
        };
        Ok(Models {
            detector: "echo".to_owned(),
            models: self.models.iter().map(model).collect(),
            ready: 1,
            waiting: 0,
            service: Some(Duration::from_millis(2)),
        })
    }

    async fn load(&self, name: &str) -> Result<(), NotLoaded> {
        let (name, message) = (name.to_owned(), "the output is NaN".to_owned());
        match name.as_str() {
            "nan" => Err(DetectError::ModelRefused { name, message }.into()),
            "folder" => Err(NotLoaded::NoFolder),
            "away" => Err(NotLoaded::Start { source: Arc::new(WorkerError::NoProgram) }),
            _ => Ok(()),
        }
    }

    async fn unload(&self, name: &str) -> Result<(), DetectError> {
        if name == "street" {
            return Ok(());
        }
        Err(DetectError::UnknownModel { name: name.to_owned(), known: vec!["street".to_owned()] })
    }

    async fn train(
        &self,
        _: NodeId,
        _: &str,
        subject: &str,
        _: Bytes,
    ) -> Result<Option<u64>, DetectError> {
        let mut taught = self.taught.lock().unwrap();
        taught.push(subject.to_owned());
        Ok(Some(taught.len() as u64))
    }
}

/// Rights by a roles file of that text.
fn access(roles: Option<&str>) -> Access {
    let authenticator = Arc::new(Authenticator::new(sources(roles)).unwrap());
    Access { authenticator, ..Access::default() }
}

fn sources(roles: Option<&str>) -> Sources {
    let source = |text: &str| Source { path: "roles.toml".into(), text: text.to_owned().into() };
    Sources {
        passwords: None,
        acl: None,
        roles: roles.map(source),
        tokens: None,
        allow_anonymous: false,
        administrator: None,
        decoy_key: DecoyKey([0; 32]),
    }
}

/// A user of this machine, who may administer where no roles file is.
fn user(name: &str) -> Arc<Identity> {
    let who = tidegate_message::Identity {
        address: Some([127, 0, 0, 1].into()),
        ..tidegate_message::Identity::new(IdentityKind::User, name, "test")
    };
    Arc::new(Identity::of_user(Admitted::by_certificate(who)))
}

/// The router behind plain HTTP, with an identity that is given.
struct Served {
    address: std::net::SocketAddr,
    vision: Vision,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    async fn new(echo: Arc<dyn Detector>) -> Self {
        Self::with(VisionSettings::default(), echo, access(None), Some(user("ada"))).await
    }

    async fn with(
        settings: VisionSettings,
        detector: Arc<dyn Detector>,
        access: Access,
        identity: Option<Arc<Identity>>,
    ) -> Self {
        let stop = CancellationToken::new();
        let vision = Vision::with(settings, detector, access, stop.clone());
        let mut router = router(vision.clone());
        if let Some(identity) = identity {
            router = router.layer(Extension(identity));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, vision, stop, task }
    }

    async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends a request and checks its answer against the description of the paths.
    async fn ask(&self, method: &str, path: &str, kind: &str, body: impl Into<Bytes>) -> Reply {
        let reply = client::ask(self.address, method, path, kind, body.into()).await;
        openapi::check(method, path, &reply);
        reply
    }

    async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", Bytes::new()).await
    }

    async fn post(&self, path: &str, image: impl Into<Bytes>) -> Reply {
        self.ask("POST", path, "image/jpeg", image).await
    }

    /// Bytes that are held for all callers.
    fn has_room_for(&self, bytes: usize) -> bool {
        self.vision.0.receiver.budget.open(NodeId([9; 32])).hold(bytes).is_ok()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

#[tokio::test]
async fn an_image_of_a_call_is_charged_to_its_caller_until_the_answer() {
    let (echo, stop) = (Echo::usual(), CancellationToken::new());
    let settings = VisionSettings { held_bytes_max: 4000, ..VisionSettings::default() };
    let vision = Vision::with(settings, echo.clone(), access(None), stop);
    let mut image = images::jpeg(9, 9);
    image.resize(2000, 7);
    let detect = async |name: &str| {
        let image = Bytes::from(image.clone());
        vision.detect(&user(name), "gated", image).await.map(drop)
    };
    let first = tokio::spawn({
        let (vision, image) = (vision.clone(), Bytes::from(image.clone()));
        async move { vision.detect(&user("ada"), "gated", image).await.map(drop) }
    });
    until("it is under way", || echo.under_way.load(Ordering::SeqCst) == 1).await;
    let second = tokio::time::timeout(Duration::from_secs(20), detect("ada")).await;
    let refused = second.expect("it does not wait").unwrap_err();
    assert!(matches!(refused, crate::Refused::NoRoom(_)), "{refused}");
    echo.gate.add_permits(2);
    first.await.unwrap().unwrap();
    detect("ada").await.expect("there is room again");
}

#[tokio::test(start_paused = true)]
async fn an_image_is_no_longer_looked_at_when_the_right_to_it_is_taken_away() {
    let (echo, stop) = (Echo::usual(), CancellationToken::new());
    let may = "[role.r]\ndetect = [\"gated\"]\n[user.ada]\nroles = [\"r\"]\n";
    let access = access(Some(may));
    let vision = Vision::with(VisionSettings::default(), echo.clone(), access.clone(), stop);
    let call = tokio::spawn({
        let vision = vision.clone();
        async move { vision.detect(&user("ada"), "gated", images::jpeg(9, 9).into()).await.map(drop) }
    });
    until("it is under way", || echo.under_way.load(Ordering::SeqCst) == 1).await;
    let none = "[role.r]\ndetect = [\"face\"]\n[user.ada]\nroles = [\"r\"]\n";
    access.authenticator.exchange(access.authenticator.prepare(sources(Some(none))).unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(60), call).await;
    let refused = ended.expect("it ends").unwrap().unwrap_err();
    assert_eq!(refused.status(), 403, "{refused}");
    assert_eq!(echo.under_way.load(Ordering::SeqCst), 0, "the queue has it no longer");
}

/// Waits until that is true, some seconds at most.
async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let comes_true = async {
        while !is_true() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), comes_true).await;
    assert!(waited.is_ok(), "{what} does not come true");
}
