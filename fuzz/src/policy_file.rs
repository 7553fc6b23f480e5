//! Files with network policies.

use belljar_core::NetworkPolicy;
use belljar_network::policy::file::{MAX_ERRORS, read};

/// Reads the input as a file.
pub fn check(bytes: &[u8]) {
    match read(bytes) {
        Ok(policy) => {
            assert!(policy.check().is_ok(), "{policy}");
            assert!(!bytes.is_empty());
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(serde_json::from_str::<NetworkPolicy>(&json).unwrap(), policy);
        }
        Err(found) => {
            assert!((1..=MAX_ERRORS).contains(&found.errors.len()));
            assert!(found.left_out == 0 || found.errors.len() == MAX_ERRORS);
            let text = String::from_utf8_lossy(bytes);
            let lines: Vec<&str> = text.split('\n').collect();
            for error in &found.errors {
                assert!((1..=lines.len()).contains(&error.line), "{error}");
                assert!((1..=lines[error.line - 1].chars().count() + 1).contains(&error.column), "{error}");
                assert!(!error.reason.is_empty() && error.reason.len() < 2000, "{error}");
            }
        }
    }
}
