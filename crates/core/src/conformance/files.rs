//! File operations beyond reading and writing one.

use futures_util::StreamExt;

use super::need::{FILES, REAL};
use super::trial::{
    Outcome, Trial, exists, gather, get, path, pieces, put, refused, same, same_bytes, shell,
};
use crate::{ErrorCode, FileKind, UserName, WatchKind};

const USER: UserName = UserName::User;

cases! { "files":
    stat_describes [FILES],
    stat_does_not_follow_links [FILES, REAL],
    list_is_sorted [FILES],
    list_goes_as_deep_as_asked [FILES],
    make_dir_says_whether_new [FILES],
    rename_moves [FILES],
    remove_takes_the_tree [FILES],
    remove_does_not_follow_links [FILES, REAL],
    missing_is_not_found [FILES],
    pack_and_unpack_are_inverse [FILES],
    unpack_stays_below [FILES],
    unpack_refuses_garbage [FILES],
    watch_sees_a_write [FILES],
}

async fn stat_describes(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "folder/file", b"12345").await?;
    let file = sandbox.files()?.stat(&path("folder/file"), USER).await?;
    ensure!(file.kind == FileKind::File && file.size == 5 && file.name == "file", "found {file:?}");
    ensure!(file.modified_ms > 1_600_000_000_000, "modified at {}", file.modified_ms);
    let folder = sandbox.files()?.stat(&path("folder"), USER).await?;
    ensure!(folder.kind == FileKind::Directory && folder.name == "folder", "found {folder:?}");
    Ok(())
}

async fn stat_does_not_follow_links(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    shell(&*sandbox, "ln -s /no/such/place link").await?;
    let link = sandbox.files()?.stat(&path("link"), USER).await?;
    ensure!(link.kind == FileKind::Symlink, "found {link:?}");
    same(link.target.as_deref().unwrap_or_default(), "/no/such/place")
}

async fn list_is_sorted(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for name in ["c", "a", "b/inner", ".hidden"] {
        put(&*sandbox, &format!("folder/{name}"), b"").await?;
    }
    let list = sandbox.files()?.list(&path("folder"), USER, 1).await?;
    let names: Vec<_> = list.iter().map(|entry| entry.name.as_str()).collect();
    ensure!(names == [".hidden", "a", "b", "c"], "found {names:?}");
    Ok(())
}

async fn list_goes_as_deep_as_asked(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "folder/one/two/three", b"").await?;
    for (depth, expected) in [(1, vec!["one"]), (2, vec!["one", "two"]), (9, vec!["one", "two", "three"])] {
        let list = sandbox.files()?.list(&path("folder"), USER, depth).await?;
        let names: Vec<_> = list.iter().map(|entry| entry.name.as_str()).collect();
        ensure!(names == expected, "depth {depth} gives {names:?}, expected {expected:?}");
        let deepest = list.last().map(|entry| entry.path.as_str()).unwrap_or_default();
        ensure!(deepest.ends_with(&expected.join("/")), "the deepest path is {deepest:?}");
    }
    Ok(())
}

async fn make_dir_says_whether_new(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let files = sandbox.files()?;
    ensure!(files.make_dir(&path("a/b/c"), USER).await?, "a new directory is said to be old");
    ensure!(!files.make_dir(&path("a/b/c"), USER).await?, "an old directory is said to be new");
    put(&*sandbox, "a/file", b"").await?;
    let over = files.make_dir(&path("a/file"), USER).await;
    ensure!(over.is_err(), "a directory was made where a file is");
    Ok(())
}

async fn rename_moves(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "old/file", b"content").await?;
    sandbox.files()?.rename(&path("old"), &path("new"), USER).await?;
    same_bytes(&get(&*sandbox, "new/file").await?, b"content")?;
    ensure!(!exists(&*sandbox, "old/file").await?, "the old name is still there");
    Ok(())
}

