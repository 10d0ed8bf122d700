use std::os::unix::fs::PermissionsExt as _;

use bytes::Bytes;
use tokio::time::timeout;

use super::*;
use crate::source::{
    Source,
    tests::{jpeg_of, jpegs},
};

const LONGEST: Duration = Duration::from_secs(60);

/// Starts a source of that folder with these options.
async fn watch(folder: &Path, options: &str) -> Source {
    let spec = format!("watch:{}{options}", folder.display());
    Source::open(&spec.parse().expect("a source")).await.expect("the folder is there")
}

async fn next(source: &mut Source) -> Result<Bytes, String> {
    let next = timeout(LONGEST, source.next()).await.expect("it comes").expect("it goes on");
    next.map(|frame| frame.picture.jpeg).map_err(|error| tidegate_message::error_chain(&error))
}

/// The state of a file.
fn status(path: &Path) -> Option<Metadata> {
    fs::symlink_metadata(path).ok()
}

/// Puts a file there as FTP servers do that rename it at the end.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let part = folder.join(format!(".{name}.part"));
    fs::write(&part, bytes).expect("a file");
    fs::rename(part, folder.join(name)).expect("it is renamed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_taken_once_they_are_whole_and_each_once() {
    use std::io::Write as _;
    let images = jpegs(4);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::write(root.join("before.jpg"), &images[3]).expect("a file");
    let mut source = watch(root, "").await;
    // In the making for a while, under its own name.
    let mut upload = fs::File::create(root.join("1.jpg")).expect("a file");
    let (first, second) = images[0].split_at(images[0].len() / 2);
    upload.write_all(first).expect("it is written");
    put(root, "2.JPG", &images[1]);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[1]), "the other is not whole");
    upload.write_all(second).expect("it is written");
    drop(upload);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[0]));
    // Other files, hidden ones and links are none.
    fs::write(root.join("list.txt"), b"text").expect("a file");
    fs::write(root.join(".3.jpg"), &images[3]).expect("a file");
    std::os::unix::fs::symlink("before.jpg", root.join("4.jpg")).expect("a link");
    // The same name again is another picture, and other permissions are none.
    let others = fs::Permissions::from_mode(0o640);
    fs::set_permissions(root.join("1.jpg"), others).expect("it is ours");
    put(root, "2.JPG", &images[2]);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[2]));
    put(root, "5.jpg", b"no picture");
    let error = next(&mut source).await.expect_err("it is none");
    assert!(error.contains("5.jpg is not a JPEG image"), "{error}");
    put(root, "6.jpg", &images[3]);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[3]));
    assert!(root.join("before.jpg").exists() && root.join("6.jpg").exists(), "nothing is deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_that_cameras_make_by_date_are_watched() {
    let images = jpegs(5);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::create_dir_all(root.join("2026/11/26")).expect("folders");
    let mut source = watch(root, "").await;
    put(&root.join("2026/11/26"), "1.jpg", &images[0]);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[0]));
    for (day, image) in [("2026/11/27", &images[1]), ("2026/12/01", &images[2])] {
        fs::create_dir_all(root.join(day)).expect("folders");
        put(&root.join(day), "1.jpg", image);
        assert_eq!(next(&mut source).await.as_ref(), Ok(image), "{day}");
    }
    // A folder that is moved here with its pictures.
    let made = tempfile::tempdir_in(root.parent().expect("it has one")).expect("a folder");
    fs::create_dir(made.path().join("day")).expect("a folder");
    put(&made.path().join("day"), "1.jpg", &images[3]);
    fs::rename(made.path().join("day"), root.join("day")).expect("it is moved");
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[3]));
    // The folder itself goes and comes: that is said, and what arrives then is taken.
    fs::rename(root, made.path().join("away")).expect("it is moved");
    let error = next(&mut source).await.expect_err("it is gone");
    assert!(error.contains("cannot read"), "{error}");
    fs::create_dir(root).expect("a folder");
    let mut number = 0;
    let image = loop {
        // Until it is watched again.
        number += 1;
        put(root, &format!("{number}.jpg"), &images[4]);
        match timeout(Duration::from_millis(300), source.next()).await {
            Ok(Some(Ok(frame))) => break frame.picture.jpeg,
            Ok(None) => panic!("a folder does not end"),
            _ => {}
        }
    };
    assert_eq!(image, images[4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_there_is_taken_oldest_first_and_deleted_and_nothing_is_lost_to_a_slow_consumer() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::create_dir(root.join("day")).expect("a folder");
    let images: Vec<Bytes> = (0..6_u16).map(|number| jpeg_of(320 + 16 * number, 180)).collect();
    // By the time at which they came, and not by their names.
    for (number, image) in images.iter().enumerate() {
        let (place, name) = (["", "day"][number % 2], format!("{}.jpg", 9 - number));
        put(&root.join(place), &name, image);
        let came = status(&root.join(place).join(&name)).expect("it is there");
        while SourceClock::wall().as_nanos() < changed_at(&came) + 20_000_000 {
            std::thread::yield_now();
        }
    }
    let mut source = watch(root, "?delete=1").await;
    let mut captured = Instant::MIN;
    for image in &images {
        let frame = timeout(LONGEST, source.next()).await.expect("it comes").expect("it goes on");
        let frame = frame.expect("it is a picture");
        assert!(frame.picture.jpeg == *image && frame.captured > captured);
        captured = frame.captured;
    }
    assert_eq!(source.dropped(), 0);
    // The last is deleted as well, though no other comes.
    let is_empty = || {
        let files = |place: &Path| {
            let entries = fs::read_dir(place).expect("it is there");
            entries.flatten().filter(|entry| entry.path().is_file()).count()
        };
        files(root) + files(&root.join("day")) == 0
    };
    let began = Moment::now();
    while !is_empty() {
        assert!(began.elapsed() < LONGEST, "files are left");
        tokio::task::yield_now().await;
    }
    // A burst that comes at one moment.
    for (number, image) in images.iter().enumerate() {
        put(root, &format!("{number}.jpg"), image);
    }
    for image in &images {
        assert_eq!(next(&mut source).await.as_ref(), Ok(image));
    }
}

/// A folder that is watched, without what drives it.
async fn watched(root: &Path) -> Watched {
    let clock = SourceClock::start();
    let watched = Watched::open(root, (false, false), &clock).await.expect("it is watched");
    // Files get their times by a clock of the kernel that is some milliseconds behind.
    let begin = watched.told_at;
    while SourceClock::wall().as_nanos() < begin + 20_000_000 {
        std::thread::yield_now();
    }
    watched
}

/// Whether these pictures come, each once, in whatever order.
async fn come(watched: &mut Watched, images: &[&Bytes]) {
    let mut left = images.to_vec();
    while !left.is_empty() {
        let next = timeout(LONGEST, watched.next()).await;
        let next = next.unwrap_or_else(|_| panic!("{} do not come", left.len()));
        let (picture, _) = next.expect("it is a picture");
        let place = left.iter().position(|image| **image == picture.jpeg);
        left.swap_remove(place.expect("it comes once"));
    }
    assert!(timeout(2 * SETTLED_AFTER, watched.next()).await.is_err(), "there is no other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_in_a_folder_that_came_are_taken_after_later_ones() {
    let images = jpegs(4);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("in");
    fs::create_dir_all(folder.path().join("made/below")).expect("folders");
    fs::create_dir(&root).expect("a folder");
    let mut watched = watched(&root).await;
    put(&folder.path().join("made"), "1.jpg", &images[0]);
    put(&folder.path().join("made/below"), "2.jpg", &images[1]);
    fs::rename(folder.path().join("made"), root.join("day")).expect("it is moved");
    put(&root, "3.jpg", &images[2]);
    come(&mut watched, &[&images[0], &images[1], &images[2]]).await;
    // One with the times of its writing, as `cp -rp` and `tar` make it.
    fs::create_dir(root.join("copy")).expect("a folder");
    let copy = fs::File::create(root.join("copy/4.jpg")).expect("a file");
    std::io::Write::write_all(&mut &copy, &images[3]).expect("it is written");
    copy.set_modified(std::time::UNIX_EPOCH).expect("it is ours");
    drop(copy);
    put(&root, "5.jpg", &images[0]);
    come(&mut watched, &[&images[3], &images[0]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_for_which_there_was_no_room_are_found_behind_later_ones() {
    let images = jpegs(3);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let mut watched = watched(root).await;
    let begin = SourceClock::wall().as_nanos() - 1_000_000_000;
    let full = (0..WAITING_MAX as i64).map(|number| (begin + number, root.join("gone.jpg")));
    watched.waiting.extend(full.map(|key| (key, true)));
    put(root, "1.jpg", &images[0]);
    watched.take_events().await.expect("they are read");
    assert_eq!(watched.waiting.len(), WAITING_MAX, "there is no room");
    // There is again before the others come.
    watched.waiting.clear();
    put(root, "2.jpg", &images[1]);
    put(root, "3.jpg", &images[2]);
    come(&mut watched, &[&images[0], &images[1], &images[2]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_came_with_more_than_may_wait_is_taken_whole() {
    let images = jpegs(2);
    let folder = tempfile::tempdir().expect("a folder");
    let (root, made) = (folder.path().join("in"), folder.path().join("made"));
    for folder in [&root, &made] {
        fs::create_dir(folder).expect("a folder");
    }
    // Older than the watch, as those of a memory card that is put there whole, and of one that is not to be taken.
    put(&root, "old.jpg", &images[1]);
    let count = WAITING_MAX + 2;
    for number in 0..count {
        fs::write(made.join(format!("{number}.jpg")), &images[0]).expect("a file");
    }
    let mut watched = watched(&root).await;
    fs::rename(&made, root.join("day")).expect("it is moved");
    for number in 0..count {
        let next = timeout(LONGEST, watched.next()).await;
        let next = next.unwrap_or_else(|_| panic!("only {number} of {count} come"));
        let (picture, _) = next.expect("it is a picture");
        assert_eq!(picture.jpeg, images[0]);
    }
    assert!(timeout(2 * SETTLED_AFTER, watched.next()).await.is_err(), "there is no other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_the_kernel_lost_are_found_behind_later_ones() {
    let images = jpegs(4);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let mut watched = watched(root).await;
    put(root, "1.jpg", &images[0]);
    let (picture, _) = watched.next().await.expect("it is a picture");
    assert_eq!(picture.jpeg, images[0]);
    watched.take_events().await.expect("they are read");
    put(root, "2.jpg", &images[1]);
    // Its event is thrown away, and in its place comes the kernel's word that some were lost (IN_Q_OVERFLOW of inotify(7)).
    watched.events.readable().await.expect("there is an event");
    let mut events = vec![0; arrivals::READ_BYTES];
    assert!(watched.events.try_read(&mut events).expect("it is read") > 0);
    let lost = [&(-1_i32).to_ne_bytes()[..], &0x4000_u32.to_ne_bytes(), &[0; 8]].concat();
    watched.arrivals.read(&lost);
    put(root, "3.jpg", &images[2]);
    put(root, "4.jpg", &images[3]);
    come(&mut watched, &[&images[1], &images[2], &images[3]]).await;
}

#[test]
fn a_scan_finds_the_oldest_that_are_later_and_as_many_as_there_is_room_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::create_dir_all(root.join("a/b/.hidden")).expect("folders");
    for name in ["1.jpg", "a/2.jpg", "a/b/3.jpeg", "a/b/.hidden/4.jpg", "a/.5.jpg", "a/6.txt"] {
        fs::write(root.join(name), b"x").expect("a file");
    }
    let found = scan(root, None, None, None).expect("it is read");
    let names = |found: &Found| -> Vec<PathBuf> {
        found.folders.iter().map(|(_, path)| path.clone()).collect()
    };
    assert_eq!(found.files.len(), 0, "they are not settled");
    assert!(found.unsettled.is_some());
    let mut folders = names(&found);
    folders.sort();
    assert_eq!(folders, [root.join("a"), root.join("a/b")]);
    let later = (i64::MAX, PathBuf::new());
    let found = scan(root, Some(&later), None, None).expect("it is read");
    assert!(found.files.is_empty() && found.unsettled.is_none() && found.more.is_none());
    assert!(scan(&root.join("none"), None, None, None).is_err());
    let deep: PathBuf = std::iter::repeat_n("x", DEPTH_MAX + 3).collect();
    fs::create_dir_all(root.join(&deep)).expect("folders");
    fs::write(root.join(&deep).join("7.jpg"), b"x").expect("a file");
    let found = scan(root, None, None, None).expect("it is read");
    assert_eq!(found.folders.len(), 2 + DEPTH_MAX, "deeper ones are none of a camera's");
}

#[test]
fn a_file_is_read_as_it_was_found() {
    let image = jpegs(1).remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let beneath = Beneath::open(folder.path()).expect("a folder");
    let path = folder.path().join("1.jpg");
    fs::write(&path, &image).expect("a file");
    let at = changed_at(&status(&path).expect("it is there"));
    let content = read(&beneath, (at, path.clone())).expect("it is read");
    assert!(matches!(content, Content::Picture(..)));
    let changed = read(&beneath, (at - 1, path.clone())).expect("it is read");
    assert!(matches!(changed, Content::Changed((now, _)) if now == at));
    fs::remove_file(&path).expect("it is there");
    assert!(matches!(read(&beneath, (at, path.clone())), Ok(Content::Gone)));
    let huge = fs::File::create(&path).expect("a file");
    huge.set_len(1 << 40).expect("it has holes");
    drop(huge);
    let at = changed_at(&status(&path).expect("it is there"));
    assert!(matches!(read(&beneath, (at, path.clone())), Err(SourceError::NotJpeg { .. })));
}

#[test]
fn a_file_without_all_of_its_picture_is_waited_for_and_then_torn() {
    let image = jpegs(1).remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let beneath = Beneath::open(folder.path()).expect("a folder");
    let path = folder.path().join("1.jpg");
    // Closed, as FTP servers close what broke off, or with room for the rest, which is zeros until then.
    let room = [&image[..image.len() / 2], &vec![0; image.len() / 2]].concat();
    for part in
        [&b""[..], &image[..1], &image[..2], &image[..100], &image[..image.len() / 2], &room]
    {
        fs::write(&path, part).expect("a file");
        let at = changed_at(&status(&path).expect("it is there"));
        let content = read(&beneath, (at, path.clone()));
        assert!(matches!(content, Ok(Content::Partial)), "{} bytes", part.len());
        assert!(!has_whole_picture(part), "{} bytes", part.len());
    }
    // Nothing is missing of the picture but its end marker, which some writers leave out.
    let bare = &image[..image.len() - 2];
    assert!(has_whole_picture(bare) && has_whole_picture(&image));
    fs::write(&path, bare).expect("a file");
    let at = changed_at(&status(&path).expect("it is there"));
    let content = read(&beneath, (at, path.clone())).expect("it is read");
    assert!(matches!(content, Content::Picture(jpeg, _) if jpeg.ends_with(&[0xff, 0xd9])));
    // A file that is no picture is not waited for.
    fs::write(&path, b"no picture").expect("a file");
    let at = changed_at(&status(&path).expect("it is there"));
    assert!(matches!(read(&beneath, (at, path.clone())), Err(SourceError::NotJpeg { .. })));
}

#[test]
fn a_file_that_a_writer_has_open_is_not_whole() {
    let image = jpegs(1).remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let beneath = Beneath::open(folder.path()).expect("a folder");
    let path = folder.path().join("1.jpg");
    let mut writer = fs::File::create(&path).expect("a file");
    std::io::Write::write_all(&mut writer, &image).expect("it is written");
    let at = changed_at(&status(&path).expect("it is there"));
    let is_known = has_writer(&fs::File::open(&path).expect("it is there")).is_some();
    let content = read(&beneath, (at, path.clone())).expect("it is read");
    assert_eq!(matches!(content, Content::Partial), is_known);
    drop(writer);
    let content = read(&beneath, (at, path)).expect("it is read");
    assert!(matches!(content, Content::Picture(..)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_breaks_off_and_is_resumed_is_taken_whole_and_then_deleted() {
    let images = jpegs(2);
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let mut source = watch(root, "?delete=1").await;
    let (first, second) = images[0].split_at(images[0].len() / 2);
    fs::write(root.join("1.jpg"), first).expect("it is closed in the middle");
    put(root, "2.jpg", &images[1]);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[1]), "the other is not whole");
    assert_eq!(fs::read(root.join("1.jpg")).expect("it is there"), first, "it is left");
    let mut rest = fs::File::options().append(true).open(root.join("1.jpg")).expect("it is ours");
    std::io::Write::write_all(&mut rest, second).expect("it is written");
    drop(rest);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[0]));
    put(root, "3.jpg", &images[1]);
    assert_eq!(next(&mut source).await.as_ref(), Ok(&images[1]));
    assert!(!root.join("1.jpg").exists(), "it was taken whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_linked_here_is_taken_once_whatever_becomes_of_its_other_name() {
    let images = jpegs(2);
    let folder = tempfile::tempdir().expect("a folder");
    let (root, out) = (folder.path().join("in"), folder.path().join("out"));
    fs::create_dir(&root).expect("a folder");
    fs::create_dir(&out).expect("a folder");
    // As old as one that no scan takes for new.
    let old = fs::File::create(out.join("old")).expect("a file");
    std::io::Write::write_all(&mut &old, &images[0]).expect("it is written");
    old.set_modified(std::time::UNIX_EPOCH).expect("it is ours");
    drop(old);
    fs::write(out.join("new"), &images[1]).expect("a file");
    let mut watched = watched(&root).await;
    fs::hard_link(out.join("old"), root.join("1.jpg")).expect("it is linked");
    fs::hard_link(out.join("new"), root.join("2.jpg")).expect("it is linked");
    fs::remove_file(out.join("new")).expect("it is ours");
    come(&mut watched, &[&images[0], &images[1]]).await;
    // Their state changes, and not what is in them.
    fs::remove_file(out.join("old")).expect("it is ours");
    let others = fs::Permissions::from_mode(0o640);
    fs::set_permissions(root.join("2.jpg"), others).expect("it is ours");
    let later = SourceClock::wall().as_nanos();
    watched.scan_at = Moment::now();
    watched.after = Some((later - 1_000_000_000, PathBuf::new()));
    watched.scan(root.clone()).await.expect("it is read");
    come(&mut watched, &[]).await;
}

/// A file whose picture was given as it is now.
fn given(beneath: &Beneath, path: &Path) -> Given {
    let status = status(path).expect("it is there");
    let key = key(path.to_owned(), &status);
    let Ok(Content::Picture(jpeg, identity)) = read(beneath, key.clone()) else {
        panic!("it is a picture")
    };
    Given { key, identity, jpeg }
}

#[tokio::test]
async fn a_file_that_was_written_again_is_not_deleted() {
    let images = jpegs(2);
    let folder = tempfile::tempdir().expect("a folder");
    let beneath = Arc::new(Beneath::open(folder.path()).expect("a folder"));
    let path = folder.path().join("1.jpg");
    fs::write(&path, &images[0]).expect("a file");
    let taken = given(&beneath, &path);
    let written = fs::metadata(&path).expect("it is there").modified().expect("it has a time");
    // A writer that gives it the time and the length that it had.
    let mut other = images[1].to_vec();
    other.resize(images[0].len(), 0);
    fs::write(&path, &other).expect("it is written");
    let file = fs::File::options().write(true).open(&path).expect("it is ours");
    file.set_modified(written).expect("it is ours");
    drop(file);
    delete(beneath.clone(), taken).await.expect("it is left");
    assert_eq!(fs::read(&path).expect("it is there"), other);
    // Other permissions make no other file.
    fs::write(&path, &images[1]).expect("it is written");
    let taken = given(&beneath, &path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
    delete(beneath.clone(), taken).await.expect("it is deleted");
    assert!(!path.exists());
    fs::write(&path, &images[1]).expect("a file");
    let taken = given(&beneath, &path);
    fs::remove_file(&path).expect("it is ours");
    delete(beneath, taken).await.expect("it is gone already");
}

#[tokio::test]
async fn no_file_is_read_or_deleted_to_which_a_link_leads() {
    let images = jpegs(1);
    let folder = tempfile::tempdir().expect("a folder");
    let (root, out) = (folder.path().join("in"), folder.path().join("out"));
    fs::create_dir(&root).expect("a folder");
    fs::create_dir(&out).expect("a folder");
    let secret = out.join("1.jpg");
    fs::write(&secret, &images[0]).expect("a file");
    let at = changed_at(&status(&secret).expect("it is there"));
    // In the place of a folder and of a file, after the names were told.
    std::os::unix::fs::symlink(&out, root.join("day")).expect("a link");
    std::os::unix::fs::symlink(&secret, root.join("2.jpg")).expect("a link");
    let beneath = Arc::new(Beneath::open(&root).expect("a folder"));
    for name in ["day/1.jpg", "2.jpg"] {
        let path = root.join(name);
        let content = read(&beneath, (at, path.clone())).expect("it is none");
        assert!(matches!(content, Content::Gone), "{name}");
        let identity = identity(&status(&secret).expect("it is there"));
        let given = Given { key: (at, path), identity, jpeg: images[0].clone() };
        delete(beneath.clone(), given).await.expect("it is left");
        assert!(secret.exists(), "{name}");
    }
    assert!(root.join("2.jpg").is_symlink(), "it is no picture that was taken");
}
