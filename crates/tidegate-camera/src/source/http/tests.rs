//! A camera that is asked by HTTP, with every quirk that such cameras have.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::source::{
    Source,
    tests::{jpegs, own_address},
};

/// An answer in bytes, and what becomes of the connection behind it.
struct Reply {
    bytes: Vec<u8>,
    then: Then,
}

enum Then {
    Close,
    /// The next request comes by it.
    Keep,
    /// Nothing more is sent.
    Hang,
    /// These bytes are sent again and again.
    Repeat(Vec<u8>),
}

/// A fake camera: it answers requests by their number, from 0, and their heads.
struct Fake {
    address: SocketAddr,
    connections: Arc<AtomicU32>,
    _task: AbortOnDropHandle<()>,
}

impl Fake {
    async fn start(reply: impl Fn(u32, &str) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1".parse().unwrap(), reply).await
    }

    async fn start_at(
        place: IpAddr,
        reply: impl Fn(u32, &str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((place, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU32::new(0));
        let counted = connections.clone();
        let task = tokio::spawn(async move {
            let (reply, number) = (Arc::new(reply), Arc::new(AtomicU32::new(0)));
            let mut served = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let (reply, number) = (reply.clone(), number.clone());
                served.spawn(async move { serve(socket, &*reply, &number).await });
            }
        });
        Self { address, connections, _task: AbortOnDropHandle::new(task) }
    }

    fn spec(&self, login: &str, path: &str) -> SourceSpec {
        SourceSpec::parse(&format!("http://{login}{}{path}", self.address)).unwrap()
    }
}

async fn serve(
    mut socket: TcpStream,
    reply: &(dyn Fn(u32, &str) -> Reply + Sync),
    number: &AtomicU32,
) {
    let mut read = Vec::new();
    loop {
        while !read.ends_with(b"\r\n\r\n") {
            match socket.read_buf(&mut read).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let head = String::from_utf8(std::mem::take(&mut read)).unwrap();
        let Reply { bytes, then } = reply(number.fetch_add(1, Ordering::SeqCst), &head);
        if socket.write_all(&bytes).await.is_err() {
            return;
        }
        match then {
            Then::Close => return,
            Then::Keep => {}
            Then::Hang => std::future::pending().await,
            Then::Repeat(bytes) => while socket.write_all(&bytes).await.is_ok() {},
        }
    }
}

fn answer(head: &str, body: &[u8], then: Then) -> Reply {
    Reply { bytes: [head.as_bytes(), b"\r\n\r\n", body].concat(), then }
}

fn picture(jpeg: &[u8], then: Then) -> Reply {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: {}", jpeg.len());
    answer(&head, jpeg, then)
}

fn status(text: &str) -> Reply {
    answer(&format!("HTTP/1.1 {text}\r\nContent-Length: 0"), b"", Then::Keep)
}

async fn next(source: &mut Source) -> Result<Bytes, String> {
    let next = timeout(Duration::from_secs(60), source.next()).await.expect("it goes on");
    let found = next.expect("a camera does not end");
    found.map(|frame| frame.picture.jpeg).map_err(|error| tidegate_message::error_chain(&error))
}

/// Parts as cameras write them, each around the same three pictures.
fn streams(images: &[Bytes]) -> Vec<(&'static str, &'static str, Vec<u8>)> {
    const MULTIPART: &str = "multipart/x-mixed-replace; boundary=frame";
    let parts = |before: &dyn Fn(usize) -> String, after: &str| -> Vec<u8> {
        let part =
            |image: &Bytes| [before(image.len()).as_bytes(), image, after.as_bytes()].concat();
        images.iter().flat_map(part).collect()
    };
    let usual = |length: usize| {
        format!("--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {length}\r\n\r\n")
    };
    let bare = |_| "--frame\r\nContent-Type: image/jpeg\r\n\r\n".to_owned();
    vec![
        ("as it should be", MULTIPART, [parts(&usual, "\r\n"), b"--frame--\r\n".to_vec()].concat()),
        ("no closing", MULTIPART, parts(&usual, "\r\n")),
        ("quoted", "multipart/x-mixed-replace; boundary=\"frame\"", parts(&usual, "\r\n")),
        (
            "dashes in the boundary",
            "multipart/x-mixed-replace;boundary=--frame",
            parts(&usual, "\r\n"),
        ),
        ("no dashes", MULTIPART, parts(&|length| usual(length)[2..].to_owned(), "\r\n")),
        (
            "another boundary",
            MULTIPART,
            parts(&|length| usual(length).replace("frame", "myboundary"), "\r\n"),
        ),
        ("no boundary", "multipart/x-mixed-replace", parts(&usual, "\r\n")),
        ("no length", MULTIPART, parts(&bare, "\r\n")),
        ("a length too short", MULTIPART, parts(&|length| usual(length / 2), "\r\n")),
        ("a length too long", MULTIPART, parts(&|length| usual(length * 2), "\r\n")),
        ("a length that is none", MULTIPART, parts(&|_| usual(0).replace(": 0", ": -1"), "\r\n")),
        ("line feeds alone", MULTIPART, parts(&|length| usual(length).replace('\r', ""), "\n")),
        ("no end of a part", MULTIPART, parts(&usual, "")),
        (
            "bytes before the first",
            MULTIPART,
            [b"\r\nhello\r\n".to_vec(), parts(&usual, "\r\n")].concat(),
        ),
        (
            "other parts between",
            MULTIPART,
            parts(
                &|length| {
                    format!(
                        "--frame\r\nContent-Type: text/plain\r\n\r\ntemperature=21\r\n{}",
                        usual(length)
                    )
                },
                "\r\n",
            ),
        ),
        (
            "no type of a part",
            MULTIPART,
            parts(&|length| format!("--frame\r\nContent-Length: {length}\r\n\r\n"), "\r\n"),
        ),
        ("a type of its own", "video/x-motion-jpeg", parts(&|_| String::new(), "")),
        ("no type", "", parts(&usual, "\r\n")),
    ]
}

#[tokio::test]
async fn a_stream_of_parts_is_read_however_they_are_written() {
    let images = jpegs(3);
    for (name, kind, body) in streams(&images) {
        for head in [
            format!("HTTP/1.0 200 OK\r\nContent-Type: {kind}"),
            format!("HTTP/1.1 200 OK\r\nServer : x\r\nContent-Type:{kind}\r\nConnection: close"),
        ] {
            // In pieces of some length, as a network has them.
            let body = body.clone();
            let fake = Fake::start(move |_, _| answer(&head, &body, Then::Close)).await;
            let SourceSpec::Http { address, rate, .. } = fake.spec("", "/video") else {
                panic!("HTTP")
            };
            let mut camera = HttpCamera::open(&address, rate, None).await.expect(name);
            for image in &images {
                assert_eq!(camera.next().await.expect(name).0, image, "{name}");
            }
            // It is a stream that has ended, which is opened again.
            assert!(matches!(camera.next().await, Err(SourceError::Ended { .. })), "{name}");
        }
    }
}

#[tokio::test]
async fn a_picture_is_given_with_its_last_byte() {
    let images = jpegs(1);
    let part =
        [&b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: 999999\r\n\r\n"[..], &images[0]]
            .concat();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame";
    let fake = Fake::start(move |_, _| answer(head, &part, Then::Hang)).await;
    let mut source = Source::open(&fake.spec("", "/")).await.unwrap();
    assert_eq!(next(&mut source).await.unwrap(), images[0]);
}

#[tokio::test]
async fn single_pictures_are_asked_for_at_the_pace_by_one_connection() {
    let images = jpegs(2);
    let given = images.clone();
    let fake = Fake::start(move |number, head| {
        assert!(head.starts_with("GET /snapshot.jpg?channel=1 HTTP/1.1\r\n"), "{head}");
        picture(&given[number as usize % 2], Then::Keep)
    });
    let fake = fake.await;
    let spec = fake.spec("", "/snapshot.jpg?channel=1").with_rate(Rate::new(20.0).unwrap());
    let mut source = Source::open(&spec).await.unwrap();
    let began = Moment::now();
    for count in 0..6 {
        assert_eq!(next(&mut source).await.unwrap(), images[count % 2]);
    }
    assert!(began.elapsed() >= Duration::from_millis(225), "{:?}", began.elapsed());
    assert_eq!(fake.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_single_picture_is_taken_as_it_comes() {
    let images = jpegs(1);
    let image = &images[0];
    let bare = &image[..image.len() - 2];
    let head = |kind: &str, length: usize| {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close"
        )
    };
    for (name, head, body, then) in [
        (
            "no length",
            "HTTP/1.0 200 OK\r\nContent-Type: image/jpeg".to_owned(),
            image.to_vec(),
            Then::Close,
        ),
        ("a type that is wrong", head("image/png", image.len()), image.to_vec(), Then::Close),
        (
            "no type for it",
            head("application/octet-stream", image.len()),
            image.to_vec(),
            Then::Close,
        ),
        ("no end marker", head("image/jpeg", bare.len()), bare.to_vec(), Then::Close),
        // It would have more, and there is none.
        (
            "a length too long, kept",
            head("image/jpeg", image.len() + 500),
            image.to_vec(),
            Then::Hang,
        ),
        ("a length too long", head("image/jpeg", image.len() + 500), image.to_vec(), Then::Close),
        (
            "bytes behind it",
            head("image/jpeg", image.len() + 4),
            [image, &b"\r\n\r\n"[..]].concat(),
            Then::Close,
        ),
    ] {
        let hangs = matches!(then, Then::Hang);
        let fake = Fake::start(move |_, _| {
            answer(&head, &body, if hangs { Then::Hang } else { Then::Close })
        });
        let fake = fake.await;
        let spec = fake.spec("", "/").with_rate(Rate::new(50.0).unwrap());
        let mut source = Source::open(&spec).await.unwrap();
        for _ in 0..3 {
            assert_eq!(next(&mut source).await.as_ref(), Ok(image), "{name}");
        }
    }
}

#[tokio::test]
async fn a_stream_is_one_whatever_its_type_says_and_after_one_that_broke_off() {
    let images = jpegs(3);
    for kind in ["image/jpeg", "video/x-motion-jpeg", ""] {
        let given = images.clone();
        let fake = Fake::start(move |number, _| {
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}");
            match number {
                // It ends well, after one picture.
                0 => answer(&head, &given[0], Then::Close),
                _ => answer(&head, &given.concat(), Then::Repeat(given.concat())),
            }
        });
        let fake = fake.await;
        // A picture for each request would take minutes.
        let spec = fake.spec("", "/").with_rate(Rate::new(0.5).unwrap());
        let SourceSpec::Http { address, rate, .. } = spec else { panic!("HTTP") };
        let mut camera = HttpCamera::open(&address, rate, None).await.unwrap();
        let all = async {
            assert_eq!(camera.next().await.unwrap().0, images[0], "{kind}");
            for count in 0..60 {
                assert_eq!(camera.next().await.unwrap().0, images[count % 3], "{kind}");
            }
        };
        timeout(Duration::from_secs(30), all).await.expect(kind);
        assert_eq!(fake.connections.load(Ordering::SeqCst), 2, "{kind}");
    }
}

#[tokio::test]
async fn a_preview_behind_a_single_picture_is_left_out() {
    let images = jpegs(2);
    for is_sized in [true, false] {
        let given = images.clone();
        let fake = Fake::start(move |_, _| match is_sized {
            true => picture(&given.concat(), Then::Keep),
            false => {
                let head = "HTTP/1.0 200 OK\r\nContent-Type: image/jpeg";
                answer(head, &given.concat(), Then::Close)
            }
        });
        let fake = fake.await;
        let spec = fake.spec("", "/").with_rate(Rate::new(50.0).unwrap());
        let mut source = Source::open(&spec).await.unwrap();
        for _ in 0..3 {
            assert_eq!(next(&mut source).await.as_ref(), Ok(&images[0]), "{is_sized}");
        }
        assert!(!is_sized || fake.connections.load(Ordering::SeqCst) == 1);
    }
}

#[tokio::test]
async fn a_stream_of_damaged_pictures_is_given_up() {
    let damaged: &[u8] = b"\xff\xd8\xff\xe0\x00\x00--frame\r\n\r\n";
    let head = "HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=frame";
    let fake = Fake::start(move |_, _| answer(head, damaged, Then::Repeat(damaged.to_vec()))).await;
    let SourceSpec::Http { address, rate, .. } = fake.spec("", "/") else { panic!("HTTP") };
    let waits = Waits { pictureless: Duration::from_millis(300), ..Waits::USUAL };
    let mut camera = HttpCamera::open_within(&address, rate, waits).await.unwrap();
    let (mut count, given_up) = (0, Duration::from_secs(20));
    let error = timeout(given_up, async {
        loop {
            match camera.next().await.expect_err("no picture is whole") {
                SourceError::Damaged { .. } => count += 1,
                error => return error,
            }
        }
    });
    let error = error.await.expect("it is given up");
    assert!(matches!(error, SourceError::Stalled { .. }), "{error}");
    assert!(count > 0, "none was damaged");
}

#[tokio::test]
async fn a_login_is_given_in_answer_to_a_challenge_and_once() {
    let image = jpegs(1).remove(0);
    for (challenge, expected) in [
        ("Basic realm=\"cam\"", "authorization: basic bwu6czncdxq="),
        ("Digest realm=\"cam\", nonce=\"abc\", qop=\"auth\"", "nc=00000001"),
        (
            "Basic realm=\"cam\", Digest realm=\"cam\", nonce=\"abc\", algorithm=SHA-256",
            "algorithm=sha-256",
        ),
        ("Basic realm=\"cam\",Digest\trealm=\"cam\",nonce=\"abc\",qop=\"auth\"", "nc=00000001"),
    ] {
        let given = image.clone();
        let fake = Fake::start(move |number, head| {
            let head = head.to_ascii_lowercase();
            match number {
                0 => {
                    assert!(!head.contains("authorization"), "{head}");
                    answer(
                        &format!(
                            "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {challenge}\r\nContent-Length: 2"
                        ),
                        b"no",
                        Then::Keep,
                    )
                }
                1 => {
                    assert!(head.contains(expected), "{head}");
                    picture(&given, Then::Keep)
                }
                // Later ones are answered in advance, each with a count of its own.
                _ => {
                    assert!(
                        head.contains("authorization:") && !head.contains("nc=00000001"),
                        "{head}"
                    );
                    picture(&given, Then::Keep)
                }
            }
        });
        let fake = fake.await;
        let spec = fake.spec("me@", "/").with_password("s3But").with_rate(Rate::new(50.0).unwrap());
        let mut source = Source::open(&spec).await.unwrap();
        for _ in 0..3 {
            assert_eq!(next(&mut source).await.as_ref(), Ok(&image), "{challenge}");
        }
    }
}

#[tokio::test]
async fn what_keeps_pictures_away_is_named_and_shows_no_secret() {
    let basic = "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"";
    let digest = "401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"x\", nonce=\"n\"";
    for (login, reply, expected) in [
        ("", basic, "asks for a user and a password"),
        ("me:s3cret@", basic, "refuses the user or the password"),
        ("me:s3cret@", digest, "refuses the user or the password"),
        (
            "me:s3cret@",
            "401 Unauthorized\r\nWWW-Authenticate: Negotiate",
            "other than Basic and Digest",
        ),
        ("me:s3cret@", "404 Not Found", "answered 404 Not Found"),
        (
            "me:s3cret@",
            "200 OK\r\nContent-Type: text/html",
            "answered with text/html and no JPEG image",
        ),
        ("", "302 Found\r\nLocation: /again", "redirects more than 5 times"),
        (
            "",
            "302 Found\r\nLocation: rtsp://cam/1?password=s3cret",
            "which is not an http:// or https:// address",
        ),
        ("", "302 Found", "which is not an http:// or https:// address"),
    ] {
        let fake = Fake::start(move |_, _| status(reply)).await;
        let spec = fake.spec(login, "/?key=s3cret");
        let SourceSpec::Http { address, rate, .. } = &spec else { panic!("HTTP") };
        let error = match HttpCamera::open(address, *rate, None).await {
            Ok(mut camera) => camera.next().await.expect_err("no picture"),
            Err(error) => error,
        };
        let told = format!("{} {error:?} {spec} {spec:?}", tidegate_message::error_chain(&error));
        assert!(told.contains(expected), "{reply}: {told}");
        assert!(!told.contains("s3cret"), "{told}");
        assert!(!error.is_absence(), "{told}");
    }
}

#[tokio::test]
async fn redirections_are_followed_with_the_login_for_the_same_host_alone() {
    let image = jpegs(1).remove(0);
    let given = image.clone();
    let elsewhere = Fake::start(move |_, head| {
        assert!(!head.to_ascii_lowercase().contains("authorization"), "{head}");
        picture(&given, Then::Keep)
    });
    let elsewhere = elsewhere.await;
    // Another name of this machine is another host.
    let place = format!("http://localhost:{}/there", elsewhere.address.port());
    let fake = Fake::start(move |number, head| match (number, head.contains("Authorization")) {
        (_, false) => status("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\""),
        (1, true) => status("301 Moved\r\nLocation: stream/live?x=1"),
        (2, true) => {
            assert!(head.starts_with("GET /a/stream/live?x=1 "), "{head}");
            status(&format!("307 Temporary Redirect\r\nLocation: {place}"))
        }
        other => panic!("{other:?} {head}"),
    });
    let fake = fake.await;
    let mut source = Source::open(&fake.spec("me:s3cret@", "/a/b")).await.unwrap();
    assert_eq!(next(&mut source).await.unwrap(), image);

    let from = CameraAddress::parse("https://me:s3cret@cam/1").unwrap();
    let to = |place: &str| redirected(&from, from.redirected(place).unwrap());
    assert!(matches!(to("http://cam/1"), Err(HttpCameraError::Exposed { .. })));
    assert!(to("http://other/1").unwrap().login().is_none());
    assert!(to("//cam:8443/2").unwrap().login().is_some());
    assert!(to("https://Cam/2").unwrap().login().is_some());
}

/// A restreamer of this machine may lead to what else is there. One elsewhere may not: `address::tests` have it, since a test has no other
/// machine.
#[tokio::test]
async fn camera_of_this_machine_redirects_within_it_and_nowhere_nearer() {
    let image = jpegs(1).remove(0);
    let given = image.clone();
    let inner = Fake::start(move |_, _| picture(&given, Then::Keep)).await;
    let port = inner.address.port();
    let loopback = "127.0.0.1".parse().unwrap();
    for (place, is_followed) in [
        (format!("http://127.0.0.1:{port}/"), true),
        (format!("http://localhost:{port}/"), true),
        (format!("http://[::ffff:127.0.0.1]:{port}/"), true),
        (format!("http://0.0.0.0:{port}/"), true),
        ("http://169.254.169.254/latest/meta-data/".to_owned(), false),
        ("http://[fe80::1]/".to_owned(), false),
    ] {
        if place.contains("ffff") && std::net::TcpListener::bind("[::1]:0").is_err() {
            continue;
        }
        for here in own_address().into_iter().chain([loopback]) {
            let reply = format!("302 Found\r\nLocation: {place}");
            let fake = Fake::start_at(here, move |_, _| status(&reply)).await;
            let before = inner.connections.load(Ordering::SeqCst);
            match (Source::open(&fake.spec("", "/")).await, is_followed) {
                (Ok(mut source), true) => {
                    assert_eq!(next(&mut source).await.unwrap(), image, "{place}");
                }
                (Err(error), false) => {
                    let error = tidegate_message::error_chain(&error);
                    let expected = "(loopback or link-local), where the camera";
                    assert!(error.contains(expected), "{place}: {error}");
                    assert_eq!(inner.connections.load(Ordering::SeqCst), before, "{place}");
                }
                (opened, _) => panic!("{place}: {:?}", opened.err()),
            }
        }
    }
}

#[tokio::test]
async fn a_camera_that_comes_late_reboots_and_changes_its_size_is_followed() {
    let images = jpegs(2);
    let larger = crate::source::tests::jpeg_of(640, 360);
    let (given, large) = (images.clone(), larger.clone());
    let fake = Fake::start(move |number, _| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f";
        match number {
            0 => status("503 Service Unavailable"),
            // Cut off in the middle of a picture.
            1 => {
                let whole = [&given[0][..], &given[1][..200]].concat();
                answer(&format!("{head}\r\nContent-Length: 9999999"), &whole, Then::Close)
            }
            2 => Reply { bytes: b"HTTP/1.1 garbage\r\n\r\n".to_vec(), then: Then::Close },
            _ => answer(head, &[&given[1][..], &large].concat(), Then::Hang),
        }
    });
    let fake = fake.await;
    let mut source = Source::open(&fake.spec("", "/")).await.expect("it may come");
    let (mut pictures, mut errors) = (Vec::new(), Vec::new());
    while !(pictures.contains(&images[0]) && pictures.contains(&larger)) {
        match next(&mut source).await {
            Ok(picture) => pictures.push(picture),
            Err(error) => errors.push(error),
        }
    }
    for part in ["503 Service Unavailable", "broke off"] {
        assert!(errors.iter().any(|error| error.contains(part)), "{errors:?}");
    }
}

#[tokio::test]
async fn a_camera_that_hangs_is_given_up() {
    let multipart = "HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace";
    let text = format!("{multipart}\r\n\r\n--frame\r\nContent-Type: text/plain\r\n\r\n");
    let short = Duration::from_secs(1);
    let long = Duration::from_secs(60);
    for (bytes, silent, pictureless, expected) in [
        (String::new(), long, long, "did not answer within"),
        ("HTTP/1.1 200 OK\r\n".to_owned(), long, long, "did not answer within"),
        (format!("{multipart}\r\n\r\n"), short, long, "gave no image for 1 s"),
        (text.clone(), short, long, "gave no image for 1 s"),
        (text, long, Duration::ZERO, "gave no image for 0 s"),
    ] {
        let fake = Fake::start(move |_, _| Reply { bytes: bytes.clone().into(), then: Then::Hang });
        let fake = fake.await;
        let SourceSpec::Http { address, rate, .. } = fake.spec("", "/") else { panic!("HTTP") };
        let waits = Waits { answer: short, silent, pictureless };
        let asked = async {
            let mut camera = HttpCamera::open_within(&address, rate, waits).await?;
            camera.next().await.map(drop)
        };
        let error = timeout(Duration::from_secs(30), asked).await.expect("it is given up");
        let error = tidegate_message::error_chain(&error.expect_err("it hangs"));
        assert!(error.contains(expected), "{error}");
    }
}

/// A camera at that fake one.
async fn camera_of(fake: &Fake, rate: f64) -> HttpCamera {
    let spec = fake.spec("", "/").with_rate(Rate::new(rate).unwrap());
    let SourceSpec::Http { address, rate, .. } = spec else { panic!("HTTP") };
    HttpCamera::open(&address, rate, None).await.unwrap()
}

async fn picture_of(camera: &mut HttpCamera) -> (Bytes, Moment) {
    timeout(Duration::from_secs(60), camera.next()).await.expect("it comes").unwrap()
}

#[tokio::test]
async fn a_picture_that_was_asked_for_is_as_old_as_the_request() {
    let image = jpegs(1).remove(0);
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (given, seen) = (image.clone(), asked.clone());
    let fake = Fake::start(move |_, _| {
        seen.lock().unwrap().push(Moment::now());
        picture(&given, Then::Keep)
    });
    let fake = fake.await;
    let opened = Moment::now();
    let mut camera = camera_of(&fake, 50.0).await;
    for count in 0..3 {
        let (jpeg, captured) = picture_of(&mut camera).await;
        assert_eq!(jpeg, image);
        // The camera heard of it after it was sent, and no request is older than we are.
        assert!(captured <= asked.lock().unwrap()[count] && captured >= opened);
    }
}

#[tokio::test]
async fn a_picture_of_a_stream_is_as_old_as_its_first_byte() {
    let images = jpegs(2);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let release = Arc::new(tokio::sync::Notify::new());
    let (given, released) = (images.clone(), release.clone());
    let _sender = AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            assert_ne!(socket.read_buf(&mut asked).await.unwrap(), 0, "it asks");
        }
        let head =
            b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n";
        let (first, second) = given[1].split_at(given[1].len() / 2);
        socket
            .write_all(&[&head[..], &given[0], b"\r\n--f\r\n\r\n", first].concat())
            .await
            .unwrap();
        released.notified().await;
        socket.write_all(second).await.unwrap();
        std::future::pending::<()>().await;
    }));
    let address = CameraAddress::parse(&format!("http://{address}/")).unwrap();
    let mut camera = HttpCamera::open(&address, None, None).await.unwrap();
    assert_eq!(picture_of(&mut camera).await.0, images[0]);
    let has_begun = |camera: &HttpCamera| {
        let answer = camera.answer.as_ref().unwrap();
        answer.pictures == 1 && answer.begun.is_some()
    };
    let began = Moment::now();
    while !has_begun(&camera) {
        assert!(began.elapsed() < Duration::from_secs(60), "the first half does not come");
        assert!(timeout(Duration::from_millis(10), camera.next()).await.is_err(), "it is a half");
    }
    let half = Moment::now();
    release.notify_one();
    let (jpeg, captured) = picture_of(&mut camera).await;
    assert_eq!(jpeg, images[1]);
    assert!(captured <= half);
}

