//! The critical part of applications: their example flows, and the datagrams that tell a subscriber what these find.

use std::{net::UdpSocket, path::Path};

use anyhow::Context as _;
use tidegate_flow::{EmittedPayload, Flow, Message, Output};
use tidegate_flows::file::FlowFile;
use tidegate_load::sensors::Workload;
use tidegate_message::Instant;
use tidegate_sys::clock;

use super::feed::Feed;

/// Latencies that are kept of an application.
const LATENCIES_MAX: usize = 1 << 20;

/// The flows of some applications, and whom they notify.
#[derive(Debug)]
pub(super) struct Critical {
    applications: Vec<Application>,
    subscriber: UdpSocket,
    notification: Vec<u8>,
    /// When the last notification of each message of a group was out; 0 for none.
    told: Vec<i64>,
    /// Notifications that were sent.
    pub(super) notified: u64,
}

#[derive(Debug)]
struct Application {
    /// The first level of its topics.
    level: &'static str,
    flows: Vec<Flow>,
    output: Output,
    /// In us, from the time that a message was due to the time that its last notification lay in the subscriber's socket.
    latencies: Vec<f64>,
}

impl Critical {
    /// The example flows of `workloads`; `subscriber` is connected to whom they notify. CITY's sensors are those of `feed`,
    /// more than the example's set has.
    ///
    /// # Errors
    /// An example cannot be read.
    pub(super) fn new(
        workloads: &[Workload],
        feed: &Feed,
        subscriber: UdpSocket,
    ) -> anyhow::Result<Self> {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/flows");
        let mut applications = Vec::new();
        for workload in workloads {
            let level = workload.level();
            let file = FlowFile::read(&examples.join(format!("{level}.toml")), None)?;
            let mut flows = Vec::new();
            for (spec, mut models) in file.flows {
                if *workload == Workload::City {
                    models.insert_set("city-sources", &feed.column(1));
                }
                flows.push(Flow::compile(&spec, &models)?);
            }
            let (output, latencies) = (Output::new(), Vec::new());
            applications.push(Application { level, flows, output, latencies });
        }
        let (notification, told) = (Vec::new(), Vec::new());
        Ok(Self { applications, subscriber, notification, told, notified: 0 })
    }

    /// Runs the flows on some messages and notifies of what they find. `due` says when each was published; latencies are kept where
    /// it does.
    ///
    /// # Errors
    /// A notification cannot be sent.
    pub(super) fn run(
        &mut self,
        messages: &[Message<'_>],
        due: impl Fn(usize) -> Option<i64>,
    ) -> anyhow::Result<()> {
        let Self { applications, subscriber, notification, told, notified } = self;
        let now = Instant::from_nanos(clock::realtime_nanos());
        let mut tell = |topic: &str, payload: &[u8]| -> std::io::Result<i64> {
            notification.clear();
            notification.extend_from_slice(&(topic.len() as u16).to_le_bytes());
            notification.extend_from_slice(topic.as_bytes());
            notification.extend_from_slice(payload);
            // On loopback it lies in the subscriber's socket when this returns.
            subscriber.send(notification)?;
            *notified += 1;
            Ok(clock::monotonic_nanos())
        };
        if let [application] = &mut applications[..] {
            return application.run(now, messages, told, &mut tell, due);
        }
        for application in applications {
            let is_its_own =
                |message: &Message<'_>| message.topic.split('/').next() == Some(application.level);
            let places: Vec<usize> =
                (0..messages.len()).filter(|place| is_its_own(&messages[*place])).collect();
            if !places.is_empty() {
                let own: Vec<Message<'_>> = places.iter().map(|place| messages[*place]).collect();
                application.run(now, &own, told, &mut tell, |place| due(places[place]))?;
            }
        }
        Ok(())
    }

    /// The latencies of each application.
    pub(super) fn into_latencies(self) -> Vec<Vec<f64>> {
        self.applications.into_iter().map(|application| application.latencies).collect()
    }
}

impl Application {
    fn run(
        &mut self,
        now: Instant,
        messages: &[Message<'_>],
        told: &mut Vec<i64>,
        tell: &mut impl FnMut(&str, &[u8]) -> std::io::Result<i64>,
        due: impl Fn(usize) -> Option<i64>,
    ) -> anyhow::Result<()> {
        told.clear();
        told.resize(messages.len(), 0);
        let mut is_any = false;
        for flow in &mut self.flows {
            flow.run(now, messages, &mut self.output);
            for emission in self.output.emissions() {
                let payload = match emission.payload {
                    EmittedPayload::Made(payload) => payload,
                    EmittedPayload::Original(_) => messages[emission.from].payload,
                };
                told[emission.from] =
                    tell(emission.topic, payload).context("telling the subscriber")?;
                is_any = true;
            }
        }
        if !is_any {
            return Ok(());
        }
        for (place, told) in told.iter().enumerate().filter(|(_, told)| **told != 0) {
            if let Some(due) = due(place).filter(|_| self.latencies.len() < LATENCIES_MAX) {
                self.latencies.push((told - due) as f64 / 1e3);
            }
        }
        Ok(())
    }
}
