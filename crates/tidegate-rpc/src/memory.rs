//! A fabric in memory, for the tests of its callers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;
use tidegate_api::{ApiError, Cell, FabricStatus, Left, Located, Member, Sought, Standing};
use tidegate_message::{Code, topic_matches};

/// A fabric as one of its members sees it; a clone is the same.
#[derive(Clone, Debug, Default)]
pub struct Fabric(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    members: BTreeMap<String, Member>,
    /// Filters of the clients of members, by the identities of these.
    filters: Vec<(String, String)>,
    cells: Vec<Cell>,
    has_left: bool,
    leaves: Left,
}

impl Fabric {
    /// Has a member, or has it otherwise than before.
    pub fn add(&self, member: Member) {
        self.known().members.insert(member.id.clone(), member);
    }

    /// Has a client of a member subscribe.
    pub fn subscribe(&self, id: &str, filter: &str) {
        self.known().filters.push((id.to_owned(), filter.to_owned()));
    }

    /// Has a cell.
    pub fn add_cell(&self, cell: Cell) {
        self.known().cells.push(cell);
    }

    /// The node answers so once it leaves.
    pub fn set_unsent(&self, left: Left) {
        self.known().leaves = left;
    }

    /// Whether the node was asked to leave.
    pub fn has_left(&self) -> bool {
        self.known().has_left
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic while it is held")
    }

    /// The members and the rest, unless the node has left.
    fn joined(&self) -> Result<MutexGuard<'_, Known>, ApiError> {
        let known = self.known();
        if known.has_left {
            return Err(ApiError::new(Code::FABRIC_OFF, "this node has left its fabric"));
        }
        Ok(known)
    }
}

#[async_trait]
impl crate::Fabric for Fabric {
    async fn status(&self) -> Result<FabricStatus, ApiError> {
        let known = self.joined()?;
        let members: Vec<Member> = known.members.values().cloned().collect();
        let me = members.iter().find(|member| member.is_me).cloned().unwrap_or_default();
        let status = FabricStatus {
            me: me.id,
            name: me.name,
            view_hash: "5eed".to_owned(),
            algorithm: 1,
            replicas: 3,
            cells: known.cells.clone(),
            ..FabricStatus::default()
        };
        Ok(status.counting(&members))
    }

    async fn members(&self) -> Result<Vec<Member>, ApiError> {
        Ok(self.joined()?.members.values().cloned().collect())
    }

    async fn locate(&self, sought: &Sought) -> Result<Vec<Located>, ApiError> {
        let known = self.joined()?;
        let located = |member: &Member, why: String| Located {
            id: member.id.clone(),
            name: member.name.clone(),
            api_addresses: member.api_addresses.clone(),
            why,
        };
        let members = known.members.values();
        let found: Vec<Located> = match sought {
            Sought::Topic(topic) => {
                let matching = |(id, filter): &(String, String)| {
                    let member = known.members.get(id).filter(|_| topic_matches(filter, topic))?;
                    Some(located(member, format!("subscribes to {filter}")))
                };
                known.filters.iter().filter_map(matching).collect()
            }
            Sought::Camera(camera) => {
                let has =
                    |member: &&Member| member.cameras.iter().any(|one| one == camera.as_str());
                members.filter(has).map(|member| located(member, "has the camera".into())).collect()
            }
            Sought::Position(_) => {
                let stands = |member: &&Member| member.position.is_some() && !member.is_mobile;
                members.filter(stands).map(|member| located(member, "owner".into())).collect()
            }
        };
        match sought {
            Sought::Camera(camera) if found.is_empty() => {
                let text = format!("camera {camera} is at no member");
                Err(ApiError::new(Code::CAMERA_UNKNOWN, text))
            }
            _ => Ok(found),
        }
    }

    async fn forget(&self, id: &str) -> Result<(), ApiError> {
        let mut known = self.joined()?;
        let member = known.members.get_mut(id);
        member.ok_or_else(|| ApiError::new(Code::MEMBER_UNKNOWN, "no such member"))?.standing =
            Standing::Forgotten;
        Ok(())
    }

    async fn leave(&self) -> Result<Left, ApiError> {
        let mut known = self.joined()?;
        known.has_left = true;
        Ok(known.leaves.clone())
    }
}
