use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, option, prelude::*, sample::select, test_runner::TestRunner};
use tidegate_message::GeoPoint;

use super::*;
use crate::{Buckets, MemberId, Place, Places, Weight};

fn profile(text: &str) -> Profile {
    text.parse().expect(text)
}

fn interest(text: &str) -> Interest {
    text.parse().expect(text)
}

fn value(name: &str) -> Dimension {
    Dimension::Value(name.into())
}

/// Spaces of one to eight dimensions, the default one among them.
fn spaces() -> Vec<Space> {
    let all = [
        Dimension::Names(Half::Odd),
        value("b"),
        Dimension::Latitude,
        value("list"),
        Dimension::Values,
        Dimension::Longitude,
        Dimension::Names(Half::Even),
        value("post_processing:func"),
    ];
    let declared = (1..=all.len()).map(|count| Space::new(&all[..count]).expect("a space"));
    let single = all.iter().map(|one| Space::new(std::slice::from_ref(one)).expect("a space"));
    declared.chain(single).chain([Space::default()]).collect()
}

/// Nodes of all machines and releases have to agree on points. These were computed a second time by another program.
#[test]
fn points_stay_what_they_are() {
    let space = Space::default();
    for (text, expected) in [
        ("", 0),
        ("Drone, LiDAR", 0x014A_C32C_450A_8AA0),
        ("post_processing_func", 0x2079_6160_32CB_2CB2),
        (
            "videocamera, location = [100, 101, 102], type = Public, quality = 720p",
            0xBE9E_4C6F_BB92_F0C8,
        ),
        ("temperature, celsius = 21.5C", 0xFBCB_FEBF_8699_0256),
    ] {
        let point = space.point(&profile(text));
        assert_eq!(point, expected, "{text}: {point:#x}");
    }
}

#[test]
fn spaces_have_hashes_of_their_own() {
    let hashes: BTreeSet<u64> = spaces().iter().map(Space::hash).collect();
    // One space of one dimension is there twice.
    assert_eq!(hashes.len(), spaces().len() - 1);
    assert_eq!(Space::default().hash(), 0xDDD3_0560_2042_C371, "{:#x}", Space::default().hash());
}

/// Figure 3 and the listings of R-Pulsar, without a declaration and with one.
#[test]
fn the_papers_interests_reach_the_papers_profiles() {
    let sensor = "(videocamera)(location = [100, 101, 102])(type = Public)(quality = 720p)";
    let client = "(videocamera)(location = [100 - 105])(type = *)(quality >= 720p)";
    let declared = [Dimension::Names(Half::Odd), value("location"), value("quality")];
    for space in [Space::default(), Space::new(&declared).expect("a space")] {
        for (asked, held) in [
            (client, sensor),
            ("Drone, Li*, lat:40*, long:-74*", "Drone, LiDAR, place = (40.0583, -74.4056)"),
            ("post_processing_func", "post_processing_func"),
        ] {
            let (asked, held) = (interest(asked), profile(held));
            assert!(asked.matches(&held));
            let point = space.point(&held);
            assert!(space.ranges(&asked, 8).iter().any(|it| it.contains(&point)), "{asked}");
            assert!(space.reach(&asked).has(space.bucket(&held)), "{asked}");
        }
    }
}

/// The shares that the head of the module names, in parts of 65,536.
#[test]
fn interests_reach_the_less_the_more_they_ask_for() {
    let declared = [value("type"), value("id")];
    let declared = Space::new(&declared).expect("a space");
    let space = Space::default();
    for (space, text, most) in [
        (&space, "", 65_536),
        (&space, "*", 65_536),
        (&space, "Drone", 10_000),
        (&space, "Drone, Li*", 1_550),
        (&space, "type = temperature, id = 17", 4_100),
        (&declared, "type = temperature, id = 17", 26),
        (&declared, "type = temperature, id = [10 - 20]", 32),
        (&declared, "type = [temperature, light], id = 17", 32),
    ] {
        let parts = space.reach(&interest(text)).count() / ((1 << Square::BITS) + 1);
        assert!(parts <= most && parts * 10 > most * 9, "{text}: {parts}");
    }
}

