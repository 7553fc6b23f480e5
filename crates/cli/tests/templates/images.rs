//! Images of others.

use std::process::Command;

use sha2::{Digest, Sha256};

use crate::Host;

/// The files that a program needs, itself among them.
fn closure(program: &str) -> Vec<String> {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let libraries = listed.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned);
    [program.to_owned()].into_iter().chain(libraries).collect()
}

pub(crate) fn layer(entries: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    entries(&mut builder);
    builder.into_inner().unwrap()
}

pub(crate) fn put(builder: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    builder.append_data(&mut header, name, content).unwrap();
}

/// A layer with a shell and a few programs.
fn base() -> Vec<u8> {
    let mut files: Vec<String> =
        ["/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/id"].into_iter().flat_map(closure).collect();
    files.sort();
    files.dedup();
    layer(|builder| {
        for file in &files {
            put(builder, file.trim_start_matches('/'), 0o755, &std::fs::read(file).unwrap());
        }
        put(
            builder,
            "etc/passwd",
            0o644,
            b"root:x:0:0:root:/root:/bin/sh\napp:x:999:998::/srv/app:/bin/sh\n",
        );
        put(builder, "srv/gone", 0o644, b"gone");
        put(builder, "srv/old/a", 0o644, b"a");
    })
}

fn second() -> Vec<u8> {
    layer(|builder| {
        put(builder, "srv/.wh.gone", 0o644, b"");
        put(builder, "srv/old/.wh..wh..opq", 0o644, b"");
        put(builder, "srv/old/b", 0o644, b"b");
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o750);
        header.set_uid(999);
        header.set_gid(998);
        header.set_mtime(0);
        header.set_size(0);
        builder.append_data(&mut header, "srv/app", std::io::empty()).unwrap();
    })
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn config(layers: &[Vec<u8>], user: &str) -> Vec<u8> {
    let ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", sha(layer))).collect();
    serde_json::to_vec(&serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": { "Env": ["WHO=image"], "Cmd": ["cat", "/etc/passwd"], "WorkingDir": "/srv", "User": user },
        "rootfs": { "type": "layers", "diff_ids": ids },
    }))
    .unwrap()
}

/// As `docker save` writes it.
pub(crate) fn saved(layers: &[Vec<u8>], user: &str) -> Vec<u8> {
    layer(|builder| {
        let names: Vec<_> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
        for (name, layer) in names.iter().zip(layers) {
            put(builder, name, 0o644, layer);
        }
        put(builder, "config.json", 0o644, &config(layers, user));
        let manifest =
            serde_json::json!([{ "Config": "config.json", "RepoTags": ["x:latest"], "Layers": names }]);
        put(builder, "manifest.json", 0o644, &serde_json::to_vec(&manifest).unwrap());
    })
}

/// In the layout of OCI, with layers packed.
fn oci(layers: &[Vec<u8>], user: &str) -> Vec<u8> {
    use std::io::Write;
    let packed: Vec<Vec<u8>> = layers
        .iter()
        .map(|layer| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(layer).unwrap();
            encoder.finish().unwrap()
        })
        .collect();
    let config = config(layers, user);
    let descriptor = |kind: &str, bytes: &[u8]| serde_json::json!({ "mediaType": kind, "digest": format!("sha256:{}", sha(bytes)), "size": bytes.len() });
    let manifest = serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2,
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": packed.iter().map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", layer)).collect::<Vec<_>>(),
    }))
    .unwrap();
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [descriptor("application/vnd.oci.image.manifest.v1+json", &manifest)] });
    layer(|builder| {
        put(builder, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
        put(builder, "index.json", 0o644, &serde_json::to_vec(&index).unwrap());
        for blob in packed.iter().chain([&config, &manifest]) {
            put(builder, &format!("blobs/sha256/{}", sha(blob)), 0o644, blob);
        }
    })
}

