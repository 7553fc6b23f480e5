//! Commands, as the outside sees them.

mod harness;

use std::os::unix::fs::PermissionsExt;

use belljar_core::wire::{Event, Frame, FrameKind, KillReason, Request, WINDOW, stream};
use belljar_core::{ErrorCode, PtySize, Stdin, UserName};
use harness::{Guest, argv, on_terminal, path, piped, shell, wait_gone};

#[test]
fn output_and_status_come_back() {
    let mut guest = Guest::start();
    let outcome = guest.run(argv(&["echo", "hello"]));
    assert_eq!(outcome.text(), "hello\n");
    let exit = outcome.exit();
    assert_eq!((exit.code, exit.signal, exit.killed), (Some(0), None, None));
    assert!(outcome.pid > 1 && exit.cpu_us.is_some());

    let outcome = guest.run(shell("echo out; echo err >&2; exit 7"));
    assert_eq!((outcome.text().as_str(), outcome.error.as_slice()), ("out\n", b"err\n".as_slice()));
    assert_eq!(outcome.exit().code, Some(7));
}

#[test]
fn the_environment_is_what_was_said_and_nothing_else() {
    let mut guest = Guest::start();
    let mut request = argv(&["env"]);
    request.env.insert("GREETING".into(), "hi".into());
    request.env.insert("USER".into(), "somebody".into());
    let text = guest.run(request).text();
    let mut names: Vec<_> = text.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["GREETING", "HOME", "LOGNAME", "PATH", "USER"]);
    assert!(text.contains("GREETING=hi") && text.contains("USER=somebody") && text.contains("LOGNAME=user"));
}

#[test]
fn a_command_starts_at_home_or_where_it_was_told() {
    let mut guest = Guest::start();
    let home = guest.home.path().to_str().unwrap().to_owned();
    assert_eq!(guest.run(argv(&["pwd"])).text().trim(), home);
    std::fs::create_dir(guest.home.path().join("sub")).unwrap();
    let mut request = argv(&["pwd"]);
    request.cwd = Some(path("sub"));
    assert_eq!(guest.run(request.clone()).text().trim(), format!("{home}/sub"));
    request.cwd = Some(path("/no/such/place"));
    let outcome = guest.run(request);
    assert_eq!(outcome.failure().code, ErrorCode::NotFound);
    assert!(outcome.failure().message.contains("/no/such/place"), "{:?}", outcome.failure());
}

#[test]
fn only_its_standard_streams_are_inherited_and_no_signal_is_blocked() {
    let mut guest = Guest::start();
    // The last one is the directory that `ls` itself opens.
    assert_eq!(guest.run(argv(&["ls", "/proc/self/fd"])).text(), "0\n1\n2\n3\n");
    let status = guest.run(argv(&["cat", "/proc/self/status"])).text();
    for field in ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "CapEff:\t0000000000000000"] {
        assert!(status.contains(field), "{field} not in {status}");
    }
    assert!(status.contains("NoNewPrivs:\t1"));
}

#[test]
fn a_signal_is_told_apart_from_a_status() {
    let mut guest = Guest::start();
    let exit = guest.run(shell("kill -TERM $$")).exit();
    assert_eq!((exit.code, exit.signal, exit.killed), (None, Some(libc::SIGTERM), None));

    let id = guest.spawn(shell("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done"));
    guest.read_until(id, "ready");
    guest.send(id, &Request::Signal { signal: libc::SIGUSR1 });
    guest.send(id, &Request::Signal { signal: 65 });
    let outcome = guest.finish(id);
    assert!(outcome.exit().code.is_some() || outcome.exit().signal == Some(libc::SIGUSR1), "{outcome:?}");
}

