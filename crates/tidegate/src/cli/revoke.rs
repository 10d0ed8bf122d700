//! `tidegate revoke`: certificate revocation.

use clap::Args;
use tidegate_api::ApiError;
use tidegate_cli::program::{Output, print};
use tidegate_config::Config;
use tidegate_identity::pki::{self, PkiError, revocation::Reason};
use tidegate_message::Code;

use super::tell::NodeToTell;

/// Arguments of `tidegate revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Name in the certificates, all of which are revoked; or a serial number, or the file of a certificate; may be repeated
    #[arg(value_name = "NAME|SERIAL|CERT.pem", required = true)]
    certificates: Vec<String>,
    /// Why: unspecified, key-compromise, affiliation-changed, superseded, cessation-of-operation or privilege-withdrawn
    #[arg(long, value_name = "REASON", default_value_t, value_parser = reason)]
    reason: Reason,
    /// How to print what was revoked
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    node: NodeToTell,
}

fn reason(word: &str) -> Result<Reason, String> {
    let found = Reason::CHOICES.into_iter().find(|reason| reason.as_str() == word);
    found.ok_or_else(|| {
        let choices: Vec<_> = Reason::CHOICES.iter().map(|reason| reason.as_str()).collect();
        format!("choose one of: {}", choices.join(" "))
    })
}

/// Revokes, and has the node of the configuration read the list, if one runs: what is printed is its answer.
pub(super) async fn run(config: &Config, args: &RevokeArgs) -> Result<(), ApiError> {
    let done = pki::revoke(&config.pki_dir(), &args.certificates, args.reason);
    let done = done.map_err(|error| {
        let code = match error {
            PkiError::Write { .. } => Code::STORAGE_FAILED,
            _ => Code::CONFIG_INVALID,
        };
        ApiError::new(code, "nothing was revoked").caused_by(tidegate_message::error_chain(&error))
    })?;
    if args.output == Output::Json {
        let is_read = args.node.tell(config, args.output).await?;
        let revoked = done.revoked.iter().map(
            |(serial, owner)| serde_json::json!({ "owner": owner, "serial": serial.to_string() }),
        );
        let object = serde_json::json!({
            "revoked": revoked.collect::<Vec<_>>(),
            "list": done.path.display().to_string(),
            "count": done.count,
            "read_by_node": is_read,
        });
        return print(&format!("{object:#}\n"));
    }
    let mut text = String::new();
    for (serial, owner) in &done.revoked {
        let owner = owner.as_deref().unwrap_or("a certificate that is not in the record");
        text.push_str(&format!("revoked {owner}, serial number {serial}\n"));
    }
    let path = done.path.display();
    text.push_str(&format!(
        "list of {} in {path}; copy it next to ca.pem of every other node\n",
        done.count
    ));
    print(&text)?;
    args.node.tell(config, args.output).await.map(drop)
}
