//! Builds the two static programs that every sandbox needs, so that they can be carried inside the one binary.
//!
//! They go to a target directory of their own: another profile, other flags, and no lock shared with the build that
//! waits for this script.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

const PROGRAMS: [(&str, &str); 2] = [("belljar-guest", "crates/guest"), ("belljar-jail", "crates/jail")];

fn main() {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let out_dir = PathBuf::from(variable("OUT_DIR"));
    let workspace = manifest_dir.ancestors().nth(2).expect("the crate lies two levels below the workspace");
    for path in ["Cargo.lock", "crates/core/Cargo.toml", "crates/core/src"] {
        watch(&workspace.join(path));
    }
    for (_, directory) in PROGRAMS {
        watch(&workspace.join(directory).join("Cargo.toml"));
        watch(&workspace.join(directory).join("src"));
    }
    let target = variable("TARGET");
    let ablation = env::var_os("CARGO_FEATURE_ABLATION").is_some();
    let profile = if ablation { "ablation" } else { "static" };
    // OUT_DIR is <target directory>/<profile>/build/<package>/out, with the triple between when one was asked for: either
    // way the programs are the same, and built once.
    let above = out_dir.ancestors().nth(4).expect("cargo's layout");
    let target_dir =
        if above.ends_with(&target) { above.parent().unwrap_or(above) } else { above }.join("static");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(workspace).args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        profile,
        "--target",
        &target,
    ]);
    for (program, _) in PROGRAMS {
        cargo.args(["-p", program, "--bin", program]);
        if ablation {
            cargo.arg("--features").arg(format!("{program}/ablation"));
        }
    }
    for name in
        ["RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS", "CLIPPY_ARGS"]
    {
        cargo.env_remove(name);
    }
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static");
    cargo.arg("--target-dir").arg(&target_dir);
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "building the static programs failed");
    for (program, _) in PROGRAMS {
        let built = target_dir.join(&target).join(profile).join(program);
        let bytes =
            std::fs::read(&built).unwrap_or_else(|error| panic!("cannot read {}: {error}", built.display()));
        let digest: String =
            Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(out_dir.join(program), bytes).expect("cargo's output directory can be written");
        println!("cargo::rustc-env={}={program}-{digest}", program.replace('-', "_").to_uppercase());
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

fn watch(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}
