//! Files of configuration as this program writes them: the template of a new site, single settings in a file that is there, and whole
//! sections of cameras.
//!
//! Always true: all that is not written stays as it is, comments included; a comment right above a section goes with it.

use std::path::{Path, absolute};

use toml_edit::{DocumentMut, Item, Table, TomlError, value};

use super::{ConfigError, layers};

/// `text` with the setting of a flag `section.key=value`, where the section begins or in place of what was there; the rest stays as it
/// is. A path of a flag begins where the program runs, one in the file at `folder`.
///
/// # Errors
/// [`ConfigError::Flag`].
pub fn with_setting(text: &str, flag: &str, folder: &Path) -> Result<String, ConfigError> {
    let setting = layers::flag(flag)?;
    let value = match is_path(&setting.key) && !setting.text.is_empty() && !is_here(folder) {
        true => {
            absolute(&setting.text).map_or(setting.text.clone(), |path| path.display().to_string())
        }
        false => setting.text.clone(),
    };
    let is_bare = value == "true" || value == "false" || value.parse::<i64>().is_ok();
    let value = if is_bare { value } else { toml::Value::from(value).to_string() };
    let line = format!("{} = {value}", setting.key);
    let section = header(&setting.section);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let Some(begin) = lines.iter().position(|line| line.trim() == section) else {
        let gap = if lines.is_empty() { "" } else { "\n" };
        return Ok(format!("{}{gap}{section}\n{line}\n", ended(text)));
    };
    let end = lines[begin + 1..]
        .iter()
        .position(|line| line.trim_start().starts_with('['))
        .map_or(lines.len(), |at| begin + 1 + at);
    let key_of = |line: &str| {
        line.split_once('=').map(|(key, _)| key.trim().trim_start_matches('#').trim().to_owned())
    };
    let of_it = |line: &String| key_of(line).is_some_and(|key| key == setting.key);
    let is_set = |line: &String| !line.trim_start().starts_with('#');
    let places = || (begin + 1..end).filter(|at| of_it(&lines[*at]));
    match places().find(|at| is_set(&lines[*at])).or_else(|| places().next()) {
        Some(at) => lines[at] = line,
        None => lines.insert(begin + 1, line),
    }
    Ok(lines.join("\n") + "\n")
}

/// A value of a section that is written whole.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// A text.
    Text(String),
    /// A number; one without a fraction is written as a whole number.
    Number(f64),
}

/// Why a section was not written or taken out.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The text cannot be read. The line itself, which the parser would quote, may hold a secret.
    #[error("line {line} is no TOML: {message}")]
    Syntax {
        /// Where, counted from 1.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// The section is there already.
    #[error("it has [camera.{0}] already")]
    Exists(String),
    /// The section is not there.
    #[error("it has no [camera.{0}]")]
    Absent(String),
    /// Cameras are not written as sections.
    #[error("its cameras are the value of one key, not sections of their own; change it by hand")]
    Value,
}

/// `text` with a section `[camera.NAME]` of these settings behind all others.
///
/// # Errors
/// [`EditError`], but for [`EditError::Absent`].
pub fn with_camera(
    text: &str,
    name: &str,
    settings: &[(&str, Written)],
) -> Result<String, EditError> {
    let mut document = document_of(text)?;
    let cameras = document.entry(CAMERAS).or_insert_with(|| {
        let mut cameras = Table::new();
        cameras.set_implicit(true);
        Item::Table(cameras)
    });
    let cameras = cameras.as_table_mut().ok_or(EditError::Value)?;
    if cameras.contains_key(name) {
        return Err(EditError::Exists(name.to_owned()));
    }
    let mut section = Table::new();
    for (key, setting) in settings {
        let item = match setting {
            Written::Text(text) => value(text.as_str()),
            Written::Number(number) if number.fract() == 0.0 && number.abs() < 1e9 => {
                value(*number as i64)
            }
            Written::Number(number) => value(*number),
        };
        section.insert(key, item);
    }
    section.set_position(Some(isize::MAX));
    cameras.insert(name, Item::Table(section));
    // Comments at the end, such as settings that may be switched on, are the last section's and not the camera's.
    let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
    document.set_trailing("");
    let gap = if text.trim().is_empty() { "" } else { "\n" };
    let section = document[CAMERAS][name].as_table_mut().ok_or(EditError::Value)?;
    section.decor_mut().set_prefix(format!("{}{gap}", ended(&trailing)));
    Ok(document.to_string())
}

/// `text` without the section `[camera.NAME]`.
///
/// # Errors
/// [`EditError`], but for [`EditError::Exists`].
pub fn without_camera(text: &str, name: &str) -> Result<String, EditError> {
    let absent = || EditError::Absent(name.to_owned());
    let mut document = document_of(text)?;
    let cameras = document.get_mut(CAMERAS).ok_or_else(absent)?;
    let cameras = cameras.as_table_like_mut().ok_or(EditError::Value)?;
    let mut removed = vec![cameras.remove(name).ok_or_else(absent)?];
    if cameras.is_empty() {
        removed.extend(document.remove(CAMERAS));
    }
    // From behind: the comments above `[camera]` come before those above a section of it.
    for section in removed.iter().filter_map(Item::as_table) {
        keep_comments(&mut document, section);
    }
    Ok(document.to_string())
}

