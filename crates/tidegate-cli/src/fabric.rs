//! `tidegate fabric`: the fabric of many nodes, as one of its members sees it.

mod diff;

use async_recursion::async_recursion as boxed;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tidegate_api::{
    ApiError, FabricStatus, Left, Located, Member, MembersPage, Sought, json::fabric as said,
};
use tidegate_client::Client;
use tidegate_config::Config;

use crate::{
    program::{Output, aligned, plain, print},
    remote::RemoteArgs,
};

/// Members asked for at a time.
const PAGE: usize = 1_000;
/// Digits of an identity that a table shows, and that are enough to name a member.
const ID_DIGITS: usize = 8;
/// Characters of a name and of a cell in the table of members, which is to fit 80 columns.
const NAME_CHARS: usize = 20;
const CELL_CHARS: usize = 9;

/// Arguments of `tidegate fabric`.
#[derive(Args, Debug)]
pub struct FabricArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the fabric as the node sees it: how many members, links and cells, and what is wrong
    Status(ShownArgs),
    /// List the members with their standing, their links, cameras and subscriptions
    Members(ShownArgs),
    /// Find the members that a topic, a camera or a position leads to
    Where(WhereArgs),
    /// Show where the users, rules and roles of members differ, which are meant to be the same at all nodes of a site
    Diff(ShownArgs),
    /// Have all members forget one that does not come back: its data is no longer waited for
    Forget(ForgetArgs),
    /// Have the node leave the fabric, which goes on without it; it is a member again when it is started again
    Leave(ShownArgs),
}

#[derive(Args, Debug)]
struct ShownArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// How to print it
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct WhereArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(flatten)]
    subject: Subject,
    /// How to print it
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct Subject {
    /// A topic, without wildcards: the members whose clients subscribe to it
    #[arg(value_name = "TOPIC")]
    topic: Option<String>,
    /// A camera: the member that it is at
    #[arg(long, value_name = "NAME")]
    camera: Option<String>,
    /// A position in degrees, such as "52.3731, 4.8922": the members that own its data
    #[arg(long, value_name = "LAT, LON", allow_hyphen_values = true)]
    position: Option<String>,
}

#[derive(Args, Debug)]
struct ForgetArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Name of the member, or its identity, of which the first 8 digits are enough
    #[arg(value_name = "NAME")]
    member: String,
    /// How to print it
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Shows the fabric and its members, or changes it.
///
/// # Errors
/// Those of the call, and of the output.
#[boxed(?Send)]
pub async fn run(config: &Config, args: &FabricArgs) -> Result<(), ApiError> {
    match &args.what {
        What::Status(ShownArgs { remote, output }) => {
            let status = remote.connect(config).await?.fabric().await?;
            print(&match output {
                Output::Table => status_text(&status),
                Output::Json => pretty(&said::status(&status)),
            })
        }
        What::Members(ShownArgs { remote, output }) => {
            let members = all(&remote.connect(config).await?).await?;
            print(&match output {
                Output::Table => members_table(&members),
                Output::Json => pretty(&members.iter().map(said::member).collect()),
            })
        }
        What::Where(WhereArgs { remote, subject, output }) => {
            let Subject { topic, camera, position } = subject;
            let sought = Sought::read(topic.as_deref(), camera.as_deref(), position.as_deref())?;
            let found = remote.connect(config).await?.locate(sought.clone()).await?;
            print(&match output {
                Output::Table => where_table(&sought, &found),
                Output::Json => pretty(&found.iter().map(said::located).collect()),
            })
        }
        What::Diff(ShownArgs { remote, output }) => diff::run(config, remote, *output).await,
        What::Forget(ForgetArgs { remote, member, output }) => {
            let (id, name) = remote.connect(config).await?.forget_member(member).await?;
            print(&match output {
                Output::Table => format!("{} ({}) is forgotten\n", plain(&name), short(&id)),
                Output::Json => pretty(&json!({ "id": id, "name": name })),
            })
        }
        What::Leave(ShownArgs { remote, output }) => {
            let client = remote.connect(config).await?;
            let left = client.leave_fabric().await?;
            let name = &client.server().node;
            print(&match output {
                Output::Table => left_text(name, &left),
                Output::Json => {
                    let Left { unsent, unsent_to } = left;
                    pretty(&json!({ "name": name, "unsent": unsent, "unsent_to": unsent_to }))
                }
            })
        }
    }
}

