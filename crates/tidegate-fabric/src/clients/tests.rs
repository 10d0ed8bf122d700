use std::collections::BTreeMap;

use super::*;

const CLIENTS: u64 = 5;
/// Longest way of a record.
const LATENCY_MAX: i64 = 20;

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// A client at a broker.
#[derive(Clone, Debug)]
struct Session {
    client: Client,
    /// The number of the connection, of all that ever were.
    number: u64,
}

struct Node {
    clients: Clients,
    /// Milliseconds that its clock is ahead.
    skew: i64,
    sessions: BTreeMap<String, Session>,
}

/// Nodes, ways between them, and clients that connect at any.
struct World {
    random: Random,
    /// Milliseconds.
    now: i64,
    nodes: Vec<Node>,
    /// Which link of two nodes is up, by its number.
    links: BTreeMap<(usize, usize), u64>,
    /// Milliseconds that the first record of a link takes in addition.
    greeting: i64,
    /// When it arrives, in order of sending, over which link, from where to where.
    on_the_way: BTreeMap<(i64, u64), (u64, usize, usize, Record)>,
    count: u64,
    /// The newest connection of each client, and when it began.
    newest: BTreeMap<String, (u64, i64)>,
    events: Vec<(usize, ClientEvent)>,
    /// Connections that were taken over.
    ended: Vec<u64>,
}

fn id(node: usize) -> NodeId {
    NodeId([node as u8; 32])
}

fn client(name: &str, kind: OwnerKind, owner: &str) -> Client {
    Client {
        client: name.into(),
        kind,
        owner: owner.into(),
        began: Instant::EPOCH,
        is_clean: false,
        is_connected: true,
    }
}

