//! Changes in one directory, as they happen.

use std::mem::MaybeUninit;

use belljar_core::wire::Event;
use belljar_core::{Error, ErrorCode, WatchEvent, WatchKind};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::place::Place;
use crate::worker::Answer;

/// The most changes in one message.
const BATCH: usize = 256;

/// Says that the watch stands, then every change until it is broken off or the directory goes away.
pub(crate) fn watch(place: &Place, answer: &mut Answer) -> Result<(), Error> {
    let queue = inotify::init(CreateFlags::CLOEXEC).map_err(|errno| place.failed(errno))?;
    let what = WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&queue, place.path(), what).map_err(|errno| place.failed(errno))?;
    answer.event(&Event::Done)?;

    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut changes = Reader::new(&queue, &mut buffer);
    let mut batch = Vec::new();
    loop {
        let change = changes.next().map_err(|errno| place.failed(errno))?;
        let flags = change.events();
        if let Some(kind) = kind(flags) {
            let name = change.file_name().map(|name| name.to_string_lossy().into_owned());
            batch.push(WatchEvent { kind, path: name.unwrap_or_default() });
        }
        let gone = flags.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF);
        if !batch.is_empty() && (gone || batch.len() == BATCH || changes.is_buffer_empty()) {
            answer.event(&Event::Changed(std::mem::take(&mut batch)))?;
        }
        if gone {
            let message = format!("`{place}`: the watched directory was removed or moved away");
            return Err(Error::new(ErrorCode::NotFound, message));
        }
    }
}

fn kind(flags: ReadFlags) -> Option<WatchKind> {
    let kinds = [
        (ReadFlags::QUEUE_OVERFLOW, WatchKind::Overflow),
        (ReadFlags::CREATE | ReadFlags::MOVED_TO, WatchKind::Created),
        (ReadFlags::CLOSE_WRITE, WatchKind::Written),
        (ReadFlags::DELETE | ReadFlags::MOVED_FROM, WatchKind::Removed),
        (ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF, WatchKind::Removed),
        (ReadFlags::ATTRIB, WatchKind::Attributes),
    ];
    kinds.into_iter().find(|(of, _)| flags.intersects(*of)).map(|(_, kind)| kind)
}
