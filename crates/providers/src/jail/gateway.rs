//! The tokens of a jail: what is kept of them is a file in its directory, which the door reads when it is asked to see to the sandbox.

use std::io::ErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use belljar_core::{
    AUTHORITY_FILE, Call, Error, ErrorCode, Gateway, Grant, Issued, NetworkPolicy, POLICY_FILE, Result,
    TOKENS_FILE, TokenRecord, TokenState,
};
use belljar_jail::control::Request;

use super::calls;
use super::network::{Files, JailNetwork, PATIENCE};
use super::record::{is_alive, read_json};
use super::sandbox::blocking;
use crate::home::problem;

/// The most records that are kept, of tokens that are not good any more as well.
const MOST_KEPT: usize = 2 * Grant::MAX_TOKENS;

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Files {
    fn tokens(&self) -> Result<Vec<TokenRecord>> {
        let path = self.directory.join(TOKENS_FILE);
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(problem(&path, &error)),
            Ok(_) => {}
        }
        read_json(&path)
            .ok_or_else(|| Error::new(ErrorCode::Internal, format!("cannot read {}", path.display())))
    }

    /// Adds a token, and the gateway to what is within reach.
    fn add(&self, record: TokenRecord, now_ms: u64) -> Result<()> {
        let mut tokens = self.tokens()?;
        make_room(&mut tokens, now_ms)?;
        tokens.push(record);
        let path = self.directory.join(POLICY_FILE);
        let policy: NetworkPolicy = read_json(&path).ok_or_else(|| {
            Error::new(ErrorCode::Internal, format!("cannot read {}", path.display()))
                .hint("set the policy anew with `belljar net set`")
        })?;
        let reaching = policy.clone().with_gateway();
        if reaching != policy {
            self.write_policy(&reaching)?;
        }
        self.write_tokens(&tokens)
    }

    fn alter(
        &self,
        id: &str,
        change: impl FnOnce(&mut TokenRecord, u64) -> Result<()>,
    ) -> Result<TokenRecord> {
        let mut tokens = self.tokens()?;
        let Some(record) = tokens.iter_mut().find(|record| record.id == id) else {
            let wrong = format!("the sandbox has no token `{}`", id.escape_debug());
            return Err(Error::new(ErrorCode::NotFound, wrong).hint("`belljar token ls SANDBOX` lists them"));
        };
        change(record, now_ms())?;
        let record = record.clone();
        self.write_tokens(&tokens)?;
        Ok(record)
    }
}

/// Forgets the oldest of those that are not good any more, where there are too many.
fn make_room(tokens: &mut Vec<TokenRecord>, now_ms: u64) -> Result<()> {
    let is_good = |record: &TokenRecord| record.state(now_ms) == TokenState::Good;
    if tokens.iter().filter(|record| is_good(record)).count() >= Grant::MAX_TOKENS {
        let wrong =
            format!("the sandbox has {} tokens that are good, and can have no more", Grant::MAX_TOKENS);
        return Err(
            Error::new(ErrorCode::ResourceExhausted, wrong).hint("take one back with `belljar token revoke`")
        );
    }
    while tokens.len() >= MOST_KEPT {
        match tokens.iter().position(|record| !is_good(record)) {
            Some(oldest) => drop(tokens.remove(oldest)),
            None => break,
        }
    }
    Ok(())
}

impl JailNetwork {
    /// It must live, and the engine in whose name something is done must not have been taken over.
    async fn check_alive(&self) -> Result<()> {
        self.way.ask(Request::Status).await.map(drop)
    }

    async fn alter(
        &self,
        id: &str,
        change: impl FnOnce(&mut TokenRecord, u64) -> Result<()> + Send + 'static,
    ) -> Result<TokenRecord> {
        self.check_alive().await?;
        let id = id.to_owned();
        let record = self.change(move |files| files.alter(&id, change)).await?;
        self.see_to().await?;
        Ok(record)
    }
}

