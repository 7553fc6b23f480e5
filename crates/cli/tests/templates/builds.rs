//! Recipes.

use std::fs;

use crate::Host;

const APP: &str = "\
FROM host AS build
ARG VERSION=1
WORKDIR /src
COPY app/ .
RUN echo built $VERSION > out && ls > listed && mkdir -p /data/deep && ln -s deep /data/link && touch /data/deep/file
FROM host
ENV GREETING=\"hi there\"
COPY --from=build /src/out /src/listed /opt/app/
COPY --from=build /data /data
COPY --chown=user:user --chmod=700 app/run.sh /home/user/run.sh
COPY <<EOF /opt/app/note
in the text
EOF
RUN [\"sh\", \"-c\", \"echo $GREETING > /opt/app/greeting; id -u > /opt/app/who\"]
USER user
WORKDIR /opt/app
RUN id -u > /home/user/who
ENTRYPOINT [\"cat\"]
CMD [\"out\", \"greeting\"]
";

fn app(host: &Host) {
    host.file("context/app/run.sh", "#!/bin/sh\necho ran\n");
    host.file("context/app/skip.log", "no");
    host.file("context/app/keep.log", "yes");
    host.file("context/.dockerignore", "**/*.log\n!app/keep.log\n");
}

#[test]
fn a_dockerfile_of_several_stages_is_built_and_run() {
    let host = Host::new();
    app(&host);
    let built = host.build("app", "context/Dockerfile", APP);
    assert_eq!(host.ok(&["run", "--template", "app"]), "built 1\nhi there\n");
    let seen = host.sh("app", "pwd; cat listed note who /home/user/who; stat -c '%a %U' /home/user/run.sh; ~/run.sh; readlink /data/link; test ! -e /src");
    assert_eq!(seen, "/opt/app\nkeep.log\nlisted\nout\nrun.sh\nin the text\n0\n1000\n700 user\nran\ndeep\n");

    // The same again is not done again, and another argument is another template.
    let file = host.directory.path().join("context/Dockerfile");
    let file = file.to_str().unwrap();
    let folder = host.directory.path().join("context");
    let build = [
        "template",
        "build",
        "app",
        folder.to_str().unwrap(),
        "--file",
        file,
        "--net",
        "none",
        "--disk",
        "1g",
    ];
    let again = host.belljar(&build);
    let steps = String::from_utf8(again.stderr).unwrap();
    for step in steps.lines().filter(|line| line.contains(" RUN ") || line.contains(" COPY ")) {
        assert!(step.ends_with("(done before)"), "{steps}");
    }
    assert_eq!(host.json(&build)["digest"], built["digest"]);
    let other = host.json(&[&build[..], &["--build-arg", "VERSION=2"]].concat());
    assert_ne!(other["digest"], built["digest"]);
    assert!(host.refused(&[&build[..], &["--build-arg", "NOTHING=2"]].concat()).contains("NOTHING"));
}

#[test]
fn the_same_recipe_makes_the_same_template_anywhere() {
    let digests = [(); 2].map(|()| {
        let host = Host::new();
        app(&host);
        host.build("app", "context/Dockerfile", APP)["digest"].as_str().unwrap().to_owned()
    });
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn a_small_recipe_is_built() {
    let host = Host::new();
    host.file("context/motd", "welcome\n");
    let recipe = "
base = \"host\"
run = [\"echo ran in $(pwd) >> /etc/motd\"]
working_directory = \"/srv\"
[files]
\"/etc/motd\" = \"motd\"
\"/opt/tool\" = { text = \"#!/bin/sh\\necho tool\\n\", mode = \"755\" }
[env]
NAME = \"value\"
";
    host.build("small", "context/template.toml", recipe);
    assert_eq!(
        host.sh("small", "pwd; cat /etc/motd; /opt/tool; echo $NAME"),
        "/srv\nwelcome\nran in /\ntool\nvalue\n"
    );
    let shown = host.json(&["template", "inspect", "small"]);
    assert_eq!(shown["settings"]["env"]["NAME"], "value");
    assert!(host.ok(&["template", "verify", "small"]).contains("are what they were"));
    // On top of it.
    host.build("smaller", "other/Dockerfile", "FROM small\nRUN rm /opt/tool\n");
    assert_eq!(host.sh("smaller", "ls /opt; echo $NAME"), "value\n");
}

#[test]
fn what_fails_is_said_with_its_line_and_leaves_nothing() {
    let host = Host::new();
    let refused = |name: &str, text: &str| {
        let file = host.file(&format!("{name}/Dockerfile"), text);
        let folder = file.trim_end_matches("/Dockerfile").to_owned();
        host.refused(&["template", "build", "bad", &folder, "--net", "none", "--disk", "1g"])
    };
    let cases = [
        ("FROM host\nRUN echo no >&2; exit 3\n", ["line 2", "status 3", "no"]),
        ("FROM host\n\nCOPY missing /x\n", ["line 3", "there is no `missing`", "hint"]),
        ("FROM nowhere\n", ["line 1", "no template or image `nowhere`", "import"]),
        ("FROM host\nVOLUME /data\n", ["line 2", "VOLUME", ""]),
        ("FROM host\nCOPY --chown=nobody-knows x /x\n", ["line 2", "nobody-knows", ""]),
    ];
    for (number, (text, expected)) in cases.into_iter().enumerate() {
        host.file(&format!("case{number}/x"), "");
        let complaint = refused(&format!("case{number}"), text);
        for word in expected {
            assert!(complaint.contains(word), "{text}: {complaint}");
        }
    }
    // A link does not lead out of the folder.
    host.file("secret", "hidden");
    fs::create_dir_all(host.directory.path().join("links")).unwrap();
    std::os::unix::fs::symlink("../secret", host.directory.path().join("links/way-out")).unwrap();
    let complaint = refused("links", "FROM host\nCOPY way-out /x\n");
    assert!(complaint.contains("leads out of the folder"), "{complaint}");
    assert!(host.json(&["template", "ls"])["templates"].as_array().unwrap().is_empty());
    assert_eq!(host.layers(), Vec::<String>::new());
    assert_eq!(fs::read_dir(host.home().join("sandboxes")).unwrap().count(), 0, "no sandbox is left");
}

#[test]
fn an_archive_that_is_added_is_unpacked_and_one_that_lies_is_refused() {
    let host = Host::new();
    let archive = |name: &str| {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o644);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, &b"abc"[..]).unwrap();
        builder.into_inner().unwrap()
    };
    host.file("context/good.tar", archive("inside"));
    host.file("context/bad.tar", archive("../../outside"));
    host.build("good", "context/Dockerfile", "FROM host\nADD good.tar /opt/\nCOPY good.tar /opt/\n");
    assert_eq!(host.sh("good", "cat /opt/inside; ls /opt"), "abcgood.tar\ninside\n");
    let file = host.file("context/Dockerfile", "FROM host\nADD bad.tar /opt/\n");
    let complaint = host.refused(&[
        "template",
        "build",
        "bad",
        file.trim_end_matches("/Dockerfile"),
        "--net",
        "none",
        "--disk",
        "1g",
    ]);
    assert!(complaint.contains("line 2") && complaint.contains("traversal"), "{complaint}");
}
