//! What happened, in order. The log of a session is the one source for its logs, trace, cost and replay.

use belljar_core::{
    Error, ExecId, ExecRequest, NetworkPolicy, OperationName, SandboxId, Termination, TokenRecord,
};
use serde::{Deserialize, Serialize};

use crate::meter::Meter;
use crate::session::{EndReason, SessionRequest};

/// The version of [`Happening`]'s JSON. Readers meet older ones in old logs, and must know what they mean.
pub const SCHEMA: u32 = 1;

/// One entry of a session's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Whose log.
    pub session: SandboxId,
    /// Counts from 1, without gaps.
    pub seq: u64,
    /// When, in milliseconds since 1970. The clock may jump; the order of `seq` is what counts.
    pub time_ms: u64,
    /// The version of what follows.
    pub schema: u32,
    /// What.
    #[serde(flatten)]
    pub what: Happening,
}

/// What can happen in a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Happening {
    /// It was accepted; from here on it is remembered.
    Accepted {
        /// What was asked for.
        request: Box<SessionRequest>,
    },
    /// There was room, and its sandbox is being made.
    Admitted,
    /// Its sandbox executes.
    Created,
    /// A new engine found it running and took it over.
    Adopted {
        /// The engine's number.
        epoch: u64,
    },
    /// It was paused.
    Paused,
    /// It goes on.
    Resumed,
    /// It may live on for longer.
    Extended {
        /// This long from now, in milliseconds.
        ttl_ms: u64,
    },
    /// What it may reach is about to change.
    NetworkSet {
        /// To this, as it was asked for.
        policy: Box<NetworkPolicy>,
    },
    /// It could not be changed, and is as it was before.
    NetworkKept {
        /// Why.
        error: Error,
    },
    /// It was given a token for operations of the gateway.
    TokenIssued {
        /// The token's id; the token itself is nowhere.
        token: String,
        /// What it is good for.
        operations: Vec<OperationName>,
        /// In whose hands it is meant to be.
        agent: Option<String>,
    },
    /// A token lives for longer, or shorter.
    TokenExtended {
        /// The token's id.
        token: String,
        /// This long from now, in milliseconds.
        life_ms: u64,
    },
    /// A token was taken back.
    TokenRevoked {
        /// The token's id.
        token: String,
    },
    /// An execution was accepted; nothing has been started yet.
    ExecAccepted {
        /// Its number in the session.
        exec: u64,
        /// What was asked for.
        request: Box<ExecRequest>,
    },
    /// It runs.
    ExecStarted {
        /// Its number in the session.
        exec: u64,
        /// Its number in the sandbox.
        inside: ExecId,
    },
    /// It ended, and this is known of it.
    ExecFinished {
        /// Its number in the session.
        exec: u64,
        /// How.
        #[serde(flatten)]
        termination: Termination,
        /// From its first instruction to its end, in microseconds.
        duration_us: Option<u64>,
        /// What it used.
        meter: Meter,
    },
    /// It was never started, and never will be.
    ExecRefused {
        /// Its number in the session.
        exec: u64,
        /// Why.
        error: Error,
    },
    /// The engine was killed before it could start it; it did not run.
    ExecInterrupted {
        /// Its number in the session.
        exec: u64,
    },
    /// A transfer of files began.
    Transfer {
        /// Its number in the session.
        transfer: u64,
        /// `upload`, `download`, `pack` or `unpack`.
        kind: TransferKind,
        /// Where inside.
        path: String,
    },
    /// It is over.
    Transferred {
        /// Its number in the session.
        transfer: u64,
        /// How many bytes, if it went well.
        bytes: Option<u64>,
        /// What went wrong, if something did.
        error: Option<Error>,
    },
    /// The engine was killed while it went on: the file may be partly written.
    TransferInterrupted {
        /// Its number in the session.
        transfer: u64,
    },
    /// It has to end.
    Ending {
        /// Why.
        reason: EndReason,
        /// What went wrong, if something did.
        error: Option<Error>,
    },
    /// Nothing of it is left but this log.
    Ended {
        /// Why.
        reason: EndReason,
        /// What it used, all in all.
        meter: Meter,
    },
}

/// Of a token that was issued.
pub(crate) fn token_issued(record: &TokenRecord) -> Happening {
    Happening::TokenIssued {
        token: record.id.clone(),
        operations: record.grant.operations.clone(),
        agent: record.grant.agent.clone(),
    }
}

/// In which direction files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferKind {
    /// A file into the sandbox.
    Upload,
    /// An archive into the sandbox.
    Unpack,
}

impl Happening {
    /// The word by which it is found.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Admitted => "admitted",
            Self::Created => "created",
            Self::Adopted { .. } => "adopted",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Extended { .. } => "extended",
            Self::NetworkSet { .. } => "network_set",
            Self::NetworkKept { .. } => "network_kept",
            Self::TokenIssued { .. } => "token_issued",
            Self::TokenExtended { .. } => "token_extended",
            Self::TokenRevoked { .. } => "token_revoked",
            Self::ExecAccepted { .. } => "exec_accepted",
            Self::ExecStarted { .. } => "exec_started",
            Self::ExecFinished { .. } => "exec_finished",
            Self::ExecRefused { .. } => "exec_refused",
            Self::ExecInterrupted { .. } => "exec_interrupted",
            Self::Transfer { .. } => "transfer",
            Self::Transferred { .. } => "transferred",
            Self::TransferInterrupted { .. } => "transfer_interrupted",
            Self::Ending { .. } => "ending",
            Self::Ended { .. } => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    /// The names of the variants, from where they are written.
    fn names() -> Vec<String> {
        let source = include_str!("event.rs");
        let body =
            source.split("pub enum Happening {").nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap();
        let words = body
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .map(|line| line.trim_end_matches([' ', '{', ',']));
        let names = words.filter(|word| word.starts_with(char::is_uppercase));
        names
            .map(|name| {
                let lower =
                    |c: char| if c.is_uppercase() { format!("_{}", c.to_lowercase()) } else { c.to_string() };
                name.chars().map(lower).collect::<String>().trim_start_matches('_').to_owned()
            })
            .collect()
    }

    #[test]
    fn the_page_tells_of_all_that_can_happen() {
        let page = include_str!("../../../docs/engine.md");
        let names = names();
        assert!(names.len() >= 19, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "docs/engine.md does not tell of `{name}`");
        }
    }
}
