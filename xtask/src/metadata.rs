//! The workspace and its dependencies, by `cargo metadata`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::cargo::cargo;

/// The workspace and everything below it.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_members: BTreeSet<String>,
    pub(crate) workspace_root: PathBuf,
    resolve: Resolve,
}

/// One version of one crate.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    /// `None` for a crate of this checkout.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<NodeDep>,
}

#[derive(Debug, Deserialize)]
struct NodeDep {
    pkg: String,
    dep_kinds: Vec<DepKind>,
}

#[derive(Debug, Deserialize)]
struct DepKind {
    /// `None` is a normal dependency.
    kind: Option<String>,
}

/// The kind of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Part of the crate.
    Normal,
    /// Of its build script.
    Build,
    /// Of its tests, examples and benches.
    Test,
}

/// Crate names and what each uses, several versions of a crate taken as one.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) members: BTreeSet<String>,
    pub(crate) uses: BTreeMap<String, BTreeSet<(String, Purpose)>>,
}

impl Graph {
    /// Crates that a crate uses outside its tests.
    pub(crate) fn used_by(&self, user: &str) -> impl Iterator<Item = &str> {
        let uses = self.uses.get(user).into_iter().flatten();
        let own = uses.filter(|(_, purpose)| *purpose != Purpose::Test);
        own.map(|(used, _)| used.as_str())
    }
}

impl Metadata {
    /// Runs `cargo metadata` for this platform.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let rustc = Command::new("rustc").arg("-vV").output().context("running rustc -vV")?;
        let host = String::from_utf8_lossy(&rustc.stdout)
            .lines()
            .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
            .context("rustc -vV names no host")?;
        let output = cargo()
            .args(["metadata", "--format-version=1", "--filter-platform", &host])
            .stderr(Stdio::inherit())
            .output()
            .context("running cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata failed");
        serde_json::from_slice(&output.stdout).context("reading what cargo metadata said")
    }

    pub(crate) fn graph(&self) -> Graph {
        let names: BTreeMap<&str, &str> =
            self.packages.iter().map(|package| (&*package.id, &*package.name)).collect();
        let mut graph = Graph::default();
        for member in &self.workspace_members {
            graph.members.insert(names[&**member].to_owned());
        }
        for node in &self.resolve.nodes {
            let uses = graph.uses.entry(names[&*node.id].to_owned()).or_default();
            for dependency in &node.deps {
                for kind in &dependency.dep_kinds {
                    let purpose = match kind.kind.as_deref() {
                        None => Purpose::Normal,
                        Some("build") => Purpose::Build,
                        Some(_) => Purpose::Test,
                    };
                    uses.insert((names[&*dependency.pkg].to_owned(), purpose));
                }
            }
        }
        graph
    }
}
