//! What a template is: what it stands on, its layers, and how programs are started in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::store::Layer;

/// A template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What the lowest layer lies on.
    pub ground: Ground,
    /// Its layers, the lowest first.
    pub layers: Vec<Layer>,
    /// How programs are started in it.
    pub settings: Settings,
}

/// What layers lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ground {
    /// The programs of the host.
    Host,
    /// Nothing: the layers have all there is.
    Nothing,
}

/// How programs are started in a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Variables, besides those that every sandbox has.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Who runs them: a name or a number, with a group behind a colon if it is another than the user's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where they start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_directory: Option<String>,
    /// What is run, before what it is told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// What it is told, or what is run where there is no entry point.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The shell of lines that are run while something is built from it; `/bin/sh -c` if nothing is said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
    /// Modules of Python that most programs in it will need.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preload: Vec<String>,
    /// What is started with every sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

/// What is started with every sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What succeeds once it is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ready: Vec<String>,
}

impl Record {
    /// The programs of the host, and nothing else.
    pub fn host() -> Self {
        Self { ground: Ground::Host, layers: Vec::new(), settings: Settings::default() }
    }

    /// No file at all.
    pub fn nothing() -> Self {
        Self { ground: Ground::Nothing, layers: Vec::new(), settings: Settings::default() }
    }

    /// What it is known by: what is in its layers, in which order, and how programs are started. Where they came from does not count.
    pub fn digest(&self) -> Digest {
        let layers: Vec<Digest> = self.layers.iter().map(|layer| layer.digest).collect();
        let said = serde_json::to_vec(&(self.ground, layers, &self.settings));
        Digest::of(&said.unwrap_or_default())
    }

    /// How many bytes the files of its layers have.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }

    /// The same with a layer on top.
    #[must_use]
    pub fn with(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }
}
