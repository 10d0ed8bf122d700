//! The subscribers of one filter.

use std::{collections::BTreeMap, mem};

/// Keys and values in ascending order of keys, in a shape that suits their number.
///
/// 24 bytes with keys and values of 8. Nearly all filters have one subscriber, which needs no
/// allocation; a filter with a hundred thousand still takes one in or out in logarithmic time.
#[derive(Clone, Debug)]
pub(crate) enum Subscribers<K, V> {
    None,
    One(K, V),
    /// 2 to `FEW_MAX`.
    Few(Vec<(K, V)>),
    /// More. It does not turn back before half of `FEW_MAX`, so as not to swing.
    #[expect(clippy::box_collection, reason = "24 bytes would be 32 with the map inline")]
    Many(Box<BTreeMap<K, V>>),
}

const FEW_MAX: usize = 64;

impl<K: Copy + Ord, V: Copy> Subscribers<K, V> {
    /// About what one of several subscribers takes: a vector or tree is two thirds full.
    pub(crate) const LISTED_BYTES: usize = size_of::<(K, V)>() * 3 / 2;

    pub(crate) fn new() -> Self {
        Self::None
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self {
            Self::None => {
                *self = Self::One(key, value);
                None
            }
            Self::One(present, former) if *present == key => Some(mem::replace(former, value)),
            &mut Self::One(present, former) => {
                let pair = [(present, former), (key, value)];
                let in_order = if present < key { pair } else { [pair[1], pair[0]] };
                *self = Self::Few(Vec::from(in_order));
                None
            }
            Self::Few(few) => match few.binary_search_by_key(&key, |&(key, _)| key) {
                Ok(place) => Some(mem::replace(&mut few[place].1, value)),
                Err(place) if few.len() < FEW_MAX => {
                    few.insert(place, (key, value));
                    None
                }
                Err(_) => {
                    let mut many: BTreeMap<K, V> = few.iter().copied().collect();
                    many.insert(key, value);
                    *self = Self::Many(Box::new(many));
                    None
                }
            },
            Self::Many(many) => many.insert(key, value),
        }
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        match self {
            Self::None => None,
            &mut Self::One(present, value) => {
                if present != key {
                    return None;
                }
                *self = Self::None;
                Some(value)
            }
            Self::Few(few) => {
                let place = few.binary_search_by_key(&key, |&(key, _)| key).ok()?;
                let (_, value) = few.remove(place);
                if let &[(key, value)] = &few[..] {
                    *self = Self::One(key, value);
                }
                Some(value)
            }
            Self::Many(many) => {
                let value = many.remove(&key)?;
                if many.len() <= FEW_MAX / 2 {
                    *self = Self::Few(many.iter().map(|(&key, &value)| (key, value)).collect());
                }
                Some(value)
            }
        }
    }

    pub(crate) fn get(&self, key: K) -> Option<V> {
        match self {
            Self::None => None,
            &Self::One(present, value) => (present == key).then_some(value),
            Self::Few(few) => {
                let place = few.binary_search_by_key(&key, |&(key, _)| key).ok()?;
                Some(few[place].1)
            }
            Self::Many(many) => many.get(&key).copied(),
        }
    }

    pub(crate) fn each(&self, each: &mut impl FnMut(K, V)) {
        match self {
            Self::None => {}
            &Self::One(key, value) => each(key, value),
            Self::Few(few) => few.iter().for_each(|&(key, value)| each(key, value)),
            Self::Many(many) => many.iter().for_each(|(&key, &value)| each(key, value)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// How many are held outside of this value.
    pub(crate) fn listed(&self) -> usize {
        match self {
            Self::None | Self::One(..) => 0,
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }
}
