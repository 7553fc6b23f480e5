//! What the supervisor knows of tenants: how much each may use, and how many bytes its sandboxes have moved today. The first is in a
//! file of the data directory, which engines write; the second in a file for each tenant, which the supervisor writes.
//!
//! What cannot be read is an error for the sandbox that is concerned, which is not served then.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use belljar_core::{Budget, LEASE_FILE, NetShare, Owner, TENANTS_FILE, Tenant, TenantLimits};
use serde::{Deserialize, Serialize};

use super::clock::today;
use super::message::TenantShare;
use super::supervisor::read;
use crate::gateway::budget::Spent;
use crate::gateway::customer::TenantBudget;

/// Where it is written down how much was moved, in the data directory.
const DIRECTORY: &str = "tenants";
/// The longest lease, and the longest list of limits.
const MAX_FILE: u64 = 8 << 20;
/// The longest of the files about one tenant.
const MAX_COUNT: u64 = 4096;

/// What is on disk about a sandbox's tenant, if that has limits.
#[derive(Debug)]
pub(super) struct Found {
    tenant: Tenant,
    limits: Limits,
    day: Day,
}

/// What a tenant may use.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    network: NetShare,
    /// In a day; nothing where that is not limited.
    gateway: Option<Budget>,
}

/// What was moved, and spent, on a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Day {
    /// Its number, from 1970 on.
    pub(super) day: u64,
    /// Bytes in both directions.
    pub(super) bytes: u64,
    /// What the gateway did.
    #[serde(default)]
    spent: Spent,
}

impl Day {
    /// The same today. A clock that is set back gives nobody another day's worth, neither then nor when the day comes again.
    pub(super) fn on(self, today: u64) -> Self {
        if today > self.day { Self { day: today, ..Self::default() } } else { self }
    }
}

/// Looks for the tenant of the sandbox in this directory, and for what it may use.
pub(super) fn find(home: &Path, sandbox: &Path) -> io::Result<Option<Found>> {
    match owner(sandbox)? {
        Some(owner) => find_tenant(home, owner.tenant),
        None => Ok(None),
    }
}

fn find_tenant(home: &Path, tenant: Tenant) -> io::Result<Option<Found>> {
    tenant.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let limits: TenantLimits =
        read(&home.join(TENANTS_FILE), MAX_FILE).map_err(|error| about(TENANTS_FILE, &error))?;
    let (network, gateway) = (limits.network(&tenant), limits.gateway(&tenant));
    if network.is_none() && gateway.is_none() {
        return Ok(None);
    }
    let limits =
        Limits { network: network.unwrap_or_default(), gateway: gateway.map(|share| share.budget()) };
    let file = file_of(&tenant);
    let day = match read(&home.join(&file), MAX_COUNT) {
        Ok(day) => day,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Day::default(),
        Err(error) => {
            let error = about(&file.display().to_string(), &error);
            return Err(io::Error::new(
                error.kind(),
                format!("{error}; without that file its count begins anew"),
            ));
        }
    };
    Ok(Some(Found { tenant, limits, day }))
}

fn about(file: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("what its tenant may use is not known: {file}: {error}"))
}

/// Whose a sandbox is, as the lease says that is written before anything else.
fn owner(sandbox: &Path) -> io::Result<Option<Owner>> {
    #[derive(Deserialize)]
    struct Lease {
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Spec {
        #[serde(default)]
        owner: Option<Owner>,
    }
    let lease: Lease = read(&sandbox.join(LEASE_FILE), MAX_FILE)?;
    Ok(lease.spec.owner)
}

/// Names of tenants are plain.
fn file_of(tenant: &Tenant) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{tenant}.json"))
}

/// The tenants with limits whose sandboxes are or were served.
#[derive(Debug, Default)]
pub(super) struct Tenants(HashMap<Tenant, Account>);

#[derive(Debug)]
struct Account {
    limits: Limits,
    day: Day,
    /// What the file says.
    written: Day,
}

