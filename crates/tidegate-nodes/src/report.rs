//! The fabric for operators: as the API shows it.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use tidegate_api::{ApiError, Cell, FabricStatus, Left, Located, Member, Sought, Standing};
use tidegate_bus::Bus;
use tidegate_fabric::members::{ALGORITHM, Presence};
use tidegate_message::{CameraName, Code, GeoPoint, split_shared, topic_matches};
use tidegate_place::{MemberId, Place, Places, Weight};
use tidegate_wire::NodeId;
use tokio::sync::watch;

use crate::{Orders, Seen, SeenMember, topics::is_own};

// Members tell each other by which version they compute places, and neither core knows of the other.
const _: () = assert!(ALGORITHM == tidegate_place::ALGORITHM);

/// The fabric as one of its members shows it.
#[derive(Clone, Debug)]
pub struct Reports {
    pub(crate) seen: watch::Receiver<Arc<Seen>>,
    pub(crate) orders: Orders,
    /// For the filters of its own clients.
    pub(crate) bus: Option<Bus>,
    /// Owners of each bucket.
    pub(crate) replicas: usize,
}

/// The cells, with the names by which members say in which they are.
struct Map {
    cells: Vec<Cell>,
    /// By the key of a member.
    cell_of: BTreeMap<MemberId, String>,
}

impl Reports {
    /// The fabric at this moment.
    ///
    /// # Errors
    /// [`Code::FABRIC_OFF`] once this node is no longer a member.
    fn seen(&self) -> Result<Arc<Seen>, ApiError> {
        let seen = self.seen.borrow().clone();
        let has_left = seen.me().is_some_and(|me| me.presence == Presence::Left);
        if has_left || self.seen.has_changed().is_err() {
            let text = "this node has left its fabric; it comes back when it is started again";
            return Err(ApiError::new(Code::FABRIC_OFF, text));
        }
        Ok(seen)
    }

    fn places(&self, seen: &Seen) -> Places {
        let there = seen.members.iter().filter(|member| !member.presence.is_gone());
        let places: Vec<Place> = there
            .map(|SeenMember { record, .. }| Place {
                id: MemberId(record.node.0),
                position: record.position,
                is_mobile: record.is_mobile,
                zone: record.zone.clone(),
                weight: Weight::of_hundredths(record.weight).unwrap_or_default(),
            })
            .collect();
        Places::of(&places, self.replicas)
    }

    fn map(&self, seen: &Seen) -> Map {
        let places = self.places(seen);
        let (mut cells, mut cell_of) = (Vec::new(), BTreeMap::new());
        for (index, cell) in places.cells().into_iter().enumerate() {
            let name = (index + 1).to_string();
            let bounds = cell.bounds();
            cell_of.extend(cell.members().map(|member| (member, name.clone())));
            cells.push(Cell {
                name,
                south: bounds.south,
                west: bounds.west,
                north: bounds.north,
                east: bounds.east,
                members: u32::try_from(cell.members().len()).unwrap_or(u32::MAX),
            });
        }
        Map { cells, cell_of }
    }

    fn list(&self, seen: &Seen, map: &Map) -> Vec<Member> {
        let member = |member: &SeenMember| {
            let SeenMember { record, presence, is_me, is_linked, .. } = member;
            Member {
                id: record.node.to_string(),
                name: record.name.clone(),
                standing: match presence {
                    Presence::Here => Standing::Here,
                    Presence::Doubted => Standing::Doubted,
                    Presence::Lost => Standing::Lost,
                    Presence::Forgotten => Standing::Forgotten,
                    Presence::Left => Standing::Left,
                },
                is_me: *is_me,
                is_linked: *is_linked,
                addresses: record.addresses.clone(),
                api_addresses: record.api_addresses.clone(),
                position: record.position,
                is_mobile: record.is_mobile,
                zone: record.zone.clone(),
                weight: u32::from(record.weight),
                cameras: member.cameras.iter().map(CameraName::to_string).collect(),
                number: record.number,
                start: format!("{:016x}", record.start),
                version: record.version,
                filters: u32::try_from(member.filters.len()).unwrap_or(u32::MAX),
                round_trip: member.round_trip,
                cell: map.cell_of.get(&MemberId(record.node.0)).cloned(),
                reason: reason(member),
            }
        };
        seen.members.iter().map(member).collect()
    }