impl World {
    fn new(seed: u64, nodes: usize) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let nodes = (0..nodes).map(|node| Node::new(node, &mut random)).collect();
        Self {
            random,
            now: 0,
            nodes,
            links: BTreeMap::new(),
            greeting: 0,
            on_the_way: BTreeMap::new(),
            count: 0,
            newest: BTreeMap::new(),
            events: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn at(&self, node: usize) -> Instant {
        Instant::from_millis(self.now + self.nodes[node].skew)
    }

    fn link(&mut self, one: usize, other: usize) {
        if one == other || self.links.contains_key(&(one.min(other), one.max(other))) {
            return;
        }
        self.count += 1;
        self.links.insert((one.min(other), one.max(other)), self.count);
        for (node, peer) in [(one, other), (other, one)] {
            let now = self.at(node);
            self.nodes[node].clients.linked(now, id(peer));
        }
        self.pump();
    }

    fn cut(&mut self, one: usize, other: usize) {
        if self.links.remove(&(one.min(other), one.max(other))).is_some() {
            self.nodes[one].clients.unlinked(id(other));
            self.nodes[other].clients.unlinked(id(one));
        }
    }

    fn cut_off(&mut self, node: usize) {
        (0..self.nodes.len()).for_each(|other| self.cut(node, other));
    }

    fn link_all(&mut self) {
        for one in 0..self.nodes.len() {
            (0..one).for_each(|other| self.link(one, other));
        }
    }

    fn connect(&mut self, node: usize, client: Client) {
        self.count += 1;
        let began = self.at(node);
        let client = Client { began, ..client };
        let name = client.client.to_string();
        self.newest.insert(name.clone(), (self.count, self.now));
        self.nodes[node].clients.connected(client.clone());
        self.nodes[node].sessions.insert(name, Session { client, number: self.count });
        self.pump();
    }

    /// Ends a connection; its session stays where `keeps`.
    fn leave(&mut self, node: usize, name: &str, keeps: bool) {
        let Node { clients, sessions, .. } = &mut self.nodes[node];
        let Some(session) = sessions.get_mut(name) else { return };
        if keeps {
            session.client.is_connected = false;
            clients.left(name, session.client.began);
        } else {
            sessions.remove(name);
            clients.ended(name);
        }
        self.pump();
    }

    /// Its sessions are kept by its journal, and its clock is another.
    fn restart(&mut self, node: usize) {
        self.cut_off(node);
        let sessions = std::mem::take(&mut self.nodes[node].sessions);
        self.nodes[node] = Node::new(node, &mut self.random);
        let began = self.at(node);
        for (name, mut session) in sessions {
            (session.client.is_connected, session.client.began) = (false, began);
            self.nodes[node].sessions.insert(name, session);
        }
        let all = self.nodes[node].sessions.values().map(|session| session.client.clone());
        let all = all.collect();
        self.nodes[node].clients.set(all);
    }

    /// Sends what nodes have to say, and does what they want done.
    fn pump(&mut self) {
        for node in 0..self.nodes.len() {
            while let Some(event) = self.nodes[node].clients.poll_event() {
                self.happened(node, event);
            }
        }
        let links: Vec<_> = self.links.iter().map(|(ends, link)| (*ends, *link)).collect();
        for ((one, other), link) in links {
            for (from, to) in [(one, other), (other, one)] {
                let now = self.at(from);
                while let Some(record) = self.nodes[from].clients.poll_transmit(now, id(to)) {
                    self.count += 1;
                    let bytes = record.to_bytes();
                    let record = Record::decode(&bytes).expect("it is ours").expect("it is known");
                    // Each behind the one before it.
                    let is_before = |(of, a, b, _): &&(u64, usize, usize, Record)| {
                        (*of, *a, *b) == (link, from, to)
                    };
                    let last = self.on_the_way.iter().rfind(|(_, way)| is_before(way));
                    let last = last.map_or(0, |((at, _), _)| *at);
                    let first =
                        if matches!(record, Record::ClientsHere(_)) { self.greeting } else { 0 };
                    let at = self.now + 1 + first + self.random.below(LATENCY_MAX as u64) as i64;
                    self.on_the_way.insert((at.max(last), self.count), (link, from, to, record));
                }
            }
        }
    }

    fn happened(&mut self, node: usize, event: ClientEvent) {
        if let ClientEvent::Taken { client, began, ends_session, .. } = &event {
            let Node { sessions, clients, .. } = &mut self.nodes[node];
            let session = sessions.get_mut(&**client).filter(|one| one.client.began == *began);
            if let Some(session) = session {
                assert!(session.client.is_connected || *ends_session, "there is something to end");
                self.ended.extend(session.client.is_connected.then_some(session.number));
                session.client.is_connected = false;
                if *ends_session {
                    sessions.remove(&**client);
                    clients.ended(client);
                } else {
                    clients.left(client, *began);
                }
            }
        }
        self.events.push((node, event));
    }

    fn run_for(&mut self, millis: i64) {
        let until = self.now + millis;
        while let Some((&(at, _), _)) = self.on_the_way.first_key_value()
            && at <= until
        {
            let (_, (link, from, to, record)) = self.on_the_way.pop_first().expect("just seen");
            self.now = at;
            let now = self.at(to);
            if self.links.get(&(from.min(to), from.max(to))) == Some(&link) {
                let clients = &mut self.nodes[to].clients;
                match record {
                    Record::ClientsHere(here) => clients.handle_here(now, id(from), here),
                    Record::ClientClaims(claims) => {
                        clients
                            .handle_claims(now, id(from), claims)
                            .expect("it keeps the protocol");
                    }
                    other => panic!("{other:?}"),
                }
            }
            self.pump();
        }
        self.now = until;
    }

    /// Where a client is connected, and by which connection.
    fn places(&self, name: &str) -> Vec<(usize, u64)> {
        let at = |(node, one): (usize, &Node)| {
            let session = one.sessions.get(name).filter(|session| session.client.is_connected)?;
            Some((node, session.number))
        };
        self.nodes.iter().enumerate().filter_map(at).collect()
    }
}

impl Node {
    fn new(node: usize, random: &mut Random) -> Self {
        let day = 86_400_000;
        Self {
            clients: Clients::new(id(node), random.below(1 << 30)),
            skew: random.below(2 * day) as i64 - day as i64,
            sessions: BTreeMap::new(),
        }
    }
}

/// Clients that connect anywhere, cuts, restarts, and clocks that are hours apart; connections of one client begin at least `gap` apart.
fn run(seed: u64, gap: i64) -> World {
    let nodes = 2 + seed as usize % 4;
    let mut world = World::new(seed, nodes);
    if seed.is_multiple_of(3) {
        world.link_all();
    }
    for _ in 0..120 {
        let [node, other] = [(); 2].map(|()| world.random.below(nodes as u64) as usize);
        let name = format!("client{}", world.random.below(CLIENTS));
        match world.random.below(20) {
            0..8 => {
                let last = world.newest.get(&name).map_or(i64::MIN, |(_, at)| *at);
                if world.now.saturating_sub(last) >= gap {
                    let is_clean = world.random.below(2) == 0;
                    world.connect(
                        node,
                        Client { is_clean, ..client(&name, OwnerKind::User, "ada") },
                    );
                }
            }
            8 | 9 => {
                let keeps = world.random.below(2) == 0;
                world.leave(node, &name, keeps);
            }
            10..13 => world.cut(node, other),
            13..18 => world.link(node, other),
            18 => world.cut_off(node),
            _ => world.restart(node),
        }
        let millis = world.random.below(60) as i64;
        world.run_for(millis);
    }
    world.link_all();
    world.run_for(2000);
    assert!(world.on_the_way.is_empty(), "seed {seed}: they come to an end");
    world
}

#[test]
fn one_connection_of_a_client_stays_and_it_is_the_newest() {
    for seed in 0..2000 {
        let world = run(seed, 3 * LATENCY_MAX);
        for (name, (number, _)) in &world.newest {
            let places = world.places(name);
            assert!(places.len() <= 1, "seed {seed}: {name} at {places:?}");
            assert!(!world.ended.contains(number), "seed {seed}: the newest of {name} was ended");
        }
        assert!(world.nodes.iter().all(|node| node.clients.disputes().next().is_none()));
    }
}

#[test]
fn at_most_one_connection_stays_however_close_they_begin() {
    for seed in 0..1000 {
        let world = run(seed, 0);
        for name in world.newest.keys() {
            let places = world.places(name);
            assert!(places.len() <= 1, "seed {seed}: {name} at {places:?}");
        }
    }
}

#[test]
fn one_stays_of_two_that_begin_at_once() {
    for seed in 0..500 {
        let mut world = World::new(seed, 2);
        world.link_all();
        world.run_for(100);
        let first = world.random.below(2) as usize;
        world.connect(first, client("c", OwnerKind::User, "ada"));
        let between = world.random.below(LATENCY_MAX as u64) as i64;
        world.run_for(between);
        world.connect(1 - first, client("c", OwnerKind::User, "ada"));
        world.run_for(1000);
        assert_eq!(world.places("c").len(), 1, "seed {seed}");
    }
}

#[test]
fn connection_that_begins_after_its_node_heard_of_another_is_newer_however_slow_the_first_record() {
    for seed in 0..200 {
        let mut world = World::new(seed, 2);
        world.greeting = 500;
        world.link_all();
        world.run_for(2000);
        for turn in 0..6 {
            world.connect(turn % 2, client("c", OwnerKind::User, "ada"));
            world.run_for(3 * LATENCY_MAX);
            let (number, _) = world.newest["c"];
            assert_eq!(world.places("c"), [(turn % 2, number)], "seed {seed}, turn {turn}");
        }
    }
}

#[test]
fn identity_decides_as_at_one_node() {
    use OwnerKind::{Anonymous, Certificate, User};
    let cases = [
        ((User, "ada"), (User, "ada"), 1),
        ((Anonymous, ""), (Anonymous, ""), 1),
        // One that showed nothing gives way.
        ((Anonymous, ""), (User, "ada"), 1),
        ((User, "ada"), (Anonymous, ""), 2),
        ((User, "ada"), (User, "bob"), 2),
        ((User, "ada"), (Certificate, "ada"), 2),
    ];
    // Whichever of the two gives verdicts.
    for ((older, newer, stay), is_turned) in
        cases.iter().flat_map(|case| [(case, false), (case, true)])
    {
        let (older, newer) = (client("c", older.0, older.1), client("c", newer.0, newer.1));
        let mut world = World::new(1, 2);
        let (first, second) = if is_turned { (1, 0) } else { (0, 1) };
        world.link_all();
        world.run_for(100);
        world.connect(first, older.clone());
        world.run_for(100);
        world.connect(second, newer.clone());
        world.run_for(100);
        let case = format!("{older:?}, then {newer:?}, {is_turned}");
        assert_eq!(world.places("c").len(), *stay, "{case}");
        let at = |node: usize| world.nodes[node].clients.disputes().count();
        let disputes = usize::from(*stay == 2);
        assert_eq!((at(0), at(1)), (disputes, disputes), "{case}");
        let named = |one: &(usize, ClientEvent)| matches!(one.1, ClientEvent::Disputed { .. });
        assert_eq!(world.events.iter().filter(|one| named(one)).count(), 2 * disputes, "{case}");
        // Whichever leaves, it is over at both.
        world.leave(second, "c", false);
        world.run_for(100);
        let at = |node: usize| world.nodes[node].clients.disputes().count();
        assert_eq!((at(0), at(1)), (0, 0), "{case}");
    }
}

#[test]
fn session_that_waits_ends_by_a_newer_client_that_wants_none_alone() {
    for (is_clean, is_turned) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new(1, 2);
        let (first, second) = if is_turned { (1, 0) } else { (0, 1) };
        world.link_all();
        world.run_for(100);
        world.connect(first, client("c", OwnerKind::User, "ada"));
        world.leave(first, "c", true);
        world.run_for(100);
        let newer = Client { is_clean, ..client("c", OwnerKind::User, "ada") };
        world.connect(second, newer);
        world.run_for(100);
        let is_there = world.nodes[first].sessions.contains_key("c");
        assert_eq!(is_there, !is_clean, "{is_turned}");
        assert_eq!(world.places("c").len(), 1);
    }
    // Nor does a client of before the restart, or of another identity.
    for (owner, restarts) in [("ada", true), ("bob", false)] {
        let mut world = World::new(1, 2);
        world.connect(1, Client { is_clean: true, ..client("c", OwnerKind::User, owner) });
        world.run_for(100);
        world.connect(0, client("c", OwnerKind::User, "ada"));
        world.leave(0, "c", true);
        world.run_for(100);
        if restarts {
            world.restart(0);
        } else {
            world.connect(1, Client { is_clean: true, ..client("c", OwnerKind::User, owner) });
        }
        world.link_all();
        world.run_for(100);
        assert!(world.nodes[0].sessions.contains_key("c"), "{owner} {restarts}");
    }
}

