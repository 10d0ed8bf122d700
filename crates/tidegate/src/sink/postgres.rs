//! A table of PostgreSQL, or a hypertable of TimescaleDB.
//!
//! ```text
//!  batch ─▶ BEGIN ─▶ COPY ─▶ (stage ─▶ INSERT … ON CONFLICT (id) DO NOTHING) ─▶ COMMIT
//!                     └─ a row is refused ─▶ back to the savepoint, each half on its own
//! ```
//!
//! # What is promised
//!
//! A batch is one transaction and is taken when that is committed, which is as durable as the server's `synchronous_commit` says.
//! Messages that carry `tidegate-id` are stored once for each: the table has a unique index of `id`, and what is there already is passed
//! over. Those without are stored at least once: a commit whose answer is lost is tried again. A row that the server refuses (a
//! check of the table, a trigger) is refused alone.

use std::{future::Future, io, ops::Range, pin::Pin, sync::Arc};

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::SinkExt as _;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tidegate_message::Instant;
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
/// What COPY in the binary format begins with, flags and extension included.
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
    /// Whom to trust, where TLS is spoken.
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
    /// From an address, such as `postgresql://user@host/database`, and the name of a table, with a schema or without. TLS is spoken
    /// unless the address says `sslmode=disable`, or names no mode and the server is on this machine.
    ///
    /// # Errors
    /// The address is none.
    pub fn new(url: &str, table: &str) -> Result<Self, SinkError> {
        let mut config: Config = url.parse().map_err(|error: Error| SinkError::Destination {
            problem: "url is no address of PostgreSQL, such as postgresql://user@host/database"
                .to_owned(),
            source: Some(error.into()),
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

/// A connection, prepared.
struct Connection {
    client: Client,
    /// How a row that is there already by its `id` is passed over; a row that breaks another rule is refused.
    unless_there: String,
    /// What moves its bytes.
    _driver: AbortOnDropHandle<()>,
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
        let mut connection = Connection {
            client,
            unless_there: String::new(),
            _driver: AbortOnDropHandle::new(driver),
        };
        let PostgresSettings { table, index, create, .. } = &self.settings;
        if *create {
            let sql = format!(
                "CREATE TABLE IF NOT EXISTS {table} (time timestamptz NOT NULL, topic text NOT NULL, payload bytea NOT NULL, \
                 qos smallint NOT NULL, id text); CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} (id)"
            );
            let made = connection.client.batch_execute(&sql).await;
            made.map_err(|error| Trouble::of(format!("{table} cannot be made"), error))?;
        }
        let stage = "CREATE TEMPORARY TABLE tidegate_stage (time timestamptz, topic text, payload bytea, qos smallint, id text)";
        let made = connection.client.batch_execute(stage).await;
        made.map_err(|error| Trouble::of("no temporary table can be made", error))?;
        // Of a hypertable it is the one of (id, time), which names what there is of `id` as well.
        let unique = format!(
            "SELECT string_agg(quote_ident(a.attname), ', ') FROM pg_index i \
             CROSS JOIN LATERAL unnest(i.indkey) AS k(number) \
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number \
             WHERE i.indrelid = to_regclass('{}') AND i.indisunique AND i.indisvalid AND i.indimmediate \
             AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnatts = i.indnkeyatts \
             GROUP BY i.indexrelid HAVING bool_or(a.attname = 'id') ORDER BY count(*) LIMIT 1",
            table.replace('\'', "''")
        );
        let found = connection.client.query_opt(&*unique, &[]).await;
        let found =
            found.map_err(|error| Trouble::of(format!("{table} cannot be looked at"), error))?;
        if let Some(columns) = found.and_then(|row| row.get::<_, Option<String>>(0)) {
            connection.unless_there = format!("ON CONFLICT ({columns}) DO NOTHING");
        }
        Ok(connection)
    }

    /// Stores all that can be stored in one transaction, and says what cannot.
    async fn store(&self, connection: &Connection, batch: &Batch) -> Result<Vec<Refusal>, Error> {
        let (client, records) = (&connection.client, batch.records());
        // What is checked at the end of a transaction is checked at once, so that it is known which row it is.
        client.batch_execute("BEGIN; SET CONSTRAINTS ALL IMMEDIATE").await?;
        let mut refusals = Vec::new();
        // The last is the next one, so that rows keep their order.
        let mut parts: Vec<_> = std::iter::once(0..records.len()).collect();
        while let Some(part) = parts.pop() {
            client.batch_execute("SAVEPOINT part").await?;
            let copied = self.copy(connection, &records[part.clone()]).await;
            batch.step();
            match copied {
                Ok(()) => client.batch_execute("RELEASE SAVEPOINT part").await?,
                Err(error) => {
                    let Some(reason) = refusal(&error) else { return Err(error) };
                    // Released as well: savepoints of one name lie in each other, and thousands of them cost the server dearly.
                    client
                        .batch_execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
                        .await?;
                    if part.len() == 1 {
                        refusals.push(Refusal { place: part.start, reason });
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

    async fn copy(&self, connection: &Connection, records: &[Record]) -> Result<(), Error> {
        let (table, Connection { client, unless_there, .. }) = (&self.settings.table, connection);
        // What has no name of its own cannot be there already.
        let is_staged = records.iter().any(|record| record.id.is_some());
        let into = if is_staged { "tidegate_stage" } else { table };
        let statement = format!("COPY {into} ({COLUMNS}) FROM STDIN (FORMAT binary)");
        let mut sink = std::pin::pin!(client.copy_in::<_, Bytes>(&*statement).await?);
        let mut rows = BytesMut::from(COPY_HEAD);
        for record in records {
            write_row(record, &mut rows);
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
        // Taken out while it is used: who is dropped on the way leaves no transaction open.
        let connection = match self.connection.take().filter(|kept| !kept.client.is_closed()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let stored = self.store(&connection, batch).await;
        let refusals =
            stored.map_err(|error| Trouble::of("PostgreSQL did not take a batch", error))?;
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

/// Why a row will never be taken, if it is the row's fault: its values (class 22), what the table asks of it (23, 44), a trigger
/// that says so (P0), or an index that has no room for a value so long (54).
fn refusal(error: &Error) -> Option<String> {
    let error: &DbError = error.as_db_error()?;
    let class = error.code().code().get(..2)?;
    let is_rows = matches!(class, "22" | "23" | "44" | "54" | "P0");
    is_rows.then(|| format!("{} (SQLSTATE {})", error.message(), error.code().code()))
}

/// One row in COPY's binary format: a length before each value.
fn write_row(record: &Record, out: &mut BytesMut) {
    let text = |out: &mut BytesMut, bytes: &[u8]| {
        out.put_i32(i32::try_from(bytes.len()).expect("a packet is shorter than 256 MiB"));
        out.put_slice(bytes);
    };
    out.put_i16(5);
    out.put_i32(8);
    out.put_i64(micros(record.time));
    text(out, record.topic.as_bytes());
    text(out, &record.payload);
    out.put_i32(2);
    out.put_i16(record.qos as i16);
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
