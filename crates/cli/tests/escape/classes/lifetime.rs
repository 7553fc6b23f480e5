//! LT: living longer than granted, or taking down what watches.

use std::time::Duration;

use belljar_core::Wall::{PidNamespace, TimeOut, TimeToLive};

use crate::attack::{Attack, Control, Outcome, Ring, inside, outside, within};
use crate::canary::random_word;
use crate::sweep::processes;

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        outside("LT-time-out", "go on after its time is over, deaf to signals", &[TimeOut], time_out),
        outside(
            "LT-time-out-daemon",
            "leave a process behind that goes on after its time",
            &[TimeOut],
            time_out_daemon,
        ),
        outside("LT-time-to-live", "live on when the sandbox's time is over", &[TimeToLive], time_to_live),
        outside("LT-open-connection", "keep a connection open past the end", &[TimeToLive], open_connection),
        outside("LT-daemon", "leave a process behind when the command ends", &[], daemon)
            .control(Control::Naive(Box::new(naive_daemon))),
        outside("LT-killed-execution", "outlive the kill of its execution as an orphan", &[], killed)
            .control(Control::Sabotage),
        outside(
            "LT-kill-everybody",
            "kill every process it can, the first one included",
            &[PidNamespace],
            kill_everybody,
        ),
        outside(
            "LT-kill-the-first",
            "kill or stop the first process as root inside",
            &[PidNamespace],
            kill_the_first,
        ),
        inside(
            "LT-signal-group",
            "signal process groups of the host",
            &[PidNamespace],
            r#"
os.killpg(os.getpgid(C["victim"]["pid"]), 0)
won("a group of the host was found")
"#,
        )
        .control(Control::WallsDown)
        .also(&[belljar_core::Wall::UserIds, belljar_core::Wall::LandlockSandbox])
        .by_root(),
    ]
}

/// A program that ignores what it can and says so after three seconds.
const DEAF: &str = "
import signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
time.sleep(3)
print('still here', flush=True)
";

fn time_out(ring: &Ring<'_>) -> Outcome {
    let object = ring.json(&["run", "--timeout", "500ms", "--", "python3", "-c", DEAF]);
    match (crate::attack::text(&object["stdout"]).contains("still here"), object["termination"].as_str()) {
        (true, _) => Outcome::Won("it was still there after six times its time".into()),
        (false, Some("timed_out")) => Outcome::Stopped("timed out".into()),
        (false, _) => Outcome::Broken(object.to_string()),
    }
}

fn time_out_daemon(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let word = random_word();
    let script =
        format!("setsid -f sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' {word}; sleep 3");
    let object = ring.json(&["exec", "--timeout", "700ms", &id, "--", "sh", "-c", &script]);
    if object["termination"].is_null() {
        return Outcome::Broken(object.to_string());
    }
    let gone = within(Duration::from_secs(5), || !is_running(&word));
    if gone { Outcome::Stopped("it is gone".into()) } else { Outcome::Won("it goes on".into()) }
}

fn is_running(word: &str) -> bool {
    // The suite's own command line has it too, while it starts things.
    processes().iter().any(|process| process.command.contains(word) && process.command.starts_with("sh -c"))
}

fn time_to_live(ring: &Ring<'_>) -> Outcome {
    let object = ring.json(&["create", "--ttl", "1s"]);
    let Some(id) = object["sandbox_id"].as_str() else { return Outcome::Broken(object.to_string()) };
    let gone = within(Duration::from_secs(6), || {
        let listed = ring.json(&["ls", "-a"]);
        let sandboxes = listed["sandboxes"].as_array().cloned().unwrap_or_default();
        !sandboxes.iter().any(|sandbox| sandbox["id"] == id && sandbox["state"] == "running")
    });
    if gone { Outcome::Stopped("it has ended".into()) } else { Outcome::Won("it lives on".into()) }
}

fn open_connection(ring: &Ring<'_>) -> Outcome {
    let object = ring.json(&["create", "--ttl", "1500ms"]);
    let Some(id) = object["sandbox_id"].as_str() else { return Outcome::Broken(object.to_string()) };
    let script = "for n in $(seq 50); do echo alive; sleep 0.1; done; echo to the end";
    let ended = ring.run(&["exec", "--timeout", "20s", id, "--", "sh", "-c", script]);
    if ended.text().contains("to the end") {
        return Outcome::Won("it spoke to the end, long after the sandbox's".into());
    }
    Outcome::Stopped(format!("cut with status {:?}", ended.code))
}

/// Its own bound is short: where nothing stops it, it ends by itself.
fn daemon(ring: &Ring<'_>) -> Outcome {
    let word = random_word();
    let script = format!("setsid -f sh -c 'exec >/dev/null 2>&1; sleep 4; :' {word}; echo started");
    let object = ring.json(&["run", "--", "sh", "-c", &script]);
    if !crate::attack::text(&object["stdout"]).contains("started") {
        return Outcome::Broken(object.to_string());
    }
    if is_running(&word) { Outcome::Won("it lives on".into()) } else { Outcome::Stopped("it is gone".into()) }
}

fn naive_daemon(_: &Ring<'_>) -> Outcome {
    let word = random_word();
    let script = format!("setsid -f sh -c 'exec >/dev/null 2>&1; sleep 4; :' {word}; echo started");
    crate::attack::finish(std::process::Command::new("sh").args(["-c", &script]));
    if is_running(&word) { Outcome::Won("it lives on".into()) } else { Outcome::Stopped("it is gone".into()) }
}

fn killed(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let word = random_word();
    let script = format!("setsid -f sh -c 'trap \"\" TERM; while :; do sleep 1; done' {word}; sleep 60");
    let exec = ring.json(&["exec", "-d", &id, "--", "sh", "-c", &script]);
    if !within(Duration::from_secs(20), || is_running(&word)) {
        return Outcome::Broken("the orphan did not start".into());
    }
    if !ring.sabotage {
        ring.run(&["kill", "--exec", &exec["exec"].to_string(), &id]);
    }
    let gone = within(Duration::from_secs(3), || !is_running(&word));
    if gone { Outcome::Stopped("it is gone".into()) } else { Outcome::Won("it lives on".into()) }
}

fn still_serves(ring: &Ring<'_>, id: &str) -> Outcome {
    let object = ring.shell(id, "echo works");
    if object["stdout"] == "works\n" {
        Outcome::Stopped("the sandbox serves on".into())
    } else {
        Outcome::Won(format!("the sandbox does not serve any more: {object}"))
    }
}

fn kill_everybody(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    // Only processes with this sandbox's own host ids can be meant, whatever is seen.
    ring.json(&["exec", "--user", "root", "--timeout", "5s", &id, "--", "sh", "-c", "kill -9 -1"]);
    still_serves(ring, &id)
}

fn kill_the_first(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let script = "for s in 1 2 3 6 10 11 12 15 19 9; do kill -$s $PPID; done; echo tried";
    ring.json(&["exec", "--user", "root", "--timeout", "5s", &id, "--", "sh", "-c", script]);
    still_serves(ring, &id)
}
