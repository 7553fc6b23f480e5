//! What people do with it.

use serde_json::Value;

use crate::world::{HttpServer, Program, SERVER, World, tls_server, until};

const CURL: &str = "curl -sS --max-time 10";

#[test]
fn what_is_allowed_is_served_and_the_rest_is_told() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let run = |options: &[&str], script: &str| {
        world.json(&[&["run"], options, &["--", "sh", "-c", script]].concat())
    };
    let script = format!("{CURL} http://server.test/x");
    let served = run(&["--allow", "server.test"], &script);
    assert_eq!(served["stdout"], "served GET /x HTTP/1.1 for server.test\n", "{served}");
    assert_eq!(served["denied"], serde_json::json!([]));
    for (options, reason) in [
        (vec!["--allow", "other.test"], "not_listed"),
        (vec!["--allow", "server.test:81"], "port_not_listed"),
    ] {
        let denied = run(&options, &format!("{CURL} http://server.test/x; {CURL} http://{SERVER}/x"));
        let list = denied["denied"].as_array().unwrap();
        assert!(!list.is_empty(), "{denied}");
        let told = list.iter().any(|denial| {
            denial["reason"] == reason && denial["how_to_grant"].as_str().unwrap().contains("--allow")
        });
        assert!(told, "{reason}: {denied}");
    }
    // Without a network at all.
    let denied = run(&[], &script);
    assert_ne!(denied["exit_code"], 0);
    assert_eq!(server.asked().len(), 1, "{:?}", server.asked());
}

