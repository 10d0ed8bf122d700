//! From the text of a roles file to its rules.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use tidegate_message::Action;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Extent, Grants, Member, NamePattern, RIGHTS, Role, Roles, Rule};
use crate::pattern::Pattern;

/// Prefix of a camera's name where topics may stand as well.
const CAMERA: &str = "camera:";
/// Before the name of a model in a list of rights.
const MODEL: &str = "model:";
const SECTIONS: &str = "role.NAME role.NAME.deny group.NAME user.NAME certificate.NAME node.NAME authenticated anonymous";
const MEMBER_KEYS: &str = "roles groups connections_max messages_per_second bytes_per_second";

impl Roles {
    /// The rules of `text`, which stands in `path`.
    ///
    /// # Errors
    /// [`RolesError`], which names the line and the way out; nothing of the file is used then.
    pub fn parse(path: &Path, text: &str) -> Result<Self, RolesError> {
        let mut wrong = Vec::new();
        let roles = Self::read(path, text, &mut wrong);
        // Without a file there is nothing, and then something is wrong.
        match (wrong.into_iter().next(), roles) {
            (None, Some(roles)) => Ok(roles),
            (Some(error), _) => Err(error),
            (None, None) => unreachable!("a text that gives no rules is wrong"),
        }
    }

    /// All that is wrong with the file: of each member and each role the first mistake.
    pub fn problems(path: &Path, text: &str) -> Vec<RolesError> {
        let mut wrong = Vec::new();
        Self::read(path, text, &mut wrong);
        wrong.sort_by_key(|error| error.line);
        wrong
    }

    /// Reads the valid entries, none of a text that is not TOML; problems are added to `wrong`.
    fn read(path: &Path, text: &str, wrong: &mut Vec<RolesError>) -> Option<Self> {
        let reader = Reader { path, text };
        match DeTable::parse(text) {
            Ok(root) => {
                if root.get_ref().is_empty() {
                    wrong.push(reader.error(text.len(), RolesProblem::Empty));
                }
                Some(reader.roles_file(root.get_ref(), wrong))
            }
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                let message = error.message().to_owned();
                wrong.push(reader.error(at, RolesProblem::Syntax { message }));
                None
            }
        }
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;
type Value<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn roles_file(&self, root: &DeTable<'_>, wrong: &mut Vec<RolesError>) -> Roles {
        let place = self.path.display();
        let mut found = Roles {
            roles: Vec::new(),
            users: BTreeMap::new(),
            certificates: BTreeMap::new(),
            nodes: BTreeMap::new(),
            groups: BTreeMap::new(),
            authenticated: Member::default(),
            anonymous: Member::default(),
            no_rule: format!("{place}: no role allows it").into(),
            no_sense: format!("{place}: no rule can be asked for it").into(),
            internal: "this node itself".into(),
        };
        // Roles first, since members name them, wherever they stand.
        for (key, value) in root.iter().filter(|(key, _)| key.get_ref() == "role") {
            for (name, value) in note(self.table(key, value), wrong).into_iter().flatten() {
                // A member of an invalid role is not reported as well.
                let role = note(self.role(name, value), wrong).unwrap_or_else(|| Role {
                    name: name.get_ref().as_ref().into(),
                    rights: Default::default(),
                });
                found.roles.push(role);
            }
        }
        for (key, value) in root.iter().filter(|(key, _)| key.get_ref() != "role") {
            let Some(table) = note(self.table(key, value), wrong) else { continue };
            let members = match &**key.get_ref() {
                "authenticated" | "anonymous" => {
                    let at = key.span().start;
                    let member = self.ungrouped(&found.roles, key.get_ref(), at, table);
                    let member = note(member, wrong).unwrap_or_default();
                    match &**key.get_ref() {
                        "anonymous" => found.anonymous = member,
                        _ => found.authenticated = member,
                    }
                    continue;
                }
                "user" => &mut found.users,
                "certificate" => &mut found.certificates,
                "node" => &mut found.nodes,
                "group" => &mut found.groups,
                other => {
                    let problem = RolesProblem::UnknownSection { section: other.to_owned() };
                    wrong.push(self.error(key.span().start, problem));
                    continue;
                }
            };
            for (name, value) in table {
                let member = self.named_member(&found.roles, key, name, value);
                let member = note(member, wrong).unwrap_or_default();
                members.insert(name.get_ref().as_ref().into(), member);
            }
        }
        self.groups_are_there(root, &found, wrong);
        found
    }

