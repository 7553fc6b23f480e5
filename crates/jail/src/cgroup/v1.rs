//! Version one: a hierarchy for every controller, limits set in each.

use super::detect::Controller;
use super::probe::{Format, Meters};
use super::tree::{Setting, Tree};
use super::{CPU_PERIOD_MICROS, GUEST_CPU_MICROS, GUEST_MEMORY, GUEST_PIDS, Limits};

/// Socket buffers never have less.
const LEAST_FOR_SOCKETS: u64 = 4 << 20;

pub(super) fn settings(tree: &Tree, limits: &Limits) -> Vec<Setting> {
    let mut settings = Vec::new();
    if tree.has(Controller::Memory) {
        for (group, memory) in
            [(tree.top(), limits.memory.saturating_add(GUEST_MEMORY)), (tree.executions(), limits.memory)]
        {
            settings.push(Setting::required(group.join("memory.limit_in_bytes"), memory));
            // Memory plus swap: equal, so no swap. The file is there only if the kernel accounts for swap.
            settings.push(Setting::optional(group.join("memory.memsw.limit_in_bytes"), memory));
            // Socket buffers are counted apart, and only once they have a limit. It is low because the kernel counts
            // bytes, and keeps whole blocks for them.
            let sockets = (memory / 16).max(LEAST_FOR_SOCKETS);
            settings.push(Setting::optional(group.join("memory.kmem.tcp.limit_in_bytes"), sockets));
        }
    }
    if tree.has(Controller::Pids) {
        settings.push(Setting::required(tree.top().join("pids.max"), limits.pids.saturating_add(GUEST_PIDS)));
        settings.push(Setting::required(tree.executions().join("pids.max"), limits.pids));
    }
    if tree.has(Controller::Cpu) {
        for (group, quota) in [
            (tree.top(), limits.cpu_quota_micros() + GUEST_CPU_MICROS),
            (tree.executions(), limits.cpu_quota_micros()),
        ] {
            settings.push(Setting::required(group.join("cpu.cfs_period_us"), CPU_PERIOD_MICROS));
            settings.push(Setting::required(group.join("cpu.cfs_quota_us"), quota));
        }
    }
    settings
}

pub(super) fn open_meters(tree: &Tree, meters: &mut Meters) {
    let executions = tree.executions();
    if tree.has(Controller::Memory) {
        meters.memory_current.open(&executions.join("memory.usage_in_bytes"), Format::Number);
        meters.memory_peak.open_resettable(&executions.join("memory.max_usage_in_bytes"), Format::Number);
        meters.oom_kills.open(&executions.join("memory.oom_control"), Format::Key("oom_kill"));
    }
    if tree.has(Controller::Pids) {
        meters.pids_current.open(&executions.join("pids.current"), Format::Number);
        meters.pids_peak.open(&executions.join("pids.peak"), Format::Number);
    }
    if tree.has(Controller::Cpuacct) {
        meters.cpu_usec.open(&executions.join("cpuacct.usage"), Format::Nanoseconds);
    }
}
