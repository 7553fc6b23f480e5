use std::os::unix::fs::MetadataExt;

use belljar_core::NetworkPolicy;

use super::super::settings::testing::{PLANTED, plant};
use super::super::source::testing::FakeHost;
use super::*;

fn all_files(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push(path);
    }
    found
}

fn python_at(host: &FakeHost, prefix: &str) {
    host.write(&format!("{prefix}/bin/python3"), "", 0o755);
    let shim = format!("#!/bin/sh\necho {prefix}\necho {prefix}/bin/python3\necho 3.12.1\n");
    host.write("/opt/shims/python3", &shim, 0o755);
}

fn variable<'a>(template: &'a Template, name: &str) -> &'a str {
    template.env.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
}

#[test]
fn no_planted_secret_reaches_the_tree_the_environment_or_the_cache() {
    let host = FakeHost::new();
    plant(&host);
    let cache = tempfile::tempdir().unwrap();
    let source = host.source(&[
        ("PIP_INDEX_URL", "https://alice:hunter2@env.example/simple"),
        ("NPM_CONFIG__AUTHTOKEN", "npm_tok3n"),
        ("CARGO_REGISTRIES_X_TOKEN", "cargo_tok3n"),
        ("OPENAI_API_KEY", "hunter2"),
    ]);
    let template = resolve(&source, cache.path()).unwrap();
    let mut all = format!("{template:?}").into_bytes();
    for path in all_files(cache.path()) {
        all.extend(path.to_str().unwrap().bytes());
        if path.is_symlink() {
            all.extend(fs::read_link(&path).unwrap().to_str().unwrap().bytes());
        } else if path.is_file() {
            all.extend(fs::read(&path).unwrap());
        }
    }
    for planted in PLANTED {
        assert!(
            !all.windows(planted.len()).any(|window| window == planted.as_bytes()),
            "{planted} was found"
        );
    }
    let etc = template.root.join("etc");
    assert!(etc.join("java-17/ok.properties").is_file());
    assert!(etc.join("fonts/fonts.conf").is_file());
    assert!(fs::read_to_string(etc.join("pip.conf")).unwrap().contains("https://env.example/simple"));
    assert!(template.covered.contains(&"/usr/pip.conf".into()), "{:?}", template.covered);
    let ours = template.mounts.iter().find(|mount| mount.source.starts_with(cache.path()));
    assert_eq!(ours, None, "files of ours that several sandboxes would share");
}

#[test]
fn nothing_privileged_is_in_the_tree_and_everyone_can_pass() {
    let host = FakeHost::new();
    python_at(&host, "/home/ann/.pyenv/versions/3.12.1");
    host.write("/etc/perl/odd", "x", 0o6755);
    host.directory("/var/lib/dpkg");
    let cache = tempfile::tempdir().unwrap();
    let template = resolve(&host.source(&[]), cache.path()).unwrap();
    for path in all_files(&template.root) {
        let data = path.symlink_metadata().unwrap();
        let kind = data.file_type();
        assert!(kind.is_dir() || kind.is_file() || kind.is_symlink(), "{path:?}");
        assert_eq!(data.mode() & 0o6000, 0, "{path:?}");
        assert!(!kind.is_dir() || data.mode() & 0o755 == 0o755, "{path:?}");
    }
    let at = |path: &str| template.root.join(path);
    assert!(at("home/ann/.pyenv/versions/3.12.1").is_dir());
    assert!(at("var/lib/dpkg").is_dir());
    assert!(!at("etc/machine-id").exists() && !at("etc/hostname").exists() && !at("sys").exists());
    assert_eq!(fs::metadata(at("var/tmp")).unwrap().mode() & 0o7777, 0o1777);
    if rustix::process::geteuid().is_root() {
        let data = fs::metadata(at("home/user/.bashrc")).unwrap();
        assert_eq!((data.uid(), data.gid()), (1000, 1000));
        assert_eq!(fs::metadata(at("root")).unwrap().uid(), 0);
    }
}

#[test]
fn mounts_and_path_follow_what_was_found() {
    let host = FakeHost::new();
    python_at(&host, "/home/ann/.pyenv/versions/3.12.1");
    host.directory("/var/lib/dpkg");
    let cache = tempfile::tempdir().unwrap();
    let template = resolve(&host.source(&[]), cache.path()).unwrap();
    let mounts: Vec<_> =
        template.mounts.iter().map(|mount| (mount.target.to_str().unwrap(), mount.copy_on_write)).collect();
    let python = "/home/ann/.pyenv/versions/3.12.1";
    assert_eq!(mounts, [("/usr", true), ("/var/lib/dpkg", true), (python, true)]);
    assert_eq!(template.mounts[2].source, host.path(python));
    let bin = format!(":{python}/bin:/usr/local/sbin:");
    assert!(variable(&template, "PATH").contains(&bin), "{:?}", template.env);
    assert_eq!(variable(&template, "HOME"), "/home/user");
    assert_eq!(variable(&template, "SSL_CERT_FILE"), "", "this host has no certificates");
}

