//! `tidegate flow check`, `run` and `train`: flows and models without a node.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read as _, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgGroup, Args, Subcommand};
use tidegate_api::ApiError;
use tidegate_cli::program::{Output as OutputForm, plain, print, unprinted};
use tidegate_flow::{
    EmittedPayload, Flow, Message, Output, Reason, Stats, Verdict,
    train::{self, EXAMPLES_BYTES_MAX, LinearTraining, TreeTraining},
};
use tidegate_flows::{Flows, file::FlowFile};
use tidegate_message::{Code, check_topic_name, quantity};
use tidegate_process::clock;
use tidegate_sys::files;

/// Longest line that is fed to a flow.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Most levels of a topic.
const LEVELS_MAX: usize = 256;

/// Arguments of `tidegate flow`.
#[derive(Args, Clone, Debug)]
pub struct FlowArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: FlowCommand,
}

/// Subcommands on flows.
#[derive(Subcommand, Clone, Debug)]
pub enum FlowCommand {
    /// Read and compile the flows of a file, and say what they are; exit status 2 where one could not run
    Check(CheckArgs),
    /// Feed messages, one a line, to the flows of a file, and print what becomes of each
    Run(RunArgs),
    /// Learn a model from examples in CSV with a line of names, and write it as JSON
    Train(TrainArgs),
}

/// Arguments of `tidegate flow check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// File of flows
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Folder of models, tables and sets [default: models next to the file]
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// How to print what they are, or what becomes of messages: an object a line
    #[arg(long, short, value_enum, default_value_t)]
    pub output: OutputForm,
}

/// Arguments of `tidegate flow run`.
#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new("topics").args(["topic", "topic_column"]).required(true)))]
pub struct RunArgs {
    /// The flows
    #[command(flatten)]
    pub flows: CheckArgs,
    /// File of messages, each line a payload; - for the standard input
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Topic of all messages
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// Each line begins with its topic and a comma; a topic with a comma stands in double quotes
    #[arg(long)]
    pub topic_column: bool,
    /// Lines are payloads in hexadecimal digits, for formats that are not text
    #[arg(long)]
    pub hex: bool,
    /// Time between two messages, for windows that go by when messages arrive
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = quantity::duration)]
    pub every: Duration,
    /// Print only published messages and bad ones
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `tidegate flow train`.
#[derive(Args, Clone, Debug)]
pub struct TrainArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: TrainCommand,
}

/// Kinds of models to learn.
#[derive(Subcommand, Clone, Debug)]
pub enum TrainCommand {
    /// A number from numbers, by least squares
    Regression {
        /// The examples.
        #[command(flatten)]
        examples: ExampleArgs,
        /// How much large coefficients are held back, 0 or more; above 0 where columns follow from one another
        #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
        ridge: f64,
    },
    /// A class from numbers, by questions
    Tree {
        /// The examples.
        #[command(flatten)]
        examples: ExampleArgs,
        /// Most questions on the way to a class, 1 to 32
        #[arg(long, value_name = "COUNT", default_value_t = TreeTraining::default().depth_max)]
        depth_max: u32,
        /// Fewest examples that a class is said for
        #[arg(long, value_name = "COUNT", default_value_t = TreeTraining::default().leaf_rows_min)]
        leaf_rows_min: usize,
    },
}

