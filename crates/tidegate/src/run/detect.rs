//! From `[detect.NAME]` to the settings of detectors, and the frames of the node for them.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::{Config, DetectSection, Purpose, problems::Problems, words::OriginalRule};
use tidegate_detect::{
    CameraPattern, DetectSettings, Kept, Originals, Shared, TopicTemplate, WatchSettings,
};
use tidegate_identity::{
    access::{Access, Identity},
    auth::Admitted,
};
use tidegate_message::{Bounds, Code, FrameRate, IdentityKind, command};
use tidegate_wire::mqtt::QoS;
use tidegate_workers::{PoolSettings, Program, protocol};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{
    findings::Findings,
    node_name::numbered_node,
    part::{Exchange, Part, Ports, Running, Started},
    workers,
};

/// The detectors that `config` describes.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key.
fn planned(config: &Config) -> Result<Vec<DetectSettings>, ApiError> {
    let mut problems = Problems::default();
    let enabled = config.detectors.iter().filter(|(_, section)| section.enabled);
    let detectors =
        problems.take_all(enabled.map(|(name, section)| detector(config, name, section)));
    if !detectors.is_empty() && !config.mqtt.enabled {
        let text = format!(
            "detect.{} publishes by MQTT, which mqtt.enabled leaves out; enable one or leave out the other",
            detectors[0].name
        );
        problems.say(Code::CONFIG_INVALID, text);
    }
    for (index, second) in detectors.iter().enumerate() {
        for text in detectors[..index].iter().flat_map(|first| conflicts(first, second)) {
            problems.say(Code::CONFIG_INVALID, text);
        }
    }
    problems.into_result()?;
    Ok(detectors)
}

/// Reasons why two detectors cannot run side by side.
fn conflicts(first: &DetectSettings, second: &DetectSettings) -> Vec<String> {
    let mut found = Vec::new();
    if let (Originals::Keep { folder: of_first, .. }, Originals::Keep { folder: of_second, .. }) =
        (&first.originals, &second.originals)
        && is_same(of_first, of_second)
    {
        found.push(format!(
            "detect.{}.original_dir: {} is the folder of detect.{}, too, and each would remove the originals of the other; name another \
             folder",
            second.name,
            of_second.display(),
            first.name
        ));
    }
    if first.mixes_with(second) {
        found.push(format!(
            "detect.{}.topic: its states for Home Assistant or originals and the messages of detect.{} may be on one topic; give it \
             another, such as detections/{{camera}}/{{detector}}",
            second.name, first.name
        ));
    }
    found
}

/// Whether two paths name one folder, by links that there are, too.
fn is_same(first: &Path, second: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    first == second || real(first) == real(second)
}

