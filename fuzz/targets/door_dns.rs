//! The fuzzer's door to [`belljar_fuzz::door_dns`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::door_dns::check(bytes));
