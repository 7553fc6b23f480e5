//! Running a command to its end.

use std::sync::Arc;

use futures_util::future::join_all;

use super::need::{REAL, STREAM};
use super::trial::{
    Outcome, Trial, ended, exists, noise, path, put, refused, same, same_bytes, shell, stderr, stdout,
    succeed,
};
use crate::{Capability, ErrorCode, ExecRequest, PtySize, Termination, UserName};

cases! { "execute":
    output_streams_are_apart [],
    exit_status_is_told [],
    signal_is_told [],
    argv_is_not_a_shell [],
    shell_line_is_a_shell [],
    unknown_command_is_an_error [],
    file_without_permission_is_an_error [],
    empty_command_is_refused [],
    nul_byte_is_refused [],
    stdin_is_empty [],
    home_is_where_it_starts [],
    cwd_is_obeyed [],
    missing_cwd_is_an_error [],
    variables_do_not_outlive_it [],
    files_outlive_it [],
    large_output_is_whole [],
    output_that_is_not_text_is_kept [],
    parallel_executions_keep_apart [],
    executions_are_numbered [],
    a_key_runs_once [],
    a_key_that_is_none_is_refused [],
    keys_are_listed [STREAM],
    leftover_process_does_not_hold_it_up [REAL],
    undeclared_abilities_are_refused [],
    list_holds_executed_commands [STREAM],
}

async fn output_streams_are_apart(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let result = sandbox.execute(ExecRequest::shell("echo out; echo err >&2")).await?;
    ended(&result, Termination::Exited { code: 0 })?;
    same(&stdout(&result), "out\n")?;
    same(&stderr(&result), "err\n")
}

async fn exit_status_is_told(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for code in [3, 255] {
        let result = sandbox.execute(ExecRequest::shell(format!("exit {code}"))).await?;
        ended(&result, Termination::Exited { code })?;
    }
    Ok(())
}

async fn signal_is_told(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for signal in [9, 15] {
        let result = sandbox.execute(ExecRequest::shell(format!("kill -{signal} $$"))).await?;
        ended(&result, Termination::Signaled { signal })?;
    }
    Ok(())
}

async fn argv_is_not_a_shell(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let words = ["printf", "%s|%s|%s", "$HOME", "two  words", "; exit 9"];
    same(&succeed(&*sandbox, ExecRequest::argv(words)).await?, "$HOME|two  words|; exit 9")
}

async fn shell_line_is_a_shell(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    same(&shell(&*sandbox, "A=one; false || printf '%s-%s' \"$A\" two && echo").await?, "one-two\n")
}

async fn unknown_command_is_an_error(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for program in ["belljar-no-such-command", "./belljar-no-such-command"] {
        let error = refused(sandbox.execute(ExecRequest::argv([program])).await, ErrorCode::CommandNotFound)?;
        ensure!(error.message.contains(program), "the error does not name the command: {error}");
    }
    // Inside a shell line it is the shell that looks, and its status that is told.
    let result = sandbox.execute(ExecRequest::shell("belljar-no-such-command")).await?;
    ended(&result, Termination::Exited { code: 127 })
}

async fn file_without_permission_is_an_error(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "notes.txt", b"not a program\n").await?;
    refused(sandbox.execute(ExecRequest::argv(["./notes.txt"])).await, ErrorCode::CommandNotExecutable)?;
    Ok(())
}

async fn empty_command_is_refused(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for argv in [Vec::new(), vec![""]] {
        refused(sandbox.execute(ExecRequest::argv(argv)).await, ErrorCode::InvalidArgument)?;
    }
    Ok(())
}

async fn nul_byte_is_refused(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let mut variable = ExecRequest::argv(["true"]);
    variable.env.insert("NAME".into(), "a\0b".into());
    for request in [ExecRequest::argv(["echo", "a\0b"]), ExecRequest::shell("echo a\0b"), variable] {
        refused(sandbox.execute(request).await, ErrorCode::InvalidArgument)?;
    }
    Ok(())
}

