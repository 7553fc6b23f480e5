//! Parts of Belljar gone over to the other side: a first process that lies to its monitor, and a launcher whose plans
//! are changed on the way.

use std::fs;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use belljar_core::wire::{
    Decoder, Event, Exit, FileOperation, Frame, FrameKind, MAX_CONTROL, MAX_DATA, PROTOCOL, Request, stream,
};
use belljar_core::{Entry, FileKind};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};

use crate::attack::{Outcome, Ring, object};

/// The word that makes this program a launcher: then the real launcher, the file with changes, and its words.
pub(crate) const LAUNCHER: &str = "--as-launcher";

/// Stands between Belljar and its nursery: every plan is passed on with changes, and everything else as it is.
pub(crate) fn launcher(words: &[String]) -> ExitCode {
    let [real, changes, rest @ ..] = words else { return ExitCode::from(2) };
    if rest.first().is_none_or(|word| word != "nursery") {
        let status = Command::new(real).args(rest).status();
        return ExitCode::from(status.ok().and_then(|status| status.code()).unwrap_or(1) as u8);
    }
    // Whoever started Belljar waits for the end of its error output, and this process lives longer.
    if let Ok(null) = fs::File::create("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let Ok(nursery) = Nursery::start(Path::new(real)) else { return ExitCode::from(4) };
    // SAFETY: standard input is the creator's socket, and open for as long as this process lives.
    let creator = unsafe { BorrowedFd::borrow_raw(0) };
    let mut relays = Vec::new();
    while let Ok(Some(creator)) = receive(creator) {
        let (creator, changes, real) = (UnixStream::from(creator), changes.clone(), real.clone());
        let Ok((ours, theirs)) = UnixStream::pair() else { continue };
        let Some(plan) = changed_plan(&creator, &changes, &real) else { continue };
        if nursery.order(&theirs).is_err() {
            continue;
        }
        drop(theirs);
        relays.push(relay(creator, ours, plan));
    }
    // Launchers live on, and so does what stands before them.
    drop(nursery);
    for relay in relays {
        let _ = relay.join();
    }
    ExitCode::SUCCESS
}

/// The plan that comes from there, with the changes; `None` if it was only to be kept.
fn changed_plan(mut creator: &UnixStream, changes: &str, real: &str) -> Option<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") && creator.read(&mut byte).is_ok_and(|count| count == 1) {
        line.push(byte[0]);
    }
    let mut plan: Value = serde_json::from_slice(&line).ok()?;
    let changes: Value = serde_json::from_str(&fs::read_to_string(changes).ok()?).ok()?;
    if let Some(file) = changes[KEEP].as_str() {
        plan[KEEP] = json!(real);
        let _ = fs::write(file, plan.to_string());
        return None;
    }
    for (name, change) in changes.as_object().into_iter().flatten() {
        match (&mut plan[name], change) {
            (Value::Array(list), Value::Array(more)) => list.extend(more.iter().cloned()),
            (Value::Object(map), Value::Object(more)) => {
                map.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            (place, change) => *place = change.clone(),
        }
    }
    Some(format!("{plan}\n"))
}

/// Passes on in both directions until the launcher closes its end.
fn relay(creator: UnixStream, launcher: UnixStream, plan: String) -> std::thread::JoinHandle<()> {
    let (from, to) =
        (creator.try_clone().expect("a descriptor"), launcher.try_clone().expect("a descriptor"));
    std::thread::spawn(move || {
        let _ = (&to).write_all(plan.as_bytes());
        let _ = std::io::copy(&mut &from, &mut &to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut &launcher, &mut &creator);
        let _ = creator.shutdown(std::net::Shutdown::Both);
    })
}

/// A nursery of the suite's own.
pub(crate) struct Nursery {
    socket: UnixStream,
    _child: std::process::Child,
}

