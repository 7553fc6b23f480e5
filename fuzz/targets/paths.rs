//! The fuzzer's door to [`belljar_fuzz::paths`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::paths::check(bytes));
