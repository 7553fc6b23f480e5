//! The exec form: a JSON list of texts, read without recursion.

/// The items, if the text is a JSON list of texts and nothing else.
pub(super) fn list(text: &str) -> Option<Vec<String>> {
    let mut rest = after_space(text).strip_prefix('[')?;
    let mut items = Vec::new();
    if let Some(end) = after_space(rest).strip_prefix(']') {
        return after_space(end).is_empty().then_some(items);
    }
    loop {
        let (item, after) = string(after_space(rest).strip_prefix('"')?)?;
        items.push(item);
        let after = after_space(after);
        if let Some(more) = after.strip_prefix(',') {
            rest = more;
        } else {
            return after_space(after.strip_prefix(']')?).is_empty().then_some(items);
        }
    }
}

fn after_space(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\r', '\n'])
}

/// A text up to its closing quote, and what comes after. No text holds a zero byte, as no argument can.
fn string(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(match characters.next()? {
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => {
                    let (character, after) = unicode(characters.as_str())?;
                    characters = after.chars();
                    character
                }
                plain @ ('"' | '\\' | '/') => plain,
                _ => return None,
            }),
            control if u32::from(control) < 0x20 => return None,
            plain => value.push(plain),
        }
    }
}

/// The character of four digits, or of two such halves.
fn unicode(text: &str) -> Option<(char, &str)> {
    let (high, rest) = four(text)?;
    let (code, rest) = match high {
        0xd800..0xdc00 => {
            let (low, rest) = four(rest.strip_prefix("\\u")?)?;
            if !(0xdc00..0xe000).contains(&low) {
                return None;
            }
            (0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), rest)
        }
        plain => (plain, rest),
    };
    let character = char::from_u32(code).filter(|character| *character != '\0')?;
    Some((character, rest))
}

fn four(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_at_checked(4)?;
    let valid = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| u32::from_str_radix(digits, 16).ok()).flatten().map(|code| (code, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_texts() {
        let lists: [(&str, &[&str]); 6] = [
            ("[]", &[]),
            (" [ ] ", &[]),
            (r#"["a"]"#, &["a"]),
            (r#"["a", "b c" ,"" ]"#, &["a", "b c", ""]),
            (r#"["\"\\\/\n\t\r\b\f"]"#, &["\"\\/\n\t\r\u{8}\u{c}"]),
            (r#"["\u00e9\uD83D\uDE00é"]"#, &["é😀é"]),
        ];
        for (text, items) in lists {
            assert_eq!(list(text).unwrap(), items, "{text}");
        }
        for text in [
            "",
            "[",
            "]",
            "[,]",
            "['a']",
            "[a]",
            "[1]",
            r#"["a",]"#,
            r#"["a" "b"]"#,
            r#"["a"] x"#,
            r#"["a"#,
            r#"["a\"]"#,
            r#"["\u00"]"#,
            r#"["\ud800"]"#,
            r#"["\ud800\u0041"]"#,
            r#"["\u0000"]"#,
            r#"["\x"]"#,
            "[\"a\nb\"]",
            r#"[["a"]]"#,
            "[ -f x ] && echo",
            r#"["\u+041"]"#,
            r#"["\u00é"]"#,
        ] {
            assert_eq!(list(text), None, "{text}");
        }
    }
}
