//! Words: where they end, what quotes and variables in them become.

use crate::wrong::quoted;

/// How deep quotes and defaults may stand in each other.
const MAX_DEPTH: usize = 16;

/// How a text is expanded.
#[derive(Clone, Copy)]
pub(super) struct Form {
    /// What takes the meaning of the next character away.
    pub escape: char,
    /// Whether quotes group and vanish, as in a word, or stay, as in a file.
    pub quotes: bool,
    /// The most bytes that may come of it.
    pub most: usize,
}

/// The first word of a text as it is written, quotes and all, and what comes after the space behind it.
pub(super) fn first(text: &str, escape: char) -> (&str, &str) {
    let text = text.trim_start();
    let mut quote = None;
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match quote {
            None if character.is_whitespace() => return (&text[..at], text[at..].trim_start()),
            None if character == '"' || character == '\'' => quote = Some(character),
            Some(open) if open == character => quote = None,
            // Nothing is escaped between single quotes.
            Some('\'') => {}
            _ if character == escape => {
                characters.next();
            }
            _ => {}
        }
    }
    (text, "")
}

/// All words of a text as they are written.
pub(super) fn split(text: &str, escape: char) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        let (word, after) = first(rest, escape);
        if word.is_empty() {
            return words;
        }
        words.push(word);
        rest = after;
    }
}

/// What is open while a text is expanded.
enum Open {
    Quote,
    /// `${name:-`, `${name+` and their like: the word that follows decides with the variable.
    Word {
        name: String,
        operator: char,
        or_empty: bool,
    },
}

/// Expands a text: variables become their values, and quotes and escapes have done their work.
///
/// A variable that `lookup` does not know is empty, unless the text says otherwise.
pub(super) fn expand<'v>(
    text: &str,
    form: Form,
    lookup: &dyn Fn(&str) -> Option<&'v str>,
    certain: &dyn Fn() -> bool,
) -> Result<String, String> {
    let mut open: Vec<(Open, String)> = Vec::new();
    let mut value = String::new();
    let mut made = 0_usize;
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        let inside = open.last().map(|(kind, _)| kind);
        let in_quote = matches!(inside, Some(Open::Quote));
        let mut one = [0; 4];
        let mut piece: &str = character.encode_utf8(&mut one);
        match character {
            '}' if matches!(inside, Some(Open::Word { .. })) => {
                let Some((Open::Word { name, operator, or_empty }, word)) = open.pop() else { continue };
                let found = lookup(&name).filter(|found| !(or_empty && found.is_empty()));
                let result = match (operator, found) {
                    ('-', Some(found)) => {
                        made += found.len();
                        found
                    }
                    ('+', None) => "",
                    ('?', None) if certain() => {
                        let why = if word.is_empty() { "is not set" } else { &word };
                        return Err(format!("${{{}}}: {}", short(&name), quoted(why)));
                    }
                    ('?', found) => {
                        made += found.map_or(0, str::len);
                        found.unwrap_or_default()
                    }
                    _ => &word,
                };
                let below = open.last_mut().map_or(&mut value, |(_, below)| below);
                below.push_str(result);
                if made > form.most {
                    return Err(too_long(form));
                }
                continue;
            }
            '"' if in_quote => {
                let Some((_, inner)) = open.pop() else { continue };
                open.last_mut().map_or(&mut value, |(_, below)| below).push_str(&inner);
                continue;
            }
            '"' if form.quotes => {
                push(&mut open, Open::Quote)?;
                continue;
            }
            '\'' if form.quotes && !in_quote => {
                let (inner, after) = rest.split_once('\'').ok_or("a single quote is not closed")?;
                piece = inner;
                rest = after;
            }
            '$' => {
                let (variable, after) = variable(rest)?;
                rest = after;
                match variable {
                    Variable::None => {}
                    Variable::Plain(name) => piece = lookup(name).unwrap_or_default(),
                    Variable::Special => piece = "",
                    Variable::Word { name, operator, or_empty } => {
                        push(&mut open, Open::Word { name: name.to_owned(), operator, or_empty })?;
                        continue;
                    }
                }
            }
            _ if character == form.escape => {
                let next = rest.chars().next();
                let drops =
                    !in_quote || next.is_some_and(|next| next == '"' || next == '$' || next == form.escape);
                match next {
                    Some(next) if drops => {
                        piece = &rest[..next.len_utf8()];
                        rest = &rest[next.len_utf8()..];
                    }
                    None => piece = "",
                    Some(_) => {}
                }
            }
            _ => {}
        }
        made += piece.len();
        if made > form.most {
            return Err(too_long(form));
        }
        open.last_mut().map_or(&mut value, |(_, below)| below).push_str(piece);
    }
    match open.last() {
        None => Ok(value),
        Some((Open::Quote, _)) => Err("a double quote is not closed".into()),
        Some((Open::Word { name, .. }, _)) => Err(not_closed(name)),
    }
}

