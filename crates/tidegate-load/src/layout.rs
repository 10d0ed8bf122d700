//! Connections of a load, and their topics.

use crate::spec::{Spec, Topology};

/// Task of one connection; the numbers count from 0 within the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Subscriber(u32),
    Stalled(u32),
    Idle(u32),
    Publisher(u32),
}

impl Role {
    pub(crate) fn client_id(self, prefix: &str) -> String {
        match self {
            Self::Subscriber(number) => format!("{prefix}-s{number}"),
            Self::Stalled(number) => format!("{prefix}-x{number}"),
            Self::Idle(number) => format!("{prefix}-i{number}"),
            Self::Publisher(number) => format!("{prefix}-p{number}"),
        }
    }
}

/// The connections of worker `worker` of `spec.threads`, publishers last. The i-th pair is in one worker.
pub(crate) fn roles(spec: &Spec, worker: u32) -> Vec<Role> {
    let step = usize::from(spec.threads.max(1));
    let mine = |count: u32| (worker..count).step_by(step);
    mine(spec.subscribers)
        .map(Role::Subscriber)
        .chain(mine(spec.stalled).map(Role::Stalled))
        .chain(mine(spec.idle).map(Role::Idle))
        .chain(mine(spec.publishers).map(Role::Publisher))
        .collect()
}

/// The topic of a publisher's flow.
pub(crate) fn topic(spec: &Spec, publisher: u32, flow: usize) -> String {
    let group = match spec.topology {
        Topology::Pairs => publisher.to_string(),
        Topology::FanIn | Topology::FanOut => "all".to_owned(),
    };
    match &*spec.flows {
        [_] => format!("{}/{group}", spec.topic_prefix),
        flows => format!("{}/{group}/{}", spec.topic_prefix, flows[flow].name),
    }
}

/// Filters that a subscriber asks for, one for each flow.
pub(crate) fn filters(spec: &Spec, role: Role) -> Vec<String> {
    let (publisher, share) = match role {
        Role::Subscriber(number) => {
            (number, spec.topology == Topology::FanIn && spec.subscribers > 1)
        }
        Role::Stalled(number) => (number % spec.publishers.max(1), false),
        Role::Idle(_) | Role::Publisher(_) => return Vec::new(),
    };
    let filter = |flow| {
        let topic = topic(spec, publisher, flow);
        if share { format!("$share/load/{topic}") } else { topic }
    };
    (0..spec.flows.len()).map(filter).collect()
}

/// First publisher that a subscriber hears, and how many.
pub(crate) fn heard(spec: &Spec, subscriber: u32) -> (u32, u32) {
    match spec.topology {
        Topology::Pairs => (subscriber, 1),
        Topology::FanIn | Topology::FanOut => (0, spec.publishers),
    }
}

/// How often each message of a publisher is to be received, with the subscribers that `subscribed` names.
pub(crate) fn copies(spec: &Spec, publisher: u32, subscribed: impl Fn(u32) -> bool) -> u32 {
    let all = || (0..spec.subscribers).filter(|&number| subscribed(number)).count() as u32;
    match spec.topology {
        Topology::Pairs => u32::from(publisher < spec.subscribers && subscribed(publisher)),
        Topology::FanIn => all().min(1),
        Topology::FanOut => all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Flow;

    #[test]
    fn topics_and_filters_meet() {
        let two = vec![
            Flow { name: "small".to_owned(), ..Flow::default() },
            Flow { name: "large".to_owned(), ..Flow::default() },
        ];
        let spec = |topology, subscribers, flows| Spec {
            topology,
            publishers: 3,
            subscribers,
            flows,
            ..Spec::default()
        };
        let one = || vec![Flow::default()];
        for (spec, subscriber, expected, copies_expected) in [
            (spec(Topology::Pairs, 3, one()), 2, vec!["load/2"], 1),
            (spec(Topology::Pairs, 3, two.clone()), 1, vec!["load/1/small", "load/1/large"], 1),
            (spec(Topology::FanOut, 9, one()), 5, vec!["load/all"], 9),
            (spec(Topology::FanIn, 1, one()), 0, vec!["load/all"], 1),
            (spec(Topology::FanIn, 2, one()), 1, vec!["$share/load/load/all"], 1),
        ] {
            assert_eq!(filters(&spec, Role::Subscriber(subscriber)), expected);
            assert_eq!(copies(&spec, 0, |_| true), copies_expected, "{expected:?}");
        }
    }

    #[test]
    fn every_connection_has_one_worker_and_pairs_stay_together() {
        let spec = Spec {
            publishers: 5,
            subscribers: 5,
            idle: 3,
            stalled: 1,
            threads: 2,
            ..Spec::default()
        };
        let workers = [roles(&spec, 0), roles(&spec, 1)];
        assert_eq!(workers.iter().map(Vec::len).sum::<usize>() as u64, spec.connections());
        for worker in workers {
            for role in &worker {
                if let Role::Publisher(number) = role {
                    assert!(worker.contains(&Role::Subscriber(*number)));
                }
            }
        }
    }
}
