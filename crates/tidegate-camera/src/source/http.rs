//! Pictures of a network camera by HTTP: a stream of JPEG images, or one image for each request.
//!
//! ```text
//!  camera ─▶ answer ─┬─ image/*: one picture, unless another follows; asked for again at the pace ─▶ picture
//!                    └─ all else: bytes ─▶ Splitter, whatever stands between ──▶ picture, picture, …
//! ```
//!
//! Of a stream, the images are found by their own markers. Boundaries, lengths and types of its parts are not believed: cameras get them
//! wrong in every way there is. So an image is given with its last byte, and not with the first of what follows.
//!
//! A picture of a stream was captured before its first byte came, and one that was asked for may have been as soon as the request went out:
//! that is when it is said to be captured, and earlier where the camera says when it was, or how old its answer is ([`times`]).
//!
//! Always true: of what a camera sends, no more is held than two of the largest images; a camera that says nothing for
//! [`SILENT_MAX`], or shows nothing for [`PICTURELESS_MAX`], is given up and opened again; the login goes to the host that it was given for,
//! in answer to a challenge, and not in clear where it was given for an encrypted connection.

mod times;

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::Write as _,
    time::Duration,
};

use bytes::Bytes;
use flate2::write::GzDecoder;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    header::{self, HeaderMap, HeaderValue},
};
use tokio::time::{Instant as Moment, sleep_until, timeout, timeout_at};

use tidegate_message::{CivilDate, confidential::without_secrets};
use tidegate_process::http::{Body, HttpClient, HttpError};

use self::times::{Stamp, Times};
use super::{
    CaptureClock, Rate, SourceError, SourceSpec, SplitError, Splitter,
    address::{CameraAddress, Home},
    login::Challenge,
    rtsp::any_certificate,
};

/// Longest wait for a connection and the head of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A camera that says nothing in the middle of an answer for so long hangs.
const SILENT_MAX: Duration = Duration::from_secs(15);
/// A stream that shows no picture for so long is opened again, whatever it sends.
const PICTURELESS_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the end of an answer whose picture is whole, so that its connection can be used again.
const END_MAX: Duration = Duration::from_millis(200);
/// Longest wait for the picture after the first of an answer of no length, which makes it a stream.
const FOLLOWED_MAX: Duration = Duration::from_secs(2);
/// Most that a camera is believed about the age of an answer; by more, its clock or its file is not meant.
const AGE_MAX: Duration = Duration::from_secs(600);
/// How long a camera may answer with the picture that it gave before until that is said, and how often.
const REPEATS_MAX: Duration = Duration::from_secs(10);
/// Compressed bytes that are unpacked at once: what becomes of them is up to a thousand times as long.
const UNPACKED_AT_ONCE: usize = 4 << 10;
/// Addresses that a camera may redirect to, one after another.
const REDIRECTS_MAX: usize = 5;
/// The pace of single pictures where none is given.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(1);