#[test]
fn members_that_meet_compare_all_and_the_one_that_has_fewer_tells() {
    let mut world = World::new(1, 2);
    for number in 0..3000 {
        world.connect(0, client(&format!("many{number}"), OwnerKind::User, "ada"));
        world.now += 1;
    }
    for name in ["few1", "many17", "many1999", "few2"] {
        world.connect(1, client(name, OwnerKind::User, "ada"));
    }
    world.run_for(100);
    world.link_all();
    let mut records = 0;
    while !world.on_the_way.is_empty() {
        records += 1;
        world.run_for(1);
        assert!(records < 200);
    }
    assert_eq!(world.places("many17").len(), 1);
    assert_eq!(world.places("many17")[0].0, 1, "it is newer");
    assert_eq!(world.places("many1999")[0].0, 1, "it is newer");
    assert_eq!(world.ended.len(), 2);
    assert!(world.count < 3000 + 4 + 2 + 20, "{} records were sent for four clients", world.count);
    let met = |one: &(usize, ClientEvent)| matches!(one.1, ClientEvent::Taken { is_met: true, .. });
    assert_eq!(world.events.iter().filter(|one| met(one)).count(), 2);
}

#[test]
fn all_are_told_in_as_many_records_as_it_takes() {
    let mut clients = Clients::new(id(1), 1);
    let names: Vec<String> = (0..2000).map(|number| format!("client{number}")).collect();
    for name in &names {
        clients.connected(client(name, OwnerKind::User, "ada"));
    }
    clients.linked(Instant::EPOCH, id(2));
    let here = ClientsHere { process: 1, now: Instant::EPOCH, count: 2000 };
    clients.handle_here(Instant::EPOCH, id(2), here);
    let mut told = Vec::new();
    while let Some(record) = clients.poll_transmit(Instant::EPOCH, id(2)) {
        let Record::ClientClaims(ClientClaims { claims, .. }) = record else { continue };
        told.extend(claims.into_iter().map(|claim| claim.client));
    }
    told.sort();
    let mut names = names;
    names.sort();
    assert_eq!(told, names, "each once");
}

