//! A node that hashes at a rate, and devices with their patience, in virtual time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::*;

const START: Instant = Instant::from_millis(1_700_000_000_000);
/// One check, where two threads check 45 in a second.
const CHECK: Duration = Duration::from_micros(44_444);
const PATIENCE: Duration = Duration::from_secs(5);

/// A device that logs in: its number, when it came for the first time, and how long it waits.
#[derive(Clone, Debug)]
struct Device {
    address: Option<IpAddr>,
    name: String,
    patience: Duration,
    /// How long after giving up it comes again; never for some.
    again_after: Option<Duration>,
    first: Instant,
}

#[derive(Debug, Default)]
struct Outcome {
    /// By device, when it was in.
    admitted: BTreeMap<usize, Duration>,
    /// Checks that ended after their client had disconnected.
    lost: usize,
    checks: usize,
}

/// The next event of the simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Free(usize),
    GivesUp(usize, Ticket),
    Comes(usize),
}

/// Two threads check what is next; a name in `made_up` is never admitted.
fn run(devices: &[Device], checkers: usize, for_: Duration) -> Outcome {
    let mut logins = Logins::default();
    let mut outcome = Outcome::default();
    let mut due: BTreeSet<(Instant, Due)> =
        devices.iter().enumerate().map(|(at, device)| (device.first, Due::Comes(at))).collect();
    let mut waits: HashMap<usize, Ticket> = HashMap::new();
    // By checker, whom it checks, and whether that one is still there.
    let mut busy: Vec<Option<usize>> = vec![None; checkers];
    while let Some((now, event)) = due.pop_first() {
        if now > START + for_ {
            break;
        }
        match event {
            Due::Comes(at) => {
                let device = &devices[at];
                let until = now + Duration::from_secs(20);
                let (ticket, gone) = logins.push(now, device.address, &device.name, until, at);
                assert_eq!(gone, None);
                waits.insert(at, ticket);
                due.insert((now + device.patience, Due::GivesUp(at, ticket)));
            }
            Due::GivesUp(at, ticket) => {
                if waits.get(&at) != Some(&ticket) {
                    continue;
                }
                waits.remove(&at);
                logins.cancel(now, ticket);
                if let Some(after) = devices[at].again_after {
                    due.insert((now + after, Due::Comes(at)));
                }
            }
            Due::Free(checker) => {
                if let Some(at) = busy[checker].take() {
                    match waits.remove(&at) {
                        Some(_) => {
                            outcome.admitted.insert(at, now.since(devices[at].first));
                        }
                        None => outcome.lost += 1,
                    }
                }
            }
        }
        for (checker, busy) in busy.iter_mut().enumerate() {
            if busy.is_none()
                && let Some(at) = logins.pop(now, |_| panic!("no login waits that long"))
            {
                outcome.checks += 1;
                *busy = Some(at);
                due.insert((now + CHECK, Due::Free(checker)));
            }
        }
    }
    outcome
}

fn address(number: u32) -> Option<IpAddr> {
    Some(IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + number)))
}

/// Devices that come within a second, wait for five, and come again after a while that differs.
fn fleet(count: usize, address: impl Fn(usize) -> Option<IpAddr>) -> Vec<Device> {
    let device = |number: usize| Device {
        address: address(number),
        name: format!("device {number}"),
        patience: PATIENCE,
        again_after: Some(Duration::from_millis(100 + (number as u64 * 37) % 900)),
        first: START + Duration::from_micros(number as u64 * 1_000_000 / count as u64),
    };
    (0..count).map(device).collect()
}

fn newcomer(first: Duration, address: Option<IpAddr>) -> Device {
    let name = format!("newcomer {first:?}");
    Device { address, name, patience: PATIENCE, again_after: None, first: START + first }
}

#[test]
fn a_fleet_is_in_after_as_many_checks_as_it_has_devices() {
    let one = |_| address(1);
    let each = |number: usize| address(number as u32);
    let some = |number: usize| address(number as u32 % 7);
    for (name, devices) in [
        ("of one address", fleet(2_000, one)),
        ("of an address each", fleet(2_000, each)),
        ("of seven addresses", fleet(2_000, some)),
        ("of 300", fleet(300, one)),
    ] {
        let count = devices.len();
        let ideal = CHECK.mul_f64(count as f64 / 2.0);
        let outcome = run(&devices, 2, ideal.mul_f64(1.2) + Duration::from_secs(1));
        assert_eq!(outcome.admitted.len(), count, "{name}");
        assert!(outcome.lost * 50 <= count, "{name}: {} checks are lost", outcome.lost);
    }
}

