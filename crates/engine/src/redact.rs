//! What is written down of a request: not the tokens of the gateway that are handed on in it.

use belljar_core::{Command, ExecRequest};

/// What every token begins with (`belljar_network::gateway::token`).
const PREFIX: &str = "bjt_";
/// What stands for the rest of one.
const HIDDEN: &str = "***";
/// So many digits are not there by chance.
const FEWEST: usize = 16;

/// The same request without tokens.
pub(crate) fn without_tokens(request: &ExecRequest) -> ExecRequest {
    let mut told = request.clone();
    told.env.values_mut().for_each(hide);
    match &mut told.command {
        Command::Argv(words) => words.iter_mut().for_each(hide),
        Command::Shell(script) => hide(script),
    }
    told
}

fn hide(text: &mut String) {
    let mut from = 0;
    while let Some(at) = text[from..].find(PREFIX) {
        let begin = from + at + PREFIX.len();
        let digits = text[begin..].bytes().take_while(u8::is_ascii_hexdigit).count();
        from = begin;
        if digits >= FEWEST {
            text.replace_range(begin..begin + digits, HIDDEN);
            from += HIDDEN.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_not_told_and_everything_else_is() {
        let token = format!("{PREFIX}{}", "0a".repeat(32));
        let script = format!("curl -H 'x: {token}' -H y:{token} é bjt_ bjt_é bjt_12");
        let mut request = ExecRequest::argv(["sh", "-c", &script]);
        request.env.insert("KEY".into(), token);
        request.env.insert("OTHER".into(), "value".into());
        let told = without_tokens(&request);
        assert!(!format!("{told:?}").contains("0a0a"), "{told:?}");
        assert_eq!((&*told.env["KEY"], &*told.env["OTHER"]), ("bjt_***", "value"));
        let Command::Argv(words) = told.command else { panic!("another command") };
        assert_eq!(words[2], "curl -H 'x: bjt_***' -H y:bjt_*** é bjt_ bjt_é bjt_12");
    }
}
