use tidegate_broker::BrokerConfig;
use tidegate_message::AllowAll;
use tidegate_process::health::Health;

use super::*;
use crate::{inbox::waker, settings::AllAnonymous};

/// Shards whose threads do not run, each with its poll.
struct Idle {
    shards: Shards,
    inboxes: Arc<[Arc<Inbox<ShardCommand>>]>,
    polls: Vec<Poll>,
}

impl Idle {
    fn new(count: usize) -> Self {
        let now = clock::now();
        let shared = Shared::new(BrokerConfig::default(), count, Arc::new(AllowAll), now);
        let polls: Vec<Poll> = (0..count).map(|_| Poll::new().expect("a poll")).collect();
        let inboxes: Arc<[Arc<Inbox<ShardCommand>>]> = polls
            .iter()
            .map(|poll| Arc::new(Inbox::new(waker(poll, WAKER).expect("a waker"))))
            .collect();
        let health = Health::default();
        let shard_of = |shard: usize| {
            let parts = ShardParts {
                shard,
                shared: shared.clone(),
                registry: polls[shard].registry().try_clone().expect("a registry"),
                inboxes: inboxes.clone(),
                listeners: Vec::new(),
                authenticator: Arc::new(AllAnonymous),
                holder: Arc::default(),
                watcher: Arc::default(),
                pulse: health.pulse(format!("shard {shard}"), Duration::from_secs(60)),
            };
            let broker = Broker::new(shared.clone(), shard, 1, now);
            Mutex::new(Some(Shard::new(parts, broker).expect("it starts")))
        };
        let shards = (0..count).map(shard_of).collect();
        Self { shards, inboxes, polls }
    }

    /// Has the thread of a shard wait for the kernel.
    fn fall_asleep(&mut self, number: usize) {
        let mut shard = locked(&self.shards[number]);
        let shard = shard.as_mut().expect("it has not ended");
        shard.work(&Events::with_capacity(1));
        assert!(!shard.wait().1.is_zero(), "it has nothing to do");
    }

    /// Does as the thread of shard 0 once its own work is done, when it has left `command` at shard 1, which sleeps.
    fn help_with(&self, command: ShardCommand) {
        assert!(self.inboxes[1].leave([command]), "it sleeps");
        let (shards, inboxes) = (&self.shards, &self.inboxes[..]);
        let mut thread = Thread { shards, number: 0, inboxes, asleep: vec![1] };
        thread.help(clock::now());
        thread.wake_all();
        // It is no thread that ends.
        std::mem::forget(thread);
    }

    fn is_woken(&mut self, number: usize) -> bool {
        let mut events = Events::with_capacity(4);
        self.polls[number].poll(&mut events, Some(Duration::ZERO)).expect("a poll");
        !events.is_empty()
    }
}

#[test]
fn few_messages_for_a_shard_that_sleeps_are_handled_and_its_thread_sleeps_on() {
    let mut idle = Idle::new(2);
    idle.fall_asleep(1);
    idle.help_with(ShardCommand::Peers(Vec::new()));
    assert!(!idle.is_woken(1));
    assert!(locked(&idle.shards[1]).as_ref().expect("it has not ended").commands.is_empty());
    // It sleeps for all who come next.
    idle.help_with(ShardCommand::Peers(Vec::new()));
}

#[test]
fn all_else_that_a_shard_is_left_wakes_its_thread_which_finds_it() {
    let mut idle = Idle::new(2);
    idle.fall_asleep(1);
    idle.help_with(ShardCommand::Durable);
    assert!(idle.is_woken(1));
    let mut shard = locked(&idle.shards[1]);
    let shard = shard.as_mut().expect("it has not ended");
    assert_eq!(shard.commands.len(), 1);
    assert!(shard.wait().1.is_zero(), "there is something to do");
}

#[test]
fn thread_of_a_service_does_the_little_that_a_sleeping_shard_was_left_and_else_wakes_it() {
    let mut idle = Idle::new(1);
    let lending = Lending::new(&idle.shards, &idle.inboxes);
    let (near, far) = tidegate_bus::pipe::pair(|_, _| {});
    for (command, is_woken) in [
        // Of a service that is gone.
        (ShardCommand::Inside(far.id()), false),
        (ShardCommand::Durable, true),
    ] {
        idle.fall_asleep(0);
        assert!(idle.inboxes[0].leave([command]), "it sleeps");
        assert!(!lending.help(0), "it took no time");
        assert_eq!(idle.is_woken(0), is_woken);
    }
    // The messages that a service left are counted, and all else is more than messages.
    near.hand_over(tidegate_broker::Bundle::default());
    assert_eq!(far.messages(), Some(0));
    near.write(b"packet");
    assert_eq!(far.messages(), None);
    // Its shards have ended.
    drop(idle.shards);
    assert!(!lending.help(0));
}

#[test]
fn shard_that_is_at_work_is_woken_and_not_waited_for() {
    let mut idle = Idle::new(2);
    idle.fall_asleep(1);
    let shards = idle.shards.clone();
    let at_work = locked(&shards[1]);
    idle.help_with(ShardCommand::Peers(Vec::new()));
    drop(at_work);
    assert!(idle.is_woken(1));
}

#[test]
fn shards_that_a_thread_was_to_wake_are_woken_if_it_ends() {
    let mut idle = Idle::new(2);
    idle.fall_asleep(1);
    assert!(idle.inboxes[1].leave([ShardCommand::Peers(Vec::new())]), "it sleeps");
    drop(Thread { shards: &idle.shards, number: 0, inboxes: &idle.inboxes, asleep: vec![1] });
    assert!(idle.is_woken(1));
    assert!(locked(&idle.shards[0]).is_none(), "its shard ends with it");
}

fn settings(listen: &str, anonymous: bool) -> ListenerSettings {
    let listen = listen.parse().expect("an address");
    ListenerSettings { anonymous, ..ListenerSettings::new("main", listen) }
}

#[test]
fn a_door_that_stays_where_it_is_opens_no_further_by_an_address_it_does_not_have() {
    let listener = Listener::new(settings("0.0.0.0:1883", false));
    // Loopback lets anonymous clients in, but this socket is not there.
    listener.exchange(settings("127.0.0.1:1883", true));
    assert!(!listener.settings().anonymous);
    assert_eq!(listener.settings().listen, "0.0.0.0:1883".parse().expect("an address"));
    // Said of this very address, it holds.
    listener.exchange(settings("0.0.0.0:1883", true));
    assert!(listener.settings().anonymous);
    listener.exchange(settings("127.0.0.1:1884", false));
    assert!(!listener.settings().anonymous);
}
