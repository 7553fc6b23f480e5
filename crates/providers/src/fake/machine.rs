//! Runs the commands of one execution, step by step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_core::{Command, Error, ErrorCode, Result, Termination};

use super::shell::{self, Condition, Part, Redirection, Statement, Target, Word};
use super::{Call, Ending, Programs, Tree};

/// The number that the model's shell has as a process.
const OWN_PID: &str = "2";

/// The state of one execution. What it wrote stays readable when the future that runs it is dropped.
pub(super) struct Machine {
    pub(super) programs: Programs,
    pub(super) files: Arc<Mutex<Tree>>,
    pub(super) env: BTreeMap<String, String>,
    /// Variables of the shell that are not passed on.
    pub(super) variables: BTreeMap<String, String>,
    pub(super) cwd: String,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Where an output goes.
#[derive(Clone)]
enum Sink {
    Stdout,
    Stderr,
    File(String),
    Nowhere,
}

/// Where the three descriptors of one command lead.
struct Descriptors {
    stdin: Vec<u8>,
    sinks: [Sink; 2],
}

/// How a step of a shell line went: its status, or the end of the whole line.
type Step = std::result::Result<i32, Termination>;

impl Machine {
    /// Refuses a program that could not be started.
    pub(super) fn check(&self, command: &Command) -> Result<()> {
        let Command::Argv(argv) = command else { return Ok(()) };
        let program = &argv[0];
        if self.programs.contains_key(program) {
            return Ok(());
        }
        let path = Tree::absolute(&self.cwd, program);
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = program.escape_debug();
        if program.contains('/') && (files.is_file(&path) || files.is_directory(&path)) {
            return Err(Error::new(ErrorCode::CommandNotExecutable, format!("`{shown}` cannot be executed")));
        }
        Err(Error::new(ErrorCode::CommandNotFound, format!("there is no command `{shown}`"))
            .hint("the `fake` provider has only the programs that the test gave it and a few of its own"))
    }

    /// Runs to the end. May be dropped at any point where a program takes its time.
    pub(super) async fn run(&mut self, command: &Command) -> Termination {
        let ended = match command {
            Command::Argv(argv) => {
                let descriptors = Descriptors { stdin: Vec::new(), sinks: [Sink::Stdout, Sink::Stderr] };
                self.call(argv, &descriptors, self.env.clone()).await
            }
            Command::Shell(line) => self.line(line).await,
        };
        match ended {
            Ok(code) => Termination::Exited { code: code & 0xff },
            Err(termination) => termination,
        }
    }

    async fn line(&mut self, line: &str) -> Step {
        let statements = match shell::parse(line) {
            Ok(statements) => statements,
            Err(problem) => return Ok(self.complain(2, &format!("fake shell: {problem}"))),
        };
        let mut status = 0;
        for statement in statements {
            let due = match statement.condition {
                Condition::Always => true,
                Condition::Succeeded => status == 0,
                Condition::Failed => status != 0,
            };
            if due {
                status = self.statement(&statement, status).await?;
            }
        }
        Ok(status)
    }

    async fn statement(&mut self, statement: &Statement, status: i32) -> Step {
        let words: Vec<String> =
            statement.words.iter().filter_map(|word| self.expand(word, status)).collect();
        let assigned = words.iter().take_while(|word| assignment(word).is_some()).count();
        let (assignments, argv) = words.split_at(assigned);
        let descriptors = match self.redirect(&statement.redirections, status) {
            Ok(descriptors) => descriptors,
            Err(problem) => return Ok(self.complain(1, &problem)),
        };
        let Some(program) = argv.first() else {
            assignments
                .iter()
                .filter_map(|word| assignment(word))
                .for_each(|(name, value)| self.set(name, value));
            return Ok(0);
        };
        match program.as_str() {
            ":" => Ok(0),
            "cd" => Ok(self.change_directory(argv.get(1).map(String::as_str))),
            "exit" => Err(Termination::Exited {
                code: argv.get(1).and_then(|code| code.parse().ok()).unwrap_or(status) & 0xff,
            }),
            "export" => {
                for word in &argv[1..] {
                    let (name, value) = assignment(word).map_or_else(
                        || (word.as_str(), self.variables.get(word).cloned()),
                        |(n, v)| (n, Some(v.to_owned())),
                    );
                    self.env.insert(name.to_owned(), value.unwrap_or_default());
                }
                Ok(0)
            }
            "kill" => self.kill(&argv[1..]),
            _ => {
                let mut env = self.env.clone();
                env.extend(
                    assignments
                        .iter()
                        .filter_map(|word| assignment(word))
                        .map(|(name, value)| (name.into(), value.into())),
                );
                self.call(argv, &descriptors, env).await
            }
        }
    }

