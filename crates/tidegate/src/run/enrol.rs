//! Invitations that are redeemed, and the node's own certificate, which is looked at while it is shown.

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::Config;
use tidegate_identity::{
    access::Access,
    enrol::{Enrolment, Invitations},
    pki::{self, Kind},
};
use tidegate_message::{Code, error_chain};
use tokio_util::task::AbortOnDropHandle;

use super::{
    certificates::watch_certificate,
    findings::Findings,
    part::{Listen, Part, Ports, Running, Started},
};

/// The part that lets machines join the site.
pub(super) struct Joining;

#[async_trait]
impl Part for Joining {
    fn name(&self) -> &'static str {
        "invitations"
    }

    fn needs_certificate(&self) -> bool {
        true
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        if config.node.enrol_listen.is_some()
            && let Err(error) = pki::Authority::load(&config.pki_dir())
        {
            let text = "node.enrol_listen: only the machine with the authority's key can redeem invitations";
            let error = ApiError::new(Code::CONFIG_INVALID, text).caused_by(error_chain(&error));
            found.problems.note(error);
        }
    }

    fn listens(&self, config: &Config) -> Vec<Listen> {
        let at = config.node.enrol_listen;
        at.map(|at| Listen::tcp("node.enrol_listen", at)).into_iter().collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let Some(credentials) = &ports.credentials else { return Ok(None) };
        let (name, condition) = (config.node.name.clone(), ports.health.condition("certificate"));
        let watched = watch_certificate(condition, config.clone(), Kind::Node, name);
        let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(watched))];
        if let Some(address) = config.node.enrol_listen {
            let invitations = Invitations::in_folder(&config.state_dir());
            let enrolment =
                Enrolment::bind(address, credentials, &config.pki_dir(), invitations).await;
            let enrolment = enrolment.map_err(|error| {
                let text = "invitations cannot be redeemed";
                ApiError::new(Code::CONFIG_INVALID, text).caused_by(error_chain(&error))
            })?;
            tracing::info!(%address, "invitations are redeemed");
            tasks.push(AbortOnDropHandle::new(tokio::spawn(enrolment.serve())));
        }
        Ok(Some(Box::new(Redeemed { _tasks: tasks })))
    }
}

/// Ends with its tasks.
struct Redeemed {
    _tasks: Vec<AbortOnDropHandle<()>>,
}

#[async_trait]
impl Running for Redeemed {
    async fn stop(self: Box<Self>) {}
}
