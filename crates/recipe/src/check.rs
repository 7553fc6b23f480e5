//! What names, paths and modes may look like, whichever way a recipe is written.

use crate::MAX_TEXT;
use crate::model::Tool;
use crate::wrong::{Wrong, quoted};

/// The longest path, as the kernel has it.
const MAX_PATH: usize = 4096;

/// The longest name of a user, a package, an image.
const MAX_NAME: usize = 512;

/// What is wrong with a value, and how to write it instead.
pub(crate) type Checked<T = ()> = Result<T, (String, Option<&'static str>)>;

fn refuse<T>(what: String, hint: &'static str) -> Checked<T> {
    Err((what, Some(hint)))
}

/// A whole text, before it is read.
pub(crate) fn text(text: &str) -> Result<(), Wrong> {
    if text.len() > MAX_TEXT {
        return Err(Wrong::at(1, format!("the text has {} bytes, and {MAX_TEXT} is the most", text.len())));
    }
    match text.split('\n').position(|line| line.contains('\0')) {
        Some(at) => Err(Wrong::at(at + 1, "the text holds a zero byte")),
        None => Ok(()),
    }
}

/// A mode such as `755`.
pub(crate) fn mode(text: &str) -> Checked<u32> {
    let octal = !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if octal && mode <= 0o7777 => Ok(mode),
        _ => refuse(format!("{} is not a mode", quoted(text)), "a mode is octal, such as 755 or 0644"),
    }
}

/// A user, or a user and a group.
pub(crate) fn owner(text: &str) -> Checked {
    let name = |part: &str| {
        let first = part.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        first && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
    };
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    if text.len() <= MAX_NAME && name(user) && group.is_none_or(name) {
        return Ok(());
    }
    refuse(format!("{} is not a user", quoted(text)), "a user is a name or a number, and may have a :group")
}

/// A variable of a shell.
pub(crate) fn variable(text: &str) -> Checked {
    if identifier(text) {
        return Ok(());
    }
    refuse(
        format!("{} is not the name of a variable", quoted(text)),
        "names have letters, digits and underscores, and no digit in front",
    )
}

/// A Python module.
pub(crate) fn module(text: &str) -> Checked {
    if text.split('.').all(identifier) {
        return Ok(());
    }
    refuse(
        format!("{} is not a module", quoted(text)),
        "modules are named as they are imported, such as os.path",
    )
}

fn identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A path that something is put at.
pub(crate) fn target(text: &str) -> Checked {
    if text.is_empty() {
        return Err(("a target is empty".into(), None));
    }
    path(text)
}

/// A path from the root.
pub(crate) fn absolute(text: &str) -> Checked {
    if !text.starts_with('/') {
        return refuse(format!("{} is not an absolute path", quoted(text)), "begin it with a slash");
    }
    path(text)
}

/// A path that is taken from somewhere, and does not leave it.
pub(crate) fn source(text: &str) -> Checked {
    if text.is_empty() {
        return Err(("a source is empty".into(), None));
    }
    let mut depth = 0_usize;
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." if depth == 0 => {
                return refuse(
                    format!("{} leaves the folder that is copied from", quoted(text)),
                    "put what is needed into that folder",
                );
            }
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    path(text)
}

fn path(text: &str) -> Checked {
    if text.len() > MAX_PATH {
        return Err((format!("a path has {} bytes, and {MAX_PATH} is the most", text.len()), None));
    }
    if text.contains('\0') {
        return Err((format!("{} holds a zero byte", quoted(text)), None));
    }
    Ok(())
}

/// The name of a template or an image.
pub(crate) fn image(text: &str) -> Checked {
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let rest = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@+".contains(&byte));
    if first && rest && text.len() <= MAX_NAME {
        return Ok(());
    }
    refuse(
        format!("{} is not the name of a template or an image", quoted(text)),
        "names look like python:3.12 or example.org/team/image:tag",
    )
}

