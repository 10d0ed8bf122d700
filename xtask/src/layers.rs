//! `cargo xtask layers`: which crate may use which, from cargo's own metadata.
//!
//! ```text
//!  nouns ◀── cores ◀── shells ◀── benches and tasks
//!              └──▶ rims ◀──┘
//! ```
//!
//! The table below is the whole of the rule; ARCHITECTURE.md tells it to people and is checked against it.

use std::{collections::BTreeSet, fs, path::Path, process::ExitCode};

use anyhow::Context as _;

use crate::metadata::{Graph, Metadata, Purpose};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Noun,
    Core,
    Rim,
    Shell,
    /// Benches and tasks: they may use all, nothing may use them.
    Tool,
}

impl Layer {
    fn word(self) -> &'static str {
        match self {
            Self::Noun => "noun",
            Self::Core => "core",
            Self::Rim => "rim",
            Self::Shell => "shell",
            Self::Tool => "tool",
        }
    }

    /// Whether crates of this layer keep a list of all they may use.
    fn keeps_a_list(self) -> bool {
        matches!(self, Self::Noun | Self::Core | Self::Rim)
    }
}

struct Rule {
    name: &'static str,
    layer: Layer,
    /// Crates of other people that it may use, where its layer keeps a list.
    others: &'static [&'static str],
    /// Crates of ours beyond what its layer may use anyway.
    ours: &'static [&'static str],
}

const fn rule(
    name: &'static str,
    layer: Layer,
    others: &'static [&'static str],
    ours: &'static [&'static str],
) -> Rule {
    Rule { name, layer, others, ours }
}

