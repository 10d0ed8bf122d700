//! Files beside a model that hold its weights, as the model itself names them: none leads out of its folder.
//!
//! ONNX lets a tensor name any path, and ONNX Runtime before 1.24 reads what it finds there. The model is read here as protocol buffers
//! read it, without its weights. The same check for the worker in Python is `workers/detector/tidegate_detector/external.py`.
//!
//! Always true: an encoding that no writer of ONNX makes is refused, so that no name is read here in another way than by the library.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{self, BufReader, Read as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// As deep as protobuf reads messages within messages.
const DEPTH_MAX: usize = 100;
/// A path has at most so many bytes (`PATH_MAX` of Linux).
const NAME_BYTES_MAX: u64 = 4096;
/// So many characters of a name are in an error.
const SHOWN_MAX: usize = 200;

/// Messages of onnx.proto in which a tensor can lie, and the entries of its `external_data`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Function,
    Training,
    Entry,
}

impl Kind {
    /// The message that a field of it holds, of those.
    const fn of(self, field: u64) -> Option<Self> {
        Some(match (self, field) {
            (Self::Model, 7) | (Self::Attribute, 6 | 11) | (Self::Training, 1 | 2) => Self::Graph,
            (Self::Model, 20) => Self::Training,
            (Self::Model, 25) => Self::Function,
            (Self::Graph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::Sparse, 1 | 2) => Self::Tensor,
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::Sparse,
            (Self::Tensor, 13) => Self::Entry,
            _ => return None,
        })
    }
}

/// Refuses a model that keeps weights in another place than regular files of its own folder.
///
/// # Errors
/// [`ExternalError`].
pub(crate) fn check(path: &Path) -> Result<(), ExternalError> {
    let failed = |source| ExternalError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let end = file.metadata().map_err(failed)?.len();
    let mut walk = Walk { file: BufReader::new(file), at: 0, named: BTreeSet::new() };
    walk.message(Kind::Model, end, 0).map_err(|end| match end {
        End::Io(source) if source.kind() != io::ErrorKind::UnexpectedEof => failed(source),
        End::Io(_) | End::NotOnnx => ExternalError::NotOnnx { path: path.to_owned() },
    })?;
    let real = path.canonicalize().map_err(failed)?;
    let folder = real.parent().unwrap_or(Path::new("/"));
    for name in &walk.named {
        if !is_below(folder, Path::new(OsStr::from_bytes(name))) {
            let named = String::from_utf8_lossy(name).chars().take(SHOWN_MAX).collect();
            return Err(ExternalError::Outside { path: path.to_owned(), named });
        }
    }
    Ok(())
}

/// Whether it is a regular file below `folder`, with every link followed.
fn is_below(folder: &Path, name: &Path) -> bool {
    let real = folder.join(name).canonicalize();
    !name.is_absolute() && real.is_ok_and(|real| real.starts_with(folder) && real.is_file())
}

/// Reads the fields of a model one after another.
struct Walk {
    file: BufReader<File>,
    at: u64,
    /// The places that its tensors name.
    named: BTreeSet<Vec<u8>>,
}

/// Why it is not read to its end.
enum End {
    Io(io::Error),
    NotOnnx,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Walk {
    fn message(&mut self, kind: Kind, end: u64, depth: usize) -> Result<(), End> {
        if depth > DEPTH_MAX {
            return Err(End::NotOnnx);
        }
        let (mut is_location, mut values) = (false, Vec::new());
        while self.at < end {
            let tag = self.varint()?;
            let (field, wire) = (tag >> 3, tag & 7);
            if tag > u64::from(u32::MAX) || field == 0 {
                return Err(End::NotOnnx);
            }
            match wire {
                0 => _ = self.varint()?,
                1 => self.skip(8, end)?,
                5 => self.skip(4, end)?,
                2 => {
                    let length = self.varint()?;
                    let inner_end = self.at.checked_add(length).filter(|inner| *inner <= end);
                    let inner_end = inner_end.ok_or(End::NotOnnx)?;
                    match (kind.of(field), field) {
                        (Some(inner), _) => self.message(inner, inner_end, depth + 1)?,
                        // Of a field that comes twice the last counts; any of them is looked at.
                        (None, 1) if kind == Kind::Entry => {
                            is_location |= self.bytes(length)? == b"location";
                        }
                        (None, 2) if kind == Kind::Entry => values.push(self.bytes(length)?),
                        _ => self.skip(length, end)?,
                    }
                }
                _ => return Err(End::NotOnnx),
            }
        }
        if is_location {
            self.named.extend(values);
        }
        if self.at == end { Ok(()) } else { Err(End::NotOnnx) }
    }

    fn varint(&mut self) -> Result<u64, End> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let mut byte = [0];
            self.file.read_exact(&mut byte)?;
            self.at += 1;
            let bits = u64::from(byte[0] & 0x7f);
            value |= bits.checked_shl(shift).unwrap_or(0);
            if byte[0] < 0x80 {
                return Ok(value);
            }
        }
        Err(End::NotOnnx)
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, End> {
        if length > NAME_BYTES_MAX {
            return Err(End::NotOnnx);
        }
        let mut bytes = Vec::new();
        (&mut self.file).take(length).read_to_end(&mut bytes)?;
        self.at += length;
        Ok(bytes)
    }

