//! Models, tables and sets that flows refer to by name.
//!
//! A model is JSON of a form of our own, which `train` writes:
//!
//! ```json
//! {"tidegate_model": 1, "kind": "linear", "target": "fare_amount", "intercept": 2.5,
//!  "coefficients": {"trip_distance": 2.6, "trip_time_in_secs": 0.004}}
//! {"tidegate_model": 1, "kind": "tree", "target": "airquality", "features": ["dust"], "classes": ["good", "bad"],
//!  "nodes": [{"feature": 0, "threshold": 900, "left": 1, "right": 2}, {"class": 0}, {"class": 1}]}
//! ```
//!
//! Always true of a model that was loaded: its numbers are finite, and each node of a tree leads to nodes behind it, so that going
//! down ends.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::csv::{self, OpenQuote};

/// The version of the form that is read and written.
pub const MODEL_VERSION: u32 = 1;
/// Largest model, in bytes of JSON.
pub const MODEL_BYTES_MAX: usize = 16 << 20;
/// Most features of a model.
pub const FEATURES_MAX: usize = 1024;

/// The models and tables that flows refer to by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Models {
    pub(crate) models: HashMap<String, Model>,
    pub(crate) tables: HashMap<String, Arc<Table>>,
    pub(crate) sets: HashMap<String, Arc<Vec<String>>>,
}

impl Models {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a model, in place of another of that name.
    pub fn insert(&mut self, name: impl Into<String>, model: Model) {
        self.models.insert(name.into(), model);
    }

    /// Adds a table, in place of another of that name.
    pub fn insert_table(&mut self, name: impl Into<String>, table: Table) {
        self.tables.insert(name.into(), Arc::new(table));
    }

    /// Adds a set, in place of another of that name: the lines of a text, empty ones aside.
    pub fn insert_set(&mut self, name: impl Into<String>, lines: &str) {
        let members = lines.lines().map(str::trim).filter(|line| !line.is_empty());
        self.sets.insert(name.into(), Arc::new(members.map(str::to_owned).collect()));
    }
}

/// A model that predicts.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// A number.
    Linear(Arc<LinearModel>),
    /// A class.
    Tree(Arc<TreeModel>),
}

/// A linear model: `intercept + Σ coefficient · feature`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearModel {
    /// The predicted quantity.
    pub target: String,
    /// The prediction where all features are 0.
    pub intercept: f64,
    /// Each feature and its coefficient, by name.
    pub coefficients: Vec<(String, f64)>,
}

/// A decision tree.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeModel {
    /// The predicted quantity.
    pub target: String,
    /// Names of the features that nodes ask for.
    pub features: Vec<String>,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// The nodes, the root first, each before its children.
    pub nodes: Vec<Node>,
}

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Node {
    /// Goes left where the feature is at most the threshold, right elsewhere.
    Split {
        /// Place of the feature.
        feature: u32,
        /// The most that goes left.
        threshold: f64,
        /// Place of the node to the left.
        left: u32,
        /// Place of the node to the right.
        right: u32,
    },
    /// Ends with a class.
    Leaf {
        /// Place of the class.
        class: u32,
    },
}

impl Model {
    /// Reads a model.
    ///
    /// # Errors
    /// [`ModelError`]; nothing of the model is used then.
    pub fn parse(json: &[u8]) -> Result<Self, ModelError> {
        if json.len() > MODEL_BYTES_MAX {
            return Err(ModelError::TooLarge { bytes: json.len() });
        }
        let form: Form = serde_json::from_slice(json).map_err(ModelError::Json)?;
        if form.tidegate_model != MODEL_VERSION {
            return Err(ModelError::Version { found: form.tidegate_model });
        }
        match form.body {
            Body::Linear(body) => body.checked().map(|model| Self::Linear(Arc::new(model))),
            Body::Tree(body) => body.checked().map(|model| Self::Tree(Arc::new(model))),
        }
    }

