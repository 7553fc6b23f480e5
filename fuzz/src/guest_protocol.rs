//! Frames between the outside and a guest, in both directions, and the messages in them.

use belljar_core::wire::{
    CodecError, Decoder, Event, FileOperation, Frame, FrameKind, MAX_CONTROL, MAX_DATA, Request,
};
use belljar_core::{Command, FilePath};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::script::Script;

/// Reads the input as a stream of frames, cut in two ways.
pub fn check(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let max_control = [64, 4096, MAX_CONTROL][script.below(3)];
    let cut = script.below(64) + 1;
    let stream = script.rest();
    for frame in frames(stream, max_control, cut) {
        if frame.kind == FrameKind::Control {
            for_request(&frame);
            round_trip::<Event>(&frame);
        }
    }
}

/// The frames of a stream, held to everything that is promised of them.
pub(crate) fn frames(stream: &[u8], max_control: usize, cut: usize) -> Vec<Frame> {
    let (frames, trouble) = decode(stream.chunks(cut), max_control);
    assert_eq!(
        decode([stream].into_iter(), max_control),
        (frames.clone(), trouble.clone()),
        "cutting changes nothing"
    );
    let mut encoded = Vec::new();
    for frame in &frames {
        let (limit, which) = match frame.kind {
            FrameKind::Control => (max_control, 0),
            FrameKind::Data(which) => (MAX_DATA, which),
            FrameKind::Credit(which) => (4, which),
        };
        assert!(frame.payload.len() <= limit && which <= 2, "beyond bounds: {frame:?}");
        if matches!(frame.kind, FrameKind::Credit(_)) {
            assert!(frame.credit_bytes().is_ok(), "a credit frame without credit: {frame:?}");
        }
        frame.encode(&mut encoded);
    }
    assert!(stream.starts_with(&encoded), "what was decoded is encoded as it came");
    if trouble.is_none() {
        let waiting = stream.len() - encoded.len();
        assert!(waiting < 12 + max_control.max(MAX_DATA), "{waiting} bytes wait for a frame that cannot be");
    }
    frames
}

fn decode<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    max_control: usize,
) -> (Vec<Frame>, Option<CodecError>) {
    let mut decoder = Decoder::new(max_control);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.feed(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// A message that was understood is understood the same after it was said again.
pub(crate) fn round_trip<M: Serialize + DeserializeOwned>(frame: &Frame) -> Option<M> {
    let message: M = frame.message().ok()?;
    let again: M = Frame::control(frame.id, &message).message().expect("our own message is understood");
    let value = |message: &M| serde_json::to_value(message).expect("a message can be said");
    assert_eq!(value(&message), value(&again));
    Some(message)
}

fn for_request(frame: &Frame) {
    match round_trip::<Request>(frame) {
        Some(Request::Spawn(spawn)) => {
            spawn.cwd.iter().for_each(path);
            let _: Command = spawn.command;
        }
        Some(Request::File(request)) => operation(&request.operation),
        _ => {}
    }
}

/// Every path that got through is one the kernel could take.
pub(crate) fn operation(operation: &FileOperation) {
    match operation {
        FileOperation::Read { path: one }
        | FileOperation::Write { path: one, .. }
        | FileOperation::Stat { path: one }
        | FileOperation::List { path: one, .. }
        | FileOperation::MakeDir { path: one }
        | FileOperation::Remove { path: one }
        | FileOperation::Unpack { path: one }
        | FileOperation::Pack { path: one }
        | FileOperation::Watch { path: one } => path(one),
        FileOperation::Rename { from, to } => [from, to].into_iter().for_each(path),
    }
}

pub(crate) fn path(path: &FilePath) {
    let text = path.as_str();
    assert!(!text.is_empty() && text.len() <= FilePath::MAX && !text.contains(['\0', '\n']), "{text:?}");
    assert!(text.split('/').all(|part| part.len() <= 255), "{text:?}");
}
