//! The life and the resources of a sandbox, seen from outside.

use std::time::Duration;

use super::need::{CONTROL, REAL, STREAM};
use super::trial::{Outcome, Trial, ended, put, refused, shell};
use crate::{Capability, ErrorCode, ExecRequest, SandboxSpec, SandboxState, Termination};

cases! { "control":
    info_tells_what_it_is [CONTROL],
    stats_tell_something [CONTROL],
    stats_count_executions [CONTROL, STREAM, REAL],
    life_can_be_extended [CONTROL],
    kill_ends_it [CONTROL],
    kill_ends_what_runs [CONTROL, STREAM, REAL],
}

async fn info_tells_what_it_is(trial: &Trial<'_>) -> Outcome {
    let mut spec = SandboxSpec::default();
    spec.labels.insert("colour".into(), "blue".into());
    let sandbox = trial.sandbox_from(spec.clone()).await?;
    let info = sandbox.control()?.info().await?;
    ensure!(info.id == *sandbox.id(), "is named {}", info.id);
    ensure!(info.provider == trial.provider.name(), "stands on {}", info.provider);
    ensure!(info.state == SandboxState::Running, "is {}", info.state);
    ensure!(info.spec == spec, "was made from {:?}", info.spec);
    ensure!(info.created_ms > 1_600_000_000_000, "was made at {}", info.created_ms);
    let remaining = info.remaining.unwrap_or_default();
    ensure!(remaining > Duration::ZERO && remaining <= spec.ttl, "{remaining:?} of {:?} is left", spec.ttl);
    Ok(())
}

async fn stats_tell_something(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    shell(&*sandbox, "echo work").await?;
    let stats = sandbox.control()?.stats().await?;
    let figures = [stats.cpu_ms, stats.memory_bytes, stats.peak_memory_bytes, stats.processes];
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
