//! Cameras of other nodes, to which a client goes.

use super::*;

fn place(node: &str, addresses: &[SocketAddr]) -> Place {
    let addresses = addresses.iter().map(ToString::to_string).collect();
    Place { node: node.to_owned(), addresses }
}

/// An address at which no server is.
fn nowhere() -> SocketAddr {
    std::net::TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap()
}

impl Site {
    /// Another node of the same authority.
    async fn another(&self, name: &str) -> Self {
        Self::serve(self.folder.clone(), name, ANY_PORT, Access::default()).await
    }

    /// From now on it says that a camera is at another node.
    fn says(&self, camera: &str, place: Place) {
        self.places.lock().unwrap().insert(camera.to_owned(), place);
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Two nodes of one authority; the first says that `cam1` is at the second.
async fn edge_and_yard() -> (Site, Site) {
    let edge = Site::start().await;
    let yard = edge.another("yard").await;
    edge.says("cam1", place("yard", &[nowhere(), yard.address]));
    (edge, yard)
}

/// As `Site::client`, with these options.
async fn connected(site: &Site, options: ConnectOptions) -> Client {
    Client::connect_with(&site.endpoint(), site.credentials(), options).await.unwrap()
}

fn one_try() -> ConnectOptions {
    ConnectOptions { max_reconnects: 0, ..ConnectOptions::default() }
}

#[tokio::test]
async fn calls_about_a_camera_of_another_node_go_there_and_that_is_remembered() {
    let (edge, yard) = edge_and_yard().await;
    let client = edge.client().await;
    assert_eq!(client.camera(&name("cam1")).await.unwrap(), camera_info("cam1"));
    let original = client.fetch_original(&name("cam1"), Instant::from_nanos(999)).await.unwrap();
    assert_eq!(original.jpeg, "cam1");
    let missing = client.fetch_original(&name("cam1"), Instant::from_nanos(1000)).await;
    assert_eq!(missing.unwrap_err().code(), Code::FRAME_MISSING);
    let of = FeedbackOf::Camera(name("cam1"));
    assert_eq!(client.feedback(of).await.unwrap().count().await, 1);
    assert_eq!((edge.asked(), yard.asked()), (1, 4), "the first call alone asks the way");
    // Cameras of this node are asked for here.
    client.camera(&name("cam2")).await.unwrap();
    assert_eq!((edge.asked(), yard.asked()), (2, 4));
}

#[tokio::test]
async fn a_subscription_is_changed_heard_and_ended_at_the_node_that_serves_it() {
    let (mut edge, mut yard) = edge_and_yard().await;
    let client = edge.client().await;
    // Nodes give the same identifiers: a call at the wrong node would meet this one.
    let mut here = request();
    here.camera = name("cam2");
    let here = client.subscribe(here).await.unwrap();
    let _session = edge.session().await;

    let mut there = client.subscribe(request()).await.unwrap();
    let session = yard.session().await;
    assert_eq!((here.node(), there.node()), ("edge".to_owned(), "yard".to_owned()));
    assert_eq!((here.id(), session.identity.name()), (there.id(), "application"));
    session.events.send(Ok(frame(5, Bytes::from_static(b"\xff\xd8")))).await.unwrap();
    assert!(matches!(there.next().await, Some(Ok(Event::Frame(_)))));
    let changes = Changes { controller: Some(ControllerKind::Aimd), ..Changes::default() };
    let demand = there.update(changes).await.unwrap();
    assert_eq!((there.demand(), demand.controller), (demand, ControllerKind::Aimd));
    assert_eq!(there.feedback().await.unwrap().count().await, 1);
    there.unsubscribe().await.unwrap();
    session.events.closed().await;
    // The other one is as it was.
    assert_eq!(here.update(Changes::default()).await.unwrap(), request().demand);
}

#[tokio::test]
async fn a_subscription_goes_with_a_camera_that_moves_to_another_node() {
    let (edge, mut yard) = edge_and_yard().await;
    let mut hall = edge.another("hall").await;
    let options = ConnectOptions { backoff: Duration::from_millis(1), ..ConnectOptions::default() };
    let mut events = connected(&edge, options).await.subscribe(every()).await.unwrap();
    let session = yard.session().await;
    session.events.send(Ok(frame(5, Bytes::from_static(b"\xff\xd8")))).await.unwrap();
    assert!(matches!(events.next().await, Some(Ok(Event::Frame(_)))));
    edge.says("cam1", place("hall", &[hall.address]));
    yard.stop.cancel();
    drop(session);
    assert!(matches!(events.next().await, Some(Ok(Event::CameraOffline(_)))));
    assert_eq!(events.next().await.unwrap().unwrap(), Event::CameraOnline);
    let session = hall.session().await;
    assert_eq!(session.request.from, Some(Instant::from_nanos(5_000_001)), "behind the last frame");
    assert_eq!(events.node(), "hall");
}

#[tokio::test]
async fn a_node_that_is_gone_or_has_the_camera_no_longer_is_forgotten() {
    let (edge, yard) = edge_and_yard().await;
    let client = connected(&edge, one_try()).await;
    let camera = name("cam1");
    client.camera(&camera).await.unwrap();
    // It has moved to the first node, and the one that had it knows.
    edge.places.lock().unwrap().clear();
    yard.says("cam1", place("edge", &[edge.address]));
    client.camera(&camera).await.unwrap();
    client.camera(&camera).await.unwrap();
    assert_eq!((edge.asked(), yard.asked()), (3, 2));
    // It has moved back, and that node ends.
    yard.places.lock().unwrap().clear();
    edge.says("cam1", place("yard", &[yard.address]));
    client.camera(&camera).await.unwrap();
    yard.stop.cancel();
    yard.served.await.unwrap().unwrap();
    edge.places.lock().unwrap().clear();
    client.camera(&camera).await.unwrap();
    assert_eq!(edge.asked(), 5);
}

#[tokio::test]
async fn nodes_that_name_each_other_are_left_after_two_steps() {
    let (edge, yard) = edge_and_yard().await;
    yard.says("cam1", place("edge", &[edge.address]));
    let error = edge.client().await.camera(&name("cam1")).await.unwrap_err();
    assert_eq!(error.code(), Code::CAMERA_ELSEWHERE);
    assert_eq!(error.place().map(|place| &*place.node), Some("yard"));
    assert!(error.message().contains("from node edge in 2 steps"), "{error}");
    assert_eq!((edge.asked(), yard.asked()), (2, 1));
}

#[tokio::test]
async fn a_camera_that_moved_unknown_to_the_first_node_is_found_by_a_second_step() {
    let (edge, yard) = edge_and_yard().await;
    let hall = edge.another("hall").await;
    yard.says("cam1", place("hall", &[hall.address]));
    let client = edge.client().await;
    client.camera(&name("cam1")).await.unwrap();
    client.camera(&name("cam1")).await.unwrap();
    assert_eq!((edge.asked(), yard.asked(), hall.asked()), (1, 1, 2));
}

#[tokio::test]
async fn a_place_that_cannot_be_trusted_or_reached_is_refused_with_both_names() {
    let (edge, yard) = edge_and_yard().await;
    let stranger = Site::start().await; // of another authority
    let client = connected(&edge, one_try()).await;
    for (place, code, why) in [
        (place("yard", &[stranger.address]), Code::IDENTITY_REFUSED, "certificate"),
        // It is not overlooked behind an address that leads nowhere.
        (place("yard", &[stranger.address, nowhere()]), Code::IDENTITY_REFUSED, "certificate"),
        (place("shed", &[yard.address]), Code::LINK_DOWN, "node yard answers"),
        (place("yard", &[nowhere()]), Code::LINK_DOWN, "no node answers"),
        // The front without TLS would take the call.
        (place("yard", &[yard.plain]), Code::LINK_DOWN, "no node answers"),
    ] {
        edge.says("cam1", place.clone());
        let error = client.subscribe(request()).await.unwrap_err();
        let chain = error.chain();
        assert_eq!((error.code(), error.place()), (code, Some(&place)), "{chain}");
        assert!(chain.contains("node edge says") && chain.contains(&place.node), "{chain}");
        assert!(chain.contains(why), "{chain}");
    }
    assert_eq!((stranger.asked(), yard.asked()), (0, 0));
    // Without addresses there is nothing to follow.
    edge.says("cam1", place("yard", &[]));
    let error = client.camera(&name("cam1")).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::CAMERA_ELSEWHERE, "camera cam1 is at node yard")
    );
}