/// Every crate of the workspace. A core may use `bytes`, `thiserror`, `tracing` and the one library that is its subject.
const RULES: &[Rule] = &[
    // Proofs are cleared from memory.
    rule("tidegate-message", Layer::Noun, &["bytes", "thiserror", "zeroize"], &[]),
    // Its messages are generated, and nothing of what carries them.
    rule(
        "tidegate-api",
        Layer::Noun,
        // Events and boxes have one JSON, for WebSockets, answers and `--output json`.
        &["bytes", "prost", "serde", "serde_json", "thiserror", "tonic-prost-build"],
        &["tidegate-message"],
    ),
    // The opening of a WebSocket and its masks are made of digests and base64.
    rule(
        "tidegate-wire",
        Layer::Core,
        &["base64", "bytes", "sha1", "sha2", "thiserror", "tracing"],
        &[],
    ),
    rule(
        "tidegate-log",
        Layer::Core,
        // Sealed segments: an AEAD, keys from passphrases, and memory that is cleared.
        &["argon2", "bytes", "crc32c", "ring", "thiserror", "tracing", "zeroize"],
        &["tidegate-sys"],
    ),
    // Digests and signatures, randomness for salts, and the two formats that rules and keys are written in.
    rule(
        "tidegate-auth",
        Layer::Core,
        &[
            "argon2",
            "base64",
            "getrandom",
            "hmac",
            "ring",
            "serde_json",
            "sha2",
            "subtle",
            "thiserror",
            "toml",
            "zeroize",
        ],
        &[],
    ),
    // Descriptions and models are read by serde; snapshots have a checksum; state by key lies in large pages and is prefetched.
    rule(
        "tidegate-flow",
        Layer::Core,
        &["crc32c", "serde", "serde_json", "thiserror"],
        &["tidegate-sys"],
    ),
    // The records by which members know of each other are those of the node link; a filter covers others as an index of topics says.
    rule(
        "tidegate-fabric",
        Layer::Core,
        &["bytes", "thiserror"],
        &["tidegate-topics", "tidegate-wire"],
    ),
    // A pure function: even its logarithm is its own.
    rule("tidegate-place", Layer::Core, &["thiserror"], &[]),
    rule("tidegate-frame", Layer::Core, &["bytes", "thiserror", "tracing"], &["tidegate-jpeg"]),
    // Its lines are those of the line protocol; JSON is read by serde, and has the bytes of CBOR in base64.
    rule(
        "tidegate-device",
        Layer::Core,
        &["base64", "memchr", "serde", "serde_json", "thiserror"],
        &["tidegate-wire"],
    ),
    rule("tidegate-xdp", Layer::Core, &["thiserror"], &[]),
    rule("tidegate-compress", Layer::Core, &["crc32c", "thiserror", "zstd"], &[]),
    // Each is a part of the broker that knows nothing of sessions, routes and queues.
    rule("tidegate-topics", Layer::Core, &[], &[]),
    rule("tidegate-schedule", Layer::Core, &["thiserror"], &[]),
    rule("tidegate-journal", Layer::Core, &["bytes", "thiserror"], &["tidegate-wire"]),
    // The packets of MQTT are the broker's nouns.
    rule(
        "tidegate-broker",
        Layer::Core,
        &["bytes", "thiserror", "tracing"],
        &["tidegate-journal", "tidegate-schedule", "tidegate-topics", "tidegate-wire"],
    ),
    // Its batches are the sensor codec's, its records those of the node link; filters of another node are matched by the broker's index.
    rule(
        "tidegate-uplink",
        Layer::Core,
        &["bytes", "thiserror"],
        &["tidegate-compress", "tidegate-topics", "tidegate-wire"],
    ),
    rule("tidegate-sys", Layer::Rim, &["bytes", "io-uring", "libc", "memmap2", "thiserror"], &[]),
    rule("tidegate-jpeg", Layer::Rim, &["cc", "thiserror", "turbojpeg-sys"], &[]),
    // The ports by which services read frames and look at images, and cameras in memory.
    rule("tidegate-ports", Layer::Shell, &[], &[]),
    // A service may read another node's frames by it.
    rule("tidegate-client", Layer::Shell, &[], &["tidegate-ports"]),
    // Images travel by the calls of the API as well; `--cafile` trusts the servers that a node would.
    rule("tidegate-load", Layer::Shell, &[], &["tidegate-client", "tidegate-identity"]),
    rule("tidegate-sim", Layer::Shell, &[], &[]),
    rule("tidegate-netlab", Layer::Shell, &[], &["tidegate-sim"]),
    rule("tidegate-process", Layer::Shell, &[], &[]),
    rule("tidegate-identity", Layer::Shell, &[], &["tidegate-process"]),
    rule("tidegate-link", Layer::Shell, &[], &["tidegate-identity", "tidegate-process"]),
    // Its schedule is a core in a module of its own, which nothing else uses; the processes around it are all the rest.
    rule("tidegate-workers", Layer::Shell, &[], &["tidegate-ports"]),
    // The program at the other end of the protocol; its tests run the worker in Python beside it.
    rule("tidegate-onnx", Layer::Shell, &[], &[]),
    rule(
        "tidegate-camera",
        Layer::Shell,
        &[],
        &[
            "tidegate-identity",
            "tidegate-link",
            "tidegate-ports",
            "tidegate-process",
            "tidegate-workers",
        ],
    ),
    // The port by which services reach the broker; its twin in memory drives the broker itself.
    rule("tidegate-bus", Layer::Shell, &[], &["tidegate-process"]),
    rule(
        "tidegate-server",
        Layer::Shell,
        &[],
        &["tidegate-bus", "tidegate-identity", "tidegate-process"],
    ),
    rule("tidegate-flows", Layer::Shell, &[], &["tidegate-process"]),
    rule("tidegate-sinks", Layer::Shell, &[], &["tidegate-bus", "tidegate-process"]),
    rule("tidegate-timers", Layer::Shell, &[], &["tidegate-bus"]),
    rule(
        "tidegate-rpc",
        Layer::Shell,
        &[],
        &["tidegate-bus", "tidegate-identity", "tidegate-ports", "tidegate-process"],
    ),
    // It asks other members by their API, and answers by the trait of this node's.
    rule(
        "tidegate-relay",
        Layer::Shell,
        &[],
        &[
            "tidegate-client",
            "tidegate-identity",
            "tidegate-ports",
            "tidegate-process",
            "tidegate-rpc",
        ],
    ),
    rule(
        "tidegate-ingest",
        Layer::Shell,
        &[],
        &["tidegate-bus", "tidegate-identity", "tidegate-process"],
    ),
    // The tasks around the members of a fabric.
    rule(
        "tidegate-nodes",
        Layer::Shell,
        &[],
        &["tidegate-bus", "tidegate-identity", "tidegate-link", "tidegate-process", "tidegate-rpc"],
    ),
    rule(
        "tidegate-uplinks",
        Layer::Shell,
        &[],
        &["tidegate-bus", "tidegate-identity", "tidegate-link", "tidegate-process"],
    ),
    // A node serves the calls of the API (`tidegate-rpc` has their trait), and hosts cameras whose frames applications publish.
    rule(
        "tidegate-streams",
        Layer::Shell,
        &[],
        &[
            "tidegate-camera",
            "tidegate-identity",
            "tidegate-link",
            "tidegate-ports",
            "tidegate-process",
            "tidegate-rpc",
        ],
    ),
    // Its paths are served by the API, whose errors of bodies they meet, and on listeners of its own by the same rules.
    rule(
        "tidegate-vision",
        Layer::Shell,
        &[],
        &[
            "tidegate-identity",
            "tidegate-ports",
            "tidegate-process",
            "tidegate-rpc",
            "tidegate-workers",
        ],
    ),
    // Pictures are those of the API, whose trait is there, and detections come by the bus.
    rule(
        "tidegate-web",
        Layer::Shell,
        &[],
        &["tidegate-bus", "tidegate-identity", "tidegate-ports", "tidegate-rpc"],
    ),
    rule(
        "tidegate-detect",
        Layer::Shell,
        &[],
        &["tidegate-bus", "tidegate-ports", "tidegate-workers"],
    ),
    rule("tidegate-config", Layer::Shell, &[], &[]),
    // Passwords in the addresses of cameras are hidden among the arguments of a process, so its first step knows them.
    rule(
        "tidegate-cli",
        Layer::Shell,
        &[],
        &[
            "tidegate-camera",
            "tidegate-client",
            "tidegate-config",
            "tidegate-identity",
            "tidegate-process",
        ],
    ),
    rule("tidegate-import", Layer::Shell, &[], &["tidegate-config", "tidegate-server"]),
    rule(
        "tidegate-doctor",
        Layer::Shell,
        &[],
        &["tidegate-camera", "tidegate-config", "tidegate-identity", "tidegate-process"],
    ),
    // `pub`, `sub` and `replay` are clients of MQTT, and those are in the load generator's crate.
    rule(
        "tidegate-commands",
        Layer::Shell,
        &[],
        &[
            "tidegate-cli",
            "tidegate-flows",
            "tidegate-identity",
            "tidegate-load",
            "tidegate-process",
        ],
    ),
    rule(
        "tidegate",
        Layer::Shell,
        &[],
        &[
            "tidegate-bus",
            "tidegate-camera",
            "tidegate-cli",
            "tidegate-client",
            "tidegate-commands",
            "tidegate-config",
            "tidegate-detect",
            "tidegate-doctor",
            "tidegate-flows",
            "tidegate-identity",
            "tidegate-import",
            "tidegate-ingest",
            "tidegate-link",
            "tidegate-load",
            "tidegate-nodes",
            "tidegate-onnx",
            "tidegate-ports",
            "tidegate-process",
            "tidegate-relay",
            "tidegate-rpc",
            "tidegate-server",
            "tidegate-sinks",
            "tidegate-streams",
            "tidegate-timers",
            "tidegate-uplinks",
            "tidegate-vision",
            "tidegate-web",
            "tidegate-workers",
        ],
    ),
    rule(
        "tidegate-lab",
        Layer::Shell,
        &[],
        &[
            "tidegate",
            "tidegate-camera",
            "tidegate-cli",
            "tidegate-client",
            "tidegate-identity",
            "tidegate-load",
            "tidegate-netlab",
            "tidegate-process",
            "tidegate-sim",
        ],
    ),
    rule("bench-comprex", Layer::Tool, &[], &[]),
    rule("bench-harness", Layer::Tool, &[], &[]),
    rule("bench-durability", Layer::Tool, &[], &["bench-harness"]),
    rule("bench-fabric", Layer::Tool, &[], &["bench-durability", "bench-harness", "bench-mqtt"]),
    rule("bench-frames", Layer::Tool, &[], &["bench-harness"]),
    rule("bench-mqtt", Layer::Tool, &[], &["bench-harness"]),
    rule("bench-sensors", Layer::Tool, &[], &["bench-comprex", "bench-harness"]),
    rule("bench-vision", Layer::Tool, &[], &["bench-harness"]),
    rule("tidegate-fuzz", Layer::Tool, &[], &["bench-comprex"]),
    rule("xtask", Layer::Tool, &[], &[]),
];