#[tokio::test]
async fn a_picture_is_as_old_as_the_stamp_before_it_says() {
    let images = jpegs(2);
    // By the camera, the second was captured 100 ms before the first, which came first and waited for no time, as far as is known.
    let parts = [("5000.9", &images[0]), ("5000.8", &images[1])];
    let body: Vec<u8> = parts
        .iter()
        .flat_map(|(stamp, image)| {
            let head = format!("--f\r\nContent-Type: image/jpeg\r\nX-Timestamp: {stamp}\r\n\r\n");
            [head.as_bytes(), image, b"\r\n"].concat()
        })
        .collect();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f";
    let fake = Fake::start(move |_, _| answer(head, &body, Then::Hang)).await;
    let mut camera = camera_of(&fake, 1.0).await;
    let (jpeg, first) = picture_of(&mut camera).await;
    assert_eq!((&jpeg, camera.clock()), (&images[0], CaptureClock::Timestamps));
    let (jpeg, second) = picture_of(&mut camera).await;
    assert_eq!(jpeg, images[1]);
    assert_eq!(first.duration_since(second).as_millis(), 100);
    // A picture that is asked for may have been kept for a while by the camera, too.
    let image = images[0].clone();
    let fake = Fake::start(move |number, _| {
        let stamp = if number == 0 { "5000.9" } else { "5000.8" };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: image/jpeg";
        let head = format!("{head}\r\nX-Timestamp: {stamp}\r\nContent-Length: {}", image.len());
        answer(&head, &image, Then::Keep)
    });
    let fake = fake.await;
    let mut camera = camera_of(&fake, 50.0).await;
    let asked = Moment::now();
    picture_of(&mut camera).await;
    let (_, second) = picture_of(&mut camera).await;
    assert!(second < asked && camera.clock() == CaptureClock::Timestamps);
}