#[test]
fn a_refusal_is_said_in_the_clients_own_language() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let (_tls, _) = tls_server(&world, &format!("{SERVER}:443"), &["server.test"]);
    let id = world.create(&["--allow", "GET http://server.test/v1/*"]);
    let ran = world.shell(&id, &format!("{CURL} -i http://server.test/v2/x"));
    let text = ran["stdout"].as_str().unwrap();
    assert!(text.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{ran}");
    for part in ["server.test", "/v2/x", "allow rule 1", "execution 1", "Do not try another route"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let tls = world.shell(&id, &format!("{CURL} -k https://{SERVER}/"));
    assert!(tls["stderr"].as_str().unwrap().contains("access denied"), "{tls}");
    let served = world.shell(&id, &format!("{CURL} http://server.test/v1/x"));
    assert!(served["stdout"].as_str().unwrap().starts_with("served GET /v1/x"), "{served}");
}

#[test]
fn connections_that_stay_are_judged_request_by_request() {
    let world = World::new();
    let server = HttpServer::start(&format!("{SERVER}:80"));
    let id = world.create(&["--allow", "GET http://server.test/v1/*"]);
    let script = "import http.client
c = http.client.HTTPConnection('server.test')
for path in ['/v1/a', '/v1/b']:
    c.request('GET', path); r = c.getresponse(); print(r.status, r.read())
s = c.sock
c.request('GET', '/v2/c'); r = c.getresponse(); print(r.status, c.sock is s or c.sock is None)
c = http.client.HTTPConnection('server.test')
c.request('POST', '/v1/d', body='x'); print(c.getresponse().status)
c = http.client.HTTPConnection('server.test')
c.request('GET', '/v1/e', headers={'Host': 'other.test'}); print(c.getresponse().status)";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    let said = ran["stdout"].as_str().unwrap();
    assert_eq!(said.lines().filter(|line| line.starts_with("200")).count(), 2, "{ran}");
    assert_eq!(said.lines().filter(|line| line.starts_with("403")).count(), 3, "{ran}");
    assert_eq!(server.asked().len(), 2, "{:?}", server.asked());
    let flows = world.flows(&id);
    let of = |path: &str| {
        flows
            .iter()
            .find(|flow| flow["request"].as_str().is_some_and(|text| text.contains(path)))
            .unwrap_or_else(|| panic!("{path}: {flows:?}"))
    };
    assert_eq!(of("/v1/a")["verdict"], "allowed");
    assert_eq!(of("/v1/b")["exec"], 1);
    assert!(of("/v1/b")["sent"].as_u64().unwrap() > 0 && of("/v1/b")["received"].as_u64().unwrap() > 0);
    assert_eq!(of("/v2/c")["reason"], "request_not_listed");
    assert_eq!(of("/v1/d")["reason"], "request_not_listed");
}

#[test]
fn tls_is_passed_on_to_the_granted_name_only() {
    let world = World::new();
    let (_tls, certificate) = tls_server(&world, &format!("{SERVER}:443"), &["server.test", "same.test"]);
    let id = world.create(&["--allow", "server.test", "--allow", "*.server.test:8443"]);
    let copied = world.run(&["cp", certificate.to_str().unwrap(), &format!("{id}:/tmp/ca.pem")]);
    assert!(copied.status.success());
    let served = world.shell(&id, &format!("{CURL} --cacert /tmp/ca.pem https://server.test/"));
    assert_eq!(served["stdout"], "served inside TLS\n", "{served}");
    // The connection leads to the granted name, and asks there for another that the same server has.
    let script =
        format!("{CURL} --cacert /tmp/ca.pem --connect-to same.test:443:server.test:443 https://same.test/");
    let fronted = world.shell(&id, &script);
    assert_ne!(fronted["exit_code"], 0, "{fronted}");
    assert_eq!(fronted["denied"][0]["reason"], "other_name", "{fronted}");
    let nameless = world.shell(&id, "echo | openssl s_client -connect server.test:443 -noservername 2>&1");
    assert_eq!(nameless["denied"][0]["reason"], "other_name", "{nameless}");
    let flows = world.flows(&id);
    let tls: Vec<&Value> = flows.iter().filter(|flow| flow["kind"] == "tls").collect();
    assert_eq!(tls[0]["verdict"], "allowed");
    assert_eq!(
        (&tls[0]["host"], &tls[0]["port"], &tls[0]["exec"]),
        (&"server.test".into(), &443.into(), &1.into())
    );
    assert!(
        tls[0]["sent"].as_u64().unwrap() > 200 && tls[0]["received"].as_u64().unwrap() > 200,
        "{}",
        tls[0]
    );
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let world = World::new();
    let canary = crate::world::Canary::start(&format!("{SERVER}:2525"));
    let id = world.create(&["--allow", "server.test:2525"]);
    let script = "import socket
s = socket.create_connection(('server.test', 2525)); print(s.recv(100))";
    let ran = world.json(&["exec", &id, "--", "python3", "-c", script]);
    assert_eq!(ran["stdout"], "b'canary\\n'\n", "{ran}");
    assert_eq!(canary.visits(), 1);
}

#[test]
fn a_policy_that_is_tightened_cuts_what_it_no_longer_allows() {
    let world = World::new();
    let _server = HttpServer::start(&format!("{SERVER}:80"));
    let canary = crate::world::Canary::start(&format!("{SERVER}:2525"));
    let id = world.create(&["--allow", "server.test:2525", "--allow", "server.test"]);
    let script = "import socket
s = socket.create_connection(('server.test', 2525)); s.recv(100)
open('connected', 'w').close()
try: print(s.recv(100))
except OSError as error: print(type(error).__name__)";
    let exec = world.json(&["exec", "-d", &id, "--", "python3", "-c", script])["exec"].to_string();
    until("it is connected", || world.shell(&id, "test -e connected")["exit_code"] == 0);
    let set = world.run(&["net", "set", &id, "--allow", "server.test"]);
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    until("it is cut", || {
        world.json(&["inspect", &id])["executions"][0]["termination"].is_object() || {
            let logs = world.run(&["logs", &id, &exec]);
            String::from_utf8_lossy(&logs.stdout).contains("Connection")
        }
    });
    let logs = world.run(&["logs", &id, &exec]);
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "ConnectionResetError\n");
    assert_eq!(canary.visits(), 1);
    let refused = world.json(&["exec", &id, "--", "python3", "-c", script]);
    assert_ne!(refused["exit_code"], 0, "{refused}");
    let served = world.shell(&id, &format!("{CURL} http://server.test/x"));
    assert!(
        served["stdout"].as_str().unwrap().starts_with("served"),
        "what is still allowed goes on: {served}"
    );
    // And loosened again, without a restart of anything.
    assert!(world.run(&["net", "set", &id, "--allow", "server.test:2525"]).status.success());
    let again = world.json(&[
        "exec",
        &id,
        "--",
        "python3",
        "-c",
        "import socket; print(socket.create_connection(('server.test', 2525)).recv(9))",
    ]);
    assert_eq!(again["exit_code"], 0, "{again}");
}