    /// The model as JSON, on lines of its own, which [`Model::parse`] reads.
    pub fn to_json(&self) -> String {
        let body = match self {
            Self::Linear(model) => Body::Linear(LinearBody {
                target: model.target.clone(),
                intercept: model.intercept,
                coefficients: model.coefficients.iter().cloned().collect(),
            }),
            Self::Tree(model) => Body::Tree(TreeBody {
                target: model.target.clone(),
                features: model.features.clone(),
                classes: model.classes.clone(),
                nodes: model.nodes.iter().map(|node| NodeBody::from(*node)).collect(),
            }),
        };
        let form = Form { tidegate_model: MODEL_VERSION, body };
        let mut text = serde_json::to_string_pretty(&form).expect("a model has names as keys");
        text.push('\n');
        text
    }

    /// The predicted quantity.
    pub fn target(&self) -> &str {
        match self {
            Self::Linear(model) => &model.target,
            Self::Tree(model) => &model.target,
        }
    }
}

impl LinearModel {
    /// The prediction for features in the order of `coefficients`.
    pub fn predict(&self, features: &[f64]) -> f64 {
        let terms = self.coefficients.iter().zip(features).map(|((_, c), x)| c * x);
        self.intercept + terms.sum::<f64>()
    }
}

impl TreeModel {
    /// The class for features in the order of `features`; none where one that is asked for is NaN.
    pub fn predict(&self, features: &[f64]) -> Option<&str> {
        let mut at = 0;
        loop {
            match self.nodes[at] {
                Node::Leaf { class } => return Some(&self.classes[class as usize]),
                Node::Split { feature, threshold, left, right } => {
                    let value = features[feature as usize];
                    if value.is_nan() {
                        return None;
                    }
                    at = if value <= threshold { left } else { right } as usize;
                }
            }
        }
    }
}

/// A table of metadata: rows by the text in their first column.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    by_key: HashMap<Box<[u8]>, usize>,
}

impl Table {
    /// Reads CSV with a line of names; the first column is the key.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn parse(csv: &str) -> Result<Self, TableError> {
        let mut lines = csv::rows(csv);
        let columns = lines.next().ok_or(TableError::Empty)??;
        let mut table = Self { columns, rows: Vec::new(), by_key: HashMap::new() };
        for (number, row) in (2..).zip(lines) {
            let row = row?;
            if row.len() != table.columns.len() {
                let (found, expected) = (row.len(), table.columns.len());
                return Err(TableError::Columns { row: number, found, expected });
            }
            if table.by_key.insert(row[0].as_bytes().into(), table.rows.len()).is_some() {
                return Err(TableError::Double { row: number, key: row[0].clone() });
            }
            table.rows.push(row);
        }
        Ok(table)
    }

    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// The values of a column, in the order of rows.
    pub(crate) fn column(&self, name: &str) -> Option<impl Iterator<Item = &str>> {
        let index = self.columns.iter().position(|column| column == name)?;
        Some(self.rows.iter().map(move |row| row[index].as_str()))
    }
}

