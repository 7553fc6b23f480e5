//! Images as others make them: what `docker save` writes, and archives in the layout of OCI.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::archive::{Packing, unpacking};
use crate::digest::Digest;
use crate::export::{GROUND, SETTINGS};
use crate::offence::{Offence, Refused};
use crate::record::{Ground, Settings};
use crate::store::{Arrival, Held, Layer, Store};
use crate::unpack::{Bounds, Unpacker};

/// The longest of the files that say what an image is.
const LONGEST_TEXT: u64 = 4 << 20;
/// The most files in an image, and the most layers.
const MOST_FILES: u64 = 10_000;
const MOST_LAYERS: usize = 128;

/// What an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its layers, the lowest first.
    pub layers: Vec<Layer>,
    /// How programs are started in it.
    pub config: Config,
    /// The template that it was, if it was one.
    pub own: Option<(Ground, Settings)>,
}

/// How programs are started in an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Config {
    /// Variables, as `NAME=VALUE`.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// Who runs them.
    pub user: String,
    /// Where.
    pub working_dir: String,
    /// What is run, before what it is told.
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    /// What it is told, unless it is told something else.
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
}

/// Where others write that there is nothing.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What is heard of an image on its way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A layer is being unpacked: which, and of how many.
    Layer(usize, usize),
}

/// Takes an image in.
pub fn import(
    store: &Store,
    held: &Held,
    archive: impl BufRead,
    (unpacker, bounds): (&dyn Unpacker, Bounds),
    mut tell: impl FnMut(Progress),
) -> Result<Image, Refused> {
    let place = store.scratch().map_err(Refused::io("cannot make room for the image"))?;
    let parts = Parts::read(archive, place.path(), bounds)?;
    let Found { config, layers: blobs, own } = parts.find()?;
    let config: Description = parts.text(&config)?;
    if config.rootfs.diff_ids.len() != blobs.len() || blobs.len() > MOST_LAYERS {
        let why = format!("has {} layers, and says {}", blobs.len(), config.rootfs.diff_ids.len());
        return Err(Refused::offence(Offence::Broken, b"the image", why));
    }
    let mut layers: Vec<Layer> = Vec::new();
    let mut chain: Option<Digest> = None;
    for (number, (blob, expected)) in blobs.iter().zip(&config.rootfs.diff_ids).enumerate() {
        tell(Progress::Layer(number + 1, blobs.len()));
        // What a layer is depends on those below it: names lead through their links.
        let own = chain.map_or(*expected, |chain| Digest::of(format!("{chain} {expected}").as_bytes()));
        chain = Some(own);
        if let Some(known) = store.known(&own).map_err(Refused::io("cannot look for a layer"))? {
            layers.push(known);
            continue;
        }
        let archive = parts.open(blob)?;
        let arrival = Arrival { archive, expected: Some(*expected), below: &layers, ground: None };
        let layer = store.unpack(held, (unpacker, bounds), arrival)?;
        store.note(&own, &layer).map_err(Refused::io("cannot write down a layer"))?;
        layers.push(layer);
    }
    Ok(Image { layers, config: config.config, own })
}

/// The files of an image, by name.
struct Parts {
    files: HashMap<String, PathBuf>,
}

