//! Which subscriptions match a topic; and which topics a subscription matches, of those that have a retained message ([`Retained`]).
//!
//! ```text
//!   site/7/door      a table by text: site/7/door {key: value, ..}
//!
//!   site/7/+         a trie:  root -- site -- 7 -- +   {key: value, ..}
//!   site/7/door/#                             '-- door -- #   {key: value, ..}
//! ```
//!
//! A filter without wildcards matches the topic of the same text and no other, so one look-up finds
//! it; in most systems nearly all filters are such. The others are a trie with a node for each
//! level. The text of a level is kept once and stands as a number everywhere else, so one table from
//! (node, level) to node holds all edges but those to `+` and `#`, which are fields of the node.
//!
//! Cost: a topic of L levels looks up itself and L texts and then visits nodes, each once. A node
//! has at most two children that lead on, the level's own and `+`, and one that ends, `#`; so at
//! depth d a match visits at most `min(2^d, filters with wildcards that reach that deep)` inner
//! nodes, whatever the filters. It walks up again by the parents: no recursion, no stack. The tables
//! are hashed with a secret, so a client cannot choose texts that collide.
//!
//! Always true: every node but the root leads to a subscription; every level kept is on an edge;
//! every text of the first table has a subscriber. Numbers of nodes and levels are used again. The
//! tables keep their room when subscriptions go.

mod hash;
mod retained;
mod subscribers;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use self::retained::{Cursor, Retained};
use self::{hash::Seeded, subscribers::Subscribers, table::Table};

/// Subscriptions by filter.
///
/// `K` is a subscriber and `V` its options; both are best small. A subscriber has one value under
/// a filter, and any number of filters. Filters are valid by
/// [`check_topic_filter`](tidegate_message::check_topic_filter) and not shared ones.
///
/// ```
/// let mut index = tidegate_topics::Index::new();
/// index.insert("site/+/door", 7, "at most once");
/// let mut found = Vec::new();
/// index.matches("site/3/door", |key, value| found.push((key, value)));
/// assert_eq!(found, [(7, "at most once")]);
/// ```
#[derive(Clone, Debug)]
pub struct Index<K, V> {
    /// Subscribers by filter, of filters without wildcards.
    exact: Table<Arc<str>, Subscribers<K, V>>,
    exact_text_bytes: usize,
    /// The trie of the other filters.
    nodes: Vec<Node<K, V>>,
    /// Nodes to use again.
    nodes_free: Vec<u32>,
    /// Children by (parent, level), wildcards aside.
    edges: Table<(u32, u32), u32>,
    levels: Levels,
    subscriptions: usize,
    /// Subscriptions that share their filter, and so are held in an allocation of their own.
    listed: usize,
}

impl<K: Copy + Ord, V: Copy> Index<K, V> {
    /// An index without subscriptions.
    pub fn new() -> Self {
        let seeded = Seeded::new();
        Self {
            exact: Table::new(seeded.clone()),
            exact_text_bytes: 0,
            nodes: vec![Node::new(NONE, NONE)],
            nodes_free: Vec::new(),
            edges: Table::new(seeded.clone()),
            levels: Levels::new(seeded),
            subscriptions: 0,
            listed: 0,
        }
    }

    /// Adds a subscription, or replaces the value of the one that `key` has under `filter`.
    ///
    /// Returns the former value, or `None` if there was none.
    pub fn insert(&mut self, filter: &str, key: K, value: V) -> Option<V> {
        self.insert_with(filter, || filter.into(), key, value)
    }

    /// As [`Index::insert`], without a copy of a text that the caller keeps as well.
    pub fn insert_shared(&mut self, filter: &Arc<str>, key: K, value: V) -> Option<V> {
        self.insert_with(filter, || filter.clone(), key, value)
    }

