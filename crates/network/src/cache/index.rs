//! Indexes of package registries: which files they name, with which hashes. What is not understood names nothing.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use url::Url;

use super::digest::Digest;

/// The most files that are taken in from one index.
const MOST_NAMED: usize = 100_000;
/// The longest pattern of addresses.
const LONGEST_PATTERN: usize = 512;
/// The longest address of a file.
pub(super) const LONGEST_URL: usize = 2048;

/// A file as an index names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where it is.
    pub url: Url,
    /// What it is.
    pub digest: Digest,
}

/// A registry of cargo: where its index is, and where its files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// The address that those of its index begin with.
    pub root: Url,
    /// The pattern of the addresses of files.
    pub download: String,
}

/// What was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Index {
    /// An index that names files.
    Files(Vec<Named>),
    /// The settings of a registry of cargo, which names files elsewhere.
    Registry(Registry),
}

/// Understands what was found at an address, if it is an index: of pip, npm, or one of these registries of cargo.
pub fn read(url: &Url, content_type: &str, body: &[u8], registries: &[Registry]) -> Option<Index> {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if let Some(registry) = registries.iter().find(|registry| is_below(url, &registry.root)) {
        return Some(Index::Files(cargo(registry, body))).filter(names_something);
    }
    if let Some(root) = root_of_settings(url)
        && let Ok(settings) = serde_json::from_slice::<Settings<'_>>(body)
        && settings.dl.len() <= LONGEST_PATTERN
    {
        return Some(Index::Registry(Registry { root, download: settings.dl.into_owned() }));
    }
    let named = match kind.as_str() {
        "application/vnd.pypi.simple.v1+json" => pip(url, body),
        "application/vnd.pypi.simple.v1+html" | "text/html" => pip_page(url, std::str::from_utf8(body).ok()?),
        "application/json" | "application/vnd.npm.install-v1+json" => npm(url, body),
        _ => return None,
    };
    Some(Index::Files(named)).filter(names_something)
}

fn names_something(index: &Index) -> bool {
    !matches!(index, Index::Files(files) if files.is_empty())
}

/// Whether something at this address may be an index, as far as the head of an answer tells.
pub(crate) fn may_be_one(url: &Url, content_type: &str, registries: &[Registry]) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_known = ["application/json", "application/vnd.npm.install-v1+json", "text/html"]
        .contains(&kind.as_str())
        || kind.starts_with("application/vnd.pypi.simple.v1+");
    is_known
        || root_of_settings(url).is_some()
        || registries.iter().any(|registry| is_below(url, &registry.root))
}

fn is_below(url: &Url, root: &Url) -> bool {
    url.origin() == root.origin()
        && url.path().len() > root.path().len()
        && url.path().starts_with(root.path())
}

/// The root of the index of cargo whose settings this is the address of.
fn root_of_settings(url: &Url) -> Option<Url> {
    let path = url.path().strip_suffix("config.json").filter(|path| path.ends_with('/'))?;
    let mut root = url.clone();
    root.set_path(path);
    root.set_query(None);
    Some(root)
}

/// The address of a file, as it is written at another.
fn resolve(base: &Url, text: &str) -> Option<Url> {
    if text.len() > LONGEST_URL {
        return None;
    }
    let mut url = base.join(text).ok()?;
    url.set_fragment(None);
    let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
    // Whoever can change what comes in the clear has no say in the rest.
    let is_as_safe = base.scheme() == "https" || url.scheme() == "http";
    let is_plain = url.username().is_empty() && url.password().is_none() && url.as_str().len() <= LONGEST_URL;
    (is_http && is_as_safe && is_plain).then_some(url)
}

/// Hashes by algorithm, of which those count that can.
#[derive(Default, Deserialize)]
struct Hashes<'a> {
    #[serde(borrow, default)]
    sha256: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    sha512: Option<Cow<'a, str>>,
}

