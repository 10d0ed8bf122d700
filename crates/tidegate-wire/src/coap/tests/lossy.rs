//! Clients and a server over a link that loses, doubles, delays and reorders, in virtual time: one seed replays all.

use std::collections::{BTreeMap, HashMap};

use super::*;

/// Numbers that look random, from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

enum To {
    Server(usize),
    Client(usize),
}

struct World {
    now: Instant,
    dice: Dice,
    loss: u64,
    copies: u64,
    delay_millis: u64,
    server: Server,
    clients: Vec<Client>,
    /// Under way, by arrival and order of sending.
    link: BTreeMap<(Instant, u64), (To, Vec<u8>)>,
    sent: u64,
    /// How long the shell takes to answer.
    slow: u64,
    answers: BTreeMap<(Instant, u64), (RequestKey, Answer)>,
    /// The published payloads, how often.
    published: HashMap<Vec<u8>, usize>,
    /// The value of the one topic that is read.
    value: String,
    followed: i32,
    events: Vec<Vec<ClientEvent>>,
}

impl World {
    fn new(seed: u64, clients: usize, loss: u64) -> Self {
        let mut dice = Dice(seed);
        let small = (dice.below(4) + 2) as u8;
        let config = ServerConfig { size_exponent: 6, ..ServerConfig::default() };
        let server_at = peer(99);
        let new = |number: usize| {
            Client::new(server_at, Transmission::default(), [number as u8 + 1; 32])
                .with_size_exponent(small)
        };
        Self {
            now: Instant::from_millis(1_700_000_000_000),
            loss,
            copies: dice.below(30),
            delay_millis: [3, 40, 400, 1500][dice.below(4) as usize],
            slow: dice.below(3) * 700,
            dice,
            server: Server::new(config, [42; 32]),
            clients: (0..clients).map(new).collect(),
            link: BTreeMap::new(),
            sent: 0,
            answers: BTreeMap::new(),
            published: HashMap::new(),
            value: "first".to_owned(),
            followed: 0,
            events: vec![Vec::new(); clients],
        }
    }

    fn carry(&mut self, to: impl Fn() -> To, datagram: &[u8]) {
        let times = match (self.dice.percent(self.loss), self.dice.percent(self.copies)) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        for _ in 0..times {
            // Now and then one is very late.
            let longest = self.delay_millis * if self.dice.percent(3) { 20 } else { 1 };
            let delay = Duration::from_millis(self.dice.below(longest) + 1);
            self.sent += 1;
            self.link.insert((self.now + delay, self.sent), (to(), datagram.to_vec()));
        }
    }

    /// Moves what leaves onto the link, and takes events.
    fn settle(&mut self) {
        while let Some(event) = self.server.poll_event() {
            let (request, answer) = match event {
                Event::Publish(publish) => {
                    *self.published.entry(publish.payload.to_vec()).or_default() += 1;
                    (publish.request, Answer::Accept)
                }
                Event::Read(read) => (read.request, Answer::Content(representation(&self.value))),
                Event::Followed { .. } => {
                    self.followed += 1;
                    let value = representation(&self.value);
                    self.server.notify(self.now, "state", &value);
                    continue;
                }
                Event::Unfollowed { .. } => {
                    self.followed -= 1;
                    continue;
                }
            };
            if self.slow > 0 && self.dice.percent(50) {
                let at = self.now + Duration::from_millis(self.dice.below(self.slow));
                self.sent += 1;
                self.answers.insert((at, self.sent), (request, answer));
            } else {
                self.server.answer(self.now, request, answer);
            }
        }
        let mut leaving = Vec::new();
        while let Some(transmit) = self.server.poll_transmit() {
            leaving.push((transmit.peer, transmit.datagram.to_vec()));
        }
        for (to, datagram) in leaving {
            let number = (0..self.clients.len()).find(|at| peer(*at as u32) == to).unwrap();
            self.carry(|| To::Client(number), &datagram);
        }
        for number in 0..self.clients.len() {
            let mut leaving = Vec::new();
            while let Some(transmit) = self.clients[number].poll_transmit() {
                leaving.push(transmit.datagram.to_vec());
            }
            for datagram in leaving {
                self.carry(|| To::Server(number), &datagram);
            }
            while let Some(event) = self.clients[number].poll_event() {
                self.events[number].push(event);
            }
        }
    }