impl Tenants {
    /// Takes note of what was found: the limits hold from now on, and the count is ours if we have one.
    pub(super) fn note(&mut self, found: Found) -> Tenant {
        let Found { tenant, limits, day } = found;
        let account = self.0.entry(tenant.clone()).or_insert(Account { limits, day, written: day });
        account.limits = limits;
        tenant
    }

    /// What the worker is told of a tenant; nothing if it is not known.
    pub(super) fn share(&self, tenant: &Tenant) -> Option<TenantShare> {
        let account = self.0.get(tenant)?;
        let day = account.day.on(today());
        Some(TenantShare { tenant: tenant.clone(), bounds: account.limits.network.bounds(), day })
    }

    /// What the gateway is told of a tenant; nothing if what it may have done is not limited.
    pub(super) fn budget(&self, tenant: &Tenant) -> Option<TenantBudget> {
        let account = self.0.get(tenant)?;
        let Day { day, spent, .. } = account.day.on(today());
        Some(TenantBudget { tenant: tenant.clone(), budget: account.limits.gateway?, day, spent })
    }

    /// Counts a call, and writes that down at once.
    pub(super) fn spent(&mut self, home: &Path, tenant: &Tenant, spent: Spent) {
        let Some(account) = self.0.get_mut(tenant).filter(|account| account.limits.gateway.is_some()) else {
            return;
        };
        account.day = account.day.on(today());
        account.day.spent = account.day.spent.and(spent);
        account.write(home, tenant);
    }

    /// Counts bytes.
    pub(super) fn moved(&mut self, tenant: &Tenant, bytes: u64) {
        if let Some(account) = self.0.get_mut(tenant) {
            account.day = account.day.on(today());
            account.day.bytes = account.day.bytes.saturating_add(bytes);
        }
    }

    /// Writes down what has changed, and forgets who has no sandboxes on a new day.
    pub(super) fn write(&mut self, home: &Path, is_served: impl Fn(&Tenant) -> bool) {
        let today = today();
        self.0.retain(|tenant, account| account.day.day >= today || is_served(tenant));
        self.0.iter_mut().for_each(|(tenant, account)| account.write(home, tenant));
    }
}

impl Account {
    /// Writes down what has changed.
    fn write(&mut self, home: &Path, tenant: &Tenant) {
        if self.day == self.written {
            return;
        }
        match write(home, tenant, self.day) {
            Ok(()) => self.written = self.day,
            Err(error) => tracing::warn!(%tenant, %error, "cannot write down what a tenant has used"),
        }
    }
}

/// Seen whole or not at all.
fn write(home: &Path, tenant: &Tenant, day: Day) -> io::Result<()> {
    let file = home.join(file_of(tenant));
    let new = file.with_extension("new");
    let text = serde_json::to_vec(&day)?;
    match fs::write(&new, &text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(0o700).create(home.join(DIRECTORY))?;
            fs::write(&new, &text)?;
        }
        written => written?,
    }
    fs::rename(&new, &file)
}

#[cfg(test)]
mod tests {
    use belljar_core::{ByteSize, SandboxId, Share};

    use super::*;