impl Parts {
    /// Puts the files of an archive into a directory, under names of our own.
    fn read(archive: impl BufRead, place: &Path, bounds: Bounds) -> Result<Self, Refused> {
        let reading = || Refused::io("cannot read the image");
        let broken = |error: io::Error| {
            Refused::offence(Offence::Broken, b"the image", format!("cannot be read: {error}"))
        };
        let mut archive = archive;
        if Packing::of(archive.fill_buf().map_err(reading())?) == Packing::Zstd {
            // Its layers may be; they are read behind walls.
            let why = "is packed by zstd as a whole: unpack it first, as in `zstd -d`";
            return Err(Refused::offence(Offence::Broken, b"the image", why));
        }
        let source = unpacking(archive).map_err(reading())?;
        let mut archive = tar::Archive::new(source.take(bounds.bytes));
        let (mut files, mut links) = (HashMap::new(), BTreeMap::new());
        for (number, entry) in archive.entries().map_err(broken)?.enumerate() {
            let mut entry = entry.map_err(broken)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
            if number as u64 > MOST_FILES || name.len() > 512 {
                return Err(Refused::offence(Offence::TooMany, name.as_bytes(), "is one file too many"));
            }
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    let path = place.join(number.to_string());
                    let said = entry.size();
                    let copied = File::create_new(&path).and_then(|mut file| io::copy(&mut entry, &mut file));
                    if copied.map_err(reading())? != said {
                        return Err(Refused::offence(
                            Offence::SizeLie,
                            name.as_bytes(),
                            "has another length",
                        ));
                    }
                    if files.insert(name.clone(), path).is_some() {
                        return Err(Refused::offence(Offence::Duplicate, name.as_bytes(), "is there twice"));
                    }
                }
                // Older versions link layers that are the same.
                tar::EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default();
                    let target = String::from_utf8_lossy(&target).trim_start_matches("../").to_owned();
                    links.insert(name, target);
                }
                tar::EntryType::Directory | tar::EntryType::XGlobalHeader => {}
                _ => {
                    return Err(Refused::offence(
                        Offence::Special,
                        name.as_bytes(),
                        "is no file of an image",
                    ));
                }
            }
        }
        for (name, target) in links {
            if let Some(path) = files.get(&target).cloned() {
                files.insert(name, path);
            }
        }
        Ok(Self { files })
    }

    fn open(&self, name: &str) -> Result<File, Refused> {
        let path = self
            .files
            .get(name)
            .ok_or_else(|| Refused::offence(Offence::Broken, name.as_bytes(), "is missing from the image"))?;
        File::open(path).map_err(Refused::io(format!("cannot open `{}`", name.escape_debug())))
    }

    fn text<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<T, Refused> {
        let mut text = Vec::new();
        let read = self.open(name)?.take(LONGEST_TEXT).read_to_end(&mut text);
        read.map_err(Refused::io(format!("cannot read `{}`", name.escape_debug())))?;
        serde_json::from_slice(&text).map_err(|error| {
            Refused::offence(Offence::Broken, name.as_bytes(), format!("cannot be read: {error}"))
        })
    }

    /// A blob of OCI, which is what its name says.
    fn blob(&self, digest: &str) -> Result<String, Refused> {
        let parsed: Digest = digest.parse().map_err(|_| {
            Refused::offence(Offence::Digest, digest.as_bytes(), "is no digest that is known")
        })?;
        let name = format!("blobs/sha256/{}", parsed.hex());
        let mut hash = <sha2::Sha256 as sha2::Digest>::new();
        io::copy(&mut self.open(&name)?, &mut hash).map_err(Refused::io(format!("cannot read `{name}`")))?;
        if Digest(sha2::Digest::finalize(hash).into()) != parsed {
            return Err(Refused::offence(Offence::Digest, name.as_bytes(), "is not what its name says"));
        }
        Ok(name)
    }

    fn find(&self) -> Result<Found, Refused> {
        if self.files.contains_key("manifest.json") {
            let all: Vec<Saved> = self.text("manifest.json")?;
            let [one] = &all[..] else {
                let why = format!("has {} images; save one of them", all.len());
                return Err(Refused::offence(Offence::Broken, b"manifest.json", why));
            };
            return Ok(Found { config: one.config.clone(), layers: one.layers.clone(), own: None });
        }
        let index: Index = self.text("index.json")?;
        let mut manifests = index.manifests;
        // An index may lead to another, for several machines.
        for _ in 0..2 {
            let own = |manifest: &&Descriptor| manifest.platform.as_ref().is_none_or(Platform::is_ours);
            let chosen = manifests.iter().find(own).ok_or_else(|| {
                Refused::offence(Offence::Broken, b"index.json", "has no image for this kind of machine")
            })?;
            let name = self.blob(&chosen.digest)?;
            if chosen.media_type.contains("index") || chosen.media_type.contains("manifest.list") {
                manifests = self.text::<Index>(&name)?.manifests;
                continue;
            }
            let manifest: Manifest = self.text(&name)?;
            let layers =
                manifest.layers.iter().map(|layer| self.blob(&layer.digest)).collect::<Result<_, _>>()?;
            let own = |name: &str| manifest.annotations.get(name).map(String::as_str);
            let ground = own(GROUND).and_then(|text| serde_json::from_str(text).ok());
            let settings = own(SETTINGS).and_then(|text| serde_json::from_str(text).ok());
            return Ok(Found {
                config: self.blob(&manifest.config.digest)?,
                layers,
                own: ground.zip(settings),
            });
        }
        Err(Refused::offence(Offence::Broken, b"index.json", "leads to no image"))
    }
}

/// What an image is made of.
struct Found {
    /// The file that describes it.
    config: String,
    /// Those of its layers, the lowest first.
    layers: Vec<String>,
    own: Option<(Ground, Settings)>,
}

/// What `docker save` says of an image.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Platform {
    fn is_ours(&self) -> bool {
        let own = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        self.architecture == own && self.os == "linux"
    }
}

/// What an image says of itself.
#[derive(Deserialize)]
struct Description {
    #[serde(default)]
    config: Config,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}
