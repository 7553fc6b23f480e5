//! Commands that do not end by themselves, and what is left of them.

use std::time::Duration;

use futures_util::future::{Either, select};

use super::need::{ISOLATION, REAL};
use super::trial::{Outcome, Trial, ended, exists, processes_named, same, shell, stdout};
use crate::{ExecRequest, Sandbox, Termination};

cases! { "endings":
    time_out_is_told [],
    time_out_keeps_output [],
    time_out_spares_the_sandbox [],
    time_out_ends_the_whole_tree [REAL],
    time_out_ends_deaf_processes [REAL],
    time_out_ends_daemons [REAL, ISOLATION],
    dropped_execution_is_killed [REAL],
}

/// Beyond the limit of a case: whoever waits for it fails.
const FOREVER: &str = "sleep 600";

fn short(line: &str) -> ExecRequest {
    let mut request = ExecRequest::shell(line);
    request.timeout = Duration::from_millis(700);
    request
}

async fn time_out_is_told(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    ended(&sandbox.execute(short(FOREVER)).await?, Termination::TimedOut)
}

async fn time_out_keeps_output(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let result = sandbox.execute(short("echo before; sleep 600; echo after")).await?;
    ended(&result, Termination::TimedOut)?;
    same(&stdout(&result), "before\n")
}

async fn time_out_spares_the_sandbox(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    ended(&sandbox.execute(short("echo kept > file; sleep 600")).await?, Termination::TimedOut)?;
    same(&shell(&*sandbox, "cat file").await?, "kept\n")
}

async fn time_out_ends_the_whole_tree(trial: &Trial<'_>) -> Outcome {
    nothing_is_left(trial, r#"sh -c 'sh -c "sleep 600; :" "$0" & sleep 600; :' "$WORD" & wait"#).await
}

async fn time_out_ends_deaf_processes(trial: &Trial<'_>) -> Outcome {
    let deaf = r#"sh -c 'trap "" TERM INT HUP QUIT; while :; do sleep 600; done' "$WORD" & wait"#;
    nothing_is_left(trial, deaf).await
}

async fn time_out_ends_daemons(trial: &Trial<'_>) -> Outcome {
    let daemon =
        r#"(setsid sh -c 'exec env -i sh -c "sleep 600; :" "$0"' "$WORD" >/dev/null 2>&1 &); sleep 600"#;
    nothing_is_left(trial, daemon).await
}

/// Runs a line that starts processes named `$WORD` until its time is over, sees that they ran, and that none is left.
async fn nothing_is_left(trial: &Trial<'_>, line: &str) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let word = format!("left-of-{}", sandbox.id());
    let mut request = short(line);
    request.timeout = Duration::from_secs(5);
    request.env.insert("WORD".into(), word.clone());
    let execution = sandbox.execute(request);
    let (result, ran) = match select(execution, Box::pin(seen(trial, &*sandbox, &word))).await {
        Either::Left((result, _)) => (result?, false),
        Either::Right((outcome, execution)) => {
            outcome?;
            (execution.await?, true)
        }
    };
    ensure!(ran, "the processes were never seen, so the case proves nothing");
    ended(&result, Termination::TimedOut)?;
    let left = processes_named(&*sandbox, &word).await?;
    ensure!(left == 0, "{left} processes are left");
    Ok(())
}

/// Waits until a process of this name is seen.
async fn seen(trial: &Trial<'_>, sandbox: &dyn Sandbox, word: &str) -> Outcome {
    while processes_named(sandbox, word).await? == 0 {
        trial.moment().await;
    }
    Ok(())
}

async fn dropped_execution_is_killed(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let word = format!("dropped-by-{}", sandbox.id());
    let mut request = ExecRequest::shell("sh -c 'echo > running; sleep 600; :' \"$WORD\"; :");
    request.timeout = Duration::from_secs(900);
    request.env.insert("WORD".into(), word.clone());
    let running = async {
        while !exists(&*sandbox, "running").await? {
            trial.moment().await;
        }
        Outcome::Ok(())
    };
    match select(sandbox.execute(request), Box::pin(running)).await {
        Either::Left((result, _)) => return Err(format!("ended by itself: {:?}", result?.termination).into()),
        Either::Right((outcome, execution)) => {
            outcome?;
            drop(execution);
        }
    }
    // Dropping cannot wait, so the killing may take a moment; the limit of the case bounds it.
    while processes_named(&*sandbox, &word).await? > 0 {
        trial.moment().await;
    }
    Ok(())
}
