//! Frames of WebSocket. What clients send is masked with a number that is another each time: in recordings it is not.

use std::ops::Range;

/// Takes the masks off frames that come in pieces; everything else stays as it is.
#[derive(Debug, Default)]
pub struct Unmask {
    head: Vec<u8>,
    /// What is left of the frame that is under way, its mask, and how far that has come.
    body: Option<(u64, [u8; 4], usize)>,
}

impl Unmask {
    /// The same bytes without masks, as far as whole heads of frames are there.
    pub fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.framed(bytes).0
    }

    /// The same, and which of them are heads of frames.
    pub fn framed(&mut self, mut bytes: &[u8]) -> (Vec<u8>, Vec<Range<usize>>) {
        let (mut out, mut heads) = (Vec::with_capacity(bytes.len()), Vec::new());
        while !bytes.is_empty() {
            let Some((left, mask, at)) = &mut self.body else {
                let (first, rest) = bytes.split_at(1);
                self.head.extend(first);
                bytes = rest;
                let begin = out.len();
                self.begin(&mut out);
                if out.len() > begin {
                    heads.push(begin..out.len());
                }
                continue;
            };
            let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, later) = bytes.split_at(count);
            out.extend(now.iter().enumerate().map(|(number, byte)| byte ^ mask[(*at + number) % 4]));
            *left -= count as u64;
            *at += count;
            if *left == 0 {
                self.body = None;
            }
            bytes = later;
        }
        (out, heads)
    }

    /// Begins the body of a frame, once its head is whole.
    fn begin(&mut self, out: &mut Vec<u8>) {
        let [_, second, ..] = self.head[..] else { return };
        let is_masked = second & 0x80 != 0;
        let extended = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask_at = 2 + extended;
        if self.head.len() < mask_at + if is_masked { 4 } else { 0 } {
            return;
        }
        let length = match &self.head[2..mask_at] {
            [] => u64::from(second & 0x7f),
            more => more.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let mut mask = [0; 4];
        if is_masked {
            mask.copy_from_slice(&self.head[mask_at..]);
        }
        out.extend([self.head[0], second & 0x7f]);
        out.extend(&self.head[2..mask_at]);
        self.head.clear();
        self.body = (length > 0).then_some((length, mask, 0));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(payload: &[u8], mask: Option<[u8; 4]>) -> Vec<u8> {
        let bit = if mask.is_some() { 0x80 } else { 0 };
        let mut bytes = vec![0x81];
        match payload.len() {
            short @ 0..126 => bytes.push(bit | short as u8),
            long @ 126..65_536 => {
                bytes.push(bit | 126);
                bytes.extend((long as u16).to_be_bytes());
            }
            longer => {
                bytes.push(bit | 127);
                bytes.extend((longer as u64).to_be_bytes());
            }
        }
        bytes.extend(mask.into_iter().flatten());
        let mask = mask.unwrap_or_default();
        bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        bytes
    }

    proptest! {
        #[test]
        fn frames_are_the_same_whatever_their_masks(
            lengths in proptest::collection::vec(prop_oneof![0usize..10, 120usize..130, 65_530usize..65_540], 1..5),
            masks in any::<[[u8; 4]; 5]>(),
            pieces in 1usize..9000,
        ) {
            let payloads = lengths.iter().map(|length| (0..*length).map(|at| at as u8).collect::<Vec<_>>());
            let (mut masked, mut plain) = (Vec::new(), Vec::new());
            for (payload, mask) in payloads.zip(masks) {
                masked.extend(frame(&payload, Some(mask)));
                plain.extend(frame(&payload, None));
            }
            let mut unmask = Unmask::default();
            let out: Vec<u8> = masked.chunks(pieces).flat_map(|piece| unmask.pass(piece)).collect();
            prop_assert!(out == plain, "{} of {} bytes", out.len(), plain.len());
            let mut unmask = Unmask::default();
            let (out, heads) = unmask.framed(&plain);
            prop_assert!(out == plain, "what has none stays as it is");
            let heads: usize = heads.iter().map(ExactSizeIterator::len).sum();
            prop_assert_eq!(heads + lengths.iter().sum::<usize>(), plain.len());
        }
    }
}
