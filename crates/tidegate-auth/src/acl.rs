//! The ACL file: which identities may publish to, and receive, which topics, in Mosquitto's grammar.
//!
//! ```text
//! topic read news/#              before the first `user`: for those who came in without a proof
//! user alice
//! topic readwrite home/#         read, write, readwrite (also if left out) or deny
//! topic deny home/safe/#
//! pattern write dev/%c/state     for everybody: %c is the client identifier, %u the user name
//! ```
//!
//! - A deny rule wins over every allow rule, wherever the two stand; a topic that no rule allows is
//!   denied. In Mosquitto a `pattern deny` does not win over a `topic` of the user.
//! - `write` allows to publish, `read` to subscribe and to be sent messages.
//! - A subscription is refused if no read rule has a topic in common with its filter, or if one deny rule covers
//!   all of it; otherwise it is let in, and each message is checked as it is sent ([`Action::Receive`]). Mosquitto
//!   lets every subscription in. Of `$share/NAME/FILTER` only the filter counts.
//! - `+` and `#` at the begin of a rule do not match topics that begin with `$`, as in MQTT; nor does a
//!   name that is put in for `%c` or `%u` there.
//! - A client identifier or user name that is empty fits no pattern. One that holds `+`, `#` or `/` fits no
//!   allowing pattern, and a denying pattern then denies all from the level of the name on, so that a strange
//!   name is no way around it.
//! - A name that came in with a user name, a certificate or as a node finds its rules under `user NAME`.
//!
//! Always true: a file is taken as a whole or refused with its line; every decision names its rule with its place.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use tidegate_message::{Action, Authorize, Decision, Identity, IdentityKind, Target};

use crate::{
    pattern::{Names, NoFilter, Pattern, without_share},
    verdict::Verdict,
};

/// The rules of an ACL file.
#[derive(Debug)]
pub struct Acl {
    anonymous: Rules,
    users: BTreeMap<Box<str>, Rules>,
    patterns: Rules,
    /// Said when no rule fits.
    no_rule: Arc<str>,
    /// Said of what is no topic.
    no_topic: Arc<str>,
    /// Said of a target that does not go with its action.
    no_sense: Arc<str>,
    internal: Arc<str>,
}

impl Acl {
    /// The rules of `text`, which stands in `path`.
    ///
    /// # Errors
    /// [`AclError`], which names the line and the way out; nothing of the file is used then.
    pub fn parse(path: &Path, text: &str) -> Result<Self, AclError> {
        let mut wrong = Vec::new();
        let acl = Self::parse_lines(path, text, &mut wrong);
        wrong.into_iter().next().map_or(Ok(acl), Err)
    }

    /// Each line of the file that is wrong.
    pub fn problems(path: &Path, text: &str) -> Vec<AclError> {
        let mut wrong = Vec::new();
        Self::parse_lines(path, text, &mut wrong);
        wrong
    }

    /// Reads the rules of the valid lines; the problems of the others are added to `wrong`.
    fn parse_lines(path: &Path, text: &str, wrong: &mut Vec<AclError>) -> Self {
        let place = path.display();
        let mut acl = Self {
            anonymous: Rules::default(),
            users: BTreeMap::new(),
            patterns: Rules::default(),
            no_rule: format!("{place}: no rule allows it").into(),
            no_topic: format!("{place}: it has rules for topics only").into(),
            no_sense: format!("{place}: no rule can be asked for it").into(),
            internal: "this node itself".into(),
        };
        let mut user = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = number + 1;
            let error = |problem| AclError { path: path.to_owned(), line: number, problem };
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim_start();
            if word == "user" {
                if rest.is_empty() || rest.chars().any(char::is_control) {
                    wrong.push(error(AclProblem::UserName));
                    continue;
                }
                acl.users.entry(rest.into()).or_default();
                user = Some(rest);
                continue;
            }
            let pattern = match word {
                "topic" => false,
                "pattern" => true,
                _ => {
                    wrong.push(error(AclProblem::UnknownWord { word: word.to_owned() }));
                    continue;
                }
            };
            let rule = access(rest).and_then(|(kind, filter)| {
                if !pattern && (filter.contains("%c") || filter.contains("%u")) {
                    return Err(AclProblem::NameInTopic);
                }
                let topics = Pattern::parse(filter)
                    .map_err(|NoFilter { filter }| AclProblem::Filter { filter })?;
                Ok((kind, topics))
            });
            let (kind, topics) = match rule {
                Ok(rule) => rule,
                Err(problem) => {
                    wrong.push(error(problem));
                    continue;
                }
            };
            let text: Arc<str> = format!("{place}:{number}: {line}").into();
            let rules = match (pattern, user) {
                (true, _) => &mut acl.patterns,
                (false, None) => &mut acl.anonymous,
                (false, Some(user)) => acl.users.get_mut(user).expect("it was entered at its line"),
            };
            rules.add(kind, Rule { topics, text });
        }
        if acl.is_empty() && wrong.is_empty() {
            let line = text.lines().count().max(1);
            wrong.push(AclError { path: path.to_owned(), line, problem: AclProblem::Empty });
        }
        acl
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.sections().map(|rules| rules.deny.len() + rules.read.len() + rules.write.len()).sum()
    }

    /// Whether there are no rules, and so nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn sections(&self) -> impl Iterator<Item = &Rules> {
        self.users.values().chain([&self.anonymous, &self.patterns])
    }

    /// Rules of `identity`: its own, then those that apply to all.
    fn rules_of(&self, identity: &Identity) -> [Option<&Rules>; 2] {
        let own = match identity.kind {
            IdentityKind::Anonymous => Some(&self.anonymous),
            _ => self.users.get(&*identity.name),
        };
        [own, Some(&self.patterns)]
    }
}

