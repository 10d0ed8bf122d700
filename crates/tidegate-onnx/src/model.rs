//! One model: a session of ONNX Runtime, and what its tensors mean.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use half::f16;
use ort::{
    logging::LogLevel,
    session::{Session, SessionInputValue, builder::SessionBuilder},
    value::{DynValue, TensorElementType, TensorRef, ValueType},
};
use tidegate_message::error_chain;

use crate::{
    description::{Colour, Description, DescriptionError, Element, Layout},
    external::{self, ExternalError},
    image::{ImageDecoder, ImageError, PIXELS_MAX, Picture, Size},
    library::Runtime,
    output::{Array, Found, Reader, ShapeError, ranks},
    providers::{self, NoProvider},
    resample,
};

/// An error of ONNX Runtime is quoted to so many characters.
const WORDS_MAX: usize = 500;

/// A model that was loaded and tried.
pub(crate) struct Model {
    name: String,
    description: Description,
    session: Session,
    input: String,
    batches: bool,
}

/// An image that was looked at.
pub(crate) struct Detected {
    pub(crate) found: Found,
    /// As it is seen.
    pub(crate) size: Size,
    pub(crate) decode: Duration,
}

/// An image to look at, and the size of its scene's source, if it has a scene.
pub(crate) type Job<'a> = (&'a Picture<'a>, Option<Size>);

impl Model {
    /// Loads the model of that file, and tries it with a gray image.
    pub(crate) fn load(
        runtime: &Runtime,
        decoder: &mut ImageDecoder,
        name: &str,
        path: &Path,
    ) -> Result<Self, ModelError> {
        if path.extension().is_none_or(|end| end != "onnx") {
            return Err(ModelError::Name { path: path.to_owned() });
        }
        let description = Description::load(&path.with_extension("json"))?;
        external::check(path)?;
        let session = session(runtime, path, &description)?;
        let input = match session.inputs() {
            [input] => input,
            inputs => {
                let (path, count) = (path.to_owned(), inputs.len());
                return Err(ModelError::Inputs { path, count });
            }
        };
        let shape = input.dtype().tensor_shape();
        let batches = shape.is_some_and(|shape| shape.len() == 4 && shape[0] < 0);
        let (name, input) = (name.to_owned(), input.name().to_owned());
        let mut model = Self { name, description, session, input, batches };
        let gray = Picture { data: vec![0; 64 * 48 * 3].into(), shape: Some([48, 64, 3]) };
        let size = Size { width: 64, height: 48 };
        for detected in model.detect(decoder, &[(&gray, Some(size))])? {
            detected?;
        }
        Ok(model)
    }

    /// The size of its input.
    pub(crate) const fn size(&self) -> Size {
        Size { width: self.description.width, height: self.description.height }
    }

