//! Keys: where they come from, and a value that does not show itself.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use zeroize::Zeroizing;

/// The longest key.
pub const MAX_SECRET: usize = 16 * 1024;
/// How long a command may take to say one.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Source {
    /// A variable of the environment in which the gateway is started.
    Env(String),
    /// A file; white space at its end does not count.
    File(PathBuf),
    /// A program and its arguments, which says it on its standard output.
    Command(Vec<String>),
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(formatter, "the variable `{name}`"),
            Self::File(path) => write!(formatter, "the file {}", path.display()),
            // Its arguments may say more than they should.
            Self::Command(words) => {
                write!(formatter, "the command `{}`", words.first().map_or("", String::as_str))
            }
        }
    }
}

/// A key. It is wiped when it is dropped, and nothing prints it.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a key, if it is fit to be a header: printable, not empty, of one line.
    pub fn new(text: Zeroizing<String>) -> Result<Self, String> {
        let key = text.trim_end();
        if key.is_empty() {
            return Err("it is empty".into());
        }
        if key.len() > MAX_SECRET {
            return Err(format!("it has more than {MAX_SECRET} bytes"));
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err("it has characters that cannot stand in a header".into());
        }
        Ok(Self(Zeroizing::new(key.to_owned())))
    }

    /// The key itself, to be put where it belongs and nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(***)")
    }
}

impl Source {
    /// Gets the key. What went wrong is said without anything of it.
    pub fn read(&self) -> Result<Secret, String> {
        let text = match self {
            Self::Env(name) => {
                std::env::var(name).map_err(|_| format!("{self} is not set, or is not text"))?
            }
            Self::File(path) => {
                let file = std::fs::File::open(path).map_err(|error| format!("{self}: {error}"))?;
                bounded(file).map_err(|error| format!("{self}: {error}"))?
            }
            Self::Command(words) => run(words).map_err(|error| format!("{self}: {error}"))?,
        };
        Secret::new(Zeroizing::new(text)).map_err(|wrong| format!("{self}: {wrong}"))
    }
}

fn bounded(from: impl Read) -> Result<String, String> {
    let mut text = String::new();
    from.take(MAX_SECRET as u64 + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn run(words: &[String]) -> Result<String, String> {
    let [program, arguments @ ..] = words else { return Err("no program is given".into()) };
    let mut command = std::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let Some(output) = child.stdout.take() else { return Err("it has no output".into()) };
    let (said, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || said.send(bounded(output)));
    let text = heard.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let _ = child.kill();
        Err(format!("it said nothing for {} seconds", PATIENCE.as_secs()))
    });
    let status = child.wait().map_err(|error| error.to_string())?;
    match text {
        Ok(text) if status.success() => Ok(text),
        Ok(_) => Err(format!("it ended with {status}")),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_from_where_it_is_said_to_be() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from-a-file\n").unwrap();
        assert_eq!(Source::File(file.path().into()).read().unwrap().expose(), "from-a-file");
        let words = ["sh", "-c", "echo from-a-command"].map(String::from).to_vec();
        assert_eq!(Source::Command(words).read().unwrap().expose(), "from-a-command");
        let path = Source::Env("PATH".into()).read().unwrap();
        assert_eq!(path.expose(), std::env::var("PATH").unwrap());
    }

    #[test]
    fn what_is_wrong_is_said_and_the_key_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (content, wrong) in [
            ("", "it is empty"),
            ("very-secret\nline", "cannot stand in a header"),
            ("very-secret\u{7f}", "header"),
        ] {
            std::fs::write(file.path(), content).unwrap();
            let error = Source::File(file.path().into()).read().unwrap_err();
            assert!(error.contains(wrong) && !error.contains("secret"), "{error}");
        }
        std::fs::write(file.path(), "x".repeat(MAX_SECRET + 5)).unwrap();
        assert!(Source::File(file.path().into()).read().is_err());
        let words = ["sh", "-c", "echo very-secret; exit 3"].map(String::from).to_vec();
        let error = Source::Command(words).read().unwrap_err();
        assert!(error.contains("exit status: 3") && !error.contains("secret"), "{error}");
        assert!(Source::Env("BELLJAR_NO_SUCH_VARIABLE".into()).read().unwrap_err().contains("not set"));
        let secret = Secret::new(Zeroizing::new("very-secret".into())).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(***)");
    }
}
