//! The fabric and its members as JSON: positions are `[latitude, longitude]` in degrees, durations milliseconds.

use serde_json::{Value, json};

use super::millis;
use crate::{Cell, FabricStatus, Located, Member};

/// The fabric, with its cells.
pub fn status(status: &FabricStatus) -> Value {
    json!({
        "me": status.me,
        "name": status.name,
        "view_hash": status.view_hash,
        "algorithm": status.algorithm,
        "replicas": status.replicas,
        "members": status.members,
        "linked": status.linked,
        "doubted": status.doubted,
        "lost": status.lost,
        "problems": status.problems,
        "cells": status.cells.iter().map(cell).collect::<Vec<_>>(),
    })
}

fn cell(cell: &Cell) -> Value {
    json!({
        "name": cell.name,
        "south_west": [cell.south, cell.west],
        "north_east": [cell.north, cell.east],
        "members": cell.members,
    })
}

/// A member.
pub fn member(member: &Member) -> Value {
    json!({
        "id": member.id,
        "name": member.name,
        "standing": member.standing.word(),
        "me": member.is_me,
        "linked": member.is_linked,
        "addresses": member.addresses,
        "api_addresses": member.api_addresses,
        "position": member.position.map(|point| [point.latitude(), point.longitude()]),
        "mobile": member.is_mobile,
        "zone": member.zone,
        "weight": member.weight,
        "cameras": member.cameras,
        "number": member.number,
        "start": member.start,
        "version": member.version,
        "filters": member.filters,
        "round_trip_ms": member.round_trip.map(millis),
        "cell": member.cell,
        "reason": member.reason,
    })
}

/// A member that was looked for.
pub fn located(located: &Located) -> Value {
    json!({
        "id": located.id,
        "name": located.name,
        "api_addresses": located.api_addresses,
        "why": located.why,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_message::GeoPoint;

    use super::*;
    use crate::Standing;

    #[test]
    fn member_and_cells_have_degrees_and_milliseconds() {
        let found = member(&Member {
            standing: Standing::Lost,
            position: GeoPoint::new(52.5, -4.25).ok(),
            round_trip: Some(Duration::from_micros(1_500)),
            ..Member::default()
        });
        assert_eq!(
            (&found["standing"], &found["position"], &found["round_trip_ms"], &found["cell"]),
            (&json!("lost"), &json!([52.5, -4.25]), &json!(1.5), &Value::Null)
        );
        let (south, west, north, east) = (45.0, 90.0, 90.0, 180.0);
        let cell = Cell { name: "12".to_owned(), south, west, north, east, members: 4 };
        let seen = status(&FabricStatus { cells: vec![cell], ..FabricStatus::default() });
        let expected = json!([{
            "name": "12",
            "south_west": [45.0, 90.0],
            "north_east": [90.0, 180.0],
            "members": 4,
        }]);
        assert_eq!(seen["cells"], expected);
    }
}