async fn stdin_is_empty(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    same(&succeed(&*sandbox, ExecRequest::argv(["cat"])).await?, "")
}

async fn home_is_where_it_starts(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let home = shell(&*sandbox, "printf '%s\\n' \"$HOME\"").await?;
    same(&shell(&*sandbox, "pwd").await?, &home)?;
    same(&shell(&*sandbox, "echo here > made; cat made").await?, "here\n")
}

async fn cwd_is_obeyed(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let mut absolute = ExecRequest::argv(["pwd"]);
    absolute.cwd = Some(path("/tmp"));
    let found = succeed(&*sandbox, absolute).await?;
    ensure!(found.ends_with("/tmp\n"), "asked for /tmp, found {found:?}");

    put(&*sandbox, "work/notes.txt", b"in work").await?;
    let mut relative = ExecRequest::argv(["cat", "notes.txt"]);
    relative.cwd = Some(path("work"));
    same(&succeed(&*sandbox, relative).await?, "in work")
}

async fn missing_cwd_is_an_error(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let mut request = ExecRequest::argv(["true"]);
    request.cwd = Some(path("no/such/directory"));
    refused(sandbox.execute(request).await, ErrorCode::NotFound)?;
    Ok(())
}

async fn variables_do_not_outlive_it(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    same(&shell(&*sandbox, "export LEFT=behind; cd /tmp; printf %s \"$LEFT\"").await?, "behind")?;
    same(&shell(&*sandbox, "printf '[%s]' \"$LEFT\"").await?, "[]")?;
    let home = shell(&*sandbox, "printf '%s\\n' \"$HOME\"").await?;
    same(&shell(&*sandbox, "pwd").await?, &home)
}

async fn files_outlive_it(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    shell(&*sandbox, "echo one > kept; echo two >> kept").await?;
    same(&shell(&*sandbox, "cat kept").await?, "one\ntwo\n")
}

async fn large_output_is_whole(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let content = noise(8 << 20);
    put(&*sandbox, "large", &content).await?;
    let result = sandbox.execute(ExecRequest::argv(["cat", "large"])).await?;
    ended(&result, Termination::Exited { code: 0 })?;
    ensure!(result.stdout.gap == 0, "{} bytes are missing", result.stdout.gap);
    same_bytes(&result.stdout.to_bytes(), &content)
}

async fn output_that_is_not_text_is_kept(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let result = sandbox.execute(ExecRequest::argv(["printf", "\\377\\376\\000\\200z"])).await?;
    same_bytes(&result.stdout.to_bytes(), b"\xff\xfe\x00\x80z")
}

async fn parallel_executions_keep_apart(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let runs = (0..8).map(|number| {
        let sandbox = Arc::clone(&sandbox);
        async move {
            let line = format!("N={number}; sleep 0.1; echo out $N; echo err $N >&2; exit $N");
            (number, sandbox.execute(ExecRequest::shell(line)).await)
        }
    });
    for (number, result) in join_all(runs).await {
        let result = result?;
        ended(&result, Termination::Exited { code: number })?;
        same(&stdout(&result), &format!("out {number}\n"))?;
        same(&stderr(&result), &format!("err {number}\n"))?;
    }
    Ok(())
}

async fn executions_are_numbered(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let first = sandbox.execute(ExecRequest::argv(["true"])).await?.exec;
    let second = sandbox.execute(ExecRequest::argv(["true"])).await?.exec;
    ensure!(first.0 >= 1 && second > first, "numbers {first} and {second} do not count up from 1");
    Ok(())
}