    fn skip(&mut self, length: u64, end: u64) -> Result<(), End> {
        let at = self.at.checked_add(length).filter(|at| *at <= end).ok_or(End::NotOnnx)?;
        let by = i64::try_from(length).map_err(|_| End::NotOnnx)?;
        self.file.seek_relative(by)?;
        self.at = at;
        Ok(())
    }
}

/// Why the files of a model are not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExternalError {
    #[error("{} cannot be loaded", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} cannot be loaded: it is no ONNX model, or cut off", .path.display())]
    NotOnnx { path: PathBuf },
    #[error(
        "{} keeps weights in {named:?}, which is no file in the folder of the model; put it there, or save the model as one file",
        .path.display()
    )]
    Outside { path: PathBuf, named: String },
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn varint(mut value: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while value > 127 {
            out.push(value as u8 & 127 | 128);
            value >>= 7;
        }
        out.push(value as u8);
        out
    }

    fn field(number: usize, data: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(data.len()), data.to_vec()].concat()
    }

    /// A field within fields, the outermost first.
    fn within(numbers: &[usize], data: &[u8]) -> Vec<u8> {
        numbers.iter().rev().fold(data.to_vec(), |data, number| field(*number, &data))
    }

    fn tensor(name: &str) -> Vec<u8> {
        let entry = [field(1, b"location"), field(2, name.as_bytes())].concat();
        [varint(1 << 3), varint(15), field(8, b"weights"), field(13, &entry)].concat()
    }

    #[test]
    fn a_model_names_files_of_its_own_folder_alone() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("models");
        fs::create_dir_all(folder.join("deep")).unwrap();
        for place in ["weights", "models/weights", "models/deep/weights"] {
            fs::write(outer.path().join(place), "numbers").unwrap();
        }
        symlink(outer.path().join("weights"), folder.join("linked")).unwrap();
        symlink(folder.join("weights"), folder.join("again")).unwrap();
        let path = folder.join("street.onnx");
        let said = |data: &[u8]| {
            fs::write(&path, data).unwrap();
            check(&path).map_err(|error| tidegate_message::error_chain(&error))
        };
        for name in ["weights", "./weights", "deep/weights", "deep/../weights", "again"] {
            assert_eq!(said(&within(&[7, 5], &tensor(name))), Ok(()), "{name}");
        }
        let absolute = folder.join("weights");
        let absolute = absolute.to_str().unwrap();
        for name in [
            "../weights",
            "/etc/passwd",
            absolute,
            "linked",
            "none",
            "deep",
            "",
            "a/../../weights",
            "weights\0",
        ] {
            let error = said(&within(&[7, 5], &tensor(name))).unwrap_err();
            assert!(error.contains("no file in the folder of the model"), "{name}: {error}");
        }
        // Wherever a tensor may lie.
        let bad = tensor("../weights");
        for place in [
            &[7, 1, 5, 5][..],
            &[7, 1, 5, 10],
            &[7, 1, 5, 6, 5],
            &[7, 1, 5, 11, 1, 5, 5],
            &[7, 15, 1],
            &[7, 15, 2],
            &[7, 1, 5, 22, 1],
            &[7, 1, 5, 23, 2],
            &[25, 7, 5, 5],
            &[25, 11, 5],
            &[20, 1, 5],
            &[20, 2, 1, 5, 5],
        ] {
            let error = said(&within(place, &bad)).unwrap_err();
            assert!(error.contains("\"../weights\", which is no file"), "{place:?}: {error}");
        }
        // A place is none that is not asked for as one, and text that looks like a tensor is text.
        let entry = [field(1, b"checksum"), field(2, b"../weights")].concat();
        assert_eq!(said(&within(&[7, 5, 13], &entry)), Ok(()));
        assert_eq!(said(&within(&[7, 10], &within(&[5], &bad))), Ok(()));
    }

    #[test]
    fn an_encoding_that_could_be_read_in_two_ways_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("weights"), "numbers").unwrap();
        let path = folder.path().join("street.onnx");
        let said = |data: &[u8]| {
            fs::write(&path, data).unwrap();
            check(&path).map_err(|error| error.to_string())
        };
        let (name, good, bad) = (field(1, b"location"), field(2, b"weights"), field(2, b"../x"));
        for entry in [
            [&name[..], &bad, &good],
            [&bad, &good, &name],
            [&name, &good, &bad],
            [&bad, &name, &[]],
        ] {
            let error = said(&within(&[7, 5, 13], &entry.concat())).unwrap_err();
            assert!(error.contains("\"../x\""), "{error}");
        }
        // A tag of more bytes than it needs is the same field.
        let graph = field(5, &tensor("../x"));
        let long = [&[0xba, 0x80, 0x00][..], &varint(graph.len()), &graph].concat();
        assert!(said(&long).unwrap_err().contains("\"../x\""));
        let deep = within(&[1, 5, 6].repeat(60), &graph);
        for data in [
            &field(7, &deep)[..],
            &[0x3b],       // A group.
            &[0x3a, 0x7f], // Longer than the file.
            &[0x3a],
            &[0x00],                            // Field 0.
            &[0x39, 1],                         // Eight bytes that are not there.
            &[0x80; 11],                        // A number without an end.
            &[0xba, 0x80, 0x80, 0x80, 0x10, 0], // A tag of more than 32 bits.
            b"no model",
        ] {
            let error = said(data).unwrap_err();
            assert!(error.contains("no ONNX model"), "{:?}: {error}", &data[..data.len().min(9)]);
        }
    }
}
