//! `tidegate cameras`: the cameras of a node, and those of its configuration.
//!
//! Always true: a camera is written with what a start accepts, or not at all; a password stands in a file that its owner alone may read, and
//! in no other place; a configuration is replaced whole, with its comments.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf, absolute},
};

use clap::{Args, Subcommand, ValueEnum};
use tidegate_api::ApiError;
use tidegate_camera::source::{NetworkOptions, RtspTransport, SourceSpec};
use tidegate_cli::{
    cameras::{self, CamerasArgs},
    program::{Output, print},
    sources::{DiscoverArgs, discover, try_source},
};
use tidegate_commands::password::ask;
use tidegate_config::{
    CameraSection, Config, Origin,
    write::{self, Written},
};
use tidegate_message::{CameraName, Code, error_chain};
use tidegate_sys::{files, regular, secret};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::{args::source_with_password, tell::NodeToTell};
use crate::run;

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

/// A source to try.
#[derive(Args, Debug)]
struct TestArgs {
    #[command(flatten)]
    of: SourceArgs,
    /// How to print the findings
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// A source, and how long it is waited for.
#[derive(Args, Debug)]
struct SourceArgs {
    /// Where frames come from: rtsp://USER@HOST/PATH, http://HOST/PATH, folder:DIR or any other source
    #[arg(value_name = "SOURCE")]
    source: String,
    /// File whose first line is the password of the camera, or USER:PASSWORD [default: $TIDEGATE_SOURCE_PASSWORD]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Type the password, or USER:PASSWORD, without echo; or have it come from the standard input
    #[arg(long, conflicts_with = "password_file")]
    ask_password: bool,
    /// How the packets of an rtsp:// camera come: over the connection, or to ports of this machine
    #[arg(long, value_enum, default_value_t)]
    transport: Packets,
    /// Seconds to wait for the first frame
    #[arg(long, default_value_t = 20, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    wait: u32,
}

/// How the packets of a camera come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Packets {
    #[default]
    Tcp,
    Udp,
}

/// A camera for the configuration.
#[derive(Args, Debug)]
struct AddArgs {
    /// Its name
    name: CameraName,
    #[command(flatten)]
    of: SourceArgs,
    /// Its substream, the same picture smaller, which the node runs as a camera called NAME-sub with the password and the other options of this
    /// one: rtsp://HOST/PATH or any other source
    #[arg(long, value_name = "SOURCE")]
    substream: Option<String>,
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
            let spec = args.of.spec("the camera", stop).await?;
            let found = try_source(&spec, args.of.wait).await?;
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

impl SourceArgs {
    /// The substream of a camera whose source that is, as the node asks it.
    fn substream(&self, main: &SourceSpec, substream: SourceSpec) -> SourceSpec {
        let transport = match self.transport {
            Packets::Tcp => RtspTransport::Tcp,
            Packets::Udp => RtspTransport::Udp,
        };
        let options = NetworkOptions { transport, ..NetworkOptions::default() };
        substream.with_login_of(main).with_options(options)
    }

