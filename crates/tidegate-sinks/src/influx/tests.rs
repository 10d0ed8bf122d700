use std::{collections::HashSet, convert::Infallible, sync::Mutex};

use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// A database that refuses what has `bad` in it, and a value of another type than its field has since its first, as InfluxDB does: the
/// others of the request are stored.
#[derive(Clone, Debug, Default)]
struct Database(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    lines: Vec<String>,
    requests: usize,
    authorization: Option<String>,
    /// The answers to the next requests.
    script: Vec<(u16, &'static str)>,
    /// Of each field the type of its first value.
    types: std::collections::HashMap<String, &'static str>,
}

impl Database {
    async fn start(&self) -> (Uri, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/write?db=x", listener.local_addr().unwrap());
        let database = self.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let database = database.clone();
                let service = service_fn(move |request| database.clone().answer(request));
                let serving = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
                // One client, one connection at a time.
                let _ = serving.await;
            }
        });
        (url.parse().unwrap(), AbortOnDropHandle::new(serving))
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let authorization = request.headers().get(header::AUTHORIZATION).cloned();
        let path = request.uri().to_string();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut told = self.0.lock().unwrap();
        told.requests += 1;
        told.authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
        let answer = |status: u16, text: &'static str| {
            let answer = Response::builder().status(status);
            let answer = match status {
                429 => answer.header(header::RETRY_AFTER, "7"),
                _ => answer,
            };
            Ok(answer.body(Full::new(Bytes::from_static(text.as_bytes()))).unwrap())
        };
        assert_eq!(path, "/write?db=x");
        if let Some((status, text)) = told.script.pop() {
            return answer(status, text);
        }
        let lines = std::str::from_utf8(&body).unwrap().lines().map(str::to_owned);
        let is_bad = |line: &String| {
            line.contains("bad")
                || line_protocol::Batch::new(line.as_bytes(), Precision::Nanoseconds).any(|line| {
                    line.unwrap().fields().any(|(name, value)| {
                        let name = name.unescaped().into_owned();
                        let of = match value {
                            line_protocol::Value::Text(_) => "text",
                            line_protocol::Value::Boolean(_) => "truth",
                            _ => "number",
                        };
                        *told.types.entry(name).or_insert(of) != of
                    })
                })
        };
        let (bad, good): (Vec<_>, Vec<_>) = lines.partition(is_bad);
        told.lines.extend(good);
        if bad.is_empty() { answer(204, "") } else { answer(400, "partial write: dropped=1") }
    }
}

fn influx(url: &Uri, encoding: Encoding) -> Influx {
    Influx::new(InfluxSettings {
        url: url.clone(),
        authorization: Some("Token secret".into()),
        encoding,
        tls: tidegate_process::tls::client_of(rustls::RootCertStore::empty()).unwrap(),
        node: "here".to_owned(),
        places: None,
    })
}

fn values() -> Encoding {
    Encoding::Values { measurement: "mqtt".to_owned() }
}

fn record(payload: &str) -> Record {
    Record::new("a/b", payload.to_owned(), Instant::from_millis(1000))
}

