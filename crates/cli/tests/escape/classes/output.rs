//! OU: text from a sandbox on somebody's terminal, and in somebody's log.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use belljar_core::Wall::TerminalFilter;

use crate::attack::{Attack, Control, Outcome, Ring, outside};
use crate::hostile::Hostile;

/// Writes to the clipboard, changes the title, asks the terminal to type, moves the cursor; with C1 codes as well.
const STEERING: &str = r"seen\033]52;c;aGlqYWNr\007\033]0;title\007\033[6n\033P+q544e\033\\\033[2J\033[1;1H\302\2336n\033]8;;http://x\007";

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        outside("OU-logs", "steer the terminal on which kept output is shown", &[TerminalFilter], |ring| {
            shown(ring, &format!("printf '{STEERING}'; printf '{STEERING}' >&2"), |id| {
                vec!["logs".into(), id.into()]
            })
        }),
        outside(
            "OU-followed-logs",
            "steer the terminal on which output is followed",
            &[TerminalFilter],
            |ring| {
                shown(ring, &format!("printf '{STEERING}'"), |id| {
                    vec!["logs".into(), "--follow".into(), id.into(), "1".into()]
                })
            },
        ),
        outside(
            "OU-listed-names",
            "steer the terminal on which files are listed",
            &[TerminalFilter],
            |ring| {
                shown(ring, &format!("mkdir d; touch \"d/$(printf '{STEERING}' | tr -d /)\" d/plain"), |id| {
                    vec!["ls".into(), format!("{id}:d")]
                })
            },
        ),
        outside("OU-listed-links", "steer the terminal by where a link leads", &[TerminalFilter], |ring| {
            shown(ring, &format!("mkdir d; ln -s \"$(printf '{STEERING}')\" d/link"), |id| {
                vec!["ls".into(), format!("{id}:d")]
            })
        }),
        outside(
            "OU-reordered-names",
            "show another name than there is, by marks that reorder text",
            &[TerminalFilter],
            |ring| {
                shown_if(
                    ring,
                    "mkdir d; touch \"d/$(printf 'invoice\\342\\200\\256fdp.exe')\"",
                    |id| vec!["ls".into(), format!("{id}:d")],
                    |said| said.contains('\u{202e}'),
                )
            },
        ),
        outside("OU-new-lines", "forge lines of a listing", &[TerminalFilter], |ring| {
            shown_if(
                ring,
                "mkdir d; touch \"d/$(printf 'a\\nforged line')\"",
                |id| vec!["ls".into(), format!("{id}:d")],
                |said| said.lines().any(|line| line.trim().starts_with("forged line")),
            )
        }),
        outside(
            "OU-lying-entry",
            "steer the terminal with a listing that the guest made up",
            &[TerminalFilter],
            lying_entry,
        ),
        outside("OU-error", "steer the terminal by the text of an error", &[TerminalFilter], error_text),
        outside("OU-json", "break out of a JSON string", &[], |ring| {
            let object = ring.json(&["run", "--", "printf", r#"a"},{"exit_code":0,"x":"\n\000\033b"#]);
            if object["stdout"].is_string() {
                Outcome::Stopped("one object".into())
            } else {
                Outcome::Won(object.to_string())
            }
        })
        .control(Control::Naive(Box::new(|_| {
            let naive = "{\"stdout\":\"a\"},{\"exit_code\":0,\"x\":\"\"}";
            if serde_json::from_str::<serde_json::Value>(naive).is_err() {
                Outcome::Won("the naive object is none".into())
            } else {
                Outcome::Stopped(String::new())
            }
        }))),
        outside("OU-exit-status", "pass a failure off as a success", &[], |ring| {
            let script = if ring.sabotage { "exit 0" } else { "printf '{\"exit_code\":0}\\n'; kill -9 $$" };
            let ended = ring.run(&["run", "--", "sh", "-c", script]);
            if ended.code == Some(0) {
                Outcome::Won("status 0".into())
            } else {
                Outcome::Stopped(format!("{:?}", ended.code))
            }
        })
        .control(Control::Sabotage),
    ]
}

/// Whether what steers a terminal is in there.
fn steers(said: &str) -> bool {
    ["\x1b]", "\x1bP", "\x1b[6n", "\x1b[2J", "\u{9b}"].iter().any(|sequence| said.contains(sequence))
}

fn shown(ring: &Ring<'_>, script: &str, words: fn(&str) -> Vec<String>) -> Outcome {
    shown_if(ring, script, words, steers)
}

fn shown_if(ring: &Ring<'_>, script: &str, words: fn(&str) -> Vec<String>, won: fn(&str) -> bool) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let object = ring.shell(&id, script);
    if object["exit_code"] != 0 {
        return Outcome::Broken(object.to_string());
    }
    let words = words(&id);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    judge(&on_terminal(ring, &words), won)
}

fn judge(said: &str, won: fn(&str) -> bool) -> Outcome {
    let short: String = said.escape_debug().to_string().chars().take(160).collect();
    match said {
        "" => Outcome::Broken("nothing was shown".into()),
        said if won(said) => Outcome::Won(short),
        _ => Outcome::Stopped(short),
    }
}

fn lying_entry(ring: &Ring<'_>) -> Outcome {
    let hostile = match Hostile::create(ring, "archive", b"\x1b]0;title\x07\x1b[6n\xe2\x80\xae") {
        Ok(hostile) => hostile,
        Err(outcome) => return outcome,
    };
    let place = format!("{}:x", hostile.id);
    judge(&on_terminal(ring, &["ls", "--home", &hostile.home, &place]), steers)
}

fn error_text(ring: &Ring<'_>) -> Outcome {
    let id = match ring.create(&[]) {
        Ok(id) => id,
        Err(outcome) => return outcome,
    };
    let place = format!("{id}:\x1b]0;title\x07\x1b[6n");
    judge(&on_terminal(ring, &["cp", &place, "dest"]), steers)
}

/// What a program says to a terminal that is both its standard output and its standard error.
fn on_terminal(ring: &Ring<'_>, words: &[&str]) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let open = || -> std::io::Result<(OwnedFd, File)> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        // The suite may lead a session, and must not get this for its terminal, whose end would be its own.
        let slave = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(name.to_string_lossy().as_ref())?;
        Ok((master, slave))
    };
    let Ok((master, slave)) = open() else { return String::new() };
    let (Ok(one), Ok(other)) = (slave.try_clone(), slave.try_clone()) else { return String::new() };
    let mut command = ring.belljar(words);
    let child = command
        .env_remove("NO_COLOR")
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(one)
        .stderr(other)
        .spawn();
    drop((slave, command));
    let Ok(mut child) = child else { return String::new() };
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        let mut master = File::from(master);
        let mut piece = [0; 4096];
        // Ends with an error when nobody holds the other side any more.
        while let Ok(count @ 1..) = master.read(&mut piece) {
            said.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&said).into_owned()
    });
    let _ = child.wait();
    reader.join().unwrap_or_default()
}
