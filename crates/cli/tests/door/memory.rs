//! What the kernel keeps for a sandbox's connections, on the host's side.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use crate::world::{SERVER, World, listen, until};

/// Memory of the TCP sockets of this network: what came and was not read, and what is to be sent.
fn kernel_keeps() -> u64 {
    let listed = Command::new("ss").args(["-Htmn"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let fields = listed.split(|character: char| "(),".contains(character));
    let amounts = fields.filter_map(|field| field.strip_prefix(['r', 'w'])?.parse::<u64>().ok());
    amounts.sum()
}

/// Connections that are fast until the kernel gives them room, and then are not read any more, by the sandbox or by the server.
#[test]
fn connections_that_are_fast_and_then_stop_hold_little_memory_of_the_hosts() {
    let world = World::new();
    let listener = listen(&format!("{SERVER}:2525"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // Says as much as it can, and hears nothing.
            std::thread::spawn(move || while stream.write_all(&[0; 65536]).is_ok() {});
        }
    });
    let id = world.create(&["--allow", "server.test:2525", "--memory", "64m"]);
    let script = "import socket, time
held = []
for _ in range(120):
    s = socket.create_connection(('server.test', 2525), timeout=20)
    got = 0
    while got < 2 << 20: got += len(s.recv(1 << 16))
    s.setblocking(False)
    try:
        while True: s.send(b'x' * 65536)
    except BlockingIOError: pass
    held.append(s)
print('held', flush=True)
time.sleep(600)";
    let before = kernel_keeps();
    let out = world.home.path().join("held");
    let mut command = world.command(&["exec", "--timeout", "600s", &id, "--", "python3", "-c", script]);
    let child = command.stdout(std::fs::File::create(&out).unwrap()).spawn().unwrap();
    let _program = crate::world::Program(child);
    until("all are held", || std::fs::read_to_string(&out).unwrap().contains("held"));
    // It has stopped to grow.
    let mut last = 0;
    until("nothing moves", || {
        let now = kernel_keeps();
        let still = now.abs_diff(last) < 1 << 20;
        last = now;
        std::thread::sleep(Duration::from_millis(300));
        still
    });
    let took = last.saturating_sub(before) >> 20;
    eprintln!("120 connections take {took} MiB");
    assert!(took < 64, "{took} MiB");
}
