//! Issuing tokens: for operations that there are, with what clients of those need to find them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use belljar_core::{Error, ErrorCode, GATEWAY_NAME, Grant, Issued, Result};

use super::config::{self, Config};
use super::kind::Kind;
use super::operation::Operation;
use super::{process, token};
use crate::door::clock::now_ms;

/// The variables that clients of our own go by.
const ADDRESS: &str = "BELLJAR_GATEWAY";
const TOKEN: &str = "BELLJAR_TOKEN";

/// Issues a token by the configuration of a data directory.
pub fn issue(home: &Path, grant: &Grant) -> Result<Issued> {
    grant.check()?;
    let config = process::configuration(home).map_err(|wrong| {
        Error::new(ErrorCode::InvalidArgument, format!("the gateway is not set up: {wrong}")).hint(format!(
            "write {} (docs/gateway.md says how), and try it with `belljar gateway check`",
            home.join(config::FILE).display()
        ))
    })?;
    if let Some(unknown) = grant.operations.iter().find(|name| !config.operations.contains_key(name)) {
        let known: Vec<_> = config.operations.keys().map(ToString::to_string).collect();
        return Err(Error::new(ErrorCode::NotFound, format!("the gateway has no operation `{unknown}`"))
            .hint(format!("it has: {}", known.join(", "))));
    }
    let granted = grant.operations.iter().filter_map(|name| config.operations.get(name));
    let hosts: BTreeSet<_> = granted.filter_map(Operation::host_in_place).collect();
    let (token, mut record) = token::mint(grant, now_ms())
        .map_err(|error| Error::new(ErrorCode::Internal, format!("no random numbers: {error}")))?;
    record.hosts = hosts.into_iter().collect();
    let env = environment(&config, grant, &token);
    Ok(Issued { record, token, env })
}

/// Whether this is one of the variables by which clients find the gateway.
pub(crate) fn is_variable(name: &str) -> bool {
    let of_kinds =
        Kind::ALL.into_iter().filter_map(Kind::variables).flat_map(|(address, key)| [address, key]);
    [ADDRESS, TOKEN].into_iter().chain(of_kinds).any(|known| known == name)
}

/// The variables by which clients find the gateway.
fn environment(config: &Config, grant: &Grant, token: &str) -> BTreeMap<String, String> {
    let gateway = format!("http://{GATEWAY_NAME}");
    let mut env =
        BTreeMap::from([(ADDRESS.to_owned(), gateway.clone()), (TOKEN.to_owned(), token.to_owned())]);
    for operation in grant.operations.iter().filter_map(|name| config.operations.get(name)) {
        if let Some((address, key)) = operation.kind.variables() {
            let base = format!("{gateway}{}{}", operation.mount, operation.kind.base());
            // Where several are of one kind, the first granted is the one that is found.
            env.entry(address.to_owned()).or_insert(base);
            env.entry(key.to_owned()).or_insert_with(|| token.to_owned());
        }
    }
    env
}
