//! After a crash: what the log says is compared with what is there, and each session goes on, or ends, accordingly.

use std::sync::Arc;

use belljar_core::{
    ErrorCode, ExecInfo, Result, Sandbox, SandboxId, SandboxInfo, SandboxState, SandboxStats,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::engine::Shared;
use crate::event::Happening;
use crate::live::{Live, finished, key_of, lost, number_of};
use crate::session::{EndReason, Session, SessionRequest, SessionState};
use crate::store::{Accepted, ExecState, Execution, StoreError, accepted};

/// How many sessions are looked at side by side.
const AT_ONCE: usize = 16;

impl Shared {
    /// Takes over every session that has not ended, and every sandbox that no session knows.
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<()> {
        let sessions = self.store.alive().await?;
        stream::iter(sessions)
            .map(|session| async move { self.take_over_or_leave(session).await })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        self.notice_all(&self.provider.list().await?).await
    }

    /// Takes a session over. One with which something is wrong is left for later: the others need not wait for it.
    async fn take_over_or_leave(self: &Arc<Self>, session: Session) -> Result<()> {
        let id = session.id.clone();
        match self.take_over(session).await {
            Err(error) if error.code != ErrorCode::Fenced => {
                tracing::warn!(session = %id, %error, "cannot take over a session yet");
                self.left().insert(id);
                Ok(())
            }
            done => {
                self.left().remove(&id);
                done
            }
        }
    }

    /// Tries again what was left for later.
    pub(crate) async fn take_over_the_rest(self: &Arc<Self>) -> Result<()> {
        let left: Vec<SandboxId> = self.left().iter().cloned().collect();
        for id in left {
            match self.store.session(&id).await?.filter(|session| !session.state.is_ended()) {
                Some(session) => self.take_over_or_leave(session).await?,
                None => drop(self.left().remove(&id)),
            }
        }
        Ok(())
    }

    /// Takes over those of these sandboxes that were made without us.
    pub(crate) async fn notice_all(self: &Arc<Self>, all: &[SandboxInfo]) -> Result<()> {
        for info in all {
            match self.notice_one(info).await {
                Err(error) if error.code == ErrorCode::Fenced => return Err(error),
                Err(error) => {
                    tracing::warn!(sandbox = %info.id, %error, "cannot take over a sandbox yet");
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Takes over a sandbox that was made without us while we were starting.
    pub(crate) async fn notice(self: &Arc<Self>, sandbox: &dyn Sandbox) -> Result<()> {
        match look_at(sandbox).await? {
            Some(info) => self.notice_one(&info).await,
            None => Ok(()),
        }
    }

    /// The same for one that is described.
    async fn notice_one(self: &Arc<Self>, info: &SandboxInfo) -> Result<()> {
        let ours = || self.live().contains_key(&info.id);
        if !info.state.is_alive() || info.spec.tied_to_creator || ours() {
            return Ok(());
        }
        self.found(info.clone()).await
    }

    async fn take_over(self: &Arc<Self>, session: Session) -> Result<()> {
        let id = &session.id;
        let sandbox = match self.provider.open(id).await {
            Ok(sandbox) => Some(sandbox),
            Err(error) if error.code == ErrorCode::NotFound => None,
            Err(error) => return Err(error),
        };
        let info = match &sandbox {
            Some(sandbox) => look_at(&**sandbox).await?,
            None => None,
        };
        let alive = info.as_ref().is_some_and(|info| info.state.is_alive());
        match (session.state, sandbox) {
            // Nobody was told that it runs, and perhaps it was never made.
            (SessionState::Queued, _) | (SessionState::Creating, None) => {
                self.close(id, EndReason::Interrupted, None).await?
            }
            // Its caller was connected to the engine before us.
            (_, Some(sandbox)) if session.request.held => {
                sandbox.control()?.kill().await?;
                self.settle(&session, &*sandbox).await;
                self.close(id, EndReason::Interrupted, final_stats(&*sandbox).await).await?;
                sandbox.cleanup().await?;
            }
            (SessionState::Creating, Some(sandbox)) if !alive => {
                sandbox.cleanup().await?;
                self.close(id, EndReason::Interrupted, None).await?;
            }
            (SessionState::Creating, Some(sandbox)) => {
                self.record(id, &[Happening::Created]).await?;
                self.adopt(&session, sandbox, info).await?;
            }
            (SessionState::Running | SessionState::Paused, Some(sandbox)) if alive => {
                self.adopt(&session, sandbox, info).await?;
            }
            (SessionState::Ending { reason }, Some(sandbox)) => {
                sandbox.control()?.kill().await?;
                self.settle(&session, &*sandbox).await;
                self.close(id, reason, final_stats(&*sandbox).await).await?;
            }
            (_, Some(sandbox)) => {
                self.settle(&session, &*sandbox).await;
                let state = info.map_or(SandboxState::Lost, |info| info.state);
                self.close(id, EndReason::from(state), final_stats(&*sandbox).await).await?;
            }
            (_, None) => self.close(id, EndReason::Lost, None).await?,
        }
        Ok(())
    }

    /// Goes on with a session whose sandbox lives.
    async fn adopt(
        self: &Arc<Self>,
        session: &Session,
        sandbox: Arc<dyn Sandbox>,
        info: Option<SandboxInfo>,
    ) -> Result<()> {
        let (control, execs) = (sandbox.control()?, sandbox.execs()?);
        // After the first nothing that the engine before us has sent can begin.
        let fenced = async {
            control.fence().await?;
            execs.list().await
        };
        let inside = match fenced.await {
            Ok(inside) => inside,
            Err(error) => return self.gone_meanwhile(session, &*sandbox, error).await,
        };
        let mut news = vec![Happening::Adopted { epoch: self.epoch }];
        // The log lags behind by what was done just before the end.
        let state = info.map(|info| info.state);
        match (session.state, state) {
            (SessionState::Running, Some(SandboxState::Paused)) => news.push(Happening::Paused),
            (SessionState::Paused, Some(SandboxState::Running)) => news.push(Happening::Resumed),
            _ => {}
        }
        for transfer in self.store.open_transfers(&session.id).await? {
            news.push(Happening::TransferInterrupted { transfer });
        }
        let known = self.store.executions(&session.id).await?;
        let mut watched = Vec::new();
        for execution in known.iter().filter(|execution| !execution.state.is_over()) {
            match find(execution, &known, &inside) {
                Found::Inside(info) => {
                    if execution.state == ExecState::Accepted {
                        news.push(Happening::ExecStarted { exec: execution.exec, inside: info.exec });
                    }
                    watched.push((execution.exec, info.exec));
                }
                Found::NeverStarted => news.push(Happening::ExecInterrupted { exec: execution.exec }),
                Found::Forgotten => news.push(lost(execution.exec)),
            }
        }
        self.record(&session.id, &news).await?;
        // A log that was put back from a copy may know less than the sandbox, which runs nothing under a key again.
        let counted = inside.iter().filter_map(number_of).max();
        let last = known.last().map(|execution| execution.exec).max(counted).unwrap_or(0);
        let live = self.keep(session, sandbox, self.room(), last, self.last_transfer(session).await?);
        *live.paused.lock().await = state == Some(SandboxState::Paused);
        for (exec, inside) in watched {
            let (_, nothing) = tokio::sync::watch::channel(None);
            self.watch(&live, exec, inside, Live::busy(&live), nothing);
        }
        Ok(())
    }

    /// The number after which transfers are counted on: those that are over are not kept, but the log's length is larger.
    async fn last_transfer(&self, session: &Session) -> Result<u64> {
        Ok(self.store.last_event(&session.id).await?.unwrap_or(0))
    }

    async fn gone_meanwhile(
        &self,
        session: &Session,
        sandbox: &dyn Sandbox,
        error: belljar_core::Error,
    ) -> Result<()> {
        match look_at(sandbox).await? {
            Some(info) if info.state.is_alive() => Err(error),
            Some(info) => {
                self.settle(session, sandbox).await;
                Ok(self.close(&session.id, EndReason::from(info.state), info.stats).await?)
            }
            None => Ok(self.close(&session.id, EndReason::Lost, None).await?),
        }
    }

    /// Writes down what is known of the executions of a sandbox that has ended.
    async fn settle(&self, session: &Session, sandbox: &dyn Sandbox) {
        let Ok(known) = self.store.executions(&session.id).await else { return };
        let Ok(execs) = sandbox.execs() else { return };
        let inside = execs.list().await.unwrap_or_default();
        for execution in known.iter().filter(|execution| !execution.state.is_over()) {
            let Found::Inside(info) = find(execution, &known, &inside) else { continue };
            let mut news = Vec::new();
            if execution.state == ExecState::Accepted {
                news.push(Happening::ExecStarted { exec: execution.exec, inside: info.exec });
            }
            if let Ok(ending) = execs.wait(info.exec).await {
                news.push(finished(execution.exec, &ending));
            }
            let _ = self.record(&session.id, &news).await;
        }
    }

    /// A sandbox that was made without an engine becomes a session.
    async fn found(self: &Arc<Self>, info: SandboxInfo) -> Result<()> {
        let sandbox = self.provider.open(&info.id).await?;
        let mut spec = info.spec.clone();
        // It may be an engine's whose log is lost; then whose it was is known.
        let tenant = spec.owner.take().map(|owner| owner.tenant).unwrap_or_default();
        let request = SessionRequest { spec, tenant, ..SessionRequest::default() };
        let session = accepted(info.id.clone(), info.provider, request, info.created_ms);
        let mut session = match self.store.accept(self.epoch, &session).await {
            Ok(Accepted::New(session)) => session,
            // It is being made, or ended, or somebody else saw it first.
            Ok(Accepted::Known(_)) | Err(StoreError::Taken(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.record(&session.id, &[Happening::Admitted, Happening::Created]).await?;
        session.state = SessionState::Running;
        self.adopt(&session, sandbox, Some(info)).await
    }
}

/// What a sandbox that has ended had used.
pub(crate) async fn final_stats(sandbox: &dyn Sandbox) -> Option<SandboxStats> {
    look_at(sandbox).await.ok()??.stats
}

/// What a sandbox says of itself; nothing if it cannot. One that belongs to a newer engine is not ours to judge.
async fn look_at(sandbox: &dyn Sandbox) -> Result<Option<SandboxInfo>> {
    match sandbox.control()?.info().await {
        Err(error) if error.code == ErrorCode::Fenced => Err(error),
        looked => Ok(looked.ok()),
    }
}

/// Where an execution of the log is.
enum Found<'a> {
    Inside(&'a ExecInfo),
    /// The sandbox knows all that ever ran in it, and this did not.
    NeverStarted,
    /// The sandbox has forgotten some of what ran in it, perhaps this.
    Forgotten,
}

fn find<'a>(execution: &Execution, known: &[Execution], inside: &'a [ExecInfo]) -> Found<'a> {
    let key = key_of(execution.exec, &execution.request);
    // Where a key was used again, what runs is the first one's; the others would have been refused.
    let came_first = |other: &Execution| {
        other.exec < execution.exec
            && !matches!(other.state, ExecState::Refused | ExecState::Interrupted)
            && key_of(other.exec, &other.request) == key
    };
    if execution.state == ExecState::Accepted && known.iter().any(came_first) {
        return Found::NeverStarted;
    }
    if let Some(info) = inside.iter().find(|info| info.key.as_deref() == Some(&key)) {
        return Found::Inside(info);
    }
    let forgets = inside.first().is_some_and(|first| first.exec.0 > 1);
    if forgets || execution.state == ExecState::Running { Found::Forgotten } else { Found::NeverStarted }
}

#[cfg(test)]
mod tests {
    use belljar_core::{Command, ExecId, ExecRequest, Position, Purpose, UserName};

    use super::*;

    fn execution(exec: u64, state: ExecState, key: Option<&str>) -> Execution {
        let request = ExecRequest { key: key.map(str::to_owned), ..ExecRequest::argv(["true"]) };
        let (inside, termination, duration_us, meter, error) = (None, None, None, None, None);
        Execution { exec, state, request, inside, termination, duration_us, meter, error }
    }

    #[test]
    fn what_runs_under_a_key_is_the_first_that_had_it() {
        use ExecState::{Accepted, Interrupted, Refused, Running};
        let inside = [ExecInfo {
            exec: ExecId(1),
            key: Some("k".into()),
            purpose: Purpose::default(),
            command: Command::Argv(vec!["true".into()]),
            user: UserName::User,
            termination: None,
            said: Position::START,
        }];
        let found = |before: ExecState, key: Option<&str>| {
            let known = [execution(1, before, Some("k")), execution(2, Accepted, key)];
            match find(&known[1], &known, &inside) {
                Found::Inside(info) => Some(info.exec.0),
                Found::NeverStarted => None,
                Found::Forgotten => panic!("nothing was forgotten"),
            }
        };
        assert_eq!(found(Running, Some("k")), None, "it would have been refused");
        assert_eq!(found(Accepted, Some("k")), None);
        assert_eq!(found(Refused, Some("k")), Some(1), "the first never started");
        assert_eq!(found(Interrupted, Some("k")), Some(1));
        assert_eq!(found(Running, None), None, "it has a key of its own");
    }
}
