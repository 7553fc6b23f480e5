//! The examples of docs/cli.md, run in order in one shell: none may fail for a reason of Belljar's own, and what the
//! page shows as output of plain commands is what they print.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Examples that wait for a person or for a server's end.
const INTERACTIVE: [&str; 3] = [" -it ", "belljar attach ", "--follow"];

struct Example {
    command: String,
    shown: Vec<String>,
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match line.strip_prefix("$ ") {
                Some(command) => examples.push(Example { command: command.into(), shown: Vec::new() }),
                None => examples.last_mut().expect("output follows a command").shown.push(line.into()),
            },
        }
    }
    examples.retain(|example| !INTERACTIVE.iter().any(|mark| example.command.contains(mark)));
    examples
}

/// Ids, ages and times are examples; everything else is literal.
fn is_literal(line: &str) -> bool {
    !["bj-", "ID ", "MODE ", "-rw-"].iter().any(|mark| line.contains(mark))
}

#[test]
fn the_examples_of_the_command_line_page_work() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md")).unwrap();
    let examples = examples(&page);
    assert!(examples.len() > 20, "only {} examples were found", examples.len());
    let directory = tempfile::tempdir().unwrap();
    let work = directory.path().join("work");
    fs::create_dir_all(work.join("project")).unwrap();
    fs::write(work.join("analysis.py"), "print('analysed')\n").unwrap();
    fs::write(work.join("data.csv"), "a,b\n1,2\n").unwrap();
    let tool = "base = \"host\"\n[files]\n\"/usr/local/bin/tool\" = { text = \"#!/bin/sh\\necho a tool\\n\", mode = \"755\" }\n";
    fs::write(work.join("tools.toml"), tool).unwrap();
    fs::write(
        work.join("policy.toml"),
        "mode = \"allowlist\"\nallow = [\"*.example.org:8443\", \"GET,HEAD http://api.example.org/v1/*\"]\n\
         deny = [\"secrets.example.org\"]\nlimits = { connections = 64 }\n",
    )
    .unwrap();
    fs::write(work.join("project/Makefile"), "test:\n\ttrue\n").unwrap();
    let script = directory.path().join("examples.sh");
    // The page's create example brings in `project`; its exec example runs there, and leaves these two results.
    let mut text = String::from(
        "mkdir -p ~/.local/share/bash-completion/completions\nrun() { eval \"$1\"; s=$?; printf '\\n::%s\\n' $s; return $s; }\n",
    );
    for example in &examples {
        let command = example.command.replace("$id -- make test", "-w /home/user/project $id -- make test");
        if command.contains("$id:/home/user/results") {
            text += "belljar exec $id -- sh -c 'mkdir results; echo x > results/r; echo x > report.html'\n";
        }
        text += &format!("run {}\n", shell_quote(&command));
    }
    fs::write(&script, text).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_belljar"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .arg(&script)
        .current_dir(&work)
        .env("PATH", path)
        .env("HOME", directory.path())
        .env("BELLJAR_HOME", directory.path().join("data"))
        .output()
        .unwrap();
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let statuses: Vec<i32> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("::"))
        .map(|status| status.parse().unwrap())
        .collect();
    assert_eq!(statuses.len(), examples.len(), "{printed}");
    for (example, status) in examples.iter().zip(statuses) {
        assert!(!(125..=127).contains(&status), "`{}` ended with {status}:\n{printed}", example.command);
        for line in example.shown.iter().filter(|line| is_literal(line)) {
            assert!(
                printed.contains(line.as_str()),
                "`{}` did not print `{line}`:\n{printed}",
                example.command
            );
        }
    }
}

fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
