//! From `[workers]` to the one pool of programs that look at images, which all parts of a node share.

use std::{env, fs, io, num::NonZeroUsize, path::Path, thread};

use tidegate_api::ApiError;
use tidegate_config::{Config, words::WorkerRuntime};
use tidegate_message::{Code, command};
use tidegate_workers::{PoolSettings, Program, SharedPool, models, schedule::ScheduleConfig};

/// The models that our own program has. The first is used where a request names none.
const MODELS: [&str; 4] = ["face", "frontal_face", "person", "recognize"];
/// The variable that names the folder in which programs keep their knowledge, such as faces that were taught.
const DATA_VARIABLE: &str = "TIDEGATE_WORKER_DATA";
/// The command of this program that is a worker.
const WORKER: &str = "worker";
/// Its flag for the library of ONNX Runtime.
const LIBRARY: &str = "--library";
/// Programs that are run at most unless the configuration says how many.
const COUNT_MAX: usize = 4;

/// The pool, which begins when it is first asked for.
pub(super) fn pool(config: &Config) -> SharedPool {
    SharedPool::new(settings(config))
}

/// The pool for a part that asks for models of ours; none where the configuration has another program.
pub(super) fn own(pool: &SharedPool) -> Option<&SharedPool> {
    matches!(pool.settings().program, Program::Own(..)).then_some(pool)
}

/// That the folder of models is there, and the library of ONNX Runtime where one is named. It is not loaded: that is for a process of its own.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the key.
pub(super) fn check(config: &Config) -> Result<(), ApiError> {
    let is_there = |key: &str, path: &Path, is_folder: bool, otherwise: io::ErrorKind| {
        let looked_at = fs::metadata(path).and_then(|found| match found.is_dir() == is_folder {
            true => Ok(()),
            false => Err(otherwise.into()),
        });
        looked_at.map_err(|error| {
            let text = format!("workers.{key}: {} cannot be read", path.display());
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(error)
        })
    };
    let section = &config.workers;
    if let Some(folder) = &section.models_dir {
        is_there("models_dir", folder, true, io::ErrorKind::NotADirectory)?;
    }
    if let Some(library) = &section.library {
        is_there("library", library, false, io::ErrorKind::IsADirectory)?;
    }
    Ok(())
}

/// Models that are named and not there, and files of the folder of models that cannot be used. A node starts all the same: models may
/// come while it runs.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let section = &config.workers;
    let mut found = Vec::new();
    let mut known: Vec<String> = match section.runtime {
        WorkerRuntime::Python => MODELS.map(str::to_owned).into(),
        WorkerRuntime::Native => Vec::new(),
    };
    if let Some(folder) = &section.models_dir {
        match models::list(folder) {
            Ok(listing) => {
                known.extend(listing.models.into_keys());
                let texts =
                    listing.refused.iter().map(|error| tidegate_message::error_chain(error));
                found.extend(
                    texts.map(|text| format!("workers.models_dir: {text}; it is left out")),
                );
            }
            // A folder that is not there is a mistake of its own.
            Err(error) if folder.is_dir() => {
                let text = tidegate_message::error_chain(&error);
                found.push(format!("workers.models_dir: {text}"));
            }
            Err(_) => {}
        }
    }
    // The models of another program are known when it runs.
    if section.command.is_some() {
        return found;
    }
    let enabled = config.detectors.iter().filter(|(_, detector)| detector.enabled);
    let named = enabled.filter(|(_, detector)| detector.command.is_none());
    for (name, detector) in named {
        if let Some(model) = detector.model.as_ref().filter(|model| !known.contains(model)) {
            let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            found.push(format!(
                "detect.{name}.model: there is no model {model:?}; there is {there}"
            ));
        }
    }
    found
}

/// This program as a worker, with the library that the configuration names.
fn native(library: Option<&Path>) -> Vec<String> {
    // Where this program cannot say where its file is, the one that the user would start.
    let own = env::current_exe().unwrap_or_else(|_| "tidegate".into());
    let named = library.map(|path| [LIBRARY.to_owned(), path.to_string_lossy().into_owned()]);
    let words = [own.to_string_lossy().into_owned(), WORKER.to_owned()];
    words.into_iter().chain(named.into_iter().flatten()).collect()
}

