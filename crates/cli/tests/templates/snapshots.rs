//! Files of sandboxes that are kept.

use crate::Host;

#[test]
fn what_a_sandbox_wrote_is_there_and_what_it_removed_is_not() {
    let host = Host::new();
    let id = host.ok(&["create", "--ttl", "5m", "--quiet"]).trim().to_owned();
    let script = "set -e; echo hi > x; ln -s x link; ln x hard; truncate -s 1M hole; mkfifo pipe; rm .profile; chmod 640 x";
    host.ok(&["exec", &id, "--", "sh", "-c", script]);
    let script = "set -e; echo r > /opt/r; rm /usr/bin/yes; mkdir /usr/share/new; rm -rf /usr/share/doc; mkdir /usr/share/doc";
    host.ok(&["exec", "--user", "root", &id, "--", "sh", "-c", script]);
    // Somebody who works on goes on afterwards.
    host.ok(&["exec", "-d", &id, "--", "sleep", "1000"]);
    let kept = host.json(&["snapshot", &id, "kept"]);
    assert_eq!(kept["ground"], "host");
    assert_eq!(host.json(&["inspect", &id])["sandbox"]["state"], "running");

    let seen = host
        .sh("kept", "cat x link; stat -c '%h %a %U' x; stat -c '%b %s' hole; ls -A /usr/share/doc | wc -l");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(&lines[..3], ["hi", "hi", "2 640 user"], "{seen}");
    assert_eq!(&lines[3..], ["0 1048576", "0"], "{seen}");
    host.sh("kept", "test -e /opt/r && test -d /usr/share/new && ! test -e /usr/bin/yes && ! test -e .profile && ! test -e pipe");
    // What is one's own in every sandbox is not kept.
    assert_ne!(
        host.sh("kept", "hostname; cat /etc/machine-id"),
        host.sh("kept", "hostname; cat /etc/machine-id")
    );

    // A snapshot of what was made from a snapshot has both.
    let second = host.ok(&["create", "--ttl", "5m", "--quiet", "--template", "kept"]).trim().to_owned();
    host.ok(&["exec", &second, "--", "sh", "-c", "rm x hard; echo more > y"]);
    assert_eq!(host.json(&["snapshot", &second, "more"])["layers"].as_array().unwrap().len(), 2);
    assert_eq!(host.sh("more", "cat y; ls"), "more\nhole\nlink\ny\n");

    // All of it can be looked at without starting it.
    assert_eq!(host.ok(&["template", "cat", "more", "/home/user/y"]), "more\n");
    assert!(host.refused(&["template", "cat", "more", "/home/user/x"]).contains("has no `/home/user/x`"));
    let listed = host.json(&["template", "files", "more", "/home/user"]);
    let names: Vec<&str> =
        listed["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["/home/user/hole", "/home/user/link", "/home/user/y"]);
    let diff = host.ok(&["template", "diff", "kept", "more"]);
    assert_eq!(diff, "D /home/user/hard\nD /home/user/x\nA /home/user/y\n");
    assert!(host.ok(&["template", "diff", "host", "kept"]).contains("A /opt/r\n"));
}

#[test]
fn what_cannot_be_kept_is_said() {
    let host = Host::new();
    let complaint = host.refused(&["snapshot", "bj-2222222222222", "x"]);
    assert!(complaint.contains("no sandbox"), "{complaint}");
    let id = host.ok(&["create", "--ttl", "5m", "--quiet"]).trim().to_owned();
    for bad in ["host", "UPPER", "../x", "a b", ".x"] {
        let complaint = host.refused(&["snapshot", &id, bad]);
        assert!(complaint.contains("host") || complaint.contains("cannot be the name"), "{bad}: {complaint}");
    }
    host.ok(&["pause", &id]);
    host.ok(&["snapshot", &id, "paused"]);
    assert_eq!(host.json(&["inspect", &id])["sandbox"]["state"], "paused", "it stands still as before");
    host.ok(&["kill", &id]);
    let complaint = host.refused(&["snapshot", &id, "x"]);
    assert!(complaint.contains("has ended"), "{complaint}");
    let complaint = host.refused(&["run", "--template", "x", "--", "true"]);
    assert!(complaint.contains("no template named `x`"), "{complaint}");
}