#[derive(Serialize, Deserialize)]
struct Form {
    tidegate_model: u32,
    #[serde(flatten)]
    body: Body,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Body {
    Linear(LinearBody),
    Tree(TreeBody),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinearBody {
    target: String,
    intercept: f64,
    coefficients: BTreeMap<String, f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TreeBody {
    target: String,
    features: Vec<String>,
    classes: Vec<String>,
    nodes: Vec<NodeBody>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    feature: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    threshold: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    right: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<u32>,
}

impl LinearBody {
    fn checked(self) -> Result<LinearModel, ModelError> {
        if self.coefficients.len() > FEATURES_MAX {
            return Err(ModelError::Features { count: self.coefficients.len() });
        }
        // JSON has no other numbers, but may have some that a float holds as infinite.
        if !self.intercept.is_finite() || self.coefficients.values().any(|c| !c.is_finite()) {
            return Err(ModelError::Infinite);
        }
        let coefficients = self.coefficients.into_iter().collect();
        Ok(LinearModel { target: self.target, intercept: self.intercept, coefficients })
    }
}

impl TreeBody {
    fn checked(self) -> Result<TreeModel, ModelError> {
        if self.features.len() > FEATURES_MAX {
            return Err(ModelError::Features { count: self.features.len() });
        }
        if self.nodes.is_empty() {
            return Err(ModelError::NoNodes);
        }
        let Self { target, features, classes, nodes: bodies } = self;
        let count = bodies.len();
        let check = |(at, body): (usize, NodeBody)| {
            let bound = |member, found: u32, bound: usize| {
                let fits = (found as usize) < bound;
                if fits {
                    Ok(found)
                } else {
                    Err(ModelError::OutOfBounds { node: at, member, found, bound })
                }
            };
            match body {
                NodeBody {
                    feature: Some(feature),
                    threshold: Some(threshold),
                    left: Some(left),
                    right: Some(right),
                    class: None,
                } => {
                    let feature = bound("feature", feature, features.len())?;
                    for (member, child) in [("left", left), ("right", right)] {
                        bound(member, child, count)?;
                        if child as usize <= at {
                            return Err(ModelError::Backwards { node: at, member, found: child });
                        }
                    }
                    if !threshold.is_finite() {
                        return Err(ModelError::Infinite);
                    }
                    Ok(Node::Split { feature, threshold, left, right })
                }
                NodeBody {
                    feature: None,
                    threshold: None,
                    left: None,
                    right: None,
                    class: Some(class),
                } => {
                    let class = bound("class", class, classes.len())?;
                    Ok(Node::Leaf { class })
                }
                _ => Err(ModelError::Node { node: at }),
            }
        };
        let nodes = bodies.into_iter().enumerate().map(check).collect::<Result<_, _>>()?;
        Ok(TreeModel { target, features, classes, nodes })
    }
}

impl From<Node> for NodeBody {
    fn from(node: Node) -> Self {
        let none = Self { feature: None, threshold: None, left: None, right: None, class: None };
        match node {
            Node::Split { feature, threshold, left, right } => Self {
                feature: Some(feature),
                threshold: Some(threshold),
                left: Some(left),
                right: Some(right),
                ..none
            },
            Node::Leaf { class } => Self { class: Some(class), ..none },
        }
    }
}

/// Why a model is not used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// It is too large to be meant.
    #[error(
        "the model has {bytes} bytes, and {MODEL_BYTES_MAX} is the most; is it the right file?"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It is no JSON, or not of our form.
    #[error("the model is not of the form that flows read")]
    Json(#[source] serde_json::Error),
    /// It is of another version.
    #[error("the model is of version {found}, and {MODEL_VERSION} is the one that is read here")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It has more features than are read.
    #[error("the model has {count} features, and {FEATURES_MAX} is the most")]
    Features {
        /// How many.
        count: usize,
    },
    /// One of its numbers is not finite.
    #[error("a number of the model is too large for a 64-bit float")]
    Infinite,
    /// A tree without nodes.
    #[error("the tree has no node; one that always says the same has one leaf")]
    NoNodes,
    /// A node is neither a split nor a leaf.
    #[error("node {node} (from 0) has neither feature, threshold, left and right, nor class alone")]
    Node {
        /// Its place.
        node: usize,
    },
    /// A node names something that there is not.
    #[error("node {node} (from 0) has {member} {found}, and there are {bound}")]
    OutOfBounds {
        /// Its place.
        node: usize,
        /// Which of its members.
        member: &'static str,
        /// The number found.
        found: u32,
        /// How many there are.
        bound: usize,
    },
    /// A node leads to one that does not stand behind it.
    #[error("node {node} (from 0) has {member} {found}; children stand behind their parents")]
    Backwards {
        /// Its place.
        node: usize,
        /// Which of its members.
        member: &'static str,
        /// Where it leads.
        found: u32,
    },
}

/// Why a table is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// It has no line of names.
    #[error("the table is empty; its first line names its columns")]
    Empty,
    /// A row has another number of columns than the first line.
    #[error("row {row} of the table has {found} columns, and its first line names {expected}")]
    Columns {
        /// The row, from 1, that of the names included.
        row: usize,
        /// Columns it has.
        found: usize,
        /// Columns it should have.
        expected: usize,
    },
    /// The quotes of a value do not end, or text follows them.
    #[error(
        "row {row} of the table: the quotes that value {value} begins with do not end with it; write a quote within as two, and one at its end"
    )]
    Quotes {
        /// The row, from 1, that of the names included.
        row: usize,
        /// Its place in the row, from 1.
        value: usize,
    },
    /// Two rows have one key.
    #[error("row {row} of the table has the key {key:?}, as has one before it")]
    Double {
        /// The row, from 1, that of the names included.
        row: usize,
        /// The key.
        key: String,
    },
}

