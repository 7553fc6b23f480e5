//! Templates through the built program and the real walls: built, taken in, kept, and changed by nobody. Needs root, as the walls do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod builds;
mod collected;
mod images;
mod installs;
mod snapshots;
#[path = "../surroundings/mod.rs"]
mod surroundings;
mod untouched;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A data directory of its own, and a place for files of the host.
struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests need root");
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Writes a file of the host, and tells its path.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(surroundings::belljar());
        command.args(words).current_dir(self.directory.path());
        command.env("BELLJAR_HOME", self.home()).env_remove("BELLJAR_LOG").stdin(Stdio::null());
        command
    }

    fn belljar(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs it, expects success, and tells what it said.
    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let output = self.belljar(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs it, expects failure, and tells what it complained of.
    #[track_caller]
    fn refused(&self, words: &[&str]) -> String {
        let output = self.belljar(words);
        assert!(!output.status.success(), "{words:?} went well: {}", said(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        let words = [words, &["--json", "--quiet"]].concat();
        serde_json::from_str(&self.ok(&words)).unwrap()
    }

    /// Runs a script of sh in a new sandbox of a template, and tells what it said.
    #[track_caller]
    fn sh(&self, template: &str, script: &str) -> String {
        self.ok(&["run", "--template", template, "--", "sh", "-c", script])
    }

    /// The same as root inside.
    #[track_caller]
    fn root_sh(&self, template: &str, script: &str) -> String {
        self.ok(&["run", "--template", template, "--user", "root", "--", "sh", "-c", script])
    }

    /// Builds a template from a text, in a folder of the host.
    #[track_caller]
    fn build(&self, name: &str, recipe: &str, text: &str) -> Value {
        let file = self.file(recipe, text);
        let folder = Path::new(&file).parent().unwrap().to_str().unwrap().to_owned();
        self.json(&["template", "build", name, &folder, "--file", &file, "--net", "none", "--disk", "1g"])
    }

    /// The layers that are kept.
    fn layers(&self) -> Vec<String> {
        let mut all: Vec<String> = fs::read_dir(self.home().join("layers/store"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "lock" && name != "chains")
            .collect();
        all.sort();
        all
    }

    /// Takes an archive in.
    fn import(&self, archive: &[u8], name: &str) -> Output {
        let mut command = self.command(&["template", "import", "-", name, "--quiet"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Whoever refuses it does not read on.
        let _ = child.stdin.take().unwrap().write_all(archive);
        child.wait_with_output().unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let listed = self.belljar(&["ls", "-a", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        for sandbox in listed["sandboxes"].as_array().unwrap_or(&Vec::new()) {
            if let Some(id) = sandbox["id"].as_str().or(sandbox["sandbox_id"].as_str()) {
                self.belljar(&["rm", "-f", id]);
            }
        }
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}
