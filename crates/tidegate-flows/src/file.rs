//! Files of flows, and the models, tables and sets that they name.
//!
//! ```text
//!  city.toml ── [flow.city], [flow.city-region] ──▶ Spec      models/city-airquality.json, city-sources.txt ──▶ Models
//! ```
//!
//! Always true: files have a size limit; a file that is wrong is named, with the line or the flow, and nothing of it is used.

use std::{
    collections::BTreeSet,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use tidegate_flow::{Model, ModelError, Models, Spec, Specs, StepSpec, Table, TableError};
use tidegate_message::suggest::suggested;
use tidegate_sys::regular;

/// Largest file of flows.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Largest model, table or set.
pub const MODEL_BYTES_MAX: u64 = 256 << 20;
/// Longest name of a flow: it becomes part of a file's name.
pub const NAME_BYTES_MAX: usize = 64;

/// The content of a file of flows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowFile {
    /// Each flow, by name, with what it refers to.
    pub flows: Vec<(Spec, Models)>,
}

impl FlowFile {
    /// Reads a file of flows, and from `models_dir`, or `models` next to the file, the files that they name: models from
    /// `NAME.json`, tables from `NAME.csv`, sets from `NAME.txt`.
    ///
    /// # Errors
    /// [`FlowFileError`], which names the file.
    pub fn read(path: &Path, models_dir: Option<&Path>) -> Result<Self, FlowFileError> {
        let text = text(path, FILE_BYTES_MAX)?;
        let specs: Specs = toml::from_str(&text).map_err(|error| FlowFileError::Form {
            path: path.to_owned(),
            line: error
                .span()
                .map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1),
            message: suggested(error.message(), None),
        })?;
        let beside = path.with_file_name("models");
        let folder = models_dir.unwrap_or(&beside);
        let mut flows = Vec::new();
        for spec in specs.into_flows() {
            if !is_name(&spec.name) {
                return Err(FlowFileError::Name { path: path.to_owned(), name: spec.name });
            }
            let models = models(&spec, folder)?;
            flows.push((spec, models));
        }
        if flows.is_empty() {
            return Err(FlowFileError::Empty { path: path.to_owned() });
        }
        Ok(Self { flows })
    }
}

/// The models, tables and sets of a flow, each once.
fn models(spec: &Spec, folder: &Path) -> Result<Models, FlowFileError> {
    let mut names = BTreeSet::new();
    for step in &spec.steps {
        let named = match step {
            StepSpec::DecisionTree(step) => Some(("json", &step.model)),
            StepSpec::LinearRegression(step) => Some(("json", &step.model)),
            StepSpec::Annotate(step) => Some(("csv", &step.table)),
            StepSpec::BloomFilter(step) => step.members.as_ref().map(|name| ("txt", name)),
            _ => None,
        };
        names.extend(named);
    }
    let mut models = Models::new();
    for (extension, name) in names {
        let path = folder.join(format!("{name}.{extension}"));
        // A name is a file of the folder, and no way out of it.
        if !is_name(name) {
            return Err(FlowFileError::Name { path, name: name.clone() });
        }
        let text = text(&path, MODEL_BYTES_MAX)?;
        match extension {
            "json" => {
                let model = Model::parse(text.as_bytes());
                models.insert(name, model.map_err(|source| FlowFileError::Model { path, source })?);
            }
            "csv" => {
                let table = Table::parse(&text);
                let table = table.map_err(|source| FlowFileError::Table { path, source })?;
                models.insert_table(name, table);
            }
            _ => models.insert_set(name, &text),
        }
    }
    Ok(models)
}

/// Whether a flow or model may be called so: 1 to 64 letters, digits, `_` and `-` of ASCII.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part)
}

/// The text of a file of at most so many bytes.
pub(crate) fn text(path: &Path, bytes_max: u64) -> Result<String, FlowFileError> {
    let unread = |source| FlowFileError::Read { path: path.to_owned(), source };
    let file = regular::open(path).map_err(unread)?;
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > bytes_max {
        return Err(FlowFileError::TooLarge { path: path.to_owned(), bytes_max });
    }
    Ok(text)
}

