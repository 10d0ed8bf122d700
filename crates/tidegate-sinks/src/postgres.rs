//! A table of PostgreSQL, or a hypertable of TimescaleDB.
//!
//! ```text
//!  batch ─▶ BEGIN ─▶ lock and look at the table ─▶ COPY ─▶ (stage ─▶ INSERT … ON CONFLICT (id) DO NOTHING) ─▶ COMMIT
//!                                                 └─ a row is refused ─▶ back to the savepoint, each half on its own
//! ```
//!
//! # What is promised
//!
//! A batch is one transaction and is taken when that is committed, which is as durable as the server's `synchronous_commit` says.
//! Messages that carry `tidegate-id` are stored once for each: the table has a unique index of `id`, and what is there already is passed
//! over. Those without are stored at least once: a commit whose answer is lost is tried again. A row that the server refuses (a
//! check of the table, a trigger, a payload that is no JSON for a column of that) is refused alone. A problem with the table or the
//! rights is no message's fault: the batch waits until that is mended.
//!
//! A table may change while the sink is connected, and values are sent in the binary format of their column's type: bytes for one type
//! may be a value of another, with another meaning. So each transaction holds the lock of a writer before it looks at the table, and no
//! `ALTER TABLE` and no new index comes between that look and the end of the transaction.

use std::{future::Future, io, ops::Range, pin::Pin, sync::Arc};

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::SinkExt as _;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tidegate_message::{Confidential, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Client, Config, Error, NoTls,
    config::{Host, SslMode},
    error::DbError,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_util::task::AbortOnDropHandle;

use super::{Batch, Destination, Record, Refusal, SinkError, Trouble};

/// Microseconds from the Unix epoch to PostgreSQL's, the first of January 2000.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// The head of COPY in the binary format, flags and extension included.
const COPY_HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Bytes that COPY is sent at a time.
const COPY_BYTES: usize = 256 << 10;
const COLUMNS: &str = "time, topic, payload, qos, id";

/// Which table, and how the server is reached.
#[derive(Clone, Debug)]
pub struct PostgresSettings {
    /// The server, user and database.
    pub config: Config,
    /// The table, quoted.
    pub table: String,
    /// The name of its unique index, quoted.
    pub index: String,
    /// Whether the table is made where there is none.
    pub create: bool,
    /// The trusted authorities, where TLS is used.
    pub tls: Option<Arc<ClientConfig>>,
}

/// Two are the same by what was configured, whatever files said that were read for it.
impl PartialEq for PostgresSettings {
    fn eq(&self, other: &Self) -> bool {
        (&self.config, &self.table, self.create, self.tls.is_some())
            == (&other.config, &other.table, other.create, other.tls.is_some())
    }
}

impl PostgresSettings {
    /// Logs in and leaves again.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn reach(&self) -> Result<(), String> {
        let connected = match &self.tls {
            None => self.config.connect(NoTls).await.map(drop),
            Some(tls) => self.config.connect(Tls(tls.clone())).await.map(drop),
        };
        connected.map_err(|error| tidegate_message::error_chain(&error))
    }

    /// From an address, such as `postgresql://user@host/database`, and the name of a table, with a schema or without. TLS is spoken
    /// unless the address says `sslmode=disable`, or names no mode and the server is on this machine.
    ///
    /// # Errors
    /// The address is none.
    pub fn new(url: &str, table: &str) -> Result<Self, SinkError> {
        let mut config: Config = url.parse().map_err(|_: Error| SinkError::Destination {
            // The parser quotes a part of it that may be of a password.
            problem: format!(
                "url is {}, which is not an address of PostgreSQL, such as postgresql://user@host/database",
                Confidential::from(url),
            ),
            source: None,
        })?;
        if config.get_hosts().is_empty() {
            let problem = "url names no host".to_owned();
            return Err(SinkError::Destination { problem, source: None });
        }
        let is_here = |host: &Host| match host {
            Host::Tcp(name) => matches!(&**name, "localhost" | "127.0.0.1" | "::1"),
            Host::Unix(_) => true,
        };
        if config.get_ssl_mode() == SslMode::Prefer {
            let all_here = config.get_hosts().iter().all(is_here);
            config.ssl_mode(if all_here { SslMode::Disable } else { SslMode::Require });
        }
        if config.get_application_name().is_none() {
            config.application_name("tidegate");
        }
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let parts: Vec<String> = table.split('.').map(quoted).collect();
        let name = table.rsplit('.').next().unwrap_or(table);
        Ok(Self {
            config,
            table: parts.join("."),
            index: quoted(&format!("{name}_id_key")),
            create: true,
            tls: None,
        })
    }

    /// Whether TLS is spoken.
    pub fn speaks_tls(&self) -> bool {
        self.config.get_ssl_mode() != SslMode::Disable
    }
}