#[test]
fn an_image_is_taken_in_and_runs() {
    let host = Host::new();
    let layers = [base(), second()];
    for (archive, name) in [(saved(&layers, ""), "saved"), (oci(&layers, ""), "library/oci:1.0")] {
        let output = host.import(&archive, name);
        assert!(output.status.success(), "{}", crate::said(&output));
        let seen = host.sh(name, "id -u; echo $WHO; ls /srv /srv/old; cat old/b");
        assert_eq!(seen, "0\nimage\n/srv:\napp\nold\n\n/srv/old:\nb\nb");
        assert!(host.ok(&["run", "--template", name]).starts_with("root:x:0:0"));
        // Root inside writes what it likes, and nobody else sees it.
        host.sh(name, "echo x > /new; echo y > /etc/passwd; echo z > /srv/old/b");
        assert_eq!(host.sh(name, "ls /new 2>/dev/null; cat /srv/old/b"), "b");
    }
    let [saved, oci] = ["saved", "library/oci:1.0"].map(|name| host.json(&["template", "inspect", name]));
    assert_eq!(saved["digest"], oci["digest"], "the same files and settings are the same template");
    // Somebody else than root.
    assert!(host.import(&crate::images::saved(&layers, "app"), "app").status.success());
    assert_eq!(
        host.sh("app", "id -u; id -g; echo $HOME $USER; cd /srv/app && echo can > it && cat it"),
        "999\n998\n/srv/app app\ncan\n"
    );
    assert!(host.import(&crate::images::saved(&layers, "nobody-knows"), "odd").status.success());
    assert!(host.refused(&["run", "--template", "odd", "--", "id"]).contains("nobody-knows"));
    // What is given out is the same where it is taken in.
    let archive = host.directory.path().join("out.tar");
    host.ok(&["template", "export", "app", archive.to_str().unwrap()]);
    let other = Host::new();
    assert!(other.import(&std::fs::read(&archive).unwrap(), "back").status.success());
    let [there, here] =
        [other.json(&["template", "inspect", "back"]), host.json(&["template", "inspect", "app"])];
    assert_eq!(there["digest"], here["digest"]);
    // A recipe on top of an image.
    host.build("on", "on/Dockerfile", "FROM saved\nRUN echo more > /srv/more\nUSER app\n");
    assert_eq!(host.sh("on", "id -u; cat /srv/more; echo $WHO"), "999\nmore\nimage\n");
}

#[test]
fn an_image_that_lies_is_refused_by_the_name_of_what_is_wrong() {
    let host = Host::new();
    let hostile: Vec<(&str, Vec<u8>)> = vec![
        ("traversal", layer(|builder| raw(builder, b"../../etc/x", tar::EntryType::Regular, b""))),
        ("device", layer(|builder| raw(builder, b"dev/sda", tar::EntryType::Block, b""))),
        ("special_file", layer(|builder| raw(builder, b"pipe", tar::EntryType::Fifo, b""))),
        ("hard_link", layer(|builder| raw(builder, b"shadow", tar::EntryType::Link, b"etc/shadow"))),
        (
            "duplicate",
            layer(|builder| {
                put(builder, "twice", 0o644, b"1");
                put(builder, "twice", 0o644, b"2");
            }),
        ),
    ];
    for (offence, bad) in hostile {
        let output = host.import(&saved(&[base(), bad], ""), "bad");
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && complaint.contains(offence), "{offence}: {complaint}");
    }
    // A layer that is another than the image says.
    let mut archive = saved(&[layer(|builder| put(builder, "opt/file", 0o644, b"as it was promised"))], "");
    let place = archive.windows(12).position(|bytes| bytes == b"as it was pr").unwrap();
    archive[place] = b'A';
    let complaint = String::from_utf8(host.import(&archive, "bad").stderr).unwrap();
    assert!(complaint.contains("digest"), "{complaint}");
    for garbage in [&b""[..], b"garbage", &[0; 4096]] {
        assert!(!host.import(garbage, "bad").status.success());
    }
    assert!(host.json(&["template", "ls"])["templates"].as_array().unwrap().is_empty());
    host.ok(&["template", "gc", "--all"]);
    assert_eq!(host.layers(), Vec::<String>::new());
}

fn raw(builder: &mut tar::Builder<Vec<u8>>, name: &[u8], kind: tar::EntryType, link: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    if kind == tar::EntryType::Block {
        header.set_device_major(8).unwrap();
        header.set_device_minor(0).unwrap();
    }
    header.set_cksum();
    builder.append(&header, std::io::empty()).unwrap();
}