impl Acl {
    /// The decision by the rules of the file, which know topics only.
    pub(crate) fn judge(
        &self,
        identity: &Identity,
        action: Action,
        target: Target<'_>,
    ) -> Verdict<'_> {
        if identity.kind == IdentityKind::Internal {
            return Verdict::Allow(&self.internal);
        }
        let names = Names::of(identity);
        let sections = self.rules_of(identity);
        let rules = || sections.iter().copied().flatten();
        match (action, target) {
            (Action::Publish | Action::Receive, Target::Topic(topic)) => {
                let mut deny = rules().flat_map(|r| &r.deny);
                let mut allow = rules().flat_map(|r| match action {
                    Action::Publish => &r.write,
                    _ => &r.read,
                });
                self.verdict(
                    deny.find(|rule| rule.topics.denies(topic, names)),
                    allow.find(|rule| rule.topics.matches(topic, names)),
                )
            }
            (Action::Subscribe, Target::Filter(filter)) => {
                let Some(filter) = without_share(filter) else {
                    return Verdict::Deny(&self.no_sense);
                };
                self.verdict(
                    rules()
                        .flat_map(|r| &r.deny)
                        .find(|rule| rule.topics.denies_all(filter, names)),
                    rules().flat_map(|r| &r.read).find(|rule| rule.topics.overlaps(filter, names)),
                )
            }
            (Action::Publish | Action::Receive | Action::Subscribe, _) => {
                Verdict::Deny(&self.no_sense)
            }
            (
                Action::Frames
                | Action::FetchOriginal
                | Action::Detect
                | Action::Functions
                | Action::Admin,
                _,
            ) => Verdict::Silent(&self.no_topic),
        }
    }

    fn verdict<'a>(&'a self, deny: Option<&'a Rule>, allow: Option<&'a Rule>) -> Verdict<'a> {
        match (deny, allow) {
            (Some(rule), _) => Verdict::Deny(&rule.text),
            (None, Some(rule)) => Verdict::Allow(&rule.text),
            (None, None) => Verdict::Silent(&self.no_rule),
        }
    }
}

