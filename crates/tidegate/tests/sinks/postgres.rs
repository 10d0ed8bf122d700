//! The sink to PostgreSQL, at a real one.

use std::time::Duration;

use tidegate_broker::BrokerConfig;
use tidegate_message::Instant;
use tidegate_sinks::{
    Batch, Destination, DestinationSettings, Record, Sink, SinkSettings, postgres::PostgresSettings,
};
use tokio_postgres::{Client, NoTls};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    peer::{Peer, signal},
    world::{client, publish, ready, server, settings, until},
};

/// Cuts the connections of sinks.
const CUT: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidegate'";

/// A connection of the test's own.
async fn connect(url: &str) -> (Client, AbortOnDropHandle<()>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let driver = tokio::spawn(async move {
        // It ends with the server.
        let _ = connection.await;
    });
    (client, AbortOnDropHandle::new(driver))
}

fn sink(url: &str, table: &str) -> Box<dyn Destination> {
    let settings = PostgresSettings::new(url, table).unwrap();
    DestinationSettings::Postgres(settings).open().unwrap()
}

fn record(topic: &str, payload: &[u8], id: Option<&str>) -> Record {
    let time = Instant::from_nanos(1_769_903_999_000_001_000);
    let mut record = Record::new(topic, payload.to_vec(), time);
    record.id = id.map(Into::into);
    record
}