    /// Advances to the next event before `end`; returns whether there was one.
    fn step(&mut self, end: Instant) -> bool {
        let of_link = self.link.first_key_value().map(|((at, _), _)| *at);
        let of_answers = self.answers.first_key_value().map(|((at, _), _)| *at);
        let of_clients = self.clients.iter().filter_map(Client::poll_timeout).min();
        let next = [of_link, of_answers, of_clients, self.server.poll_timeout()]
            .into_iter()
            .flatten()
            .min();
        let Some(next) = next.filter(|next| *next <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.link.first_entry().filter(|it| it.key().0 <= self.now) {
            match entry.remove() {
                (To::Server(from), datagram) => {
                    let from = peer(from as u32);
                    self.server.handle(self.now, from, &datagram.into()).expect("a message");
                }
                (To::Client(to), datagram) => self.clients[to].handle(self.now, &datagram),
            }
            self.settle();
        }
        while let Some(entry) = self.answers.first_entry().filter(|it| it.key().0 <= self.now) {
            let (request, answer) = entry.remove();
            self.server.answer(self.now, request, answer);
        }
        self.server.handle_timeout(self.now);
        for client in &mut self.clients {
            client.handle_timeout(self.now);
        }
        self.settle();
        true
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while self.step(end) {}
    }
}

/// The payload of one client's request: its name, and so long that some need blocks.
fn payload(client: usize, request: usize, bytes: u64) -> Vec<u8> {
    let mut payload = format!("{client}/{request}/").into_bytes();
    payload.extend((0..bytes).map(|at| at as u8));
    payload
}

#[test]
fn a_confirmable_post_is_delivered_once_or_reported_as_failed() {
    let (mut delivered, mut failed) = (0, 0);
    for seed in 0..60 {
        println!("seed {seed}");
        let loss = [0, 5, 20, 40, 60][seed as usize % 5];
        let mut world = World::new(seed, 3, loss);
        let mut asked = HashMap::new();
        for number in 0..3 {
            for request in 0..15 {
                let bytes = [10, 10, 10, 300, 3000][world.dice.below(5) as usize];
                let payload = payload(number, request, bytes);
                let asking = ClientRequest {
                    payload: payload.clone().into(),
                    ..ClientRequest::new(Method::Post, "plant/temperature")
                };
                let handle = world.clients[number].request(world.now, asking).unwrap();
                asked.insert((number, handle), payload);
            }
        }
        world.run(seconds(40_000));
        for (number, events) in world.events.iter().enumerate() {
            for event in events {
                let (request, is_done) = match event {
                    ClientEvent::Response { request, code, .. } => {
                        // Blocks that came too late are answered so, and were not taken.
                        (request, code.is_success())
                    }
                    ClientEvent::Failed { request, .. } => (request, false),
                    other => panic!("seed {seed}: {other:?}"),
                };
                let payload = asked.remove(&(number, *request)).expect("one outcome each");
                let times = world.published.get(&payload).copied().unwrap_or(0);
                if is_done {
                    assert_eq!(times, 1, "seed {seed}: client {number}, {request:?}");
                    delivered += 1;
                } else {
                    assert!(times <= 1, "seed {seed}: client {number}, {request:?}, {times}");
                    assert!(loss > 5, "seed {seed}: client {number}, {event:?}");
                    failed += 1;
                }
            }
        }
        assert!(asked.is_empty(), "seed {seed}: {} without an outcome", asked.len());
        let held = world.server.statistics();
        assert_eq!((held.open, held.held_bytes), (0, 0), "seed {seed}");
    }
    println!("{delivered} delivered, {failed} reported as failed");
    assert!(delivered > 20 * failed / 10 && failed > 0, "{delivered} and {failed}");
}

#[test]
fn an_observer_has_the_last_value_in_the_end_or_knows_that_it_observes_no_longer() {
    let (mut converged, mut ended) = (0, 0);
    for seed in 0..60 {
        println!("seed {seed}");
        let loss = [0, 5, 10, 20][seed as usize % 4];
        let mut world = World::new(1000 + seed, 3, loss);
        for number in 0..3 {
            let asking =
                ClientRequest { follows: true, ..ClientRequest::new(Method::Get, "state") };
            world.clients[number].request(world.now, asking).unwrap();
        }
        world.run(seconds(5));
        for step in 0..100 {
            let length = [5, 5, 5, 5, 2000][world.dice.below(5) as usize];
            world.value = format!("{step:0>length$}");
            let value = representation(&world.value);
            world.server.notify(world.now, "state", &value);
            let pause = [1, 20, 300, 4000][world.dice.below(4) as usize];
            world.run(Duration::from_millis(pause));
        }
        world.run(seconds(5000));
        for events in &world.events {
            let mut last = None;
            let mut follows = true;
            for event in events {
                match event {
                    ClientEvent::Response { payload, follows: now, .. } => {
                        follows &= *now;
                        last = Some(payload.clone());
                    }
                    ClientEvent::Notification { payload, .. } => last = Some(payload.clone()),
                    ClientEvent::Ended { .. } | ClientEvent::Failed { .. } => follows = false,
                }
            }
            // A server that gave a client up has taken it from its list; the client hears no more.
            if last.as_deref() == Some(world.value.as_bytes()) {
                converged += 1;
            } else {
                let timed_out = world.server.statistics().timed_out;
                assert!(!follows || timed_out > 0, "seed {seed}, loss {loss}: {last:?}");
                ended += 1;
                assert!(loss > 5, "seed {seed}: {events:?}");
            }
        }
        let observers = world.server.statistics().observers;
        assert_eq!(world.followed, i32::from(observers > 0), "seed {seed}");
    }
    println!("{converged} have the last value, {ended} follow no longer");
    assert!(converged > 9 * ended, "{converged} and {ended}");
}