    fn insert_with(
        &mut self,
        filter: &str,
        text: impl FnOnce() -> Arc<str>,
        key: K,
        value: V,
    ) -> Option<V> {
        let subscribers = if has_wildcard(filter) {
            let mut node = ROOT;
            for level in filter.split('/') {
                node = match self.child(node, level) {
                    NONE => self.add_child(node, level),
                    child => child,
                };
            }
            &mut self.nodes[node as usize].subscribers
        } else {
            if self.exact.get(filter).is_none() {
                self.exact.insert(text(), Subscribers::new());
                self.exact_text_bytes += filter.len();
            }
            self.exact.get_mut(filter).expect("it was just inserted")
        };
        let listed = subscribers.listed();
        let former = subscribers.insert(key, value);
        self.listed = self.listed - listed + subscribers.listed();
        self.subscriptions += usize::from(former.is_none());
        former
    }

    /// Ends the subscription of `key` under `filter`.
    ///
    /// Returns its value, or `None` if there was no such subscription.
    pub fn remove(&mut self, filter: &str, key: K) -> Option<V> {
        let node = if has_wildcard(filter) { Some(self.find(filter)?) } else { None };
        let subscribers = match node {
            Some(node) => &mut self.nodes[node as usize].subscribers,
            None => self.exact.get_mut(filter)?,
        };
        let listed = subscribers.listed();
        let former = subscribers.remove(key)?;
        self.listed = self.listed - listed + subscribers.listed();
        self.subscriptions -= 1;
        match node {
            Some(node) => self.prune(node, filter),
            None if subscribers.is_empty() => {
                self.exact.remove(filter);
                self.exact_text_bytes -= filter.len();
            }
            None => {}
        }
        Some(former)
    }

    /// The value of `key` under exactly this `filter`, or `None` if it has no such subscription.
    pub fn get(&self, filter: &str, key: K) -> Option<V> {
        if has_wildcard(filter) {
            self.nodes[self.find(filter)? as usize].subscribers.get(key)
        } else {
            self.exact.get(filter)?.get(key)
        }
    }

    /// Calls `each` for every subscription whose filter matches `topic`.
    ///
    /// The topic is valid by [`check_topic_name`](tidegate_message::check_topic_name). A subscriber
    /// with several filters that match is reported once for each. The order follows from the
    /// filters and keys alone, filter by filter and ascending keys within one; no more is promised.
    /// Allocates nothing for a topic of at most 64 levels.
    pub fn matches(&self, topic: &str, mut each: impl FnMut(K, V)) {
        if let Some(subscribers) = self.exact.get(topic) {
            subscribers.each(&mut each);
        }
        let mut few = [NONE; LEVELS_INLINE];
        let mut count = 0;
        let mut texts = topic.split('/');
        for (slot, text) in few.iter_mut().zip(&mut texts) {
            *slot = self.levels.find(text);
            count += 1;
        }
        let mut rest = texts.map(|text| self.levels.find(text)).peekable();
        if rest.peek().is_none() {
            self.walk(&few[..count], topic.starts_with('$'), &mut each);
        } else {
            let many: Vec<u32> = few.iter().copied().chain(rest).collect();
            self.walk(&many, topic.starts_with('$'), &mut each);
        }
    }

    /// Number of subscriptions.
    pub fn len(&self) -> usize {
        self.subscriptions
    }

