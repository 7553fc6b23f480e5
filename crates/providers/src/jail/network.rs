//! What a jail may reach: the policy that its directory holds, and the door that judges by it.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{
    AUTHORITY_FILE, CACHE_FILE, CachePlan, Denial, Door, Error, ErrorCode, ExecId, FlowStream, Network,
    NetworkPolicy, POLICY_FILE, Result, SandboxId, TOKENS_FILE, TokenRecord,
};
use belljar_jail::control::Request;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::connection::{self, Way};
use super::egress;
use super::host_template;
use super::record::{Lease, MAX_RECORD, read_json};
use super::sandbox::blocking;
use crate::home::problem;

/// How long the end of an execution waits to hear what it was denied.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Held by whoever changes what the door reads of a sandbox.
const LOCK_FILE: &str = "network.lock";

/// The network of one sandbox, where there is a door.
#[derive(Clone, Debug)]
pub(super) struct JailNetwork {
    pub(super) id: SandboxId,
    pub(super) way: Way,
    pub(super) door: Arc<dyn Door>,
    /// Where templates are kept, which say what the sets of hosts stand for.
    pub(super) templates: std::path::PathBuf,
    /// Whether the sandbox was made with one; otherwise nothing leads out of it, for good.
    pub(super) is_granted: bool,
}

impl JailNetwork {
    /// Has the door serve the sandbox, if it has a network.
    pub(super) async fn see_to(&self) -> Result<()> {
        if self.is_granted { self.door.see_to(&self.id).await } else { Ok(()) }
    }

    /// What an execution was denied. A door that cannot be asked is no reason for the execution to fail.
    pub(super) async fn denials(&self, exec: ExecId) -> Vec<Denial> {
        if !self.is_granted {
            return Vec::new();
        }
        match tokio::time::timeout(PATIENCE, self.door.denials(&self.id, exec)).await {
            Ok(Ok(denials)) => denials,
            Ok(Err(error)) => {
                tracing::warn!(sandbox = %self.id, exec = exec.0, %error, "cannot tell what was denied");
                Vec::new()
            }
            Err(_) => {
                tracing::warn!(sandbox = %self.id, exec = exec.0, "cannot tell what was denied: the door is silent");
                Vec::new()
            }
        }
    }

    /// Writes the policy that is in force from the next time that the door looks.
    pub(super) async fn write(&self, policy: NetworkPolicy) -> Result<()> {
        self.change(move |files| files.write_policy(&policy)).await
    }

    /// Writes what is kept of tokens that are good from the next time that the door looks.
    pub(super) async fn write_tokens(&self, tokens: Vec<TokenRecord>) -> Result<()> {
        self.change(move |files| files.write_tokens(&tokens)).await
    }

    /// Changes what the door reads, one after the other with everybody else who does.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let directory = self.way.state_dir.clone();
        blocking(move || {
            let path = directory.join(LOCK_FILE);
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)
                .and_then(|lock| flock(&lock, FlockOperation::LockExclusive).map(|()| lock))
                .map_err(|error| match error {
                    rustix::io::Errno::NOENT => connection::gone(),
                    error => problem(&path, &error.into()),
                })?;
            let done = work(&Files { directory });
            drop(lock);
            done
        })
        .await
    }
}

/// What the door reads of a sandbox, while nobody else changes it.
pub(super) struct Files {
    pub(super) directory: PathBuf,
}

impl Files {
    /// Writes the policy that is in force from the next time that the door looks.
    pub(super) fn write_policy(&self, policy: &NetworkPolicy) -> Result<()> {
        let text = serde_json::to_vec(policy).unwrap_or_default();
        if text.len() as u64 > MAX_RECORD {
            let wrong = format!("the network policy has {} bytes; the most is {MAX_RECORD}", text.len());
            return Err(Error::new(ErrorCode::InvalidArgument, wrong)
                .hint("name hosts together, as in `*.example.org` or `192.0.2.0/24:443`"));
        }
        self.write(POLICY_FILE, &text)
    }

    /// Writes what is kept of tokens that are good from then on.
    pub(super) fn write_tokens(&self, tokens: &[TokenRecord]) -> Result<()> {
        let text = serde_json::to_vec(tokens).unwrap_or_default();
        if text.len() as u64 > MAX_RECORD {
            return Err(Error::new(
                ErrorCode::ResourceExhausted,
                "the sandbox's tokens are for too many operations to be kept",
            )
            .hint("revoke tokens with `belljar token revoke`, or grant fewer operations to each"));
        }
        self.write(TOKENS_FILE, &text)
    }

    /// Writes of which registries files are kept.
    pub(super) fn write_cache(&self, plan: &CachePlan) -> Result<()> {
        self.write(CACHE_FILE, &serde_json::to_vec(plan).unwrap_or_default())
    }

    /// Writes a file for its owner alone, which is seen whole or not at all.
    pub(super) fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        let written = tempfile::NamedTempFile::new_in(&self.directory).and_then(|mut file| {
            file.write_all(text)?;
            file.persist(self.directory.join(name)).map_err(|error| error.error)
        });
        written.map(drop).map_err(|error| problem(&self.directory.join(name), &error))
    }
}

#[async_trait]
impl Network for JailNetwork {
    async fn policy(&self) -> Result<NetworkPolicy> {
        if !self.is_granted {
            return Ok(NetworkPolicy::None);
        }
        let path = self.way.state_dir.join(POLICY_FILE);
        blocking(move || match read_json(&path) {
            Some(policy) => Ok(policy),
            None if !path.exists() => Err(connection::gone()),
            None => Err(Error::new(ErrorCode::Internal, format!("cannot read {}", path.display()))
                .hint("set the policy anew with `belljar net set`")),
        })
        .await
    }

    async fn set_policy(&self, policy: NetworkPolicy) -> Result<()> {
        if !self.is_granted {
            return Err(Error::new(
                ErrorCode::Unsupported,
                format!("sandbox `{}` was made without a network, and cannot be given one", self.id),
            )
            .hint("create another with `--net allowlist` or `--allow RULE`; its policy can be changed"));
        }
        policy.check()?;
        // It must live, and the engine in whose name this is done must not have been taken over.
        self.way.ask(Request::Status).await?;
        let lease = Lease::read(&self.way.state_dir).ok_or_else(connection::gone)?;
        if policy.looks_inside_tls() && !self.way.state_dir.join(AUTHORITY_FILE).exists() {
            let wrong = format!(
                "the policy has rules about requests over TLS, and sandbox `{}` was made without any: its TLS cannot be opened",
                self.id
            );
            return Err(Error::new(ErrorCode::Unsupported, wrong).hint(
                "create another with such a rule from the start; or say `http://` where plain HTTP is meant",
            ));
        }
        let template = host_template(&self.templates).await?;
        let policy = template.expand(&policy)?;
        self.change(move |files| {
            let has_tokens = lease.spec.grant.is_some() || files.directory.join(TOKENS_FILE).exists();
            files.write_policy(&if has_tokens { policy.with_gateway() } else { policy })
        })
        .await?;
        self.see_to().await
    }

    async fn flows(&self, after: u64, follow: bool) -> Result<FlowStream> {
        Ok(egress::flows(self.way.state_dir.clone(), after, follow))
    }
}
