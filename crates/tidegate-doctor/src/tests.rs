//! Data folders as nodes leave them, and what may be done to them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tempfile::TempDir;
use tidegate_camera::frame_log::{self, FrameLog, FrameLogSettings, LogName, Place};
use tidegate_identity::pki::{self, InitRequest};
use tidegate_log::{Durability, LogConfig, NodeKey, NodeKeys};

use super::*;

/// The logs of a process are finished together: a test that has some open keeps the others from waiting for them in its place.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A data folder with certificates and the log of a camera with so many frames.
fn site(frames: u32, keys: Option<NodeKeys>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let request = InitRequest { cameras: vec!["cam1".to_owned()], ..InitRequest::default() };
    pki::init(&folder.path().join("pki"), &request).unwrap();
    let config = FrameLogSettings {
        size: LogConfig { bytes_max: 1 << 20, segment_bytes: 64 << 10 },
        age: None,
        place: Place::Files {
            data_dir: folder.path().to_owned(),
            durability: Durability::Page,
            keys: keys.map(Arc::new),
        },
    };
    let name = LogName::Camera("cam1".parse().unwrap());
    let _alone = alone();
    let opened = FrameLog::open(&config, &name).unwrap();
    for _ in 0..frames {
        opened.writer.append(clock::now(), b"meta", &Bytes::from(vec![7; 1000])).unwrap();
    }
    drop(opened);
    tidegate_camera::frame_log::finish();
    folder
}

fn look(folder: &Path, more: &str) -> Examination {
    let text = format!("[node]\ndata_dir = {folder:?}\n{more}");
    examine(Config::parse(Path::new("site.toml"), &text).map_err(ApiError::from))
}

/// The problems, as file name and text.
fn problems(found: &Examination) -> Vec<(String, &str)> {
    let problems = found.findings.iter().filter(|f| f.severity == Severity::Problem);
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    problems.map(|finding| (name(&finding.path), finding.text.as_str())).collect()
}

/// Every file and folder below, with its length and its mode.
fn contents(folder: &Path) -> Vec<(PathBuf, u64, u32)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let metadata = entry.metadata().unwrap();
        all.push((entry.path(), metadata.len(), metadata.permissions().mode()));
        if metadata.is_dir() {
            all.extend(contents(&entry.path()));
        }
    }
    all.sort();
    all
}

#[test]
fn a_sound_folder_has_no_problems_and_is_not_changed() {
    let site = site(200, None);
    let before = contents(site.path());
    let found = look(site.path(), "");
    assert!(problems(&found).is_empty(), "{found}");
    assert_eq!(contents(site.path()), before);
    let names: Vec<&str> = found.certificates.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["application", "ca", "cam1", "edge"]);
    let camera = &found.certificates[2];
    assert_eq!(camera.of.as_deref(), Some("camera cam1"));
    assert!((3640..3655).contains(&camera.days_left), "{}", camera.days_left);
    let [log] = &found.logs[..] else { panic!("{:?}", found.logs) };
    assert_eq!((log.name.as_str(), log.frames, log.lost, log.sealed), ("camera/cam1", 200, 0, 0));
    assert!(log.segments >= 3 && !log.in_use && log.oldest < log.newest);
    let text = found.to_string();
    assert!(text.contains("200 frames of 0.2 MB in") && text.ends_with("no problems\n"), "{text}");
    let json: serde_json::Value = serde_json::to_value(&found).unwrap();
    assert_eq!(json["logs"][0]["frames"], 200);
    assert_eq!(json["findings"][0]["severity"], "note", "the authority's key is here");
}

