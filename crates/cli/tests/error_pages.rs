//! Every error code has a page that says what to do, and the list of pages links to it.

use std::path::Path;

use belljar_core::ErrorCode;

#[test]
fn every_code_has_a_page() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let list = std::fs::read_to_string(pages.join("README.md")).unwrap();
    for code in ErrorCode::ALL {
        let page = std::fs::read_to_string(pages.join(format!("{code}.md"))).unwrap_or_default();
        assert!(page.starts_with(&format!("# {code}\n")), "{code}.md is missing or has another title");
        for heading in ["## What it means", "## Typical causes", "## What to do"] {
            assert!(page.contains(heading), "{code}.md has no \"{heading}\"");
        }
        assert!(list.contains(&format!("({code}.md)")), "README.md does not link to {code}.md");
    }
}

#[test]
fn there_is_no_page_without_a_code() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    for page in std::fs::read_dir(pages).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        let known = ErrorCode::ALL.iter().any(|code| format!("{code}.md") == name);
        assert!(known || name == "README.md", "{name} explains no error code");
    }
}
