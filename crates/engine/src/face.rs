//! The engine as a provider: whoever can drive a provider can drive the engine, and everything is remembered.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{
    ByteStream, Call, Capabilities, Control, Ending, Entry, ErrorCode, ExecEvent, ExecHandle, ExecId,
    ExecInfo, ExecRequest, ExecResult, Execs, FilePath, Files, FlowStream, Gateway, Grant, Issued, Network,
    NetworkPolicy, Position, Provider, ProviderName, PtySize, Result, Sandbox, SandboxId, SandboxInfo,
    SandboxSpec, SandboxState, SandboxStats, Stdin, TokenRecord, UserName, WatchEvent,
};
use futures_util::stream::BoxStream;

use crate::engine::{Engine, joined};
use crate::event::{Happening, TransferKind, token_issued};
use crate::live::{Live, hide_key};
use crate::session::SessionRequest;

#[async_trait]
impl Provider for Engine {
    fn name(&self) -> ProviderName {
        self.shared.provider.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.provider.capabilities()
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let accepted = Engine::create(self, SessionRequest { spec, ..SessionRequest::default() }).await?;
        self.open(&accepted.session().id).await
    }

    async fn open(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        let sandbox = match self.live(id) {
            Ok(live) => live.sandbox.clone(),
            Err(_) => {
                let sandbox = self.shared.provider.open(id).await?;
                self.shared.notice(&*sandbox).await?;
                sandbox
            }
        };
        Ok(Arc::new(Face { engine: self.clone(), sandbox }))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        let list = self.shared.provider.list().await?;
        self.shared.notice_all(&list).await?;
        Ok(list)
    }
}

/// A sandbox seen through the engine.
struct Face {
    engine: Engine,
    sandbox: Arc<dyn Sandbox>,
}

impl Face {
    fn live(&self) -> Result<Arc<Live>> {
        self.engine.live(self.sandbox.id())
    }
}

/// Kills an execution whose caller went away.
struct KillOnDrop {
    live: Arc<Live>,
    exec: Option<ExecId>,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(exec) = self.exec {
            let live = self.live.clone();
            tokio::spawn(async move {
                if let Ok(execs) = live.sandbox.execs() {
                    let _ = execs.kill(exec).await;
                }
            });
        }
    }
}

#[async_trait]
impl Sandbox for Face {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn provider(&self) -> ProviderName {
        self.sandbox.provider()
    }

    async fn execute(&self, mut request: ExecRequest) -> Result<ExecResult> {
        // Nobody can send input here, and a command that waited for it would wait in vain.
        request.stdin = Stdin::Empty;
        let live = self.live()?;
        let handle = self.engine.shared.exec(&live, request).await?;
        let mut guard = KillOnDrop { live, exec: None };
        let mut events = Vec::new();
        while let Some(event) = handle.next().await? {
            match event {
                ExecEvent::Started { exec, .. } => guard.exec = Some(exec),
                ExecEvent::Finished { .. } => guard.exec = None,
                _ => {}
            }
            events.push(event);
        }
        Ok(ExecResult::collect(events))
    }

    async fn upload(&self, path: &FilePath, user: UserName, content: ByteStream) -> Result<u64> {
        let live = self.live()?;
        let work = async { self.sandbox.upload(path, user, content).await.map(|bytes| (bytes, Some(bytes))) };
        self.engine.shared.transfer(&live, TransferKind::Upload, path.to_string(), work).await
    }

    async fn download(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        let _busy = self.live()?.busy();
        self.sandbox.download(path, user).await
    }

    async fn cleanup(&self) -> Result<()> {
        match self.engine.end(self.id()).await {
            Err(error) if error.code != ErrorCode::NotFound => return Err(error),
            _ => {}
        }
        self.sandbox.cleanup().await
    }

    fn execs(&self) -> Result<&dyn Execs> {
        self.sandbox.execs().map(|_| self as &dyn Execs)
    }

    fn files(&self) -> Result<&dyn Files> {
        self.sandbox.files().map(|_| self as &dyn Files)
    }

    fn control(&self) -> Result<&dyn Control> {
        self.sandbox.control().map(|_| self as &dyn Control)
    }

    fn network(&self) -> Result<&dyn Network> {
        self.sandbox.network().map(|_| self as &dyn Network)
    }

    fn gateway(&self) -> Result<&dyn Gateway> {
        self.sandbox.gateway().map(|_| self as &dyn Gateway)
    }
}

#[async_trait]
impl Execs for Face {
    async fn start(&self, request: ExecRequest) -> Result<Box<dyn ExecHandle>> {
        self.engine.shared.exec(&self.live()?, request).await
    }

    async fn attach(&self, exec: ExecId, from: Position) -> Result<Box<dyn ExecHandle>> {
        self.sandbox.execs()?.attach(exec, from).await
    }

    async fn wait(&self, exec: ExecId) -> Result<Ending> {
        self.sandbox.execs()?.wait(exec).await
    }

    async fn list(&self) -> Result<Vec<ExecInfo>> {
        let mut list = self.sandbox.execs()?.list().await?;
        list.iter_mut().for_each(hide_key);
        Ok(list)
    }

    async fn signal(&self, exec: ExecId, signal: i32) -> Result<()> {
        self.sandbox.execs()?.signal(exec, signal).await
    }

    async fn resize(&self, exec: ExecId, size: PtySize) -> Result<()> {
        self.sandbox.execs()?.resize(exec, size).await
    }