const CAMERAS: &str = "camera";

fn document_of(text: &str) -> Result<DocumentMut, EditError> {
    text.parse().map_err(|error: TomlError| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        EditError::Syntax { line, message: error.message().to_owned() }
    })
}

/// Puts the comments of the section before one that was taken out above the section behind it.
fn keep_comments(document: &mut DocumentMut, section: &Table) {
    let above = section.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
    let kept = of_the_section_before(above);
    if let Some(position) = section.position()
        && !kept.is_empty()
    {
        let mut next = None;
        find_next(document, &mut Vec::new(), position, &mut next);
        let next = next.map(|(_, path)| path).unwrap_or_default();
        match table_at(document, &next).filter(|_| !next.is_empty()) {
            Some(table) => {
                let own = table.decor().prefix().and_then(|prefix| prefix.as_str());
                let prefix = format!("{kept}{}", own.unwrap_or_default());
                table.decor_mut().set_prefix(prefix);
            }
            None => {
                let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
                document.set_trailing(format!("{kept}{trailing}"));
            }
        }
    }
}

/// Of the comments above a section, those that a blank line parts from it: they stand at the end of the section before.
fn of_the_section_before(above: &str) -> &str {
    let mut end = 0;
    let mut at = 0;
    for line in above.split_inclusive('\n') {
        if line.trim().is_empty() {
            end = at;
        }
        at += line.len();
    }
    &above[..end]
}

/// The section to which these keys lead.
fn table_at<'document>(
    document: &'document mut DocumentMut,
    path: &[String],
) -> Option<&'document mut Table> {
    let begin = document.as_item_mut();
    let item = path.iter().try_fold(begin, |item, key| item.get_mut(key.as_str()));
    item.and_then(Item::as_table_mut)
}

/// The first section behind that position, by the keys that lead to it.
fn find_next(
    table: &Table,
    path: &mut Vec<String>,
    behind: isize,
    found: &mut Option<(isize, Vec<String>)>,
) {
    for (key, item) in table {
        let Item::Table(below) = item else { continue };
        path.push(key.to_owned());
        let position = below.position().filter(|_| !below.is_implicit() && !below.is_dotted());
        if let Some(position) = position.filter(|position| *position > behind)
            && found.as_ref().is_none_or(|(nearest, _)| position < *nearest)
        {
            *found = Some((position, path.clone()));
        }
        find_next(below, path, behind, found);
        path.pop();
    }
}

/// `[mqtt.listener.main]`, with quotes around a name that needs them.
fn header(section: &str) -> String {
    match section.rsplit_once('.') {
        Some((prefix, name)) => format!("[{prefix}.{}]", super::value::key(name)),
        None => format!("[{section}]"),
    }
}