/// The destination.
#[derive(Debug)]
pub(super) struct Postgres {
    settings: PostgresSettings,
    connection: Option<Connection>,
}

/// A connection.
struct Connection {
    client: Client,
    /// The table when it was last written to; the stage has the columns of then.
    table: Option<Table>,
    /// Moves its bytes.
    _driver: AbortOnDropHandle<()>,
}

/// The table as it is.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    columns: Vec<Column>,
    encoding: Encoding,
    /// How a row that is there already by its `id` is passed over; a row that breaks another rule is refused.
    unless_there: String,
}

/// A column that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    name: String,
    /// Its type as it is written.
    type_text: String,
    /// The number of that type, of a domain that of what it is made of.
    type_number: u32,
}

/// Why a transaction was given up.
#[derive(Debug)]
enum Broken {
    /// The connection, the server or the rights.
    Server(Error),
    /// The table.
    Table(Trouble),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Server(error)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Postgres {
    pub(super) fn new(settings: PostgresSettings) -> Self {
        Self { settings, connection: None }
    }

    async fn connect(&self) -> Result<Connection, Trouble> {
        let failed = |error: Error| Trouble::of("no connection to PostgreSQL", error);
        let config = &self.settings.config;
        let (client, driver) = match &self.settings.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
                (client, tokio::spawn(drive(connection)))
            }
            Some(tls) => {
                let (client, connection) =
                    config.connect(Tls(tls.clone())).await.map_err(failed)?;
                (client, tokio::spawn(drive(connection)))
            }
        };
        let connection =
            Connection { client, table: None, _driver: AbortOnDropHandle::new(driver) };
        let PostgresSettings { table, index, create, .. } = &self.settings;
        if *create {
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS {table} (time timestamptz NOT NULL, topic text NOT NULL, payload bytea NOT NULL, \
                 qos smallint NOT NULL, id text); CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} (id)"
            );
            let made = connection.client.batch_execute(&sql).await;
            made.map_err(|error| Trouble::of(format!("{table} cannot be made"), error))?;
        }
        Ok(connection)
    }

    /// Looks at the table in a transaction, which has the lock of a writer from then on: it stays as it was found until the end.
    async fn look(&self, client: &Client) -> Result<Table, Broken> {
        let table = &self.settings.table;
        // The server takes the lock of a statement's table when it reads the statement (parse analysis), without asking for more
        // rights than the statement itself needs; `LOCK TABLE` would, and knows no foreign tables.
        let insert = format!("INSERT INTO {table} ({COLUMNS}) VALUES ($1, $2, $3, $4, $5)");
        client.prepare(&insert).await.map_err(|error| match error.as_db_error() {
            Some(_) => {
                let what = format!("{table} cannot be written to; its columns must be {COLUMNS}");
                Broken::Table(Trouble::of(what, error))
            }
            None => Broken::Server(error),
        })?;
        let name = table.replace('\'', "''");
        let sql = format!(
            "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), \
             CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END \
             FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
             WHERE a.attrelid = to_regclass('{name}') AND a.attnum > 0 AND NOT a.attisdropped \
             AND a.attname IN ('time', 'topic', 'payload', 'qos', 'id') ORDER BY a.attnum"
        );
        let found = client.query(&*sql, &[]).await?;
        let columns: Vec<Column> = found
            .iter()
            .map(|row| Column { name: row.get(0), type_text: row.get(1), type_number: row.get(2) })
            .collect();
        let encoding = Encoding::of(table, &columns).map_err(Broken::Table)?;
        // Of a hypertable it is the one of (id, time), which names what there is of `id` as well.
        let unique = format!(
            "SELECT string_agg(quote_ident(a.attname), ', ') FROM pg_index i \
             CROSS JOIN LATERAL unnest(i.indkey) AS k(number) \
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number \
             WHERE i.indrelid = to_regclass('{name}') AND i.indisunique AND i.indisvalid AND i.indimmediate \
             AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnatts = i.indnkeyatts \
             GROUP BY i.indexrelid HAVING bool_or(a.attname = 'id') ORDER BY count(*) LIMIT 1"
        );
        let found = client.query_opt(&*unique, &[]).await?;
        let found = found.and_then(|row| row.get::<_, Option<String>>(0));
        let unless_there =
            found.map(|columns| format!("ON CONFLICT ({columns}) DO NOTHING")).unwrap_or_default();
        Ok(Table { columns, encoding, unless_there })
    }

    /// Stores all that can be stored in one transaction, and says what cannot.
    async fn store(
        &self,
        connection: &mut Connection,
        batch: &Batch,
    ) -> Result<Vec<Refusal>, Broken> {
        let Connection { client, table: known, .. } = connection;
        let records = batch.records();
        // Deferred constraints are checked at once, so that it is known which row it is. At a higher level of isolation the look at the
        // table would show it as it was before the lock.
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET CONSTRAINTS ALL IMMEDIATE";
        client.batch_execute(begin).await?;
        let table = self.look(client).await?;
        if known.as_ref().is_none_or(|known| known.columns != table.columns) {
            let columns: Vec<String> = table
                .columns
                .iter()
                .map(|column| format!("{} {}", column.name, column.type_text))
                .collect();
            client
                .batch_execute(&format!(
                    "DROP TABLE IF EXISTS pg_temp.tidegate_stage; CREATE TEMPORARY TABLE tidegate_stage ({})",
                    columns.join(", ")
                ))
                .await?;
        }
        let table = known.insert(table);
        let mut refusals = Vec::new();
        // The last is the next one, so that rows keep their order.
        let mut parts: Vec<_> = std::iter::once(0..records.len()).collect();
        while let Some(part) = parts.pop() {
            client.batch_execute("SAVEPOINT part").await?;
            let copied = self.copy(client, table, &records[part.clone()]).await;
            batch.step();
            match copied {
                Ok(()) => client.batch_execute("RELEASE SAVEPOINT part").await?,
                Err(error) => {
                    let Some(reason) = refusal(&error, &records[part.clone()]) else {
                        return Err(error.into());
                    };
                    // Released as well: savepoints of one name lie in each other, and thousands of them cost the server dearly.
                    client
                        .batch_execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
                        .await?;
                    if part.len() == 1 {
                        refusals.push(Refusal::new(part.start, reason));
                    } else {
                        let Range { start, end } = part;
                        let middle = start + (end - start) / 2;
                        parts.extend([middle..end, start..middle]);
                    }
                }
            }
        }
        client.batch_execute("COMMIT").await?;
        Ok(refusals)
    }

    async fn copy(&self, client: &Client, found: &Table, records: &[Record]) -> Result<(), Error> {
        let (table, Table { encoding, unless_there, .. }) = (&self.settings.table, found);
        // A message without a name of its own cannot be there already.
        let is_staged = records.iter().any(|record| record.id.is_some());
        let into = if is_staged { "tidegate_stage" } else { table };
        let statement = format!("COPY {into} ({COLUMNS}) FROM STDIN (FORMAT binary)");
        let mut sink = std::pin::pin!(client.copy_in::<_, Bytes>(&*statement).await?);
        let mut rows = BytesMut::from(COPY_HEAD);
        for record in records {
            write_row(record, *encoding, &mut rows);
            if rows.len() >= COPY_BYTES {
                sink.feed(rows.split().freeze()).await?;
            }
        }
        rows.put_i16(-1);
        sink.send(rows.freeze()).await?;
        sink.finish().await?;
        if is_staged {
            client
                .batch_execute(&format!(
                    "INSERT INTO {table} ({COLUMNS}) SELECT {COLUMNS} FROM tidegate_stage {unless_there}; \
                     TRUNCATE tidegate_stage"
                ))
                .await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Destination for Postgres {
    async fn deliver(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Trouble> {
        // Taken out while it is used: a dropped call leaves no transaction open.
        let mut connection = match self.connection.take().filter(|kept| !kept.client.is_closed()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let stored = self.store(&mut connection, batch).await;
        let refusals = stored.map_err(|broken| match broken {
            Broken::Server(error) => trouble(error),
            Broken::Table(trouble) => trouble,
        })?;
        self.connection = Some(connection);
        Ok(refusals)
    }
}

async fn drive<S, T>(connection: tokio_postgres::Connection<S, T>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: TlsStream + Unpin,
{
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to PostgreSQL ended");
    }
}

/// Why a batch waits, with the server's own words.
fn trouble(error: Error) -> Trouble {
    let what = match error.as_db_error().and_then(DbError::detail) {
        Some(detail) => format!("PostgreSQL did not take a batch ({detail})"),
        None => "PostgreSQL did not take a batch".to_owned(),
    };
    Trouble::of(what, error)
}

/// Why one of these rows will never be taken, if it is the row's fault.
fn refusal(error: &Error, records: &[Record]) -> Option<String> {
    let error: &DbError = error.as_db_error()?;
    let code = error.code().code();
    let cause = Cause {
        code,
        column: error.column(),
        constraint: error.constraint(),
        detail: error.detail(),
    };
    let brings_times = records.iter().any(|record| record.measured.is_some());
    cause.is_of_row(brings_times).then(|| format!("{} (SQLSTATE {code})", error.message()))
}

/// The parts of an error by which it is known whose fault it is.
#[derive(Clone, Copy, Default)]
struct Cause<'a> {
    code: &'a str,
    column: Option<&'a str>,
    constraint: Option<&'a str>,
    detail: Option<&'a str>,
}

impl Cause<'_> {
    /// Whether an error is one row's and stays: its values (class 22), what the table asks of it (21, 23, 44), a trigger that says so (09,
    /// 20, 27, 38, 39, P0, or a class of its own), or an index that has no room for a value so long (54). Others are of the server, the
    /// table or the rights, and pass or are mended. `brings_times` if the message said itself when it was measured.
    fn is_of_row(self, brings_times: bool) -> bool {
        const OTHERS: &[&str] = &[
            "00", "01", "02", "03", "08", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "24", "25",
            "26", "28", "2B", "2D", "2F", "34", "3B", "3D", "3F", "40", "42", "53", "55", "57",
            "58", "72", "F0", "HV", "TS", "XX",
        ];
        match self.code {
            // The format of what was sent, which is this program's.
            "22P03" | "22P04" => false,
            // A column that no message has a value for: the table was given one without a default.
            "23502" => {
                self.column.is_none_or(|column| COLUMNS.split(", ").any(|ours| ours == column))
            }
            // A check has a name. Without one no partition takes the row: where they go by the time at which this node received it, one
            // is still to be made, or comes with the hour where this node's clock is ahead.
            "23514" if self.constraint.is_none() => {
                let goes_by_time = self.detail.is_some_and(|text| {
                    text.starts_with("Partition key of the failing row contains (\"time\")")
                        || text.starts_with("Partition key of the failing row contains (time)")
                });
                !goes_by_time || brings_times
            }
            code => code.get(..2).is_some_and(|class| !OTHERS.contains(&class)),
        }
    }
}

/// The types of the columns of a table, as far as they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Encoding {
    payload: Payload,
    qos: Whole,
}

/// The type of a column of payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Payload {
    /// Bytes, as they are: `bytea`; or text, or `json`, which are sent alike, and looked at by the server.
    #[default]
    Plain,
    /// `jsonb`: a version before them.
    Jsonb,
}

