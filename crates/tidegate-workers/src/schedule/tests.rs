//! The schedule in virtual time: clients, workers that answer, die and hang, from a seed.

use std::collections::BTreeMap;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(millis: i64) -> Instant {
    Instant::from_millis(millis)
}

fn job(client: u64) -> Job {
    Job {
        client: ClientId(client),
        stream: None,
        group: 0,
        bytes: 10,
        start_by: None,
        repeatable: true,
    }
}

/// A schedule whose workers are ready.
fn ready(config: ScheduleConfig, workers: usize, in_flight: usize, batch: usize) -> Schedule {
    let mut schedule = Schedule::new(at(0), config, workers);
    for worker in 0..workers {
        assert_eq!(schedule.poll_action(at(0)), Some(Action::Start(WorkerId(worker))));
        schedule.started(at(0), WorkerId(worker), Capacity { in_flight, batch });
    }
    assert_eq!(schedule.poll_action(at(0)), None);
    schedule
}

fn one() -> Schedule {
    ready(ScheduleConfig::default(), 1, 1, 1)
}

fn sent(worker: usize, jobs: &[JobId]) -> Option<Action> {
    Some(Action::Send(WorkerId(worker), jobs.to_vec()))
}

#[test]
fn clients_are_served_in_turns() {
    let mut schedule = one();
    let greedy: Vec<_> = (0..4).map(|_| schedule.submit(at(0), job(1)).unwrap()).collect();
    let modest = schedule.submit(at(0), job(2)).unwrap();
    for expected in [greedy[0], modest, greedy[1], greedy[2], greedy[3]] {
        assert_eq!(schedule.poll_action(at(1)), sent(0, &[expected]));
        assert_eq!(schedule.poll_action(at(1)), None, "one in flight");
        schedule.answered(at(2), WorkerId(0), expected);
    }
}

/// A worker that looks at one image after the other, 10 ms each, and answers those of a batch together.
struct Sequential {
    schedule: Schedule,
    batches: VecDeque<(Instant, Vec<JobId>)>,
}

impl Sequential {
    fn new(in_flight: usize, batch: usize) -> Self {
        let schedule = ready(ScheduleConfig::default(), 1, in_flight, batch);
        Self { schedule, batches: VecDeque::new() }
    }

    /// Begins what there is room for.
    fn send(&mut self, now: Instant) {
        while let Some(action) = self.schedule.poll_action(now) {
            let Action::Send(_, jobs) = action else { panic!("{action:?}") };
            let begins = self.batches.back().map_or(now, |(by, _)| (*by).max(now));
            self.batches.push_back((later(begins, jobs.len() as u32 * 10 * MS), jobs));
        }
    }

    /// Ends the next batch; returns when that was, and what was in it.
    fn answer(&mut self) -> (Instant, Vec<JobId>) {
        let (now, jobs) = self.batches.pop_front().expect("it is kept busy");
        for job in &jobs {
            self.schedule.answered(now, WorkerId(0), *job);
        }
        (now, jobs)
    }
}

#[test]
fn a_flood_leaves_its_share_of_a_worker_to_others() {
    // The longest wait of a client that asks for one image after the other, in times of service, its own included.
    for (in_flight, batch, floods, waits_max) in
        [(8, 1, 1, 6), (8, 8, 1, 6), (8, 1, 3, 10), (64, 1, 1, 36)]
    {
        let mut worker = Sequential::new(in_flight, batch);
        let (mut now, mut of_flood) = (at(0), 0);
        let mut asked: Option<(Instant, JobId)> = None;
        let mut waits = Vec::new();
        while waits.len() < 40 {
            for flood in 0..floods {
                let queue = &worker.schedule.queues;
                for _ in queue.get(&ClientId(flood)).map_or(0, VecDeque::len)..20 {
                    worker.schedule.submit(now, job(flood)).unwrap();
                }
            }
            worker.send(now);
            // It asks in the middle of something, when it has its answer.
            let asks = later(now, 3 * MS);
            if asked.is_none() {
                asked = Some((asks, worker.schedule.submit(asks, job(99)).unwrap()));
                worker.send(asks);
            }
            let answered = worker.answer();
            now = answered.0;
            match asked.take_if(|(_, id)| answered.1.contains(id)) {
                Some((since, _)) => waits.push(now.since(since)),
                None => of_flood += answered.1.len(),
            }
        }
        // The first came to a worker that was the flood's alone.
        let longest = *waits[1..].iter().max().unwrap();
        assert!(longest <= waits_max * 10 * MS, "{in_flight}, {batch}, {floods}: {waits:?}");
        assert!(of_flood >= 40, "the others are served as well: {of_flood}");
    }
}

