//! How a site begins: without any configuration, by `tidegate init`, and by `tidegate join`.

use std::{
    collections::HashSet,
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use tidegate_load::client::Client;

use crate::program::{options_of, signal};

fn tidegate(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).current_dir(folder).env_remove("TIDEGATE_CONFIG").stdin(Stdio::null());
    command
}

fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = tidegate(folder, arguments).output().expect("the program");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// A node whose log is read line by line.
struct Node {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Node {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = tidegate(folder, arguments);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).env("TIDEGATE_LOG", "info");
        let mut child = command.spawn().expect("the program");
        let log = BufReader::new(child.stderr.take().expect("it was asked for"));
        Self { child, log }
    }

    fn line_with(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let bytes = self.log.read_line(&mut line).expect("its log");
            assert!(bytes > 0, "no line with {text:?} but:\n{seen}");
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    /// Reads until a line has been seen for each pair of texts, in whatever order: tasks write them.
    fn lines_with(&mut self, pairs: &[[&str; 2]]) {
        let mut wanted = pairs.to_vec();
        let mut seen = String::new();
        while !wanted.is_empty() {
            let mut line = String::new();
            let bytes = self.log.read_line(&mut line).expect("its log");
            assert!(bytes > 0, "no lines with {wanted:?} but:\n{seen}");
            wanted.retain(|texts| !texts.iter().all(|text| line.contains(text)));
            seen.push_str(&line);
        }
    }

    fn stop(mut self) {
        signal(self.child.id(), "TERM");
        assert!(self.child.wait().expect("it is our child").success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The local addresses of TCP that a process listens at, and its sockets of UDP, as the kernel lists them in hexadecimal digits.
fn listens_at(process: u32) -> Vec<String> {
    let folder = format!("/proc/{process}/fd");
    let sockets: HashSet<String> = fs::read_dir(folder)
        .expect("it runs")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let link = link.to_str()?.to_owned();
            Some(link.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for (table, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let text = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let parts: Vec<&str> = line.split_whitespace().collect();
            if parts[3] == state && sockets.contains(parts[9]) {
                found.push(format!("{table} {}", parts[1]));
            }
        }
    }
    found
}

#[test]
fn nothing_configured_serves_mqtt_on_this_machine_alone() {
    if Path::new("/etc/tidegate/tidegate.toml").exists() {
        println!("skipped: this machine has a configuration");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Any port will do; what is set is no reason to have certificates.
    let flags = ["--set", "mqtt.listener.main.listen=127.0.0.1:0", "node"];
    assert_eq!(
        done(folder.path(), &["config", "check"]),
        "nothing is wrong with the configuration\n"
    );
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "a check writes nothing");

    let mut node = Node::start(folder.path(), &flags);
    let line = node.line_with("MQTT served");
    let address = line.split_once("address=").expect("an address").1.trim();
    let address: SocketAddr = address.parse().expect("an address");
    assert!(address.ip().is_loopback());
    let line = node.line_with("nothing is configured");
    assert!(line.contains("MQTT alone") && line.contains("`tidegate init`"), "{line}");
    let open = listens_at(node.child.id());
    assert_eq!(open, [format!("tcp 0100007F:{:04X}", address.port())]);
    Client::connect(options_of(address)).expect("every client on this machine is accepted");
    // A reload goes by the same rules.
    signal(node.child.id(), "HUP");
    node.line_with("reloaded");
    node.stop();

    // A node with links needs certificates, and names the command that makes them.
    let flags_of_links = ["--set", "link.listen=127.0.0.1:0", "node"];
    let output = tidegate(folder.path(), &flags_of_links).output().expect("the program");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("`tidegate init --node edge`"), "{output:?}");

    // The site that begins there has a node with all that belongs to it.
    done(folder.path(), &["init"]);
    let mut node = Node::start(
        folder.path(),
        &[
            &["--set", "node.api_listen=127.0.0.1:0", "--set", "link.listen=127.0.0.1:0"],
            &flags[..],
        ]
        .concat(),
    );
    node.line_with("node ready");
    node.stop();
}

#[test]
fn init_writes_where_config_says_and_changes_nothing_that_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = folder.path().join("etc/site.toml");
    let named = ["--config", site.to_str().expect("text")];
    let init = |arguments: &[&str]| {
        let set = ["--set", "node.name=north", "--set", "link.listen=127.0.0.1:7999"];
        done(folder.path(), &[&named[..], &set, &["init"], arguments].concat())
    };
    let made = init(&["--camera", "yard"]);
    let text = fs::read_to_string(&site).expect("it was written where --config says");
    assert!(
        text.contains("\nname = \"north\"\n") && text.contains("\nlisten = \"127.0.0.1:7999\"\n")
    );
    let data = folder.path().join("etc/tidegate-data");
    for file in ["pki/ca.pem", "pki/north.pem", "pki/yard.pem", "pki/application.pem", "users"] {
        assert!(data.join(file).exists(), "no {file} beside the file: {made}");
    }
    assert!(!data.join("pki/edge.pem").exists());
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing elsewhere");
    assert!(made.contains("  ") && made.contains("not shown again"), "{made}");

    // Again: nothing is another one, and each part is said to be there.
    let all = |folder: &Path| -> Vec<(String, Vec<u8>)> {
        let files = fs::read_dir(folder.join("etc/tidegate-data/pki")).expect("a folder");
        let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        files.extend([site.clone(), data.join("users")]);
        files.sort();
        let read = |path: &std::path::PathBuf| fs::read(path).expect("a file");
        files.iter().map(|path| (path.display().to_string(), read(path))).collect()
    };
    let before = all(folder.path());
    let again = init(&[]);
    assert_eq!(all(folder.path()), before);
    for part in ["certificate of north", "configuration in", "user admin in"] {
        let line = again.lines().find(|line| line.starts_with(part)).expect(part);
        assert!(line.contains("as it was"), "{line}");
    }
    assert!(!again.contains("not shown again"), "{again}");

    // A camera that comes later, next to one that is there.
    let more = init(&["--camera", "yard", "--camera", "gate"]);
    assert!(data.join("pki/gate.pem").exists() && more.contains("gate.pem\n"), "{more}");
    assert!(more.contains("yard.pem, as it was"), "{more}");
    let after = all(folder.path());
    let changed: Vec<&str> = before
        .iter()
        .filter(|file| !after.contains(file))
        .map(|(path, _)| path.rsplit('/').next().expect("a name"))
        .collect();
    assert_eq!(changed, ["issued.txt"], "only the list of certificates is written on");

    // A node runs by the written configuration, from wherever it is started.
    assert_eq!(
        done(Path::new("/"), &[&named[..], &["config", "check"]].concat()),
        "nothing is wrong with the configuration\n"
    );
}

#[test]
fn cameras_of_the_configuration_follow_it_without_a_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let file = path.join("tidegate.toml");
    done(path, &["init"]);
    let settings = |cameras: &str| {
        let text = "[node]\napi_listen = \"127.0.0.1:0\"\n[link]\nlisten = \"127.0.0.1:0\"\n\
                    [log]\nformat = \"json\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n";
        fs::write(&file, format!("{text}{cameras}")).expect("a file");
    };
    let scene = "source = \"scene:street?size=320x240&fps=5&people=1\"\n";
    settings(&format!("[camera.hall]\n{scene}[camera.yard]\nsource = \"folder:none\"\n"));
    let mut node = Node::start(path, &["node"]);
    node.lines_with(&[
        ["camera online", "\"camera\":\"hall\""],
        ["camera online", "\"camera\":\"yard\""],
        ["the source has a fault", "cannot read none"],
    ]);

    // A mistake changes nothing, and is told with its line.
    settings(&format!("[camera.hall]\n{scene}[camera.gate]\nsource = \"scene:beach\"\n"));
    signal(node.child.id(), "HUP");
    let line = node.line_with("camera.gate.source");
    assert!(line.contains("tidegate.toml:"), "{line}");
    settings(&format!("[camera.hall]\n{scene}[camera.gate]\n{scene}"));
    signal(node.child.id(), "HUP");
    node.lines_with(&[
        ["camera started, stopped", "gate"],
        ["camera started, stopped", "yard"],
        ["camera online", "gate"],
    ]);

    // A substream comes beside its camera, which is not touched.
    let small = "substream = \"scene:street?size=320x180&fps=5&people=1\"\n";
    settings(&format!("[camera.hall]\n{scene}{small}[camera.gate]\n{scene}"));
    signal(node.child.id(), "HUP");
    let small = "\"camera\":\"hall-sub\"";
    node.lines_with(&[["camera started, stopped", small], ["camera online", small]]);
    node.stop();
}