fn detector(
    config: &Config,
    name: &str,
    section: &DetectSection,
) -> Result<DetectSettings, ApiError> {
    let wrong = |key: &str, text: &str| {
        ApiError::new(Code::CONFIG_INVALID, format!("detect.{name}.{key}: {text}"))
    };
    // It is a level of topics, and part of a client identifier.
    if !protocol::is_name(name) {
        let text =
            format!("detect.{name} cannot be: a name is 1 to 64 letters, digits, '.', '_' or '-'");
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    let listed = |text: &str| -> Vec<String> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    };
    let patterns = listed(&section.cameras).into_iter().map(|text| {
        text.parse::<CameraPattern>().map_err(|error| wrong("cameras", &error.to_string()))
    });
    let bounds = Bounds::new(section.latency, section.accuracy)
        .map_err(|error| wrong("latency", &error.to_string()))?;
    let frame_rate = section.fps.map(FrameRate::new).transpose();
    let fetches = section.original == OriginalRule::OnDetection;
    if let Some(model) = section.model.as_deref().filter(|model| !protocol::is_name(model)) {
        let text = format!(
            "{model:?} is no name of a model; one is 1 to 64 letters, digits, '.', '_' or '-'"
        );
        return Err(wrong("model", &text));
    }
    Ok(DetectSettings {
        name: name.to_owned(),
        cameras: patterns.collect::<Result<_, _>>()?,
        model: section.model.clone(),
        program: section.command.as_ref().and_then(|text| command::split(text.expose())).map(
            |words| PoolSettings {
                program: Program::Command(words),
                workers: 1,
                models_dir: None,
                ..workers::settings(config)
            },
        ),
        watch: WatchSettings {
            bounds,
            frame_rate: frame_rate.map_err(|error| wrong("fps", &error.to_string()))?,
            score_min: section.min_score,
            labels: section.labels.as_deref().map(|text| listed(text).into_iter().collect()),
            originals_every: fetches.then_some(section.original_every),
        },
        topic: section
            .topic
            .parse::<TopicTemplate>()
            .map_err(|e| wrong("topic", &e.to_string()))?,
        qos: if section.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce },
        originals: match &section.original_dir {
            _ if !fetches => Originals::Never,
            None => Originals::Publish,
            Some(folder) => {
                Originals::Keep { folder: folder.clone(), bytes_max: section.original_bytes.0 }
            }
        },
        home_assistant: section
            .prefix()
            .map_err(|error| wrong("home_assistant", &error.to_string()))?
            .map(str::to_owned),
    })
}

/// The detectors that a running node has, exchanged on a reload.
struct Detectors {
    running: Mutex<watch::Sender<Vec<DetectSettings>>>,
}

impl Detectors {
    /// Those that the node starts with, and the end by which others are heard of.
    fn of(config: &Config) -> Result<(Self, watch::Receiver<Vec<DetectSettings>>), ApiError> {
        let (sender, receiver) = watch::channel(planned(config)?);
        Ok((Self { running: Mutex::new(sender) }, receiver))
    }

    /// Has just these run from now on, and names those that are new, gone or other than they were.
    fn exchange(&self, planned: Vec<DetectSettings>) -> Vec<String> {
        let sender = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = sender.borrow().clone();
        let gone = running.iter().filter(|detector| !planned.contains(detector));
        let come = planned.iter().filter(|detector| !running.contains(detector));
        let mut changed: Vec<String> = gone.chain(come).map(|it| it.name.clone()).collect();
        changed.sort();
        changed.dedup();
        if !changed.is_empty() {
            sender.send_replace(planned);
        }
        changed
    }
}

/// The memory of what detectors announced to Home Assistant; none where the data folder cannot keep the number of the node.
fn kept(config: &Config) -> Option<Kept> {
    match numbered_node(config, Purpose::Run) {
        Ok(node) => Some(Kept { node, path: config.state_dir().join("detect.prefixes") }),
        Err(error) => {
            let error = error.chain();
            tracing::warn!(
                error,
                "entities of detectors that are taken out while the node is down stay at Home Assistant"
            );
            None
        }
    }
}

/// The part that has the node's own detectors.
pub(super) struct Watching;

#[async_trait]
impl Part for Watching {
    fn name(&self) -> &'static str {
        "detectors"
    }

    fn needs_certificate(&self) -> bool {
        true
    }

    fn is_configured(&self, config: &Config) -> bool {
        config.detectors.values().any(|section| section.enabled)
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        found.problems.take(planned(config));
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let (detectors, configured) = Detectors::of(config)?;
        let (Some(site), Some(bus)) = (&ports.site, &ports.bus) else { return Ok(None) };
        let frames = site.streams.cameras().frames(identity().into());
        let shared =
            Shared { frames, bus: bus.clone(), pool: ports.pool.clone(), kept: kept(config) };
        let (begun, stop) = (ports.begun.clone(), ports.stop.child_token());
        let task = tokio::spawn(async move {
            // There are no cameras before; of a start that fails there are none at all.
            tokio::select! {
                () = begun.cancelled() => tidegate_detect::run(shared, configured, stop).await,
                () = stop.cancelled() => {}
            }
        });
        Ok(Some(Box::new(Begun { detectors, task: AbortOnDropHandle::new(task) })))
    }
}

