//! HF: files that come out of a sandbox, and names that go in, against the programs of the host.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belljar_core::Wall::{
    ArchiveLinks, ArchiveModes, ArchiveNames, CopyBound, HostTreeDetached, LandlockExecution,
    LandlockSandbox, RegularFiles, SandboxNames,
};
use tar::EntryType;

use crate::attack::{Attack, Control, Outcome, Ring, finish, outside, within};
use crate::hostile::Hostile;

const NAMES: &[belljar_core::Wall] = &[ArchiveNames, ArchiveLinks];
const HOST_TREE: &[belljar_core::Wall] = &[HostTreeDetached, LandlockSandbox, LandlockExecution];
const LINKS: &[belljar_core::Wall] = &[ArchiveLinks];

/// From the destination to the directory of the canaries.
const OUT: &str = "../../../outside";

pub(crate) fn attacks() -> Vec<Attack> {
    let mut attacks = vec![
        archive("HF-parent-name", "unpack to a name with `..`", NAMES, |_| Archive::new().file(&format!("tree/{OUT}/planted"), "x")),
        outside("HF-absolute-name", "unpack to an absolute name", NAMES, |ring| {
            let archive = Archive::new().file(&outside_of(ring).join("planted").to_string_lossy(), "x");
            copied(ring, &archive, ".", &ring.scratch.join("dest"), &[]).map_or_else(|outcome| outcome, Outcome::Stopped)
        }),
        archive("HF-hidden-parent-name", "unpack to a name with `..` behind honest ones", NAMES, |_| {
            Archive::new().directory("tree/a").directory("tree/a/b").file(&format!("tree/a/b/../../{OUT}/planted"), "x")
        }),
        archive("HF-long-name", "unpack to a long name with `..` that a header of its own holds", NAMES, |_| {
            Archive::new().long_name(&format!("tree/{}{OUT}/planted", "./".repeat(80)), "x")
        }),
        archive("HF-extended-name", "unpack to a name with `..` from an extended header", NAMES, |_| {
            Archive::new().extended(&[("path", &format!("tree/{OUT}/planted"))], |archive| archive.file("tree/honest", "x"))
        }),
        archive("HF-link-then-file", "unpack a link out, then a file through it", LINKS, |_| {
            Archive::new().link("tree/way", OUT).file("tree/way/planted", "x")
        }),
        archive("HF-absolute-link", "unpack an absolute link out, then a file through it", LINKS, |ring| {
            Archive::new().link("tree/way", &outside_of(ring).to_string_lossy()).file("tree/way/planted", "x")
        }),
        archive("HF-link-chain", "unpack links that only together lead out", LINKS, |_| {
            Archive::new().directory("tree/a").link("tree/a/up", "..").link("tree/way", "a/up/../../../outside").file("tree/way/planted", "x")
        }),
        archive("HF-link-with-name", "unpack a link whose `..` comes after a name", LINKS, |_| {
            Archive::new().directory("tree/a").link("tree/way", "a/../../../../outside").file("tree/way/planted", "x")
        }),
        archive("HF-link-replaces-directory", "swap a directory for a link between two files", LINKS, |_| {
            Archive::new().directory("tree/way").link("tree/way2", OUT).file("tree/way2/planted", "x")
        }),
        archive("HF-link-replaces-file", "write through a link that took a file's name", LINKS, |_| {
            Archive::new().file("tree/way", "x").link("tree/way", OUT).file("tree/way/planted", "x")
        }),
        archive("HF-extended-link", "unpack a link whose target an extended header holds", LINKS, |_| {
            Archive::new().extended(&[("linkpath", OUT)], |archive| archive.link("tree/way", "honest")).file("tree/way/planted", "x")
        }),
        archive("HF-directory-through-link", "make a directory through a link", LINKS, |_| {
            Archive::new().link("tree/way", OUT).directory("tree/way/planted")
        }),
        judged("HF-hard-link", "link a file of the host into the copy", NAMES, |_| Archive::new().hard_link("tree/own", &format!("tree/{OUT}/open-flag")), is_the_flag),
        judged("HF-hard-link-through-link", "link a file of the host into the copy, by way of a link", LINKS, |_| {
            Archive::new().link("tree/way", OUT).hard_link("tree/own", "tree/way/open-flag")
        }, is_the_flag),
        judged("HF-write-through-hard-link", "write into a file of the host that was linked before", NAMES, |_| {
            Archive::new().hard_link("tree/own", &format!("tree/{OUT}/open-flag")).file("tree/own", "overwritten")
        }, is_the_flag).control(Control::Moot("every file is made anew, so what was linked is never written; see HF-hard-link for the link itself")),
        judged("HF-link-left", "leave a link behind that leads out, for the next program to follow", LINKS, |_| Archive::new().link("tree/way", OUT), |_, dest| {
            fs::read_link(dest.join("way")).ok().map(|target| format!("a link to {}", target.display()))
        }),
        judged("HF-set-user-id", "bring out a program that makes its user root", &[ArchiveModes], |_| Archive::new().entry(EntryType::Regular, "tree/program", "", b"#!/bin/sh\n", 0o6755), |_, dest| {
            let mode = fs::metadata(dest.join("program")).ok()?.permissions().mode();
            (mode & 0o7000 != 0).then(|| format!("mode {mode:o}"))
        }),
        naive("HF-device", "bring out a device of the host's memory", |_| Archive::new().entry(EntryType::Char, "tree/device", "", b"", 0o666), |_, dest| {
            let found = fs::symlink_metadata(dest.join("device")).ok()?;
            (found.mode() & 0o170_000 == 0o020_000).then(|| "a device was made".to_owned())
        }),
        naive("HF-block-device", "bring out a disk of the host", |_| Archive::new().entry(EntryType::Block, "tree/device", "", b"", 0o666), |_, dest| {
            let found = fs::symlink_metadata(dest.join("device")).ok()?;
            (found.mode() & 0o170_000 == 0o060_000).then(|| "a device was made".to_owned())
        }),
        naive("HF-pipe", "bring out a pipe, for whoever reads it to wait", |_| Archive::new().entry(EntryType::Fifo, "tree/pipe", "", b"", 0o666), |_, dest| {
            let found = fs::symlink_metadata(dest.join("pipe")).ok()?;
            (found.mode() & 0o170_000 == 0o010_000).then(|| "a pipe was made".to_owned())
        }),
        naive("HF-owner", "bring out files of other owners", |_| Archive::new().entry(EntryType::Regular, "tree/file", "", b"x", 0o644), |_, dest| {
            let found = fs::metadata(dest.join("file")).ok()?;
            (found.uid() == 4242).then(|| "the file belongs to somebody else".to_owned())
        }),
        naive("HF-attributes", "bring out attributes that give capabilities", |_| {
            Archive::new().extended(&[("SCHILY.xattr.user.belljar", "planted")], |archive| archive.file("tree/file", "x"))
        }, |_, dest| {
            let mut value = [0; 32];
            let found = rustix::fs::getxattr(dest.join("file"), "user.belljar", &mut value);
            found.is_ok().then(|| "the attribute came along".to_owned())
        }),
        naive("HF-directory-mode", "bring out a directory that anybody may write to, with its bits", |_| {
            Archive::new().entry(EntryType::Directory, "tree/open", "", b"", 0o7777)
        }, |_, dest| {
            let mode = fs::metadata(dest.join("open")).ok()?.permissions().mode();
            (mode & 0o7000 != 0).then(|| format!("mode {mode:o}"))
        }),
        outside("HF-too-much", "bring out more than was allowed", &[CopyBound], |ring| {
            let archive = Archive::new().entry(EntryType::Regular, "tree/file", "", &vec![0; 200_000], 0o644);
            bounded(ring, archive)
        }),
        outside("HF-many-entries", "bring out more names than was allowed", &[CopyBound], |ring| {
            let archive = (0..400).fold(Archive::new(), |archive, number| archive.directory(&format!("tree/{number}")));
            bounded(ring, archive)
        }),
        outside("HF-sparse", "bring out a small file that claims to be large", &[CopyBound], |ring| bounded(ring, Archive::new().sparse("tree/file", 300_000))),
        outside("HF-lying-size", "bring out a file that is shorter than it claims", &[], lying_size).control(Control::Sabotage),
        outside("HF-endless-file", "send a file without an end in place of a small one", &[CopyBound], endless_file),
        outside("HF-out-option", "plant a file outside with `--out`", NAMES, out_option),
        outside("HF-link-at-destination", "have a later copy follow a link that an earlier one left", LINKS, link_at_destination),
        outside("HF-flag-by-link", "have the host's file copied out by a link inside", HOST_TREE, flag_by_link),
        outside("HF-flag-by-path", "have the host's file copied out by its path", HOST_TREE, flag_by_path),
        outside("HF-list-host", "have a directory of the host listed", HOST_TREE, list_host),
        outside("HF-workdir", "run in a directory of the host", HOST_TREE, workdir),
        outside("HF-device-download", "have a device read without an end", &[RegularFiles], device_download),
        outside("HF-sandbox-name", "remove a directory of the host in a sandbox's name", &[SandboxNames], sandbox_name),
        outside("HF-spool-link", "have the host read a file through a link in the monitor's directory", &[], spool_link).control(Control::Naive(Box::new(naive_spool))),
        outside("HF-spool-pipe", "have the host wait for a pipe in the monitor's directory", &[], spool_pipe).control(Control::Sabotage),
        outside("HF-removal", "have the host remove what a link in the monitor's directory leads to", &[], removal).control(Control::Naive(Box::new(naive_removal))),
        outside("HF-deep-tree", "leave a tree that is too deep to remove", &[], deep_tree).control(Control::Sabotage),
        outside("HF-planted-programs", "have the host run a program from a sandbox", &[], planted_programs).control(Control::Sabotage),
    ];
    attacks.extend(odd_users());
    attacks
}

