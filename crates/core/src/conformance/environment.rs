//! What a command finds in its environment, and what it must not find there.

use super::need::REAL;
use super::trial::{Outcome, Trial, same, shell, succeed};
use crate::{ErrorCode, ExecRequest, SandboxSpec};

cases! { "environment":
    variables_are_passed [],
    request_wins_over_spec [],
    bad_name_is_refused [],
    nothing_is_inherited [],
    basics_are_set [],
    programs_are_found [REAL],
}

/// The variables a command may find although nobody asked for them.
const ALLOWED: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "PYTHONUNBUFFERED",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "HOSTNAME",
    // Set by shells themselves.
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    // Where tools find certificates.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    // Where toolchains live and package tools fetch from.
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "RUSTUP_AUTO_INSTALL",
    "CARGO_REGISTRY_DEFAULT",
    "JAVA_HOME",
    "GOROOT",
    "GOPATH",
    "GOFLAGS",
    "GOPROXY",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUSERBASE",
    "DEBIAN_FRONTEND",
    "NODE_PATH",
    "GIT_TERMINAL_PROMPT",
    "PYENV_VERSION",
    "PYENV_ROOT",
];

/// The same for whole families of settings.
const ALLOWED_PREFIXES: &[&str] = &[
    "BELLJAR_",
    "PIP_",
    "UV_",
    "NPM_CONFIG_",
    "npm_config_",
    "GIT_CONFIG_",
    "CARGO_REGISTRIES_",
    "CARGO_SOURCE_",
];

/// Words that no variable's name may hold, whatever its family.
const FORBIDDEN_WORDS: &[&str] = &["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "_KEY", "_AUTH"];

fn is_allowed(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let family = ALLOWED.contains(&name) || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    family && !FORBIDDEN_WORDS.iter().any(|word| upper.contains(word))
}

async fn variables_are_passed(trial: &Trial<'_>) -> Outcome {
    let mut spec = SandboxSpec::default();
    spec.env.insert("FROM_SPEC".into(), "every time".into());
    let sandbox = trial.sandbox_from(spec).await?;
    let mut request = ExecRequest::shell("printf '%s, %s' \"$FROM_SPEC\" \"$FROM_REQUEST\"");
    request.env.insert("FROM_REQUEST".into(), "this 'time' $HOME".into());
    same(&succeed(&*sandbox, request).await?, "every time, this 'time' $HOME")?;
    same(&shell(&*sandbox, "printf '%s,%s' \"$FROM_SPEC\" \"$FROM_REQUEST\"").await?, "every time,")
}

async fn request_wins_over_spec(trial: &Trial<'_>) -> Outcome {
    let mut spec = SandboxSpec::default();
    spec.env.insert("CHOICE".into(), "spec".into());
    let sandbox = trial.sandbox_from(spec).await?;
    let mut request = ExecRequest::shell("printf %s \"$CHOICE\"");
    request.env.insert("CHOICE".into(), "request".into());
    same(&succeed(&*sandbox, request).await?, "request")
}

async fn bad_name_is_refused(trial: &Trial<'_>) -> Outcome {
    for name in ["", "A=B", "A\0B"] {
        let mut spec = SandboxSpec::default();
        spec.env.insert(name.into(), "x".into());
        match trial.provider.create(spec).await {
            Err(error) => ensure!(error.code == ErrorCode::InvalidArgument, "refused as {}", error.code),
            Ok(sandbox) => {
                sandbox.cleanup().await?;
                return Err(format!("a variable named {name:?} was accepted").into());
            }
        }
    }
    Ok(())
}

async fn nothing_is_inherited(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let found = succeed(&*sandbox, ExecRequest::argv(["env"])).await?;
    ensure!(found.contains("HOME="), "the environment could not be read: {found:?}");
    for line in found.lines() {
        let name = line.split('=').next().unwrap_or_default();
        ensure!(is_allowed(name), "`{name}` is set inside");
    }
    // The control: this process has variables that would have been caught.
    let caught = std::env::vars_os().any(|(name, _)| !is_allowed(&name.to_string_lossy()));
    ensure!(caught, "this test's own environment holds nothing that could leak, so the case proves nothing");
    Ok(())
}

async fn basics_are_set(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let found = succeed(&*sandbox, ExecRequest::argv(["env"])).await?;
    for name in ["PATH", "HOME", "TMPDIR", "LANG"] {
        let value = found.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        ensure!(value.is_some_and(|value| !value.is_empty()), "`{name}` is not set");
    }
    same(&shell(&*sandbox, "echo x > \"$TMPDIR/probe\"; cat \"$TMPDIR/probe\"").await?, "x\n")
}

async fn programs_are_found(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for program in ["sh", "cat", "ls", "head", "dd", "sleep", "tr"] {
        shell(&*sandbox, &format!("command -v {program}"))
            .await
            .map_err(|error| format!("{program}: {error}"))?;
    }
    Ok(())
}