/// Why a camera's pictures cannot be had over HTTP.
#[derive(Debug, thiserror::Error)]
pub enum HttpCameraError {
    /// It cannot be reached, or does not speak HTTP.
    #[error("the camera cannot be reached, or broke off")]
    Unreachable(#[source] HttpError),
    /// It does not answer.
    #[error("the camera did not answer within {} s", .after.as_secs())]
    Silent {
        /// How long was waited.
        after: Duration,
    },
    /// It asks for a login.
    #[error(
        "the camera asks for a user and a password; write http://USER@HOST/PATH and give the password by a password file"
    )]
    LoginNeeded,
    /// It does not take the login.
    #[error("the camera refuses the user or the password")]
    LoginRefused,
    /// It asks for a login of a kind that we do not know.
    #[error("the camera asks for a login of a kind other than Basic and Digest (MD5, SHA-256)")]
    LoginUnknown,
    /// It answered with an error.
    #[error("the camera answered {status}")]
    Refused {
        /// Its status.
        status: StatusCode,
    },
    /// It redirects in a circle.
    #[error("the camera redirects more than {REDIRECTS_MAX} times")]
    Redirects,
    /// It redirects to something that is no address.
    #[error("the camera redirects to {place:?}, which is not an http:// or https:// address")]
    Redirect {
        /// Where to.
        place: String,
    },
    /// It would have the login in clear.
    #[error(
        "the camera redirects from https:// to {place}, which is not encrypted, so the login is not sent there; give that address if it is meant"
    )]
    Exposed {
        /// Where to.
        place: String,
    },
    /// It redirects to this machine or to its link, and is not there itself.
    #[error(
        "the camera redirects to {place}, an address of this machine or of its link (loopback or link-local), where the camera itself is not, or of a cloud's metadata; give that address if it is meant"
    )]
    Inward {
        /// Where to.
        place: String,
    },
    /// Its answer is compressed and cannot be unpacked.
    #[error("the camera's answer is compressed by gzip, and damaged")]
    Packed(#[source] std::io::Error),
    /// Its answer has no picture.
    #[error(
        "the camera answered with {kind} and no JPEG image; look for the address of its MJPEG stream or snapshot"
    )]
    NoPicture {
        /// The type of the answer.
        kind: String,
    },
}

impl HttpCameraError {
    /// Whether the camera is away, and not what it was asked for.
    pub(super) fn is_absence(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Silent { .. } => true,
            Self::Refused { status } => status.is_server_error(),
            _ => false,
        }
    }
}

/// Longest waits.
#[derive(Clone, Copy, Debug)]
struct Waits {
    answer: Duration,
    silent: Duration,
    pictureless: Duration,
}

impl Waits {
    const USUAL: Self =
        Self { answer: ANSWER_MAX, silent: SILENT_MAX, pictureless: PICTURELESS_MAX };
}

/// A camera that is asked by HTTP.
#[derive(Debug)]
pub(super) struct HttpCamera {
    place: String,
    address: CameraAddress,
    period: Duration,
    waits: Waits,
    client: HttpClient,
    /// The challenge of a host, and how often it was answered.
    challenge: Option<(String, Challenge, u32)>,
    answer: Option<Answer>,
    /// It gives a picture for each request.
    is_single: bool,
    /// The answer before was one picture.
    was_one: bool,
    /// When a single picture is due.
    due: Moment,
    /// Found at the end of an answer, and to be given first, with the time of capture.
    left: VecDeque<(Result<Bytes, SplitError>, Moment)>,
    /// The picture that was given last for a request, by its name, and since when it comes again.
    given: Option<(Validator, Option<Moment>)>,
    /// The stream has ended.
    is_over: bool,
    times: Times,
}

/// An answer that is read.
#[derive(Debug)]
struct Answer {
    body: Body,
    splitter: Splitter,
    kind: String,
    is_multipart: bool,
    is_image: bool,
    /// Its head says where it ends.
    is_sized: bool,
    pictures: u64,
    /// When the last whole picture came, or the answer began.
    shown: Moment,
    /// From when it is as an answer to a request.
    made: Moment,
    /// When its head came, and what that says of the time of capture.
    came: Moment,
    stamp: Option<Stamp>,
    /// When the first byte of the picture that is on its way in came.
    begun: Option<Moment>,
    /// By which the picture is the same as before, if the camera says one.
    validator: Option<Validator>,
    /// Unpacks a body that is compressed in spite of the request.
    packed: Option<Unpacker>,
}

/// Unpacks gzip.
struct Unpacker(GzDecoder<Vec<u8>>);

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unpacker")
    }
}

/// By which a camera says that a picture is the one that it gave before (RFC 9110, section 8.8).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Validator {
    /// ETag: it alone tells.
    Tag(String),
    /// Last-Modified, which has whole seconds: the bytes have to be the same, too, which the number of them and a hash tell.
    Modified(String, Option<(usize, u64)>),
}

