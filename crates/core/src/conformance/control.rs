//! The life and the resources of a sandbox, seen from outside.

use std::time::Duration;

use futures_util::future::poll_immediate;

use super::need::{CONTROL, PAUSE, REAL, STREAM};
use super::trial::{Outcome, Trial, ended, exists, get, put, refused, same, same_bytes, shell};
use crate::{Capability, ErrorCode, ExecEvent, ExecRequest, SandboxSpec, SandboxState, Termination};

cases! { "control":
    info_tells_what_it_is [CONTROL],
    stats_tell_something [CONTROL],
    stats_count_executions [CONTROL, STREAM, REAL],
    life_can_be_extended [CONTROL],
    kill_ends_it [CONTROL],
    kill_ends_what_runs [CONTROL, STREAM, REAL],
    pause_lets_files_be_had_and_nothing_start [CONTROL, PAUSE],
    pause_stops_the_clock_of_its_life [CONTROL, PAUSE],
    pause_stops_what_runs [CONTROL, PAUSE, STREAM, REAL],
    pause_stops_time_outs [CONTROL, PAUSE, STREAM, REAL],
    kill_ends_it_while_paused [CONTROL, PAUSE],
    kill_ends_what_stands_still [CONTROL, PAUSE, STREAM, REAL],
}

async fn info_tells_what_it_is(trial: &Trial<'_>) -> Outcome {
    let mut spec = SandboxSpec::default();
    spec.labels.insert("colour".into(), "blue".into());
    let sandbox = trial.sandbox_from(spec.clone()).await?;
    let info = sandbox.control()?.info().await?;
    ensure!(info.id == *sandbox.id(), "is named {}", info.id);
    ensure!(info.provider == trial.provider.name(), "stands on {}", info.provider);
    ensure!(info.state == SandboxState::Running, "is {}", info.state);
    // An engine adds whose it is.
    let told = SandboxSpec { owner: None, ..info.spec };
    ensure!(told == spec, "was made from {told:?}");
    ensure!(info.created_ms > 1_600_000_000_000, "was made at {}", info.created_ms);
    let remaining = info.remaining.unwrap_or_default();
    ensure!(remaining > Duration::ZERO && remaining <= spec.ttl, "{remaining:?} of {:?} is left", spec.ttl);
    Ok(())
}

async fn stats_tell_something(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    shell(&*sandbox, "echo work").await?;
    let stats = sandbox.control()?.stats().await?;
    let figures = [stats.cpu_us, stats.memory_bytes, stats.peak_memory_bytes, stats.processes];
    // Walls without limits, as without root: the kernel has no group there in which it could count.
    let capabilities = trial.provider.capabilities();
    let counted = capabilities.has(Capability::Limits) || !capabilities.has(Capability::Isolation);
    ensure!(!counted || figures.iter().any(Option::is_some), "nothing is known: {stats:?}");
    ensure!(stats.executions == 0, "{} executions run although none does", stats.executions);
    Ok(())
}

async fn stats_count_executions(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell("echo ready; sleep 600")).await?;
    super::execs::until(&*handle, "ready").await?;
    let stats = sandbox.control()?.stats().await?;
    ensure!(stats.executions == 1, "{} executions run, expected 1", stats.executions);
    Ok(())
}

async fn life_can_be_extended(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let control = sandbox.control()?;
    control.extend(Duration::from_secs(3000)).await?;
    let remaining = control.info().await?.remaining.unwrap_or_default();
    ensure!(remaining > Duration::from_secs(2900), "{remaining:?} is left after extending to 3000 s");

    let brief =
        trial.sandbox_from(SandboxSpec { ttl: Duration::from_secs(3), ..SandboxSpec::default() }).await?;
    brief.control()?.extend(Duration::from_secs(60)).await?;
    trial.wait(Duration::from_secs(4)).await;
    shell(&*brief, "echo alive").await.map_err(|failure| format!("after its first end: {failure}"))?;
    Ok(())
}

async fn kill_ends_it(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "file", b"x").await?;
    let control = sandbox.control()?;
    control.kill().await?;
    refused(sandbox.execute(ExecRequest::argv(["true"])).await, ErrorCode::SandboxGone)?;
    let info = control.info().await?;
    ensure!(info.state == SandboxState::Killed, "is {}", info.state);
    ensure!(info.remaining.is_none(), "{:?} of its life is left", info.remaining);
    Ok(())
}

async fn kill_ends_what_runs(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell("echo ready; sleep 600")).await?;
    super::execs::until(&*handle, "ready").await?;
    sandbox.control()?.kill().await?;
    ended(&super::execs::finish(&*handle).await?, Termination::Killed)
}