    /// Looks at images, each of which may fail alone.
    ///
    /// The pixels of each are forgotten before the next is decoded, and no more inputs than [`PIXELS_MAX`] allows are made at a time.
    ///
    /// # Errors
    /// The model fails over all of them.
    pub(crate) fn detect(
        &mut self,
        decoder: &mut ImageDecoder,
        images: &[Job<'_>],
    ) -> Result<Vec<Result<Detected, ModelError>>, ModelError> {
        let Size { width, height } = self.size();
        let together = if self.batches { (PIXELS_MAX / (width * height)).max(1) } else { 1 };
        let mut detected = Vec::with_capacity(images.len());
        for part in images.chunks(together) {
            let mut batch = Batch::new(&self.description);
            let decoded: Vec<_> = part
                .iter()
                .map(|(picture, source)| {
                    let started = Instant::now();
                    let pixels =
                        decoder.decode(picture, self.description.colour == Colour::Gray)?;
                    let decode = started.elapsed();
                    let fitted = resample::fitted(&pixels, self.size(), self.description.fit);
                    batch.push(&self.description, &fitted);
                    let size = pixels.size;
                    Ok((size, source.unwrap_or(size), decode))
                })
                .collect();
            let count = batch.count;
            let outputs = if count == 0 { Vec::new() } else { self.run(batch)? };
            let reader = Reader { model: &self.name, description: &self.description };
            let mut at = 0;
            for image in decoded {
                detected.push(match image {
                    Err(error) => Err(ModelError::Image(error)),
                    Ok((size, source, decode)) => {
                        let own: Vec<Array> =
                            outputs.iter().map(|output| output.of_image(at, count)).collect();
                        at += 1;
                        let found = reader.found(&own, source)?;
                        if !found.is_finite() {
                            return Err(ModelError::NotFinite { model: self.name.clone() });
                        }
                        Ok(Detected { found, size, decode })
                    }
                });
            }
        }
        Ok(detected)
    }

    /// The outputs that the format has, for all images of the batch, each with the dimension of the batch.
    fn run(&mut self, batch: Batch) -> Result<Vec<Array>, ModelError> {
        let Self { name, description, session, input, .. } = self;
        let failed =
            |error: ort::Error| ModelError::Run { model: name.clone(), words: words(&error) };
        let (count, shape) = (batch.count, batch.shape(description));
        let value: SessionInputValue<'_> = match &batch.values {
            Values::Float32(values) => {
                TensorRef::from_array_view((shape, values.as_slice())).map_err(failed)?.into()
            }
            Values::Float16(values) => {
                TensorRef::from_array_view((shape, values.as_slice())).map_err(failed)?.into()
            }
            Values::Uint8(values) => {
                TensorRef::from_array_view((shape, values.as_slice())).map_err(failed)?.into()
            }
        };
        let results = session.run(vec![(input.as_str(), value)]).map_err(failed)?;
        let ranks = ranks(description.format);
        let wanted: Vec<&DynValue> = match &description.outputs {
            None => (0..ranks.len().min(results.len())).map(|at| &results[at]).collect(),
            Some(names) => names
                .iter()
                .map(|output| {
                    let missing =
                        || ModelError::Output { model: name.clone(), output: output.clone() };
                    results.get(output).ok_or_else(missing)
                })
                .collect::<Result<_, _>>()?,
        };
        let reader = Reader { model: name.as_str(), description };
        let mut outputs = Vec::with_capacity(ranks.len());
        for (value, rank) in wanted.into_iter().zip(ranks) {
            let mut array = array(value).ok_or_else(|| ModelError::Type {
                model: name.clone(),
                found: value.dtype().to_string(),
            })?;
            // A model for one image may leave out the dimension of the batch.
            if count == 1 && array.shape.len() + 1 == *rank {
                array.shape.insert(0, 1);
            }
            if array.shape.first() != Some(&count) {
                let wanted = format!("{count} first, one for each image");
                return Err(reader.wrong(&array.shape, wanted).into());
            }
            if !array.values.iter().all(|value| value.is_finite()) {
                return Err(ModelError::NotFinite { model: name.clone() });
            }
            outputs.push(array);
        }
        match outputs.len() == ranks.len() {
            true => Ok(outputs),
            false => Err(ModelError::NoOutput { model: name.clone() }),
        }
    }
}

