//! The command line as users meet it.

use clap::CommandFactory;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_help_is_golden() {
    let mut command = Cli::command().term_width(100);
    let help = command.render_long_help().to_string();
    let subscribe = command.find_subcommand_mut("subscribe").unwrap();
    let text = format!("{help}\n---\n{}", subscribe.render_long_help());
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/help.txt");
    if std::env::var_os("TIDEGATE_GOLDEN").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap(), "TIDEGATE_GOLDEN=1 rewrites it");
}

#[test]
fn arguments_are_checked_with_a_way_out() {
    for (line, expected) in [
        (
            "tidegate subscribe cam1 --latency 100 --accuracy 0.9",
            "\"100\" is not a duration: a number with ns, us",
        ),
        ("tidegate subscribe ../x --latency 100ms --accuracy 0.9", "a camera name is made of"),
        (
            "tidegate subscribe cam1 --latency 100ms --accuracy 0.9 --controller pid",
            "budget mez-pi aimd fixed",
        ),
        (
            "tidegate subscribe cam1 --latency 100ms --accuracy 0.9 --from yesterday",
            "a time is written -30s",
        ),
        ("tidegate subscribe --latency 100ms --accuracy 0.9", "<CAMERA>"),
        ("tidegate fetch cam1", "<TIMESTAMP>"),
    ] {
        let error = parse(line).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(
        parse("tidegate subscribe a b --latency 100ms --accuracy 0.9 --from -30s --to now").is_ok()
    );
    assert!(parse("tidegate fetch cam1 1700000000.250000000 -o -").is_ok());
}
