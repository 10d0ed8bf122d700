//! `tidegate invite` and `tidegate join`: a machine comes into a site.

use std::{io::Read as _, path::Path, time::Duration};

use clap::Args;
use tidegate_api::ApiError;
use tidegate_cli::program::print;
use tidegate_config::{Config, write::with_setting};
use tidegate_identity::{
    enrol::{self, Invitation, InvitationError, Invitations, JoinError, Token},
    pki::{self, Kind, PkiError},
};
use tidegate_message::{Code, error_chain};
use tidegate_sys::files;

/// Arguments of `tidegate invite`.
#[derive(Args, Debug)]
pub struct InviteArgs {
    /// Name in the certificate
    name: String,
    /// The kind of certificate: camera, node or application
    #[arg(long, value_name = "KIND", default_value = "camera", value_parser = kind)]
    kind: Kind,
    /// Where the invitation is redeemed, as host:port [default: node.enrol_listen, if that is one address]
    #[arg(long, value_name = "HOST:PORT")]
    at: Option<String>,
    /// Host name or address under which a node is reached; may be repeated
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// How many minutes the invitation is open
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=43200))]
    minutes: u32,
    /// How many days the certificate lasts
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    days: u32,
}

/// Arguments of `tidegate join`.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// The line that `tidegate invite` printed; `-` reads it from the standard input, where no list of processes
    /// shows it
    token: String,
}

fn kind(word: &str) -> Result<Kind, String> {
    word.parse().map_err(|()| "choose one of: camera node application".to_owned())
}

pub(super) fn invite(config: &Config, args: &InviteArgs) -> Result<(), ApiError> {
    let invalid = |text: String| ApiError::new(Code::CONFIG_INVALID, text);
    let pki_dir = config.pki_dir();
    // Only a machine with the authority can invite.
    pki::Authority::load(&pki_dir).map_err(|error| no_authority(&error))?;
    let authority = tidegate_sys::regular::read(&pki_dir.join("ca.pem")).ok();
    let authority = authority.and_then(|pem| pki::fingerprint(&pem));
    let authority =
        authority.ok_or_else(|| invalid("ca.pem is not a certificate any more".to_owned()))?;
    let listens = config.node.enrol_listen;
    let at = match (&args.at, listens) {
        (Some(at), _) => at.clone(),
        (None, Some(address)) if !address.ip().is_unspecified() => address.to_string(),
        (None, Some(_)) => {
            let text = "node.enrol_listen is every address of this machine; say with --at which one the other machine reaches";
            return Err(invalid(text.to_owned()));
        }
        (None, None) => {
            let text = "nothing redeems invitations here: set node.enrol_listen, such as \"0.0.0.0:7444\", and start the node again";
            return Err(invalid(text.to_owned()));
        }
    };
    let invitation = Invitation {
        name: args.name.clone(),
        kind: args.kind,
        hosts: args.hosts.clone(),
        valid_for_s: u64::from(args.days) * 86_400,
    };
    let open_for = Duration::from_secs(u64::from(args.minutes) * 60);
    let invitations = Invitations::in_folder(&config.state_dir());
    let token = invitations.invite(invitation, open_for, at, authority);
    let token = token.map_err(|error| {
        let code = match error {
            InvitationError::File { .. } => Code::STORAGE_FAILED,
            _ => Code::CONFIG_INVALID,
        };
        ApiError::new(code, "no invitation was made").caused_by(error_chain(&error))
    })?;
    print(&format!("{token}\n"))
}

fn no_authority(error: &PkiError) -> ApiError {
    let text = "only the machine with the authority's key can invite";
    ApiError::new(Code::CONFIG_INVALID, text).caused_by(error_chain(error))
}

pub(super) async fn join(
    config: &Config,
    file: &Path,
    set: &[String],
    args: &JoinArgs,
) -> Result<(), ApiError> {
    let text = match &*args.token {
        "-" => {
            let mut text = String::new();
            std::io::stdin().take(4096).read_to_string(&mut text).map_err(|error| {
                ApiError::new(Code::CONFIG_INVALID, "the standard input cannot be read")
                    .caused_by(error)
            })?;
            text
        }
        token => token.to_owned(),
    };
    let token: Token =
        text.parse().map_err(|error| ApiError::new(Code::CONFIG_INVALID, format!("{error}")))?;
    let joined = enrol::join(&token, &config.pki_dir()).await.map_err(|error| {
        let code = match &error {
            JoinError::Unreachable { .. } => Code::LINK_DOWN,
            JoinError::Pki(PkiError::Write { .. }) => Code::STORAGE_FAILED,
            _ => Code::CONFIG_INVALID,
        };
        ApiError::new(code, "this machine did not join").caused_by(error_chain(&error))
    })?;
    let folder = joined.certificate.parent().unwrap_or(Path::new("."));
    print(&format!(
        "joined as {} {}; certificates in {}\n",
        joined.kind,
        joined.name,
        folder.display()
    ))?;
    match &*joined.kind {
        "node" => print(&name_node(config, file, set, &joined.name)?),
        "camera" => {
            let start = config.command(&format!("camera --name {}", joined.name));
            print(&format!("start it with `{start} --source …`\n"))
        }
        _ => Ok(()),
    }
}

/// Has the configuration name the node as its certificate does: without that it looks for another one's. Returns the
/// message for the user.
fn name_node(config: &Config, file: &Path, set: &[String], name: &str) -> Result<String, ApiError> {
    if config.node.name.as_str() == name {
        return Ok(String::new());
    }
    let shown = file.display();
    if let Some(origin) = config.origins.of("node.name") {
        return Ok(format!(
            "{origin} names the node {}; write node.name = {name:?} there, or it does not find its certificate\n",
            config.node.name
        ));
    }
    let unwritten = |what: &str, error: std::io::Error| {
        let text =
            format!("{shown} cannot be {what}; write name = {name:?} into its section [node]");
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    };
    let flag = format!("node.name={name}");
    let folder = file.parent().unwrap_or(Path::new(""));
    if !config.has_file() {
        let mut text = Config::template();
        for flag in set.iter().chain([&flag]) {
            text = with_setting(&text, flag, folder)?;
        }
        Config::parse(file, &text)?;
        if super::init::write_new(file, &text)? {
            return Ok(format!("configuration in {shown}, with node.name = {name:?}\n"));
        }
    }
    let text = std::fs::read_to_string(file).map_err(|error| unwritten("read", error))?;
    let text = with_setting(&text, &flag, folder)?;
    Config::parse(file, &text)?;
    files::put(file, text.as_bytes(), files::READABLE)
        .map_err(|error| unwritten("written", error))?;
    Ok(format!("{shown} names the node {name:?} now\n"))
}