impl Answer {
    /// Takes bytes as they came.
    fn push(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some(Unpacker(packed)) = &mut self.packed else {
            self.splitter.push(bytes);
            return Ok(());
        };
        for part in bytes.chunks(UNPACKED_AT_ONCE) {
            packed.write_all(part)?;
            self.splitter.push(packed.get_ref());
            packed.get_mut().clear();
        }
        packed.flush()?;
        self.splitter.push(packed.get_ref());
        packed.get_mut().clear();
        Ok(())
    }
}

impl HttpCamera {
    /// Asks a camera for its pictures, singles at that rate; one that says nothing in the middle of an answer for that long is given up.
    ///
    /// # Errors
    /// [`SourceError::Http`].
    pub(super) async fn open(
        address: &CameraAddress,
        rate: Option<Rate>,
        silent_max: Option<Duration>,
    ) -> Result<Self, SourceError> {
        let usual = Waits::USUAL;
        let waits = Waits { silent: silent_max.unwrap_or(usual.silent), ..usual };
        Self::open_within(address, rate, waits).await
    }

    async fn open_within(
        address: &CameraAddress,
        rate: Option<Rate>,
        waits: Waits,
    ) -> Result<Self, SourceError> {
        let mut camera = Self {
            place: address.to_string(),
            address: address.clone(),
            period: rate.map_or(SNAPSHOT_PERIOD, Rate::period),
            waits,
            client: HttpClient::new(any_certificate(), 0).lenient(),
            challenge: None,
            answer: None,
            is_single: false,
            was_one: false,
            due: Moment::now(),
            left: VecDeque::new(),
            given: None,
            is_over: false,
            times: Times::new(),
        };
        camera.ask().await?;
        Ok(camera)
    }

    /// Its name in messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// By which clock its pictures are timed.
    pub(super) fn clock(&self) -> CaptureClock {
        self.times.clock()
    }

    /// The next picture, and when it was captured, as far as that is known; it never ends but with an error.
    pub(super) async fn next(&mut self) -> Result<(Bytes, Moment), SourceError> {
        loop {
            if let Some((found, captured)) = self.left.pop_front() {
                return found.map(|jpeg| (jpeg, captured)).map_err(|source| self.damaged(source));
            }
            if self.is_over {
                return Err(SourceError::Ended { place: self.place.clone() });
            }
            let Some(answer) = &mut self.answer else {
                sleep_until(self.due).await;
                self.ask().await?;
                continue;
            };
            let Waits { silent, pictureless, .. } = self.waits;
            let found = answer.splitter.next_image();
            let is_shown = answer.is_image && answer.pictures > 0;
            match found {
                // A preview behind the picture, as phones write it, or nothing that is one.
                Some(Ok(_)) if is_shown && (answer.is_sized || self.ends_here().await) => continue,
                Some(Err(_)) if is_shown => continue,
                _ => {}
            }
            let Some(answer) = &mut self.answer else { continue };
            if let Some(Ok(_)) = found {
                answer.shown = Moment::now();
            } else if found.is_none() && answer.begun.is_none() && answer.splitter.is_within() {
                // It came with the bytes that were pushed last.
                answer.begun = Some(Moment::now());
            }
            if !is_shown && answer.shown.elapsed() >= pictureless {
                return Err(SourceError::stalled(&self.place, pictureless, ""));
            }
            if let Some(found) = found {
                answer.pictures += 1;
                if is_shown {
                    // A picture that follows so soon makes it a stream, whatever the type says.
                    (answer.is_image, self.is_single, self.was_one) = (false, false, false);
                }
                let (begun, whole) = (answer.begun.take().unwrap_or(answer.shown), answer.shown);
                let stamp = Stamp::of_part(&answer.splitter.take_lead());
                let (is_image, made, came) = (answer.is_image, answer.made, answer.came);
                let (validator, of_head) = (answer.validator.clone(), answer.stamp);
                let jpeg = found.map_err(|source| self.damaged(source))?;
                if !is_image {
                    return Ok((jpeg, self.times.of_stream(begun, whole, stamp)));
                }
                if self.repeats(validator, &jpeg)? {
                    continue;
                }
                return Ok((jpeg, self.times.of_answer(made, came, of_head)));
            }
            if is_shown {
                self.look_behind().await;
                continue;
            }
            let chunk = timeout(silent, answer.body.chunk()).await;
            match chunk.map_err(|_| SourceError::stalled(&self.place, silent, ""))? {
                Some(Ok(bytes)) => {
                    let pushed = answer.push(&bytes);
                    pushed.map_err(|error| self.failed(HttpCameraError::Packed(error)))?;
                }
                Some(Err(error)) => return Err(self.failed(HttpCameraError::Unreachable(error))),
                None => self.end().await?,
            }
        }
    }

