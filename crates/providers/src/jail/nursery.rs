//! The process that forks launchers for us, started when the first is wanted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_core::{Result, Wall};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::net::UnixStream;

use super::launcher_failed;
use crate::home::problem;

/// A log that has grown to this is put aside when the next nursery is started.
const MAX_LOG: u64 = 1 << 20;

/// How often, and after which pause, a program is tried that is still being written.
const BUSY_TRIES: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The nursery of one provider. It ends when this is dropped; the launchers it forked live on.
#[derive(Debug)]
pub(super) struct Nursery {
    program: PathBuf,
    log: PathBuf,
    socket: Mutex<Option<Socket>>,
}

impl Nursery {
    /// A nursery that will run `program`, and have what goes wrong written to `log`.
    pub(super) fn new(program: PathBuf, log: PathBuf) -> Self {
        Self { program, log, socket: Mutex::default() }
    }

    /// Has a launcher forked, and answers our end of its socket. A nursery that was killed is started anew.
    pub(super) fn fork_launcher(&self) -> Result<UnixStream> {
        let failed = |error: io::Error| launcher_failed(&error.to_string());
        // The launcher's end is one that waits, unlike ours.
        let (ours, theirs) = Socket::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let ours = UnixStream::from_std(ours).map_err(failed)?;
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        for attempt in 0..2 {
            let nursery = match &*socket {
                Some(nursery) => nursery,
                None => {
                    let log = open_log(&self.log).map_err(|error| problem(&self.log, &error))?;
                    let started =
                        start(&self.program, log).map_err(|error| problem(&self.program, &error))?;
                    socket.insert(started)
                }
            };
            match order(nursery, &theirs) {
                Ok(()) => return Ok(ours),
                Err(error) if attempt > 0 => return Err(failed(error)),
                Err(_) => *socket = None,
            }
        }
        Err(launcher_failed("its nursery ends as soon as it is started"))
    }

    /// How long the log is.
    pub(super) fn log_length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |found| found.len())
    }

    /// The last line of the log, if it was written since it had this length.
    pub(super) fn said_since(&self, length: u64) -> Option<String> {
        let mut log = File::open(&self.log).ok()?;
        log.seek(SeekFrom::Start(length)).ok()?;
        let mut said = Vec::new();
        log.take(MAX_LOG).read_to_end(&mut said).ok()?;
        String::from_utf8_lossy(&said).lines().last().map(str::to_owned)
    }
}

fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|found| found.len() > MAX_LOG) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Starts a program that may just have been written: whoever else forks at that moment holds it open for writing until its child has
/// become another program.
fn spawned(command: &mut Command) -> io::Result<Child> {
    for _ in 0..BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::sleep(BUSY_PAUSE),
            spawned => return spawned,
        }
    }
    command.spawn()
}

fn start(program: &Path, log: File) -> io::Result<Socket> {
    let (ours, theirs) = Socket::pair()?;
    let mut nursery = Command::new(program);
    if Wall::CleanEnvironment.stands() {
        nursery.env_clear();
    }
    #[cfg(feature = "ablation")]
    nursery.envs([belljar_core::wall::ablation::passed_on()]);
    nursery.arg("nursery").current_dir("/").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(log);
    let mut child = spawned(&mut nursery)?;
    // It is waited for wherever it ends, so that no trace of it stays in the process table.
    std::thread::Builder::new().name("nursery".into()).stack_size(64 * 1024).spawn(move || child.wait())?;
    Ok(ours)
}

fn order(nursery: &Socket, launcher: &Socket) -> io::Result<()> {
    let descriptors = [launcher.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(nursery, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_what_was_said_since_is_told_and_a_long_log_is_put_aside() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("sandboxes.log");
        let nursery = Nursery::new("/nonexistent".into(), path.clone());
        writeln!(open_log(&path).unwrap(), "long ago").unwrap();
        let before = nursery.log_length();
        assert_eq!(nursery.said_since(before), None);
        writeln!(open_log(&path).unwrap(), "first\nlast").unwrap();
        assert_eq!(nursery.said_since(before).as_deref(), Some("last"));
        fs::write(&path, vec![b'x'; MAX_LOG as usize + 1]).unwrap();
        drop(open_log(&path).unwrap());
        assert_eq!(nursery.log_length(), 0);
        assert_eq!(fs::metadata(home.path().join("sandboxes.log.old")).unwrap().len(), MAX_LOG + 1);
    }
}