#[tokio::test]
async fn a_password_goes_to_the_node_that_serves_the_camera() {
    let (edge, access) = Site::with(sources(&Issuer::new())).await;
    let mut yard = Site::serve(edge.folder.clone(), "yard", ANY_PORT, access).await;
    edge.says("cam1", place("yard", &[yard.address]));
    let bob = edge.nobody().password("bob", b"ebb").unwrap();
    let bob = Client::connect(&edge.endpoint(), bob).await.unwrap();
    let _subscription = bob.subscribe(request()).await.unwrap();
    assert_eq!(yard.session().await.identity.to_string(), "user bob");
}

#[tokio::test]
async fn a_client_that_is_not_to_follow_is_told_the_place() {
    let (edge, yard) = edge_and_yard().await;
    let options = ConnectOptions { follow: false, ..one_try() };
    let error = connected(&edge, options).await.subscribe(request()).await.unwrap_err();
    let said = edge.places.lock().unwrap().get("cam1").cloned();
    assert_eq!((error.code(), error.place()), (Code::CAMERA_ELSEWHERE, said.as_ref()));
    assert_eq!(yard.asked(), 0);
}

#[tokio::test]
async fn of_many_cameras_those_that_were_asked_for_last_are_remembered() {
    let (edge, yard) = edge_and_yard().await;
    let client = edge.client().await;
    let camera = |number: u32| name(&format!("cam{number}"));
    for number in 1..=257 {
        edge.says(camera(number).as_str(), place("yard", &[yard.address]));
        client.camera(&camera(number)).await.unwrap();
    }
    assert_eq!((edge.asked(), yard.asked()), (257, 257));
    for number in [2, 257] {
        client.camera(&camera(number)).await.unwrap();
    }
    assert_eq!(edge.asked(), 257, "both are remembered");
    client.camera(&camera(1)).await.unwrap();
    assert_eq!(edge.asked(), 258, "the first had made room");
}