/// All members, in order of their names.
async fn all(client: &Client) -> Result<Vec<Member>, ApiError> {
    let mut page = MembersPage { after: String::new(), limit: PAGE };
    let mut members: Vec<Member> = Vec::new();
    loop {
        // A page may be short because its members have many cameras.
        let more = client.members(page.clone()).await?;
        let Some(last) = more.last() else { break };
        page.after.clone_from(&last.id);
        members.extend(more);
    }
    members.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    Ok(members)
}

fn left_text(name: &str, left: &Left) -> String {
    let mut text = format!("{} has left its fabric\n", plain(name));
    if left.unsent > 0 {
        let members: Vec<String> = left.unsent_to.iter().map(|member| plain(member)).collect();
        let (count, members) = (left.unsent, members.join(", "));
        text.push_str(&format!(
            "{count} messages for {members} could not be sent and stay at the node; start it again, and it sends them as a member\n"
        ));
    }
    text
}

fn status_text(status: &FabricStatus) -> String {
    let FabricStatus { members, linked, doubted, lost, replicas, algorithm, .. } = status;
    let mut text = format!(
        "node      {} ({})\n\
         members   {members}, of them {linked} linked and {doubted} doubted; {lost} lost\n\
         view      {}, by algorithm {algorithm}\n\
         places    {}, {replicas} replicas\n",
        plain(&status.name),
        short(&status.me),
        plain(&status.view_hash),
        match status.cells.len() {
            1 => "1 cell".to_owned(),
            count => format!("{count} cells"),
        },
    );
    for problem in &status.problems {
        text.push_str(&format!("problem   {}\n", plain(problem)));
    }
    text
}

fn members_table(members: &[Member]) -> String {
    let head = ["NAME", "ID", "STANDING", "LINK", "CAMERAS", "FILTERS", "CELL"];
    let rows = members.iter().map(|member| {
        [
            cut(&member.name, NAME_CHARS),
            short(&member.id),
            member.standing.word().to_owned(),
            link(member),
            member.cameras.len().to_string(),
            member.filters.to_string(),
            member.cell.as_deref().map_or("-".to_owned(), |cell| cut(cell, CELL_CHARS)),
        ]
    });
    let mut text = aligned(head, rows);
    for member in members {
        if let Some(reason) = &member.reason {
            text.push_str(&format!("{}: {}\n", plain(&member.name), plain(reason)));
        }
    }
    text
}

/// This node, the round trip, that there is a link without one yet, or a dash for none.
fn link(member: &Member) -> String {
    match (member.is_me, member.is_linked, member.round_trip) {
        (true, _, _) => "self".to_owned(),
        (_, true, Some(trip)) => format!("{:.1} ms", trip.as_secs_f64() * 1e3),
        (_, true, None) => "up".to_owned(),
        (_, false, _) => "-".to_owned(),
    }
}

fn where_table(sought: &Sought, found: &[Located]) -> String {
    if found.is_empty() {
        return match sought {
            Sought::Topic(topic) => format!("no member has a subscriber to {}\n", plain(topic)),
            Sought::Camera(camera) => format!("no member has camera {camera}\n"),
            Sought::Position(point) => format!("no member owns data of {point}\n"),
        };
    }
    let rows = found.iter().map(|located| {
        [
            cut(&located.name, NAME_CHARS),
            short(&located.id),
            located.api_addresses.first().map_or("-".to_owned(), |address| plain(address)),
            plain(&located.why),
        ]
    });
    aligned(["NAME", "ID", "API", "WHY"], rows)
}

/// The first digits of an identity.
fn short(id: &str) -> String {
    plain(id).chars().take(ID_DIGITS).collect()
}

