//! Bytes in and out.

use futures_util::stream;

use super::need::{ISOLATION, REAL};
use super::trial::{Outcome, Trial, exists, gather, get, noise, path, put, refused, same, same_bytes, shell};
use crate::{Error, ErrorCode, UserName};

cases! { "transfer":
    bytes_come_back_identical [],
    empty_file_is_a_file [],
    many_pieces_are_one_file [],
    parents_are_made [],
    overwriting_truncates [],
    relative_paths_start_at_home [],
    odd_names_are_names [],
    commands_see_uploads [],
    downloads_see_what_commands_wrote [],
    missing_file_is_not_found [],
    directory_is_not_a_file [],
    upload_over_a_directory_is_refused [],
    failing_source_is_an_error [],
    dot_dot_stays_inside [ISOLATION],
    links_are_resolved_inside [ISOLATION, REAL],
}

async fn bytes_come_back_identical(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let content = noise(1 << 20);
    put(&*sandbox, "data.bin", &content).await?;
    same_bytes(&get(&*sandbox, "data.bin").await?, &content)
}

async fn empty_file_is_a_file(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "empty", b"").await?;
    same_bytes(&get(&*sandbox, "empty").await?, b"")
}

async fn many_pieces_are_one_file(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let pieces = (0..1000u32).map(|number| Ok(format!("{number}\n").into()));
    let stored = sandbox.upload(&path("lines"), UserName::User, Box::pin(stream::iter(pieces))).await?;
    let expected: String = (0..1000u32).map(|number| format!("{number}\n")).collect();
    ensure!(stored == expected.len() as u64, "answered {stored}, expected {}", expected.len());
    same_bytes(&get(&*sandbox, "lines").await?, expected.as_bytes())
}

async fn parents_are_made(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "a/b/c/file", b"deep").await?;
    same_bytes(&get(&*sandbox, "a/b/c/file").await?, b"deep")
}

async fn overwriting_truncates(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "file", b"a long content").await?;
    put(&*sandbox, "file", b"short").await?;
    same_bytes(&get(&*sandbox, "file").await?, b"short")
}

async fn relative_paths_start_at_home(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "notes.txt", b"at home").await?;
    same(&shell(&*sandbox, "cat \"$HOME/notes.txt\"").await?, "at home")?;
    same_bytes(&get(&*sandbox, "/home/user/notes.txt").await?, b"at home")?;
    same_bytes(&get(&*sandbox, "./x/../notes.txt").await.or(get(&*sandbox, "./notes.txt").await)?, b"at home")
}

async fn odd_names_are_names(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for name in ["with space", "-dash", "ünïcödé-文件", "quote'\"$HOME;*", "tab\there"] {
        put(&*sandbox, name, name.as_bytes()).await.map_err(|error| format!("{name:?}: {error}"))?;
        same_bytes(&get(&*sandbox, name).await?, name.as_bytes())?;
    }
    Ok(())
}

async fn commands_see_uploads(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "in.txt", b"from outside").await?;
    same(&shell(&*sandbox, "cat in.txt").await?, "from outside")?;
    same(&shell(&*sandbox, "echo more >> in.txt; cat in.txt").await?, "from outsidemore\n")
}

async fn downloads_see_what_commands_wrote(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    shell(&*sandbox, "printf 'a\\000b' > out.bin").await?;
    same_bytes(&get(&*sandbox, "out.bin").await?, b"a\0b")
}

async fn missing_file_is_not_found(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for name in ["missing", "no/such/file"] {
        let error = refused(sandbox.download(&path(name), UserName::User).await, ErrorCode::NotFound)?;
        ensure!(error.message.contains(name), "the error does not name the path: {error}");
    }
    Ok(())
}

async fn directory_is_not_a_file(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "folder/file", b"x").await?;
    refused(sandbox.download(&path("folder"), UserName::User).await, ErrorCode::InvalidArgument)?;
    Ok(())
}

async fn upload_over_a_directory_is_refused(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "folder/file", b"x").await?;
    let upload = sandbox.upload(&path("folder"), UserName::User, super::trial::pieces(b"y")).await;
    refused(upload, ErrorCode::InvalidArgument)?;
    same_bytes(&get(&*sandbox, "folder/file").await?, b"x")
}

async fn failing_source_is_an_error(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let broken = [Ok("some".into()), Err(Error::new(ErrorCode::Lost, "the source broke"))];
    let upload = sandbox.upload(&path("file"), UserName::User, Box::pin(stream::iter(broken))).await;
    refused(upload, ErrorCode::Lost)?;
    put(&*sandbox, "file", b"whole").await?;
    same_bytes(&get(&*sandbox, "file").await?, b"whole")
}

async fn dot_dot_stays_inside(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let name = format!("escape-{}", sandbox.id());
    put(&*sandbox, &format!("../../../../../../tmp/{name}"), b"inside").await?;
    same_bytes(&get(&*sandbox, &format!("/tmp/{name}")).await?, b"inside")?;
    let outside = std::env::temp_dir().join(&name);
    ensure!(!outside.exists(), "{} is on the host", outside.display());
    Ok(())
}

async fn links_are_resolved_inside(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let name = format!("belljar-canary-{}", sandbox.id());
    let canary = std::env::temp_dir().join(&name);
    std::fs::write(&canary, "host").map_err(|error| format!("cannot plant {}: {error}", canary.display()))?;
    let outcome = async {
        shell(&*sandbox, &format!("ln -s '{}' link; ln -s / root", canary.display())).await?;
        ensure!(!exists(&*sandbox, "link").await?, "a link led to a file of the host");
        ensure!(!exists(&*sandbox, &format!("root/{}", canary.display())).await?, "a link led to the host");
        let inside = shell(&*sandbox, "cat /etc/passwd").await?;
        shell(&*sandbox, "ln -s /etc/passwd accounts").await?;
        let content = gather(sandbox.download(&path("accounts"), UserName::User).await?).await?;
        same_bytes(&content, inside.as_bytes())
    }
    .await;
    let _ = std::fs::remove_file(&canary);
    outcome
}
