//! Settings of the host that make an escape harder or less rewarding. None of them is needed for a sandbox to work:
//! each check is fine in itself, and may come with advice.

use std::fs;
use std::path::Path;

use super::{Area, Check};

/// The oldest kernel on which every wall can stand as it should.
const WANTED_KERNEL: (u32, u32) = (6, 12);

/// Which values of a setting are good.
#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(i64),
    AtMost(i64),
}

struct Setting {
    key: &'static str,
    wanted: Wanted,
    /// What the good value prevents.
    why: &'static str,
    /// What to do where the kernel does not have it.
    absent: Option<&'static str>,
}

const fn setting(key: &'static str, wanted: Wanted, why: &'static str) -> Setting {
    Setting { key, wanted, why, absent: None }
}

const SETTINGS: [Setting; 15] = [
    setting("fs.protected_symlinks", Wanted::AtLeast(1), "links planted in /tmp are not followed"),
    setting("fs.protected_hardlinks", Wanted::AtLeast(1), "files of others cannot be linked to"),
    setting("fs.protected_fifos", Wanted::AtLeast(1), "pipes planted in /tmp are not opened"),
    setting("fs.protected_regular", Wanted::AtLeast(1), "files planted in /tmp are not opened"),
    setting("dev.tty.legacy_tiocsti", Wanted::AtMost(0), "nobody can type into another's terminal"),
    Setting {
        key: "kernel.yama.ptrace_scope",
        wanted: Wanted::AtLeast(1),
        why: "processes of one user cannot take each other over",
        absent: Some(
            "this kernel has no Yama: use one with CONFIG_SECURITY_YAMA and `yama` in the lsm= parameter",
        ),
    },
    setting("kernel.kptr_restrict", Wanted::AtLeast(1), "kernel addresses are hidden"),
    setting("kernel.dmesg_restrict", Wanted::AtLeast(1), "the kernel's log is hidden"),
    setting("debug.exception-trace", Wanted::AtMost(0), "crashes inside write nothing into the kernel's log"),
    setting(
        "net.core.high_order_alloc_disable",
        Wanted::AtLeast(1),
        "bytes that wait unread in TCP sockets keep little memory that nobody counts",
    ),
    // Sandboxes have no io_uring in any case; this is for what else runs here.
    setting("kernel.io_uring_disabled", Wanted::AtLeast(2), "a frequent source of kernel holes is closed"),
    // Mainline knows nothing above 2; some distributions do.
    setting(
        "kernel.perf_event_paranoid",
        Wanted::AtLeast(2),
        "the kernel cannot be profiled by ordinary users",
    ),
    setting(
        "kernel.unprivileged_bpf_disabled",
        Wanted::AtLeast(1),
        "ordinary users cannot load code into the kernel",
    ),
    setting("vm.unprivileged_userfaultfd", Wanted::AtMost(0), "kernel races are harder to win"),
    setting("user.max_user_namespaces", Wanted::AtLeast(1), "sandboxes can have users of their own"),
];

pub(super) fn examine() -> Vec<Check> {
    let mut checks = vec![kernel(&read("/proc/sys/kernel/osrelease").unwrap_or_default())];
    checks.extend(SETTINGS.iter().map(|setting| {
        let path = Path::new("/proc/sys").join(setting.key.replace('.', "/"));
        judge(setting, fs::read_to_string(path).ok().as_deref())
    }));
    checks.push(core_dumps(&read("/proc/sys/kernel/core_pattern").unwrap_or_default()));
    checks.push(swap(&read("/proc/swaps").unwrap_or_default()));
    checks.push(page_merging(&read("/sys/kernel/mm/ksm/run").unwrap_or_default()));
    checks.push(processor_holes());
    checks
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn advise(name: &str, finding: impl Into<String>, advice: Option<String>) -> Check {
    Check { advice, ..Check::ok(Area::Host, name, finding) }
}

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = WANTED_KERNEL;
    let advice = (version < WANTED_KERNEL)
        .then(|| format!("{major}.{minor} or newer has all that the walls can use, above all in Landlock"));
    advise(
        "kernel",
        format!("Linux {}", if release.is_empty() { "of unknown version" } else { release }),
        advice,
    )
}

