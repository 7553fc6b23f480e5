use proptest::prelude::*;

use super::*;

const WHOLE: &str = r##"base = "debian:bookworm"
run = ["make -C /opt/app", "ldconfig"]
user = "user"
working_directory = "/home/user"
preload = ["pandas", "os.path"]

[start]
command = "python3 -m http.server"
ready = ["curl", "-f", "localhost:8000"]

[files]
"/opt/x/run.sh" = { text = "#!/bin/sh\necho $HOME\n", mode = "755" }
"/etc/motd" = "motd.txt"
"/opt/app" = { source = "app", mode = "644", owner = "user:user" }

[packages]
npm = ["left-pad@1.3.0"]
pip = ["pandas==2.2.3", "numpy"]
apt = ["ripgrep=13.0.0-4+b2", "git"]

[env]
PATH = "/opt/bin:$PATH"
NAME = "value"
"##;

#[test]
fn a_whole_file() {
    insta::assert_debug_snapshot!("whole", template(WHOLE).unwrap());
}

#[test]
fn bases() {
    for (text, base) in [
        ("host", Base::Host),
        ("scratch", Base::Scratch),
        ("debian", Base::Debian(None)),
        ("debian:trixie", Base::Debian(Some("trixie".into()))),
        ("debian:12", Base::Image("debian:12".into())),
        ("debian:bookworm-slim", Base::Image("debian:bookworm-slim".into())),
        ("python:3.12", Base::Image("python:3.12".into())),
        ("mine", Base::Image("mine".into())),
    ] {
        let recipe = template(&format!("base = \"{text}\"")).unwrap();
        assert_eq!(recipe.stages[0].base, base);
        assert!(recipe.stages[0].steps.is_empty() && recipe.stages[0].wants.is_empty());
    }
}

#[test]
fn each_error_has_its_line() {
    for (rest, line, says) in [
        ("bas = 1", 2, "`bas` is unknown"),
        ("user = \"a\"\nzoo = 1\nbar = 2", 3, "`zoo` is unknown"),
        ("[packages]\ncargo = []", 3, "`cargo` is unknown"),
        ("[start]\ncommand = \"a\"\nwait = 1", 4, "`wait` is unknown"),
        ("[start]\nready = \"a\"", 2, "no `command`"),
        ("[start]\ncommand = \"\"", 3, "empty"),
        ("[start]\ncommand = []", 3, "no program"),
        ("[files]\n\"/a\" = { txt = \"\" }", 3, "`txt` is unknown"),
        ("[files]\n\"/a\" = { text = \"\", source = \"b\" }", 3, "either"),
        ("[files]\n\"/a\" = { mode = \"755\" }", 3, "either"),
        ("[files]\n\"/a\" = 7", 3, "neither"),
        ("[files]\n\"a\" = \"b\"", 3, "not an absolute path"),
        ("[files]\n\"/a\" = \"/etc/shadow\"", 3, "is an absolute path"),
        ("[files]\n\"/a\" = \"../b\"", 3, "leaves the folder"),
        ("[files]\n\"/a\" = \"\"", 3, "a source is empty"),
        ("[files]\n\"/a\" = { text = \"\", mode = 755 }", 3, "a mode is text"),
        ("[files]\n\"/a\" = { text = \"\", mode = \"999\" }", 3, "not a mode"),
        ("[files]\n\"/a\" = { text = \"\", owner = \"a b\" }", 3, "not a user"),
        ("[files]\n\"/a\" = \"b\"\nrun = [\"x\"]", 4, "`run` is no file"),
        ("[packages]\napt = [\n\"git\",\n\"-y\"]", 5, "`-y` is not a package for apt"),
        ("[packages]\npip = [\"pandas>=2\"]", 3, "not a package for pip"),
        ("[packages]\napt = \"git\"", 3, "a list"),
        ("[packages]\napt = [7]", 3, "text"),
        ("packages = 7", 2, "a table"),
        ("run = \"make\"", 2, "a list"),
        ("run = [\"\"]", 2, "empty"),
        ("run = [\"a\\u0000\"]", 2, "zero byte"),
        ("env = { \"A B\" = \"1\" }", 2, "not the name of a variable"),
        ("env = { A = 1 }", 2, "text"),
        ("user = \"-r\"", 2, "not a user"),
        ("working_directory = \"home\"", 2, "not an absolute path"),
        ("preload = [\"os\", \"a-b\"]", 2, "not a module"),
        ("preload = [\"a..b\"]", 2, "not a module"),
        ("user = \"a\"\nuser = \"b\"", 3, "duplicate"),
        ("user = ", 2, ""),
    ] {
        let text = format!("base = \"host\"\n{rest}\n");
        let wrong = template(&text).expect_err(&text);
        assert!(wrong.what.contains(says), "{text}: {wrong}");
        assert_eq!(wrong.line, line, "{text}: {wrong}");
    }
    for (text, says) in [
        ("", "`base` is missing"),
        ("user = \"a\"", "`base` is missing"),
        ("base = 7", "text"),
        ("base = \"\"", "not the name"),
        ("base = \"-x\"", "not the name"),
        ("base = \"a b\"", "not the name"),
        ("base = \"a\0\"", "zero byte"),
    ] {
        let wrong = template(text).expect_err(text);
        assert!(wrong.what.contains(says) && wrong.line == 1, "{text}: {wrong}");
    }
}