    /// Whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.subscriptions == 0
    }

    /// About how many bytes of memory the index holds, room that is not used and texts that others keep as well included.
    pub fn bytes(&self) -> usize {
        self.exact.bytes()
            + texts_bytes(self.exact.len(), self.exact_text_bytes)
            + self.exact.len() * ARC_COUNTS_BYTES
            + self.nodes.capacity() * size_of::<Node<K, V>>()
            + self.nodes_free.capacity() * size_of::<u32>()
            + self.edges.bytes()
            + self.levels.bytes()
            + self.listed * Subscribers::<K, V>::LISTED_BYTES
    }

    /// Visits the nodes that match `levels`, depth first: the level's own child, then `+`.
    fn walk(&self, levels: &[u32], reserved: bool, each: &mut impl FnMut(K, V)) {
        // A wildcard as first level does not match a topic that begins with `$` (MQTT-4.7.2-1).
        let allowed = |id: u32| !(reserved && id == ROOT);
        let (mut id, mut depth) = (ROOT, 0);
        'visit: loop {
            let node = &self.nodes[id as usize];
            if node.hash != NONE && allowed(id) {
                self.nodes[node.hash as usize].subscribers.each(each);
            }
            if depth == levels.len() {
                node.subscribers.each(each);
            } else {
                let mut child = self.edge(id, levels[depth]);
                if child == NONE && allowed(id) {
                    child = node.plus;
                }
                if child != NONE {
                    (id, depth) = (child, depth + 1);
                    continue 'visit;
                }
            }
            // Back to the nearest ancestor that was left by the level's own child and has a `+`.
            loop {
                if id == ROOT {
                    return;
                }
                let (parent, was_own) =
                    (self.nodes[id as usize].parent, self.nodes[id as usize].level != PLUS);
                let plus = self.nodes[parent as usize].plus;
                if was_own && plus != NONE && allowed(parent) {
                    id = plus;
                    continue 'visit;
                }
                (id, depth) = (parent, depth - 1);
            }
        }
    }

    fn edge(&self, parent: u32, level: u32) -> u32 {
        // A leaf needs no look-up, nor does a level that no filter has.
        if level == NONE || self.nodes[parent as usize].children == 0 {
            return NONE;
        }
        self.edges.get(&(parent, level)).copied().unwrap_or(NONE)
    }

    /// The node of a filter: that of a subscription, or one on the way to others.
    fn find(&self, filter: &str) -> Option<u32> {
        let mut node = ROOT;
        for level in filter.split('/') {
            node = self.child(node, level);
            if node == NONE {
                return None;
            }
        }
        Some(node)
    }

    fn child(&self, parent: u32, level: &str) -> u32 {
        match level {
            "+" => self.nodes[parent as usize].plus,
            "#" => self.nodes[parent as usize].hash,
            _ => self.edge(parent, self.levels.find(level)),
        }
    }

    fn add_child(&mut self, parent: u32, text: &str) -> u32 {
        let level = match text {
            "+" => PLUS,
            "#" => HASH,
            _ => self.levels.hold(text),
        };
        let node = Node::new(parent, level);
        let id = if let Some(id) = self.nodes_free.pop() {
            self.nodes[id as usize] = node;
            id
        } else {
            if self.nodes.len() == self.nodes.capacity() {
                // By a quarter, not twofold: the nodes are most of the memory.
                self.nodes.reserve_exact(self.nodes.len() / 4 + 16);
            }
            self.nodes.push(node);
            number(self.nodes.len() - 1)
        };
        let parent_node = &mut self.nodes[parent as usize];
        match level {
            PLUS => parent_node.plus = id,
            HASH => parent_node.hash = id,
            _ => {
                parent_node.children += 1;
                self.edges.insert((parent, level), id);
            }
        }
        id
    }

    /// Takes out the node of `filter` and those above it, up to one that something else needs.
    fn prune(&mut self, mut node: u32, filter: &str) {
        for level in filter.rsplit('/') {
            if !self.nodes[node as usize].is_unused() {
                break;
            }
            node = self.remove_child(node, level);
        }
    }

    /// Takes an unused node out and returns its parent.
    fn remove_child(&mut self, id: u32, text: &str) -> u32 {
        let Node { parent, level, .. } = self.nodes[id as usize];
        let parent_node = &mut self.nodes[parent as usize];
        match level {
            PLUS => parent_node.plus = NONE,
            HASH => parent_node.hash = NONE,
            _ => {
                parent_node.children -= 1;
                self.edges.remove(&(parent, level));
                self.levels.release(text);
            }
        }
        self.nodes_free.push(id);
        parent
    }
}