fn judge(setting: &Setting, text: Option<&str>) -> Check {
    let Setting { key, wanted, why, absent } = setting;
    let Some(text) = text.map(str::trim) else {
        return advise(key, "this kernel does not have it", absent.map(str::to_owned));
    };
    let Ok(value) = text.parse::<i64>() else {
        return advise(key, format!("reads `{}`", text.escape_debug()), None);
    };
    let (good, target) = match wanted {
        Wanted::AtLeast(least) => (value >= *least, least),
        Wanted::AtMost(most) => (value <= *most, most),
    };
    if good {
        return advise(key, format!("{value}: {why}"), None);
    }
    let advice = format!(
        "with {target} {why}; as root: sysctl -w {key}={target} (and the same in /etc/sysctl.d/90-belljar.conf)"
    );
    advise(key, value.to_string(), Some(advice))
}

fn core_dumps(pattern: &str) -> Check {
    let name = "kernel.core_pattern";
    if !pattern.starts_with(['|', '@']) {
        return advise(name, format!("`{}`: crashes start no program", pattern.escape_debug()), None);
    }
    let advice = "a crash inside a sandbox feeds that program or socket, as root and outside; where it is not needed: sysctl -w \
                  kernel.core_pattern=core";
    advise(name, format!("leads out: `{}`", pattern.escape_debug()), Some(advice.into()))
}

fn swap(table: &str) -> Check {
    let areas: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    if areas.is_empty() {
        return advise("swap", "none: what sandboxes hold in memory stays there", None);
    }
    // Memory compressed in place never reaches a disk.
    let on_disk: Vec<&str> = areas.iter().filter(|area| !area.starts_with("/dev/zram")).copied().collect();
    let advice = (!on_disk.is_empty()).then(|| {
        "what other programs of this host hold in memory may reach the disk: encrypt it, or swapoff -a"
            .to_owned()
    });
    advise("swap", format!("on {}; sandboxes themselves use none", areas.join(", ")), advice)
}

fn page_merging(run: &str) -> Check {
    let name = "kernel page merging";
    match run {
        "1" => advise(
            name,
            "on: by timing, one process can tell what another has in memory",
            Some("as root: echo 2 > /sys/kernel/mm/ksm/run".into()),
        ),
        _ => advise(name, "off", None),
    }
}

fn processor_holes() -> Check {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    let mut open: Vec<String> = entries
        .filter(|entry| fs::read_to_string(entry.path()).is_ok_and(|text| text.starts_with("Vulnerable")))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    open.sort();
    let name = "processor holes";
    if open.is_empty() {
        return advise(name, "the kernel knows of none that is open", None);
    }
    let advice = "update kernel and microcode, and do not boot with mitigations=off";
    advise(name, format!("open: {}", open.join(", ")), Some(advice.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_judged_and_the_command_is_given() {
        let advice =
            |key: &str, text| judge(SETTINGS.iter().find(|setting| setting.key == key).unwrap(), text).advice;
        assert_eq!(advice("kernel.kptr_restrict", Some("1\n")), None);
        assert_eq!(advice("kernel.kptr_restrict", Some("2\n")), None);
        assert!(
            advice("kernel.kptr_restrict", Some("0\n")).unwrap().contains("sysctl -w kernel.kptr_restrict=1")
        );
        assert_eq!(advice("dev.tty.legacy_tiocsti", Some("0")), None);
        assert!(advice("dev.tty.legacy_tiocsti", Some("1")).unwrap().contains("tiocsti=0"));
        assert!(
            advice("debug.exception-trace", Some("1")).unwrap().contains("sysctl -w debug.exception-trace=0")
        );
        assert!(advice("kernel.yama.ptrace_scope", None).unwrap().contains("CONFIG_SECURITY_YAMA"));
        assert_eq!(advice("fs.protected_fifos", None), None);
    }

    #[test]
    fn old_kernels_pipes_and_swap_come_with_advice() {
        assert!(kernel("5.15.0-91-generic").advice.is_some());
        assert!(kernel("").advice.is_some());
        assert_eq!(kernel("6.18.44-fc").advice, None);
        assert!(core_dumps("|/usr/share/apport/apport %p").advice.is_some());
        assert!(core_dumps("@/run/dumps").advice.is_some());
        assert_eq!(core_dumps("core").advice, None);
        let header = "Filename Type Size Used Priority";
        assert_eq!(swap(header).advice, None);
        assert_eq!(swap(&format!("{header}\n/dev/zram0 partition 1 0 5")).advice, None);
        assert!(swap(&format!("{header}\n/dev/sda2 partition 1 0 -2")).advice.is_some());
    }
}
