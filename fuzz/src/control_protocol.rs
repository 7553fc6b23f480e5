//! What clients say to a monitor and what it answers. Anyone who can open the socket can say anything.

use belljar_core::wire::{FrameKind, MAX_CONTROL};
use belljar_jail::control::{Answer, Open, Request};

use crate::guest_protocol::{frames, operation, path, round_trip};
use crate::script::Script;

/// Reads the input as one connection: frames, each with a request or an answer.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let cut = script.below(64) + 1;
    for frame in frames(script.rest(), MAX_CONTROL, cut) {
        if frame.kind != FrameKind::Control {
            continue;
        }
        if let Some(open) = round_trip::<Open>(&frame) {
            match open.request {
                Request::Exec { request, .. } => {
                    request.cwd.iter().for_each(path);
                    if request.check().is_ok() {
                        assert!(request.env.iter().all(|(name, value)| {
                            !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
                        }));
                        assert!(
                            request.key.iter().all(|key| (1..=64).contains(&key.len()) && !key.contains('/'))
                        );
                    }
                }
                Request::File(request) => operation(&request.operation),
                _ => {}
            }
        }
        round_trip::<Answer>(&frame);
    }
}