impl<K: Copy + Ord, V: Copy> Default for Index<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

/// No node, or no level.
const NONE: u32 = u32::MAX;
/// The level `+` on an edge.
const PLUS: u32 = u32::MAX - 1;
/// The level `#` on an edge.
const HASH: u32 = u32::MAX - 2;
/// The node above all first levels.
const ROOT: u32 = 0;
/// Levels of a topic for which a match needs no memory of its own.
const LEVELS_INLINE: usize = 64;

/// One level of one or more filters. 48 bytes with subscribers and values of 8.
#[derive(Clone, Debug)]
struct Node<K, V> {
    parent: u32,
    /// The level on the edge from the parent: its number, `PLUS` or `HASH`.
    level: u32,
    plus: u32,
    hash: u32,
    /// Children in the map of edges.
    children: u32,
    /// Those whose filter ends here.
    subscribers: Subscribers<K, V>,
}

impl<K: Copy + Ord, V: Copy> Node<K, V> {
    fn new(parent: u32, level: u32) -> Self {
        let subscribers = Subscribers::new();
        Self { parent, level, plus: NONE, hash: NONE, children: 0, subscribers }
    }

    fn is_unused(&self) -> bool {
        self.plus == NONE && self.hash == NONE && self.children == 0 && self.subscribers.is_empty()
    }
}

/// The texts of levels, each with its number and how many edges have it.
#[derive(Clone, Debug)]
struct Levels {
    by_text: Table<Box<str>, Level>,
    numbers_free: Vec<u32>,
    text_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    number: u32,
    edges: u32,
}

impl Levels {
    fn new(seeded: Seeded) -> Self {
        Self { by_text: Table::new(seeded), numbers_free: Vec::new(), text_bytes: 0 }
    }

    /// The number of a level, or `NONE` if no edge has it.
    #[inline]
    fn find(&self, text: &str) -> u32 {
        self.by_text.get(text).map_or(NONE, |level| level.number)
    }

    /// The number of a level, for one more edge.
    fn hold(&mut self, text: &str) -> u32 {
        if let Some(level) = self.by_text.get_mut(text) {
            level.edges += 1;
            return level.number;
        }
        // Numbers in use are as many as texts, so the next unused one follows if none is free.
        let number = self.numbers_free.pop().unwrap_or_else(|| number(self.by_text.len()));
        self.by_text.insert(text.into(), Level { number, edges: 1 });
        self.text_bytes += text.len();
        number
    }

    /// Forgets one edge of a level, and with the last one its text.
    fn release(&mut self, text: &str) {
        let level = self.by_text.get_mut(text).expect("an edge holds its level");
        level.edges -= 1;
        if level.edges == 0 {
            self.numbers_free.push(level.number);
            self.by_text.remove(text);
            self.text_bytes -= text.len();
        }
    }

    fn bytes(&self) -> usize {
        texts_bytes(self.by_text.len(), self.text_bytes)
            + self.by_text.bytes()
            + self.numbers_free.capacity() * size_of::<u32>()
    }
}

/// Whether a valid filter goes into the trie.
#[inline]
fn has_wildcard(filter: &str) -> bool {
    filter.bytes().any(|byte| matches!(byte, b'+' | b'#'))
}

/// The number of a new node or level.
fn number(count: usize) -> u32 {
    let number = u32::try_from(count).ok().filter(|&number| number < HASH);
    number.expect("fewer nodes than 2^32 - 3: they would fill 200 GB")
}

/// Bytes of an [`Arc`] before its text.
const ARC_COUNTS_BYTES: usize = 2 * size_of::<usize>();

/// Bytes of texts in memory: each takes about 12 more than its own, for a header and rounding.
fn texts_bytes(count: usize, bytes: usize) -> usize {
    bytes + count * 12
}
