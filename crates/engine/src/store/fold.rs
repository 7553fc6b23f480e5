//! What an entry of the log means for the tables: pure, and the same for every database.

use super::{ExecState, Execution, Result, StoreError};
use crate::event::Happening;
use crate::session::{Input, Session, transition};

/// What an entry changes besides the session itself.
#[derive(Debug)]
pub(super) enum Effect<'a> {
    /// Nothing.
    None,
    /// An execution appears.
    NewExecution(Box<Execution>),
    /// An execution changes; it must be there, and not over.
    Execution(u64, &'a Happening),
    /// A transfer begins.
    OpenTransfer(u64),
    /// A transfer is over.
    CloseTransfer(u64),
    /// The session's use counts for its tenant.
    Bill,
}

/// Brings the session up to date and says what else is to be done.
pub(super) fn apply<'a>(session: &mut Session, what: &'a Happening, now_ms: u64) -> Result<Effect<'a>> {
    if let Some(input) = input(what) {
        session.state = transition(session.state, input)?;
    } else if session.state.is_ended() {
        return Err(StoreError::Inconsistent(format!(
            "session {} has ended, and `{}` cannot happen in it",
            session.id,
            what.name()
        )));
    }
    Ok(match what {
        Happening::ExecAccepted { exec, request } => Effect::NewExecution(Box::new(Execution {
            exec: *exec,
            state: ExecState::Accepted,
            request: (**request).clone(),
            inside: None,
            termination: None,
            duration_us: None,
            meter: None,
            error: None,
        })),
        Happening::ExecStarted { exec, .. }
        | Happening::ExecFinished { exec, .. }
        | Happening::ExecRefused { exec, .. }
        | Happening::ExecInterrupted { exec } => Effect::Execution(*exec, what),
        Happening::Transfer { transfer, .. } => Effect::OpenTransfer(*transfer),
        Happening::Transferred { transfer, .. } | Happening::TransferInterrupted { transfer } => {
            Effect::CloseTransfer(*transfer)
        }
        Happening::Ending { error, .. } => {
            session.error = session.error.take().or_else(|| error.clone());
            Effect::None
        }
        Happening::Ended { meter, .. } => {
            (session.ended_ms, session.meter) = (Some(now_ms), Some(*meter));
            Effect::Bill
        }
        _ => Effect::None,
    })
}

fn input(what: &Happening) -> Option<Input> {
    match what {
        Happening::Admitted => Some(Input::Admitted),
        Happening::Created => Some(Input::Created),
        Happening::Paused => Some(Input::Paused),
        Happening::Resumed => Some(Input::Resumed),
        Happening::Ending { reason, .. } => Some(Input::End(*reason)),
        Happening::Ended { reason, .. } => Some(Input::Removed(*reason)),
        _ => None,
    }
}

/// Brings an execution up to date. What is over stays as it is: an execution has one result.
pub(super) fn advance(execution: &mut Execution, what: &Happening) -> Result<()> {
    if execution.state.is_over() {
        return Err(StoreError::Inconsistent(format!(
            "execution {} is over, and `{}` cannot happen to it",
            execution.exec,
            what.name()
        )));
    }
    match what {
        Happening::ExecStarted { inside, .. } => {
            (execution.state, execution.inside) = (ExecState::Running, Some(*inside));
        }
        Happening::ExecFinished { termination, duration_us, meter, .. } => {
            execution.state = ExecState::Finished;
            execution.termination = Some(*termination);
            execution.duration_us = *duration_us;
            execution.meter = Some(*meter);
        }
        Happening::ExecRefused { error, .. } => {
            (execution.state, execution.error) = (ExecState::Refused, Some(error.clone()));
        }
        Happening::ExecInterrupted { .. } => execution.state = ExecState::Interrupted,
        _ => {}
    }
    Ok(())
}
