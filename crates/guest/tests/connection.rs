//! The connection itself: how it begins and how it ends.

mod harness;

use belljar_core::ErrorCode;
use belljar_core::wire::{Event, PROTOCOL, Request};
use harness::{Guest, init, now_ms, shell, wait_gone};

#[test]
fn another_version_is_refused() {
    let mut guest = Guest::silent();
    let mut hello = init("/");
    hello.protocol = PROTOCOL + 1;
    guest.send(0, &Request::Init(Box::new(hello)));
    let Event::Failed(error) = guest.event(0) else { panic!("accepted") };
    assert_eq!(error.code, ErrorCode::Version);
    assert_eq!(guest.end(), 2);
}

#[test]
fn garbage_ends_the_guest() {
    let mut guest = Guest::start();
    guest.raw(&[0xff; 64]);
    assert_eq!(guest.end(), 2);
}

#[test]
fn the_guest_ends_with_its_socket_and_everything_with_it() {
    let mut guest = Guest::start();
    let id = guest.spawn(shell("sleep 1000"));
    let pid = guest.started(id);
    drop(guest);
    wait_gone(pid);
}

#[test]
fn the_deadline_ends_the_guest() {
    let mut guest = Guest::start();
    let id = guest.spawn(shell("sleep 1000"));
    let pid = guest.started(id);
    guest.send(0, &Request::Deadline { deadline_ms: now_ms() + 50 });
    assert_eq!(guest.end(), 0);
    wait_gone(pid);
}

#[test]
fn the_deadline_ends_the_guest_while_its_peer_does_not_listen() {
    let mut guest = Guest::start();
    // Fills the socket: many streams, none of them read.
    let ids: Vec<u32> = (0..16).map(|_| guest.spawn(shell("cat /dev/zero"))).collect();
    guest.started(ids[0]);
    guest.send(0, &Request::Deadline { deadline_ms: now_ms() + 300 });
    let pid = guest.process.id();
    wait_gone(pid);
}

#[test]
fn a_conversation_that_does_not_exist_is_not_found() {
    let mut guest = Guest::start();
    guest.send(77, &Request::Signal { signal: 15 });
    let Event::Failed(error) = guest.event(77) else { panic!("signalled") };
    assert_eq!(error.code, ErrorCode::NotFound);
}