/// Crates that run for as long as a node does. None uses another one, but for [`BETWEEN_SERVICES`]; they meet in `tidegate`, which makes
/// them of the configuration. `tidegate-bus`, `tidegate-ports` and `tidegate-rpc` are none: services stand on them, on the ports and on the trait of the API; and none stands on
/// `tidegate-server`, which implements the first.
const SERVICES: &[&str] = &[
    "tidegate-camera",
    "tidegate-detect",
    "tidegate-flows",
    "tidegate-ingest",
    "tidegate-relay",
    "tidegate-sinks",
    "tidegate-streams",
    "tidegate-timers",
    "tidegate-uplinks",
    "tidegate-vision",
    "tidegate-web",
];

/// Services that use one another, and why.
const BETWEEN_SERVICES: &[(&str, &str, &str)] = &[(
    "tidegate-streams",
    "tidegate-camera",
    "a camera that an application publishes lives in the node",
)];

/// Crates of ours that the configuration may use: nouns, and what knows the words of the system. So it can be read and checked, and its
/// defaults printed, without a service.
const CONFIG: &str = "tidegate-config";
const CONFIG_MAY_USE: &[&str] = &["tidegate-api", "tidegate-message", "tidegate-sys"];

/// Heavy dependencies of the program and the crates that they are for, so that a change elsewhere does not build against them.
const HEAVY: &[(&str, &[&str])] = &[
    ("axum", &["tidegate-process", "tidegate-rpc", "tidegate-vision", "tidegate-web"]),
    ("mio", &["tidegate-server"]),
    ("object_store", &["tidegate-sinks"]),
    ("ort", &["tidegate-onnx"]),
    ("parquet", &["tidegate-lab", "tidegate-sinks"]), // the lab reads what a sink has written
    ("quinn", &["tidegate-link"]),
    ("rcgen", &["tidegate-identity"]),
    ("rskafka", &["tidegate-sinks"]),
    ("rustls-webpki", &["tidegate-identity"]),
    ("tokio-postgres", &["tidegate-sinks"]),
    ("tonic", &["tidegate-client", "tidegate-rpc"]),
    ("tonic-reflection", &["tidegate-rpc"]),
    ("tracing-subscriber", &["tidegate-cli"]),
];

