//! `tidegate sessions`: whose sessions the broker of a node keeps, and their end.

use async_recursion::async_recursion as boxed;
use clap::{Args, Subcommand};
use tidegate_api::{ApiError, EndSessions, SessionInfo, SessionOwner, SessionsPage};
use tidegate_client::Client;
use tidegate_config::Config;
use tidegate_message::Code;

use crate::{
    program::{Output, aligned, plain, print},
    remote::RemoteArgs,
};

/// Sessions asked for at a time.
const PAGE: usize = 1_000;

/// Arguments of `tidegate sessions`.
#[derive(Args, Debug)]
pub struct SessionsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the sessions of MQTT clients, connected or not, with their owners
    List(ListArgs),
    /// End sessions with their connections, their subscriptions and their waiting messages
    End(EndArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Those of one owner: a user by its name, or certificate:NAME, node:NAME, internal:NAME of a part of the node, anonymous
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// How to print them
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct EndArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Client identifiers of the sessions
    #[arg(value_name = "CLIENT_ID", required_unless_present = "owner")]
    client_ids: Vec<String>,
    /// All sessions of one owner: a user by its name, or certificate:NAME, node:NAME, internal:NAME of a part of the node that is gone,
    /// anonymous
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// How to print how many ended
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Lists sessions of MQTT clients, or ends some.
///
/// # Errors
/// Those of the call, and of the output.
#[boxed(?Send)]
pub async fn run(config: &Config, args: &SessionsArgs) -> Result<(), ApiError> {
    match &args.what {
        What::List(args) => {
            let owner = args.owner.as_deref().map(owner).transpose()?;
            let client = args.remote.connect(config).await?;
            let sessions = all(&client, owner).await?;
            match args.output {
                Output::Table => print(&table(&sessions)),
                Output::Json => print(&json(&sessions)),
            }
        }
        What::End(args) => {
            let owner = args.owner.as_deref().map(owner).transpose()?;
            let client = args.remote.connect(config).await?;
            let which = EndSessions { client_ids: args.client_ids.clone(), owner };
            let ended = client.end_sessions(which).await?;
            print(&match args.output {
                Output::Table => format!("{ended} ended\n"),
                Output::Json => format!("{:#}\n", serde_json::json!({ "ended": ended })),
            })
        }
    }
}

async fn all(client: &Client, owner: Option<SessionOwner>) -> Result<Vec<SessionInfo>, ApiError> {
    let mut page = SessionsPage { after: String::new(), limit: PAGE, owner };
    let mut sessions = Vec::new();
    loop {
        // A page may be short because its sessions are long.
        let more = client.sessions(page.clone()).await?;
        let Some(last) = more.last() else { return Ok(sessions) };
        page.after.clone_from(&last.client_id);
        sessions.extend(more);
    }
}

/// `ada`, `user:ada`, `certificate:counter`, `node:yard-1`, `internal:sink archive`, `anonymous`.
fn owner(text: &str) -> Result<SessionOwner, ApiError> {
    if text == "anonymous" {
        return Ok(SessionOwner { kind: text.to_owned(), name: String::new() });
    }
    let (kind, name) = text.split_once(':').unwrap_or(("user", text));
    if !["user", "certificate", "node", "internal"].contains(&kind) || name.is_empty() {
        let text = format!(
            "{text:?} is not an owner; write a user's name, or user:NAME, certificate:NAME, node:NAME, internal:NAME, anonymous"
        );
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    Ok(SessionOwner { kind: kind.to_owned(), name: name.to_owned() })
}

fn table(sessions: &[SessionInfo]) -> String {
    let head = ["CLIENT", "OWNER", "STATE", "SUBSCRIPTIONS", "QUEUED", "BYTES", "INFLIGHT"];
    let rows = sessions.iter().map(|session| {
        [
            plain(&session.client_id),
            plain(format!("{} {}", session.owner.kind, session.owner.name).trim_end()),
            state(session),
            session.subscriptions.to_string(),
            session.queued.to_string(),
            session.queued_bytes.to_string(),
            session.inflight.to_string(),
        ]
    });
    aligned(head, rows)
}

/// Connected, away, or of a part of the node that is no longer configured, with the time left.
fn state(session: &SessionInfo) -> String {
    match session.ends_in_s {
        Some(seconds) => format!("gone, ends in {}", left(seconds)),
        None => if session.connected { "connected" } else { "away" }.to_owned(),
    }
}

/// As `71 h`, `12 min` or `40 s`: whole units, rounded down.
fn left(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn json(sessions: &[SessionInfo]) -> String {
    let object = |session: &SessionInfo| {
        serde_json::json!({
            "client_id": session.client_id,
            "owner_kind": session.owner.kind,
            "owner": session.owner.name,
            "connected": session.connected,
            "subscriptions": session.subscriptions,
            "queued": session.queued,
            "queued_bytes": session.queued_bytes,
            "inflight": session.inflight,
            "ends_in_s": session.ends_in_s,
        })
    };
    format!("{:#}\n", serde_json::Value::Array(sessions.iter().map(object).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_or_refused() {
        for (text, expected) in [
            ("ada", Some(("user", "ada"))),
            ("user:certificate:x", Some(("user", "certificate:x"))),
            ("certificate:counter", Some(("certificate", "counter"))),
            ("node:yard-1", Some(("node", "yard-1"))),
            ("anonymous", Some(("anonymous", ""))),
            ("", None),
            ("user:", None),
            ("internal:sink archive", Some(("internal", "sink archive"))),
            ("internal:", None),
            ("nodes:x", None),
        ] {
            let read = owner(text).ok();
            let read = read.as_ref().map(|owner| (&*owner.kind, &*owner.name));
            assert_eq!(read, expected, "{text}");
        }
    }
}
