//! The gateway as those see it who look after a sandbox: tokens while it runs, and what was done with them.

use std::time::Duration;

use async_trait::async_trait;

use crate::{Call, Grant, Issued, Result, TokenRecord};

/// What a sandbox may ask of the gateway, and has asked ([`Capability::Network`](crate::Capability::Network)).
#[async_trait]
pub trait Gateway: Send + Sync {
    /// Makes a token and has the gateway know it. The token itself is in the answer and nowhere else. The gateway comes within
    /// the sandbox's reach, if it was not; a sandbox that was made without a network cannot be given a token. If the caller
    /// drops this future, there may be a token that nobody has.
    async fn issue(&self, grant: Grant) -> Result<Issued>;

    /// Its tokens, the oldest first: those that are good, and the last of those that are not any more.
    async fn tokens(&self) -> Result<Vec<TokenRecord>>;

    /// Takes a token back. Once this returns no call begins with it; one that is being made may come to its end. Doing so
    /// again is not an error.
    async fn revoke(&self, id: &str) -> Result<TokenRecord>;

    /// Lets a token live this long from now. One that is not good any more stays so.
    async fn extend(&self, id: &str, life: Duration) -> Result<TokenRecord>;

    /// Puts off the end of those tokens that are renewed ([`Grant::renewed`]).
    async fn renew(&self) -> Result<()>;

    /// What was asked of the gateway after this number, as far as it is kept: every call that was over when this began. It can
    /// be had of a sandbox that has ended as well.
    async fn calls(&self, after: u64) -> Result<Vec<Call>>;
}
