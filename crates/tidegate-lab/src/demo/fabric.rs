//! The demonstration of many nodes as one: eight nodes in two regions, each with a client, and four faults.
//!
//! ```text
//!  w1 … w4 ══ west ══ a line of 20 Mbit/s, 15 ms each way ══ east ══ e1 … e4      each node: a client, an observer
//! ```
//!
//! Nodes are the program `tidegate` with its `node` command in network namespaces, configured by files; a node's line leads to the router of its
//! region. A client at each node publishes five messages a second and subscribes to those of all; an observer at each looks at the members by the
//! API of that node. Then one node is killed, one hangs, one is cut off and one is revoked, and the times are noted at which the others see it.
//! The verdict: all that nodes acknowledged came to every subscriber, whichever fault was under way; each fault was seen in its time, and nothing
//! passes to or from the node that is revoked.
//!
//! Always true: everything that was started is ended, and every namespace removed, however the run ends.

mod clients;
mod show;
mod stage;
mod verdict;
mod watch;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tidegate_api::{ApiError, Place};
use tidegate_message::Code;
use tidegate_netlab::{Lab, LabError, Options};
use tidegate_sim::medium::Scenario;
use tokio_util::sync::CancellationToken;

use self::{
    clients::Told,
    show::Show,
    stage::{Stage, finished},
    verdict::{Check, Out, Seen, are_in_time, seen_text},
    watch::Sight,
};
use super::{
    failed, lab_failed,
    network::{joined, within},
    stage::ClientOptions,
    storage,
};

/// A node of the demonstration.
#[derive(Clone, Copy, Debug)]
struct Node {
    name: &'static str,
    is_east: bool,
    position: &'static str,
}

/// The nodes, those of the west first. The first of each region is a seed of all. In each region two and two are neighbours, so that its cell has
/// all four: a cell is divided while a half of it still has three members.
const NODES: [Node; 8] = [
    west("w1", "52.3731, 4.8922"),
    west("w2", "52.3732, 4.8923"),
    west("w3", "52.3376, 4.9441"),
    west("w4", "52.3377, 4.9442"),
    east("e1", "48.1372, 11.5755"),
    east("e2", "48.1373, 11.5756"),
    east("e3", "48.1120, 11.6200"),
    east("e4", "48.1121, 11.6201"),
];
/// Where the key of the authority is, and the camera; and the nodes that a fault befalls.
const AUTHORITY: usize = 0;
const CAMERA_AT: usize = 1;
const CUT: usize = 2;
const KILLED: usize = 5;
const HUNG: usize = 6;
const REVOKED: usize = 7;
/// The nodes that no fault befalls.
const UNTOUCHED: [usize; 4] = [0, 1, 3, 4];
/// The camera's name.
const CAMERA: &str = "door";
/// Subscribes late, and the node at which is published then.
const LATE: (usize, usize) = (3, 4);

/// For all nodes to be linked to all.
const FORM_MAX: Duration = Duration::from_secs(30);
/// The end of a process is seen at once: as soon as its sockets end. Observers look every 100 ms, and nodes show a change as late.
const KILLED_MAX: Duration = Duration::from_millis(500);
/// A silent member is missed after 3 s, and an observer's time.
const SILENT_MAX: Duration = Duration::from_millis(3_500);
/// A revoked member is out within a second after a node has the list, and an observer's time.
const REVOKED_MAX: Duration = Duration::from_millis(1_500);
/// For a member that is back to be linked to all: dials are a second apart at the most, and a process has to start.
const BACK_MAX: Duration = Duration::from_secs(10);
/// Longest wait until a fault is seen, whether in time or not.
const FAULT_MAX: Duration = Duration::from_secs(8);
/// How long nothing happens: at the begin, and between two faults.
const QUIET: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_secs(1);
/// Once no client publishes, all has arrived when nothing came for so long; that is waited for so long.
const SETTLED: Duration = Duration::from_millis(1_500);
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// How often the state of the nodes is looked at.
const LOOK: Duration = Duration::from_millis(10);