    fn named_member(
        &self,
        roles: &[Role],
        key: &Key<'_>,
        name: &Key<'_>,
        value: &Value<'_>,
    ) -> Result<Member, RolesError> {
        let section = format!("{}.{}", key.get_ref(), name.get_ref());
        let at = name.span().start;
        if name.get_ref().is_empty() || name.get_ref().chars().any(char::is_control) {
            return Err(self.error(at, RolesProblem::Name { section }));
        }
        let table = self.table(name, value)?;
        match key.get_ref() == "group" {
            true => self.ungrouped(roles, &section, at, table),
            false => self.member(roles, &section, table),
        }
    }

    /// A member that can be in no group.
    fn ungrouped(
        &self,
        roles: &[Role],
        section: &str,
        at: usize,
        table: &DeTable<'_>,
    ) -> Result<Member, RolesError> {
        let member = self.member(roles, section, table)?;
        match member.groups.is_empty() {
            true => Ok(member),
            false => Err(self.error(at, RolesProblem::NoGroups { section: section.to_owned() })),
        }
    }

    /// A group that is misspelt would take rights away without a word.
    fn groups_are_there(&self, root: &DeTable<'_>, found: &Roles, wrong: &mut Vec<RolesError>) {
        for (_, section) in root {
            let Some(section) = section.get_ref().as_table() else { continue };
            for (_, member) in section {
                let groups = member.get_ref().as_table().and_then(|table| table.get("groups"));
                let groups = groups.and_then(|groups| groups.get_ref().as_array());
                for group in groups.into_iter().flatten() {
                    let Some(name) = group.get_ref().as_str() else { continue };
                    if !found.groups.contains_key(name) {
                        let problem = RolesProblem::UnknownGroup { group: name.to_owned() };
                        wrong.push(self.error(group.span().start, problem));
                    }
                }
            }
        }
    }

    fn role(&self, name: &Key<'_>, value: &Value<'_>) -> Result<Role, RolesError> {
        let mut rights: [Grants; RIGHTS.len()] = Default::default();
        for (key, value) in self.table(name, value)? {
            if key.get_ref() == "deny" {
                for (key, value) in self.table(key, value)? {
                    let right = self.right(name, key)?;
                    rights[right].deny = self.rules(name, key, value, "deny ", RIGHTS[right])?;
                }
            } else {
                let right = self.right(name, key)?;
                rights[right].allow = self.rules(name, key, value, "", RIGHTS[right])?;
            }
        }
        Ok(Role { name: name.get_ref().as_ref().into(), rights })
    }

    fn right(&self, role: &Key<'_>, key: &Key<'_>) -> Result<usize, RolesError> {
        let found = RIGHTS.iter().position(|right| right.word() == key.get_ref());
        found.ok_or_else(|| {
            let at = key.span().start;
            let (role, key) = (role.get_ref().to_string(), key.get_ref().to_string());
            self.error(at, RolesProblem::UnknownRight { role, key })
        })
    }

    fn rules(
        &self,
        role: &Key<'_>,
        key: &Key<'_>,
        value: &Value<'_>,
        deny: &str,
        right: Action,
    ) -> Result<Vec<Rule>, RolesError> {
        let role = role.get_ref();
        let rule = |at: usize, extent, shown: &str| {
            let place = format!("{}:{}", self.path.display(), self.line(at));
            let text = format!("{place}: role {role}: {deny}{} {shown}", right.word());
            Rule { extent, text: Arc::from(text) }
        };
        let needed = || {
            let key = format!("role.{role}.{}", key.get_ref());
            self.error(value.span().start, RolesProblem::NoExtent { key })
        };
        match value.get_ref() {
            DeValue::Boolean(true) => Ok(vec![rule(value.span().start, Extent::All, "all")]),
            DeValue::Array(entries) => {
                let entries = entries.iter().map(|entry| {
                    let text = entry.get_ref().as_str().ok_or_else(needed)?;
                    let at = entry.span().start;
                    let extent = extent(right, text).map_err(|problem| self.error(at, problem))?;
                    Ok(rule(at, extent, text))
                });
                entries.collect()
            }
            _ => Err(needed()),
        }
    }

