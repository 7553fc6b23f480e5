use proptest::prelude::*;

use super::*;
use crate::model::{Action, Origin};

fn args<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn read(text: &str) -> Recipe {
    dockerfile(text, &BTreeMap::new()).unwrap_or_else(|wrong| panic!("{text}: {wrong}"))
}

/// The actions of the last stage.
fn actions(text: &str) -> Vec<Action> {
    let mut recipe = read(text);
    recipe.stages.pop().unwrap().steps.into_iter().map(|step| step.action).collect()
}

/// The last argument of the last command, which is the line that a shell gets.
fn script(text: &str) -> String {
    match actions(text).pop() {
        Some(Action::Run { mut command, .. } | Action::Command(mut command)) => command.pop().unwrap(),
        other => panic!("{text}: {other:?}"),
    }
}

fn one_env(text: &str, given: &BTreeMap<String, String>) -> String {
    let mut recipe = dockerfile(text, given).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
    match recipe.stages.pop().unwrap().steps.pop().unwrap().action {
        Action::Env(mut pairs) => pairs.pop().unwrap().1,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn a_python_web_application() {
    let text = include_str!("tests/python.Dockerfile");
    let recipe = read(text);
    assert!(recipe.stages[0].wants.contains("PATH"));
    insta::assert_debug_snapshot!("python", recipe);

    let base = Known {
        env: args([("PATH", "/usr/local/bin:/bin"), ("LANG", "C.UTF-8")]),
        working_directory: None,
        shell: None,
    };
    let bases = BTreeMap::from([(Base::Image("python:3.12-slim".into()), base)]);
    let again = dockerfile_on(text, &BTreeMap::new(), &bases).unwrap();
    assert!(again.stages[0].wants.is_empty());
    let path = again.stages[0].steps[2].action.clone();
    assert_eq!(path, Action::Env(vec![("PATH".into(), "/opt/venv/bin:/usr/local/bin:/bin".into())]));
}

#[test]
fn a_node_application_with_a_native_module() {
    let recipe = dockerfile(include_str!("tests/node.Dockerfile"), &args([("NODE", "22")])).unwrap();
    assert_eq!(recipe.needed().into_iter().collect::<Vec<_>>(), [0, 1, 3], "nothing needs the third");
    insta::assert_debug_snapshot!("node", recipe);
}

#[test]
fn an_image_for_data_science() {
    let recipe = dockerfile(include_str!("tests/science.Dockerfile"), &args([("PANDAS", "2.2.3")])).unwrap();
    insta::assert_debug_snapshot!("science", recipe);
}

#[test]
fn each_error_has_its_line() {
    for (text, line, says) in [
        ("", 1, "no FROM"),
        ("# only this", 1, "no FROM"),
        ("ARG A=1", 1, "no FROM"),
        ("FROM a\nRUN x\0", 2, "zero byte"),
        ("\nRUN x", 2, "before the first FROM"),
        ("FROM", 1, "says nothing"),
        ("FROM a b", 1, "not understood"),
        ("FROM a AS", 1, "not understood"),
        ("FROM a AS b c", 1, "not understood"),
        ("FROM $BASE", 1, "nothing is left"),
        ("FROM -a", 1, "not the name"),
        ("FROM a$(id)", 1, "not the name"),
        ("FROM --platform=linux/arm64 a", 1, "platform `linux/arm64`"),
        ("FROM --platform a", 1, "platform ``"),
        ("FROM --pull a", 1, "no option --`pull`"),
        ("FROM a AS 0", 1, "not the name of a stage"),
        ("FROM a AS host", 1, "no stage can be called"),
        ("FROM a AS x\nFROM b AS X", 2, "line 1 is called `x`"),
        ("FROM a\nFRUN x", 2, "`FRUN` is not an instruction"),
        ("FROM a\n\n# c\nRUN", 4, "says nothing"),
        ("FROM a\nRUN []", 2, "no program"),
        ("FROM a\nRUN [\"\"]", 2, "no program"),
        ("FROM a\nRUN --mount=type=secret,id=x cat", 2, "type `secret`"),
        ("FROM a\nRUN --mount=type=ssh x", 2, "type `ssh`"),
        ("FROM a\nRUN --mount=source=a,target=b x", 2, "type `bind`"),
        ("FROM a\nRUN --mount=target=b,type=tmpfs x", 2, "type `tmpfs`"),
        ("FROM a\nRUN --network=none x", 2, "--`network`"),
        ("FROM a\nRUN --security=insecure x", 2, "--`security`"),
        ("FROM a\nRUN <<EOF\nx", 2, "ends before `EOF`"),
        ("FROM a\nRUN <<EOF\nx\n EOF", 2, "ends before `EOF`"),
        ("FROM a\nRUN <<EOF\n#!/usr/bin/python3\nEOF", 2, "own interpreter"),
        ("FROM a\nVOLUME /data", 2, "VOLUME"),
        ("FROM a\nRUN a \\\n b \\\n c\nONBUILD RUN x", 5, "ONBUILD"),
        ("FROM a\nRUN <<E\n1\n2\nE\nVOLUME x", 6, "VOLUME"),
        ("FROM a\nSHELL /bin/bash -c", 2, "not a list"),
        ("FROM a\nSHELL []", 2, "not a list"),
        ("FROM a\nCOPY x", 2, "source and a target"),
        ("FROM a\nCOPY [\"x\"]", 2, "source and a target"),
        ("FROM a\nCOPY x y z", 2, "several sources"),
        ("FROM a\nCOPY ../x /y", 2, "leaves the folder"),
        ("FROM a\nCOPY a/../../x /y", 2, "leaves the folder"),
        ("FROM scratch\nCOPY $NO /y", 2, "a source is empty"),
        ("FROM scratch\nCOPY x $NO", 2, "a target is empty"),
        ("FROM a\nCOPY --parents x y", 2, "--`parents`"),
        ("FROM a\nCOPY --exclude=a x y", 2, "--`exclude`"),
        ("FROM a\nCOPY --chmod=u+x x y", 2, "not a mode"),
        ("FROM a\nCOPY --chmod=77777 x y", 2, "not a mode"),
        ("FROM a\nCOPY --chmod x y", 2, "no value"),
        ("FROM a\nCOPY --chown=a:b:c x y", 2, "not a user"),
        ("FROM a\nCOPY --chown=a --chown=b x y", 2, "twice"),
        ("FROM a\nCOPY --from=0 x y", 2, "not an earlier stage"),
        ("FROM a AS b\nCOPY --from=b x y", 2, "not an earlier stage"),
        ("FROM a\nFROM b\nCOPY --from=7 x y", 3, "not an earlier stage"),
        ("FROM a\nCOPY --from=$B x y", 2, "no variables"),
        ("FROM a\nCOPY --from=host x y", 2, "nothing can be copied"),
        ("FROM a\nCOPY --from=b <<E /x\nE", 2, "no other stage"),
        ("FROM a\nCOPY <<../E /x/\n../E", 2, "name of a file"),
        ("FROM a\nCOPY x <<E\nE", 2, "no place"),
        ("FROM a\nADD https://example.org/x /y", 2, "is not in the folder"),
        ("FROM a\nADD git@example.org:a/b.git /y", 2, "is not in the folder"),
        ("FROM a\nADD --checksum=x a b", 2, "--`checksum`"),
        ("FROM a\nADD --from=x a b", 2, "--`from`"),
        ("FROM a\nENV A", 2, "has no value"),
        ("FROM a\nENV A=1 B", 2, "`B` has no value"),
        ("FROM a\nENV =1", 2, "is not a name"),
        ("FROM a\nENV A='x", 2, "single quote"),
        ("FROM a\nENV A=${B", 2, "brace"),
        ("FROM scratch\nENV A=\"${B:?is needed}\"", 2, "is needed"),
        ("FROM a\nENV \"A B\"=1", 2, "not the name of a variable"),
        ("FROM a\nENV --x A=1", 2, "takes no options"),
        ("FROM a\nARG 1A=2", 2, "not the name of a variable"),
        ("FROM a\nARG =2", 2, "not the name of a variable"),
        ("FROM a\nUSER a b", 2, "not a user"),
        ("FROM scratch\nUSER $NO", 2, "not a user"),
        ("FROM scratch\nWORKDIR $NO", 2, "target is empty"),
        ("# escape=x\nFROM a", 1, "not an escape"),
        ("# escape=`\n# escape=`\nFROM a", 2, "twice"),
        ("FROM a\r\nRUN x \\\r\n y\r\nVOLUME z\r\n", 4, "VOLUME"),
    ] {
        let wrong = dockerfile(text, &BTreeMap::new()).expect_err(text);
        assert!(wrong.what.contains(says), "{text:?}: {wrong}");
        assert_eq!(wrong.line, line, "{text:?}: {wrong}");
        assert!(wrong.to_string().starts_with(&format!("line {line}: ")));
    }
    let wrong = dockerfile("FROM a\nARG A", &args([("A", "1"), ("B", "2")])).unwrap_err();
    assert!(wrong.what.contains("`B`"), "{wrong}");
    let wrong = dockerfile("FROM a", &args([("HTTP_PROXY", "x")])).unwrap_err();
    for (name, value) in
        [("A", "\0".to_owned()), ("A", "x".repeat(MAX_EXPANSION + 1)), ("A B", "1".to_owned())]
    {
        let given = BTreeMap::from([(name.to_owned(), value)]);
        let wrong = dockerfile("FROM a\nARG A", &given).unwrap_err();
        assert!(wrong.to_string().len() < 300, "{wrong}");
    }
    let error = belljar_core::Error::from(wrong);
    assert!(error.message.contains("HTTP_PROXY") && error.hint.is_some());
}

#[test]
fn arguments_are_known_where_they_are_declared() {
    let given = args([("A", "given")]);
    for (text, without, with) in [
        ("ARG A=1\nFROM a\nENV X=$A", "", ""),
        ("ARG A=1\nFROM a\nARG A\nENV X=$A", "1", "given"),
        ("ARG A=1\nFROM a\nARG A=2\nENV X=$A", "2", "given"),
        ("FROM a\nENV X=$A\nARG A=2\nENV X=$X", "", ""),
        ("FROM a\nARG A=2\nENV A=3\nENV X=$A", "3", "3"),
        ("FROM a\nENV A=3\nARG A=2\nENV X=$A", "3", "3"),
        ("FROM a\nARG A=2\nARG A\nENV X=$A", "2", "given"),
        ("FROM a\nARG A=2\nFROM b\nENV X=$A", "", ""),
        ("FROM a AS b\nARG A=2\nFROM b\nENV X=$A", "2", "given"),
        ("FROM a AS b\nENV A=2\nFROM b\nARG A\nENV X=$A", "2", "2"),
        ("ARG A=1\nARG B=b$A\nFROM a\nARG B\nENV X=$B", "b1", "bgiven"),
        ("ARG A=1 B=b$A\nFROM a\nARG B\nENV X=$B", "b1", "bgiven"),
        ("FROM a\nARG A=\"two words\" B='$A'\nENV X=$A$B", "two words$A", "given$A"),
        ("FROM a\nARG A\nARG TARGETARCH\nENV X=$TARGETARCH", "amd64", "amd64"),
        ("FROM a\nARG A\nENV X=$TARGETARCH", "", ""),
        ("FROM a\nARG A\nENV B=1\nENV B=2 X=$B", "1", "1"),
    ] {
        assert_eq!(one_env(text, &BTreeMap::new()), without, "{text}");
        assert_eq!(one_env(text, &given), with, "{text}");
    }
    let recipe = dockerfile("ARG A=x\nARG B=a:$A\nFROM $B AS first\nFROM ${C:-First}", &given).unwrap();
    assert_eq!(recipe.stages[0].base, Base::Image("a:given".into()));
    assert_eq!(recipe.stages[1].base, Base::Stage(0));
    let steps = actions("FROM a\nARG A=1 B=2 C\nENV B=3\nRUN x");
    let Some(Action::Run { args, .. }) = steps.last() else { panic!("{steps:?}") };
    assert_eq!(args, &[("A".to_owned(), "1".to_owned())]);
}

#[test]
fn lines_go_on() {
    for (text, becomes) in [
        ("FROM a\nRUN a b", "a b"),
        ("FROM a\nrun a \\\n  b", "a   b"),
        ("FROM a\nRUN a \\  \n b", "a  b"),
        ("FROM a\nRUN a \\\n# comment\n  # another \\\n\n b", "a  b"),
        ("FROM a\nRUN a # not a comment", "a # not a comment"),
        ("FROM a\nRUN a \\\\\nENV X=1\nRUN b", "b"),
        ("FROM a\nRUN a \\", "a"),
        ("FROM a\n  RUN \\\n a", "a"),
        ("FROM a\nRUN\ta", "a"),
        ("\u{feff}FROM a\nRUN a", "a"),
        ("# escape=`\nFROM a\nRUN a `\n\\b", "a \\b"),
        ("# syntax=x\n# escape=`\nFROM a\nRUN a `\nb", "a b"),
        ("# a comment\n# escape=`\nFROM a\nRUN a \\\nb", "a b"),
        ("\n# escape=`\nFROM a\nRUN a \\\nb", "a b"),
        ("FROM a\r\nRUN a \\\r\n b\r\n", "a  b"),
        ("FROM a\nRUN echo $X ${Y} \"\\$Z\"", "echo $X ${Y} \"\\$Z\""),
        ("FROM a\nRUN [ -f /x ] && y", "[ -f /x ] && y"),
        ("FROM a\nRUN [\"a\", \"b c\"]", "b c"),
        ("FROM a\nCMD ['a', 'b']", "['a', 'b']"),
        ("FROM a\nRUN -- --x", "--x"),
        ("FROM a\nRUN <<EOF\na\n  b\n# c\nEOF", "a\n  b\n# c\n"),
        ("FROM a\nRUN <<-EOF\n\ta\n\t\tb\n\tEOF", "a\nb\n"),
        ("FROM a\nRUN <<-'EOF'\n\ta $X\n\tEOF", "a $X\n"),
        ("FROM a\nRUN cat <<A <<B\n1\nA\n2\nB", "cat <<A <<B\n1\nA\n2\nB"),
        ("FROM a\nRUN <<A bash -e\n1\nA", "<<A bash -e\n1\nA"),
        ("FROM a\nRUN cat <<<\"$X\"", "cat <<<\"$X\""),
        ("FROM a\nRUN echo $((1<<2)) '<<EOF'", "echo $((1<<2)) '<<EOF'"),
        ("FROM a\nRUN [\"a\", \"<<EOF\"]", "<<EOF"),
        ("FROM a\nRUN <<EOF\r\na\r\nEOF\r\n", "a\r\n"),
    ] {
        assert_eq!(script(text), becomes, "{text:?}");
    }
    assert_eq!(read("FROM a\nCMD ['a']").notes.len(), 1);
    assert!(read("FROM a\nRUN [ -f x ]").notes.is_empty());
}

#[test]
fn directories_lead_on_from_the_last() {
    for (text, becomes) in [
        ("FROM a\nWORKDIR /x", "/x"),
        ("FROM a\nWORKDIR x", "x"),
        ("FROM a\nWORKDIR x\nWORKDIR y", "y"),
        ("FROM a\nWORKDIR /x\nWORKDIR y/../z/", "/x/z"),
        ("FROM a\nWORKDIR /x\nWORKDIR ../../..", "/"),
        ("FROM a\nWORKDIR x\nWORKDIR /y\nWORKDIR z", "/y/z"),
        ("FROM scratch\nWORKDIR x", "/x"),
        ("FROM a AS b\nWORKDIR /x\nFROM b\nWORKDIR y", "/x/y"),
        ("FROM a\nENV D=/d\nWORKDIR \"$D/a b\"", "/d/a b"),
    ] {
        assert_eq!(actions(text).pop(), Some(Action::WorkingDirectory(becomes.into())), "{text}");
    }
    let known = Known { working_directory: Some("/home".into()), ..Known::default() };
    let bases = BTreeMap::from([(Base::Host, known)]);
    let recipe = dockerfile_on("FROM host\nWORKDIR x", &BTreeMap::new(), &bases).unwrap();
    assert_eq!(recipe.stages[0].steps[0].action, Action::WorkingDirectory("/home/x".into()));
}

#[test]
fn copies_say_where_from() {
    let text = "FROM a AS one\nFROM b\nCOPY --from=ONE /x /y\nCOPY --from=0 /x /y\nCOPY --from=c:1 x y\n\
                ADD a.tar /y/\nCOPY \"a\" b/ ./";
    let found: Vec<_> = actions(text)
        .into_iter()
        .map(|action| match action {
            Action::Copy { origin, unpack, sources, .. } => (origin, unpack, sources.join(" ")),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        found,
        [
            (Origin::Stage(0), false, "/x".to_owned()),
            (Origin::Stage(0), false, "/x".to_owned()),
            (Origin::Image("c:1".into()), false, "x".to_owned()),
            (Origin::Context, true, "a.tar".to_owned()),
            (Origin::Context, false, "a b/".to_owned()),
        ]
    );
}

#[test]
fn what_only_the_base_can_know_is_asked_for() {
    let text = "FROM a AS b\nENV X=$HOME/x\nCOPY $APP ${NO:?never} /y/\nFROM b\nUSER $WHO\nFROM c\nRUN x";
    let recipe = read(text);
    let wants: Vec<Vec<&str>> =
        recipe.stages.iter().map(|stage| stage.wants.iter().map(String::as_str).collect()).collect();
    assert_eq!(wants, [vec!["APP", "HOME", "NO"], vec!["APP", "HOME", "NO", "WHO"], vec![]]);
    let mut known = Known { env: args([("HOME", "/root"), ("NO", "n")]), ..Known::default() };
    let base = Base::Image("a".into());
    let wrong =
        dockerfile_on(text, &BTreeMap::new(), &BTreeMap::from([(base.clone(), known.clone())])).unwrap_err();
    assert_eq!(wrong.to_string(), "line 3: a source is empty");
    known.env.extend(args([("APP", "app"), ("WHO", "me")]));
    let recipe = dockerfile_on(text, &BTreeMap::new(), &BTreeMap::from([(base, known)])).unwrap();
    assert!(recipe.stages.iter().all(|stage| stage.wants.is_empty()));
    assert_eq!(recipe.stages[1].steps[0].action, Action::User("me".into()));
}

#[test]
fn there_is_an_end_to_everything() {
    let long = format!("FROM a\n#{}", "x".repeat(crate::MAX_TEXT));
    let many = format!("FROM a\n{}", "RUN x\n".repeat(MAX_INSTRUCTIONS));
    let stages = "FROM a\n".repeat(MAX_STAGES + 1);
    let doubling = format!("FROM a\nENV A=aaaaaaaaaaaaaaaa\n{}", "ENV A=$A$A\n".repeat(20));
    let large = format!("FROM a\nENV A={}\nENV {}", "a".repeat(60_000), "B=$A ".repeat(1000));
    let arguments = format!("FROM a\nARG A={}\n{}", "a".repeat(60_000), "RUN x\n".repeat(900));
    let shells = format!("FROM a\nSHELL [\"{}\"]\n{}", "a".repeat(60_000), "RUN x\n".repeat(900));
    let inherited = format!("FROM a AS a0\nENV {}\n", "A=1 ".repeat(10) + &"B".repeat(60_000) + "=1")
        + &(1..100)
            .map(|at| format!("FROM a{} AS a{at}\nENV C{at}={}\n", at - 1, "x".repeat(9000)))
            .collect::<String>();
    let path = format!("FROM scratch\n{}", format!("WORKDIR {}\n", "x/".repeat(1000)).repeat(10));
    for (text, says) in [
        (long, "is the most"),
        (many, "more than 1000 instructions"),
        (stages, "more than 100 stages"),
        (doubling, "more than 65536 bytes"),
        (large, "bytes come of all values"),
        (arguments, "bytes come of all values"),
        (shells, "bytes come of all values"),
        (inherited, "bytes come of all values"),
        (path, "is the most"),
    ] {
        let wrong = dockerfile(&text, &BTreeMap::new()).unwrap_err();
        assert!(wrong.what.contains(says), "{says}: {wrong}");
        assert!(wrong.to_string().len() < 300);
    }
    let name = format!("FROM a\nENV X=${{{}", "n".repeat(100_000));
    assert!(dockerfile(&name, &BTreeMap::new()).unwrap_err().to_string().len() < 300);
}

fn token() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "FROM ",
        "FROM a",
        "FROM scratch",
        "FROM host",
        " AS ",
        "AS b",
        "RUN ",
        "COPY ",
        "ADD ",
        "ENV ",
        "ARG ",
        "WORKDIR ",
        "USER ",
        "SHELL ",
        "CMD ",
        "ENTRYPOINT ",
        "LABEL ",
        "EXPOSE 1",
        "VOLUME ",
        "HEALTHCHECK ",
        "--from=",
        "--chmod=",
        "--chown=",
        "--mount=type=cache",
        "--platform=",
        "--link",
        "--",
        "<<EOF",
        "<<-EOF",
        "<<'EOF'",
        "EOF",
        "\nEOF\n",
        "\n",
        "\n",
        "\n",
        "\r\n",
        " \\\n",
        "\\",
        "`",
        "# escape=`\n",
        "# ",
        "$A",
        "${A",
        "${A:-",
        "${A:+",
        "${A:?",
        "}",
        "$",
        "\"",
        "'",
        "[",
        "]",
        "[\"",
        "\"]",
        ", ",
        "=",
        "A=1",
        "A",
        "a",
        "b",
        "0",
        "1",
        "/",
        "./",
        "../",
        "é",
        "\u{feff}",
        "\t",
        " ",
        "\\u00",
        "\\ud800",
        "<<",
        "\0",
    ]);
    prop_oneof![20 => fixed.prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_read_panics(
        tokens in prop::collection::vec(token(), 0..60),
        begins in any::<bool>(),
        known in any::<bool>(),
    ) {
        let text = format!("{}{}", if begins { "FROM a AS b\n" } else { "" }, tokens.concat());
        let mut bases = BTreeMap::new();
        if known {
            bases.insert(Base::Image("a".into()), Known::default());
        }
        match dockerfile_on(&text, &args([("A", "$A")]), &bases) {
            Ok(recipe) => {
                prop_assert!(!recipe.stages.is_empty());
                for (at, stage) in recipe.stages.iter().enumerate() {
                    prop_assert!(!matches!(stage.base, Base::Stage(below) if below >= at));
                    for step in &stage.steps {
                        prop_assert!(step.line >= 1 && step.line <= text.split('\n').count());
                        prop_assert!(!step.text.contains('\n'));
                        let later = matches!(step.action, Action::Copy { origin: Origin::Stage(other), .. } if other >= at);
                        prop_assert!(!later);
                    }
                }
                prop_assert!(recipe.needed().len() <= recipe.stages.len());
            }
            Err(wrong) => {
                prop_assert!(wrong.line >= 1 && wrong.line <= text.split('\n').count());
                prop_assert!(!wrong.what.contains('\n'));
            }
        }
    }

    #[test]
    fn lines_without_options_reach_the_shell_as_they_are(line in "[a-z$\"'{}()&|;=./-]{1,40}") {
        prop_assume!(!line.starts_with("--"));
        prop_assert_eq!(script(&format!("FROM a\nRUN {line}")), line);
    }
}
