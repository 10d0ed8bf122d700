//! Clients from inside the process, whose messages are handed out and acknowledged without their sockets.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    sync::Arc,
    thread,
    time::Instant,
};

use tidegate_broker::{BrokerConfig, Delivery, Handed, SessionConfig};
use tidegate_load::client::{Client, Options, Outgoing};
use tidegate_message::{AllowAll, Identity, IdentityKind};
use tidegate_process::health::Health;
use tidegate_server::{
    Server,
    deliveries::Deliveries,
    server::LocalParts,
    settings::{ListenerSettings, OpenDoors, ServerSettings},
};
use tidegate_wire::mqtt::{
    Connect, ConnectProperties, Disconnect, FixedHeader, Packet, PacketId, QoS, RetainHandling,
    Subscribe, SubscribeFilter, Version,
};

use crate::program::{LONGEST, options_of};

/// Messages to each client, a few of which it takes before it goes and comes again.
const MESSAGES: u32 = 300;

fn server() -> Server {
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let listener = ListenerSettings { anonymous: true, ..ListenerSettings::new("main", listen) };
    let settings = ServerSettings {
        broker: BrokerConfig::default(),
        listeners: vec![listener],
        shards: 2,
        doors: Arc::new(OpenDoors),
        authorize: Arc::new(AllowAll),
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

fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.message.payload.to_contiguous()).into_owned()
}

/// A client that is handed messages as they are held, and whose session outlives its connection.
struct Inside {
    socket: TcpStream,
    deliveries: Deliveries,
}

impl Inside {
    /// Comes, for the first time or again.
    fn come(server: &Server, name: &str) -> Self {
        let identity = Identity::new(IdentityKind::Internal, name, name);
        let session = SessionConfig { hands_out: true, ..SessionConfig::default() };
        let opened = server.connector().open_local(name, identity, session, name);
        let LocalParts { socket, deliveries, .. } = opened.expect("there are sockets");
        socket.set_read_timeout(Some(LONGEST)).expect("it has a timeout");
        let mut inside = Self { socket, deliveries };
        let connect = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: false,
            keep_alive: 0,
            client_id: name.to_owned(),
            will: None,
            username: None,
            password: None,
            properties: ConnectProperties {
                session_expiry: Some(3600),
                ..ConnectProperties::default()
            },
        };
        inside.ask(
            &Packet::Connect(Box::new(connect)),
            |packet| matches!(packet, Packet::Connack(connack) if !connack.reason.is_failure()),
        );
        inside
    }

    fn subscribe(&mut self, filter: &str) {
        let filter = SubscribeFilter {
            filter: filter.to_owned(),
            maximum_qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::DoNotSend,
        };
        let subscribe = Subscribe {
            packet_id: PacketId::MIN,
            subscription_id: None,
            user_properties: Vec::new(),
            filters: vec![filter],
        };
        self.ask(
            &Packet::Subscribe(subscribe),
            |packet| matches!(packet, Packet::Suback(suback) if !suback.reasons[0].is_failure()),
        );
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes).expect("it is short");
        self.socket.write_all(&bytes).expect("the broker is there");
    }

    /// Sends a packet and waits for the one that answers it: no other comes, since messages are no packets here.
    fn ask(&mut self, packet: &Packet<'_>, is_answer: impl FnOnce(&Packet<'_>) -> bool) {
        self.send(packet);
        let mut input = Vec::new();
        loop {
            let header = FixedHeader::decode(&input, 1 << 10).expect("the broker sends packets");
            if let Some(header) = header.filter(|header| input.len() >= header.packet_bytes()) {
                let body = &input[header.header_bytes..header.packet_bytes()];
                let answer = Packet::decode(Version::V5, header.first, body);
                let answer = answer.expect("the broker sends packets");
                assert!(is_answer(&answer), "{answer:?}");
                return;
            }
            let mut buffer = [0; 256];
            let count = self.socket.read(&mut buffer).expect("the broker answers");
            assert!(count > 0, "the broker ended the connection");
            input.extend_from_slice(&buffer[..count]);
        }
    }

    /// The next message, which must come.
    fn next(&mut self) -> Delivery {
        let begin = Instant::now();
        loop {
            match self.deliveries.poll() {
                Some(Handed::One(delivery)) => return delivery,
                Some(Handed::Run(run)) => panic!("{run:?} though each came in a packet"),
                None => {}
            }
            assert!(begin.elapsed() < LONGEST, "no message comes");
            thread::yield_now();
        }
    }

    fn settle(&mut self, ids: &[PacketId]) {
        ids.iter().for_each(|id| self.deliveries.acknowledge(*id));
        self.deliveries.settle();
    }

    /// Acknowledges messages without the socket, some `before` the others, and says farewell on it at once.
    fn leave(&mut self, (before, last): (&[PacketId], &[PacketId])) {
        self.settle(before);
        // Input wakes the shard, which reads all of it, the farewell too, before it looks at its commands.
        self.send(&Packet::Pingreq);
        self.settle(last);
        self.send(&Packet::Disconnect(Disconnect::default()));
    }

    /// Waits until the broker has ended the connection, too.
    fn end(mut self) {
        let mut buffer = [0; 256];
        while self.socket.read(&mut buffer).expect("the broker ends the connection") > 0 {}
    }

    /// Comes again after [`Inside::leave`]: after the end, or while the connection of before may still be open.
    fn again(self, server: &Server, name: &str, waits: bool) -> Self {
        if waits {
            self.end();
            return Self::come(server, name);
        }
        let again = Self::come(server, name);
        drop(self);
        again
    }
}

#[test]
fn messages_acknowledged_before_a_farewell_do_not_come_again() {
    let server = server();
    // Of eight names some live on each shard.
    for number in 0..8 {
        let name = format!("inside-{number}");
        let mut inside = Inside::come(&server, &name);
        inside.subscribe(&name);
        let mut publisher = publisher(&server, &name);
        let mut inside = thread::scope(|scope| {
            let (publisher, name) = (&mut publisher, &name);
            // Meanwhile, so that the shard has more to do than to hear the farewell.
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    publish(publisher, name, &number.to_string());
                }
            });
            let (mut next, mut round) = (0, 0_u32);
            while next < MESSAGES {
                let until = MESSAGES.min(next + 1 + round % 7);
                let mut ids = Vec::new();
                for number in next..until {
                    let delivery = inside.next();
                    assert_eq!(text(&delivery), number.to_string(), "{name}, round {round}");
                    ids.push(delivery.packet_id.expect("it is of QoS 1"));
                }
                next = until;
                // Mostly all at once: a connection with an earlier command looks at all of them before it reads.
                let before = if round.is_multiple_of(3) { ids.len() / 2 } else { 0 };
                inside.leave(ids.split_at(before));
                inside = inside.again(&server, name, round.is_multiple_of(2));
                round += 1;
            }
            inside
        });
        publish(&mut publisher, &name, "last");
        assert_eq!(text(&inside.next()), "last", "{name}");
    }
    server.stop();
}
