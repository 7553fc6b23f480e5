//! Sockets in directories whose paths may be longer than a socket's can be: they are named by descriptor.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use tokio::net::{UnixListener, UnixStream};

fn at(directory: &File, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", directory.as_raw_fd())
}

pub(super) async fn connect(directory: &Path, name: &str) -> io::Result<UnixStream> {
    let directory = File::open(directory)?;
    UnixStream::connect(at(&directory, name)).await
}

pub(super) fn listen(directory: &Path, name: &str) -> io::Result<UnixListener> {
    let directory = File::open(directory)?;
    UnixListener::bind(at(&directory, name))
}
