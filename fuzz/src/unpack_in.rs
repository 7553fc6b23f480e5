//! An archive that goes into a sandbox, unpacked by the guest.

use crate::script::Script;
use crate::yard::Yard;

/// Unpacks the input's archive as the guest does, and looks at what became of the target and of all beside it.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let yard = Yard::new(script.below(2) == 1);
    let archive = crate::archive::from(&mut script);
    let answer = belljar_guest::fuzzing::unpack(&archive, &yard.target());
    yard.check_around();
    // Links may lead anywhere: they are followed inside, where all of it is the sandbox's own.
    yard.check_inside(false);
    if let Err(error) = answer {
        assert!(!error.message.is_empty());
    }
}
