//! The life of a session, as one function.
//!
//! A session is a sandbox together with what is remembered about it. Everything that happens to it is an [`Input`];
//! [`transition`] alone decides what state follows, so that no caller, crash or race can bring a session to a place
//! that is not drawn here:
//!
//! ```text
//!  queued ──▶ creating ──▶ running ◀──▶ paused
//!    │           │           │            │
//!    └───────────┴─────┬─────┴────────────┘
//!                      ▼
//!                   ending ──▶ ended
//! ```

use std::fmt;
use std::time::Duration;

pub use belljar_core::Tenant;
use belljar_core::{Error, ErrorCode, ProviderName, Result, SandboxId, SandboxSpec, SandboxState};
use serde::{Deserialize, Serialize};

use crate::meter::Meter;

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum SessionState {
    /// Accepted, and waits for room.
    Queued,
    /// Its sandbox is being made.
    Creating,
    /// It executes.
    Running,
    /// Its processes stand still.
    Paused,
    /// Its sandbox is being removed.
    Ending {
        /// Why.
        reason: EndReason,
    },
    /// Nothing of it is left but the record.
    Ended {
        /// Why.
        reason: EndReason,
    },
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Someone asked for it.
    Killed,
    /// Its time was over.
    Expired,
    /// Nothing happened in it for as long as it was allowed to idle.
    Idle,
    /// It waited for room longer than its caller wanted.
    QueueTimeout,
    /// Its sandbox could not be made.
    Failed,
    /// The engine was killed while it was being made; no caller was told that it runs.
    Interrupted,
    /// Its sandbox ended without anyone asking.
    Lost,
}

impl EndReason {
    /// The word in records and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Expired => "expired",
            Self::Idle => "idle",
            Self::QueueTimeout => "queue_timeout",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl From<SandboxState> for EndReason {
    /// What a sandbox that is no longer there says about its session.
    fn from(state: SandboxState) -> Self {
        match state {
            SandboxState::Expired => Self::Expired,
            SandboxState::Killed => Self::Killed,
            _ => Self::Lost,
        }
    }
}

impl SessionState {
    /// Every word of [`SessionState::as_str`], in the order of a life.
    pub const NAMES: [&str; 6] = ["queued", "creating", "running", "paused", "ending", "ended"];

    /// The word in records and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Ending { .. } => "ending",
            Self::Ended { .. } => "ended",
        }
    }

    /// Why it ends or ended.
    pub fn reason(self) -> Option<EndReason> {
        match self {
            Self::Ending { reason } | Self::Ended { reason } => Some(reason),
            _ => None,
        }
    }

    /// Whether it is over for good.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Ended { .. })
    }

    /// Whether it takes room on the machine.
    pub fn takes_room(self) -> bool {
        !matches!(self, Self::Queued | Self::Ended { .. })
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Something that happens to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// There is room for it.
    Admitted,
    /// Its sandbox executes.
    Created,
    /// Its processes stand still.
    Paused,
    /// Its processes go on.
    Resumed,
    /// It has to end.
    End(EndReason),
    /// Its sandbox is gone, whoever saw to that.
    Removed(EndReason),
}

/// An input that makes no sense in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session that is {state} cannot be {}", .input.done())]
pub struct Impossible {
    /// Where the session was.
    pub state: SessionState,
    /// What was tried.
    pub input: Input,
}

impl Input {
    fn done(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Created => "created",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::End(_) => "ended",
            Self::Removed(_) => "removed",
        }
    }
}

