//! Version two: one hierarchy, with all controllers or, on hybrid hosts, with none.

use std::path::PathBuf;

use super::detect::{Controller, enabling};
use super::probe::{Format, Meters};
use super::tree::{Setting, Tree};
use super::{CPU_PERIOD_MICROS, GUEST_CPU_MICROS, GUEST_MEMORY, GUEST_PIDS, Limits};

/// More leaves than a sandbox has executions at a time; a bound on what a guest gone wrong can pile up.
const MAX_LEAVES: u32 = 4096;

/// What to write where, so that the groups below this one have what they need.
pub(super) fn enabled_in(tree: &Tree, group: PathBuf) -> Option<(PathBuf, String)> {
    let ours = &tree.hierarchy().controllers;
    // Executions have their limits together; of one alone the processes are counted.
    let wanted = if group == tree.executions() { &[Controller::Pids][..] } else { ours };
    (!ours.is_empty()).then(|| (group.join("cgroup.subtree_control"), enabling(wanted)))
}

pub(super) fn settings(tree: &Tree, limits: &Limits) -> Vec<Setting> {
    let executions = tree.executions();
    let mut settings = vec![
        Setting::optional(executions.join("cgroup.max.descendants"), MAX_LEAVES),
        Setting::optional(executions.join("cgroup.max.depth"), 1),
    ];
    if tree.has(Controller::Memory) {
        for (group, memory) in
            [(tree.top(), limits.memory.saturating_add(GUEST_MEMORY)), (executions.clone(), limits.memory)]
        {
            settings.push(Setting::required(group.join("memory.max"), memory));
            // The file is there only if the kernel has swap.
            settings.push(Setting::optional(group.join("memory.swap.max"), 0));
        }
    }
    if tree.has(Controller::Pids) {
        settings.push(Setting::required(tree.top().join("pids.max"), limits.pids.saturating_add(GUEST_PIDS)));
        settings.push(Setting::required(executions.join("pids.max"), limits.pids));
    }
    if tree.has(Controller::Cpu) {
        for (group, quota) in [
            (tree.top(), limits.cpu_quota_micros() + GUEST_CPU_MICROS),
            (executions, limits.cpu_quota_micros()),
        ] {
            settings.push(Setting::required(group.join("cpu.max"), format!("{quota} {CPU_PERIOD_MICROS}")));
        }
    }
    settings
}

pub(super) fn open_meters(tree: &Tree, meters: &mut Meters) {
    let executions = tree.executions();
    // Counted even where the hierarchy has no controllers.
    meters.cpu_usec.open(&executions.join("cpu.stat"), Format::Key("usage_usec"));
    if tree.has(Controller::Memory) {
        meters.memory_current.open(&executions.join("memory.current"), Format::Number);
        meters.memory_peak.open_resettable(&executions.join("memory.peak"), Format::Number);
        meters.oom_kills.open(&executions.join("memory.events"), Format::Key("oom_kill"));
    }
    if tree.has(Controller::Pids) {
        meters.pids_current.open(&executions.join("pids.current"), Format::Number);
        meters.pids_peak.open(&executions.join("pids.peak"), Format::Number);
    }
    if tree.has(Controller::Io) {
        meters.read_bytes.open(&executions.join("io.stat"), Format::Sum("rbytes"));
        meters.write_bytes.open(&executions.join("io.stat"), Format::Sum("wbytes"));
    }
}
