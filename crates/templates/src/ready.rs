//! Templates that are ready to be built.

/// Their names, and what they are for.
pub const READY: [(&str, &str); 3] = [
    ("python", "Python with nothing but its standard library"),
    ("data", "Python with what people analyse data with"),
    ("agent", "Node, Python, git, ripgrep and a coding agent"),
];

/// The recipe of a template that is ready to be built.
pub fn ready(name: &str) -> Option<&'static str> {
    match name {
        "python" => Some(include_str!("../ready/python.toml")),
        "data" => Some(include_str!("../ready/data.toml")),
        "agent" => Some(include_str!("../ready/agent.toml")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_can_be_read() {
        for (name, _) in READY {
            let recipe = ready(name).map(belljar_recipe::template);
            assert!(matches!(recipe, Some(Ok(_))), "{name}: {recipe:?}");
        }
    }
}