/// At most so many characters, the last an ellipsis where some were left out.
fn cut(text: &str, chars: usize) -> String {
    let text = plain(text);
    match text.char_indices().nth(chars) {
        None => text,
        Some(_) => text.chars().take(chars - 1).chain(['…']).collect(),
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use tidegate_api::{Cell, Standing};
    use tidegate_message::GeoPoint;

    use super::*;

    fn members() -> Vec<Member> {
        let yard = Member {
            id: "1f2e3d4c".repeat(8),
            name: "yard".to_owned(),
            is_me: true,
            cameras: vec!["door".to_owned(), "gate".to_owned()],
            filters: 12,
            position: GeoPoint::new(52.0, 4.0).ok(),
            cell: Some("1203".to_owned()),
            ..Member::default()
        };
        let far = Member {
            id: "a".repeat(64),
            name: "a-node-with-a-long-name-of-a-street".to_owned(),
            is_me: false,
            is_linked: true,
            round_trip: Some(Duration::from_micros(123_456)),
            filters: 10_000,
            cell: Some("1203120312031203".to_owned()),
            ..yard.clone()
        };
        let lost = Member {
            id: "b".repeat(64),
            name: "gone\u{7}".to_owned(),
            standing: Standing::Doubted,
            is_me: false,
            cameras: Vec::new(),
            filters: 0,
            cell: None,
            reason: Some("its link ended 12 s ago".to_owned()),
            ..yard.clone()
        };
        let new = Member { is_linked: true, round_trip: None, ..far.clone() };
        vec![far, lost, new, yard]
    }

    #[test]
    fn the_table_of_members_is_golden_and_fits_eighty_columns() {
        let expected = "\
NAME                  ID        STANDING  LINK      CAMERAS  FILTERS  CELL
a-node-with-a-long-…  aaaaaaaa  here      123.5 ms  2        10000    12031203…
gone\u{fffd}                 bbbbbbbb  doubted   -         0        0        -
a-node-with-a-long-…  aaaaaaaa  here      up        2        10000    12031203…
yard                  1f2e3d4c  here      self      2        12       1203
gone\u{fffd}: its link ended 12 s ago
";
        let table = members_table(&members());
        assert_eq!(table, expected);
        assert!(table.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_node_that_leaves_names_the_messages_that_stay() {
        let left = Left { unsent: 12, unsent_to: vec!["mast7".to_owned(), "yard\u{7}".to_owned()] };
        let text = left_text("core", &left);
        assert!(
            text.contains(
                "core has left its fabric\n12 messages for mast7, yard\u{fffd} could not"
            ),
            "{text}"
        );
        assert_eq!(left_text("core", &Left::default()), "core has left its fabric\n");
    }

    #[test]
    fn the_status_is_golden() {
        let status = FabricStatus {
            me: "1f2e3d4c".repeat(8),
            name: "yard".to_owned(),
            view_hash: "5eed".to_owned(),
            algorithm: 1,
            replicas: 3,
            members: 9,
            linked: 7,
            doubted: 2,
            lost: 1,
            problems: vec!["two members are called gate".to_owned()],
            cells: vec![Cell::default()],
        };
        let expected = "\
node      yard (1f2e3d4c)
members   9, of them 7 linked and 2 doubted; 1 lost
view      5eed, by algorithm 1
places    1 cell, 3 replicas
problem   two members are called gate
";
        assert_eq!(status_text(&status), expected);
    }

    #[test]
    fn members_that_were_looked_for_are_listed_with_their_reason() {
        let topic = Sought::topic("plant/a").expect("a topic");
        let found = Located {
            id: "1f2e3d4c".repeat(8),
            name: "yard".to_owned(),
            api_addresses: vec!["10.0.0.7:7080".to_owned(), "yard:7080".to_owned()],
            why: "subscribes to plant/#".to_owned(),
        };
        let bare = Located { api_addresses: Vec::new(), ..found.clone() };
        let expected = "\
NAME  ID        API            WHY
yard  1f2e3d4c  10.0.0.7:7080  subscribes to plant/#
yard  1f2e3d4c  -              subscribes to plant/#
";
        assert_eq!(where_table(&topic, &[found, bare]), expected);
        assert_eq!(where_table(&topic, &[]), "no member has a subscriber to plant/a\n");
        let point = Sought::read(None, None, Some("-33.86, 151.2")).expect("a position");
        assert_eq!(where_table(&point, &[]), "no member owns data of -33.86, 151.2\n");
    }

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        args: FabricArgs,
    }

    #[test]
    fn one_subject_is_named_and_a_position_may_lie_in_the_south() {
        let parse =
            |words: &str| Program::try_parse_from(["x"].into_iter().chain(words.split('|')));
        for right in [
            "where|plant/a",
            "where|--camera|door",
            "where|--position|-33.86, 151.2",
            "where|--position=-33.86,151.2|-o|json",
            "status|-o|json",
            "forget|yard|--node|10.0.0.7:7080",
            "leave",
        ] {
            parse(right).unwrap_or_else(|error| panic!("{right}: {error}"));
        }
        for wrong in ["where", "where|a|--camera|door", "where|--camera|a|--position|1,2", "forget"]
        {
            parse(wrong).expect_err(wrong);
        }
    }
}
