//! Every provider against the one suite, and the suite against one that lies.

use std::sync::Arc;

use async_trait::async_trait;
use belljar_core::conformance::{Programs, check_all, check_matching};
use belljar_core::{
    Capabilities, Capability, Provider, ProviderName, Result, Sandbox, SandboxSpec, conformance_test,
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
        use Capability::{Control, Files, Isolation, Limits, Pty, Root, Signal, Stdin, Stream};
        Capabilities::of(&[Control, Files, Isolation, Limits, Pty, Root, Signal, Stdin, Stream])
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        self.0.create(spec).await
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
