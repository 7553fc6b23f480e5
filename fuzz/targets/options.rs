//! The fuzzer's door to [`belljar_fuzz::options`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::options::check(bytes));
