//! Detection for clients, as `[vision]` describes it: the paths of the API, and the plain listeners.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_api::{ApiError, proto};
use tidegate_config::{Config, VisionSection, problems::Problems};
use tidegate_identity::{
    access::{Access, Identity},
    pki::servers::{NotCertified, certified},
};
use tidegate_message::{Code, origins::Origins};
use tidegate_process::tls;
use tidegate_rpc::Router;
use tidegate_vision::{Listener, ListenerSettings, Protocol, Vision, VisionSettings};
use tidegate_workers::SharedPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    certificates::certificate,
    findings::Findings,
    part::{Listen, Part, Ports, Running, Started},
    workers,
};

/// The settings of detection, and of each plain listener with the key that names it.
type Planned = (VisionSettings, Vec<(&'static str, ListenerSettings)>);

/// Its settings; none where it is not enabled.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key and the file.
fn planned(config: &Config) -> Result<Option<Planned>, ApiError> {
    let section = &config.vision;
    if !section.enabled {
        return Ok(None);
    }
    let mut problems = Problems::default();
    let tls = match (section.tls, section.listen) {
        (true, Some(_)) => problems.take(tls(config, section)),
        (true, None) => {
            let text = "vision.tls is for vision.listen; set it, or leave tls out";
            problems.say(Code::CONFIG_INVALID, text.to_owned());
            None
        }
        (false, _) if section.certificate.is_some() || section.key.is_some() => {
            let text = "vision.certificate and key need tls = true";
            problems.say(Code::CONFIG_INVALID, text.to_owned());
            None
        }
        (false, _) => None,
    };
    let origins =
        Origins::parse(section.origins.as_deref(), "vision.origins").unwrap_or_else(|error| {
            problems.say(Code::CONFIG_INVALID, format!("vision.origins must be origins: {error}"));
            Origins::default()
        });
    problems.into_result()?;
    let listener = |listen: SocketAddr, protocol, tls| ListenerSettings {
        listen,
        protocol,
        tls,
        user: section.user.clone().unwrap_or_default(),
        origins: origins.clone(),
        connections_max: section.connections_max as usize,
    };
    let http = section.listen.map(|at| ("vision.listen", listener(at, Protocol::Http, tls)));
    let tcp = section.tcp_listen.map(|at| ("vision.tcp_listen", listener(at, Protocol::Tcp, None)));
    Ok(Some((settings(section), http.into_iter().chain(tcp).collect())))
}

fn settings(section: &VisionSection) -> VisionSettings {
    let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    VisionSettings {
        image_bytes_max: bytes(section.image_bytes_max.0),
        held_bytes_max: bytes(section.held_bytes_max.0),
        window: section.window as usize,
        sockets_max: section.sockets_max as usize,
        request_timeout: section.request_timeout,
        idle_timeout: section.idle_timeout,
        face_model: section.face_model.clone(),
    }
}

/// TLS of the plain listener for HTTP; its clients show no certificate.
fn tls(config: &Config, section: &VisionSection) -> Result<Arc<rustls::ServerConfig>, ApiError> {
    let key_of = |key: &str| format!("vision.{key}");
    let named = (section.certificate.as_deref(), section.key.as_deref());
    let (chain, key) = certificate(config, &key_of, named)?;
    let made = certified(chain, key).and_then(|shown| {
        let builder = tls::server(tls::VERSIONS).map_err(NotCertified::Tls)?;
        Ok(builder.with_no_client_auth().with_cert_resolver(shown))
    });
    let mut made = made.map_err(|error| {
        let text = "vision.certificate and key do not go together";
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(tidegate_message::error_chain(&error))
    })?;
    made.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(made))
}

/// The part that has detection for clients.
pub(super) struct Detection;

#[async_trait]
impl Part for Detection {
    fn name(&self) -> &'static str {
        "detection for clients"
    }

    fn needs_certificate(&self) -> bool {
        true
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        found.problems.take(workers::check(config));
        for text in workers::warnings(config) {
            found.warnings.say(Code::CONFIG_INVALID, text);
        }
        found.problems.take(planned(config));
    }

    fn listens(&self, config: &Config) -> Vec<Listen> {
        let section = &config.vision;
        let both = [("vision.listen", section.listen), ("vision.tcp_listen", section.tcp_listen)];
        both.into_iter().filter_map(|(key, at)| Some(Listen::tcp(key, at?))).collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let Some(site) = &mut ports.site else { return Ok(None) };
        let pool = ports.pool.clone();
        let looked_by = pool.clone();
        ports.health.check("detection", move || Some(looked_by.trouble().map_or(Ok(()), Err)));
        let Some(served) = Served::start(config, pool, ports.access.clone()).await? else {
            return Ok(None);
        };
        // Over the API callers are known.
        let vision = &served.vision;
        site.api.add_web(tidegate_vision::router(vision.clone()), Router::new());
        let image_bytes_max = settings(&config.vision).image_bytes_max;
        site.api.add_detection(Arc::new(Calls(vision.clone())), image_bytes_max);
        Ok(Some(Box::new(served)))
    }
}

