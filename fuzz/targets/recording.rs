//! The fuzzer's door to [`belljar_fuzz::recording`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::recording::check(bytes));
