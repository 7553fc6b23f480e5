//! A model of a sandbox in memory, for tests of what is built on top of providers.
//!
//! It keeps the contract of the four basic methods, of life and pausing and, if it is told to, of the network, and passes the same conformance suite as the real rungs, but nothing
//! is ever started: files are a map, and commands are Rust functions. It understands a small part of the shell:
//!
//! - commands joined by `;`, newlines, `&&` and `||`; comments;
//! - single and double quotes, backslashes, `$NAME`, `${NAME}`, `$?` and `$$`, without splitting or patterns;
//! - assignments, `export`, `cd`, `exit`, and `kill` of `$$`;
//! - redirections to, from and onto files, and `2>&1` or `>&2`;
//! - `cat`, `echo`, `env`, `false`, `ls`, `mkdir`, `printf`, `pwd`, `rm`, `sleep`, `true`, and what
//!   [`Fake::with_program`] adds.
//!
//! Anything else (pipes, background, loops, substitutions) is refused as a syntax error with status 2, before a part of
//! the line has run: the model never pretends.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> belljar_core::Result<()> {
//! use belljar_core::{ExecRequest, Provider, SandboxSpec, Termination};
//! use belljar_providers::fake::{Ending, Fake};
//!
//! let fake = Fake::new().with_program("python3", |call| {
//!     call.stderr.extend_from_slice(b"MemoryError\n");
//!     Ending::OutOfMemory
//! });
//! let sandbox = fake.create(SandboxSpec::default()).await?;
//! let result = sandbox.execute(ExecRequest::argv(["python3", "main.py"])).await?;
//! assert_eq!(result.termination, Termination::OutOfMemory);
//! # Ok(()) }
//! ```

mod machine;
mod programs;
mod sandbox;
mod shell;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{
    Capabilities, Capability, Error, ErrorCode, Flow, Provider, ProviderName, Result, Sandbox, SandboxId,
    SandboxSpec,
};

use crate::names::{Held, Names};
use sandbox::FakeSandbox;
pub use tree::Tree;

/// How a program of the model ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// With this status, but only after a while.
    After(Duration, i32),
    /// Never by itself: only a time-out or the end of the sandbox ends it.
    Never,
    /// As if the kernel had killed it for want of memory; ends the whole execution.
    OutOfMemory,
}

/// One call of a program: what it is given and what it leaves behind.
#[derive(Debug)]
pub struct Call<'a> {
    /// The program's name and its arguments.
    pub argv: &'a [String],
    /// Its environment.
    pub env: &'a BTreeMap<String, String>,
    /// The directory it works in.
    pub cwd: &'a str,
    /// Its whole standard input.
    pub stdin: &'a [u8],
    /// What it writes to standard output.
    pub stdout: Vec<u8>,
    /// What it writes to standard error.
    pub stderr: Vec<u8>,
    /// The files of its sandbox.
    pub files: &'a mut Tree,
}

type Program = Arc<dyn Fn(&mut Call<'_>) -> Ending + Send + Sync>;
type Programs = BTreeMap<String, Program>;

/// Makes sandboxes that exist in memory only.
#[derive(Clone)]
pub struct Fake {
    programs: Programs,
    names: Names,
    flows: Option<Arc<[Flow]>>,
}

impl fmt::Debug for Fake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Fake").field("programs", &self.programs.keys()).finish()
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}

impl Fake {
    /// The model with its own programs.
    pub fn new() -> Self {
        Self { programs: programs::all(), names: Names::default(), flows: None }
    }

    /// The same with one more program, or with another in place of one it has.
    #[must_use]
    pub fn with_program(
        mut self,
        name: impl Into<String>,
        program: impl Fn(&mut Call<'_>) -> Ending + Send + Sync + 'static,
    ) -> Self {
        self.programs.insert(name.into(), Arc::new(program));
        self
    }

    /// The same, granting networks that nothing goes through: in a sandbox that has one, these flows are told.
    #[must_use]
    pub fn with_flows(mut self, flows: impl Into<Arc<[Flow]>>) -> Self {
        self.flows = Some(flows.into());
        self
    }

    /// A name that nobody has.
    fn mint(&self) -> (SandboxId, Held) {
        loop {
            let id = next_id();
            if let Ok(held) = self.names.take(&id) {
                return (id, held);
            }
        }
    }
}

#[async_trait]
impl Provider for Fake {
    fn name(&self) -> ProviderName {
        ProviderName::Fake
    }

    fn capabilities(&self) -> Capabilities {
        let network = self.flows.is_some().then_some(Capability::Network);
        Capabilities::of(
            &[Some(Capability::Control), Some(Capability::Pause), network]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>(),
        )
    }

    async fn create(&self, mut spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        spec.check()?;
        if self.flows.is_none() {
            spec.network.check_without_door(ProviderName::Fake)?;
            spec.check_without_recording(ProviderName::Fake)?;
        }
        if spec.template != "host" {
            let name = spec.template.escape_debug();
            return Err(Error::new(
                ErrorCode::NotFound,
                format!("the `fake` provider has no template `{name}`"),
            ));
        }
        let (id, name) = match spec.id.take() {
            Some(id) => (id.clone(), self.names.take(&id)?),
            None => self.mint(),
        };
        Ok(Arc::new(FakeSandbox::new(id, name, spec, self.programs.clone(), self.flows.clone())))
    }
}

/// Ids that count, so that tests see the same ones every time they make the same sandboxes.
fn next_id() -> SandboxId {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    // An id holds thirteen digits of five bits, the most significant first here.
    SandboxId::from_random(std::array::from_fn(|digit| {
        let shift = 5 * 12_usize.saturating_sub(digit);
        (number >> shift) as u8 & 31
    }))
}
