use std::net::UdpSocket;

use bytes::Bytes;
use tidegate_process::clock;
use tidegate_wire::coap::{
    Client as Device, ClientEvent, ClientRequest, Code, ContentFormat, Method, Transmission,
};

use super::*;

/// A device with its socket.
struct Coap {
    device: Device,
    socket: UdpSocket,
}

impl Coap {
    fn new(world: &World) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let device = Device::new(world.address(), Transmission::default(), [7; 32]);
        Self { device, socket }
    }

    /// The next event.
    fn event(&mut self) -> ClientEvent {
        let begin = std::time::Instant::now();
        let mut buffer = [0; 2048];
        loop {
            if let Some(event) = self.device.poll_event() {
                return event;
            }
            assert!(begin.elapsed() < LONGEST, "nothing came");
            while let Some(transmit) = self.device.poll_transmit() {
                self.socket.send_to(transmit.datagram, transmit.peer).unwrap();
            }
            if let Ok((count, _)) = self.socket.recv_from(&mut buffer) {
                self.device.handle(clock::now(), &buffer[..count]);
            }
            if self.device.poll_timeout().is_some_and(|at| at <= clock::now()) {
                self.device.handle_timeout(clock::now());
            }
        }
    }

    fn ask(&mut self, request: ClientRequest) -> (Code, Bytes) {
        self.device.request(clock::now(), request).expect("it is a request");
        answer(self.event())
    }
}

fn answer(event: ClientEvent) -> (Code, Bytes) {
    match event {
        ClientEvent::Response { code, payload, .. } => (code, payload),
        other => panic!("{other:?}"),
    }
}

fn told(event: ClientEvent) -> Bytes {
    match event {
        ClientEvent::Notification { payload, .. } => payload,
        other => panic!("{other:?}"),
    }
}

fn give(method: Method, path: &str, payload: &'static [u8]) -> ClientRequest {
    ClientRequest { payload: Bytes::from_static(payload), ..ClientRequest::new(method, path) }
}

fn listener(rest: &str) -> String {
    format!("[ingest.x]\nkind = \"coap\"\nlisten = \"127.0.0.1:0\"\n{rest}\n")
}

#[test]
fn a_device_publishes_and_reads() {
    let world = World::new(&listener(""));
    let mut all = world.subscriber("#");
    let mut coap = Coap::new(&world);
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    assert_eq!(coap.ask(ClientRequest::new(Method::Get, "plant/7")).0, Code::NOT_FOUND);
    assert_eq!(coap.ask(give(Method::Put, "plant/7", b"21.5")), (Code::CREATED, text("")));
    assert_eq!(next(&mut all), pair("plant/7", "21.5"));
    let json = Some(ContentFormat::JSON);
    let put = ClientRequest { content_format: json, ..give(Method::Put, "plant/7", b"22") };
    assert_eq!(coap.ask(put).0, Code::CHANGED);
    assert_eq!(next(&mut all), pair("plant/7", "22"));
    coap.device
        .request(clock::now(), ClientRequest::new(Method::Get, "plant/7"))
        .expect("it is a request");
    match coap.event() {
        ClientEvent::Response { code, content_format, payload, .. } => {
            assert_eq!((code, content_format, payload), (Code::CONTENT, json, text("22")));
        }
        other => panic!("{other:?}"),
    }
    // A message leaves nothing behind.
    assert_eq!(coap.ask(give(Method::Post, "plant/8", b"now")).0, Code::CHANGED);
    assert_eq!(next(&mut all), pair("plant/8", "now"));
    assert_eq!(coap.ask(ClientRequest::new(Method::Get, "plant/8")).0, Code::NOT_FOUND);
    let report = world.report();
    assert_eq!((report.published, report.published_bytes), (3, 9));
}

#[test]
fn a_device_follows_a_topic() {
    let world = World::new(&listener(""));
    let mut publisher = world.client();
    let mut publish = |payload: &str, retain| {
        let (topic, payload) = ("plant/7", payload.as_bytes());
        let qos = QoS::AtLeastOnce;
        let message =
            tidegate_load::client::Outgoing { topic, payload, qos, retain, ..Default::default() };
        publisher.publish(&message).unwrap();
    };
    publish("1", true);
    let mut coap = Coap::new(&world);
    let follow = ClientRequest { follows: true, ..ClientRequest::new(Method::Get, "plant/7") };
    assert_eq!(coap.ask(follow), (Code::CONTENT, Bytes::from_static(b"1")));
    // The subscription that is made meanwhile brings the retained value once more, which is not sent a second time. Values
    // that are
    // published again are, although they are the same.
    let mut all = world.subscriber("plant/7");
    assert_eq!(next(&mut all), pair("plant/7", "1"));
    for value in ["2", "2", "4"] {
        publish(value, true);
        assert_eq!(told(coap.event()), value);
    }
}

#[test]
fn large_values_travel_in_blocks_both_ways() {
    let world = World::new(&listener(""));
    let mut all = world.subscriber("#");
    let mut coap = Coap::new(&world);
    let large = "0123456789".repeat(500);
    let put =
        ClientRequest { payload: large.clone().into(), ..ClientRequest::new(Method::Put, "large") };
    assert_eq!(coap.ask(put).0, Code::CREATED);
    assert_eq!(next(&mut all), pair("large", &large));
    let (code, payload) = coap.ask(ClientRequest::new(Method::Get, "large"));
    assert_eq!((code, payload), (Code::CONTENT, large.into()));
}

#[test]
fn refused_messages_are_reported_by_their_code() {
    let rules = "topic readwrite open/#\ntopic read #\n";
    let world = World::with_files(
        &format!("[mqtt]\nacl_file = \"$PLACE/rules\"\n{}", listener("message_bytes_max = \"5B\"")),
        &[("rules", rules)],
    );
    let mut coap = Coap::new(&world);
    for (request, code) in [
        (give(Method::Put, "open/a", b"12345"), Code::CREATED),
        (give(Method::Put, "open/a", b"123456"), Code::REQUEST_ENTITY_TOO_LARGE),
        (give(Method::Put, "closed", b"1"), Code::FORBIDDEN),
        (give(Method::Put, "$SYS/broker/uptime", b"1"), Code::FORBIDDEN),
        (give(Method::Put, "a+", b"1"), Code::BAD_REQUEST),
    ] {
        let path = request.path.clone();
        assert_eq!(coap.ask(request).0, code, "{path}");
    }
    let (code, links) = coap.ask(ClientRequest::new(Method::Get, ".well-known/core"));
    assert_eq!(code, Code::CONTENT);
    assert!(links.starts_with(b"</>;rt=\"tidegate.topics\""), "{links:?}");
    assert_eq!(world.report().denied, 2);
    Coap::new(&world).socket.send_to(b"\x00", world.address()).unwrap();
    assert_eq!(world.report_when(|report| report.invalid > 0).invalid, 1);
}

#[test]
fn a_copy_of_a_request_is_taken_once() {
    let world = World::new(&listener(""));
    let mut all = world.subscriber("#");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // CON POST, identifier 1, token 1, path `a`, payload `x`.
    let request = b"\x41\x02\x00\x01\x01\xb1a\xffx";
    let mut answers = Vec::new();
    for _ in 0..3 {
        socket.send_to(request, world.address()).unwrap();
        let mut buffer = [0; 64];
        let count = socket.recv(&mut buffer).unwrap();
        answers.push(buffer[..count].to_vec());
    }
    assert_eq!(answers, vec![b"\x61\x44\x00\x01\x01".to_vec(); 3]);
    assert_eq!(next(&mut all), pair("a", "x"));
    assert_eq!(world.report().published, 1);
}