/// Detection that is served.
struct Served {
    vision: Vision,
    listeners: JoinSet<()>,
    stop: CancellationToken,
}

impl Served {
    /// Serves by the programs of `pool` to those whom `access` allows it, on the plain listeners; none if the configuration leaves it
    /// out.
    async fn start(
        config: &Config,
        pool: SharedPool,
        access: Access,
    ) -> Result<Option<Self>, ApiError> {
        let Some((settings, planned)) = planned(config)? else { return Ok(None) };
        let stop = CancellationToken::new();
        let vision = Vision::new(settings, pool, access, stop.clone());
        let mut listeners = JoinSet::new();
        for (key, settings) in planned {
            let listener = Listener::bind(settings).await.map_err(|error| {
                let text = format!("{key} cannot be served");
                ApiError::new(Code::CONFIG_INVALID, text)
                    .caused_by(tidegate_message::error_chain(&error))
            })?;
            tracing::info!(address = %listener.address(), key, "detection is served without a login");
            listeners.spawn(listener.serve(vision.clone(), stop.clone()));
        }
        Ok(Some(Self { vision, listeners, stop }))
    }
}

#[async_trait]
impl Running for Served {
    /// Ends the listeners and all WebSockets: what is under way is answered, within their grace.
    async fn stop(mut self: Box<Self>) {
        self.stop.cancel();
        while let Some(ended) = self.listeners.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a listener for detection broke; this is a bug");
            }
        }
        self.vision.ended().await;
    }
}

/// Detection as the calls of gRPC have it.
struct Calls(Vision);