    /// A data directory with these limits, and a sandbox of a tenant in it.
    fn place(limits: Option<&str>, owner: Option<&str>) -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        if let Some(limits) = limits {
            fs::write(home.path().join(TENANTS_FILE), limits).unwrap();
        }
        let sandbox = home.path().join("sandbox");
        fs::create_dir(&sandbox).unwrap();
        let owner = owner.map(|tenant| Owner {
            tenant: Tenant(tenant.to_owned()),
            session: SandboxId::from_random([1; 16]),
        });
        let lease = serde_json::json!({ "id": "x", "spec": { "template": "host", "owner": owner } });
        fs::write(sandbox.join(LEASE_FILE), lease.to_string()).unwrap();
        (home, sandbox)
    }

    const LIMITS: &str = r#"{"each": {"network": {"total_bytes": 100}}}"#;

    #[test]
    fn what_is_counted_is_there_after_a_death_and_on_the_next_day_it_is_nothing() {
        let (home, sandbox) = place(Some(LIMITS), Some("acme"));
        let begin = || {
            let mut tenants = Tenants::default();
            let tenant = tenants.note(find(home.path(), &sandbox).unwrap().unwrap());
            (tenants, tenant)
        };
        let (mut tenants, tenant) = begin();
        tenants.moved(&tenant, 40);
        tenants.moved(&tenant, 2);
        tenants.write(home.path(), |_| true);
        let (tenants, tenant) = begin();
        let share = tenants.share(&tenant).unwrap();
        assert_eq!((share.day.bytes, share.bounds.total_bytes), (42, ByteSize(100)));
        let day = share.day;
        assert_eq!(day.on(day.day + 1).bytes, 0);
        assert_eq!(day.on(day.day - 1).bytes, 42, "the clock was set back");
        assert_eq!(day.on(day.day - 1).on(day.day).bytes, 42, "and the day came again");
        // Another sandbox of it comes while more is counted than is written.
        let (mut tenants, tenant) = begin();
        tenants.moved(&tenant, 8);
        tenants.note(find(home.path(), &sandbox).unwrap().unwrap());
        assert_eq!(tenants.share(&tenant).unwrap().day.bytes, 50);
    }

    #[test]
    fn limits_are_those_of_the_file_as_it_is_now() {
        let (home, sandbox) = place(Some(LIMITS), Some("acme"));
        let mut tenants = Tenants::default();
        let tenant = tenants.note(find(home.path(), &sandbox).unwrap().unwrap());
        let mut limits = TenantLimits::default();
        let network = NetShare { connections: Some(3), ..NetShare::default() };
        let share = Share { network, ..Share::default() };
        limits.tenants.insert(tenant.clone(), share);
        fs::write(home.path().join(TENANTS_FILE), serde_json::to_vec(&limits).unwrap()).unwrap();
        tenants.note(find(home.path(), &sandbox).unwrap().unwrap());
        let bounds = tenants.share(&tenant).unwrap().bounds;
        assert_eq!((bounds.connections, bounds.total_bytes), (3, ByteSize(u64::MAX)));
        fs::write(home.path().join(TENANTS_FILE), "{}").unwrap();
        assert!(find(home.path(), &sandbox).unwrap().is_none(), "it has none any more");
    }

    #[test]
    fn what_is_unknown_or_broken_is_an_error_and_no_limit_is_none() {
        let (home, sandbox) = place(None, None);
        assert!(find(home.path(), &sandbox).unwrap().is_none(), "nobody's, and made without an engine");
        fs::write(sandbox.join(LEASE_FILE), "{\"spec\": {\"owner\": {\"tenant\": 1}}}").unwrap();
        assert!(find(home.path(), &sandbox).is_err());
        fs::remove_file(sandbox.join(LEASE_FILE)).unwrap();
        assert!(find(home.path(), &sandbox).is_err());
        for limits in [None, Some("{"), Some("{\"each\": {\"network\": {\"unknown\": 1}}}")] {
            let (home, sandbox) = place(limits, Some("acme"));
            assert!(find(home.path(), &sandbox).is_err(), "{limits:?}");
        }
        let (home, sandbox) = place(Some(LIMITS), Some("../acme"));
        assert!(find(home.path(), &sandbox).is_err());
        let (home_of_acme, sandbox) = place(Some(LIMITS), Some("acme"));
        fs::create_dir(home_of_acme.path().join(DIRECTORY)).unwrap();
        fs::write(home_of_acme.path().join(DIRECTORY).join("acme.json"), "{\"day\"").unwrap();
        let error = find(home_of_acme.path(), &sandbox).unwrap_err().to_string();
        assert!(error.contains("tenants/acme.json") && error.contains("begins anew"), "{error}");
        drop(home);
    }
}
