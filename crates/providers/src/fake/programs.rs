//! The programs that the model has of its own.

use std::sync::Arc;
use std::time::Duration;

use super::{Call, Ending, Program, Programs, Tree};

type Function = fn(&mut Call<'_>) -> Ending;

pub(super) fn all() -> Programs {
    let list: [(&str, Function); 11] = [
        ("cat", cat),
        ("echo", echo),
        ("env", env),
        ("false", |_| Ending::Exit(1)),
        ("ls", ls),
        ("mkdir", mkdir),
        ("printf", printf),
        ("pwd", pwd),
        ("rm", rm),
        ("sleep", sleep),
        ("true", |_| Ending::Exit(0)),
    ];
    list.into_iter().map(|(name, program)| (name.to_owned(), Arc::new(program) as Program)).collect()
}

/// Says what is wrong, and fails.
fn fail(call: &mut Call<'_>, problem: impl std::fmt::Display) -> Ending {
    call.stderr.extend_from_slice(format!("{}: {problem}\n", call.argv[0]).as_bytes());
    Ending::Exit(1)
}

/// The arguments that are not options, as absolute paths; unknown options are an error.
fn paths(call: &Call<'_>, options: &[&str]) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    for argument in &call.argv[1..] {
        if argument.starts_with('-') && argument != "-" {
            if !options.contains(&argument.as_str()) {
                return Err(format!("the model has no option `{argument}`"));
            }
        } else {
            paths.push(Tree::absolute(call.cwd, argument));
        }
    }
    Ok(paths)
}

fn cat(call: &mut Call<'_>) -> Ending {
    let paths = match paths(call, &[]) {
        Ok(paths) => paths,
        Err(problem) => return fail(call, problem),
    };
    if paths.is_empty() {
        call.stdout.extend_from_slice(call.stdin);
    }
    for path in paths {
        match call.files.read(&path) {
            Ok(content) => call.stdout.extend_from_slice(content),
            Err(error) => return fail(call, error),
        }
    }
    Ending::Exit(0)
}

fn echo(call: &mut Call<'_>) -> Ending {
    call.stdout.extend_from_slice(call.argv[1..].join(" ").as_bytes());
    call.stdout.push(b'\n');
    Ending::Exit(0)
}

fn env(call: &mut Call<'_>) -> Ending {
    if call.argv.len() > 1 {
        return fail(call, "the model's takes no arguments");
    }
    for (name, value) in call.env {
        call.stdout.extend_from_slice(format!("{name}={value}\n").as_bytes());
    }
    Ending::Exit(0)
}

fn ls(call: &mut Call<'_>) -> Ending {
    let mut paths = match paths(call, &[]) {
        Ok(paths) => paths,
        Err(problem) => return fail(call, problem),
    };
    if paths.is_empty() {
        paths.push(call.cwd.to_owned());
    }
    for path in paths {
        if !call.files.is_directory(&path) {
            return fail(call, format!("`{path}` is not a directory"));
        }
        for name in call.files.names(&path) {
            call.stdout.extend_from_slice(format!("{name}\n").as_bytes());
        }
    }
    Ending::Exit(0)
}

fn mkdir(call: &mut Call<'_>) -> Ending {
    let done = paths(call, &["-p"]).and_then(|paths| {
        paths.iter().try_for_each(|path| call.files.make_directories(path).map_err(|error| error.to_string()))
    });
    done.map_or_else(|problem| fail(call, problem), |()| Ending::Exit(0))
}

fn rm(call: &mut Call<'_>) -> Ending {
    let force = call.argv.iter().any(|argument| argument.starts_with('-') && argument.contains('f'));
    let removed = paths(call, &["-r", "-f", "-rf"]).and_then(|paths| {
        paths.iter().try_for_each(|path| match call.files.remove(path) {
            Err(error) if !force => Err(error.to_string()),
            _ => Ok(()),
        })
    });
    removed.map_or_else(|problem| fail(call, problem), |()| Ending::Exit(0))
}

fn pwd(call: &mut Call<'_>) -> Ending {
    call.stdout.extend_from_slice(call.cwd.as_bytes());
    call.stdout.push(b'\n');
    Ending::Exit(0)
}

fn sleep(call: &mut Call<'_>) -> Ending {
    let seconds = call.argv.get(1).and_then(|text| text.parse::<f64>().ok());
    match seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(span)) => Ending::After(span, 0),
        _ => fail(call, "give a number of seconds"),
    }
}

/// `%s`, `%%`, and the escapes of a format; the format is used again while arguments are left.
fn printf(call: &mut Call<'_>) -> Ending {
    let Some(format) = call.argv.get(1) else { return fail(call, "a format is missing") };
    let mut arguments = call.argv[2..].iter();
    loop {
        let before = arguments.len();
        let mut rest = format.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match (byte, rest.first()) {
                (b'%', Some(b's')) => {
                    rest = &rest[1..];
                    call.stdout.extend_from_slice(arguments.next().map_or(b"", |text| text.as_bytes()));
                }
                (b'%', Some(b'%')) => {
                    rest = &rest[1..];
                    call.stdout.push(b'%');
                }
                (b'%', _) => return fail(call, "the model knows only %s and %%"),
                (b'\\', Some(_)) => rest = escape(rest, &mut call.stdout),
                (byte, _) => call.stdout.push(byte),
            }
        }
        if arguments.len() == 0 || arguments.len() == before {
            return Ending::Exit(0);
        }
    }
}

/// Writes what stands after a backslash; answers what follows it.
fn escape<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let digits = text.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
    if digits > 0 {
        out.push(text[..digits].iter().fold(0_u8, |value, digit| value.wrapping_mul(8) + (digit - b'0')));
        return &text[digits..];
    }
    match text[0] {
        b'n' => out.push(b'\n'),
        b't' => out.push(b'\t'),
        b'r' => out.push(b'\r'),
        b'\\' => out.push(b'\\'),
        other => out.extend_from_slice(&[b'\\', other]),
    }
    &text[1..]
}
