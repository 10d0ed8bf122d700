//! Services at the bus while they come and go: what was acknowledged before a farewell does not come again.

use std::{net::Ipv4Addr, sync::Arc};

use tidegate_broker::BrokerConfig;
use tidegate_bus::{Attached, Attachment, Bus, BusError, filter_of};
use tidegate_load::client::{Client, Options, Outgoing};
use tidegate_message::{AllowAll, Authorize, Identity, IdentityKind};
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    settings::{AllAnonymous, ListenerSettings, ServerSettings},
};
use tidegate_wire::mqtt::{PacketId, QoS, ReasonCode, SubscribeFilter};
use tokio::time::timeout;

use crate::program::{LONGEST, options_of};

/// Messages to each client, a few of which it takes before it goes and comes again.
const MESSAGES: u32 = 300;

/// A broker by those rules.
pub(crate) fn server_with(authorize: Arc<dyn Authorize>) -> Server {
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = ListenerSettings { anonymous: true, ..ListenerSettings::new("main", listen) };
    let settings = ServerSettings {
        broker: BrokerConfig::default(),
        listeners: vec![listener],
        shards: 2,
        authenticator: Arc::new(AllAnonymous),
        authorize,
        operators: None,
        journal: None,
        spill: None,
    };
    Server::start(settings, &Health::default()).expect("it serves")
}

fn publisher(server: &Server, name: &str) -> Client {
    let client_id = format!("to-{name}");
    let options = Options { client_id, ..options_of(server.addresses()[0].1) };
    Client::connect(options).expect("it is let in")
}

fn publish(client: &mut Client, topic: &str, text: &str) {
    let message =
        Outgoing { topic, payload: text.as_bytes(), qos: QoS::AtLeastOnce, ..Outgoing::default() };
    let reason = client.publish(&message).expect("it is acknowledged");
    assert!(!reason.is_failure(), "{reason}");
}

/// A service whose session outlives its connection.
struct Inside {
    attached: Attached,
}

impl Inside {
    /// Comes, for the first time or again.
    async fn come(bus: &Bus, name: &str) -> Self {
        let identity = Identity::new(IdentityKind::Internal, name, name);
        let attachment = Attachment {
            filters: vec![SubscribeFilter { no_local: false, ..filter_of(name) }],
            session_expiry: 3600,
            ..Attachment::new(identity, name)
        };
        Self { attached: bus.attach(attachment).await.expect("it is let in") }
    }

    /// The next message, which must come: its text, and the identifier to acknowledge it by.
    async fn next(&mut self) -> (String, PacketId) {
        let deliveries = &mut self.attached.deliveries;
        let ready = timeout(LONGEST, deliveries.ready()).await;
        ready.expect("a message comes").expect("the broker is there");
        let message = deliveries.next_message().expect("the broker is there").expect("it is ready");
        let text = String::from_utf8_lossy(&message.payload()).into_owned();
        (text, message.packet_id().expect("it is of QoS 1"))
    }

    /// Acknowledges messages, some `before` the others, and says farewell at once.
    fn leave(&mut self, (before, last): (&[PacketId], &[PacketId])) {
        let Attached { publisher, deliveries, .. } = &mut self.attached;
        for ids in [before, last] {
            ids.iter().for_each(|id| deliveries.acknowledge(*id));
            deliveries.settle();
        }
        publisher.detach(ReasonCode::SUCCESS).expect("a farewell is short");
    }

    /// Waits until the broker has ended the connection, too.
    async fn end(mut self) {
        loop {
            match timeout(LONGEST, self.attached.publisher.answered()).await.expect("it ends") {
                Ok(()) => drop(self.attached.publisher.next_answer()),
                Err(error) => return assert_eq!(error, BusError::Closed),
            }
        }
    }

    /// Comes again after [`Inside::leave`]: after the end, or while the former connection may still be open.
    async fn again(self, bus: &Bus, name: &str, waits: bool) -> Self {
        if waits {
            self.end().await;
            return Self::come(bus, name).await;
        }
        let again = Self::come(bus, name).await;
        drop(self);
        again
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_acknowledged_before_a_farewell_do_not_come_again() {
    let server = server_with(Arc::new(AllowAll));
    let bus = Bus::from(server.connector());
    // Of eight names some live on each shard.
    for number in 0..8 {
        let name = format!("inside-{number}");
        let mut inside = Inside::come(&bus, &name).await;
        let mut publisher = publisher(&server, &name);
        // Meanwhile, so that the shard has more to do than to hear the farewell.
        let topic = name.clone();
        let publishing = tokio::task::spawn_blocking(move || {
            for number in 0..MESSAGES {
                publish(&mut publisher, &topic, &number.to_string());
            }
            publisher
        });
        let (mut next, mut round) = (0, 0_u32);
        while next < MESSAGES {
            let until = MESSAGES.min(next + 1 + round % 7);
            let mut ids = Vec::new();
            for number in next..until {
                let (text, id) = inside.next().await;
                assert_eq!(text, number.to_string(), "{name}, round {round}");
                ids.push(id);
            }
            next = until;
            // Mostly all at once: a connection with an earlier command looks at all of them before it reads.
            let before = if round.is_multiple_of(3) { ids.len() / 2 } else { 0 };
            inside.leave(ids.split_at(before));
            inside = inside.again(&bus, &name, round.is_multiple_of(2)).await;
            round += 1;
        }
        let mut publisher = publishing.await.expect("it publishes");
        let topic = name.clone();
        let last = tokio::task::spawn_blocking(move || publish(&mut publisher, &topic, "last"));
        last.await.expect("it publishes");
        assert_eq!(inside.next().await.0, "last", "{name}");
    }
    tokio::task::spawn_blocking(move || server.stop()).await.expect("it stops");
}

#[test]
fn messages_between_shards_that_sleep_come_each_in_its_turn() {
    // Each round finds every shard asleep, and ends only once all have what it brings.
    const ROUNDS: u32 = 3_000;
    let server = server_with(Arc::new(AllowAll));
    // On both shards, but for one run in 128.
    let mut subscribers: Vec<Client> =
        (0..8).map(|number| publisher(&server, &format!("s{number}"))).collect();
    for subscriber in &mut subscribers {
        subscriber.subscribe(&[filter_of("t")]).expect("it is granted");
    }
    let mut sender = publisher(&server, "sender");
    for round in 0..ROUNDS {
        let text = round.to_string();
        publish(&mut sender, "t", &text);
        for subscriber in &mut subscribers {
            let message = subscriber.receive(LONGEST).expect("it is connected");
            assert_eq!(message.expect("it comes").payload, text.as_bytes());
        }
    }
    server.stop();
}