    fn member(
        &self,
        roles: &[Role],
        section: &str,
        table: &DeTable<'_>,
    ) -> Result<Member, RolesError> {
        let mut member = Member::default();
        for (key, value) in table {
            let at = value.span().start;
            let name = || format!("{section}.{}", key.get_ref());
            match &**key.get_ref() {
                "roles" => {
                    for (at, word) in self.words(&name(), value)? {
                        let role = roles.iter().position(|role| *role.name == *word);
                        let unknown = || {
                            let known = roles.iter().map(|role| role.name.to_string()).collect();
                            let role = word.to_owned();
                            self.error(at, RolesProblem::UnknownRole { role, known })
                        };
                        member.roles.push(role.ok_or_else(unknown)?);
                    }
                }
                "groups" => {
                    let words = self.words(&name(), value)?;
                    member.groups = words.into_iter().map(|(_, word)| word.into()).collect();
                }
                "connections_max" | "messages_per_second" | "bytes_per_second" => {
                    let number = match value.get_ref() {
                        DeValue::Integer(number) => number.to_string().parse().ok(),
                        _ => None,
                    };
                    let number = number.filter(|number: &u64| (1..=1 << 40).contains(number));
                    let number = number
                        .ok_or_else(|| self.error(at, RolesProblem::Number { key: name() }))?;
                    match &**key.get_ref() {
                        "connections_max" => member.limits.connections_max = Some(number),
                        "messages_per_second" => member.limits.messages_per_second = Some(number),
                        _ => member.limits.bytes_per_second = Some(number),
                    }
                }
                other => {
                    let (section, key_text) = (section.to_owned(), other.to_owned());
                    let problem = RolesProblem::UnknownKey { section, key: key_text };
                    return Err(self.error(key.span().start, problem));
                }
            }
        }
        Ok(member)
    }

    /// A list of words, each with where it stands.
    fn words<'v>(
        &self,
        key: &str,
        value: &'v Value<'_>,
    ) -> Result<Vec<(usize, &'v str)>, RolesError> {
        let needed =
            || self.error(value.span().start, RolesProblem::NoList { key: key.to_owned() });
        let entries = value.get_ref().as_array().ok_or_else(needed)?;
        let word = |entry: &'v Value<'_>| {
            Ok((entry.span().start, entry.get_ref().as_str().ok_or_else(needed)?))
        };
        entries.iter().map(word).collect()
    }

    fn table<'v, 'd>(
        &self,
        key: &Key<'_>,
        value: &'v Value<'d>,
    ) -> Result<&'v DeTable<'d>, RolesError> {
        value.get_ref().as_table().ok_or_else(|| {
            let problem = RolesProblem::NoSection { key: key.get_ref().to_string() };
            self.error(key.span().start, problem)
        })
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn error(&self, at: usize, problem: RolesProblem) -> RolesError {
        RolesError { path: self.path.to_owned(), line: self.line(at), problem }
    }
}

/// The valid value; a problem is added to `wrong`.
fn note<T>(result: Result<T, RolesError>, wrong: &mut Vec<RolesError>) -> Option<T> {
    result.map_err(|error| wrong.push(error)).ok()
}

/// The topics or cameras that an entry of a right extends to.
fn extent(right: Action, text: &str) -> Result<Extent, RolesProblem> {
    let camera = |name: &str| match NamePattern::parse(name) {
        Some(pattern) => Ok(Extent::Cameras(pattern)),
        None => Err(RolesProblem::Camera { name: name.to_owned() }),
    };
    let model = |name: &str| match NamePattern::parse(name) {
        Some(pattern) => Ok(Extent::Models(pattern)),
        None => Err(RolesProblem::Model { name: name.to_owned() }),
    };
    match (right, text.strip_prefix(CAMERA)) {
        (Action::Publish | Action::Frames | Action::FetchOriginal | Action::Admin, Some(name)) => {
            camera(name)
        }
        (Action::Frames | Action::FetchOriginal, None) => camera(text),
        (Action::Detect, _) => model(text.strip_prefix(MODEL).unwrap_or(text)),
        (Action::Admin, None) => match text.strip_prefix(MODEL) {
            Some(name) => model(name),
            None => Err(RolesProblem::AdminOf { text: text.to_owned() }),
        },
        _ => match Pattern::parse(text) {
            Ok(pattern) => Ok(Extent::Topics(pattern)),
            Err(error) => Err(RolesProblem::Filter { filter: error.filter }),
        },
    }
}