const fn west(name: &'static str, position: &'static str) -> Node {
    Node { name, is_east: false, position }
}

const fn east(name: &'static str, position: &'static str) -> Node {
    Node { name, is_east: true, position }
}

impl Node {
    /// The network of its line, of which the router of its region has the first address and the node the second.
    fn network(&self) -> [u8; 3] {
        let line = NODES.iter().position(|node| node.name == self.name).map_or(0, |line| line + 1);
        [10, if self.is_east { 82 } else { 81 }, u8::try_from(line).unwrap_or(u8::MAX)]
    }

    fn address(&self) -> Ipv4Addr {
        let [a, b, c] = self.network();
        Ipv4Addr::new(a, b, c, 2)
    }
}

/// A line for each node, which can be cut without harm to others, and one between the routers of the regions.
fn scenario_text() -> String {
    let mut text = String::from(
        "seed = 13\n\
         [[medium]]\nname = \"wan0\"\nkind = \"wan\"\nrate = \"20Mbit\"\ndelay = \"15ms\"\nqueue = \"256KiB\"\nport = [\n\
         { node = \"west\", address = \"10.80.0.1/24\", routes = [\"10.82.0.0/16\"] },\n\
         { node = \"east\", address = \"10.80.0.2/24\", routes = [\"10.81.0.0/16\"] },\n]\n",
    );
    for node in &NODES {
        let (name, router) = (node.name, if node.is_east { "east" } else { "west" });
        let [a, b, c] = node.network();
        text += &format!(
            "[[medium]]\nname = \"{name}\"\nkind = \"wan\"\nrate = \"100Mbit\"\nqueue = \"64KiB\"\nport = [\n\
             {{ node = \"{router}\", address = \"{a}.{b}.{c}.1/24\" }},\n\
             {{ node = \"{name}\", address = \"{a}.{b}.{c}.2/24\", default_route = true }},\n]\n",
        );
    }
    text
}

/// The demonstration to run.
#[derive(Clone, Debug)]
pub struct FabricDemoOptions {
    /// The program that nodes run.
    pub program: PathBuf,
    /// The folder in which the folders and logs of the nodes stay; none to remove them.
    pub keep: Option<PathBuf>,
}

/// Its result.
#[derive(Clone, Debug)]
pub struct FabricRun {
    /// Each with its finding and whether it holds.
    pub checks: Vec<(&'static str, String, bool)>,
}

/// State that the threads of the demonstration share.
#[derive(Debug, Default)]
struct Board {
    sights: [Mutex<Shown>; NODES.len()],
    /// Whether the client of each node has been connected.
    connected: [AtomicBool; NODES.len()],
    /// Messages that nodes have acknowledged, and deliveries to clients.
    sent: AtomicU64,
    arrived: AtomicU64,
    is_sending: AtomicBool,
    is_over: AtomicBool,
}

/// The members as a node shows them; the reason while it shows none.
#[derive(Clone, Debug, Default)]
struct Shown {
    sight: Option<Sight>,
    why_not: String,
}

impl Board {
    fn show(&self, node: usize, shown: Result<Sight, String>) {
        let mut at = self.sights[node].lock().unwrap_or_else(PoisonError::into_inner);
        *at = match shown {
            Ok(sight) => Shown { sight: Some(sight), why_not: String::new() },
            Err(why_not) => Shown { sight: None, why_not },
        };
    }