#[async_trait]
impl tidegate_rpc::Detection for Calls {
    async fn detect(
        &self,
        identity: &Identity,
        model: &str,
        image: Bytes,
    ) -> Result<proto::Detected, ApiError> {
        let found = self.0.detect(identity, model, image).await;
        let found = found.map_err(|refused| ApiError::new(refused.code(), refused.message()))?;
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let times = &found.outcome.times;
        let boxes = found.outcome.boxes.iter().map(|it| {
            let [left, top, right, bottom] = it.rect.corners();
            let (score, label) = (it.score, it.label.to_string());
            proto::DetectedBox { left, top, right, bottom, score, label }
        });
        let point = |[x, y, score]: &[f64; 3]| proto::DetectedPoint { x: *x, y: *y, score: *score };
        let poses = found.outcome.poses.iter();
        let (width, height) = (found.size.width.into(), found.size.height.into());
        Ok(proto::Detected {
            boxes: boxes.collect(),
            poses: poses
                .map(|pose| proto::DetectedPose { points: pose.iter().map(point).collect() })
                .collect(),
            image: Some(proto::FrameSize { width, height }),
            times: Some(proto::DetectTimes {
                queue_nanos: nanos(times.queue),
                decode_nanos: nanos(times.decode),
                infer_nanos: nanos(times.infer),
                total_nanos: nanos(times.total),
            }),
            classes: found
                .outcome
                .classes
                .into_iter()
                .map(|(score, label)| proto::DetectedClass { score, label })
                .collect(),
            model: found.model,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tidegate_identity::auth::Admitted;
    use tidegate_message::IdentityKind;
    use tidegate_rpc::Detection as _;
    use tidegate_workers::{PoolSettings, Program};

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("site.toml"), text).expect("a configuration")
    }

    #[test]
    fn settings_are_those_of_the_section_and_their_defaults_the_same() {
        let (usual, listeners) = planned(&config("")).unwrap().expect("it is served");
        assert_eq!(usual, VisionSettings::default());
        assert!(listeners.is_empty(), "no listener without a login by default");
        let text = "[vision]\nlisten = \"127.0.0.1:8008\"\ntcp_listen = \"127.0.0.1:8011\"\nuser = \"phones\"\n\
                    image_bytes_max = \"1MiB\"\nheld_bytes_max = \"4MiB\"\nwindow = 2\nsockets_max = 3\nconnections_max = 4\n\
                    request_timeout = \"1s\"\nidle_timeout = \"2s\"\nface_model = \"frontal_face\"\n";
        let (settings, listeners) = planned(&config(text)).unwrap().expect("it is served");
        let expected = VisionSettings {
            image_bytes_max: 1 << 20,
            held_bytes_max: 4 << 20,
            window: 2,
            sockets_max: 3,
            request_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(2),
            face_model: "frontal_face".to_owned(),
        };
        assert_eq!(settings, expected);
        let shown: Vec<_> = listeners
            .iter()
            .map(|(key, it)| {
                (*key, it.listen.port(), it.protocol, it.user.as_str(), it.connections_max)
            })
            .collect();
        let expected = [
            ("vision.listen", 8008, Protocol::Http, "phones", 4),
            ("vision.tcp_listen", 8011, Protocol::Tcp, "phones", 4),
        ];
        assert_eq!(shown, expected);
        assert!(planned(&config("[vision]\nenabled = false\n")).unwrap().is_none());
    }

    #[test]
    fn mistakes_name_their_key() {
        for (text, expected) in [
            ("tls = true\n", "vision.tls is for vision.listen"),
            ("key = \"k\"\n", "need tls = true"),
            (
                "listen = \"127.0.0.1:0\"\nuser = \"x\"\ntls = true\ncertificate = \"none.pem\"\nkey = \"none.key\"\n",
                "vision.certificate",
            ),
        ] {
            let error = planned(&config(&format!("[vision]\n{text}"))).expect_err(text);
            let chain = tidegate_message::error_chain(&error);
            assert!(chain.contains(expected), "{chain}");
        }
        let without_user = "[vision]\nlisten = \"127.0.0.1:0\"\n";
        let error = Config::parse(Path::new("site.toml"), without_user).expect_err("no user");
        assert!(error.to_string().contains("vision.user"), "{error}");
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named_with_its_key() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let config = config(&format!("[vision]\ntcp_listen = \"{address}\"\nuser = \"x\"\n"));
        let program = Program::Command(vec!["false".to_owned()]);
        let pool = SharedPool::new(PoolSettings::new(program));
        let started = Served::start(&config, pool, Access::default()).await;
        let error = started.err().expect("it is taken");
        let chain = tidegate_message::error_chain(&error);
        assert!(
            chain.contains("vision.tcp_listen") && chain.contains(&address.to_string()),
            "{chain}"
        );
    }

    #[tokio::test]
    async fn a_call_of_the_api_is_answered_by_a_program_of_the_pool() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("whole.py");
        let text = r#"
import json, os, socket, struct, time
stream = socket.socket(socket.AF_UNIX)
stream.connect(os.environ["TIDEGATE_DETECTOR_SOCKET"])
stream = stream.makefile("rwb")
def send(message):
    text = json.dumps(message).encode()
    stream.write(struct.pack(">II", len(text), 0) + text)
    stream.flush()
send({"type": "hello", "protocol": 2, "detector": "whole", "models": [{"name": "whole"}]})
while lengths := stream.read(8):
    text, payload = (stream.read(length) for length in struct.unpack(">II", lengths))
    # Longer than it says: no stage is longer than all of them.
    time.sleep(0.01)
    send({"id": json.loads(text)["id"], "boxes": [[1, 2, 3, 4, 0.5, "x"]], "classes": [[0.25, "y"]],
          "poses": [[[1, 2, 0.5]]], "size": [64, 48], "took_ms": 3, "decode_ms": 1})
"#;
        fs::write(&program, text).unwrap();
        let words = vec!["python3".to_owned(), program.display().to_string()];
        let pool = SharedPool::new(PoolSettings::new(Program::Command(words)));
        let config = config("");
        let served = Served::start(&config, pool, Access::default()).await.unwrap().unwrap();
        let calls = Calls(served.vision.clone());
        let who = tidegate_message::Identity::new(IdentityKind::User, "ada", "");
        let identity = Identity::of_user(Admitted::by_certificate(who));
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x40\0\0\0\x30".to_vec();
        png.extend(b"\x08\0\0\0\0\0\0\0\0\0\0\0\0IEND\xaeB`\x82");
        let found = calls.detect(&identity, "whole", png.into()).await.unwrap();
        assert_eq!(found.image, Some(proto::FrameSize { width: 64, height: 48 }));
        let expected = proto::DetectedBox {
            left: 1.0,
            top: 2.0,
            right: 3.0,
            bottom: 4.0,
            score: 0.5,
            label: "x".to_owned(),
        };
        assert_eq!(found.boxes, [expected]);
        assert_eq!(found.classes[0].label, "y");
        assert_eq!(found.poses[0].points[0], proto::DetectedPoint { x: 1.0, y: 2.0, score: 0.5 });
        let times = found.times.unwrap();
        assert_eq!((times.decode_nanos, times.infer_nanos), (1_000_000, 2_000_000));
        let refused = calls.detect(&identity, "whole", Bytes::from_static(b"%PDF")).await;
        assert_eq!(refused.unwrap_err().code(), Code::IMAGE_TYPE);
        let unknown = calls.detect(&identity, "cat", Bytes::from_static(b"\xff\xd8")).await;
        assert_eq!(unknown.unwrap_err().code(), Code::IMAGE_INVALID);
        Box::new(served).stop().await;
    }
}
