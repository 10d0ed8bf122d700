//! `tidegate init`: certificates and a configuration.

use std::{fs, io::Write, path::Path, time::Duration};

use clap::Args;
use tidegate_client::ApiError;
use tidegate_message::Code;

use super::print;
use crate::{
    config::{self, Config},
    pki::{self, InitRequest, Kind, PkiError},
};

/// Arguments of `tidegate init`.
#[derive(Args, Debug)]
pub struct InitArgs {
    /// Name of a node; may be repeated [default: node.name of the configuration]
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Name of a camera; may be repeated [default: cam1]
    #[arg(long = "camera", value_name = "NAME")]
    cameras: Vec<String>,
    /// Name of an application; may be repeated [default: application]
    #[arg(long = "application", value_name = "NAME")]
    applications: Vec<String>,
    /// Host name or address under which nodes are reached, beside this machine's own names; may be repeated
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// How many days the certificates last
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36500))]
    days: u32,
    /// Make more certificates with the authority that is there
    #[arg(long)]
    add: bool,
}

pub(super) fn run(config: &Config, args: &InitArgs) -> Result<(), ApiError> {
    let pki_dir = config.pki_dir();
    let valid_for = Duration::from_secs(u64::from(args.days) * 86_400);
    let mut text = String::new();
    if args.add {
        let kinds = [
            (Kind::Node, &args.nodes),
            (Kind::Camera, &args.cameras),
            (Kind::Application, &args.applications),
        ];
        let all =
            kinds.iter().flat_map(|(kind, names)| names.iter().map(move |name| (*kind, name)));
        for (kind, name) in all {
            pki::add(&pki_dir, kind, name, &args.hosts, valid_for).map_err(failed)?;
            text.push_str(&format!("{}\n", pki_dir.join(format!("{name}.pem")).display()));
        }
        return print(&text);
    }
    let or = |given: &[String], usual: &str| match given {
        [] => vec![usual.to_owned()],
        given => given.to_vec(),
    };
    let request = InitRequest {
        nodes: or(&args.nodes, config.node.name.as_str()),
        cameras: or(&args.cameras, "cam1"),
        applications: or(&args.applications, "application"),
        hosts: args.hosts.clone(),
        valid_for,
    };
    pki::init(&pki_dir, &request).map_err(failed)?;
    text.push_str(&format!("certificates in {}\n", pki_dir.display()));
    if write_template(Path::new(config::FILE))? {
        text.push_str(&format!("configuration in {}\n", config::FILE));
    }
    print(&text)
}

/// Writes the commented defaults unless there is a configuration already.
fn write_template(path: &Path) -> Result<bool, ApiError> {
    let file = fs::OpenOptions::new().write(true).create_new(true).open(path);
    match file.and_then(|mut file| file.write_all(Config::template().as_bytes())) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => {
            let message = format!("{} cannot be written", path.display());
            Err(ApiError::new(Code::STORAGE_FAILED, message).caused_by(error))
        }
    }
}

fn failed(error: PkiError) -> ApiError {
    let code = match error {
        PkiError::Write { .. } => Code::STORAGE_FAILED,
        _ => Code::CONFIG_INVALID,
    };
    ApiError::new(code, "the certificates cannot be made").caused_by(error)
}
