//! The fuzzer's door to [`belljar_fuzz::gateway_usage`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::gateway_usage::check(bytes));