    /// The source, with its password.
    async fn spec(&self, of: &str, stop: CancellationToken) -> Result<SourceSpec, ApiError> {
        let mut spec = source_with_password(&self.source, self.password_file.as_deref())?;
        if self.transport == Packets::Udp {
            if spec.rtsp() != Some(false) {
                let text = "--transport udp is for rtsp:// cameras alone; leave it out";
                return Err(ApiError::new(Code::CONFIG_INVALID, text));
            }
            let transport = RtspTransport::Udp;
            spec = spec.with_options(NetworkOptions { transport, ..NetworkOptions::default() });
        }
        if !self.ask_password {
            return Ok(spec);
        }
        if !spec.takes_password() {
            let text =
                "only an address of a network camera has a password; leave --ask-password out";
            return Err(ApiError::new(Code::CONFIG_INVALID, text));
        }
        let password = ask(of, stop).await?;
        let password = std::str::from_utf8(&password)
            .map_err(|_| ApiError::new(Code::CONFIG_INVALID, "the password is no text in UTF-8"))?;
        Ok(spec.with_password(password))
    }
}

async fn add(config: &Config, args: &AddArgs, stop: CancellationToken) -> Result<(), ApiError> {
    let name = &args.name;
    let Some(file) = config.file().filter(|_| config.has_file()) else {
        let begin = config.command("init");
        let text = format!(
            "there is no configuration that a camera could be written into; `{begin}` begins a site"
        );
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    };
    if config.cameras.contains_key(name.as_str()) {
        let place = config.origins.section(&format!("camera.{name}"));
        let place = place.map(|origin| format!(" at {origin}")).unwrap_or_default();
        let remove = config.command(&format!("cameras remove {name}"));
        let text = format!(
            "camera {name} is in the configuration already{place}; `{remove}` takes it out"
        );
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    let spec = args.of.spec(&format!("camera {name}"), stop).await?;
    let substream = args.substream.as_deref().map(run::source_spec).transpose()?;
    let new = NewCamera::of(file, args, &spec, substream.as_ref())?;
    let mut found = String::new();
    if !args.no_test {
        let substream = substream.map(|substream| args.of.substream(&spec, substream));
        for spec in [spec].iter().chain(&substream) {
            let tried = try_source(spec, args.of.wait).await.map_err(|error| {
                let text = format!("camera {name} is not added; --no-test adds it nevertheless");
                ApiError::new(error.code(), text).caused_by(error.chain())
            })?;
            found.push_str(&format!("{tried}\n"));
        }
    }
    let said = new.write(config, file, name)?;
    let cameras = match &args.substream {
        None => format!("camera {name} is"),
        Some(_) => {
            format!(
                "camera {name} and its substream {} are",
                CameraSection::substream_of(name.as_str())
            )
        }
    };
    print(&format!("{found}{cameras} in {} now{said}\n", file.display()))?;
    args.node.tell(config, Output::Table).await.map(drop)
}

/// A camera as it will stand in the configuration.
struct NewCamera {
    settings: Vec<(&'static str, Written)>,
    /// Its password, and the file for it.
    password: Option<(PathBuf, Zeroizing<String>)>,
}

impl NewCamera {
    fn of(
        file: &Path,
        args: &AddArgs,
        spec: &SourceSpec,
        substream: Option<&SourceSpec>,
    ) -> Result<Self, ApiError> {
        let wrong = |text: &str| ApiError::new(Code::CONFIG_INVALID, text);
        let here = absolute("")
            .or_else(|_| std::env::current_dir())
            .map_err(|error| wrong("the current folder is not known").caused_by(error))?;
        let (source, password) = described(&here, &args.of.source, spec)?;
        let mut settings = vec![("source", Written::Text(source))];
        if let (Some(text), Some(substream)) = (&args.substream, substream) {
            let (substream, own) = described(&here, text, substream)?;
            if own.is_some_and(|own| Some(own) != password) {
                return Err(wrong(
                    "a substream has the login of its camera; leave the password out of its address, or add it as a camera of its own",
                ));
            }
            settings.push(("substream", Written::Text(substream)));
        }
        let password = match (&args.of.password_file, password) {
            (Some(given), _) => {
                let given = absolute(given).unwrap_or_else(|_| given.clone());
                settings.push(("password_file", Written::Text(given.display().to_string())));
                None
            }
            (None, Some(password)) if password.contains(['\n', '\r']) => {
                return Err(wrong(
                    "a password with an end of line in it cannot be kept in a password file",
                ));
            }
            (None, Some(password)) => {
                let own = format!("{}.password", args.name);
                let path = file.with_file_name(&own);
                settings.push(("password_file", Written::Text(own)));
                Some((path, password))
            }
            (None, None) => None,
        };
        if args.of.transport == Packets::Udp {
            settings.push(("transport", Written::Text("udp".to_owned())));
        }
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
            Err(error) => {
                format!("\ngive {} to the user that the node runs as: {error}", path.display())
            }
        };
        Ok(format!(", its password in {}, which its owner alone may read{owner}", path.display()))
    }
}

/// A source as a configuration has it, and its password. A path on the command line begins at `here`, one in a file at the folder of the
/// file.
fn described(
    here: &Path,
    text: &str,
    spec: &SourceSpec,
) -> Result<(String, Option<Zeroizing<String>>), ApiError> {
    let placed = spec.clone().beginning_at(here);
    let (source, password) = placed.parted();
    // A description that means the same everywhere stays as it was written.
    let is_same = placed == *spec && !spec.takes_password();
    let source = if is_same { text.to_owned() } else { source };
    if run::source_spec(&source).is_ok_and(|source| source.has_password()) {
        let text = "a password as a parameter of an address is read by everyone who reads the configuration; a camera that takes it so alone needs a \
                    node of its own, by tidegate camera --source";
        return Err(ApiError::new(Code::CONFIG_INVALID, text));
    }
    Ok((source, password))
}

/// Gives a file to the user who has a node's folder: the node of a service is not run by the user who configures it.
///
/// # Errors
/// The system's, and that there is no such folder, so that the user of the node is not known.
fn give_to_owner_of(folder: &Path, path: &Path) -> io::Result<()> {
    let folder = fs::metadata(folder).map_err(|error| {
        let text = format!(
            "its folder {}, whose owner that is, cannot be looked at: {error}",
            folder.display()
        );
        io::Error::new(error.kind(), text)
    })?;
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
            let main = config.cameras.iter().find(|(main, section)| {
                section.substream.is_some() && CameraSection::substream_of(main) == name.as_str()
            });
            let text = match main {
                None => format!("no camera {name} is in the configuration; {known}"),
                Some((main, _)) => format!(
                    "camera {name} is the substream of {main}; take the key substream out of [camera.{main}], or remove that camera with both"
                ),
            };
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
    args.node.tell(config, Output::Table).await.map(drop)
}

fn read(file: &Path) -> Result<String, ApiError> {
    regular::read_to_string(file).map_err(|error| {
        ApiError::new(Code::CONFIG_INVALID, format!("{} cannot be read", file.display()))
            .caused_by(error)
    })
}

fn written(file: &Path, text: &str) -> Result<(), ApiError> {
    files::put(file, text.as_bytes(), files::READABLE).map_err(|error| {
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

    const SITE: &str =
        "# our site\n[node]\nname = \"north\" # by the gate\n# health_listen = \"127.0.0.1:1\"\n";

    /// A folder with a configuration.
    fn site() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("site.toml");
        fs::write(&file, SITE).expect("a file");
        (folder, file)
    }

    async fn cameras(file: &Path, arguments: &[&str]) -> Result<(), ApiError> {
        let path = file.display().to_string();
        let line = ["tidegate", "--config", &path, "cameras"];
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
        let given = ["add", "hall", "rtsp://me@127.0.0.1:9/", "--password-file", &path];
        let more = ["--transport", "udp", "--no-test", "--no-reload"];
        cameras(&file, &[&given[..], &more].concat()).await.expect("it is added");
        let config = Config::load(Some(&file), &[]).expect("a configuration");
        run::check::cameras(&config).expect("a start takes it");
        assert_eq!(config.cameras["hall"].transport, RtspTransport::Udp);

        let error = cameras(&file, &["remove", "hall-sub"]).await.expect_err("it is none");
        assert!(error.chain().contains("it has hall"), "{}", error.chain());

        // A substream has the password of its camera, and is tried as that is.
        let add = ["add", "door", "rtsp://me:s3cret@127.0.0.1:9/1", "--substream"];
        let given = ["rtsp://me:s3cret@127.0.0.1:9/2", "--no-test", "--no-reload"];
        cameras(&file, &[&add[..], &given].concat()).await.expect("it is added");
        let text = fs::read_to_string(&file).expect("a file");
        let section = "\n[camera.door]\nsource = \"rtsp://me@127.0.0.1:9/1\"\nsubstream = \"rtsp://me@127.0.0.1:9/2\"\npassword_file = \"door.password\"\n";
        assert!(text.ends_with(section), "{text}");
        let config = Config::load(Some(&file), &[]).expect("a configuration");
        run::check::cameras(&config).expect("a start takes it");
        let error = cameras(&file, &["remove", "door-sub"]).await.expect_err("it is none");
        assert!(error.chain().contains("the substream of door"), "{}", error.chain());
        let scenes = ["add", "both", "scene:street?size=320x180&fps=2&seconds=1", "--substream"];
        let small = ["scene:street?size=320x180&fps=2&seconds=1&seed=2", "--no-reload"];
        cameras(&file, &[&scenes[..], &small].concat()).await.expect("both give frames");
        cameras(&file, &["remove", "both", "--no-reload"]).await.expect("it is taken out");
        assert_eq!(fs::read_to_string(&file).expect("a file"), text);

        // A description stays as it is, but for a path that begins where the command runs.
        for (name, source) in [("a", "scene:street?fps=2"), ("b", "watch:in?delete=1")] {
            let add = ["add", name, source, "--no-test", "--no-reload"];
            cameras(&file, &add).await.expect("it is added");
        }
        let config = Config::load(Some(&file), &[]).expect("a configuration");
        assert_eq!(config.cameras["a"].source.expose(), "scene:street?fps=2");
        let here = std::env::current_dir().expect("a folder");
        let placed = format!("watch:{}?delete=1", here.join("in").display());
        assert_eq!(config.cameras["b"].source.expose(), placed);
    }

    #[test]
    fn the_password_is_given_to_the_owner_of_the_nodes_folder_or_that_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, path) = (folder.path().join("data"), folder.path().join("hall.password"));
        fs::write(&path, "s3cret").expect("a file");
        let error = give_to_owner_of(&data, &path).expect_err("the owner is not known");
        assert!(error.to_string().contains("data, whose owner that is"), "{error}");
        fs::create_dir(&data).expect("a folder");
        give_to_owner_of(&data, &path).expect("it has it already");
        if tidegate_sys::folder::user() != 0 {
            println!("skipped: only root gives files to others");
            return;
        }
        chown(&data, Some(4_711), Some(4_712)).expect("root may");
        give_to_owner_of(&data, &path).expect("root may");
        let owner = fs::metadata(&path).expect("a file");
        assert_eq!((owner.uid(), owner.gid()), (4_711, 4_712));
    }

    #[tokio::test]
    async fn a_camera_that_no_start_takes_or_that_gives_no_picture_is_not_written() {
        let (folder, file) = site();
        for (arguments, expected) in [
            (
                &["add", "hall", "http://cam/s.cgi?pwd=s3cret", "--no-test"][..],
                "a password as a parameter",
            ),
            (&["add", "hall", "scene:beach", "--no-test"], "there is no scene"),
            (&["add", "hall", "http://:a%0Ab@cam/", "--no-test"], "an end of line"),
            (
                &["add", "hall", "rtsp://me:s3cret@cam/", "--no-test", "--fps", "999"],
                "from 0.1 to 240",
            ),
            (&["add", "hall", "mjpeg:-", "--no-test"], "standard input"),
            (&["add", "hall", "http://cam/", "--transport", "udp"], "for rtsp:// cameras alone"),
            (&["add", "hall", "folder:none"], "--no-test adds it nevertheless"),
            (&["add", "hall", "http://me:s3cret@127.0.0.1:9/", "--wait", "5"], "cannot be played"),
            (&["add", "hall", "scene:street", "--ask-password"], "only an address"),
            (
                &["add", "hall", "scene:street", "--substream", "folder:none"],
                "--no-test adds it nevertheless",
            ),
            (
                &[
                    "add",
                    "hall",
                    "rtsp://me@cam/",
                    "--substream",
                    "rtsp://me:s3cret@cam/2",
                    "--no-test",
                ],
                "a substream has the login of its camera",
            ),
            (
                &[
                    "add",
                    "hall",
                    "rtsp://cam/",
                    "--substream",
                    "http://cam/?pwd=s3cret",
                    "--no-test",
                ],
                "a password as a parameter",
            ),
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
}
