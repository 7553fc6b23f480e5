//! The native rung: namespaces, cgroups, seccomp and Landlock. This is the async face of the `jail` and `guest`
//! crates: it starts a launcher for each sandbox and then speaks with the sandbox's monitor.

mod afterwards;
mod calls;
mod connection;
mod egress;
mod execs;
mod files;
mod gateway;
mod network;
mod nursery;
pub(crate) mod programs;
mod record;
mod recording;
mod sandbox;
pub mod templates;
mod trust;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{
    CachePlan, Capabilities, Capability, Door, Error, ErrorCode, Issued, NetworkPolicy, Provider,
    ProviderName, Recording, Result, Rules, Sandbox, SandboxId, SandboxInfo, SandboxSpec, TENANTS_FILE,
    TenantLimits,
};
use belljar_jail::plan::{LIVE_ON, Layer, Plan, Report};
use belljar_jail::{slot, sweep};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use self::connection::Way;
use self::network::JailNetwork;
use self::nursery::Nursery;
use self::programs::Programs;
use self::record::{Lease, Remains, is_alive, remains};
use self::sandbox::{Jailed, Tie, blocking, info};
use crate::home::{Home, problem};
use crate::names::new_id;
use crate::template::{self, Template, TemplateError};

/// A launch that takes longer has failed; the launcher itself gives up a little earlier.
const LAUNCH_PATIENCE: Duration = Duration::from_secs(65);
/// The longest answer of a launcher.
const MAX_REPORT: u64 = 1 << 20;

/// Makes sandboxes on this machine's kernel.
#[derive(Debug)]
pub struct Jail {
    home: Home,
    programs: Programs,
    nursery: Nursery,
    epoch: Option<u64>,
    door: Option<Arc<dyn Door>>,
}

impl Jail {
    /// A provider that keeps its sandboxes in this data directory.
    pub fn new(home: Home) -> Result<Self> {
        let programs = Programs::install(&home)?;
        let nursery = Nursery::new(programs.jail.clone(), home.log());
        Ok(Self { home, programs, nursery, epoch: None, door: None })
    }

    /// The same in the name of an engine with this epoch: sandboxes that have heard of a higher one refuse whatever it
    /// asks for as `fenced`. An engine has a higher epoch than all that were there before it.
    #[must_use]
    pub fn with_epoch(mut self, epoch: u64) -> Self {
        self.epoch = Some(epoch);
        self
    }

    /// The same where tenants may use so much together. It holds for the sandboxes that are there as well, once they are opened.
    pub fn with_tenants(self, limits: &TenantLimits) -> Result<Self> {
        let path = self.home.path().join(TENANTS_FILE);
        let text = serde_json::to_vec(limits).unwrap_or_default();
        // Made for its owner alone, and seen whole or not at all.
        let written = tempfile::NamedTempFile::new_in(self.home.path()).and_then(|mut file| {
            file.write_all(&text)?;
            file.as_file().sync_data()?;
            file.persist(&path).map_err(|error| error.error)
        });
        written.map_err(|error| problem(&path, &error))?;
        Ok(self)
    }

    /// The same with a door, through which sandboxes can be granted a network.
    #[must_use]
    pub fn with_door(mut self, door: Arc<dyn Door>) -> Self {
        self.door = Some(door);
        self
    }

    /// The network of a sandbox with this policy, if there is a door.
    fn network(&self, id: &SandboxId, policy: &NetworkPolicy) -> Option<JailNetwork> {
        Some(JailNetwork {
            id: id.clone(),
            way: self.way(id),
            door: self.door.clone()?,
            templates: self.home.templates(),
            is_granted: *policy != NetworkPolicy::None,
        })
    }

    /// Sees to the recording that a sandbox has to do with: the variables that it is to have on account of it. One that is answered from
    /// has no other network.
    async fn recording(&self, spec: &mut SandboxSpec) -> Result<BTreeMap<String, String>> {
        let Some(recording) = &spec.recording else { return Ok(BTreeMap::new()) };
        let Some(door) = &self.door else {
            return Err(Error::new(ErrorCode::Unsupported, "there is nobody here who keeps recordings"));
        };
        if spec.owner.is_some() {
            let wrong = "recordings are not kept apart by tenant, so that an engine makes none";
            return Err(Error::new(ErrorCode::Unsupported, wrong).hint("run it without the engine"));
        }
        match recording {
            Recording::Record(_) => {}
            Recording::Replay(_) => {
                spec.network = NetworkPolicy::Allowlist(Rules::default());
                spec.grant = None;
            }
        }
        door.recording(recording).await
    }

    /// Makes the token that a sandbox is to have, and has the gateway be within its reach.
    async fn issue(&self, spec: &mut SandboxSpec) -> Result<Option<Issued>> {
        let Some(grant) = &spec.grant else { return Ok(None) };
        let Some(door) = &self.door else {
            return Err(Error::new(ErrorCode::Unsupported, "there is no gateway here"));
        };
        let issued = door.issue(grant).await?;
        spec.network = std::mem::take(&mut spec.network).with_gateway();
        Ok(Some(issued))
    }