fn too_long(form: Form) -> String {
    format!("more than {} bytes come of this", form.most)
}

fn not_closed(name: &str) -> String {
    format!("${{{} is not closed with a brace", short(name))
}

/// A name, which is ASCII, as it may stand in a message.
fn short(name: &str) -> &str {
    name.get(..80).unwrap_or(name)
}

fn push(open: &mut Vec<(Open, String)>, kind: Open) -> Result<(), String> {
    if open.len() >= MAX_DEPTH {
        return Err(format!("quotes and variables stand more than {MAX_DEPTH} deep in each other"));
    }
    open.push((kind, String::new()));
    Ok(())
}

/// What stands behind a dollar.
enum Variable<'t> {
    /// Nothing that a shell would know; the dollar is one.
    None,
    Plain(&'t str),
    /// `$1`, `$?` and their like, which nothing sets here.
    Special,
    Word {
        name: &'t str,
        operator: char,
        or_empty: bool,
    },
}

fn variable(text: &str) -> Result<(Variable<'_>, &str), String> {
    let Some(braced) = text.strip_prefix('{') else {
        let name = name(text);
        let after = &text[name.len()..];
        return Ok(match name.chars().next() {
            None => (Variable::None, text),
            Some(first) if first.is_ascii_alphabetic() || first == '_' => (Variable::Plain(name), after),
            Some(_) => (Variable::Special, after),
        });
    };
    let name = name(braced);
    if name.is_empty() {
        return Err("${ has no name of a variable behind it".into());
    }
    let after = &braced[name.len()..];
    let mut characters = after.chars();
    let mut operator = characters.next();
    if operator == Some('}') {
        return Ok((Variable::Plain(name), characters.as_str()));
    }
    let or_empty = operator == Some(':');
    if or_empty {
        operator = characters.next();
    }
    match operator {
        Some(operator @ ('-' | '+' | '?')) => {
            Ok((Variable::Word { name, operator, or_empty }, characters.as_str()))
        }
        None => Err(not_closed(name)),
        Some(_) => Err(format!("${{{} can be followed by }}, :-, :+, :?, -, + and ? only", short(name))),
    }
}

