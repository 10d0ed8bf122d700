//! Routes of topics that a shard remembers, apart from its clients so that both can be at hand for one message.

use std::sync::Arc;

use crate::{reach::Reach, routes::Route, shared::Shared, slab::Key};

/// Topics whose routes a shard remembers; a power of two.
const ROUTES: usize = 1 << 14;

/// Routes of topics of late, by hash. A topic that is published here and by a peer has two, and one for each
/// shared subscription that a peer chose this node for.
#[derive(Debug)]
pub(super) struct KnownRoutes(Vec<Option<Remembered>>);

/// A topic's route, and whether the connection that published there last may do so: a carrier of messages of many devices needs the
/// same ones again and again.
#[derive(Debug)]
struct Remembered {
    route: Arc<Route>,
    decided: Option<(Key, bool)>,
}

impl Default for KnownRoutes {
    fn default() -> Self {
        Self((0..ROUTES).map(|_| None).collect())
    }
}

impl KnownRoutes {
    /// Where messages of `topic` go that have that reach: as remembered, if nothing changed.
    pub(super) fn route(&mut self, shared: &Shared, topic: &str, reach: Reach) -> Arc<Route> {
        let made = shared.generations();
        let place = self.place(topic.as_bytes(), reach);
        let known = place.and_then(|place| self.0[place].as_ref()).map(|known| &known.route);
        if let Some(route) = known
            && route.generation == made.number()
        {
            return route.clone();
        }
        let topic: Arc<str> = known.map_or_else(|| topic.into(), |route| route.topic.clone());
        let route = shared.routes().route(&topic, reach, shared.shards(), made, &shared.topics());
        let route = Arc::new(route);
        let remembered = Some(Remembered { route: route.clone(), decided: None });
        let first = slot(topic.as_bytes(), reach);
        match place {
            Some(place) => self.0[place] = remembered,
            // The former entry moves to the other place.
            None => {
                if let Some(former) = std::mem::replace(&mut self.0[first], remembered) {
                    self.0[first ^ 1] = Some(former);
                }
            }
        }
        route
    }

    /// Where the route of a topic is remembered, if it is.
    #[inline]
    pub(super) fn place(&self, topic: &[u8], reach: Reach) -> Option<usize> {
        let first = slot(topic, reach);
        [first, first ^ 1].into_iter().find(|place| {
            let known = self.0[*place].as_ref();
            known.is_some_and(|Remembered { route, .. }| {
                route.topic.as_bytes() == topic && route.reach == reach
            })
        })
    }

    /// The decision when `connection` published to `topic` before, if no other publisher replaced it and nothing
    /// changed.
    #[inline]
    pub(super) fn decided(
        &self,
        shared: &Shared,
        connection: Key,
        topic: &[u8],
        reach: Reach,
    ) -> Option<(&Arc<Route>, bool)> {
        let Remembered { route, decided } = self.0[self.place(topic, reach)?].as_ref()?;
        let (by, allowed) = (*decided)?;
        let holds = by == connection && route.generation == shared.generation();
        holds.then_some((route, allowed))
    }

    /// Brings what is remembered of topics near: none of these waits for memory behind another, as they would one by one.
    pub(super) fn fetch<'t, const N: usize>(
        &self,
        topics: impl Iterator<Item = &'t [u8]>,
        reach: Reach,
    ) {
        let mut places = [0; N];
        let mut count = 0;
        for (place, topic) in places.iter_mut().zip(topics) {
            *place = slot(topic, reach);
            count += 1;
        }
        // Only once all places are known: the search for one would stand between two loads.
        let near = places.map(|place| self.0[place].as_ref());
        let near = near[..count].iter().flatten();
        let mut sum =
            near.clone().fold(0, |sum: u64, known| sum.wrapping_add(known.route.generation));
        for known in near {
            sum = sum.wrapping_add(u64::from(*known.route.topic.as_bytes().first().unwrap_or(&0)));
        }
        std::hint::black_box(sum);
    }

    /// `connection` may publish where `route` leads, or not.
    pub(super) fn note_decision(&mut self, connection: Key, route: &Arc<Route>, allowed: bool) {
        let place = self.place(route.topic.as_bytes(), route.reach);
        let known = place.and_then(|place| self.0[place].as_mut());
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.route, route)) {
            known.decided = Some((connection, allowed));
        }
    }
}

/// The place of a topic's route, or the one next to it: three topics that collide cost a lookup each.
fn slot(topic: &[u8], reach: Reach) -> usize {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut words = topic.chunks_exact(8);
    let mut hash = topic.len() as u64 | reach.number() << 32;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(FACTOR).rotate_left(32);
    for word in &mut words {
        mix(u64::from_le_bytes(word.try_into().expect("a chunk of 8")));
    }
    let mut last = [0; 8];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    mix(u64::from_le_bytes(last));
    (hash.wrapping_mul(FACTOR) >> 32) as usize & (ROUTES - 1)
}
