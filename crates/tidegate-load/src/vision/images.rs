//! Images that are sent: files as they are, a folder of them, or the frames of a video.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use bytes::Bytes;

/// Most bytes of all images, which are held in memory.
pub const IMAGES_BYTES_MAX: usize = 1 << 30;
/// Ends of the names of images in a folder, and of videos.
const IMAGE_ENDS: [&str; 3] = ["jpg", "jpeg", "png"];
const VIDEO_ENDS: [&str; 5] = ["mp4", "avi", "mov", "mkv", "webm"];
/// Sides of a frame that is made smaller.
const LONG_SIDE: u32 = 240;
const SHORT_SIDE: u32 = 180;

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its file, with the number of the frame in a video.
    pub name: String,
    /// As it is sent.
    pub bytes: Bytes,
    /// As `Content-Type` has it.
    pub media_type: &'static str,
}

/// How frames are taken from a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    /// Every how many-th frame is sent; at least 1.
    pub every: u32,
    /// As large as they are, rather than 240 x 180.
    pub full_size: bool,
}

impl Image {
    /// An image from its bytes.
    #[must_use]
    pub fn new(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        // A server looks at the bytes as well; a type that is not known is said to be JPEG, so that a wrong file is refused there.
        let is_png = bytes.starts_with(b"\x89PNG\r\n\x1a\n");
        let media_type = if is_png { "image/png" } else { "image/jpeg" };
        Self { name: name.into(), bytes, media_type }
    }
}

/// The images of `files`, in their order, then those of `folder` by name.
///
/// # Errors
/// Any of [`ImageError`].
pub fn load(
    files: &[PathBuf],
    folder: Option<&Path>,
    frames: Frames,
) -> Result<Vec<Image>, ImageError> {
    let mut images = Vec::new();
    let mut add = |found: Vec<Image>| {
        images.extend(found);
        let bytes: usize = images.iter().map(|image: &Image| image.bytes.len()).sum();
        if bytes > IMAGES_BYTES_MAX { Err(ImageError::TooLarge { bytes }) } else { Ok(()) }
    };
    for file in files {
        if ends(file, &VIDEO_ENDS) {
            add(of_video(file, frames)?)?;
        } else {
            add(vec![read(file)?])?;
        }
    }
    if let Some(folder) = folder {
        let unread = |source| ImageError::Unread { path: folder.to_owned(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(unread)? {
            let path = entry.map_err(unread)?.path();
            if ends(&path, &IMAGE_ENDS) {
                found.push(path);
            }
        }
        found.sort();
        if found.is_empty() {
            return Err(ImageError::NoImages { folder: folder.to_owned() });
        }
        for path in found {
            add(vec![read(&path)?])?;
        }
    }
    Ok(images)
}

fn ends(path: &Path, with: &[&str]) -> bool {
    let end = path.extension().and_then(|end| end.to_str());
    end.is_some_and(|end| with.iter().any(|other| end.eq_ignore_ascii_case(other)))
}

fn read(path: &Path) -> Result<Image, ImageError> {
    let bytes = fs::read(path);
    let bytes = bytes.map_err(|source| ImageError::Unread { path: path.to_owned(), source })?;
    Ok(Image::new(path.display().to_string(), bytes))
}

/// Has ffmpeg decode the video and code its frames as JPEG.
fn of_video(path: &Path, frames: Frames) -> Result<Vec<Image>, ImageError> {
    let failed = |source| ImageError::Video { path: path.to_owned(), source };
    let mut filter = format!("select=not(mod(n\\,{}))", frames.every.max(1));
    if !frames.full_size {
        filter += &format!(
            ",scale='if(gt(iw,ih),{LONG_SIDE},{SHORT_SIDE})':'if(gt(iw,ih),{SHORT_SIDE},{LONG_SIDE})'"
        );
    }
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-i"]).arg(path);
    command.args(["-an", "-vf", &filter, "-fps_mode", "passthrough", "-pix_fmt", "yuvj420p"]);
    command.args(["-q:v", "2", "-c:v", "mjpeg", "-f", "mjpeg", "-"]);
    let output = command.stdin(Stdio::null()).output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(failed(io::Error::other(said)));
    }
    let found = pictures(&output.stdout);
    if found.is_empty() {
        return Err(failed(io::Error::other("it has no frames")));
    }
    let image = |(number, bytes): (usize, &[u8])| {
        Image::new(format!("{}#{number}", path.display()), bytes.to_vec())
    };
    Ok(found.into_iter().enumerate().map(image).collect())
}

/// The pictures of a stream of JPEG, one behind the other. The end of one and the start of the next stand nowhere else together: in
/// coded data each `0xff` has a zero behind it, and the tables that ffmpeg writes have none.
fn pictures(stream: &[u8]) -> Vec<&[u8]> {
    let mut starts: Vec<usize> = vec![0];
    let cuts = stream.windows(4).enumerate();
    starts
        .extend(cuts.filter(|(_, bytes)| *bytes == [0xff, 0xd9, 0xff, 0xd8]).map(|(at, _)| at + 2));
    starts.push(stream.len());
    starts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).filter(|one| !one.is_empty()).collect()
}