    fn shown(&self, node: usize) -> Shown {
        self.sights[node].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn sight(&self, node: usize) -> Option<Sight> {
        self.shown(node).sight
    }
}

/// Runs the demonstration and says what came of it. Must be called outside a runtime.
///
/// # Errors
/// Why it cannot run. Without the rights for namespaces it runs on loopback, where no line is cut.
pub fn run(options: &FabricDemoOptions, stop: &CancellationToken) -> Result<FabricRun, ApiError> {
    let temporary =
        tempfile::tempdir().map_err(|error| storage("no folder for the demo", error))?;
    let folder = options.keep.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(folder).map_err(|error| storage("no folder for the demo", error))?;
    let scenario = Scenario::parse(&scenario_text(), std::path::Path::new(""))
        .map_err(|error| failed("the scenario of the demo is not readable", error))?;
    let lab = match Lab::up(&scenario, &Options::default()) {
        Ok(lab) => Some(lab),
        Err(error @ LabError::NeedsRoot { .. }) => {
            let why = tidegate_message::error_chain(&error);
            println!("lines: loopback, of which none is cut, because {why}");
            None
        }
        Err(error) => return Err(lab_failed(error)),
    };
    if lab.is_some() {
        println!("lines: 100 Mbit/s in each region; between them 20 Mbit/s, 15 ms each way");
    }
    let mut stage = Stage::set(&options.program, lab.as_ref(), folder)?;
    let (board, began) = (Board::default(), Instant::now());
    let (mqtt, apis) = (stage.mqtt(), stage.apis());
    let (checks, told, out) = thread::scope(|scope| {
        let (lab, board, mqtt, apis) = (lab.as_ref(), &board, &mqtt, &apis);
        let mut looking = Vec::new();
        let mut talking = Vec::new();
        for (index, node) in NODES.iter().enumerate() {
            let look = move || watch::look(&apis[index], index, board);
            looking.push(scope.spawn(move || within(lab, node.name, look)));
            let talk = move || Ok(clients::talk(mqtt[index], index, board, began));
            talking.push(scope.spawn(move || within(lab, node.name, talk)));
        }
        let show = Show::new(began);
        let mut story =
            Story { lab, board, began, mqtt, apis, stop, show, checks: Vec::new(), out: None };
        let played = story.play(&mut stage);
        board.is_over.store(true, Relaxed);
        let told = talking.into_iter().map(|one| joined(one.join())).collect::<Result<Vec<_>, _>>();
        looking.into_iter().try_for_each(|one| joined(one.join()))?;
        played?;
        Ok::<_, ApiError>((story.checks, told?, story.out))
    })?;
    stage.end();
    if let Some(lab) = lab {
        let audit = lab.finish().map_err(lab_failed)?;
        println!("lines: p99 lateness of the emulator {:?}", audit.lateness.p99);
    }
    Ok(FabricRun { checks: judged(checks, &told, out) })
}

fn judged(mut checks: Vec<Check>, told: &[Told], out: Option<Out>) -> Vec<Check> {
    checks.push(verdict::arrived(told, out));
    checks.push(verdict::untouched(told, &UNTOUCHED));
    checks.extend(out.map(|out| verdict::kept_out(told, out)));
    checks
}

/// The course of the demonstration.
struct Story<'a> {
    lab: Option<&'a Lab>,
    board: &'a Board,
    began: Instant,
    mqtt: &'a [SocketAddr; NODES.len()],
    apis: &'a [ClientOptions; NODES.len()],
    stop: &'a CancellationToken,
    show: Show,
    checks: Vec<Check>,
    out: Option<Out>,
}

impl Story<'_> {
    fn play(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        self.form(stage)?;
        self.board.is_sending.store(true, Relaxed);
        self.wait(stage, QUIET)?;
        self.subscribe_late()?;
        self.find_camera()?;
        self.kill(stage)?;
        self.hang(stage)?;
        if self.lab.is_some() {
            self.cut(stage)?;
        }
        self.revoke(stage)?;
        self.board.is_sending.store(false, Relaxed);
        self.settle(stage)
    }