/// How many bytes a column of whole numbers takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Whole {
    #[default]
    Two,
    Four,
    Eight,
}

impl Encoding {
    /// Of these columns of the table.
    fn of(table: &str, found: &[Column]) -> Result<Self, Trouble> {
        let mut encoding = Self::default();
        for name in COLUMNS.split(", ") {
            let Some(column) = found.iter().find(|column| column.name == name) else {
                let what = if found.is_empty() {
                    format!("there is no table {table}")
                } else {
                    format!("{table} has no column {name}")
                };
                return Err(Trouble::new(format!("{what}; its columns must be {COLUMNS}")));
            };
            // The numbers of types are fixed in PostgreSQL's own catalogue.
            let allowed = match (name, column.type_number) {
                ("time", 1184 | 1114) => continue, // timestamptz, timestamp
                ("topic" | "id", 25 | 1043 | 1042) => continue, // text, varchar, char
                ("payload", 17 | 25 | 1043 | 1042 | 114) => continue, // bytea, text …, json
                ("payload", 3802) => {
                    encoding.payload = Payload::Jsonb;
                    continue;
                }
                ("qos", 21) => continue,
                ("qos", 23) => {
                    encoding.qos = Whole::Four;
                    continue;
                }
                ("qos", 20) => {
                    encoding.qos = Whole::Eight;
                    continue;
                }
                ("time", _) => "timestamptz or timestamp",
                ("payload", _) => "bytea, text, varchar, json or jsonb",
                ("qos", _) => "smallint, integer or bigint",
                _ => "text or varchar",
            };
            let text = &column.type_text;
            let what = format!("column {name} of {table} is of type {text}; it must be {allowed}");
            return Err(Trouble::new(what));
        }
        Ok(encoding)
    }
}

