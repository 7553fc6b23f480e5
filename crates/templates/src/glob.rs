//! Patterns of file names, as recipes and ignore files write them.

/// Whether a path of plain components fits a pattern: `*` and `?` stay within a component, `**` does not, `[…]` is one of several.
pub(crate) fn fits(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    fits_parts(&pattern, &path)
}

/// By a table: what hostile patterns would cost otherwise grows without bound.
fn fits_parts(pattern: &[&str], path: &[&str]) -> bool {
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    for part in pattern {
        let mut next = vec![false; path.len() + 1];
        if *part == "**" {
            let mut any = false;
            for (at, slot) in next.iter_mut().enumerate() {
                any |= reached[at];
                *slot = any;
            }
        } else {
            for (at, name) in path.iter().enumerate() {
                next[at + 1] = reached[at] && fits_component(part, name);
            }
        }
        reached = next;
    }
    reached[path.len()]
}

/// Whether something is a pattern and not simply a name.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

fn fits_component(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    let mut back = None;
    while n < name.len() {
        let taken = match pattern.get(p) {
            Some('*') => {
                back = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class(&pattern[p..], name[n]),
            Some('\\') if pattern.get(p + 1) == Some(&name[n]) => Some(2),
            Some(one) if *one == name[n] => Some(1),
            _ => None,
        };
        match (taken, back) {
            (Some(length), _) => {
                p += length;
                n += 1;
            }
            (None, Some((star, from))) => {
                back = Some((star, from + 1));
                p = star + 1;
                n = from + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|one| *one == '*')
}

/// How long a class is, if the character is in it.
fn class(pattern: &[char], one: char) -> Option<usize> {
    let end = pattern.iter().skip(2).position(|c| *c == ']')? + 2;
    let (negated, inner) = match pattern[1] {
        '!' | '^' => (true, &pattern[2..end]),
        _ => (false, &pattern[1..end]),
    };
    let mut found = false;
    let mut at = 0;
    while at < inner.len() {
        if at + 2 < inner.len() && inner[at + 1] == '-' {
            found |= inner[at] <= one && one <= inner[at + 2];
            at += 3;
        } else {
            found |= inner[at] == one;
            at += 1;
        }
    }
    (found != negated).then_some(end + 1)
}

/// What an ignore file leaves out.
#[derive(Debug, Default)]
pub(crate) struct Ignore(Vec<(bool, String)>);

impl Ignore {
    /// Each line a pattern; one with `!` in front takes back what those before it left out.
    pub(crate) fn read(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rule = |line: &str| match line.strip_prefix('!') {
            Some(line) => (false, line.trim().to_owned()),
            None => (true, line.to_owned()),
        };
        Self(lines.map(rule).collect())
    }

    /// Whether a file, or a directory above it, is left out.
    pub(crate) fn leaves_out(&self, path: &str) -> bool {
        let mut out = false;
        for (leaves, pattern) in &self.0 {
            let is_meant = prefixes(path).any(|prefix| fits(pattern, prefix));
            if is_meant {
                out = *leaves;
            }
        }
        out
    }

    /// Whether something below a directory that is left out may be taken back.
    pub(crate) fn takes_back(&self) -> bool {
        self.0.iter().any(|(leaves, _)| !leaves)
    }
}

/// A path, and each directory above it.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).chain([path])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_what_they_should() {
        let good = [
            ("package*.json", "package-lock.json"),
            ("*.py", "a.py"),
            ("src/*.py", "src/a.py"),
            ("**/*.pyc", "a/b/c.pyc"),
            ("**/*.pyc", "c.pyc"),
            ("a/**", "a/b/c"),
            ("file[0-9].txt", "file7.txt"),
            ("file[!a].txt", "fileb.txt"),
            ("./x", "x"),
            ("a?c", "abc"),
        ];
        for (pattern, path) in good {
            assert!(fits(pattern, path), "{pattern} {path}");
        }
        let bad = [
            ("*.py", "src/a.py"),
            ("src/*.py", "src/b/a.py"),
            ("file[!a].txt", "filea.txt"),
            ("a?c", "ac"),
            ("", "a"),
        ];
        for (pattern, path) in bad {
            assert!(!fits(pattern, path), "{pattern} {path}");
        }
        // It does not take forever.
        assert!(!fits(&format!("{}b", "*a".repeat(50)), &"a".repeat(2000)));
    }

    #[test]
    fn ignored_files_are_left_out_unless_they_are_taken_back() {
        let ignore = Ignore::read("# none\nnode_modules\n**/*.log\n!keep.log\n");
        for out in ["node_modules", "node_modules/a/b.js", "x/y.log"] {
            assert!(ignore.leaves_out(out), "{out}");
        }
        for kept in ["keep.log", "src/a.js"] {
            assert!(!ignore.leaves_out(kept), "{kept}");
        }
    }
}
