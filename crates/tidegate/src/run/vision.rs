//! Detection for clients, as `[vision]` describes it: the paths of the API, and the plain listeners.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::{Config, VisionSection, problems::Problems};
use tidegate_identity::{
    access::Access,
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
        site.api.add_detection(Arc::new(vision.clone()), image_bytes_max);
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

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
}
