//! Input and terminals.

use bytes::Bytes;
use futures_util::future::join;

use super::execs::{finish, started, until};
use super::need::{PTY, REAL, SIGNAL, STDIN, STREAM};
use super::trial::{Outcome, Trial, ended, noise, same, same_bytes, stdout, succeed};
use crate::{ExecRequest, OutputMode, Position, PtySize, Stdin, Termination};

cases! { "input":
    conversation_goes_both_ways [STREAM, STDIN, REAL],
    bytes_pass_through_unchanged [STREAM, STDIN, REAL],
    waiting_output_does_not_stop_input [STREAM, STDIN, REAL],
    end_of_file_is_told [STREAM, STDIN, REAL],
    attached_handle_can_write [STREAM, STDIN, REAL],
    terminal_has_its_size [PTY, REAL],
    terminal_can_be_resized [STREAM, STDIN, PTY, REAL],
    control_c_interrupts [STREAM, STDIN, PTY, SIGNAL, REAL],
}

fn piped(mut request: ExecRequest) -> ExecRequest {
    request.stdin = Stdin::Piped;
    request
}

fn with_terminal(mut request: ExecRequest, rows: u16, cols: u16) -> ExecRequest {
    request.pty = Some(PtySize { rows, cols });
    request
}

async fn conversation_goes_both_ways(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let echo = ExecRequest::shell("while read line; do echo \"got $line\"; done; exit 8");
    let handle = sandbox.execs()?.start(piped(echo)).await?;
    for word in ["one", "two", "three"] {
        handle.write(format!("{word}\n").into()).await?;
        until(&*handle, &format!("got {word}\n")).await?;
    }
    handle.write(Bytes::new()).await?;
    ended(&finish(&*handle).await?, Termination::Exited { code: 8 })
}

async fn bytes_pass_through_unchanged(trial: &Trial<'_>) -> Outcome {
    pass_through(trial, OutputMode::Spool, 256 << 10).await
}

/// More than every pipe and window on the way holds together, so that only a caller who does both gets through.
async fn waiting_output_does_not_stop_input(trial: &Trial<'_>) -> Outcome {
    pass_through(trial, OutputMode::Flow, 4 << 20).await
}

async fn pass_through(trial: &Trial<'_>, output: OutputMode, size: usize) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let content = noise(size);
    let mut request = piped(ExecRequest::argv(["cat"]));
    request.output = output;
    let handle = sandbox.execs()?.start(request).await?;
    let send = async {
        for piece in content.chunks(10_000) {
            handle.write(Bytes::copy_from_slice(piece)).await?;
        }
        handle.write(Bytes::new()).await
    };
    let (result, sent) = join(finish(&*handle), send).await;
    sent?;
    let result = result?;
    ended(&result, Termination::Exited { code: 0 })?;
    same_bytes(&result.stdout.to_bytes(), &content)
}

async fn end_of_file_is_told(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(piped(ExecRequest::shell("cat; echo over"))).await?;
    handle.write(Bytes::new()).await?;
    let result = finish(&*handle).await?;
    ended(&result, Termination::Exited { code: 0 })?;
    same(&stdout(&result), "over\n")
}

async fn attached_handle_can_write(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let handle = sandbox.execs()?.start(piped(ExecRequest::argv(["cat"]))).await?;
    let exec = started(&*handle).await?;
    drop(handle);
    let other = sandbox.execs()?.attach(exec, Position::START).await?;
    other.write("from the other\n".into()).await?;
    until(&*other, "from the other\n").await?;
    other.write(Bytes::new()).await?;
    ended(&finish(&*other).await?, Termination::Exited { code: 0 })
}

async fn terminal_has_its_size(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let request = ExecRequest::shell("test -t 0 && test -t 1 && test -t 2 && stty size");
    let found = succeed(&*sandbox, with_terminal(request, 33, 111)).await?;
    ensure!(found.contains("33 111"), "stty says {found:?}");
    Ok(())
}

async fn terminal_can_be_resized(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let request = ExecRequest::shell("echo ready; read line; stty size");
    let handle = sandbox.execs()?.start(piped(with_terminal(request, 24, 80))).await?;
    let exec = started(&*handle).await?;
    until(&*handle, "ready").await?;
    sandbox.execs()?.resize(exec, PtySize { rows: 44, cols: 122 }).await?;
    handle.write("\n".into()).await?;
    let result = finish(&*handle).await?;
    ended(&result, Termination::Exited { code: 0 })?;
    ensure!(stdout(&result).contains("44 122"), "stty says {:?}", stdout(&result));
    Ok(())
}

async fn control_c_interrupts(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let request =
        ExecRequest::shell("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done");
    let handle = sandbox.execs()?.start(piped(with_terminal(request, 24, 80))).await?;
    until(&*handle, "ready").await?;
    handle.write("\x03".into()).await?;
    until(&*handle, "caught").await?;
    ended(&finish(&*handle).await?, Termination::Exited { code: 7 })
}