#[test]
fn a_client_alone_has_all_of_a_worker() {
    let mut schedule = ready(ScheduleConfig::default(), 1, 4, 1);
    let other = schedule.submit(at(0), job(2)).unwrap();
    assert_eq!(schedule.poll_action(at(0)), sent(0, &[other]));
    schedule.answered(at(10), WorkerId(0), other);
    let ids: Vec<_> = (0..6).map(|_| schedule.submit(at(10), job(1)).unwrap()).collect();
    for id in &ids[..2] {
        assert_eq!(schedule.poll_action(at(10)), sent(0, &[*id]));
    }
    assert_eq!(schedule.poll_action(at(10)), None, "the other may come again");
    // It has not, in the time of four images.
    schedule.answered(at(100), WorkerId(0), ids[0]);
    for id in &ids[2..5] {
        assert_eq!(schedule.poll_action(at(100)), sent(0, &[*id]));
    }
}

#[test]
fn a_batch_is_of_one_model_and_waits_no_longer_than_it_may() {
    let config = ScheduleConfig { batch_wait: 5 * MS, ..ScheduleConfig::default() };
    let mut schedule = ready(config, 1, 4, 4);
    let first = schedule.submit(at(0), job(1)).unwrap();
    let other = schedule.submit(at(1), Job { group: 9, ..job(2) }).unwrap();
    let second = schedule.submit(at(1), job(3)).unwrap();
    assert_eq!(schedule.poll_action(at(4)), None);
    assert_eq!(schedule.poll_timeout(), Some(at(5)));
    assert_eq!(schedule.poll_action(at(5)), sent(0, &[first, second]));
    // The worker is busy, and there is room for two more.
    assert_eq!(schedule.poll_action(at(6)), sent(0, &[other]));
    schedule.answered(at(7), WorkerId(0), first);
    schedule.answered(at(7), WorkerId(0), second);
    schedule.answered(at(7), WorkerId(0), other);
    // The others have been away for so long that they share no more.
    let full: Vec<_> = (0..5).map(|_| schedule.submit(at(80), job(1)).unwrap()).collect();
    assert_eq!(schedule.poll_action(at(80)), sent(0, &full[..4]), "a full batch waits for nothing");
}

#[test]
fn a_newer_image_of_a_stream_takes_the_place_of_one_that_waits() {
    let mut schedule = one();
    let stream = Job { stream: Some(7), ..job(1) };
    let running = schedule.submit(at(0), stream).unwrap();
    assert_eq!(schedule.poll_action(at(0)), sent(0, &[running]));
    let old = schedule.submit(at(1), stream).unwrap();
    let behind = schedule.submit(at(1), job(1)).unwrap();
    let new = schedule.submit(at(2), stream).unwrap();
    assert_eq!(schedule.poll_action(at(2)), Some(Action::Fail(old, Failure::Superseded)));
    let elsewhere = schedule.submit(at(2), Job { client: ClientId(2), ..stream }).unwrap();
    assert_eq!(schedule.waiting(), 3, "another client's stream of that number is another");
    for expected in [running, new, elsewhere, behind] {
        schedule.answered(at(3), WorkerId(0), expected);
        schedule.cancel(expected);
        let _ = schedule.poll_action(at(3));
    }
    assert_eq!(schedule.waiting(), 0);
}

