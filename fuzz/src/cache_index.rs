//! An index of a package registry, whatever it is: it names files of the web with hashes that are hashes, in bounds, or nothing.

use belljar_network::cache::{Index, Registry, read_index};

/// The kinds that answers say they are.
const KINDS: [&str; 5] = [
    "text/html; charset=utf-8",
    "application/vnd.pypi.simple.v1+json",
    "application/json",
    "text/plain",
    "application/vnd.npm.install-v1+json",
];

/// Reads it as each kind in turn, and as the index of a registry whose settings came first.
pub fn check(bytes: &[u8]) {
    let (kind, body) = match bytes.split_first() {
        Some((first, rest)) => (KINDS[usize::from(*first) % KINDS.len()], rest),
        None => (KINDS[0], bytes),
    };
    let settings = "https://index.test/sub/config.json".parse().unwrap();
    let mut registries: Vec<Registry> = Vec::new();
    if let Some(Index::Registry(registry)) = read_index(&settings, kind, body, &[]) {
        assert_eq!(registry.root.as_str(), "https://index.test/sub/");
        registries.push(registry);
    }
    for (address, registries) in
        [("https://index.test/simple/a/", &[][..]), ("https://index.test/sub/se/rd/serde", &registries[..])]
    {
        let Some(Index::Files(files)) = read_index(&address.parse().unwrap(), kind, body, registries) else {
            continue;
        };
        // Each takes a few bytes of the page at least.
        assert!(files.len() <= body.len());
        for named in files {
            assert!(matches!(named.url.scheme(), "http" | "https") && named.url.fragment().is_none());
            assert!(named.url.username().is_empty() && named.url.password().is_none());
            let text = named.digest.to_string();
            let (algorithm, hash) = text.split_once(':').unwrap();
            assert_eq!(hash.len(), if algorithm == "sha256" { 64 } else { 128 });
        }
    }
}
