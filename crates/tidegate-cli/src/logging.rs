//! The program's log: one line an event on the standard error, as text or as JSON.
//!
//! ```text
//! 2026-01-31T12:00:00.000000Z  INFO tidegate_server::shard::visits: connected client=c1 user="user ada" address=192.0.2.7
//! {"timestamp":"2026-01-31T12:00:00.000000Z","level":"INFO","target":"tidegate_server::…","message":"connected","client":"c1",…}
//! ```
//!
//! Always true: an event is one line, and no letter in it steers a terminal but colours of our own, which only a terminal gets; a value
//! that could be taken for other fields stands between quotes. So it does not matter whose text a field holds.

use std::{
    env,
    ffi::OsStr,
    fmt::{self, Write as _},
    io::{self, IsTerminal as _},
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::{Map, Value};
use tidegate_auth::escape;
use tidegate_config::words::LogFormat;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::{self, Writer},
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

/// The variable that says what is logged.
pub const FILTER_VARIABLE: &str = "TIDEGATE_LOG";
/// The filter where it is not set.
const USUAL: &str = "warn,tidegate=info";

/// There is one log in a process, and it begins before the configuration is read.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Begins to log.
///
/// # Errors
/// [`FilterError`], with which the program is not to start: wanted lines would be missing.
pub fn begin() -> Result<(), FilterError> {
    let filter = filter(env::var_os(FILTER_VARIABLE).as_deref())?;
    let has_colours =
        io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(has_colours)
        .event_format(Lines)
        // Those of the spans around an event.
        .fmt_fields(format::debug_fn(|writer, field, value| write!(writer, "{field}={value:?}")))
        .init();
    Ok(())
}

/// Logs in that format from now on.
pub fn set_format(format: LogFormat) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// The problem of the filter.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "TIDEGATE_LOG: {part:?} {problem}; choose error, warn, info, debug, trace or off, for a part of the program behind its name, such as warn,tidegate_server=debug"
)]
pub struct FilterError {
    part: String,
    problem: String,
}

fn filter(text: Option<&OsStr>) -> Result<EnvFilter, FilterError> {
    let wrong = |part: &str, problem: &str| FilterError {
        part: part.to_owned(),
        problem: problem.to_owned(),
    };
    let text = match text {
        None => USUAL,
        Some(text) => match text.to_str() {
            Some("") => USUAL,
            Some(text) => text,
            None => return Err(wrong(&text.to_string_lossy(), "is not UTF-8")),
        },
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let parts: Vec<&str> = parts.collect();
    for part in &parts {
        // A word alone is taken for a part of the program, and a level that is misspelt would show nothing.
        let is_name = part.contains("::") || part.contains('[') || part.starts_with("tidegate");
        if !part.contains('=') && !is_name && part.parse::<LevelFilter>().is_err() {
            return Err(wrong(part, "is not a level"));
        }
    }
    EnvFilter::try_new(parts.join(","))
        .map_err(|error| wrong(text, &format!("is not a filter ({error})")))
}

/// Writes an event as a line.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        if IS_JSON.load(Ordering::Relaxed) {
            let mut object = Object(Map::new());
            for (name, text) in
                [("timestamp", &*time), ("level", level.as_str()), ("target", target)]
            {
                object.0.insert(name.to_owned(), text.into());
            }
            event.record(&mut object);
            around(context, |name, value| {
                object.0.entry(name).or_insert_with(|| value.into());
            });
            return writeln!(writer, "{}", escape::json(&Value::Object(object.0).to_string()));
        }
        let mut text = Text::default();
        event.record(&mut text);
        around(context, |name, value| {
            if !text.fields.contains(&format!(" {name}=")) {
                text.put(name, value);
            }
        });
        let (message, fields) = (escape::text(&text.message), escape::text(&text.fields));
        if writer.has_ansi_escapes() {
            let colour = match level {
                Level::ERROR => 31,
                Level::WARN => 33,
                Level::INFO => 32,
                Level::DEBUG => 34,
                Level::TRACE => 35,
            };
            writeln!(
                writer,
                "\u{1b}[2m{time}\u{1b}[0m \u{1b}[{colour}m{level:>5}\u{1b}[0m \u{1b}[2m{target}:\u{1b}[0m {message}{fields}"
            )
        } else {
            writeln!(writer, "{time} {level:>5} {target}: {message}{fields}")
        }
    }
}