#[test]
fn problems_of_files_are_reported_by_file() {
    let site = site(200, None);
    let log = site.path().join("log/camera/cam1");
    let segment = |number: u32| log.join(format!("{number:016x}.segment"));
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&site.path().join("pki/edge.key"), 0o644);
    mode(&segment(1), 0o666);
    let mut bytes = fs::read(segment(0)).unwrap();
    bytes[20_000] ^= 1;
    fs::write(segment(0), bytes).unwrap();
    fs::rename(segment(2), log.join("0000000000000002.damaged")).unwrap();
    symlink("/etc/passwd", log.join("0000000000000009.segment")).unwrap();
    fs::write(log.join("notes.txt"), "not ours").unwrap();
    fs::write(site.path().join("pki/application.pem"), "not a certificate").unwrap();
    let found = look(site.path(), "");
    let told = problems(&found);
    for (name, text) in [
        ("edge.key", "others may read it"),
        ("0000000000000001.segment", "others may write to it"),
        ("0000000000000000.segment", "1 frames in it are damaged"),
        ("0000000000000002.damaged", "set it aside"),
        ("0000000000000009.segment", "this is a link"),
        ("application.pem", "its dates cannot be read"),
    ] {
        let is_told = told.iter().any(|(of, what)| of == name && what.contains(text));
        assert!(is_told, "{name}: {text}\n{told:?}");
    }
    assert_eq!(told.len(), 6, "{told:?}");
    assert!(found.findings.iter().any(|f| f.path.ends_with("notes.txt")));
    assert_eq!(found.logs[0].set_aside, ["0000000000000002.damaged"]);
    assert!(found.has_problems());
}

#[test]
fn a_log_of_zeros_is_told_and_a_start_sets_it_aside() {
    // All of it, all but the newest, and one in the middle.
    for which in [|_, _| true, |at, last| at < last, |at, _| at == 1] {
        let which: fn(usize, usize) -> bool = which;
        let site = site(200, None);
        let log = site.path().join("log/camera/cam1");
        let mut names: Vec<String> = contents(&log)
            .iter()
            .filter_map(|(path, ..)| Some(path.file_name()?.to_str()?.to_owned()))
            .collect();
        names.retain(|name| name.ends_with(".segment"));
        assert!(names.len() >= 3, "{names:?}");
        let emptied = names.iter().enumerate().filter(|(at, _)| which(*at, names.len() - 1));
        let emptied: Vec<&String> = emptied.map(|(_, name)| name).collect();
        for name in &emptied {
            let bytes = fs::read(log.join(name)).unwrap().len();
            fs::write(log.join(name), vec![0; bytes]).unwrap();
        }
        let found = look(site.path(), "");
        let told: Vec<String> = problems(&found)
            .into_iter()
            .filter(|(_, text)| text.contains("nothing but zeros"))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(told.iter().collect::<Vec<_>>(), emptied, "{found}");
        let config = FrameLogSettings {
            size: LogConfig { bytes_max: 1 << 20, segment_bytes: 64 << 10 },
            age: None,
            place: Place::Files {
                data_dir: site.path().to_owned(),
                durability: Durability::Page,
                keys: None,
            },
        };
        let name = LogName::Camera("cam1".parse().unwrap());
        {
            let _alone = alone();
            drop(FrameLog::open(&config, &name).unwrap());
            frame_log::finish();
        }
        for name in emptied {
            assert!(log.join(name.replace(".segment", ".damaged")).exists(), "{name}");
        }
    }
}

#[test]
fn the_journals_of_mqtt_are_known_and_nobody_is_told_to_remove_them() {
    let site = site(10, None);
    let journals = site.path().join("log/mqtt");
    for folder in ["00000007/000", "00000007/001", "00000008.new/000"] {
        fs::create_dir_all(journals.join(folder)).unwrap();
    }
    fs::write(journals.join("00000007/000/0000000000000000.segment"), vec![0_u8; 4096]).unwrap();
    let found = look(site.path(), "");
    assert!(problems(&found).is_empty(), "{found}");
    fs::create_dir(journals.join("00000003.aside")).unwrap();
    symlink("/nowhere", site.path().join("log/camera/cam1/link")).unwrap();
    fs::create_dir(site.path().join("log/camera/cam1/folder")).unwrap();
    let found = look(site.path(), "");
    let told = problems(&found);
    for (name, text) in
        [("00000003.aside", "set it aside"), ("link", "a link"), ("folder", "not a plain file")]
    {
        let is_told = told.iter().any(|(of, what)| of == name && what.contains(text));
        assert!(is_told, "{name}: {told:?}");
    }
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().all(|(_, text)| !text.contains("remove")), "{told:?}");
}