impl Hashes<'_> {
    fn strongest(&self) -> Option<Digest> {
        let read = |name: &str, hash: &Option<Cow<'_, str>>| Digest::from_hex(name, hash.as_deref()?);
        read("sha512", &self.sha512).or_else(|| read("sha256", &self.sha256))
    }
}

/// As many elements of a list, or values of an object, as are taken in from one index; the rest is passed over.
struct Few<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taking<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Taking<T> {
            type Value = Few<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list or an object")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T>, A::Error> {
                let mut few = Vec::new();
                while few.len() < MOST_NAMED
                    && let Some(element) = list.next_element()?
                {
                    few.push(element);
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Few(few))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Few<T>, A::Error> {
                let mut few = Vec::new();
                while few.len() < MOST_NAMED
                    && let Some((IgnoredAny, value)) = object.next_entry()?
                {
                    few.push(value);
                }
                while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Few(few))
            }
        }
        deserializer.deserialize_any(Taking(PhantomData))
    }
}

#[derive(Deserialize)]
struct PipPage<'a> {
    #[serde(borrow)]
    files: Few<PipFile<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct PipFile<'a> {
    #[serde(borrow)]
    url: Cow<'a, str>,
    #[serde(borrow, default)]
    hashes: Hashes<'a>,
    #[serde(borrow, default)]
    core_metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    dist_info_metadata: Option<&'a RawValue>,
}

fn pip(url: &Url, body: &[u8]) -> Vec<Named> {
    let Ok(page) = serde_json::from_slice::<PipPage<'_>>(body) else { return Vec::new() };
    let mut named = Vec::new();
    for file in page.files.0 {
        let Some(url) = resolve(url, &file.url) else { continue };
        let metadata = file.core_metadata.or(file.dist_info_metadata);
        let metadata = metadata.and_then(|raw| serde_json::from_str::<Hashes<'_>>(raw.get()).ok());
        if let Some(digest) = metadata.as_ref().and_then(Hashes::strongest) {
            named.push(beside(&url, digest));
        }
        if let Some(digest) = file.hashes.strongest() {
            named.push(Named { url, digest });
        }
    }
    named
}

/// The file of metadata that lies beside another.
fn beside(url: &Url, digest: Digest) -> Named {
    let mut beside = url.clone();
    beside.set_path(&format!("{}.metadata", url.path()));
    Named { url: beside, digest }
}

/// The same as a page for people, which browsers and older versions of pip read.
fn pip_page(url: &Url, page: &str) -> Vec<Named> {
    let mut named = Vec::new();
    // Addresses would mean something else.
    if page.contains("<base") || page.contains("<BASE") {
        return named;
    }
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let Some(within) = rest.strip_prefix(['a', 'A']) else { continue };
        if !within.starts_with(|mark: char| mark.is_ascii_whitespace()) {
            continue;
        }
        let (attributes, after) = attributes(within);
        rest = after;
        let value = |name: &str| {
            attributes.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        };
        let Some((address, fragment)) = value("href").and_then(|href| href.split_once('#')) else { continue };
        let Some(url) = resolve(url, address) else { continue };
        let metadata = value("data-core-metadata").or_else(|| value("data-dist-info-metadata"));
        if let Some(digest) = metadata.and_then(|hash| assigned(hash.as_str())) {
            named.push(beside(&url, digest));
        }
        named.extend(assigned(fragment).map(|digest| Named { url, digest }));
        if named.len() >= MOST_NAMED {
            break;
        }
    }
    named
}

/// A hash as in `sha256=…`.
fn assigned(text: &str) -> Option<Digest> {
    text.split('&').find_map(|word| {
        let (algorithm, hash) = word.split_once('=')?;
        Digest::from_hex(algorithm, hash)
    })
}

