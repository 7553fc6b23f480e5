//! `COPY` and `ADD`.

use super::lines::{Heredoc, Instruction, heredoc};
use super::list::list;
use super::reader::Reader;
use super::words::Form;
use crate::MAX_TEXT;
use crate::check;
use crate::model::{Action, Origin};
use crate::wrong::{Wrong, quoted};

/// What the options of a copy say.
struct Options {
    origin: Origin,
    owner: Option<String>,
    mode: Option<u32>,
}

impl Reader<'_> {
    pub fn copy(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let line = instruction.line;
        let options = self.copy_options(instruction)?;
        let words = list(&instruction.rest)
            .unwrap_or_else(|| instruction.rest.split_whitespace().map(str::to_owned).collect());
        let Some((target, written)) = words.split_last().filter(|(_, written)| !written.is_empty()) else {
            return Err(Wrong::at(line, format!("{} needs a source and a target", instruction.keyword))
                .hint("write as in COPY app.py /srv/"));
        };
        let target = self.expand(line, target)?;
        self.check(line, || check::target(&target))?;
        let is_folder = target.ends_with('/') || target.ends_with("/.") || target == "." || target == "..";
        if written.len() > 1 && !is_folder && self.scope().is_certain() {
            return Err(Wrong::at(line, "several sources need a folder as their target")
                .hint("end the target with a slash"));
        }
        let mut files = instruction.heredocs.iter();
        let mut sources = Vec::new();
        let mut written_files = Vec::new();
        for word in written {
            match heredoc(word).and_then(|_| files.next()) {
                Some(file) => written_files.push(file),
                None => sources.push(self.source(instruction, word, &options.origin)?),
            }
        }
        if files.next().is_some() {
            return Err(Wrong::at(line, "a file in the text has no place among the sources"));
        }
        if !written_files.is_empty() && options.origin != Origin::Context {
            return Err(
                Wrong::at(line, "files in the text come from no other stage").hint("leave out --from")
            );
        }
        for file in written_files {
            self.write(instruction, file, &target, is_folder, &options)?;
        }
        if sources.is_empty() {
            return Ok(());
        }
        let Options { origin, owner, mode } = options;
        let unpack = instruction.keyword == "ADD";
        self.step(instruction, Action::Copy { origin, sources, target, owner, mode, unpack })
    }

    fn source(&mut self, instruction: &Instruction, word: &str, origin: &Origin) -> Result<String, Wrong> {
        let line = instruction.line;
        let source = self.expand(line, word)?;
        let is_remote =
            source.contains("://") || ["git@", "github.com/"].iter().any(|start| source.starts_with(start));
        if is_remote && *origin == Origin::Context {
            return Err(Wrong::at(
                line,
                format!("{} is not in the folder that is copied from", quoted(&source)),
            )
            .hint("fetch it with RUN, where the network's rules hold"));
        }
        self.check(line, || check::source(&source))?;
        Ok(source)
    }

    fn write(
        &mut self,
        instruction: &Instruction,
        file: &Heredoc,
        target: &str,
        is_folder: bool,
        options: &Options,
    ) -> Result<(), Wrong> {
        let line = instruction.line;
        let mut content = file.chomped();
        if file.expands {
            content = self.expand_as(line, &content, Form { escape: '\\', quotes: false, most: MAX_TEXT })?;
        }
        let target = match is_folder {
            true if file.name.contains('/') || file.name == ".." || file.name == "." => {
                return Err(Wrong::at(line, format!("{} cannot be the name of a file", quoted(&file.name))));
            }
            true => format!("{}/{}", target.trim_end_matches('/'), file.name),
            false => target.to_owned(),
        };
        let (owner, mode) = (options.owner.clone(), options.mode);
        self.step(instruction, Action::Write { content: content.into_bytes(), target, owner, mode })
    }

    fn copy_options(&mut self, instruction: &Instruction) -> Result<Options, Wrong> {
        let line = instruction.line;
        let keyword = instruction.keyword.as_str();
        let mut options = Options { origin: Origin::Context, owner: None, mode: None };
        for (at, (flag, value)) in instruction.flags.iter().enumerate() {
            if instruction.flags[..at].iter().any(|(other, _)| other == flag) {
                return Err(Wrong::at(line, format!("--{} is there twice", quoted(flag))));
            }
            let value = match (flag.as_str(), value) {
                ("link", _) => continue,
                ("from" | "chown" | "chmod", Some(value)) if !value.is_empty() => value,
                ("from" | "chown" | "chmod", _) => {
                    return Err(Wrong::at(line, format!("--{flag} has no value")));
                }
                _ => return Err(Wrong::at(line, format!("{keyword} --{} is not supported", quoted(flag)))),
            };
            match flag.as_str() {
                "from" if keyword == "COPY" => options.origin = self.origin(line, value)?,
                "chown" => {
                    let owner = self.expand(line, value)?;
                    self.check(line, || check::owner(&owner))?;
                    options.owner = Some(owner);
                }
                "chmod" => {
                    let mode = self.expand(line, value)?;
                    options.mode = match check::mode(&mode) {
                        Err(_) if !self.scope().is_certain() => None,
                        checked => Some(self.refuse(line, checked)?),
                    };
                }
                _ => return Err(Wrong::at(line, format!("{keyword} --{} is not supported", quoted(flag)))),
            }
        }
        Ok(options)
    }

    /// An earlier stage by its name or number, or else an image.
    fn origin(&self, line: usize, name: &str) -> Result<Origin, Wrong> {
        let name = name.trim_matches(['"', '\'']);
        if name.contains('$') {
            return Err(Wrong::at(line, "--from takes no variables")
                .hint("write FROM with the variable AS a name, and copy from that name"));
        }
        let current = self.stages.len() - 1;
        let found = match name.parse::<usize>() {
            Ok(at) => Some(at),
            Err(_) => self.stage_named(name),
        };
        match found {
            Some(at) if at < current => Ok(Origin::Stage(at)),
            Some(_) => Err(Wrong::at(line, format!("{} is not an earlier stage", quoted(name)))
                .hint("stages copy from those before them; the first is 0")),
            None if name == "scratch" || name == "host" => {
                Err(Wrong::at(line, format!("nothing can be copied from {}", quoted(name)))
                    .hint("write FROM host AS a name, and copy from that name"))
            }
            None => {
                self.refuse(line, check::image(name))?;
                Ok(Origin::Image(name.to_owned()))
            }
        }
    }
}
