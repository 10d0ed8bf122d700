//! The owners of a node's files, under any umask, and after commands of root.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tidegate_identity::pki::{self, InitRequest};
use tidegate_load::client::{Client, ClientError, Options};
use tidegate_wire::mqtt::ReasonCode;

use crate::program::{Program, options_of};

const MQTT: &str = "[mqtt]\nshards = 2\ndurability = \"disk\"\n[mqtt.listener.main]\nlisten = \"127.0.0.1:0\"\nallow_anonymous = false\n";

/// A user that no machine has.
const SERVICE: u32 = 64_711;

/// Exit status and output of a command with those arguments and that input.
fn run(folder: &Path, arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("--config")
        .arg(folder.join("tidegate.toml"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(input.as_bytes()).expect("it reads it");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code(), said.concat())
}

/// A client with that password of ada's; else the reason why she is refused.
fn come(program: &Program, password: &str) -> Result<Client, ReasonCode> {
    let options = Options {
        username: Some("ada".to_owned()),
        password: Some(password.as_bytes().to_vec()),
        client_id: "ada".to_owned(),
        ..options_of(program.address("main"))
    };
    match Client::connect(options) {
        Ok(client) => Ok(client),
        Err(ClientError::Refused { reason, .. }) => Err(reason),
        Err(error) => panic!("{error:?}"),
    }
}

/// All files and folders below, and the folder itself.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![folder.to_owned()];
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => all.extend(below(&path)),
            false => all.push(path),
        }
    }
    all
}

#[test]
fn commands_of_root_leave_a_service_its_files() {
    if tidegate_sys::folder::user() != 0 {
        println!("skipped: only root gives files to others");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let request = InitRequest { cameras: vec!["cam1".to_owned()], ..InitRequest::default() };
    pki::init(&folder.path().join("data/pki"), &request).expect("certificates");
    let users = folder.path().join("data/users");
    let users = users.to_str().expect("a name");
    fs::write(folder.path().join("tidegate.toml"), "# defaults\n").expect("a configuration");
    assert_eq!(run(folder.path(), &["passwd", users, "ada"], "first\n").0, Some(0));
    let mut program = Program::start_of_user(SERVICE, folder, MQTT);
    let at = format!("https://{}", program.api());
    drop(come(&program, "first").expect("it is hers"));

    // The node reads what a command has written, and the command says its answer.
    let home = program.path("");
    let command = |arguments: &[&str], input: &str, expected: &str| {
        let (status, said) = run(&home, arguments, input);
        assert!(status == Some(0) && said.contains(expected), "{arguments:?}: {status:?} {said}");
    };
    let users = program.path("data/users");
    let users = users.to_str().expect("a name");
    command(&["passwd", users, "ada"], "second\n", "config reload");
    command(&["config", "reload", "--node", &at], "", "read again");
    drop(come(&program, "second").expect("it is hers"));
    assert!(come(&program, "first").is_err(), "the former password");
    command(&["revoke", "cam1", "--node", &at], "", "the node has read its configuration again");
    command(&["init", "--add", "--camera", "cam2"], "", "cam2.pem");
    command(&["invite", "cam3", "--at", "127.0.0.1:1"], "", "");
    let own = program.path("data");
    for path in below(&own) {
        let found = fs::metadata(&path).expect("it is there");
        let (owner, mode) = ((found.uid(), found.gid()), found.mode() & 0o777);
        assert!(owner == (SERVICE, SERVICE) && mode & 0o022 == 0, "{path:?} {owner:?} {mode:o}");
    }
    // A certificate that was revoked is a problem, and no matter of owners.
    for file in ["cam1.pem", "cam1.key"] {
        fs::remove_file(own.join("pki").join(file)).expect("it was made");
    }
    command(&["doctor"], "", "cam2");

    // A file that the node cannot read is refused, and the command says so.
    chown(users, Some(0), Some(0)).expect("root may");
    fs::set_permissions(users, fs::Permissions::from_mode(0o600)).expect("root may");
    let (status, said) = run(&home, &["revoke", "cam2", "--node", &at], "");
    assert!(status == Some(2) && said.contains("users cannot be read"), "{status:?} {said}");
    // The next command that writes it gives it back.
    command(&["passwd", users, "ada"], "third\n", "config reload");
    let folder = program.stop_and_keep();
    program = Program::start_of_user(SERVICE, folder, MQTT);
    drop(come(&program, "third").expect("it is hers"));
    program.stop();
}

#[test]
fn node_takes_the_folders_that_it_made_under_any_umask() {
    for umask in ["002", "000"] {
        let mut folder = tempfile::tempdir().expect("a folder");
        pki::init(&folder.path().join("data/pki"), &InitRequest::default()).expect("certificates");
        for start in ["first", "second"] {
            let program = Program::start_with_umask(umask, folder, MQTT);
            program.line_with("node ready");
            for path in below(&program.path("data")) {
                let mode = fs::metadata(&path).expect("it is there").mode() & 0o777;
                assert_eq!(mode & 0o022, 0, "{umask}, {start} start: {path:?} has {mode:o}");
            }
            folder = program.stop_and_keep();
        }
    }
}
