//! Frames into folders and rows into a file.
//!
//! Always true: a sink that fails is closed, and its failure reported once; the subscriptions continue without it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tidegate_api::{ApiError, Event, Stages};
use tidegate_message::{Bounds, CameraName, Code, Instant};

use crate::{fetch::write_whole, program::plain};

/// The columns of the CSV. Times are nanoseconds since 1970 and milliseconds.
const COLUMNS: &str = "camera,captured_at_ns,event,replayed,latency_ms,bound_ms,in_bound,capture_ms,encode_ms,queue_ms,\
network_ms,delivery_ms,bytes,original_bytes,width,height,knobs,accuracy,accuracy_kept,count,why,source_width,source_height\n";

/// Where the frames of all cameras are written.
pub(super) struct Sinks(Mutex<State>);

struct State {
    folders: BTreeMap<CameraName, PathBuf>,
    csv: Option<Csv>,
    failures: Vec<ApiError>,
}

struct Csv {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Sinks {
    /// # Errors
    /// [`Code::STORAGE_FAILED`] if a folder or the file cannot be made: nothing runs yet, so say it at once.
    pub(super) fn open(
        save: Option<&Path>,
        csv: Option<&Path>,
        cameras: &[CameraName],
    ) -> Result<Self, ApiError> {
        let mut folders = BTreeMap::new();
        for camera in cameras.iter().filter(|_| save.is_some()) {
            let folder = save.unwrap_or(Path::new("")).join(camera.as_str());
            fs::create_dir_all(&folder).map_err(|error| unwritten(&folder, error))?;
            folders.insert(camera.clone(), folder);
        }
        let csv = csv.map(|path| {
            let open = || -> io::Result<Csv> {
                let mut file = BufWriter::new(File::create(path)?);
                file.write_all(COLUMNS.as_bytes())?;
                file.flush()?;
                Ok(Csv { path: path.to_owned(), file })
            };
            open().map_err(|error| unwritten(path, error))
        });
        Ok(Self(Mutex::new(State { folders, csv: csv.transpose()?, failures: Vec::new() })))
    }

    /// Saves what `event` brings. Waits for the disk, so that a slow one makes the subscription skip frames
    /// rather than fill memory.
    pub(super) async fn write(&self, camera: &CameraName, bounds: Bounds, event: &Event) {
        let folder = self.state().folders.get(camera).cloned();
        if let (Event::Frame(frame), Some(folder)) = (event, folder) {
            let path = folder.join(format!("{}.jpg", frame.captured_at.as_nanos()));
            let jpeg = frame.jpeg.clone();
            let written = tokio::task::spawn_blocking(move || write_whole(&path, &jpeg)).await;
            let broken = |error| ApiError::new(Code::INTERNAL, "saving broke").caused_by(error);
            if let Err(error) = written.map_err(broken).and_then(|written| written) {
                let mut state = self.state();
                state.folders.remove(camera);
                state.failures.push(error);
            }
        }
        let Some(row) = row(camera, bounds, event) else { return };
        let mut state = self.state();
        let Some(csv) = &mut state.csv else { return };
        if let Err(error) = csv.file.write_all(row.as_bytes()) {
            let failure = unwritten(&csv.path, error);
            state.csv = None;
            state.failures.push(failure);
        }
    }

