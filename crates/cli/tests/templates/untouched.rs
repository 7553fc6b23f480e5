//! Nothing that a sandbox does changes its template, or reaches a later sandbox.

use crate::Host;

/// What sandboxes try, as root inside, and what the next one must not see.
const TRIES: [(&str, &str, &str); 12] = [
    ("a file is changed", "echo evil >> /opt/own/file", "cat /opt/own/file"),
    ("a file is removed", "rm /opt/own/file", "cat /opt/own/file"),
    ("a file is replaced", "echo evil > /tmp/x; mv /tmp/x /opt/own/file", "cat /opt/own/file"),
    ("rights are changed", "chmod 777 /opt/own /opt/own/file", "stat -c %a /opt/own /opt/own/file"),
    ("an owner is changed", "chown 1234 /opt/own/file", "stat -c %u /opt/own/file"),
    ("a time is changed", "touch -d 2001-01-01 /opt/own/file", "stat -c %Y /opt/own/file"),
    (
        "an attribute is set",
        "setfattr -n user.x -v y /opt/own/file || python3 -c 'import os; os.setxattr(\"/opt/own/file\", \"user.x\", b\"y\")'",
        "python3 -c 'import os; print(os.listxattr(\"/opt/own/file\"))'",
    ),
    (
        "python starts something",
        "d=$(python3 -c 'import site; print(site.getsitepackages()[0])'); echo 'print(\"evil\")' > $d/sitecustomize.py; echo 'import sys; print(\"evil\")' > $d/evil.pth",
        "python3 -c 'print(1)'",
    ),
    (
        "the linker loads something",
        "echo /opt/own/file > /etc/ld.so.preload",
        "ls /etc/ld.so.preload 2>&1; echo",
    ),
    ("a program is replaced", "printf '#!/bin/sh\\necho evil\\n' > /usr/bin/id", "id -u"),
    ("a marker is left that hides files", "rm -rf /opt/own; mkdir /opt/own", "ls /opt/own"),
    (
        "a program of the template is bound over",
        "mount --bind /etc/passwd /opt/own/file; mknod /opt/own/null c 1 3",
        "ls -l /opt/own; cat /opt/own/file",
    ),
];

#[test]
fn nothing_reaches_the_template_or_the_next_sandbox() {
    let host = Host::new();
    host.build("own", "own/Dockerfile", "FROM host\nRUN mkdir /opt/own && echo good > /opt/own/file\n");
    for (what, attack, look) in TRIES {
        let before = host.root_sh("own", look);
        // Whether it is let or not is no matter here.
        host.belljar(&["run", "--template", "own", "--user", "root", "--", "sh", "-c", attack]);
        assert_eq!(host.root_sh("own", look), before, "{what}");
    }
    assert!(host.ok(&["template", "verify", "own"]).contains("are what they were"));
}

#[test]
fn locks_are_not_shared() {
    let host = Host::new();
    host.build("own", "own/Dockerfile", "FROM host\nRUN echo good > /opt/file\n");
    let [first, second] = [(); 2]
        .map(|()| host.ok(&["create", "--quiet", "--ttl", "2m", "--template", "own"]).trim().to_owned());
    let take = "import fcntl, time; f = open('/opt/file'); fcntl.flock(f, fcntl.LOCK_EX); print('had', flush=True); time.sleep(100)";
    host.ok(&["exec", "-d", &first, "--", "python3", "-c", take]);
    let other = "import fcntl; fcntl.flock(open('/opt/file'), fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')";
    // In the same sandbox it is taken, once the first has it.
    let taken = || !host.belljar(&["exec", &first, "--", "python3", "-c", other]).status.success();
    while !taken() {}
    assert_eq!(host.ok(&["exec", &second, "--", "python3", "-c", other]), "free\n");
}
