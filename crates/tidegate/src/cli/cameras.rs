//! `tidegate cameras`: the cameras of a node, and those of its configuration.
//!
//! Always true: a camera is written with what a start accepts, or not at all; a password stands in a file that its owner alone may read, and
//! in no other place; a configuration is replaced whole, with its comments.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf, absolute},
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use tidegate_api::{ApiError, ReloadedConfiguration};
use tidegate_camera::{
    discovery::{self, Found as Camera},
    source::{Source, SourceError, SourceSpec},
};
use tidegate_cli::{
    cameras::{self, CamerasArgs},
    program::{Output, aligned, plain, print},
    remote::RemoteArgs,
};
use tidegate_config::{
    Config, Origin,
    write::{self, Written},
};
use tidegate_frame::knob::{FrameLimits, inspect};
use tidegate_message::{CameraName, Code, FrameSize, error_chain};
use tidegate_sys::{net, regular, secret};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{args::source_with_password, enrol::replace, mqtt::ask};
use crate::run;

/// How long frames are counted once the first has come.
const COUNT_FOR: Duration = Duration::from_secs(3);
/// How long a node may take to read its configuration again.
const RELOAD_MAX: Duration = Duration::from_secs(20);

/// Arguments of `tidegate cameras`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CamerasCommandArgs {
    #[command(subcommand)]
    what: Option<CamerasCommand>,
    #[command(flatten)]
    list: CamerasArgs,
}

/// Other things to do with cameras than to list them.
#[derive(Debug, Subcommand)]
enum CamerasCommand {
    /// Try a source, write it into the configuration as a camera that the node runs, and have the node read it
    Add(AddArgs),
    /// Take a camera out of the configuration, and have the node read it
    Remove(RemoveArgs),
    /// Try a source: whether it gives frames, of which size, how many, and how soon
    Test(TestArgs),
    /// Ask the local networks for cameras that speak ONVIF
    Discover(DiscoverArgs),
}

