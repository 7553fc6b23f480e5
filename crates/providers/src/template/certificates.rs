//! The certificate authorities the host trusts, and nothing else that may lie beside them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::source::Source;

/// Where the merged bundle is inside.
pub(crate) const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

const LIMIT: u64 = 8 << 20;

/// Where distributions keep their bundle; the first that exists counts.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

const VARIABLES: &[&str] = &[
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
];

/// The system's bundle with those that variables and tool settings name, each certificate once.
pub(super) fn bundle(source: &Source, named_in_settings: &[PathBuf]) -> Option<String> {
    let system = SYSTEM_BUNDLES.iter().map(PathBuf::from).find(|path| source.is_file(path));
    let named = VARIABLES.iter().filter_map(|name| source.var(name)).map(PathBuf::from);
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in system.into_iter().chain(named).chain(named_in_settings.iter().cloned()) {
        if path.is_absolute() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    let mut seen = BTreeSet::new();
    let mut bundle = String::new();
    for path in paths {
        let Some(content) = source.read(&path, LIMIT) else { continue };
        for certificate in certificates(&String::from_utf8_lossy(&content)) {
            if seen.insert(certificate.clone()) {
                bundle.push_str(&certificate);
            }
        }
    }
    (!bundle.is_empty()).then_some(bundle)
}

/// The certificate blocks of a PEM text. Keys, comments and whatever else is between them are left behind.
pub(crate) fn certificates(text: &str) -> Vec<String> {
    let mut result = Vec::new();
    let mut block: Option<(&str, String)> = None;
    for line in text.lines().map(str::trim) {
        if let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) {
            let wanted = matches!(label, "CERTIFICATE" | "TRUSTED CERTIFICATE" | "X509 CERTIFICATE");
            block = wanted.then(|| (label, format!("{line}\n")));
            continue;
        }
        let Some((label, mut body)) = block.take() else { continue };
        let end = line.strip_prefix("-----END ").and_then(|rest| rest.strip_suffix("-----"));
        if end == Some(label) {
            body.push_str(line);
            body.push('\n');
            result.push(body);
        } else if line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)) {
            body.push_str(line);
            body.push('\n');
            block = Some((label, body));
        }
    }
    result
}

/// What `/etc/ssl/certs` shall hold besides the bundle.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CertificateDirectory {
    pub(super) files: Vec<(String, String)>,
    /// Links by hash, to a file of the same directory.
    pub(super) links: Vec<(String, String)>,
}

/// The single certificates of a directory. Links that leave it are followed, so that none dangles inside.
pub(super) fn directory(source: &Source, path: &Path) -> CertificateDirectory {
    let mut result = CertificateDirectory::default();
    let mut links = Vec::new();
    for name in source.names(path) {
        let file = path.join(&name);
        if file == Path::new(BUNDLE) {
            continue;
        }
        match std::fs::read_link(source.at(&file)).ok().and_then(|target| target.to_str().map(str::to_owned))
        {
            Some(target) if !target.contains('/') => links.push((name, target)),
            _ => {
                let Some((content, _)) = source.read_public(&file, LIMIT) else { continue };
                let found = certificates(&String::from_utf8_lossy(&content)).concat();
                if !found.is_empty() {
                    result.files.push((name, found));
                }
            }
        }
    }
    result.links =
        links.into_iter().filter(|(_, target)| result.files.iter().any(|(name, _)| name == target)).collect();
    result
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::FakeHost;
    use super::*;

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const TWO: &str = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n";

    #[test]
    fn only_certificates_pass() {
        let text = format!("comment with hunter2\n{ONE}{KEY}{TWO}");
        assert_eq!(certificates(&text), [ONE, TWO]);
        assert!(certificates(&format!("-----BEGIN CERTIFICATE-----\n{KEY}")).is_empty());
    }

    #[test]
    fn bundles_named_by_the_environment_are_merged() {
        let host = FakeHost::new();
        host.write(BUNDLE, ONE, 0o644);
        host.write("/home/ann/company.pem", &format!("{KEY}{ONE}{TWO}"), 0o600);
        let source = host.source(&[("SSL_CERT_FILE", "/home/ann/company.pem"), ("PIP_CERT", BUNDLE)]);
        assert_eq!(bundle(&source, &[]), Some(format!("{ONE}{TWO}")));
        assert_eq!(bundle(&FakeHost::new().source(&[]), &[]), None);
    }

    #[test]
    fn directory_keeps_links_that_resolve() {
        let host = FakeHost::new();
        host.write("/usr/share/ca/one.crt", ONE, 0o644);
        host.directory("/etc/ssl/certs");
        host.link("/etc/ssl/certs/one.pem", "../../../usr/share/ca/one.crt");
        host.link("/etc/ssl/certs/abcd.0", "one.pem");
        host.link("/etc/ssl/certs/dead.0", "none.pem");
        host.write("/etc/ssl/certs/server.key", KEY, 0o644);
        let found = directory(&host.source(&[]), Path::new("/etc/ssl/certs"));
        assert_eq!(found.files, [("one.pem".to_owned(), ONE.to_owned())]);
        assert_eq!(found.links, [("abcd.0".to_owned(), "one.pem".to_owned())]);
    }
}
