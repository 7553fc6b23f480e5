//! The fuzzer's door to [`belljar_fuzz::door_hello`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::door_hello::check(bytes));