    /// All nodes find all others, and agree on the places.
    fn form(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        let all: Vec<usize> = (0..NODES.len()).collect();
        let formed =
            self.until(stage, &all, FORM_MAX, |_, sight| links(sight) == NODES.len() - 1)?;
        self.check("nodes find each other", &formed, FORM_MAX);
        for (node, name) in NODES.iter().map(|node| node.name).enumerate() {
            let why_not = self.board.shown(node).why_not;
            if !why_not.is_empty() {
                self.say(&format!("{name} shows no members: {why_not}"));
            }
        }
        let is_connected = |board: &Board| board.connected.iter().all(|one| one.load(Relaxed));
        let until = Instant::now() + FORM_MAX;
        while !is_connected(self.board) && Instant::now() < until {
            self.pass(stage)?;
        }
        let mut maps = Vec::new();
        for (node, api) in NODES.iter().zip(self.apis) {
            maps.push(within(self.lab, node.name, || watch::map(api)));
        }
        let maps: Vec<(String, Vec<u32>)> = maps.into_iter().collect::<Result<_, _>>()?;
        let (view, cells) = &maps[0];
        let same = maps.iter().filter(|map| **map == maps[0]).count();
        let text = format!(
            "{same} of {} nodes have the view {view}, with members in cells {cells:?}",
            maps.len()
        );
        self.note("one map", text, same == maps.len() && *cells == [4, 4]);
        Ok(())
    }

    /// A subscription is acknowledged once all other nodes send for it: what is published then comes, wherever.
    fn subscribe_late(&mut self) -> Result<(), ApiError> {
        let (at, from) = LATE;
        let connect =
            |node: usize| within(self.lab, NODES[node].name, || clients::connect(self.mqtt[node]));
        let (mut subscriber, mut publisher) = (connect(at)?, connect(from)?);
        let (acknowledged, came) = clients::subscribe_late(&mut subscriber, &mut publisher)?;
        let (at, from) = (NODES[at].name, NODES[from].name);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let came_text =
            came.map_or("did not come".to_owned(), |time| format!("came after {:.1} ms", ms(time)));
        let text = format!(
            "acknowledged at {at} after {:.1} ms; a message published at {from} right then {came_text}",
            ms(acknowledged)
        );
        self.note("new subscription", text, came.is_some());
        Ok(())
    }

    /// Each node says where the camera is, and the first of the other region takes a frame there.
    fn find_camera(&mut self) -> Result<(), ApiError> {
        let began = Instant::now();
        let mut found: Vec<(usize, Result<Place, ApiError>)> = Vec::new();
        for (index, node) in NODES.iter().enumerate().filter(|(index, _)| *index != CAMERA_AT) {
            found.push((index, within(self.lab, node.name, || watch::camera(&self.apis[index]))));
        }
        let asked = began.elapsed() / u32::try_from(found.len()).unwrap_or(1);
        let right =
            |place: &Place| place.node == NODES[CAMERA_AT].name && !place.addresses.is_empty();
        let count = found.iter().filter(|(_, place)| place.as_ref().is_ok_and(right)).count();
        let mut text = format!(
            "{count} of {} other nodes say that it is at {}, after {:.0} ms",
            found.len(),
            NODES[CAMERA_AT].name,
            asked.as_secs_f64() * 1e3
        );
        let wrong = found.iter().find_map(|(index, place)| match place {
            Ok(place) if right(place) => None,
            Ok(place) => Some(format!("; {} says {place:?}", NODES[*index].name)),
            Err(error) => Some(format!("; {} says: {}", NODES[*index].name, error.chain())),
        });
        text += &wrong.unwrap_or_default();
        let far = NODES.len() / 2;
        let place =
            found.into_iter().find(|(index, _)| *index == far).and_then(|(_, place)| place.ok());
        let began = Instant::now();
        let frame = match &place {
            Some(place) => {
                within(self.lab, NODES[far].name, || watch::frame(place, &self.apis[far]))
            }
            None => Err(ApiError::new(Code::CAMERA_UNKNOWN, "it does not know where")),
        };
        text += &match &frame {
            Ok(()) => {
                let (name, seconds) = (NODES[far].name, began.elapsed().as_secs_f64());
                format!("; {name} has a frame from there after {seconds:.2} s")
            }
            Err(error) => format!("; no frame came to {}: {}", NODES[far].name, error.chain()),
        };
        self.note("camera is found", text, count == NODES.len() - 1 && frame.is_ok());
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        self.say(&format!("{} is killed (SIGKILL)", NODES[KILLED].name));
        stage.kill(KILLED)?;
        self.missed(stage, KILLED, "killed is missed", KILLED_MAX)?;
        self.wait(stage, PAUSE)?;
        self.say(&format!("{} is started again", NODES[KILLED].name));
        stage.start(KILLED)?;
        self.back(stage, KILLED, "killed is back")
    }