/// One row in COPY's binary format: a length before each value.
fn write_row(record: &Record, encoding: Encoding, out: &mut BytesMut) {
    let text = |out: &mut BytesMut, bytes: &[u8]| {
        out.put_i32(i32::try_from(bytes.len()).expect("a packet is shorter than 256 MiB"));
        out.put_slice(bytes);
    };
    out.put_i16(5);
    out.put_i32(8);
    out.put_i64(micros(record.measured.unwrap_or(record.time)));
    text(out, record.topic.as_bytes());
    match encoding.payload {
        Payload::Plain => text(out, &record.payload),
        Payload::Jsonb => {
            let bytes = i32::try_from(record.payload.len() + 1);
            out.put_i32(bytes.expect("a packet is shorter than 256 MiB"));
            out.put_u8(1);
            out.put_slice(&record.payload);
        }
    }
    match encoding.qos {
        Whole::Two => {
            out.put_i32(2);
            out.put_i16(record.qos as i16);
        }
        Whole::Four => {
            out.put_i32(4);
            out.put_i32(record.qos as i32);
        }
        Whole::Eight => {
            out.put_i32(8);
            out.put_i64(record.qos as i64);
        }
    }
    match &record.id {
        Some(id) => text(out, id.as_bytes()),
        None => out.put_i32(-1),
    }
}

