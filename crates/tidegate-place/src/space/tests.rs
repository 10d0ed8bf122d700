use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, option, prelude::*, sample::select};

use super::*;

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
        ("Drone, LiDAR", 0x1EB3_4765_4959_561A),
        ("post_processing_func", 0x2082_082C_B2CB_2CB2),
        (
            "videocamera, location = [100, 101, 102], type = Public, quality = 720p",
            0x2EBD_995A_5622_5590,
        ),
        ("temperature, celsius = 21.5C", 0x6669_FFDF_8699_6418),
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
    assert_eq!(Space::default().hash(), 0xE31B_BDD8_E962_F38B, "{:#x}", Space::default().hash());
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
        (&space, "Drone", 3_600),
        (&space, "Drone, Li*", 170),
        (&space, "type = temperature, id = 17", 900),
        (&declared, "type = temperature, id = 17", 40),
        (&declared, "type = temperature, id = [10 - 20]", 60),
        (&declared, "type = [temperature, light], id = 17", 45),
    ] {
        let parts = space.reach(&interest(text)).count() / ((1 << Square::BITS) + 1);
        assert!(parts <= most && parts * 2 > most, "{text}: {parts}");
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
    let buckets = space.reach(&asked).buckets(4_000).expect("few squares");
    assert_eq!(buckets.len() as u128, space.reach(&asked).count());
    for (place, expected) in [("52.375, 4.89", true), ("52.39, 4.89", false), ("-33, 151", false)] {
        let bucket = space.bucket(&profile(&format!("Drone, LiDAR, place = ({place})")));
        assert_eq!(buckets.contains(&bucket), expected, "{place}");
        assert_eq!(space.reach(&asked).has(bucket), expected, "{place}");
    }
    assert!(!space.reach(&asked).has(space.bucket(&profile("Drone, LiDAR"))), "without a place");
    let anywhere = space.reach(&interest("Drone"));
    assert!(anywhere.is_anywhere() && anywhere.buckets(usize::MAX >> 1).is_none());
    for text in ["lat > 91", "place = (1, 2), place = (3, 4)", "long > 181"] {
        let reach = space.reach(&interest(text));
        assert_eq!(reach.buckets(0), Some(Vec::new()), "{text} matches no profile");
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
        (vec![value("a"), value("a")], "the dimension Value(\"a\") is there twice; leave one out"),
        (vec![value("lat")], "a dimension is of an attribute, and its name is none"),
        (vec![value("")], "a dimension is of an attribute, and its name is none"),
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
        select(&["Public", "living_room", "\"urn:a:b\"", "\"0\"", "é", "~"][..])
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

fn places() -> impl Strategy<Value = Option<(i32, i32)>> {
    let edges = &[(-90, 0), (90, 0), (0, -180), (0, 179), (40, -74)][..];
    option::of(prop_oneof![select(edges), (-90..=90, -180..180)])
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
    match (choice % 9, number) {
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
        _ => format!("{name} = {last}"),
    }
}

fn area((latitude, longitude): (i32, i32), choice: u8, more: i32) -> String {
    let around = |it: i32| (it + 540).rem_euclid(360) - 180;
    let (south, north) = ((latitude - more).max(-90), (latitude + more % 5).min(90));
    let (west, east) = (around(longitude - more), around(longitude + more * 2));
    match choice % 7 {
        0 => format!("place = ({latitude}, {longitude})"),
        1 => format!("place = [({south}, {west}) - ({north}, {east})]"),
        2 => format!("place = ({south}, {longitude}) within {}km", 112 * (latitude - south)),
        3 => format!("place = ({latitude}, {west}) within {}km", 112 * more),
        4 => format!("lat = {latitude}*, long >= {}", longitude - more),
        5 => format!("lat = [{south} - {north}]"),
        _ => "place = *".to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn whatever_matches_is_reached(
        attributes in attributes(), place in places(), other in attributes(),
        choices in vec((any::<u8>(), 0..6_i32, 0..3_u8), 7), area_choice: u8, asks_for_place: bool, most in 0_usize..20
    ) {
        let held = attributes.iter().map(|(name, values)| match &**values {
            [] => (*name).to_owned(),
            values => format!("{name} = [{}]", values.join(", ")),
        });
        let place_text = place.map(|(latitude, longitude)| format!("place = ({latitude}, {longitude})"));
        let profile = profile(&held.chain(place_text).collect::<Vec<_>>().join(", "));
        // Conditions of this profile's attributes, and now and then one of another profile.
        let own = attributes.iter().zip(&choices).filter(|(_, (.., kept))| *kept > 0);
        let own = own.map(|(held, (choice, more, _))| weakened(held, *choice, *more));
        let foreign = other.first().filter(|_| choices[6].0 > 220);
        let foreign = foreign.map(|held| weakened(held, choices[5].0, 1));
        let area = place.filter(|_| asks_for_place).map(|place| area(place, area_choice, choices[6].1));
        let asked = own.chain(foreign).chain(area).collect::<Vec<_>>().join(", ");
        let interest = interest(&asked);
        let is_matched = interest.matches(&profile);
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
    }
}