/// Crates that bring threads, timers or sockets of their own: none may stand below the shells, at any depth.
const RUNTIMES: &[&str] =
    &["async-std", "futures-executor", "mio", "quinn", "smol", "tokio", "tonic"];

/// Names that the source of a noun or a core may not use: clocks, threads and the outside world. `now` is an argument
/// there.
const OUTSIDE: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "UNIX_EPOCH",
    "env::",
    "fs::",
    "net::Tcp",
    "net::Udp",
    "process::",
    "thread::sleep",
    "thread::spawn",
];

/// Where a core may name the outside world after all. Tables are files that people keep: they are read and written whole, by
/// callers that ask for it, and never from a state machine.
const OUTSIDE_ALLOWED: &[(&str, &str)] = &[("crates/tidegate-frame/src/table.rs", "fs::")];

/// Checks the workspace that the working directory is in.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let metadata = Metadata::read()?;
    let root = &metadata.workspace_root;
    let graph = metadata.graph();
    let mut violations = directions(RULES, &graph);
    violations.extend(services(SERVICES, BETWEEN_SERVICES, &graph));
    violations.extend(nouns_alone(CONFIG, CONFIG_MAY_USE, &graph));
    violations.extend(heavy(HEAVY, RULES, &graph));
    for rule in RULES {
        let Some(package) = metadata
            .packages
            .iter()
            .find(|package| package.name == rule.name && package.source.is_none())
        else {
            continue; // `directions` has named it
        };
        let folder = package.manifest_path.parent().unwrap_or(root);
        violations.extend(lints(rule, &package.manifest_path)?);
        if matches!(rule.layer, Layer::Noun | Layer::Core) {
            violations.extend(outside(rule, &folder.join("src"), root)?);
        }
    }
    violations.extend(forbids_unsafe(&read(&root.join("Cargo.toml"))?)?);
    violations.extend(map(RULES, &read(&root.join("ARCHITECTURE.md"))?));
    violations.extend(crate::modules::violations(root)?);
    violations.extend(crate::lines::violations()?);
    Ok(crate::verdict("layers", "every crate and every module keeps its place", &violations))
}