/// Examples, and where the model goes.
#[derive(Args, Clone, Debug)]
pub struct ExampleArgs {
    /// File of examples; - for the standard input
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// The column that is to be predicted
    #[arg(long, value_name = "COLUMN")]
    pub target: String,
    /// The columns that it is predicted from
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', required = true)]
    pub features: Vec<String>,
    /// File for the model [default: the standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Why a flow cannot be read or run, with the code.
pub fn run(args: &FlowArgs) -> Result<(), ApiError> {
    match &args.what {
        FlowCommand::Check(args) => print(&check(args)?),
        FlowCommand::Run(args) => {
            let input = open(&args.input)?;
            let mut out = io::BufWriter::new(io::stdout().lock());
            let summary = feed(args, input, &mut out)?;
            out.flush().map_err(unprinted)?;
            // For people: the result itself is on the standard output.
            let _ = io::stderr().lock().write_all(summary.as_bytes());
            Ok(())
        }
        FlowCommand::Train(args) => train(&args.what),
    }
}

fn invalid(text: impl Into<String>, cause: &(dyn std::error::Error + 'static)) -> ApiError {
    ApiError::new(Code::CONFIG_INVALID, text.into()).caused_by(tidegate_message::error_chain(cause))
}

/// A description of the flows of a file, one paragraph each.
fn check(args: &CheckArgs) -> Result<String, ApiError> {
    let flows = Flows::new(1, 0, 0);
    let text = || format!("{} cannot be run", args.file.display());
    let plan = flows.plan_file(&args.file, args.models.as_deref()).map_err(|error| {
        match std::error::Error::source(&error) {
            Some(cause) => ApiError::new(Code::CONFIG_INVALID, text())
                .caused_by(tidegate_message::error_chain(cause)),
            None => invalid(text(), &error),
        }
    })?;
    let (mut said, mut objects) = (String::new(), Vec::new());
    for name in plan.names() {
        let Some(spec) = plan.spec(name) else { continue };
        let kernels: Vec<_> = spec.steps.iter().map(|step| step.kernel()).collect();
        if args.output == OutputForm::Json {
            objects.push(serde_json::json!({
                "flow": name,
                "topics": spec.topics,
                "fields": spec.parse.fields.iter().map(|field| &*field.name).collect::<Vec<_>>(),
                "steps": kernels,
                "state_bytes_max": plan.state_bytes(name).unwrap_or(0),
                "keys_max": spec.keys_max,
            }));
            continue;
        }
        said.push_str(&format!(
            "flow {name}\n  topics  {}\n  fields  {}\n  steps   {}\n  state   at most {} bytes, of {} keys\n",
            spec.topics.join(", "),
            spec.parse.fields.iter().map(|field| &*field.name).collect::<Vec<_>>().join(", "),
            if kernels.is_empty() { "none".to_owned() } else { kernels.join(", ") },
            plan.state_bytes(name).unwrap_or(0),
            spec.keys_max,
        ));
    }
    Ok(match args.output {
        OutputForm::Table => plain_lines(&said),
        OutputForm::Json => format!("{:#}\n", serde_json::Value::Array(objects)),
    })
}

fn plain_lines(text: &str) -> String {
    text.lines().map(|line| plain(line) + "\n").collect()
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, ApiError> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    match fs::File::open(path) {
        Ok(file) => Ok(Box::new(BufReader::new(file))),
        Err(error) => Err(unread(path, error)),
    }
}

fn unread(path: &Path, error: io::Error) -> ApiError {
    let text = format!("{} cannot be read", path.display());
    ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
}

/// How often windows of time are looked at, by the time that messages make.
const TICK: Duration = Duration::from_secs(1);
/// Behind the last message so much time goes by: longer than windows last.
const END: Duration = Duration::from_secs(366 * 86_400);

/// Feeds each line of `input` to the flows that want its topic; returns the counts, for people.
fn feed(args: &RunArgs, mut input: impl BufRead, out: &mut impl Write) -> Result<String, ApiError> {
    if let Some(topic) = &args.topic {
        check_topic_name(topic, LEVELS_MAX)
            .map_err(|error| invalid(format!("{topic:?} is not a topic"), &error))?;
    }
    let text = || format!("{} cannot be run", args.flows.file.display());
    let file = FlowFile::read(&args.flows.file, args.flows.models.as_deref())
        .map_err(|error| invalid(text(), &error))?;
    let flows = file.flows.iter().map(|(spec, models)| Flow::compile(spec, models));
    let mut flows =
        flows.collect::<Result<Vec<_>, _>>().map_err(|error| invalid(text(), &error))?;
    let mut output = Output::new();
    let (mut line, mut number, mut unwanted) = (Vec::new(), 0_u64, 0_u64);
    let mut now = clock::now();
    let mut ticks_at = now + TICK;
    while read_line(&mut input, &args.input, number + 1, &mut line)? {
        number += 1;
        let wrong = |what: &str| {
            let text = format!("{}:{number}: {what}", args.input.display());
            ApiError::new(Code::CONFIG_INVALID, text)
        };
        let (topic, payload) = match &args.topic {
            Some(topic) => (topic.clone(), &line[..]),
            None => topic_column(&line).ok_or_else(|| wrong("no topic stands before a comma"))?,
        };
        if args.topic_column && check_topic_name(&topic, LEVELS_MAX).is_err() {
            return Err(wrong(&format!(
                "{topic:?} is not a topic; it has 1 to 65535 bytes, no + and no #"
            )));
        }
        let bytes;
        let payload = if args.hex {
            bytes = hex(payload).ok_or_else(|| wrong("no pairs of hexadecimal digits"))?;
            &bytes[..]
        } else {
            payload
        };
        let mut is_wanted = false;
        for flow in flows.iter_mut().filter(|flow| flow.matches(&topic)) {
            is_wanted = true;
            flow.run(now, &[Message { topic: &topic, payload }], &mut output);
            let lines = lines(flow, number, &topic, payload, &output, args);
            out.write_all(lines.as_bytes()).map_err(unprinted)?;
        }
        unwanted += u64::from(!is_wanted);
        now = now + args.every;
        if now >= ticks_at {
            ticks_at = now + TICK;
            for flow in flows.iter_mut().filter(|flow| flow.ticks()) {
                flow.tick(now, u32::MAX, &mut output);
                out.write_all(emissions(flow, b"", &output, args).as_bytes()).map_err(unprinted)?;
            }
        }
    }
    let before: Vec<Stats> = flows.iter().map(Flow::stats).collect();
    // The content of windows that time has not ended is printed as well; keys that expire by that are not counted.
    for flow in flows.iter_mut().filter(|flow| flow.ticks()) {
        flow.tick(now + END, u32::MAX, &mut output);
        out.write_all(emissions(flow, b"", &output, args).as_bytes()).map_err(unprinted)?;
    }
    let mut summary = format!("{number} messages\n");
    if unwanted > 0 {
        summary.push_str(&format!("{unwanted} of them are on topics that no flow wants\n"));
    }
    for (flow, before) in flows.iter().zip(before) {
        let emitted = flow.stats().emitted;
        summary.push_str(&counted(flow.name(), &Stats { emitted, ..before }));
    }
    Ok(summary)
}

/// The next line, without its end; false at the end of the input.
fn read_line(
    input: &mut impl BufRead,
    path: &Path,
    number: u64,
    line: &mut Vec<u8>,
) -> Result<bool, ApiError> {
    line.clear();
    let mut part = input.take(LINE_BYTES_MAX + 1);
    let count = part.read_until(b'\n', line).map_err(|error| unread(path, error))?;
    if count as u64 > LINE_BYTES_MAX {
        let text =
            format!("{}:{number}: a line has at most {LINE_BYTES_MAX} bytes", path.display());
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    for end in [b'\n', b'\r'] {
        if line.last() == Some(&end) {
            line.pop();
        }
    }
    Ok(count > 0)
}

/// The text before the first comma, or between double quotes before one, and the rest.
fn topic_column(line: &[u8]) -> Option<(String, &[u8])> {
    let (topic, payload) = match line.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = quoted.windows(2).position(|pair| pair == b"\",")?;
            (&quoted[..end], &quoted[end + 2..])
        }
        None => {
            let end = line.iter().position(|byte| *byte == b',')?;
            (&line[..end], &line[end + 1..])
        }
    };
    Some((String::from_utf8(topic.to_vec()).ok()?, payload))
}

fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = digits.trim_ascii().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}

