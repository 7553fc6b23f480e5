//! What the door is told of a recording.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use belljar_core::{Error, ErrorCode, Issued, RECORDING_FILE, Recording, RecordingPlan, Result, hide_tokens};

use super::network::Files;
use crate::home::problem;

/// Words in the name of a variable that say that it is secret.
const SECRET: [&str; 8] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH", "COOKIE"];

impl Files {
    /// Writes what the door is told.
    pub(super) fn write_recording(&self, plan: &RecordingPlan) -> Result<()> {
        self.write(RECORDING_FILE, &serde_json::to_vec(plan).unwrap_or_default())
    }
}

/// What the door is told of a recording of a sandbox with these variables, and this token.
pub(super) fn plan(
    how: &Recording,
    env: &BTreeMap<String, String>,
    issued: Option<&Issued>,
) -> RecordingPlan {
    let secrets = env.iter().filter(|(name, _)| is_secret(how, name)).map(|(_, value)| value.clone());
    // A token is known by its beginning, but not in every form.
    let secrets = secrets.chain(issued.map(|issued| issued.token.clone())).collect();
    let mut env = issued.map(|issued| issued.env.clone()).unwrap_or_default();
    env.values_mut().for_each(hide_tokens);
    RecordingPlan { how: how.clone(), secrets, env }
}

/// Whether the value of a variable must not be in a recording.
fn is_secret(how: &Recording, name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let is_named = match how {
        Recording::Record(record) => record.secrets.iter().any(|own| own == name),
        Recording::Replay(_) => false,
    };
    is_named || SECRET.iter().any(|word| upper.contains(word))
}

/// Refuses variables of one execution, in the sandbox of this directory, that would have to be kept out of its recording: the door knows
/// those that the sandbox was made with.
pub(super) fn check_variables(directory: &Path, env: &BTreeMap<String, String>) -> Result<()> {
    if env.is_empty() {
        return Ok(());
    }
    let file = directory.join(RECORDING_FILE);
    let plan = match std::fs::read(&file).and_then(|text| Ok(serde_json::from_slice::<RecordingPlan>(&text)?))
    {
        Ok(plan) => plan,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(problem(&file, &error)),
    };
    if matches!(plan.how, Recording::Replay(_)) {
        return Ok(());
    }
    let unknown =
        |(name, value): &(&String, &String)| is_secret(&plan.how, name) && !plan.secrets.contains(value);
    match env.iter().find(unknown) {
        None => Ok(()),
        Some((name, _)) => {
            let wrong = format!("`{name}` could not be kept out of the recording `{}`", plan.how.name());
            Err(Error::new(ErrorCode::InvalidArgument, wrong)
                .hint("give variables that are secret to the sandbox when it is made, with `-e NAME=VALUE`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::Record;

    use super::*;

    #[test]
    fn secrets_are_known_by_the_names_of_variables() {
        let record = Record {
            name: "r".parse().unwrap(),
            most: Record::most(),
            closed: Vec::new(),
            secrets: vec!["DSN".into()],
            headers: Vec::new(),
        };
        let env = [("API_KEY", "one"), ("my_password", "two"), ("DSN", "three"), ("HOME", "four")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let plan = plan(&Recording::Record(record), &env, None);
        assert_eq!(plan.secrets, ["one", "three", "two"]);
        assert!(!format!("{plan:?}").contains("three"), "{plan:?}");
        // An execution has no others.
        let directory = tempfile::tempdir().unwrap();
        let check = |name: &str, value: &str| {
            let env = [(name.to_owned(), value.to_owned())].into();
            check_variables(directory.path(), &env).map_err(|error| error.code)
        };
        assert_eq!(check("OTHER_KEY", "new"), Ok(()), "nothing is recorded");
        let file = directory.path().join(RECORDING_FILE);
        std::fs::write(&file, serde_json::to_vec(&plan).unwrap()).unwrap();
        for (name, value, is_known) in [
            ("OTHER_KEY", "new", false),
            ("DSN", "new", false),
            ("API_KEY", "one", true),
            ("NONCE", "new", true),
        ] {
            let expected = if is_known { Ok(()) } else { Err(ErrorCode::InvalidArgument) };
            assert_eq!(check(name, value), expected, "{name}");
        }
    }
}