#[test]
fn a_missing_certificate_names_the_command_that_makes_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = folder.path().join("site.toml");
    let named = ["--config", site.to_str().expect("text")];
    done(folder.path(), &[&named[..], &["init"]].concat());
    let ports = "[node]\nname = \"north\"\napi_listen = \"127.0.0.1:0\"\n[link]\nlisten = \"127.0.0.1:0\"\n";
    fs::write(&site, ports).expect("a file");
    for (arguments, command) in [
        (&["node"][..], "init --node north"),
        (&["config", "check"], "init --node north"),
        (&["camera", "--name", "gate"], "init --camera gate"),
        (&["cameras", "--as", "counter"], "init --application counter"),
    ] {
        let mut command_line = tidegate(Path::new("/"), &[&named[..], arguments].concat());
        let output = command_line.output().expect("the program");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let text = said(&output);
        let whole = format!("tidegate --config {} {command}", site.display());
        assert!(text.contains(&format!("`{whole}`")), "{arguments:?}: {text}");
        if arguments == ["node"] {
            continue;
        }
        // The command that it names helps.
        let words: Vec<&str> = whole.split(' ').skip(1).collect();
        done(folder.path(), &words);
    }
    assert_eq!(
        done(folder.path(), &[&named[..], &["config", "check"]].concat()),
        "nothing is wrong with the configuration\n"
    );
}