    async fn kill(&self, exec: ExecId) -> Result<()> {
        self.sandbox.execs()?.kill(exec).await
    }
}

#[async_trait]
impl Files for Face {
    async fn stat(&self, path: &FilePath, user: UserName) -> Result<Entry> {
        let _busy = self.live()?.busy();
        self.sandbox.files()?.stat(path, user).await
    }

    async fn list(&self, path: &FilePath, user: UserName, depth: u32) -> Result<Vec<Entry>> {
        let _busy = self.live()?.busy();
        self.sandbox.files()?.list(path, user, depth).await
    }

    async fn make_dir(&self, path: &FilePath, user: UserName) -> Result<bool> {
        let _busy = self.live()?.busy();
        self.sandbox.files()?.make_dir(path, user).await
    }

    async fn rename(&self, from: &FilePath, to: &FilePath, user: UserName) -> Result<()> {
        let _busy = self.live()?.busy();
        self.sandbox.files()?.rename(from, to, user).await
    }

    async fn remove(&self, path: &FilePath, user: UserName) -> Result<()> {
        let _busy = self.live()?.busy();
        self.sandbox.files()?.remove(path, user).await
    }

    async fn unpack(&self, path: &FilePath, user: UserName, tar: ByteStream) -> Result<()> {
        let live = self.live()?;
        let work = async { self.sandbox.files()?.unpack(path, user, tar).await.map(|()| ((), None)) };
        self.engine.shared.transfer(&live, TransferKind::Unpack, path.to_string(), work).await
    }

    async fn pack(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        let _busy = self.live()?.busy();
        self.sandbox.files()?.pack(path, user).await
    }

    async fn watch(&self, path: &FilePath, user: UserName) -> Result<BoxStream<'static, Result<WatchEvent>>> {
        self.sandbox.files()?.watch(path, user).await
    }
}

#[async_trait]
impl Control for Face {
    async fn info(&self) -> Result<SandboxInfo> {
        self.sandbox.control()?.info().await
    }

    async fn stats(&self) -> Result<SandboxStats> {
        self.sandbox.control()?.stats().await
    }

    async fn extend(&self, ttl: Duration) -> Result<()> {
        let live = self.live()?;
        self.sandbox.control()?.extend(ttl).await?;
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        Ok(self.engine.shared.record(&live.id, &[Happening::Extended { ttl_ms }]).await?)
    }

    async fn kill(&self) -> Result<()> {
        self.engine.end(self.id()).await
    }

    async fn ended(&self) -> Result<SandboxState> {
        self.sandbox.control()?.ended().await
    }

    async fn pause(&self) -> Result<()> {
        self.engine.shared.pause(&*self.live()?).await
    }

    async fn resume(&self) -> Result<()> {
        self.engine.shared.resume(&*self.live()?).await
    }
}

#[async_trait]
impl Network for Face {
    async fn policy(&self) -> Result<NetworkPolicy> {
        self.sandbox.network()?.policy().await
    }

    async fn set_policy(&self, policy: NetworkPolicy) -> Result<()> {
        policy.check()?;
        let live = self.live()?;
        let network = self.sandbox.network()?;
        let shared = &self.engine.shared;
        let _changing = live.network.lock().await;
        // Nothing may come to be reachable that the log does not tell of.
        shared.intend(&live.id, Happening::NetworkSet { policy: Box::new(policy.clone()) }).await?;
        let changed = network.set_policy(policy).await;
        if let Err(error) = &changed {
            shared.record(&live.id, &[Happening::NetworkKept { error: error.clone() }]).await?;
        }
        changed
    }

    async fn flows(&self, after: u64, follow: bool) -> Result<FlowStream> {
        self.sandbox.network()?.flows(after, follow).await
    }
}

#[async_trait]
impl Gateway for Face {
    async fn issue(&self, grant: Grant) -> Result<Issued> {
        let (live, engine, sandbox) = (self.live()?, self.engine.clone(), self.sandbox.clone());
        // Whoever asked may go away: a token is not left that is neither in the log nor revoked.
        joined(tokio::spawn(async move {
            let _busy = live.busy();
            let gateway = sandbox.gateway()?;
            let issued = gateway.issue(Grant { renewed: true, ..grant }).await?;
            // Nobody has it before the log tells of it.
            if let Err(error) = engine.shared.intend(&live.id, token_issued(&issued.record)).await {
                gateway.revoke(&issued.record.id).await?;
                return Err(error);
            }
            Ok(issued)
        }))
        .await
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        self.sandbox.gateway()?.tokens().await
    }

    async fn revoke(&self, id: &str) -> Result<TokenRecord> {
        let live = self.live()?;
        let record = self.sandbox.gateway()?.revoke(id).await?;
        self.engine.shared.record(&live.id, &[Happening::TokenRevoked { token: record.id.clone() }]).await?;
        Ok(record)
    }

    async fn extend(&self, id: &str, life: Duration) -> Result<TokenRecord> {
        let live = self.live()?;
        let record = self.sandbox.gateway()?.extend(id, life).await?;
        let life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
        let what = Happening::TokenExtended { token: record.id.clone(), life_ms };
        self.engine.shared.record(&live.id, &[what]).await?;
        Ok(record)
    }

    async fn renew(&self) -> Result<()> {
        self.live()?;
        self.sandbox.gateway()?.renew().await
    }

    async fn calls(&self, after: u64) -> Result<Vec<Call>> {
        self.sandbox.gateway()?.calls(after).await
    }
}
