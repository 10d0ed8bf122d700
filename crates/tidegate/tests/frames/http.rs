//! A camera by HTTP through a whole node, with all that such cameras do.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use tidegate_camera::source::{NetworkOptions, SourceSpec};
use tidegate_client::{Event, SubscribeRequest, Subscription};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use crate::world::{World, until};

/// The present behaviour of a camera.
#[derive(Clone, Debug)]
enum Mode {
    /// It takes no login.
    Refuses,
    /// It sends a head and no more.
    Hangs,
    /// It closes each connection, as while it starts.
    Reboots,
    /// It sends that picture again and again, and says that it is so many bytes longer.
    Shows(Bytes, usize),
}

/// A camera that behaves as it is told. Dropping it ends it.
struct Fake {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    _task: AbortOnDropHandle<()>,
}

impl Fake {
    async fn start(mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let (mode, modes) = watch::channel(mode);
        let task = tokio::spawn(async move {
            let mut serving = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                serving.spawn(serve(socket, modes.clone()));
            }
        });
        Self { address, mode, _task: AbortOnDropHandle::new(task) }
    }

    /// From now on; connections that there are end.
    fn becomes(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

/// Answers requests until the behaviour is another one.
async fn serve(mut socket: TcpStream, mut modes: watch::Receiver<Mode>) -> std::io::Result<()> {
    let mode = modes.borrow_and_update().clone();
    let served = async {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if socket.read_buf(&mut head).await? == 0 {
                    return Ok(());
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            // me:s3cret
            let is_known = head.contains("Authorization: Basic bWU6czNjcmV0");
            let stream: &[u8] =
                b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=x\r\n\r\n";
            match &mode {
                Mode::Reboots => return Ok(()),
                Mode::Hangs => {
                    socket.write_all(stream).await?;
                    std::future::pending::<()>().await;
                }
                Mode::Shows(jpeg, longer) if is_known => {
                    socket.write_all(stream).await?;
                    let part = format!(
                        "--x\r\nContent-Type: image/jpeg\r\nContent-Length: {}\r\n\r\n",
                        jpeg.len() + longer
                    );
                    let mut pace = tokio::time::interval(Duration::from_millis(100));
                    loop {
                        pace.tick().await;
                        socket.write_all(part.as_bytes()).await?;
                        socket.write_all(jpeg).await?;
                        socket.write_all(b"\r\n").await?;
                    }
                }
                Mode::Refuses | Mode::Shows(..) => {
                    let refused = b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n";
                    socket.write_all(refused).await?;
                }
            }
        }
    };
    tokio::select! {
        served = served => served,
        _ = modes.changed() => Ok(()),
    }
}

fn picture(width: u16, height: u16) -> Bytes {
    let mut picture = tidegate_jpeg::Packed::default();
    picture.reset(width, height);
    for (index, sample) in picture.data_mut().iter_mut().enumerate() {
        *sample = u8::try_from((index * 7919) % 251).expect("below 251");
    }
    let mut jpeg = Vec::new();
    tidegate_jpeg::Codec::new().encode_bgr(&picture, 80, &mut jpeg).expect("a picture");
    jpeg.into()
}

/// Waits for the first event that is meant.
async fn event(subscription: &mut Subscription, is_meant: impl Fn(&Event) -> bool) -> Event {
    let next = async {
        loop {
            let event = subscription.next().await.expect("it goes on").expect("it holds");
            if is_meant(&event) {
                return event;
            }
        }
    };
    timeout(Duration::from_secs(90), next).await.expect("it comes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_camera_by_http_is_followed_whatever_it_does_and_disturbs_no_other() {
    let world = World::new().await;
    let client = world.client().await;
    let fake = Fake::start(Mode::Refuses).await;
    let door = format!("http://me:s3cret@{}/video", fake.address);
    world.configure(&[("door", &door), ("yard", "scene:street?size=320x240&fps=10&people=1")]);
    world.cameras.send_modify(|cameras| {
        let silent_max = Some(Duration::from_secs(1));
        let options = NetworkOptions { silent_max, ..NetworkOptions::default() };
        let source: SourceSpec = cameras[0].source.clone();
        cameras[0].source = source.with_options(options);
    });
    let says = async |text: &str| {
        until(&client, "door", |info| {
            let why = info.no_frames.as_deref().unwrap_or_default();
            assert!(!why.contains("s3cret"), "{why}");
            info.online && why.contains(text)
        })
        .await;
    };
    says("refuses the user or the password").await;
    world.wait_for_camera(&client, "yard").await;
    let subscribe = async |camera: &str| {
        let request = SubscribeRequest::new(camera, Duration::from_secs(5), 0.5);
        client.subscribe(request.expect("a request")).await.expect("a subscription")
    };
    let (mut door, mut yard) = (subscribe("door").await, subscribe("yard").await);
    event(&mut door, |event| matches!(event, Event::NoFrames(_))).await;

    let source_width = |event: &Event| match event {
        Event::Frame(frame) => frame.source_size.map(|size| size.width),
        _ => None,
    };
    // It takes the login, then hangs behind the head of its answer, then is away, then comes back with pictures of another size.
    fake.becomes(Mode::Shows(picture(64, 48), 0));
    event(&mut door, |event| source_width(event) == Some(64)).await;
    fake.becomes(Mode::Hangs);
    event(&mut door, |event| matches!(event, Event::NoFrames(_))).await;
    says("gave no image for 1 s").await;
    fake.becomes(Mode::Shows(picture(64, 48), 0));
    event(&mut door, |event| source_width(event) == Some(64)).await;
    fake.becomes(Mode::Reboots);
    says("cannot be reached").await;
    fake.becomes(Mode::Shows(picture(96, 80), 0));
    event(&mut door, |event| *event == Event::CameraOnline).await;
    event(&mut door, |event| source_width(event) == Some(96)).await;
    until(&client, "door", |info| info.size.is_some_and(|size| size.width == 96)).await;
    // It lies about the length of its pictures, which changes in the middle of a stream.
    fake.becomes(Mode::Shows(picture(80, 64), 1_000_000));
    let frame = event(&mut door, |event| source_width(event) == Some(80)).await;
    let Event::Frame(frame) = frame else { panic!("it was one") };
    let name = "door".parse().expect("a name");
    let original = client.fetch_original(&name, frame.captured_at).await.expect("it is kept");
    assert_eq!(original.jpeg, picture(80, 64));

    // The other camera has had its frames all the time.
    let mut frames = 0;
    while let Ok(Some(next)) = timeout(Duration::from_millis(500), yard.next()).await {
        match next.expect("it holds") {
            Event::Frame(_) => frames += 1,
            Event::CameraOffline(why) | Event::NoFrames(why) => panic!("{why}"),
            _ => {}
        }
        if frames >= 20 {
            return;
        }
    }
    panic!("{frames} frames came");
}