#[test]
fn a_node_that_joined_has_the_name_of_its_certificate() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one").port();
    let folder = tempfile::tempdir().expect("a folder");
    tidegate_identity::pki::init(&folder.path().join("tidegate-data/pki"), &Default::default())
        .expect("certificates");
    let text = format!(
        "[node]\napi_listen = \"127.0.0.1:0\"\nenrol_listen = \"127.0.0.1:{port}\"\n[link]\nlisten = \"127.0.0.1:0\"\n\
         [mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\n"
    );
    fs::write(folder.path().join("tidegate.toml"), text).expect("a file");
    let mut upper = Node::start(folder.path(), &["node"]);
    upper.line_with("node ready");

    let invite = |name: &str, kind: &str| {
        done(folder.path(), &["invite", name, "--kind", kind]).trim().to_owned()
    };
    // Without a file there is one with the name afterwards; a file that is there keeps all but the name.
    for (name, before) in [
        ("far-1", None),
        (
            "far-2",
            Some(
                "# mine\n[link]\nlisten = \"127.0.0.1:0\"\n[node]\n#name = \"edge\"\napi_listen = \"127.0.0.1:0\"\n",
            ),
        ),
    ] {
        let machine = tempfile::tempdir().expect("a folder");
        let file = machine.path().join("tidegate.toml");
        if let Some(text) = before {
            fs::write(&file, text).expect("a file");
        }
        let joined = done(machine.path(), &["join", &invite(name, "node")]);
        assert!(joined.contains(&format!("joined as node {name}")), "{joined}");
        let text = fs::read_to_string(&file).expect("it is there");
        assert!(text.contains(&format!("\nname = \"{name}\"\n")), "{text}");
        if let Some(before) = before {
            assert_eq!(text, before.replace("#name = \"edge\"", &format!("name = \"{name}\"")));
        }
        assert_eq!(
            done(machine.path(), &["config", "check"]),
            "nothing is wrong with the configuration\n"
        );
    }
    // A name that someone chose is not written over.
    let machine = tempfile::tempdir().expect("a folder");
    fs::write(machine.path().join("tidegate.toml"), "[node]\nname = \"own\"\n").expect("a file");
    let joined = done(machine.path(), &["join", &invite("far-3", "node")]);
    assert!(joined.contains("tidegate.toml:2 names the node own"), "{joined}");
    // A camera's owner learns how it is started.
    let machine = tempfile::tempdir().expect("a folder");
    let joined = done(machine.path(), &["join", &invite("gate", "camera")]);
    assert!(joined.contains("tidegate camera --name gate"), "{joined}");
    upper.stop();
}