#[test]
fn devices_that_wait_for_one_second_get_in_as_well() {
    let impatient = Duration::from_secs(1);
    let devices: Vec<_> = fleet(300, |_| address(1))
        .into_iter()
        .map(|device| Device { patience: impatient, ..device })
        .collect();
    let outcome = run(&devices, 2, CHECK.mul_f64(150.0 * 1.2) + Duration::from_secs(2));
    assert_eq!(outcome.admitted.len(), 300);
    assert!(outcome.lost <= 6, "{} checks are lost", outcome.lost);
}

#[test]
fn a_newcomer_does_not_wait_behind_a_fleet_that_comes_back() {
    for from in [address(1), address(9_999)] {
        let mut devices = fleet(2_000, |_| address(1));
        let count = devices.len();
        // Once the fleet is there, at whatever time.
        devices.extend((0..30).map(|n| newcomer(Duration::from_millis(1_100 + n * 1_237), from)));
        let outcome = run(&devices, 2, Duration::from_secs(60));
        for (at, device) in devices.iter().enumerate().skip(count) {
            let waited = outcome.admitted.get(&at).unwrap_or_else(|| panic!("{device:?}"));
            assert!(*waited < Duration::from_secs(1), "{waited:?} {device:?}");
        }
    }
}

#[test]
fn made_up_names_hold_nobody_up() {
    let made_up = |number: usize, patience, from| Device {
        address: from,
        name: format!("made up {number}"),
        patience,
        again_after: None,
        first: START + Duration::from_millis(number as u64 * 5),
    };
    for (patience, attackers, from) in [
        // They disconnect at once, from the address of the client with the right password.
        (Duration::from_millis(1), 1, address(1)),
        // They stay, from one other address, or from many.
        (Duration::from_secs(10), 1, address(2)),
        (Duration::from_secs(10), 50, address(2)),
    ] {
        let mut devices: Vec<_> = (0..2_000)
            .map(|n| {
                let own = if attackers == 1 { from } else { address(100 + n as u32 % attackers) };
                made_up(n, patience, own)
            })
            .collect();
        let first = devices.len();
        devices.extend((1..9).map(|n| newcomer(Duration::from_millis(n * 1_003), address(1))));
        let outcome = run(&devices, 2, Duration::from_secs(20));
        for (at, device) in devices.iter().enumerate().skip(first) {
            let waited = outcome.admitted.get(&at).unwrap_or_else(|| panic!("{device:?}"));
            assert!(*waited < Duration::from_secs(1), "{waited:?} {patience:?} {attackers}");
        }
    }
}

#[test]
fn a_fleet_is_not_starved_by_names_that_are_new_all_the_time() {
    let mut devices = fleet(400, |_| address(1));
    for number in 0..12_000 {
        devices.push(Device {
            address: address(1),
            name: format!("made up {number}"),
            patience: Duration::from_secs(3),
            again_after: None,
            first: START + Duration::from_millis(number * 4),
        });
    }
    let outcome = run(&devices, 2, Duration::from_secs(40));
    let admitted = outcome.admitted.range(..400).count();
    assert!(admitted >= 390, "{admitted} of 400");
}

#[test]
fn beyond_the_bound_the_address_with_most_loses_its_oldest() {
    let mut logins = Logins::with_room(10);
    let until = START + PATIENCE;
    for number in 0..8 {
        assert_eq!(logins.push(START, address(1), &number.to_string(), until, number).1, None);
    }
    for number in 8..10 {
        assert_eq!(logins.push(START, address(2), &number.to_string(), until, number).1, None);
    }
    for (number, gone) in (10..16).zip([0, 1, 2]) {
        assert_eq!(
            logins.push(START, address(3), &number.to_string(), until, number).1,
            Some(gone)
        );
    }
    assert_eq!(logins.len(), 10);
}

#[test]
fn logins_that_hung_up_or_are_too_late_are_not_checked() {
    let mut logins = Logins::default();
    let (gone, _) = logins.push(START, address(1), "gone", START + PATIENCE, "gone");
    logins.push(START, address(1), "late", START + PATIENCE / 2, "late");
    logins.push(START, address(2), "there", START + PATIENCE, "there");
    assert_eq!(logins.cancel(START, gone), Some("gone"));
    assert_eq!(logins.cancel(START, gone), None);
    let (mut late, mut got) = (Vec::new(), Vec::new());
    while let Some(item) = logins.pop(START + PATIENCE / 2, |item| late.push(item)) {
        got.push(item);
    }
    assert_eq!((got, late), (vec!["there"], vec!["late"]));
    assert!(logins.is_empty() && logins.flows.is_empty() && logins.old.is_empty());
    assert!(logins.new.is_empty());
}
