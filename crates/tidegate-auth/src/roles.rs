//! The roles file: users, groups, nodes and certificates, the roles that they have, and what a role may do.
//!
//! ```text
//! [role.viewer]                       a right with what it extends to, or `true` for all
//! subscribe = ["home/#", "dev/%c/#"]  topic filters: %c is the client identifier, %u the user name
//! frames = ["yard-*"]                 cameras, * for any letters
//! [role.viewer.deny]                  a deny wins over every allow, of whatever role
//! subscribe = ["home/safe/#"]
//! [group.family]
//! roles = ["viewer"]
//! [user.ada]                          by password or by token
//! groups = ["family"]
//! connections_max = 10                limits of this user, all connections together
//! [certificate.counter]               an application or device, by the name in its certificate
//! [node.yard-1]                       a node of the site, by the name in its certificate
//! [authenticated]                     every client with an identity
//! [anonymous]                         every client without one
//! ```
//!
//! | right | extends to |
//! |---|---|
//! | `publish` | topics; the frames of a camera, written `camera:NAME` |
//! | `subscribe` | topics |
//! | `frames`, `fetch-original` | cameras |
//! | `detect` | models that look at images |
//! | `functions` | topics; without any the whole node, by `true` |
//! | `admin` | cameras, written `camera:NAME`; models, written `model:NAME`; the whole node, by `true` |
//!
//! - A request that no role allows is denied. A token's groups count as well as those of the file.
//! - How topics are matched: as in the ACL file (`acl`), names in patterns included.
//!
//! Always true: a file is taken as a whole or refused with its line; every decision names its rule with its place.

mod file;

use std::{collections::BTreeMap, sync::Arc};

use tidegate_message::{Action, Authorize, Decision, Identity, IdentityKind, Target};

pub use self::file::{RolesError, RolesProblem};
use crate::{
    limits::Limits,
    pattern::{Names, Pattern, without_share},
    verdict::Verdict,
};

/// The rules of a roles file.
#[derive(Debug)]
pub struct Roles {
    roles: Vec<Role>,
    users: BTreeMap<Box<str>, Member>,
    certificates: BTreeMap<Box<str>, Member>,
    nodes: BTreeMap<Box<str>, Member>,
    groups: BTreeMap<Box<str>, Member>,
    authenticated: Member,
    anonymous: Member,
    /// Said when no rule fits.
    no_rule: Arc<str>,
    /// Said of a target that does not go with its action.
    no_sense: Arc<str>,
    internal: Arc<str>,
}

/// A user, group, certificate or node with its roles.
#[derive(Debug, Default)]
struct Member {
    /// Places in [`Roles::roles`].
    roles: Vec<usize>,
    groups: Vec<Box<str>>,
    limits: Limits,
}

#[derive(Debug)]
struct Role {
    name: Box<str>,
    rights: [Grants; RIGHTS.len()],
}

/// The grants of one right in a role.
#[derive(Debug, Default)]
struct Grants {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

/// One entry of a right.
#[derive(Debug)]
struct Rule {
    extent: Extent,
    /// Its place, role and right, and the entry as written.
    text: Arc<str>,
}

#[derive(Debug)]
enum Extent {
    All,
    Topics(Pattern),
    Cameras(NamePattern),
    Models(NamePattern),
}

/// The rights, in the order in which roles hold them.
const RIGHTS: [Action; 7] = [
    Action::Publish,
    Action::Subscribe,
    Action::Frames,
    Action::FetchOriginal,
    Action::Detect,
    Action::Functions,
    Action::Admin,
];

fn right_of(action: Action) -> usize {
    let action = if action == Action::Receive { Action::Subscribe } else { action };
    RIGHTS.iter().position(|right| *right == action).expect("each other action is a right")
}

impl Roles {
    /// Number of rules, of all roles.
    pub fn len(&self) -> usize {
        let grants = self.roles.iter().flat_map(|role| &role.rights);
        grants.map(|grants| grants.allow.len() + grants.deny.len()).sum()
    }

    /// Whether there are no rules, and so nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The names of the roles, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.roles.iter().map(|role| &*role.name)
    }

    /// The limits of `identity`: its own, else the widest of its groups, else those of its kind.
    pub fn limits(&self, identity: &Identity) -> Limits {
        let own = self.member(identity).map_or(Limits::NONE, |member| member.limits);
        let groups = self.groups_of(identity).map(|group| group.limits);
        let groups = groups.reduce(Limits::wider).unwrap_or(Limits::NONE);
        own.or(groups).or(self.kind(identity).map_or(Limits::NONE, |kind| kind.limits))
    }

