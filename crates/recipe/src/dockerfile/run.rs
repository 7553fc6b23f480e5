//! `RUN`, and what else is a command.

use super::lines::Instruction;
use super::list::list;
use super::reader::Reader;
use super::scope::{OVERHEAD, size};
use super::words::{self, Form};
use crate::model::Action;
use crate::wrong::{Wrong, quoted};

impl Reader<'_> {
    pub fn run(&mut self, instruction: &Instruction) -> Result<(), Wrong> {
        let line = instruction.line;
        for (flag, value) in &instruction.flags {
            self.run_option(line, flag, value.as_deref().unwrap_or_default())?;
        }
        let command = match instruction.heredocs.as_slice() {
            [] => self.command(instruction)?,
            [file] if words::split(&instruction.rest, self.escape).len() == 1 => {
                let script = file.chomped();
                if script.starts_with("#!") {
                    return Err(Wrong::at(line, "a script that names its own interpreter is not supported")
                        .hint("write the interpreter instead, as in RUN python3 <<EOF"));
                }
                self.in_shell(line, script)?
            }
            files => {
                // The shell finds the files behind the line, where it looks for them.
                let mut script = instruction.rest.clone();
                for file in files {
                    script.push('\n');
                    script.push_str(&file.content);
                    script.push_str(&file.name);
                }
                self.in_shell(line, script)?
            }
        };
        if command.first().is_none_or(String::is_empty) {
            return Err(Wrong::at(line, "RUN names no program"));
        }
        let args = self.scope().args_in_force();
        self.spend(line, size(args.iter().map(|(name, value)| (name, value))))?;
        self.step(instruction, Action::Run { command, args })
    }

    fn run_option(&mut self, line: usize, flag: &str, value: &str) -> Result<(), Wrong> {
        if flag != "mount" {
            return Err(Wrong::at(line, format!("RUN --{} is not supported", quoted(flag))));
        }
        let form = Form { escape: self.escape, quotes: true, most: super::MAX_EXPANSION };
        let value = words::expand(value, form, &|_| None, &|| true).map_err(|what| Wrong::at(line, what))?;
        let kind = value.split(',').find_map(|part| part.trim().strip_prefix("type=")).unwrap_or("bind");
        match kind {
            "cache" => {
                self.notes.push(format!(
                    "line {line}: the mount of a cache is left out; what the command puts there stays in the template"
                ));
                Ok(())
            }
            "bind" => Err(Wrong::at(line, "mounts of the type `bind` are not supported")
                .hint("COPY what the command needs before it")),
            "secret" | "ssh" => {
                Err(Wrong::at(line, format!("mounts of the type `{kind}` are not supported"))
                    .hint("a template holds no secrets; sandboxes get theirs when they are created"))
            }
            other => Err(Wrong::at(line, format!("mounts of the type {} are not supported", quoted(other)))),
        }
    }

    /// A command as a list, or as a line for the shell in force.
    pub fn command(&mut self, instruction: &Instruction) -> Result<Vec<String>, Wrong> {
        if let Some(command) = list(&instruction.rest) {
            return Ok(command);
        }
        let inner = instruction.rest.strip_prefix('[').map(str::trim_start);
        if inner.is_some_and(|inner| inner.starts_with(['"', '\''])) {
            self.notes.push(format!(
                "line {}: this is no list of texts in double quotes, so the shell gets it as it is",
                instruction.line
            ));
        }
        self.in_shell(instruction.line, instruction.rest.clone())
    }

    fn in_shell(&mut self, line: usize, script: String) -> Result<Vec<String>, Wrong> {
        let mut command = self.scope().shell.clone();
        command.push(script);
        self.spend(line, command.iter().map(|word| word.len() + OVERHEAD).sum())?;
        Ok(command)
    }
}