    fn way(&self, id: &SandboxId) -> Way {
        Way { state_dir: self.home.sandbox(id), epoch: self.epoch }
    }

    fn plan(&self, id: &SandboxId, spec: &SandboxSpec, template: Template) -> Plan {
        let mut env: BTreeMap<String, String> = template.env.into_iter().collect();
        env.extend(spec.env.clone());
        let layers = template
            .mounts
            .into_iter()
            .map(|mount| Layer {
                source: mount.source,
                target: mount.target,
                above: mount.above,
                copy_on_write: mount.copy_on_write,
            })
            .collect();
        Plan {
            id: id.clone(),
            state_dir: self.home.sandbox(id),
            stage: self.home.stage(),
            root: template.root,
            above: template.above,
            layers,
            covered: template.covered,
            files: Vec::new(),
            limits: spec.limits,
            env,
            shell: template.shell.to_string_lossy().into_owned(),
            user: template.user,
            own_root: template.name != template::HOST,
            directory: template.directory,
            ttl: spec.ttl,
            guest: self.programs.guest.clone(),
            doorway: spec.network != NetworkPolicy::None,
        }
    }

    /// Has the plan carried out.
    async fn launch(&self, launcher: &mut UnixStream, plan: &Plan) -> Result<()> {
        let log_before = self.nursery.log_length();
        let mut line = serde_json::to_vec(plan).unwrap_or_default();
        line.push(b'\n');
        let mut answer = Vec::new();
        let exchange = async {
            launcher.write_all(&line).await?;
            BufReader::new(launcher.take(MAX_REPORT)).read_until(b'\n', &mut answer).await
        };
        match tokio::time::timeout(LAUNCH_PATIENCE, exchange).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(launcher_failed(&error.to_string())),
            Err(_) => return Err(launcher_failed("it took longer than a minute")),
        }
        match serde_json::from_slice(&answer) {
            Ok(Report::Ready) => Ok(()),
            Ok(Report::Failed(error)) => Err(error),
            Err(_) => {
                let said = self.nursery.said_since(log_before);
                Err(launcher_failed(said.as_deref().unwrap_or("it said nothing")))
            }
        }
    }
}

fn launcher_failed(why: &str) -> Error {
    Error::new(ErrorCode::Internal, format!("the launcher failed: {why}"))
        .hint("`belljar doctor` checks every step of a launch")
}

/// Root of a user namespace that lacks the ids of sandboxes is neither root enough nor an ordinary user.
fn check_ids() -> Result<()> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if !rustix::process::geteuid().is_root() || slot::has_all_ids(&map) {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::PermissionDenied,
        "Belljar runs as root of a user namespace that lacks the user ids of sandboxes",
    )
    .hint("run it as root of the host, or as an ordinary user for a rootless sandbox"))
}

fn template_problem(error: &TemplateError) -> Error {
    let code = match error {
        TemplateError::Unknown { .. } => ErrorCode::NotFound,
        TemplateError::UnknownUser(_) => ErrorCode::InvalidArgument,
        _ => ErrorCode::Internal,
    };
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    Error::new(code, words).hint(
        "`belljar template ls` lists those there are; `--template host` uses this machine's own programs",
    )
}

/// The template of the host's own programs.
async fn host_template(cache: &Path) -> Result<Template> {
    let cache = cache.to_owned();
    blocking(move || template::host(&cache).map_err(|error| template_problem(&error))).await
}