impl From<OpenQuote> for TableError {
    fn from(OpenQuote { row, value }: OpenQuote) -> Self {
        Self::Quotes { row, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = r#"{"tidegate_model":1,"kind":"tree","target":"t","features":["a"],"classes":["x","y"],"nodes":NODES}"#;

    fn tree(nodes: &str) -> Result<Model, ModelError> {
        Model::parse(TREE.replace("NODES", nodes).as_bytes())
    }

    #[test]
    fn models_are_written_as_they_are_read() {
        let sound =
            tree(r#"[{"feature":0,"threshold":1.5,"left":2,"right":1},{"class":1},{"class":0}]"#)
                .unwrap();
        let linear = Model::parse(
            br#"{"kind":"linear","tidegate_model":1,"target":"y","intercept":0.1,"coefficients":{"b":-2,"a":1e-7}}"#,
        )
        .unwrap();
        for model in [sound, linear] {
            assert_eq!(Model::parse(model.to_json().as_bytes()).unwrap(), model);
        }
    }

    #[test]
    fn invalid_parts_of_a_model_are_named() {
        for (nodes, expected) in [
            ("[]", "the tree has no node"),
            (r#"[{"class":2}]"#, "node 0 (from 0) has class 2, and there are 2"),
            (r#"[{}]"#, "node 0 (from 0) has neither"),
            (r#"[{"feature":0,"class":0}]"#, "node 0 (from 0) has neither"),
            (
                r#"[{"feature":1,"threshold":1,"left":1,"right":1},{"class":0}]"#,
                "node 0 (from 0) has feature 1, and there are 1",
            ),
            (
                r#"[{"feature":0,"threshold":1,"left":0,"right":1},{"class":0}]"#,
                "node 0 (from 0) has left 0; children stand behind",
            ),
            (
                r#"[{"feature":0,"threshold":1,"left":1,"right":9},{"class":0}]"#,
                "node 0 (from 0) has right 9, and there are 2",
            ),
            (r#"[{"klass":0}]"#, "the model is not of the form"),
        ] {
            let error = tree(nodes).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{nodes}: {error}");
        }
        for json in [
            "",
            "{}",
            r#"{"tidegate_model":2,"kind":"linear","target":"y","intercept":0,"coefficients":{}}"#,
            r#"{"tidegate_model":1,"kind":"forest","target":"y"}"#,
            r#"{"tidegate_model":1,"kind":"linear","target":"y","intercept":1e999,"coefficients":{}}"#,
        ] {
            assert!(Model::parse(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn a_tree_says_its_classes() {
        let Model::Tree(tree) =
            tree(r#"[{"feature":0,"threshold":1.5,"left":2,"right":1},{"class":1},{"class":0}]"#)
                .unwrap()
        else {
            panic!("a tree")
        };
        for (value, expected) in [(1.5, Some("x")), (1.6, Some("y")), (f64::NAN, None)] {
            assert_eq!(tree.predict(&[value]), expected, "{value}");
        }
    }

    #[test]
    fn tables_are_read_or_refused() {
        let table = Table::parse("id,name,x\na,\"A, \"\"1\"\"\",1\r\nb,B,2\n").unwrap();
        assert_eq!(table.find(b"b"), Some(1));
        assert_eq!(table.column("name").unwrap().collect::<Vec<_>>(), ["A, \"1\"", "B"]);
        assert_eq!(table.find(b"c"), None);
        assert_eq!(Table::parse(""), Err(TableError::Empty));
        assert_eq!(
            Table::parse("id,x\na"),
            Err(TableError::Columns { row: 2, found: 1, expected: 2 })
        );
        assert_eq!(Table::parse("id\n\"a\nb"), Err(TableError::Quotes { row: 2, value: 1 }));
        assert_eq!(
            Table::parse("id\na\na"),
            Err(TableError::Double { row: 3, key: "a".to_owned() })
        );
    }
}
