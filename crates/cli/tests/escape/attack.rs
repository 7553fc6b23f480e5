//! What an attack is, and how it is tried: with every wall standing, and then without those that stop it.

use std::cell::RefCell;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use belljar_core::Wall;
use serde_json::{Value, json};

use crate::canary::{Field, random_word};
use crate::classes::NETWORK;

/// After this a program under test counts as hanging.
const PATIENCE: Duration = Duration::from_secs(90);

/// One thing that hostile code tries.
pub(crate) struct Attack {
    /// Class and name.
    pub(crate) id: &'static str,
    /// What it tries, in a line.
    pub(crate) tries: &'static str,
    /// The walls that stop it, each by itself.
    pub(crate) walls: &'static [Wall],
    /// What must be down as well for the attack to be tried at all.
    pub(crate) also: &'static [Wall],
    pub(crate) control: Control,
    pub(crate) body: Body,
}

/// Something that the suite tries by itself.
pub(crate) type Attempt = Box<dyn Fn(&Ring<'_>) -> Outcome + Send>;

/// How it is shown that the attack works where nothing stops it.
pub(crate) enum Control {
    /// In a sandbox without the walls that stop it.
    WallsDown,
    /// In a sandbox of the `local` provider, which has no walls: harmless, or it would not be here.
    Local,
    /// The attack is given what it wants, so that its own eyes are known to see a success.
    Sabotage,
    /// Done by a program that trusts what it is given.
    Naive(Attempt),
    /// This kernel or machine cannot show it, for this reason.
    Moot(&'static str),
}

/// Who does it.
pub(crate) enum Body {
    /// A Python program inside, which calls `won` when it has what it came for.
    Inside { user: &'static str, options: &'static [&'static str], mortal: bool, program: &'static str },
    /// The suite itself, with a sandbox or a hostile guest of its own making.
    Outside(Attempt),
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing was reached.
    Stopped(String),
    /// Something was.
    Won(String),
    /// It could not be tried, which proves nothing.
    Broken(String),
}

/// An attack by a program inside, as the default user.
pub(crate) fn inside(
    id: &'static str,
    tries: &'static str,
    walls: &'static [Wall],
    program: &'static str,
) -> Attack {
    let body = Body::Inside { user: "user", options: &[], mortal: false, program };
    Attack { id, tries, walls, also: &[], control: Control::WallsDown, body }
}

/// An attack on the programs outside.
pub(crate) fn outside(
    id: &'static str,
    tries: &'static str,
    walls: &'static [Wall],
    attempt: impl Fn(&Ring<'_>) -> Outcome + Send + 'static,
) -> Attack {
    Attack {
        id,
        tries,
        walls,
        also: &[],
        control: Control::WallsDown,
        body: Body::Outside(Box::new(attempt)),
    }
}

impl Attack {
    /// As root of the sandbox.
    pub(crate) fn by_root(mut self) -> Self {
        if let Body::Inside { user, .. } = &mut self.body {
            *user = "root";
        }
        self
    }

    /// In a sandbox with these options.
    pub(crate) fn with(mut self, given: &'static [&'static str]) -> Self {
        if let Body::Inside { options, .. } = &mut self.body {
            *options = given;
        }
        self
    }

    /// The same in a sandbox that is granted a network.
    pub(crate) fn with_network(mut self) -> Self {
        self.id = String::leak(format!("DW-{}", self.id));
        self.tries = String::leak(format!("{} (with a network)", self.tries));
        if let Body::Inside { options, .. } = &mut self.body {
            *options = Vec::leak([*options, NETWORK].concat());
        }
        self
    }

    /// Being killed on the way is one way of being stopped.
    pub(crate) fn mortal(mut self) -> Self {
        if let Body::Inside { mortal, .. } = &mut self.body {
            *mortal = true;
        }
        self
    }

    /// These have to be down too, though they are not what stops it.
    pub(crate) fn also(mut self, walls: &'static [Wall]) -> Self {
        self.also = walls;
        self
    }

    /// With another control.
    pub(crate) fn control(mut self, control: Control) -> Self {
        self.control = control;
        self
    }

    pub(crate) fn is_by_root(&self) -> bool {
        matches!(self.body, Body::Inside { user: "root", .. })
    }

    /// Tries it in this ring.
    pub(crate) fn attempt(&self, ring: &Ring<'_>) -> Outcome {
        let outcome = match &self.body {
            Body::Outside(attempt) => attempt(ring),
            Body::Inside { user, options, mortal, program } => ring.python(user, options, *mortal, program),
        };
        match ring.field.canaries.touched() {
            Some(what) => Outcome::Won(what),
            None => outcome,
        }
    }
}

/// One attempt: the walls that are down, and the world around it.
pub(crate) struct Ring<'a> {
    pub(crate) field: &'a Field,
    pub(crate) down: Vec<Wall>,
    /// The control gives the attack what it wants.
    pub(crate) sabotage: bool,
    /// Without any walls.
    pub(crate) local: bool,
    /// An empty directory of its own.
    pub(crate) scratch: PathBuf,
    pub(crate) sandboxes: RefCell<Vec<String>>,
}

/// The object that a program said.
pub(crate) fn object(ended: &Ended) -> Value {
    serde_json::from_slice(&ended.stdout).unwrap_or(Value::Null)
}

/// How a program ended and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl<'a> Ring<'a> {
    pub(crate) fn new(field: &'a Field, down: &[Wall]) -> Self {
        let scratch = field.directory.join("scratch").join(random_word());
        fs::create_dir_all(&scratch).expect("a directory for an attempt can be made");
        Self {
            field,
            down: down.to_vec(),
            sabotage: false,
            local: false,
            scratch,
            sandboxes: RefCell::default(),
        }
    }

    /// The program under test: the one that is used if all walls stand, else the one that can do without.
    pub(crate) fn belljar(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(words).env("BELLJAR_HOME", self.field.home()).env_remove("BELLJAR_LOG");
        command.env("BELLJAR_CANARY", &self.field.canaries.secret);
        command.env_remove("BELLJAR_ABLATE").current_dir(&self.scratch);
        if !self.down.is_empty() {
            let names: Vec<&str> = self.down.iter().map(|wall| wall.name()).collect();
            command.env("BELLJAR_ABLATE", names.join(","));
        }
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn program(&self) -> &Path {
        if self.down.is_empty() { &self.field.programs.normal } else { &self.field.programs.ablated }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        finish(&mut self.belljar(words))
    }

    /// Runs with `--json`; the object it said, or null.
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let object = object(&self.run(&[&[words[0], "--json"], &words[1..]].concat()));
        if let Some(id) = object["sandbox_id"].as_str() {
            self.sandboxes.borrow_mut().push(id.to_owned());
        }
        object
    }

    /// Makes a sandbox that lives until the end of the attempt.
    pub(crate) fn create(&self, options: &[&str]) -> Result<String, Outcome> {
        let object = self.json(&[&["create", "--ttl", "2m"], options].concat());
        match object["sandbox_id"].as_str() {
            Some(id) => Ok(id.to_owned()),
            None => Err(Outcome::Broken(format!("no sandbox was made: {object}"))),
        }
    }

    /// Runs a shell script in a sandbox.
    pub(crate) fn shell(&self, id: &str, script: &str) -> Value {
        self.json(&["exec", id, "--", "sh", "-c", script])
    }

    /// The directory of a sandbox on the host.
    pub(crate) fn directory(&self, id: &str) -> PathBuf {
        self.field.home().join("sandboxes").join(id)
    }

    /// Runs a Python attack in a sandbox of its own and judges it by what it says.
    pub(crate) fn python(&self, user: &str, options: &[&str], mortal: bool, program: &str) -> Outcome {
        let mark = random_word();
        let mut told = self.field.canaries.told();
        told["mark"] = json!(mark);
        told["program"] = json!(program);
        let told = told.to_string();
        let mut words = vec!["run", "--timeout", "40s", "--user", user];
        if self.local {
            words = vec!["run", "--timeout", "40s", "--provider", "local"];
        } else {
            words.extend(options);
        }
        words.extend(["--", "python3", "-c", PRELUDE, &told]);
        let ended = self.run(&[&[words[0], "--json"], &words[1..]].concat());
        let object = object(&ended);
        self.sandboxes.borrow_mut().extend(object["sandbox_id"].as_str().map(str::to_owned));
        let said = format!("{}\n{}", text(&object["stdout"]), text(&object["stderr"]));
        if let Some(line) = said.lines().find_map(|line| line.strip_prefix(&mark)) {
            return Outcome::Won(line.trim().chars().take(200).collect());
        }
        if let Some(what) = self.field.canaries.leaked(said.as_bytes()) {
            return Outcome::Won(what);
        }
        let last = said.lines().rev().find(|line| !line.is_empty() && *line != "TRIED").unwrap_or_default();
        let last: String = last.chars().take(200).collect();
        if said.lines().any(|line| line == "TRIED") {
            return Outcome::Stopped(last);
        }
        let termination = text(&object["termination"]);
        if mortal && !termination.is_empty() && (termination != "exited" || object["exit_code"] != 1) {
            return Outcome::Stopped(format!("{termination} {last}"));
        }
        Outcome::Broken(format!("it did not run to its end: {object} {:?} {}", ended.code, ended.stderr))
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Runs a program to its end, and kills it if it hangs.
pub(crate) fn finish(command: &mut Command) -> Ended {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    match child {
        Ok(child) => wait(child, PATIENCE),
        Err(error) => Ended { code: None, stdout: Vec::new(), stderr: format!("{command:?}: {error}") },
    }
}

/// Waits for a program, with everything that it says; kills it when the time is over.
pub(crate) fn wait(mut child: Child, patience: Duration) -> Ended {
    fn reader(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut said = Vec::new();
            // An attack may say without end; what it says first is enough to judge it.
            let _ = from.map(|from| from.take(32 << 20).read_to_end(&mut said));
            let _ = send.send(said);
        });
        receive
    }
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let deadline = Instant::now() + patience;
    let code = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.code(),
            _ if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let soon = Duration::from_secs(30);
    let stdout = stdout.recv_timeout(soon).unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr.recv_timeout(soon).unwrap_or_default()).into_owned();
    Ended { code, stdout, stderr }
}

/// Polls until the condition holds; whether it did in time.
pub(crate) fn within(longest: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + longest;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What every attack inside starts from.
const PRELUDE: &str = r#"
import ctypes, errno, fcntl, json, mmap, os, resource, select, signal, socket, stat, struct, subprocess, sys, threading, time
C = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
class Refused(OSError): pass
def call(number, *arguments):
    "Makes a system call; an error is an exception."
    ctypes.set_errno(0)
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *given)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"system call {number}")
    return result
def won(*evidence): print(C["mark"], *evidence, flush=True)
def read(path, most=4096):
    with open(path, "rb") as file: return file.read(most)
try:
    exec(compile(C["program"], "attack", "exec"), globals())
except (OSError, MemoryError, RuntimeError) as error:
    print("stopped:", repr(error))
print("TRIED", flush=True)
"#;
