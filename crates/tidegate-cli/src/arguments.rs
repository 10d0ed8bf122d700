//! The arguments of this process, as other users of the machine see them in its list of processes.
//!
//! An address with a password in it is such an argument. It is overwritten in place as soon as it was read; until then, some
//! milliseconds, other users can see it. `--password-file` has no such moment.

use std::{
    borrow::Cow,
    fs::{self, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
};

use tidegate_camera::source;
use tidegate_message::Confidential;

/// Writes over what may be secret in the addresses among our arguments. Says whether there was a secret: a user alone is none.
///
/// # Errors
/// The kernel's: they are as they were.
pub(crate) fn hide_secrets() -> io::Result<bool> {
    let arguments = fs::read("/proc/self/cmdline")?;
    let (hidden, has_secret) = hidden(&arguments);
    if hidden == arguments {
        return Ok(false);
    }
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    // Field 48 of proc_pid_stat(5); the first that stands behind the program's name is the third.
    let status = fs::read_to_string("/proc/self/stat")?;
    let fields = status.rsplit_once(") ").ok_or_else(unknown)?.1;
    let start: u64 =
        fields.split(' ').nth(48 - 3).and_then(|field| field.parse().ok()).ok_or_else(unknown)?;
    let mut memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(start))?;
    memory.write_all(&hidden)?;
    Ok(has_secret)
}

/// Arguments, each with a zero behind it, without what may be secret, and as long as they were; and whether more than users was left
/// out.
fn hidden(arguments: &[u8]) -> (Vec<u8>, bool) {
    let mut has_secret = false;
    let mut hidden = Vec::with_capacity(arguments.len());
    let mut sets = false;
    for argument in arguments.split_inclusive(|&byte| byte == 0) {
        let text = String::from_utf8_lossy(argument);
        let text = text.trim_end_matches('\0');
        // `--source=rtsp://…` has its address behind the first equals sign.
        let value = text
            .strip_prefix("--")
            .and_then(|rest| rest.split_once('='))
            .map_or(text, |(_, value)| value);
        // A value that `--set` gives to a key, whatever its form is.
        let setting = value.split_once('=').filter(|_| sets || text.starts_with("--set="));
        sets = text == "--set";
        let shown = match setting {
            Some((key, value)) => format!("{key}={}", Confidential::from(value)),
            None => source::shown(value),
        };
        // A payload such as `temp:x=1` is no address.
        let may_be_secret = setting.is_some() || value.contains("://") || source::is_address(value);
        if shown == value || !may_be_secret {
            hidden.extend_from_slice(argument);
            continue;
        }
        let without_user = without_user(value);
        has_secret |= setting.is_some() || source::shown(&without_user) != without_user;
        let name = &text[..text.len() - value.len()];
        let mut bytes = format!("{name}{shown}").into_bytes();
        bytes.resize(argument.len() - 1, b' ');
        hidden.extend_from_slice(&bytes);
        hidden.push(0);
    }
    (hidden, has_secret)
}

/// An address without a user that stands before its host without a password.
fn without_user(address: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = address.split_once("://") else { return address.into() };
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..authority].rfind('@') {
        Some(at) if !rest[..at].contains(':') => format!("{scheme}://{}", &rest[at + 1..]).into(),
        _ => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_arguments_are_written_over_and_nothing_else_is() {
        for (arguments, expected) in [
            (
                "tidegate\0camera\0--source\0rtsp://me:s3cret@cam/1\0",
                "tidegate\0camera\0--source\0rtsp://***@cam/1      \0",
            ),
            (
                "tidegate\0--source=RTSP://me:s3cret@cam/1\0--name\0x\0",
                "tidegate\0--source=RTSP://***@cam/1      \0--name\0x\0",
            ),
            ("tidegate\0rtsp://cam/?p=1\0", "tidegate\0rtsp://cam/?p=*\0"),
            (
                "tidegate\0--source\0rtsp:me:s3cret@cam/1\0",
                "tidegate\0--source\0rtsp:***@cam/1      \0",
            ),
            (
                "tidegate\0--url=mqtt://me:s3cret@broker\0",
                "tidegate\0--url=mqtt://***@broker      \0",
            ),
            (
                "tidegate\0--set\0sink.a.url=host=db password=s3cret\0--set=link.edge=me:s3cret@edge:1\0",
                "tidegate\0--set\0sink.a.url=host=db password=***   \0--set=link.edge=***@edge:1      \0",
            ),
            // Payloads and the like are not addresses.
            (
                "tidegate\0pub\0-m\0temp:x=1\0-t\0a:b@c\0-m\0{\"k\":\"a=b\"}\0",
                "tidegate\0pub\0-m\0temp:x=1\0-t\0a:b@c\0-m\0{\"k\":\"a=b\"}\0",
            ),
            (
                "tidegate\0--source\0folder:a@b?fps=5\0--set\0a.b=c\0",
                "tidegate\0--source\0folder:a@b?fps=5\0--set\0a.b=c\0",
            ),
        ] {
            let (hidden, has_secret) = hidden(arguments.as_bytes());
            assert_eq!(String::from_utf8(hidden).unwrap(), expected);
            assert_eq!(has_secret, arguments != expected, "{arguments}");
        }
    }

    #[test]
    fn a_user_alone_raises_no_alarm() {
        for (address, has_secret) in [
            ("rtsp://viewer@cam/1", false),
            ("rtsp://viewer@cam/1?channel=1", false),
            ("http://viewer@cam/a@b", false),
            ("rtsp://viewer@cam/1?pwd=s3cret", true),
            ("rtsp://viewer:s3cret@cam/1", true),
            ("rtsp://viewer:@cam/1", true),
            ("rtsp:viewer@cam/1", true),
        ] {
            for arguments in [
                format!("tidegate\0camera\0--source\0{address}\0--password-file\0cam.password\0"),
                format!("tidegate\0cameras\0test\0{address}\0"),
                format!("tidegate\0--source={address}\0"),
            ] {
                let (hidden, found) = hidden(arguments.as_bytes());
                assert_eq!(found, has_secret, "{arguments}");
                assert!(!String::from_utf8(hidden).unwrap().contains("viewer"), "{arguments}");
            }
        }
    }
}
