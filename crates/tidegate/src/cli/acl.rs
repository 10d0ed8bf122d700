//! `tidegate acl check`: a decision by the rules, and the rule that made it.

use std::net::IpAddr;

use clap::{Args, Subcommand, ValueEnum};
use tidegate_api::ApiError;
use tidegate_cli::program::{Output, print};
use tidegate_config::Config;
use tidegate_message::{
    Action, Authorize as _, CameraName, Code, Decision, Identity, IdentityKind, Target,
    check_topic_filter, check_topic_name,
};

use crate::run::users;

/// Arguments of `tidegate acl`.
#[derive(Args, Clone, Debug)]
pub struct AclArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: AclCommand,
}

/// Subcommands on rules.
#[derive(Subcommand, Clone, Debug)]
pub enum AclCommand {
    /// Say whether a user may do something, and by which rule; exit status 0 if so, 1 if not
    Check(CheckArgs),
}

/// Arguments of `tidegate acl check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The user that asks; - for a client without a proof
    #[arg(value_name = "USER")]
    pub user: String,
    /// The action: publish, subscribe, receive, frames, fetch-original, functions or admin
    #[arg(value_name = "ACTION", value_parser = action)]
    pub action: Action,
    /// The target: a topic or filter, camera:NAME (or its bare name, for frames), or node
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// How the name is proved: rules of users, certificates and nodes are kept apart
    #[arg(long, value_enum, default_value_t)]
    pub kind: Kind,
    /// Group that a token names; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    pub groups: Vec<String>,
    /// Client identifier, for %c in rules
    #[arg(long, value_name = "ID", default_value = "")]
    pub client_id: String,
    /// Address that it is asked from [default: another machine's]
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<IpAddr>,
    /// How to print the decision
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

/// How a name is proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// By a password or a token
    #[default]
    User,
    /// By the certificate of an application or device
    Certificate,
    /// By the certificate of a node or camera of the site
    Node,
}

fn action(word: &str) -> Result<Action, String> {
    Action::named(word).ok_or_else(|| {
        "choose one of: publish subscribe receive frames fetch-original functions admin".to_owned()
    })
}

pub(super) fn run(config: &Config, args: &AclArgs) -> Result<(), ApiError> {
    let AclCommand::Check(args) = &args.what;
    let decision = check(config, args)?;
    let word = if decision.allow { "allow" } else { "deny" };
    print(&match args.output {
        Output::Table => format!("{word}: {}\n", tidegate_cli::program::plain(&decision.rule)),
        Output::Json => {
            let rule = decision.rule.to_string();
            format!("{:#}\n", serde_json::json!({ "allow": decision.allow, "rule": rule }))
        }
    })?;
    if decision.allow { Ok(()) } else { std::process::exit(1) }
}

fn check(config: &Config, args: &CheckArgs) -> Result<Decision, ApiError> {
    let kind = match (&*args.user, args.kind) {
        ("-", _) => IdentityKind::Anonymous,
        (_, Kind::User) => IdentityKind::User,
        (_, Kind::Certificate) => IdentityKind::Certificate,
        (_, Kind::Node) => IdentityKind::Node,
    };
    let name = if kind == IdentityKind::Anonymous { "" } else { &args.user };
    let mut groups: Vec<_> = args.groups.iter().map(|group| group.as_str().into()).collect();
    groups.sort();
    let identity = Identity {
        groups: groups.into(),
        address: args.from,
        ..Identity::new(kind, name, &args.client_id)
    };
    let target = target(args.action, &args.target, config.mqtt.topic_levels_max as usize)?;
    Ok(users::rules(config)?.decide(&identity, args.action, target))
}

