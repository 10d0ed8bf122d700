//! The tables that come with the program, in its own format.

use super::Table;

macro_rules! files {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../tables/", $name))),)+]
    };
}

/// One assumed table for profile `jpeg`, and the six of the Mez paper for profile `mez`.
const BUILTIN: &[(&str, &str)] = files! {
    "jpeg-assumed.table"
    "mez-jaad-simple.table"
    "mez-jaad-medium.table"
    "mez-jaad-complex.table"
    "mez-duke-simple.table"
    "mez-duke-medium.table"
    "mez-duke-complex.table"
};

/// Published profiles of a video codec, for simulations.
const FOREIGN: &[(&str, &str)] = files! {
    "foreign-mot.table"
    "foreign-darknet.table"
};

pub(super) fn tables() -> Vec<Table> {
    parse(BUILTIN)
}

pub(super) fn foreign() -> Vec<Table> {
    parse(FOREIGN)
}

fn parse(files: &[(&str, &str)]) -> Vec<Table> {
    let table = |(name, text): &(&str, &str)| {
        Table::parse(name, text).expect("a table of the program was tested when it was built")
    };
    files.iter().map(table).collect()
}
