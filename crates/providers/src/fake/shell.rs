//! The part of the shell's language that the model understands.

/// When a command runs, given how the one before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    Succeeded,
    Failed,
}

/// A piece of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    /// The value of a variable; `?` and `$` are variables too.
    Variable(String),
}

/// A word before its variables are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) parts: Vec<Part>,
    /// A quoted word stays even when it is empty.
    pub(super) quoted: bool,
}

/// Where a redirection leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Read(Word),
    Truncate(Word),
    Append(Word),
    /// Where this descriptor leads now.
    SameAs(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirection {
    pub(super) descriptor: u8,
    pub(super) target: Target,
}

/// One simple command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) condition: Condition,
    pub(super) words: Vec<Word>,
    pub(super) redirections: Vec<Redirection>,
}

/// Words with which a construct begins that the model does not have.
const RESERVED: [&str; 16] = [
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function",
    "{", "}", "!",
];

/// Reads a whole line, or says which part of it is not understood.
pub(super) fn parse(line: &str) -> Result<Vec<Statement>, String> {
    let mut parser = Parser { rest: line };
    let mut statements = Vec::new();
    let mut condition = Condition::Always;
    loop {
        let statement = parser.statement(condition)?;
        let empty = statement.words.is_empty() && statement.redirections.is_empty();
        if !empty {
            statements.push(statement);
        }
        condition = match parser.connector()? {
            None if empty && condition != Condition::Always => return Err("a command is missing".into()),
            None => return Ok(statements),
            Some(next) if empty && next != Condition::Always => return Err("a command is missing".into()),
            Some(next) => next,
        };
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = &self.rest[next.len_utf8()..];
        Some(next)
    }

    fn skip_blanks(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t']);
            if self.rest.starts_with('#') {
                self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
            }
            if !self.take("\\\n") {
                return;
            }
        }
    }

    fn connector(&mut self) -> Result<Option<Condition>, String> {
        let found = [
            ("&&", Condition::Succeeded),
            ("||", Condition::Failed),
            (";", Condition::Always),
            ("\n", Condition::Always),
        ];
        if let Some((_, condition)) = found.into_iter().find(|(text, _)| self.take(text)) {
            return Ok(Some(condition));
        }
        match self.peek() {
            None => Ok(None),
            Some(other) => Err(format!("`{other}` is not understood here")),
        }
    }

    fn statement(&mut self, condition: Condition) -> Result<Statement, String> {
        let mut statement = Statement { condition, words: Vec::new(), redirections: Vec::new() };
        loop {
            self.skip_blanks();
            if let Some(redirection) = self.redirection()? {
                statement.redirections.push(redirection);
                continue;
            }
            match self.peek() {
                None | Some(';' | '&' | '|' | '\n' | '(' | ')') => return Ok(statement),
                Some(_) => {
                    let word = self.word()?;
                    if let [Part::Text(text)] = word.parts.as_slice()
                        && statement.words.is_empty()
                        && !word.quoted
                        && RESERVED.contains(&text.as_str())
                    {
                        return Err(format!("`{text}` is not understood"));
                    }
                    statement.words.push(word);
                }
            }
        }
    }

    fn redirection(&mut self) -> Result<Option<Redirection>, String> {
        type Form = (&'static str, u8, fn(Word) -> Target);
        const FORMS: [Form; 7] = [
            ("2>>", 2, Target::Append),
            ("1>>", 1, Target::Append),
            (">>", 1, Target::Append),
            ("2>", 2, Target::Truncate),
            ("1>", 1, Target::Truncate),
            (">", 1, Target::Truncate),
            ("<", 0, Target::Read),
        ];
        for (text, descriptor, target) in FORMS {
            if self.take(text) {
                if self.take("&1") {
                    return Ok(Some(Redirection { descriptor, target: Target::SameAs(1) }));
                }
                if self.take("&2") {
                    return Ok(Some(Redirection { descriptor, target: Target::SameAs(2) }));
                }
                self.skip_blanks();
                let word = self.word()?;
                if word.parts.is_empty() {
                    return Err(format!("a file is missing after `{text}`"));
                }
                return Ok(Some(Redirection { descriptor, target: target(word) }));
            }
        }
        Ok(None)
    }

    fn word(&mut self) -> Result<Word, String> {
        let mut word = Word::default();
        loop {
            match self.peek() {
                None | Some(' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')') => return Ok(word),
                Some('\'') => {
                    self.bump();
                    let end = self.rest.find('\'').ok_or("a quote is not closed")?;
                    word.push(&self.rest[..end]);
                    word.quoted = true;
                    self.rest = &self.rest[end + 1..];
                }
                Some('"') => {
                    self.bump();
                    word.quoted = true;
                    self.double_quoted(&mut word)?;
                }
                Some('\\') => {
                    self.bump();
                    word.push(self.bump().map(String::from).unwrap_or_default().as_str());
                    word.quoted = true;
                }
                Some('$') => self.variable(&mut word)?,
                Some(other @ ('`' | '*' | '?' | '[')) => return Err(format!("`{other}` is not understood")),
                Some(other) => {
                    self.bump();
                    word.push(other.encode_utf8(&mut [0; 4]));
                }
            }
        }
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), String> {
        loop {
            match self.peek().ok_or("a quote is not closed")? {
                '"' => {
                    self.bump();
                    return Ok(());
                }
                '$' => self.variable(word)?,
                '`' => return Err("`` ` `` is not understood".into()),
                '\\' => {
                    self.bump();
                    match self.bump().ok_or("a quote is not closed")? {
                        escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped.encode_utf8(&mut [0; 4])),
                        '\n' => {}
                        other => word.push(&format!("\\{other}")),
                    }
                }
                other => {
                    self.bump();
                    word.push(other.encode_utf8(&mut [0; 4]));
                }
            }
        }
    }

    fn variable(&mut self, word: &mut Word) -> Result<(), String> {
        self.bump();
        if self.rest.starts_with('(') {
            return Err("`$(` is not understood".into());
        }
        let name = if self.take("{") {
            let end = self.rest.find('}').ok_or("`${` is not closed")?;
            let name = &self.rest[..end];
            if !is_name(name) {
                return Err(format!("`${{{name}}}` is not understood"));
            }
            self.rest = &self.rest[end + 1..];
            name
        } else if let Some(special @ ('?' | '$')) = self.peek() {
            let (name, rest) = self.rest.split_at(special.len_utf8());
            self.rest = rest;
            name
        } else {
            let end =
                self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
            let (name, rest) = self.rest.split_at(end);
            if name.is_empty() {
                word.push("$");
                return Ok(());
            }
            if !is_name(name) {
                return Err(format!("`${name}` is not understood"));
            }
            self.rest = rest;
            name
        };
        word.parts.push(Part::Variable(name.to_owned()));
        Ok(())
    }
}

