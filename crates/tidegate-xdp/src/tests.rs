//! Filters as they are used: described, compiled, asked; and compared with the kernel's answers.

mod decide;
mod golden;
mod kernel;
mod packets;

use crate::{Destination, Filter, FilterError, FilterSpec, Reach, parse_conditions, parse_fields};

const PORT: u16 = 7070;

fn spec(fields: &str, keep: &str) -> FilterSpec {
    let (combine, conditions) = parse_conditions(keep).unwrap();
    FilterSpec {
        port: PORT,
        destination: Destination { v4: Reach::Any, v6: Reach::Any },
        payload_bytes: None,
        fields: parse_fields(fields).unwrap(),
        combine,
        conditions,
    }
}

fn filter(fields: &str, keep: &str) -> Filter {
    spec(fields, keep).compile().unwrap_or_else(|error| panic!("{keep}: {error}"))
}

fn refused(spec: &FilterSpec) -> FilterError {
    spec.compile().expect_err("it is wrong")
}
