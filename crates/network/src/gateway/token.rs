//! Tokens: how they are made, and how one is known again.

use std::io;

use belljar_core::{Grant, HostName, TOKEN_PREFIX as PREFIX, TokenRecord, TokenState};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};

/// How many bytes of it nobody can guess.
const RANDOM: usize = 32;

/// A token and what is kept of it.
pub fn mint(grant: &Grant, now_ms: u64) -> io::Result<(String, TokenRecord)> {
    let mut random = [0; RANDOM];
    let drawn = getrandom(&mut random, GetRandomFlags::empty())?;
    if drawn != RANDOM {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let token = format!("{PREFIX}{}", hexadecimal(&random));
    let hash = hash(&token);
    let record = TokenRecord {
        id: format!("tk-{}", &hash[..12]),
        hash,
        grant: grant.clone(),
        issued_ms: now_ms,
        expires_ms: TokenRecord::first_end(grant, now_ms),
        hosts: Vec::new(),
        revoked_ms: None,
    };
    Ok((token, record))
}

/// What is kept of a token.
pub fn hash(token: &str) -> String {
    hexadecimal(&Sha256::digest(token.as_bytes()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why a token is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worthless {
    /// No token was given.
    Missing,
    /// It is not one of this sandbox's.
    Unknown,
    /// Its time is over, or it was revoked.
    Expired,
}

/// Finds the record of a token among a sandbox's own. Whatever is compared are hashes, so that the time it takes says nothing.
pub fn find<'a>(
    records: &'a [TokenRecord],
    token: Option<&str>,
    now_ms: u64,
) -> Result<&'a TokenRecord, Worthless> {
    let token = token.ok_or(Worthless::Missing)?;
    let hash = hash(token);
    let record = records.iter().find(|record| record.hash == hash).ok_or(Worthless::Unknown)?;
    if record.state(now_ms) == TokenState::Good { Ok(record) } else { Err(Worthless::Expired) }
}

/// Finds a record that is good for what is asked of this host in place.
pub fn for_host<'a>(
    records: &'a [TokenRecord],
    host: &HostName,
    now_ms: u64,
) -> Result<&'a TokenRecord, Worthless> {
    let mut worthless = Worthless::Missing;
    for record in records.iter().filter(|record| record.hosts.contains(host)) {
        if record.state(now_ms) == TokenState::Good {
            return Ok(record);
        }
        worthless = Worthless::Expired;
    }
    Err(worthless)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_token_is_known_by_its_hash_until_it_ends() {
        let grant =
            Grant { life: Some(Duration::from_secs(5)), ..Grant::of(vec!["llm:chat".parse().unwrap()]) };
        let (token, record) = mint(&grant, 1000).unwrap();
        let (other, _) = mint(&grant, 1000).unwrap();
        assert!(token.starts_with(PREFIX) && token.len() == 68 && token != other);
        let kept = serde_json::to_string(&record).unwrap();
        assert!(!kept.contains(&token) && !kept.contains(&token[PREFIX.len()..]), "{kept}");
        let records = [record];
        assert_eq!(find(&records, Some(&token), 1000), Ok(&records[0]));
        assert_eq!(find(&records, Some(&token), 5999), Ok(&records[0]));
        assert_eq!(find(&records, Some(&token), 6000), Err(Worthless::Expired));
        assert_eq!(find(&records, None, 1000), Err(Worthless::Missing));
        let revoked = records.map(|record| TokenRecord { revoked_ms: Some(1001), ..record });
        assert_eq!(find(&revoked, Some(&token), 1002), Err(Worthless::Expired));
    }

    /// What people try with tokens: none of it is one.
    #[test]
    fn nothing_else_is_a_token() {
        let (token, record) = mint(&Grant::of(vec!["llm:chat".parse().unwrap()]), 0).unwrap();
        let records = [record.clone()];
        let cases = [
            String::new(),
            token.to_uppercase(),
            format!("{token} "),
            format!(" {token}"),
            format!("{token}\0"),
            token[..token.len() - 1].to_owned(),
            format!("{token}0"),
            token[PREFIX.len()..].to_owned(),
            record.hash.clone(),
            record.id,
            format!("{PREFIX}{}", record.hash),
            "eyJhbGciOiJub25lIn0.eyJzY29wZSI6IioifQ.".into(),
            "' OR 1=1 --".into(),
            "*".into(),
        ];
        for case in cases {
            assert_eq!(find(&records, Some(&case), 0), Err(Worthless::Unknown), "{case}");
        }
    }
}
