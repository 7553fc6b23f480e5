//! Commands that are followed and steered while they run.

use futures_util::future::{join_all, poll_immediate};

use super::need::{REAL, SIGNAL, STREAM};
use super::trial::{
    Outcome, Trial, ended, get, noise, processes_named, put, refused, same, same_bytes, stdout,
};
use crate::{
    ErrorCode, ExecEvent, ExecHandle, ExecId, ExecRequest, ExecResult, OutputMode, Position, Stream,
    Termination,
};

cases! { "execs":
    events_come_in_order [STREAM, REAL],
    output_arrives_before_the_end [STREAM, REAL],
    unstartable_command_is_an_error [STREAM, REAL],
    dropped_next_loses_nothing [STREAM, REAL],
    dropped_handle_lets_it_go_on [STREAM, REAL],
    attach_replays_from_the_start [STREAM, REAL],
    attach_follows_what_runs [STREAM, REAL],
    attach_reads_on_from_a_position [STREAM, REAL],
    wait_tells_the_end_alone [STREAM, REAL],
    many_can_wait [STREAM, REAL],
    flow_brings_every_byte [STREAM, REAL],
    list_shows_what_runs [STREAM, REAL],
    kill_ends_the_tree [STREAM, REAL],
    unknown_execution_is_not_found [STREAM],
    cleanup_ends_followed_commands [STREAM, REAL],
    signal_reaches_the_command [STREAM, SIGNAL, REAL],
    deadly_signal_is_told [STREAM, SIGNAL, REAL],
}

/// Follows a command to its end.
pub(super) async fn finish(handle: &dyn ExecHandle) -> Outcome<ExecResult> {
    let mut events = Vec::new();
    while let Some(event) = handle.next().await? {
        events.push(event);
    }
    let last = events.last();
    ensure!(matches!(last, Some(ExecEvent::Finished { .. })), "the last event is {last:?}");
    Ok(ExecResult::collect(events))
}

/// Reads the name that the first event gives.
pub(super) async fn started(handle: &dyn ExecHandle) -> Outcome<ExecId> {
    match handle.next().await? {
        Some(ExecEvent::Started { exec, .. }) => Ok(exec),
        event => Err(format!("the first event is {event:?}").into()),
    }
}

/// Reads standard output until it holds this text.
pub(super) async fn until(handle: &dyn ExecHandle, text: &str) -> Outcome {
    let mut found = Vec::new();
    while !String::from_utf8_lossy(&found).contains(text) {
        match handle.next().await? {
            Some(ExecEvent::Output { stream: Stream::Stdout, bytes }) => found.extend_from_slice(&bytes),
            Some(ExecEvent::Started { .. }) => {}
            event => {
                let found = String::from_utf8_lossy(&found);
                return Err(format!("waiting for {text:?}: {event:?} after {found:?}").into());
            }
        }
    }
    Ok(())
}

/// A line that says it is ready and then waits for the file `go`.
const UNTIL_GO: &str = "echo ready; while [ ! -e go ]; do sleep 0.02; done; ";

async fn events_come_in_order(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell("echo out; echo err >&2; exit 5")).await?;
    started(&*handle).await?;
    let result = finish(&*handle).await?;
    ended(&result, Termination::Exited { code: 5 })?;
    same(&stdout(&result), "out\n")?;
    same_bytes(&result.stderr.to_bytes(), b"err\n")?;
    let after = handle.next().await?;
    ensure!(after.is_none(), "after the end came {after:?}");
    Ok(())
}

async fn output_arrives_before_the_end(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell(format!("{UNTIL_GO} echo gone"))).await?;
    until(&*handle, "ready").await?;
    put(&*sandbox, "go", b"").await?;
    let result = finish(&*handle).await?;
    ended(&result, Termination::Exited { code: 0 })?;
    same(&stdout(&result), "gone\n")
}

async fn unstartable_command_is_an_error(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let start = sandbox.execs()?.start(ExecRequest::argv(["belljar-no-such-command"])).await;
    refused(start, ErrorCode::CommandNotFound)?;
    Ok(())
}