/// The way to look for cameras.
#[derive(Args, Debug)]
struct DiscoverArgs {
    /// Seconds to wait for answers
    #[arg(long, default_value_t = 4, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=60))]
    wait: u32,
    /// Address of this machine to ask by; may be repeated [default: each that is not loopback, IPv4]
    #[arg(long = "by", value_name = "ADDRESS")]
    own: Vec<IpAddr>,
    /// Where to ask, if not all cameras by multicast
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = discovery::MULTICAST)]
    to: SocketAddr,
    /// How to print what has answered
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// A source, and the way to try it.
#[derive(Args, Debug)]
struct TestArgs {
    /// Where frames come from: rtsp://USER@HOST/PATH, http://HOST/PATH, folder:DIR or any other source
    #[arg(value_name = "SOURCE")]
    source: String,
    /// File whose first line is the password of the camera, or USER:PASSWORD [default: $TIDEGATE_SOURCE_PASSWORD]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Type the password, or USER:PASSWORD, without echo; or have it come from the standard input
    #[arg(long, conflicts_with = "password_file")]
    ask_password: bool,
    /// Seconds to wait for the first frame
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    wait: u32,
    /// How to print the findings
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// A camera for the configuration.
#[derive(Args, Debug)]
struct AddArgs {
    /// Its name
    name: CameraName,
    #[command(flatten)]
    test: TestArgs,
    /// Frames a second, 0.1 to 240: the pace of a recording and of single pictures, and as many as are taken of a network camera at most
    #[arg(long)]
    fps: Option<f64>,
    /// Write it although it cannot be tried now
    #[arg(long)]
    no_test: bool,
    #[command(flatten)]
    node: NodeToTell,
}

/// A camera of the configuration.
#[derive(Args, Debug)]
struct RemoveArgs {
    /// Its name
    name: CameraName,
    #[command(flatten)]
    node: NodeToTell,
}

/// The node that reads its configuration again.
#[derive(Args, Debug)]
struct NodeToTell {
    /// Address of the node's API, as host:port [default: node.api_listen of the configuration]
    #[arg(long, value_name = "HOST:PORT")]
    node: Option<String>,
    /// Name of the certificate to show, from the `pki` folder
    #[arg(long = "as", value_name = "NAME", default_value = "application")]
    identity: CameraName,
    /// Change the file alone; a running node takes it up by SIGHUP
    #[arg(long)]
    no_reload: bool,
}

/// Lists cameras, or does what else was asked for.
///
/// # Errors
/// The reason why it cannot be done.
pub(super) async fn run(
    config: &Config,
    args: &CamerasCommandArgs,
    stop: CancellationToken,
) -> Result<(), ApiError> {
    match &args.what {
        None => cameras::run(config, &args.list).await,
        Some(CamerasCommand::Test(args)) => {
            let spec = args.spec("the camera", stop).await?;
            let found = try_source(&spec, args.wait).await?;
            print(&match args.output {
                Output::Table => format!("{found}\n"),
                Output::Json => found.json(),
            })
        }
        Some(CamerasCommand::Add(args)) => add(config, args, stop).await,
        Some(CamerasCommand::Remove(args)) => remove(config, args).await,
        Some(CamerasCommand::Discover(args)) => discover(args).await,
    }
}

impl TestArgs {
    /// The source, with its password.
    async fn spec(&self, of: &str, stop: CancellationToken) -> Result<SourceSpec, ApiError> {
        let spec = source_with_password(&self.source, self.password_file.as_deref())?;
        if !self.ask_password {
            return Ok(spec);
        }
        if !spec.takes_password() {
            let text = "only an address of a network camera has a password; leave --ask-password out";
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        let password = ask(of, stop).await?;
        let password = std::str::from_utf8(&password).map_err(|_| {
            ApiError::new(Code::CONFIG_INVALID, "the password is no text in UTF-8")
        })?;
        Ok(spec.with_password(password))
    }
}

/// The findings about a source.
#[derive(Debug)]
struct Found {
    source: String,
    size: FrameSize,
    /// Of the frames that came, on average.
    frame_bytes: u64,
    frames: u64,
    frames_per_second: f64,
    /// From opening it to its first frame.
    first_after: Duration,
    /// How old that was when it came.
    first_age: Duration,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { source, size, frame_bytes, frames_per_second, first_after, first_age, .. } = self;
        let kilobytes = *frame_bytes as f64 / 1e3;
        write!(
            f,
            "{}: {size}, {frames_per_second:.1} frames a second of {kilobytes:.0} kB; the first came after {:.2} s and was {:.2} s old",
            plain(source),
            first_after.as_secs_f64(),
            first_age.as_secs_f64(),
        )
    }
}

impl Found {
    fn json(&self) -> String {
        let json = serde_json::json!({
            "source": self.source,
            "width": self.size.width,
            "height": self.size.height,
            "frame_bytes": self.frame_bytes,
            "frames": self.frames,
            "frames_per_second": self.frames_per_second,
            "first_after_ms": self.first_after.as_secs_f64() * 1e3,
            "first_age_ms": self.first_age.as_secs_f64() * 1e3,
        });
        format!("{json}\n")
    }
}

/// Waits for frames of a source, and counts them.
///
/// # Errors
/// [`Code::CAMERA_OFFLINE`] with the cause; [`Code::CONFIG_INVALID`] for a source that is none.
async fn try_source(spec: &SourceSpec, wait: u32) -> Result<Found, ApiError> {
    let wait = Duration::from_secs(wait.into());
    let opened = Instant::now();
    let mut last = None;
    let tried = timeout(wait, first_frame(spec, &mut last)).await;
    let nothing = |why: String| {
        ApiError::new(Code::CAMERA_OFFLINE, format!("{spec} gave no frame")).caused_by(why)
    };
    let (mut source, size, first) = match tried {
        Ok(Ok(first)) => first,
        Ok(Err(why)) => return Err(nothing(why)),
        Err(_) => {
            let late = format!("none came within {} s", wait.as_secs());
            return Err(nothing(last.map_or(late.clone(), |last| format!("{late}; {last}"))));
        }
    };
    let (first_after, first_age) = (opened.elapsed(), source.age(&first));
    let began = Instant::now();
    let (mut frames, mut bytes) = (1, first.picture.jpeg.len() as u64);
    let mut newest = (first.sequence, began);
    while let Some(left) = COUNT_FOR.checked_sub(began.elapsed())
        && let Ok(Some(next)) = timeout(left, source.next()).await
    {
        if let Ok(frame) = next {
            frames += 1;
            bytes += frame.picture.jpeg.len() as u64;
            newest = (frame.sequence, Instant::now());
        }
    }
    let (sequence, at) = newest;
    let seconds = at.duration_since(began).as_secs_f64();
    // Those that were overtaken count: the source has them.
    let passed = (sequence - first.sequence) as f64;
    let frames_per_second = if seconds > 0.0 { passed / seconds } else { 0.0 };
    let (source, frame_bytes) = (spec.to_string(), bytes / frames);
    Ok(Found { source, size, frame_bytes, frames, frames_per_second, first_after, first_age })
}

/// Opens a source and waits for a frame that can be carried; keeps the last reason why one was not.
async fn first_frame(
    spec: &SourceSpec,
    last: &mut Option<String>,
) -> Result<(Source, FrameSize, tidegate_camera::source::SourceFrame), String> {
    let mut source = Source::open(spec).await.map_err(|error| error_chain(&error))?;
    while let Some(next) = source.next().await {
        match next {
            Ok(frame) => match inspect(&frame.picture.jpeg, &FrameLimits::default()) {
                Ok(inspected) => return Ok((source, inspected.seen_size(), frame)),
                Err(error) => *last = Some(error_chain(&error)),
            },
            // The next picture may be sound.
            Err(
                error @ (SourceError::NotJpeg { .. }
                | SourceError::Damaged { .. }
                | SourceError::Picture { .. }),
            ) => *last = Some(error_chain(&error)),
            Err(error) => return Err(error_chain(&error)),
        }
    }
    Err(last.take().unwrap_or_else(|| "it has ended without a picture".to_owned()))
}

async fn add(config: &Config, args: &AddArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let name = &args.name;
    let Some(file) = config.file().filter(|_| config.has_file()) else {
        let begin = config.command("init");
        let text = format!("there is no configuration that a camera could be written into; `{begin}` begins a site");
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    };
    if config.cameras.contains_key(name.as_str()) {
        let place = config.origins.section(&format!("camera.{name}"));
        let place = place.map(|origin| format!(" at {origin}")).unwrap_or_default();
        let remove = config.command(&format!("cameras remove {name}"));
        let text = format!("camera {name} is in the configuration already{place}; `{remove}` takes it out");
        return Err(ApiError::new(Code::CAMERA_TAKEN, text));
    }
    let spec = args.test.spec(&format!("camera {name}"), stop).await?;
    let new = NewCamera::of(file, args, &spec)?;
    let found = match args.no_test {
        true => None,
        false => Some(try_source(&spec, args.test.wait).await.map_err(|error| {
            let text = format!("camera {name} is not added; --no-test adds it nevertheless");
            ApiError::new(error.code(), text).caused_by(error.chain())
        })?),
    };
    let said = new.write(config, file, name)?;
    let found = found.map(|found| format!("{found}\n")).unwrap_or_default();
    print(&format!("{found}camera {name} is in {} now{said}\n", file.display()))?;
    args.node.tell(config).await
}

/// A camera as it will stand in the configuration.
struct NewCamera {
    settings: Vec<(&'static str, Written)>,
    /// Its password, and the file for it.
    password: Option<(PathBuf, Zeroizing<String>)>,
}

impl NewCamera {
    fn of(file: &Path, args: &AddArgs, spec: &SourceSpec) -> Result<Self, ApiError> {
        let wrong = |text: &str| ApiError::new(Code::CONFIG_INVALID, text);
        let here = absolute("").or_else(|_| std::env::current_dir()).map_err(|error| {
            wrong("the current folder is not known").caused_by(error)
        })?;
        // A path on the command line begins here, one in a file at the folder of the file.
        let (source, password) = spec.clone().beginning_at(&here).parted();
        let is_exposed = run::source_spec(&source).is_ok_and(|source| source.has_password());
        if is_exposed {
            return Err(wrong(
                "a password as a parameter of an address is read by everyone who reads the configuration; a camera that takes it so alone needs a \
                 node of its own, by tidegate camera --source",
            ));
        }
        let mut settings = vec![("source", Written::Text(source))];
        let password = match (&args.test.password_file, password) {
            (Some(given), _) => {
                let given = absolute(given).unwrap_or_else(|_| given.clone());
                settings.push(("password_file", Written::Text(given.display().to_string())));
                None
            }
            (None, Some(password)) if password.contains(['\n', '\r']) => {
                return Err(wrong("a password with an end of line in it cannot be kept in a password file"));
            }
            (None, Some(password)) => {
                let own = format!("{}.password", args.name);
                let path = file.with_file_name(&own);
                settings.push(("password_file", Written::Text(own)));
                Some((path, password))
            }
            (None, None) => None,
        };
        settings.extend(args.fps.map(|fps| ("fps", Written::Number(fps))));
        Ok(Self { settings, password })
    }

