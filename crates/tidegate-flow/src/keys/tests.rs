use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const INITIAL: u64 = 42;

struct Table {
    keys: Keys,
    probes: Box<Probes>,
}

impl Table {
    fn new(is_text: bool, capacity: u32, expire_seconds: Option<u32>) -> Self {
        let keys = Keys::new(is_text, vec![INITIAL, 0], capacity, expire_seconds, 7);
        Self { keys, probes: Box::new(Probes::new()) }
    }

    /// Adds 1 to the second word of each key's state, and returns both words as they were.
    fn count(&mut self, now: u32, batch: &[Vec<u8>]) -> Vec<(u64, u64)> {
        let mut rows = Rows::none();
        rows.fill(batch.len(), |_| true);
        for (index, key) in batch.iter().enumerate() {
            let hash = if self.keys.is_text() {
                hash::text(7, key)
            } else {
                hash::word(7, u64::from_le_bytes(key[..].try_into().unwrap()))
            };
            self.probes.hashes[index] = hash;
            self.probes.identities[index] = if self.keys.is_text() {
                hash
            } else {
                u64::from_le_bytes(key[..].try_into().unwrap())
            };
        }
        let mut states = [0; BATCH_MAX];
        self.keys.locate(&[], rows.as_slice(), &self.probes, &mut states);
        self.keys.locate(rows.as_slice(), &[], &self.probes, &mut states);
        self.keys.resolve(now, &rows, &self.probes, |row| &batch[usize::from(row)], &mut states);
        let mut seen = Vec::new();
        for state in &states[..batch.len()] {
            let state = &mut self.keys.words()[*state as usize..][..2];
            seen.push((state[0], state[1]));
            state[1] += 1;
        }
        seen
    }
}

fn text(number: u64) -> Vec<u8> {
    // Some fit a block, some do not.
    format!("site/{number}/{}", "x".repeat(number as usize % 60)).into_bytes()
}

#[test]
fn each_key_has_its_own_state() {
    let mut table = Table::new(true, KEYS_MIN, None);
    let batch: Vec<_> = [1, 2, 1, 59, 1, 59].map(text).to_vec();
    let counts: Vec<u64> = table.count(0, &batch).iter().map(|state| state.1).collect();
    assert_eq!(counts, [0, 0, 1, 0, 2, 1]);
    assert_eq!(table.keys.live(), 3);
}

#[test]
fn a_key_that_was_not_used_for_long_makes_room() {
    let mut table = Table::new(false, KEYS_MIN, None);
    let key = |number: u64| number.to_le_bytes().to_vec();
    // One key is used all the time, the others once.
    for number in 0..10 * u64::from(KEYS_MIN) {
        let seen = table.count(0, &[key(u64::MAX), key(number)]);
        assert_eq!(seen, [(INITIAL, number), (INITIAL, 0)]);
    }
    assert_eq!(table.keys.live(), KEYS_MIN);
    assert_eq!(table.keys.evicted, 10 * u64::from(KEYS_MIN) + 1 - u64::from(KEYS_MIN));
}

#[test]
fn a_key_expires_by_its_age_and_starts_over() {
    let mut table = Table::new(true, KEYS_MIN, Some(10));
    table.count(100, &[text(1), text(2)]);
    assert_eq!(table.count(110, &[text(1)]), [(INITIAL, 1)]);
    // The sweep finds one, the touch the other or the same: both are gone.
    assert_eq!(table.count(121, &[text(1), text(2)]), [(INITIAL, 0), (INITIAL, 0)]);
    assert_eq!(table.keys.expired, 2);
    table.keys.expire(200, 10);
    assert_eq!((table.keys.live(), table.keys.expired), (0, 4));
    // A clock that is set back expires nothing.
    table.count(100, &[text(1)]);
    assert_eq!(table.count(90, &[text(1)]), [(INITIAL, 1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a map that forgets nothing: evicted keys start over, everything else is as the map has it.
    #[test]
    fn a_table_is_a_map_that_forgets(
        batches in prop::collection::vec(prop::collection::vec(0_u64..3_000, 1..=256), 1..60),
        is_text in any::<bool>(),
    ) {
        let mut table = Table::new(is_text, KEYS_MIN, None);
        let mut model: HashMap<u64, u64> = HashMap::new();
        for numbers in batches {
            let batch: Vec<_> = numbers
                .iter()
                .map(|number| if is_text { text(*number) } else { number.to_le_bytes().to_vec() })
                .collect();
            let evicted = table.keys.evicted;
            let seen = table.count(0, &batch);
            let mut begun = 0;
            for (number, (initial, count)) in numbers.iter().zip(seen) {
                prop_assert_eq!(initial, INITIAL);
                let expected = model.entry(*number).or_default();
                if count == 0 && *expected > 0 {
                    begun += 1;
                    *expected = 0;
                }
                prop_assert_eq!(count, *expected);
                *expected += 1;
            }
            prop_assert!(begun <= table.keys.evicted, "{begun} started over, {evicted} were evicted");
        }
        let occupied = table.keys.slots.iter().filter(|slot| **slot != 0).count();
        prop_assert_eq!(occupied, table.keys.live() as usize);
        prop_assert!(table.keys.live() <= KEYS_MIN);
        prop_assert_eq!(table.keys.entries(0..table.keys.used()).count(), occupied);
    }
}

#[test]
fn keys_that_went_by_a_full_group_are_found_when_others_are_gone() {
    let mut table = Table::new(false, KEYS_MIN, Some(10));
    let last = table.keys.slots.len() / GROUP - 1;
    // Of the last group and the first, so many that they fill the second and third as well.
    let crowd: Vec<Vec<u8>> = (0_u64..)
        .filter(|key| [0, last].contains(&table.keys.home(hash::word(7, *key))))
        .take(60)
        .map(|key| key.to_le_bytes().to_vec())
        .collect();
    let kept: Vec<_> = crowd.iter().step_by(2).cloned().collect();
    table.count(0, &crowd);
    table.count(8, &kept);
    table.keys.expire(15, KEYS_MIN);
    assert_eq!(table.keys.live(), 30);
    assert!(table.count(15, &kept).iter().all(|state| *state == (INITIAL, 2)));
    assert!(table.count(15, &crowd[1..2]).iter().all(|state| *state == (INITIAL, 0)));
}