#[tokio::test]
async fn a_picture_that_comes_again_is_no_other() {
    let images = jpegs(3);
    for (first, second, is_other) in [
        ("ETag: \"a\"", "ETag: \"a\"", false),
        ("ETag: W/\"a\"", "ETag: W/\"b\"", true),
        (
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
            false,
        ),
        // A camera that says nothing of it may see the same twice.
        ("X: 1", "X: 1", true),
    ] {
        let given = images.clone();
        let fake = Fake::start(move |number, _| {
            let (name, image) = match number {
                0 => (first, &given[0]),
                1..5 => (second, &given[0]),
                _ => ("ETag: \"z\"", &given[1]),
            };
            let length = image.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n{name}\r\nContent-Length: {length}"
            );
            answer(&head, image, Then::Keep)
        });
        let fake = fake.await;
        let mut camera = camera_of(&fake, 50.0).await;
        let (mut count, mut last) = (0, Bytes::new());
        while last != images[1] {
            last = picture_of(&mut camera).await.0;
            count += 1;
        }
        let expected = match (is_other, first == second) {
            (false, _) => 2,
            (true, true) => 6,
            (true, false) => 3,
        };
        assert_eq!(count, expected, "{first} {second}");
    }
    // Within its second it may be another.
    let given = images.clone();
    let fake = Fake::start(move |number, _| {
        let image = &given[number as usize % 3];
        let head = format!(
            "HTTP/1.1 200 OK\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: image/jpeg\r\nContent-Length: {}",
            image.len()
        );
        answer(&head, image, Then::Keep)
    });
    let fake = fake.await;
    let mut camera = camera_of(&fake, 50.0).await;
    for image in &images {
        assert_eq!(picture_of(&mut camera).await.0, image);
    }
}