    fn member(&self, identity: &Identity) -> Option<&Member> {
        match identity.kind {
            IdentityKind::User => self.users.get(&*identity.name),
            IdentityKind::Certificate => self.certificates.get(&*identity.name),
            IdentityKind::Node => self.nodes.get(&*identity.name),
            IdentityKind::Anonymous | IdentityKind::Internal => None,
        }
    }

    fn kind(&self, identity: &Identity) -> Option<&Member> {
        match identity.kind {
            IdentityKind::Anonymous => Some(&self.anonymous),
            IdentityKind::Internal => None,
            _ => Some(&self.authenticated),
        }
    }

    fn groups_of<'a>(&'a self, identity: &Identity) -> impl Iterator<Item = &'a Member> {
        let own = self.member(identity).into_iter().flat_map(|member| &member.groups);
        let own = own.filter_map(|group| self.groups.get(group));
        own.chain(identity.groups.iter().filter_map(|group| self.groups.get(&**group)))
    }

    fn roles_of<'a>(&'a self, identity: &Identity) -> impl Iterator<Item = &'a Role> {
        let members = self.member(identity).into_iter().chain(self.groups_of(identity));
        let members = members.chain(self.kind(identity));
        members.flat_map(|member| &member.roles).map(|&role| &self.roles[role])
    }

    /// The decision by the rules of the file.
    pub(crate) fn judge(
        &self,
        identity: &Identity,
        action: Action,
        target: Target<'_>,
    ) -> Verdict<'_> {
        if identity.kind == IdentityKind::Internal {
            return Verdict::Allow(&self.internal);
        }
        if !makes_sense(action, target) {
            return Verdict::Deny(&self.no_sense);
        }
        let (right, names) = (right_of(action), Names::of(identity));
        let grants = || self.roles_of(identity).map(|role| &role.rights[right]);
        let deny = grants().flat_map(|g| &g.deny).find(|rule| rule.extent.denies(target, names));
        if let Some(rule) = deny {
            return Verdict::Deny(&rule.text);
        }
        match grants().flat_map(|g| &g.allow).find(|rule| rule.extent.allows(target, names)) {
            Some(rule) => Verdict::Allow(&rule.text),
            None => Verdict::Silent(&self.no_rule),
        }
    }
}

impl Authorize for Roles {
    fn decide(&self, identity: &Identity, action: Action, target: Target<'_>) -> Decision {
        self.judge(identity, action, target).or_deny()
    }

    /// Always 0: the caller that exchanges files counts.
    fn generation(&self) -> u64 {
        0
    }

    /// Never: that the roles which are left are wide, or that there are none, says nothing of a subscription that a role
    /// allowed which was taken away.
    fn receives_all(&self) -> bool {
        false
    }
}

/// Whether that can be asked of that.
pub(crate) fn makes_sense(action: Action, target: Target<'_>) -> bool {
    match action {
        Action::Publish => matches!(target, Target::Topic(_) | Target::Camera(_)),
        Action::Receive => matches!(target, Target::Topic(_)),
        Action::Subscribe => match target {
            Target::Filter(filter) => without_share(filter).is_some(),
            _ => false,
        },
        Action::Frames | Action::FetchOriginal => matches!(target, Target::Camera(_)),
        Action::Detect => matches!(target, Target::Model(_)),
        Action::Functions => matches!(target, Target::Topic(_) | Target::Filter(_) | Target::Node),
        Action::Admin => matches!(target, Target::Camera(_) | Target::Model(_) | Target::Node),
    }
}

impl Extent {
    fn allows(&self, target: Target<'_>, names: Names<'_>) -> bool {
        match (self, target) {
            (Self::All, _) => true,
            (Self::Topics(topics), Target::Topic(topic)) => topics.matches(topic, names),
            (Self::Topics(topics), Target::Filter(filter)) => {
                without_share(filter).is_some_and(|filter| topics.overlaps(filter, names))
            }
            (Self::Cameras(names), Target::Camera(name))
            | (Self::Models(names), Target::Model(name)) => names.matches(name),
            _ => false,
        }
    }

    fn denies(&self, target: Target<'_>, names: Names<'_>) -> bool {
        match (self, target) {
            (Self::Topics(topics), Target::Topic(topic)) => topics.denies(topic, names),
            (Self::Topics(topics), Target::Filter(filter)) => {
                without_share(filter).is_some_and(|filter| topics.denies_all(filter, names))
            }
            _ => self.allows(target, names),
        }
    }
}

/// Names of cameras or models; `*` stands for any letters, none included.
#[derive(Debug)]
struct NamePattern(Box<str>);

impl NamePattern {
    /// None if no camera and no model can have such a name.
    fn parse(text: &str) -> Option<Self> {
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || "._-*".contains(c);
        (!text.is_empty() && text.len() <= 256 && text.chars().all(is_of_names))
            .then(|| Self(text.into()))
    }

    fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // Each as early as it comes leaves most for the next.
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests;