#[test]
fn a_request_that_is_no_longer_allowed_is_cut_while_it_is_answered() {
    let world = World::new();
    // Answers for ever.
    let listener = crate::world::listen(&format!("{SERVER}:80"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                use std::io::Write;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                while stream.write_all(b"more\n").is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
        }
    });
    let id =
        world.create(&["--allow", "GET http://server.test/v1/*", "--allow", "GET http://server.test/v2/*"]);
    let fetch = |path: &str| {
        let script = format!("curl -sSN http://server.test{path} > $(basename {path})");
        world.json(&["exec", "-d", "--timeout", "5m", &id, "--", "sh", "-c", &script])["exec"].to_string()
    };
    let first = fetch("/v1/a");
    fetch("/v2/b");
    until("both are answered", || world.shell(&id, "test -s a && test -s b")["exit_code"] == 0);
    assert!(world.run(&["net", "set", &id, "--allow", "GET http://server.test/v2/*"]).status.success());
    let output = world.run(&["attach", &id, &first]);
    assert!(!output.status.success(), "{output:?}");
    let grows = "n=$(wc -c < b); while [ $(wc -c < b) = $n ]; do sleep 0.05; done";
    assert_eq!(world.shell(&id, grows)["exit_code"], 0, "the other goes on");
    let cut = world.flows(&id);
    assert!(cut.iter().any(|flow| flow["request"] == "GET /v1/a" && flow["verdict"] == "denied"), "{cut:?}");
}

#[test]
fn what_was_moved_is_counted_to_the_byte() {
    let world = World::new();
    let listener = crate::world::listen(&format!("{SERVER}:2525"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                use std::io::{Read, Write};
                let mut all = Vec::new();
                (&mut &stream).take(100_000).read_to_end(&mut all).unwrap();
                (&mut &stream).write_all(&[b'x'; 300_000]).unwrap();
            });
        }
    });
    let mut engine = Program(world.command(&["engine"]).spawn().unwrap());
    until("the engine serves", || world.run(&["sessions"]).status.success());
    let id = world.create(&["--allow", "server.test:2525"]);
    let script = "import socket
s = socket.create_connection(('server.test', 2525)); s.sendall(b'y' * 100_000)
while s.recv(65536): pass";
    assert_eq!(world.json(&["exec", &id, "--", "python3", "-c", script])["exit_code"], 0);
    let stats = |name: &str| world.json(&["stats", &id])["sandboxes"][0]["stats"][name].clone();
    until("it is counted while it runs", || stats("egress_bytes") == 100_000);
    assert_eq!(stats("ingress_bytes"), 300_000);
    // And what is moved until the very end.
    let exec = world.json(&[
        "exec",
        "-d",
        &id,
        "--",
        "python3",
        "-c",
        &format!("{script}; open('done', 'w').close(); import time; time.sleep(99)"),
    ]);
    assert!(exec["exec"].is_u64(), "{exec}");
    until("it is done", || world.shell(&id, "test -e done")["exit_code"] == 0);
    assert!(world.run(&["kill", &id]).status.success());
    until("it has ended", || world.json(&["sessions"])["sessions"][0]["state"] == "ended");
    let meter = world.json(&["sessions"])["sessions"][0]["meter"].clone();
    assert_eq!(meter["egress_bytes"]["known"], 200_000, "{meter}");
    assert_eq!(world.json(&["usage"])["meter"]["egress_bytes"], serde_json::json!({"known": 200_000}));
    assert!(world.run(&["rm", "-f", &id]).status.success());
    crate::surroundings::processes::send(
        i32::try_from(engine.0.id()).unwrap(),
        rustix::process::Signal::TERM,
    );
    assert!(engine.0.wait().unwrap().success());
}
