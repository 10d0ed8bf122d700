//! Connections of a listener that are counted while they live: so many at a time, half of them at most of one address.
//!
//! Always true: a [`Place`] counts until its last owner is gone, also where the connection has become a WebSocket and left its task.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use crate::{
    arrivals::network,
    descriptors::{self, Descriptor, Front},
};

/// The connections of a listener.
#[derive(Debug, Default)]
pub struct Places {
    /// As many references as there are places that are taken, and one.
    all: Arc<()>,
    /// The same of each address.
    of_addresses: HashMap<IpAddr, Arc<()>>,
}

/// The place of a connection among those of its listener and of its address, with its descriptor; given back when dropped.
#[derive(Debug)]
pub struct Place {
    _of_all: Arc<()>,
    _of_address: Arc<()>,
    _descriptor: Descriptor,
}

impl Places {
    /// How many are taken.
    pub fn taken(&self) -> usize {
        Arc::strong_count(&self.all) - 1
    }

    /// A place for one more connection of `address` at `front`; none if `most` are taken, or half of `most` by its address (of IPv6, by its
    /// network of 64 bits), or if the front has no descriptor left.
    pub fn take(&mut self, address: IpAddr, most: usize, front: Front) -> Option<Place> {
        let taken = self.taken();
        if self.of_addresses.len() > 2 * (taken + 16) {
            self.of_addresses.retain(|_, own| Arc::strong_count(own) > 1);
        }
        let own = self.of_addresses.entry(network(address)).or_default();
        let has_room = taken < most && Arc::strong_count(own) - 1 < most.div_ceil(2);
        has_room.then_some(())?;
        Some(Place {
            _of_all: self.all.clone(),
            _of_address: own.clone(),
            _descriptor: descriptors::take(front)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_half_at_most_and_gives_back_what_it_had() {
        let mut places = Places::default();
        let mut take = |address: &str| {
            let place = places.take(address.parse().expect("an address"), 5, Front::Vision);
            (place, places.taken())
        };
        let of_one: Vec<_> = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(&mut take).into();
        assert!(of_one.iter().all(|(place, _)| place.is_some()), "half of five, rounded up");
        let (more, taken) = take("2001:db8::4");
        assert!(more.is_none() && taken == 3, "the same network");
        let (other, _) = take("192.0.2.1");
        let (another, taken) = take("192.0.2.2");
        assert!(other.is_some() && another.is_some() && taken == 5);
        assert!(take("192.0.2.3").0.is_none(), "all are taken");
        drop(of_one);
        let (again, taken) = take("192.0.2.3");
        assert!(again.is_some() && taken == 3);
    }

    #[test]
    fn addresses_that_are_gone_are_forgotten() {
        let mut places = Places::default();
        for number in 0..1000_u32 {
            let address = IpAddr::V4(number.into());
            drop(places.take(address, 2, Front::Vision).expect("it is the only one"));
        }
        assert!(places.of_addresses.len() <= 33, "{}", places.of_addresses.len());
    }
}
