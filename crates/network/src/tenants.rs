//! The file in which whoever runs an engine says what tenants may use.

use belljar_core::TenantLimits;

use crate::policy::file::{FileError, MAX_SIZE};

/// Reads the bytes of a file, which is TOML. One that is not wholly understood is none.
pub fn read(bytes: &[u8]) -> Result<TenantLimits, FileError> {
    let at_start = |reason: String| FileError { line: 1, column: 1, reason };
    if bytes.len() > MAX_SIZE {
        return Err(at_start(format!("the file has {} bytes, and {MAX_SIZE} is the most", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| at_start("the file is not UTF-8".to_owned()))?;
    let limits: TenantLimits = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let last = before.rsplit('\n').next().unwrap_or_default();
        FileError {
            line: before.matches('\n').count() + 1,
            column: last.chars().count() + 1,
            reason: error.message().to_owned(),
        }
    })?;
    limits.check().map_err(at_start)?;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use belljar_core::{ByteSize, Tenant};

    use super::*;

    #[test]
    fn what_is_written_holds_and_what_is_wrong_is_found() {
        let text = "[each.network]\nconnections = 100\ntotal_bytes = \"10g\"\n\n[tenants.acme.network]\ntotal_bytes = \"20g\"\n";
        let limits = read(text.as_bytes()).unwrap();
        let acme = limits.network(&Tenant("acme".into())).unwrap();
        assert_eq!((acme.connections, acme.total_bytes), (Some(100), Some(ByteSize::gib(20))));
        assert_eq!(read(b"").unwrap(), TenantLimits::default());
        for (text, line, column, says) in [
            ("[each.network]\nconections = 1\n", 2, 1, "conections"),
            ("[each.network]\ntotal_bytes = \"much\"\n", 2, 15, "much"),
            ("[each]\n  x = [\n", 2, 8, "array"),
            ("[each.network]\nconnections = 0\n", 1, 1, "`connections` of `each`"),
            ("[tenants.\"a b\".network]\n", 1, 1, "`a b` is not a tenant's name"),
        ] {
            let wrong = read(text.as_bytes()).unwrap_err();
            assert!(wrong.reason.contains(says), "{text}: {wrong}");
            assert_eq!((wrong.line, wrong.column), (line, column), "{text}: {wrong}");
        }
        assert!(read(&[0xff]).is_err() && read(&vec![b' '; MAX_SIZE + 1]).is_err());
    }
}