#[test]
fn an_image_of_a_stream_waits_where_a_newer_one_can_take_its_place() {
    // The workers would take four each.
    let mut schedule = ready(ScheduleConfig::default(), 2, 4, 1);
    let of = |stream: u64| Job { stream: Some(stream), ..job(stream) };
    let [first, second] = [1, 2].map(|stream| schedule.submit(at(0), of(stream)).unwrap());
    assert_eq!(schedule.poll_action(at(0)), sent(0, &[first]));
    assert_eq!(schedule.poll_action(at(0)), sent(1, &[second]));
    let mut old = schedule.submit(at(10), of(1)).unwrap();
    assert_eq!(schedule.poll_action(at(10)), None, "each worker looks at one");
    for time in [20, 30, 40] {
        let new = schedule.submit(at(time), of(1)).unwrap();
        assert_eq!(schedule.poll_action(at(time)), Some(Action::Fail(old, Failure::Superseded)));
        assert_eq!(schedule.poll_action(at(time)), None);
        old = new;
    }
    schedule.answered(at(60), WorkerId(1), second);
    assert_eq!(schedule.poll_action(at(60)), sent(1, &[old]), "the newest, once one is free");
    // A request of no stream still goes behind others.
    let other = schedule.submit(at(61), job(3)).unwrap();
    assert_eq!(schedule.poll_action(at(61)), sent(0, &[other]));
}

#[test]
fn an_image_of_a_stream_that_waits_leaves_room_at_other_workers_to_others() {
    let mut schedule = ready(ScheduleConfig::default(), 2, 4, 1);
    let plain: Vec<_> = (0..8).map(|client| schedule.submit(at(0), job(client)).unwrap()).collect();
    for (index, id) in plain.iter().take(2).enumerate() {
        assert_eq!(schedule.poll_action(at(0)), sent(index, &[*id]));
    }
    for id in &plain[2..] {
        schedule.cancel(*id);
    }
    let stream = schedule.submit(at(1), Job { stream: Some(7), ..job(20) }).unwrap();
    let behind: Vec<_> =
        (21..27).map(|client| schedule.submit(at(1), job(client)).unwrap()).collect();
    for id in &behind[..3] {
        assert_eq!(schedule.poll_action(at(1)), sent(1, &[*id]), "the first is left to drain");
    }
    assert_eq!(schedule.poll_action(at(1)), None);
    schedule.answered(at(9), WorkerId(0), plain[0]);
    assert_eq!(schedule.poll_action(at(9)), sent(0, &[stream]));
    assert_eq!(schedule.poll_action(at(9)), sent(0, &[behind[3]]));
}

#[test]
fn streams_and_others_share_the_workers_and_neither_waits_for_ever() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let workers = 1 + random.below(4) as usize;
        let capacity = 1 + random.below(4) as usize;
        let (streams, others) = (1 + random.below(3), 1 + random.below(3));
        let mut schedule = ready(ScheduleConfig::default(), workers, capacity, 1);
        let mut in_flight: Vec<VecDeque<(Instant, JobId)>> = vec![VecDeque::new(); workers];
        let mut of: BTreeMap<JobId, u64> = BTreeMap::new();
        let mut looked_at = vec![at(0); (streams + others) as usize];
        let mut now = at(0);
        for _ in 0..1000 {
            now = later(now, MS);
            for (worker, jobs) in in_flight.iter_mut().enumerate() {
                while jobs.front().is_some_and(|(by, _)| *by <= now) {
                    let (_, id) = jobs.pop_front().unwrap();
                    schedule.answered(now, WorkerId(worker), id);
                }
            }
            // The others have always more to ask than is answered, the streams a new image all the time.
            for client in 0..streams + others {
                let stream = (client < streams).then_some(0);
                let job = Job { stream, ..job(client) };
                while schedule.queues.get(&job.client).map_or(0, VecDeque::len)
                    <= workers * capacity
                {
                    of.insert(schedule.submit(now, job).unwrap(), client);
                    if stream.is_some() {
                        break;
                    }
                }
            }
            while let Some(action) = schedule.poll_action(now) {
                match action {
                    Action::Send(WorkerId(worker), jobs) => {
                        for id in jobs {
                            looked_at[of[&id] as usize] = now;
                            let begins = in_flight[worker].back().map_or(now, |(by, _)| *by);
                            let by = later(begins, (5 + random.below(10) as u32) * MS);
                            in_flight[worker].push_back((by, id));
                        }
                    }
                    Action::Fail(_, Failure::Superseded) => {}
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            let with_room = in_flight.iter().filter(|jobs| jobs.len() < capacity).count();
            assert!(with_room <= 1, "seed {seed}: {with_room} of {workers} could take more");
            // Each turn costs at most what one worker has in flight.
            let bound = (streams + others + 1) as u32 * capacity as u32 * 15 * MS;
            for (client, last) in looked_at.iter().enumerate() {
                assert!(now.since(*last) <= bound, "seed {seed}: client {client} of {streams}");
            }
        }
    }
}