fn directions(rules: &[Rule], graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for member in &graph.members {
        if !rules.iter().any(|rule| rule.name == member) {
            violations.push(format!(
                "{member} has no layer: give it a row in RULES of xtask/src/layers.rs and in ARCHITECTURE.md"
            ));
        }
    }
    for rule in rules {
        if !graph.members.contains(rule.name) {
            violations.push(format!(
                "{} is in RULES of xtask/src/layers.rs, but is not a crate of the workspace: remove its row",
                rule.name
            ));
            continue;
        }
        for (used, purpose) in graph.uses.get(rule.name).into_iter().flatten() {
            if *purpose != Purpose::Test {
                violations.extend(one_use(rules, rule, used));
            }
        }
        if rule.layer.keeps_a_list() {
            for runtime in RUNTIMES {
                if let Some(path) = path_to(graph, rule.name, runtime) {
                    violations.push(format!(
                        "{} is a {} and may not reach {runtime}, but does: {}",
                        rule.name,
                        rule.layer.word(),
                        path.join(" -> ")
                    ));
                }
            }
        }
    }
    violations
}

/// Services that use each other for no reason that is written down, and reasons that are no longer needed.
fn services(services: &[&str], between: &[(&str, &str, &str)], graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for user in services {
        for used in graph.used_by(user).filter(|used| services.contains(used)) {
            if !between.iter().any(|(one, other, _)| one == user && *other == used) {
                violations.push(format!(
                    "{user} and {used} are services, and no service uses another one: give it what it needs in `tidegate`, or say why not in BETWEEN_SERVICES of xtask/src/layers.rs"
                ));
            }
        }
    }
    for (user, used, _) in between {
        if !graph.used_by(user).any(|found| found == *used) {
            violations.push(format!(
                "{user} no longer uses {used}: remove its row from BETWEEN_SERVICES of xtask/src/layers.rs"
            ));
        }
    }
    violations
}

/// Crates of ours that the configuration uses and may not.
fn nouns_alone(config: &str, may_use: &[&str], graph: &Graph) -> Vec<String> {
    let ours = graph.used_by(config).filter(|used| graph.members.contains(*used));
    let wrong = ours.filter(|used| !may_use.contains(used));
    wrong
        .map(|used| {
            format!("{config} uses {used}, but the configuration uses only {}", may_use.join(", "))
        })
        .collect()
}

/// Heavy dependencies in crates that they are not for; tests and tools aside.
fn heavy(heavy: &[(&str, &[&str])], rules: &[Rule], graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, places) in heavy {
        for rule in rules.iter().filter(|rule| rule.layer != Layer::Tool) {
            let has_it = graph.used_by(rule.name).any(|used| used == *name);
            if has_it && !places.contains(&rule.name) {
                violations.push(format!(
                    "{} uses {name}, which takes long to build and is for {} alone; see HEAVY of xtask/src/layers.rs",
                    rule.name,
                    places.join(" and ")
                ));
            }
            if !has_it && places.contains(&rule.name) {
                violations.push(format!(
                    "{} no longer uses {name}: remove it from HEAVY of xtask/src/layers.rs",
                    rule.name
                ));
            }
        }
    }
    violations
}