async fn dropped_next_loses_nothing(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let line = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done";
    let handle = sandbox.execs()?.start(ExecRequest::shell(line)).await?;
    let mut events = Vec::new();
    loop {
        match poll_immediate(handle.next()).await {
            Some(event) => match event? {
                Some(event) => events.push(event),
                None => break,
            },
            None => trial.wait(std::time::Duration::from_millis(1)).await,
        }
    }
    let expected: String = (0..200).map(|number| format!("{number}\n")).collect();
    same(&stdout(&ExecResult::collect(events)), &expected)
}

async fn dropped_handle_lets_it_go_on(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let line = format!("{UNTIL_GO} echo finished > proof");
    let handle = sandbox.execs()?.start(ExecRequest::shell(line)).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    drop(handle);
    put(&*sandbox, "go", b"").await?;
    let again = sandbox.execs()?.attach(exec, Position::START).await?;
    ended(&finish(&*again).await?, Termination::Exited { code: 0 })?;
    same_bytes(&get(&*sandbox, "proof").await?, b"finished\n")
}

async fn attach_replays_from_the_start(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell("echo one; echo two >&2; exit 6")).await?;
    let first = finish(&*handle).await?;
    drop(handle);
    for _ in 0..2 {
        let again = sandbox.execs()?.attach(first.exec, Position::START).await?;
        let replay = finish(&*again).await?;
        ended(&replay, Termination::Exited { code: 6 })?;
        ensure!(replay.exec == first.exec, "attached to {}, got {}", first.exec, replay.exec);
        same_bytes(&replay.stdout.to_bytes(), b"one\n")?;
        same_bytes(&replay.stderr.to_bytes(), b"two\n")?;
    }
    Ok(())
}

async fn attach_follows_what_runs(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell(format!("{UNTIL_GO} echo gone"))).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    let other = sandbox.execs()?.attach(exec, Position::START).await?;
    until(&*other, "ready").await?;
    put(&*sandbox, "go", b"").await?;
    for follower in [&handle, &other] {
        same(&stdout(&finish(&**follower).await?), "gone\n")?;
    }
    Ok(())
}

async fn attach_reads_on_from_a_position(trial: &Trial<'_>) -> Outcome {
    let (stdout, stderr) = ("ready\n0123456789\n", "abcdef");
    let sandbox = trial.sandbox().await?;
    let execs = sandbox.execs()?;
    let line = format!("{UNTIL_GO} echo 0123456789; printf abcdef >&2; exit 4");
    let handle = execs.start(ExecRequest::shell(line)).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready\n").await?;
    // A reader that came so far, and one that comes back to where it was.
    let live = execs.attach(exec, Position { stdout: 4, stderr: 0 }).await?;
    put(&*sandbox, "go", b"").await?;
    let mut position = Position { stdout: 6, stderr: 0 };
    while let Some(event) = handle.next().await? {
        position.pass(&event);
    }
    let end = Position { stdout: stdout.len() as u64, stderr: stderr.len() as u64 };
    ensure!(position == end, "came to {position}, expected {end}");
    let live = finish(&*live).await?;
    same_bytes(&live.stdout.to_bytes(), &stdout.as_bytes()[4..])?;
    same_bytes(&live.stderr.to_bytes(), stderr.as_bytes())?;
    for from in [Position::START, Position { stdout: 8, stderr: 1 }, Position { stdout: 0, stderr: 6 }, end] {
        let again = finish(&*execs.attach(exec, from).await?).await?;
        ended(&again, Termination::Exited { code: 4 })?;
        same_bytes(&again.stdout.to_bytes(), &stdout.as_bytes()[from.stdout as usize..])?;
        same_bytes(&again.stderr.to_bytes(), &stderr.as_bytes()[from.stderr as usize..])?;
    }
    for beyond in [Position { stdout: end.stdout + 1, ..end }, Position { stderr: u64::MAX, ..end }] {
        refused(execs.attach(exec, beyond).await, ErrorCode::InvalidArgument)?;
    }
    Ok(())
}

async fn wait_tells_the_end_alone(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let execs = sandbox.execs()?;
    let handle = execs.start(ExecRequest::shell(format!("{UNTIL_GO} exit 5"))).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    let mut waits = std::pin::pin!(execs.wait(exec));
    ensure!(poll_immediate(&mut waits).await.is_none(), "it has not ended");
    put(&*sandbox, "go", b"").await?;
    let (ending, result) = (waits.await?, finish(&*handle).await?);
    ended(&result, Termination::Exited { code: 5 })?;
    for ending in [ending, execs.wait(exec).await?] {
        ensure!(ending.termination == result.termination, "ended as {:?}", ending.termination);
        ensure!(ending.usage == result.usage && ending.duration == result.duration, "{ending:?}, {result:?}");
    }
    refused(execs.wait(ExecId(4_000_000)).await, ErrorCode::NotFound)?;
    Ok(())
}