    /// Writes password and section, both or none; says of the password where it is.
    fn write(&self, config: &Config, file: &Path, name: &CameraName) -> Result<String, ApiError> {
        let text = read(file)?;
        let text = write::with_camera(&text, name.as_str(), &self.settings).map_err(|error| {
            ApiError::new(Code::CONFIG_INVALID, format!("{} cannot be changed", file.display()))
                .caused_by(error_chain(&error))
        })?;
        let made = match &self.password {
            None => None,
            Some((path, password)) => {
                let line = Zeroizing::new(format!("{}\n", **password));
                secret::create(path, line.as_bytes()).map_err(|error| {
                    let text = format!(
                        "the password of camera {name} cannot be kept; move that file away, or name it by --password-file"
                    );
                    ApiError::new(Code::STORAGE_FAILED, text).caused_by(error_chain(&error))
                })?;
                Some(path)
            }
        };
        let written = (|| {
            // All that a start would refuse.
            run::check::cameras(&Config::parse(file, &text)?)?;
            written(file, &text)
        })();
        let Some(path) = made else { return written.map(|()| String::new()) };
        if let Err(error) = written {
            // It is ours, and of no use.
            let _ = fs::remove_file(path);
            return Err(error);
        }
        let owner = match give_to_owner_of(&config.node.data_dir, path) {
            Ok(()) => String::new(),
            Err(error) => format!("\ngive {} to the user that the node runs as: {error}", path.display()),
        };
        Ok(format!(", its password in {}, which its owner alone may read{owner}", path.display()))
    }
}

/// Gives a file to the user who has a node's folder: the node of a service is not run by who configures it.
fn give_to_owner_of(folder: &Path, path: &Path) -> io::Result<()> {
    let Ok(folder) = fs::metadata(folder) else { return Ok(()) };
    let own = fs::metadata(path)?;
    match (own.uid(), own.gid()) == (folder.uid(), folder.gid()) {
        true => Ok(()),
        false => chown(path, Some(folder.uid()), Some(folder.gid())),
    }
}

async fn remove(config: &Config, args: &RemoveArgs) -> Result<(), ApiError> {
    let name = &args.name;
    let file = match config.origins.section(&format!("camera.{name}")) {
        Some(Origin::File { path, .. }) => path,
        Some(other) => {
            let text = format!("camera {name} is set by {other}, not by a file; leave that out");
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        None => {
            let known: Vec<&str> = config.cameras.keys().map(String::as_str).collect();
            let known = match known.is_empty() {
                true => "it has none".to_owned(),
                false => format!("it has {}", known.join(", ")),
            };
            let text = format!("no camera {name} is in the configuration; {known}");
            return Err(ApiError::new(Code::CAMERA_UNKNOWN, text));
        }
    };
    let text = write::without_camera(&read(&file)?, name.as_str()).map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, format!("{} cannot be changed", file.display()))
            .caused_by(error_chain(&error))
    })?;
    written(&file, &text)?;
    let mut said = format!("camera {name} is not in {} any more", file.display());
    let section = config.cameras.get(name.as_str());
    if let Some(path) = section.and_then(|section| section.password_file.as_ref()) {
        said.push_str(&format!("; its password stays in {}", path.display()));
    }
    print(&format!("{said}\n"))?;
    args.node.tell(config).await
}

