//! Archives from inputs. Random bytes are never an archive, for want of a checksum; so an input is read as a script of
//! entries, or as blocks whose checksums are set right.

use tar::{EntryType, Header};

use crate::script::Script;

const BLOCK: usize = 512;
const KINDS: [u8; 16] = *b"0000\x0055122345LKx";
const PARTS: [&str; 16] = [
    "a",
    "b",
    "c",
    "d",
    "d/old",
    "out",
    "up",
    "..",
    ".",
    "/",
    "",
    "canary",
    "outside",
    "target",
    "\u{1b}[2J",
    "a\0b",
];

/// The archive that an input stands for.
pub(crate) fn from(script: &mut Script<'_>) -> Vec<u8> {
    match script.below(8) {
        0 => repaired(script.rest().to_vec()),
        1 => script.rest().to_vec(),
        _ => entries(script),
    }
}

fn entries(script: &mut Script<'_>) -> Vec<u8> {
    let mut archive = Vec::new();
    for _ in 0..40 {
        if script.is_over() {
            break;
        }
        entry(script, &mut archive);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn entry(script: &mut Script<'_>, archive: &mut Vec<u8>) {
    let kind = match script.byte() {
        byte if byte < 0xf0 => KINDS[usize::from(byte) % KINDS.len()],
        byte => byte,
    };
    let content: Vec<u8> = match kind {
        b'L' | b'K' => name(script, 300),
        b'x' => extension(script),
        b'1' | b'2' | b'3' | b'4' | b'5' => Vec::new(),
        _ => {
            let length = content_length(script);
            script.bytes(length).to_vec()
        }
    };
    let mut header = if script.below(4) == 0 { Header::new_ustar() } else { Header::new_gnu() };
    let entry_name = name(script, 100);
    let link = if matches!(kind, b'1' | b'2') { name(script, 100) } else { Vec::new() };
    header.set_entry_type(EntryType::new(kind));
    let old = header.as_old_mut();
    old.name[..entry_name.len()].copy_from_slice(&entry_name);
    old.linkname[..link.len()].copy_from_slice(&link);
    header.set_mode(u32::from(script.word()));
    header.set_mtime(u64::from(script.word()) << script.below(48));
    let lie = if script.byte() == 0xff { u64::from(script.word()) } else { 0 };
    header.set_size(content.len() as u64 + lie);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(&content);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}

fn content_length(script: &mut Script<'_>) -> usize {
    match usize::from(script.byte()) {
        byte if byte < 0xf0 => byte % 32,
        byte => byte * 8,
    }
}

/// A path of a few parts, most of them such as lead somewhere.
fn name(script: &mut Script<'_>, most: usize) -> Vec<u8> {
    let mut name = Vec::new();
    for position in 0..=script.below(4) {
        if position > 0 {
            name.push(b'/');
        }
        match script.byte() {
            byte if byte < 0xf0 => name.extend_from_slice(PARTS[usize::from(byte) % PARTS.len()].as_bytes()),
            byte => name.extend_from_slice(script.bytes(usize::from(byte - 0xef) * 8)),
        }
    }
    name.truncate(most);
    name
}

/// Records of a pax header: `length key=value`, the length counting itself.
fn extension(script: &mut Script<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    for _ in 0..=script.below(3) {
        let key = ["path", "linkpath", "size", "mtime", "GNU.sparse.major", "uid"][script.below(6)];
        let value = match key {
            "path" | "linkpath" => name(script, 300),
            _ => u64::from(script.word()).to_string().into_bytes(),
        };
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        records.extend_from_slice(format!("{length} {key}=").as_bytes());
        records.extend_from_slice(&value);
        records.push(b'\n');
    }
    records
}

/// The bytes with a right checksum wherever a header would be read.
fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(block) = bytes.get_mut(at..at + BLOCK) {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(block);
        if block.iter().any(|byte| *byte != 0) {
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
        let size = header.entry_size().unwrap_or(0).min(1 << 20) as usize;
        at += BLOCK + size.next_multiple_of(BLOCK);
    }
    bytes
}
