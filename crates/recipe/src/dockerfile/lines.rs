//! Lines: directives at the top, comments, lines that go on, and the files that stand between lines.

use super::list::list;
use super::words;
use crate::dockerfile::MAX_INSTRUCTIONS;
use crate::wrong::{Wrong, quoted};

/// An instruction, with its lines made one.
pub(super) struct Instruction {
    /// Where it begins, from 1.
    pub line: usize,
    /// Its first word in capitals.
    pub keyword: String,
    /// What begins with two dashes behind that word: names, and values as they are written.
    pub flags: Vec<(String, Option<String>)>,
    /// The rest.
    pub rest: String,
    /// The files behind it.
    pub heredocs: Vec<Heredoc>,
}

/// A file that stands in the text.
pub(super) struct Heredoc {
    /// The word that ends it, which is also its name.
    pub name: String,
    /// Whether variables in it are replaced: its word has no quotes.
    pub expands: bool,
    /// Whether tabs in front of lines are taken away.
    pub chomps: bool,
    /// Its lines.
    pub content: String,
}

impl Heredoc {
    /// The lines without the tabs that are not meant.
    pub fn chomped(&self) -> String {
        match self.chomps {
            true => self.content.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect(),
            false => self.content.clone(),
        }
    }
}

/// The whole text, cut into instructions.
pub(super) struct Lines {
    pub escape: char,
    pub instructions: Vec<Instruction>,
}

pub(super) fn read(text: &str) -> Result<Lines, Wrong> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let escape = directives(text)?;
    let mut instructions = Vec::new();
    let mut lines = text.split_inclusive('\n').enumerate().map(|(at, line)| (at + 1, line));
    while let Some((number, line)) = lines.next() {
        let (piece, mut goes_on) = continued(line.trim(), escape);
        if is_comment(line) || (piece.is_empty() && !goes_on) {
            continue;
        }
        let mut whole = piece.to_owned();
        while goes_on {
            let Some((_, line)) = lines.next() else { break };
            if is_comment(line) || line.trim().is_empty() {
                continue;
            }
            let (piece, more) = continued(line.trim_end_matches(['\n', '\r']), escape);
            whole.push_str(piece);
            goes_on = more;
        }
        if whole.trim().is_empty() {
            continue;
        }
        if instructions.len() == MAX_INSTRUCTIONS {
            return Err(Wrong::at(number, format!("there are more than {MAX_INSTRUCTIONS} instructions")));
        }
        let mut instruction = instruction(number, whole.trim(), escape);
        if ["RUN", "COPY", "ADD"].contains(&instruction.keyword.as_str()) && list(&instruction.rest).is_none()
        {
            for word in words::split(&instruction.rest, escape) {
                let Some(mut heredoc) = heredoc(word) else { continue };
                fill(&mut heredoc, &mut lines, number)?;
                instruction.heredocs.push(heredoc);
            }
        }
        instructions.push(instruction);
    }
    Ok(Lines { escape, instructions })
}

/// Reads `# name=value` lines at the very top and returns the escape. Anything else ends them.
fn directives(text: &str) -> Result<char, Wrong> {
    let mut escape = None;
    for (at, line) in text.lines().enumerate() {
        let Some((name, value)) = line.trim().strip_prefix('#').and_then(|line| line.split_once('=')) else {
            break;
        };
        match name.trim().to_ascii_lowercase().as_str() {
            "syntax" | "check" => {}
            "escape" => {
                let value = match value.trim() {
                    "\\" => '\\',
                    "`" => '`',
                    other => {
                        return Err(Wrong::at(at + 1, format!("{} is not an escape", quoted(other)))
                            .hint("it is a backslash or a backtick"));
                    }
                };
                if escape.replace(value).is_some() {
                    return Err(Wrong::at(at + 1, "the escape is set twice"));
                }
            }
            _ => break,
        }
    }
    Ok(escape.unwrap_or('\\'))
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// A line without the escape at its end, and whether it had one that is not itself escaped.
fn continued(line: &str, escape: char) -> (&str, bool) {
    match line.trim_end_matches([' ', '\t']).strip_suffix(escape) {
        Some(before) if !before.ends_with(escape) => (before, true),
        _ => (line, false),
    }
}

fn instruction(line: usize, text: &str, escape: char) -> Instruction {
    let (keyword, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let mut flags = Vec::new();
    let mut rest = rest.trim();
    while rest.starts_with("--") {
        let (flag, after) = words::first(rest, escape);
        rest = after;
        if flag == "--" {
            break;
        }
        let flag = flag.trim_start_matches("--");
        flags.push(match flag.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (flag.to_owned(), None),
        });
    }
    Instruction {
        line,
        keyword: keyword.to_ascii_uppercase(),
        flags,
        rest: rest.to_owned(),
        heredocs: Vec::new(),
    }
}

/// The file that a word such as `<<EOF`, `<<-EOF` or `3<<"EOF"` stands for.
pub(super) fn heredoc(word: &str) -> Option<Heredoc> {
    let word = word.trim_start_matches(|digit: char| digit.is_ascii_digit()).strip_prefix("<<")?;
    let (word, chomps) = word.strip_prefix('-').map_or((word, false), |word| (word, true));
    let name: String = word.chars().filter(|character| !['"', '\'', '\\'].contains(character)).collect();
    let is_one = !word.contains('<') && !name.is_empty();
    is_one.then(|| Heredoc { expands: !word.contains(['"', '\'']), name, chomps, content: String::new() })
}

/// Takes lines up to the one that ends the file.
fn fill<'t>(
    heredoc: &mut Heredoc,
    lines: &mut impl Iterator<Item = (usize, &'t str)>,
    number: usize,
) -> Result<(), Wrong> {
    for (_, line) in lines {
        let bare = line.trim_end_matches(['\n', '\r']);
        let bare = if heredoc.chomps { bare.trim_start_matches('\t') } else { bare };
        if bare == heredoc.name {
            return Ok(());
        }
        heredoc.content.push_str(line);
    }
    Err(Wrong::at(number, format!("the text ends before {}, which was to end a file", quoted(&heredoc.name))))
}