#[tokio::test]
async fn payloads_become_fields() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let rows = [
        ("21.5", "value=21.5"),
        ("7", "value=7.0"),
        ("on air", "value_text=\"on air\""),
        ("true", "value_bool=true"),
        (
            r#"{"t":20,"deep":{"x":[1,true]},"none":null,"s":"y"}"#,
            r#"deep.x.0=1.0,deep.x.1_bool=true,s_text="y",t=20.0"#,
        ),
        // Names that would meet: each field has one type, in whatever messages.
        (r#"{"t":"a","t_text":5}"#, r#"t_text="a",t_text_number=5.0"#),
        (r#"{"t_text":5}"#, "t_text_number=5.0"),
        (r#"{"t_text":"a"}"#, r#"t_text_text="a""#),
        (
            r#"{"o":true,"o_bool":1,"o_text":false}"#,
            "o_bool=true,o_bool_number=1.0,o_text_bool=false",
        ),
        (r#"{"a":{"b":1},"a.b":2,"a.b_2":3}"#, "a.b=1.0,a.b_2=2.0,a.b_2_2=3.0"),
        // A name that the database keeps for itself.
        (r#"{"time":5,"_field":6,"a":{"time":7}}"#, "_field_number=6.0,a.time=7.0,time_number=5.0"),
        (r#"{"time":"noon"}"#, r#"time_text="noon""#),
    ];
    let batch: Batch = rows.iter().map(|(payload, _)| record(payload)).collect();
    let refusals = influx(&url, values()).deliver(&batch).await.unwrap();
    assert_eq!(refusals, []);
    let told = database.0.lock().unwrap();
    for (line, (_, fields)) in told.lines.iter().zip(rows) {
        assert!(line.starts_with(&format!("mqtt,topic=a/b {fields} 1000000")), "{line}");
    }
    assert_eq!((told.lines.len(), told.requests), (12, 1));
    assert_eq!(told.authorization.as_deref(), Some("Token secret"));
}

#[tokio::test]
async fn the_line_that_is_refused_is_found_and_the_others_are_stored() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let bad = [0, 317, 318, 999];
    let batch: Batch = (0..1000)
        .map(|number| {
            record(&if bad.contains(&number) { "bad".to_owned() } else { number.to_string() })
        })
        .collect();
    let refusals = influx(&url, values()).deliver(&batch).await.unwrap();
    let places: Vec<usize> = refusals.iter().map(|refusal| refusal.place).collect();
    assert_eq!(places, bad);
    assert!(refusals[0].reason.contains("partial write"), "{}", refusals[0].reason);
    // As the database knows points: by their series and time.
    let mut stored: Vec<_> = database.0.lock().unwrap().lines.clone();
    stored.sort();
    stored.dedup();
    assert_eq!(stored.len(), 996);
}

#[tokio::test]
async fn where_all_is_refused_each_exchange_is_a_step() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let batch: Batch = (0..100).map(|_| record("bad")).collect();
    let refusals = influx(&url, values()).deliver(&batch).await.unwrap();
    assert_eq!((refusals.len(), batch.steps()), (100, 199));
    assert_eq!(database.0.lock().unwrap().requests, 199);
}

#[tokio::test]
async fn one_time_is_not_one_point_and_what_comes_again_is() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let batch: Batch = (0..100).map(|number| record(&number.to_string())).collect();
    let mut influx = influx(&url, values());
    influx.deliver(&batch).await.unwrap();
    // From this node's broker, in other batches.
    let again = |record: &Record| Record { is_repeated: true, ..record.clone() };
    for part in batch.records().chunks(30) {
        influx.deliver(&part.iter().map(again).collect()).await.unwrap();
    }
    let times: HashSet<String> = {
        let told = database.0.lock().unwrap();
        told.lines.iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(times.len(), 100);
}

#[tokio::test]
async fn a_database_that_is_busy_says_when_it_wants_to_be_asked_again() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let mut influx = influx(&url, values());
    let batch = Batch::from_iter([record("1")]);
    for (status, text, after) in
        [(429, "slow down", Some(7)), (503, "starting", None), (401, "unauthorized", None)]
    {
        database.0.lock().unwrap().script.push((status, text));
        let trouble = influx.deliver(&batch).await.unwrap_err();
        assert_eq!(trouble.after, after.map(Duration::from_secs), "{status}");
        assert!(trouble.what.contains(text) && trouble.what.contains(&status.to_string()));
    }
    assert_eq!(influx.deliver(&batch).await.unwrap(), []);
}

#[tokio::test]
async fn values_of_different_types_are_in_each_others_way_in_no_order() {
    let payloads =
        ["ON", "21.5", "true", "22", r#"{"t":1}"#, r#"{"t":"off"}"#, r#"{"t":false}"#, "OFF"];
    for first in 0..payloads.len() {
        let database = Database::default();
        let (url, _serving) = database.start().await;
        let ordered = payloads.iter().cycle().skip(first).take(payloads.len());
        let batch: Batch = ordered.map(|payload| record(payload)).collect();
        assert_eq!(influx(&url, values()).deliver(&batch).await.unwrap(), []);
        assert_eq!(database.0.lock().unwrap().lines.len(), payloads.len());
    }
}

#[tokio::test]
async fn a_time_that_a_message_brings_is_the_time_of_its_point() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let measured = Some(Instant::from_nanos(1_700_000_000_000_000_007));
    let batch = Batch::from_iter([Record { measured, ..record("21.5") }, record("22")]);
    assert_eq!(influx(&url, values()).deliver(&batch).await.unwrap(), []);
    let told = database.0.lock().unwrap();
    assert_eq!(told.lines[0], "mqtt,topic=a/b value=21.5 1700000000000000007");
    assert!(told.lines[1].starts_with("mqtt,topic=a/b value=22.0 100000"), "{}", told.lines[1]);
}

#[test]
fn a_database_may_say_when_in_seconds_or_by_a_date() {
    // Sun, 06 Nov 1994 08:49:37 GMT, and a minute later by the database's own clock.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    for (after, date, expected) in [
        ("7", None, Some(7)),
        (" 120 ", None, Some(120)),
        ("Sun, 06 Nov 1994 08:50:00 GMT", None, Some(23)),
        ("Sunday, 06-Nov-94 08:50:00 GMT", None, Some(23)), // the two forms of before
        ("Sun Nov  6 08:50:00 1994", None, Some(23)),
        ("Sun, 06 Nov 1994 08:51:00 GMT", Some("Sun, 06 Nov 1994 08:50:37 GMT"), Some(23)),
        ("Sun, 06 Nov 1994 08:00:00 GMT", None, Some(0)), // over
        ("Sat, 06 Nov 2094 08:00:00 GMT", None, Some(3600)),
        ("99999999999999999999999", None, Some(3600)),
        ("soon", None, None),
        ("-1", None, None),
        ("", None, None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, after.parse().unwrap());
        if let Some(date) = date {
            headers.insert(header::DATE, date.parse().unwrap());
        }
        let found = retry_after(&headers, now);
        assert_eq!(found, expected.map(Duration::from_secs), "{after:?} {date:?}");
    }
}

#[tokio::test]
async fn a_database_that_is_away_is_trouble() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/write", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let trouble = influx(&url, values()).deliver(&Batch::from_iter([record("1")])).await;
    let error = tidegate_message::error_chain(&trouble.unwrap_err());
    assert!(error.contains("no connection to 127.0.0.1"), "{error}");
}

