//! `tidegate-lab sim`: published figures again, decided by the code that is shipped.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use tidegate_api::ApiError;
use tidegate_cli::program::{Output, print};
use tidegate_message::Code;
use tidegate_sim::{
    plot::{Mark, Plot, Series},
    withhold::{self, Contender, Figure, Reading, Row, THRESHOLDS_S},
};

/// Arguments of `tidegate-lab sim`.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// The simulation to run.
    #[command(subcommand)]
    pub what: SimCommand,
}

/// The simulations.
#[derive(Subcommand, Clone, Debug)]
pub enum SimCommand {
    /// When a large MQTT message is sent on a path that is congested now and then, by each policy
    Mqtt(MqttSimArgs),
}

/// Arguments of `tidegate-lab sim mqtt`.
#[derive(Args, Clone, Debug)]
pub struct MqttSimArgs {
    /// How many traces, one for each seed from 0 on
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Folder for the pictures, made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// How to print the figures
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Output,
}

pub(super) async fn run(args: SimArgs) -> Result<(), ApiError> {
    let SimCommand::Mqtt(args) = args.what;
    let seeds = args.seeds;
    let simulate =
        move || (withhold::figure8(seeds, Reading::TEXT), withhold::figure9(seeds, Reading::TEXT));
    let (figure8, figure9) = tokio::task::spawn_blocking(simulate).await.map_err(|error| {
        ApiError::new(Code::INTERNAL, "the simulation ended by a fault of the program")
            .caused_by(error)
    })?;
    let is_json = args.output == Output::Json;
    print(&match is_json {
        true => format!("{:#}\n", serde_json::json!([object(&figure8), object(&figure9)])),
        false => format!("{figure8}\n{figure9}"),
    })?;
    let Some(folder) = args.svg else { return Ok(()) };
    for (name, plot) in pictures(&figure8, &figure9) {
        write(&folder, name, &plot)?;
    }
    if is_json {
        return Ok(());
    }
    print(&format!("\npictures: {}\n", folder.display()))
}

fn object(figure: &Figure) -> serde_json::Value {
    let point = |row: &Row| {
        serde_json::json!({
            "policy": row.contender.to_string(),
            "threshold_l_s": row.threshold_l_s,
            "period_s": row.period_s,
            "mean_s": row.mean_s,
            "ci95_s": row.ci95_s,
            "ci95_seeds_s": row.ci95_seeds_s,
        })
    };
    serde_json::json!({
        "title": figure.title,
        "rows": figure.rows.iter().map(point).collect::<Vec<_>>(),
    })
}

fn write(folder: &Path, name: &str, plot: &Plot) -> Result<(), ApiError> {
    let path = folder.join(name);
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, plot.to_svg())).map_err(
        |error| {
            let text = format!("{} cannot be written", path.display());
            ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
        },
    )
}

/// Figure 8, and figure 9 in two: its ten lines are too many for one picture.
fn pictures(figure8: &Figure, figure9: &Figure) -> [(&'static str, Plot); 3] {
    // Its value is not that of a default; the table has it.
    let shown = |row: &Row| row.contender != Contender::DeadlineOfD;
    let by_query = |contender: Contender| {
        move |row: &Row| row.contender == contender || !row.contender.is_by_query()
    };
    [
        ("figure8.svg", plot(figure8, shown)),
        ("figure9-conservative.svg", plot(figure9, by_query(Contender::Conservative))),
        ("figure9-historic.svg", plot(figure9, by_query(Contender::Historic))),
    ]
}

fn plot(figure: &Figure, shown: impl Fn(&Row) -> bool) -> Plot {
    let rows: Vec<Row> = figure.rows.iter().filter(|row| shown(row)).cloned().collect();
    let same = |a: &Row, b: &Row| (a.contender, a.period_s) == (b.contender, b.period_s);
    Plot {
        title: figure.title.clone(),
        x: "threshold_l (s)".to_owned(),
        y: "mean latency (s)".to_owned(),
        y_log: false,
        y_range: None,
        series: rows.chunk_by(same).flat_map(series).collect(),
    }
}

/// A line with its intervals of 95 %, level where `threshold_l` does not matter.
fn series(line: &[Row]) -> Vec<Series> {
    let first = &line[0];
    let ends = [THRESHOLDS_S[0], THRESHOLDS_S[THRESHOLDS_S.len() - 1]];
    let at = |row: &Row| row.threshold_l_s.unwrap_or(ends[0]);
    let ci95 = |row: &Row| row.ci95_seeds_s.unwrap_or(row.ci95_s);
    let name = match first.period_s {
        Some(period) => format!("{}, {period} s", first.contender),
        None => first.contender.to_string(),
    };
    let (mark, points) = if first.threshold_l_s.is_some() {
        (Mark::Line, line.iter().map(|row| (at(row), row.mean_s)).collect())
    } else {
        (Mark::Bound, ends.map(|x| (x, first.mean_s)).to_vec())
    };
    let interval =
        |row: &Row| [(at(row), row.mean_s - ci95(row)), (at(row), row.mean_s + ci95(row))];
    vec![
        Series { name, mark, points },
        Series {
            name: String::new(),
            mark: Mark::Interval,
            points: line.iter().flat_map(interval).collect(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_show_every_line_with_its_intervals() {
        let figures = (withhold::figure8(2, Reading::TEXT), withhold::figure9(2, Reading::TEXT));
        for ((name, plot), lines) in pictures(&figures.0, &figures.1).iter().zip([7, 7, 7]) {
            assert_eq!(plot.series.len(), 2 * lines, "{name}");
            let svg = plot.to_svg();
            assert!(svg.contains("without withholding") && !svg.contains("NaN"), "{name}");
        }
    }
}