#[test]
fn a_full_queue_refuses_with_a_time_that_was_measured() {
    let config = ScheduleConfig { queue_max: 4, client_queue_max: 3, ..ScheduleConfig::default() };
    let mut schedule = ready(config, 1, 1, 1);
    for start in [0, 40] {
        let id = schedule.submit(at(start), job(1)).unwrap();
        assert_eq!(schedule.poll_action(at(start)), sent(0, &[id]));
        schedule.answered(at(start + 40), WorkerId(0), id);
    }
    assert_eq!(schedule.service(), Some(40 * MS));
    let ids: Vec<_> = (0..3).map(|_| schedule.submit(at(80), job(1)).unwrap()).collect();
    let own = Refused::ClientFull { waiting: 3, retry_after: 120 * MS };
    assert_eq!(schedule.submit(at(80), job(1)), Err(own));
    schedule.submit(at(80), job(2)).unwrap();
    let full = Refused::Full { waiting: 4, retry_after: 160 * MS };
    assert_eq!(schedule.submit(at(80), job(2)), Err(full));
    // A client that has nothing waiting is let in: the newest of the greediest gives its place.
    schedule.submit(at(80), job(3)).unwrap();
    let gives = Failure::Displaced { retry_after: 160 * MS };
    assert_eq!(schedule.poll_action(at(80)), Some(Action::Fail(ids[2], gives)));
    assert_eq!(schedule.waiting(), 4);
}

#[test]
fn bytes_that_wait_are_bounded() {
    let config = ScheduleConfig { queue_bytes_max: 100, ..ScheduleConfig::default() };
    let mut schedule = ready(config, 1, 1, 1);
    let large = Job { bytes: 60, ..job(1) };
    schedule.submit(at(0), Job { stream: Some(1), ..large }).unwrap();
    assert!(matches!(schedule.submit(at(0), large), Err(Refused::Full { waiting: 1, .. })));
    schedule
        .submit(at(0), Job { stream: Some(1), ..large })
        .expect("it takes the place of its older one");
    schedule.submit(at(0), Job { bytes: 40, ..job(1) }).unwrap();
}

#[test]
fn a_request_that_waited_too_long_is_told() {
    let mut schedule = one();
    let running = schedule.submit(at(0), job(1)).unwrap();
    assert_eq!(schedule.poll_action(at(0)), sent(0, &[running]));
    let late = schedule.submit(at(0), Job { start_by: Some(at(9)), ..job(1) }).unwrap();
    assert_eq!(schedule.poll_action(at(9)), None);
    assert_eq!(schedule.poll_timeout(), Some(at(9)));
    assert_eq!(schedule.poll_action(at(10)), Some(Action::Fail(late, Failure::Overdue)));
    assert_eq!(schedule.waiting(), 0);
}

#[test]
fn a_worker_that_dies_costs_only_the_request_that_kills_it() {
    let mut schedule = ready(ScheduleConfig::default(), 1, 4, 1);
    let ids: Vec<_> = (0..3).map(|client| schedule.submit(at(0), job(client)).unwrap()).collect();
    let train = schedule.submit(at(0), Job { repeatable: false, ..job(9) }).unwrap();
    for id in [ids[0], ids[1], ids[2], train] {
        assert_eq!(schedule.poll_action(at(0)), sent(0, &[id]));
    }
    schedule.ended(at(5), WorkerId(0));
    let lost = Failure::Lost(WorkerId(0));
    assert_eq!(
        schedule.poll_action(at(5)),
        Some(Action::Fail(train, lost)),
        "it may have been done"
    );
    assert_eq!(schedule.poll_action(at(5)), None);
    let start = schedule.poll_timeout().unwrap();
    assert_eq!(schedule.poll_action(start), Some(Action::Start(WorkerId(0))));
    schedule.started(start, WorkerId(0), Capacity { in_flight: 4, batch: 1 });
    // Each is alone now; the second is the one that kills.
    let Some(Action::Send(_, first)) = schedule.poll_action(start) else { panic!("none is sent") };
    assert_eq!(schedule.poll_action(start), None);
    schedule.answered(start, WorkerId(0), first[0]);
    let Some(Action::Send(_, kills)) = schedule.poll_action(start) else { panic!("none is sent") };
    schedule.ended(start, WorkerId(0));
    assert_eq!(schedule.poll_action(start), Some(Action::Fail(kills[0], lost)));
    let again = schedule.poll_timeout().unwrap();
    assert_eq!(schedule.poll_action(again), Some(Action::Start(WorkerId(0))));
    schedule.started(again, WorkerId(0), Capacity { in_flight: 4, batch: 1 });
    let Some(Action::Send(_, third)) = schedule.poll_action(again) else { panic!("none is sent") };
    schedule.answered(again, WorkerId(0), third[0]);
    assert_eq!(schedule.waiting(), 0);
}

