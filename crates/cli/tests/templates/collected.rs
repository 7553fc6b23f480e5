//! What nobody refers to goes, and nothing else, whoever is killed meanwhile.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::Host;
use crate::images::{layer, put, saved};

fn image(seed: usize) -> Vec<u8> {
    let files = layer(|builder| {
        for number in 0..400 {
            put(
                builder,
                &format!("opt/{seed}/{number}"),
                0o644,
                format!("{seed} {number}").repeat(50).as_bytes(),
            );
        }
    });
    saved(&[files], "")
}

#[test]
fn what_is_referred_to_stays() {
    let host = Host::new();
    for (seed, name) in ["one", "two", "three"].into_iter().enumerate() {
        assert!(host.import(&image(seed), name).status.success());
    }
    // The same under another name.
    assert!(host.import(&image(0), "again").status.success());
    assert_eq!(host.layers().len(), 3);
    host.ok(&["template", "gc", "--all"]);
    assert_eq!(host.layers().len(), 3, "all have names");
    host.build("on-host", "c/Dockerfile", "FROM host\nRUN echo x > /opt/x\n");
    let id = host.ok(&["create", "--quiet", "--ttl", "2m", "--template", "on-host"]).trim().to_owned();
    host.ok(&["template", "rm", "one", "two", "on-host"]);
    let gone = host.json(&["template", "gc", "--all"]);
    assert_eq!(
        gone["layers"].as_array().unwrap().len(),
        1,
        "{gone}: `one` has another name, and a sandbox runs"
    );
    assert_eq!(host.ok(&["exec", &id, "--", "cat", "/opt/x"]), "x\n");
    host.ok(&["rm", "-f", &id]);
    assert_eq!(host.json(&["template", "gc", "--all"])["layers"].as_array().unwrap().len(), 1);
    assert_eq!(host.layers().len(), 2);
    assert!(host.refused(&["template", "rm", "one"]).contains("no template `one`"));
}

/// Steps of builds are kept for a while, named or not.
#[test]
fn steps_are_kept_until_nobody_needed_them_for_a_while() {
    let host = Host::new();
    host.build("a", "c/Dockerfile", "FROM host\nRUN echo x > /opt/x\nRUN echo y > /opt/y\n");
    host.ok(&["template", "rm", "a"]);
    assert_eq!(host.json(&["template", "gc"])["layers"].as_array().unwrap().len(), 0);
    assert_eq!(host.layers().len(), 2);
    let gone = host.json(&["template", "gc", "--all"]);
    assert_eq!((gone["layers"].as_array().unwrap().len(), gone["steps"].as_u64()), (2, Some(2)));
    assert_eq!(host.layers(), Vec::<String>::new());
}

#[test]
fn whoever_is_killed_leaves_nothing_that_is_not_collected() {
    let host = Host::new();
    assert!(host.import(&image(0), "kept").status.success());
    host.build("built", "kept/Dockerfile", "FROM host\nRUN echo x > /opt/x\n");
    let expected = host.layers();
    let archive = host.file("image.tar", image(1));
    let recipe =
        host.file("killed/Dockerfile", "FROM host\nRUN seq 1 200000 > /opt/numbers\nRUN echo z > /opt/z\n");
    let folder = recipe.trim_end_matches("/Dockerfile");
    let works: [&[&str]; 3] = [
        &["template", "import", &archive, "killed", "--quiet"],
        &["template", "build", "killed", folder, "--net", "none", "--disk", "1g", "--no-cache", "--quiet"],
        &["template", "gc", "--all", "--quiet"],
    ];
    for words in works {
        let begun = Instant::now();
        host.ok(words);
        let whole = begun.elapsed();
        for part in 1..8 {
            let mut child = host.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // Each at another moment of its life.
            std::thread::sleep(whole * part / 8);
            let _ = child.kill();
            child.wait().unwrap();
        }
        let _ = host.belljar(&["template", "rm", "killed"]);
        // A sandbox of the build ends by itself.
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            host.ok(&["template", "gc", "--all", "--quiet"]);
            let left = host.layers();
            if left == expected {
                break;
            }
            assert!(Instant::now() < until, "{words:?}: {left:?}");
        }
        for name in ["kept", "built"] {
            host.ok(&["template", "verify", name]);
        }
    }
    let strays = |directory: &str| fs::read_dir(host.home().join("layers").join(directory)).unwrap().count();
    assert_eq!((strays("names"), strays("results")), (2, 0));
}
