//! Bounds that hold, and sandboxes that survive reaching them.

use std::time::Duration;

use super::need::{LIMITS, REAL};
use super::trial::{Outcome, Trial, ended, path, pieces, put, refused, same, shell, stderr, stdout};
use crate::{ByteSize, ErrorCode, ExecRequest, Limits, SandboxSpec, Termination, UserName};

cases! { "limits":
    memory_is_bounded [LIMITS, REAL],
    memory_of_a_child_is_told [LIMITS, REAL],
    processes_are_bounded [LIMITS, REAL],
    disk_is_bounded [LIMITS, REAL],
    upload_beyond_the_disk_is_refused [LIMITS],
    number_of_files_is_bounded [LIMITS, REAL],
    open_files_are_bounded [LIMITS, REAL],
}

fn spec(limits: Limits) -> SandboxSpec {
    SandboxSpec { limits, ..SandboxSpec::default() }
}

/// A process that holds 256 MiB, if it can.
const GREEDY: [&str; 5] = ["dd", "if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"];

fn small_memory() -> SandboxSpec {
    let memory = ByteSize::mib(64);
    spec(Limits { memory, disk: Limits::default_disk(memory), ..Limits::default() })
}

async fn memory_is_bounded(trial: &Trial<'_>) -> Outcome {
    let roomy = trial.sandbox().await?;
    ended(&roomy.execute(ExecRequest::argv(GREEDY)).await?, Termination::Exited { code: 0 })?;

    let sandbox = trial.sandbox_from(small_memory()).await?;
    ended(&sandbox.execute(ExecRequest::argv(GREEDY)).await?, Termination::OutOfMemory)?;
    same(&shell(&*sandbox, "echo alive").await?, "alive\n")
}

async fn memory_of_a_child_is_told(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox_from(small_memory()).await?;
    let line = format!("{} 2>/dev/null; echo \"child: $?\"; exit 0", GREEDY.join(" "));
    let result = sandbox.execute(ExecRequest::shell(line)).await?;
    same(&stdout(&result), "child: 137\n")?;
    ended(&result, Termination::Exited { code: 0 })?;
    ensure!(result.oom_kills.is_none_or(|kills| kills > 0), "no kill was counted");
    Ok(())
}

async fn processes_are_bounded(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox_from(spec(Limits { pids: 32, ..Limits::default() })).await?;
    // The outer shell spins without forking, so that the time-out and not the shell's own retreat ends the sleepers.
    let bomb =
        "sh -c 'i=0; while [ $i -lt 100 ]; do sleep 600 & i=$((i+1)); done; echo all'; while :; do :; done";
    let mut request = ExecRequest::shell(bomb);
    request.timeout = Duration::from_secs(4);
    let result = sandbox.execute(request).await?;
    ended(&result, Termination::TimedOut)?;
    ensure!(!stdout(&result).contains("all"), "a hundred processes were made under a limit of 32");
    ensure!(stderr(&result).contains("fork"), "no fork failed: {:?}", stderr(&result));
    same(&shell(&*sandbox, "echo alive").await?, "alive\n")
}

fn small_disk() -> SandboxSpec {
    spec(Limits { disk: ByteSize::mib(16), ..Limits::default() })
}

async fn disk_is_bounded(trial: &Trial<'_>) -> Outcome {
    for place in ["filler", "/tmp/filler"] {
        let sandbox = trial.sandbox_from(small_disk()).await?;
        let fill = ["dd", "if=/dev/zero", &format!("of={place}"), "bs=1M", "count=64"];
        let result = sandbox.execute(ExecRequest::argv(fill)).await?;
        ensure!(!result.termination.is_success(), "64 MiB fit into 16 MiB at `{place}`");
        ensure!(stderr(&result).contains("No space left"), "{place}: {:?}", stderr(&result));
        same(&shell(&*sandbox, &format!("rm {place}; echo alive > file; cat file")).await?, "alive\n")?;
    }
    Ok(())
}

async fn upload_beyond_the_disk_is_refused(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox_from(small_disk()).await?;
    let upload = sandbox.upload(&path("filler"), UserName::User, pieces(&vec![0; 32 << 20])).await;
    refused(upload, ErrorCode::ResourceExhausted)?;
    put(&*sandbox, "filler", b"small").await
}

async fn number_of_files_is_bounded(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox_from(spec(Limits { inodes: 256, ..Limits::default() })).await?;
    let fill = "mkdir many; i=0; while [ $i -lt 1000 ]; do echo > many/$i || exit 9; i=$((i+1)); done";
    let result = sandbox.execute(ExecRequest::shell(fill)).await?;
    ensure!(!result.termination.is_success(), "a thousand files were made under a limit of 256");
    ensure!(stderr(&result).contains("No space left"), "{:?}", stderr(&result));
    same(&shell(&*sandbox, "rm -r many; echo alive > file; cat file").await?, "alive\n")
}

async fn open_files_are_bounded(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox_from(spec(Limits { open_files: 128, ..Limits::default() })).await?;
    same(&shell(&*sandbox, "ulimit -n").await?, "128\n")
}
