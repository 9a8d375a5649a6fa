//! Reads files that the user names, within limits on time and length; rejects devices and other special files.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::clock::Moment;
use super::trust::{self, Privacy};

/// The longest file, in bytes: far more than any configuration needs.
const MAX_LEN: usize = 1 << 20;

/// How long the writer of a pipe may take in all.
const PIPE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a regular file that no other user (except root) can have written, see [`trust::check`]. Returns its contents
/// and metadata. Fails, with a reason that does not name the file, if it is not such a file or is longer than
/// [`MAX_LEN`].
pub fn read_trusted_file(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let (file, metadata) = open_regular(path)?;
    Ok((read_regular(&file)?, metadata))
}

/// Opens a regular file that no other user can have written.
fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let (file, metadata) = open(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other(format!("it is {}, not a regular file", kind(metadata.file_type()))));
    }
    trust::check(path, &file, &metadata)?;
    Ok((file, metadata))
}

/// Reads a regular file, or a pipe: a FIFO, `/dev/stdin` or a shell's `<(...)`. A pipe is read to its end, which must
/// come within [`PIPE_TIMEOUT`]. Fails as [`read_trusted_file`] does.
pub fn read_trusted_file_or_pipe(path: &Path) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path)?;
    trust::check(path, &file, &metadata)?;
    read(&file, &metadata)
}

/// Does the same for a secret, which other users must not be able to read either, see [`trust::check_private`].
pub fn read_secret_file_or_pipe(path: &Path) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path)?;
    trust::check(path, &file, &metadata)?;
    trust::check_private(path, &file, &metadata, Privacy::RootsGroup)?;
    read(&file, &metadata)
}

/// Fails as [`trust::check`] does if another user can write or replace the file or pipe at `path`, or with an error of
/// the system. Does not open it for reading: a pipe can be read once only.
pub fn check_trusted(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    trust::check(path, &file, &file.metadata()?)
}

/// Reads a regular file with passwords, which other users must not be able to read either. Fails as
/// [`read_trusted_file`] does.
pub fn read_password_file(path: &Path) -> io::Result<Vec<u8>> {
    let (file, metadata) = open_regular(path)?;
    trust::check_private(path, &file, &metadata, Privacy::Owner)?;
    read_regular(&file)
}

fn read(file: &File, metadata: &Metadata) -> io::Result<Vec<u8>> {
    if metadata.file_type().is_fifo() { read_pipe(file) } else { read_regular(file) }
}

/// Decodes the contents as UTF-8.
pub fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Opens a regular file or a pipe, without waiting for a process at the other end of a FIFO. Opens nothing else,
/// because opening some devices has side effects.
fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let there = fs::metadata(path)?.file_type();
    if !there.is_file() && !there.is_fifo() {
        return Err(io::Error::other(format!("it is {}, neither a regular file nor a pipe", kind(there))));
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

fn read_regular(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_LEN as u64 + 1).read_to_end(&mut bytes)?;
    check_length(&bytes)?;
    Ok(bytes)
}

fn read_pipe(mut pipe: &File) -> io::Result<Vec<u8>> {
    let give_up_at = Moment::now() + PIPE_TIMEOUT;
    let mut bytes = Vec::new();
    loop {
        // A FIFO that no process has opened for writing yet would read as if it were at its end: wait first.
        if !wait_for_data(pipe, give_up_at)? {
            let seconds = PIPE_TIMEOUT.as_secs();
            return Err(io::Error::other(if bytes.is_empty() {
                format!("no process has written to this pipe for {seconds}s")
            } else {
                format!("this pipe was still open after {seconds}s; its writer must close it")
            }));
        }
        let mut part = [0; 4096];
        match pipe.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend(&part[..length]),
            // Another reader was quicker, or a signal came.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        check_length(&bytes)?;
    }
}

/// Waits for data, or for the last writer to close the pipe. Returns `false` if neither happens by `give_up_at`.
fn wait_for_data(pipe: &File, give_up_at: Moment) -> io::Result<bool> {
    loop {
        let left = give_up_at.since(Moment::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if Moment::now() < give_up_at => {}
            Ok(count) => return Ok(count > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn check_length(bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > MAX_LEN { Err(io::Error::other("it is longer than 1 MiB")) } else { Ok(()) }
}

fn kind(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_pipe_that_is_checked_can_still_be_read() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        writer.write_all(b"all of it").expect("it has room");
        drop(writer);
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        check_trusted(path.as_ref()).expect("the caller's");
        assert_eq!(read_trusted_file_or_pipe(path.as_ref()).expect("nobody has read it"), b"all of it");
    }
}
