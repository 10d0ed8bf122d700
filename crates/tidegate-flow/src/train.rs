//! Models from examples: ordinary least squares, and decision trees.
//!
//! Examples are rows of CSV below a line of names. The same rows give the same model, bit for bit, on every machine.

mod linear;
mod tree;

pub use linear::{Fit, LinearTraining, linear};
pub use tree::{TreeFit, TreeTraining, tree};

use crate::{
    csv::{self, OpenQuote},
    number,
};

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
        let mut lines = csv::rows(csv);
        let names = lines.next().ok_or(TrainError::Empty)??;
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
            let values = values?;
            if values.len() != names.len() {
                return Err(TrainError::Columns {
                    row,
                    found: values.len(),
                    expected: names.len(),
                });
            }
            let bad = |place: usize| TrainError::Value {
                row,
                column: names[place].clone(),
                found: values[place].chars().take(40).collect(),
            };
            let mut numbers = Vec::with_capacity(places.len());
            for place in &places {
                let number = number::parse(values[*place].as_bytes()).map_err(|_| bad(*place))?;
                numbers.push(number);
            }
            let target = read(&values[target_place]).ok_or_else(|| bad(target_place))?;
            examples.targets.push(target);
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
        /// The column as written.
        column: String,
        /// Those that there are.
        known: String,
    },
    /// A row has more or fewer values than there are names.
    #[error(
        "row {row} has {found} values, and the first line names {expected} columns; give it as many, in quotes where they hold a comma"
    )]
    Columns {
        /// The row, from 1, that of the names included.
        row: usize,
        /// Values it has.
        found: usize,
        /// Names there are.
        expected: usize,
    },
    /// The quotes of a value do not end, or text follows them.
    #[error(
        "row {row}: the quotes that value {value} begins with do not end with it; write a quote within as two, and one at its end"
    )]
    Quotes {
        /// The row, from 1, that of the names included.
        row: usize,
        /// Its place in the row, from 1.
        value: usize,
    },
    /// A value is no number.
    #[error("row {row}, column {column:?}: {found:?} is not a number")]
    Value {
        /// The row, from 1, that of the names included.
        row: usize,
        /// The column.
        column: String,
        /// Its beginning.
        found: String,
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
        /// The value found.
        found: f64,
        /// The allowed range.
        bounds: &'static str,
    },
    /// The numbers are too large to compute with.
    #[error("the examples hold numbers that are too large to compute with; scale them")]
    Overflow,
}

impl From<OpenQuote> for TrainError {
    fn from(OpenQuote { row, value }: OpenQuote) -> Self {
        Self::Quotes { row, value }
    }
}

#[cfg(test)]
mod tests;