/// The result of one message in one flow.
fn lines(
    flow: &Flow,
    number: u64,
    topic: &str,
    payload: &[u8],
    output: &Output,
    args: &RunArgs,
) -> String {
    let name = flow.name();
    let is_json = args.flows.output == OutputForm::Json;
    let object = |what: &str, payload: &[u8]| object(name, what, topic, payload, args);
    let shown = |payload: &[u8]| shown(payload, args);
    let mut lines = String::new();
    for verdict in output.verdicts().filter(|_| !args.quiet) {
        let line = match verdict {
            Verdict::Pass if is_json => object("pass", payload),
            Verdict::Replace(payload) if is_json => object("replace", payload),
            Verdict::Drop if is_json => object("drop", payload),
            Verdict::Pass => format!("{name}: pass {topic} {}\n", shown(payload)),
            Verdict::Replace(payload) => format!("{name}: replace {topic} {}\n", shown(payload)),
            Verdict::Drop => format!("{name}: drop {topic} {}\n", shown(payload)),
        };
        lines.push_str(&line);
    }
    for (_, bad) in output.bad() {
        let field = bad.field.and_then(|field| flow.field_name(field));
        if is_json {
            let bad = serde_json::json!({
                "flow": name,
                "what": "bad",
                "line": number,
                "field": field,
                "reason": bad.reason.to_string(),
            });
            lines.push_str(&format!("{bad}\n"));
            continue;
        }
        let field = field.map(|field| format!("{field:?}: ")).unwrap_or_default();
        lines.push_str(&format!("{name}: bad line {number}: {field}{}\n", bad.reason));
    }
    lines + &emissions(flow, payload, output, args)
}

