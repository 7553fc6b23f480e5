//! The sides of `cp`: a path in a sandbox, a path of the host, or a stream.

use std::path::PathBuf;

use belljar_core::{Error, ErrorCode, FilePath, Result, SandboxId};

/// Where something is copied from or to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// `ID:PATH`.
    Inside(SandboxId, FilePath),
    /// A path of the host.
    Host(PathBuf),
    /// `-`: standard input or output.
    Stream,
}

impl Place {
    /// Reads one side; whatever begins like a sandbox id and has a colon must be one.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((id, path)) if id.starts_with("bj-") => {
                let path = if path.is_empty() { "." } else { path };
                Ok(Self::Inside(id.parse()?, path.parse()?))
            }
            _ if text == "-" => Ok(Self::Stream),
            _ if text.is_empty() || text.contains('\0') => Err(Error::new(
                ErrorCode::InvalidArgument,
                format!("`{}` is not a path", text.escape_debug()),
            )
            .hint("give a path of this machine, ID:PATH, or `-`")),
            _ => Ok(Self::Host(PathBuf::from(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart() {
        assert_eq!(Place::parse("-").unwrap(), Place::Stream);
        assert_eq!(Place::parse("a:b").unwrap(), Place::Host("a:b".into()));
        assert!(
            matches!(Place::parse("bj-aaaaaaaaaaaaa:x").unwrap(), Place::Inside(_, path) if path.as_str() == "x")
        );
        assert!(
            matches!(Place::parse("bj-aaaaaaaaaaaaa:").unwrap(), Place::Inside(_, path) if path.as_str() == ".")
        );
        for bad in ["bj-short:x", "bj-aaaaaaaaaaaaa:a\nb", ""] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }
}
