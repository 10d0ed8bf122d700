//! Models from examples: ordinary least squares, and decision trees.
//!
//! Examples are rows of CSV below a line of names. The same rows give the same model, bit for bit, on every machine.

mod linear;
mod tree;

pub use linear::{Fit, LinearTraining, linear};
pub use tree::{TreeFit, TreeTraining, tree};

use crate::number;

/// Largest text of examples, in bytes.
pub const EXAMPLES_BYTES_MAX: usize = 1 << 30;

/// Most examples.
pub const EXAMPLES_MAX: usize = 1 << 25;

/// The features and the target of each example.
#[derive(Debug)]
struct Examples<T> {
    /// Row after row.
    features: Vec<Vec<f64>>,
    targets: Vec<T>,
}

impl<T> Examples<T> {
    /// Reads the columns `features` as numbers and `target` by `read`.
    fn parse(
        csv: &str,
        features: &[String],
        target: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Self, TrainError> {
        if csv.len() > EXAMPLES_BYTES_MAX {
            return Err(TrainError::TooLarge { bytes: csv.len() });
        }
        if features.is_empty() {
            return Err(TrainError::NoFeatures);
        }
        let mut lines = rows(csv);
        let names = lines.next().ok_or(TrainError::Empty)?;
        let place = |wanted: &str| {
            let found = names.iter().position(|name| name == wanted);
            found.ok_or_else(|| TrainError::Column {
                column: wanted.to_owned(),
                known: names.join(", "),
            })
        };
        let places = features.iter().map(|name| place(name)).collect::<Result<Vec<_>, _>>()?;
        let target_place = place(target)?;
        let mut examples = Self { features: Vec::new(), targets: Vec::new() };
        for (row, values) in (2..).zip(lines) {
            let value = |place: usize| {
                let bad = |place: usize| TrainError::Value {
                    row,
                    column: names[place].clone(),
                    found: values.get(place).map(|v| v.chars().take(40).collect()),
                };
                values.get(place).map(String::as_str).ok_or_else(|| bad(place))
            };
            let bad = |place: usize, found: &str| TrainError::Value {
                row,
                column: names[place].clone(),
                found: Some(found.chars().take(40).collect()),
            };
            let mut numbers = Vec::with_capacity(places.len());
            for place in &places {
                let text = value(*place)?;
                let number = number::parse(text.as_bytes()).map_err(|_| bad(*place, text))?;
                numbers.push(number);
            }
            let text = value(target_place)?;
            examples.targets.push(read(text).ok_or_else(|| bad(target_place, text))?);
            examples.features.push(numbers);
            if examples.features.len() > EXAMPLES_MAX {
                return Err(TrainError::TooMany);
            }
        }
        if examples.targets.is_empty() {
            return Err(TrainError::Empty);
        }
        Ok(examples)
    }
}

/// The rows of a CSV text (RFC 4180), empty lines aside.
pub(crate) fn rows(csv: &str) -> impl Iterator<Item = Vec<String>> {
    let mut rest = csv;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(['\r', '\n']);
        if rest.is_empty() {
            return None;
        }
        let mut row = Vec::new();
        loop {
            let (value, after) = value(rest);
            row.push(value);
            match after.strip_prefix(',') {
                Some(after) => rest = after,
                None => {
                    rest = after;
                    return Some(row);
                }
            }
        }
    })
}

/// One value, and what stands behind it: a comma, the end of a line, or nothing.
fn value(text: &str) -> (String, &str) {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find([',', '\r', '\n']).unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    while let Some((part, after)) = rest.split_once('"') {
        value.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                value.push('"');
                rest = after;
            }
            None => {
                let end = after.find([',', '\r', '\n']).unwrap_or(after.len());
                return (value, &after[end..]);
            }
        }
    }
    value.push_str(rest);
    (value, "")
}

/// Why nothing was learned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// More text than is read.
    #[error("the examples have {bytes} bytes, and {EXAMPLES_BYTES_MAX} is the most; take a sample")]
    TooLarge {
        /// Their size.
        bytes: usize,
    },
    /// No line of names, or no row below it.
    #[error(
        "there are no examples; the first line names the columns, each further one is an example"
    )]
    Empty,
    /// More examples than are read.
    #[error("there are more than {EXAMPLES_MAX} examples; take a sample")]
    TooMany,
    /// No feature was named.
    #[error("there is no feature to learn from; name at least one column")]
    NoFeatures,
    /// A column that is asked for is not there.
    #[error("no column is called {column:?}; there are {known}")]
    Column {
        /// What was asked for.
        column: String,
        /// Those that there are.
        known: String,
    },
    /// A value is missing or no number.
    #[error("row {row}, column {column:?}: {}", found.as_ref().map_or_else(|| "there is no value".to_owned(), |found| format!("{found:?} is no number")))]
    Value {
        /// The row, from 1, that of the names included.
        row: usize,
        /// The column.
        column: String,
        /// Its beginning, if it is there.
        found: Option<String>,
    },
    /// Fewer examples than coefficients.
    #[error(
        "{rows} examples do not settle {coefficients} coefficients; there must be at least as many"
    )]
    TooFew {
        /// Examples there are.
        rows: usize,
        /// Coefficients, the intercept included.
        coefficients: usize,
    },
    /// The features do not settle the coefficients.
    #[error(
        "column {column:?} is constant or follows from the others, so that its coefficient is not settled; leave it out, or set ridge above 0"
    )]
    Singular {
        /// The column.
        column: String,
    },
    /// A setting is out of its range.
    #[error("{key} is {found}, and must be {bounds}")]
    Setting {
        /// Which.
        key: &'static str,
        /// What it is.
        found: f64,
        /// What it may be.
        bounds: &'static str,
    },
    /// The numbers are too large to compute with.
    #[error("the examples hold numbers that are too large to compute with; scale them")]
    Overflow,
}

#[cfg(test)]
mod tests;