/// The output of a message, or of time, that is published.
fn emissions(flow: &Flow, payload: &[u8], output: &Output, args: &RunArgs) -> String {
    let name = flow.name();
    let mut lines = String::new();
    for emission in output.emissions() {
        let is_json = args.flows.output == OutputForm::Json;
        let line = match emission.payload {
            EmittedPayload::Made(payload) if is_json => {
                object(name, "emit", emission.topic, payload, args)
            }
            EmittedPayload::Original(_) if is_json => {
                object(name, "dead", emission.topic, payload, args)
            }
            EmittedPayload::Made(payload) => {
                format!("{name}: emit {} {}\n", plain(emission.topic), shown(payload, args))
            }
            EmittedPayload::Original(_) => {
                format!("{name}: dead {} {}\n", plain(emission.topic), shown(payload, args))
            }
        };
        lines.push_str(&line);
    }
    lines
}

/// A line of JSON; a payload that is no text is in hexadecimal digits, as all are where messages come in them.
fn object(flow: &str, what: &str, topic: &str, payload: &[u8], args: &RunArgs) -> String {
    let mut object = serde_json::json!({ "flow": flow, "what": what, "topic": topic });
    match std::str::from_utf8(payload) {
        Ok(text) if !args.hex => object["payload"] = text.into(),
        _ => {
            let digits: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
            object["payload_hex"] = digits.into();
        }
    }
    format!("{object}\n")
}

fn shown(payload: &[u8], args: &RunArgs) -> String {
    match args.hex {
        true => payload.iter().map(|byte| format!("{byte:02x}")).collect(),
        false => plain(&String::from_utf8_lossy(payload)),
    }
}