impl Nursery {
    pub(crate) fn start(program: &Path) -> std::io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let child = Command::new(program)
            .arg("nursery")
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { socket, _child: child })
    }

    /// Has a launcher forked for whoever is at the other end.
    pub(crate) fn order(&self, launcher: impl AsFd) -> std::io::Result<()> {
        let descriptors = [launcher.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// The next order of a creator: a socket.
fn receive(creator: BorrowedFd<'_>) -> std::io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(creator, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let launcher = descriptors.flatten().next();
    Ok(launcher.filter(|_| received.bytes > 0))
}

/// A data directory whose launcher makes these changes to every plan.
fn patched_home(ring: &Ring<'_>, changes: &Value) -> Result<PathBuf, Outcome> {
    let home = ring.field.patched_home();
    let broken = |error: std::io::Error| Outcome::Broken(format!("{}: {error}", home.display()));
    let changes_file = home.join("programs/changes.json");
    // Puts the programs in place; fails harmlessly when they are the changed ones and there is nothing to change.
    let _ = ring.run(&["ls", "--home", &home.to_string_lossy()]);
    fs::write(&changes_file, changes.to_string()).map_err(broken)?;
    let own = std::env::current_exe().map_err(broken)?;
    for entry in fs::read_dir(home.join("programs")).map_err(broken)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("belljar-jail-") {
            continue;
        }
        let (path, real) = (entry.path(), home.join("programs").join(format!("real-{name}")));
        if real.exists() {
            continue;
        }
        let length = entry.metadata().map_err(broken)?.len() as usize;
        fs::rename(&path, &real).map_err(broken)?;
        let script = format!(
            "#!/bin/sh\nexec '{}' {LAUNCHER} '{}' '{}' \"$@\"\n",
            own.display(),
            real.display(),
            changes_file.display()
        );
        // Belljar knows its programs by name and length.
        let padding = "#".repeat(length - script.len());
        fs::write(&path, script + &padding).map_err(broken)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(broken)?;
    }
    Ok(home)
}

/// Runs a command in a sandbox whose plan was changed; what it said.
pub(crate) fn run_patched(ring: &Ring<'_>, changes: &Value, words: &[&str]) -> Result<String, Outcome> {
    let home = patched_home(ring, changes)?;
    let object = ring.json(&[&["run", "--home", &home.to_string_lossy()], words].concat());
    if object["termination"].is_null() {
        return Err(Outcome::Broken(object.to_string()));
    }
    Ok(format!("{}{}", crate::attack::text(&object["stdout"]), crate::attack::text(&object["stderr"])))
}

/// A sandbox whose first process is the suite's own, in this mood, with this to give away.
pub(crate) struct Hostile {
    pub(crate) id: String,
    pub(crate) home: String,
}

impl Hostile {
    pub(crate) fn create(ring: &Ring<'_>, mood: &str, archive: &[u8]) -> Result<Self, Outcome> {
        let own = std::env::current_exe().map_err(|error| Outcome::Broken(error.to_string()))?;
        let hex: String = archive.iter().map(|byte| format!("{byte:02x}")).collect();
        let changes = json!({"guest": own, "env": {"MOOD": mood, "ARCHIVE": hex}});
        let home = patched_home(ring, &changes)?.to_string_lossy().into_owned();
        let made = ring.json(&["create", "--home", &home, "--ttl", "2m"]);
        match made["sandbox_id"].as_str() {
            Some(id) => Ok(Self { id: id.to_owned(), home }),
            None => Err(Outcome::Broken(format!("no hostile guest was made: {made}"))),
        }
    }

    /// Runs `belljar` on it.
    pub(crate) fn run(&self, ring: &Ring<'_>, words: &[&str]) -> crate::attack::Ended {
        ring.run(&[&[words[0], "--home", &self.home], &words[1..]].concat())
    }

    /// Whether an execution in it is believed to have gone well.
    pub(crate) fn is_believed(&self, ring: &Ring<'_>) -> (bool, String) {
        let ended =
            ring.run(&["exec", "--home", &self.home, "--json", "--timeout", "10s", &self.id, "--", "x"]);
        let said = object(&ended);
        (said["stdout"] == "believed\n", format!("{said} {}", ended.stderr.trim()))
    }
}

/// The first process of a sandbox, hostile. Which way, its sandbox's variables say.
pub(crate) fn guest() -> ExitCode {
    // SAFETY: the launcher left the control socket at this number, and nothing else here uses it.
    let mut socket = unsafe { UnixStream::from_raw_fd(3) };
    let mut decoder = Decoder::new(MAX_CONTROL);
    let mut liar =
        Liar { socket: socket.try_clone().expect("a descriptor"), mood: String::new(), archive: Vec::new() };
    let mut buffer = vec![0; 65536];
    loop {
        let count = match socket.read(&mut buffer) {
            Ok(0) | Err(_) => return ExitCode::SUCCESS,
            Ok(count) => count,
        };
        decoder.feed(&buffer[..count]);
        while let Ok(Some(frame)) = decoder.next_frame() {
            if frame.kind == FrameKind::Control
                && let Ok(request) = frame.message::<Request>()
            {
                liar.answer(frame.id, request);
            }
        }
    }
}

struct Liar {
    socket: UnixStream,
    mood: String,
    archive: Vec<u8>,
}

impl Liar {
    fn send(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let _ = self.socket.write_all(&bytes);
    }

    fn event(&mut self, id: u32, event: &Event) {
        self.send(&Frame::control(id, event));
    }

    /// A header that says what it likes, and some bytes after it.
    fn raw(&mut self, length: u32, id: u32, kind: u8, stream: u8, reserved: u8, payload: &[u8]) {
        let mut bytes = Vec::new();
        bytes.extend(length.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes.extend([kind, stream, reserved, 0]);
        bytes.extend(payload);
        let _ = self.socket.write_all(&bytes);
    }

    fn answer(&mut self, id: u32, request: Request) {
        match request {
            Request::Init(init) => {
                self.mood = init.env.get("MOOD").cloned().unwrap_or_default();
                let hex = init.env.get("ARCHIVE").cloned().unwrap_or_default();
                self.archive = (0..hex.len() / 2)
                    .filter_map(|at| u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok())
                    .collect();
                self.event(0, &Event::Ready { protocol: PROTOCOL });
            }
            Request::Spawn(_) => {
                self.event(id, &Event::Started { pid: 2, start_us: 1 });
                self.misbehave(id);
                self.send(&Frame::data(id, stream::OUTPUT, b"believed\n"));
                self.send(&Frame::end(id, stream::OUTPUT));
                self.send(&Frame::end(id, stream::ERROR));
                self.event(id, &Event::Exited(well()));
            }
            Request::File(request) => self.file(id, &request.operation),
            Request::Kill
            | Request::Signal { .. }
            | Request::Resize(_)
            | Request::Deadline { .. }
            | Request::Pause { .. }
            | Request::Resume => {}
        }
    }

    fn misbehave(&mut self, id: u32) {
        match self.mood.as_str() {
            "large-control" => {
                let length = (1 << 20) + 4096;
                self.raw(length, id, 0, 0, 0, &vec![b' '; length as usize]);
            }
            "large-data" => {
                let length = MAX_DATA as u32 + 1;
                self.raw(length, id, 1, 2, 0, &vec![b'x'; length as usize]);
            }
            "large-credit" => self.raw(5, id, 2, 0, 0, &[0; 5]),
            "unknown-kind" => self.raw(0, id, 9, 0, 0, &[]),
            "unknown-stream" => self.raw(1, id, 1, 77, 0, b"x"),
            "reserved-bytes" => self.raw(0, id, 1, 1, 1, &[]),
            "endless-length" => self.raw(u32::MAX, id, 0, 0, 0, &[]),
            "flood" => {
                let piece = vec![b'x'; MAX_DATA];
                for _ in 0..(48 << 20) / MAX_DATA {
                    self.send(&Frame::data(id, stream::OUTPUT, &piece));
                }
            }
            "confused" => self.confuse(id),
            _ => {}
        }
    }

    /// Frames that are well formed and make no sense.
    fn confuse(&mut self, id: u32) {
        for other in [0, id + 1, 77_777, 1 << 31, u32::MAX] {
            self.event(other, &Event::Started { pid: 1, start_us: u64::MAX });
            self.event(other, &Event::Entries(Vec::new()));
            self.event(other, &Event::Done);
            self.send(&Frame::data(other, stream::OUTPUT, b"for nobody"));
            self.send(&Frame::data(other, stream::INPUT, b"the wrong way"));
            for stream in 0..3 {
                self.send(&Frame::credit(other, stream, u32::MAX));
                self.send(&Frame::credit(id, stream, u32::MAX));
            }
            self.event(
                other,
                &Event::Exited(Exit { duration_us: u64::MAX, cpu_us: Some(u64::MAX), ..well() }),
            );
        }
        self.raw(6, id, 0, 0, 0, b"{\"no\":");
        self.raw(2, 0, 0, 0, 0, &[0xff, 0xfe]);
        self.event(id, &Event::Started { pid: 3, start_us: 0 });
        self.event(id, &Event::Made { new: true });
        self.event(id, &Event::Ready { protocol: 99 });
    }

    fn file(&mut self, id: u32, operation: &FileOperation) {
        let directory = self.mood == "archive";
        match operation {
            FileOperation::Stat { path } => {
                let kind = if directory { FileKind::Directory } else { FileKind::File };
                let entry = Entry {
                    name: path.as_str().to_owned(),
                    path: path.as_str().to_owned(),
                    kind,
                    size: 5,
                    mode: 0o755,
                    uid: 0,
                    gid: 0,
                    modified_ms: 0,
                    target: None,
                };
                self.event(id, &Event::Entries(vec![entry]));
            }
            FileOperation::List { .. } => {
                let text = String::from_utf8_lossy(&self.archive).into_owned();
                let entry = Entry {
                    name: text.clone(),
                    path: text.clone(),
                    kind: FileKind::Symlink,
                    size: u64::MAX,
                    mode: u32::MAX,
                    uid: u32::MAX,
                    gid: u32::MAX,
                    modified_ms: i64::MAX,
                    target: Some(text),
                };
                self.event(id, &Event::Entries(vec![entry]));
                self.event(id, &Event::Done);
            }
            FileOperation::Pack { .. } => {
                let archive = std::mem::take(&mut self.archive);
                for piece in archive.chunks(MAX_DATA) {
                    self.send(&Frame::data(id, stream::OUTPUT, piece));
                }
                self.archive = archive;
                self.send(&Frame::end(id, stream::OUTPUT));
                self.event(id, &Event::Done);
            }
            FileOperation::Read { .. } => {
                // Five bytes were promised. Bounded, for where nobody stops it.
                let piece = vec![b'x'; MAX_DATA];
                for _ in 0..(6 << 20) / MAX_DATA {
                    self.send(&Frame::data(id, stream::OUTPUT, &piece));
                }
                self.send(&Frame::end(id, stream::OUTPUT));
                self.event(id, &Event::Done);
            }
            _ => self.event(id, &Event::Done),
        }
    }
}

fn well() -> Exit {
    Exit {
        code: Some(0),
        signal: None,
        killed: None,
        duration_us: 1,
        cpu_us: None,
        processes: None,
        read_bytes: None,
        write_bytes: None,
    }
}

/// A plan as Belljar makes it, and the real launcher.
pub(crate) fn captured_plan(ring: &Ring<'_>) -> Result<(Value, PathBuf), Outcome> {
    let kept = ring.scratch.join("plan.json");
    let home = patched_home(ring, &json!({}))?;
    let changes = home.join("programs/changes.json");
    let broken = |error: std::io::Error| Outcome::Broken(error.to_string());
    fs::write(&changes, json!({KEEP: kept}).to_string()).map_err(broken)?;
    let _ = ring.run(&["run", "--home", &home.to_string_lossy(), "--", "true"]);
    let plan = fs::read_to_string(&kept).map_err(broken)?;
    let plan: Value = serde_json::from_str(&plan).map_err(|error| Outcome::Broken(error.to_string()))?;
    // The launcher of this very build: the one that was asked to keep the plan says so in it.
    let real = plan[KEEP].as_str().map(PathBuf::from).ok_or_else(|| Outcome::Broken("no launcher".into()))?;
    let mut plan = plan;
    if let Some(fields) = plan.as_object_mut() {
        fields.remove(KEEP);
    }
    Ok((plan, real))
}

/// Among the changes: not to launch, but to keep the plan in this file, with the launcher's path under the same name.
const KEEP: &str = "keep-the-plan-in";