#[test]
fn a_time_out_kills_what_forked_itself_away() {
    let mut guest = Guest::start();
    let daemon = "setsid sh -c '(sleep 1000 & echo $! ) ; exit 0' & wait; trap '' TERM; sleep 1000";
    let mut request = shell(daemon);
    request.timeout_ms = 1500;
    let id = guest.spawn(request);
    let pid = guest.read_until(id, "\n").trim().parse().unwrap();
    let exit = guest.finish(id).exit();
    assert_eq!((exit.code, exit.signal), (None, Some(libc::SIGKILL)));
    assert_eq!(exit.killed, Some(KillReason::TimedOut));
    wait_gone(pid);
}

#[test]
fn kill_reaches_what_the_first_process_left_behind() {
    let mut guest = Guest::start();
    let id = guest.spawn(shell("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!"));
    let outcome = guest.finish(id);
    assert_eq!(outcome.exit().killed, None);
    let pid = outcome.text().trim().parse().unwrap();
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
    guest.send(id, &Request::Kill);
    wait_gone(pid);
}

#[test]
fn kill_is_told_as_asked_for() {
    let mut guest = Guest::start();
    let id = guest.spawn(shell("sleep 1000"));
    guest.started(id);
    guest.send(id, &Request::Kill);
    assert_eq!(guest.finish(id).exit().killed, Some(KillReason::Asked));
    assert_eq!(guest.run(argv(&["true"])).exit().code, Some(0), "the guest goes on");
}

#[test]
fn a_megabyte_goes_in_and_comes_out_again() {
    let mut guest = Guest::start();
    let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let id = guest.spawn(piped("cat"));
    guest.feed(id, &content);
    let outcome = guest.finish(id);
    assert_eq!(outcome.exit().code, Some(0));
    assert!(outcome.output == content);
}

#[test]
fn input_that_nobody_reads_is_taken_and_forgotten() {
    let mut guest = Guest::start();
    let id = guest.spawn(piped("exec 0<&-; echo closed; read line <&1; sleep 1000"));
    guest.read_until(id, "closed");
    guest.feed(id, &vec![0; 1 << 20]);
    guest.send(id, &Request::Kill);
    guest.finish(id);
}

#[test]
fn a_sender_that_overruns_the_window_ends_the_guest() {
    let mut guest = Guest::start();
    let id = guest.spawn(piped("sleep 1000"));
    guest.started(id);
    // More than the window and what a pipe takes by itself.
    for _ in 0..8 * WINDOW / 65536 {
        let mut bytes = Vec::new();
        Frame::data(id, stream::INPUT, &[0; 65536]).encode(&mut bytes);
        guest.raw_or_gone(&bytes);
    }
    assert_eq!(guest.end(), 2);
}

#[test]
fn a_process_waits_while_credit_is_withheld() {
    let mut guest = Guest::start();
    guest.generous = false;
    let total = 10 << 20;
    let id = guest.spawn(shell(&format!("head -c {total} /dev/zero; touch wrote")));
    let mut seen = 0;
    while seen < WINDOW as usize {
        let frame = guest.frame_of(id);
        if matches!(frame.kind, FrameKind::Data(_)) {
            seen += frame.payload.len();
        }
    }
    // The guest answers others meanwhile, and the writer is where it was.
    guest.generous = true;
    assert_eq!(guest.run(argv(&["echo", "meanwhile"])).text(), "meanwhile\n");
    assert!(!guest.home.path().join("wrote").exists());
    guest.frame(&Frame::credit(id, stream::OUTPUT, total as u32));
    let outcome = guest.finish(id);
    assert_eq!((outcome.exit().code, seen + outcome.output.len()), (Some(0), total));
    assert!(guest.home.path().join("wrote").exists());
}

#[test]
fn output_in_the_pipe_comes_before_the_end_is_told() {
    let mut guest = Guest::start();
    guest.generous = false;
    // The window and a pipe together hold this much, so the process ends while the peer owes it credit.
    let total = WINDOW as usize + 30_000;
    let id = guest.spawn(shell(&format!("head -c {total} /dev/zero")));
    let pid = guest.started(id);
    wait_gone(pid);
    let mut seen = 0;
    while seen < WINDOW as usize {
        let frame = guest.frame_of(id);
        assert_eq!(frame.kind, FrameKind::Data(stream::OUTPUT));
        seen += frame.payload.len();
    }
    // Only now may the rest and the end come.
    guest.frame(&Frame::credit(id, stream::OUTPUT, 100_000));
    let outcome = guest.finish(id);
    assert_eq!(seen + outcome.output.len(), total);
}