#[test]
fn sensors_of_one_kind_are_in_many_parts() {
    let space = Space::default();
    let kinds: [fn(u32) -> String; 3] = [
        |number| format!("temperature, id = sensor-{number}"),
        |number| format!("type = temperature, id = {number}, room = kitchen"),
        |number| format!("temperature, celsius = {}C", 18.0 + f64::from(number % 100) / 10.0),
    ];
    for kind in kinds {
        let mut parts = BTreeMap::new();
        for number in 0..1_000 {
            *parts.entry(space.bucket(&profile(&kind(number)))).or_insert(0) += 1;
        }
        let most = parts.values().max();
        assert!(parts.len() >= 16 && most < Some(&150), "{}: {parts:?}", kind(0));
    }
}

#[test]
fn places_narrow_the_reach() {
    let space = Space::default();
    let asked = interest("Drone, LiDAR, place = (52.37, 4.89) within 1km");
    let Buckets::Few(buckets) = space.reach(&asked).buckets(40_000) else {
        panic!("few squares: {}", space.reach(&asked).count());
    };
    assert_eq!(buckets.len() as u128, space.reach(&asked).count());
    for (place, expected) in [("52.375, 4.89", true), ("52.39, 4.89", false), ("-33, 151", false)] {
        let bucket = space.bucket(&profile(&format!("Drone, LiDAR, place = ({place})")));
        assert_eq!(buckets.contains(&bucket), expected, "{place}");
        assert_eq!(space.reach(&asked).has(bucket), expected, "{place}");
    }
    assert!(!space.reach(&asked).has(space.bucket(&profile("Drone, LiDAR"))), "without a place");
    let anywhere = space.reach(&interest("Drone"));
    assert!(anywhere.is_anywhere() && anywhere.buckets(usize::MAX) == Buckets::Anywhere);
    assert_eq!(space.reach(&interest("lat > 40")).buckets(1_000), Buckets::Many);
    let hash = Space::new(&[Dimension::Values]).expect("a space");
    for space in [space, hash] {
        for text in ["lat > 91", "place = (1, 2), place = (3, 4)", "long:200*"] {
            let (reach, asked) = (space.reach(&interest(text)), interest(text));
            assert_eq!(reach.buckets(0), Buckets::Few(Vec::new()), "{text} matches no profile");
            assert_eq!(space.ranges(&asked, 9), [], "{text}");
            assert_eq!(reach.count(), 0, "{text}");
        }
    }
}

#[test]
fn poles_and_the_date_line_are_reached() {
    let space = Space::new(&[Dimension::Latitude, Dimension::Longitude]).expect("a space");
    for (asked, place) in [
        ("place = [(80, 20) - (90, 30)]", "90, 170"),
        ("place = [(-90, 20) - (-80, 30)]", "-90, 0"),
        ("place = [(10, 170) - (20, 180)]", "15, 180"),
        ("place = [(10, 170) - (20, -170)]", "15, -175"),
        ("place = (0, 179.999) within 1km", "0, 180"),
        ("place = (0, 180) within 1km", "0, 179.999"),
        ("place = (89.999, 3) within 1km", "89.999, -177"),
        ("long = -180", "15, 180"),
        ("lat:90*", "90, 0"),
        ("place = *", "-90, 0"),
    ] {
        let (asked, held) = (interest(asked), profile(&format!("place = ({place})")));
        assert!(asked.matches(&held), "{asked} matches {held}");
        assert!(space.reach(&asked).has(space.bucket(&held)), "{asked} reaches {held}");
        let point = space.point(&held);
        assert!(space.ranges(&asked, 3).iter().any(|it| it.contains(&point)), "{asked} {held}");
    }
}

#[test]
fn the_worst_interests_are_bounded() {
    let names: Vec<String> = (0..32)
        .map(|it| {
            format!("{}*", char::from(b'a' + it % 26).to_string().repeat(1 + usize::from(it / 26)))
        })
        .collect();
    let lists: Vec<String> = (0..8).map(|it| format!("b{it} = [1, 5, 9, x, y, z]")).collect();
    for text in ["", "*", "*, place = *", &*names.join(","), &*lists.join(",")] {
        for space in spaces() {
            for most in [0, 1, 64, 100_000] {
                let count = space.ranges(&interest(text), most).len();
                assert!(count <= most.max(1) && count <= Space::PARTS_MAX, "{text}: {count}");
            }
        }
    }
    assert!(vec!["*"; 50].join(",").parse::<Interest>().is_err(), "more than there may be");
    // One value cannot be both, and a list can.
    assert_eq!(
        Space::new(&[value("b")]).expect("a space").ranges(&interest("b > 2, b < 1"), 9).len(),
        1
    );
}