async fn remove_takes_the_tree(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "tree/a/b/file", b"").await?;
    put(&*sandbox, "tree/file", b"").await?;
    sandbox.files()?.remove(&path("tree"), USER).await?;
    refused(sandbox.files()?.stat(&path("tree"), USER).await, ErrorCode::NotFound)?;
    Ok(())
}

async fn remove_does_not_follow_links(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    put(&*sandbox, "precious/file", b"kept").await?;
    shell(&*sandbox, "mkdir tree; ln -s ../precious tree/link; ln -s precious link").await?;
    sandbox.files()?.remove(&path("tree"), USER).await?;
    sandbox.files()?.remove(&path("link"), USER).await?;
    same_bytes(&get(&*sandbox, "precious/file").await?, b"kept")
}

async fn missing_is_not_found(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let files = sandbox.files()?;
    let missing = path("missing");
    refused(files.stat(&missing, USER).await, ErrorCode::NotFound)?;
    refused(files.list(&missing, USER, 1).await, ErrorCode::NotFound)?;
    refused(files.rename(&missing, &path("other"), USER).await, ErrorCode::NotFound)?;
    refused(files.remove(&missing, USER).await, ErrorCode::NotFound)?;
    Ok(())
}

async fn pack_and_unpack_are_inverse(trial: &Trial<'_>) -> Outcome {
    let (source, target) = (trial.sandbox().await?, trial.sandbox().await?);
    let content = super::trial::noise(300_000);
    put(&*source, "tree/data.bin", &content).await?;
    put(&*source, "tree/deep/er/empty", b"").await?;
    let tar = gather(source.files()?.pack(&path("tree"), USER).await?).await?;
    target.files()?.make_dir(&path("copy"), USER).await?;
    target.files()?.unpack(&path("copy"), USER, pieces(&tar)).await?;
    same_bytes(&get(&*target, "copy/tree/data.bin").await?, &content)?;
    same_bytes(&get(&*target, "copy/tree/deep/er/empty").await?, b"")
}

async fn unpack_stays_below(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let files = sandbox.files()?;
    files.make_dir(&path("a/b"), USER).await?;
    for name in ["../escaped", "x/../../escaped", "/home/user/a/escaped"] {
        // Refusing the archive and keeping the file below are both fine; writing beside is not.
        let _ = files.unpack(&path("a/b"), USER, pieces(&archive(name, b"x"))).await;
        ensure!(!exists(&*sandbox, "a/escaped").await?, "`{name}` was written outside of the directory");
    }
    // The control: an archive made the same way does unpack.
    files.unpack(&path("a/b"), USER, pieces(&archive("plain", b"x"))).await?;
    same_bytes(&get(&*sandbox, "a/b/plain").await?, b"x")
}

async fn unpack_refuses_garbage(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    sandbox.files()?.make_dir(&path("a"), USER).await?;
    let unpack = sandbox.files()?.unpack(&path("a"), USER, pieces(&super::trial::noise(4096))).await;
    refused(unpack, ErrorCode::InvalidArgument)?;
    Ok(())
}

/// A tar archive with one regular file.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0_u8; 512];
    let mut field = |offset: usize, text: &[u8]| header[offset..offset + text.len()].copy_from_slice(text);
    field(0, name.as_bytes());
    field(100, b"0000644\0");
    field(108, b"0000000\0");
    field(116, b"0000000\0");
    field(124, format!("{:011o}\0", content.len()).as_bytes());
    field(136, b"00000000000\0");
    field(257, b"ustar\x0000");
    header[156] = b'0';
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut tar = header.to_vec();
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
    tar
}

async fn watch_sees_a_write(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    sandbox.files()?.make_dir(&path("watched"), USER).await?;
    let mut events = sandbox.files()?.watch(&path("watched"), USER).await?;
    put(&*sandbox, "watched/file", b"x").await?;
    while let Some(event) = events.next().await {
        let event = event?;
        if event.kind == WatchKind::Written && event.path == "file" {
            return Ok(());
        }
    }
    Err("the watch ended without having seen the write".to_owned().into())
}
