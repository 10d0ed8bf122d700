//! `tidegate config check`: all that is wrong with a configuration.

use std::path::Path;

use clap::Args;
use tidegate_api::{ApiError, ReloadedConfiguration};
use tidegate_cli::{
    program::{Output, plain, print},
    remote::RemoteArgs,
};
use tidegate_config::{Config, Origin, problems::Problem};
use tidegate_message::Code;

use crate::run::check::{self, Findings};

/// Arguments of `tidegate config check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Also try to reach the servers of sinks, bridges, uplinks and keys of tokens, each for at most 5 s
    #[arg(long)]
    connect: bool,
    /// How to print what is found
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Looks and tells; nothing is written.
pub(super) async fn run(
    path: Option<&Path>,
    set: &[String],
    args: &CheckArgs,
) -> Result<(), ApiError> {
    let (owned, flags) = (path.map(Path::to_owned), set.to_vec());
    let looked = tokio::task::spawn_blocking(move || {
        let (config, mut found) = check::look(owned.as_deref(), &flags);
        found.problems.add(check::places(&config));
        (config, found)
    });
    let looked = looked.await;
    let (config, mut found) = looked.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the check ended by a fault of the program").caused_by(error)
    })?;
    if args.connect {
        found.problems.add(check::reach(&config).await);
    }
    print(&match args.output {
        Output::Table => text(&found),
        Output::Json => json(&found),
    })?;
    let count = found.problems.iter().len();
    let Some(first) = found.problems.iter().next() else { return Ok(()) };
    // A server that cannot be reached now may be right.
    let worst = found.problems.iter().find(|problem| problem.code != Code::LINK_DOWN);
    Err(ApiError::new(worst.unwrap_or(first).code, mistakes(count)))
}

/// Arguments of `tidegate config reload`.
#[derive(Args, Clone, Debug)]
pub struct ReloadArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// How to print what was exchanged
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Has a node read its configuration again and prints what came of it.
pub(super) async fn reload(config: &Config, args: &ReloadArgs) -> Result<(), ApiError> {
    let reloaded = args.remote.connect(config).await?.reload_configuration().await?;
    let ReloadedConfiguration { problems, exchanged, need_restart } = &reloaded;
    print(&match args.output {
        Output::Json => {
            let object = serde_json::json!({
                "problems": problems,
                "exchanged": exchanged,
                "need_restart": need_restart,
            });
            format!("{object:#}\n")
        }
        Output::Table => {
            let mut text = String::new();
            let lines = |text: &mut String, after: &str, lines: &[String]| {
                for line in lines {
                    text.push_str(&format!("{}{after}\n", plain(line)));
                }
            };
            lines(&mut text, "", problems);
            lines(&mut text, " was exchanged", exchanged);
            lines(&mut text, " changes at the next start", need_restart);
            if text.is_empty() {
                text.push_str("no setting has changed; files that they name were read again\n");
            }
            text
        }
    })?;
    match problems.len() {
        0 => Ok(()),
        count => Err(ApiError::new(Code::CONFIG_INVALID, mistakes(count))
            .caused_by("the node keeps the configuration that it has")),
    }
}

fn mistakes(count: usize) -> String {
    match count {
        1 => "the configuration has a mistake".to_owned(),
        count => format!("the configuration has {count} mistakes"),
    }
}

fn text(found: &Findings) -> String {
    match found.problems.is_empty() && found.warnings.is_empty() {
        true => "nothing is wrong with the configuration\n".to_owned(),
        false => {
            let text = found.to_string();
            text.lines().map(|line| plain(line) + "\n").collect()
        }
    }
}

fn json(found: &Findings) -> String {
    let object = |severity: &str, problem: &Problem| {
        let (file, line) = match &problem.place {
            Some(Origin::File { path, line }) => (Some(path.display().to_string()), Some(*line)),
            Some(other) => (Some(other.to_string()), None),
            None => (None, None),
        };
        serde_json::json!({
            "severity": severity,
            "place": file,
            "line": line,
            "text": problem.text,
            "code": problem.code.as_str(),
        })
    };
    let problems = found.problems.iter().map(|problem| object("problem", problem));
    let warnings = found.warnings.iter().map(|warning| object("warning", warning));
    format!("{:#}\n", serde_json::Value::Array(problems.chain(warnings).collect()))
}