/// The settings of the pool.
pub fn settings(config: &Config) -> PoolSettings {
    let section = &config.workers;
    let named = section.command.as_ref().map(|text| command::split(text.expose()));
    let program = match (named, section.runtime) {
        (Some(words), _) => Program::Command(words.expect("the configuration was checked")),
        (None, WorkerRuntime::Python) => Program::Own(MODELS.map(str::to_owned).into(), None),
        (None, WorkerRuntime::Native) => Program::Command(native(section.library.as_deref())),
    };
    PoolSettings {
        program,
        workers: section.count.map_or_else(usual_count, |count| count as usize),
        start_timeout: section.start_timeout,
        memory_bytes: section.memory.0,
        environment: vec![(DATA_VARIABLE.to_owned(), config.state_dir().join("workers"))],
        models_dir: section.models_dir.clone(),
        schedule: ScheduleConfig {
            queue_max: section.waiting_max as usize,
            queue_bytes_max: usize::try_from(section.waiting_bytes.0).unwrap_or(usize::MAX),
            batch_wait: section.batch_wait,
            answer_timeout: section.answer_timeout,
            ..ScheduleConfig::default()
        },
    }
}

/// Half as many as there are processors: cameras' encoders need the others.
fn usual_count() -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    (processors / 2).clamp(1, COUNT_MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(Path::new("/site/site.toml"), text).expect("a configuration")
    }

    #[test]
    fn a_pool_is_of_the_section_and_its_defaults_are_the_pools() {
        let usual = PoolSettings::new(Program::Own(MODELS.map(str::to_owned).into(), None));
        let plain = settings(&config(""));
        assert!((1..=COUNT_MAX).contains(&plain.workers), "{}", plain.workers);
        let of_folder = settings(&config("[node]\ndata_dir = \"data\"\n"));
        let data = Path::new("/site/data/state/workers").to_owned();
        assert_eq!(of_folder.environment, [(DATA_VARIABLE.to_owned(), data)]);
        let (workers, environment) = (usual.workers, usual.environment.clone());
        assert_eq!(PoolSettings { workers, environment, ..plain }, usual);

        let text = "[workers]\ncount = 3\ncommand = \"look --at 'a b'\"\nmodels_dir = \"models\"\nwaiting_max = 7\n\
                    waiting_bytes = \"64MiB\"\nmemory = \"0B\"\nbatch_wait = \"5ms\"\nstart_timeout = \"2s\"\nanswer_timeout = \"1s\"\n";
        let own = settings(&config(text));
        let words = ["look", "--at", "a b"].map(str::to_owned).to_vec();
        assert_eq!((own.program, own.workers, own.memory_bytes), (Program::Command(words), 3, 0));
        assert_eq!(own.models_dir.as_deref(), Some(Path::new("/site/models")));
        let queue = (own.schedule.queue_max, own.schedule.queue_bytes_max);
        assert_eq!(queue, (7, tidegate_workers::IMAGE_BYTES_MAX));
        assert_eq!(tidegate_config::IMAGE_BYTES_MOST, tidegate_workers::IMAGE_BYTES_MAX as u64);
        let times = (own.schedule.batch_wait, own.start_timeout, own.schedule.answer_timeout);
        assert_eq!(times, (millis(5), millis(2000), millis(1000)));
    }

    const fn millis(count: u64) -> std::time::Duration {
        std::time::Duration::from_millis(count)
    }

    #[test]
    fn a_folder_of_models_that_is_missing_is_named_with_its_key() {
        let error =
            check(&config("[workers]\nmodels_dir = \"none\"\n")).expect_err("it is not there");
        assert!(error.message().contains("workers.models_dir: /site/none"), "{error}");
        check(&config("[workers]\nmodels_dir = \"/\"\n")).expect("it is there");
        check(&config("")).expect("there is none to look at");
        let native = "[workers]\nruntime = \"native\"\nlibrary = ";
        for (path, part) in [("none.so", "workers.library: /site/none.so"), ("/", "directory")] {
            let error = check(&config(&format!("{native}{path:?}\n"))).expect_err("it is no file");
            let text = tidegate_message::error_chain(&error);
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_native_worker_is_this_program() {
        let section = "[workers]\nruntime = \"native\"\n";
        for (library, more) in [("", &[][..]), ("library = \"o.so\"\n", &[LIBRARY, "/site/o.so"])] {
            let Program::Command(words) = settings(&config(&format!("{section}{library}"))).program
            else {
                panic!("it is a command");
            };
            assert_eq!(Path::new(&words[0]), env::current_exe().unwrap());
            assert_eq!(words[1], WORKER);
            assert_eq!(words[2..], *more);
        }
    }
}
