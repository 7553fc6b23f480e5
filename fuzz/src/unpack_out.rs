//! An archive that comes out of a sandbox, unpacked on the host.

use belljar_cli::fuzzing;

use crate::script::Script;
use crate::yard::Yard;

const LIMIT: u64 = 64 * 1024;

/// Unpacks the input's archive, and looks at what became of the target and of all beside it.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let yard = Yard::new(script.below(2) == 1);
    let strip = script.below(2) == 1;
    let archive = crate::archive::from(&mut script);
    let answer = fuzzing::unpack(&archive, &yard.target(), strip, LIMIT);
    yard.check_around();
    yard.check_inside(true);
    let written: u64 =
        yard.inside().iter().filter(|(_, found)| found.is_file()).map(|(_, found)| found.len()).sum();
    assert!(written <= LIMIT + 3, "{written} bytes came out where {LIMIT} are allowed");
    match answer {
        Ok(left_out) => left_out.iter().for_each(|line| assert!(!line.is_empty())),
        Err(error) => assert!(!error.message.is_empty() && error.hint.is_some(), "no next step: {error:?}"),
    }
}