#[test]
fn member_that_does_not_keep_the_protocol_is_refused_and_ends_no_client_of_another() {
    let mut clients = Clients::new(id(5), 1);
    clients.connected(client("c", OwnerKind::User, "ada"));
    let verdict = ClientVerdict {
        client: "c".to_owned(),
        began: Instant::EPOCH,
        owner: ClientOwner { kind: OwnerKind::User, name: "bob".to_owned() },
        is_clean: true,
        is_disputed: false,
        is_met: false,
    };
    let claims = || ClientClaims { verdicts: vec![verdict.clone()], ..ClientClaims::default() };
    let here = ClientsHere { process: 1, now: Instant::MAX, count: u32::MAX };
    assert_eq!(
        clients.handle_claims(Instant::EPOCH, id(1), claims()),
        Ok(()),
        "it is not linked any more"
    );
    for peer in [1, 9] {
        clients.linked(Instant::EPOCH, id(peer));
        assert_eq!(
            clients.handle_claims(Instant::EPOCH, id(peer), claims()),
            Err(ClientsError::NoTime)
        );
        clients.handle_here(Instant::EPOCH, id(peer), here);
    }
    assert_eq!(clients.handle_claims(Instant::EPOCH, id(9), claims()), Err(ClientsError::Verdict));
    assert_eq!(clients.handle_claims(Instant::EPOCH, id(1), claims()), Ok(()));
    let disputed = ClientEvent::Disputed { client: "c".into(), with: id(1) };
    assert_eq!((clients.poll_event(), clients.poll_event()), (Some(disputed), None));
    // One that says again that it is there is not told all again.
    while clients.poll_transmit(Instant::EPOCH, id(1)).is_some() {}
    clients.handle_here(Instant::EPOCH, id(1), here);
    assert_eq!(clients.poll_transmit(Instant::EPOCH, id(1)), None);
}