    /// Whether a picture that was asked for is the one that was given before.
    ///
    /// # Errors
    /// It is for long: that is said.
    fn repeats(&mut self, named: Option<Validator>, jpeg: &[u8]) -> Result<bool, SourceError> {
        let named = named.map(|named| match named {
            Validator::Modified(date, _) => {
                let mut hasher = DefaultHasher::new();
                jpeg.hash(&mut hasher);
                Validator::Modified(date, Some((jpeg.len(), hasher.finish())))
            }
            tag => tag,
        });
        let Some(named) = named else {
            self.given = None;
            return Ok(false);
        };
        let now = Moment::now();
        let Some((_, since)) = self.given.as_mut().filter(|(before, _)| *before == named) else {
            self.given = Some((named, None));
            return Ok(false);
        };
        if now.duration_since(*since.get_or_insert(now)) < REPEATS_MAX {
            return Ok(true);
        }
        *since = Some(now);
        Err(SourceError::Repeats { place: self.place.clone(), after: REPEATS_MAX })
    }

    /// The answer has ended.
    async fn end(&mut self) -> Result<(), SourceError> {
        let Some(answer) = self.answer.take() else { return Ok(()) };
        let Answer { body, splitter, kind, is_multipart, is_image, is_sized, pictures, .. } =
            answer;
        let (begun, validator) = (answer.begun.unwrap_or(answer.shown), answer.validator);
        let (made, came, stamp) = (answer.made, answer.came, answer.stamp);
        self.client.keep_body(body).await;
        if is_image {
            // As a file is read: its end marker may be missing.
            let image = splitter.only_image();
            let is_repeat = match &image {
                Ok(jpeg) => self.repeats(validator, jpeg)?,
                Err(_) => false,
            };
            if !is_repeat {
                self.left.push_back((image, self.times.of_answer(made, came, stamp)));
            }
            return Ok(());
        }
        self.left.extend(splitter.finish().map(|found| (found, begun)));
        let pictures = pictures + self.left.len() as u64;
        if pictures == 0 {
            return Err(self.failed(HttpCameraError::NoPicture { kind }));
        }
        // One picture that is the whole answer, whatever its type says. Of no length, it may be a stream that was cut off: the next
        // answer decides.
        let is_one = !is_multipart && pictures == 1;
        self.is_single = is_one && (is_sized || self.was_one);
        (self.was_one, self.is_over) = (is_one, !is_one);
        Ok(())
    }

    /// Whether the answer ends at once, and lets go of it if so.
    async fn ends_here(&mut self) -> bool {
        let Some(answer) = &mut self.answer else { return true };
        let chunk = timeout(END_MAX, answer.body.chunk()).await;
        match chunk {
            Ok(Some(Ok(bytes))) if answer.push(&bytes).is_ok() => {}
            Ok(_) => self.answer = None,
            Err(_) => {}
        }
        self.answer.is_none()
    }

    /// Reads what comes behind a picture that is whole; lets go of the answer if that is too late, and of its connection if it has not
    /// ended.
    async fn look_behind(&mut self) {
        let Some(answer) = &mut self.answer else { return };
        let wait = if answer.is_sized { END_MAX } else { self.period.clamp(END_MAX, FOLLOWED_MAX) };
        let chunk = timeout_at(answer.shown + wait, answer.body.chunk()).await;
        match chunk {
            Ok(Some(Ok(bytes))) if answer.push(&bytes).is_ok() => {}
            Ok(None) => {
                let Some(answer) = self.answer.take() else { return };
                self.client.keep_body(answer.body).await;
            }
            Ok(Some(_)) | Err(_) => self.answer = None,
        }
    }

