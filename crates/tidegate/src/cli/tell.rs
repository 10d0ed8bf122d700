//! A running node that a command tells of a file that it has written.

use std::time::Duration;

use clap::Args;
use tidegate_api::{ApiError, ReloadedConfiguration};
use tidegate_cli::{
    program::{Output, plain, print},
    remote::RemoteArgs,
};
use tidegate_config::Config;
use tidegate_message::{CameraName, Code};
use tokio::time::timeout;

/// How long a node may take to read its configuration again.
const RELOAD_MAX: Duration = Duration::from_secs(20);

/// The node that reads its configuration again, with the files that it names.
#[derive(Args, Debug)]
pub(super) struct NodeToTell {
    /// Address of the node's API, as host:port [default: node.api_listen of the configuration]
    #[arg(long, value_name = "HOST:PORT")]
    node: Option<String>,
    /// Name of the certificate to show, from the `pki` folder
    #[arg(long = "as", value_name = "NAME", default_value = "application")]
    identity: CameraName,
    /// Change the file alone; a running node takes it up by SIGHUP
    #[arg(long)]
    no_reload: bool,
}

impl NodeToTell {
    /// Has the node read its configuration again, if one runs, waits for its answer, and says it, unless the output is JSON. Returns whether a
    /// node has read it.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] if the node refuses it: then the file is written nevertheless.
    pub(super) async fn tell(&self, config: &Config, output: Output) -> Result<bool, ApiError> {
        if self.no_reload {
            return Ok(false);
        }
        let remote = RemoteArgs {
            node: self.node.clone(),
            identity: self.identity.clone(),
            token_file: None,
            user: None,
            password_file: None,
        };
        let asked = timeout(RELOAD_MAX, async {
            remote.connect(config).await?.reload_configuration().await
        });
        let asked = asked.await.unwrap_or_else(|_| {
            let text = format!("it gave no answer within {} s", RELOAD_MAX.as_secs());
            Err(ApiError::new(Code::LINK_DOWN, text))
        });
        let (is_read, text) = match asked {
            Ok(ReloadedConfiguration { problems, .. }) if !problems.is_empty() => {
                let text =
                    "the node keeps the configuration that it has, since the file has mistakes";
                let problems: Vec<String> = problems.iter().map(|text| plain(text)).collect();
                return Err(
                    ApiError::new(Code::CONFIG_INVALID, text).caused_by(problems.join("; "))
                );
            }
            Ok(_) => (true, "the node has read its configuration again\n".to_owned()),
            // It knows by now that the certificate which was shown is revoked.
            Err(error) if error.code() == Code::IDENTITY_REVOKED => (
                true,
                "the node refuses the certificate that was shown, which is revoked\n".to_owned(),
            ),
            Err(error) => (
                false,
                format!(
                    "no node has read it yet: {}; a running one does so by `{}` or SIGHUP\n",
                    plain(&error.chain()),
                    config.command("config reload"),
                ),
            ),
        };
        if output == Output::Table {
            print(&text)?;
        }
        Ok(is_read)
    }
}