impl NodeToTell {
    /// Has the node read its configuration again, if one runs.
    ///
    /// # Errors
    /// [`Code::CONFIG_INVALID`] if the node refuses it: then the file is written nevertheless.
    async fn tell(&self, config: &Config) -> Result<(), ApiError> {
        if self.no_reload {
            return Ok(());
        }
        let remote = RemoteArgs {
            node: self.node.clone(),
            identity: self.identity.clone(),
            token_file: None,
            user: None,
            password_file: None,
        };
        let asked = timeout(RELOAD_MAX, async {
            remote.connect(config).await?.reload_configuration().await
        });
        let asked = asked.await.unwrap_or_else(|_| {
            let text = format!("it gave no answer within {} s", RELOAD_MAX.as_secs());
            Err(ApiError::new(Code::LINK_DOWN, text))
        });
        match asked {
            Ok(ReloadedConfiguration { problems, .. }) if !problems.is_empty() => {
                let text = "the node keeps the configuration that it has, since the file has mistakes";
                let problems: Vec<String> = problems.iter().map(|text| plain(text)).collect();
                Err(ApiError::new(Code::CONFIG_INVALID, text).caused_by(problems.join("; ")))
            }
            Ok(_) => print("the node has read its configuration again\n"),
            Err(error) => print(&format!(
                "no node has read it yet: {}; a running one does so by `{}` or SIGHUP\n",
                plain(&error.chain()),
                config.command("config reload"),
            )),
        }
    }
}

