//! What programs believe in a sandbox whose TLS may be opened: whom the host believes, and the sandbox's own authority.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use belljar_core::{AUTHORITY_FILE, Authority, Result};
use belljar_jail::plan::OwnFile;
use sha1::{Digest, Sha1};

use crate::home::problem;
use crate::template::certificates::{BUNDLE, certificates};

/// The list of Java, where the sandbox has one.
const JAVA_STORE: &str = "/etc/ssl/certs/java/cacerts";

/// Keeps an authority for the door, and answers the files by which programs inside believe it.
pub(super) fn write(directory: &Path, root: &Path, authority: &Authority) -> Result<Vec<OwnFile>> {
    let written = || {
        let text = serde_json::to_vec(authority).unwrap_or_default();
        let place = directory.join(AUTHORITY_FILE);
        OpenOptions::new().create_new(true).write(true).mode(0o600).open(place)?.write_all(&text)?;
        let trust = directory.join("trust");
        DirBuilder::new().mode(0o700).create(&trust)?;
        let inside = |path: &str| root.join(path.trim_start_matches('/'));
        let mut bundle = match fs::read_to_string(inside(BUNDLE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            bundle => bundle?,
        };
        bundle.push_str(&authority.certificate);
        let mut files = Vec::new();
        let mut put = |name: &str, target: &str, content: &[u8]| {
            let source = trust.join(name);
            fs::write(&source, content)?;
            files.push(OwnFile { source, target: target.into() });
            io::Result::Ok(())
        };
        put("bundle", BUNDLE, bundle.as_bytes())?;
        if inside(JAVA_STORE).exists() {
            put("java", JAVA_STORE, &key_store(&certificates(&bundle)))?;
        }
        Ok(files)
    };
    written().map_err(|error: io::Error| problem(directory, &error))
}

/// What Java reads: a key store of the kind that it has always known, with the password that everybody knows.
fn key_store(certificates: &[String]) -> Vec<u8> {
    const PASSWORD: &str = "changeit";
    const SALT: &[u8] = b"Mighty Aphrodite";
    const KIND: &[u8] = b"X.509";
    let certificates: Vec<Vec<u8>> = certificates.iter().filter_map(|text| decode(text)).collect();
    let mut store = Vec::new();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
    let word = |store: &mut Vec<u8>, text: &[u8]| {
        store.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        store.extend(text);
    };
    store.extend([0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2]);
    store.extend(count(certificates.len()));
    for (number, certificate) in certificates.iter().enumerate() {
        // One that is believed.
        store.extend([0, 0, 0, 2]);
        word(&mut store, number.to_string().as_bytes());
        // When it was put there, which nobody asks.
        store.extend([0; 8]);
        word(&mut store, KIND);
        store.extend(count(certificate.len()));
        store.extend(certificate);
    }
    let password: Vec<u8> = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let digest = Sha1::new().chain_update(password).chain_update(SALT).chain_update(&store).finalize();
    store.extend(digest);
    store
}

/// The bytes of a certificate in a text.
fn decode(text: &str) -> Option<Vec<u8>> {
    let lines: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(lines.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_is_believed_beside_those_of_the_host() {
        let (directory, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = "-----BEGIN CERTIFICATE-----\nb25l\n-----END CERTIFICATE-----\n";
        let own = "-----BEGIN CERTIFICATE-----\nb3du\n-----END CERTIFICATE-----\n";
        fs::create_dir_all(root.path().join("etc/ssl/certs/java")).unwrap();
        fs::write(root.path().join("etc/ssl/certs/ca-certificates.crt"), one).unwrap();
        fs::write(root.path().join("etc/ssl/certs/java/cacerts"), "").unwrap();
        let authority = Authority { certificate: own.into(), key: "the key".into() };
        let files = write(directory.path(), root.path(), &authority).unwrap();
        let [bundle, java] = &files[..] else { panic!("{files:?}") };
        assert_eq!(fs::read_to_string(&bundle.source).unwrap(), format!("{one}{own}"));
        let store = fs::read(&java.source).unwrap();
        assert!(store.windows(3).any(|part| part == b"one") && store.windows(3).any(|part| part == b"own"));
        for file in &files {
            let text = fs::read(&file.source).unwrap();
            assert!(!text.windows(7).any(|part| part == b"the key"), "the key stays outside: {file:?}");
        }
    }
}