#[async_trait]
impl Gateway for JailNetwork {
    async fn issue(&self, grant: Grant) -> Result<Issued> {
        grant.check()?;
        self.check_alive().await?;
        if !self.is_granted {
            let wrong = format!(
                "sandbox `{}` was made without a network, and the gateway is out of its reach",
                self.id
            );
            return Err(Error::new(ErrorCode::Unsupported, wrong)
                .hint("create another with `--grant OPERATION`, or with `--net allowlist` to grant operations later"));
        }
        let issued = self.door.issue(&grant).await?;
        if !issued.record.hosts.is_empty() && !self.way.state_dir.join(AUTHORITY_FILE).exists() {
            let hosts: Vec<_> = issued.record.hosts.iter().map(ToString::to_string).collect();
            let wrong = format!(
                "these operations are called in place, at {}, and sandbox `{}` was made without any such: its TLS cannot be opened",
                hosts.join(", "),
                self.id
            );
            return Err(Error::new(ErrorCode::Unsupported, wrong)
                .hint("create another with `--grant`, or with a rule about requests over TLS"));
        }
        let record = issued.record.clone();
        self.change(move |files| files.add(record, now_ms())).await?;
        self.see_to().await?;
        Ok(issued)
    }

    async fn tokens(&self) -> Result<Vec<TokenRecord>> {
        let files = Files { directory: self.way.state_dir.clone() };
        blocking(move || files.tokens()).await
    }

    async fn revoke(&self, id: &str) -> Result<TokenRecord> {
        self.alter(id, |record, now_ms| {
            record.revoke(now_ms);
            Ok(())
        })
        .await
    }

    async fn extend(&self, id: &str, life: Duration) -> Result<TokenRecord> {
        Grant::check_life(life)?;
        self.alter(id, move |record, now_ms| record.extend(life, now_ms)).await
    }

    async fn renew(&self) -> Result<()> {
        if !self.is_granted || !self.tokens().await?.iter().any(|record| record.grant.renewed) {
            return Ok(());
        }
        self.check_alive().await?;
        let renewed = self.change(|files| {
            let (mut tokens, now_ms) = (files.tokens()?, now_ms());
            let mut any = false;
            for record in &mut tokens {
                any |= record.renew(now_ms);
            }
            if any {
                files.write_tokens(&tokens)?;
            }
            Ok(any)
        });
        if renewed.await? { self.see_to().await } else { Ok(()) }
    }

    async fn calls(&self, after: u64) -> Result<Vec<Call>> {
        let state_dir = self.way.state_dir.clone();
        if self.is_granted && state_dir.join(TOKENS_FILE).exists() && is_alive(&state_dir) {
            // Once the gateway has been heard, everything that it had to say before is written down.
            match tokio::time::timeout(PATIENCE, self.see_to()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(sandbox = %self.id, %error, "the last calls may not be told")
                }
                Err(_) => {
                    tracing::warn!(sandbox = %self.id, "the last calls may not be told: the door is silent")
                }
            }
        }
        blocking(move || {
            let (mut calls, _) = calls::read(&state_dir).map_err(|error| problem(&state_dir, &error))?;
            calls.retain(|call| call.seq > after);
            Ok(calls)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, expires_ms: u64) -> TokenRecord {
        TokenRecord {
            id: format!("tk-{number}"),
            hash: String::new(),
            grant: Grant::of(Vec::new()),
            issued_ms: number,
            expires_ms,
            hosts: Vec::new(),
            revoked_ms: None,
        }
    }

    #[test]
    fn the_oldest_that_are_not_good_any_more_are_forgotten_and_good_ones_never() {
        let mut tokens: Vec<_> =
            (0..MOST_KEPT as u64).map(|number| record(number, 10 + number % 2 * 90)).collect();
        let good = |tokens: &[TokenRecord]| tokens.iter().filter(|token| token.expires_ms == 100).count();
        tokens.pop();
        tokens.push(record(999, 10));
        let before = good(&tokens);
        make_room(&mut tokens, 50).unwrap();
        assert_eq!((tokens.len(), good(&tokens), tokens[0].id.as_str()), (MOST_KEPT - 1, before, "tk-1"));
        let error = make_room(&mut tokens, 5).unwrap_err();
        assert_eq!(error.code, ErrorCode::ResourceExhausted);
    }
}
