//! A camera's description of its streams (SDP, RFC 8866), as far as a picture needs it.

use base64::Engine as _;
use bytes::Bytes;

use tidegate_message::FrameSize;

/// How pictures are coded in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// RFC 6184.
    H264,
    /// RFC 7798.
    H265,
    /// MPEG-4 part 2, of older cameras (RFC 6416).
    Mpeg4,
    /// RFC 2435.
    Jpeg,
}

/// The stream of pictures of a camera.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Media {
    pub(super) coding: Coding,
    /// Steps of its timestamps a second.
    pub(super) clock_hertz: u32,
    /// Number that its packets carry.
    pub(super) payload_type: u8,
    /// The suffix of its address, or the whole of it.
    pub(super) control: String,
    /// Setup data that a decoder needs before the first picture, if it is given here: parameter sets without start codes, or
    /// the header.
    pub(super) setup: Vec<Bytes>,
    /// Size of its pictures, for those that are too large to say it themselves.
    pub(super) size: Option<FrameSize>,
}

/// The first stream of a description that we can read, or the names of those that we cannot.
pub(super) fn pictures(text: &str) -> Result<Media, Vec<String>> {
    let mut others = Vec::new();
    for section in sections(text) {
        match media(&section) {
            Some(Ok(media)) => return Ok(media),
            Some(Err(name)) => others.push(name),
            None => {}
        }
    }
    Err(others)
}

/// The lines of each `m=` section, its first line first.
fn sections(text: &str) -> Vec<Vec<&str>> {
    let mut sections: Vec<Vec<&str>> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("m=") {
            sections.push(vec![line]);
        } else if let Some(section) = sections.last_mut() {
            section.push(line);
        }
    }
    sections
}

fn media(section: &[&str]) -> Option<Result<Media, String>> {
    let mut words = section.first()?.strip_prefix("m=video ")?.split_whitespace();
    // Port and protocol, then the payload types in the order of preference.
    let types: Vec<u8> = words.by_ref().skip(2).filter_map(|word| word.parse().ok()).collect();
    let attribute = |name: &'static str| {
        section
            .iter()
            .filter_map(move |line| line.strip_prefix("a=")?.strip_prefix(name)?.strip_prefix(':'))
    };
    let of_type = |name: &'static str, payload_type: u8| {
        attribute(name).find_map(move |text| {
            let (of, rest) = text.trim().split_once(' ')?;
            (of.parse() == Ok(payload_type)).then_some(rest.trim())
        })
    };
    let mut unknown = None;
    for payload_type in types {
        let map = of_type("rtpmap", payload_type).unwrap_or(if payload_type == 26 {
            "JPEG/90000"
        } else {
            ""
        });
        let (name, rest) = map.split_once('/').unwrap_or((map, ""));
        let coding = match name.to_ascii_uppercase().as_str() {
            "H264" => Coding::H264,
            "H265" | "HEVC" => Coding::H265,
            "MP4V-ES" => Coding::Mpeg4,
            "JPEG" => Coding::Jpeg,
            _ => {
                unknown.get_or_insert_with(|| {
                    if name.is_empty() {
                        format!("payload type {payload_type}")
                    } else {
                        name.to_owned()
                    }
                });
                continue;
            }
        };
        let clock_hertz =
            rest.split('/').next().and_then(|text| text.parse().ok()).filter(|&hertz| hertz > 0);
        let parameters = of_type("fmtp", payload_type).unwrap_or("");
        return Some(Ok(Media {
            coding,
            clock_hertz: clock_hertz.unwrap_or(90_000),
            payload_type,
            control: attribute("control").next().unwrap_or("*").trim().to_owned(),
            setup: setup(coding, parameters),
            size: attribute("x-dimensions").next().and_then(|text| {
                let (width, height) = text.trim().split_once(',')?;
                Some(FrameSize {
                    width: width.trim().parse().ok()?,
                    height: height.trim().parse().ok()?,
                })
            }),
        }));
    }
    Some(Err(unknown.unwrap_or_else(|| "a stream without a format".to_owned())))
}

fn setup(coding: Coding, parameters: &str) -> Vec<Bytes> {
    let value = |name: &str| {
        parameters.split(';').find_map(|pair| {
            let (known, value) = pair.trim().split_once('=')?;
            known.trim().eq_ignore_ascii_case(name).then_some(value.trim())
        })
    };
    let decoded = |text: &str| {
        let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
        engine
            .decode(text.trim().trim_end_matches('='))
            .ok()
            .map(Bytes::from)
            .filter(|set| !set.is_empty())
    };
    let sets =
        |name: &str| value(name).unwrap_or("").split(',').filter_map(decoded).collect::<Vec<_>>();
    match coding {
        Coding::H264 => sets("sprop-parameter-sets"),
        Coding::H265 => {
            ["sprop-vps", "sprop-sps", "sprop-pps"].iter().flat_map(|name| sets(name)).collect()
        }
        Coding::Mpeg4 => value("config").and_then(from_hex).into_iter().collect(),
        Coding::Jpeg => Vec::new(),
    }
}

fn from_hex(text: &str) -> Option<Bytes> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits
        .len()
        .is_multiple_of(2)
        .then(|| digits.chunks(2).map(pair).collect::<Option<Vec<u8>>>())?
        .map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_of_a_camera_are_found() {
        let text = "v=0\r\no=- 0 0 IN IP4 10.0.0.7\r\ns=x\r\na=control:*\r\nm=audio 0 RTP/AVP 0\r\na=control:track2\r\n\
                    m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n\
                    a=fmtp:96 packetization-mode=1; sprop-parameter-sets=Z0IAKQ==,aM48gA==; profile-level-id=420029\r\n\
                    a=control:track1\r\n";
        let media = pictures(text).unwrap();
        assert_eq!(
            (media.coding, media.clock_hertz, media.payload_type),
            (Coding::H264, 90_000, 96)
        );
        assert_eq!(media.control, "track1");
        assert_eq!(media.setup, [&[0x67, 0x42, 0, 0x29][..], &[0x68, 0xce, 0x3c, 0x80]]);
        let jpeg = pictures("m=video 0 RTP/AVP 26\na=x-dimensions:2592,1944\n").unwrap();
        assert_eq!(
            (jpeg.coding, jpeg.size),
            (Coding::Jpeg, Some(FrameSize { width: 2592, height: 1944 }))
        );
        let old = pictures(
            "m=video 0 RTP/AVP 97\na=rtpmap:97 MP4V-ES/90000\na=fmtp:97 profile-level-id=1; config=000001b0f5\n",
        );
        assert_eq!(old.unwrap().setup, [&[0, 0, 1, 0xb0, 0xf5][..]]);
        let h265 = pictures(
            "m=video 0 RTP/AVP 98\na=rtpmap:98 H265/90000\na=fmtp:98 sprop-vps=QAEMAf//;sprop-sps=QgEB;sprop-pps=RAHA\n",
        );
        assert_eq!(h265.unwrap().setup.len(), 3);
        assert_eq!(
            pictures("m=video 0 RTP/AVP 98\na=rtpmap:98 AV1/90000\n"),
            Err(vec!["AV1".to_owned()])
        );
        assert_eq!(pictures("m=audio 0 RTP/AVP 0\n"), Err(vec![]));
    }
}
