//! InfluxDB's line protocol.

use tidegate_wire::line_protocol::{Batch, FieldValue, Line, LineWriter, Precision};

/// A batch, after a byte for its precision: each line is read or refused with a place that is in the batch; a line that can be
/// written is written to what reads the same, and cut out of its batch it reads the same.
pub fn line_protocol(data: &[u8]) {
    let Some((&precision, batch)) = data.split_first() else { return };
    let precision = match precision % 4 {
        0 => Precision::Nanoseconds,
        1 => Precision::Microseconds,
        2 => Precision::Milliseconds,
        _ => Precision::Seconds,
    };
    let lines = batch.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    let mut last = 0;
    for line in Batch::new(batch, precision) {
        match line {
            Ok(line) => {
                assert!(line.number() > last, "lines come in order");
                last = line.number();
                assert_eq!(told(&only(line.text().as_bytes(), precision)), told(&line));
                again(&line, precision);
            }
            Err(error) => {
                assert!((1..=lines).contains(&error.line) && error.column >= 1, "{error}");
            }
        }
    }
}

type Told = (String, Vec<(String, String)>, Vec<(String, String)>, Option<i64>);

fn told(line: &Line<'_>) -> Told {
    let tags = line.tags().map(|(n, v)| (n.unescaped().into(), v.unescaped().into()));
    let fields = line.fields().map(|(n, v)| (n.unescaped().into(), format!("{v:?}")));
    let at = line.timestamp().map(|at| at.as_nanos());
    (line.measurement().unescaped().into(), tags.collect(), fields.collect(), at)
}

fn only(text: &[u8], precision: Precision) -> Line<'_> {
    let mut lines = Batch::new(text, precision);
    let line = lines.next().expect("a line").expect("it was read before");
    assert!(lines.next().is_none());
    line
}

fn again(line: &Line<'_>, precision: Precision) {
    let (measurement, mut tags, fields, at) = told(line);
    let given: Vec<_> = tags.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let values: Vec<_> = fields
        .iter()
        .zip(line.fields())
        .map(|((name, _), (_, value))| (name.as_str(), FieldValue::Read(value)))
        .collect();
    let mut out = Vec::new();
    let written =
        LineWriter::new(precision).write(&mut out, &measurement, &given, &values, line.timestamp());
    if written.is_ok() {
        tags.sort();
        assert_eq!(told(&only(&out, precision)), (measurement, tags, fields, at));
    }
}