/// The attributes of a tag, from after its name, and what follows it.
fn attributes(mut rest: &str) -> (Vec<(&str, String)>, &str) {
    const MOST: usize = 32;
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start();
        let end = rest.find(|mark: char| mark == '=' || mark == '>' || mark.is_ascii_whitespace());
        let Some(end) = end.filter(|_| found.len() < MOST) else { return (found, "") };
        let name = &rest[..end];
        rest = rest[end..].trim_start();
        let Some(after) = rest.strip_prefix('=') else {
            match rest.strip_prefix('>') {
                Some(after) => return (found, after),
                // One without a value.
                None if !name.is_empty() => continue,
                None => return (found, ""),
            }
        };
        rest = after.trim_start();
        let (value, after) = match rest.chars().next() {
            Some(quote @ ('"' | '\'')) => match rest[1..].split_once(quote) {
                Some(parts) => parts,
                None => return (found, ""),
            },
            _ => rest.split_at(
                rest.find(|mark: char| mark == '>' || mark.is_ascii_whitespace()).unwrap_or(rest.len()),
            ),
        };
        found.push((name, unescaped(value)));
        rest = after;
    }
}

fn unescaped(text: &str) -> String {
    // The ampersand last: what it makes is not read again.
    [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(
        text.to_owned(),
        |text, (escaped, plain)| {
            if text.contains(escaped) { text.replace(escaped, plain) } else { text }
        },
    )
}

#[derive(Deserialize)]
struct NpmPackage<'a> {
    #[serde(borrow)]
    versions: Few<NpmVersion<'a>>,
}

#[derive(Deserialize)]
struct NpmVersion<'a> {
    #[serde(borrow)]
    dist: NpmFile<'a>,
}

#[derive(Deserialize)]
struct NpmFile<'a> {
    #[serde(borrow)]
    tarball: Cow<'a, str>,
    #[serde(borrow, default)]
    integrity: Option<Cow<'a, str>>,
}

fn npm(url: &Url, body: &[u8]) -> Vec<Named> {
    let Ok(package) = serde_json::from_slice::<NpmPackage<'_>>(body) else { return Vec::new() };
    let files = package.versions.0.iter().map(|version| &version.dist);
    let named = files.filter_map(|file| {
        Some(Named {
            url: resolve(url, &file.tarball)?,
            digest: Digest::from_integrity(file.integrity.as_deref()?)?,
        })
    });
    named.collect()
}

#[derive(Deserialize)]
struct Settings<'a> {
    #[serde(borrow)]
    dl: Cow<'a, str>,
}

#[derive(Deserialize)]
struct CargoVersion<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    vers: Cow<'a, str>,
    #[serde(borrow)]
    cksum: Cow<'a, str>,
}

/// The versions of a crate, one a line.
fn cargo(registry: &Registry, body: &[u8]) -> Vec<Named> {
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let named = lines.take(MOST_NAMED).filter_map(|line| {
        let version: CargoVersion<'_> = serde_json::from_slice(line).ok()?;
        let digest = Digest::from_hex("sha256", &version.cksum)?;
        Some(Named { url: resolve(&registry.root, &download(&registry.download, &version)?)?, digest })
    });
    named.collect()
}