    /// Failures that were not reported yet.
    pub(super) fn failures(&self) -> Vec<ApiError> {
        std::mem::take(&mut self.state().failures)
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// [`Code::STORAGE_FAILED`].
    pub(super) fn close(&self) -> Result<(), ApiError> {
        match self.state().csv.take() {
            Some(mut csv) => csv.file.flush().map_err(|error| unwritten(&csv.path, error)),
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unwritten(path: &Path, error: io::Error) -> ApiError {
    let message = format!("{} cannot be written", path.display());
    ApiError::new(Code::STORAGE_FAILED, message).caused_by(error)
}

/// One row for a frame, a marker or missed frames; none for what is no frame.
fn row(camera: &CameraName, bounds: Bounds, event: &Event) -> Option<String> {
    Some(match event {
        Event::Frame(frame) => format!(
            "{},{},{},{},{},{},{:.4},{},,,{}\n",
            timed(camera, frame.captured_at, "frame", frame.replayed, &frame.stages, bounds),
            frame.jpeg.len(),
            frame.original_bytes,
            frame.size.width,
            frame.size.height,
            plain(&frame.knobs).replace([',', '"'], ";"),
            frame.accuracy,
            frame.accuracy_kept,
            frame
                .source_size
                .map_or_else(|| ",".to_owned(), |size| format!("{},{}", size.width, size.height)),
        ),
        Event::Unchanged(marker) => format!(
            "{},,,,,,,,,,,\n",
            timed(camera, marker.captured_at, "unchanged", marker.replayed, &marker.stages, bounds)
        ),
        Event::Missed(missed) => format!(
            "{camera},{},missed,,,,,,,,,,,,,,,,,{},{},,\n",
            missed.from.as_nanos(),
            missed.count,
            missed.why
        ),
        _ => return None,
    })
}

/// The first twelve columns.
fn timed(
    camera: &CameraName,
    captured_at: Instant,
    event: &str,
    replayed: bool,
    stages: &Stages,
    bounds: Bounds,
) -> String {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let in_bound = replayed || stages.total() <= bounds.latency();
    format!(
        "{camera},{},{event},{replayed},{:.3},{:.3},{in_bound},{:.3},{:.3},{:.3},{:.3},{:.3}",
        captured_at.as_nanos(),
        millis(stages.total()),
        millis(bounds.latency()),
        millis(stages.capture),
        millis(stages.encode),
        millis(stages.queue),
        millis(stages.network),
        millis(stages.delivery),
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_api::{Frame, Missed, MissedWhy, Unchanged};

    use super::*;

    fn bounds() -> Bounds {
        Bounds::new(Duration::from_millis(100), 0.9).unwrap()
    }

    fn frame(at: i64) -> Event {
        Event::Frame(Frame {
            captured_at: Instant::from_nanos(at),
            epoch: 1,
            size: "960x540".parse().unwrap(),
            source_size: "1920x1080".parse().ok(),
            original_bytes: 410_000,
            knobs: "1/2, q60".into(),
            accuracy: 0.9612,
            accuracy_kept: true,
            replayed: false,
            stages: Stages { network: Duration::from_micros(30_500), ..Stages::default() },
            handed_at: Instant::EPOCH,
            jpeg: Bytes::from_static(b"\xff\xd8\xff\xd9"),
        })
    }

    #[test]
    fn rows_fill_every_column() {
        let camera: CameraName = "cam1".parse().unwrap();
        let unchanged = Event::Unchanged(Unchanged {
            captured_at: Instant::from_nanos(6),
            epoch: 1,
            same_as: Instant::from_nanos(5),
            replayed: false,
            stages: Stages::default(),
            handed_at: Instant::EPOCH,
        });
        let missed = Event::Missed(Missed {
            from: Instant::from_nanos(7),
            to: Instant::from_nanos(9),
            count: 3,
            why: MissedWhy::Late,
        });
        let row = |event: &Event| row(&camera, bounds(), event).unwrap();
        assert_eq!(
            row(&frame(5)),
            "cam1,5,frame,false,30.500,100.000,true,0.000,0.000,0.000,30.500,0.000,4,410000,960,540,\
             1/2; q60,0.9612,true,,,1920,1080\n"
        );
        assert_eq!(row(&missed), "cam1,7,missed,,,,,,,,,,,,,,,,,3,the deadline passed,,\n");
        let columns = COLUMNS.matches(',').count();
        for event in [frame(5), unchanged, missed] {
            assert_eq!(row(&event).matches(',').count(), columns, "{event:?}");
        }
        assert!(super::row(&camera, bounds(), &Event::Feasible).is_none());
    }

    #[tokio::test]
    async fn a_sink_that_fails_is_told_once_and_the_other_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let camera: CameraName = "cam1".parse().unwrap();
        let csv = folder.path().join("frames.csv");
        let saved = folder.path().join("saved");
        let sinks = Sinks::open(Some(&saved), Some(&csv), std::slice::from_ref(&camera)).unwrap();
        sinks.write(&camera, bounds(), &frame(1)).await;
        assert_eq!(fs::read(saved.join("cam1/1.jpg")).unwrap(), b"\xff\xd8\xff\xd9");

        fs::remove_dir_all(&saved).unwrap();
        sinks.write(&camera, bounds(), &frame(2)).await;
        sinks.write(&camera, bounds(), &frame(3)).await;
        let failures = sinks.failures();
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].code(), Code::STORAGE_FAILED);
        assert!(failures[0].message().contains("2.jpg cannot be written"), "{}", failures[0]);
        sinks.close().unwrap();
        assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 4);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_said_at_once() {
        let camera: CameraName = "cam1".parse().unwrap();
        let open = |save, csv| {
            Sinks::open(save, csv, std::slice::from_ref(&camera)).err().map(|error| error.code())
        };
        let nowhere = Path::new("/proc/none/x");
        assert_eq!(open(Some(nowhere), None), Some(Code::STORAGE_FAILED));
        assert_eq!(open(None, Some(nowhere)), Some(Code::STORAGE_FAILED));
    }
}
