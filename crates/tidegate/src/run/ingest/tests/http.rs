use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tidegate_identity::pki::{self, InitRequest};

use super::*;

fn listener(rest: &str) -> String {
    format!("[ingest.x]\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\n{rest}\n")
}

/// Sends a request whole and reads its answer, as status and all of it.
fn ask(world: &World, head: &str, body: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(world.address()).unwrap();
    socket.set_read_timeout(Some(LONGEST)).unwrap();
    let length = if head.contains("Transfer-Encoding") {
        String::new()
    } else {
        format!("Content-Length: {}\r\n", body.len())
    };
    let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
    let headers: String = headers.lines().map(|line| format!("{line}\r\n")).collect();
    let request =
        format!("{line} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{length}{headers}\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    // A body that is refused may not be read to its end.
    let _ = socket.write_all(body);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{head}: {answer:?}")), answer)
}

/// Asks whether a server listens, by TLS, trusting the authority in that folder.
fn ping_by_tls(world: &World, pki: &std::path::Path) -> std::io::Result<String> {
    use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.join("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(world.address())?;
    socket.set_read_timeout(Some(LONGEST))?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    stream.write_all(b"POST /ingest/t HTTP/1.1\r\nHost: node\r\nContent-Length: 2\r\n\r\n17")?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn tls_is_spoken_where_it_is_asked_for_and_its_certificate_is_exchanged() {
    let [old, new] = [(); 2].map(|()| {
        let folder = tempfile::tempdir().unwrap();
        let nodes = vec!["site".to_owned()];
        pki::init(folder.path(), &InitRequest { nodes, ..InitRequest::default() }).unwrap();
        folder
    });
    let with = |pki: &TempDir| {
        let place = pki.path().display();
        listener(&format!(
            "tls = true\ncertificate = \"{place}/site.pem\"\nkey = \"{place}/site.key\""
        ))
    };
    let world = World::new(&with(&old));
    let mut all = world.subscriber("#");
    assert_eq!(ping_by_tls(&world, old.path()).unwrap(), "HTTP/1.1 204");
    assert_eq!(next(&mut all), pair("t", "17"));
    assert!(ping_by_tls(&world, new.path()).is_err(), "another authority's");
    let address = world.address();
    world.reload(&with(&new));
    assert_eq!(world.address(), address);
    assert_eq!(ping_by_tls(&world, new.path()).unwrap(), "HTTP/1.1 204");
    assert!(ping_by_tls(&world, old.path()).is_err());
    // A client without TLS gets no answer there.
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LONGEST)).unwrap();
    socket.write_all(b"GET /ping HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    for (text, part) in [
        ("kind = \"udp\"\nlisten = \"127.0.0.1:0\"\ntls = true", "DTLS is not spoken"),
        ("kind = \"http\"\nlisten = \"127.0.0.1:0\"\ncertificate = \"x\"", "tls = true"),
        ("kind = \"http\"\nlisten = \"127.0.0.1:0\"\ntls = true\nkey = \"x\"", "name both"),
        ("kind = \"http\"\nlisten = \"127.0.0.1:0\"\ntls = true", "cannot be used"),
    ] {
        let error = World::refused(&format!("[ingest.x]\n{text}\n"));
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn lines_become_messages_as_influxdb_takes_them() {
    let world = World::new(&listener(""));
    let mut all = world.subscriber("#");
    // A line that is published says its time in nanoseconds, which is what one means that comes without a precision.
    for (path, zeros) in [
        ("/write?db=x&precision=s", "000000000"),
        ("/write?precision=ms", "000000"),
        ("/write?precision=u", "000"),
        ("/api/v2/write?precision=us", "000"),
        ("/api/v2/write?bucket=x&precision=ns", ""),
        ("/write?precision=n", ""),
        ("/write", ""),
    ] {
        let body = "\u{feff}weather,site=north,sensor=7 temperature=21.50,open=true  -17 \n# comment\n\ncpu v=1i\n";
        assert_eq!(ask(&world, &format!("POST {path}"), body.as_bytes()).0, 204);
        let (topic, line) = next(&mut all);
        let expected =
            format!("weather,site=north,sensor=7 temperature=21.50,open=true  -17{zeros}");
        assert_eq!((&*topic, line.trim_end()), ("weather/north/7", &*expected), "{path}");
        assert_eq!(next(&mut all), pair("cpu", "cpu v=1i"));
    }
    assert_eq!(world.report().published, 14);
}

#[test]
fn the_time_of_a_line_goes_with_each_of_its_fields() {
    let world = World::new(&listener("topic = \"{measurement}/{field}\""));
    let mut all = world.subscriber("#");
    let body = b"w t=21.50,h=\"a b\" 17\nw t=22\n";
    assert_eq!(ask(&world, "POST /write?precision=ms", body).0, 204);
    for (topic, payload, time) in
        [("w/t", "21.50", Some("17000000")), ("w/h", "a b", Some("17000000")), ("w/t", "22", None)]
    {
        let found = message(&mut all);
        assert_eq!((&*found.topic, &*found.payload), (topic, payload.as_bytes()));
        let times = time.map(|time| ("tidegate-time".to_owned(), time.to_owned()));
        assert_eq!(found.user_properties, Vec::from_iter(times), "{topic}");
    }
}

#[test]
fn properties_for_all_lines_of_a_request_are_bounded() {
    let world = World::new(&listener("topic = \"{measurement}/{field}\""));
    let mut all = world.subscriber("#");
    let (most, more) = ("x".repeat(512), "x".repeat(513));
    let list = format!("tidegate-bridge: out/{most}, in/b\ntidegate-bridge: out/c");
    assert_eq!(ask(&world, &format!("POST /write\n{list}"), b"w t=1 17\nw t=2\n").0, 204);
    for time in [Some("17"), None] {
        let mut expected: Vec<_> = [format!("out/{most}"), "in/b".into(), "out/c".into()]
            .map(|node| ("tidegate-bridge".to_owned(), node))
            .into();
        expected.extend(time.map(|time| ("tidegate-time".to_owned(), time.to_owned())));
        assert_eq!(message(&mut all).user_properties, expected);
    }
    let (status, answer) =
        ask(&world, &format!("POST /write\ntidegate-bridge: out/{more}"), b"w t=3\n");
    assert!(status == 400 && answer.contains("tidegate-bridge names no nodes"), "{answer}");
    // As is what a request says of all its messages.
    let (most, more) = ("x".repeat(1024), "x".repeat(1025));
    let post =
        |text: &str| ask(&world, &format!("POST /ingest/t?each\nContent-Type: {text}"), b"[1,2]");
    assert_eq!(post(&most).0, 204);
    for payload in ["1", "2"] {
        assert_eq!(next(&mut all), pair("t", payload));
    }
    let (status, answer) = post(&more);
    assert!(status == 400 && answer.contains("the Content-Type has more than 1024"), "{answer}");
}

#[test]
fn a_bad_line_costs_no_other_one_and_is_named() {
    let world = World::new(&listener("topic = \"{measurement}/{tag:site}\""));
    let mut all = world.subscriber("#");
    let (status, answer) =
        ask(&world, "POST /write", b"w,site=n t=1\nw,site=n t=zz\nw t=2\nw,site=m t=3\n");
    assert_eq!(status, 400, "{answer}");
    for part in [
        "partial write: ",
        "dropped=2",
        r#""dropped":2"#,
        r#""line":2"#,
        "no tag site",
        "ingest.message.invalid",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    assert_eq!(next(&mut all), pair("w/n", "w,site=n t=1"));
    assert_eq!(next(&mut all), pair("w/m", "w,site=m t=3"));
    let report = world.report();
    assert_eq!((report.published, report.invalid), (2, 2));
    let (status, answer) = ask(&world, "POST /write?precision=h", b"");
    assert!(status == 400 && answer.contains("there are ns, us, ms and s"), "{answer}");
}

#[test]
fn a_payload_goes_to_the_topic_of_its_path() {
    let world = World::new(&listener(""));
    let mut all = world.subscriber("#");
    for (path, body, expected) in [
        ("plant/7%20a", "21.5", vec![pair("plant/7 a", "21.5")]),
        ("e?each", "[1.10, {\"a\":[2]} ]", vec![pair("e", "1.10"), pair("e", "{\"a\":[2]}")]),
        ("e?each=false", "[1]", vec![pair("e", "[1]")]),
        (
            "s?resolve",
            r#"[{"bn":"d/","bt":1e9,"n":"t","v":2},{"n":"u","vb":true}]"#,
            vec![
                pair("s/d/t", r#"[{"n":"d/t","t":1e9,"v":2}]"#),
                pair("s/d/u", r#"[{"n":"d/u","t":1e9,"vb":true}]"#),
            ],
        ),
        ("empty", "", vec![pair("empty", "")]),
    ] {
        let (status, answer) = ask(
            &world,
            &format!("POST /ingest/{path}\nContent-Type: application/json"),
            body.as_bytes(),
        );
        assert_eq!(status, 204, "{path}: {answer}");
        for expected in expected {
            assert_eq!(next(&mut all), expected);
        }
    }
    assert_eq!(ask(&world, "POST /ingest/kept?retain", b"x").0, 204);
    assert!(message(&mut world.subscriber("kept")).retain);
}

#[test]
fn bodies_come_in_chunks_and_packed() {
    let world = World::new(&listener("body_bytes_max = \"1KiB\""));
    let mut all = world.subscriber("#");
    let head = "POST /ingest/a\nTransfer-Encoding: chunked";
    assert_eq!(ask(&world, head, b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").0, 204);
    assert_eq!(next(&mut all), pair("a", "abcde"));
    let packed = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let head = "POST /ingest/a\nContent-Encoding: gzip";
    assert_eq!(ask(&world, head, &packed(b"packed")).0, 204);
    assert_eq!(next(&mut all), pair("a", "packed"));
    // A bomb, and what is no gzip.
    assert_eq!(ask(&world, head, &packed(&[0; 100_000])).0, 413);
    assert_eq!(ask(&world, head, b"plain").0, 400);
    let (status, answer) = ask(&world, "POST /ingest/a\nContent-Encoding: br", b"x");
    assert!(status == 415 && answer.contains("there are gzip, deflate and identity"), "{answer}");
    // In any case, one upon another, in a list or in several headers.
    let zlib = |bytes: &[u8]| {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let raw = |bytes: &[u8]| {
        let mut encoder =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    for (encoding, body, status) in [
        ("Content-Encoding: GZIP", packed(b"x"), 204),
        ("Content-Encoding: X-Gzip", packed(b"x"), 204),
        ("Content-Encoding: Identity", b"x".to_vec(), 204),
        ("Content-Encoding:", b"x".to_vec(), 204),
        ("Content-Encoding: deflate", zlib(b"x"), 204),
        ("Content-Encoding: Deflate", raw(b"x"), 204),
        ("Content-Encoding: deflate,GZip , identity", packed(&zlib(b"x")), 204),
        ("Content-Encoding: gzip\nContent-Encoding: gzip", packed(&packed(b"x")), 204),
        ("Content-Encoding: gzip, br", packed(b"x"), 415),
        ("Content-Encoding: gzip, gzip, gzip, gzip, gzip", packed(b"x"), 415),
        ("Content-Encoding: deflate", packed(b"x"), 400),
        ("Content-Encoding: deflate", zlib(&[0; 100_000]), 413),
        ("Content-Encoding: gzip, gzip", packed(&packed(&[0; 100_000])), 413),
    ] {
        let (found, answer) = ask(&world, &format!("POST /ingest/a\n{encoding}"), &body);
        assert_eq!(found, status, "{encoding}: {answer}");
        if status == 204 {
            assert_eq!(next(&mut all), pair("a", "x"), "{encoding}");
        }
    }
    // Too much, announced and not.
    let (status, answer) = ask(&world, "POST /ingest/a", &[b'x'; 1025]);
    assert!(status == 413 && answer.contains("ingest.message.too_large"), "{answer}");
    let chunk = format!("500\r\n{}\r\n0\r\n\r\n", "x".repeat(0x500));
    assert_eq!(ask(&world, "POST /ingest/a\nTransfer-Encoding: chunked", chunk.as_bytes()).0, 413);
    assert_eq!(world.report().too_large, 5);
}

#[test]
fn contradictory_settings_are_refused_by_name() {
    let world = World::new(&listener("message_bytes_max = \"5B\""));
    for (head, body, status, part) in [
        ("POST /ingest/a%2B", "x", 400, "does not contain '+'"),
        ("POST /ingest/%zz", "x", 400, "the path is not UTF-8"),
        ("POST /ingest/", "x", 400, "is not a topic"),
        ("POST /ingest/$SYS/x", "x", 403, "the node's own"),
        ("POST /ingest/a", "123456", 413, "a message has more than 5 bytes"),
        ("POST /ingest/a?each", "{}", 400, "not an array"),
        ("POST /ingest/a?resolve", r#"[{"v":1}]"#, 400, "record 1"),
        ("GET /ingest/a", "", 405, "POST /write"),
        ("GET /write", "", 405, "POST /write"),
        ("POST /other", "", 404, "POST /write"),
    ] {
        let (got, answer) = ask(&world, head, body.as_bytes());
        assert!(got == status && answer.contains(part), "{head}: {answer}");
    }
    assert_eq!(ask(&world, "GET /ping", b"").0, 204);
    assert_eq!(ask(&world, "GET /health", b"").0, 200);
}

#[test]
fn a_request_has_no_more_messages_than_there_is_room_for() {
    let world = World::new(&listener("allow_anonymous = true"));
    let mut all = world.subscriber("#");
    let many = |one: &str, between: &str, count: usize| vec![one; count].join(between);
    let array = |one: &str, count: usize| format!("[{}]", many(one, ",", count));
    for (head, body) in [
        ("POST /ingest/a?each", array("1", 20_001)),
        ("POST /ingest/a?each", array("1", 1_000_000)),
        ("POST /ingest/a?resolve", array(r#"{"n":"t","v":1}"#, 20_001)),
        ("POST /write", many("m v=1", "\n", 20_001)),
        ("POST /write", many("wrong", "\n", 20_001)),
    ] {
        let (status, answer) = ask(&world, head, body.as_bytes());
        assert!(status == 413 && answer.contains("more than 20000 messages"), "{head}: {answer}");
    }
    // None of them was published, and what has room is.
    assert_eq!(ask(&world, "POST /ingest/b?each", array("2", 20_000).as_bytes()).0, 204);
    for _ in 0..20_000 {
        assert_eq!(next(&mut all), pair("b", "2"));
    }
}

#[test]
fn who_shows_nothing_or_too_little_is_refused() {
    let password = tidegate_identity::auth::password::hash(b"pool").expect("random bytes");
    let world = World::with_files(
        &format!(
            "[mqtt]\npassword_file = \"$PLACE/passwords\"\nacl_file = \"$PLACE/rules\"\n{}",
            listener("")
        ),
        &[
            ("passwords", &format!("ada:{password}\n")),
            ("rules", "topic read #\nuser ada\ntopic write plant/#\n"),
        ],
    );
    let mut all = world.subscriber("#");
    let basic = |text: &str| format!("Authorization: Basic {}", STANDARD.encode(text));
    for (authorization, topic, status) in [
        (String::new(), "plant/7", 401),
        (basic("ada:wrong"), "plant/7", 401),
        ("Authorization: Digest x".to_owned(), "plant/7", 401),
        (basic("ada:pool"), "other", 403),
        (basic("ada:pool"), "plant/7", 204),
        ("Authorization: Token ada:pool".to_owned(), "plant/7", 204),
    ] {
        let (got, answer) = ask(&world, &format!("POST /ingest/{topic}\n{authorization}"), b"x");
        assert_eq!(got, status, "{authorization}: {answer}");
        if status == 401 {
            assert!(
                answer.contains("auth.identity.refused") && answer.contains("www-authenticate"),
                "{answer}"
            );
        }
    }
    for _ in 0..2 {
        assert_eq!(next(&mut all), pair("plant/7", "x"));
    }
    let (status, answer) =
        ask(&world, &format!("POST /write\n{}", basic("ada:pool")), b"plant,a=1 v=1\nother v=1");
    assert!(
        status == 400 && answer.contains(r#""line":2,"code":"auth.action.denied""#),
        "{answer}"
    );
    assert_eq!(next(&mut all), pair("plant/1", "plant,a=1 v=1"));
    assert_eq!(world.report().denied, 5);
}

#[test]
fn a_sender_of_too_much_learns_when_to_continue() {
    let world = World::new(&listener("rate_max = 1"));
    assert_eq!(ask(&world, "POST /ingest/a?each", b"[1,2,3,4,5,6,7,8,9,10]").0, 204);
    let (status, answer) = ask(&world, "POST /ingest/a", b"x");
    assert_eq!(status, 429, "{answer}");
    assert!(answer.contains("retry-after: ") && answer.contains("limit.reached"), "{answer}");
    assert_eq!(world.report().limited, 1);
}

#[test]
fn a_slow_client_gives_up_its_place() {
    let world = World::new(&listener("request_timeout = \"200ms\"\nconnections_max = 1"));
    let mut slow = TcpStream::connect(world.address()).unwrap();
    slow.write_all(b"POST /ingest/a HTTP/1.1\r\nHost: x\r\n").unwrap();
    // There is one place, which this one gets once the slow one has lost it.
    assert_eq!(ask(&world, "POST /ingest/a", b"x").0, 204);
    let mut slow = TcpStream::connect(world.address()).unwrap();
    slow.write_all(b"POST /ingest/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(world.report().timed_out, 2);
}