/// The address of a version's file, by the pattern of its registry.
fn download(pattern: &str, version: &CargoVersion<'_>) -> Option<String> {
    const LONGEST: usize = 128;
    let CargoVersion { name, vers, cksum } = version;
    let is_plain = |text: &str| {
        text.len() <= LONGEST
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte))
    };
    if !is_plain(name) || !is_plain(vers) || name.is_empty() || pattern.len() > LONGEST_PATTERN {
        return None;
    }
    let prefix = match name.len() {
        length @ (1 | 2) => length.to_string(),
        3 => format!("3/{}", &name[..1]),
        _ => format!("{}/{}", &name[..2], &name[2..4]),
    };
    let words: [(&str, &str); 5] = [
        ("{crate}", name),
        ("{version}", vers),
        ("{prefix}", &prefix),
        ("{lowerprefix}", &prefix.to_ascii_lowercase()),
        ("{sha256-checksum}", cksum),
    ];
    if !words.iter().any(|(word, _)| pattern.contains(word)) {
        return Some(format!("{pattern}/{name}/{vers}/download"));
    }
    let mut text = pattern.to_owned();
    for (word, value) in words {
        text = text.replace(word, value);
        if text.len() > LONGEST_URL {
            return None;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const OTHER: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn at(url: &str) -> Url {
        url.parse().unwrap()
    }

    fn named(url: &str, kind: &str, body: &str) -> Vec<String> {
        match read(&at(url), kind, body.as_bytes(), &[]) {
            Some(Index::Files(named)) => {
                let mut shown: Vec<_> = named
                    .iter()
                    .map(|named| format!("{} {}", named.url, &named.digest.to_string()[..11]))
                    .collect();
                shown.sort();
                shown
            }
            Some(Index::Registry(registry)) => vec![format!("{} {}", registry.root, registry.download)],
            None => Vec::new(),
        }
    }

    #[test]
    fn pages_of_pip_name_files_and_their_metadata() {
        let json = format!(
            r#"{{"meta": {{"api-version": "1.1"}}, "name": "six", "files": [
                {{"url": "../../files/six.whl", "hashes": {{"md5": "00", "sha256": "{HASH}"}}, "core-metadata": {{"sha256": "{OTHER}"}}}},
                {{"url": "https://files.example/six.tar.gz", "hashes": {{"sha256": "{OTHER}"}}, "core-metadata": false}},
                {{"url": "weak.zip", "hashes": {{"md5": "00"}}, "dist-info-metadata": true}},
                {{"url": "https://user:pass@files.example/x", "hashes": {{"sha256": "{HASH}"}}}},
                {{"url": "ftp://files.example/x", "hashes": {{"sha256": "{HASH}"}}}}]}}"#
        );
        let expected = [
            "https://files.example/six.tar.gz sha256:ba78",
            "https://index.example/files/six.whl sha256:e3b0",
            "https://index.example/files/six.whl.metadata sha256:ba78",
        ];
        let kind = "application/vnd.pypi.simple.v1+json";
        assert_eq!(named("https://index.example/simple/six/", kind, &json), expected);
        let page = format!(
            r#"<!DOCTYPE html><html><body><h1>Links</h1>
            <a href="../../files/six.whl#sha256={HASH}" data-requires-python="&gt;=3" data-dist-info-metadata="sha256={OTHER}">six.whl</a>
            <A class=x HREF='https://files.example/six.tar.gz#sha256={OTHER}&amp;egg=six' data-yanked>six.tar.gz</A>
            <a href="weak.zip#md5=00">x</a><a href="none">y</a><a>z</a></body>"#
        );
        assert_eq!(named("https://index.example/simple/six/", "text/html; charset=utf-8", &page), expected);
        let based = page.replace("<body>", "<base href='https://other.example/'><body>");
        assert!(named("https://index.example/simple/six/", "text/html", &based).is_empty());
    }

    #[test]
    fn much_is_not_made_of_little() {
        let long = format!("https://index.example/{}", "a".repeat(LONGEST_URL));
        assert!(named(&long, "text/html", &format!("<a href='#sha256={HASH}'>")).is_empty());
        let many = format!("{{\"files\": [{}0]}}", "{\"url\": \"\"},".repeat(MOST_NAMED + 5));
        assert!(
            read(&at("https://a.example/"), "application/vnd.pypi.simple.v1+json", many.as_bytes(), &[])
                .is_none()
        );
        let settings = format!("{{\"dl\": \"{}\"}}", "{crate}".repeat(LONGEST_PATTERN));
        assert!(
            read(&at("https://a.example/config.json"), "application/json", settings.as_bytes(), &[])
                .is_none()
        );
        let line = format!("{{\"name\":\"{}\",\"vers\":\"1\",\"cksum\":\"{HASH}\"}}", "n".repeat(128));
        let root = at("https://a.example/");
        let pattern = Registry { root, download: "{crate}".repeat(60) };
        assert!(read(&at("https://a.example/x"), "text/plain", line.as_bytes(), &[pattern]).is_none());
        // What comes in the clear says nothing of what does not.
        assert!(
            named("http://a.example/", "text/html", &format!("<a href='https://b.example/x#sha256={HASH}'>"))
                .is_empty()
        );
    }

    #[test]
    fn pages_that_break_off_name_what_is_whole() {
        let whole = format!("<a href='a#sha256={HASH}'>");
        for broken in [
            "<a ",
            "<a href",
            "<a href=",
            "<a href='b",
            "<a href='b#sha256=00'",
            "<a <a <a",
            "<a = = =>",
            "<",
        ] {
            let page = format!("{whole}{broken}");
            assert_eq!(
                named("http://a.example/", "text/html", &page),
                ["http://a.example/a sha256:e3b0"],
                "{broken}"
            );
        }
    }

    #[test]
    fn packages_of_npm_name_their_tarballs() {
        let integrity = format!("sha512-{}", "A".repeat(86) + "==");
        let body = format!(
            r#"{{"name": "is-odd", "versions": {{
                "1.0.0": {{"name": "is-odd", "dist": {{"tarball": "https://r.example/is-odd/-/is-odd-1.0.0.tgz", "shasum": "x"}}}},
                "2.0.0": {{"dist": {{"tarball": "https://r.example/is-odd/-/is-odd-2.0.0.tgz", "integrity": "{integrity}"}}}}}}}}"#
        );
        let expected = ["https://r.example/is-odd/-/is-odd-2.0.0.tgz sha512:0000"];
        for kind in ["application/json; charset=utf-8", "application/vnd.npm.install-v1+json"] {
            assert_eq!(named("https://r.example/is-odd", kind, &body), expected);
        }
        assert!(
            named("https://r.example/is-odd", "application/json", r#"{"versions": {"1": {}}}"#).is_empty()
        );
    }

    #[test]
    fn indexes_of_cargo_name_files_where_their_settings_say() {
        let settings = r#"{"dl": "https://static.example/crates", "api": "https://x.example"}"#;
        let url = at("https://index.example/sub/config.json");
        let Some(Index::Registry(plain)) = read(&url, "text/plain", settings.as_bytes(), &[]) else {
            panic!()
        };
        assert_eq!(plain.root.as_str(), "https://index.example/sub/");
        let lines = format!(
            "{{\"name\":\"Serde\",\"vers\":\"1.0.0+x\",\"cksum\":\"{HASH}\",\"deps\":[]}}\nnot json\n\
             {{\"name\":\"../x\",\"vers\":\"1\",\"cksum\":\"{HASH}\"}}\n"
        );
        let files = |registry: &Registry, url: &str| match read(
            &at(url),
            "text/plain",
            lines.as_bytes(),
            std::slice::from_ref(registry),
        ) {
            Some(Index::Files(files)) => files.iter().map(|named| named.url.to_string()).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        let file = "https://index.example/sub/se/rd/serde";
        assert_eq!(files(&plain, file), ["https://static.example/crates/Serde/1.0.0+x/download"]);
        assert!(files(&plain, "https://index.example/se/rd/serde").is_empty());
        assert!(files(&plain, "http://index.example/sub/se/rd/serde").is_empty());
        let download = "https://s.example/{lowerprefix}/{prefix}/{crate}/{version}/{sha256-checksum}.crate";
        let patterned = Registry { download: download.into(), ..plain };
        let expected = format!("https://s.example/se/rd/Se/rd/Serde/1.0.0+x/{HASH}.crate");
        assert_eq!(files(&patterned, file), [expected]);
    }
}
