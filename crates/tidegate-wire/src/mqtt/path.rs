//! The way that a message took from broker to broker, so that it does not go in circles.
//!
//! Each bridge of Tidegate adds a user property [`PROPERTY`] to a message that it carries in MQTT 5: `out/NODE` when it leaves
//! a node, `in/NODE` when it is fetched into one. Any MQTT 5 broker forwards user properties unaltered, and so the list stays
//! with the message across brokers that know nothing of it.
//!
//! - A message is fetched into a node only if that node is nowhere in its list.
//! - A message leaves a node only if it has not left it before, and has been nowhere since it was fetched into it.
//!
//! Always true: a message crosses the bridges of one node at most once inwards and once outwards; its list has at most
//! [`STAMPS_MAX`] entries.

use super::ForwardedProperties;

/// The user property that names nodes passed.
pub const PROPERTY: &str = "tidegate-bridge";
/// The node that answers a request: its client may leave out messages that were at that node before.
pub const NODE_HEADER: &str = "tidegate-node";
/// Nodes that a message may pass, each counted when it is fetched into it and when it leaves it.
pub const STAMPS_MAX: usize = 32;

/// Longest name of a node that a peer says.
const NAME_BYTES_MAX: usize = 512;
/// Longest entry of a list that a peer says: a name with its direction.
pub const STAMP_BYTES_MAX: usize = NAME_BYTES_MAX + "out/".len();

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this node to the remote broker.
    Out,
    /// From the remote broker to this node.
    In,
}

/// Entries that this node adds to the list.
#[derive(Clone, Debug)]
pub struct Stamps {
    fetched: String,
    left: String,
    fetched_property: Vec<u8>,
    left_property: Vec<u8>,
}

impl Stamps {
    /// Those of the node that a peer says to be called `node`; none if that is not a valid name.
    pub fn of(node: &str) -> Option<Self> {
        let is_name =
            (1..=NAME_BYTES_MAX).contains(&node.len()) && !node.contains(char::is_control);
        is_name.then(|| Self::new(node))
    }

    /// Those of the node called `node`, at most 1,000 bytes.
    pub fn new(node: &str) -> Self {
        let encode = |value: &str| {
            let mut out = Vec::new();
            let user_properties = vec![(PROPERTY, value)];
            ForwardedProperties { user_properties, ..Default::default() }
                .encode(&mut out)
                .expect("names of nodes are short texts");
            out
        };
        let (fetched, left) = (format!("in/{node}"), format!("out/{node}"));
        let (fetched_property, left_property) = (encode(&fetched), encode(&left));
        Self { fetched, left, fetched_property, left_property }
    }

    /// The entry that a message gets, as text.
    pub fn value(&self, direction: Direction) -> &str {
        match direction {
            Direction::Out => &self.left,
            Direction::In => &self.fetched,
        }
    }

    /// The property that a message gets, as it is encoded.
    pub fn property(&self, direction: Direction) -> &[u8] {
        match direction {
            Direction::Out => &self.left_property,
            Direction::In => &self.fetched_property,
        }
    }

    /// Whether a message with these user properties may go that way.
    pub fn passes<'a>(
        &self,
        direction: Direction,
        properties: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        let (mut count, mut left, mut fetched, mut fetched_last) = (0, false, false, false);
        for (_, value) in properties.filter(|(name, _)| *name == PROPERTY) {
            count += 1;
            left |= value == self.left;
            fetched_last = value == self.fetched;
            fetched |= fetched_last;
        }
        count < STAMPS_MAX
            && !left
            && match direction {
                Direction::In => !fetched,
                Direction::Out => !fetched || fetched_last,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_passed_once_each_way() {
        use Direction::{In, Out};
        let stamps = Stamps::new("a");
        for (list, direction, expected) in [
            (&[][..], Out, true),
            (&[], In, true),
            (&["out/b"], Out, true),
            (&["out/b"], In, true),
            (&["in/a"], Out, true), // fetched by one bridge, sent on by another
            (&["in/a"], In, false),
            (&["in/a", "out/a"], Out, false),
            (&["out/a"], Out, false),
            (&["out/a", "out/b", "out/c"], Out, false),
            (&["out/a", "out/b", "out/c"], In, false),
            (&["in/a", "in/b"], Out, false), // came back by somebody's listener
            (&["out/aa", "in/ab"], In, true),
        ] {
            let properties = list.iter().map(|value| (PROPERTY, *value));
            assert_eq!(stamps.passes(direction, properties), expected, "{list:?} {direction:?}");
        }
        let others = [("x", "out/a"), ("y", "in/a")];
        assert!(stamps.passes(In, others.into_iter()), "other properties are not ours");
        let long = vec![(PROPERTY, "out/b"); STAMPS_MAX];
        assert!(!stamps.passes(Out, long.into_iter()), "somewhere it must end");
    }

    #[test]
    fn what_a_peer_says_to_be_its_name_must_be_one() {
        for (name, expected) in [
            ("edge-0123456789ab", true),
            ("", false),
            ("a\0", false),
            ("a\nb", false),
            (&"x".repeat(NAME_BYTES_MAX), true),
            (&"x".repeat(70_000), false),
        ] {
            assert_eq!(Stamps::of(name).is_some(), expected, "{} bytes", name.len());
        }
    }

    #[test]
    fn every_cycle_of_pushes_and_fetches_ends() {
        // Each edge of a random graph carries messages one way, by a bridge of the node that it leaves or of the one it enters.
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let edges: Vec<(u64, u64, bool)> = (0..6)
                .map(|_| (random(4), random(4), random(2) == 0))
                .filter(|(from, to, _)| from != to)
                .collect();
            let mut at: Vec<(u64, Vec<String>)> = vec![(0, Vec::new())];
            let mut steps = 0;
            while let Some((node, list)) = at.pop() {
                for (from, to, pushed) in &edges {
                    let (bridge, direction) =
                        if *pushed { (from, Direction::Out) } else { (to, Direction::In) };
                    let stamps = Stamps::new(&bridge.to_string());
                    let properties = list.iter().map(|value| (PROPERTY, &**value));
                    if *from == node && stamps.passes(direction, properties) {
                        let mut list = list.clone();
                        list.push(format!("{}/{bridge}", if *pushed { "out" } else { "in" }));
                        at.push((*to, list));
                    }
                }
                steps += 1;
                assert!(steps < 100_000, "a message goes in circles: {edges:?}");
            }
        }
    }
}
