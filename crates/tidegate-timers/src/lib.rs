//! Timers: messages that a node publishes again and again, to poll a device that answers when asked, or as a sign of life.
//!
//! ```text
//!  TimerSettings ─▶ Timers ─▶ one task a timer ─▶ bus ─▶ broker
//! ```
//!
//! Always true: a timer that is as it was is left alone by an exchange; a message is published at most once in its interval, and those that
//! a pause of the machine has missed are not made up for; a timer ends with its [`Timers`].

use std::{collections::BTreeMap, time::Duration};

use tidegate_bus::{Attached, Attachment, Bus, BusError, Publication, part_id};
use tidegate_message::{Backoff, Identity, IdentityKind, TopicError, check_topic_name};
use tidegate_wire::mqtt::QoS;
use tokio::{
    runtime::Handle,
    time::{Interval, MissedTickBehavior},
};
use tokio_util::task::AbortOnDropHandle;

/// A message that is published again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerSettings {
    /// Its name, which its client identifier ends with.
    pub name: String,
    /// The topic, without wildcards.
    pub topic: String,
    /// The payload.
    pub payload: Vec<u8>,
    /// The time from one message to the next, a millisecond at least. The first is published at once.
    pub every: Duration,
    /// Its quality of service; 2 is taken as 1.
    pub qos: QoS,
    /// Whether the newest is retained.
    pub retain: bool,
}

/// Why a timer cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimerError {
    /// Nothing can be published there.
    #[error("topic {topic:?} is no topic to publish to: name one without wildcards")]
    Topic {
        /// The topic.
        topic: String,
        /// The mistake in it.
        source: TopicError,
    },
    /// Only the node publishes below `$`.
    #[error("topic {topic:?} begins with `$`, which is the node's own; name another one")]
    Reserved {
        /// The topic.
        topic: String,
    },
}

impl TimerSettings {
    /// The client identifier of the timer called `name`.
    pub fn session_of(name: &str) -> String {
        part_id("timer", name)
    }

    /// Whether there can be such a timer, of topics with so many levels at most.
    ///
    /// # Errors
    /// [`TimerError`].
    pub fn check(&self, levels_max: usize) -> Result<(), TimerError> {
        let topic = || self.topic.clone();
        check_topic_name(&self.topic, levels_max)
            .map_err(|source| TimerError::Topic { topic: topic(), source })?;
        match self.topic.starts_with('$') {
            true => Err(TimerError::Reserved { topic: topic() }),
            false => Ok(()),
        }
    }
}

/// The timers of a node. They end when it is dropped.
#[derive(Debug)]
pub struct Timers {
    bus: Bus,
    reactor: Handle,
    running: BTreeMap<String, (TimerSettings, AbortOnDropHandle<()>)>,
}

impl Timers {
    /// None yet, whose tasks run on `reactor`.
    pub fn new(bus: Bus, reactor: Handle) -> Self {
        Self { bus, reactor, running: BTreeMap::new() }
    }

    /// Has just the timers `planned` run, and names those that are new, gone or other than they were, in order.
    pub fn exchange(&mut self, planned: Vec<TimerSettings>) -> Vec<String> {
        let gone = self.running.extract_if(.., |_, (settings, _)| !planned.contains(settings));
        let mut changed: Vec<String> = gone.map(|(name, _)| name).collect();
        for settings in planned {
            let name = settings.name.clone();
            if self.running.contains_key(&name) {
                continue;
            }
            let task = self.reactor.spawn(run(self.bus.clone(), settings.clone()));
            if !changed.contains(&name) {
                changed.push(name.clone());
            }
            self.running.insert(name, (settings, AbortOnDropHandle::new(task)));
        }
        changed.sort();
        changed
    }
}

/// Publishes for as long as the timer is there.
async fn run(bus: Bus, settings: TimerSettings) {
    let mut ticks = tokio::time::interval(settings.every.max(Duration::from_millis(1)));
    // A machine that slept, or a broker that held a message back, is no reason for a burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
    loop {
        let error = publish(&bus, &settings, &mut ticks, &mut backoff).await;
        tracing::warn!(timer = %settings.name, %error, "this timer has no connection to the broker; it tries again");
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// Publishes over one connection to the broker; the reason why that ended.
async fn publish(
    bus: &Bus,
    settings: &TimerSettings,
    ticks: &mut Interval,
    backoff: &mut Backoff,
) -> BusError {
    let id = TimerSettings::session_of(&settings.name);
    let identity = Identity::new(IdentityKind::Internal, &settings.name, &id);
    let Attached { mut publisher, deliveries: _deliveries, .. } =
        match bus.attach(Attachment::new(identity, id)).await {
            Ok(attached) => attached,
            Err(error) => return error,
        };
    let message = Publication {
        topic: &settings.topic,
        payload: &settings.payload,
        qos: settings.qos,
        retain: settings.retain,
        ..Publication::default()
    };
    let mut refused = 0_u64;
    loop {
        ticks.tick().await;
        match publisher.send(&message).await {
            Ok(_) => {
                backoff.reset();
                if refused > 0 {
                    tracing::info!(timer = %settings.name, refused, "messages of this timer are taken again");
                }
                refused = 0;
            }
            // It is said once: most often a right is missing, or a subscriber's queue is full.
            Err(error @ (BusError::Message { .. } | BusError::Publish(_))) => {
                if refused == 0 {
                    tracing::warn!(timer = %settings.name, %error, "a message of this timer is not taken; the next follows at its time");
                }
                refused += 1;
            }
            Err(error) => return error,
        }
    }
}

#[cfg(test)]
mod tests;