/// Why there are no images to send.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file or folder cannot be read.
    #[error("{} cannot be read", path.display())]
    Unread {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder without images.
    #[error("{} has no files that end in .jpg, .jpeg or .png", folder.display())]
    NoImages {
        /// Its path.
        folder: PathBuf,
    },
    /// Frames cannot be had from a video.
    #[error("ffmpeg takes no frames from {}", path.display())]
    Video {
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// More than is held in memory.
    #[error(
        "the images have {bytes} bytes, and at most {IMAGES_BYTES_MAX} are held; send fewer, or --skip-frames of a video"
    )]
    TooLarge {
        /// Their bytes.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const AS_SENT: Frames = Frames { every: 1, full_size: false };

    #[test]
    fn files_come_in_order_and_a_folder_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let png = b"\x89PNG\r\n\x1a\n and more";
        for (name, bytes) in
            [("b.PNG", &png[..]), ("a.jpg", b"\xff\xd8"), ("c.txt", b"no"), ("d.jpeg", b"x")]
        {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let file = folder.path().join("c.txt");
        let images = load(&[file], Some(folder.path()), AS_SENT).unwrap();
        let found: Vec<_> = images
            .iter()
            .map(|image| (image.name.rsplit('/').next().unwrap(), image.media_type))
            .collect();
        let (jpeg, png) = ("image/jpeg", "image/png");
        assert_eq!(found, [("c.txt", jpeg), ("a.jpg", jpeg), ("b.PNG", png), ("d.jpeg", jpeg)]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.jpg");
        let error = load(std::slice::from_ref(&missing), None, AS_SENT).unwrap_err();
        assert!(error.to_string().contains("missing.jpg cannot be read"), "{error}");
        let error = load(&[], Some(folder.path()), AS_SENT).unwrap_err();
        assert!(error.to_string().contains("has no files that end in .jpg"), "{error}");
    }

    #[test]
    fn a_stream_of_pictures_is_cut_between_them() {
        let one = [0xff, 0xd8, 1, 0xff, 0x00, 0xd9, 0xff, 0xd9];
        let two = [0xff, 0xd8, 0xff, 0xd9];
        assert_eq!(pictures(&[&one[..], &two, &one].concat()), [&one[..], &two, &one]);
        assert_eq!(pictures(&[]), [&[] as &[u8]; 0]);
    }

    #[test]
    fn frames_of_a_video_are_taken_and_made_small() {
        let folder = tempfile::tempdir().unwrap();
        let video = folder.path().join("ten.avi");
        let made = Command::new("ffmpeg")
            .args(["-nostdin", "-v", "error", "-f", "lavfi", "-i"])
            .args(["testsrc=size=320x200:rate=10:duration=1", "-c:v", "mjpeg"])
            .arg(&video)
            .status();
        if !made.is_ok_and(|status| status.success()) {
            println!("skipped: ffmpeg makes no video on this machine");
            return;
        }
        let size = |bytes: &[u8]| {
            let at = bytes.windows(2).position(|marker| marker == [0xff, 0xc0]).expect("baseline");
            let side = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            (side(at + 7), side(at + 5))
        };
        for (frames, count, expected) in
            [(AS_SENT, 10, (240, 180)), (Frames { every: 3, full_size: true }, 4, (320, 200))]
        {
            let images = load(std::slice::from_ref(&video), None, frames).unwrap();
            assert_eq!(images.len(), count);
            assert!(images[0].name.ends_with("ten.avi#0"), "{}", images[0].name);
            assert!(images.iter().all(|image| size(&image.bytes) == expected));
        }
    }
}