#[test]
fn an_answer_is_as_old_as_its_camera_says_if_that_can_be() {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (lines, seconds) in [
        (vec![], 0),
        (vec![("date", date), ("last-modified", "Sun, 06 Nov 1994 08:49:30 GMT")], 7),
        (vec![("date", date), ("last-modified", "Sat, 05 Nov 1994 23:59:59 GMT")], 0),
        (vec![("date", date), ("last-modified", "Sun, 06 Nov 1994 08:49:40 GMT")], 0),
        (vec![("date", date), ("last-modified", "yesterday, at noon")], 0),
        (vec![("date", date), ("last-modified", "Sun, 99 Nov 1994 08:49:30 GMT")], 0),
        (vec![("age", "12")], 12),
        (vec![("age", "-1")], 0),
        (vec![("age", "99999999999999999999")], 0),
        (vec![("age", "601")], 0),
    ] {
        let mut headers = HeaderMap::new();
        for &(name, value) in &lines {
            headers.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(age(&headers), Duration::from_secs(seconds), "{lines:?}");
    }
}

#[tokio::test]
async fn answers_that_are_nearly_http_are_read() {
    let images = jpegs(2);
    let packed = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        images.iter().for_each(|image| encoder.write_all(image).unwrap());
        encoder.finish().unwrap()
    };
    let multipart = "Content-Type: multipart/x-mixed-replace; boundary=f";
    for (head, body) in [
        (format!("ICY 200 OK\r\n{multipart}"), images.concat()),
        (format!("HTTP 200 OK\r\n{multipart}"), images.concat()),
        (format!("HTTP/1.1 200 OK\r\n{multipart}\r\nContent-Encoding: gzip"), packed),
    ] {
        let sent = head.clone();
        let fake = Fake::start(move |_, head| {
            assert!(head.to_ascii_lowercase().contains("accept-encoding: identity"), "{head}");
            answer(&sent, &body, Then::Close)
        });
        let mut camera = camera_of(&fake.await, 1.0).await;
        for image in &images {
            assert_eq!(picture_of(&mut camera).await.0, image, "{head}");
        }
    }
}