fn outside_of(ring: &Ring<'_>) -> PathBuf {
    ring.field.outside()
}

type Build = fn(&Ring<'_>) -> Archive;
type Judge = fn(&Ring<'_>, &Path) -> Option<String>;

/// An archive that reaches out, seen by the canaries.
fn archive(
    id: &'static str,
    tries: &'static str,
    walls: &'static [belljar_core::Wall],
    build: Build,
) -> Attack {
    judged(id, tries, walls, build, |_, _| None)
}

/// An archive judged by what it leaves at the destination.
fn judged(
    id: &'static str,
    tries: &'static str,
    walls: &'static [belljar_core::Wall],
    build: Build,
    judge: Judge,
) -> Attack {
    outside(id, tries, walls, move |ring| {
        let dest = ring.scratch.join("dest");
        match copied(ring, &build(ring), "tree", &dest, &[]) {
            Err(outcome) => outcome,
            Ok(said) => judge(ring, &dest).map_or(Outcome::Stopped(said), Outcome::Won),
        }
    })
}

/// The same, shown to be hostile by a program that does as archives say.
fn naive(id: &'static str, tries: &'static str, build: Build, judge: Judge) -> Attack {
    judged(id, tries, &[], build, judge).control(Control::Naive(Box::new(move |ring| {
        let dest = ring.scratch.join("dest");
        let file = ring.scratch.join("archive.tar");
        let made = fs::create_dir(&dest).and_then(|()| fs::write(&file, build(ring).finish()));
        if let Err(error) = made {
            return Outcome::Broken(error.to_string());
        }
        let mut tar = Command::new("tar");
        tar.args(["-xpPf"]).arg(&file).arg("-C").arg(&dest);
        tar.args([
            "--strip-components=1",
            "--xattrs",
            "--xattrs-include=*",
            "--numeric-owner",
            "--same-owner",
        ]);
        let ended = finish(&mut tar);
        judge(ring, &dest).map_or_else(|| Outcome::Stopped(format!("{ended:?}")), Outcome::Won)
    })))
}

/// Has a hostile guest give this archive to `belljar cp`.
fn copied(
    ring: &Ring<'_>,
    archive: &Archive,
    path: &str,
    dest: &Path,
    options: &[&str],
) -> Result<String, Outcome> {
    let hostile = Hostile::create(ring, "archive", &archive.finish())?;
    let from = format!("{}:{path}", hostile.id);
    let dest = dest.to_string_lossy();
    let words = [&["cp"], options, &[&from, &dest]].concat();
    let ended = hostile.run(ring, &words);
    match ended.code {
        Some(0 | 125) => Ok(format!("{} {}", ended.text().trim(), ended.stderr.trim())),
        code => Err(Outcome::Broken(format!("cp ended with {code:?}: {}", ended.stderr))),
    }
}

fn is_the_flag(ring: &Ring<'_>, dest: &Path) -> Option<String> {
    let own = fs::metadata(dest.join("own")).ok()?;
    let flag = fs::metadata(outside_of(ring).join("open-flag")).ok()?;
    (own.ino() == flag.ino() && own.dev() == flag.dev()).then(|| "the copy is the host's file".to_owned())
}

fn bounded(ring: &Ring<'_>, archive: Archive) -> Outcome {
    let dest = ring.scratch.join("dest");
    match copied(ring, &archive, "tree", &dest, &["--max-size", "100k"]) {
        Err(outcome) => outcome,
        Ok(said) => {
            let (mut bytes, mut names) = (0, 0u64);
            for entry in fs::read_dir(&dest).into_iter().flatten().flatten() {
                names += 1;
                bytes += entry.metadata().map_or(0, |found| if found.is_file() { found.len() } else { 0 });
            }
            if bytes + names * 512 > 110_000 {
                return Outcome::Won(format!("{names} names, {bytes} bytes came out; {said}"));
            }
            Outcome::Stopped(format!("{names} names, {bytes} bytes; {said}"))
        }
    }
}

/// The header says more than there is. What is missing must be said, not made up.
fn lying_size(ring: &Ring<'_>) -> Outcome {
    let content = vec![b'x'; 1024];
    let size = if ring.sabotage { 1024 } else { 1 << 33 };
    let archive = Archive::new().lying("tree/file", &content, size);
    let dest = ring.scratch.join("dest");
    let hostile = match Hostile::create(ring, "archive", &archive.finish()) {
        Ok(hostile) => hostile,
        Err(outcome) => return outcome,
    };
    let ended = hostile.run(ring, &["cp", &format!("{}:tree", hostile.id), &dest.to_string_lossy()]);
    if ended.code == Some(0) {
        Outcome::Won("the copy passes for a whole one".into())
    } else {
        Outcome::Stopped(ended.stderr)
    }
}

fn endless_file(ring: &Ring<'_>) -> Outcome {
    let hostile = match Hostile::create(ring, "file", &[]) {
        Ok(hostile) => hostile,
        Err(outcome) => return outcome,
    };
    let dest = ring.scratch.join("dest");
    let from = format!("{}:file", hostile.id);
    let ended = hostile.run(ring, &["cp", "--max-size", "1m", &from, &dest.to_string_lossy()]);
    let largest = fs::read_dir(&ring.scratch).into_iter().flatten().flatten();
    let largest = largest.filter_map(|entry| Some(entry.metadata().ok()?.len())).max().unwrap_or(0);
    if largest > 1 << 20 {
        Outcome::Won(format!("{largest} bytes came out"))
    } else {
        Outcome::Stopped(ended.stderr)
    }
}

fn out_option(ring: &Ring<'_>) -> Outcome {
    let archive = Archive::new().file(&format!("tree/{OUT}/planted"), "x").finish();
    let hex: String = archive.iter().map(|byte| format!("{byte:02x}")).collect();
    let own = std::env::current_exe().expect("this program has a path");
    let changes = serde_json::json!({"guest": own, "env": {"MOOD": "archive", "ARCHIVE": hex}});
    match crate::hostile::run_patched(ring, &changes, &["--out", "tree:dest", "--", "x"]) {
        Err(outcome) => outcome,
        Ok(said) => Outcome::Stopped(said),
    }
}

/// The first copy leaves a link; the second writes to its name.
fn link_at_destination(ring: &Ring<'_>) -> Outcome {
    let dest = ring.scratch.join("dest");
    if let Err(outcome) = copied(ring, &Archive::new().link("tree/way", OUT), "tree", &dest, &[]) {
        return outcome;
    }
    match copied(
        ring,
        &Archive::new().directory("tree").file("tree/planted", "x"),
        "tree",
        &dest.join("way"),
        &[],
    ) {
        Err(outcome) => outcome,
        Ok(said) => Outcome::Stopped(said),
    }
}

/// Copies out, and looks whether what came is the host's.
fn copied_from(ring: &Ring<'_>, prepare: &str, path: &str) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    ring.shell(&id, prepare);
    let dest = ring.scratch.join("dest");
    let ended = ring.run(&["cp", &format!("{id}:{path}"), &dest.to_string_lossy()]);
    let content = fs::read(&dest).unwrap_or_default();
    match ring.field.canaries.leaked(&content) {
        Some(what) => Outcome::Won(what),
        None => Outcome::Stopped(ended.stderr),
    }
}

fn flag_by_link(ring: &Ring<'_>) -> Outcome {
    let target = outside_of(ring).join("open-flag");
    copied_from(ring, &format!("ln -s /..{} link", target.display()), "link")
}

fn flag_by_path(ring: &Ring<'_>) -> Outcome {
    let target = outside_of(ring).join("open-flag");
    copied_from(ring, "true", &format!("/..{}", target.display()))
}

fn list_host(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let listed = ring.run(&["ls", &format!("{id}:/..{}", outside_of(ring).display())]);
    if listed.text().contains("open-flag") {
        Outcome::Won(listed.text())
    } else {
        Outcome::Stopped(listed.stderr)
    }
}

fn workdir(ring: &Ring<'_>) -> Outcome {
    let directory = format!("/..{}", outside_of(ring).display());
    let object = ring.json(&["run", "--workdir", &directory, "--", "cat", "open-flag"]);
    let said = object.to_string();
    ring.field.canaries.leaked(said.as_bytes()).map_or(Outcome::Stopped(said), Outcome::Won)
}

fn device_download(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let dest = ring.scratch.join("dest");
    let ended = ring.run(&["cp", &format!("{id}:/dev/zero"), &dest.to_string_lossy()]);
    match fs::metadata(&dest).map_or(0, |found| found.len()) {
        0 => Outcome::Stopped(ended.stderr),
        bytes => Outcome::Won(format!("{bytes} bytes of a device came out")),
    }
}

/// A directory that looks like a sandbox, beside the data directory.
fn sandbox_name(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let other = ring.scratch.join("precious");
    let lease = ring.directory(&id).join("lease.json");
    let made = fs::create_dir(&other).and_then(|()| fs::copy(lease, other.join("lease.json")));
    if let Err(error) = made {
        return Outcome::Broken(error.to_string());
    }
    let scratch = ring.scratch.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = format!("../../scratch/{scratch}/precious");
    let ended = ring.run(&["rm", "-f", &name]);
    if other.exists() { Outcome::Stopped(ended.stderr) } else { Outcome::Won("the directory is gone".into()) }
}

/// What a monitor that was taken over can put into its spool directory.
fn with_spool(ring: &Ring<'_>, plant: impl Fn(&Path) -> std::io::Result<()>) -> Result<String, Outcome> {
    let id = ring.create(&[])?;
    let spool = ring.directory(&id).join("spool");
    ring.run(&["kill", &id]);
    let _ = fs::remove_file(spool.join("ended.json"));
    plant(&spool).map_err(|error| Outcome::Broken(error.to_string()))?;
    Ok(id)
}

fn spool_link(ring: &Ring<'_>) -> Outcome {
    let flag = outside_of(ring).join("flag");
    match with_spool(ring, |spool| symlink(&flag, spool.join("ended.json"))) {
        Err(outcome) => outcome,
        Ok(id) => {
            let said: String = [&["ls", "-a"][..], &["inspect", &id], &["logs", &id]]
                .iter()
                .map(|words| {
                    let ended = ring.run(words);
                    format!("{}{}", ended.text(), ended.stderr)
                })
                .collect();
            ring.field
                .canaries
                .leaked(said.as_bytes())
                .map_or(Outcome::Stopped("it was not followed".into()), Outcome::Won)
        }
    }
}

fn naive_spool(ring: &Ring<'_>) -> Outcome {
    let link = ring.scratch.join("ended.json");
    let _ = symlink(outside_of(ring).join("flag"), &link);
    let read = fs::read(&link).unwrap_or_default();
    ring.field.canaries.leaked(&read).map_or(Outcome::Stopped("not followed".into()), Outcome::Won)
}

fn spool_pipe(ring: &Ring<'_>) -> Outcome {
    let sabotage = ring.sabotage;
    let planted = with_spool(ring, |spool| {
        let made = finish(Command::new("mkfifo").arg(spool.join("ended.json")));
        if made.code == Some(0) { Ok(()) } else { Err(std::io::Error::other(made.stderr)) }
    });
    let id = match planted {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let path = ring.directory(&id).join("spool/ended.json");
    let mut command = if sabotage {
        let mut naive = Command::new("cat");
        naive.arg(&path);
        naive
    } else {
        ring.belljar(&["ls", "-a"])
    };
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
    let Ok(child) = child else { return Outcome::Broken("it cannot be started".into()) };
    match crate::attack::wait(child, Duration::from_secs(if sabotage { 1 } else { 10 })).code {
        None => Outcome::Won("it waits for the pipe".into()),
        Some(code) => Outcome::Stopped(format!("status {code}")),
    }
}

fn removal(ring: &Ring<'_>) -> Outcome {
    let precious = ring.scratch.join("precious");
    let made = fs::create_dir(&precious).and_then(|()| fs::write(precious.join("file"), "x"));
    if let Err(error) = made {
        return Outcome::Broken(error.to_string());
    }
    let id = match with_spool(ring, |spool| symlink(&precious, spool.join("1"))) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let ended = ring.run(&["rm", "-f", &id]);
    if ring.directory(&id).exists() {
        return Outcome::Broken(format!("it was not removed: {}", ended.stderr));
    }
    if precious.join("file").exists() {
        Outcome::Stopped("only the link is gone".into())
    } else {
        Outcome::Won("the file is gone".into())
    }
}

fn naive_removal(ring: &Ring<'_>) -> Outcome {
    let (precious, tree) = (ring.scratch.join("precious"), ring.scratch.join("tree"));
    let made = fs::create_dir(&precious)
        .and_then(|()| fs::write(precious.join("file"), "x"))
        .and_then(|()| fs::create_dir(&tree))
        .and_then(|()| symlink(&precious, tree.join("1")));
    if let Err(error) = made {
        return Outcome::Broken(error.to_string());
    }
    finish(Command::new("find").args(["-L"]).arg(&tree).args(["-type", "f", "-delete"]));
    if precious.join("file").exists() {
        Outcome::Stopped("not followed".into())
    } else {
        Outcome::Won("the file is gone".into())
    }
}

/// Deeper than any path; the sandbox must be removable all the same, and a copy must say what is the matter.
fn deep_tree(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let script = "import os\nfor _ in range(2000):\n os.mkdir('d' * 100)\n os.chdir('d' * 100)";
    ring.json(&["exec", &id, "--", "python3", "-c", script]);
    let dest = ring.scratch.join("dest");
    let from = format!("{id}:{}", "d".repeat(100));
    let copied = ring.run(&["cp", &from, &dest.to_string_lossy()]);
    let removed = if ring.sabotage { copied } else { ring.run(&["rm", "-f", &id]) };
    let gone = removed.code == Some(0) && !ring.directory(&id).exists();
    if gone { Outcome::Stopped("it is gone".into()) } else { Outcome::Won(format!("it stays: {removed:?}")) }
}

/// Programs named as those that the host might look for, in the directory where the host works.
fn planted_programs(ring: &Ring<'_>) -> Outcome {
    let witness = ring.scratch.join("witness");
    let program = format!("#!/bin/sh\ntouch '{}'\n", witness.display());
    for name in ["tar", "sh", "mkfs.ext4", "python3", "mount", "git", "belljar-jail", "belljar-guest"] {
        let path = ring.scratch.join(name);
        let _ = fs::write(&path, &program);
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o755));
    }
    if ring.sabotage {
        finish(Command::new("./tar").current_dir(&ring.scratch));
    } else {
        // The directory where the host works is not where it looks for programs.
        let mut command = ring.belljar(&[
            "run", "--memory", "64m", "--disk", "60m", "--out", "x:copy", "--", "/bin/sh", "-c", "mkdir x",
        ]);
        finish(&mut command);
    }
    let ran = within(Duration::from_millis(200), || witness.exists());
    if ran {
        Outcome::Won("a planted program was run".into())
    } else {
        Outcome::Stopped("none was run".into())
    }
}

/// Users that are none: nothing may run as anybody who was not asked for.
fn odd_users() -> Vec<Attack> {
    vec![
        outside("HF-odd-users", "run as somebody by an odd name", &[], |ring| {
            let names: &[&str] = if ring.sabotage {
                &["root"]
            } else {
                &[
                    "0",
                    "+0",
                    "root:",
                    "root:root",
                    " root",
                    "ROOT",
                    "-1",
                    "4294967296",
                    "user\0",
                    "../root",
                    "",
                ]
            };
            for name in names {
                let object = ring.json(&["run", "--user", name, "--", "id", "-u"]);
                if object["stdout"] == "0\n" {
                    return Outcome::Won(format!("{name:?} is root"));
                }
            }
            Outcome::Stopped("none is root".into())
        })
        .control(Control::Sabotage),
        outside("HF-odd-variables", "slip in a variable by another's value", &[], |ring| {
            let odd: &[&str] = if ring.sabotage {
                &["INJECTED=1"]
            } else {
                &["A=x\nINJECTED=1", "A\nINJECTED=1", "=INJECTED=1", "A=x\0INJECTED=1"]
            };
            for variable in odd {
                let object = ring.json(&["run", "--env", variable, "--", "sh", "-c", "echo [$INJECTED]"]);
                if object["stdout"] == "[1]\n" {
                    return Outcome::Won(format!("{variable:?} sets another"));
                }
            }
            Outcome::Stopped("none is set".into())
        })
        .control(Control::Sabotage),
    ]
}

/// An archive written by hand, because libraries refuse to write what is hostile.
pub(crate) struct Archive(Vec<u8>);

impl Archive {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn finish(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.extend([0; 1024]);
        bytes
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, name, "", content.as_bytes(), 0o644)
    }

    fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", b"", 0o755)
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, b"", 0o777)
    }

    fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, b"", 0o644)
    }

    fn entry(mut self, kind: EntryType, name: &str, link: &str, content: &[u8], mode: u32) -> Self {
        // What does not fit goes into an extended header, as with any other archive.
        if name.len() > 100 || link.len() > 100 {
            let records: Vec<(&str, &str)> = [("path", name), ("linkpath", link)]
                .into_iter()
                .filter(|(_, value)| value.len() > 100)
                .collect();
            let (short, link) = (&name[..name.len().min(100)], &link[..link.len().min(100)]);
            return self.extended(&records, |archive| archive.entry(kind, short, link, content, mode));
        }
        self.put(kind, name, link, mode, content.len() as u64, content);
        self
    }

    fn lying(mut self, name: &str, content: &[u8], size: u64) -> Self {
        self.put(EntryType::Regular, name, "", 0o644, size, content);
        self
    }

    fn put(&mut self, kind: EntryType, name: &str, link: &str, mode: u32, size: u64, content: &[u8]) {
        let mut header = tar::Header::new_gnu();
        let fields = header.as_gnu_mut().expect("it is one");
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(4242);
        header.set_gid(4242);
        header.set_mtime(1_000_000_000);
        header.set_size(size);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(1).expect("it fits");
            header.set_device_minor(5).expect("it fits");
        }
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn extended(mut self, records: &[(&str, &str)], entry: impl FnOnce(Self) -> Self) -> Self {
        let mut text = Vec::new();
        for (name, value) in records {
            let rest = format!(" {name}={value}\n");
            let mut length = rest.len() + 1;
            while format!("{length}{rest}").len() != length {
                length = format!("{length}{rest}").len();
            }
            text.extend(format!("{length}{rest}").into_bytes());
        }
        self.put(EntryType::XHeader, "extended", "", 0o644, text.len() as u64, &text);
        entry(self)
    }

    fn long_name(mut self, name: &str, content: &str) -> Self {
        let mut text = name.as_bytes().to_vec();
        text.push(0);
        self.put(EntryType::GNULongName, "././@LongLink", "", 0o644, text.len() as u64, &text);
        self.file("tree/honest", content)
    }

    /// A file of this size in the old format for files with holes, with one byte of content.
    fn sparse(mut self, name: &str, size: u64) -> Self {
        let mut header = tar::Header::new_gnu();
        let fields = header.as_gnu_mut().expect("it is one");
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.sparse[0].set_offset(size - 512);
        fields.sparse[0].set_length(512);
        fields.set_real_size(size);
        header.set_entry_type(EntryType::GNUSparse);
        header.set_mode(0o644);
        header.set_mtime(1_000_000_000);
        header.set_size(512);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend([b'x'; 512]);
        self
    }
}