fn counted(name: &str, stats: &Stats) -> String {
    let mut text = format!(
        "flow {name}: {} messages, {} filtered, {} published, {} keys",
        stats.messages, stats.filtered, stats.emitted, stats.keys
    );
    for (count, what) in [
        (stats.mended, "mended"),
        (stats.unsent, "unsent"),
        (stats.late, "late"),
        (stats.unlearned, "unlearned"),
        (stats.evicted, "evicted"),
        (stats.expired, "expired"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    for (reason, count) in Reason::ALL.iter().zip(stats.bad).filter(|(_, count)| *count > 0) {
        text.push_str(&format!(", {count} bad ({})", reason.word()));
    }
    text.push('\n');
    text
}

fn train(what: &TrainCommand) -> Result<(), ApiError> {
    let (TrainCommand::Regression { examples, .. } | TrainCommand::Tree { examples, .. }) = what;
    let mut csv = String::new();
    open(&examples.input)?
        .take(EXAMPLES_BYTES_MAX as u64 + 1)
        .read_to_string(&mut csv)
        .map_err(|error| unread(&examples.input, error))?;
    let (json, said) = learn(what, &csv)?;
    match &examples.output {
        // A node may read it again at any moment.
        Some(path) => files::put(path, json.as_bytes(), files::READABLE).map_err(|error| {
            let text = format!("{} cannot be written", path.display());
            ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
        })?,
        None => print(&json)?,
    }
    // For people: the model is what was asked for.
    let _ = io::stderr().lock().write_all(said.as_bytes());
    Ok(())
}

/// The model as JSON, and how well it fits.
fn learn(what: &TrainCommand, csv: &str) -> Result<(String, String), ApiError> {
    let failed = |examples: &ExampleArgs, error: train::TrainError| {
        invalid(format!("nothing can be learned from {}", examples.input.display()), &error)
    };
    match what {
        TrainCommand::Regression { examples, ridge } => {
            let (target, features) = (examples.target.clone(), examples.features.clone());
            let fit = train::linear(csv, &LinearTraining { target, features, ridge: *ridge })
                .map_err(|error| failed(examples, error))?;
            let said = format!(
                "{} examples; R² {:.4}; error {:.6} (root mean square)\n",
                fit.rows, fit.r_squared, fit.error
            );
            Ok((fit.model.to_json(), said))
        }
        TrainCommand::Tree { examples, depth_max, leaf_rows_min } => {
            let training = TreeTraining {
                target: examples.target.clone(),
                features: examples.features.clone(),
                depth_max: *depth_max,
                leaf_rows_min: *leaf_rows_min,
            };
            let fit = train::tree(csv, &training).map_err(|error| failed(examples, error))?;
            let said = format!("{} examples; {:.4} of them right\n", fit.rows, fit.accuracy);
            Ok((fit.model.to_json(), said))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Flow(FlowArgs),
    }

    const FLOW: &str = r#"
[flow.t]
topics = ["t/#"]
forward = "kept"
bad = "dead-letter"
parse = { format = "csv", fields = ["id:text", "x"] }

[[flow.t.step]]
kernel = "range-filter"
field = "x"
max = 100

[[flow.t.step]]
kernel = "threshold"
field = "x"
above = 50

[[flow.t.step]]
kernel = "notify"
when = "x_over"
topic = "alarm/{level:1}"
payload = "{field:id} {field:x}"
"#;

    fn parsed(line: &str) -> FlowCommand {
        let program = Program::try_parse_from(line.split_whitespace()).expect("a command");
        let Command::Flow(args) = program.command;
        args.what
    }

    fn fed(line: &str, input: &str) -> Result<(String, String), ApiError> {
        fed_to(FLOW, line, input)
    }

    fn fed_to(flow: &str, line: &str, input: &str) -> Result<(String, String), ApiError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.toml");
        fs::write(&path, flow).expect("a file");
        let FlowCommand::Run(args) = parsed(&line.replace("FILE", &path.display().to_string()))
        else {
            panic!("{line}")
        };
        let mut out = Vec::new();
        let summary = feed(&args, input.as_bytes(), &mut out)?;
        Ok((String::from_utf8(out).expect("text"), summary))
    }

    #[test]
    fn the_result_for_each_message_is_printed() {
        let line = "tidegate flow run FILE --input - --topic t/1";
        let (out, summary) = fed(line, "a,10\na,60\r\na,x\na,200").expect("it runs");
        let expected = "\
t: pass t/1 a,10
t: pass t/1 a,60
t: emit alarm/1 a 60
t: drop t/1 a,x
t: bad line 3: \"x\": the field is not a decimal number
t: dead dead/t/t/1 a,x
t: drop t/1 a,200
";
        assert_eq!(out, expected);
        let expected = "4 messages\nflow t: 4 messages, 1 filtered, 2 published, 0 keys, 1 bad (not-a-number)\n";
        assert_eq!(summary, expected);
    }

    #[test]
    fn topics_may_stand_before_payloads() {
        let line = "tidegate flow run FILE --input - --topic-column --quiet";
        let (out, summary) = fed(line, "t/1,a,60\n\"t/x,y\",a,70\nu,a,60\n").expect("it runs");
        assert_eq!(out, "t: emit alarm/1 a 60\nt: emit alarm/x,y a 70\n");
        assert!(summary.starts_with("3 messages\n1 of them"), "{summary}");
        let line = "tidegate flow run FILE --input - --topic t/1 --hex --quiet";
        let (out, _) = fed(line, "612c3630\n").expect("it runs");
        assert_eq!(out, "t: emit alarm/1 612036 30\n".replace("612036 30", "61203630"));
    }

    #[test]
    fn windows_of_time_end_as_time_goes_by_and_with_the_input() {
        const WINDOWED: &str = r#"
[flow.w]
topics = ["w/#"]
parse = { format = "csv", fields = ["x"] }

[[flow.w.step]]
kernel = "count"
into = "n"
window = { tumbling = "1min" }

[[flow.w.step]]
kernel = "keep"
present = ["n"]

[[flow.w.step]]
kernel = "notify"
topic = "out/{topic}"
payload = "{field:n}"
"#;
        let line = "tidegate flow run FILE --input - --topic-column --quiet --every 20s";
        let input = "w/a,1\n".repeat(7) + &"w/b,1\n".repeat(12);
        let (out, summary) = fed_to(WINDOWED, line, &input).expect("it runs");
        let counts = |topic: &str| -> Vec<u32> {
            let start = format!("w: emit out/{topic} ");
            let lines = out.lines().filter_map(|line| line.strip_prefix(&*start));
            lines.map(|count| count.parse().expect("a number")).collect()
        };
        // Minutes begin anywhere: all that was counted has to be printed, most of it as time passes.
        for (topic, messages) in [("w/a", 7), ("w/b", 12)] {
            let counts = counts(topic);
            assert_eq!(counts.iter().sum::<u32>(), messages, "{topic}: {counts:?}");
            assert!(counts.len() >= messages as usize / 3, "{topic}: {counts:?}");
        }
        // The first device falls silent, and time ends its window while the second continues.
        let second = out.match_indices("w/b").nth(1).expect("it has several windows");
        assert!(out.rfind("w/a") < Some(second.0), "{out}");
        assert!(summary.contains("2 keys"), "{summary}");
    }

    #[test]
    fn each_example_notifies_of_its_readings_and_says_which_is_bad() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let book = include_str!("../../../docs/src/flows.md");
        for (name, readings, alarms, bad, is_buried) in [
            ("city", "city.csv", 2, "14: \"dust\": the field is not a decimal number", true),
            ("taxi", "taxi.csv", 1, "17: \"fare_amount\": the field is not a decimal number", true),
            (
                "grid",
                "grid.csv",
                1,
                "13: \"energyconsumed\": the field is not a decimal number",
                false,
            ),
            ("fit", "fit.csv", 2, "19: \"subjectId\": the field is missing", false),
            ("oil", "oil.hex", 2, "12: \"temperature\": the field is not a decimal number", false),
        ] {
            let line = "tidegate flow run FILE --input FILE --topic-column --quiet";
            let FlowCommand::Run(mut args) = parsed(line) else { panic!("{line}") };
            args.flows.file = examples.join("flows").join(name).with_extension("toml");
            args.input = examples.join("readings").join(readings);
            args.hex = name == "oil";
            let input = open(&args.input).expect("readings");
            let mut out = Vec::new();
            let summary = feed(&args, input, &mut out).expect("it runs");
            let out = String::from_utf8(out).expect("text");
            let count = |start: String| out.lines().filter(|line| line.starts_with(&start)).count();
            assert_eq!(count(format!("{name}: emit alarm/{name}/")), alarms, "{out}");
            assert_eq!(count(format!("{name}: bad line {bad}")), 1, "{out}");
            assert_eq!(count(format!("{name}: bad line ")), 1, "{out}");
            assert_eq!(
                count(format!("{name}: dead dead/{name}/")),
                usize::from(is_buried),
                "{out}"
            );
            assert!(!summary.contains("that no flow wants"), "{summary}");
            if name == "taxi" {
                assert!(book.contains(&format!("{out}{summary}")), "{out}{summary}");
            }
        }
    }

    #[test]
    fn input_that_is_none_is_named_with_its_line() {
        for (arguments, input, expected) in [
            ("--topic-column", "t/1,1\nno topic", "-:2: no topic stands before a comma"),
            ("--topic-column", "t/#,1", "-:1: \"t/#\" is not a topic"),
            ("--topic t/+", "", "\"t/+\" is not a topic"),
            ("--topic t --hex", "12\n1", "-:2: no pairs of hexadecimal digits"),
        ] {
            let line = format!("tidegate flow run FILE --input - {arguments}");
            let error = fed(&line, input).expect_err(expected);
            assert_eq!(error.code(), Code::CONFIG_INVALID);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_flow_is_described_or_refused_with_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.toml");
        let args = CheckArgs { file: path.clone(), models: None, output: OutputForm::default() };
        fs::write(&path, FLOW).expect("a file");
        let said = check(&args).expect("it could run");
        let expected = "flow t\n  topics  t/#\n  fields  id, x\n  steps   range-filter, threshold, notify\n  \
                        state   at most 0 bytes, of 65536 keys\n";
        assert_eq!(said, expected);
        fs::write(&path, FLOW.replace("x_over", "y_over")).expect("a file");
        let error = check(&args).expect_err("no such field");
        let chain = tidegate_message::error_chain(&error);
        assert!(
            chain.contains("flow \"t\", step 3 (notify): no field \"y_over\" is known here"),
            "{chain}"
        );
        fs::remove_file(&path).expect("it is there");
        let chain = tidegate_message::error_chain(&check(&args).expect_err("no file"));
        assert!(chain.contains("t.toml cannot be read"), "{chain}");
    }

    #[test]
    fn models_are_learned_or_refused() {
        let line = "tidegate flow train regression --input x.csv --target y --features a,b";
        let FlowCommand::Train(TrainArgs { what }) = parsed(line) else { panic!("{line}") };
        let csv = "a,b,y\n1,0,3\n2,1,6\n3,5,12\n0,0,1\n";
        let (json, said) = learn(&what, csv).expect("it is learned");
        let model = tidegate_flow::Model::parse(json.as_bytes()).expect("a model");
        assert_eq!(model.target(), "y");
        assert!(said.starts_with("4 examples; R² 1.0000;"), "{said}");
        let error = learn(&what, "a,y\n1,2\n").expect_err("a column is missing");
        assert!(
            tidegate_message::error_chain(&error).contains("no column is called \"b\""),
            "{error:?}"
        );
        let line =
            "tidegate flow train tree --input x.csv --target y --features a --leaf-rows-min 1";
        let FlowCommand::Train(TrainArgs { what }) = parsed(line) else { panic!("{line}") };
        let (json, said) = learn(&what, "a,y\n1,low\n2,low\n8,high\n9,high\n").expect("learned");
        assert!(
            json.contains("\"tree\"") && said == "4 examples; 1.0000 of them right\n",
            "{said}"
        );
    }
}