    async fn call(
        &mut self,
        argv: &[String],
        descriptors: &Descriptors,
        env: BTreeMap<String, String>,
    ) -> Step {
        let Some(program) = self.programs.get(&argv[0]).cloned() else {
            let refused = self.check(&Command::Argv(argv.to_vec()));
            let code = if refused.as_ref().is_err_and(|e| e.code == ErrorCode::CommandNotExecutable) {
                126
            } else {
                127
            };
            return Ok(self.complain(code, &format!("fake shell: {}: not found or not executable", argv[0])));
        };
        let (ending, stdout, stderr) = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let mut call = Call {
                argv,
                env: &env,
                cwd: &self.cwd,
                stdin: &descriptors.stdin,
                stdout: Vec::new(),
                stderr: Vec::new(),
                files: &mut files,
            };
            let ending = program(&mut call);
            (ending, call.stdout, call.stderr)
        };
        self.send(&descriptors.sinks[0], stdout);
        self.send(&descriptors.sinks[1], stderr);
        match ending {
            Ending::Exit(code) => Ok(code),
            Ending::Signal(signal) => Err(Termination::Signaled { signal }),
            Ending::OutOfMemory => Err(Termination::OutOfMemory),
            Ending::After(span, code) => {
                tokio::time::sleep(span).await;
                Ok(code)
            }
            Ending::Never => std::future::pending().await,
        }
    }

    fn complain(&mut self, status: i32, problem: &str) -> i32 {
        self.stderr.extend_from_slice(format!("{problem}\n").as_bytes());
        status
    }

    fn send(&mut self, sink: &Sink, bytes: Vec<u8>) {
        match sink {
            Sink::Stdout => self.stdout.extend(bytes),
            Sink::Stderr => self.stderr.extend(bytes),
            Sink::Nowhere => {}
            Sink::File(path) => {
                let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                let mut content = files.read(path).map(<[u8]>::to_vec).unwrap_or_default();
                content.extend(bytes);
                // It was opened before the command ran; if it was removed since, what is written goes nowhere.
                let _ = files.write(path, content);
            }
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        let exported = self.env.contains_key(name);
        let variables = if exported { &mut self.env } else { &mut self.variables };
        variables.insert(name.to_owned(), value.to_owned());
    }

    /// The word with its variables replaced; nothing if it is empty and was not quoted.
    fn expand(&self, word: &Word, status: i32) -> Option<String> {
        let text: String = word
            .parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.clone(),
                Part::Variable(name) if name == "?" => status.to_string(),
                Part::Variable(name) if name == "$" => OWN_PID.to_owned(),
                Part::Variable(name) => {
                    self.variables.get(name).or_else(|| self.env.get(name)).cloned().unwrap_or_default()
                }
            })
            .collect();
        (word.quoted || !text.is_empty()).then_some(text)
    }

    /// Opens what a command's redirections name, in their order.
    fn redirect(
        &self,
        redirections: &[Redirection],
        status: i32,
    ) -> std::result::Result<Descriptors, String> {
        let mut descriptors = Descriptors { stdin: Vec::new(), sinks: [Sink::Stdout, Sink::Stderr] };
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for Redirection { descriptor, target } in redirections {
            let path =
                |word: &Word| Tree::absolute(&self.cwd, &self.expand(word, status).unwrap_or_default());
            let sink = match target {
                Target::Read(word) => {
                    descriptors.stdin = match path(word).as_str() {
                        "/dev/null" => Vec::new(),
                        path => files.read(path).map_err(|error| error.to_string())?.to_vec(),
                    };
                    continue;
                }
                Target::SameAs(other) => descriptors.sinks[usize::from(*other) - 1].clone(),
                Target::Truncate(word) | Target::Append(word) => match path(word) {
                    path if path == "/dev/null" => Sink::Nowhere,
                    path => {
                        let keep = matches!(target, Target::Append(_)) && files.is_file(&path);
                        if !keep {
                            files.write(&path, Vec::new()).map_err(|error| error.to_string())?;
                        }
                        Sink::File(path)
                    }
                },
            };
            descriptors.sinks[usize::from(*descriptor) - 1] = sink;
        }
        Ok(descriptors)
    }

    fn change_directory(&mut self, to: Option<&str>) -> i32 {
        let path = Tree::absolute(&self.cwd, to.unwrap_or(Tree::HOME));
        if !self.files.lock().unwrap_or_else(PoisonError::into_inner).is_directory(&path) {
            return self.complain(1, &format!("cd: there is no directory `{path}`"));
        }
        self.cwd = path;
        0
    }

    /// The model has one process, so that is the only one to kill.
    fn kill(&mut self, arguments: &[String]) -> Step {
        let (signal, pid) = match arguments {
            [pid] => (Some(15), pid),
            [signal, pid] => (signal.strip_prefix('-').and_then(|number| number.parse().ok()), pid),
            _ => return Ok(self.complain(2, "kill: give a signal and `$$`")),
        };
        match signal {
            Some(signal) if pid == OWN_PID => Err(Termination::Signaled { signal }),
            _ => Ok(self.complain(1, "kill: the model knows signal numbers and `$$` only")),
        }
    }
}

fn assignment(word: &str) -> Option<(&str, &str)> {
    word.split_once('=').filter(|(name, _)| shell::is_name(name))
}
