//! The fuzzer's door to [`belljar_fuzz::policy_file`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::policy_file::check(bytes));