impl Authorize for Acl {
    /// By the rules of the file, which know topics only: anything else is denied, except to this node itself.
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        self.judge(identity, action, target).or_deny()
    }

    /// Rules of a file do not change: other rules are another list.
    fn generation(&self) -> u64 {
        0
    }

    /// Never: that the rules which are left are wide, or that there are none, says nothing of a subscription that rules
    /// allowed which are gone.
    fn receives_all(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
struct Rules {
    deny: Vec<Rule>,
    read: Vec<Rule>,
    write: Vec<Rule>,
}

impl Rules {
    fn add(&mut self, kind: Access, rule: Rule) {
        match kind {
            Access::Read => self.read.push(rule),
            Access::Write => self.write.push(rule),
            Access::Deny => self.deny.push(rule),
            Access::ReadWrite => {
                self.read.push(rule.clone());
                self.write.push(rule);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
    ReadWrite,
    Deny,
}

/// One line.
#[derive(Clone, Debug)]
struct Rule {
    topics: Pattern,
    /// Its place and the line as written.
    text: Arc<str>,
}

/// `[read|write|readwrite|deny] FILTER`
fn access(text: &str) -> Result<(Access, &str), AclProblem> {
    let (word, filter) = match text.split_once([' ', '\t']) {
        Some((word, filter)) => (word, filter.trim_start()),
        None => ("readwrite", text),
    };
    let kind = match word {
        "read" => Access::Read,
        "write" => Access::Write,
        "readwrite" => Access::ReadWrite,
        "deny" => Access::Deny,
        _ => return Err(AclProblem::UnknownAccess { word: word.to_owned() }),
    };
    // `topic read` alone is the topic `read` to Mosquitto, and a filter forgotten to people.
    if filter.is_empty() || ["read", "write", "readwrite", "deny"].contains(&text) {
        return Err(AclProblem::NoFilter);
    }
    Ok((kind, filter))
}

/// Why an ACL file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {problem}", .path.display())]
pub struct AclError {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The problem.
    pub problem: AclProblem,
}

/// Problems in a line of an ACL file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclProblem {
    /// There is no rule in the file. To take it at its word would undo what it denied, and end what it allowed.
    #[error(
        "the file has no rule: it was emptied, or cut short while it was written; bring it back from a copy, or write `pattern deny #` if \
         nothing is to be allowed"
    )]
    Empty,
    /// It begins with no word of the grammar.
    #[error("a line begins with user, topic, pattern or #, and not with {word:?}")]
    UnknownWord {
        /// The word.
        word: String,
    },
    /// No user is named.
    #[error(
        "`user` needs a name after it; rules for those without one stand before the first `user`"
    )]
    UserName,
    /// The access is none of the four.
    #[error("{word:?} is not an access; choose one of: read write readwrite deny")]
    UnknownAccess {
        /// The word.
        word: String,
    },
    /// No filter is given.
    #[error("the rule has no topic; add one after it, such as home/#")]
    NoFilter,
    /// The filter is not one of MQTT.
    #[error("{filter:?} is not a topic filter; + stands alone between slashes, # alone and last")]
    Filter {
        /// The filter.
        filter: String,
    },
    /// `%c` or `%u` stands where it means nothing.
    #[error(
        "%c and %u stand for names in `pattern` rules only; write `pattern` instead of `topic`"
    )]
    NameInTopic,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = "\
# everybody without a name
topic read news/#
topic $SYS/broker/uptime