/// The target that the text names, for that action.
fn target(action: Action, text: &str, levels_max: usize) -> Result<Target<'_>, ApiError> {
    let wrong = |error: &dyn std::error::Error| {
        let text = format!("{text:?} is nothing that can be asked {} of", action.word());
        ApiError::new(Code::CONFIG_INVALID, text).caused_by(error.to_string())
    };
    let camera = match action {
        Action::Frames | Action::FetchOriginal => {
            Some(text.strip_prefix("camera:").unwrap_or(text))
        }
        _ => text.strip_prefix("camera:"),
    };
    if let Some(name) = camera {
        name.parse::<CameraName>().map_err(|error| wrong(&error))?;
        return Ok(Target::Camera(name));
    }
    let model = match action {
        Action::Detect => Some(text.strip_prefix("model:").unwrap_or(text)),
        Action::Admin => text.strip_prefix("model:"),
        _ => None,
    };
    if let Some(name) = model {
        return Ok(Target::Model(name));
    }
    match action {
        Action::Functions | Action::Admin if text == "node" => Ok(Target::Node),
        Action::Subscribe => {
            check_topic_filter(text, levels_max).map_err(|error| wrong(&error))?;
            Ok(Target::Filter(text))
        }
        _ => {
            check_topic_name(text, levels_max).map_err(|error| wrong(&error))?;
            Ok(Target::Topic(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn decisions_come_with_their_rule_and_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().display().to_string();
        let roles = "[role.r]\nsubscribe = [\"home/#\", \"dev/%c/#\"]\nframes = [\"yard-*\"]\nadmin = true\n\
                     [group.g]\nroles = [\"r\"]\n[user.ada]\ngroups = [\"g\"]\n[node.edge]\nroles = [\"r\"]\n";
        fs::write(folder.path().join("roles"), roles).unwrap();
        fs::write(folder.path().join("acl"), "user ada\ntopic deny home/safe/#\ntopic write a\n")
            .unwrap();
        let with = |text: &str| {
            let text =
                format!("[node]\ndata_dir = \"{place}\"\n{}", text.replace("FOLDER", &place));
            Config::parse(Path::new("site.toml"), &text).unwrap()
        };
        let both =
            with("[auth]\nroles_file = \"FOLDER/roles\"\n[mqtt]\nacl_file = \"FOLDER/acl\"\n");
        let none = with("");
        for (config, line, expected) in [
            (&both, "ada subscribe home/x", "allow roles:2: role r: subscribe home/#"),
            (&both, "ada receive home/safe/x", "deny acl:2: topic deny home/safe/#"),
            (&both, "ada publish a", "allow acl:3: topic write a"),
            (&both, "ada publish b", "deny roles: no role allows it"),
            (&both, "ada frames yard-1", "allow roles:3: role r: frames yard-*"),
            (&both, "ada frames camera:yard-1", "allow roles:3:"),
            (&both, "ada frames gate", "deny roles: no role"),
            (&both, "ada admin node", "allow roles:4: role r: admin all"),
            (&both, "ada detect face", "deny roles: no role"),
            (&both, "ada admin model:face", "allow roles:4: role r: admin all"),
            (
                &none,
                "ada detect model:face",
                "allow no roles file is configured: every authenticated",
            ),
            (&both, "eve admin node", "deny roles: no role"),
            (&both, "eve admin node --group g", "allow roles:4:"),
            (
                &both,
                "eve subscribe dev/c1/# --group g --client-id c1",
                "allow roles:2: role r: subscribe dev/%c/#",
            ),
            (&both, "eve subscribe dev/c1/# --group g --client-id c2", "deny roles: no role"),
            (&both, "edge admin camera:x --kind node", "allow roles:4:"),
            (&both, "edge admin camera:x --kind certificate", "deny roles: no role"),
            (
                &both,
                "yard-1 publish camera:yard-1 --kind node",
                "allow the certificate of a camera",
            ),
            (&both, "- frames yard-1", "deny roles: no role"),
            (&none, "- publish a", "allow neither an ACL file nor"),
            (&none, "- admin node", "deny no roles file is configured: anonymous clients"),
            (
                &none,
                "ada admin node",
                "deny no roles file is configured: functions and admin are for",
            ),
            (
                &none,
                "ada admin node --from 127.0.0.1",
                "allow no roles file is configured: this machine",
            ),
        ] {
            let words = ["tidegate", "acl", "check"].into_iter().chain(line.split(' '));
            let Command::Acl(AclArgs { what: AclCommand::Check(args) }) =
                Cli::try_parse_from(words).unwrap().command
            else {
                panic!("{line}")
            };
            let decision = check(config, &args).unwrap();
            let word = if decision.allow { "allow" } else { "deny" };
            let got = format!("{word} {}", decision.rule.replace(&format!("{place}/"), ""));
            assert!(got.starts_with(expected), "{line}: {got}");
        }
        assert!(!folder.path().join("state").exists(), "a question leaves nothing behind");
    }

    #[test]
    fn an_invalid_request_is_an_error() {
        for (action, text) in [
            (Action::Publish, "a/#"),
            (Action::Subscribe, "a/#/b"),
            (Action::Frames, "a b"),
            (Action::Publish, "camera:"),
            (Action::Receive, ""),
        ] {
            let error = target(action, text, 256).unwrap_err();
            assert_eq!(error.code(), Code::CONFIG_INVALID, "{text}");
        }
    }
}