/// Asks for cameras and prints those that answer.
async fn discover(args: &DiscoverArgs) -> Result<(), ApiError> {
    let failed = |error: io::Error| {
        ApiError::new(Code::LINK_DOWN, "no network can be asked for cameras; --by names an address")
            .caused_by(error)
    };
    let own = match &args.own[..] {
        [] => {
            let mut own = net::own_addresses().map_err(failed)?;
            own.retain(|address| address.is_ipv4() == args.to.is_ipv4());
            own
        }
        own => own.to_vec(),
    };
    let wait = Duration::from_secs(args.wait.into());
    let found = discovery::search(&own, args.to, wait).await.map_err(failed)?;
    print(&match args.output {
        Output::Table => cameras_found(&found),
        Output::Json => {
            let cameras = found.iter().map(|camera| {
                serde_json::json!({
                    "address": camera.address.map(|address| address.to_string()),
                    "name": camera.name,
                    "hardware": camera.hardware,
                    "location": camera.location,
                    "services": camera.services,
                    "id": camera.id,
                })
            });
            format!("{:#}\n", serde_json::Value::Array(cameras.collect()))
        }
    })
}

fn cameras_found(found: &[Camera]) -> String {
    if found.is_empty() {
        return "no camera has answered; those in other networks, and those with ONVIF switched off, do not\n".to_owned();
    }
    let rows = found.iter().map(|camera| {
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { plain(text) };
        [
            camera.address.map_or_else(|| "-".to_owned(), |address| address.to_string()),
            or_dash(&camera.name),
            or_dash(&camera.hardware),
            or_dash(&camera.location),
            or_dash(camera.services.first().map_or("", String::as_str)),
        ]
    });
    let text = aligned(["ADDRESS", "NAME", "HARDWARE", "LOCATION", "SERVICE"], rows);
    format!(
        "{text}the maker's manual names the address of its stream: try `tidegate cameras test rtsp://USER@ADDRESS/PATH --ask-password`\n"
    )
}

fn read(file: &Path) -> Result<String, ApiError> {
    regular::read_to_string(file).map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, format!("{} cannot be read", file.display()))
            .caused_by(error)
    })
}

