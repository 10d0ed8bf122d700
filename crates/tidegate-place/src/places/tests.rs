use std::{cmp::Reverse, collections::BTreeSet};

use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::{Bounds, Space, Weight};

/// A stationary member without a position, in a zone of its own.
fn member(number: u64) -> Place {
    Place {
        id: id(number),
        position: None,
        is_mobile: false,
        zone: String::new(),
        weight: Weight::default(),
    }
}

fn id(number: u64) -> MemberId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    MemberId(bytes)
}

fn number(id: MemberId) -> u64 {
    u64::from_le_bytes(id.0[..8].try_into().expect("eight bytes"))
}

fn member_at(number: u64, latitude: f64, longitude: f64) -> Place {
    Place { position: Some(at(latitude, longitude)), ..member(number) }
}

fn at(latitude: f64, longitude: f64) -> GeoPoint {
    GeoPoint::new(latitude, longitude).expect("a point")
}

fn owners(places: &Places, bucket: Bucket) -> Vec<u64> {
    places.owners(bucket).into_iter().map(number).collect()
}

fn sorted(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    numbers.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// All buckets of one square, or all without a place.
fn buckets(place: Option<GeoPoint>) -> impl Iterator<Item = Bucket> {
    (0..1 << 16).map(move |index| Bucket::of(place, index << 48))
}

/// How often each member owns, and how often as the first.
fn shares(places: &Places, buckets: impl Iterator<Item = Bucket>, members: usize) -> [Vec<f64>; 2] {
    let [mut all, mut first] = [vec![0.0; members], vec![0.0; members]];
    for bucket in buckets {
        for (rank, owner) in owners(places, bucket).into_iter().enumerate() {
            all[owner as usize] += 1.0;
            first[owner as usize] += f64::from(u8::from(rank == 0));
        }
    }
    [all, first]
}

/// The standard deviation of shares in parts of their mean.
fn deviation(shares: &[f64]) -> f64 {
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let squares = shares.iter().map(|share| (share - mean).powi(2));
    (squares.sum::<f64>() / shares.len() as f64).sqrt() / mean
}

#[test]
fn equal_members_own_equal_shares() {
    let here = at(52.3731, 4.8922);
    for (count, position) in [(3, None), (10, None), (100, None), (1_000, None), (100, Some(here))]
    {
        let members: Vec<_> =
            (0..count as u64).map(|number| Place { position, ..member(number) }).collect();
        let places = Places::of(&members, 3);
        let [all, first] = shares(&places, buckets(position), count).map(|of| deviation(&of));
        assert!(all <= 0.1 && first <= 0.15, "{count} members: {all}, {first} as the first");
    }
}

#[test]
fn shares_follow_weights() {
    let weights = [1, 50, 100, 200, 10_000];
    let members: Vec<_> = (0..)
        .zip(weights)
        .map(|(number, weight)| Place {
            weight: Weight::of_hundredths(weight).expect("a weight"),
            ..member(number)
        })
        .collect();
    let [_, first] = shares(&Places::of(&members, 3), buckets(None), weights.len());
    let sum: f64 = weights.map(f64::from).iter().sum();
    for (weight, share) in weights.map(f64::from).into_iter().zip(first) {
        let expected = weight / sum * 65_536.0;
        // Five standard deviations of a count; it is the same in each run.
        assert!((share - expected).abs() <= 5.0 * expected.sqrt(), "{weight}: {share}, {expected}");
    }
    assert_eq!([0, 10_001].map(Weight::of_hundredths), [None; 2]);
}

/// Numbers that were computed once, and a second time by another program: nodes of all machines and releases have to agree on them.
#[test]
fn owners_stay_where_they_are() {
    let members: Vec<_> = (0..40)
        .map(|number| Place {
            zone: ["", "a", "b", "c"][number as usize % 4].to_owned(),
            weight: Weight::of_hundredths(50 * (1 + number as u16 % 5)).expect("a weight"),
            ..member_at(
                number,
                50.0 + 0.05 * number as f64,
                4.0 + 0.03 * (number * number % 40) as f64,
            )
        })
        .collect();
    let places = Places::of(&members, 3);
    assert_eq!(ALGORITHM, 1);
    assert_eq!(places.hash(), 0x8CC1_67BF_4FB7_FB40, "{:#x}", places.hash());
    for (place, index, expected) in [
        (None, 0, [31, 9, 16]),
        (None, u64::MAX, [28, 38, 9]),
        (Some(at(51.0, 4.5)), 0, [23, 24, 25]),
        (Some(at(51.0, 4.5)), 0x0123 << 48, [23, 24, 25]),
        (Some(at(-33.87, 151.21)), 0, [17, 20, 11]),
        (Some(at(90.0, 0.0)), 0, [21, 35, 28]),
    ] {
        let found = owners(&places, Bucket::of(place, index));
        assert_eq!(found, expected, "{place:?} {index:#x}");
    }
}

#[test]
fn nodes_along_a_road_have_cells_of_their_own() {
    // Twelve nodes from Amsterdam to Utrecht, 3 km apart.
    let road: Vec<_> = (0..12)
        .map(|number| member_at(number, 52.35 - 0.023 * number as f64, 4.9 + 0.02 * number as f64))
        .collect();
    let places = Places::of(&road, 3);
    let mut cells: Vec<_> = places
        .cells()
        .iter()
        .map(|cell| [sorted(cell.members().map(number)), sorted(cell.neighbours().map(number))])
        .filter(|[members, _]| !members.is_empty())
        .collect();
    cells.sort();
    let expected: [(&[u64], &[u64]); 6] = [
        (&[0, 1], &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (&[2], &[3, 4, 5, 6]),
        (&[3, 4, 5], &[]),
        (&[6], &[3, 4, 5]),
        (&[7, 8, 9], &[]),
        (&[10, 11], &[7, 8, 9]),
    ];
    let pairs = cells.iter().map(|[members, neighbours]| (&members[..], &neighbours[..]));
    assert_eq!(pairs.collect::<Vec<_>>(), expected);
    for node in &road {
        let cell = places.cell(node.position.expect("it has one"));
        for bucket in buckets(node.position).step_by(997) {
            let first = places.owners(bucket).into_iter().take(cell.members().len());
            assert_eq!(sorted(first.map(number)), sorted(cell.members().map(number)));
        }
    }
}

#[test]
fn members_of_one_continent_are_told_apart() {
    let [dutch, danish] = [(52.37, 4.89), (55.68, 12.57)].map(|(latitude, longitude)| {
        move |number: u64| member_at(number, latitude, longitude + 0.001 * (number % 10) as f64)
    });
    let members: Vec<_> = (0..5).map(dutch).chain((10..15).map(danish)).collect();
    let places = Places::of(&members, 3);
    for (point, region) in [(at(52.3, 4.8), 0..5), (at(55.7, 12.5), 10..15)] {
        for bucket in buckets(Some(point)).take(100) {
            let found = owners(&places, bucket);
            assert!(found.iter().all(|owner| region.contains(owner)), "{point}: {found:?}");
        }
    }
}

#[test]
fn few_members_own_all_that_they_can() {
    let bucket = Bucket::of(Some(at(52.0, 5.0)), 0);
    let mobile = |number| Place { is_mobile: true, ..member_at(number, 52.0, 5.0) };
    for (members, expected, note) in [
        (vec![], vec![], "no member"),
        (vec![member(1)], vec![1], "one"),
        (
            vec![member_at(1, 0.0, 0.0), member(2)],
            vec![1, 2],
            "one with a position, and one without",
        ),
        (vec![mobile(1), member(2)], vec![2], "a mobile one while another one is there"),
        (vec![mobile(1), mobile(2)], vec![1, 2], "mobile ones alone"),
        (vec![member(1), member(1)], vec![1], "one that is listed twice"),
    ] {
        let places = Places::of(&members, 3);
        let found = owners(&places, bucket);
        assert_eq!(sorted(found.iter().copied()), expected, "{note}");
        assert_eq!(sorted(owners(&places, Bucket::of(None, 0))), expected, "{note}, without place");
        let cells = places.cells();
        assert_eq!(cells.len(), 1, "{note}");
        let all = cells[0].members().chain(cells[0].neighbours()).map(number);
        assert_eq!(sorted(all), expected, "{note}, its cell");
        let earth = Bounds { south: -90.0, west: -180.0, north: 90.0, east: 180.0 };
        assert_eq!(cells[0].bounds(), earth, "{note}");
    }
    let places = Places::of(&[member_at(9, 0.0, 0.0), member(1), member(2)], 2);
    assert_eq!(places.owners(bucket)[0], id(9), "the one with a position is the first");
    assert_eq!(
        Places::of(&[member(1), member(2)], 0).owners(bucket).len(),
        1,
        "at least one owner"
    );
}

#[test]
fn ten_thousand_members_of_one_place_are_one_cell() {
    let members: Vec<_> = (0..10_000)
        .map(|number| member_at(number, 52.0 + 1e-7 * (number % 100) as f64, 5.0))
        .collect();
    let places = Places::of(&members, 3);
    let cell = places.cell(at(52.0, 5.0));
    assert_eq!((cell.members().len(), cell.neighbours().len()), (10_000, 0));
    // One of that square, and one for each cut that has nothing on its other side.
    assert_eq!(places.cells().len(), 29);
    assert_eq!(places.owners(Bucket::of(Some(at(52.0, 5.0)), 0)).len(), 3);
}

#[test]
fn poles_and_the_date_line_have_owners() {
    let members: Vec<_> = (0..4)
        .flat_map(|number| {
            let side = if number % 2 == 0 { 179.9 } else { -179.9 };
            [member_at(number, -17.0, side), member_at(10 + number, 89.9, side)]
        })
        .collect();
    let places = Places::of(&members, 2);
    for (point, expected) in [
        (at(-17.0, 180.0), [1, 3]),
        (at(-17.0, -180.0), [1, 3]),
        (at(-17.0, 179.999_999_9), [0, 2]),
        (at(90.0, 0.0), [10, 12]),
        (at(89.95, -180.0), [11, 13]),
    ] {
        assert_eq!(sorted(owners(&places, Bucket::of(Some(point), 0))), expected, "{point}");
    }
    // None of the members is near; those of the same half of the earth own it.
    let south = owners(&places, Bucket::of(Some(at(-90.0, 0.0)), 0));
    assert_eq!(sorted(south), [0, 2]);
}

#[test]
fn a_reach_in_an_area_has_the_members_there() {
    let sites = [(52.37, 4.89), (-33.87, 151.21), (40.71, -74.0)];
    let members = (0..12).map(|number| {
        let (latitude, longitude) = sites[number as usize % 3];
        member_at(number, latitude, longitude)
    });
    let places = Places::of(&members.chain([member(12)]).collect::<Vec<_>>(), 3);
    let space = Space::default();
    for (interest, expected) in [
        ("Drone, place = (52.3, 4.9) within 20km", vec![0, 3, 6, 9]),
        ("lat < -10, long > 100", vec![1, 4, 7, 10]),
        ("lat > 30, long:-74*", vec![2, 5, 8, 11]),
        ("lat > 30", vec![0, 2, 3, 5, 6, 8, 9, 11]),
        ("lat > 91", vec![]),
        ("Drone", (0..13).collect()),
    ] {
        let reach = space.reach(&interest.parse().expect("an interest"));
        let found = sorted(places.members_of(&reach).into_iter().map(number));
        assert_eq!(found, expected, "{interest}");
    }
}

#[test]
fn hash_covers_all_that_owners_depend_on() {
    let members = || vec![member_at(1, 52.0, 5.0), member(2)];
    let hash = |change: &dyn Fn(&mut Vec<Place>)| {
        let mut changed = members();
        change(&mut changed);
        Places::of(&changed, 3).hash()
    };
    let other_weight = Weight::of_hundredths(101).expect("a weight");
    let hashes = [
        Places::of(&members(), 2).hash(),
        hash(&|_| ()),
        hash(&|members| members.truncate(1)),
        hash(&|members| members[0].id = id(3)),
        hash(&|members| members[0].position = Some(at(52.0, 5.1))),
        hash(&|members| members[0].position = None),
        hash(&|members| members[0].is_mobile = true),
        hash(&|members| members[0].zone.push('a')),
        hash(&|members| members[1].zone.push('a')),
        hash(&|members| members[0].weight = other_weight),
    ];
    assert_eq!(BTreeSet::from(hashes).len(), hashes.len(), "{hashes:x?}");
    assert_eq!(hash(&|members| members.reverse()), hash(&|_| ()));
}

/// A member of a small world: few zones and weights, positions that are often near each other, and some that are equal.
fn any_place() -> impl Strategy<Value = Place> {
    let near = (-40..40, -40..40).prop_map(|(latitude, longitude)| {
        (52.0 + 0.02 * f64::from(latitude), 5.0 + 0.02 * f64::from(longitude))
    });
    let far = (-90..=90, -180..=180)
        .prop_map(|(latitude, longitude)| (f64::from(latitude), f64::from(longitude)));
    let position = prop_oneof![
        2 => Just(None),
        8 => near.prop_map(Some),
        2 => far.prop_map(Some),
    ];
    let weight = prop_oneof![Just(Weight::MIN), Just(Weight::default()), Just(Weight::MAX)];
    let zone = prop_oneof![Just(""), Just("a"), Just("b"), Just("c")];
    (position, proptest::bool::weighted(0.1), zone, weight).prop_map(
        |(position, is_mobile, zone, weight)| Place {
            position: position.map(|(latitude, longitude)| at(latitude, longitude)),
            is_mobile,
            zone: zone.to_owned(),
            weight,
            ..member(0)
        },
    )
}

fn any_members(counts: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Place>> {
    vec(any_place(), counts).prop_map(|places| {
        (0..).zip(places).map(|(number, place)| Place { id: id(number), ..place }).collect()
    })
}

/// Buckets where the members are, where they are not, and without a place.
fn some_buckets(members: &[Place]) -> Vec<Bucket> {
    let positions = members.iter().map(|member| member.position);
    let more = [at(52.0, 5.0), at(52.3, 5.3), at(-33.0, 151.0), at(90.0, 0.0), at(0.0, -180.0)];
    let all = positions.chain(more.map(Some)).chain([None]);
    all.flat_map(|place| (0..4).map(move |index| Bucket::of(place, index << 48))).collect()
}

/// The owners as the head of the crate says it, without a tree: levels of equally near members, from the nearest on.
fn model(members: &[Place], replicas: usize, bucket: Bucket) -> Vec<MemberId> {
    let are_all_mobile = members.iter().all(|member| member.is_mobile);
    let mut ordered: Vec<_> = members
        .iter()
        .filter(|member| !member.is_mobile || are_all_mobile)
        .map(|member| {
            let own = member.position.filter(|_| !member.is_mobile).map(Square::of);
            let common = bucket.square().map(|square| {
                own.map(|own| {
                    (0..=28).rev().find(|cuts| own.0 >> (28 - cuts) == square.0 >> (28 - cuts))
                })
            });
            (Reverse(common), Member::of(member, 0).cost(bucket), member)
        })
        .collect();
    ordered.sort_by_key(|one| (one.0, one.1, one.2.id));
    let mut chosen: Vec<usize> = Vec::new();
    for level in ordered.chunk_by(|one, other| one.0 == other.0) {
        let start = level.as_ptr_range().start;
        let first = ordered.iter().position(|entry| std::ptr::eq(entry, start)).expect("a part");
        let numbers = first..first + level.len();
        for wants_new_zone in [true, false] {
            for candidate in numbers.clone() {
                let zone = |number: usize| &ordered[number].2.zone;
                let is_new = zone(candidate).is_empty()
                    || chosen.iter().all(|owner| zone(*owner) != zone(candidate));
                let is_open = chosen.len() < replicas && !chosen.contains(&candidate);
                if is_open && (is_new || !wants_new_zone) {
                    chosen.push(candidate);
                }
            }
        }
    }
    chosen.sort_unstable();
    chosen.into_iter().map(|number| ordered[number].2.id).collect()
}

proptest! {
    #[test]
    fn owners_are_the_nearest(members in any_members(0..30), replicas in 1_usize..6) {
        let places = Places::of(&members, replicas);
        for bucket in some_buckets(&members) {
            prop_assert_eq!(places.owners(bucket), model(&members, replicas, bucket), "{:?}", bucket);
        }
    }

    #[test]
    fn members_of_a_reach_are_all_owners_of_its_buckets(
        members in any_members(0..30), replicas in 1_usize..6, latitude in -90.0..90.0, longitude in -180.0..180.0, km in 0_u32..9_000,
        is_near: Option<Index>
    ) {
        let places = Places::of(&members, replicas);
        let near = is_near.filter(|_| !members.is_empty()).and_then(|near| near.get(&members).position);
        let centre = near.unwrap_or(at(latitude, longitude));
        let space = Space::default();
        for asked in [format!("place = ({centre}) within {km}km"), format!("Drone, lat >= {}", centre.latitude()), "Drone".to_owned()] {
            let reach = space.reach(&asked.parse().expect("an interest"));
            let found = places.members_of(&reach);
            prop_assert!(found.is_sorted_by(|one, other| one < other));
            let buckets = some_buckets(&members).into_iter().chain([Bucket::of(Some(centre), 0)]);
            for bucket in buckets.filter(|bucket| reach.has(*bucket)) {
                prop_assert!(places.owners(bucket).iter().all(|owner| found.contains(owner)), "{} {:?}", asked, bucket);
            }
        }
    }

    #[test]
    fn order_of_members_does_not_matter(members in any_members(1..30), turns: Index, replicas in 1_usize..6) {
        let mut other = members.clone();
        other.rotate_left(turns.index(members.len()));
        other.swap(0, turns.index(members.len()));
        let (places, same) = (Places::of(&members, replicas), Places::of(&other, replicas));
        prop_assert_eq!(places.hash(), same.hash());
        for bucket in some_buckets(&members) {
            prop_assert_eq!(places.owners(bucket), same.owners(bucket));
        }
    }

    /// Read backwards, this is a member that comes: it takes what it owns, from one owner each.
    #[test]
    fn loss_moves_buckets_of_the_lost_alone(members in any_members(1..40), lost: Index, replicas in 1_usize..6) {
        let mut rest = members.clone();
        let lost = rest.remove(lost.index(members.len()));
        let (before, after) = (Places::of(&members, replicas), Places::of(&rest, replicas));
        let was_last = !lost.is_mobile && rest.iter().all(|member| member.is_mobile);
        for bucket in some_buckets(&members) {
            let (was, is) = (before.owners(bucket), after.owners(bucket));
            if !was.contains(&lost.id) {
                prop_assert_eq!(was, is);
                continue;
            }
            let kept: Vec<_> = was.iter().filter(|owner| **owner != lost.id).collect();
            let stayed: Vec<_> = is.iter().filter(|owner| was.contains(owner)).collect();
            prop_assert_eq!(&kept, &stayed, "those that stay do so in their order");
            let more = is.len() - stayed.len();
            prop_assert!(more <= 1 || was_last, "{} came in", more);
        }
    }

    #[test]
    fn zones_of_owners_are_distinct_while_there_are_enough(zones in vec(0_u8..6, 1..20), replicas in 1_usize..6) {
        let members: Vec<_> = (0..)
            .zip(&zones)
            .map(|(number, zone)| Place { zone: format!("zone {zone}"), ..member(number) })
            .collect();
        let places = Places::of(&members, replicas);
        let there_are = zones.iter().collect::<BTreeSet<_>>().len();
        for bucket in buckets(None).step_by(997) {
            let owners = owners(&places, bucket);
            let distinct: BTreeSet<_> = owners.iter().map(|owner| zones[*owner as usize]).collect();
            prop_assert_eq!(owners.len(), replicas.min(members.len()));
            prop_assert_eq!(distinct.len(), replicas.min(there_are));
        }
    }

    #[test]
    fn cells_are_the_earth_and_each_member_is_in_one(members in any_members(0..40), replicas in 1_usize..6, latitude in -90.0..90.0, longitude in -180.0..180.0) {
        let places = Places::of(&members, replicas);
        let cells = places.cells();
        let area = |bounds: Bounds| (bounds.north - bounds.south) * (bounds.east - bounds.west);
        let sum: f64 = cells.iter().map(|cell| area(cell.bounds())).sum();
        prop_assert_eq!(sum, 360.0 * 180.0);
        let there: Vec<_> = cells.iter().flat_map(|cell| cell.members().map(number)).collect();
        let stationary = members.iter().filter(|member| !member.is_mobile && member.position.is_some());
        prop_assert_eq!(there.len(), stationary.clone().count());
        prop_assert_eq!(sorted(there), sorted(stationary.map(|member| number(member.id))));
        for point in members.iter().filter_map(|member| member.position).chain([at(latitude, longitude)]) {
            let cell = places.cell(point);
            let Bounds { south, west, north, east } = cell.bounds();
            let is_in = (south..north).contains(&point.latitude()) || point.latitude() == 90.0 && north == 90.0;
            prop_assert!(is_in && (west..east).contains(&point.longitude()), "{:?} {}", cell.bounds(), point);
            prop_assert_eq!(cells.iter().filter(|other| other.bounds() == cell.bounds()).count(), 1);
            prop_assert!(cell.neighbours().len() == 0 || cell.members().len() < replicas);
            let can_own: Vec<_> = cell.members().chain(cell.neighbours()).collect();
            let owners = places.owners(Bucket::of(Some(point), 0));
            prop_assert!(owners.iter().all(|owner| can_own.contains(owner)), "{:?} of {:?}", owners, can_own);
        }
    }
}