#[tokio::test]
async fn node_fetches_from_another_one_for_a_caller_that_asks_for_it() {
    let (edge, _yard) = edge_and_yard().await;
    let ask = async |relay: Option<&'static str>| {
        let mut request =
            tonic::Request::new(proto::GetCameraInfoRequest { camera: "cam1".to_owned() });
        if let Some(value) = relay {
            request.metadata_mut().insert("tidegate-relay", value.parse().expect("a value"));
        }
        let answer = edge.raw().get_camera_info(request).await;
        answer.map(|_| ()).map_err(|status| failure(status).code())
    };
    assert_eq!(ask(None).await, Err(Code::CAMERA_ELSEWHERE));
    assert_eq!(ask(Some("yes")).await, Err(Code::REQUEST_INVALID));
    assert_eq!(ask(Some("1")).await, Ok(()));
}

#[tokio::test]
async fn application_asks_on_behalf_of_none() {
    let edge = Site::start().await;
    let mut request = tonic::Request::new(proto::ListCamerasRequest {});
    let named = tonic::metadata::MetadataValue::from_bytes(br#"{"kind":"user","name":"ada"}"#);
    request.metadata_mut().insert_bin("tidegate-behalf-bin", named);
    let refused = edge.raw().list_cameras(request).await.expect_err("it is no member");
    assert_eq!(failure(refused).code(), Code::ACTION_DENIED);
}
