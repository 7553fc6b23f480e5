//! The fuzzer's door to [`belljar_fuzz::door_http`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::door_http::check(bytes));