async fn a_key_runs_once(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let keyed = |line: &str, key: &str| ExecRequest { key: Some(key.into()), ..ExecRequest::shell(line) };
    let first = sandbox.execute(keyed("echo ran >> proof", "first.of-all_1")).await?;
    ended(&first, Termination::Exited { code: 0 })?;
    let again = sandbox.execute(keyed("echo ran >> proof", "first.of-all_1")).await;
    let error = refused(again, ErrorCode::AlreadyExists)?;
    let named = format!("execution {} ", first.exec);
    ensure!(error.message.contains(&named), "the error does not name execution {}: {error}", first.exec);
    same(&succeed(&*sandbox, keyed("cat proof", "second")).await?, "ran\n")?;
    // What never started has not used its key.
    let mut missing = ExecRequest::argv(["belljar-no-such-command"]);
    missing.key = Some("third".into());
    refused(sandbox.execute(missing).await, ErrorCode::CommandNotFound)?;
    same(&succeed(&*sandbox, keyed("echo runs", "third")).await?, "runs\n")
}

async fn a_key_that_is_none_is_refused(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for key in ["", "two words", "a/b", &"k".repeat(65)] {
        let request = ExecRequest { key: Some(key.into()), ..ExecRequest::shell("echo ran > proof") };
        refused(sandbox.execute(request).await, ErrorCode::InvalidArgument)?;
    }
    ensure!(!exists(&*sandbox, "proof").await?, "it ran all the same");
    Ok(())
}

async fn keys_are_listed(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for key in [None, Some("mine".to_owned())] {
        succeed(&*sandbox, ExecRequest { key, ..ExecRequest::argv(["true"]) }).await?;
    }
    let keys: Vec<_> = sandbox.execs()?.list().await?.into_iter().map(|info| info.key).collect();
    ensure!(keys == [None, Some("mine".to_owned())], "the keys are {keys:?}");
    Ok(())
}

async fn leftover_process_does_not_hold_it_up(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let mut request = ExecRequest::shell("sleep 600 & echo done");
    // Far beyond the limit of the case, so that waiting for the sleeper cannot end as a time-out.
    request.timeout = std::time::Duration::from_secs(900);
    same(&succeed(&*sandbox, request).await?, "done\n")
}

async fn undeclared_abilities_are_refused(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let capabilities = trial.provider.capabilities();
    let accessors = [
        (Capability::Stream, sandbox.execs().err()),
        (Capability::Files, sandbox.files().err()),
        (Capability::Control, sandbox.control().err()),
    ];
    for (capability, error) in accessors {
        match (capabilities.has(capability), error) {
            (true, None) => {}
            (true, Some(error)) => return Err(format!("`{capability}` is declared, but: {error}").into()),
            (false, None) => return Err(format!("`{capability}` is there but not declared").into()),
            (false, Some(error)) => names(capability, Err::<(), _>(error))?,
        }
    }

    let mut as_root = ExecRequest::argv(["true"]);
    as_root.user = UserName::Root;
    let mut with_terminal = ExecRequest::argv(["true"]);
    with_terminal.pty = Some(PtySize { rows: 24, cols: 80 });
    for (capability, request) in [(Capability::Root, as_root), (Capability::Pty, with_terminal)] {
        if !capabilities.has(capability) {
            names(capability, sandbox.execute(request).await)?;
        }
    }
    Ok(())
}

/// Sees that a refusal is `unsupported` and says what is.
fn names<T>(capability: Capability, result: crate::Result<T>) -> Outcome {
    let error = refused(result, ErrorCode::Unsupported)?;
    ensure!(error.message.contains(&capability.to_string()), "`{capability}` is not named: {error}");
    Ok(())
}

async fn list_holds_executed_commands(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let done = sandbox.execute(ExecRequest::shell("exit 4")).await?.exec;
    let list = sandbox.execs()?.list().await?;
    let info = list.iter().find(|info| info.exec == done);
    let termination = info.and_then(|info| info.termination);
    ensure!(termination == Some(Termination::Exited { code: 4 }), "execution {done} in the list: {info:?}");
    Ok(())
}