/// What follows. The only place where a session's state is decided.
///
/// Asking for an end, and learning of one, is possible in every state and changes nothing once it is known: destroying
/// is idempotent, and the first reason stays.
pub fn transition(state: SessionState, input: Input) -> Result<SessionState, Impossible> {
    use SessionState::{Creating, Ended, Ending, Paused, Queued, Running};
    Ok(match (state, input) {
        (Queued, Input::Admitted) => Creating,
        (Creating, Input::Created) => Running,
        (Running | Paused, Input::Paused) => Paused,
        (Running | Paused, Input::Resumed) => Running,
        // What waits has nothing that would have to be removed.
        (Queued, Input::End(reason) | Input::Removed(reason)) => Ended { reason },
        (Creating | Running | Paused, Input::End(reason)) => Ending { reason },
        (Creating | Running | Paused, Input::Removed(reason)) => Ended { reason },
        (Ending { reason }, Input::End(_)) => Ending { reason },
        (Ending { reason }, Input::Removed(_)) => Ended { reason },
        (Ended { reason }, Input::End(_) | Input::Removed(_)) => Ended { reason },
        (state, input) => return Err(Impossible { state, input }),
    })
}

/// What happens to a session that nobody used for its idle time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnIdle {
    /// It ends.
    #[default]
    End,
    /// It is paused.
    Pause,
}

/// What a caller asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionRequest {
    /// Whose it is.
    #[serde(default)]
    pub tenant: Tenant,
    /// What its sandbox is made from.
    pub spec: SandboxSpec,
    /// A second request with the same key, of the same tenant, is the same request.
    #[serde(default)]
    pub key: Option<String>,
    /// How long nothing may happen in it.
    #[serde(default)]
    pub idle: Option<Duration>,
    /// What happens then.
    #[serde(default)]
    pub on_idle: OnIdle,
    /// Whether it ends with the connection of its caller.
    #[serde(default)]
    pub held: bool,
    /// How long it may wait for room.
    #[serde(default)]
    pub patience: Option<Duration>,
}

impl SessionRequest {
    /// The most bytes of a key.
    pub const MAX_KEY: usize = 255;

    /// Refuses what cannot be honoured.
    pub fn check(&self) -> Result<()> {
        self.spec.check()?;
        self.tenant.check()?;
        if self.spec.owner.is_some() {
            return Err(Error::new(ErrorCode::InvalidArgument, "a caller cannot say whose a sandbox is")
                .hint("leave `owner` out; it is made from the session and its tenant"));
        }
        if self.idle.is_some_and(|idle| idle.is_zero()) {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "an idle time of nothing ends what has not begun",
            )
            .hint("give a time, or leave it out"));
        }
        self.key.as_deref().map_or(Ok(()), Self::check_key)
    }

    /// Refuses a key that is empty or too long.
    pub fn check_key(key: &str) -> Result<()> {
        let problem = match key.len() {
            0 => "the key is empty".to_owned(),
            1..=Self::MAX_KEY => return Ok(()),
            bytes => format!("a key of {bytes} bytes is too long"),
        };
        Err(Error::new(ErrorCode::InvalidArgument, problem)
            .hint(format!("a key has 1 to {} bytes", Self::MAX_KEY)))
    }
}

