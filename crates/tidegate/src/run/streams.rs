//! Streams of frames, the links on which cameras and other nodes come, and the API.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_camera::camera;
use tidegate_config::Config;
use tidegate_doctor::node_keys;
use tidegate_frame::coordinator::CoordinatorConfig;
use tidegate_identity::{access::Access, pki::Credentials};
use tidegate_link::roles::Links;
use tidegate_message::{CameraName, Code, error_chain};
use tidegate_rpc::{Router, Server, ServerConfig, server::ALPN};
use tidegate_streams::{Streams, StreamsSettings};
use tidegate_wire::{Role, TransferHints};

use super::{
    cameras::{self, OwnCameras},
    findings::Findings,
    link_settings,
    part::{Exchange, Listen, Part, Ports, Running, Site, Started},
    workers,
};

/// The part that has cameras and applications meet.
pub(super) struct Frames;

#[async_trait]
impl Part for Frames {
    fn name(&self) -> &'static str {
        "cameras"
    }

    fn needs_certificate(&self) -> bool {
        true
    }

    fn is_configured(&self, config: &Config) -> bool {
        !config.cameras.is_empty()
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        match camera::look_at_tables(config.tables_dir().as_deref()) {
            Ok((_, loaded)) => {
                for error in loaded.refused {
                    let text =
                        format!("frames.tables_dir: {}; it is left out", error_chain(&error));
                    found.warnings.say(Code::TABLE_INVALID, text);
                }
            }
            Err(error) => {
                let text = format!("frames.tables_dir: {}", error_chain(&error));
                found.problems.say(Code::TABLE_INVALID, text);
            }
        }
        if let Err(error) = node_keys(&config.log) {
            let text = format!("{}; frames are kept in memory only", error_chain(&error));
            found.warnings.say(error.code(), text);
        }
        found.problems.take(cameras::planned(config));
    }

    fn listens(&self, config: &Config) -> Vec<Listen> {
        let link = config.link.listen;
        vec![
            Listen::tcp("node.api_listen", config.node.api_listen),
            Listen::tcp("link.listen", link),
            Listen::udp("link.listen", link),
        ]
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let Some(credentials) = &ports.credentials else { return Ok(None) };
        let own = workers::own(&ports.pool);
        let (cameras, configured) = OwnCameras::of(config, own.cloned())?;
        // Name, size and rate of a hosted camera come with its registration.
        let hosted = cameras::camera_settings(config, config.node.name.clone(), String::new());
        let frames = &config.frames;
        let settings = StreamsSettings {
            node: credentials.identity().node,
            stream_log: cameras::log_config(config.log.stream_bytes.0, frames.frame_bytes_max.0)
                .into(),
            hosted: cameras::in_pool(hosted, own),
            hints: TransferHints {
                detector: frames.detector.to_string(),
                detector_input: frames
                    .detector_input
                    .map(|size| size.to_string())
                    .unwrap_or_default(),
                scene: frames.scene.as_ref().map(CameraName::to_string).unwrap_or_default(),
                table: String::new(),
            },
            medium: config.link.shared_medium.then(|| CoordinatorConfig {
                sensors: config.link.sensor_share,
                ..CoordinatorConfig::default()
            }),
            access: ports.access.clone(),
            cameras: configured,
        };
        // Links first: the chapter of the first five minutes says in which order ports that are taken are named.
        let mut links = bind_links(config, credentials.clone(), &ports.access).await?;
        let api = bind_api(config, credentials, &ports.access).await?;
        let streams = Streams::new(settings).map_err(|error| {
            let text = "a characterization table cannot be read";
            ApiError::new(Code::TABLE_INVALID, text).caused_by(error_chain(&error))
        })?;
        links.serve(Role::Camera, streams.links());
        links.serve(Role::Edge, streams.links());
        let shown = streams.cameras();
        ports.site = Some(Site { links, api, streams, cameras: shown });
        Ok(Some(Box::new(cameras)))
    }
}

#[async_trait]
impl Running for OwnCameras {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let wanted = self.planned(new)?;
        Ok(Box::new(move |changes| {
            for (name, section) in self.exchange(wanted) {
                tracing::info!(camera = %name, "camera started, stopped or restarted");
                changes.note("camera", name.as_str());
                let keys = [format!("camera.{section}"), format!("log.camera.{name}")];
                let is_of = |text: &String| {
                    keys.iter().any(|key| {
                        text.strip_prefix(key)
                            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                    })
                };
                // A log of its own begins with the camera.
                changes.need_restart.retain(|text| !is_of(text));
                if !changes.exchanged.iter().any(is_of) {
                    changes.exchanged.push(keys[0].clone());
                }
            }
            Ok(())
        }))
    }

    /// Streams have ended with the API.
    async fn stop(self: Box<Self>) {}
}

/// Listens for the links of cameras and other nodes.
async fn bind_links(
    config: &Config,
    credentials: Credentials,
    access: &Access,
) -> Result<Links, ApiError> {
    let (settings, audit) = (link_settings(config), access.audit.clone());
    let links = Links::bind(config.link.listen, credentials, settings, audit).await;
    links.map_err(|error| {
        let text = "the node link cannot listen; free its address or set `listen` in [link]";
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(error_chain(&error))
    })
}

/// Listens for calls of the API.
async fn bind_api(
    config: &Config,
    credentials: &Credentials,
    access: &Access,
) -> Result<Server, ApiError> {
    let failed = |code: Code, error: &dyn std::error::Error| {
        ApiError::new(code, "the API cannot be served").caused_by(error_chain(error))
    };
    let tls = |made: Result<rustls::ServerConfig, _>| {
        made.map(Arc::new).map_err(|error| failed(Code::IDENTITY_REFUSED, &error))
    };
    let server = Server::bind(ServerConfig {
        listen: config.node.api_listen,
        node: credentials.identity().name.clone(),
        frame_bytes_max: config.frames.frame_bytes_max.0,
        tls: tls(credentials.server_tls(ALPN))?,
        tls_open: tls(credentials.server_tls_open(ALPN))?,
        access: access.clone(),
        web: Router::new(),
        web_public: Router::new(),
    });
    server.await.map_err(|error| failed(Code::CONFIG_INVALID, &error))
}