    fn hang(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        self.say(&format!("{} hangs (SIGSTOP)", NODES[HUNG].name));
        stage.signal(HUNG, "STOP")?;
        self.missed(stage, HUNG, "hung is missed", SILENT_MAX)?;
        self.say(&format!("{} continues (SIGCONT)", NODES[HUNG].name));
        stage.signal(HUNG, "CONT")?;
        self.back(stage, HUNG, "hung is back")
    }

    fn cut(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        self.say(&format!("{} is cut off (its line is down)", NODES[CUT].name));
        stage.cut(CUT, true)?;
        self.missed(stage, CUT, "cut off is missed", SILENT_MAX)?;
        self.say(&format!("the line of {} is up", NODES[CUT].name));
        stage.cut(CUT, false)?;
        self.back(stage, CUT, "cut off is back")
    }

    fn revoke(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        let (name, at) = (NODES[REVOKED].name, NODES[AUTHORITY].name);
        self.say(&format!(
            "{name} is revoked: `tidegate revoke {name}` at {at}, the list is at no other node"
        ));
        // Messages that were published just before may find the links closed.
        let before = self.began.elapsed().saturating_sub(PAUSE);
        let command = stage.revoke(REVOKED)?;
        let others = others_than(REVOKED);
        let (seen, told) = thread::scope(|scope| {
            let began = Instant::now();
            let told = scope.spawn(move || finished(command).map(|()| began.elapsed()));
            let seen = self.until(stage, &others, FAULT_MAX, |_, sight| {
                !sight.is_known[REVOKED] && links(sight) == NODES.len() - 2
            });
            (seen, joined(told.join()))
        });
        let (seen, told) = (seen?, told?);
        self.out = Some(Out { node: REVOKED, before, after: self.began.elapsed() });
        // The node has the list before the command ends, which waits for its answer.
        let text = format!("{}; the command took {:.2} s", seen_text(&seen), told.as_secs_f64());
        self.note("revoked is gone", text, are_in_time(&seen, told + REVOKED_MAX));
        self.wait(stage, QUIET)
    }

    /// All others than a node see that it is away.
    fn missed(
        &mut self,
        stage: &mut Stage<'_>,
        node: usize,
        what: &'static str,
        most: Duration,
    ) -> Result<(), ApiError> {
        let seen =
            self.until(stage, &others_than(node), FAULT_MAX, |_, sight| !sight.is_linked[node])?;
        self.check(what, &seen, most);
        Ok(())
    }

    /// All others than a node are linked to it, and to each other.
    fn back(
        &mut self,
        stage: &mut Stage<'_>,
        node: usize,
        what: &'static str,
    ) -> Result<(), ApiError> {
        let seen = self.until(stage, &others_than(node), BACK_MAX + FAULT_MAX, |_, sight| {
            links(sight) == NODES.len() - 1
        })?;
        self.check(what, &seen, BACK_MAX);
        self.wait(stage, PAUSE)
    }

