//! What the door is told of a recording.

use std::collections::BTreeMap;

use belljar_core::{Issued, RECORDING_FILE, Recording, RecordingPlan, Result, hide_tokens};

use super::network::Files;

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
    let named = match how {
        Recording::Record(record) => record.secrets.as_slice(),
        Recording::Replay(_) => &[],
    };
    let is_secret = |name: &str| {
        let upper = name.to_ascii_uppercase();
        SECRET.iter().any(|word| upper.contains(word)) || named.iter().any(|own| own == name)
    };
    let secrets = env.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.clone()).collect();
    let mut env = issued.map(|issued| issued.env.clone()).unwrap_or_default();
    env.values_mut().for_each(hide_tokens);
    RecordingPlan { how: how.clone(), secrets, env }
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
    }
}
