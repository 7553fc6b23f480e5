//! The fuzzer's door to [`belljar_fuzz::terminal_text`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::terminal_text::check(bytes));
