//! Claims about real namespaces. They need root and /dev/net/tun, and say so loudly where they skip.

use std::{
    io::Read,
    net::UdpSocket,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use tidegate_netlab::{Lab, LabError, Options, control};
use tidegate_sim::medium::Scenario;

const TWO: &str = "seed = 1\n[[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"100Mbit\"\n\
     delay = \"5ms\"\nport = [ { node = \"a\" }, { node = \"b\" } ]\n";

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, Path::new("")).unwrap_or_else(|error| panic!("{error}"))
}

/// A lab, or `None` where this machine cannot make one.
fn lab(text: &str, options: &Options) -> Option<Lab> {
    match Lab::up(&scenario(text), options) {
        Ok(lab) => Some(lab),
        Err(error @ LabError::NeedsRoot { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn bind(lab: &Lab, node: &str) -> UdpSocket {
    let address = (lab.address(node).unwrap(), 7000);
    let socket = lab.within(node, || UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

#[test]
fn labs_run_side_by_side_and_leave_nothing() {
    let Some(first) = lab(TWO, &Options::default()) else { return };
    let Some(second) = lab(TWO, &Options::default()) else { return };
    let mut names = Vec::new();
    for lab in [&first, &second] {
        let (a, b) = (bind(lab, "a"), bind(lab, "b"));
        a.send_to(b"hello", b.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(b.recv(&mut buffer).unwrap(), 5);
        names.extend(lab.nodes().iter().map(|node| node.namespace().to_owned()));
    }
    let exists = |name: &String| Path::new("/run/netns").join(name).exists();
    assert!(names.iter().all(exists));
    let audit = first.finish().unwrap();
    assert_eq!(audit.delivered, 1);
    assert_eq!((audit.refused, audit.kernel_dropped), (0, 0));
    drop(second);
    assert!(!names.iter().any(exists), "{names:?}");
}

#[test]
fn a_failed_start_leaves_nothing() {
    let taken = tempfile::NamedTempFile::new().unwrap();
    let prefix = format!("tgfail{}-", std::process::id());
    let options = Options {
        control: Some(taken.path().into()),
        prefix: Some(prefix.clone()),
        ..Options::default()
    };
    match Lab::up(&scenario(TWO), &options) {
        Err(LabError::Control { .. }) => {}
        Err(error @ LabError::NeedsRoot { .. }) => {
            return eprintln!("skipped: {error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!Path::new("/run/netns").join(format!("{prefix}a")).exists());
}

#[test]
fn processes_run_inside_their_node() {
    let Some(lab) = lab(TWO, &Options::default()) else { return };
    let mut command = Command::new("cat");
    command.arg("/proc/self/net/dev").stdout(Stdio::piped());
    let mut child = lab.exec("b", command).unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(text.contains("wan0:"), "{text}");
    let missing = lab.exec("b", Command::new("/no/such/program"));
    assert!(matches!(missing, Err(LabError::Spawn { .. })));
    let error = lab.exec("c", Command::new("true")).unwrap_err();
    assert_eq!(error.to_string(), "no node \"c\"; there are: a b");
}

#[test]
fn a_link_is_cut_and_joined_live() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("lab.ctl");
    let options = Options { control: Some(socket.clone()), ..Options::default() };
    let Some(lab) = lab(TWO, &options) else { return };
    let (a, b) = (bind(&lab, "a"), bind(&lab, "b"));
    lab.apply("wan0 factor=0".parse().unwrap()).unwrap();
    a.send_to(b"waits", b.local_addr().unwrap()).unwrap();
    b.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(b.recv(&mut [0; 16]).is_err(), "nothing passes a cut link");
    assert_eq!(control::ask(&socket, "set wan0 factor=1").unwrap(), "ok\n");
    b.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(b.recv(&mut [0; 16]).unwrap(), 5, "waiting packets come when it is joined");
    assert!(control::ask(&socket, "stat").unwrap().contains("wan0"));
    assert!(control::ask(&socket, "set wan9 factor=1").is_err());
    drop(lab);
    assert!(!socket.exists(), "the control socket goes with the lab");
}
