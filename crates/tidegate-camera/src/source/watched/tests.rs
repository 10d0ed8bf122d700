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

#[test]
fn a_scan_finds_the_oldest_that_are_later_and_as_many_as_there_is_room_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    fs::create_dir_all(root.join("a/b/.hidden")).expect("folders");
    for name in ["1.jpg", "a/2.jpg", "a/b/3.jpeg", "a/b/.hidden/4.jpg", "a/.5.jpg", "a/6.txt"] {
        fs::write(root.join(name), b"x").expect("a file");
    }
    let found = scan(root, None).expect("it is read");
    let names = |found: &Found| -> Vec<PathBuf> {
        found.folders.iter().map(|(_, path)| path.clone()).collect()
    };
    assert_eq!(found.files.len(), 0, "they are not settled");
    assert!(found.unsettled.is_some());
    let mut folders = names(&found);
    folders.sort();
    assert_eq!(folders, [root.join("a"), root.join("a/b")]);
    let later = (i64::MAX, PathBuf::new());
    let found = scan(root, Some(&later)).expect("it is read");
    assert!(found.files.is_empty() && found.unsettled.is_none() && !found.more);
    assert!(scan(&root.join("none"), None).is_err());
    let deep: PathBuf = std::iter::repeat_n("x", DEPTH_MAX + 3).collect();
    fs::create_dir_all(root.join(&deep)).expect("folders");
    fs::write(root.join(&deep).join("7.jpg"), b"x").expect("a file");
    let found = scan(root, None).expect("it is read");
    assert_eq!(found.folders.len(), 2 + DEPTH_MAX, "deeper ones are none of a camera's");
}

#[test]
fn a_file_is_read_as_it_was_found() {
    let image = jpegs(1).remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("1.jpg");
    fs::write(&path, &image).expect("a file");
    let at = changed_at(&status(&path).expect("it is there"));
    for is_told in [true, false] {
        let content = read((at, path.clone()), is_told).expect("it is read");
        assert!(matches!(content, Content::Picture(_)));
    }
    let changed = read((at - 1, path.clone()), true).expect("it is read");
    assert!(matches!(changed, Content::Changed((now, _)) if now == at));
    assert!(matches!(read((at - 1, path.clone()), false), Ok(Content::Gone)));
    // Half an upload that has come to a halt is not whole for a scan, and is all there is for its writer who left.
    fs::write(&path, &image[..image.len() / 2]).expect("a file");
    let at = changed_at(&status(&path).expect("it is there"));
    assert!(matches!(read((at, path.clone()), false), Ok(Content::Partial)));
    assert!(matches!(read((at, path.clone()), true), Ok(Content::Picture(_))));
    fs::remove_file(&path).expect("it is there");
    assert!(matches!(read((at, path.clone()), true), Ok(Content::Gone)));
    let huge = fs::File::create(&path).expect("a file");
    huge.set_len(1 << 40).expect("it has holes");
    let at = changed_at(&status(&path).expect("it is there"));
    assert!(matches!(read((at, path.clone()), true), Err(SourceError::NotJpeg { .. })));
}

#[tokio::test]
async fn a_file_that_was_written_again_is_not_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("1.jpg");
    fs::write(&path, b"new").expect("a file");
    let at = changed_at(&status(&path).expect("it is there"));
    delete((at - 1, path.clone())).await.expect("it is left");
    assert!(path.exists());
    delete((at, path.clone())).await.expect("it is deleted");
    assert!(!path.exists());
    delete((at, path)).await.expect("it is gone already");
}
