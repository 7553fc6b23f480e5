//! One run of one case: the sandboxes it makes, and the few things that every case says.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::Sleep;
use crate::{
    ByteStream, Error, ErrorCode, ExecRequest, ExecResult, FilePath, Provider, Result, Sandbox, SandboxSpec,
    Termination, UserName,
};

/// Why a promise is broken.
#[derive(Debug)]
pub(super) struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(format!("unexpected error {}: {error}", error.code))
    }
}

/// How a case, or a step of it, went.
pub(super) type Outcome<T = ()> = std::result::Result<T, Failure>;

/// Makes sandboxes for one case and remembers to remove them.
pub(super) struct Trial<'p> {
    pub(super) provider: &'p dyn Provider,
    sleep: Sleep,
    made: Mutex<Vec<Arc<dyn Sandbox>>>,
}

impl<'p> Trial<'p> {
    pub(super) fn new(provider: &'p dyn Provider, sleep: Sleep) -> Self {
        Self { provider, sleep, made: Mutex::default() }
    }

    /// A sandbox from the default spec.
    pub(super) async fn sandbox(&self) -> Outcome<Arc<dyn Sandbox>> {
        self.sandbox_from(SandboxSpec::default()).await
    }

    /// A sandbox from this spec.
    pub(super) async fn sandbox_from(&self, spec: SandboxSpec) -> Outcome<Arc<dyn Sandbox>> {
        Ok(self.keep(self.provider.create(spec).await?))
    }

    /// Remembers a sandbox that was made elsewhere.
    pub(super) fn keep(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&sandbox));
        sandbox
    }

    /// Removes what the case made.
    pub(super) async fn cleanup(&self) -> Outcome {
        let made = std::mem::take(&mut *self.made.lock().unwrap_or_else(PoisonError::into_inner));
        for sandbox in made {
            sandbox.cleanup().await.map_err(|error| format!("cleanup: {}: {error}", error.code))?;
        }
        Ok(())
    }

    /// Lets some time pass.
    pub(super) async fn wait(&self, span: Duration) {
        (self.sleep)(span).await;
    }

    /// A moment between two looks at something that is about to change.
    pub(super) async fn moment(&self) {
        self.wait(Duration::from_millis(50)).await;
    }
}

/// A path that is known to be good.
pub(super) fn path(text: &str) -> FilePath {
    text.parse().expect("the suite's own paths are valid")
}

/// Bytes as a stream of several pieces.
pub(super) fn pieces(bytes: &[u8]) -> ByteStream {
    let pieces: Vec<Result<Bytes>> =
        bytes.chunks(48 * 1024 + 1).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    Box::pin(stream::iter(pieces))
}

/// The bytes of a stream.
pub(super) async fn gather(mut stream: ByteStream) -> Outcome<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

/// Uploads, and sees that the answer is the number of bytes.
pub(super) async fn put(sandbox: &dyn Sandbox, to: &str, bytes: &[u8]) -> Outcome {
    let stored = sandbox.upload(&path(to), UserName::User, pieces(bytes)).await?;
    ensure!(stored == bytes.len() as u64, "upload of {} bytes answered {stored}", bytes.len());
    Ok(())
}

/// Downloads.
pub(super) async fn get(sandbox: &dyn Sandbox, from: &str) -> Outcome<Vec<u8>> {
    gather(sandbox.download(&path(from), UserName::User).await?).await
}

/// Whether a file can be downloaded; any error but `not_found` is a failure.
pub(super) async fn exists(sandbox: &dyn Sandbox, file: &str) -> Outcome<bool> {
    match sandbox.download(&path(file), UserName::User).await {
        Ok(_) => Ok(true),
        Err(error) if error.code == ErrorCode::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Runs a shell line that must succeed; answers its standard output.
pub(super) async fn shell(sandbox: &dyn Sandbox, line: &str) -> Outcome<String> {
    succeed(sandbox, ExecRequest::shell(line)).await
}

/// Runs a request that must succeed; answers its standard output.
pub(super) async fn succeed(sandbox: &dyn Sandbox, request: ExecRequest) -> Outcome<String> {
    let result = sandbox.execute(request).await?;
    ended(&result, Termination::Exited { code: 0 })?;
    Ok(stdout(&result))
}

/// Standard output as text.
pub(super) fn stdout(result: &ExecResult) -> String {
    String::from_utf8_lossy(&result.stdout.to_bytes()).into_owned()
}

/// Standard error as text.
pub(super) fn stderr(result: &ExecResult) -> String {
    String::from_utf8_lossy(&result.stderr.to_bytes()).into_owned()
}

/// Sees that a command ended like this.
pub(super) fn ended(result: &ExecResult, expected: Termination) -> Outcome {
    let shown: String = stderr(result).chars().take(300).collect();
    ensure!(
        result.termination == expected,
        "ended as {:?}, expected {expected:?}; stderr: {shown:?}",
        result.termination
    );
    Ok(())
}

/// Sees that something was refused with this code; answers the error.
pub(super) fn refused<T>(result: Result<T>, expected: ErrorCode) -> Outcome<Error> {
    match result {
        Ok(_) => Err(format!("succeeded, expected {expected}").into()),
        Err(error) => {
            ensure!(error.code == expected, "refused as {} ({error}), expected {expected}", error.code);
            Ok(error)
        }
    }
}

/// Sees that two texts are the same.
pub(super) fn same(found: &str, expected: &str) -> Outcome {
    ensure!(found == expected, "found {found:?}, expected {expected:?}");
    Ok(())
}

/// Sees that two byte strings are the same, without printing megabytes where they are not.
pub(super) fn same_bytes(found: &[u8], expected: &[u8]) -> Outcome {
    let differs = found.iter().zip(expected).position(|(one, other)| one != other);
    ensure!(
        found == expected,
        "found {} bytes, expected {}; the first difference is at {differs:?}",
        found.len(),
        expected.len()
    );
    Ok(())
}

/// Bytes that hold every value, do not repeat early, and are not text.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes: Vec<u8> = (0..=255).collect();
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// How many processes that the sandbox can see carry this word on their command line. The word travels in the
/// environment, so that the search does not find itself.
pub(super) async fn processes_named(sandbox: &dyn Sandbox, word: &str) -> Outcome<usize> {
    const SEARCH: &str = r#"
        for file in /proc/[0-9]*/cmdline; do
            case "$(tr '\0' ' ' 2>/dev/null < "$file")" in *"$WORD"*) echo found ;; esac
        done 2>/dev/null
        exit 0"#;
    let mut request = ExecRequest::shell(SEARCH);
    request.env.insert("WORD".into(), word.into());
    Ok(succeed(sandbox, request).await?.lines().count())
}
