//! Which walls were noticed to be missing, and by which attacks.

use std::collections::BTreeMap;
use std::fmt::Write;

use belljar_core::Wall;
use serde_json::json;

/// What is known of one wall.
#[derive(Default)]
pub(crate) struct Row {
    /// Attacks that it stops by itself, and that succeed without it (and those it is named with).
    pub(crate) noticed: Vec<&'static str>,
    /// Attacks that were to show it and did not, with what happened instead.
    pub(crate) missed: Vec<(&'static str, String)>,
    /// Why it cannot be shown here.
    pub(crate) moot: Vec<(&'static str, &'static str)>,
}

/// All walls.
#[derive(Default)]
pub(crate) struct Matrix(BTreeMap<Wall, Row>);

impl Matrix {
    pub(crate) fn row(&mut self, wall: Wall) -> &mut Row {
        self.0.entry(wall).or_default()
    }

    /// Walls that nobody notices, unless it is known why.
    pub(crate) fn unnoticed(&self) -> Vec<Wall> {
        let noticed =
            |wall: &Wall| self.0.get(wall).is_some_and(|row| !row.noticed.is_empty() || !row.moot.is_empty());
        Wall::ALL.iter().copied().filter(|wall| !noticed(wall)).collect()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{:<22} {:>9}  {}\n", "wall", "noticed", "by");
        let none = Row::default();
        for wall in Wall::ALL {
            let row = self.0.get(wall).unwrap_or(&none);
            let total = row.noticed.len() + row.missed.len();
            let count = format!("{}/{total}", row.noticed.len());
            let mut by = row.noticed.join(" ");
            if row.noticed.is_empty() {
                by = row
                    .moot
                    .first()
                    .map_or("NOBODY".to_owned(), |(id, why)| format!("cannot be shown here ({id}: {why})"));
            }
            for (id, what) in &row.missed {
                let _ = write!(by, " MISSED by {id}: {what}");
            }
            let _ = writeln!(text, "{:<22} {count:>9}  {by}", wall.name());
        }
        text
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let none = Row::default();
        let rows = Wall::ALL.iter().map(|wall| {
            let row = self.0.get(wall).unwrap_or(&none);
            let missed: Vec<&str> = row.missed.iter().map(|(id, _)| *id).collect();
            let moot: BTreeMap<&str, &str> = row.moot.iter().copied().collect();
            (wall.name().to_owned(), json!({"noticed": row.noticed, "missed": missed, "moot": moot}))
        });
        serde_json::Value::Object(rows.collect())
    }
}
