//! Files of configuration as this program writes them: the template of a new site, and single settings in a file that is there.

use std::path::{Path, absolute};

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