/// A package as its tool reads it. None is taken for an option, a path, an address or a removal, and no shell would see
/// more in it than a word; the brackets of extras are the exception.
pub(crate) fn package(tool: Tool, text: &str) -> Checked {
    let letters = |text: &str, others: &[u8]| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
    };
    let word = |text: &str, others: &[u8]| {
        text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric()) && letters(text, others)
    };
    let file = [".whl", ".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".deb"];
    let is_file = file.iter().any(|end| text.to_ascii_lowercase().ends_with(end));
    let (fits, hint) = match tool {
        Tool::Apt => {
            let (name, version) =
                text.split_once('=').map_or((text, None), |(name, rest)| (name, Some(rest)));
            let fits =
                word(name, b".+-:") && !name.ends_with('-') && version.is_none_or(|it| word(it, b".+-:~"));
            (fits, "write the name, and =version if it matters: ripgrep=13.0.0-4+b2")
        }
        Tool::Pip => {
            let split = text.find(['[', '=', '~']).unwrap_or(text.len());
            let (name, mut rest) = text.split_at(split);
            let mut fits = word(name, b"._-") && !name.ends_with(['.', '_', '-']);
            if let Some(extras) = rest.strip_prefix('[') {
                let (extras, after) = extras.split_once(']').unwrap_or(("", extras));
                fits &= extras.split(',').all(|extra| word(extra, b"._-"));
                rest = after;
            }
            let version = rest.strip_prefix("===").or(rest.strip_prefix("==")).or(rest.strip_prefix("~="));
            fits &= rest.is_empty() || version.is_some_and(|version| word(version, b".+-_"));
            (fits, "write the name, and ==version or ~=version if it matters: pandas==2.2.3")
        }
        Tool::Npm => {
            let (scope, unscoped) = match text.strip_prefix('@').map(|text| text.split_once('/')) {
                Some(Some((scope, rest))) => (Some(scope), rest),
                Some(None) => (Some(""), text),
                None => (None, text),
            };
            let (name, version) =
                unscoped.split_once('@').map_or((unscoped, None), |(name, rest)| (name, Some(rest)));
            let fits = scope.is_none_or(|scope| word(scope, b"._-"))
                && word(name, b"._-")
                && version.is_none_or(|it| word(it.strip_prefix(['~', '^']).unwrap_or(it), b".+-"));
            (fits, "write the name, and @version if it matters: left-pad@1.3.0")
        }
    };
    if fits && !is_file && text.len() <= MAX_NAME {
        return Ok(());
    }
    refuse(format!("{} is not a package for {}", quoted(text), tool.as_str()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_names_and_nothing_else() {
        let good: [(Tool, &[&str]); 3] = [
            (
                Tool::Apt,
                &["git", "g++", "ripgrep=13.0.0-4+b2", "libc6:amd64", "python3.11", "7zip", "a=1:2~rc1"],
            ),
            (
                Tool::Pip,
                &["pandas==2.2.3", "numpy", "uvicorn[standard]", "a[b,c]~=1.0", "A.b_c", "x==1.0+cpu"],
            ),
            (Tool::Npm, &["left-pad@1.3.0", "left-pad", "@types/node@^20", "@a/b", "x@latest", "x@~1.2"]),
        ];
        for (tool, names) in good {
            for name in names {
                assert_eq!(package(tool, name), Ok(()), "{name}");
            }
        }
        for tool in [Tool::Apt, Tool::Pip, Tool::Npm] {
            for name in [
                "",
                "-",
                "-y",
                "--root=/",
                "a b",
                "a;b",
                "$(id)",
                "`id`",
                "a|b",
                "a&b",
                "a>b",
                "./x",
                "/x",
                "../x",
                "a\n",
                "a\0",
                "a'b",
                "a\"b",
                "a*",
                "é",
                "https://x.org/a",
                "git+https://x.org/a",
                "x.tgz",
                "x.whl",
                "a=",
                "a==",
                "a@",
                "@",
                "@/a",
                "@a",
                "~a",
                "=1",
                "[a]",
                "a[",
                "a[]",
                "a]",
                "user/repo",
                "a@user/repo",
                "a@file:b",
                "a==-1",
                "a@-1",
                "a=-1",
            ] {
                assert!(package(tool, name).is_err(), "{tool:?} {name}");
            }
        }
        assert!(package(Tool::Apt, "vim-").is_err(), "which would remove it");
    }

    #[test]
    fn modes_are_octal() {
        for (text, value) in [("755", 0o755), ("0644", 0o644), ("07777", 0o7777), ("0", 0)] {
            assert_eq!(mode(text), Ok(value));
        }
        for text in ["", "8", "+755", "-1", "10000", "u+x", "0o755", " 755", "7 5", "000000000755"] {
            assert!(mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nothing_is_taken_from_outside() {
        for text in ["a", ".", "./a", "/a", "a/../b", "a/b/../../c", "a..b", "..."] {
            assert_eq!(source(text), Ok(()), "{text}");
        }
        for text in ["", "..", "../a", "/..", "a/../..", "a/../../b", "./../a", "a\0"] {
            assert!(source(text).is_err(), "{text}");
        }
    }
}