/// The violation of `user` using `used` outside its tests.
fn one_use(rules: &[Rule], user: &Rule, used: &str) -> Option<String> {
    let Some(target) = rules.iter().find(|rule| rule.name == used) else {
        let listed = !user.layer.keeps_a_list() || user.others.contains(&used);
        return (!listed).then(|| {
            format!(
                "{} is a {} and may use {}; it uses {used}",
                user.name,
                user.layer.word(),
                user.others.join(", ")
            )
        });
    };
    let allowed = user.ours.contains(&used)
        || match user.layer {
            Layer::Noun | Layer::Rim => false,
            Layer::Core => target.layer == Layer::Noun,
            Layer::Shell => matches!(target.layer, Layer::Noun | Layer::Core | Layer::Rim),
            Layer::Tool => target.layer != Layer::Tool,
        };
    (!allowed).then(|| {
        format!(
            "{} is a {} and may not use {used}, a {}; only shells join cores, and no crate looks up",
            user.name,
            user.layer.word(),
            target.layer.word()
        )
    })
}

/// A shortest chain of uses from `from` to `to`, tests aside.
fn path_to(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut paths = std::collections::VecDeque::from([vec![from.to_owned()]]);
    while let Some(path) = paths.pop_front() {
        let last = path.last().expect("a path holds at least its start");
        if last == to {
            return Some(path);
        }
        for (used, purpose) in graph.uses.get(last).into_iter().flatten() {
            // A build dependency of a crate does not run in it.
            if *purpose == Purpose::Normal && seen.insert(used.clone()) {
                let mut longer = path.clone();
                longer.push(used.clone());
                paths.push_back(longer);
            }
        }
    }
    None
}

/// A crate outside the rims takes the workspace's lints, and with them `unsafe_code = "forbid"`.
fn lints(rule: &Rule, manifest: &Path) -> anyhow::Result<Option<String>> {
    let parsed: toml::Table =
        read(manifest)?.parse().with_context(|| format!("parsing {}", manifest.display()))?;
    let inherits = parsed
        .get("lints")
        .and_then(|lints| lints.get("workspace"))
        .is_some_and(|workspace| workspace.as_bool() == Some(true));
    Ok((rule.layer != Layer::Rim && !inherits).then(|| {
        format!(
            "{} is not a rim and must take the workspace's lints: add `[lints] workspace = true`",
            rule.name
        )
    }))
}

fn forbids_unsafe(root_manifest: &str) -> anyhow::Result<Option<String>> {
    let parsed: toml::Table = root_manifest.parse().context("parsing the root Cargo.toml")?;
    let level = parsed
        .get("workspace")
        .and_then(|workspace| workspace.get("lints")?.get("rust")?.get("unsafe_code")?.as_str());
    Ok((level != Some("forbid")).then(|| {
        "the root Cargo.toml must say `unsafe_code = \"forbid\"` under [workspace.lints.rust]"
            .to_owned()
    }))
}

/// Places where a noun or a core names the outside world, its tests aside.
fn outside(rule: &Rule, sources: &Path, root: &Path) -> anyhow::Result<Vec<String>> {
    let mut violations = Vec::new();
    for path in crate::modules::rust_files(sources)? {
        if path.ends_with("tests.rs") {
            continue;
        }
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        for (line, word) in outside_words(&read(&path)?) {
            if OUTSIDE_ALLOWED.contains(&(&*shown, word)) {
                continue;
            }
            violations.push(format!(
                "{shown}:{line} names {word}, and {} is a {}: take `now` or the bytes as an argument",
                rule.name,
                rule.layer.word()
            ));
        }
    }
    Ok(violations)
}

/// Line numbers and words, up to the first test module, which stands last in a file; comments do not count.
fn outside_words(source: &str) -> Vec<(usize, &'static str)> {
    let code = source.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    code.enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .flat_map(|(index, line)| {
            let found = OUTSIDE.iter().filter(|word| names(line, word));
            found.map(move |word| (index + 1, *word))
        })
        .collect()
}

