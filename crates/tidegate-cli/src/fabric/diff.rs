//! `tidegate fabric diff`: where the rules of members differ.
//!
//! ```text
//!  the node that is asked ─▶ its members ─▶ the API of each, as the same caller ─▶ rules by subject ─▶ those that are not the same at all
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    time::Duration,
};

use async_recursion::async_recursion as boxed;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use tidegate_api::{ApiError, Member, Standing};
use tidegate_client::Client;
use tidegate_config::Config;
use tidegate_message::Code;
use tokio::time::timeout;

use crate::{
    program::{Output, plain, print},
    remote::RemoteArgs,
};

/// Longest wait for one address of a member, which may hang.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Members that are asked at a time.
const ASKED_MAX: usize = 32;
/// Shown for a member that has no rule of a subject.
const NONE: &str = "(none)";

/// The rules of a member, by subject.
type Rules = BTreeMap<String, String>;

/// The rules of all members that answered, by name, and why others did not.
#[derive(Debug, Default)]
struct Found {
    rules: BTreeMap<String, Rules>,
    silent: Vec<(String, String)>,
}

/// A subject that is not the same at all: each of its texts with the members that have it.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    subject: String,
    texts: Vec<(Option<String>, Vec<String>)>,
}

/// Asks all members and shows where their rules differ.
///
/// # Errors
/// Those of the node that is asked first. A member that does not answer is named in the output.
#[boxed(?Send)]
pub(super) async fn run(
    config: &Config,
    remote: &RemoteArgs,
    output: Output,
) -> Result<(), ApiError> {
    let client = remote.connect(config).await?;
    let mut found = Found::default();
    let mut members = super::all(&client).await?;
    members.retain(|member| matches!(member.standing, Standing::Here | Standing::Doubted));
    // Those that hang are waited for together.
    let asked = stream::iter(members).map(async |member| {
        let rules = match member.is_me {
            true => listed(&client).await,
            false => ask(config, remote, &member).await,
        };
        (member, rules)
    });
    let mut asked = pin!(asked.buffered(ASKED_MAX));
    while let Some((member, rules)) = asked.next().await {
        // Two members may have one name.
        let name = match found.rules.contains_key(&member.name) {
            true => format!("{} ({})", member.name, super::short(&member.id)),
            false => member.name.clone(),
        };
        match rules {
            Ok(rules) => {
                found.rules.insert(name, rules);
            }
            Err(error) => found.silent.push((name, error.chain())),
        }
    }
    let differences = found.differences();
    print(&match output {
        Output::Table => found.text(&differences),
        Output::Json => super::pretty(&found.json(&differences)),
    })
}

/// The rules of another member, by the first of its addresses that answers.
async fn ask(config: &Config, remote: &RemoteArgs, member: &Member) -> Result<Rules, ApiError> {
    let text = "it names no address of its API (`fabric.api_advertise` there)";
    let mut failed = ApiError::new(Code::LINK_DOWN, text);
    for address in &member.api_addresses {
        let asked = timeout(ANSWER_MAX, async {
            let client = remote.connect_to(config, address).await?;
            if client.server().node != member.name {
                let text = format!("another node answers at {address}");
                return Err(ApiError::new(Code::LINK_DOWN, text));
            }
            listed(&client).await
        });
        let late = |_| {
            let text = format!("no answer of {address} within {} s", ANSWER_MAX.as_secs());
            Err(ApiError::new(Code::LINK_DOWN, text))
        };
        match asked.await.unwrap_or_else(late) {
            Ok(rules) => return Ok(rules),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// All rules of a node.
async fn listed(client: &Client) -> Result<Rules, ApiError> {
    let mut rules = Rules::new();
    loop {
        let after = rules.last_key_value().map(|(subject, _)| subject.clone()).unwrap_or_default();
        let more = client.rules(&after).await?;
        let count = rules.len();
        rules.extend(more.into_iter().map(|rule| (rule.subject, rule.text)));
        // A node that repeats itself says no more.
        if rules.len() == count {
            return Ok(rules);
        }
    }
}

impl Found {
    fn differences(&self) -> Vec<Difference> {
        let subjects: BTreeSet<&String> = self.rules.values().flat_map(BTreeMap::keys).collect();
        let mut differences = Vec::new();
        for subject in subjects {
            let mut texts: BTreeMap<Option<&String>, Vec<String>> = BTreeMap::new();
            for (name, rules) in &self.rules {
                texts.entry(rules.get(subject)).or_default().push(name.clone());
            }
            if texts.len() > 1 {
                let texts = texts.into_iter().map(|(text, names)| (text.cloned(), names));
                differences.push(Difference { subject: subject.clone(), texts: texts.collect() });
            }
        }
        differences
    }

    fn text(&self, differences: &[Difference]) -> String {
        let mut text = match (differences.len(), self.rules.len()) {
            (0, 1) => "one member was asked\n".to_owned(),
            (0, count) => format!("{count} members have the same users, rules and roles\n"),
            (1, count) => format!("1 rule differs between {count} members\n"),
            (differ, count) => format!("{differ} rules differ between {count} members\n"),
        };
        for Difference { subject, texts } in differences {
            text.push_str(&format!("\n{}\n", plain(subject)));
            for (said, names) in texts {
                let said = said.as_deref().map_or(NONE.to_owned(), plain);
                text.push_str(&format!("  {}: {said}\n", plain(&names.join(", "))));
            }
        }
        for (name, why) in &self.silent {
            text.push_str(&format!("\n{} was not compared: {}\n", plain(name), plain(why)));
        }
        text
    }

    fn json(&self, differences: &[Difference]) -> Value {
        let differences: Vec<Value> = differences
            .iter()
            .map(|Difference { subject, texts }| {
                let texts =
                    texts.iter().map(|(text, members)| json!({ "text": text, "members": members }));
                json!({ "subject": subject, "texts": texts.collect::<Vec<_>>() })
            })
            .collect();
        let silent = self.silent.iter().map(|(name, why)| json!({ "name": name, "reason": why }));
        json!({
            "members": self.rules.keys().collect::<Vec<_>>(),
            "differences": differences,
            "not_compared": silent.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(all: &[(&str, &str)]) -> Rules {
        all.iter().map(|(subject, text)| ((*subject).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn rule_that_some_members_have_otherwise_or_not_at_all_is_shown_with_them() {
        let mut found = Found::default();
        let same = [("role viewer", "frames = [\"*\"]"), ("user ada", "may log in by password")];
        for name in ["core", "mast1", "mast2"] {
            found.rules.insert(name.to_owned(), rules(&same));
        }
        assert_eq!(found.differences(), []);
        assert_eq!(found.text(&[]), "3 members have the same users, rules and roles\n");

        found.rules.insert("mast2".to_owned(), rules(&[("role viewer", "frames = []")]));
        found.silent.push(("mast3".to_owned(), "no answer".to_owned()));
        let differences = found.differences();
        assert_eq!(
            found.text(&differences),
            "2 rules differ between 3 members\n\n\
             role viewer\n  core, mast1: frames = [\"*\"]\n  mast2: frames = []\n\n\
             user ada\n  mast2: (none)\n  core, mast1: may log in by password\n\n\
             mast3 was not compared: no answer\n"
        );
        let said = found.json(&differences);
        assert_eq!(said["differences"][1]["texts"][0]["text"], Value::Null);
        assert_eq!(said["not_compared"][0]["name"], "mast3");
    }
}
