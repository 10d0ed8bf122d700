//! The arguments of this process, as other users of the machine see them in its list of processes.
//!
//! An address with a password in it is such an argument. It is overwritten in place as soon as it was read; until then, some
//! milliseconds, other users can see it. `--password-file` has no such moment.

use std::{
    fs::{self, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
};

use tidegate_camera::source;

/// Writes over what may be secret in the addresses among our arguments. Says whether there was any.
///
/// # Errors
/// The kernel's: they are as they were.
pub(crate) fn hide_secrets() -> io::Result<bool> {
    let arguments = fs::read("/proc/self/cmdline")?;
    let hidden = hidden(&arguments);
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
    Ok(true)
}

/// Arguments, each with a zero behind it, without what may be secret, and as long as they were.
fn hidden(arguments: &[u8]) -> Vec<u8> {
    let mut hidden = Vec::with_capacity(arguments.len());
    for argument in arguments.split_inclusive(|&byte| byte == 0) {
        let text = String::from_utf8_lossy(argument);
        let text = text.trim_end_matches('\0');
        // `--source=rtsp://…` has its address behind the first equals sign.
        let value = text
            .strip_prefix("--")
            .and_then(|rest| rest.split_once('='))
            .map_or(text, |(_, value)| value);
        let shown = source::shown(value);
        // A payload such as `temp:x=1` is no address.
        if shown == value || !(value.contains("://") || source::is_address(value)) {
            hidden.extend_from_slice(argument);
            continue;
        }
        let name = &text[..text.len() - value.len()];
        let mut bytes = format!("{name}{shown}").into_bytes();
        bytes.resize(argument.len() - 1, b' ');
        hidden.extend_from_slice(&bytes);
        hidden.push(0);
    }
    hidden
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
            let hidden = hidden(arguments.as_bytes());
            assert_eq!(String::from_utf8(hidden).unwrap(), expected);
        }
    }
}