user alice
topic readwrite home/#
topic deny home/safe/#
topic read +/open
topic write out/a b
user bob smith
topic read #
pattern write dev/%c/state
pattern readwrite users/%u/#
pattern deny dev/%c/locked
pattern write %u/only
user alice
topic read more
";

    fn acl(text: &str) -> Acl {
        Acl::parse(Path::new("acl"), text).unwrap()
    }

    fn identity(name: &str, client: &str) -> Identity {
        match name {
            "" => Identity::anonymous(client),
            _ => Identity::new(IdentityKind::User, name, client),
        }
    }

    #[test]
    fn rules_decide_and_are_named() {
        use Action::{Publish, Receive, Subscribe};
        let acl = acl(FILE);
        for (name, client, action, target, allow, rule) in [
            ("", "c", Receive, "news/a", true, "acl:2: topic read news/#"),
            ("", "c", Receive, "news", true, "acl:2:"),
            ("", "c", Publish, "news/a", false, "acl: no rule allows it"),
            ("", "c", Receive, "$SYS/broker/uptime", true, "acl:3: topic $SYS/broker/uptime"),
            ("", "c", Publish, "dev/c/state", true, "acl:12:"),
            ("", "c", Publish, "dev/d/state", false, "acl: no rule"),
            ("", "c", Publish, "users//x", false, "acl: no rule"),
            ("alice", "c", Publish, "home/x", true, "acl:6:"),
            ("alice", "c", Publish, "home/safe", false, "acl:7: topic deny home/safe/#"),
            ("alice", "c", Receive, "home/safe/x", false, "acl:7:"),
            ("alice", "c", Receive, "news/a", false, "acl: no rule"), // the first section is not hers
            ("alice", "c", Receive, "x/open", true, "acl:8:"),
            ("alice", "c", Receive, "$x/open", false, "acl: no rule"),
            ("alice", "c", Publish, "out/a b", true, "acl:9:"),
            ("alice", "c", Receive, "more", true, "acl:17:"),
            ("alice", "c", Publish, "users/alice/x", true, "acl:13:"),
            ("alice", "c", Publish, "users/bob/x", false, "acl: no rule"),
            ("alice", "c", Publish, "dev/c/locked", false, "acl:14:"),
            ("bob smith", "c", Receive, "any/thing", true, "acl:11: topic read #"),
            ("bob smith", "c", Receive, "$SYS/x", false, "acl: no rule"),
            ("bob smith", "c", Receive, "dev/c/locked", false, "acl:14:"),
            ("eve", "c", Receive, "news/a", false, "acl: no rule"),
            // Names that would mean more than themselves.
            ("a/b", "c", Publish, "users/a/b/x", false, "acl: no rule"),
            ("+", "c", Publish, "users/alice/x", false, "acl: no rule"),
            ("#", "c", Publish, "users/alice/x", false, "acl: no rule"),
            ("$SYS", "c", Publish, "$SYS/only", false, "acl: no rule"),
            ("bob smith", "x/y", Receive, "dev/x/y/locked", false, "acl:14:"),
            ("bob smith", "+", Receive, "dev/x/locked", false, "acl:14:"),
            ("alice", "+", Publish, "home/x", true, "acl:6:"),
            // Subscriptions.
            ("", "c", Subscribe, "news/#", true, "acl:2:"),
            ("", "c", Subscribe, "#", true, "acl:2:"),
            ("", "c", Subscribe, "+/a", true, "acl:2:"),
            ("", "c", Subscribe, "home/#", false, "acl: no rule"),
            ("", "c", Subscribe, "$SYS/#", true, "acl:3:"),
            ("", "c", Subscribe, "$share/g/news/a", true, "acl:2:"),
            ("", "c", Subscribe, "$share/g/home/a", false, "acl: no rule"),
            ("", "c", Subscribe, "$share/g", false, "acl: no rule can be asked"),
            ("alice", "c", Subscribe, "home/safe/+", false, "acl:7:"),
            ("alice", "c", Subscribe, "home/safe/#", false, "acl:7:"),
            ("alice", "c", Subscribe, "home/+", true, "acl:6:"), // each message is checked
            ("bob smith", "c", Subscribe, "$SYS/#", false, "acl: no rule"),
            ("eve", "c", Subscribe, "users/+/x", true, "acl:13:"),
            ("e/ve", "c", Subscribe, "users/#", false, "acl: no rule"),
            ("e/ve", "c", Subscribe, "users/+/x", false, "acl: no rule"),
        ] {
            let target = match action {
                Subscribe => Target::Filter(target),
                _ => Target::Topic(target),
            };
            let decision = acl.decide(&identity(name, client), action, target);
            let case = format!("{name} {client} {action:?} {target:?}: {decision:?}");
            assert_eq!(decision.allow, allow, "{case}");
            assert!(decision.rule.starts_with(rule), "{case}");
        }
    }

    #[test]
    fn invalid_topics_are_denied_to_all_but_this_node() {
        let acl = acl("topic readwrite #\nuser alice\ntopic readwrite #");
        for action in [
            Action::Frames,
            Action::FetchOriginal,
            Action::Detect,
            Action::Functions,
            Action::Admin,
        ] {
            assert!(!acl.decide(&identity("alice", "c"), action, Target::Node).allow);
            let node = Identity::new(IdentityKind::Internal, "", "");
            assert!(acl.decide(&node, action, Target::Node).allow);
        }
        assert!(!acl.decide(&identity("alice", "c"), Action::Publish, Target::Filter("a")).allow);
    }

    #[test]
    fn file_without_a_rule_is_refused() {
        for text in ["", "\n# nothing\n", "user alice\n"] {
            let error = Acl::parse(Path::new("acl"), text).unwrap_err().to_string();
            assert!(error.contains(": the file has no rule"), "{error}");
        }
        let acl = acl("pattern deny #\n");
        assert!(!acl.decide(&identity("alice", "c"), Action::Publish, Target::Topic("a")).allow);
        assert!(!acl.decide(&identity("", "c"), Action::Subscribe, Target::Filter("#")).allow);
    }

    #[test]
    fn errors_name_line_and_way_out() {
        for (line, expected) in [
            ("topics read a", "begins with user, topic, pattern or #, and not with \"topics\""),
            ("user", "`user` needs a name"),
            ("topic raed a", "\"raed\" is not an access; choose one of: read write readwrite deny"),
            ("topic", "has no topic"),
            ("topic read", "has no topic"),
            ("pattern deny  ", "has no topic"),
            ("topic read a/#/b", "\"a/#/b\" is not a topic filter"),
            ("topic read a+", "is not a topic filter"),
            ("topic read a/b#", "is not a topic filter"),
            ("topic read a/%c", "write `pattern` instead of `topic`"),
        ] {
            let error =
                Acl::parse(Path::new("acl"), &format!("topic a\r\n\n{line}\n")).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("acl:3: ") && text.contains(expected), "{line}: {text}");
        }
    }

    #[test]
    fn each_message_is_asked_for_whatever_rules_are_left() {
        for text in [
            "pattern deny #",
            "topic read #\ntopic read $SYS/#\ntopic write a",
            "topic read #\nuser a\ntopic read a/#",
            "topic read #\npattern deny x",
        ] {
            assert!(!acl(text).receives_all(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_ends_without_panic(text in ".{0,80}", rule in "(topic|pattern) (read )?[a%cu+#/$]{0,9}") {
            let _ = Acl::parse(Path::new("acl"), &text);
            if let Ok(acl) = Acl::parse(Path::new("acl"), &rule) {
                let _ = acl.decide(&identity("", &text), Action::Receive, Target::Topic(&text));
                let _ = acl.decide(&identity("", &text), Action::Subscribe, Target::Filter(&text));
            }
        }
    }
}