/// Gives the field of each of our spans around an event, innermost last: which of several cameras it is about. Our spans have one each.
fn around<S, N>(context: &FmtContext<'_, S, N>, mut put: impl FnMut(&str, &str))
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
        // Those of libraries say nothing to an operator.
        if !span.metadata().target().starts_with("tidegate") {
            continue;
        }
        if let Some(fields) = span.extensions().get::<FormattedFields<N>>()
            && let Some((name, value)) = fields.fields.split_once('=')
        {
            put(name, value);
        }
    }
}

/// Fields as text, each with a space before it.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn put(&mut self, name: &str, value: &str) {
        // A text takes it all.
        let _ = match value.is_empty() || value.contains(is_of_fields) && !is_quoted(value) {
            true => write!(self.fields, " {name}={value:?}"),
            false => write!(self.fields, " {name}={value}"),
        };
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => _ = write!(self.message, "{value:?}"),
            name => self.put(name, &format!("{value:?}")),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field.name(), &tidegate_message::error_chain(value));
    }
}

/// Whether a letter means something between fields, so that a value with it would end early or be taken for others.
fn is_of_fields(letter: char) -> bool {
    letter.is_whitespace() || letter == '"' || letter == '='
}

/// Whether a value is between quotes already, from the first letter to the last, as texts are written for programmers.
fn is_quoted(value: &str) -> bool {
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.is_some_and(|inner| {
        let mut is_escaped = false;
        let is_inside = inner.chars().all(|letter| {
            let ends = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            !ends
        });
        is_inside && !is_escaped
    })
}

/// Fields as members.
struct Object(Map<String, Value>);

impl Object {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Object {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, tidegate_message::error_chain(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of others: client identifiers, user names, reasons.
    #[test]
    fn no_value_is_taken_for_other_fields() {
        for (value, expected) in [
            ("dev-1", " client=dev-1"),
            ("192.0.2.7", " client=192.0.2.7"),
            ("a\\b", r" client=a\b"),
            ("", r#" client="""#),
            ("x user=admin", r#" client="x user=admin""#),
            ("x\tlistener", r#" client="x\tlistener""#),
            ("user=admin", r#" client="user=admin""#),
            (r#"x" user="admin"#, r#" client="x\" user=\"admin""#),
            (r#""x" user="admin""#, r#" client="\"x\" user=\"admin\"""#),
            (r#""x\\" user=admin ""#, r#" client="\"x\\\\\" user=admin \"""#),
            (r#""x\""#, r#" client="\"x\\\"""#),
            ("\"", r#" client="\"""#),
            // It is a value of its own all the same.
            (r#""x y""#, r#" client="x y""#),
        ] {
            let mut text = Text::default();
            text.put("client", value);
            assert_eq!(text.fields, expected, "{value}");
        }
    }

    #[test]
    fn a_wrong_filter_is_an_error_that_names_it() {
        for good in [
            "",
            "info",
            "WARN",
            "off",
            "debug,tidegate=trace",
            "tidegate_server=debug",
            "rustls=debug",
            "tidegate",
            "tidegate_broker",
            " info , rustls=warn ",
        ] {
            assert!(filter(Some(OsStr::new(good))).is_ok(), "{good}");
        }
        assert!(filter(None).is_ok());
        for (bad, part) in [
            ("inof", "inof"),
            ("info,dbug", "dbug"),
            ("tidegate=inof", "tidegate=inof"),
            ("rustls", "rustls"),
            ("info;debug", "info;debug"),
        ] {
            let error = filter(Some(OsStr::new(bad))).unwrap_err();
            assert_eq!(error.part, part);
            assert!(error.to_string().contains("choose error, warn"), "{error}");
        }
    }
}