/// What is remembered of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its name, which is also its sandbox's.
    pub id: SandboxId,
    /// Which rung its sandbox stands on.
    pub provider: ProviderName,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: SessionState,
    /// What was asked for.
    pub request: SessionRequest,
    /// When it was accepted, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// What went wrong, if something did.
    pub error: Option<belljar_core::Error>,
    /// What it used, all in all, once it is over.
    pub meter: Option<Meter>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REASONS: [EndReason; 7] = [
        EndReason::Killed,
        EndReason::Expired,
        EndReason::Idle,
        EndReason::QueueTimeout,
        EndReason::Failed,
        EndReason::Interrupted,
        EndReason::Lost,
    ];

    fn input() -> impl Strategy<Value = Input> {
        let reason = prop::sample::select(REASONS.to_vec());
        prop_oneof![
            Just(Input::Admitted),
            Just(Input::Created),
            Just(Input::Paused),
            Just(Input::Resumed),
            reason.clone().prop_map(Input::End),
            reason.prop_map(Input::Removed),
        ]
    }

    /// How far along a life a state is; no input leads back.
    fn stage(state: SessionState) -> u8 {
        match state {
            SessionState::Queued => 0,
            SessionState::Creating => 1,
            SessionState::Running | SessionState::Paused => 2,
            SessionState::Ending { .. } => 3,
            SessionState::Ended { .. } => 4,
        }
    }

    proptest! {
        /// Whatever happens, in whatever order: a life goes forward only, its end has one reason, an end is always
        /// possible, and what has ended stays as it is.
        #[test]
        fn a_life_goes_forward(inputs in prop::collection::vec(input(), 0..40)) {
            let mut state = SessionState::Queued;
            for input in inputs {
                let Ok(next) = transition(state, input) else {
                    prop_assert!(!matches!(input, Input::End(_) | Input::Removed(_)), "{state} refused {input:?}");
                    continue;
                };
                prop_assert!(stage(next) >= stage(state));
                prop_assert!(stage(next) <= stage(state) + 1 || matches!(input, Input::End(_) | Input::Removed(_)));
                if let Some(reason) = state.reason() {
                    prop_assert_eq!(next.reason(), Some(reason), "the first reason stays");
                }
                if state.is_ended() {
                    prop_assert_eq!(next, state);
                }
                // The same news twice is no news.
                if transition(next, input).is_ok() {
                    prop_assert_eq!(transition(next, input).unwrap().reason(), next.reason());
                }
                state = next;
            }
        }

        /// Only what was admitted and created ever executes.
        #[test]
        fn nothing_runs_that_was_not_made(inputs in prop::collection::vec(input(), 0..40)) {
            let (mut state, mut admitted, mut created) = (SessionState::Queued, false, false);
            for input in inputs {
                if let Ok(next) = transition(state, input) {
                    admitted |= input == Input::Admitted;
                    created |= input == Input::Created;
                    state = next;
                    prop_assert!(!matches!(state, SessionState::Running | SessionState::Paused) || admitted && created);
                }
            }
        }
    }

    #[test]
    fn keys_and_idle_times_are_bounded() {
        let check = |key: Option<usize>, idle: Option<u64>| {
            let (key, idle) = (key.map(|length| "k".repeat(length)), idle.map(Duration::from_millis));
            SessionRequest { key, idle, ..SessionRequest::default() }.check()
        };
        for (key, idle) in [(None, None), (Some(1), Some(1)), (Some(255), None)] {
            check(key, idle).unwrap();
        }
        for (key, idle) in [(Some(0), None), (Some(256), None), (None, Some(0))] {
            let error = check(key, idle).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidArgument, "{error}");
        }
        let mut request = SessionRequest::default();
        request.spec.labels.insert(String::new(), String::new());
        assert!(request.check().is_err(), "what its sandbox is made from counts too");
        for tenant in ["", "a b", "../up", &"t".repeat(65)] {
            let request = SessionRequest { tenant: Tenant(tenant.to_owned()), ..SessionRequest::default() };
            assert_eq!(request.check().unwrap_err().code, ErrorCode::InvalidArgument, "{tenant}");
        }
        let mut request = SessionRequest::default();
        let (tenant, session) = (Tenant::default(), SandboxId::from_random([7; 16]));
        request.spec.owner = Some(belljar_core::Owner { tenant, session });
        assert!(request.check().is_err(), "whose it is follows from the session");
    }

    #[test]
    fn states_are_spelled_the_same_everywhere() {
        let reason = EndReason::Lost;
        let all = [
            SessionState::Queued,
            SessionState::Creating,
            SessionState::Running,
            SessionState::Paused,
            SessionState::Ending { reason },
            SessionState::Ended { reason },
        ];
        assert_eq!(all.map(SessionState::as_str), SessionState::NAMES);
        for state in all {
            let json = serde_json::to_value(state).unwrap();
            assert_eq!(json["state"], state.as_str());
            assert_eq!(serde_json::from_value::<SessionState>(json).unwrap(), state);
        }
        for reason in REASONS {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