/// Removes a sandbox's directory unless the launch went well.
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(directory) = &self.0 {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

#[async_trait]
impl Provider for Jail {
    fn name(&self) -> ProviderName {
        ProviderName::Jail
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::{
            Control, Files, Isolation, Limits, Network, Pause, Pty, Root, Signal, Stdin, Stream,
        };
        let mut list = vec![Stream, Stdin, Pty, Signal, Files, Control, Isolation];
        if rustix::process::geteuid().is_root() {
            list.extend([Root, Limits, Pause]);
        }
        if self.door.is_some() {
            list.push(Network);
        }
        Capabilities::of(&list)
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        spec.check()?;
        if self.door.is_none() {
            spec.network.check_without_door(ProviderName::Jail)?;
        }
        let recorded_env = self.recording(&mut spec).await?;
        let issued = self.issue(&mut spec).await?;
        check_ids()?;
        spec.limits = spec.limits.fitted();
        // It begins while we make the sandbox's directory and look for the template.
        let mut launcher = self.nursery.fork_launcher()?;
        let id = match spec.id.take() {
            Some(id) => id,
            None => new_id()?,
        };
        let state_dir = self.home.sandbox(&id);
        let held = Lease::write(&state_dir, &id, &spec)?;
        let mut unfinished = Unfinished(Some(state_dir.clone()));
        // Nothing of it is collected before the sandbox says what it is made from.
        let (template, _held) = self.template_of(&spec.template, &state_dir).await?;
        let network = self.network(&id, &spec.network);
        let granted = network.as_ref().filter(|network| network.is_granted);
        let policy = template.expand(&spec.network)?;
        let has_hosts = issued.as_ref().is_some_and(|issued| !issued.record.hosts.is_empty());
        let cache = cache_plan(&spec, &template)?;
        let generated = template.generated.clone();
        let mut plan = self.plan(&id, &spec, template);
        let is_opened = has_hosts || policy.looks_inside_tls() || spec.recording.is_some() || cache.is_some();
        if let (Some(door), true) = (&self.door, is_opened) {
            let authority = door.authority(&id)?;
            let directory = state_dir.clone();
            plan.files = blocking(move || trust::write(&directory, &generated, &authority)).await?;
        }
        let taping = spec.recording.as_ref().map(|how| recording::plan(how, &spec.env, issued.as_ref()));
        let tokens = issued.map(|issued| {
            plan.env.extend(issued.env);
            vec![issued.record]
        });
        for (name, value) in recorded_env {
            plan.env.entry(name).or_insert(value);
        }
        // The door reads it when it is asked to see to the sandbox, and nobody before that.
        let write = async {
            match granted {
                Some(network) => {
                    if let Some(tokens) = tokens {
                        network.write_tokens(tokens).await?;
                    }
                    if let Some(cache) = cache {
                        network.change(move |files| files.write_cache(&cache)).await?;
                    }
                    if let Some(taping) = taping {
                        network.change(move |files| files.write_recording(&taping)).await?;
                    }
                    network.write(policy).await
                }
                None => Ok(()),
            }
        };
        let (launched, written) = tokio::join!(self.launch(&mut launcher, &plan), write);
        launched?;
        // Nothing runs inside before there is somebody at the door; and if nobody comes, nothing will.
        let seen_to = async {
            written?;
            match granted {
                Some(network) => network.see_to().await,
                None => Ok(()),
            }
        };
        if let Err(error) = seen_to.await {
            let tie = Tie::new(launcher, held);
            let _ = Jailed::new(id.clone(), self.way(&id), Some(tie), None).cleanup().await;
            return Err(error);
        }
        let tie = if spec.tied_to_creator {
            Some(Tie::new(launcher, held))
        } else {
            // Until this is said the sandbox ends when we go away, so a dropped call leaves none behind.
            launcher.write_all(LIVE_ON).await.map_err(|error| launcher_failed(&error.to_string()))?;
            None
        };
        unfinished.0 = None;
        let way = self.way(&id);
        Ok(Arc::new(Jailed::new(id, way, tie, network)))
    }

    async fn open(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        let way = self.way(id);
        let Some(lease) = Lease::read(&way.state_dir) else {
            return Err(Error::new(ErrorCode::NotFound, format!("no sandbox `{id}`"))
                .hint("`belljar ls -a` lists the ones there are"));
        };
        let network = self.network(id, &lease.spec.network);
        Ok(Arc::new(Jailed::new(id.clone(), way, None, network).recalled()))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        let directory = self.home.sandboxes();
        let candidates = blocking(move || {
            sweep::orphans();
            let entries = fs::read_dir(&directory).map_err(|error| problem(&directory, &error))?;
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            let ids = names.filter_map(|name| name.parse::<SandboxId>().ok());
            Ok(ids.filter(|id| is_listed(&directory.join(id.as_str()))).collect::<Vec<_>>())
        })
        .await?;
        let mut sandboxes = Vec::new();
        for id in candidates {
            match info(&self.way(&id)).await {
                Ok(info) => sandboxes.push(info),
                Err(error) if error.code == ErrorCode::Fenced => return Err(error),
                // One that was removed meanwhile is not an error.
                Err(_) => {}
            }
        }
        sandboxes.sort_by_key(|info| std::cmp::Reverse(info.created_ms));
        Ok(sandboxes)
    }
}

/// What the door is told of registries whose files are kept, if there are any.
fn cache_plan(spec: &SandboxSpec, template: &Template) -> Result<Option<CachePlan>> {
    if spec.cache.is_empty() {
        return Ok(None);
    }
    let rules = Rules { allow: spec.cache.clone(), ..Rules::default() };
    let of = template.expand(&NetworkPolicy::Allowlist(rules))?.rules().map(|rules| rules.allow.clone());
    let tenant = spec.owner.as_ref().map(|owner| owner.tenant.clone());
    Ok(of.map(|of| CachePlan { of, tenant }))
}

/// Whether a sandbox is to be seen; removes what nobody will ask for any more.
fn is_listed(directory: &Path) -> bool {
    let Some(lease) = Lease::read(directory) else {
        // Being made, or half removed.
        if !is_alive(directory) && record::is_old(directory) {
            let _ = fs::remove_dir_all(directory);
        }
        return false;
    };
    if is_alive(directory) {
        return true;
    }
    match remains(directory, &lease) {
        Remains::Fresh => false,
        Remains::Kept => true,
        Remains::Forgotten => {
            let _ = fs::remove_dir_all(directory);
            false
        }
    }
}