#[tokio::test]
async fn lines_pass_as_they_are_and_get_a_time_where_they_have_none() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let batch = Batch::from_iter([
        record("m,a=b x=1.10 5\nm x=2i"),
        record("no line"),
        record(""),
        record("m x=3i 6"),
    ]);
    let refusals = influx(&url, Encoding::Lines).deliver(&batch).await.unwrap();
    let places: Vec<usize> = refusals.iter().map(|refusal| refusal.place).collect();
    assert_eq!(places, [1, 2]);
    let told = database.0.lock().unwrap();
    assert_eq!((&*told.lines[0], &*told.lines[2]), ("m,a=b x=1.10 5", "m x=3i 6"));
    assert_eq!(told.lines[1], "m x=2i 1000000000");
}

#[tokio::test]
async fn lines_of_one_series_have_their_own_times_whatever_their_topics() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let mut influx = influx(&url, Encoding::Lines);
    let of = |topic: &str, payload: String| Record::new(topic, payload, Instant::from_millis(1000));
    // In batches, by many topics, with tags in any order, and two in one message.
    for batch in 0..20 {
        let records = (0..100).map(|number| {
            let value = 100 * batch + number;
            let line = match number % 2 {
                0 => format!("m,a=1,b=2 x={value}\nm,b=2,a=1 y={value}"),
                _ => format!("m,b=2,a=1 x={value}"),
            };
            of(&format!("t/{number}"), line)
        });
        assert_eq!(influx.deliver(&records.collect()).await.unwrap(), []);
    }
    let told = database.0.lock().unwrap();
    let times: HashSet<&str> =
        told.lines.iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!((told.lines.len(), times.len()), (3000, 3000));
}

#[tokio::test]
async fn names_that_the_database_keeps_for_itself_are_others_in_lines() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let batch = Batch::from_iter([record(
        "m,time=a,b=c time=1i,x=2 5\nm time=\"noon\" 6\nm time=true,_field=1.5 7\nm,timed=1 times=1 8",
    )]);
    assert_eq!(influx(&url, Encoding::Lines).deliver(&batch).await.unwrap(), []);
    let told = database.0.lock().unwrap();
    assert_eq!(
        told.lines,
        [
            "m,b=c,time_tag=a time_number=1i,x=2 5",
            "m time_text=\"noon\" 6",
            "m time_bool=true,_field_number=1.5 7",
            "m,timed=1 times=1 8",
        ]
    );
}

#[tokio::test]
async fn refused_message_is_given_again_at_its_own_time() {
    let database = Database::default();
    let (url, _serving) = database.start().await;
    let batch: Batch = ["1", "bad", "3"].into_iter().map(record).collect();
    let refusals = influx(&url, values()).deliver(&batch).await.unwrap();
    let at = refusals[0].at.expect("it has a place between the others");
    assert_eq!((refusals[0].place, at.as_nanos()), (1, 1_000_000_001));
    // Another life of the sink.
    let again = Record { time: at, is_repeated: true, ..record("good") };
    assert_eq!(influx(&url, values()).deliver(&Batch::from_iter([again])).await.unwrap(), []);
    let told = database.0.lock().unwrap();
    assert_eq!(told.lines.last().unwrap(), "mqtt,topic=a/b value_text=\"good\" 1000000001");
}
