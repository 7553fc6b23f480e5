//! What code inside must not see or do, and what root inside may.

use super::need::{ISOLATION, REAL, ROOT};
use super::trial::{Outcome, Trial, same, shell, stderr, succeed};
use crate::{ExecRequest, Sandbox, UserName};

cases! { "walls":
    user_has_no_privilege [ISOLATION, REAL],
    user_is_not_root [ISOLATION, REAL],
    seccomp_is_on [ISOLATION, REAL],
    host_processes_are_invisible [ISOLATION, REAL],
    host_files_are_invisible [ISOLATION, REAL],
    there_is_no_network [ISOLATION, REAL],
    namespaces_cannot_be_made [ISOLATION, REAL],
    system_directories_are_read_only [ISOLATION, REAL],
    kernel_cannot_be_steered [ISOLATION, REAL],
    neighbours_are_invisible [ISOLATION, REAL],
    root_is_root_inside [ROOT, REAL],
    root_can_give_files_away [ROOT, REAL],
    root_is_held_by_the_walls [ROOT, ISOLATION, REAL],
}

fn as_root(line: &str) -> ExecRequest {
    let mut request = ExecRequest::shell(line);
    request.user = UserName::Root;
    request
}

/// One field of `/proc/self/status` as a command of the default user finds it.
async fn status_field(sandbox: &dyn Sandbox, name: &str) -> Outcome<String> {
    let status = succeed(sandbox, ExecRequest::argv(["cat", "/proc/self/status"])).await?;
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
        .ok_or_else(|| format!("/proc/self/status has no `{name}`").into())
}

async fn user_has_no_privilege(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let value = status_field(&*sandbox, set).await?;
        ensure!(value.trim_start_matches('0').is_empty(), "{set} is {value}");
    }
    same(&status_field(&*sandbox, "NoNewPrivs").await?, "1")
}

async fn user_is_not_root(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let uid = shell(&*sandbox, "id -u").await?;
    ensure!(uid.trim() != "0", "the default user is root");
    Ok(())
}

async fn seccomp_is_on(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    same(&status_field(&*sandbox, "Seccomp").await?, "2")
}

async fn host_processes_are_invisible(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let exe = std::env::current_exe().map_err(|error| format!("own name: {error}"))?;
    let name = exe.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let seen = super::trial::processes_named(&*sandbox, &name).await?;
    ensure!(seen == 0, "the process of this test (`{name}`) is visible");
    let numbers = shell(&*sandbox, "cd /proc && echo [0-9]*").await?;
    let count = numbers.split_whitespace().count();
    ensure!((1..=12).contains(&count), "{count} processes are visible in a sandbox that runs one command");
    Ok(())
}

async fn host_files_are_invisible(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let canary = std::env::temp_dir().join(format!("belljar-canary-of-{}", sandbox.id()));
    std::fs::write(&canary, "host").map_err(|error| format!("cannot plant {}: {error}", canary.display()))?;
    let roads = ["", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../../../.."];
    let outcome = async {
        for road in roads {
            let request = ExecRequest::argv(["cat".to_owned(), format!("{road}{}", canary.display())]);
            let result = sandbox.execute(request).await?;
            ensure!(!result.termination.is_success(), "a file of the host can be read through `{road}/`");
        }
        Ok(())
    }
    .await;
    let _ = std::fs::remove_file(&canary);
    outcome
}

async fn there_is_no_network(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let routes = shell(&*sandbox, "cat /proc/net/route").await?;
    ensure!(routes.lines().count() <= 1, "there are routes:\n{routes}");
    let devices = shell(&*sandbox, "cat /proc/net/dev").await?;
    for line in devices.lines().skip(2) {
        let device = line.split(':').next().unwrap_or_default().trim();
        ensure!(device == "lo", "there is a network device `{device}`");
    }
    Ok(())
}

/// Runs a line that must fail, and not for want of its program.
async fn fails(sandbox: &dyn Sandbox, request: ExecRequest) -> Outcome {
    let line = format!("{:?}", request.command);
    let result = sandbox.execute(request).await?;
    ensure!(!result.termination.is_success(), "{line} succeeded");
    ensure!(
        !matches!(result.termination.exit_code(), Some(126 | 127)),
        "{line} could not be tried, so the case proves nothing: {:?}",
        stderr(&result)
    );
    Ok(())
}

async fn namespaces_cannot_be_made(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for kind in ["--user", "--user --map-root-user --mount", "--net", "--pid --fork"] {
        fails(&*sandbox, ExecRequest::shell(format!("unshare {kind} true"))).await?;
    }
    Ok(())
}

async fn system_directories_are_read_only(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for place in ["/usr/bin/belljar-probe", "/etc/belljar-probe", "/belljar-probe", "/proc/belljar-probe"] {
        fails(&*sandbox, ExecRequest::shell(format!(": > {place}"))).await?;
    }
    Ok(())
}

/// Opening for writing is tried, nothing is ever written: a wall that is missing must not harm the machine.
const STEERING: [&str; 5] = [
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/irq/default_smp_affinity",
];

async fn kernel_cannot_be_steered(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for place in STEERING {
        fails(&*sandbox, ExecRequest::shell(format!(": >> {place}"))).await?;
    }
    Ok(())
}

async fn neighbours_are_invisible(trial: &Trial<'_>) -> Outcome {
    let (one, other) = (trial.sandbox().await?, trial.sandbox().await?);
    let word = format!("neighbour-{}", one.id());
    let mut request = ExecRequest::shell("sh -c 'sleep 600; :' \"$WORD\" >/dev/null 2>&1 &");
    request.env.insert("WORD".into(), word.clone());
    succeed(&*one, request).await?;
    let seen = super::trial::processes_named(&*other, &word).await?;
    ensure!(seen == 0, "a process of the neighbour is visible");
    Ok(())
}

async fn root_is_root_inside(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    same(&succeed(&*sandbox, as_root("id -u")).await?, "0\n")?;
    let user = shell(&*sandbox, "id -u").await?;
    ensure!(user.trim() != "0", "and so is the default user");
    Ok(())
}

async fn root_can_give_files_away(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    let user = shell(&*sandbox, "printf '%s:%s' \"$(id -u)\" \"$(id -g)\"").await?;
    succeed(&*sandbox, as_root("echo by-root > /tmp/gift; chmod 600 /tmp/gift")).await?;
    fails(&*sandbox, ExecRequest::shell("cat /tmp/gift")).await?;
    succeed(&*sandbox, as_root(&format!("chown {user} /tmp/gift"))).await?;
    same(&shell(&*sandbox, "cat /tmp/gift; echo mine > /tmp/gift; cat /tmp/gift").await?, "by-root\nmine\n")
}

async fn root_is_held_by_the_walls(trial: &Trial<'_>) -> Outcome {
    let sandbox = trial.sandbox().await?;
    for place in STEERING {
        fails(&*sandbox, as_root(&format!(": >> {place}"))).await?;
    }
    for line in ["mount -t tmpfs none /mnt", "unshare --net true", "mknod /tmp/disk b 8 0"] {
        fails(&*sandbox, as_root(line)).await?;
    }
    Ok(())
}