fn written(file: &Path, text: &str) -> Result<(), ApiError> {
    replace(file, text).map_err(|error| {
        let text = format!("{} cannot be written", file.display());
        ApiError::new(Code::STORAGE_FAILED, text).caused_by(error)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    const SITE: &str = "# our site\n[node]\nname = \"north\" # by the gate\n# health_listen = \"127.0.0.1:1\"\n";

    /// A folder with a configuration.
    fn site() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("site.toml");
        fs::write(&file, SITE).expect("a file");
        (folder, file)
    }

    async fn cameras(file: &Path, arguments: &[&str]) -> Result<(), ApiError> {
        let line = ["tidegate", "--config", &file.display().to_string(), "cameras"];
        let cli = Cli::try_parse_from(line.iter().chain(arguments)).expect("it is an order");
        let config = Config::load(cli.config.as_deref(), &[])?;
        let Command::Cameras(args) = cli.command else { panic!("it is about cameras") };
        run(&config, &args, CancellationToken::new()).await
    }

    #[tokio::test]
    async fn a_camera_is_added_with_its_password_apart_and_taken_out() {
        let (folder, file) = site();
        let address = "rtsp://me:s3cret@127.0.0.1:9/1";
        let add = ["add", "hall", address, "--fps", "2.5", "--no-test", "--no-reload"];
        cameras(&file, &add).await.expect("it is added");
        let text = fs::read_to_string(&file).expect("a file");
        assert_eq!(
            text,
            format!(
                "{SITE}\n[camera.hall]\nsource = \"rtsp://me@127.0.0.1:9/1\"\npassword_file = \"hall.password\"\nfps = 2.5\n"
            )
        );
        let kept = folder.path().join("hall.password");
        assert_eq!(fs::read_to_string(&kept).expect("a file"), "s3cret\n");
        assert_eq!(fs::metadata(&kept).expect("a file").permissions().mode() & 0o777, 0o600);
        let config = Config::load(Some(&file), &[]).expect("a configuration");
        run::check::cameras(&config).expect("a start takes it");

        let error = cameras(&file, &add).await.expect_err("its name is taken");
        assert!(error.chain().contains("site.toml:6; `tidegate --config"), "{}", error.chain());
        cameras(&file, &["remove", "hall", "--no-reload"]).await.expect("it is taken out");
        assert_eq!(fs::read_to_string(&file).expect("a file"), SITE);
        let error = cameras(&file, &["remove", "hall"]).await.expect_err("it is gone");
        assert_eq!(error.code(), Code::CAMERA_UNKNOWN);

        // The file of the password stays, and another password does not take its place.
        let error = cameras(&file, &add).await.expect_err("there is a password already");
        assert!(error.chain().contains("--password-file"), "{}", error.chain());
        assert_eq!(fs::read_to_string(&file).expect("a file"), SITE, "nothing was written");
        let path = kept.display().to_string();
        let given = ["add", "hall", "http://me@127.0.0.1:9/", "--password-file", &path];
        cameras(&file, &[&given[..], &["--no-test", "--no-reload"]].concat()).await.expect("added");
    }

    #[tokio::test]
    async fn a_camera_that_no_start_takes_or_that_gives_no_picture_is_not_written() {
        let (folder, file) = site();
        for (arguments, expected) in [
            (&["add", "hall", "http://cam/s.cgi?pwd=s3cret", "--no-test"][..], "a password as a parameter"),
            (&["add", "hall", "scene:beach", "--no-test"], "there is no scene"),
            (&["add", "hall", "http://:a%0Ab@cam/", "--no-test"], "an end of line"),
            (&["add", "hall", "rtsp://me:s3cret@cam/", "--no-test", "--fps", "999"], "from 0.1 to 240"),
            (&["add", "hall", "mjpeg:-", "--no-test"], "standard input"),
            (&["add", "hall", "folder:none"], "--no-test adds it nevertheless"),
            (&["add", "hall", "http://me:s3cret@127.0.0.1:9/", "--wait", "5"], "cannot be played"),
            (&["add", "hall", "scene:street", "--ask-password"], "only an address"),
            (&["test", "folder:none"], "cannot read none"),
        ] {
            let error = cameras(&file, arguments).await.expect_err("it cannot be");
            let chain = error.chain();
            assert!(chain.contains(expected), "{arguments:?}: {chain}");
            assert!(!chain.contains("s3cret"), "{chain}");
            assert_eq!(fs::read_to_string(&file).expect("a file"), SITE, "{arguments:?}");
            assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "{arguments:?}");
        }
    }

    #[test]
    fn cameras_that_have_answered_are_listed() {
        let camera = Camera {
            address: Some(IpAddr::from([192, 0, 2, 7])),
            name: "Hall\u{1b}".to_owned(),
            services: vec!["http://192.0.2.7/onvif".to_owned()],
            ..Camera::default()
        };
        let text = cameras_found(&[camera]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["192.0.2.7", "Hall\u{fffd}", "-", "-", "http://192.0.2.7/onvif"]
        );
        assert!(lines[2].contains("cameras test rtsp://USER@ADDRESS/PATH"), "{text}");
        assert!(cameras_found(&[]).contains("no camera has answered"));
    }

    #[tokio::test]
    async fn the_findings_about_a_source_are_told() {
        let spec = "scene:street?size=320x180&fps=20".parse().expect("a source");
        let found = try_source(&spec, 60).await.expect("it gives frames");
        assert_eq!(found.size, FrameSize { width: 320, height: 180 });
        assert!(found.frames > 1 && found.frames_per_second > 1.0, "{found}");
        let json: serde_json::Value = found.json().parse().expect("it is JSON");
        assert_eq!((&json["width"], &json["height"]), (&320.into(), &180.into()));
        assert!(found.to_string().contains("320x180, "), "{found}");
        let (folder, _) = site();
        let path = folder.path().join("x.jpg");
        fs::write(&path, b"no picture").expect("a file");
        let spec = format!("folder:{}?loop=1", folder.path().display()).parse().expect("a source");
        let error = try_source(&spec, 1).await.expect_err("it has no picture");
        assert!(error.chain().contains("is not a JPEG image"), "{}", error.chain());
        assert_eq!(error.code(), Code::CAMERA_OFFLINE);
    }
}