#[test]
fn disputes_are_bounded_and_long_identifiers_are_a_nodes_own() {
    let mut clients = Clients::new(id(5), 1);
    clients.linked(Instant::EPOCH, id(6));
    let here = ClientsHere { process: 1, now: Instant::EPOCH, count: 0 };
    clients.handle_here(Instant::EPOCH, id(6), here);
    for number in 0..2 * DISPUTES_MAX {
        let mine = client(&format!("c{number}"), OwnerKind::User, "ada");
        let claim = ClientClaim {
            client: mine.client.to_string(),
            owner: ClientOwner { kind: OwnerKind::User, name: "bob".to_owned() },
            began: Instant::EPOCH,
            is_clean: false,
            is_connected: true,
        };
        clients.connected(mine);
        let record = ClientClaims { claims: vec![claim], ..ClientClaims::default() };
        clients.handle_claims(Instant::EPOCH, id(6), record).expect("it keeps the protocol");
    }
    assert_eq!(clients.disputes().count(), DISPUTES_MAX);
    clients.connected(client(&"c".repeat(TEXT_BYTES_MAX + 1), OwnerKind::User, "ada"));
    while let Some(record) = clients.poll_transmit(Instant::EPOCH, id(6)) {
        let Record::ClientClaims(ClientClaims { claims, .. }) = record else { continue };
        assert!(claims.iter().all(|claim| claim.client.len() < TEXT_BYTES_MAX));
    }
}

#[test]
fn list_of_all_stands_for_what_was_missed() {
    let mut clients = Clients::new(id(1), 1);
    for name in ["stays", "leaves", "ends", "again"] {
        clients.connected(client(name, OwnerKind::User, "ada"));
    }
    let at = |seconds: i64| Instant::from_millis(1000 * seconds);
    let of = |name: &str| client(name, OwnerKind::User, "ada");
    clients.set(vec![
        of("stays"),
        Client { is_connected: false, ..of("leaves") },
        Client { began: at(1), ..of("again") },
        of("came"),
    ]);
    assert_eq!(clients.connected, 3);
    clients.left("again", at(0));
    assert_eq!(clients.connected, 3, "that one was over before");
    clients.left("again", at(1));
    clients.ended("stays");
    clients.ended("leaves");
    assert_eq!((clients.connected, clients.own.len()), (1, 2));
}