#[test]
fn impossible_spaces_are_refused() {
    for (dimensions, expected) in [
        (
            vec![],
            "a space has 1 to 8 dimensions, this one has 0; attributes without one are found all the same",
        ),
        (
            (0..9).map(|it| value(&format!("a{it}"))).collect(),
            "a space has 1 to 8 dimensions, this one has 9; attributes without one are found all the same",
        ),
        (
            vec![value("a"), value("a")],
            "a space has each dimension once, this one has the values of a twice; leave one out",
        ),
        (
            vec![value("lat")],
            "a dimension for the values of an attribute has a name that no attribute has",
        ),
        (
            vec![value("")],
            "a dimension for the values of an attribute has a name that no attribute has",
        ),
    ] {
        let error = Space::new(&dimensions).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

/// An attribute of a profile with its values as they are written.
type Held = (&'static str, Vec<String>);

fn written() -> impl Strategy<Value = String> {
    prop_oneof![
        (-300..300_i32, select(&["", "p", "C"][..]))
            .prop_map(|(it, unit)| format!("{}{unit}", f64::from(it) / 10.0)),
        (-400..400_i32).prop_map(|power| format!("1.5e{}", power % 300)),
        select(&["Public", "living_room", "\"urn:a:b\"", "\"0\"", "é", "~", "007", "1e10"][..])
            .prop_map(str::to_owned),
    ]
}

fn attributes() -> impl Strategy<Value = Vec<Held>> {
    let names = &["a", "b", "ba", "list", "Drone", "LiDAR", "\"post_processing:func\"", "~"][..];
    vec((select(names), vec(written(), 0..4)), 0..7).prop_map(|mut attributes| {
        attributes.sort();
        attributes.dedup_by_key(|(name, _)| *name);
        attributes
    })
}

/// Places at the edges of the earth and of squares, a step to each side, and others.
fn places() -> impl Strategy<Value = Option<GeoPoint>> {
    let edges = &[(-90, 0), (90, 0), (0, -180), (0, 179), (40, -74)][..];
    let degrees = |(latitude, longitude)| (latitude * 10_000_000, longitude * 10_000_000);
    let edge = |number: i64, step: i32, most: i32| {
        let edge = ((2 * i64::from(most) * number) as u64).div_ceil(1 << Square::DEPTH) as i64;
        ((edge - i64::from(most)) as i32 + step).clamp(-most, most)
    };
    let stripe = || (0..=1_i64 << Square::DEPTH, -1..=1);
    let at_edges = (stripe(), stripe()).prop_map(move |((row, north), (column, east))| {
        let latitude = edge(row, north, GeoPoint::LATITUDE_STEPS_MAX);
        (latitude, edge(column, east, GeoPoint::LONGITUDE_STEPS_MAX))
    });
    let anywhere = (-900_000_000..=900_000_000, -1_800_000_000..=1_800_000_000);
    let steps = prop_oneof![
        select(edges).prop_map(degrees),
        (-90..=90, -180..180).prop_map(degrees),
        at_edges,
        anywhere,
        (-90..90, -90..90),
    ];
    let point = |(latitude, longitude)| GeoPoint::from_steps(latitude, longitude);
    option::of(steps).prop_map(move |steps| steps.and_then(point))
}

/// A condition that an attribute may fulfil, or a neighbour of one.
fn weakened((name, values): &Held, choice: u8, more: i32) -> String {
    let bare = name.trim_matches('"');
    let end = bare.char_indices().nth(usize::from(choice / 16)).map_or(bare.len(), |(end, _)| end);
    let Some(first) = values.first() else {
        return match choice % 3 {
            0 => (*name).to_owned(),
            1 if end > 0 => format!("\"{}\"*", &bare[..end]),
            _ => "*".to_owned(),
        };
    };
    let number = first.trim_end_matches(['p', 'C']).parse::<f64>();
    let unit = first.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    let last = values.last().unwrap_or(first);
    match (choice % 11, number) {
        (0, _) => (*name).to_owned(),
        (1, _) => format!("{name} = *"),
        (2, _) => format!("{name} = {first}"),
        (3, _) => format!("{name} = [{last}, {more}, x]"),
        (4, Ok(_)) => format!("{name} = {}*", &first[..1 + usize::from(choice / 16) % first.len()]),
        (4, Err(_)) => {
            let text: String =
                first.trim_matches('"').chars().take(1 + usize::from(choice / 64)).collect();
            format!("{name} = \"{text}\"*")
        }
        (5, Ok(number)) if number.abs() < 1e9 => {
            let (low, high) = (number - f64::from(more), number + f64::from(more) / 2.0);
            format!("{name} = [{low}{unit} - {high}{unit}]")
        }
        (6, Ok(number)) if number.abs() < 1e9 => {
            format!("{name} >= {}{unit}", number - f64::from(more % 3))
        }
        (7, Ok(number)) if number.abs() < 1e9 => {
            format!("{name} < {}{unit}", number + f64::from(more))
        }
        (8, Ok(number)) if number.abs() < 1e9 => format!("{name} = [{number}{unit}-*]"),
        (9, Ok(number)) if number.abs() < 1e9 => format!("{name} = [*-{number}{unit}]"),
        _ => format!("{name} = {last}"),
    }
}

fn area(point: GeoPoint, choice: u8, more: i32) -> String {
    let around = |it: f64| (it + 540.0).rem_euclid(360.0) - 180.0;
    let (latitude, longitude) = (point.latitude(), point.longitude());
    let more = f64::from(more);
    let (south, north) = ((latitude - more).max(-90.0), (latitude + more / 2.0).min(90.0));
    let (west, east) = (around(longitude - more), around(longitude + more * 2.0));
    let begin = |degrees: f64| {
        let text = format!("{degrees:.7}");
        text[..text.len().min(1 + usize::from(choice / 16))].to_owned()
    };
    match choice % 9 {
        0 => format!("place = ({latitude}, {longitude})"),
        1 => format!("place = [({south}, {west}) - ({north}, {east})]"),
        2 => format!("place = ({south}, {longitude}) within {}km", 112.0 * more),
        3 => format!("place = ({latitude}, {west}) within {}km", 112.0 * more),
        4 => format!("lat:{}*, long >= {}", begin(latitude), longitude - more),
        5 => format!("lat = [{south} - {north}]"),
        6 => format!("long:{}*", begin(longitude)),
        7 => format!("long <= {longitude}, lat > {:.7}", latitude - 1e-7),
        _ => "place = *".to_owned(),
    }
}

/// Profiles of a site as producers write them: a kind and so many more attributes of usual names, the values numbers or texts. They are the same each
/// time.
fn site(count: u64, more: std::ops::Range<usize>) -> Vec<Profile> {
    let kinds = "temperature humidity pressure light motion noise camera videocamera Drone LiDAR power water door smoke";
    let names = "type id room floor building site unit rate quality vendor model battery firmware zone owner status";
    let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    let (kinds, names) = (words(kinds), words(names));
    let one = |number| {
        let mut turn = rendezvous::join(7, number);
        let mut pick = |count: usize| {
            turn = rendezvous::join(turn, 1);
            (turn % count as u64) as usize
        };
        let kind = kinds[pick(kinds.len())];
        let (first, mut left) = match pick(2) {
            0 => (format!("type = {kind}"), names[1..].to_vec()),
            _ => (kind.to_owned(), names.clone()),
        };
        let mut text = vec![first];
        for _ in 0..more.start + pick(more.len()) {
            let name = left.swap_remove(pick(left.len()));
            text.push(match pick(2) {
                0 => format!("{name} = {}", pick(100)),
                _ => format!("{name} = {name}-{}", pick(40)),
            });
        }
        profile(&text.join(", "))
    };
    (0..count).map(one).collect()
}

/// The parts of the index that data of a site count as: as many equal ones would spread them as evenly over the members.
#[test]
fn data_of_a_site_are_in_many_parts() {
    let space = Space::default();
    for (more, least) in [(3..7, 750), (1..3, 950)] {
        let site = site(10_000, more.clone());
        let mut parts = BTreeMap::new();
        for profile in &site {
            *parts.entry(space.bucket(profile)).or_insert(0_u64) += 1;
        }
        let squares: u64 = parts.values().map(|count| count * count).sum();
        let (most, as_equal) = (parts.values().max(), 10_000 * 10_000 / squares);
        println!("{more:?}: {} parts as {as_equal} equal ones, most {most:?}", parts.len());
        assert!(as_equal >= least && most < Some(&50), "{as_equal}, {most:?}");
        let members: Vec<_> = (0..64).map(member).collect();
        let places = Places::of(&members, 3);
        let mut shares = BTreeMap::new();
        for (bucket, count) in &parts {
            for owner in places.owners(*bucket) {
                *shares.entry(owner).or_insert(0.0) += *count as f64;
            }
        }
        let mean = 30_000.0 / 64.0;
        let squares: f64 = shares.values().map(|share| (share / mean - 1.0_f64).powi(2)).sum();
        let deviation = (squares / 64.0).sqrt();
        println!("{more:?}: shares of 64 members deviate by {deviation}");
        assert!(deviation < 0.2, "{deviation}");
    }
}

fn member(number: u8) -> Place {
    Place {
        id: MemberId([number; 32]),
        position: None,
        is_mobile: false,
        zone: String::new(),
        weight: Weight::default(),
    }
}

/// The table at the head of the module: for each interest percent of the parts, and of the data of a site with four to seven names and with two or
/// three.
#[test]
fn interests_reach_shares_of_parts_and_of_data() {
    let space = Space::default();
    let declared = Space::new(&[value("type"), value("room")]).expect("a space");
    let [many, few] = [site(10_000, 3..7), site(10_000, 1..3)];
    for (space, text, expected) in [
        (&space, "Drone", [15.1, 88.9, 46.5]),
        (&space, "Dr*", [15.1, 88.9, 46.5]),
        (&space, "Drone, building", [2.3, 74.7, 2.8]),
        (&space, "type = light", [7.9, 92.1, 62.3]),
        (&space, "type = light, room = room-7", [6.2, 88.7, 40.4]),
        (&space, "type = light, building = building-7", [1.1, 77.9, 12.2]),
        (&declared, "type = light, room = room-7", [0.04, 0.6, 0.2]),
    ] {
        let asked = interest(text);
        let reach = space.reach(&asked);
        let share = |site: &[Profile], is_in: &dyn Fn(&Profile) -> bool| {
            100.0 * site.iter().filter(|it| is_in(it)).count() as f64 / site.len() as f64
        };
        let is_reached = |it: &Profile| reach.has(space.bucket(it));
        let parts = reach.count() / ((1 << Square::BITS) + 1);
        let shares = [parts as f64 / 655.36, share(&many, &is_reached), share(&few, &is_reached)];
        let matched = [&many, &few].map(|site| share(site, &|it| asked.matches(it)));
        println!("{text}: {shares:.1?}, matched {matched:.2?}");
        for (share, expected) in shares.into_iter().zip(expected) {
            assert!((share - expected).abs() < 0.2 + expected / 100.0, "{text}: {shares:?}");
        }
    }
}

#[test]
fn whatever_matches_is_reached() {
    let cases = 900;
    let matched = std::cell::Cell::new(0);
    let choices = vec((any::<u8>(), 0..6_i32, 0..3_u8), 7);
    let asks = (choices, any::<u8>(), any::<bool>(), 0_usize..20);
    let given = ((attributes(), places(), attributes()), asks);
    let mut runner =
        TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..Default::default() });
    let result = runner.run(&given, |((attributes, place, other), asks)| {
        let (choices, area_choice, asks_for_place, most) = asks;
        let held = attributes.iter().map(|(name, values)| match &**values {
            [] => (*name).to_owned(),
            values => format!("{name} = [{}]", values.join(", ")),
        });
        let place_text = place.map(|place| format!("place = ({place})"));
        let profile = profile(&held.chain(place_text).collect::<Vec<_>>().join(", "));
        prop_assert_eq!(profile.place(), place);
        // Conditions of this profile's attributes, and now and then one of another profile.
        let own = attributes.iter().zip(&choices).filter(|(_, (.., kept))| *kept > 0);
        let own = own.map(|(held, (choice, more, _))| weakened(held, *choice, *more));
        let foreign = other.first().filter(|_| choices[6].0 > 220);
        let foreign = foreign.map(|held| weakened(held, choices[5].0, 1));
        let area =
            place.filter(|_| asks_for_place).map(|place| area(place, area_choice, choices[6].1));
        let asked = own.chain(foreign).chain(area).collect::<Vec<_>>().join(", ");
        let interest = interest(&asked);
        let is_matched = interest.matches(&profile);
        matched.set(matched.get() + u32::from(is_matched));
        for space in spaces() {
            let ranges = space.ranges(&interest, most);
            prop_assert!(ranges.len() <= most.max(1));
            prop_assert!(ranges.iter().all(|range| range.start() <= range.end()));
            prop_assert!(ranges.windows(2).all(|pair| *pair[0].end() < pair[1].start() - 1));
            if is_matched {
                let point = space.point(&profile);
                let is_in = ranges.iter().any(|range| range.contains(&point));
                prop_assert!(is_in, "{} matches {} in {:?}", interest, profile, space);
                let reach = space.reach(&interest);
                prop_assert!(reach.has(space.bucket(&profile)), "{} {}", interest, profile);
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(matched.get() > cases / 2, "{} of {cases} match", matched.get());
}