    /// Until all that is under way has come.
    fn settle(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        let until = Instant::now() + SETTLE_MAX;
        let (mut arrived, mut since) = (self.board.arrived.load(Relaxed), Instant::now());
        while since.elapsed() < SETTLED && Instant::now() < until {
            self.pass(stage)?;
            let now = self.board.arrived.load(Relaxed);
            if now != arrived {
                (arrived, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// For each of the nodes, after how long it first shows what is asked for; none if not within `most`.
    fn until(
        &mut self,
        stage: &mut Stage<'_>,
        nodes: &[usize],
        most: Duration,
        is_so: impl Fn(usize, &Sight) -> bool,
    ) -> Result<Seen, ApiError> {
        let began = Instant::now();
        let mut seen: Seen = nodes.iter().map(|node| (*node, None)).collect();
        while began.elapsed() < most && seen.iter().any(|(_, time)| time.is_none()) {
            for (node, time) in seen.iter_mut().filter(|(_, time)| time.is_none()) {
                if self.board.sight(*node).is_some_and(|sight| is_so(*node, &sight)) {
                    *time = Some(began.elapsed());
                }
            }
            self.pass(stage)?;
        }
        Ok(seen)
    }

    fn wait(&mut self, stage: &mut Stage<'_>, long: Duration) -> Result<(), ApiError> {
        let until = Instant::now() + long;
        while Instant::now() < until {
            self.pass(stage)?;
        }
        Ok(())
    }

    /// A moment, in which the table has its line when one is due.
    fn pass(&mut self, stage: &mut Stage<'_>) -> Result<(), ApiError> {
        thread::sleep(LOOK);
        self.show.draw(self.board, stage);
        if self.stop.is_cancelled() {
            return Err(ApiError::new(Code::LINK_DOWN, "interrupted"));
        }
        match stage.ended() {
            Some(words) => {
                let text = format!("a node ended by itself: {words}");
                Err(ApiError::new(Code::INTERNAL, text))
            }
            None => Ok(()),
        }
    }

    fn check(&mut self, what: &'static str, seen: &Seen, most: Duration) {
        let text = format!("{} (asked: {:.1} s)", seen_text(seen), most.as_secs_f64());
        self.note(what, text, are_in_time(seen, most));
    }

    fn note(&mut self, what: &'static str, found: String, met: bool) {
        self.say(&format!("{what}: {found}"));
        self.checks.push((what, found, met));
    }

    fn say(&self, text: &str) {
        println!("{:>5.1}s  {text}", self.began.elapsed().as_secs_f64());
    }
}

fn links(sight: &Sight) -> usize {
    sight.is_linked.iter().filter(|is_linked| **is_linked).count()
}

fn others_than(node: usize) -> Vec<usize> {
    (0..NODES.len()).filter(|other| *other != node).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn scenario_has_a_line_for_each_node_and_one_between_the_regions() {
        let scenario = Scenario::parse(&scenario_text(), Path::new("")).expect("it is readable");
        assert_eq!((scenario.media.len(), scenario.nodes().len()), (9, 10));
        for (index, node) in NODES.iter().enumerate() {
            let address = scenario.ports().find(|(_, _, port)| port.node == node.name);
            assert_eq!(address.map(|(_, _, port)| port.address.0), Some(node.address()));
            assert!(NODES.iter().skip(index + 1).all(|other| other.address() != node.address()));
        }
    }

    #[test]
    fn each_fault_befalls_another_node_and_four_are_untouched() {
        let mut nodes =
            [CUT, KILLED, HUNG, REVOKED, UNTOUCHED[0], UNTOUCHED[1], UNTOUCHED[2], UNTOUCHED[3]];
        nodes.sort_unstable();
        assert_eq!(nodes.to_vec(), (0..NODES.len()).collect::<Vec<_>>());
        assert!(UNTOUCHED.contains(&AUTHORITY) && UNTOUCHED.contains(&CAMERA_AT));
        assert!(NODES[UNTOUCHED[3]].is_east, "times between the regions are measured too");
    }
}
