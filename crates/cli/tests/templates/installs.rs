//! Dependency layers.

use crate::Host;

const STAMP: &str = "cat /proc/sys/kernel/random/uuid > stamp; cp wanted.txt had; cat wanted.txt > /dev/null";

fn run(host: &Host, more: &[&str]) -> String {
    let words = ["run", "--quiet", "--install", STAMP, "--install-file", "wanted.txt"];
    host.ok(&[&words[..], more, &["--", "sh", "-c", "cat stamp had; echo mine > stamp"]].concat())
}

#[test]
fn an_installation_is_done_once_for_the_same_files_and_variables() {
    let host = Host::new();
    host.file("wanted.txt", "one\n");
    let first = run(&host, &[]);
    assert!(first.ends_with("one\n"), "{first}");
    // What a sandbox writes there is its own.
    assert_eq!(run(&host, &[]), first);
    assert_ne!(run(&host, &["-e", "A=b"]), first, "other variables");
    host.file("wanted.txt", "two\n");
    let second = run(&host, &[]);
    assert!(second.ends_with("two\n") && second != first, "{second}");
    host.file("wanted.txt", "one\n");
    assert_eq!(run(&host, &[]), first, "it is still there");
    let id =
        host.ok(&["create", "--quiet", "--ttl", "1m", "--install", STAMP, "--install-file", "wanted.txt"]);
    assert_eq!(host.ok(&["exec", id.trim(), "--", "cat", "stamp", "had"]), first);
    // On another template it is another.
    host.build("other", "other/Dockerfile", "FROM host\nRUN echo x > /opt/x\n");
    let other = run(&host, &["--template", "other"]);
    assert_ne!(other, first);
    assert_eq!(run(&host, &["--template", "other"]), other);
}

#[test]
fn a_failed_installation_leaves_nothing_and_is_tried_again() {
    let host = Host::new();
    host.file("wanted.txt", "one\n");
    let line = "cp wanted.txt had; exit $(cat /proc/sys/kernel/random/entropy_avail > /dev/null; echo 7)";
    for _ in 0..2 {
        let complaint =
            host.refused(&["run", "--install", line, "--install-file", "wanted.txt", "--", "true"]);
        assert!(complaint.contains("--install") && complaint.contains("status 7"), "{complaint}");
    }
    assert_eq!(host.layers(), Vec::<String>::new());
    // Whoever made the folder does not choose which files of the host are read.
    std::os::unix::fs::symlink("/etc/hostname", host.directory.path().join("way-out")).unwrap();
    for bad in ["../wanted.txt", "/etc/passwd", "missing", "way-out"] {
        host.refused(&["run", "--install", "true", "--install-file", bad, "--", "true"]);
    }
}