/// PostgreSQL counts microseconds from 2000.
fn micros(time: Instant) -> i64 {
    time.as_nanos().div_euclid(1000) - EPOCH_MICROS
}

/// The one TLS of this program, as the client asks for it.
#[derive(Clone)]
struct Tls(Arc<ClientConfig>);

struct TlsTo(Arc<ClientConfig>, ServerName<'static>);

/// A connection over TLS. Channel binding is not offered: the certificate is checked.
struct Secured(tokio_rustls::client::TlsStream<tokio_postgres::Socket>);

impl MakeTlsConnect<tokio_postgres::Socket> for Tls {
    type Stream = Secured;
    type TlsConnect = TlsTo;
    type Error = rustls_pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<TlsTo, Self::Error> {
        Ok(TlsTo(self.0.clone(), ServerName::try_from(domain.to_owned())?))
    }
}

impl TlsConnect<tokio_postgres::Socket> for TlsTo {
    type Stream = Secured;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured>> + Send>>;

    fn connect(self, stream: tokio_postgres::Socket) -> Self::Future {
        let Self(config, name) = self;
        Box::pin(async move {
            tokio_rustls::TlsConnector::from(config).connect(name, stream).await.map(Secured)
        })
    }
}

impl TlsStream for Secured {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_rows_or_passes() {
        for (code, expected) in [
            ("22P02", true),  // no JSON
            ("22021", true),  // no UTF-8
            ("22P03", false), // what was sent is not of the column's format
            ("23514", true),
            ("54000", true),
            ("P0001", true), // RAISE in a trigger
            ("UE001", true), // and with a code of its own
            ("38000", true),
            ("42804", false),
            ("42501", false),
            ("40001", false),
            ("53100", false),
            ("57P01", false),
            ("TS001", false),
            ("XX000", false),
        ] {
            assert_eq!(Cause { code, ..Cause::default() }.is_of_row(false), expected, "{code}");
        }
    }

    #[test]
    fn a_table_that_asks_for_more_is_no_rows_fault() {
        let not_null = |column| Cause { code: "23502", column: Some(column), ..Cause::default() };
        assert!(not_null("id").is_of_row(false));
        assert!(
            !not_null("site").is_of_row(false),
            "a column of the user's own, without a default"
        );
        let by_time =
            "Partition key of the failing row contains (\"time\") = (2026-02-01 00:00:00+00).";
        let by_topic = "Partition key of the failing row contains (topic) = (a).";
        for (detail, constraint, brings_times, expected) in [
            (by_time, None, false, false),
            (by_time, None, true, true), // a message that says a year without a partition holds up no others
            (by_topic, None, false, true),
            ("Failing row contains (…).", Some("positive"), false, true),
        ] {
            let cause =
                Cause { code: "23514", detail: Some(detail), constraint, ..Cause::default() };
            assert_eq!(cause.is_of_row(brings_times), expected, "{detail}, {brings_times}");
        }
    }

    #[test]
    fn columns_of_other_types_are_named() {
        let encoding = |payload: (&str, u32), qos: (&str, u32)| {
            let columns = [
                ("time", ("timestamp", 1114)),
                ("topic", ("text", 25)),
                ("payload", payload),
                ("qos", qos),
                ("id", ("text", 25)),
            ];
            let columns = columns.map(|(name, (type_text, type_number))| Column {
                name: name.to_owned(),
                type_text: type_text.to_owned(),
                type_number,
            });
            Encoding::of("t", &columns).map_err(|trouble| trouble.what)
        };
        let expected = Encoding { payload: Payload::Jsonb, qos: Whole::Eight };
        assert_eq!(encoding(("jsonb", 3802), ("bigint", 20)), Ok(expected));
        assert_eq!(encoding(("text", 25), ("smallint", 21)), Ok(Encoding::default()));
        let error = encoding(("hstore", 99_999), ("smallint", 21)).unwrap_err();
        assert!(error.contains("column payload of t is of type hstore"), "{error}");
        assert!(error.contains("bytea, text, varchar, json or jsonb"), "{error}");
        let error = Encoding::of("t", &[]).unwrap_err().what;
        assert!(error.contains("there is no table t"), "{error}");
    }
}