/// The content of the table, as text.
async fn rows(client: &Client, table: &str) -> Vec<(String, String, String, String)> {
    let sql = format!(
        "SELECT extract(epoch FROM time)::text, topic, encode(payload, 'escape'), coalesce(id, '-') FROM {table} ORDER BY ctid"
    );
    let rows = client.query(&*sql, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&*format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
}

#[test]
fn columns_of_json_and_text_take_what_they_can_and_refuse_the_rest() {
    let Some(peer) = Peer::start("with-postgres", &["POSTGRES_URL"]) else { return };
    let url = &*peer.told[0];
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    reactor.block_on(async {
        let (client, _driver) = connect(url).await;
        let payloads: [&[u8]; 6] =
            [b"{\"v\": 1.10}", b"21.5", b"plain", b"\xff", b"nul \0", b"\"\\u0000\""];
        for (column, refused) in [
            ("bytea", &[][..]),
            ("text", &[3, 4]),
            ("varchar(12)", &[3, 4]),
            ("json", &[2, 3, 4]),
            ("jsonb", &[2, 3, 4, 5]),
            ("object", &[1, 2, 3, 4, 5]),
        ] {
            for (place, qos) in ["smallint", "int", "bigint"].into_iter().enumerate() {
                // Named, they go by way of a temporary table.
                let named = place != 1;
                let table = format!("t{place}_{}", column.split('(').next().unwrap());
                client
                    .batch_execute(&format!(
                        "DO $$ BEGIN CREATE DOMAIN object AS jsonb CHECK (jsonb_typeof(VALUE) = 'object'); \
                         EXCEPTION WHEN duplicate_object THEN END $$; \
                         CREATE TABLE {table} (time timestamp, topic varchar, payload {column}, qos {qos}, id text, more int DEFAULT 7)"
                    ))
                    .await
                    .unwrap();
                let ids: Vec<String> = (0..payloads.len()).map(|id| format!("edge/1/{id}")).collect();
                let id = |at: usize| named.then_some(&*ids[at]);
                let batch: Batch = (payloads.iter().enumerate())
                    .map(|(at, payload)| record("a", payload, id(at)))
                    .collect();
                let found = sink(url, &table).deliver(&batch).await.unwrap();
                let places: Vec<usize> = found.iter().map(|refusal| refusal.place).collect();
                assert_eq!(places, refused, "{table}: {found:?}");
                let stored = (payloads.len() - refused.len()) as i64;
                assert_eq!(count(&client, &table).await, stored, "{table}");
                let sql = format!(
                    "SELECT count(*) FROM {table} WHERE more = 7 AND qos = 0 AND time = '2026-01-31 23:59:59.000001'"
                );
                let right: i64 = client.query_one(&*sql, &[]).await.unwrap().get(0);
                assert_eq!(right, stored, "{table}");
            }
        }
        let sql = "SELECT (payload->>'v')::text FROM t0_jsonb WHERE id = 'edge/1/0'";
        let value: String = client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(value, "1.10");

        // A column that takes none is no message's fault, and is named with what it may be.
        client
            .batch_execute("CREATE TABLE xml (time timestamptz, topic text, payload point, qos smallint, id text)")
            .await
            .unwrap();
        let trouble = sink(url, "xml").deliver(&Batch::from_iter([record("a", b"1", None)])).await;
        let text = trouble.unwrap_err().what;
        assert!(text.contains("column payload") && text.contains("is of type point"), "{text}");

        // A trigger may have a code of its own.
        client
            .batch_execute(
                "CREATE TABLE guarded (time timestamptz, topic text, payload text, qos smallint, id text); \
                 CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 IF NEW.payload = 'odd' THEN RAISE 'not that' USING ERRCODE = 'UE001'; END IF; RETURN NEW; END $$; \
                 CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION guard()",
            )
            .await
            .unwrap();
        let batch = Batch::from_iter([record("a", b"1", None), record("a", b"odd", None)]);
        let found = sink(url, "guarded").deliver(&batch).await.unwrap();
        assert_eq!(found.iter().map(|refusal| refusal.place).collect::<Vec<_>>(), [1]);
        assert!(found[0].reason.contains("UE001"), "{}", found[0].reason);
    });
}

#[test]
fn rows_are_stored_once_and_what_the_table_refuses_is_found() {
    let Some(peer) = Peer::start("with-postgres", &["POSTGRES_URL"]) else { return };
    let url = &*peer.told[0];
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    reactor.block_on(async {
        let (client, _driver) = connect(url).await;

        // As they came, in a table that the sink makes, whatever its name.
        let mut sink_here = sink(url, "public.Odd \"name\"");
        let batch = Batch::from_iter([
            record("a/ä", b"one", None),
            record("a/ä", b"one", None),
            record("b", b"\x01\xff", Some("edge/1/7")),
            record("b", b"", Some("edge/1/8")),
        ]);
        assert_eq!(sink_here.deliver(&batch).await.unwrap(), []);
        let table = "\"Odd \"\"name\"\"\"";
        let time = || "1769903999.000001".to_owned();
        let row = |topic: &str, payload: &str, id: &str| {
            (time(), topic.to_owned(), payload.to_owned(), id.to_owned())
        };
        let first = [
            row("a/ä", "one", "-"),
            row("a/ä", "one", "-"),
            row("b", "\\x01\\377".replace("\\x01", "\u{1}").as_str(), "edge/1/7"),
            row("b", "", "edge/1/8"),
        ];
        assert_eq!(rows(&client, table).await, first);

        // A message with a name comes twice and is there once, also within one batch.
        let again = Batch::from_iter([
            record("b", b"", Some("edge/1/8")),
            record("b", b"new", Some("edge/1/9")),
            record("b", b"new", Some("edge/1/9")),
        ]);
        assert_eq!(sink_here.deliver(&again).await.unwrap(), []);
        assert_eq!(count(&client, table).await, 5);

        // A table of the user's own, which takes no payload that is odd, and says so at its end.
        client
            .batch_execute(
                "CREATE TABLE picky (time timestamptz, topic text, payload bytea CHECK (payload <> 'odd'), qos smallint, id text UNIQUE, \
                 number serial); \
                 CREATE TABLE late (time timestamptz, topic text, payload bytea UNIQUE DEFERRABLE INITIALLY DEFERRED, qos smallint, id text)",
            )
            .await
            .unwrap();
        for named in [false, true] {
            client.batch_execute("TRUNCATE picky").await.unwrap();
            let odd = [0, 499, 500, 999];
            let batch: Batch = (0..1000)
                .map(|number: usize| {
                    let payload = if odd.contains(&number) { "odd".to_owned() } else { number.to_string() };
                    let id = format!("edge/2/{number}");
                    record("a", payload.as_bytes(), named.then_some(&*id))
                })
                .collect();
            let mut picky = sink(url, "picky");
            let refusals = picky.deliver(&batch).await.unwrap();
            let places: Vec<usize> = refusals.iter().map(|refusal| refusal.place).collect();
            assert_eq!(places, odd, "named: {named}");
            assert!(refusals[0].reason.contains("23514"), "{}", refusals[0].reason);
            assert_eq!(count(&client, "picky").await, 996);
        }

        // All of a large batch, each on its own.
        client.batch_execute("TRUNCATE picky").await.unwrap();
        let batch: Batch = (0..2000).map(|_| record("a", b"odd", None)).collect();
        assert_eq!(sink(url, "picky").deliver(&batch).await.unwrap().len(), 2000);
        assert_eq!(count(&client, "picky").await, 0);

        // A deferred unique constraint is found as well.
        let twice = Batch::from_iter([record("a", b"x", None), record("a", b"x", None)]);
        let refusals = sink(url, "late").deliver(&twice).await.unwrap();
        assert_eq!(refusals.len(), 1);
        assert!(refusals[0].reason.contains("23505"), "{}", refusals[0].reason);

        // A row that is there already is passed over; one that another rule of the table keeps out is refused.
        client
            .batch_execute(
                "CREATE TABLE strict (time timestamptz, topic text UNIQUE, payload bytea, qos smallint, id text UNIQUE)",
            )
            .await
            .unwrap();
        let mut strict = sink(url, "strict");
        let named = |topic, id| record(topic, b"1", Some(id));
        let first = Batch::from_iter([named("a", "edge/3/1"), named("b", "edge/3/2")]);
        assert_eq!(strict.deliver(&first).await.unwrap(), []);
        let second = Batch::from_iter([named("a", "edge/3/1"), named("b", "edge/3/3"), named("c", "edge/3/4")]);
        let refusals = strict.deliver(&second).await.unwrap();
        assert_eq!(refusals.iter().map(|refusal| refusal.place).collect::<Vec<_>>(), [1]);
        assert!(refusals[0].reason.contains("23505"), "{}", refusals[0].reason);
        assert_eq!(count(&client, "strict").await, 3);

        // The unique index of a hypertable tells duplicates as well; a table without one takes them all.
        client
            .batch_execute(
                "CREATE TABLE timed (time timestamptz, topic text, payload bytea, qos smallint, id text, UNIQUE (id, time)); \
                 CREATE TABLE loose (time timestamptz, topic text, payload bytea, qos smallint, id text)",
            )
            .await
            .unwrap();
        for (table, expected) in [("timed", 2), ("loose", 4)] {
            let mut settings = PostgresSettings::new(url, table).unwrap();
            settings.create = false;
            let mut own = DestinationSettings::Postgres(settings).open().unwrap();
            for _ in 0..2 {
                assert_eq!(own.deliver(&first).await.unwrap(), [], "{table}");
            }
            assert_eq!(count(&client, table).await, expected, "{table}");
        }

        // A table that is not there is trouble, and not the rows' fault.
        let mut settings = PostgresSettings::new(url, "absent").unwrap();
        settings.create = false;
        let mut absent = DestinationSettings::Postgres(settings).open().unwrap();
        let trouble = absent.deliver(&batch).await.unwrap_err();
        assert!(format!("{trouble:?}").contains("absent"), "{trouble:?}");
    });
    assert!(peer.stop().success());
}

#[test]
fn table_may_change_while_the_sink_is_connected() {
    let Some(peer) = Peer::start("with-postgres", &["POSTGRES_URL"]) else { return };
    let url = &*peer.told[0];
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    reactor.block_on(async {
        let (client, _driver) = connect(url).await;
        let json = b"{\"v\": 1}";
        let batch = |named: bool| -> Batch {
            let ids = ["edge/1/1", "edge/1/2"];
            ids.iter().map(|id| record("a", json, named.then_some(*id))).collect()
        };
        // Named messages go by way of a temporary table, which has the table's types as well.
        for (place, (from, to, content)) in [
            ("payload jsonb, qos int", "payload TYPE text USING payload::text", "payload"),
            ("payload text, qos int", "payload TYPE jsonb USING payload::jsonb", "payload::text"),
            ("payload jsonb, qos int", "payload TYPE json", "payload::text"),
            ("payload jsonb, qos int", "qos TYPE smallint", "payload::text"),
            ("payload text, qos smallint", "qos TYPE bigint", "payload"),
            (
                "payload jsonb, qos int",
                "payload TYPE bytea USING convert_to(payload::text, 'UTF8')",
                "convert_from(payload, 'UTF8')",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            for named in [false, true] {
                let table = format!("changes_{place}_{named}");
                client
                    .batch_execute(&format!(
                        "CREATE TABLE {table} (time timestamptz, topic text, {from}, id text)"
                    ))
                    .await
                    .unwrap();
                let mut sink = sink(url, &table);
                assert_eq!(sink.deliver(&batch(named)).await.unwrap(), [], "{table}");
                client
                    .batch_execute(&format!("TRUNCATE {table}; ALTER TABLE {table} ALTER {to}"))
                    .await
                    .unwrap();
                assert_eq!(sink.deliver(&batch(named)).await.unwrap(), [], "{table}: {from}, {to}");
                let sql = format!("SELECT {content}, qos::int FROM {table}");
                let rows = client.query(&*sql, &[]).await.unwrap();
                let rows: Vec<(String, i32)> =
                    rows.iter().map(|row| (row.get(0), row.get(1))).collect();
                let expected = (String::from_utf8(json.to_vec()).unwrap(), 0);
                assert_eq!(rows, [expected.clone(), expected], "{from}, then {to}");
            }
        }

        // A unique index that came later tells what is there already.
        client
            .batch_execute(
                "CREATE TABLE indexed (time timestamptz, topic text, payload bytea, qos smallint, id text)",
            )
            .await
            .unwrap();
        let mut settings = PostgresSettings::new(url, "indexed").unwrap();
        settings.create = false;
        let mut indexed = DestinationSettings::Postgres(settings).open().unwrap();
        assert_eq!(indexed.deliver(&batch(true)).await.unwrap(), []);
        client.batch_execute("CREATE UNIQUE INDEX ON indexed (id)").await.unwrap();
        assert_eq!(indexed.deliver(&batch(true)).await.unwrap(), []);
        assert_eq!(count(&client, "indexed").await, 2);

        // A column that no message has a value for, and a time for which there is no partition yet, are no message's fault.
        client.batch_execute("ALTER TABLE indexed ADD site text; TRUNCATE indexed").await.unwrap();
        client.batch_execute("ALTER TABLE indexed ALTER site SET NOT NULL").await.unwrap();
        let trouble = indexed.deliver(&batch(true)).await.unwrap_err();
        assert!(tidegate_message::error_chain(&trouble).contains("site"), "{trouble:?}");
        client.batch_execute("ALTER TABLE indexed ALTER site SET DEFAULT 'here'").await.unwrap();
        assert_eq!(indexed.deliver(&batch(true)).await.unwrap(), []);
        assert_eq!(count(&client, "indexed").await, 2);
        client
            .batch_execute(
                "CREATE TABLE parted (time timestamptz, topic text, payload bytea, qos smallint, id text) PARTITION BY RANGE (time)",
            )
            .await
            .unwrap();
        let mut settings = PostgresSettings::new(url, "parted").unwrap();
        settings.create = false;
        let mut parted = DestinationSettings::Postgres(settings).open().unwrap();
        let trouble = parted.deliver(&batch(false)).await.unwrap_err();
        assert!(tidegate_message::error_chain(&trouble).contains("partition"), "{trouble:?}");
        client
            .batch_execute(
                "CREATE TABLE january PARTITION OF parted FOR VALUES FROM ('2026-01-01') TO ('2026-02-02')",
            )
            .await
            .unwrap();
        // A message that brings a time without a partition is refused alone.
        let mut far = record("a", b"far", None);
        far.measured = Some(Instant::from_nanos(4_000_000_000_000_000_000));
        let batch = Batch::from_iter([record("a", b"1", None), far, record("a", b"2", None)]);
        let refusals = parted.deliver(&batch).await.unwrap();
        assert_eq!(refusals.iter().map(|refusal| refusal.place).collect::<Vec<_>>(), [1]);
        assert_eq!(count(&client, "parted").await, 2);
    });
}

#[test]
fn table_may_change_between_any_two_steps_of_a_batch() {
    const BATCHES: i64 = 60;
    let Some(peer) = Peer::start("with-postgres", &["POSTGRES_URL"]) else { return };
    let url = &*peer.told[0];
    let reactor = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    reactor.block_on(async {
        let (client, _driver) = connect(url).await;
        client
            .batch_execute("CREATE TABLE restless (time timestamptz, topic text, payload jsonb, qos int, id text)")
            .await
            .unwrap();
        let (changer, _changes) = connect(url).await;
        let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ends = is_over.clone();
        let changing = tokio::spawn(async move {
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                for change in [
                    "payload TYPE text USING payload::text, ALTER qos TYPE smallint",
                    "payload TYPE jsonb USING payload::jsonb, ALTER qos TYPE int",
                ] {
                    let sql = format!("ALTER TABLE restless ALTER {change}");
                    changer.batch_execute(&sql).await.unwrap();
                }
            }
        });
        let mut sink = sink(url, "restless");
        for _ in 0..BATCHES {
            let batch: Batch = (0..20).map(|_| record("a", b"{\"v\": 1}", None)).collect();
            assert_eq!(sink.deliver(&batch).await.unwrap(), []);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        changing.await.unwrap();
        let sql = "SELECT count(*) FROM restless WHERE payload::text = '{\"v\": 1}' AND qos = 0";
        let right: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        assert_eq!(right, 20 * BATCHES);
    });
}

#[test]
fn a_database_that_is_cut_off_and_killed_loses_nothing() {
    let Some(peer) = Peer::start("with-postgres", &["POSTGRES_URL", "POSTGRES_PID"]) else {
        return;
    };
    let (url, pid) = (&*peer.told[0], &*peer.told[1]);
    let reactor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = server(BrokerConfig::default());
    let destination =
        DestinationSettings::Postgres(PostgresSettings::new(url, "messages").unwrap());
    let settings =
        SinkSettings { destination, timeout: Duration::from_millis(500), ..settings("a/#") };
    let sink = Sink::start(settings, server.connector().into()).unwrap();
    ready(&server, "test");
    let mut publisher = client(&server, "publisher");
    let total = || {
        reactor.block_on(async {
            let (client, _driver) = connect(url).await;
            count(&client, "messages").await
        })
    };
    for number in 0..500 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("the first part was stored", || sink.report().messages == 500);
    // The sink's connection is cut, and no one is let in: it gives up waiting, and tries again.
    reactor.block_on(async {
        let (client, _driver) = connect(url).await;
        signal(pid, "STOP");
        client.batch_execute(CUT).await.unwrap();
    });
    for number in 500..1500 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("the sink saw it", || sink.report().failures >= 2 && !sink.is_up());
    signal(pid, "CONT");
    until("the rest was stored", || sink.report().messages == 1500);
    // Its connections are cut.
    reactor.block_on(async {
        let (client, _driver) = connect(url).await;
        client.batch_execute(CUT).await.unwrap();
    });
    for number in 1500..2000 {
        publish(&mut publisher, "a/x", number.to_string().as_bytes());
    }
    until("all was stored", || sink.report().messages == 2000);
    assert!(total() >= 2000);
    let distinct: i64 = reactor.block_on(async {
        let (client, _driver) = connect(url).await;
        let sql = "SELECT count(DISTINCT payload) FROM messages";
        client.query_one(sql, &[]).await.unwrap().get(0)
    });
    assert_eq!(distinct, 2000);
    sink.stop();
}
