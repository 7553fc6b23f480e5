//! Making and ending sandboxes.

use std::time::Duration;

use futures_util::future::join_all;

use super::need::REAL;
use super::trial::{
    Outcome, Trial, exists, get, path, pieces, processes_named, put, refused, same, same_bytes, shell, stdout,
};
use crate::{ErrorCode, ExecRequest, SandboxId, SandboxSpec, SandboxState, UserName};

cases! { "life":
    bad_limits_are_refused [],
    unknown_template_is_refused [],
    sandboxes_have_names_of_their_own [],
    a_chosen_name_is_used_once [],
    sandboxes_do_not_share_files [],
    many_can_be_made_at_once [],
    cleanup_can_be_repeated [],
    nothing_works_after_cleanup [],
    cleanup_ends_what_runs [REAL],
    time_to_live_ends_it [],
    absurd_times_do_no_harm [],
    unknown_name_is_not_found [],
    open_and_list_agree [],
}

async fn bad_limits_are_refused(trial: &Trial<'_>) -> Outcome {
    let mut spec = SandboxSpec::default();
    spec.limits.pids = 0;
    refused(trial.provider.create(spec).await, ErrorCode::InvalidArgument)?;
    Ok(())
}

async fn unknown_template_is_refused(trial: &Trial<'_>) -> Outcome {
    let spec = SandboxSpec { template: "no-such-template".into(), ..SandboxSpec::default() };
    let error = refused(trial.provider.create(spec).await, ErrorCode::NotFound)?;
    ensure!(error.message.contains("no-such-template"), "the error does not name it: {error}");
    Ok(())
}

async fn sandboxes_have_names_of_their_own(trial: &Trial<'_>) -> Outcome {
    let (one, other) = (trial.sandbox().await?, trial.sandbox().await?);
    ensure!(one.id() != other.id(), "both are {}", one.id());
    ensure!(one.provider() == trial.provider.name(), "says it is `{}`", one.provider());
    Ok(())
}

async fn a_chosen_name_is_used_once(trial: &Trial<'_>) -> Outcome {
    // A name that nobody has: that of a sandbox which is gone.
    let gone = trial.sandbox().await?;
    gone.cleanup().await?;
    let spec = SandboxSpec { id: Some(gone.id().clone()), ..SandboxSpec::default() };
    let sandbox = trial.sandbox_from(spec.clone()).await?;
    ensure!(sandbox.id() == gone.id(), "is named {}, not {}", sandbox.id(), gone.id());
    put(&*sandbox, "file", b"mine").await?;
    let error = refused(trial.provider.create(spec.clone()).await, ErrorCode::AlreadyExists)?;
    ensure!(error.message.contains(gone.id().as_str()), "the error does not name it: {error}");
    same_bytes(&get(&*sandbox, "file").await?, b"mine")?;
    if let Ok(control) = sandbox.control() {
        control.kill().await?;
        refused(trial.provider.create(spec.clone()).await, ErrorCode::AlreadyExists)?;
        ensure!(control.info().await?.state == SandboxState::Killed, "its record is not what it was");
    }
    sandbox.cleanup().await?;
    trial.sandbox_from(spec).await.map(drop)
}

async fn sandboxes_do_not_share_files(trial: &Trial<'_>) -> Outcome {
    let (one, other) = (trial.sandbox().await?, trial.sandbox().await?);
    put(&*one, "/home/user/mine", b"1").await?;
    put(&*one, "/tmp/mine", b"1").await?;
    shell(&*one, "echo 1 > by-command; echo 1 > \"$TMPDIR/by-command\"").await?;
    for file in ["mine", "/tmp/mine", "by-command", "/tmp/by-command"] {
        ensure!(!exists(&*other, file).await?, "`{file}` of one sandbox is in the other");
    }
    Ok(())
}

