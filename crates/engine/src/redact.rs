//! What is written down of a request: not the tokens of the gateway that are handed on in it.

use belljar_core::{Command, ExecRequest, hide_tokens};

/// The same request without tokens.
pub(crate) fn without_tokens(request: &ExecRequest) -> ExecRequest {
    let mut told = request.clone();
    told.env.values_mut().for_each(hide_tokens);
    match &mut told.command {
        Command::Argv(words) => words.iter_mut().for_each(hide_tokens),
        Command::Shell(script) => hide_tokens(script),
    }
    told
}

#[cfg(test)]
mod tests {
    use belljar_core::TOKEN_PREFIX as PREFIX;

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
