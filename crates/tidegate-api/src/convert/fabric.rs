//! The fabric and its members.

use prost::Message as _;
use tidegate_message::{Code, GeoPoint};

use super::{duration, lacks, nanos};
use crate::{
    ApiError, Cell, FabricStatus, Located, MEMBERS_BYTES_MAX, MEMBERS_MAX, MEMBERS_USUAL, Member,
    MembersPage, Rule, Sought, Standing,
    proto::{self, locate_request::What, member},
};

impl From<GeoPoint> for proto::GeoPoint {
    fn from(point: GeoPoint) -> Self {
        Self { latitude: point.latitude(), longitude: point.longitude() }
    }
}

impl TryFrom<proto::GeoPoint> for GeoPoint {
    type Error = ApiError;

    fn try_from(point: proto::GeoPoint) -> Result<Self, ApiError> {
        Self::new(point.latitude, point.longitude)
            .map_err(|error| ApiError::new(Code::REQUEST_INVALID, error.to_string()))
    }
}

impl From<Cell> for proto::Cell {
    fn from(Cell { name, south, west, north, east, members }: Cell) -> Self {
        Self { name, south, west, north, east, members }
    }
}

impl From<proto::Cell> for Cell {
    fn from(proto::Cell { name, south, west, north, east, members }: proto::Cell) -> Self {
        Self { name, south, west, north, east, members }
    }
}

