//! One command, as its monitor knows it.

use belljar_core::wire::{Exit, KillReason};
use belljar_core::{Command, Ending, ExecId, ExecInfo, Position, Purpose, Stream, Termination, UserName};

use super::input::Input;
use crate::spool::Spool;

/// Bytes of a command that are told to others, at most.
pub(super) const COMMAND: usize = 4096;

/// Where output goes.
#[derive(Debug)]
pub(super) enum Sink {
    /// To disk; clients follow.
    Spool(Spool),
    /// To this client, at its pace.
    Client(u64),
    /// Nowhere: the disk refused the spool. What was dropped is counted.
    Dropped(Position),
}

/// One command, from its request to the end of its last process.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) id: ExecId,
    pub(super) command: Command,
    pub(super) user: UserName,
    pub(super) key: Option<String>,
    pub(super) purpose: Purpose,
    pub(super) sink: Sink,
    /// Output that went straight to a client.
    pub(super) passed: Position,
    pub(super) input: Input,
    pub(super) start_us: Option<u64>,
    pub(super) outcome: Option<Ending>,
    /// Kills for want of memory in this sandbox before it began.
    pub(super) oom_baseline: Option<u64>,
    /// Whether the sandbox's memory peak was set back when it began.
    pub(super) peak_is_ours: bool,
    /// Whether the guest has said which packets are its.
    pub(super) is_marked: bool,
}

impl Execution {
    /// What others are told of it, in about so many bytes.
    pub(super) fn info(&self, room: usize) -> ExecInfo {
        ExecInfo {
            exec: self.id,
            command: shortened(&self.command, room),
            user: self.user,
            termination: self.outcome.map(|outcome| outcome.termination),
            key: self.key.clone(),
            purpose: self.purpose.clone(),
            said: self.end(),
        }
    }

    /// How much there has been of its output, if nobody can read it any more.
    pub(super) fn unkept(&self) -> Option<Position> {
        (!matches!(self.sink, Sink::Spool(_))).then(|| self.end())
    }

    /// How much there has been of its output.
    pub(super) fn end(&self) -> Position {
        match &self.sink {
            Sink::Spool(spool) => spool.end(),
            Sink::Client(_) => self.passed,
            Sink::Dropped(dropped) => *dropped,
        }
    }

    /// Output that no client takes directly: to disk, or counted.
    pub(super) fn keep(&mut self, stream: Stream, bytes: &[u8]) {
        match &mut self.sink {
            Sink::Spool(spool) => spool.append(stream, bytes),
            Sink::Client(_) => {}
            Sink::Dropped(dropped) => *dropped.of(stream) += bytes.len() as u64,
        }
    }
}

/// A command as it is told to others, who need to recognise it and not to run it.
fn shortened(command: &Command, most: usize) -> Command {
    let cut = |word: &str, room: usize| {
        let end = (0..=room.min(word.len())).rev().find(|end| word.is_char_boundary(*end)).unwrap_or(0);
        if end < word.len() { format!("{}…", &word[..end]) } else { word.to_owned() }
    };
    match command {
        Command::Shell(line) => Command::Shell(cut(line, most)),
        Command::Argv(words) => {
            let mut room = most;
            let short = words.iter().take(64).map_while(|word| {
                let short = (room > 0).then(|| cut(word, room))?;
                room = room.saturating_sub(short.len());
                Some(short)
            });
            Command::Argv(short.collect())
        }
    }
}

/// What the kernel's word about the first process means, given how many kills for want of memory there were.
pub(super) fn termination(exit: &Exit, oom_kills: Option<u64>) -> Termination {
    const SIGKILL: i32 = 9;
    match (exit.killed, exit.signal, exit.code) {
        (Some(KillReason::TimedOut), ..) => Termination::TimedOut,
        (Some(KillReason::Asked), ..) => Termination::Killed,
        (Some(KillReason::TooManyLocks), ..) => Termination::TooManyLocks,
        (None, Some(SIGKILL), _) if oom_kills.is_some_and(|count| count > 0) => Termination::OutOfMemory,
        (None, Some(signal), _) => Termination::Signaled { signal },
        (None, None, Some(code)) => Termination::Exited { code },
        (None, None, None) => Termination::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: Option<i32>, signal: Option<i32>, killed: Option<KillReason>) -> Exit {
        Exit {
            code,
            signal,
            killed,
            duration_us: 0,
            cpu_us: None,
            processes: None,
            read_bytes: None,
            write_bytes: None,
        }
    }

    #[test]
    fn long_commands_are_told_shortly() {
        let words = vec!["run".to_owned(), "é".repeat(100_000), "more".to_owned()];
        let Command::Argv(short) = shortened(&Command::Argv(words), COMMAND) else { panic!("still a list") };
        assert_eq!(short[0], "run");
        assert!(short[1].ends_with('…') && short.iter().map(String::len).sum::<usize>() < 5000);
        let plain = Command::Argv(vec!["a".into(), "b".into()]);
        assert_eq!(shortened(&plain, COMMAND), plain);
    }

    #[test]
    fn every_ending_has_its_own_name() {
        let cases = [
            (exit(Some(0), None, None), None, Termination::Exited { code: 0 }),
            (exit(Some(137), None, None), Some(1), Termination::Exited { code: 137 }),
            (exit(None, Some(9), None), Some(0), Termination::Signaled { signal: 9 }),
            (exit(None, Some(9), None), None, Termination::Signaled { signal: 9 }),
            (exit(None, Some(9), None), Some(1), Termination::OutOfMemory),
            (exit(None, Some(11), None), Some(1), Termination::Signaled { signal: 11 }),
            (exit(None, Some(9), Some(KillReason::TimedOut)), Some(1), Termination::TimedOut),
            (exit(None, Some(9), Some(KillReason::Asked)), Some(0), Termination::Killed),
            (exit(None, Some(9), Some(KillReason::TooManyLocks)), Some(0), Termination::TooManyLocks),
            (exit(None, None, None), Some(0), Termination::Lost),
        ];
        for (exit, oom, expected) in cases {
            assert_eq!(termination(&exit, oom), expected, "{exit:?}");
        }
    }
}
