//! What a recipe says: stages, each a base and steps on top of it.

use std::collections::BTreeSet;

use serde::Serialize;

/// What a template is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recipe {
    /// The stages, at least one, each knowing only those before it. The last one is the template.
    pub stages: Vec<Stage>,
    /// What was read and means nothing here, for people to know.
    pub notes: Vec<String>,
}

impl Recipe {
    /// The stages that the template is made from, itself among them. The others need not be built.
    pub fn needed(&self) -> BTreeSet<usize> {
        let mut needed = BTreeSet::new();
        let mut open: Vec<usize> = self.stages.len().checked_sub(1).into_iter().collect();
        while let Some(at) = open.pop() {
            let Some(stage) = self.stages.get(at) else { continue };
            if !needed.insert(at) {
                continue;
            }
            if let Base::Stage(below) = stage.base {
                open.push(below);
            }
            for step in &stage.steps {
                if let Action::Copy { origin: Origin::Stage(other), .. } = step.action {
                    open.push(other);
                }
            }
        }
        needed
    }
}

/// A base and what is done on top of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Its name in lower case, if it has one.
    pub name: Option<String>,
    /// What it begins as.
    pub base: Base,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// Where it begins in the text, from 1.
    pub line: usize,
    /// Variables that were read although nothing in the text sets them, while what the base sets was not known. They
    /// were taken as unset (`PATH` as the usual one), and what came of them was not checked. Unless this is empty, look
    /// at the base and read the text again with [`dockerfile_on`](crate::dockerfile_on) before building.
    pub wants: BTreeSet<String>,
}

/// What a stage begins as.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Base {
    /// What sandboxes see of the host when they have no template.
    Host,
    /// Nothing at all.
    Scratch,
    /// A fresh Debian of this suite, or of the usual one.
    Debian(Option<String>),
    /// A template or an image, by its name as written.
    Image(String),
    /// What an earlier stage has become.
    Stage(usize),
}

/// One thing to do, and where it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The line in the text, from 1.
    pub line: usize,
    /// One short line that shows the step to whoever waits for it.
    pub text: String,
    /// What to do.
    pub action: Action,
}

/// What a step does. Those that set something (`Env`, `WorkingDirectory`, `User`) hold for the steps after them and for
/// what runs from the template; none is known outside its stage but in stages based on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Action {
    /// Runs a program.
    Run {
        /// The program and its arguments; a shell is among them where one is asked for.
        command: Vec<String>,
        /// Build arguments in force, by name. They are variables of this step alone, below those of `Env` and of the
        /// base, and make the step another one where they differ.
        args: Vec<(String, String)>,
    },
    /// Copies files and folders.
    Copy {
        /// Where from.
        origin: Origin,
        /// What, relative to the root of the origin even with a slash in front. May hold patterns. A folder stands for
        /// what is in it. None leaves the origin by its own words; links may still try to.
        sources: Vec<String>,
        /// Where to: a folder if it ends with a slash, and relative to the working directory in force without one in
        /// front.
        target: String,
        /// `user` or `user:group`, by name or number. Without one, root.
        owner: Option<String>,
        /// The mode of whatever is copied, files and folders alike. Without one, as it was.
        mode: Option<u32>,
        /// Whether a source that proves to be a tar archive is unpacked into the target instead.
        unpack: bool,
    },
    /// Writes a file.
    Write {
        /// What is in it.
        content: Vec<u8>,
        /// Where, relative to the working directory in force without a slash in front.
        target: String,
        /// `user` or `user:group`, by name or number. Without one, root.
        owner: Option<String>,
        /// Its mode. Without one, 644.
        mode: Option<u32>,
    },
    /// Installs packages.
    Packages {
        /// With what.
        tool: Tool,
        /// Names with versions as the tool reads them. None is an option, a path or an address.
        packages: Vec<String>,
    },
    /// Sets variables.
    Env(Vec<(String, String)>),
    /// Where commands run. Relative only if the base's own is not known; then it continues the one in force.
    WorkingDirectory(String),
    /// Who runs commands: `user` or `user:group`, by name or number.
    User(String),
    /// The shell that later lines were read with. It is in their commands already, and stays for what is based on this.
    Shell(Vec<String>),
    /// What the template runs when nothing else is asked for. Empty takes the base's away.
    Command(Vec<String>),
    /// What `Command` is given to as arguments. Takes the base's `Command` away unless this stage has its own.
    Entrypoint(Vec<String>),
    /// Names and values that only people and their tools read.
    Label(Vec<(String, String)>),
    /// Python modules that are imported before the template is frozen.
    Preload(Vec<String>),
    /// What runs in the template before it is frozen, and is there in each sandbox from the beginning.
    Start {
        /// The program and its arguments.
        command: Vec<String>,
        /// What ends well once the program is ready.
        ready: Option<Vec<String>>,
    },
}

/// Where copies come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Origin {
    /// The folder that was given along with the text.
    Context,
    /// What an earlier stage has become.
    Stage(usize),
    /// A template or an image, by its name as written.
    Image(String),
}

/// What installs packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Tool {
    /// Debian's.
    Apt,
    /// Python's.
    Pip,
    /// Node's.
    Npm,
}

impl Tool {
    /// Its name as people write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Pip => "pip",
            Self::Npm => "npm",
        }
    }
}

/// A text as one short line.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 120;
    let mut line = String::new();
    let mut count = 0;
    for word in text.split_whitespace() {
        if count > 0 {
            line.push(' ');
            count += 1;
        }
        for character in word.chars() {
            if count >= MOST {
                line.push('…');
                return line;
            }
            line.push(if character.is_control() { '\u{fffd}' } else { character });
            count += 1;
        }
    }
    line
}