    /// Asks for pictures, with the login where that is asked for, wherever it is redirected to.
    async fn ask(&mut self) -> Result<(), SourceError> {
        self.due = Moment::now() + self.period;
        let asked = self.answered().await;
        let answer = asked.map_err(|error| self.failed(error))?;
        let (head, body) = answer.into_parts();
        let kind = text_of(&head.headers, header::CONTENT_TYPE).to_ascii_lowercase();
        let is = |class: &str| kind.trim_start().starts_with(class);
        let (is_multipart, is_image) = (is("multipart/"), is("image/") || self.is_single);
        let shown: String = kind
            .split(';')
            .next()
            .unwrap_or_default()
            .chars()
            .filter(|c| !c.is_control())
            .take(60)
            .collect();
        let headers = &head.headers;
        let is_packed = text_of(headers, header::CONTENT_ENCODING).to_ascii_lowercase();
        let is_packed = ["gzip", "x-gzip"].contains(&is_packed.trim());
        let made = body.asked_at();
        let came = Moment::now();
        self.answer = Some(Answer {
            came,
            stamp: Stamp::of_head(headers),
            made: made.checked_sub(age(headers)).unwrap_or(made),
            begun: None,
            validator: validator(headers),
            packed: is_packed.then(|| Unpacker(GzDecoder::new(Vec::new()))),
            body,
            splitter: Splitter::new(SourceSpec::FRAME_BYTES_MAX),
            kind: if shown.is_empty() { "something of no type".to_owned() } else { shown },
            is_multipart,
            is_image,
            is_sized: head.headers.contains_key(header::CONTENT_LENGTH),
            pictures: 0,
            shown: came,
        });
        Ok(())
    }

    async fn answered(&mut self) -> Result<Response<Body>, HttpCameraError> {
        let mut address = self.address.clone();
        let (mut redirects, mut was_refused) = (0, false);
        let mut home = Home::default();
        loop {
            let request = self.request(&address);
            let allowed = |to| home.allows(to, redirects > 0);
            let answer = self.client.open_where(request, &allowed);
            let answer = timeout(self.waits.answer, answer).await;
            let answer = answer
                .map_err(|_| HttpCameraError::Silent { after: self.waits.answer })?
                .map_err(|error| match error.is_not_allowed() {
                    true => HttpCameraError::Inward { place: address.to_string() },
                    false => HttpCameraError::Unreachable(error),
                })?;
            if let Some(peer) = answer.body().peer() {
                home.found(peer);
            }
            let status = answer.status();
            match status {
                _ if status.is_success() => return Ok(answer),
                StatusCode::UNAUTHORIZED => {
                    let lines = answer.headers().get_all(header::WWW_AUTHENTICATE).iter();
                    let lines: Vec<String> = lines.map(lossy).collect();
                    if address.login().is_none() {
                        return Err(HttpCameraError::LoginNeeded);
                    }
                    let challenge = Challenge::choose(lines.iter().map(String::as_str))
                        .ok_or(HttpCameraError::LoginUnknown)?;
                    let host = address.authority();
                    // A nonce grows old; the same challenge for the second time means another thing.
                    let is_new = self
                        .challenge
                        .as_ref()
                        .is_none_or(|(of, known, _)| *of != host || *known != challenge);
                    if was_refused || !is_new {
                        self.challenge = None;
                        return Err(HttpCameraError::LoginRefused);
                    }
                    was_refused = true;
                    self.challenge = Some((host, challenge, 0));
                }
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => {
                    redirects += 1;
                    if redirects > REDIRECTS_MAX {
                        return Err(HttpCameraError::Redirects);
                    }
                    let place = text_of(answer.headers(), header::LOCATION);
                    let shown: String = without_secrets(&place)
                        .chars()
                        .filter(|c| !c.is_control())
                        .take(200)
                        .collect();
                    let next = address
                        .redirected(place.trim())
                        .ok_or(HttpCameraError::Redirect { place: shown })?;
                    address = redirected(&address, next)?;
                    was_refused = false;
                }
                _ => return Err(HttpCameraError::Refused { status }),
            }
        }
    }