#[test]
fn a_sealed_log_is_told_with_its_key() {
    let keys = NodeKeys { current: NodeKey::from_bytes([1; 32]), older: Vec::new() };
    let site = site(200, Some(keys.clone()));
    let id = keys.current.id().to_string();
    let found = look(site.path(), "");
    assert_eq!(found.logs[0].keys, [id.as_str()]);
    let is_told = |found: &Examination, text: &str| {
        problems(found).iter().any(|(name, what)| name.ends_with(".segment") && what.contains(text))
    };
    assert!(is_told(&found, "log.at_rest is clear"), "{found}");

    let right = site.path().join("right.key");
    let text = format!("tidegate-node-key 1\nrandom {}\n", "01".repeat(32));
    fs::write(&right, text).unwrap();
    fs::set_permissions(&right, fs::Permissions::from_mode(0o600)).unwrap();
    let wrong = site.path().join("wrong.key");
    tidegate_log::KeyFile::create(&wrong).unwrap();
    let sealed = |path: &Path| format!("[log]\nat_rest = \"sealed\"\nkey_file = {path:?}\n");
    let found = look(site.path(), &sealed(&right));
    assert!(problems(&found).is_empty(), "{found}");
    let found = look(site.path(), &sealed(&wrong));
    assert!(is_told(&found, &format!("sealed with the key {id}")), "{found}");
    let found = look(site.path(), &sealed(&site.path().join("missing.key")));
    assert!(problems(&found)[0].1.contains("log.key_file"), "{found}");
}

#[test]
fn a_wrong_configuration_and_a_missing_folder_are_problems() {
    let found = examine(Err(ApiError::new(tidegate_message::Code::CONFIG_INVALID, "it is wrong")));
    assert!(problems(&found).contains(&("configuration".to_owned(), "it is wrong")), "{found}");
    let empty = tempfile::tempdir().unwrap();
    let found = look(&empty.path().join("none"), "");
    assert!(found.has_problems() && found.logs.is_empty());
}

#[test]
fn root_looks_as_the_user_of_the_folder() {
    if tidegate_sys::folder::user() != 0 {
        println!("skipped: only root gives files to others");
        return;
    }
    let site = site(200, None);
    let give = |path: &Path, user| chown(path, Some(user), Some(user)).unwrap();
    give(site.path(), 4_711);
    contents(site.path()).iter().for_each(|(path, ..)| give(path, 4_711));
    let found = look(site.path(), "");
    assert!(problems(&found).is_empty(), "{found}");
    assert_eq!(found.logs[0].frames, 200);
    // The node cannot use what root has left there.
    give(&site.path().join("pki/edge.key"), 0);
    let found = look(site.path(), "");
    let [(name, text)] = &problems(&found)[..] else { panic!("{found}") };
    assert_eq!(name, "edge.key");
    assert!(text.contains("user 0") && text.contains("user 4711, who cannot use it"), "{text}");
}

#[test]
fn the_state_of_a_member_is_read_and_damage_of_it_is_a_problem() {
    let folder = site(1, None);
    let fabric = folder.path().join("state/fabric");
    let more = "[fabric]\nenabled = true\nseeds = \"core:7443\"\n";
    assert_eq!(problems(&look(folder.path(), more)), [], "it was never a member");
    fs::create_dir_all(&fabric).unwrap();
    fs::set_permissions(folder.path().join("state"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(&fabric, fs::Permissions::from_mode(0o700)).unwrap();
    let put = |name: &str, bytes: &[u8]| {
        fs::write(fabric.join(name), bytes).unwrap();
        fs::set_permissions(fabric.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    };
    // Start, number and version of 8 bytes each, that it has not left, and no words; a record of another member.
    let own = [&[1][..], &[7; 24], &[0], &[0, 0]].concat();
    let records = [&[1, 1][..], &[9; 32], &[1; 8], &3_u32.to_le_bytes(), b"abc"].concat();
    put("own", &own);
    put("records", &records);
    let found = look(folder.path(), more);
    assert_eq!(problems(&found), []);
    let has = |found: &Examination, text: &str| found.findings.iter().any(|one| one.text == text);
    assert!(has(&found, "a member; it knows of 1 more"), "{found:?}");
    assert!(has(
        &look(folder.path(), ""),
        "fabric.enabled is false: what it knows of 1 members is not used"
    ));
    put("own", &own[..9]);
    let found = look(folder.path(), more);
    let text = "the file of the member itself ends within number: the node begins without it";
    assert_eq!(problems(&found), [("fabric".to_owned(), text)]);
    fs::set_permissions(fabric.join("own"), fs::Permissions::from_mode(0o644)).unwrap();
    let found = look(folder.path(), more);
    assert!(problems(&found).iter().any(|(name, _)| name == "own"), "others may read it");
}