#[test]
fn a_background_process_that_holds_the_pipe_does_not_delay_the_end() {
    let mut guest = Guest::start();
    let id = guest.spawn(shell("(sleep 1000; :) & echo started $!"));
    let outcome = guest.finish(id);
    assert_eq!((outcome.exit().code, outcome.text().starts_with("started")), (Some(0), true));
    guest.send(id, &Request::Kill);
    let ends = std::cell::Cell::new(0);
    guest.gather(id, |frame, _| {
        ends.set(ends.get() + usize::from(frame.payload.is_empty()));
        ends.get() == 2
    });
}

#[test]
fn what_cannot_be_started_is_named() {
    let mut guest = Guest::start();
    let home = guest.home.path().to_owned();
    let missing = guest.run(argv(&["no-such-program"]));
    assert_eq!(missing.failure().code, ErrorCode::CommandNotFound);
    assert_eq!(missing.failure().message, "`no-such-program`: command not found");

    std::fs::write(home.join("data"), "text").unwrap();
    assert_eq!(guest.run(argv(&["./data"])).failure().code, ErrorCode::CommandNotExecutable);
    assert_eq!(guest.run(argv(&["/usr"])).failure().code, ErrorCode::CommandNotExecutable);

    let script = |name: &str, text: &str| {
        std::fs::write(home.join(name), text).unwrap();
        std::fs::set_permissions(home.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("plain", "echo plain $1\n");
    assert_eq!(guest.run(argv(&["./plain", "script"])).text(), "plain script\n");
    script("lost", "#!/no/such/interpreter\n");
    let lost = guest.run(argv(&["./lost"]));
    assert_eq!(lost.failure().code, ErrorCode::CommandNotExecutable);
    assert!(lost.failure().message.contains("interpreter"));

    let mut as_root = argv(&["true"]);
    as_root.user = UserName::Root;
    assert_eq!(guest.run(as_root).failure().code, ErrorCode::Unsupported);
    assert_eq!(guest.run(argv(&["true"])).exit().code, Some(0));
}

#[test]
fn a_terminal_is_one_and_can_be_resized() {
    let mut guest = Guest::start();
    let id = guest.spawn(on_terminal("tty; stty size; read line; stty size; echo got $line", 24, 80));
    let text = guest.read_until(id, "24 80");
    assert!(text.contains("/dev/pts/"), "{text}");
    guest.send(id, &Request::Resize(PtySize { rows: 50, cols: 132 }));
    guest.frame(&Frame::data(id, stream::INPUT, b"word\n"));
    let outcome = guest.finish(id);
    assert!(outcome.text().contains("50 132") && outcome.text().contains("got word"), "{}", outcome.text());
    assert_eq!(outcome.exit().code, Some(0));
}

#[test]
fn the_end_of_input_reaches_a_terminal() {
    let mut guest = Guest::start();
    let id = guest.spawn(on_terminal("cat; echo done", 24, 80));
    guest.frame(&Frame::data(id, stream::INPUT, b"line\n"));
    guest.frame(&Frame::end(id, stream::INPUT));
    assert!(guest.finish(id).text().contains("done"));
    let mut request = on_terminal("cat; echo done", 24, 80);
    request.stdin = Stdin::Empty;
    assert!(guest.run(request).text().contains("done"));
}

#[test]
fn many_at_once_are_bounded() {
    let mut guest = Guest::start();
    let ids: Vec<u32> = (0..260).map(|_| guest.spawn(piped("cat"))).collect();
    let mut refused = 0;
    for id in &ids {
        match guest.event(*id) {
            Event::Started { .. } => {}
            Event::Failed(error) => {
                assert_eq!(error.code, ErrorCode::ResourceExhausted);
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, 4);
}