async fn many_can_be_made_at_once(trial: &Trial<'_>) -> Outcome {
    let runs = (0..4).map(|number| async move {
        let sandbox = trial.sandbox().await?;
        same(&shell(&*sandbox, &format!("echo {number}")).await?, &format!("{number}\n"))
    });
    join_all(runs).await.into_iter().collect()
}

async fn cleanup_can_be_repeated(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    sandbox.cleanup().await?;
    let (one, other) = futures_util::future::join(sandbox.cleanup(), sandbox.cleanup()).await;
    Ok(one.and(other)?)
}

async fn nothing_works_after_cleanup(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "file", b"x").await?;
    sandbox.cleanup().await?;
    refused(sandbox.execute(ExecRequest::argv(["true"])).await, ErrorCode::SandboxGone)?;
    refused(sandbox.download(&path("file"), UserName::User).await, ErrorCode::SandboxGone)?;
    refused(sandbox.upload(&path("file"), UserName::User, pieces(b"y")).await, ErrorCode::SandboxGone)?;
    Ok(())
}

async fn cleanup_ends_what_runs(trial: &Trial<'_>) -> Outcome {
    let (sandbox, watcher) = (trial.sandbox().await?, trial.sandbox().await?);
    let word = format!("cleaned-{}", sandbox.id());
    let mut request = ExecRequest::shell("sh -c 'sleep 600; :' \"$WORD\" >/dev/null 2>&1 &");
    request.env.insert("WORD".into(), word.clone());
    sandbox.execute(request).await?;
    sandbox.cleanup().await?;
    // A rung with walls cannot see its neighbour; there the case only shows that cleanup does not wait for it.
    let left = processes_named(&*watcher, &word).await?;
    ensure!(left == 0, "{left} processes outlived the sandbox");
    Ok(())
}

async fn time_to_live_ends_it(trial: &Trial<'_>) -> Outcome {
    let sandbox =
        trial.sandbox_from(SandboxSpec { ttl: Duration::from_secs(2), ..SandboxSpec::default() }).await?;
    loop {
        match sandbox.execute(ExecRequest::argv(["true"])).await {
            Ok(_) => trial.moment().await,
            Err(error) if error.code == ErrorCode::SandboxGone => return Ok(()),
            // It may end under a running command.
            Err(error) if error.code == ErrorCode::Lost => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Either honoured or refused by name; never an overflow, a panic or an end at once.
async fn absurd_times_do_no_harm(trial: &Trial<'_>) -> Outcome {
    let endless = SandboxSpec { ttl: Duration::MAX, ..SandboxSpec::default() };
    let sandbox = match trial.provider.create(endless).await {
        Ok(sandbox) => trial.keep(sandbox),
        Err(error) if error.code == ErrorCode::InvalidArgument => trial.sandbox().await?,
        Err(error) => return Err(error.into()),
    };
    let mut request = ExecRequest::shell("echo alive");
    request.timeout = Duration::MAX;
    match sandbox.execute(request).await {
        Err(error) if error.code == ErrorCode::InvalidArgument => {}
        result => same(&stdout(&result?), "alive\n")?,
    }
    same(&shell(&*sandbox, "echo still").await?, "still\n")
}

async fn unknown_name_is_not_found(trial: &Trial<'_>) -> Outcome {
    let id = SandboxId::from_random([31; 16]);
    refused(trial.provider.open(&id).await, ErrorCode::NotFound)?;
    Ok(())
}

async fn open_and_list_agree(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "file", b"same").await?;
    let list = trial.provider.list().await?;
    if list.is_empty() {
        // Its sandboxes do not outlive their creator; then `open` must say so too.
        refused(trial.provider.open(sandbox.id()).await, ErrorCode::NotFound)?;
        return Ok(());
    }
    ensure!(list.iter().any(|info| info.id == *sandbox.id()), "{} is not in the list", sandbox.id());
    let again = trial.provider.open(sandbox.id()).await?;
    same_bytes(&get(&*again, "file").await?, b"same")
}