/// Why a file of flows was not taken.
#[derive(Debug, thiserror::Error)]
pub enum FlowFileError {
    /// A file cannot be read, or is no UTF-8.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is larger than is read.
    #[error("{} has more than {bytes_max} bytes, which is the most; take out what no flow uses", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound.
        bytes_max: u64,
    },
    /// It is no TOML, or has a key that is unknown or of another type.
    #[error("{}:{line}: {message}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem there.
        message: String,
    },
    /// It holds no flow.
    #[error("{} holds no flow; begin one with [flow.NAME]", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A flow, model, table or set is called in a way that is none.
    #[error(
        "{}: {name:?} is not a valid name; it is made of 1 to {NAME_BYTES_MAX} letters, digits, _ and -",
        path.display()
    )]
    Name {
        /// Where it stands, or would.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A model is none.
    #[error("the model {} cannot be used", path.display())]
    Model {
        /// Its file.
        path: PathBuf,
        /// The error in it.
        source: ModelError,
    },
    /// A table is none.
    #[error("the table {} cannot be used", path.display())]
    Table {
        /// Its file.
        path: PathBuf,
        /// The error in it.
        source: TableError,
    },
}

impl FlowFileError {
    /// Whether its text begins with a line of the file.
    pub fn is_at_line(&self) -> bool {
        matches!(self, Self::Form { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const FLOW: &str =
        "[flow.a]\ntopics = [\"t/#\"]\nparse = { format = \"csv\", fields = [\"x\"] }\n";

    #[test]
    fn files_named_in_a_file_are_read_from_its_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.toml");
        fs::create_dir(folder.path().join("models")).expect("a folder");
        fs::write(folder.path().join("models/known.txt"), "1\n2\n").expect("a file");
        let step =
            "[[flow.a.step]]\nkernel = \"bloom-filter\"\nfield = \"x\"\nmembers = \"known\"\n";
        fs::write(&path, format!("{FLOW}{step}")).expect("a file");
        let file = FlowFile::read(&path, None).expect("nothing is wrong");
        let mut expected = Models::new();
        expected.insert_set("known", "1\n2");
        assert_eq!(file.flows.len(), 1);
        assert_eq!((&*file.flows[0].0.name, &file.flows[0].1), ("a", &expected));
        let elsewhere = FlowFile::read(&path, Some(folder.path())).expect_err("no such file");
        assert!(elsewhere.to_string().contains("known.txt cannot be read"), "{elsewhere}");
    }

    #[test]
    fn problems_of_a_file_are_named_with_their_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.toml");
        fs::write(folder.path().join("bad.json"), "{}").expect("a file");
        fs::write(folder.path().join("bad.csv"), "a,b\n1").expect("a file");
        let step = |step: &str| format!("{FLOW}[[flow.a.step]]\n{step}\n");
        for (text, expected) in [
            (String::new(), "holds no flow; begin one with [flow.NAME]".to_owned()),
            (FLOW.replace("topics", "topic"), "f.toml:2: unknown field `topic`".to_owned()),
            ("[flow.a]\nx =".to_owned(), "f.toml:2:".to_owned()),
            (FLOW.replace("flow.a", "flow.\"../a\""), "\"../a\" is not a valid name".to_owned()),
            (
                step("kernel = \"decision-tree\"\nmodel = \"../x\""),
                "\"../x\" is not a valid name".to_owned(),
            ),
            (
                step("kernel = \"decision-tree\"\nmodel = \"bad\""),
                "bad.json cannot be used".to_owned(),
            ),
            (step("kernel = \"annotate\"\ntable = \"bad\""), "bad.csv cannot be used".to_owned()),
            (step("kernel = \"annotate\"\ntable = \"no\""), "no.csv cannot be read".to_owned()),
            (format!("{FLOW}#{}", " ".repeat(FILE_BYTES_MAX as usize)), "1048576 bytes".to_owned()),
        ] {
            fs::write(&path, &text).expect("a file");
            let error = FlowFile::read(&path, Some(folder.path())).expect_err(&expected);
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}