impl From<FabricStatus> for proto::GetFabricResponse {
    fn from(status: FabricStatus) -> Self {
        Self {
            me: status.me,
            name: status.name,
            view_hash: status.view_hash,
            algorithm: status.algorithm,
            replicas: status.replicas,
            members: status.members,
            linked: status.linked,
            doubted: status.doubted,
            lost: status.lost,
            problems: status.problems,
            cells: status.cells.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<proto::GetFabricResponse> for FabricStatus {
    fn from(answer: proto::GetFabricResponse) -> Self {
        Self {
            me: answer.me,
            name: answer.name,
            view_hash: answer.view_hash,
            algorithm: answer.algorithm,
            replicas: answer.replicas,
            members: answer.members,
            linked: answer.linked,
            doubted: answer.doubted,
            lost: answer.lost,
            problems: answer.problems,
            cells: answer.cells.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<Standing> for member::Standing {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Here => Self::Here,
            Standing::Doubted => Self::Doubted,
            Standing::Lost => Self::Lost,
            Standing::Left => Self::Left,
            Standing::Forgotten => Self::Forgotten,
        }
    }
}

/// None of an answer that has another one, as a later version may.
fn standing(number: i32) -> Option<Standing> {
    match member::Standing::try_from(number).ok()? {
        member::Standing::Unspecified => None,
        member::Standing::Here => Some(Standing::Here),
        member::Standing::Doubted => Some(Standing::Doubted),
        member::Standing::Lost => Some(Standing::Lost),
        member::Standing::Left => Some(Standing::Left),
        member::Standing::Forgotten => Some(Standing::Forgotten),
    }
}

impl From<Member> for proto::Member {
    fn from(member: Member) -> Self {
        Self {
            id: member.id,
            name: member.name,
            standing: member::Standing::from(member.standing).into(),
            me: member.is_me,
            linked: member.is_linked,
            addresses: member.addresses,
            api_addresses: member.api_addresses,
            position: member.position.map(Into::into),
            mobile: member.is_mobile,
            zone: member.zone,
            weight: member.weight,
            cameras: member.cameras,
            number: member.number,
            start: member.start,
            version: member.version,
            filters: member.filters,
            round_trip_nanos: member.round_trip.map(nanos),
            cell: member.cell.unwrap_or_default(),
            reason: member.reason.unwrap_or_default(),
        }
    }
}

impl TryFrom<proto::Member> for Member {
    type Error = ApiError;

    fn try_from(member: proto::Member) -> Result<Self, ApiError> {
        if member.id.is_empty() {
            return Err(lacks("Member", "id"));
        }
        Ok(Self {
            id: member.id,
            name: member.name,
            standing: standing(member.standing).ok_or_else(|| lacks("Member", "standing"))?,
            is_me: member.me,
            is_linked: member.linked,
            addresses: member.addresses,
            api_addresses: member.api_addresses,
            position: member
                .position
                .map(|point| GeoPoint::try_from(point).map_err(|_| lacks("Member", "position")))
                .transpose()?,
            is_mobile: member.mobile,
            zone: member.zone,
            weight: member.weight,
            cameras: member.cameras,
            number: member.number,
            start: member.start,
            version: member.version,
            filters: member.filters,
            round_trip: member.round_trip_nanos.map(duration),
            cell: Some(member.cell).filter(|cell| !cell.is_empty()),
            reason: Some(member.reason).filter(|sentence| !sentence.is_empty()),
        })
    }
}

impl From<MembersPage> for proto::ListMembersRequest {
    fn from(page: MembersPage) -> Self {
        Self { after: page.after, limit: u32::try_from(page.limit).unwrap_or(u32::MAX) }
    }
}

impl From<proto::ListMembersRequest> for MembersPage {
    fn from(request: proto::ListMembersRequest) -> Self {
        let limit = match request.limit {
            0 => MEMBERS_USUAL,
            limit => (limit as usize).min(MEMBERS_MAX),
        };
        Self { after: request.after, limit }
    }
}

impl From<Vec<Member>> for proto::ListMembersResponse {
    /// As many of them as an answer holds, one at the least.
    fn from(members: Vec<Member>) -> Self {
        let mut bytes = 0;
        let fits = |member: &proto::Member| {
            let is_first = bytes == 0;
            // A list adds tag and length to each member.
            bytes += member.encoded_len() + 8;
            is_first || bytes <= MEMBERS_BYTES_MAX
        };
        Self { members: members.into_iter().map(Into::into).take_while(fits).collect() }
    }
}

impl From<Rule> for proto::Rule {
    fn from(Rule { subject, text }: Rule) -> Self {
        Self { subject, text }
    }
}

impl From<proto::Rule> for Rule {
    fn from(proto::Rule { subject, text }: proto::Rule) -> Self {
        Self { subject, text }
    }
}

impl From<Vec<Rule>> for proto::ListRulesResponse {
    /// As many of them as an answer holds, one at the least.
    fn from(rules: Vec<Rule>) -> Self {
        let mut bytes = 0;
        let fits = |rule: &proto::Rule| {
            let is_first = bytes == 0;
            bytes += rule.encoded_len() + 8;
            is_first || bytes <= MEMBERS_BYTES_MAX
        };
        Self { rules: rules.into_iter().map(Into::into).take_while(fits).collect() }
    }
}

impl From<Sought> for proto::LocateRequest {
    fn from(sought: Sought) -> Self {
        let what = match sought {
            Sought::Topic(topic) => What::Topic(topic),
            Sought::Camera(camera) => What::Camera(camera.to_string()),
            Sought::Position(point) => What::Position(point.into()),
        };
        Self { what: Some(what) }
    }
}

impl TryFrom<proto::LocateRequest> for Sought {
    type Error = ApiError;

    fn try_from(request: proto::LocateRequest) -> Result<Self, ApiError> {
        match request.what {
            Some(What::Topic(topic)) => Self::topic(&topic),
            Some(What::Camera(camera)) => Ok(Self::Camera(camera.parse()?)),
            Some(What::Position(point)) => Ok(Self::Position(point.try_into()?)),
            None => Self::read(None, None, None),
        }
    }
}

impl From<Located> for proto::Located {
    fn from(Located { id, name, api_addresses, why }: Located) -> Self {
        Self { id, name, api_addresses, why }
    }
}

impl From<proto::Located> for Located {
    fn from(proto::Located { id, name, api_addresses, why }: proto::Located) -> Self {
        Self { id, name, api_addresses, why }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// One in which no field has its usual value.
    fn member() -> Member {
        Member {
            id: "1f".repeat(32),
            name: "yard".to_owned(),
            standing: Standing::Doubted,
            is_me: true,
            is_linked: true,
            addresses: vec!["10.0.0.7:7070".to_owned()],
            api_addresses: vec!["10.0.0.7:7080".to_owned(), "yard.local:7080".to_owned()],
            position: GeoPoint::new(52.373_123_4, -4.892_2).ok(),
            is_mobile: true,
            zone: "north".to_owned(),
            weight: 150,
            cameras: vec!["door".to_owned()],
            number: 3,
            start: "00000000000000ff".to_owned(),
            version: u64::MAX,
            filters: 12,
            round_trip: Some(Duration::from_micros(730)),
            cell: Some("1203".to_owned()),
            reason: Some("its link ended".to_owned()),
        }
    }

    #[test]
    fn member_comes_back_with_every_field() {
        for (_, standing) in Standing::WORDS {
            let member = Member { standing: *standing, ..member() };
            let wire = proto::Member::from(member.clone());
            assert_eq!(Member::try_from(wire).expect("it is whole"), member);
        }
        let wire = proto::Member::from(member());
        let bare = Member { id: "1".to_owned(), ..Member::default() };
        assert_eq!(Member::try_from(proto::Member::from(bare.clone())).expect("whole"), bare);
        for broken in [
            proto::Member { id: String::new(), ..wire.clone() },
            proto::Member { standing: 0, ..wire.clone() },
            proto::Member { standing: 99, ..wire.clone() },
            proto::Member {
                position: Some(proto::GeoPoint { latitude: 91.0, longitude: 0.0 }),
                ..wire
            },
        ] {
            let refused = Member::try_from(broken).expect_err("it is not whole");
            assert_eq!(refused.code(), Code::LINK_PROTOCOL);
        }
    }

    #[test]
    fn status_comes_back_with_its_cells() {
        let (south, west, north, east) = (45.0, 90.0, 90.0, 180.0);
        let cell = Cell { name: "12".to_owned(), south, west, north, east, members: 4 };
        let status = FabricStatus {
            me: "1f".repeat(32),
            name: "yard".to_owned(),
            view_hash: "00ff".to_owned(),
            algorithm: 1,
            replicas: 3,
            members: 9,
            linked: 7,
            doubted: 2,
            lost: 5,
            problems: vec!["two members are called gate".to_owned()],
            cells: vec![cell],
        };
        let wire = proto::GetFabricResponse::from(status.clone());
        assert_eq!(FabricStatus::from(wire), status);
    }

    #[test]
    fn subject_comes_back_and_is_checked() {
        for sought in [
            Sought::read(Some("a/b"), None, None),
            Sought::read(None, Some("door"), None),
            Sought::read(None, None, Some("-90, 12")),
        ] {
            let sought = sought.expect("it is right");
            let wire = proto::LocateRequest::from(sought.clone());
            assert_eq!(Sought::try_from(wire).expect("it is right"), sought);
        }
        let nowhere = proto::GeoPoint { latitude: f64::NAN, longitude: 0.0 };
        for what in [None, Some(What::Topic("a/#".to_owned())), Some(What::Position(nowhere))] {
            let refused = Sought::try_from(proto::LocateRequest { what });
            assert_eq!(refused.expect_err("it is wrong").code(), Code::REQUEST_INVALID);
        }
    }

    #[test]
    fn answer_is_bounded_by_its_bytes_and_has_one_member_at_the_least() {
        for (bytes, count, expected) in
            [(5, 10_000, 5_000..=10_000), (40_000, 1_000, 52..=52), (3 << 20, 3, 1..=1)]
        {
            let member = Member { zone: "z".repeat(bytes), ..member() };
            let answer = proto::ListMembersResponse::from(vec![member; count]);
            let listed = answer.members.len();
            assert!(expected.contains(&listed), "{bytes}: {listed}");
            assert!(bytes > 1 << 20 || answer.encoded_len() <= MEMBERS_BYTES_MAX, "{bytes}");
        }
    }
}