#[test]
fn a_request_whose_client_has_gone_is_not_tried_again() {
    let mut schedule = ready(ScheduleConfig::default(), 1, 2, 1);
    let ids = [0, 1].map(|client| schedule.submit(at(0), job(client)).unwrap());
    assert_eq!(schedule.poll_action(at(0)), sent(0, &[ids[0]]));
    assert_eq!(schedule.poll_action(at(0)), sent(0, &[ids[1]]));
    schedule.cancel(ids[0]);
    schedule.ended(at(1), WorkerId(0));
    let lost = Action::Fail(ids[0], Failure::Lost(WorkerId(0)));
    assert_eq!(schedule.poll_action(at(1)), Some(lost));
    assert_eq!(schedule.waiting(), 1);
    schedule.cancel(ids[1]);
    schedule.cancel(ids[1]);
    assert_eq!(schedule.waiting(), 0);
}

#[test]
fn a_worker_that_hangs_is_ended_after_its_time() {
    let mut schedule = ready(ScheduleConfig::default(), 1, 2, 1);
    let ids = [0, 1].map(|client| schedule.submit(at(0), job(client)).unwrap());
    for id in ids {
        assert_eq!(schedule.poll_action(at(0)), sent(0, &[id]));
    }
    schedule.answered(at(15_000), WorkerId(0), ids[0]);
    assert_eq!(
        schedule.poll_timeout(),
        Some(at(35_000)),
        "the second began when the first was done"
    );
    assert_eq!(schedule.poll_action(at(34_999)), None);
    assert_eq!(schedule.poll_action(at(35_000)), Some(Action::End(WorkerId(0))));
    assert_eq!(schedule.poll_action(at(35_000)), None);
    schedule.ended(at(35_000), WorkerId(0));
    assert_eq!(schedule.waiting(), 1, "it is tried once more");
}

#[test]
fn requests_are_told_when_no_worker_can_be_started() {
    let mut schedule = Schedule::new(at(0), ScheduleConfig::default(), 1);
    let mut waits = Vec::new();
    let mut now = at(0);
    for _ in 0..9 {
        assert_eq!(schedule.poll_action(now), Some(Action::Start(WorkerId(0))));
        let id = schedule.submit(now, job(1)).expect("the start may go well");
        schedule.ended(now, WorkerId(0));
        let lost = Failure::Lost(WorkerId(0));
        assert_eq!(schedule.poll_action(now), Some(Action::Fail(id, lost)));
        let refused = schedule.submit(now, job(1)).unwrap_err();
        let Refused::NoWorker { retry_after, .. } = refused else { panic!("{refused:?}") };
        let until = schedule.poll_timeout().unwrap();
        assert_eq!(retry_after, until.since(now));
        waits.push(retry_after);
        now = until;
    }
    assert!(waits[0] <= 100 * MS && waits.windows(2).all(|pair| pair[1] * 4 > pair[0]));
    assert!(waits[8] > 4000 * MS && waits[8] <= 10_000 * MS, "{waits:?}");
}