    fn request(&mut self, address: &CameraAddress) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() =
            address.request().parse().expect("an address that was read as one of HTTP is one");
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("tidegate"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let (Some((host, challenge, count)), Some(login)) =
            (&mut self.challenge, address.login())
            && *host == address.authority()
        {
            *count += 1;
            // Unique is enough of a nonce of ours: it keeps no secret.
            let ours = format!("{:016x}", tidegate_sys::clock::monotonic_nanos());
            let answer = challenge.answer(login, "GET", address.path(), *count, &ours);
            // A login that cannot stand in a header is not sent, and is refused as a wrong one is.
            if let Ok(mut value) = HeaderValue::from_bytes(answer.as_bytes()) {
                value.set_sensitive(true);
                headers.insert(header::AUTHORIZATION, value);
            }
        }
        request
    }

    fn failed(&self, source: HttpCameraError) -> SourceError {
        SourceError::Http { place: self.place.clone(), source }
    }

    fn damaged(&self, source: SplitError) -> SourceError {
        SourceError::Damaged { place: self.place.clone(), source }
    }
}

/// Where a camera at `address` redirects to, with the login if that was given for the same host: for that and no other, and for an
/// encrypted connection only where it was given for one.
fn redirected(
    address: &CameraAddress,
    next: CameraAddress,
) -> Result<CameraAddress, HttpCameraError> {
    let is_for = next.login().is_none() && address.login().is_some() && next.is_same_host(address);
    match is_for {
        true if address.is_tls() && !next.is_tls() => {
            Err(HttpCameraError::Exposed { place: next.to_string() })
        }
        true => Ok(next.with_login_of(address)),
        false => Ok(next),
    }
}

/// By which an answer says that it is the same as another.
fn validator(headers: &HeaderMap) -> Option<Validator> {
    let tag = text_of(headers, header::ETAG);
    if !tag.is_empty() {
        return Some(Validator::Tag(tag));
    }
    let modified = text_of(headers, header::LAST_MODIFIED);
    (!modified.is_empty()).then_some(Validator::Modified(modified, None))
}

/// How old an answer was when it was given, as far as the camera says it by two times of its own clock, or a cache on the way by a
/// number; nothing where that cannot be.
fn age(headers: &HeaderMap) -> Duration {
    let seconds = |name| http_date(&text_of(headers, name));
    let dates = (seconds(header::DATE), seconds(header::LAST_MODIFIED));
    let by_dates = match dates {
        (Some(now), Some(modified)) => u64::try_from(now - modified).unwrap_or(0),
        _ => 0,
    };
    let by_cache = text_of(headers, header::AGE).trim().parse().unwrap_or(0);
    let age = |seconds| Some(Duration::from_secs(seconds)).filter(|age| *age <= AGE_MAX);
    age(by_dates).unwrap_or_default().max(age(by_cache).unwrap_or_default())
}

/// Seconds since the Unix epoch of a date such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).
fn http_date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, date) = text.split_once(',')?;
    let mut words = date.split_ascii_whitespace();
    let day = words.next()?.parse().ok()?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| month.eq_ignore_ascii_case(name))? as i64 + 1;
    let year = words.next()?.parse().ok()?;
    if !(1..=31).contains(&day) || !(1970..=9999).contains(&year) {
        return None;
    }
    let mut clock = words.next()?.splitn(3, ':').map(|part| part.parse::<u32>().ok());
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    let of_day = i64::from(hours) * 3_600 + i64::from(minutes) * 60 + i64::from(seconds);
    Some(CivilDate { year, month, day }.days() * 86_400 + of_day)
}

fn text_of(headers: &HeaderMap, name: header::HeaderName) -> String {
    headers.get(name).map(lossy).unwrap_or_default()
}

fn lossy(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests;
