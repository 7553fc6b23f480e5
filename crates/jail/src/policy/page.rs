//! The policy as a page for people: `docs/policy.md` is written from the tables, and the test here keeps it so.

use std::fmt::Write;

use super::{
    ALLOWED, ALLOWED_HERE, ASKED, Answer, CHECKED, Call, Capability, Checked, DEBUG, GUEST_CAPABILITIES,
    GUEST_ONLY, MONITOR, MONITOR_CHECKED, PRETENDED, REFUSED, REFUSED_HERE, ROOT_CAPABILITIES, UNPACKER,
    UNPACKER_CHECKED, WORKER, WORKER_CHECKED, WORKER_HERE,
};

const HEAD: &str = "# What a sandbox may ask of the kernel

Written from `crates/jail/src/policy.rs` (x86_64), the file that the filter is compiled from; to change this page, change
that file and run `BLESS=1 cargo test -p belljar-jail policy`. Calls of a foreign architecture and of x32 end the
process. A call that is not on this page does not exist inside (`ENOSYS`), so that libc falls back and a newer kernel
adds nothing.
";

fn page() -> String {
    let mut page = String::from(HEAD);
    section(&mut page, "Allowed", &[ALLOWED, ALLOWED_HERE].concat());
    page.push_str("\n## Decided by their arguments\n");
    decided(&mut page, CHECKED);
    section(&mut page, "Left to the guest", ASKED);
    section(&mut page, "Done in appearance only", PRETENDED);
    section(&mut page, "The guest's own (`ENOSYS` to everything it starts)", GUEST_ONLY);
    section(&mut page, "Refused (`EPERM`)", &[REFUSED, REFUSED_HERE].concat());
    section(&mut page, "Refused (`EPERM`) except in the debug profile", DEBUG);
    page.push_str("\n## Capabilities\n\n| who | has |\n|---|---|\n| the default user | none |\n");
    capabilities(&mut page, "root inside (`--user root`)", ROOT_CAPABILITIES);
    capabilities(&mut page, "the guest, besides", GUEST_CAPABILITIES);
    page.push_str("\nAll of them count in the sandbox's own user namespace only.\n");
    section(
        &mut page,
        "What the monitor may ask of the kernel, outside the sandbox (all else is `EPERM`)",
        MONITOR,
    );
    decided(&mut page, MONITOR_CHECKED);
    section(
        &mut page,
        "What the door's worker may ask of the kernel, outside (all else is `EPERM`)",
        &[WORKER, WORKER_HERE].concat(),
    );
    decided(&mut page, WORKER_CHECKED);
    section(
        &mut page,
        "What whoever unpacks a stranger's archive may ask of the kernel, outside (all else is `EPERM`)",
        UNPACKER,
    );
    decided(&mut page, UNPACKER_CHECKED);
    page
}

fn decided(page: &mut String, calls: &[Checked]) {
    page.push_str("\n| call | what | answer |\n|---|---|---|\n");
    for checked in calls {
        for clause in checked.clauses {
            let only = if clause.debug_only { " (debug profile)" } else { "" };
            row(page, checked.call.0, &format!("{}{only}", clause.says), clause.then);
        }
        row(page, checked.call.0, "anything else", checked.otherwise);
    }
}

fn name(call: &str) -> &str {
    call.trim_start_matches("SYS_")
}

fn section(page: &mut String, title: &str, calls: &[Call]) {
    let mut names: Vec<&str> = calls.iter().map(|call| name(call.0)).collect();
    names.sort_unstable();
    let _ = writeln!(page, "\n## {title}\n");
    let mut line = String::new();
    for (place, word) in names.iter().enumerate() {
        let last = place + 1 == names.len();
        let word = format!("`{word}`{}", if last { "" } else { ", " });
        if line.len() + word.len() > 118 {
            let _ = writeln!(page, "{}", line.trim_end());
            line.clear();
        }
        line.push_str(&word);
    }
    let _ = writeln!(page, "{line}");
}

fn row(page: &mut String, call: &str, says: &str, answer: Answer) {
    let answer = match answer {
        Answer::Allow => "allowed".to_owned(),
        Answer::Ask => "the guest decides".to_owned(),
        Answer::Errno(0) => "success, in appearance".to_owned(),
        Answer::Errno(errno) => format!("`{}`", errno_name(errno)),
    };
    let _ = writeln!(page, "| `{}` | {says} | {answer} |", name(call));
}

fn errno_name(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "EPERM",
        libc::EINVAL => "EINVAL",
        libc::ENOMEM => "ENOMEM",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::ENODEV => "ENODEV",
        libc::ENOSYS => "ENOSYS",
        other => panic!("the page has no name for error {other}"),
    }
}

fn capabilities(page: &mut String, who: &str, capabilities: &[Capability]) {
    let names: Vec<String> = capabilities.iter().map(|(name, _)| format!("`{name}`")).collect();
    let _ = writeln!(page, "| {who} | {} |", names.join(", "));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_page_says_what_the_policy_says() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policy.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, page()).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page(), "docs/policy.md is not what the policy says; write it anew with BLESS=1");
}

#[test]
fn capabilities_are_the_kernels() {
    // The numbers of linux/capability.h, written down a second time.
    let numbers: Vec<u32> = ROOT_CAPABILITIES.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, [0, 1, 3, 4, 5, 6, 7, 10]);
    assert_eq!(super::bits(ROOT_CAPABILITIES), 0x4fb);
    assert_eq!(super::bits(GUEST_CAPABILITIES), 0x100);
}