/// Why a roles file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}: {problem}", .path.display())]
pub struct RolesError {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The problem.
    pub problem: RolesProblem,
}

/// Problems in a roles file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolesProblem {
    /// There is no section in the file. To take it at its word would undo what it denied, and its limits.
    #[error(
        "the file has no section: it was emptied, or cut short while it was written; bring it back from a copy, or write [anonymous] if \
         nothing is to be allowed"
    )]
    Empty,
    /// It is no TOML.
    #[error("{message}")]
    Syntax {
        /// The parser's message.
        message: String,
    },
    /// There is no such section.
    #[error("there is no section [{section}]; choose one of: {SECTIONS}")]
    UnknownSection {
        /// The section as written.
        section: String,
    },
    /// A key where a section should begin.
    #[error("{key} is not a section; begin one such as [role.viewer]")]
    NoSection {
        /// The key.
        key: String,
    },
    /// A name that no identity can have.
    #[error(
        "{section:?} is not a valid name; a name has at least one letter and no control characters"
    )]
    Name {
        /// The section.
        section: String,
    },
    /// There is no such key in the section.
    #[error("[{section}] has no {key:?}; choose one of: {MEMBER_KEYS}")]
    UnknownKey {
        /// The section.
        section: String,
        /// The key as written.
        key: String,
    },
    /// There is no such right.
    #[error(
        "role {role} has no right {key:?}; choose one of: publish subscribe frames fetch-original detect functions admin, \
         or put them below [role.{role}.deny]"
    )]
    UnknownRight {
        /// The role.
        role: String,
        /// The key as written.
        key: String,
    },
    /// A right without what it extends to.
    #[error("{key} must be a list of texts, or true for all of them; leave it out for none")]
    NoExtent {
        /// The key.
        key: String,
    },
    /// A list is needed.
    #[error("{key} must be a list of names, such as [\"viewer\"]")]
    NoList {
        /// The key.
        key: String,
    },
    /// A number is needed.
    #[error("{key} must be a whole number from 1 to 1099511627776; leave it out for no limit")]
    Number {
        /// The key.
        key: String,
    },
    /// A role that is not defined.
    #[error("there is no role {role:?}; defined are: {}", .known.join(" "))]
    UnknownRole {
        /// The role as written.
        role: String,
        /// The known roles.
        known: Vec<String>,
    },
    /// A group that is not defined.
    #[error("there is no group {group:?}; define it by a section [group.{group}]")]
    UnknownGroup {
        /// The group as written.
        group: String,
    },
    /// Groups where there are none.
    #[error("[{section}] can have roles, and no groups")]
    NoGroups {
        /// The section.
        section: String,
    },
    /// The filter is not one of MQTT.
    #[error("{filter:?} is not a topic filter; + stands alone between slashes, # alone and last")]
    Filter {
        /// The filter.
        filter: String,
    },
    /// No camera can be called that.
    #[error(
        "{name:?} is not a camera; a name is made of letters, digits, '.', '_', '-', and * for any of them"
    )]
    Camera {
        /// The name as written.
        name: String,
    },
    /// A name that no model can have.
    #[error(
        "{name:?} is not a model; a name is made of letters, digits, '.', '_', '-', and * for any of them"
    )]
    Model {
        /// The name as written.
        name: String,
    },
    /// `admin` extends to a camera, to a model, or to everything.
    #[error(
        "admin extends to cameras, such as \"camera:yard-*\", to models, such as \"model:recognize\", or to all, by true; not to {text:?}"
    )]
    AdminOf {
        /// The text as written.
        text: String,
    },
}