/// The name that a text begins with: a word, a number or one sign that shells know.
fn name(text: &str) -> &str {
    let end = |fits: fn(&u8) -> bool| text.bytes().take_while(fits).count();
    let length = match text.bytes().next() {
        Some(b'0'..=b'9') => end(u8::is_ascii_digit),
        Some(b'@' | b'*' | b'#' | b'?' | b'-' | b'$' | b'!') => 1,
        Some(first) if first.is_ascii_alphabetic() || first == b'_' => {
            end(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        }
        _ => 0,
    };
    &text[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: Form = Form { escape: '\\', quotes: true, most: 1000 };

    fn lookup(name: &str) -> Option<&'static str> {
        match name {
            "X" => Some("value"),
            "Y" => Some("two words"),
            "EMPTY" => Some(""),
            "DOLLAR" => Some("$X"),
            _ => None,
        }
    }

    #[test]
    fn words_become_their_values() {
        for (text, becomes) in [
            ("", ""),
            ("plain", "plain"),
            ("$X", "value"),
            ("${X}", "value"),
            ("a${X}b", "avalueb"),
            ("$X/$X", "value/value"),
            ("$Xa", ""),
            ("$X-a", "value-a"),
            ("$NO", ""),
            ("${NO}", ""),
            ("${NO:-d}", "d"),
            ("${NO-d}", "d"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY-d}", ""),
            ("${X:-d}", "value"),
            ("${X:+a}", "a"),
            ("${X+a}", "a"),
            ("${EMPTY:+a}", ""),
            ("${EMPTY+a}", "a"),
            ("${NO:+a}", ""),
            ("${X:?no}", "value"),
            ("${EMPTY?no}", ""),
            ("${NO:-$X}", "value"),
            ("${NO:-${ALSO:-${X}}}", "value"),
            ("${NO:-\"a }b\"}", "a }b"),
            ("${NO:-'}'}", "}"),
            ("${NO:-\\}}", "}"),
            ("${X:+${NO:-x}y}", "xy"),
            ("${NO:-}", ""),
            ("\\$X", "$X"),
            ("\\${X}", "${X}"),
            ("'$X'", "$X"),
            ("\"$X\"", "value"),
            ("\"\\$X\"", "$X"),
            ("\"\\n\"", "\\n"),
            ("\\n", "n"),
            ("\"a\\\"b\"", "a\"b"),
            ("\"a\\\\b\"", "a\\b"),
            ("'a\\b'", "a\\b"),
            ("\"it's\"", "it's"),
            ("'a'\"b\"c", "abc"),
            ("$DOLLAR", "$X"),
            ("$", "$"),
            ("a$", "a$"),
            ("$ a", "$ a"),
            ("$/", "$/"),
            ("$1", ""),
            ("$12a", "a"),
            ("$$", ""),
            ("a\\", "a"),
            ("}", "}"),
            ("é$X", "évalue"),
            ("$é", "$é"),
            ("$Y", "two words"),
        ] {
            assert_eq!(expand(text, WORD, &lookup, &|| true), Ok(becomes.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_not_closed_is_no_word() {
        for (text, says) in [
            ("'a", "single quote"),
            ("\"a", "double quote"),
            ("\"a'", "double quote"),
            ("${", "no name"),
            ("${}", "no name"),
            ("${X", "brace"),
            ("${X:-a", "brace"),
            ("${X:", "brace"),
            ("${X:-\"a}", "double quote"),
            ("${X/a/b}", "followed by"),
            ("${X#a}", "followed by"),
            ("${X%a}", "followed by"),
            ("${X:=a}", "followed by"),
            ("${X a}", "followed by"),
            ("${NO:?say so}", "say so"),
            ("${NO?}", "is not set"),
            ("${EMPTY:?}", "is not set"),
        ] {
            let error = expand(text, WORD, &lookup, &|| true).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        assert_eq!(expand("${NO:?say so}", WORD, &lookup, &|| false), Ok(String::new()));
        let deep = "${NO:-".repeat(100);
        assert!(expand(&deep, WORD, &lookup, &|| true).unwrap_err().contains("deep"));
        let long = "$X".repeat(201);
        assert!(expand(&long, WORD, &lookup, &|| true).unwrap_err().contains("more than 1000"));
        let unused = "${X:+}".repeat(100_000);
        assert_eq!(expand(&unused, WORD, &lookup, &|| true), Ok(String::new()));
    }

    #[test]
    fn files_keep_their_quotes() {
        let file = Form { quotes: false, ..WORD };
        for (text, becomes) in [
            ("\"$X\" 'it''s $X'\n", "\"value\" 'it''s value'\n"),
            ("\\$X \\\\", "$X \\"),
            ("${NO:-\"a\"}", "\"a\""),
            ("'", "'"),
        ] {
            assert_eq!(expand(text, file, &lookup, &|| true), Ok(becomes.to_owned()), "{text}");
        }
    }

    #[test]
    fn words_end_at_space_outside_quotes() {
        for (text, words) in [
            ("", vec![]),
            ("  ", vec![]),
            ("a b", vec!["a", "b"]),
            (" a=\"b c\"  d='e f' ", vec!["a=\"b c\"", "d='e f'"]),
            ("a\\ b c", vec!["a\\ b", "c"]),
            ("\"a\\\" b\" c", vec!["\"a\\\" b\"", "c"]),
            ("'a\\' b", vec!["'a\\'", "b"]),
            ("\"a b", vec!["\"a b"]),
            ("a\\", vec!["a\\"]),
        ] {
            assert_eq!(split(text, '\\'), words, "{text}");
        }
    }
}