#[test]
fn merged_directories_are_links_and_others_are_mounts() {
    let host = FakeHost::new();
    host.directory("/sbin");
    host.directory("/usr/lib64");
    host.link("/lib64", "usr/lib64");
    let cache = tempfile::tempdir().unwrap();
    let template = resolve(&host.source(&[]), cache.path()).unwrap();
    for (name, target) in [("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        assert_eq!(fs::read_link(template.root.join(name)).unwrap(), Path::new(target));
    }
    assert!(template.root.join("sbin").is_dir());
    let sbin = template.mounts.iter().find(|mount| mount.target == Path::new("/sbin")).unwrap();
    assert!(sbin.copy_on_write);
    assert!(!template.root.join("lib32").exists());
}

#[test]
fn second_call_starts_no_program() {
    let host = FakeHost::new();
    python_at(&host, "/opt/py/3.12.1");
    let log = host.path("/log");
    let shim = host.path("/opt/shims/python3");
    let script = fs::read_to_string(&shim).unwrap();
    fs::write(&shim, script + &format!("echo asked >> {}\n", log.display())).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let first = resolve(&host.source(&[]), cache.path()).unwrap();
    assert_eq!(resolve(&host.source(&[]), cache.path()).unwrap(), first);
    assert_eq!(fs::read_to_string(&log).unwrap(), "asked\n");

    resolve(&host.source(&[("PYENV_VERSION", "3.9")]), cache.path()).unwrap();
    assert_eq!(fs::read_to_string(&log).unwrap(), "asked\nasked\n", "another variable is another question");
}

#[test]
fn changes_of_the_host_are_noticed() {
    let host = FakeHost::new();
    let cache = tempfile::tempdir().unwrap();
    let before = resolve(&host.source(&[]), cache.path()).unwrap();
    host.write("/home/ann/.npmrc", "registry=https://new.example/\n", 0o600);
    let after = resolve(&host.source(&[]), cache.path()).unwrap();
    assert_ne!(before.digest, after.digest);
    assert_eq!(after.package_sources[0].url, "https://new.example/");
    python_at(&host, "/opt/py/3.12.1");
    assert_eq!(resolve(&host.source(&[]), cache.path()).unwrap().interpreters.len(), 1);
}

#[test]
fn sets_in_a_policy_are_resolved_or_refused() {
    let host = FakeHost::new();
    host.write("/etc/pip.conf", "[global]\nindex-url = https://u:p@mirror.example:8443/simple\n", 0o644);
    let cache = tempfile::tempdir().unwrap();
    let template = resolve(&host.source(&[]), cache.path()).unwrap();
    assert_eq!(resolve(&host.source(&[]), cache.path()).unwrap().sets(), template.sets());
    let policy = |json: &str| serde_json::from_str::<NetworkPolicy>(json).unwrap();
    let expanded = template.expand(&policy(r#"{"mode": "allowlist", "allow": ["pypi", "a.org"]}"#)).unwrap();
    assert_eq!(expanded.to_string(), "allowlist; allow mirror.example:8443 private, a.org");
    let expanded = template.expand(&policy(r#"{"mode": "open", "deny": ["pypi"]}"#)).unwrap();
    assert_eq!(expanded.to_string(), "open; deny mirror.example:8443");
    assert_eq!(template.expand(&NetworkPolicy::None).unwrap(), NetworkPolicy::None);
    for json in [r#"{"mode": "allowlist", "allow": ["npm"]}"#, r#"{"mode": "open", "deny": ["npm"]}"#] {
        let error = template.expand(&policy(json)).unwrap_err();
        assert!(error.message.contains("`npm`"), "{error}");
        assert!(error.hint.is_some_and(|hint| hint.contains("--allow packages.example.org")));
    }
}

#[test]
fn damaged_tree_is_replaced() {
    let host = FakeHost::new();
    let cache = tempfile::tempdir().unwrap();
    let template = resolve(&host.source(&[]), cache.path()).unwrap();
    fs::write(template.root.join("etc/passwd"), "").unwrap();
    fs::remove_file(cache.path().join("host.json")).unwrap();
    assert_eq!(resolve(&host.source(&[]), cache.path()).unwrap(), template);
    assert!(fs::read_to_string(template.root.join("etc/passwd")).unwrap().contains("user:x:1000"));
}

#[test]
fn concurrent_calls_agree_and_leave_nothing_behind() {
    let host = FakeHost::new();
    python_at(&host, "/opt/py/3.12.1");
    let cache = tempfile::tempdir().unwrap();
    let answers: Vec<Template> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| resolve(&host.source(&[]), cache.path()).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let mut names: Vec<_> = fs::read_dir(cache.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected = vec![answers[0].digest.clone(), "host.json".to_owned()];
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn host_without_usr_or_shell_is_an_error() {
    let host = FakeHost::new();
    let cache = tempfile::tempdir().unwrap();
    fs::remove_file(host.path("/usr/bin/bash")).unwrap();
    assert!(matches!(resolve(&host.source(&[]), cache.path()), Err(TemplateError::MissingShell)));
    fs::remove_dir_all(host.path("/usr")).unwrap();
    assert!(matches!(resolve(&host.source(&[]), cache.path()), Err(TemplateError::MissingDirectory { .. })));
}