/// A generator of Knuth's (MMIX): the same seed, the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn clients_of_one_detector_wait_alike_and_it_is_never_idle() {
    // Closed loops of 1 to 64 clients, and four greedy ones with eight requests each under way.
    for clients in [1_u64, 4, 16, 64] {
        let mut schedule = ready(ScheduleConfig::default(), 1, 2, 1);
        let mut random = Random(clients);
        let mut waits: HashMap<u64, Vec<Duration>> = HashMap::new();
        let mut since = HashMap::new();
        let submit = |schedule: &mut Schedule, since: &mut HashMap<_, _>, now, client| {
            let id = schedule.submit(now, job(client)).expect("there is room");
            since.insert(id, (now, client));
        };
        for client in 0..clients {
            let depth = if clients == 64 && client < 4 { 8 } else { 1 };
            (0..depth).for_each(|_| submit(&mut schedule, &mut since, at(0), client));
        }
        let mut now = at(0);
        let mut in_flight = VecDeque::new();
        let (mut served, mut worked) = (0_u32, Duration::ZERO);
        while served < 4000 {
            while let Some(action) = schedule.poll_action(now) {
                let Action::Send(_, jobs) = action else { panic!("{action:?}") };
                in_flight.extend(jobs);
            }
            let done = in_flight.pop_front().expect("the worker is never idle");
            let service = (8 + random.below(5) as u32) * MS;
            now = later(now, service);
            worked += service;
            schedule.answered(now, WorkerId(0), done);
            let (asked, client) = since.remove(&done).expect("it is answered once");
            waits.entry(client).or_default().push(now.since(asked));
            submit(&mut schedule, &mut since, now, client);
            served += 1;
        }
        assert_eq!(now.since(at(0)), worked, "throughput is the detector's limit");
        let p99 = |waits: &mut Vec<Duration>| {
            waits.sort_unstable();
            waits[waits.len() * 99 / 100]
        };
        let modest = waits.iter_mut().filter(|(client, _)| clients < 64 || **client >= 4);
        let p99s: Vec<_> = modest.map(|(_, waits)| p99(waits)).collect();
        let (least, most) = (p99s.iter().min().unwrap(), p99s.iter().max().unwrap());
        assert!(*most <= 2 * *least, "{clients} clients: {least:?} to {most:?}");
        assert!(*most <= 13 * MS * (clients as u32 + 2), "{clients} clients: {most:?}");
    }
}