struct Begun {
    detectors: Detectors,
    task: AbortOnDropHandle<()>,
}

/// How long a detector may take to end after the node's stop.
const END_MAX: Duration = Duration::from_secs(5);

#[async_trait]
impl Running for Begun {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let planned = planned(new)?;
        Ok(Box::new(move |changes| {
            for name in self.detectors.exchange(planned) {
                tracing::info!(detector = name, "detector started, stopped or restarted");
                changes.note("detect", &name);
            }
            Ok(())
        }))
    }

    /// Waits until detectors have said that they are gone; not for ever.
    async fn stop(self: Box<Self>) {
        match tokio::time::timeout(END_MAX, self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "detectors did not stop as they should"),
            Err(_) => tracing::warn!("detectors did not stop in time"),
        }
    }
}

/// Detectors in the eyes of the rules: a part of the node, as a sink is.
fn identity() -> Identity {
    let identity = tidegate_message::Identity::new(IdentityKind::Internal, "detect", "detect");
    Identity::of_user(Admitted::by_certificate(identity))
}

#[cfg(test)]
mod tests {
    use tidegate_message::error_chain;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("/site/site.toml"), text).expect("a configuration")
    }

    #[test]
    fn a_section_is_a_detector_and_a_mistake_is_named_with_its_key() {
        let text = "[detect.people]\ncameras = \"cam1, yard-*\"\nmodel = \"person\"\nlatency = \"200ms\"\n\
                    accuracy = 0.95\nfps = 5\ntopic = \"seen/{camera}\"\nqos = 1\nmin_score = 0.5\n\
                    labels = \"person, dog\"\noriginal = \"on-detection\"\noriginal_dir = \"kept\"\n\
                    original_bytes = \"1MiB\"\nhome_assistant = true\n\
                    [detect.mine]\ncameras = \"*\"\ncommand = \"python3 'my detector.py'\"\n\
                    [detect.off]\ncameras = \"*\"\nenabled = false\n";
        let planned_of = |text: &str| planned(&config(text)).expect("it is right");
        let [mine, people] = &planned_of(text)[..] else { panic!("two are enabled") };
        let expected = DetectSettings {
            name: "people".to_owned(),
            cameras: vec!["cam1".parse().unwrap(), "yard-*".parse().unwrap()],
            model: Some("person".to_owned()),
            program: None,
            watch: WatchSettings {
                bounds: Bounds::new(Duration::from_millis(200), 0.95).unwrap(),
                frame_rate: Some(FrameRate::new(5.0).unwrap()),
                score_min: 0.5,
                labels: Some(["person", "dog"].map(str::to_owned).into()),
                originals_every: Some(Duration::from_secs(1)),
            },
            topic: "seen/{camera}".parse().unwrap(),
            qos: QoS::AtLeastOnce,
            originals: Originals::Keep {
                folder: Path::new("/site/kept").to_owned(),
                bytes_max: 1 << 20,
            },
            home_assistant: Some("homeassistant".to_owned()),
        };
        assert_eq!(*people, expected);
        let words = ["python3", "my detector.py"].map(str::to_owned).to_vec();
        let program = mine.program.as_ref().expect("it has one").program.clone();
        assert_eq!(
            (program, mine.topic.clone()),
            (Program::Command(words), TopicTemplate::default())
        );
        assert_eq!((&mine.originals, &mine.home_assistant), (&Originals::Never, &None));
        for (text, expected) in [
            ("[detect.'a b']\ncameras = \"*\"\n", "detect.a b cannot be"),
            ("[detect.a]\ncameras = \"ca m\"\n", "detect.a.cameras: \"ca m\" names no camera"),
            (
                "[detect.a]\ncameras = \"*\"\ntopic = \"a/b\"\n",
                "detect.a.topic: \"a/b\" is no topic",
            ),
            (
                "[detect.a]\ncameras = \"*\"\nmodel = \"../x\"\n",
                "detect.a.model: \"../x\" is no name",
            ),
            (
                "[mqtt]\nenabled = false\n[detect.a]\ncameras = \"*\"\n",
                "detect.a publishes by MQTT",
            ),
        ] {
            let error = planned(&config(text)).expect_err("it is wrong");
            let chain = error_chain(&error);
            assert!(chain.contains(expected), "{text}: {chain}");
        }
    }

    #[test]
    fn detectors_share_no_folder_of_originals_and_no_topic_of_states() {
        let keeps = "original = \"on-detection\"\noriginal_dir =";
        let folder = |first: &str, second: &str| {
            format!(
                "[detect.a]\ncameras = \"cam1\"\n{keeps} \"{first}\"\n[detect.b]\ncameras = \"cam2\"\n{keeps} \"{second}\"\n"
            )
        };
        let section = |name: &str, cameras: &str, topic: &str, rest: &str| {
            format!("[detect.{name}]\ncameras = \"{cameras}\"\ntopic = \"{topic}\"\n{rest}\n")
        };
        let (home, publishes) = ("home_assistant = true", "original = \"on-detection\"");
        let pair = |(cameras, other): (&str, &str), (topic, another): (&str, &str), rest: &str| {
            format!("{}{}", section("a", cameras, topic, home), section("b", other, another, rest))
        };
        let seen = ("seen/{camera}", "seen/{camera}");
        let deeper = ("seen/{camera}", "seen/{camera}/{detector}");
        for (text, expected) in [
            (folder("kept", "other"), None),
            (folder("kept", "kept/b"), None),
            (folder("kept", "kept/"), Some("detect.b.original_dir: /site/kept")),
            (folder("/", "/usr/.."), Some("is the folder of detect.a, too")),
            (pair(("cam1", "cam2"), seen, home), None),
            (pair(("cam1", "cam1"), seen, ""), None), // JSON says whose it is
            (pair(("cam1", "x, cam*"), seen, home), Some("detect.b.topic: its states")),
            (pair(("cam1", "*"), seen, publishes), Some("the messages of detect.a")),
            (pair(("cam1", "cam1"), deeper, ""), Some("detect.b.topic: its states")),
            (
                pair(("cam1", "cam1"), ("x/{camera}/{detector}", "x/{camera}/{detector}"), home),
                None,
            ),
            (
                format!(
                    "{}{}",
                    section("a", "cam1", "seen/{camera}", publishes),
                    section("b", "cam1", "seen/{camera}/{detector}", "")
                ),
                None, // it is on seen/cam1/b, and the original on seen/cam1/original
            ),
        ] {
            let said = planned(&config(&text)).err().map(|error| error_chain(&error));
            match (&said, expected) {
                (None, None) => {}
                (Some(said), Some(expected)) if said.contains(expected) => {}
                _ => panic!("{text}: {said:?} and not {expected:?}"),
            }
        }
    }

    #[test]
    fn detectors_are_exchanged_by_what_is_other_than_it_was() {
        let a = "[detect.a]\ncameras = \"cam1\"\n";
        let b = "[detect.b]\ncameras = \"cam2\"\ncommand = \"look\"\n";
        let (detectors, running) = Detectors::of(&config(&format!("{a}{b}"))).expect("right");
        let exchange =
            |text: &str| detectors.exchange(planned(&config(text)).expect("it is right"));
        assert_eq!(exchange(&format!("{a}{b}")), [""; 0]);
        assert!(!running.has_changed().expect("it is there"));
        assert_eq!(exchange(&format!("{a}{b}fps = 2\n")), ["b"]);
        assert_eq!(exchange(&format!("{a}[detect.c]\ncameras = \"*\"\n")), ["b", "c"]);
        assert_eq!(running.borrow().len(), 2);
    }
}
