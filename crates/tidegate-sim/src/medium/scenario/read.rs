//! Scenarios from TOML text.

use std::{
    collections::HashSet,
    io,
    net::Ipv4Addr,
    ops::Range,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use serde::Deserialize;
use tidegate_message::quantity::ByteCount;
use toml::Spanned;

use super::{
    Fade, Kind, MediumConfig, PortConfig, Scenario, Step, TraceConfig, WanConfig, WifiConfig,
};
use crate::medium::{
    change::{Change, factor_valid},
    trace::{Opportunities, Rates, Trace, TraceError},
    unit::{Probability, Rate, Text},
};

/// A value with its place in the text.
type Field<T> = Option<Spanned<T>>;
/// A quantity with its place in the text.
type Quantity<Q> = Field<Text<Q>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    medium: Vec<Spanned<RawMedium>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMedium {
    name: Spanned<String>,
    kind: Spanned<RawKind>,
    rate: Quantity<Rate>,
    delay: Quantity<Duration>,
    queue: Quantity<ByteCount>,
    loss: Quantity<Probability>,
    loss_burst: Field<f64>,
    jitter: Quantity<Duration>,
    bucket: Quantity<ByteCount>,
    error: Quantity<Probability>,
    aggregate: Field<usize>,
    txop: Quantity<Duration>,
    retries: Field<u8>,
    rts: Field<bool>,
    crowd: Field<Vec<f64>>,
    gateway: Field<String>,
    #[serde(rename = "loop")]
    period: Quantity<Duration>,
    #[serde(default)]
    step: Vec<Spanned<RawStep>>,
    fade: Field<RawFade>,
    trace: Field<RawTrace>,
    #[serde(default)]
    port: Vec<Spanned<RawPort>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RawKind {
    Wan,
    Wifi,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPort {
    node: Spanned<String>,
    address: Field<String>,
    rate: Quantity<Rate>,
    delay: Quantity<Duration>,
    loss: Quantity<Probability>,
    wired: Field<bool>,
    #[serde(default)]
    default_route: bool,
    #[serde(default)]
    routes: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    at: Text<Duration>,
    port: Field<String>,
    rate: Quantity<Rate>,
    delay: Quantity<Duration>,
    loss: Quantity<Probability>,
    error: Quantity<Probability>,
    factor: Field<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFade {
    levels: Spanned<Vec<f64>>,
    dwell: Spanned<Text<Duration>>,
    #[serde(default)]
    per_port: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTrace {
    file: Spanned<String>,
    format: Spanned<RawFormat>,
    port: Field<String>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RawFormat {
    Mahimahi,
    Rate,
}

/// Largest number of ports of one medium: their default addresses fit a /24.
const PORTS_MAX: usize = 250;

pub(super) fn scenario(text: &str, folder: &Path) -> Result<Scenario, ScenarioError> {
    let raw: RawScenario = toml::from_str(text).map_err(|error| {
        let at = error.span().unwrap_or(0..0);
        let key = key_before(text, at.start);
        ScenarioError::Toml { line: line_of(text, at.start), key, message: error.message().into() }
    })?;
    let mut names = HashSet::new();
    let mut media = Vec::new();
    for (index, medium) in raw.medium.into_iter().enumerate() {
        let reader = Reader { text, folder, index, kind: *medium.get_ref().kind.get_ref() };
        let name = medium.get_ref().name.clone();
        let config = reader.medium(medium)?;
        if !names.insert(config.name.clone()) {
            return Err(reader.invalid(&name, Fault::Duplicate { name: config.name }));
        }
        media.push(config);
    }
    if media.is_empty() {
        return Err(ScenarioError::NoMedium);
    }
    Ok(Scenario { seed: raw.seed, media })
}

/// Reads one medium.
struct Reader<'a> {
    text: &'a str,
    folder: &'a Path,
    index: usize,
    kind: RawKind,
}

impl Reader<'_> {
    fn medium(&self, raw: Spanned<RawMedium>) -> Result<MediumConfig, ScenarioError> {
        let whole = raw.span();
        let raw = raw.into_inner();
        self.device_name(&raw.name)?;
        let kind = match self.kind {
            RawKind::Wan => self.wan(&raw)?,
            RawKind::Wifi => self.wifi(&raw)?,
        };
        let Some(rate) = raw.rate.map(|rate| rate.into_inner().0).or_else(|| {
            // A delivery trace is the rate of every direction it governs.
            let governed = raw.trace.as_ref().is_some_and(|trace| trace.get_ref().port.is_none());
            governed.then_some(Rate(0))
        }) else {
            return Err(self.missing(whole, "rate"));
        };
        let queue_bytes = match &raw.queue {
            None => 256 << 10,
            Some(queue) if queue.get_ref().0.0 < 1500 => {
                return Err(self.invalid(queue, Fault::Range { range: "at least 1500B" }));
            }
            Some(queue) => queue.get_ref().0.0 as usize,
        };
        let ports = self.ports(raw.port, &whole)?;
        let node = |field: &Field<String>| -> Result<Option<usize>, ScenarioError> {
            let Some(field) = field else { return Ok(None) };
            let index = ports.iter().position(|port| port.node == *field.get_ref());
            let unknown = || Fault::Node { node: field.get_ref().clone() };
            index.map(Some).ok_or_else(|| self.invalid(field, unknown()))
        };
        let gateway = node(&raw.gateway)?;
        let name = raw.name.into_inner();
        let mut steps = Vec::new();
        for step in raw.step {
            let step = step.into_inner();
            node(&step.port)?;
            steps.push(self.step(&name, step)?);
        }
        steps.sort_by_key(|step| step.at);
        let last = steps.last().map_or(Duration::ZERO, |step| step.at);
        if let Some(period) = raw.period.as_ref().filter(|p| {
            let period = p.get_ref().0;
            period < last || period < Duration::from_millis(1)
        }) {
            let range = "at least the time of the last step, and 1ms";
            return Err(self.invalid(period, Fault::Range { range }));
        }
        let trace = match &raw.trace {
            None => None,
            Some(field) => Some(TraceConfig {
                port: node(&field.get_ref().port)?,
                trace: self.trace(field.get_ref())?,
            }),
        };
        Ok(MediumConfig {
            name,
            kind,
            rate,
            delay: raw.delay.map_or(Duration::ZERO, |delay| delay.into_inner().0),
            queue_bytes,
            ports,
            gateway,
            steps,
            steps_period: raw.period.map(|period| period.into_inner().0),
            fade: raw.fade.map(|fade| self.fade(fade.get_ref())).transpose()?,
            trace,
        })
    }

    fn wan(&self, raw: &RawMedium) -> Result<Kind, ScenarioError> {
        self.only(RawKind::Wifi, &raw.error)?;
        self.only(RawKind::Wifi, &raw.aggregate)?;
        self.only(RawKind::Wifi, &raw.txop)?;
        self.only(RawKind::Wifi, &raw.retries)?;
        self.only(RawKind::Wifi, &raw.rts)?;
        self.only(RawKind::Wifi, &raw.crowd)?;
        let range = "a number from 1 to 1000";
        let loss_burst = self.number(&raw.loss_burst, 1.0, range, |b| (1.0..=1e3).contains(&b))?;
        Ok(Kind::Wan(WanConfig {
            loss: value(&raw.loss).unwrap_or(Probability::NEVER),
            loss_burst,
            jitter: value(&raw.jitter).unwrap_or(Duration::ZERO),
            bucket_bytes: value(&raw.bucket).map_or(0, |bucket| bucket.0 as usize),
        }))
    }

    fn wifi(&self, raw: &RawMedium) -> Result<Kind, ScenarioError> {
        self.only(RawKind::Wan, &raw.loss)?;
        self.only(RawKind::Wan, &raw.loss_burst)?;
        self.only(RawKind::Wan, &raw.jitter)?;
        self.only(RawKind::Wan, &raw.bucket)?;
        let range = "1 to 256";
        let aggregate = self.number(&raw.aggregate, 32, range, |n| (1..=256).contains(&n))?;
        let crowd = raw.crowd.as_ref().map_or_else(|| vec![1.0], |c| c.get_ref().clone());
        if let Some(field) = &raw.crowd
            && (crowd.is_empty() || !crowd.iter().all(|&f| f > 0.0 && f <= 1.0))
        {
            return Err(self.invalid(field, Fault::Range { range: "numbers over 0 up to 1" }));
        }
        Ok(Kind::Wifi(WifiConfig {
            error: value(&raw.error).unwrap_or(Probability::NEVER),
            aggregate,
            txop: value(&raw.txop).unwrap_or(Duration::from_millis(4)),
            retries: self.number(&raw.retries, 7, "0 to 100", |n| n <= 100)?,
            rts: raw.rts.as_ref().is_none_or(|rts| *rts.get_ref()),
            crowd,
        }))
    }

    fn ports(
        &self,
        raw: Vec<Spanned<RawPort>>,
        whole: &Range<usize>,
    ) -> Result<Vec<PortConfig>, ScenarioError> {
        if raw.len() < 2 {
            return Err(self.missing(whole.clone(), "second port"));
        }
        let (mut nodes, mut addresses) = (HashSet::new(), HashSet::new());
        let mut ports = Vec::new();
        for (index, port) in raw.into_iter().enumerate() {
            if index == PORTS_MAX {
                let range = "one of at most 250 ports of a medium";
                return Err(self.invalid(&port, Fault::Range { range }));
            }
            let port = port.into_inner();
            self.device_name(&port.node)?;
            self.only(RawKind::Wan, &port.delay)?;
            self.only(RawKind::Wan, &port.loss)?;
            self.only(RawKind::Wifi, &port.wired)?;
            let address = match &port.address {
                Some(text) => self.address(text)?,
                None => (Ipv4Addr::new(10, 77, self.index as u8 + 1, index as u8 + 1), 24),
            };
            let node = port.node.get_ref().clone();
            if !nodes.insert(node.clone()) {
                return Err(self.invalid(&port.node, Fault::Duplicate { name: node }));
            }
            if !addresses.insert(address.0) {
                let at = port.address.as_ref().unwrap_or(&port.node);
                return Err(self.invalid(at, Fault::Duplicate { name: address.0.to_string() }));
            }
            let routes = port.routes.iter().map(|route| self.address(route));
            ports.push(PortConfig {
                node,
                address,
                rate: value(&port.rate),
                delay: value(&port.delay),
                loss: value(&port.loss),
                wired: port.wired.is_some_and(Spanned::into_inner),
                default_route: port.default_route,
                routes: routes.collect::<Result<_, _>>()?,
            });
        }
        Ok(ports)
    }

    fn step(&self, medium: &str, step: RawStep) -> Result<Step, ScenarioError> {
        self.only(RawKind::Wan, &step.loss)?;
        self.only(RawKind::Wifi, &step.error)?;
        if let Some(factor) = step.factor.as_ref().filter(|f| !factor_valid(*f.get_ref())) {
            return Err(self.invalid(factor, Fault::Range { range: "a number from 0 to 1000" }));
        }
        let change = Change {
            medium: medium.into(),
            port: step.port.map(Spanned::into_inner),
            rate: value(&step.rate),
            delay: value(&step.delay),
            loss: value(&step.loss),
            error: value(&step.error),
            factor: step.factor.map(Spanned::into_inner),
        };
        Ok(Step { at: step.at.0, change })
    }

    fn fade(&self, fade: &RawFade) -> Result<Fade, ScenarioError> {
        let levels = fade.levels.get_ref().clone();
        if levels.is_empty() || !levels.iter().all(|&level| factor_valid(level)) {
            let range = "one or more numbers from 0 to 1000";
            return Err(self.invalid(&fade.levels, Fault::Range { range }));
        }
        let dwell = fade.dwell.get_ref().0;
        if dwell < Duration::from_millis(1) {
            return Err(self.invalid(&fade.dwell, Fault::Range { range: "at least 1ms" }));
        }
        Ok(Fade { levels, dwell, per_port: fade.per_port })
    }

    fn trace(&self, raw: &RawTrace) -> Result<Trace, ScenarioError> {
        if self.kind == RawKind::Wifi && *raw.format.get_ref() == RawFormat::Mahimahi {
            let fault = Fault::Range { range: "\"rate\" on a medium of kind wifi" };
            return Err(self.invalid(&raw.format, fault));
        }
        let path = self.folder.join(raw.file.get_ref());
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ScenarioError::Read { path: path.clone(), source })?;
        match raw.format.get_ref() {
            RawFormat::Mahimahi => Opportunities::parse(&text).map(Trace::Opportunities),
            RawFormat::Rate => Rates::parse(&text).map(Trace::Rates),
        }
        .map_err(|source| ScenarioError::Trace { path, source })
    }

    fn address(&self, text: &Spanned<String>) -> Result<(Ipv4Addr, u8), ScenarioError> {
        let parsed = text.get_ref().split_once('/').and_then(|(address, prefix)| {
            let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
            Some((Ipv4Addr::from_str(address).ok()?, prefix))
        });
        let range = "an IPv4 address with its prefix length, as \"10.77.1.11/24\"";
        parsed.ok_or_else(|| self.invalid(text, Fault::Range { range }))
    }

    /// Names of media and nodes become device and namespace names, and words of `ctl`.
    fn device_name(&self, name: &Spanned<String>) -> Result<(), ScenarioError> {
        let text = name.get_ref();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let valid = (1..=15).contains(&text.len())
            && text.chars().all(allowed)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let range = "1 to 15 letters, digits, '.', '_' and '-', a letter or digit first";
        if valid { Ok(()) } else { Err(self.invalid(name, Fault::Range { range })) }
    }

    /// Refuses a key that only the other kind of medium has.
    fn only<T>(&self, kind: RawKind, field: &Field<T>) -> Result<(), ScenarioError> {
        match field {
            Some(field) if kind != self.kind => {
                let kind = if kind == RawKind::Wan { "wan" } else { "wifi" };
                Err(self.invalid(field, Fault::Kind { kind }))
            }
            _ => Ok(()),
        }
    }

    fn number<N: Copy>(
        &self,
        field: &Field<N>,
        default: N,
        range: &'static str,
        valid: impl Fn(N) -> bool,
    ) -> Result<N, ScenarioError> {
        match field {
            None => Ok(default),
            Some(number) if valid(*number.get_ref()) => Ok(*number.get_ref()),
            Some(number) => Err(self.invalid(number, Fault::Range { range })),
        }
    }

    fn invalid<T>(&self, field: &Spanned<T>, fault: Fault) -> ScenarioError {
        let at = field.span().start;
        let key = key_before(self.text, at).unwrap_or_default();
        ScenarioError::Invalid { line: line_of(self.text, at), key, fault }
    }

    fn missing(&self, whole: Range<usize>, key: &'static str) -> ScenarioError {
        let line = line_of(self.text, whole.start);
        ScenarioError::Invalid { line, key: key.into(), fault: Fault::Missing }
    }
}

fn value<Q: Copy>(field: &Quantity<Q>) -> Option<Q> {
    field.as_ref().map(|field| field.get_ref().0)
}

/// The line of a byte offset, from 1.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The key whose value begins at a byte offset; the word there if it is a key itself.
fn key_before(text: &str, at: usize) -> Option<String> {
    let (before, after) = text.split_at_checked(at)?;
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    // A value of an array of values belongs to the key of the array.
    let before = before.trim_end_matches(|c: char| c == '[' || c.is_whitespace());
    let key = match before.strip_suffix('=') {
        Some(before) => before.trim_end().rsplit(|c| !bare(c)).next().unwrap_or_default(),
        None => &after[..after.find(|c| !bare(c)).unwrap_or(after.len())],
    };
    (!key.is_empty()).then(|| key.to_owned())
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The text is no TOML, has an unknown key, or a value of the wrong form.
    #[error("line {line}{}: {message}", key.as_ref().map(|key| format!(", {key}")).unwrap_or_default())]
    Toml {
        /// The line, from 1.
        line: usize,
        /// The key, where it is known.
        key: Option<String>,
        /// The message of the TOML reader.
        message: String,
    },
    /// A value that does not fit the rest.
    #[error("line {line}, {key}: {fault}")]
    Invalid {
        /// The line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The fault.
        fault: Fault,
    },
    /// Nothing in it.
    #[error("the scenario has no [[medium]]")]
    NoMedium,
    /// A file that cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A trace that cannot be used.
    #[error("trace {path}", path = path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TraceError,
    },
}

/// Faults of one value of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is needed and not there.
    #[error("missing from this [[medium]]")]
    Missing,
    /// Out of its range.
    #[error("must be {range}")]
    Range {
        /// The range.
        range: &'static str,
    },
    /// A key of the other kind of medium.
    #[error("only a medium of kind {kind} has it")]
    Kind {
        /// The kind that has it.
        kind: &'static str,
    },
    /// A node that has no port here.
    #[error("node {node:?} has no port on this medium")]
    Node {
        /// The node.
        node: String,
    },
    /// A name or address used twice.
    #[error("{name} is used twice")]
    Duplicate {
        /// The name.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: &str = "port = [ { node = \"a\" }, { node = \"b\" } ]\n";

    fn wan(more: &str) -> String {
        format!("[[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"20Mbit\"\n{more}{PORTS}")
    }

    fn wifi(more: &str) -> String {
        wan(more).replace("\"wan\"", "\"wifi\"")
    }

    #[test]
    fn a_small_scenario_has_the_defaults() {
        let scenario = Scenario::parse(&wan("delay = \"5ms\"\n"), Path::new("")).unwrap();
        let medium = &scenario.media[0];
        assert_eq!((medium.rate, medium.delay), (Rate::mbit(20), Duration::from_millis(5)));
        assert_eq!(medium.queue_bytes, 256 << 10);
        assert_eq!(medium.ports[1].address, (Ipv4Addr::new(10, 77, 1, 2), 24));
        assert_eq!(scenario.nodes(), ["a", "b"]);
        let (from, to) = scenario.path("b", "a").unwrap();
        assert_eq!((from.0, to.0), (1, 0));
        assert_eq!(scenario.path("a", "c"), None);
    }

    #[test]
    fn a_key_with_a_letter_that_is_none_is_named_from_there_on() {
        let text = "[[medium]]\n\u{d9}G = [ = -[0\n";
        let error = scenario(text, Path::new(".")).unwrap_err();
        assert!(error.to_string().starts_with("line 2"), "{error}");
    }

    #[test]
    fn errors_name_the_key_and_the_line() {
        for (text, expected) in [
            (String::new(), "the scenario has no [[medium]]"),
            (wan("speed = 3\n"), "line 5, speed: unknown field `speed`"),
            (wan("delay = \"5\"\n"), "line 5, delay: \"5\" is not a duration"),
            (wan("delay = 5\n"), "line 5, delay: invalid type: integer"),
            (wan("queue = \"1B\"\n"), "line 5, queue: must be at least 1500B"),
            (wan("aggregate = 3\n"), "line 5, aggregate: only a medium of kind wifi has it"),
            (wifi("loss = \"1%\"\n"), "line 5, loss: only a medium of kind wan has it"),
            (wifi("crowd = [1, 0]\n"), "line 5, crowd: must be numbers over 0 up to 1"),
            (wan("gateway = \"x\"\n"), "line 5, gateway: node \"x\" has no port"),
            (wan("loss_burst = 0.5\n"), "line 5, loss_burst: must be a number from 1"),
            (wan("step = [\n { at = \"1s\",\n factor = -1.0 } ]\n"), "line 7, factor: must be"),
            (wan("step = [ { at = \"1x\" } ]\n"), "line 5, at: \"1x\" is not a duration"),
            (
                wan("loop = \"1s\"\nstep = [ { at = \"2s\", factor = 1.0 } ]\n"),
                "line 5, loop: must be at least the time of the last step",
            ),
            (wan("").replace("wan0", "a-name-that-is-long"), "line 2, name: must be 1 to 15"),
            (wan("").replace("\"b\"", "\"a\""), "line 5, node: a is used twice"),
            (wan("").replace("rate = \"20Mbit\"", ""), "line 1, rate: missing"),
            (wan("") + &wan(""), "line 7, name: wan0 is used twice"),
            (wan("trace = { file = \"/no/such\", format = \"rate\" }\n"), "cannot read /no/such"),
        ] {
            let error = Scenario::parse(&text, Path::new("")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}\n{error}\n{expected}");
        }
    }
}