/// A session by the description's providers; by the processor alone where those fail over the model.
fn session(
    runtime: &Runtime,
    path: &Path,
    description: &Description,
) -> Result<Session, ModelError> {
    let providers = providers::of_names(&description.providers)?;
    let failed =
        |error: ort::Error| ModelError::Load { path: path.to_owned(), words: words(&error) };
    let builder = || -> ort::Result<SessionBuilder> {
        // One thread, as everywhere in a worker; more workers are a number in the pool's settings.
        Ok(SessionBuilder::new(runtime.environment())?
            .with_intra_threads(1)?
            .with_inter_threads(1)?
            .with_log_level(LogLevel::Fatal)?)
    };
    let mut with = builder().map_err(failed)?;
    providers::register(&providers, &mut with);
    match with.commit_from_file(path) {
        Ok(session) => Ok(session),
        Err(error) if !providers.is_empty() => {
            eprintln!("{} is loaded for the processor alone: {}", path.display(), words(&error));
            builder().and_then(|mut without| without.commit_from_file(path)).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

fn words(error: &ort::Error) -> String {
    error_chain(error).trim().chars().take(WORDS_MAX).collect()
}

/// Inputs of several images, one after another.
struct Batch {
    count: usize,
    values: Values,
    /// The value of each of 0 to 255, for each channel, where values are not the bytes themselves.
    scaled: Vec<[f32; 256]>,
}

enum Values {
    Float32(Vec<f32>),
    Float16(Vec<f16>),
    Uint8(Vec<u8>),
}

impl Batch {
    fn new(description: &Description) -> Self {
        let values = match description.element {
            Element::Float32 => Values::Float32(Vec::new()),
            Element::Float16 => Values::Float16(Vec::new()),
            Element::Uint8 => Values::Uint8(Vec::new()),
        };
        let of = |numbers: &[f64], channel: usize| numbers[channel % numbers.len()] as f32;
        let scaled = |channel: usize| {
            let (mean, std) = (of(&description.mean, channel), of(&description.std, channel));
            std::array::from_fn(|value| (value as f32 * description.scale as f32 - mean) / std)
        };
        Self { count: 0, values, scaled: (0..description.channels()).map(scaled).collect() }
    }

    fn shape(&self, description: &Description) -> [usize; 4] {
        let (height, width, channels) =
            (description.height, description.width, description.channels());
        match description.layout {
            Layout::Nchw => [self.count, channels, height, width],
            Layout::Nhwc => [self.count, height, width, channels],
        }
    }

    /// Adds an image: its pixels in the input's size, gray or B, G, R.
    fn push(&mut self, description: &Description, pixels: &[u8]) {
        let (scaled, channels) = (&self.scaled, description.channels());
        match &mut self.values {
            Values::Float32(out) => arrange(description, pixels, |channel, value| {
                out.push(scaled[channel][usize::from(value)]);
            }),
            Values::Float16(out) => arrange(description, pixels, |channel, value| {
                out.push(f16::from_f32(scaled[channel][usize::from(value)]));
            }),
            Values::Uint8(out) => arrange(description, pixels, |_, value| out.push(value)),
        }
        debug_assert_eq!(
            pixels.len(),
            description.width * description.height * channels,
            "pixels were fitted"
        );
        self.count += 1;
    }
}

/// Calls `put` with each value of an input in its order, and its channel in the order of `colour`.
fn arrange(description: &Description, pixels: &[u8], mut put: impl FnMut(usize, u8)) {
    let channels = description.channels();
    let stored = |channel: usize| match description.colour {
        Colour::Rgb => 2 - channel,
        Colour::Bgr | Colour::Gray => channel,
    };
    match description.layout {
        Layout::Nchw => {
            for channel in 0..channels {
                let values = pixels.iter().skip(stored(channel)).step_by(channels);
                values.for_each(|value| put(channel, *value));
            }
        }
        Layout::Nhwc => {
            for pixel in pixels.chunks_exact(channels) {
                (0..channels).for_each(|channel| put(channel, pixel[stored(channel)]));
            }
        }
    }
}

/// An output as numbers; `None` where it holds none.
fn array(value: &DynValue) -> Option<Array> {
    macro_rules! of {
        ($number:ty, $to:expr) => {{
            let (shape, values) = value.try_extract_tensor::<$number>().ok()?;
            let sides = shape.iter().map(|side| usize::try_from(*side).ok());
            let shape = sides.collect::<Option<Vec<usize>>>()?;
            Array { shape, values: values.iter().map($to).collect() }
        }};
    }
    let ValueType::Tensor { ty, .. } = value.dtype() else { return None };
    Some(match ty {
        TensorElementType::Float32 => of!(f32, |value| f64::from(*value)),
        TensorElementType::Float64 => of!(f64, |value| *value),
        TensorElementType::Float16 => of!(f16, |value| f64::from(*value)),
        TensorElementType::Int8 => of!(i8, |value| f64::from(*value)),
        TensorElementType::Int16 => of!(i16, |value| f64::from(*value)),
        TensorElementType::Int32 => of!(i32, |value| f64::from(*value)),
        TensorElementType::Int64 => of!(i64, |value| *value as f64),
        TensorElementType::Uint8 => of!(u8, |value| f64::from(*value)),
        TensorElementType::Uint16 => of!(u16, |value| f64::from(*value)),
        TensorElementType::Uint32 => of!(u32, |value| f64::from(*value)),
        TensorElementType::Uint64 => of!(u64, |value| *value as f64),
        TensorElementType::Bool => of!(bool, |value| f64::from(u8::from(*value))),
        _ => return None,
    })
}

/// Why a model is not loaded, or an image is not looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelError {
    /// A file of another kind.
    #[error("{} is not the file of a model: its name must end in .onnx", .path.display())]
    Name { path: PathBuf },
    /// Its description cannot be used.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// It keeps weights outside its folder, or is no model.
    #[error(transparent)]
    External(#[from] ExternalError),
    /// The library lacks a provider that it names.
    #[error(transparent)]
    Provider(#[from] NoProvider),
    /// ONNX Runtime refuses it.
    #[error("{} cannot be loaded: {words}", .path.display())]
    Load { path: PathBuf, words: String },
    /// It takes something else than one image.
    #[error("{} has {count} inputs; a model takes one image", .path.display())]
    Inputs { path: PathBuf, count: usize },
    /// ONNX Runtime fails over an input.
    #[error("the model {model} cannot look at its input: {words}")]
    Run { model: String, words: String },
    /// An output that the description names is missing.
    #[error(
        "the model {model} has no output called {output}; `outputs` names outputs of the model"
    )]
    Output { model: String, output: String },
    /// It has no output.
    #[error("the model {model} returned nothing")]
    NoOutput { model: String },
    /// An output holds no numbers.
    #[error("the model {model} returned values of the type {found}; numbers are needed")]
    Type { model: String, found: String },
    /// An output holds NaN or infinity.
    #[error("the model {model} returned values that are not finite numbers")]
    NotFinite { model: String },
    /// An output is of another shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
}
