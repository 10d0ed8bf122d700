//! The paths of HTTP on the port of the API, and the listener for them without TLS, as `[web]` describes it.

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::Config;
use tidegate_identity::access::Access;
use tidegate_message::Code;
use tidegate_rpc::{Plain, PlainSettings, Router};
use tidegate_web::WebSettings;

use super::{
    findings::Findings,
    keys::list,
    part::{Listen, Part, Ports, Started},
};

/// The part that has the page.
pub(super) struct Page;

#[async_trait]
impl Part for Page {
    fn name(&self) -> &'static str {
        "the page"
    }

    fn needs_certificate(&self) -> bool {
        true
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        if let Some(warning) = warning(config) {
            found.warnings.say(Code::CONFIG_INVALID, warning);
        }
    }

    fn listens(&self, config: &Config) -> Vec<Listen> {
        config.web.plain.map(|at| Listen::tcp("web.plain", at)).into_iter().collect()
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let Some(site) = &mut ports.site else { return Ok(None) };
        let known = tidegate_web::router(WebSettings {
            access: ports.access.clone(),
            bus: ports.bus.clone(),
            tables: ports.tables.clone(),
            stop: ports.stop.clone(),
        });
        let public = tidegate_web::page();
        if let Some(plain) = listen(config, known.clone(), public.clone()).await? {
            site.api.add_plain(plain);
        }
        site.api.add_web(known, public);
        // It ends with the API.
        Ok(None)
    }
}

/// The listener without TLS, for those paths; none where none is configured.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the address.
async fn listen(config: &Config, known: Router, public: Router) -> Result<Option<Plain>, ApiError> {
    let Some(settings) = plain(config) else { return Ok(None) };
    let user = settings.user.clone();
    let listener = Plain::bind(settings, known, public).await?;
    tracing::info!(address = %listener.address(), user, "the page and pictures are served without TLS and without a login");
    if let Some(warning) = warning(config) {
        tracing::warn!("{warning}");
    }
    Ok(Some(listener))
}

fn plain(config: &Config) -> Option<PlainSettings> {
    let section = &config.web;
    Some(PlainSettings {
        listen: section.plain?,
        user: user(config)?.to_owned(),
        hosts: list(section.plain_hosts.as_deref().unwrap_or_default()),
        connections_max: section.plain_connections_max as usize,
    })
}

/// The user whose rights the callers of the listener without TLS have.
fn user(config: &Config) -> Option<&str> {
    config.web.plain_identity.as_deref()?.strip_prefix("user:")
}

/// A warning of the rights that other machines have there, where they can reach it.
fn warning(config: &Config) -> Option<String> {
    let address = config.web.plain.filter(|address| !address.ip().to_canonical().is_loopback())?;
    let user = user(config)?;
    Some(format!(
        "web.plain = {address}: other machines can reach it, see without a login what user {user} may see, and read along what others are \
         sent; choose an address of this machine alone, such as 127.0.0.1:{}, or have a proxy with TLS and a login before it",
        address.port()
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("site.toml"), text).expect("a configuration")
    }

    #[test]
    fn there_is_a_listener_without_tls_where_one_is_configured() {
        assert!(plain(&config("")).is_none(), "it is off by default");
        assert!(plain(&config("[web]\nplain_identity = \"user:wall\"\n")).is_none());
        let text = "[web]\nplain = \"127.0.0.1:7081\"\nplain_identity = \"user:wall\"\n\
                    plain_hosts = \"edge.example, edge,\"\nplain_connections_max = 4\n";
        let config = config(text);
        let settings = plain(&config).expect("a listener");
        assert_eq!(
            (settings.listen, settings.connections_max),
            ("127.0.0.1:7081".parse().unwrap(), 4)
        );
        assert_eq!(
            (&*settings.user, &settings.hosts[..]),
            ("wall", &["edge.example".to_owned(), "edge".to_owned()][..])
        );
        assert_eq!(warning(&config), None);
    }

    #[test]
    fn a_listener_that_other_machines_reach_is_warned_of() {
        for (address, expected) in [
            ("127.0.0.1:7081", false),
            ("127.9.9.9:7081", false),
            ("[::1]:7081", false),
            ("[::ffff:127.0.0.1]:7081", false),
            ("0.0.0.0:7081", true),
            ("[::]:7081", true),
            ("192.0.2.7:7081", true),
        ] {
            let text = format!("[web]\nplain = \"{address}\"\nplain_identity = \"user:wall\"\n");
            let warned = warning(&config(&text));
            assert_eq!(warned.is_some(), expected, "{address}");
            assert!(warned.is_none_or(|text| text.contains("user wall") && text.contains(address)));
        }
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named_with_its_key() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let text = format!("[web]\nplain = \"{address}\"\nplain_identity = \"user:wall\"\n");
        let error = listen(&config(&text), Router::new(), Router::new()).await;
        let chain = error.expect_err("it is taken").chain();
        assert!(chain.contains(&address) && chain.contains("`plain` in [web]"), "{chain}");
    }
}