async fn pause_lets_files_be_had_and_nothing_start(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let control = sandbox.control()?;
    control.resume().await?;
    for _ in 0..2 {
        control.pause().await?;
        let state = control.info().await?.state;
        ensure!(state == SandboxState::Paused, "is {state}");
    }
    let error = refused(sandbox.execute(ExecRequest::shell("echo ran > proof")).await, ErrorCode::Paused)?;
    ensure!(error.hint.is_some(), "no word about what to do: {error}");
    put(&*sandbox, "file", b"meanwhile").await?;
    same_bytes(&get(&*sandbox, "file").await?, b"meanwhile")?;
    for _ in 0..2 {
        control.resume().await?;
        let state = control.info().await?.state;
        ensure!(state == SandboxState::Running, "is {state}");
    }
    ensure!(!exists(&*sandbox, "proof").await?, "what was refused ran all the same");
    same(&shell(&*sandbox, "cat file").await?, "meanwhile")
}

async fn pause_stops_the_clock_of_its_life(trial: &Trial<'_>) -> Outcome {
    let spec = SandboxSpec { ttl: Duration::from_secs(2), ..SandboxSpec::default() };
    let sandbox = trial.sandbox_from(spec).await?;
    let control = sandbox.control()?;
    control.pause().await?;
    let before = control.info().await?.remaining;
    trial.wait(Duration::from_secs(3)).await;
    let info = control.info().await?;
    ensure!(info.state == SandboxState::Paused, "is {} although its clock stands", info.state);
    ensure!(info.remaining == before, "{before:?} was left, and now {:?}", info.remaining);
    control.extend(Duration::from_secs(600)).await?;
    let remaining = control.info().await?.remaining;
    ensure!(remaining == Some(Duration::from_secs(600)), "{remaining:?} is left after extending to 600 s");
    control.resume().await?;
    same(&shell(&*sandbox, "echo alive").await?, "alive\n")
}

/// A line that counts in the file `count`, which always holds a whole number.
const COUNTING: &str = "i=0; while :; do i=$((i+1)); echo $i > next; mv next count; done";

/// Reads the count, once there is one.
async fn count(trial: &Trial<'_>, sandbox: &dyn crate::Sandbox) -> Outcome<Vec<u8>> {
    while !exists(sandbox, "count").await? {
        trial.moment().await;
    }
    get(sandbox, "count").await
}

async fn pause_stops_what_runs(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let control = sandbox.control()?;
    let handle = sandbox.execs()?.start(ExecRequest::shell(COUNTING)).await?;
    super::execs::started(&*handle).await?;
    count(trial, &*sandbox).await?;
    for _ in 0..3 {
        control.pause().await?;
        let before = count(trial, &*sandbox).await?;
        trial.wait(Duration::from_millis(300)).await;
        same_bytes(&count(trial, &*sandbox).await?, &before)?;
        control.resume().await?;
        while count(trial, &*sandbox).await? == before {
            trial.moment().await;
        }
    }
    Ok(())
}

async fn pause_stops_time_outs(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let mut request = ExecRequest::shell("echo ready; sleep 600");
    request.timeout = Duration::from_secs(2);
    let handle = sandbox.execs()?.start(request).await?;
    super::execs::until(&*handle, "ready").await?;
    sandbox.control()?.pause().await?;
    let mut next = std::pin::pin!(handle.next());
    ensure!(poll_immediate(&mut next).await.is_none(), "it ended before its time");
    trial.wait(Duration::from_secs(3)).await;
    ensure!(poll_immediate(&mut next).await.is_none(), "it timed out while paused");
    let listed = sandbox.execs()?.list().await?;
    ensure!(listed.iter().all(|info| info.termination.is_none()), "it timed out while paused: {listed:?}");
    sandbox.control()?.resume().await?;
    match next.await? {
        Some(ExecEvent::Finished { termination: Termination::TimedOut, .. }) => Ok(()),
        other => Err(format!("after being resumed: {other:?}").into()),
    }
}

async fn kill_ends_it_while_paused(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let control = sandbox.control()?;
    control.pause().await?;
    control.kill().await?;
    let state = control.info().await?.state;
    ensure!(state == SandboxState::Killed, "is {state}");
    refused(sandbox.execute(ExecRequest::argv(["true"])).await, ErrorCode::SandboxGone)?;
    refused(control.resume().await, ErrorCode::SandboxGone)?;
    Ok(())
}

async fn kill_ends_what_stands_still(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let (execs, control) = (sandbox.execs()?, sandbox.control()?);
    let one = execs.start(ExecRequest::shell("echo ready; sleep 600")).await?;
    let other = execs.start(ExecRequest::shell("echo ready; sleep 600")).await?;
    let exec = super::execs::started(&*one).await?;
    super::execs::until(&*one, "ready").await?;
    super::execs::until(&*other, "ready").await?;
    control.pause().await?;
    execs.kill(exec).await?;
    ended(&super::execs::finish(&*one).await?, Termination::Killed)?;
    let state = control.info().await?.state;
    ensure!(state == SandboxState::Paused, "is {state}");
    sandbox.cleanup().await?;
    ended(&super::execs::finish(&*other).await?, Termination::Killed)
}