#[test]
fn a_setting_among_variables_is_told() {
    let recipe = template("base = \"host\"\n[env]\nA = \"1\"\nuser = \"me\"").unwrap();
    assert!(recipe.notes[0].starts_with("line 4: `user`"), "{:?}", recipe.notes);
    let recipe = template("base = \"host\"\n[env]\nA = \"$B\"\nPATH = \"/x:${PATH}\"").unwrap();
    assert!(recipe.notes[0].starts_with("line 4: `PATH`") && recipe.notes.len() == 1, "{:?}", recipe.notes);
}

#[test]
fn there_is_an_end_to_everything() {
    let long = format!("base = \"host\" #{}", "x".repeat(crate::MAX_TEXT));
    let steps = format!("base = \"host\"\nrun = [{}]", "\"x\",".repeat(MAX_INSTRUCTIONS + 1));
    let files: String = (0..20_000).map(|at| format!("\"/{at}\" = \"x\"\n")).collect();
    let files = format!("base = \"host\"\n[files]\n{files}");
    let deep = format!("base = {}", "[".repeat(100_000));
    for text in [long, steps, files, deep] {
        assert!(template(&text).unwrap_err().to_string().len() < 300);
    }
}

fn token() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "base",
        "run",
        "user",
        "working_directory",
        "preload",
        "env",
        "packages",
        "files",
        "start",
        "apt",
        "pip",
        "npm",
        "text",
        "source",
        "mode",
        "owner",
        "command",
        "ready",
        " = ",
        " = ",
        " = ",
        "\n",
        "\n",
        "\n",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"",
        "'",
        "\"/a\"",
        "\"a\"",
        "\"755\"",
        "[\"a\"]",
        "[env]\n",
        "[files]\n",
        "[packages]\n",
        "[start]\n",
        "\"host\"",
        "{ text = \"a\" }",
        "{ source = \"a\", mode = \"7\" }",
        "1",
        "true",
        ".",
        "#",
        "é",
        "\\",
        "\0",
        "\\u0000",
    ]);
    prop_oneof![20 => fixed.prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_read_panics(tokens in prop::collection::vec(token(), 0..40), begins in any::<bool>()) {
        let text = format!("{}{}", if begins { "base = \"host\"\n" } else { "" }, tokens.concat());
        match template(&text) {
            Ok(recipe) => prop_assert_eq!(recipe.stages.len(), 1),
            Err(wrong) => {
                prop_assert!(wrong.line >= 1 && wrong.line <= text.split('\n').count());
                prop_assert!(!wrong.what.contains('\n') && wrong.what.len() < 1000);
            }
        }
    }
}