#[test]
fn every_request_ends_once_whatever_workers_do() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let config = ScheduleConfig {
            queue_max: 8,
            client_queue_max: 5,
            queue_bytes_max: 200,
            batch_wait: (random.below(3) as u32) * MS,
            answer_timeout: 50 * MS,
            backoff: (MS, 20 * MS),
        };
        let workers = 1 + random.below(3) as usize;
        let mut schedule = Schedule::new(at(0), config, workers);
        let mut open: BTreeMap<JobId, Option<usize>> = BTreeMap::new();
        let mut started = vec![None; workers];
        let mut starts: Vec<WorkerId> = Vec::new();
        let mut now = at(0);
        for step in 0..800 {
            now = later(now, (random.below(8) as u32) * MS);
            let busy = step < 500;
            match random.below(10) {
                0..5 if busy => {
                    let stream = (random.below(2) == 0).then(|| random.below(3));
                    let start_by = (random.below(4) == 0).then(|| later(now, 30 * MS));
                    let job = Job {
                        client: ClientId(random.below(4)),
                        stream,
                        group: random.below(2),
                        bytes: random.below(80) as usize,
                        start_by,
                        repeatable: random.below(5) > 0,
                    };
                    if let Ok(id) = schedule.submit(now, job) {
                        assert!(open.insert(id, None).is_none(), "seed {seed}");
                    }
                }
                5 if busy => {
                    let count = open.len() as u64;
                    let any = open.keys().nth(random.below(count.max(1)) as usize).copied();
                    if let Some(id) = any {
                        let before = schedule.waiting();
                        schedule.cancel(id);
                        if schedule.waiting() < before {
                            open.remove(&id);
                        }
                    }
                }
                6 if busy => {
                    let worker = random.below(workers as u64) as usize;
                    if started[worker].take().is_some() {
                        schedule.ended(now, WorkerId(worker));
                        open.values_mut()
                            .filter(|on| **on == Some(worker))
                            .for_each(|on| *on = None);
                    }
                }
                _ => {
                    let sent = open.iter().find_map(|(id, worker)| Some((*id, (*worker)?)));
                    if let Some((id, worker)) = sent {
                        schedule.answered(now, WorkerId(worker), id);
                        open.remove(&id);
                    }
                    if let Some(worker) = starts.pop() {
                        if random.below(3) > 0 || !busy {
                            let in_flight = 1 + random.below(4) as usize;
                            let batch = 1 + random.below(4) as usize;
                            schedule.started(now, worker, Capacity { in_flight, batch });
                            started[worker.0] = Some(in_flight);
                        } else {
                            schedule.ended(now, worker);
                        }
                    }
                }
            }
            while let Some(action) = schedule.poll_action(now) {
                match action {
                    Action::Start(worker) => starts.push(worker),
                    Action::End(worker) => {
                        started[worker.0] = None;
                        let on = |on: &&mut Option<usize>| **on == Some(worker.0);
                        open.values_mut().filter(on).for_each(|on| *on = None);
                        schedule.ended(now, worker);
                    }
                    Action::Fail(id, _) => {
                        let was = open.remove(&id);
                        assert_eq!(was, Some(None), "seed {seed}: it waited, and ends once");
                    }
                    Action::Send(worker, jobs) => {
                        assert!(!jobs.is_empty(), "seed {seed}");
                        for id in jobs {
                            let place =
                                open.get_mut(&id).expect("it was accepted and has not ended");
                            assert_eq!(place.replace(worker.0), None, "seed {seed}");
                        }
                        let held = open.values().filter(|on| **on == Some(worker.0)).count();
                        let most =
                            started[worker.0].expect("only a worker that is ready is sent to");
                        assert!(held <= most, "seed {seed}: {held} in flight");
                    }
                }
            }
            let waiting = open.values().filter(|worker| worker.is_none()).count();
            assert_eq!(waiting, schedule.waiting(), "seed {seed}");
            // Those that were lost with a worker come back beyond the queue's bound, at most what all had in flight.
            assert!(waiting <= 8 + 4 * workers, "seed {seed}");
        }
        assert!(open.is_empty(), "seed {seed}: {open:?}");
        assert_eq!((schedule.waiting, schedule.waiting_bytes), (0, 0), "seed {seed}");
        assert!(schedule.jobs.is_empty() && schedule.queues.is_empty(), "seed {seed}");
        assert!(schedule.turns.is_empty() && schedule.newest.is_empty(), "seed {seed}");
    }
}

#[test]
fn a_worker_that_loads_a_model_is_sent_nothing_and_has_time_for_it() {
    let config =
        ScheduleConfig { answer_timeout: 10 * MS, batch_wait: 2 * MS, ..ScheduleConfig::default() };
    let mut schedule = ready(config, 1, 2, 2);
    let before = [job(1), job(2)].map(|job| schedule.submit(at(0), job).unwrap());
    assert_eq!(schedule.poll_action(at(0)), sent(0, &before));
    schedule.loads(WorkerId(0), at(50));
    schedule.answered(at(5), WorkerId(0), before[0]);
    schedule.answered(at(5), WorkerId(0), before[1]);
    let behind = schedule.submit(at(5), job(1)).unwrap();
    assert_eq!(schedule.poll_action(at(49)), None);
    assert_eq!(schedule.poll_timeout(), Some(at(50)), "and it asks for no turn before");
    schedule.loaded(at(49), WorkerId(0));
    assert_eq!(schedule.poll_action(at(49)), sent(0, &[behind]));
    assert_eq!(schedule.poll_action(at(58)), None, "its time begins when the model is loaded");
    assert_eq!(schedule.poll_action(at(59)), Some(Action::End(WorkerId(0))));
    schedule.ended(at(59), WorkerId(0));
    assert_eq!(schedule.poll_action(at(10_000)), Some(Action::Start(WorkerId(0))));
    schedule.started(at(10_000), WorkerId(0), Capacity { in_flight: 1, batch: 1 });
    schedule.loads(WorkerId(0), at(10_050));
    assert_eq!(schedule.poll_action(at(10_049)), None);
    assert_eq!(schedule.poll_action(at(10_050)), Some(Action::End(WorkerId(0))));
}
