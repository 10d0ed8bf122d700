//! Parquet files in an S3-compatible store.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use tidegate_broker::BrokerConfig;
use tidegate_message::Instant;
use tidegate_sinks::{
    Batch, DestinationSettings, Record, Sink, SinkSettings,
    parquet::{Compression, ParquetSettings, Partition, Place, S3Place, TimeUnit},
};

use crate::{
    peer::{Peer, signal},
    world::{client, publish, ready, server, settings, until},
};

fn parquet(endpoint: &str, bucket: &str) -> DestinationSettings {
    let tls = rustls::ClientConfig::builder_with_provider(
        rustls::crypto::ring::default_provider().into(),
    )
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_root_certificates(rustls::RootCertStore::empty())
    .with_no_client_auth();
    DestinationSettings::Parquet(ParquetSettings {
        place: Place::S3(S3Place {
            bucket: bucket.to_owned(),
            prefix: "site/raw".to_owned(),
            endpoint: Some(endpoint.to_owned()),
            region: "us-east-1".to_owned(),
            keys: Some(("key".to_owned(), "secret".into())),
            tls: tls.into(),
        }),
        partition: Partition::Hour,
        compression: Compression::Zstd,
        time_unit: TimeUnit::Nanoseconds,
    })
}

#[test]
fn files_lie_whole_in_the_store_while_it_comes_and_goes() {
    let variables = &["S3_ENDPOINT", "S3_BUCKET", "S3_PID"];
    let Some(peer) = Peer::start("with-s3", variables) else { return };
    let (endpoint, bucket, pid) = (&*peer.told[0], &*peer.told[1], &*peer.told[2]);
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();

    // A bucket that is not there is trouble.
    reactor.block_on(async {
        let mut sink = parquet(endpoint, "absent").open().unwrap();
        let batch = Batch::from_iter([Record::new("a", "x", Instant::from_nanos(1))]);
        let trouble = sink.deliver(&batch).await.unwrap_err();
        assert!(format!("{trouble:?}").contains("NoSuchBucket"), "{trouble:?}");
    });

    let server = server(BrokerConfig::default());
    let settings = SinkSettings {
        destination: parquet(endpoint, bucket),
        timeout: Duration::from_secs(2),
        ..settings("a/#")
    };
    let sink = Sink::start(settings, server.connector().into()).unwrap();
    ready(&server, "test");
    let mut publisher = client(&server, "publisher");
    for number in 0..200 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("the first files are there", || sink.report().messages == 200);
    signal(pid, "STOP");
    for number in 200..500 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("the sink saw it", || sink.report().failures >= 1);
    signal(pid, "CONT");
    until("all is there", || sink.report().messages == 500);
    sink.stop();

    let listed = get(endpoint, &format!("/{bucket}?list-type=2&prefix=site/raw/"));
    let listed = String::from_utf8(listed).unwrap();
    let keys = listed.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap());
    let mut found = Vec::new();
    for key in keys {
        assert!(key.starts_with("site/raw/date=") && key.contains("/hour="), "{key}");
        found.extend(payloads(get(endpoint, &format!("/{bucket}/{key}")).into()));
    }
    found.sort_unstable();
    assert_eq!(found, (0..500).collect::<Vec<u32>>());
}

/// The object at that address.
fn get(endpoint: &str, path: &str) -> Vec<u8> {
    let mut socket = TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
    let path = path.replace('=', "%3D").replace("list-type%3D2&prefix%3D", "list-type=2&prefix=");
    // The store wants someone to be named, and checks no signature.
    let name = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
    write!(socket, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: {name}\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    assert!(head.contains(" 200 "), "{path}: {head}");
    answer.split_off(end + 4)
}

/// The payloads of a file, which are numbers.
fn payloads(file: bytes::Bytes) -> Vec<u32> {
    use parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::RowAccessor as _,
    };
    let reader = SerializedFileReader::new(file).unwrap();
    let number = |row: parquet::record::Row| -> u32 {
        std::str::from_utf8(row.get_bytes(2).unwrap().data()).unwrap().parse().unwrap()
    };
    reader.get_row_iter(None).unwrap().map(|row| number(row.unwrap())).collect()
}