/// Whether `line` holds `word`, not as the end of a longer name.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

/// The table of crates in ARCHITECTURE.md names every crate but the tools, in its layer.
fn map(rules: &[Rule], architecture: &str) -> Vec<String> {
    let rows: Vec<Vec<&str>> = architecture
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let mut violations = Vec::new();
    for rule in rules.iter().filter(|rule| rule.layer != Layer::Tool) {
        let quoted = format!("`{}`", rule.name);
        let told = rows.iter().find(|cells| cells.get(2) == Some(&&*quoted)).map(|cells| cells[1]);
        if told != Some(rule.layer.word()) {
            violations.push(format!(
                "ARCHITECTURE.md calls {} {}, the rule a {}",
                rule.name,
                told.map_or_else(|| "nothing".to_owned(), |word| format!("a {word}")),
                rule.layer.word()
            ));
        }
    }
    violations
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUSE: &[Rule] = &[
        rule("noun", Layer::Noun, &["bytes"], &[]),
        rule("core-a", Layer::Core, &["bytes"], &["rim"]),
        rule("core-b", Layer::Core, &[], &[]),
        rule("rim", Layer::Rim, &["libc"], &[]),
        rule("shell", Layer::Shell, &[], &["model"]),
        rule("model", Layer::Shell, &[], &[]),
        rule("bench", Layer::Tool, &[], &[]),
    ];

    /// A valid workspace, with `more` uses.
    fn house(more: &[(&str, &str, Purpose)]) -> Graph {
        let mut graph = Graph::default();
        let sound = [
            ("noun", "bytes", Purpose::Normal),
            ("core-a", "noun", Purpose::Normal),
            ("core-a", "rim", Purpose::Normal),
            ("core-b", "noun", Purpose::Normal),
            ("rim", "libc", Purpose::Normal),
            ("shell", "core-a", Purpose::Normal),
            ("shell", "core-b", Purpose::Normal),
            ("shell", "model", Purpose::Normal),
            ("shell", "tokio", Purpose::Normal),
            ("model", "core-a", Purpose::Normal),
            ("bench", "shell", Purpose::Normal),
        ];
        for (user, used, purpose) in sound.iter().chain(more) {
            graph
                .uses
                .entry((*user).to_owned())
                .or_default()
                .insert(((*used).to_owned(), *purpose));
        }
        graph.members = HOUSE.iter().map(|rule| rule.name.to_owned()).collect();
        graph
    }

    #[test]
    fn a_house_in_order_has_no_violations() {
        assert_eq!(directions(HOUSE, &house(&[])), Vec::<String>::new());
    }

    #[test]
    fn each_wrong_use_is_named() {
        for (user, used, purpose, expected) in [
            ("core-b", "core-a", Purpose::Normal, Some("core-b is a core and may not use core-a")),
            ("core-b", "core-a", Purpose::Build, Some("core-b is a core and may not use core-a")),
            ("core-b", "core-a", Purpose::Test, None), // tests may join cores
            ("core-b", "rim", Purpose::Normal, Some("core-b is a core and may not use rim")), // not its subject
            ("core-b", "serde", Purpose::Normal, Some("it uses serde")),
            ("core-b", "proptest", Purpose::Test, None),
            ("noun", "core-a", Purpose::Normal, Some("noun is a noun and may not use core-a")),
            ("rim", "noun", Purpose::Normal, Some("rim is a rim and may not use noun")),
            ("model", "shell", Purpose::Normal, Some("model is a shell and may not use shell")),
            (
                "shell",
                "bench",
                Purpose::Normal,
                Some("shell is a shell and may not use bench, a tool"),
            ),
            ("shell", "anything", Purpose::Normal, None),
        ] {
            let violations = directions(HOUSE, &house(&[(user, used, purpose)]));
            match expected {
                None => assert_eq!(violations, Vec::<String>::new(), "{user} uses {used}"),
                Some(message) => {
                    assert_eq!(violations.len(), 1, "{user} uses {used}: {violations:?}");
                    assert!(violations[0].contains(message), "{violations:?}");
                }
            }
        }
    }

    #[test]
    fn a_service_that_uses_another_one_needs_a_reason() {
        let graph = house(&[]);
        let both = ["shell", "model"];
        assert_eq!(services(&both, &[("shell", "model", "it draws it")], &graph), [""; 0]);
        let found = services(&both, &[], &graph);
        assert!(found[0].starts_with("shell and model are services"), "{found:?}");
        let found = services(&both, &[("model", "shell", "it draws it")], &graph);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].starts_with("model no longer uses shell"), "{found:?}");
        assert!(BETWEEN_SERVICES.len() <= 2, "a bound that only falls: {BETWEEN_SERVICES:?}");
    }

    #[test]
    fn the_configuration_uses_nouns_alone() {
        let graph = house(&[("core-b", "core-a", Purpose::Test)]);
        assert_eq!(nouns_alone("core-b", &["noun"], &graph), [""; 0]);
        let found = nouns_alone("core-a", &["noun"], &graph);
        assert_eq!(found, ["core-a uses rim, but the configuration uses only noun"]);
    }

    #[test]
    fn a_heavy_dependency_is_in_its_place() {
        let graph = house(&[("bench", "tokio", Purpose::Normal)]);
        assert_eq!(heavy(&[("tokio", &["shell"])], HOUSE, &graph), [""; 0]);
        let found = heavy(&[("tokio", &["model"])], HOUSE, &graph);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("shell uses tokio") && found[0].contains("for model alone"));
        assert!(found[1].starts_with("model no longer uses tokio"), "{found:?}");
    }

    #[test]
    fn a_runtime_is_found_at_any_depth() {
        let graph = house(&[
            ("bytes", "helper", Purpose::Normal),
            ("helper", "tokio", Purpose::Normal),
            ("libc", "tokio", Purpose::Build), // what builds a crate does not run in it
        ]);
        assert_eq!(
            directions(HOUSE, &graph),
            [
                "noun is a noun and may not reach tokio, but does: noun -> bytes -> helper -> tokio",
                "core-a is a core and may not reach tokio, but does: core-a -> noun -> bytes -> helper -> tokio",
                "core-b is a core and may not reach tokio, but does: core-b -> noun -> bytes -> helper -> tokio",
            ]
        );
    }

    #[test]
    fn a_crate_without_a_row_and_a_row_without_a_crate_are_named() {
        let mut graph = house(&[]);
        graph.members.insert("newcomer".to_owned());
        graph.members.remove("core-b");
        let violations = directions(HOUSE, &graph);
        assert_eq!(violations.len(), 2, "{violations:?}");
        assert!(violations[0].starts_with("newcomer has no layer"));
        assert!(violations[1].starts_with("core-b is in RULES"));
    }

    #[test]
    fn a_clock_in_a_core_is_found_and_one_in_its_tests_is_not() {
        let source = "use std::time::Duration;\n// SystemTime would be wrong here\nlet t = Instant::now();\n\
                      let offs = offs::of(t);\n#[cfg(test)]\nmod tests { fn f() { std::fs::read(p); } }\n";
        assert_eq!(outside_words(source), [(3, "Instant::now")]);
    }

    #[test]
    fn the_map_must_name_each_crate_in_its_layer() {
        let two = &HOUSE[..2];
        assert_eq!(
            map(two, "| noun | `noun` | x |\n| core | `core-a` | y |\n"),
            Vec::<String>::new()
        );
        assert_eq!(
            map(two, "| core | `noun` | x |\n"),
            [
                "ARCHITECTURE.md calls noun a core, the rule a noun",
                "ARCHITECTURE.md calls core-a nothing, the rule a core"
            ]
        );
    }

    #[test]
    fn the_workspace_must_forbid_unsafe() {
        assert_eq!(
            forbids_unsafe("[workspace.lints.rust]\nunsafe_code = \"forbid\"\n").unwrap(),
            None
        );
        assert!(
            forbids_unsafe("[workspace.lints.rust]\nunsafe_code = \"deny\"\n").unwrap().is_some()
        );
        assert!(forbids_unsafe("[workspace]\n").unwrap().is_some());
    }
}