async fn many_can_wait(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let execs = sandbox.execs()?;
    let handle = execs.start(ExecRequest::shell("echo ready; sleep 600")).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    let mut waits: Vec<_> = (0..100).map(|_| Box::pin(execs.wait(exec))).collect();
    for wait in &mut waits {
        ensure!(poll_immediate(wait).await.is_none(), "it has not ended");
    }
    execs.kill(exec).await?;
    for ending in join_all(waits).await {
        ensure!(ending?.termination == Termination::Killed, "it was killed");
    }
    Ok(())
}

async fn flow_brings_every_byte(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let content = noise(4 << 20);
    put(&*sandbox, "large", &content).await?;
    let mut request = ExecRequest::argv(["cat", "large"]);
    request.output = OutputMode::Flow;
    let handle = sandbox.execs()?.start(request).await?;
    let result = finish(&*handle).await?;
    ended(&result, Termination::Exited { code: 0 })?;
    same_bytes(&result.stdout.to_bytes(), &content)
}

async fn list_shows_what_runs(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let execs = sandbox.execs()?;
    let request = ExecRequest::shell("sleep 600");
    let one = execs.start(request.clone()).await?;
    let two = execs.start(request.clone()).await?;
    let (one, two) = (started(&*one).await?, started(&*two).await?);
    let list = execs.list().await?;
    let running: Vec<_> =
        list.iter().filter(|info| info.termination.is_none()).map(|info| info.exec).collect();
    ensure!(running == [one, two], "running are {running:?}, expected {one} and {two}");
    ensure!(list.iter().all(|info| info.command == request.command), "commands differ: {list:?}");
    Ok(())
}

async fn kill_ends_the_tree(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let word = format!("killed-in-{}", sandbox.id());
    let mut request = ExecRequest::shell("sh -c 'echo ready; sleep 600; :' \"$WORD\"; :");
    request.env.insert("WORD".into(), word.clone());
    let handle = sandbox.execs()?.start(request).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    ensure!(processes_named(&*sandbox, &word).await? > 0, "not seen, so the case proves nothing");
    sandbox.execs()?.kill(exec).await?;
    ended(&finish(&*handle).await?, Termination::Killed)?;
    let left = processes_named(&*sandbox, &word).await?;
    ensure!(left == 0, "{left} processes are left");
    Ok(())
}

async fn unknown_execution_is_not_found(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let execs = sandbox.execs()?;
    refused(execs.attach(ExecId(4_000_000), Position::START).await, ErrorCode::NotFound)?;
    refused(execs.kill(ExecId(4_000_000)).await, ErrorCode::NotFound)?;
    Ok(())
}

async fn cleanup_ends_followed_commands(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell("echo ready; sleep 600")).await?;
    until(&*handle, "ready").await?;
    sandbox.cleanup().await?;
    loop {
        match handle.next().await {
            Ok(Some(ExecEvent::Finished {
                termination: Termination::Killed | Termination::Lost, ..
            })) => {}
            Ok(Some(ExecEvent::Finished { termination, .. })) => {
                return Err(format!("ended as {termination:?}").into());
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(error) if matches!(error.code, ErrorCode::SandboxGone | ErrorCode::Lost) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn signal_reaches_the_command(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let line = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let handle = sandbox.execs()?.start(ExecRequest::shell(line)).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    sandbox.execs()?.signal(exec, 15).await?;
    let result = finish(&*handle).await?;
    ended(&result, Termination::Exited { code: 7 })?;
    ensure!(stdout(&result).contains("caught"), "the trap did not run: {:?}", stdout(&result));
    Ok(())
}

async fn deadly_signal_is_told(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(ExecRequest::shell("echo ready; exec sleep 600")).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    sandbox.execs()?.signal(exec, 9).await?;
    ended(&finish(&*handle).await?, Termination::Signaled { signal: 9 })
}