    async fn subscribed(&self, seen: &Seen, topic: &str) -> Vec<Located> {
        let matching = |filter: &str| match split_shared(filter) {
            Ok(Some(shared)) => topic_matches(shared.filter, topic),
            _ => topic_matches(filter, topic),
        };
        let mut found = Vec::new();
        if let (Some(bus), Some(me)) = (&self.bus, seen.me()) {
            let own = bus.filters_of(is_own).await.filters;
            if let Some(filter) = own.iter().find(|filter| matching(filter)) {
                found.push(located(me, format!("its clients subscribe to {filter}")));
            }
        }
        for member in &seen.members {
            if let Some(filter) = member.filters.iter().find(|filter| matching(filter)) {
                found.push(located(member, format!("its clients subscribe to {filter}")));
            }
        }
        found
    }

    fn owners(&self, seen: &Seen, point: GeoPoint) -> Vec<Located> {
        let places = self.places(seen);
        let cell = places.cell(point);
        let of = |id: MemberId, why: &str| {
            let member = seen.members.iter().find(|member| member.record.node == NodeId(id.0))?;
            Some(located(member, why.to_owned()))
        };
        let own = cell.members().filter_map(|id| of(id, "it is in the cell of that position"));
        let others = cell
            .neighbours()
            .filter_map(|id| of(id, "that cell has fewer members than replicas, and it is next"));
        own.chain(others).collect()
    }
}

#[async_trait]
impl tidegate_rpc::Fabric for Reports {
    async fn status(&self) -> Result<FabricStatus, ApiError> {
        let seen = self.seen()?;
        let map = self.map(&seen);
        let members = self.list(&seen, &map);
        let me = seen.me();
        let status = FabricStatus {
            me: me.map(|me| me.record.node.to_string()).unwrap_or_default(),
            name: me.map(|me| me.record.name.clone()).unwrap_or_default(),
            view_hash: format!("{:016x}", seen.view_hash),
            algorithm: u32::from(ALGORITHM),
            replicas: u32::try_from(self.replicas).unwrap_or(u32::MAX),
            problems: seen.problems.clone(),
            cells: map.cells,
            ..FabricStatus::default()
        };
        Ok(status.counting(&members))
    }

    async fn members(&self) -> Result<Vec<Member>, ApiError> {
        let seen = self.seen()?;
        let map = self.map(&seen);
        Ok(self.list(&seen, &map))
    }

    async fn locate(&self, sought: &Sought) -> Result<Vec<Located>, ApiError> {
        let seen = self.seen()?;
        match sought {
            Sought::Topic(topic) => Ok(self.subscribed(&seen, topic).await),
            Sought::Position(point) => Ok(self.owners(&seen, *point)),
            Sought::Camera(name) => {
                let has = |member: &&SeenMember| member.cameras.contains(name);
                let mut members: Vec<&SeenMember> = seen.members.iter().filter(has).collect();
                members.sort_by_key(|member| member.presence);
                if members.is_empty() {
                    let text = format!("no member has a camera called {name}");
                    return Err(ApiError::new(Code::CAMERA_UNKNOWN, text));
                }
                let why = |member: &SeenMember| match member.presence.is_gone() {
                    true => "the camera was there last".to_owned(),
                    false => "the camera is there".to_owned(),
                };
                Ok(members.into_iter().map(|member| located(member, why(member))).collect())
            }
        }
    }

    async fn forget(&self, id: &str) -> Result<(), ApiError> {
        let seen = self.seen()?;
        let is_it = |member: &&SeenMember| member.record.node.to_string() == id;
        let Some(member) = seen.members.iter().find(is_it) else {
            let text = format!("no member has the identity {id}");
            return Err(ApiError::new(Code::MEMBER_UNKNOWN, text));
        };
        self.orders.forget(member.record.node).await
    }

    async fn leave(&self) -> Result<Left, ApiError> {
        self.seen()?;
        self.orders.leave().await
    }
}

fn located(member: &SeenMember, why: String) -> Located {
    Located {
        id: member.record.node.to_string(),
        name: member.record.name.clone(),
        api_addresses: member.record.api_addresses.clone(),
        why,
    }
}

/// Why a member stands as it does, or that it has a relay, where there is something to say.
fn reason(member: &SeenMember) -> Option<String> {
    let others = match member.missed_by {
        0 => String::new(),
        1 => ", and another member misses it as well".to_owned(),
        count => format!(", and {count} others miss it as well"),
    };
    let via = &member.record.via;
    match member.presence {
        Presence::Here if !via.is_empty() && (member.is_me || member.is_linked) => {
            Some(format!("its messages pass through its relay, {via}"))
        }
        _ if member.is_me => None,
        Presence::Here if member.is_linked => None,
        Presence::Here => Some("this node has no link to it, and others have".to_owned()),
        Presence::Doubted => Some(format!("its link to this node ended{others}")),
        Presence::Lost => {
            Some("two members, or the only other one, have missed it for a minute".to_owned())
        }
        Presence::Left => Some("it left by its own word".to_owned()),
        Presence::Forgotten => Some("a person had it forgotten".to_owned()),
    }
}
