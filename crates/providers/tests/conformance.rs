//! Every provider against the one suite, and the suite against one that lies.

use std::sync::Arc;

use async_trait::async_trait;
use belljar_core::conformance::{Programs, check_all, check_matching};
use belljar_core::{
    ByteStream, Capabilities, Capability, ExecRequest, ExecResult, FilePath, Provider, ProviderName, Result,
    Sandbox, SandboxId, SandboxSpec, UserName, conformance_test,
};
use belljar_providers::fake::Fake;
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use belljar_providers::local::Local;

conformance_test!(fake_keeps_its_promises, Programs::Model, Fake::new());
conformance_test!(local_keeps_its_promises, Programs::Real, Local::new());

#[tokio::test(flavor = "multi_thread")]
async fn jail_keeps_its_promises() {
    let directory = tempfile::tempdir().unwrap();
    let jail = Jail::new(Home::open(Some(directory.path().join("home"))).unwrap()).unwrap();
    check_all(&jail, Programs::Real, |span| Box::pin(tokio::time::sleep(span))).await.assert_kept();
}

/// Declares abilities that its sandboxes do not have. (Walls are not among what can be found out: a model has no way
/// to the host.)
struct Boaster(Fake);

#[async_trait]
impl Provider for Boaster {
    fn name(&self) -> ProviderName {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::{Control, Files, Isolation, Limits, Pause, Pty, Root, Signal, Stdin, Stream};
        Capabilities::of(&[Control, Files, Isolation, Limits, Pause, Pty, Root, Signal, Stdin, Stream])
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(Bare(self.0.create(spec).await?)))
    }
}

/// The four basic methods of a sandbox and nothing else.
struct Bare(Arc<dyn Sandbox>);

#[async_trait]
impl Sandbox for Bare {
    fn id(&self) -> &SandboxId {
        self.0.id()
    }

    fn provider(&self) -> ProviderName {
        self.0.provider()
    }

    async fn execute(&self, request: ExecRequest) -> Result<ExecResult> {
        self.0.execute(request).await
    }

    async fn upload(&self, path: &FilePath, user: UserName, content: ByteStream) -> Result<u64> {
        self.0.upload(path, user, content).await
    }

    async fn download(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        self.0.download(path, user).await
    }

    async fn cleanup(&self) -> Result<()> {
        self.0.cleanup().await
    }
}

#[tokio::test]
async fn declaring_what_is_not_there_is_found_out() {
    let boaster = Boaster(Fake::new());
    for group in ["execs::", "input::", "files::", "control::", "limits::"] {
        let report =
            check_matching(&boaster, Programs::Real, |span| Box::pin(tokio::time::sleep(span)), group).await;
        assert_eq!(report.failures().len(), report.verdicts().len(), "{report}");
    }
}