fn ended(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

fn is_here(folder: &Path) -> bool {
    [Path::new(""), Path::new(".")].contains(&folder)
}

fn is_path(key: &str) -> bool {
    ["_dir", "_file", "_ca", "_crl"].iter().any(|end| key.ends_with(end))
        || ["file", "certificate", "key", "ca"].contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_put_where_its_section_is_and_the_rest_stays() {
        let text = "# mine\n[node]\n# Name.\n#name = \"edge\"\nname = \"old\" # why\n\n[link]\nlisten = \"127.0.0.1:1\"\n";
        for (flag, expected) in [
            (
                "node.name=north",
                "# mine\n[node]\n# Name.\n#name = \"edge\"\nname = \"north\"\n\n[link]\nlisten = \"127.0.0.1:1\"\n",
            ),
            (
                "link.max_reconnects=3",
                "# mine\n[node]\n# Name.\n#name = \"edge\"\nname = \"old\" # why\n\n[link]\nmax_reconnects = 3\nlisten = \"127.0.0.1:1\"\n",
            ),
            (
                "mqtt.listener.main.listen=0.0.0.0:1883",
                "# mine\n[node]\n# Name.\n#name = \"edge\"\nname = \"old\" # why\n\n[link]\nlisten = \"127.0.0.1:1\"\n\n[mqtt.listener.main]\nlisten = \"0.0.0.0:1883\"\n",
            ),
        ] {
            assert_eq!(with_setting(text, flag, Path::new("")).unwrap(), expected);
        }
        assert_eq!(with_setting("", "a.b=x", Path::new("")).unwrap(), "[a]\nb = \"x\"\n");
        assert!(with_setting("", "a", Path::new("")).is_err());
        let elsewhere = with_setting("", "node.data_dir=x", Path::new("/etc")).unwrap();
        assert!(elsewhere.contains(&absolute("x").unwrap().display().to_string()), "{elsewhere}");
    }

    #[test]
    fn a_camera_comes_behind_all_else_and_goes_without_a_trace() {
        let settings = [
            ("source", Written::Text("rtsp://me@cam/1?a=\"b\"".to_owned())),
            ("fps", Written::Number(2.0)),
        ];
        let hall = "[camera.hall]\nsource = 'rtsp://me@cam/1?a=\"b\"'\nfps = 2\n";
        for text in [
            "",
            "# a site\n",
            "# mine\n[node] # the node\nname = \"north\"  # why\n# enrol_listen = \"0.0.0.0:7444\"\n",
            "[camera.yard]\nsource = \"scene:street\"\n\n[log.camera.yard]\nage = \"1h\"\n",
            "[camera]\nyard.source = \"scene:street\"\n\n# of the log\n[log]\n",
        ] {
            let with = with_camera(text, "hall", &settings).unwrap();
            assert!(with.starts_with(text) && with.ends_with(hall), "{with}");
            let table: toml::Table = with.parse().unwrap();
            let section = &table["camera"]["hall"];
            assert_eq!(section["source"].as_str(), Some("rtsp://me@cam/1?a=\"b\""));
            let error = with_camera(&with, "hall", &settings).unwrap_err();
            assert_eq!(error.to_string(), "it has [camera.hall] already");
            let without = without_camera(&with, "hall").unwrap();
            assert_eq!(without.trim_end(), text.trim_end());
            assert!(matches!(without_camera(&without, "hall"), Err(EditError::Absent(_))));
        }
        let twice = with_camera(&with_camera("", "hall", &settings).unwrap(), "a.b", &settings);
        let twice = twice.unwrap();
        assert!(twice.contains("fps = 2\n\n[camera.\"a.b\"]\n"), "{twice}");
        assert_eq!(without_camera(&twice, "a.b").unwrap(), hall);
        assert!(matches!(with_camera("camera = 3\n", "a", &settings), Err(EditError::Value)));
        assert!(matches!(
            with_camera("[node\n", "a", &settings),
            Err(EditError::Syntax { line: 1, .. })
        ));
    }

    #[test]
    fn comments_stay_with_the_section_that_they_belong_to() {
        let text = "[node]\nname = \"a\"\n# health_listen = \"x\"\n\n# the hall\n[camera.hall]\nsource = \"scene:street\"\n# fps = 3\n\n\
                    # the yard\n[camera.yard]\nsource = \"scene:street\"\n\n# the log\n[log]\n";
        assert_eq!(
            without_camera(text, "hall").unwrap(),
            "[node]\nname = \"a\"\n# health_listen = \"x\"\n# fps = 3\n\n# the yard\n[camera.yard]\nsource = \"scene:street\"\n\n\
             # the log\n[log]\n"
        );
        let last = "[node]\nname = \"a\"\n# health_listen = \"x\"\n\n[camera.hall]\nsource = \"scene:street\"\n";
        assert_eq!(
            without_camera(last, "hall").unwrap(),
            "[node]\nname = \"a\"\n# health_listen = \"x\"\n"
        );
    }

    #[test]
    fn the_last_camera_leaves_the_comments_of_the_section_before() {
        let before = "[node]\nname = \"a\"\n# health_listen = \"x\"\n";
        let behind = "\n# of the log\n[log]\n";
        for cameras in [
            "[camera]\nhall.source = \"scene:street\"\n",
            "[camera]\nhall = { source = \"scene:street\" }\n",
            "# our cameras\n[camera]\n[camera.hall]\nsource = \"scene:street\"\n",
        ] {
            for behind in ["", behind] {
                let text = format!("{before}\n{cameras}{behind}");
                let without = without_camera(&text, "hall").unwrap();
                assert_eq!(without, format!("{before}{behind}"), "{text}");
            }
        }
        let both =
            "[camera]\n# yard.source = \"folder:x\"\n\n[camera.hall]\nsource = \"scene:street\"\n";
        let text = format!("{before}\n{both}{behind}");
        let kept = "# yard.source = \"folder:x\"\n";
        assert_eq!(without_camera(&text, "hall").unwrap(), format!("{before}{kept}{behind}"));
    }

    #[test]
    fn the_template_takes_a_camera() {
        let template = crate::Config::template();
        let settings = [("source", Written::Text("folder:pictures".to_owned()))];
        let text = with_camera(&template, "hall", &settings).unwrap();
        let config = crate::Config::parse(Path::new("x.toml"), &text).unwrap();
        assert_eq!(config.cameras["hall"].source.expose(), "folder:pictures");
        assert!(text.starts_with(&template), "its comments stay where they are");
    }

    #[test]
    fn the_template_takes_every_setting() {
        let text = crate::Config::template();
        let mut written = text.clone();
        let flags = [
            "node.name=north",
            "mqtt.shards=3",
            "mqtt.listener.main.listen=127.0.0.1:0",
            "sink.a.topics=#",
        ];
        for flag in flags {
            written = with_setting(&written, flag, Path::new("")).unwrap();
        }
        let config = crate::Config::parse(Path::new("x.toml"), &written).unwrap();
        assert_eq!((config.node.name.as_str(), config.mqtt.shards), ("north", 3));
        assert_eq!(config.mqtt_listeners["main"].listen.known()[0].port(), 0);
        assert_eq!(config.sinks["a"].topics, "#");
    }
}
