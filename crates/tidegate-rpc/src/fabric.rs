//! The fabric of a node, for operators.
//!
//! ```text
//!  call, request of HTTP ─▶ FabricDesk: right, page, which member, audit ─▶ dyn Fabric (the node's members)
//! ```

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tidegate_api::{
    ApiError, FabricStatus, Left, Located, Member, MembersPage, Rule, Sought, Standing,
};
use tidegate_identity::{access::Access, auth::audit::Outcome};
use tidegate_message::{Action, Code, Target};

use crate::Identity;

/// How long a request to leave may wait: less than clients give a call.
const LEAVE_MAX: Duration = Duration::from_secs(20);

/// The fabric that a node is a member of. Its callers have been asked for their right.
///
/// Each method fails with [`Code::FABRIC_OFF`] once the node has left.
#[async_trait]
pub trait Fabric: Send + Sync + 'static {
    /// The node's view in figures, with the cells of the map.
    async fn status(&self) -> Result<FabricStatus, ApiError>;

    /// All members that the node knows, in any order, itself among them.
    async fn members(&self) -> Result<Vec<Member>, ApiError>;

    /// The members that a subject leads to, the best to ask before the others; none for a topic without subscribers. `CAMERA_UNKNOWN` for a
    /// camera that is at none.
    async fn locate(&self, sought: &Sought) -> Result<Vec<Located>, ApiError>;

    /// Has all members forget one, by its identity in 64 hexadecimal digits. It is neither this node nor one that is here.
    async fn forget(&self, id: &str) -> Result<(), ApiError>;

    /// Has this node leave: it sends what waits for those that it reaches, says so to them, and ends its links to members.
    async fn leave(&self) -> Result<Left, ApiError>;
}

/// A node's fabric for one caller, who may administer the node: with pages, names of members, and the audit log.
#[derive(Clone)]
pub struct FabricDesk {
    access: Access,
    identity: Arc<Identity>,
    fabric: Arc<dyn Fabric>,
}

impl FabricDesk {
    /// The fabric for that caller.
    ///
    /// # Errors
    /// [`Code::ACTION_DENIED`] without the right `admin` on the node, [`Code::FABRIC_OFF`] where it is a member of none.
    pub fn open(
        access: &Access,
        identity: &Arc<Identity>,
        fabric: Option<&Arc<dyn Fabric>>,
    ) -> Result<Self, ApiError> {
        access.may("api", identity, Action::Admin, Target::Node)?;
        let fabric = fabric.cloned().ok_or_else(|| {
            let text =
                "this node is a member of no fabric; `enabled = true` in `[fabric]` of its configuration makes it one";
            ApiError::new(Code::FABRIC_OFF, text)
        })?;
        Ok(Self { access: access.clone(), identity: identity.clone(), fabric })
    }

    /// The node's view in figures, with the cells of the map.
    ///
    /// # Errors
    /// Those of [`Fabric`].
    pub async fn status(&self) -> Result<FabricStatus, ApiError> {
        self.fabric.status().await
    }

    /// Members in order of their identities.
    ///
    /// # Errors
    /// Those of [`Fabric`].
    pub async fn members(&self, page: MembersPage) -> Result<Vec<Member>, ApiError> {
        let mut members = self.fabric.members().await?;
        members.retain(|member| member.id > page.after);
        members.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        members.truncate(page.limit);
        Ok(members)
    }

    /// The rules of this node, in order of their subjects, those behind `after`.
    #[must_use]
    pub fn rules(&self, after: &str) -> Vec<Rule> {
        let all = self.access.authenticator.rules().listed();
        let behind = all.into_iter().filter(|(subject, _)| subject.as_str() > after);
        behind.map(|(subject, text)| Rule { subject, text }).collect()
    }

    /// The members that a subject leads to.
    ///
    /// # Errors
    /// Those of [`Fabric`].
    pub async fn locate(&self, sought: &Sought) -> Result<Vec<Located>, ApiError> {
        self.fabric.locate(sought).await
    }

    /// Has all members forget one, which is named as [`Member::named`] has it, and returns it.
    ///
    /// # Errors
    /// Those of [`Member::named`]; [`Code::MEMBER_HERE`] for this node, and for one that is here.
    pub async fn forget(&self, text: &str) -> Result<Member, ApiError> {
        let members = self.fabric.members().await?;
        let member = Member::named(&members, text)?.clone();
        let name = &member.name;
        if member.is_me {
            let text = format!("{name} is this node; `tidegate fabric leave` has it leave");
            return Err(ApiError::new(Code::MEMBER_HERE, text));
        }
        if member.is_linked || member.standing == Standing::Here {
            let text = format!(
                "member {name} is here; stop it, or have it leave by `tidegate fabric leave`, before it is forgotten"
            );
            return Err(ApiError::new(Code::MEMBER_HERE, text));
        }
        let (desk, id) = (self.clone(), member.id.clone());
        let rule = format!("{name} {id}");
        // To its end and into the audit log, also where the caller hangs up meanwhile.
        let work = tokio::spawn(async move {
            desk.fabric.forget(&id).await?;
            desk.tell("forget-member", &rule);
            Ok::<_, ApiError>(())
        });
        work.await.map_err(failed)??;
        Ok(member)
    }

    /// Has the node leave the fabric.
    ///
    /// # Errors
    /// Those of [`Fabric`]; [`Code::LIMIT_REACHED`] if it has not left after 20 s; it still leaves.
    pub async fn leave(&self) -> Result<Left, ApiError> {
        let desk = self.clone();
        let work = tokio::spawn(async move {
            let left = desk.fabric.leave().await?;
            desk.tell("leave-fabric", "by its own word");
            Ok::<_, ApiError>(left)
        });
        match tokio::time::timeout(LEAVE_MAX, work).await {
            Ok(left) => left.map_err(failed)?,
            Err(_) => {
                let text = "the node has not left yet and still does; `tidegate fabric status` says when it has";
                Err(ApiError::new(Code::LIMIT_REACHED, text))
            }
        }
    }

    fn tell(&self, what: &str, rule: &str) {
        self.access.tell("api", &self.identity, Outcome::Done, what, Target::Node, rule);
    }
}

fn failed(error: tokio::task::JoinError) -> ApiError {
    ApiError::new(Code::INTERNAL, "the call ended by a fault of the program").caused_by(error)
}

#[cfg(test)]
mod tests;