impl Word {
    fn push(&mut self, text: &str) {
        match self.parts.last_mut() {
            Some(Part::Text(last)) => last.push_str(text),
            _ => self.parts.push(Part::Text(text.to_owned())),
        }
    }
}

/// Whether a variable can have this name.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_refused_whole() {
        for line in [
            "echo a | cat",
            "sleep 1 &",
            "(echo)",
            "echo $(date)",
            "echo `date`",
            "ls *",
            "if true; then echo; fi",
            "while :; do :; done",
            "echo 'open",
            "echo \"open",
            "echo >",
            "&& echo",
            "echo &&",
            "echo ${A:-b}",
            "echo $1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn words_quotes_and_connectors() {
        let statements =
            parse("A=1 # note\nprintf '%s' \"$A b\" 2>&1 >> \"out file\" && false || echo x;").unwrap();
        let conditions: Vec<_> = statements.iter().map(|s| s.condition).collect();
        use Condition::{Always, Failed, Succeeded};
        assert_eq!(conditions, [Always, Always, Succeeded, Failed]);
        assert_eq!(statements[1].words[2].parts, [Part::Variable("A".into()), Part::Text(" b".into())]);
        assert_eq!(statements[1].redirections[0].target, Target::SameAs(1));
        assert!(matches!(statements[1].redirections[1].target, Target::Append(_)));
    }
}
